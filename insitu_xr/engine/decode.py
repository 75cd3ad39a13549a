"""From raw chunks to values in their place: decode, crop, apply the functions xarray would apply, put."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.blocks import DECODED
from insitu_xr.engine.failing import classify, remedy
from insitu_xr.engine.fetch import Chunk, Fetched, Source
from insitu_xr.engine.units import Unit, Units
from insitu_xr.errors import ReadError, VerificationError
from insitu_xr.geometry.axes import Cell
from insitu_xr.geometry.grid import AxisGrid, IntArray
from insitu_xr.plan.reads import Layout

ValueFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

#: small chunks are read one after another by one thread, up to these decoded bytes
GROUP_BYTES = 2 << 20
#: but never so many that a unit gives fewer jobs than this
JOBS_PER_UNIT = 16


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One stored array of a variable: its source and the functions that apply to its values."""

    source: Source
    functions: tuple[ValueFunction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Chunks of one unit of one variable that one thread reads: all of one shard, or one object after another."""

    reader: VariableReader
    unit: Unit
    cells: tuple[PartCell, ...]

    @property
    def source(self) -> Source:
        """Where the chunks are read."""
        return self.reader.parts[self.unit.part].source

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks; worked out anew each time, by whoever reads them rather than by whoever plans."""
        unit, chunk = self.unit, self.reader.chunk
        return tuple([chunk(c.cell, unit) for c in self.cells])

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all its chunks, decoded."""
        return len(self.cells) * self.reader.layout.chunk_bytes

    @property
    def raw_bytes(self) -> int:
        """Decoded bytes that the raw chunks held at once stand for, at most."""
        return self.decoded_bytes if self.source.sharded else self.reader.layout.chunk_bytes

    @property
    def object_bytes(self) -> int:
        """Bytes of the shard that holds its chunks, decoded; of one chunk where there are no shards."""
        return self.source.chunks_per_object * self.reader.layout.chunk_bytes

    def failure(self, cause: BaseException, doing: str = "read", number: int = 0) -> ReadError:
        """The error to raise at the batch that needs these chunks, once so many of them were placed."""
        chunks = self.chunks if self.source.sharded else self.chunks[number : number + 1]
        key = self.source.key(chunks[0])
        where = chunks[0] if len(chunks) == 1 else f"{chunks[0]} to {chunks[-1]}"
        name = self.reader.layout.spec.name
        # Some errors of stores go on for a page; all of it is in the cause.
        told = str(cause).strip().partition("\n")[0]
        return ReadError(
            f"chunk {where} of variable {name!r} must be readable, but {key!r} could not be {doing}: "
            f"{type(cause).__name__}: {told}; {remedy(classify(cause))}",
            variable=name,
            chunk=chunks[0],
            key=key,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PartCell:
    """A chunk of the field in one stored array, with what is the same for all units worked out."""

    cell: Cell
    #: whether the chunk goes into the field as it is: whole and in its own order
    whole: bool
    #: whether its place in one row of the field is contiguous
    contiguous: bool


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
    units : Units, optional
        Where the units lie, if that is known from a variable that is cut alike.

    Notes
    -----
    Safe to use from any thread.
    """

    def __init__(
        self, layout: Layout, parts: Sequence[Part], value_dtype: np.dtype[Any], units: Units | None = None
    ) -> None:
        self.layout, self.parts, self.value_dtype = layout, tuple(parts), value_dtype
        self._units = units or Units(layout)
        self._orders = [self._permutation(k) for k in range(len(parts))]
        self._axes = [self._sample_axes(k) for k in range(len(parts))]
        #: per stored array: its cells, by the job that they belong to
        self._jobs = [self._together(k) for k in range(len(parts))]
        self._shapes = [self._chunk_shape(k) for k in range(len(parts))]
        #: whether all chunks of a stored array have one shape
        self.even = None not in self._shapes

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
                is_contiguous(cell.target, self.layout.field_shape),
            )
            for cell in self.layout.cells[part]
        )

    def _together(self, part: int) -> list[tuple[PartCell, ...]]:
        """Cells that are read by one job, which are the same for all units."""
        cells, source = self._part_cells(part), self.parts[part].source
        if not source.sharded:
            most = min(GROUP_BYTES // max(1, self.layout.chunk_bytes), len(cells) // JOBS_PER_UNIT)
            return [*itertools.batched(cells, max(1, most) if source.synchronous else 1)]
        origin = [tuple(max(k, 0) for k in cell.cell.chunk) for cell in cells]
        by_object: dict[Chunk, list[PartCell]] = defaultdict(list)
        for cell, stored in zip(cells, source.objects_of(origin), strict=True):
            by_object[stored].append(cell)
        most = self.layout.spec.chunks_per_job
        return [tuple(c) for cells in by_object.values() for c in itertools.batched(cells, most)]

    def unit(self, number: int) -> Unit:
        """Where a unit lies."""
        return self._units.unit(number)

    def jobs(self, number: int) -> list[Job]:
        """The jobs that bring a unit into memory."""
        unit = self._units.unit(number)
        return [Job(self, unit, cells) for cells in self._jobs[unit.part]]

    def chunk(self, cell: Cell, unit: Unit) -> Chunk:
        """The chunk of a unit that holds a part of the field."""
        chunk = list(cell.chunk)
        for axis, k in self._axes[unit.part]:
            chunk[axis] = unit.chunk[k]
        return tuple(chunk)

    def values(self, job: Job, number: int, decoded: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What a decoded chunk gives of the field, shape (rows per sample dimension..., *part of the field)."""
        unit, selection = job.unit, list(job.cells[number].cell.source)
        for axis, k in self._axes[unit.part]:
            selection[axis] = unit.rows[k]
        return self._in_order(decoded, selection, unit.part)

    def scratch(self, job: Job, number: int) -> npt.NDArray[Any] | None:
        """Memory of this thread that a chunk of a job can be decoded into; None where its codecs cannot."""
        source, shape = job.source, self._shapes[job.unit.part]
        if not source.decodes_into:
            return None
        if shape is None:
            grids = self.layout.spec.segments[job.unit.part].grids
            shape = tuple(map(AxisGrid.length, grids, self.chunk(job.cells[number].cell, job.unit)))
        return DECODED.take(math.prod(shape) * source.dtype.itemsize).view(source.dtype).reshape(shape)

    def decoded(self, job: Job, number: int, raw: Any, scratch: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """A chunk of a job, in scratch memory where that can be, else in memory of its own."""
        if scratch is not None and raw is not None and job.source.decode_into(raw, scratch):
            return scratch
        return job.source.decode(raw, self.chunk(job.cells[number].cell, job.unit))

    def peek(self, unit: int, row: int, cell: Cell) -> npt.NDArray[Any]:
        """Read one row of one chunk the way it is read for a batch, blocking.

        Returns
        -------
        array, shape (1 per sample dimension..., *part of the field)
            May lie in scratch memory: valid until this thread reads again.

        Raises
        ------
        ReadError
            If the chunk cannot be read or decoded.
        """
        where = self.unit(unit)
        part = where.part
        job, source = Job(self, where, (PartCell(cell, False, False),)), self.parts[part].source
        wanted = np.unravel_index(row, self.layout.row_shape) if self.layout.row_shape else ()
        selection = list(cell.source)
        for axis, k in self._axes[part]:
            length = self.layout.spec.segments[part].grids[axis].longest
            inside = int(np.arange(length)[where.rows[k]][wanted[k]])
            selection[axis] = slice(inside, inside + 1)
        try:
            (decoded,) = [
                self.decoded(job, 0, raw, self.scratch(job, 0)) for raw in source.stream(job.chunks, Fetched([]))
            ]
        except Exception as error:
            raise job.failure(error) from error
        return self._in_order(decoded, selection, part).astype(self.value_dtype, copy=False)

    def _in_order(self, decoded: npt.NDArray[Any], selection: list[Any], part: int) -> npt.NDArray[Any]:
        """Crop a chunk, apply the functions, and bring its axes into the order of the field."""
        values = crop(decoded, selection)
        for function in self.parts[part].functions:
            values = np.asarray(function(values))
        if values.dtype.newbyteorder("=") != self.value_dtype:
            raise VerificationError(
                f"values of variable {self.layout.spec.name!r} must be {self.value_dtype}, as xarray shows them, "
                f"but got {values.dtype}; please report this with the store's metadata"
            )
        order, new = self._orders[part]
        return np.expand_dims(values.transpose(order), new) if new else values.transpose(order)


def _is_whole(chosen: Any, length: int) -> bool:
    return bool(chosen.indices(length) == (0, length, 1))


def is_contiguous(target: Sequence[slice | IntArray], field: Sequence[int]) -> bool:
    """Whether a part of a field in C order lies in one piece.

    Examples
    --------
    >>> is_contiguous((slice(2, 4), slice(0, 3)), (8, 3)), is_contiguous((slice(2, 4), slice(0, 2)), (8, 3))
    (True, False)
    >>> is_contiguous((slice(2, 3), slice(0, 2)), (8, 3)), is_contiguous((np.array([2, 3]), slice(0, 3)), (8, 3))
    (True, False)
    """
    one = True  # so far, a single position along each axis
    for chosen, size in zip(target, field, strict=True):
        if isinstance(chosen, np.ndarray):
            return False
        start, stop, step = chosen.indices(size)
        length = len(range(start, stop, step))
        if (length > 1 and step != 1) or (not one and length != size):
            return False
        one = one and length == 1
    return True


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
