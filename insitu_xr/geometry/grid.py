"""Chunk arithmetic along stored axes: regular and rectilinear grids, shards, ragged edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AxisGrid:
    """How one stored axis is cut into chunks.

    A regular axis has ``size``; a rectilinear one has ``starts``, the first position of each chunk and, last, the
    end of the last one. The last chunk may reach beyond ``extent`` (padding), or the first may be longer than it.

    Examples
    --------
    >>> grid = AxisGrid(extent=10, size=4)
    >>> grid.chunk_of(np.array([0, 3, 4, 9])).tolist()
    [0, 0, 1, 2]
    >>> varying = AxisGrid.from_lengths(6, [1, 2, 3])
    >>> varying.chunk_of(np.array([0, 2, 3])).tolist(), varying.start(2), varying.length(2)
    ([0, 1, 2], 3, 3)
    """

    extent: int
    size: int = 0
    starts: IntArray | None = None

    @classmethod
    def from_lengths(cls, extent: int, lengths: Sequence[int]) -> AxisGrid:
        """Grid of chunks with the given stored lengths."""
        return cls(extent, starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    @property
    def n_chunks(self) -> int:
        """Number of chunks that hold data."""
        if self.starts is None:
            return -(-self.extent // self.size) if self.extent else 0
        return int(np.searchsorted(self.starts[:-1], self.extent, side="left"))

    def chunk_of(self, positions: IntArray) -> IntArray:
        """Chunk that holds each position."""
        if self.starts is None:
            return positions // self.size
        return (np.searchsorted(self.starts, positions, side="right") - 1).astype(np.int64)

    def start_of(self, chunks: IntArray) -> IntArray:
        """First position of each chunk."""
        return chunks * self.size if self.starts is None else self.starts[chunks]

    def start(self, chunk: int) -> int:
        """First position of a chunk."""
        return chunk * self.size if self.starts is None else int(self.starts[chunk])

    def length(self, chunk: int) -> int:
        """Stored length of a chunk, padding included."""
        return self.size if self.starts is None else int(self.starts[chunk + 1] - self.starts[chunk])

    def length_of(self, chunks: IntArray) -> IntArray:
        """Stored length of each chunk, padding included."""
        return np.full(len(chunks), self.size) if self.starts is None else np.diff(self.starts)[chunks]

    @property
    def longest(self) -> int:
        """Stored length of the longest chunk, padding included."""
        return self.size if self.starts is None else int(np.diff(self.starts).max(initial=0))


def as_slice(positions: npt.NDArray[Any]) -> slice | IntArray:
    """The positions as a slice where they are evenly spaced, else unchanged.

    Examples
    --------
    >>> as_slice(np.array([5, 3, 1]))
    slice(5, 0, -2)
    >>> as_slice(np.array([0, 1, 3])).tolist()
    [0, 1, 3]
    """
    if positions.size == 0:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    if positions.size == 1:
        return slice(first, first + 1)
    step = int(positions[1]) - first
    if step == 0 or last - first != step * (positions.size - 1) or np.any(np.diff(positions) != step):
        return positions.astype(np.int64, copy=False)
    stop = last + (1 if step > 0 else -1)
    return slice(first, None if stop < 0 else stop, step)


@dataclass(frozen=True, slots=True, eq=False)
class AxisPart:
    """The selected positions of an axis that lie in one chunk."""

    chunk: int
    #: where they are inside the chunk; an integer drops the axis
    source: slice | IntArray | int
    #: where they go along the dimension of the variable; None for an axis that is dropped
    target: slice | IntArray | None


def split_axis(grid: AxisGrid, index: int | IntArray) -> list[AxisPart]:
    """Cut a selection along one stored axis into its parts by chunk.

    Examples
    --------
    >>> for part in split_axis(AxisGrid(extent=10, size=4), np.array([9, 1, 2])):
    ...     print(part.chunk, part.source, part.target)
    0 slice(1, 3, 1) slice(1, 3, 1)
    2 slice(1, 2, None) slice(0, 1, None)
    """
    if isinstance(index, int | np.integer):
        chunk = int(grid.chunk_of(np.array([index]))[0])
        return [AxisPart(chunk, int(index) - grid.start(chunk), None)]
    chunks = grid.chunk_of(index)
    if not len(index):
        return []
    order = np.argsort(chunks, kind="stable")
    touched, first = np.unique(chunks[order], return_index=True)
    parts = []
    for chunk, members in zip(touched.tolist(), np.split(order, first[1:]), strict=True):
        inside = index[members] - grid.start(chunk)
        parts.append(AxisPart(chunk, as_slice(inside), as_slice(members)))
    return parts


def coalesce(ranges: Sequence[tuple[int, int]], max_gap: int) -> list[tuple[int, int, list[int]]]:
    """Merge byte ranges that lie at most ``max_gap`` bytes apart.

    Returns
    -------
    list of (start, stop, members)
        Disjoint ranges in order, with the numbers of the given ranges that each one covers.

    Examples
    --------
    >>> coalesce([(100, 120), (0, 10), (12, 20)], max_gap=4)
    [(0, 20, [1, 2]), (100, 120, [0])]
    """
    merged: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(ranges)), key=lambda k: ranges[k]):
        start, stop = ranges[number]
        if merged and start - merged[-1][1] <= max_gap:
            first, last, members = merged[-1]
            merged[-1] = (first, max(last, stop), [*members, number])
        else:
            merged.append((start, stop, [number]))
    return merged


def affordable_gap(ranges: Sequence[tuple[int, int]], max_gap: int, room: int) -> int:
    """The largest gap to merge byte ranges over, so that all that is read together stays within ``room``.

    Examples
    --------
    >>> ranges = [(0, 10), (12, 20), (30, 40), (44, 50)]
    >>> [affordable_gap(ranges, 8, room) for room in (34, 36, 40, 50)], affordable_gap(ranges, 100, 50)
    ([0, 2, 4, 4], 10)
    """
    ordered = sorted(ranges)
    total, gap = sum(stop - start for start, stop in ordered), 0
    holes = sorted(after[0] - before[1] for before, after in pairwise(ordered))
    for hole, alike in groupby(h for h in holes if 0 < h <= max_gap):
        total += hole * sum(1 for _ in alike)
        if total > room:
            break
        gap = hole
    return gap
