from __future__ import annotations

import base64
import struct
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from insitu_xr.tracing import trace
from tests.tracing.evaluation import assert_traces, lazy

INTS = np.array([[0, 1, -5, 7], [100, -1, 3, 120]])

#: raw values, dtype, attributes
STORED: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "f4": (INTS, "f4", {}),
    "f2": (INTS, "f2", {}),
    "f2 masked": (INTS, "f2", {"_FillValue": 7.0}),
    "f8 big-endian": (INTS, ">f8", {}),
    "f4 big-endian masked": (INTS, ">f4", {"_FillValue": 7.0}),
    "complex": (INTS * (1 + 2j), "c8", {}),
    "bool": (INTS > 0, "bool", {}),
    "bool attribute": (INTS > 0, "i1", {"dtype": "bool"}),
    "i8": (INTS, "i8", {}),
    "u2": (abs(INTS), "u2", {}),
    "i4 masked": (INTS, "i4", {"_FillValue": 7}),
    "i8 masked": (INTS, "i8", {"_FillValue": 7}),
    "packed i2": (INTS, "i2", {"scale_factor": 0.1, "add_offset": 2.0}),
    "packed i2 masked": (INTS, "i2", {"scale_factor": 0.1, "add_offset": 2.0, "_FillValue": -1}),
    "packed i4": (INTS, "i4", {"scale_factor": 0.1, "_FillValue": -1}),
    "packed big-endian": (INTS, ">i2", {"scale_factor": 0.1, "_FillValue": -1}),
    "offset alone": (INTS, "i2", {"add_offset": 2.0}),
    "scale alone": (INTS, "i2", {"scale_factor": np.float32(0.5).item()}),
    "unsigned": (INTS, "i1", {"_Unsigned": "true"}),
    "unsigned masked": (INTS, "i1", {"_Unsigned": "true", "_FillValue": -1}),
    "unsigned packed": (INTS, "i1", {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}),
    "signed again": (abs(INTS), "u1", {"_Unsigned": "false"}),
    "missing_value": (INTS, "f4", {"missing_value": 3.0}),
    "several missing values": (INTS, "i2", {"missing_value": [3, 7]}),
    "missing_value beside _FillValue": (INTS, "i2", {"missing_value": 3, "_FillValue": 7}),
    "missing_value beside _FillValue, packed": (INTS, "i2", {"missing_value": 3, "_FillValue": 7, "scale_factor": 0.5}),
    "units that are no time": (INTS, "f4", {"units": "days accumulated"}),
    "fixed bytes": (INTS, "S3", {}),
    "fixed unicode": (INTS, "U3", {}),
}

SELECTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "part": {"y": [1, 0, 1], "x": slice(None, None, -2)},
    "row": {"y": 1},
    "one": {"y": 1, "x": 3},
}


def put(
    zarr_format: int, raw: Any, dtype: str, attributes: dict[str, Any], fill: Any = 0, **options: Any
) -> MemoryStore:
    store = MemoryStore()
    group = zarr.open_group(store, mode="w", zarr_format=zarr_format)  # type: ignore[arg-type]
    raw = np.asarray(raw)
    dims = ["y", "x", "z"][: raw.ndim]
    if zarr_format == 3:
        options["dimension_names"] = dims
        attributes = {key: encoded(value) if key == "_FillValue" else value for key, value in attributes.items()}
    else:
        attributes = attributes | {"_ARRAY_DIMENSIONS": dims}
    array = group.create_array(
        "v", shape=raw.shape, chunks=(1,) * raw.ndim, dtype=dtype, fill_value=fill, attributes=attributes, **options
    )
    array[...] = raw.astype(dtype)
    return store


def encoded(value: Any) -> Any:
    """Write a fill value as xarray does in the attributes of a v3 array."""
    return base64.b64encode(struct.pack("<d", value)).decode() if isinstance(value, float) else value


@pytest.fixture(autouse=True)
def quiet() -> Any:
    # xarray warns of several fill values, zarr of dtypes whose v3 form is not settled: both are what we test here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", STORED)
def test_values_and_dtype_are_xarrays(name: str, selection: str, zarr_format: int) -> None:
    raw, dtype, attributes = STORED[name]
    fill: Any = "" if dtype[0] == "U" else b"" if dtype[0] == "S" else 0
    ds = lazy(put(zarr_format, raw, dtype, attributes, fill))
    assert_traces(ds["v"].isel(SELECTIONS[selection]))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("as_mask", [None, True, False])
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_the_fill_value_of_zarr_as_mask(zarr_format: int, as_mask: bool | None, dtype: str) -> None:
    store = put(zarr_format, INTS, dtype, {}, fill=7)
    traced = assert_traces(lazy(store, use_zarr_fill_value_as_mask=as_mask)["v"])
    if as_mask is None:
        assert bool(traced.segments[0].functions) == (zarr_format == 2)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["packed i2 masked", "f4 big-endian masked", "bool attribute", "unsigned"])
