"""Transforms of batches: what they give is delivered, and what they change they must declare."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr import Batch, Loader
from insitu_xr.errors import RequestError
from insitu_xr.plan.arrays import ArraySpec
from insitu_xr.testing import CountingStore

N = 11


def dataset() -> xr.Dataset:
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    values = np.arange(N * 6, dtype="f4").reshape(N, 2, 3)
    return xr.Dataset({"t": (("time", "y", "x"), values), "m": (("y", "x"), values[0])}, {"time": times})


def loader(**options: Any) -> Loader:
    made: Loader = dataset().insitu.loader(**{"variables": ["t"], "batch_size": 4, **options})
    return made


def added(batch: Batch) -> Batch:
    return batch.replaced({key: array + 1 for key, array in batch.arrays.items()})


def doubled(batch: Batch) -> None:
    for array in batch.arrays.values():
        np.multiply(array, 2, out=array)


@dataclass(frozen=True)
class Halves:
    """Keeps every other column, in half precision, and says so."""

    def __call__(self, batch: Batch) -> Batch:
        return batch.replaced({key: array[..., ::2].astype("f2") for key, array in batch.arrays.items()})

    def output(self, template: Mapping[Any, ArraySpec]) -> Mapping[Any, ArraySpec]:
        return {
            key: spec.replace(shape=(*spec.shape[:-1], -(-spec.shape[-1] // 2)), dtype="f2")
            for key, spec in template.items()
        }


@pytest.mark.parametrize("layout", ["dict", "stacked"])
@pytest.mark.parametrize("batch_size", [4, 1, 20], ids=["some", "one", "all"])
def test_transforms_are_carried_out_in_order(layout: str, batch_size: int) -> None:
    ds = dataset()
    with loader(layout=layout, batch_size=batch_size, batch_transforms=[added, doubled, added]) as source:
        for _ in range(2):
            for batch in source:
                expected = (ds["t"].values[batch.positions] + 1) * 2 + 1
                np.testing.assert_array_equal(batch["t"].reshape(expected.shape), expected)
                np.testing.assert_array_equal(batch.anchors, ds["time"].values[batch.positions])


def test_statics_are_transformed_once_in_every_batch() -> None:
    with loader(statics=["m"], batch_size=1, batch_transforms=doubled) as source:
        for batch in source:
            np.testing.assert_array_equal(batch.statics["m"], dataset()["m"].values * 2)


def test_a_declared_change_is_delivered_and_known_beforehand() -> None:
    ds = dataset()
    with loader(batch_transforms=[added, Halves()]) as source:
        assert source.template == {("variables", "t"): ArraySpec((4, 2, 2), np.dtype("f2"))}
        for batch in source:
            np.testing.assert_array_equal(batch["t"], (ds["t"].values[batch.positions] + 1)[..., ::2].astype("f2"))
            assert batch["t"].dtype == np.float16


def test_the_copy_of_a_loader_and_its_shares_transform_as_well() -> None:
    with loader(batch_transforms=[added, Halves()]) as source:
        expected = [batch["t"] for batch in source]
        source.set_epoch(0)
        for other in (pickle.loads(pickle.dumps(source)), source.share(0, 1)):
            for batch, values in zip(other, expected, strict=True):
                np.testing.assert_array_equal(batch["t"], values)


def test_transforms_run_on_the_thread_of_the_consumer() -> None:
    threads = []
    with loader(batch_transforms=lambda batch: threads.append(threading.current_thread())) as source:
        list(source)
    assert set(threads) == {threading.current_thread()}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda b: b.replaced({k: a.astype("f8") for k, a in b.arrays.items()}),
            r"must leave 'variables/t' float32\[4, 2, 3\], but got float64\[4, 2, 3\]; give it a method output",
        ),
        (
            lambda b: b.replaced({k: a[:, 0] for k, a in b.arrays.items()}),
            r"must leave 'variables/t' float32\[4, 2, 3\], but got float32\[4, 3\]",
        ),
        (lambda b: b.replaced({}), r"must leave 'variables/t' float32\[4, 2, 3\], but got nothing"),
        (lambda b: b["t"], "must return a batch, or None where it changed the arrays in place, but got ndarray"),
    ],
    ids=["dtype", "shape", "lost", "array"],
)
def test_an_undeclared_change_is_refused(transform: Any, message: str) -> None:
    with loader(batch_transforms=[transform]) as source, pytest.raises(RequestError, match=message):
        list(source)


def test_what_is_declared_must_be_what_is_delivered() -> None:
    class Wrong(Halves):
        def __call__(self, batch: Batch) -> Batch:
            return batch

    message = r"'variables/t' float16\[4, 2, 2\], but got float32\[4, 2, 3\]"
    with loader(batch_transforms=[Wrong()]) as source, pytest.raises(RequestError, match=message):
        list(source)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (3, "batch_transforms must be a list of functions of a batch, but got 3"),
        ([added, "double"], "batch_transforms must be functions of a batch, but got 'double'"),
    ],
)
def test_what_cannot_be_called_is_refused(transforms: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        loader(batch_transforms=transforms)


def test_a_declaration_without_sense_is_refused_before_anything_is_read() -> None:
    from zarr.storage import MemoryStore

    store = MemoryStore()
    dataset().to_zarr(store, consolidated=False)
    counting = CountingStore(store)
    opened = xr.open_zarr(counting, chunks=None, consolidated=False)
    before = len(counting.data_gets)
    for output, message in (
        (lambda template: 3, "must be a mapping of shapes and dtypes such as the one given to it, but got 3"),
        (lambda template: {}, r"must have the arrays \[\('variables', 't'\)\], but got \[\]"),
    ):
        transform: Any = lambda batch: None  # noqa: E731
        transform.output = output
        with pytest.raises(RequestError, match=message):
            opened.insitu.loader(variables=["t"], batch_transforms=[transform])
    assert len(counting.data_gets) == before


def test_what_a_transform_raises_says_where() -> None:
    def fail(batch: Batch) -> None:
        raise ZeroDivisionError("by the caller")

    with loader(batch_transforms=[fail]) as source:
        with pytest.raises(ZeroDivisionError) as caught:
            list(source)
        assert "fail, at the batch of positions [0, 1, 2, 3]" in caught.value.__notes__[0]


def test_a_transform_that_fails_loses_one_batch_alone() -> None:
    """Also where small batches are made several at once."""
    ds = xr.Dataset({"a": (("t", "x"), np.arange(80.0).reshape(40, 2))})

    def bad(batch: Batch) -> None:
        if batch.positions[0] == 3:
            raise ValueError("once")

    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=1, batch_transforms=[bad]) as loader:
        assert loader.plan.stride > 1
        batches = iter(loader)
        found = [int(next(batches).positions[0]) for _ in range(3)]
        with pytest.raises(ValueError, match="once"):
            next(batches)
        found += [int(batch.positions[0]) for batch in batches]
    assert found == [0, 1, 2, *range(4, 40)]
