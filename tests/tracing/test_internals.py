"""What tracing relies on inside xarray and dask: each test fails loudly when it changes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import timeit
from functools import partial
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from dask._task_spec import Alias, DataNode, Task
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArraySliceDep
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.coding import strings, times, variables
from xarray.coding.common import _ElementwiseFunctionArray
from xarray.core import indexing

from insitu_xr.tracing import foreign, trace
from insitu_xr.tracing.block import NotStoredError
from insitu_xr.tracing.lazy import allowed
from tests.tracing.evaluation import ENCODING, chain, fields, lazy, write
from tests.tracing.test_values import STORED, put

PLAIN = [indexing.MemoryCachedArray, indexing.CopyOnWriteArray]
LEAF = [indexing.LazilyIndexedArray, ZarrArrayWrapper]


def functions(array: xr.DataArray) -> list[Any]:
    found: list[Any] = []
    data: Any = array.variable._data
    while data is not None and not hasattr(data, "get_array"):
        if type(data) is _ElementwiseFunctionArray:
            found.append(data.func)
        data = getattr(data, "array", None)
    return found


def opened(name: str, zarr_format: int = 3) -> xr.DataArray:
    raw, dtype, attributes = STORED[name]
    return lazy(put(zarr_format, raw, dtype, attributes))["v"]


def test_the_plain_chain() -> None:
    assert chain(opened("f4")) == [*PLAIN, *LEAF]


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [("f8 big-endian", variables.NativeEndiannessArray), ("bool attribute", variables.BoolTypeArray)],
)
def test_wrappers_of_dtype(name: str, wrapper: type) -> None:
    assert wrapper in chain(opened(name, 2))  # v3 keeps the byte order to its codecs


@pytest.mark.filterwarnings("ignore:The data type")
def test_the_wrapper_of_characters() -> None:
    raw = np.frombuffer(b"abcdef", "S1").reshape(2, 3)
    assert chain(lazy(put(3, raw, "S1", {}, fill=b""))["v"]) == [*PLAIN, strings.StackedBytesArray, *LEAF]


def test_the_wrapper_of_a_transpose() -> None:
    assert chain(opened("f4").transpose()) == [indexing.LazilyVectorizedIndexedArray, ZarrArrayWrapper]


def test_the_wrapper_of_an_index() -> None:
    assert chain(fields()["y"])[0] is indexing.PandasIndexingAdapter


def test_the_wrapper_of_cached_values() -> None:
    array = opened("f4")
    assert array.values.size
    assert chain(array)[:2] == [indexing.MemoryCachedArray, indexing.NumpyIndexingAdapter]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f2 masked", [variables._apply_mask]),
        ("packed i2", [variables._scale_offset_decoding]),
        ("packed i2 masked", [variables._scale_offset_decoding, variables._apply_mask]),
        ("unsigned", [np.asarray]),
    ],
)
def test_element_wise_functions(name: str, expected: list[Any]) -> None:
    found = functions(opened(name))
    assert [type(function) for function in found] == [partial] * len(found)
    assert [function.func for function in found] == expected
    assert [allowed(function) for function in found] == found


@pytest.mark.parametrize(
    ("attributes", "decoder"),
    [
        ({"units": "days since 2000-01-01"}, times.decode_cf_datetime),
        ({"units": "hours", "dtype": "timedelta64[s]"}, times.decode_cf_timedelta),
    ],
)
def test_decoders_of_dates(attributes: dict[str, Any], decoder: Any) -> None:
    (function,) = functions(lazy(put(3, [0, 1, 2], "i8", attributes))["v"])
    assert function.func is decoder
    with pytest.raises(NotStoredError) as caught:
        allowed(function)
    assert caught.value.kind == "memory"


def _apply_mask(data: Any) -> Any:
    return -data


@pytest.mark.parametrize(
    "function",
    [_apply_mask, partial(_apply_mask), np.negative, partial(np.asarray), partial(np.asarray, dtype="f4", order="F")],
)
def test_a_function_is_known_by_identity_not_by_name(function: Any) -> None:
    with pytest.raises(NotStoredError) as caught:
        allowed(function)
    assert caught.value.kind == "foreign"


@pytest.mark.parametrize(("module", "name"), sorted(foreign.NETCDF_WRAPPERS))
def test_wrappers_of_netcdf_files(module: str, name: str) -> None:
    pytest.importorskip({"netCDF4_": "netCDF4", "h5netcdf_": "h5netcdf", "scipy_": "scipy"}[module.rsplit(".", 1)[1]])
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_the_layers_of_dask() -> None:
    ds = xr.open_zarr(write(fields(), 3, ENCODING), consolidated=False)
    data = ds["t"].data
    assert type(data.dask) is HighLevelGraph
    leaf, layer = data.dask.layers["original-" + data.name], data.dask.layers[data.name]
    assert type(layer) is Blockwise
    assert [type(dep) for dep in layer.io_deps.values()] == [ArraySliceDep]
    assert type(leaf["original-" + data.name]) is indexing.ImplicitToExplicitIndexingAdapter
    assert type(ds["t"].transpose().data.dask.layers[ds["t"].transpose().data.name]) is Blockwise
    rolled = ds["t"].isel(time=[3, 1, 7]).data
    assert {type(node) for node in rolled.dask.layers[rolled.name].values()} <= {Task, DataNode, Alias}


def test_array_expressions_are_off() -> None:
    assert not dask.config.get("array.query-planning", False)


def test_tracing_a_lazy_variable_loads_no_dask() -> None:
    code = """
import sys, xarray as xr, zarr
from insitu_xr.tracing import trace
store = zarr.storage.MemoryStore()
zarr.open_group(store, mode="w").create_array("v", shape=(3,), dtype="f4", dimension_names=["x"])
assert trace(xr.open_zarr(store, chunks=None, consolidated=False)["v"]).kind == "stored"
assert "dask.array" not in sys.modules, "dask.array"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_trace_takes_well_under_a_millisecond() -> None:
    array = lazy(write(fields(), 3, ENCODING))["p"].isel(time=slice(None, None, 2))
    # The best of many: what a shared machine does to the others says nothing about us.
    assert min(timeit.repeat(lambda: trace(array), number=1, repeat=50)) < 1e-3
