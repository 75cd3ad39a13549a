"""Positions as (start, stop, step) ranges: small to keep where they are regular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.geometry.grid import IntArray

Ranges = tuple[tuple[int, int, int], ...]


def to_ranges(positions: npt.NDArray[Any]) -> Ranges:
    """Positions as (start, stop, step) ranges, in order.

    Examples
    --------
    >>> to_ranges(np.array([0, 1, 2, 5, 7, 9]))
    ((0, 3, 1), (5, 11, 2))
    """
    ranges: list[tuple[int, int, int]] = []
    start, n = 0, len(positions)
    steps = np.diff(positions)
    breaks = np.append(np.flatnonzero(np.diff(steps) != 0) + 1, n - 1) if n > 1 else np.array([0])
    while start < n:
        step = int(steps[start]) if start < n - 1 else 1
        if step == 0:
            last, step = start, 1
        else:
            last = int(breaks[np.searchsorted(breaks, start + 1)]) if start < n - 1 else start
        first = int(positions[start])
        ranges.append((first, first + step * (last - start + 1), step))
        start = last + 1
    return tuple(ranges)


def from_ranges(ranges: Sequence[Sequence[int]]) -> IntArray:
    """Positions of ranges.

    Examples
    --------
    >>> from_ranges([(0, 3, 1), (5, 11, 2)]).tolist()
    [0, 1, 2, 5, 7, 9]
    """
    return np.concatenate([np.empty(0, np.int64), *[np.arange(*r, dtype=np.int64) for r in ranges]])


def as_ranges(content: Sequence[Sequence[int]]) -> Ranges:
    """Ranges as they come out of JSON."""
    return tuple((int(start), int(stop), int(step)) for start, stop, step in content)
