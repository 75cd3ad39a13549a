"""Decoded, cropped units in memory: one arena per variable, cut into slots of equal size; and the ledger."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from insitu_xr.engine.blocks import BLOCKS
from insitu_xr.errors import InsituError
from insitu_xr.limits import format_bytes
from insitu_xr.plan.reads import AccessGroup


class Ledger:
    """Bytes held by the engine, checked against the ceiling at every step.

    Not thread-safe: the owner's lock guards it.
    """

    def __init__(self, ceiling: int, peak: int = 0) -> None:
        self.ceiling = ceiling
        self.resident = 0
        self.peak = peak

    def hold(self, count: int) -> None:
        """Account for memory that is about to be filled."""
        self.resident += count
        if self.resident > self.ceiling:
            # The plan guarantees room, so this is a fault of ours; going on would break the promise silently.
            raise InsituError(
                f"resident memory must be at most {format_bytes(self.ceiling)}, but got "
                f"{format_bytes(self.resident)}; please report this with the plan"
            )
        self.peak = max(self.peak, self.resident)

    def release(self, count: int) -> None:
        """Account for memory that is free again."""
        self.resident -= count


class SlotStore:
    """The slots of one access group: which unit each slot holds, and the arenas of its variables.

    A slot is *empty* until a fetch begins to fill it and *valid* from the moment every variable's chunks are placed
    until the next fetch into it begins. Transitions happen under the owner's lock; filling a slot does not.
    """

    def __init__(self, group: AccessGroup, n_slots: int) -> None:
        self.group, self.n_slots = group, n_slots
        self.arenas: dict[str, npt.NDArray[Any]] = {}
        for layout in group.layouts:
            # Pages are taken from the system when they are first written, so unused slots cost nothing.
            shape = (n_slots, *layout.row_shape, *layout.field_shape)
            self.arenas[layout.spec.name] = BLOCKS.array(shape, layout.spec.dtype)
        self._unit_of: dict[int, int] = {}
        self._touched: set[int] = set()

    @property
    def touched(self) -> int:
        """Slots that were ever filled, from the first to the last."""
        return max(self._touched, default=-1) + 1

    def begin(self, slot: int) -> int:
        """A slot is about to be overwritten; returns the bytes that become resident by it."""
        self._unit_of.pop(slot, None)
        if slot in self._touched:
            return 0
        self._touched.add(slot)
        return self.group.slot_bytes

    def finish(self, slot: int, unit: int) -> None:
        """All chunks of a unit are in place."""
        self._unit_of[slot] = unit

    def resident(self) -> dict[int, int]:
        """Slot of every unit that is in place."""
        return {unit: slot for slot, unit in self._unit_of.items()}

    def let_go(self) -> None:
        """Let go of all memory; the store cannot be used any more."""
        self.arenas.clear()
        self._unit_of.clear()

    def rows(self, variable: str) -> npt.NDArray[Any]:
        """An arena as rows of the field, shape (slots * rows, *field)."""
        arena = self.arenas[variable]
        layout = next(x for x in self.group.layouts if x.spec.name == variable)
        return arena.reshape(self.n_slots * layout.slot_rows, *layout.field_shape)
