"""Data that were never written: kept as fill values, or dropped and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from insitu_xr import InsituError

TIMES = pd.date_range("2000", periods=30, freq="6h")


def dataset(zarr_format: int = 3, shards: bool = False) -> xr.Dataset:
    """Variable "a" is whole; "b" was added later, and has nothing before position 21; "c" lacks single chunks."""
    store = MemoryStore()
    ds = xr.Dataset({n: (("time", "x"), np.ones((30, 4), "f4")) for n in "abc"}, {"time": TIMES})
    chunks: dict[str, Any] = {"chunks": (3, 2)} | ({"shards": (3, 4)} if shards else {})
    ds.to_zarr(store, zarr_format=zarr_format, consolidated=False, encoding=dict.fromkeys("abc", chunks))
    separator, prefix = ("/", "c/") if zarr_format == 3 else (".", "")
    cells = [""] if shards else ["0", "1"]
    for k in range(7):
        for x in cells:
            store._store_dict.pop(f"b/{prefix}{k}{separator}{x or 0}")
    if not shards:
        store._store_dict.pop(f"c/{prefix}2{separator}1")
    opened: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return opened


@pytest.mark.parametrize("options", [{}, {"zarr_format": 2}, {"shards": True}])
def test_what_was_never_written_is_dropped_on_request(options: dict[str, Any]) -> None:
    ds = dataset(**options)
    request = {"variables": ["a", "b", "c"], "leads": ["0h", "6h"], "batch_size": 4}
    assert ds.insitu.plan(**request).anchors_kept == 29
    loader = ds.insitu.loader(**request, absent="drop", shuffle=True)
    drawn = sorted(int(k) for batch in loader for k in batch.positions)
    assert drawn == list(range(21, 29))
    assert [str(d) for d in loader.plan.dropped] == [
        "1 after the end at lead 6h of 'a', 'b', 'c' (2000-01-08T06:00:00)",
        "21 touching absent data of 'b' (2000-01-01, 2000-01-01T06:00:00, 2000-01-01T12:00:00, ...)",
    ]
    assert loader.stats.absent == 0


def test_kept_by_default_as_xarray_shows_it() -> None:
    ds = dataset()
    for batch in ds.insitu.loader(variables=["b", "c"], batch_size=7):
        xr.testing.assert_identical(batch.to_xarray(), ds[["b", "c"]].isel(time=batch.positions).compute())


def test_a_single_chunk_of_a_field_is_no_stretch() -> None:
    """Writers leave chunks of zeros out: only where nothing of a stretch is there is it taken as absent."""
    assert dataset().insitu.plan(variables=["c"], absent="drop").anchors_kept == 30


def test_nothing_left() -> None:
    ds = dataset().isel(time=slice(0, 12))
    with pytest.raises(InsituError, match="must have stored data for absent='drop', but got none: 12 touching absent"):
        ds.insitu.plan(variables=["b"], absent="drop")
    with pytest.raises(InsituError, match="absent must be 'keep' or 'drop', but got 'skip'"):
        ds.insitu.plan(variables=["b"], absent="skip")


def test_an_array_of_zeros_that_was_never_written() -> None:
    store = MemoryStore()
    zarr.create_array(store, name="z", shape=(6, 2), chunks=(2, 2), dtype="f4", dimension_names=("t", "x"))
    ds = xr.open_zarr(store, consolidated=False, chunks=None)
    (batch,) = ds.insitu.loader(variables=["z"], sample_dim="t")
    # On a copy: values that are loaded stay in memory, where nothing is absent.
    assert (batch["z"] == ds.copy()["z"].values).all()
    with pytest.raises(InsituError, match="touching absent data of 'z'"):
        ds.insitu.plan(variables=["z"], sample_dim="t", absent="drop")


@pytest.mark.parametrize("shards", [{}, {"shards": (1, 64)}])
def test_one_stored_chunk_among_many_small_ones_is_enough(shards: dict[str, Any]) -> None:
    values = np.zeros((4, 64), "f4")
    values[0], values[2, 3] = 1, 7
    store = MemoryStore()
    array = zarr.create_array(
        store, name="v", shape=(4, 64), chunks=(1, 1), dtype="f4", fill_value=0, dimension_names=("time", "y"), **shards
    )
    array[:] = values
    assert len([key for key in store._store_dict if key.startswith("v/c/")]) == (2 if shards else 65)
    ds = xr.open_zarr(store, consolidated=False, chunks=None)
    with ds.insitu.loader(variables=["v"], sample_dim="time", absent="drop") as loader:
        assert [k for batch in loader for k in batch.positions] == [0, 2]
