"""From slots to batch arrays: contiguous copies, straight into the dict or the stacked layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.blocks import BLOCKS, BlockStore
from insitu_xr.engine.slots import SlotStore
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.arrays import ArraySpec, Key, array_shapes, batch_bytes
from insitu_xr.plan.channels import Stack
from insitu_xr.plan.reads import AccessGroup, sample_coordinates
from insitu_xr.plan.request import Request, Take
from insitu_xr.plan.schedule import Residency

#: arrays are cut into pieces of about this size, so that several threads share a large batch
PIECE_BYTES = 4 << 20
#: and small pieces are copied one after another by one thread, as many as come to this size
PART_BYTES = 3 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Samples of a batch to be copied: into one array, or into the channels of one variable."""

    #: number of the take in ``Request.takes``; -1 for statics
    take: int
    start: int
    stop: int


#: what one thread copies at a time
Part = tuple[Gather, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Outline:
    """What is the same for all batches of one size."""

    arrays: dict[Key, ArraySpec]
    bytes: int
    parts: list[Part]


class Gatherer:
    """Knows the arrays of a batch and copies rows into them.

    Parameters
    ----------
    request : Request
        The request.
    stores : sequence of SlotStore
        Where units lie, one store per access group that is kept in slots.
    memory : mapping of variable to array
        Variables that are in memory, in the order of their dims.
    stacks : mapping of group to Stack, or None
        The stacked layout; None for the dict layout.
    blocks : BlockStore
        Where the memory of batches comes from.

    Notes
    -----
    ``run`` may be called from several threads at once for different parts.
    """

    def __init__(
        self,
        request: Request,
        stores: Sequence[SlotStore],
        memory: Mapping[str, npt.NDArray[Any]],
        stacks: Mapping[str, Stack] | None,
        blocks: BlockStore = BLOCKS,
    ) -> None:
        self.request, self.stacks, self._blocks = request, stacks, blocks
        self._group_of = {x.spec.name: k for k, store in enumerate(stores) for x in store.group.layouts}
        self._rows = {name: stores[k].rows(name) for name, k in self._group_of.items()}
        self._columns = [{c: k for k, c in enumerate(store.group.columns)} for store in stores]
        #: takes that are copied; the others are written into the batch as they are decoded
        self._copied = [k for k, t in enumerate(request.takes) if t.variable in self._group_of or t.variable in memory]
        self._memory = {name: self._samples_first(name, values) for name, values in memory.items()}
        #: by the number of samples: of a full batch, and of the last one
        self._outlines: dict[int, _Outline] = {}

    def _samples_first(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dims = self.request.variables[name].dims
        axes = [dims.index(d) for d in self.request.sample_dims if d in dims]
        return np.moveaxis(values, axes, range(len(axes)))

    def let_go(self) -> None:
        """Let go of the slots; nothing can be gathered any more."""
        self._rows.clear()

    def views(self, name: str, arrays: Mapping[Key, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Where a variable without windows goes in a batch: views of shape (samples, *field)."""
        found = []
        for take in self.request.takes:
            if take.variable != name:
                continue
            if self.stacks is None:
                array = arrays[take.group, name]
                found.append(array[:, 0] if take.windowed else array)
                continue
            array, field = arrays[take.group, ""], self.request.field_shape(name)
            for block in self.stacks[take.group].blocks:
                if block.variable == name and block.column is not None:
                    channels = array[:, block.start : block.start + block.count]
                    shape = tuple(field[k] for k in block.order)
                    back = np.argsort(block.order) + 1
                    found.append(channels.reshape(len(array), *shape).transpose(0, *back))
        return found

    def allocate(self, n: int) -> dict[Key, npt.NDArray[Any]]:
        """Fresh arrays for a batch."""
        return {
            key: self._blocks.array(shape, dtype, roomy=True) for key, (shape, dtype) in self._outline(n).arrays.items()
        }

    def batch_bytes(self, n: int) -> int:
        """Bytes of all arrays of a batch."""
        return self._outline(n).bytes

    def parts(self, n: int) -> list[Part]:
        """Cut the copying of a batch into parts."""
        return self._outline(n).parts

    def _outline(self, n: int) -> _Outline:
        found = self._outlines.get(n)
        if found is None:
            arrays, size = array_shapes(self.request, self.stacks, n), batch_bytes(self.request, self.stacks, n)
            found = self._outlines[n] = _Outline(arrays, size, self._cut(n))
        return found

    def _cut(self, n: int) -> list[Part]:
        parts: list[list[Gather]] = [[Gather(-1, 0, n)]] if self.request.statics else []
        room = 0
        for number in self._copied:
            take = self.request.takes[number]
            itemsize = self.request.variables[take.variable].dtype.itemsize
            row = max(1, math.prod(self.request.field_shape(take.variable)) * itemsize * len(take.columns))
            step = max(1, PIECE_BYTES // row)
            for k in range(0, n, step):
                piece = Gather(number, k, min(k + step, n))
                size = row * (piece.stop - piece.start)
                if size > room:
                    parts.append([])
                    room = PART_BYTES
                parts[-1].append(piece)
                room -= size
        return [tuple(part) for part in parts]

    def run(
        self, part: Part, samples: IntArray, rows: Sequence[IntArray], arrays: Mapping[Key, npt.NDArray[Any]]
    ) -> None:
        """Copy one part.

        Parameters
        ----------
        samples : array of int64
            Samples of the batch.
        rows : sequence of arrays, shape (samples, columns of the group)
            Per access group, the row in the arena of every sample and column.
        arrays : mapping
            The arrays of the batch.
        """
        for piece in part:
            if piece.take < 0:
                self._statics(rows, arrays)
            else:
                self._copy(piece, samples, rows, arrays)

    def _copy(
        self, piece: Gather, samples: IntArray, rows: Sequence[IntArray], arrays: Mapping[Key, npt.NDArray[Any]]
    ) -> None:
        take = self.request.takes[piece.take]
        inside = slice(piece.start, piece.stop)
        if self.stacks is not None:
            return self._stacked(take, inside, samples, rows, arrays[take.group, ""])
        out = arrays[take.group, take.variable][inside]
        if take.variable in self._memory:
            for k, column in enumerate(take.columns):
                values = self._from_memory(take.variable, samples[inside], column)
                out[(slice(None), k) if take.windowed else ...] = values
            return None
        number = self._group_of[take.variable]
        places = [self._columns[number][c] for c in take.columns]
        chosen = (
            rows[number][inside] if places == [*self._columns[number].values()] else rows[number][inside][:, places]
        )
        arena = self._rows[take.variable]
        # Rows are whole and contiguous, so this is one copy; "clip" avoids a buffered second one.
        np.take(arena, chosen.ravel(), axis=0, out=out.reshape(chosen.size, *arena.shape[1:]), mode="clip")
        return None

    def _from_memory(self, name: str, samples: IntArray, column: int) -> npt.NDArray[Any]:
        spec = self.request.variables[name]
        every = self.request.coordinates(samples, column)
        index = tuple(every[k] for k, d in enumerate(self.request.sample_dims) if d in spec.dims)
        return self._memory[name][index]

    def _stacked(
        self, take: Take, inside: slice, samples: IntArray, rows: Sequence[IntArray], out: npt.NDArray[Any]
    ) -> None:
        assert self.stacks is not None
        for block in self.stacks[take.group].blocks:
            if block.variable != take.variable or block.column is None:
                continue
            target = out[inside, block.start : block.start + block.count]
            order = (0, *(k + 1 for k in block.order))
            if take.variable in self._memory:
                values = self._from_memory(take.variable, samples[inside], block.column)
                target[...] = values.transpose(order).reshape(target.shape)
                continue
            number = self._group_of[take.variable]
            arena = self._rows[take.variable].transpose(order)
            for place, row in zip(target, rows[number][inside, self._columns[number][block.column]], strict=True):
                place[...] = arena[row].reshape(place.shape)

    def _statics(self, rows: Sequence[IntArray], arrays: Mapping[Key, npt.NDArray[Any]]) -> None:
        for name in self.request.statics:
            field = self._memory[name] if name in self._memory else self._rows[name][0]
            if self.stacks is None:
                arrays["statics", name][...] = field
                continue
            for group, stack in self.stacks.items():
                for block in stack.blocks:
                    if block.variable == name and block.column is None:
                        target = arrays[group, ""][:, block.start : block.start + block.count]
                        target[...] = field.transpose(block.order).reshape(target.shape[1:])


def arena_rows(request: Request, group: AccessGroup, walk: Residency, number: int, samples: IntArray) -> IntArray:
    """Row in the arena of every sample of a batch and column, shape (samples, columns).

    Called once the walk has come to the batch: slots are as they are when it is gathered.
    """
    uses, layout = walk.uses, group.first
    units = uses.units[uses.bounds[number] : uses.bounds[number + 1]]
    slots = np.array([walk.slot_of[u] for u in units.tolist()], np.int64)
    out = np.zeros((len(samples), len(group.columns)), np.int64)
    for k, column in enumerate(group.columns):
        unit, row = layout.locate(sample_coordinates(request, layout, samples, column))
        out[:, k] = slots[np.searchsorted(units, unit)] * layout.slot_rows + row
    return out
