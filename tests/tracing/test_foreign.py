from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from insitu_xr.errors import UnsupportedSourceError
from insitu_xr.tracing import trace
from tests.tracing.evaluation import assert_same, assert_traces, chain, fields, lazy, write


class StrangeArray(BackendArray):
    """A backend that nobody knows."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.shape = values.shape
        self.dtype = values.dtype

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(
            key,
            self.shape,
            indexing.IndexingSupport.OUTER,
            lambda k: self.values[np.ix_(*map(_positions, k, self.shape))],
        )


def _positions(key: Any, size: int) -> Any:
    return np.arange(size)[key] if isinstance(key, slice) else np.atleast_1d(key)


def strange() -> xr.DataArray:
    leaf = StrangeArray(np.arange(60.0).reshape(12, 5))
    data: Any = indexing.MemoryCachedArray(indexing.LazilyIndexedArray(leaf))  # type: ignore[no-untyped-call]
    array = xr.DataArray(xr.Variable(("time", "x"), data, fastpath=True), name="v", coords={"x": list("abcde")})
    array.encoding = {"preferred_chunks": {"time": 4, "other": 9}}
    return array


@pytest.mark.parametrize("selection", [{}, {"time": [3, 1]}, {"x": slice(None, None, -2)}])
def test_an_unknown_backend_is_read_through_xarray(selection: Any) -> None:
    traced = assert_traces(strange().isel(selection), "foreign")
    assert "StrangeArray" in traced.note


def test_blocks_are_read_from_many_threads_and_nothing_is_kept() -> None:
    array = strange().isel(time=slice(None, None, -1))
    traced = trace(array)
    assert traced.read is not None
    before = chain(array)
    blocks = [{"time": slice(i, i + 2), "x": slice(i % 3, None)} for i in range(10)] * 10
    with ThreadPoolExecutor(4) as pool:
        for block, values in zip(blocks, pool.map(traced.read, blocks), strict=True):
            assert_same(values, np.asarray(array.copy(deep=True).isel(block).values))
    assert chain(array) == before


def test_the_hint_of_chunks_names_own_dimensions_alone() -> None:
    assert dict(trace(strange()).preferred_chunks) == {"time": 4}


def test_a_scalar_read_through_xarray() -> None:
    array = lazy(write(xr.Dataset({"v": ((), np.array("abc", dtype=object))})))["v"]
    traced = trace(array)
    assert traced.read is not None
    before = chain(array)
    assert traced.read({}) == "abc"
    assert chain(array) == before


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "scipy"])
def test_netcdf_is_refused_with_ways_to_open_it(tmp_path: Any, engine: Any, chunks: Any) -> None:
    pytest.importorskip({"netcdf4": "netCDF4", "h5netcdf": "h5py", "scipy": "scipy"}[engine])
    path = tmp_path / "t.nc"
    fields()[["t"]].to_netcdf(path, engine=engine, format="NETCDF3_64BIT" if engine == "scipy" else "NETCDF4")
    with xr.open_dataset(path, engine=engine, chunks=chunks) as ds:
        with pytest.raises(UnsupportedSourceError) as caught:
            trace(ds["t"].isel(time=[3, 1]))
        for word in ("'t'", "netCDF", "insitu_xr.open_dataset", "to_zarr", ".load()"):
            assert word in str(caught.value)
        assert_traces(ds["t"].compute(), "memory")
