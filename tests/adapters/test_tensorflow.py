"""TensorFlow's tensors hold what the numpy batch holds, and never change."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr  # noqa: F401  (registers ds.insitu)
from insitu_xr.engine import blocks
from insitu_xr.errors import DtypeError, InsituError

N = 22


@pytest.fixture
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="TensorFlow is not in the test environment: it is half a gigabyte")


def dataset(dtype: str = "float32") -> xr.Dataset:
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    return xr.Dataset({"t": (("time", "y", "x"), np.arange(N * 48).reshape(N, 6, 8).astype(dtype))}, {"time": times})


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"])
def test_an_epoch_is_what_xarray_shows(tf: Any, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds = dataset(dtype)
    with ds.insitu.loader(variables=["t"], leads=["0h", "6h"], batch_size=5, shuffle=True) as loader:
        for batch in loader.to("tensorflow"):
            assert isinstance(batch["t"], tf.Tensor)
            assert batch["t"].dtype == tf.as_dtype(dtype)
            expected = ds["t"].values[batch.positions[:, None] + np.arange(2)]
            np.testing.assert_array_equal(batch["t"].numpy(), expected, strict=True)


def test_a_retained_tensor_never_changes(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds, rng = dataset(), np.random.default_rng(0)
    values = ds["t"].values
    kept: list[tuple[Any, Any]] = []
    with ds.insitu.loader(variables=["t"], batch_size=4, shuffle="global") as loader:
        batches = loader.to("tensorflow")
        for _ in range(50):
            for batch in batches:
                kept.append((batch["t"], values[batch.positions]))
                if len(kept) > 8:
                    tensor, expected = kept.pop(int(rng.integers(len(kept))))
                    np.testing.assert_array_equal(tensor.numpy(), expected)
    for tensor, expected in kept:
        np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_a_dataset_of_inputs_and_targets_is_an_epoch(tf: Any, layout: str) -> None:
    ds = dataset()
    groups = {"inputs": {"variables": ["t"]}, "targets": {"variables": ["t"], "leads": ["6h"]}}
    with ds.insitu.loader(**groups, layout=layout, batch_size=5) as loader:
        expected = list(loader)
        loader.set_epoch(0)
        made = loader.to("tensorflow").dataset()
        assert made.cardinality().numpy() == len(loader)
        for (inputs, targets), batch in zip(made, expected, strict=True):
            one, other = (inputs, targets) if layout == "stacked" else (inputs["t"], targets["t"])
            np.testing.assert_array_equal(
                one.numpy(), batch.group("inputs") if layout == "stacked" else batch.inputs["t"]
            )
            np.testing.assert_array_equal(other.numpy().ravel(), ds["t"].values[batch.positions + 1].ravel())


def test_a_dtype_that_it_lacks_is_refused_by_name(tf: Any) -> None:
    odd = xr.Dataset({"odd": ("step", np.arange(3).astype("M8[ns]"))})
    with (
        odd.insitu.loader(variables=["odd"], sample_dim="step") as loader,
        pytest.raises(DtypeError, match=r"'odd' must have a dtype that TensorFlow knows, but got datetime64\[ns\]"),
    ):
        loader.to("tensorflow")


def test_without_it_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with dataset().insitu.loader(variables=["t"]) as loader:
        with pytest.raises(ImportError, match="pip install tensorflow") as caught:
            loader.to("tensorflow")
        assert isinstance(caught.value, InsituError)
