"""A selection of stored arrays, and the indexing operations that xarray and dask may perform on it.

Nothing here reads data: a block knows which stored positions it would hold, and indexing it gives another block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from insitu_xr.tracing.traced import Segment, ValueFunction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zarr

#: positions along one stored axis; a range as long as possible, for it costs nothing to index
Positions = range | npt.NDArray[np.int64]


class NotStoredError(Exception):
    """The values cannot be taken from stored arrays piece by piece; ``kind`` says where they come from instead."""

    def __init__(self, kind: Literal["memory", "foreign"], note: str, leaf: Any = None) -> None:
        super().__init__(note)
        #: what the chain ends in, where that is the reason
        self.leaf = leaf
        self.kind: Literal["memory", "foreign"] = kind
        self.note = note


class ComputedError(NotStoredError):
    """A dask graph does more than indexing."""

    def __init__(self, layer: str, function: str) -> None:
        super().__init__("foreign", f"it was computed: layer {layer!r} calls {function}")
        self.layer = layer
        self.function = function


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one stored array contributes: positions per stored axis, and the stored axis behind each result axis."""

    array: zarr.Array[Any]
    index: tuple[int | Positions, ...]
    #: per axis of the result: the stored axis that feeds it, None for a new axis of length 1
    axes: tuple[int | None, ...]
    functions: tuple[ValueFunction, ...] = ()

    @classmethod
    def whole(cls, array: zarr.Array[Any]) -> Piece:
        """Take all of an array."""
        return cls(array, tuple(range(size) for size in array.shape), tuple(range(array.ndim)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length per axis of the result."""
        return tuple(1 if axis is None else len(self.positions(axis)) for axis in self.axes)

    def positions(self, axis: int) -> Positions:
        """Positions along a stored axis that feeds an axis of the result."""
        positions = self.index[axis]
        assert not isinstance(positions, int)
        return positions

    def take(self, key: Sequence[Any]) -> Piece:
        """Index each axis on its own (``key``: one entry per axis, and None for new axes)."""
        index, axes, rest = list(self.index), list[int | None](), iter(self.axes)
        for entry in key:
            if entry is None:
                axes.append(None)
                continue
            axis = next(rest)
            if axis is not None:
                index[axis] = select(self.positions(axis), entry)
            elif not isinstance(entry, int) and len(select(range(1), entry)) != 1:
                raise NotStoredError("foreign", "an axis that is not stored was repeated or emptied")
            if not isinstance(entry, int):
                axes.append(axis)
        return Piece(self.array, tuple(index), tuple(axes), self.functions)

    def segment(self, dims: Sequence[str]) -> Segment:
        """Say the same in the words of the engine, with dimension names."""
        names = {axis: dim for axis, dim in zip(self.axes, dims, strict=True) if axis is not None}
        index = tuple(k if isinstance(k, int) else as_array(k) for k in self.index)
        return Segment(self.array, index, tuple(names.get(axis) for axis in range(len(index))), self.functions)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One piece, or several that follow one another along ``axis``."""

    pieces: tuple[Piece, ...]
    axis: int | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.pieces[0].axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length per axis."""
        shape = list(self.pieces[0].shape)
        if self.axis is not None:
            shape[self.axis] = sum(piece.shape[self.axis] for piece in self.pieces)
        return tuple(shape)

    def apply(self, function: ValueFunction) -> Block:
        """Note an element-wise function."""
        pieces = tuple(replace(piece, functions=(*piece.functions, function)) for piece in self.pieces)
        return replace(self, pieces=pieces)

    def transpose(self, order: Sequence[int]) -> Block:
        """Put the axes in another order."""
        order = [axis % self.ndim for axis in order]
        pieces = tuple(replace(piece, axes=tuple(piece.axes[axis] for axis in order)) for piece in self.pieces)
        return Block(pieces, None if self.axis is None else order.index(self.axis))

    def take(self, key: Sequence[Any]) -> Block:
        """Index each axis on its own (``key``: one entry per axis, and None for new axes)."""
        if self.axis is None:
            return Block((self.pieces[0].take(key),))
        place = [i for i, entry in enumerate(key) if entry is not None][self.axis]
        axis = sum(1 for entry in key[:place] if not isinstance(entry, int))
        chosen = self._split(key[place])
        taken = [piece.take((*key[:place], entry, *key[place + 1 :])) for piece, entry in chosen]
        if isinstance(key[place], int):
            return Block((taken[0],))
        return follow(taken, axis)

    def _split(self, entry: Any) -> list[tuple[Piece, Any]]:
        """Find the pieces that an index along ``axis`` touches, each with its own part of the index."""
        assert self.axis is not None
        ends = np.cumsum([piece.shape[self.axis] for piece in self.pieces])
        every = range(int(ends[-1]))
        chosen = np.array([every[entry]]) if isinstance(entry, int) else as_array(select(every, entry))
        if not chosen.size:
            return [(self.pieces[0], slice(0, 0))]
        owner = np.searchsorted(ends, chosen, side="right")
        cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), chosen.size]
        parts = []
        for start, stop in pairwise(cuts):
            number = int(owner[start])
            local = chosen[start:stop] - (int(ends[number - 1]) if number else 0)
            parts.append((self.pieces[number], int(local[0]) if isinstance(entry, int) else local))
        return parts


def follow(pieces: Sequence[Piece], axis: int) -> Block:
    """Put pieces one after another along an axis; neighbours out of one array become one piece."""
    present = [piece for piece in pieces if piece.shape[axis]] or list(pieces[:1])
    merged: list[list[Piece]] = []
    for piece in present:
        if merged and _continues(merged[-1][-1], piece, axis):
            merged[-1].append(piece)
        else:
            merged.append([piece])
    joined = tuple(_join(run, axis) for run in merged)
    return Block(joined, axis if len(joined) > 1 else None)


def concatenate(blocks: Sequence[Block], axis: int) -> Block:
    """Put blocks one after another along an axis."""
    if all(block.axis in (None, axis) for block in blocks):
        return follow([piece for block in blocks for piece in block.pieces], axis)
    # Every block mixes stores along another axis: they line up when their pieces do.
    across = next(block.axis for block in blocks if block.axis is not None and block.axis != axis)
    columns = [follow(pieces, axis) for pieces in zip(*(block.pieces for block in blocks), strict=False)]
    lengths = {tuple(piece.shape[across] for piece in block.pieces) for block in blocks}
    if len(lengths) > 1 or any(column.axis is not None for column in columns):
        raise NotStoredError("foreign", "stores are mixed along two dimensions")
    return Block(tuple(column.pieces[0] for column in columns), across)


def same_functions(one: Sequence[ValueFunction], other: Sequence[ValueFunction]) -> bool:
    """Whether two lists hold the very same functions."""
    return len(one) == len(other) and all(f is g for f, g in zip(one, other, strict=True))


def same_positions(one: int | Positions, other: int | Positions) -> bool:
    """Whether two indexes of a stored axis are equal."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    if isinstance(one, range) and isinstance(other, range):
        return one == other
    return one is other or (len(one) == len(other) and bool(np.array_equal(as_array(one), as_array(other))))


def select(positions: Positions, entry: Any) -> Any:
    """Index positions by an integer, a slice or a 1-D array of integers or booleans."""
    if isinstance(entry, int):
        return int(positions[entry])
    if isinstance(entry, slice):
        return positions[entry]
    entry = np.asarray(entry)
    if entry.ndim != 1 or (entry.size and entry.dtype.kind not in "iub"):
        raise NotStoredError("foreign", "it was indexed by an array that is not one-dimensional")
    if entry.dtype.kind == "b":
        return as_array(positions)[entry]
    if not isinstance(positions, range):
        return positions[entry.astype(np.int64, copy=False)]
    return _select_range(positions, entry.astype(np.int64, copy=False))


def as_array(positions: Positions) -> npt.NDArray[np.int64]:
    """Positions as an array."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return positions


def join(parts: Sequence[Positions]) -> Positions:
    """Positions one after another."""
    parts = [part for part in parts if len(part)]
    first = parts[0] if parts else range(0)
    if len(parts) < 2:
        return first
    if isinstance(first, range) and all(
        isinstance(here, range)
        and isinstance(after, range)
        and here.step == after.step == first.step
        and here[-1] + here.step == after[0]
        for here, after in pairwise(parts)
    ):
        return range(first.start, parts[-1][-1] + first.step, first.step)
    return np.concatenate([as_array(part) for part in parts])


def _select_range(positions: range, entry: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if entry.size and (int(entry.max()) >= len(positions) or int(entry.min()) < -len(positions)):
        raise IndexError(f"position {int(entry.max())} is out of bounds for an axis of length {len(positions)}")
    wrapped = np.where(entry < 0, entry + len(positions), entry)
    return np.asarray(positions.start + positions.step * wrapped, dtype=np.int64)


def _continues(one: Piece, other: Piece, axis: int) -> bool:
    stored = one.axes[axis]
    return (
        stored is not None
        and one.array is other.array
        and one.axes == other.axes
        and same_functions(one.functions, other.functions)
        and all(same_positions(one.index[a], other.index[a]) for a in range(len(one.index)) if a != stored)
    )


def _join(run: Sequence[Piece], axis: int) -> Piece:
    stored = run[0].axes[axis]
    if len(run) == 1 or stored is None:
        return run[0]
    joined = join([piece.positions(stored) for piece in run])
    return replace(run[0], index=(*run[0].index[:stored], joined, *run[0].index[stored + 1 :]))
