"""A small pickle of what a loader consists of: arrays of positions and labels as runs of equal steps.

A million regular labels are one run; the plan is copied to a worker in kilobytes and is not worked out again there.
"""

from __future__ import annotations

import io
import pickle
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

#: arrays below this size are pickled as they are
_SMALL_BYTES = 1 << 10
#: streams above this size hold data rather than positions, and are not compressed
_LARGE_BYTES = 64 << 20


def dumps(content: Any) -> bytes:
    """Pickle, with integer and time arrays as runs.

    Examples
    --------
    >>> small = dumps(np.arange(1_000_000))
    >>> len(small) < 1000, np.array_equal(loads(small), np.arange(1_000_000))
    (True, True)
    """
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(content)
    raw = stream.getvalue()
    return b"0" + raw if len(raw) > _LARGE_BYTES else b"1" + zlib.compress(raw, 1)


def loads(blob: bytes) -> Any:
    """Undo `dumps`."""
    return pickle.loads(blob[1:] if blob[:1] == b"0" else zlib.decompress(blob[1:]))


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and obj.dtype.kind in "iumM" and obj.dtype.itemsize == 8 and obj.ndim in (1, 2):
            packed = _pack(obj) if obj.nbytes > _SMALL_BYTES else None
            if packed is not None:
                return _unpack, packed
        return NotImplemented


def _pack(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """First value, and the runs of equal steps between neighbours, column by column; None where that saves nothing."""
    flat = np.ascontiguousarray(array.T).view(np.int64).ravel()
    with np.errstate(over="ignore"):
        steps = np.diff(flat)
    starts = np.append(0, np.flatnonzero(steps[1:] != steps[:-1]) + 1)
    if len(starts) * 4 > len(flat):
        return None
    counts = np.diff(np.append(starts, len(steps)))
    return array.shape, array.dtype.str, int(flat[0]), _bytes(steps[starts]), _bytes(counts)


def _bytes(values: npt.NDArray[np.int64]) -> bytes:
    return values.astype("<i8").tobytes()


def _unpack(shape: tuple[int, ...], dtype: str, first: int, steps: bytes, counts: bytes) -> npt.NDArray[Any]:
    every = np.repeat(np.frombuffer(steps, "<i8"), np.frombuffer(counts, "<i8"))
    flat = np.cumsum(np.append(np.int64(first), every))
    return np.ascontiguousarray(flat.view(dtype).reshape(shape[::-1]).T)
