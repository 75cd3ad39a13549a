"""Anchors and leads as chunk reads: the units of each variable, and which batches use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from insitu_xr.geometry.axes import AxisUnits, Cell, StoredAxes, axis_units, field_cells, selection_key
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.request import Request, VariableSpec

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Layout:
    """How the needed part of one variable lies in chunks and in slots.

    A *unit* is what is fetched together: for one chunk along every sample dimension, all chunks of the field that
    the selection touches. A slot holds one unit, as rows of the field.
    """

    spec: VariableSpec
    sample_dims: tuple[str, ...]
    field_dims: tuple[str, ...]
    field_shape: tuple[int, ...]
    #: per sample dimension of the variable
    units: tuple[AxisUnits, ...]
    #: per stored array
    cells: tuple[tuple[Cell, ...], ...]

    @cached_property
    def n_units(self) -> int:
        """Number of units."""
        return math.prod(u.n_units for u in self.units)

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Rows of a slot, per sample dimension."""
        return tuple(u.capacity for u in self.units)

    @cached_property
    def slot_rows(self) -> int:
        """Rows of a slot."""
        return math.prod(self.row_shape)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.field_shape) * self.spec.dtype.itemsize

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self.slot_rows * self.row_bytes

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of the largest stored chunk, decoded, padding included."""
        return max((s.chunk_elements for s in self.spec.segments), default=0) * self.spec.stored_itemsize

    @cached_property
    def place_bytes(self) -> int:
        """Bytes needed while one chunk is decoded, masked and scaled."""
        elements = max((s.chunk_elements for s in self.spec.segments), default=0)
        return elements * (self.spec.stored_itemsize + 2 * self.spec.value_itemsize)

    def locate(self, coordinates: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """Unit and row of each sample, given its positions along the sample dimensions of the variable."""
        shape = np.shape(coordinates[0]) if coordinates else ()
        unit, row = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for axis, capacity, positions in zip(self.units, self.row_shape, coordinates, strict=True):
            unit = unit * axis.n_units + axis.unit[positions]
            row = row * capacity + axis.row[positions]
        return unit, row

    def axis_units_of(self, unit: int) -> tuple[int, ...]:
        """The unit along each sample dimension."""
        numbers = []
        for axis in reversed(self.units):
            unit, inner = divmod(unit, axis.n_units)
            numbers.append(inner)
        return tuple(reversed(numbers))

    def segment_of(self, unit: int) -> int:
        """The stored array that a unit lies in."""
        return max((int(a.segment[k]) for a, k in zip(self.units, self.axis_units_of(unit), strict=True)), default=0)

    @cached_property
    def cells_per_unit(self) -> IntArray:
        """Number of chunks of each unit."""
        counts = np.array([len(c) for c in self.cells], np.int64)
        if len(counts) == 1:
            return np.full(self.n_units, counts[0])
        return counts[[self.segment_of(u) for u in range(self.n_units)]]


class _Cutter:
    """Cuts sample dimensions into units, and fields into cells: once for all variables that are cut alike."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._units: dict[object, AxisUnits] = {}
        self._cells: dict[object, tuple[Cell, ...]] = {}

    def cells(self, stored: StoredAxes, sample_dims: tuple[str, ...], field_dims: tuple[str, ...]) -> tuple[Cell, ...]:
        """Chunks of the field that a stored array supplies."""
        along = [
            (dim,) if dim in sample_dims else (dim, *selection_key(grid, index))
            for dim, grid, index in zip(stored.dims, stored.grids, stored.index, strict=True)
        ]
        key = (sample_dims, field_dims, *along)
        if key not in self._cells:
            self._cells[key] = field_cells(stored, sample_dims, field_dims)
        return self._cells[key]

    def units(self, spec: VariableSpec, dim: str) -> AxisUnits:
        """Units of a variable along one of its sample dimensions."""
        parts = []
        for segment in spec.segments if dim == spec.concat_dim else spec.segments[:1]:
            axis = segment.dims.index(dim)
            index = segment.index[axis]
            assert isinstance(index, np.ndarray)
            parts.append((segment.grids[axis], index))
        key = (dim, self._request.columns_of(spec.name), *(selection_key(*part) for part in parts))
        if key not in self._units:
            self._units[key] = axis_units(parts, self._needed(spec, dim))
        return self._units[key]

    def _needed(self, spec: VariableSpec, dim: str) -> npt.NDArray[np.bool_]:
        request, axis = self._request, self._request.sample_dims.index(dim)
        needed = np.zeros(spec.shape[spec.dims.index(dim)], bool)
        if axis == request.lead_axis:
            for column in request.columns_of(spec.name):
                needed[request.partners[:, column]] = True
        else:
            needed[request.anchors[:, axis]] = True
        return needed


def layout_of(request: Request, spec: VariableSpec, cutter: _Cutter | None = None) -> Layout:
    """Cut the needed part of a variable into units and cells."""
    cutter = cutter or _Cutter(request)
    sample_dims = tuple(d for d in request.sample_dims if d in spec.dims)
    field_dims = tuple(d for d in spec.dims if d not in sample_dims)
    field_shape = tuple(spec.shape[spec.dims.index(d)] for d in field_dims)
    cells = tuple(cutter.cells(segment, sample_dims, field_dims) for segment in spec.segments)
    return Layout(spec, sample_dims, field_dims, field_shape, tuple(cutter.units(spec, d) for d in sample_dims), cells)


