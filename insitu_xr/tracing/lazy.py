"""xarray's lazy indexing chain, walked by exact type from a variable down to the stored array.

An unknown type is never guessed at: such a variable is read through xarray instead.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.coding.common import _ElementwiseFunctionArray
from xarray.coding.strings import StackedBytesArray
from xarray.coding.times import decode_cf_datetime, decode_cf_timedelta
from xarray.coding.variables import BoolTypeArray, NativeEndiannessArray, _apply_mask, _scale_offset_decoding
from xarray.core.indexing import (
    CoordinateTransformIndexingAdapter,
    CopyOnWriteArray,
    DaskIndexingAdapter,
    ImplicitToExplicitIndexingAdapter,
    LazilyIndexedArray,
    LazilyVectorizedIndexedArray,
    MemoryCachedArray,
    NumpyIndexingAdapter,
    PandasIndexingAdapter,
    PandasMultiIndexingAdapter,
)

from insitu_xr.tracing.block import Block, NotStoredError, Piece

if TYPE_CHECKING:
    from insitu_xr.tracing.traced import ValueFunction

#: step in, nothing to note
TRANSPARENT = (MemoryCachedArray, CopyOnWriteArray, ImplicitToExplicitIndexingAdapter)
#: the values are here already
IN_MEMORY = (
    np.ndarray,
    NumpyIndexingAdapter,
    PandasIndexingAdapter,
    PandasMultiIndexingAdapter,
    CoordinateTransformIndexingAdapter,
)
#: truly element-wise: a part of the result depends on the same part of the input alone, the dtype on nothing else
ELEMENTWISE = (_apply_mask, _scale_offset_decoding)
#: the dtype (and in corner cases the values) depends on all values decoded together
TIME_DECODERS = (decode_cf_datetime, decode_cf_timedelta)


def trace_lazy(data: Any) -> Block:
    """Walk a chain down to its stored array.

    Raises
    ------
    NotStoredError
        If the values do not come out of one stored array by indexing and element-wise functions.
    """
    kind = type(data)
    if kind in TRANSPARENT:
        return trace_lazy(data.array)
    if kind is _ElementwiseFunctionArray:
        function = allowed(data.func)
        return trace_lazy(data.array).apply(function)
    if kind in (NativeEndiannessArray, BoolTypeArray):
        return trace_lazy(data.array).apply(partial(np.asarray, dtype=data.dtype))
    if kind is LazilyIndexedArray:
        return trace_lazy(data.array).take(data.key.tuple)
    if kind is LazilyVectorizedIndexedArray:
        return outer_product(trace_lazy(data.array), data.key.tuple)
    return _trace_leaf(data)


def _trace_leaf(data: Any) -> Block:
    kind = type(data)
    if kind is ZarrArrayWrapper:
        array = data.get_array()
        if data.dtype.kind in "OTV":
            raise NotStoredError("foreign", f"dtype {data.dtype} has no fixed-size elements of one kind")
        return Block((Piece.whole(array),))
    if kind in IN_MEMORY:
        raise NotStoredError("memory", "it is in memory already")
    if kind is DaskIndexingAdapter:
        from insitu_xr.tracing.dasked import trace_dask

        return trace_dask(data.array)
    if kind is StackedBytesArray:
        raise NotStoredError("foreign", "characters are joined to strings along a stored axis")
    raise NotStoredError("foreign", f"{kind.__module__}.{kind.__qualname__} is read through xarray", data)


def allowed(function: Any) -> ValueFunction:
    """Let a function pass if it is known to be element-wise: by identity, never by name."""
    inner = function.func if type(function) is partial else function
    if any(inner is known for known in ELEMENTWISE):
        return function  # type: ignore[no-any-return]
    if inner is np.asarray and type(function) is partial and not function.args and set(function.keywords) == {"dtype"}:
        return function
    if any(inner is known for known in TIME_DECODERS):
        raise NotStoredError("memory", "dates are decoded all together, for their dtype depends on all of them")
    name = getattr(inner, "__qualname__", repr(inner))
    raise NotStoredError("foreign", f"{name} is not known to be element-wise")


def outer_product(block: Block, key: tuple[npt.NDArray[np.int64], ...]) -> Block:
    """Apply a vectorised key, if it is an outer product in disguise (as it is after a transpose).

    Each stored axis then varies along one result dimension at most, and no two along the same one.
    """
    if not key:
        return block
    shape = np.broadcast_shapes(*(k.shape for k in key))
    if 0 in shape:
        raise NotStoredError("memory", "it is empty")
    lines = [_line(k) for k in key]
    feeders = _assign([dim for dim, _ in lines], shape)
    entries: list[Any] = []
    for axis, (_, line) in enumerate(lines):
        fed = feeders.get(axis)
        entries.append(int(line[0]) if fed is None else np.broadcast_to(line, shape[fed]).astype(np.int64))
    taken = block.take(entries)
    order = {dim: place for place, dim in enumerate(feeders[axis] for axis in sorted(feeders))}
    axes = [order.get(dim) for dim in range(len(shape))]
    return taken.transpose([a for a in axes if a is not None]).take([None if a is None else slice(None) for a in axes])


def _line(key: npt.NDArray[np.int64]) -> tuple[int | None, npt.NDArray[np.int64]]:
    """Find the one dimension along which a key varies (None: it is constant), and its values along it."""
    origin: list[Any] = [0] * key.ndim
    candidates = [(dim, key[(*origin[:dim], slice(None), *origin[dim + 1 :])]) for dim in range(key.ndim)]
    varying = [(dim, line) for dim, line in candidates if line.size > 1 and bool((line != line[0]).any())]
    if len(varying) > 1:
        raise NotStoredError("foreign", "it was indexed point by point")
    dim, line = varying[0] if varying else (None, np.ravel(key)[:1])
    if key.size > line.size:
        expected = line if dim is None else line.reshape((-1, *(1,) * (key.ndim - dim - 1)))
        if not bool((key == expected).all()):
            raise NotStoredError("foreign", "it was indexed point by point")
    return dim, line


def _assign(varying: list[int | None], shape: tuple[int, ...]) -> dict[int, int]:
    """Which stored axis feeds which result dimension."""
    feeders = {axis: dim for axis, dim in enumerate(varying) if dim is not None}
    if len(set(feeders.values())) < len(feeders):
        raise NotStoredError("foreign", "it was indexed point by point")
    constant = iter([axis for axis, dim in enumerate(varying) if dim is None])
    for dim, size in enumerate(shape):
        if dim in feeders.values():
            continue
        axis = next(constant, None)
        if axis is not None:
            feeders[axis] = dim  # one position, repeated along the dimension
        elif size > 1:
            raise NotStoredError("foreign", "it was indexed point by point")
    return feeders
