"""Tensors hold what the numpy batch holds, in the same memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr.storage

import insitu_xr  # noqa: F401  (registers ds.insitu)
from insitu_xr import InsituError
from insitu_xr.engine import blocks
from insitu_xr.errors import DtypeError
from insitu_xr.testing import CountingStore

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES = [
    "bool",
    *INTEGERS,
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
SAMPLES = 10


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def stored(**variables: xr.Variable) -> xr.Dataset:
    """Write variables to memory, three samples per chunk, and open them in place."""
    times = np.datetime64("2000-01-01", "ns") + np.arange(SAMPLES) * np.timedelta64(6, "h")
    dataset = xr.Dataset(variables, coords={"time": times})
    store = zarr.storage.MemoryStore()
    chunks = {name: {"chunks": (3, *v.shape[1:])} for name, v in variables.items() if v.dims[0] == "time"}
    dataset.to_zarr(store, zarr_format=3, consolidated=False, encoding=chunks)
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened


def field(dtype: str = "float32", start: int = 0) -> xr.Variable:
    values = np.arange(start, start + SAMPLES * 6).reshape(SAMPLES, 2, 3).astype(dtype)
    return xr.Variable(("time", "y", "x"), values)


def assert_shares(tensor: Any, array: np.ndarray[Any, Any]) -> None:
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    assert tuple(tensor.shape) == array.shape
    assert tensor.is_contiguous()
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_shares_the_memory_of_the_array(torch: Any, dtype: str) -> None:
    dataset = stored(t=field(dtype))
    with dataset.insitu.loader(variables=["t"], batch_size=4, shuffle=True) as loader:
        for batch in loader.to("torch"):
            assert_shares(batch["t"], batch.source["t"])
            assert batch["t"].dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(batch["t"].numpy(), dataset["t"].values[batch.positions])


def test_writing_to_a_tensor_shows_in_the_array(torch: Any) -> None:
    with stored(t=field()).insitu.loader(variables=["t"], batch_size=4) as loader:
        batch = next(iter(loader.to("torch")))
        batch["t"].fill_(7)
        assert (batch.source["t"] == 7).all()


def test_inputs_and_targets_are_tensors_by_name(torch: Any) -> None:
    dataset = stored(t=field(), z=field(start=100))
    groups = {
        "inputs": {"variables": ["t", "z"], "leads": ["0h", "6h"]},
        "targets": {"variables": ["t"], "leads": ["12h"]},
    }
    with dataset.insitu.loader(**groups, batch_size=4) as loader:
        for batch in loader.to("torch"):
            assert list(batch.inputs) == ["t", "z"]
            assert list(batch.targets) == ["t"]
            for name in ("t", "z"):
                assert_shares(batch.inputs[name], batch.source.inputs[name])
            assert_shares(batch.targets["t"], batch.source.targets["t"])
            np.testing.assert_array_equal(batch.targets["t"][:, 0].numpy(), dataset["t"].values[batch.positions + 2])


def test_stacked_groups_are_one_tensor_each(torch: Any) -> None:
    dataset = stored(t=field(), z=field(start=100))
    groups = {"inputs": {"variables": ["t", "z"]}, "targets": {"variables": ["t"], "leads": ["6h"]}}
    with dataset.insitu.loader(**groups, batch_size=4, layout="stacked") as loader:
        batch = next(iter(loader.to("torch")))
        assert batch.inputs.shape == (4, 2, 2, 3)
        assert_shares(batch.inputs, batch.source.inputs)
        assert_shares(batch.targets, batch.source.targets)
        assert batch.channels == batch.source.channels


def test_statics_are_tensors(torch: Any) -> None:
    dataset = stored(t=field(), mask=xr.Variable(("y", "x"), np.arange(6, dtype="float32").reshape(2, 3)))
    with dataset.insitu.loader(variables=["t"], statics=["mask"], batch_size=4) as loader:
        for batch in loader.to("torch"):
            np.testing.assert_array_equal(batch.statics["mask"].numpy(), dataset["mask"].values)


def test_what_is_no_array_comes_from_the_numpy_batch(torch: Any) -> None:
    dataset = stored(t=field())
    with dataset.insitu.loader(variables=["t"], leads=["0h", "6h"], batch_size=4) as loader:
        batch = next(iter(loader.to("torch")))
        assert len(batch) == len(batch.source) == 4
        for name in ("anchors", "positions"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(batch.source, name))
        for name in ("leads", "valid_times"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(batch.source, name))
        assert list(batch.coords) == list(batch.source.coords)


def test_to_xarray_is_the_selection_by_xarray(torch: Any) -> None:
    dataset = stored(t=field())
    with dataset.insitu.loader(variables=["t"], batch_size=4, shuffle=True) as loader:
        for batch in loader.to("torch"):
            xr.testing.assert_identical(batch.to_xarray(), dataset[["t"]].isel(time=batch.positions))


def test_iterating_again_is_the_next_epoch(torch: Any) -> None:
    with stored(t=field()).insitu.loader(variables=["t"], batch_size=4, shuffle=True, seed=1) as loader:
        batches = loader.to("torch")
        assert len(batches) == len(loader) == 3
        first, second = (np.concatenate([batch.positions for batch in batches]) for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(SAMPLES))
        assert list(first) != list(second)
        batches.set_epoch(0)
        np.testing.assert_array_equal(np.concatenate([batch.positions for batch in batches]), first)


def test_leaving_early_is_harmless(torch: Any) -> None:
    with stored(t=field()).insitu.loader(variables=["t"], batch_size=2) as loader:
        for _ in range(3):
            for batch in loader.to("torch"):
                assert len(batch) == 2
                break


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.arange(SAMPLES).astype("datetime64[D]").astype("datetime64[ns]"), r"datetime64\[ns\]"),
        (np.array([b"ab"] * SAMPLES), r"\|?S2"),
        (np.array(["ab"] * SAMPLES), r"<U2"),
    ],
    ids=["datetime64", "bytes", "text"],
)
def test_a_dtype_that_torch_lacks_is_refused_by_name(torch: Any, values: Any, dtype: str) -> None:
    dataset = xr.Dataset({"t": field(), "odd": (("time",), values)})
    message = rf"'odd' must have a dtype that torch knows, but got {dtype}; leave it out"
    with dataset.insitu.loader(variables=["t", "odd"], sample_dim="time", batch_size=4) as loader:
        with pytest.raises(DtypeError, match=message):
            loader.to("torch")
        assert loader.stats.batches == 0
        assert len(next(iter(loader))["odd"]) == 4


def test_big_endian_values_arrive_in_native_order(torch: Any) -> None:
    dataset = xr.Dataset({"t": field(">f4")})
    with dataset.insitu.loader(variables=["t"], sample_dim="time", batch_size=4) as loader:
        for batch in loader.to("torch"):
            assert_shares(batch["t"], batch.source["t"])
            np.testing.assert_array_equal(batch["t"].numpy(), dataset["t"].values[batch.positions])


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.utils", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r'pip install "insitu-xr\[torch\]"'
    with (
        stored(t=field()).insitu.loader(variables=["t"]) as loader,
        pytest.raises(ImportError, match=message) as caught,
    ):
        loader.to("torch")
    assert isinstance(caught.value, InsituError)


def test_a_retained_tensor_never_changes(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand steps in which memory goes from batch to batch, but none that a tensor or a view still sees."""
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    dataset = stored(t=field(), z=field(start=1000))
    values, rng = dataset["t"].values, np.random.default_rng(0)
    kept: list[tuple[Any, Any]] = []
    addresses, steps = set(), 0
    with dataset.insitu.loader(variables=["t", "z"], batch_size=3, shuffle="global", layout="stacked") as loader:
        batches = loader.to("torch")
        while steps < 2000:
            for batch in batches:
                steps += 1
                tensor, expected = batch.variables, values[batch.positions]
                addresses.add(tensor.data_ptr())
                kept.append(
                    (tensor[:, 0] if steps % 2 else batch["t"], expected[:, None] if not steps % 2 else expected)
                )
                del tensor, batch
                if len(kept) > 12:
                    seen, expected = kept.pop(int(rng.integers(len(kept))))
                    np.testing.assert_array_equal(seen.numpy(), expected)
    for seen, expected in kept:
        np.testing.assert_array_equal(seen.numpy(), expected)
    assert len(addresses) < 500, "memory must have been used again for this test to say anything"