@dataclass(frozen=True, eq=False)
class AccessGroup:
    """Variables whose samples fall into the same units at the same columns: one schedule serves them all."""

    layouts: tuple[Layout, ...]
    columns: tuple[int, ...]

    @property
    def first(self) -> Layout:
        """Any one of them."""
        return self.layouts[0]

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.first.n_units

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of every variable."""
        return sum(layout.slot_bytes for layout in self.layouts)

    @cached_property
    def cells_per_unit(self) -> IntArray:
        """Chunks of one unit, over the variables."""
        return np.sum([layout.cells_per_unit for layout in self.layouts], axis=0, dtype=np.int64)

    def units(self, request: Request, samples: npt.NDArray[np.int64]) -> IntArray:
        """Units of samples, shape (samples, columns)."""
        columns = self.columns or (0,)
        out = np.zeros((len(samples), len(columns)), np.int64)
        for k, column in enumerate(columns):
            out[:, k] = self.first.locate(sample_coordinates(request, self.first, samples, column))[0]
        return out


def sample_coordinates(request: Request, layout: Layout, samples: IntArray, column: int) -> list[IntArray]:
    """Positions along the sample dimensions that a variable has."""
    if not layout.sample_dims:
        return []
    every = request.coordinates(samples, column)
    return [every[request.sample_dims.index(d)] for d in layout.sample_dims]


def access_groups(request: Request) -> tuple[AccessGroup, ...]:
    """Group the variables that are not in memory by how their samples fall into units."""
    found: dict[object, list[Layout]] = {}
    cutter = _Cutter(request)
    for name, spec in request.variables.items():
        if spec.kind != "memory":
            layout = layout_of(request, spec, cutter)
            key = (request.columns_of(name), *map(id, layout.units))
            found.setdefault(key, []).append(layout)
    return tuple(AccessGroup(tuple(layouts), request.columns_of(layouts[0].spec.name)) for layouts in found.values())


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Which units each batch of an epoch uses, and when each is used next."""

    #: units of batch b: ``units[bounds[b]:bounds[b + 1]]``, ascending
    bounds: IntArray
    units: IntArray
    #: aligned with ``units``: the next batch that uses the unit, ``NEVER`` if none does
    next_use: IntArray
    n_units: int

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.bounds) - 1

    @property
    def largest(self) -> int:
        """Units of the batch that uses most."""
        return int(np.diff(self.bounds).max(initial=0))

    def first_use(self) -> IntArray:
        """Per unit, the first batch that uses it, ``NEVER`` if none does."""
        first = np.full(self.n_units, NEVER)
        batches = np.repeat(np.arange(self.n_batches), np.diff(self.bounds))
        first[self.units[::-1]] = batches[::-1]
        return first


def batch_uses(units: IntArray, batch_size: int, n_batches: int, n_units: int) -> Uses:
    """Units per batch and their next use: one vectorised pass.

    Parameters
    ----------
    units : array of int64, shape (samples, columns)
        Units of the samples in the order in which they are drawn.

    Examples
    --------
    >>> uses = batch_uses(np.array([[0], [1], [0], [2]]), batch_size=2, n_batches=2, n_units=3)
    >>> uses.bounds.tolist(), uses.units.tolist(), (uses.next_use == NEVER).tolist(), uses.next_use[0].item()
    ([0, 2, 4], [0, 1, 0, 2], [False, True, True, True], 1)
    """
    bounds, flat = distinct_per_batch(units, batch_size, n_batches)
    batches = np.repeat(np.arange(n_batches), np.diff(bounds))
    # Stable, so that the uses of a unit stay in the order of the batches.
    by_unit = np.argsort(flat, kind="stable")
    next_use = np.full(len(flat), NEVER)
    same = flat[by_unit[1:]] == flat[by_unit[:-1]]
    next_use[by_unit[:-1][same]] = batches[by_unit[1:][same]]
    return Uses(bounds, flat, next_use, n_units)


def distinct_per_batch(units: IntArray, batch_size: int, n_batches: int) -> tuple[IntArray, IntArray]:
    """Distinct units of every batch, ascending, as bounds and a flat array.

    Examples
    --------
    >>> bounds, flat = distinct_per_batch(np.array([[2, 1], [1, 1], [0, 0]]), batch_size=2, n_batches=2)
    >>> bounds.tolist(), flat.tolist()
    ([0, 2, 3], [1, 2, 0])
    """
    units = units[: n_batches * batch_size]
    short = n_batches * batch_size - len(units)
    # The last batch is filled up with its last sample, which adds no unit.
    full = np.concatenate([units, np.repeat(units[-1:], short, axis=0)]) if short else units
    rows = np.sort(full.reshape(n_batches, batch_size * units.shape[1]), axis=1)
    distinct = np.ones(rows.shape, bool)
    distinct[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.concatenate([[0], np.cumsum(distinct.sum(axis=1))]), rows[distinct]


def join_epochs(uses: Uses, following: Uses) -> Uses:
    """The same uses, with next uses that reach into the following epoch (counted on from this one's batches)."""
    first = following.first_use()
    onward = first[uses.units]
    onward[onward != NEVER] += uses.n_batches
    return Uses(uses.bounds, uses.units, np.where(uses.next_use == NEVER, onward, uses.next_use), uses.n_units)
