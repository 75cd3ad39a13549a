"""Which units are in memory for those who ask in any order: pure state, without locks, threads or I/O.

A unit is *absent* until it is asked for or foreseen, *loading* once it has a slot, and *ready* when it is in place. It
stays until its slot is needed: first goes what no use is foreseen for and was used longest ago, then what is foreseen
to be used last. A unit that somebody waits for, or copies from, never goes.

::

    absent --want--> wanted --next_load--> loading --placed--> ready --evicted--> absent
       |                                      ^
       +---------- foreseen -----------------+
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from insitu_xr.plan.foresight import Address, Foreseen
from insitu_xr.plan.reads import NEVER


@dataclass(slots=True, eq=False)
class _Entry:
    """A unit that has a slot."""

    slot: int
    ready: bool = False
    #: those who copy from it just now
    pins: int = 0
    used: int = 0


@dataclass(slots=True, eq=False)
class _Group:
    """The slots of one group."""

    free: list[int]
    entries: dict[int, _Entry] = field(default_factory=dict)
    #: units that are asked for and have no slot yet, in the order asked
    wanted: OrderedDict[int, int] = field(default_factory=OrderedDict)
    #: candidates to go: (-next use, last use, unit); outdated ones are passed over
    leaving: list[tuple[int, int, int]] = field(default_factory=list)
    #: what to read ahead: (next use, unit), likewise
    ahead: list[tuple[int, int]] = field(default_factory=list)


class Shelf[Asker]:
    """Units in slots, and who waits for them.

    Parameters
    ----------
    sizes : sequence of int
        Slots of each group, at least one each.

    Notes
    -----
    Not thread-safe; its owner guards it with one lock.

    Examples
    --------
    >>> shelf = Shelf([1])
    >>> shelf.want(Address(0, 7), "me"), shelf.next_load()
    (False, (Address(group=0, unit=7), 0))
    >>> shelf.placed(Address(0, 7))
    ['me']
    >>> shelf.want(Address(0, 8), "you"), shelf.next_load()  # the slot is still copied from
    (False, None)
    >>> shelf.unpin(Address(0, 7))
    >>> shelf.next_load()
    (Address(group=0, unit=8), 0)
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._groups = [_Group(list(range(n - 1, -1, -1))) for n in sizes]
        self._waiting: dict[Address, list[Asker]] = {}
        self._foreseen: dict[Address, Foreseen] = {}
        self._clock = 0

    # -- those who ask -------------------------------------------------------------------------------------------

    def want(self, address: Address, asker: Asker) -> bool:
        """Ask for a unit.

        Returns
        -------
        bool
            True if it is ready: it is pinned then, until `unpin`. False if the asker waits for it.
        """
        group, entry = self._groups[address.group], self._groups[address.group].entries.get(address.unit)
        self._clock += 1
        if entry is not None and entry.ready:
            entry.pins += 1
            return True
        self._waiting.setdefault(address, []).append(asker)
        if entry is None:
            group.wanted.setdefault(address.unit, self._clock)
        return False

    def unpin(self, address: Address) -> None:
        """One copy from a unit is done."""
        entry = self._groups[address.group].entries[address.unit]
        entry.pins -= 1
        self._clock += 1
        entry.used = self._clock
        self._may_leave(address, entry)

    def withdraw(self, asker: Asker, addresses: Iterable[Address]) -> list[Address]:
        """An asker waits no more; returns what is being loaded, and nobody waits for or foresees any more."""
        idle = []
        for address in addresses:
            waiting = [a for a in self._waiting.get(address, ()) if a is not asker]
            if waiting:
                self._waiting[address] = waiting
                continue
            self._waiting.pop(address, None)
            group = self._groups[address.group]
            group.wanted.pop(address.unit, None)
            entry = group.entries.get(address.unit)
            if entry is not None and not entry.ready and self._next_use(address) == NEVER:
                idle.append(address)
        return idle

    def askers(self) -> list[Asker]:
        """Everyone who waits, once for each unit."""
        return [asker for waiting in self._waiting.values() for asker in waiting]

    # -- what is to be used --------------------------------------------------------------------------------------

    def foresee(self, uses: Mapping[Address, Foreseen]) -> None:
        """Uses that are to come, in place of those foreseen before."""
        self._foreseen = dict(uses)
        for group in self._groups:
            group.ahead.clear()
        for (number, unit), foreseen in sorted(uses.items(), key=lambda item: item[1].next):
            self._groups[number].ahead.append((foreseen.next, unit))  # ascending, and so a heap
        for number, group in enumerate(self._groups):
            for unit, entry in group.entries.items():
                self._may_leave(Address(number, unit), entry)

    def used(self, counts: Mapping[Address, int]) -> None:
        """So many of the foreseen uses are done, or about to be."""
        for address, count in counts.items():
            foreseen = self._foreseen.get(address)
            if foreseen is not None:
                foreseen.done += count
                entry = self._groups[address.group].entries.get(address.unit)
                if entry is not None:
                    self._may_leave(address, entry)

    # -- those who load ------------------------------------------------------------------------------------------

    def next_load(self) -> tuple[Address, int] | None:
        """The unit to load next, and its slot: what is asked for, else what is foreseen; None if nothing can be."""
        asked = sorted((next(iter(g.wanted.values())), k) for k, g in enumerate(self._groups) if g.wanted)
        for _, number in asked:
            group = self._groups[number]
            slot = self._slot(number, -1)
            if slot is not None:
                unit, _ = group.wanted.popitem(last=False)
                return self._load(Address(number, unit), slot)
        return None if asked else self._next_ahead()

    def _next_ahead(self) -> tuple[Address, int] | None:
        heads = [(*head, k) for k in range(len(self._groups)) if (head := self._head(k)) is not None]
        for following, unit, number in sorted(heads):
            slot = self._slot(number, following)
            if slot is not None:
                heapq.heappop(self._groups[number].ahead)
                return self._load(Address(number, unit), slot)
        return None

    def _head(self, number: int) -> tuple[int, int] | None:
        """What is to be read ahead first in a group: its next use, and the unit."""
        group = self._groups[number]
        while group.ahead:
            noted, unit = group.ahead[0]
            following = self._next_use(Address(number, unit))
            if following != NEVER and unit not in group.entries and unit not in group.wanted:
                if following == noted:
                    return noted, unit
                heapq.heapreplace(group.ahead, (following, unit))
                continue
            heapq.heappop(group.ahead)
        return None

    def _load(self, address: Address, slot: int) -> tuple[Address, int]:
        self._groups[address.group].entries[address.unit] = _Entry(slot)
        return address, slot

    def placed(self, address: Address) -> list[Asker]:
        """A unit is in place; returns those who waited, for each of whom it is pinned."""
        entry = self._groups[address.group].entries[address.unit]
        waited = self._waiting.pop(address, [])
        entry.ready, entry.pins, entry.used = True, len(waited), self._clock
        self._may_leave(address, entry)
        return waited

    def failed(self, address: Address) -> list[Asker]:
        """A unit could not be loaded; returns those who waited. It may be asked for again."""
        waited = self._free(address)
        # What could not be read ahead is left to whoever asks for it, and is told then.
        self._foreseen.pop(address, None)
        return waited

    def abandoned(self, address: Address) -> None:
        """The loading of a unit was given up; who has asked for it since waits for another."""
        for asker in self._free(address):
            self.want(address, asker)

    def _free(self, address: Address) -> list[Asker]:
        group = self._groups[address.group]
        group.free.append(group.entries.pop(address.unit).slot)
        return self._waiting.pop(address, [])

    def slot(self, address: Address) -> int:
        """Slot of a unit that has one."""
        return self._groups[address.group].entries[address.unit].slot

    def counts(self) -> Counter[str]:
        """Units by state, for messages and tests."""
        found: Counter[str] = Counter()
        for group in self._groups:
            found["wanted"] += len(group.wanted)
            found.update("ready" if e.ready else "loading" for e in group.entries.values())
        return found

    # -- room ----------------------------------------------------------------------------------------------------

    def _next_use(self, address: Address) -> int:
        foreseen = self._foreseen.get(address)
        return NEVER if foreseen is None else foreseen.next

    def _may_leave(self, address: Address, entry: _Entry) -> None:
        if entry.ready and not entry.pins:
            record = (-self._next_use(address), entry.used, address.unit)
            heapq.heappush(self._groups[address.group].leaving, record)

    def _slot(self, number: int, before: int) -> int | None:
        """A slot for a unit that is used at ``before``: a free one, or that of a unit whose next use lies later."""
        group = self._groups[number]
        if group.free:
            return group.free.pop()
        while group.leaving:
            negative, used, unit = group.leaving[0]
            entry = group.entries.get(unit)
            current = entry is not None and entry.ready and not entry.pins and entry.used == used
            if not current or -negative != self._next_use(Address(number, unit)):
                heapq.heappop(group.leaving)
                continue
            if -negative <= before:
                return None
            heapq.heappop(group.leaving)
            slot = group.entries.pop(unit).slot
            if -negative != NEVER:  # it is to be used after all, so it will be read again
                heapq.heappush(group.ahead, (-negative, unit))
            return slot
        return None
