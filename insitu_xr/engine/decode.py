"""From raw chunks to values in their place: decode, crop, apply the functions xarray would apply, put."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.blocks import DECODED
from insitu_xr.engine.failing import classify, remedy
from insitu_xr.engine.fetch import Chunk, Source
from insitu_xr.engine.placing import Sink
from insitu_xr.errors import ReadError, VerificationError
from insitu_xr.geometry.axes import Cell
from insitu_xr.geometry.grid import AxisGrid, IntArray
from insitu_xr.plan.reads import Layout

ValueFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One stored array of a variable: its source and the functions that apply to its values."""

    source: Source
    functions: tuple[ValueFunction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One unit of one variable: the stored array that it lies in, and its rows in each chunk."""

    number: int
    part: int
    #: the unit along each sample dimension, and its rows
    along: tuple[int, ...]
    counts: tuple[int, ...]
    #: per sample dimension: the needed positions inside the chunk
    rows: tuple[slice | IntArray, ...]
    #: whether its chunks hold nothing but the needed rows
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Chunks of one unit of one variable that are read together: all lie in one stored object."""

    reader: VariableReader
    unit: Unit
    cells: tuple[PartCell, ...]
    chunks: tuple[Chunk, ...]

    @property
    def source(self) -> Source:
        """Where the chunks are read."""
        return self.reader.parts[self.unit.part].source

    @property
    def raw_bytes(self) -> int:
        """Decoded bytes that the raw chunks stand for, at most."""
        return len(self.chunks) * self.reader.layout.chunk_bytes

    def failure(self, cause: BaseException, doing: str = "read") -> ReadError:
        """The error to raise at the batch that needs these chunks."""
        key = self.source.key(self.chunks[0])
        where = self.chunks[0] if len(self.chunks) == 1 else f"{self.chunks[0]} to {self.chunks[-1]}"
        name = self.reader.layout.spec.name
        # Some errors of stores go on for a page; all of it is in the cause.
        told = str(cause).strip().partition("\n")[0]
        return ReadError(
            f"chunk {where} of variable {name!r} must be readable, but {key!r} could not be {doing}: "
            f"{type(cause).__name__}: {told}; {remedy(classify(cause))}",
            variable=name,
            chunk=self.chunks[0],
            key=key,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PartCell:
    """A chunk of the field in one stored array, with what is the same for all units worked out."""

    cell: Cell
    #: whether the chunk goes into the field as it is: whole and in its own order
    whole: bool


class VariableReader:
    """Reads units of one variable and places them.

    Parameters
    ----------
    layout : Layout
        How the variable lies in units and cells.
    parts : sequence of Part
        One per stored array.
    value_dtype : dtype
        Dtype of the values as xarray shows them; anything else coming out of the functions is an error.

    Notes
    -----
    Safe to use from any thread.
    """

    def __init__(self, layout: Layout, parts: Sequence[Part], value_dtype: np.dtype[Any]) -> None:
        self.layout, self.parts, self.value_dtype = layout, tuple(parts), value_dtype
        self._orders = [self._permutation(k) for k in range(len(parts))]
        self._axes = [self._sample_axes(k) for k in range(len(parts))]
        self._cells = [self._part_cells(k) for k in range(len(parts))]
        self._shapes = [self._chunk_shape(k) for k in range(len(parts))]
        #: per sample dimension: first needed position of every unit in its chunk, and the number of them
        self._firsts = [u.inside[u.bounds[:-1]] for u in layout.units]
        self._counts = [np.diff(u.bounds) for u in layout.units]
        #: whether the needed positions of every unit follow one another
        self._dense = [
            u.inside[u.bounds[1:] - 1] - first + 1 == count
            for u, first, count in zip(layout.units, self._firsts, self._counts, strict=True)
        ]

    def _permutation(self, part: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Order that brings the kept stored axes to (sample dims, field dims), and the new axes to insert."""
        kept = [d for d in self.layout.spec.segments[part].dims if d is not None]
        wanted = (*self.layout.sample_dims, *self.layout.field_dims)
        order = tuple(kept.index(d) for d in wanted if d in kept)
        return order, tuple(k for k, d in enumerate(wanted) if d not in kept)

    def _sample_axes(self, part: int) -> tuple[tuple[int, int], ...]:
        """Stored axes along sample dimensions, each with the number of the dimension."""
        places = {d: k for k, d in enumerate(self.layout.sample_dims)}
        dims = self.layout.spec.segments[part].dims
        return tuple((axis, places[d]) for axis, d in enumerate(dims) if d is not None and d in places)

    def _chunk_shape(self, part: int) -> tuple[int, ...] | None:
        """Shape of every chunk of a stored array; None where they differ."""
        grids = self.layout.spec.segments[part].grids
        return None if any(g.starts is not None for g in grids) else tuple(g.size for g in grids)

    def _part_cells(self, part: int) -> tuple[PartCell, ...]:
        segment, (order, new) = self.layout.spec.segments[part], self._orders[part]
        plain = not new and not self.parts[part].functions and order == tuple(range(len(segment.dims)))
        return tuple(
            PartCell(
                cell,
                plain
                and all(
                    source is None or (isinstance(source, slice) and _is_whole(source, grid.length(chunk)))
                    for source, grid, chunk in zip(cell.source, segment.grids, cell.chunk, strict=True)
                ),
            )
            for cell in self.layout.cells[part]
        )

    def unit(self, number: int) -> Unit:
        """Where a unit lies."""
        along, part = self.layout.axis_units_of(number), self.layout.segment_of(number)
        units, grids = self.layout.units, self.layout.spec.segments[part].grids
        counts = tuple(int(c[k]) for c, k in zip(self._counts, along, strict=True))
        rows: list[slice | IntArray] = []
        for unit, first, count, dense, k in zip(units, self._firsts, counts, self._dense, along, strict=True):
            start = int(first[k])
            rows.append(slice(start, start + count) if dense[k] else unit.source(k))
        whole = all(
            counts[k] == grids[axis].length(int(units[k].chunk[along[k]])) and isinstance(rows[k], slice)
            for axis, k in self._axes[part]
        )
        return Unit(number, part, along, counts, tuple(rows), whole)

    def jobs(self, number: int) -> list[Job]:
        """The jobs that bring a unit into memory."""
        unit = self.unit(number)
        cells = self._cells[unit.part]
        chunks = [self._chunk(c.cell, unit.part, unit.along) for c in cells]
        source = self.parts[unit.part].source
        if not source.sharded:
            return [Job(self, unit, (cell,), (chunk,)) for cell, chunk in zip(cells, chunks, strict=True)]
        by_object: dict[Chunk, list[int]] = defaultdict(list)
        for k, stored in enumerate(source.objects_of(chunks)):
            by_object[stored].append(k)
        per_job, jobs = self.layout.spec.chunks_per_job, []
        for members in by_object.values():
            for first in range(0, len(members), per_job):
                mine = members[first : first + per_job]
                jobs.append(Job(self, unit, tuple(cells[k] for k in mine), tuple(chunks[k] for k in mine)))
        return jobs

    def _chunk(self, cell: Cell, part: int, along: tuple[int, ...]) -> Chunk:
        chunk = list(cell.chunk)
        for axis, k in self._axes[part]:
            chunk[axis] = int(self.layout.units[k].chunk[along[k]])
        return tuple(chunk)

    def place(self, job: Job, number: int, raw: Any, sink: Sink) -> int:
        """Decode one chunk of a job and write it to its place.

        Parameters
        ----------
        number : int
            The number of the chunk in the job.
        raw : bytes or None
            What the store holds of it.

        Returns
        -------
        int
            Decoded bytes; 0 where the store has no such chunk.
        """
        unit, cell, chunk = job.unit, job.cells[number], job.chunks[number]
        if raw is not None and unit.whole and cell.whole:
            into = sink.direct(cell.cell.target)
            if into is not None and job.source.decode_into(raw, chunk, into):
                return into.nbytes
            decoded = self._decoded(unit.part, raw, chunk)
            if decoded.dtype == self.value_dtype:
                sink.put(cell.cell.target, decoded)
                return decoded.nbytes
        else:
            decoded = self._decoded(unit.part, raw, chunk)
        selection = list(cell.cell.source)
        for axis, k in self._axes[unit.part]:
            selection[axis] = unit.rows[k]
        piece = self._values(decoded, selection, unit.part)
        order, new = self._orders[unit.part]
        sink.put(cell.cell.target, np.expand_dims(piece.transpose(order), new) if new else piece.transpose(order))
        return 0 if raw is None else decoded.nbytes

    def _decoded(self, part: int, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """A chunk in scratch memory of this thread where its codecs can, else in memory of its own."""
        source = self.parts[part].source
        if raw is not None and source.decodes_into:
            grids = self.layout.spec.segments[part].grids
            shape = self._shapes[part] or tuple(map(AxisGrid.length, grids, chunk))
            scratch = DECODED.take(math.prod(shape) * source.dtype.itemsize).view(source.dtype).reshape(shape)
            if source.decode_into(raw, chunk, scratch):
                return scratch
        return source.decode(raw, chunk)

    def peek(self, unit: int, row: int, cell: Cell) -> npt.NDArray[Any]:
        """Read one row of one chunk the way ``place`` does, blocking.

        Returns
        -------
        array, shape (1 per sample dimension..., *part of the field)

        Raises
        ------
        ReadError
            If the chunk cannot be read or decoded.
        """
        where = self.unit(unit)
        part = where.part
        chunk, source = self._chunk(cell, part, where.along), self.parts[part].source
        wanted = np.unravel_index(row, self.layout.row_shape) if self.layout.row_shape else ()
        selection = list(cell.source)
        for axis, k in self._axes[part]:
            length = self.layout.spec.segments[part].grids[axis].longest
            inside = int(np.arange(length)[where.rows[k]][wanted[k]])
            selection[axis] = slice(inside, inside + 1)
        try:
            (raw,) = source.read([chunk]).raw
            decoded = source.decode(raw, chunk)
        except Exception as error:
            raise Job(self, where, (PartCell(cell, False),), (chunk,)).failure(error) from error
        values = self._values(decoded, selection, part)
        order, new = self._orders[part]
        return np.expand_dims(values.transpose(order), new).astype(self.value_dtype, copy=False)

    def _values(self, decoded: npt.NDArray[Any], selection: list[Any], part: int) -> npt.NDArray[Any]:
        values = crop(decoded, selection)
        for function in self.parts[part].functions:
            values = np.asarray(function(values))
        if values.dtype.newbyteorder("=") != self.value_dtype:
            raise VerificationError(
                f"values of variable {self.layout.spec.name!r} must be {self.value_dtype}, as xarray shows them, "
                f"but got {values.dtype}; please report this with the store's metadata"
            )
        return values


def _is_whole(chosen: Any, length: int) -> bool:
    return bool(chosen.indices(length) == (0, length, 1))


def crop(decoded: npt.NDArray[Any], selection: Sequence[slice | IntArray | int]) -> npt.NDArray[Any]:
    """Select along every axis independently; a view where no position list is given.

    Examples
    --------
    >>> crop(np.arange(12).reshape(3, 4), [1, np.array([3, 0])]).tolist()
    [7, 4]
    """
    basic = tuple(slice(None) if isinstance(s, np.ndarray) else s for s in selection)
    values = np.asarray(decoded[basic])
    axis = 0
    for chosen in selection:
        if isinstance(chosen, np.ndarray):
            values = values.take(chosen, axis=axis)
        axis += not isinstance(chosen, int)
    return values
