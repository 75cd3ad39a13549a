"""The schedule: what to fetch and what to free, computed from the known order under a number of slots.

The unit whose next use lies farthest away is freed first (Belady 1966, optimal for a known order). A fetch names the
slot it fills and the last batch that still reads what the slot held, so the executor needs no further decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from insitu_xr.plan.reads import NEVER, AccessGroup, Uses


@dataclass(frozen=True, slots=True)
class Fetch:
    """One unit to be brought into a slot.

    Attributes
    ----------
    batch : int
        The batch that needs it first.
    after : int
        The fetch may start once this batch has been gathered; -1 for at once.
    """

    unit: int
    slot: int
    batch: int
    after: int


class Residency:
    """Walks the batches of one epoch and says what to fetch into which slot.

    Parameters
    ----------
    uses : Uses
        Units per batch, with next uses that may reach into the following epoch.
    n_slots : int
        Slots to fill; at least ``uses.largest``.
    resident : mapping of unit to slot
        What the slots hold already.

    Notes
    -----
    Pure state without I/O; not thread-safe, the owner guards it.

    Examples
    --------
    >>> from insitu_xr.plan.reads import batch_uses
    >>> units = np.array([[0], [1], [2], [0], [1]])
    >>> walk = Residency(batch_uses(units, 1, 5, 3), n_slots=2)
    >>> [(f.unit, f.slot, f.after) for f in walk]
    [(0, 0, -1), (1, 1, -1), (2, 1, 1), (1, 1, 2)]
    """

    def __init__(self, uses: Uses, n_slots: int, resident: Mapping[int, int] | None = None) -> None:
        self.uses = uses
        self.slot_of: dict[int, int] = dict(resident or {})
        taken = set(self.slot_of.values())
        self._free = [s for s in range(n_slots - 1, -1, -1) if s not in taken]
        self._next_use: dict[int, int] = {}
        self._last_use: dict[int, int] = {}
        # With room for every unit nothing is ever freed, so the heap need not be kept.
        self._crowded = n_slots < uses.n_units
        self._heap: list[tuple[int, int, int]] = []
        if self._crowded and self.slot_of:
            first = uses.first_use()
            for unit in self.slot_of:
                self._next_use[unit], self._last_use[unit] = int(first[unit]), -1
                self._enter(unit)
        self.hits = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        """Fetches of all batches in order."""
        for batch in range(self.uses.n_batches):
            yield from self.step(batch)

    def step(self, batch: int) -> list[Fetch]:
        """Fetches that a batch needs; call once per batch, in order."""
        low, high = self.uses.bounds[batch], self.uses.bounds[batch + 1]
        units = self.uses.units[low:high].tolist()
        following = self.uses.next_use[low:high].tolist()
        absent = [u for u in units if u not in self.slot_of]
        self.hits += len(units) - len(absent)
        if self._crowded:
            # What this batch uses is marked first, which outdates its entries in the heap, and entered again last:
            # so it is never a victim of its own batch.
            self._next_use.update(zip(units, following, strict=True))
            self._last_use.update(dict.fromkeys(units, batch))
        fetches = []
        for unit in absent:
            slot, after = (self._free.pop(), -1) if self._free else self._evict()
            self.slot_of[unit] = slot
            fetches.append(Fetch(unit, slot, batch, after))
        if self._crowded:
            for unit in units:
                self._enter(unit)
        return fetches

    def _enter(self, unit: int) -> None:
        # Among equals the one that was used longest ago goes first: its slot is free soonest.
        heapq.heappush(self._heap, (-self._next_use[unit], self._last_use[unit], unit))

    def _evict(self) -> tuple[int, int]:
        while True:
            negative, last_use, unit = heapq.heappop(self._heap)
            current = (-negative, last_use) == (self._next_use[unit], self._last_use[unit])
            if current and unit in self.slot_of:
                return self.slot_of.pop(unit), last_use
            # else the entry is outdated


def count_reads(group: AccessGroup, uses: Uses, n_slots: int) -> int:
    """Chunks that an epoch fetches into empty slots.

    Where no unit that is still wanted is ever freed, that is each touched unit once; this is seen without a walk.
    """
    touched = uses.first_use() != NEVER
    if n_slots < touched.sum() and n_slots < most_wanted(uses):
        return int(sum(group.cells_per_unit[f.unit] for f in Residency(uses, n_slots)))
    return int(group.cells_per_unit[touched].sum())


#: where nothing is kept for the next epoch, units are read ahead up to about this size, and at least one
AHEAD_BYTES = 4 << 20
AHEAD_UNITS = 4


def lean_slots(group: AccessGroup, uses: Uses, n_slots: int) -> int:
    """As many of the slots as one epoch has a use for: to read no unit again, and some to read ahead."""
    ahead = min(AHEAD_UNITS, AHEAD_BYTES // max(1, group.slot_bytes))
    return min(n_slots, most_wanted(uses) + max(1, ahead))


def most_wanted(uses: Uses) -> int:
    """The largest number of units that lie between their first and last use (inclusive) at one batch.

    Examples
    --------
    >>> from insitu_xr.plan.reads import batch_uses
    >>> most_wanted(batch_uses(np.array([[0], [1], [0], [2]]), 1, 4, 3))
    2
    """
    batches = np.repeat(np.arange(uses.n_batches), np.diff(uses.bounds))
    last = np.full(uses.n_units, -1)
    last[uses.units] = batches
    first = uses.first_use()
    touched = first != NEVER
    changes = np.zeros(uses.n_batches + 1, np.int64)
    np.add.at(changes, first[touched], 1)
    np.add.at(changes, last[touched] + 1, -1)
    return int(np.cumsum(changes).max(initial=0))