def test_without_mask_and_scale(name: str, zarr_format: int) -> None:
    raw, dtype, attributes = STORED[name]
    store = put(zarr_format, raw, dtype, attributes)
    assert_traces(lazy(store, mask_and_scale=False)["v"].isel(y=[1, 0]))
    assert_traces(lazy(store, decode_cf=False)["v"].isel(y=[1, 0]))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("attributes", [{}, {"_FillValue": 9.0}, {"_FillValue": 9.0, "scale_factor": 2.0}])
def test_absent_chunks_hold_the_fill_value(zarr_format: int, attributes: dict[str, Any]) -> None:
    store = put(zarr_format, np.full((2, 4), 9), "f4", attributes, fill=9.0)  # zarr writes no chunk of fill values
    assert not [key for key in store._store_dict if key.endswith(("0.0", "c/0/0"))]
    assert_traces(lazy(store)["v"])


def test_shards() -> None:
    store = MemoryStore()
    group = zarr.open_group(store, mode="w")
    array = group.create_array("v", shape=(6, 7), chunks=(1, 2), shards=(3, 4), dtype="f4", dimension_names=["y", "x"])
    array[...] = np.arange(42).reshape(6, 7)
    assert_traces(lazy(store)["v"].isel(y=[4, 0], x=slice(1, 6, 2)))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_characters_joined_to_strings(zarr_format: int, whole: bool) -> None:
    raw = np.frombuffer(b"abcdefghijkl", "S1").reshape(2, 2, 3)
    store = put(zarr_format, raw, "S1", {}, fill=b"")
    array = lazy(store)["v"]
    assert_traces(array if whole else array.isel(y=1), "foreign")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_of_any_length(zarr_format: int) -> None:
    ds = xr.Dataset({"v": ("y", np.array(["a", "bcd", ""], dtype=object))})
    store = MemoryStore()
    ds.to_zarr(store, zarr_format=zarr_format, consolidated=False)
    traced = assert_traces(lazy(store)["v"].isel(y=[1, 0]), "foreign")
    assert traced.dtype.kind in "OT"


TIMES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "whole days": ([0, 1, 2], "i8", {"units": "days since 2000-01-01"}),
    "fractional": ([0.0, 0.5, 0.3], "f8", {"units": "days since 2000-01-01"}),
    "missing": ([0, -1, 2], "i8", {"units": "days since 2000-01-01", "_FillValue": -1}),
    "beyond nanoseconds": ([0, 400_000, 2], "i8", {"units": "days since 2000-01-01"}),
    "360 days": ([0, 59, 60], "i8", {"units": "days since 2000-01-01", "calendar": "360_day"}),
    "timedelta": ([0, 5, 9], "i8", {"units": "hours", "dtype": "timedelta64[s]"}),
    "fractional timedelta": ([0.0, 0.1, 0.7], "f8", {"units": "hours", "dtype": "timedelta64[s]"}),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("part", [slice(None), slice(0, 1), [2, 1]])
@pytest.mark.parametrize("name", TIMES)
def test_dates_go_to_memory_once(name: str, part: Any, zarr_format: int) -> None:
    raw, dtype, attributes = TIMES[name]
    ds = lazy(put(zarr_format, raw, dtype, attributes, fill=-999))
    traced = assert_traces(ds["v"].isel(y=part), "memory")
    assert "dates" in traced.note


def test_an_integer_scale() -> None:
    # With a mask (which v2 makes of the fill value) xarray itself fails on such a variable.
    assert_traces(lazy(put(3, INTS, "i2", {"scale_factor": 2}))["v"])


def test_dates_that_are_not_decoded_are_numbers() -> None:
    raw, dtype, attributes = TIMES["whole days"]
    assert_traces(lazy(put(3, raw, dtype, attributes), decode_times=False)["v"])


def test_the_note_says_why() -> None:
    raw, dtype, attributes = TIMES["whole days"]
    assert trace(lazy(put(3, raw, dtype, attributes))["v"]).note
    assert not trace(lazy(put(3, raw, "f4", {}))["v"]).note
