"""From stored axes to the axes of a batch: sample dimensions first, then the field; the only permutation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.geometry.grid import AxisGrid, AxisPart, IntArray, as_slice, split_axis


@dataclass(frozen=True, slots=True, eq=False)
class StoredAxes:
    """One stored array (or virtual grid) and how a variable lies in it."""

    #: chunk grid of each stored axis; the chunks are the units that are decoded alone
    grids: tuple[AxisGrid, ...]
    #: per stored axis: an integer, or the stored position of each position along the dimension
    index: tuple[int | IntArray, ...]
    #: per stored axis: the dimension that it feeds, None where the index is an integer
    dims: tuple[str | None, ...]

    @property
    def chunk_elements(self) -> int:
        """Elements of the largest chunk, padding included."""
        return int(np.prod([g.longest for g in self.grids], dtype=np.int64))


def selection_key(grid: AxisGrid, index: int | IntArray) -> tuple[object, ...]:
    """What tells a selection along a stored axis, and how it falls into chunks, from others."""
    chosen = index if isinstance(index, int) else index.tobytes()
    return grid.extent, grid.size, grid.starts is not None and grid.starts.tobytes(), chosen


@dataclass(frozen=True, slots=True, eq=False)
class AxisUnits:
    """How the positions along one sample dimension fall into chunks.

    A *unit* is a chunk along the sample dimension that the request touches; a *row* is a needed position in it.
    """

    #: per position: its unit, -1 where it is not needed
    unit: IntArray
    #: per position: its row in the unit
    row: IntArray
    #: per unit: the stored array it belongs to, and the chunk along that array's axis
    segment: IntArray
    chunk: IntArray
    #: the needed positions inside their chunks, in order; those of unit k are ``inside[bounds[k]:bounds[k + 1]]``
    inside: IntArray
    bounds: IntArray

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self.chunk)

    @property
    def counts(self) -> IntArray:
        """Rows of each unit."""
        return np.diff(self.bounds)

    @property
    def capacity(self) -> int:
        """Rows of the longest unit."""
        return int(self.counts.max(initial=0))

    def rows(self, unit: int) -> int:
        """Number of rows of a unit."""
        return int(self.bounds[unit + 1] - self.bounds[unit])

    def source(self, unit: int) -> slice | IntArray:
        """The needed positions inside the chunk of a unit, in order."""
        return as_slice(self.inside[self.bounds[unit] : self.bounds[unit + 1]])


def axis_units(parts: Sequence[tuple[AxisGrid, IntArray]], needed: npt.NDArray[np.bool_]) -> AxisUnits:
    """Group the needed positions of a sample dimension by chunk.

    Parameters
    ----------
    parts : sequence of (grid, index)
        The stored arrays that follow one another along the dimension, each with the stored positions it supplies.
    needed : array of bool
        Per position along the dimension, whether any sample uses it.

    Examples
    --------
    >>> units = axis_units([(AxisGrid(6, size=4), np.array([5, 4, 3]))], np.array([True, True, True]))
    >>> units.unit.tolist(), units.row.tolist(), units.chunk.tolist(), units.source(1)
    ([1, 1, 0], [1, 0, 0], [0, 1], slice(0, 2, 1))
    """
    used = np.flatnonzero(needed)
    segments = np.repeat(np.arange(len(parts)), [len(index) for _, index in parts])[used]
    stored = np.concatenate([np.empty(0, np.int64), *[index for _, index in parts]])[used]
    order = None
    if np.any(np.diff(stored) < 0):
        order = np.lexsort((stored, segments))
        used, segments, stored = used[order], segments[order], stored[order]
    chunks, starts = np.empty_like(stored), np.empty_like(stored)
    for number, (grid, _) in enumerate(parts):
        mine = slice(*np.searchsorted(segments, [number, number + 1]))
        chunks[mine] = grid.chunk_of(stored[mine])
        starts[mine] = grid.start_of(chunks[mine])
    # Repeated stored positions share one row; a unit begins where the chunk changes.
    other = np.ones(len(used), bool)
    other[1:] = np.diff(segments) != 0
    fresh, begins = other.copy(), other.copy()
    fresh[1:] |= np.diff(stored) != 0
    begins[1:] |= np.diff(chunks) != 0
    unit_of, number_of = np.cumsum(begins) - 1, np.cumsum(fresh) - 1
    bounds = np.append(number_of[begins], fresh.sum())
    unit, row = np.full(len(needed), -1, np.int64), np.zeros(len(needed), np.int64)
    unit[used] = unit_of
    row[used] = number_of - bounds[unit_of]
    return AxisUnits(unit, row, segments[begins], chunks[begins], (stored - starts)[fresh], bounds)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One chunk of the field, for every unit alike: where to read and where the values go."""

    #: per stored axis: the chunk, -1 along sample axes
    chunk: tuple[int, ...]
    #: per stored axis: positions inside the chunk, None along sample axes
    source: tuple[slice | IntArray | int | None, ...]
    #: index into the field, an open mesh where a position list is among them
    target: tuple[Any, ...]


def field_cells(axes: StoredAxes, sample_dims: Sequence[str], field_dims: Sequence[str]) -> tuple[Cell, ...]:
    """Chunks of the field that a selection touches, each with its place in it.

    Field dimensions that no stored axis feeds have length 1.
    """
    per_axis: list[list[AxisPart | None]] = []
    for grid, index, dim in zip(axes.grids, axes.index, axes.dims, strict=True):
        per_axis.append([None] if dim in sample_dims else [*split_axis(grid, index)])
    place = {dim: axis for axis, dim in enumerate(axes.dims) if dim is not None}
    cells = []
    for parts in itertools.product(*per_axis):
        targets: list[Any] = []
        for dim in field_dims:
            part = parts[place[dim]] if dim in place else None
            targets.append(slice(0, 1) if part is None else part.target)
        cells.append(
            Cell(
                tuple(-1 if p is None else p.chunk for p in parts),
                tuple(None if p is None else p.source for p in parts),
                _mesh(targets),
            )
        )
    return tuple(cells)


def _mesh(targets: Sequence[slice | IntArray]) -> tuple[Any, ...]:
    """One index for all axes; with two or more position lists numpy needs an open mesh to take their product."""
    if not any(isinstance(t, np.ndarray) for t in targets):
        return tuple(targets)
    return tuple(np.ix_(*[np.arange(t.start, t.stop, t.step) if isinstance(t, slice) else t for t in targets]))
