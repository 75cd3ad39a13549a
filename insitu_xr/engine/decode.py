"""From raw chunks to rows of a slot: decode, crop, apply the functions xarray would apply, place."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.fetch import Chunk, Fetched, Source
from insitu_xr.errors import ReadError, VerificationError
from insitu_xr.geometry.axes import Cell
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import Layout

ValueFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One stored array of a variable: its source and the functions that apply to its values."""

    source: Source
    functions: tuple[ValueFunction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Chunks of one unit of one variable that are read together: all lie in one stored object."""

    reader: VariableReader
    unit: int
    slot: int
    part: int
    cells: tuple[Cell, ...]
    chunks: tuple[Chunk, ...]

    @property
    def source(self) -> Source:
        """Where the chunks are read."""
        return self.reader.parts[self.part].source

    @property
    def raw_bytes(self) -> int:
        """Decoded bytes that the raw chunks stand for, at most."""
        return len(self.chunks) * self.reader.layout.chunk_bytes

    def failure(self, cause: BaseException, doing: str = "read") -> ReadError:
        """The error to raise at the batch that needs these chunks."""
        key = self.source.key(self.chunks[0])
        where = self.chunks[0] if len(self.chunks) == 1 else f"{self.chunks[0]} to {self.chunks[-1]}"
        name = self.reader.layout.spec.name
        return ReadError(
            f"chunk {where} of variable {name!r} must be readable, but {key!r} could not be {doing}: "
            f"{type(cause).__name__}: {cause}; check the store, then iterate again",
            variable=name,
            chunk=self.chunks[0],
            key=key,
        )


class VariableReader:
    """Reads units of one variable and places them in slots.

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
    Safe to use from any thread; each has scratch memory of its own, for as long as it lives.
    """

    def __init__(self, layout: Layout, parts: Sequence[Part], value_dtype: np.dtype[Any]) -> None:
        self.layout, self.parts, self.value_dtype = layout, tuple(parts), value_dtype
        self._orders = [self._permutation(k) for k in range(len(parts))]
        self._scratch = threading.local()

    def jobs(self, unit: int, slot: int) -> list[Job]:
        """The jobs that bring a unit into a slot."""
        along = self.layout.axis_units_of(unit)
        part = self.layout.segment_of(unit)
        source = self.parts[part].source
        by_object: dict[Chunk, list[tuple[Cell, Chunk]]] = defaultdict(list)
        for cell in self.layout.cells[part]:
            chunk = self._chunk(cell, part, along)
            by_object[source.object_of(chunk)].append((cell, chunk))
        per_job = self.layout.spec.chunks_per_job
        jobs = []
        for members in by_object.values():
            for k in range(0, len(members), per_job):
                cells, chunks = zip(*members[k : k + per_job], strict=True)
                jobs.append(Job(self, unit, slot, part, cells, chunks))
        return jobs

    def _chunk(self, cell: Cell, part: int, along: tuple[int, ...]) -> Chunk:
        chunk = list(cell.chunk)
        for axis, dim in enumerate(self.layout.spec.segments[part].dims):
            if dim in self.layout.sample_dims:
                k = self.layout.sample_dims.index(dim)
                chunk[axis] = int(self.layout.units[k].chunk[along[k]])
        return tuple(chunk)

    def _permutation(self, part: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Order that brings the kept stored axes to (sample dims, field dims), and the new axes to insert."""
        kept = [d for d in self.layout.spec.segments[part].dims if d is not None]
        wanted = (*self.layout.sample_dims, *self.layout.field_dims)
        order = tuple(kept.index(d) for d in wanted if d in kept)
        return order, tuple(k for k, d in enumerate(wanted) if d not in kept)

    def place(self, job: Job, fetched: Fetched, rows: npt.NDArray[Any]) -> tuple[int, int]:
        """Decode the chunks of a job into a slot.

        Returns
        -------
        absent, decoded : int
            Chunks that the store does not have, and decoded bytes of the others.

        Parameters
        ----------
        rows : array, shape (rows per sample dimension..., *field)
            The slot.
        """
        along = self.layout.axis_units_of(job.unit)
        counts = tuple(u.rows(k) for u, k in zip(self.layout.units, along, strict=True))
        inner = tuple(slice(0, n) for n in counts)
        absent = decoded_bytes = 0
        for number, (cell, chunk) in enumerate(zip(job.cells, job.chunks, strict=True)):
            raw, fetched.raw[number] = fetched.raw[number], None
            absent += raw is None
            selection = self._selection(cell, job.part, along)
            place = (*inner, *cell.target)
            if self._straight(job.part, selection, chunk):
                target = rows[place]
                if target.flags.c_contiguous and job.source.decode_into(raw, chunk, target):
                    decoded_bytes += target.nbytes
                    continue
            decoded = self._decoded(job.part, raw, chunk)
            decoded_bytes += 0 if raw is None else decoded.nbytes
            piece = self._values(decoded, selection, job.part)
            order, new = self._orders[job.part]
            rows[place] = np.expand_dims(piece.transpose(order), new)
        return absent, decoded_bytes

    def _straight(self, part: int, selection: list[Any], chunk: Chunk) -> bool:
        """Whether a chunk goes into its slot as it is: whole, in its own order, without functions or cast."""
        order, new = self._orders[part]
        if new or self.parts[part].functions or order != tuple(range(len(selection))):
            return False
        grids = self.layout.spec.segments[part].grids
        return all(
            isinstance(s, slice) and s.indices(g.length(c)) == (0, g.length(c), 1)
            for s, g, c in zip(selection, grids, chunk, strict=True)
        )

    def _decoded(self, part: int, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """A chunk in scratch memory of this thread where its codecs can, else in memory of its own."""
        grids, source = self.layout.spec.segments[part].grids, self.parts[part].source
        shape = tuple(g.length(c) for g, c in zip(grids, chunk, strict=True))
        dtype = source.dtype
        size = math.prod(shape) * dtype.itemsize
        scratch = getattr(self._scratch, "bytes", None)
        if scratch is None or scratch.nbytes < size:
            scratch = self._scratch.bytes = np.empty(size, np.uint8)
        out = scratch[:size].view(dtype).reshape(shape) if size and not dtype.hasobject else None
        if out is not None and source.decode_into(raw, chunk, out):
            return out
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
        along = self.layout.axis_units_of(unit)
        part = self.layout.segment_of(unit)
        chunk = self._chunk(cell, part, along)
        source = self.parts[part].source
        selection = self._selection(cell, part, along)
        wanted = np.unravel_index(row, self.layout.row_shape) if self.layout.row_shape else ()
        for axis, dim in enumerate(self.layout.spec.segments[part].dims):
            if dim in self.layout.sample_dims:
                k = self.layout.sample_dims.index(dim)
                length = self.layout.spec.segments[part].grids[axis].longest
                inside = np.arange(length)[selection[axis]][wanted[k]]
                selection[axis] = slice(int(inside), int(inside) + 1)
        try:
            decoded = self._decoded(part, source.read([chunk]).raw[0], chunk)
        except Exception as error:
            raise Job(self, unit, 0, part, (cell,), (chunk,)).failure(error) from error
        values = self._values(decoded, selection, part)
        order, new = self._orders[part]
        return np.expand_dims(values.transpose(order), new).astype(self.value_dtype, copy=False)

    def _selection(self, cell: Cell, part: int, along: tuple[int, ...]) -> list[slice | IntArray | int]:
        selection: list[slice | IntArray | int] = []
        for dim, source in zip(self.layout.spec.segments[part].dims, cell.source, strict=True):
            if source is None:
                k = self.layout.sample_dims.index(dim)
                selection.append(self.layout.units[k].source(along[k]))
            else:
                selection.append(source)
        return selection

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
