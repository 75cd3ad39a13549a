"""A small evaluator of traces, and stores to trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from zarr.storage import MemoryStore

from insitu_xr.tracing import Segment, TracedVariable, trace

if TYPE_CHECKING:
    from collections.abc import Mapping


def evaluate(traced: TracedVariable) -> npt.NDArray[Any]:
    """Read a whole traced variable, in the most naive way."""
    if traced.values is not None:
        return traced.values
    if traced.read is not None:
        return traced.read({dim: slice(0, size) for dim, size in zip(traced.dims, traced.shape, strict=True)})
    parts = [_part(segment, traced.dims) for segment in traced.segments]
    return parts[0] if traced.concat_dim is None else np.concatenate(parts, traced.dims.index(traced.concat_dim))


def _part(segment: Segment, dims: tuple[str, ...]) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.asarray(segment.array[...])
    for axis in reversed(range(values.ndim)):
        values = np.take(values, segment.index[axis], axis)
    for function in segment.functions:
        values = function(np.asarray(values))
    fed = [dim for dim in segment.axis_dims if dim is not None]
    values = np.transpose(values, [fed.index(dim) for dim in dims if dim in fed])
    return np.expand_dims(values, tuple(place for place, dim in enumerate(dims) if dim not in fed))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give a dtype in native byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def assert_same(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Same dtype up to byte order, same shape, same bytes."""
    expected = expected.astype(native(expected.dtype))
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind in "OT":
        assert got.tolist() == expected.tolist()
    else:
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()


def assert_traces(array: xr.DataArray, kind: str | None = "stored", **options: Any) -> TracedVariable:
    """Trace a variable; its values must be xarray's, and the variable given must stay as lazy as it was."""
    before = chain(array)
    traced = trace(array, **options)
    assert chain(array) == before
    expected = np.asarray(array.copy(deep=True).values)
    assert_same(evaluate(traced), expected)
    assert chain(array) == before
    assert traced.name == str(array.name)
    assert traced.dims == array.dims
    assert traced.shape == array.shape
    assert traced.dtype.isnative
    assert traced.dtype == native(expected.dtype)
    if kind is not None:
        assert traced.kind == kind, traced.note
    for segment in traced.segments:
        check_segment(segment)
    return traced


def check_segment(segment: Segment) -> None:
    """Positions are plain integers or one-dimensional int64 arrays inside the stored array."""
    for index, dim, size in zip(segment.index, segment.axis_dims, segment.array.shape, strict=True):
        if isinstance(index, int):
            assert dim is None
            assert 0 <= index < size
        else:
            assert dim is not None
            assert index.dtype == np.int64
            assert index.ndim == 1
            assert ((index >= 0) & (index < size)).all()


def chain(array: xr.DataArray) -> list[type]:
    """Types of the wrappers around the data of a variable, outermost first."""
    types: list[type] = []
    data: Any = array.variable._data
    while data is not None:
        types.append(type(data))
        data = None if hasattr(data, "get_array") else getattr(data, "array", None)
    return types


def write(dataset: xr.Dataset, zarr_format: Any = 3, encoding: Mapping[str, Any] | None = None) -> MemoryStore:
    """Write a dataset to a store in memory."""
    store = MemoryStore()
    dataset.to_zarr(store, zarr_format=zarr_format, encoding=encoding or {}, consolidated=False)
    return store


def lazy(store: Any, **options: Any) -> xr.Dataset:
    """Open a store as lazily as xarray can."""
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False, **options)
    return opened


def fields() -> xr.Dataset:
    """Build a small dataset: two fields, one packed, and coordinates with and without an index."""
    rng = np.random.default_rng(7)
    values = rng.normal(size=(12, 4, 5)).astype("f4")
    values[3, 1] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), values, {"units": "K"}),
            "p": (("time", "y", "x"), np.round(values, 2)),
            "mask": (("y", "x"), values[0] > 0),
            "scalar": ((), np.float32(3.5)),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h"),
            "y": [10.0, 20.0, 30.0, 40.0],
            "x": np.arange(5),
            "area": (("y", "x"), rng.normal(size=(4, 5))),
        },
    )


ENCODING: dict[str, dict[str, Any]] = {
    "t": {"chunks": (2, 2, 5)},
    "p": {"chunks": (5, 4, 2), "dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -32768},
}