def test_many_leads_cost_one_read_and_one_gather(torch: Any) -> None:
    """A rollout of 20 steps reads each chunk once, and copies each array at once, not lead by lead."""
    store = zarr.storage.MemoryStore()
    times = np.datetime64("2000-01-01", "ns") + np.arange(60) * np.timedelta64(6, "h")
    values = np.arange(60 * 6, dtype="f4").reshape(60, 2, 3)
    ds = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": times})
    ds.to_zarr(store, consolidated=False, encoding={"t": {"chunks": (5, 2, 3)}})
    counting = CountingStore(store)
    opened = xr.open_zarr(counting, chunks=None, consolidated=False)
    leads = [f"{6 * k}h" for k in range(1, 21)]
    groups = {"inputs": {"variables": ["t"]}, "targets": {"variables": ["t"], "leads": leads}}
    with opened.insitu.loader(**groups, batch_size=4, shuffle=True) as loader:
        before = len(counting.data_gets)
        for batch in loader.to("torch"):
            expected = values[batch.positions[:, None] + np.arange(1, 21)]
            np.testing.assert_array_equal(batch.targets["t"].numpy(), expected)
            assert batch.targets["t"].is_contiguous()
        assert loader.stats.reads == 12
        assert len(counting.data_gets) - before == 12
        assert loader._machinery._machine is not None
        parts = loader._machinery._machine.gatherer.parts(4)
        assert [(p.take, p.start, p.stop) for part in parts for p in part] == [(0, 0, 4), (1, 0, 4)], "not lead by lead"
