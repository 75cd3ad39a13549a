"""What reads are to come: which units they use, in the order that was announced, and which of that is done."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import NEVER, AccessGroup


class Address(NamedTuple):
    """A unit of one of the groups."""

    group: int
    unit: int


#: group, and unit and row of each sample
Located = tuple[int, IntArray, IntArray]


@dataclass(slots=True, eq=False)
class Foreseen:
    """Uses of a unit that are still to come: numbers in the announced order, ascending, and how many are done.

    Examples
    --------
    >>> uses = Foreseen(np.array([3, 8]))
    >>> uses.done = 1
    >>> uses.next
    8
    """

    numbers: IntArray
    done: int = 0

    @property
    def next(self) -> int:
        """The number of the next one, ``NEVER`` if there is none."""
        return int(self.numbers[self.done]) if self.done < len(self.numbers) else NEVER


class Foresight:
    """Samples that will be read.

    Reads count by label, not by the order in which they come: a label that is read more often than was announced does
    not use up what was announced of others.

    Parameters
    ----------
    groups : sequence of AccessGroup
        One per variable.
    requests : sequence of lists of (group, units, rows)
        Where the samples of every announced request lie.

    Attributes
    ----------
    chunks : int
        Distinct chunks that will be used.
    """

    def __init__(self, groups: Sequence[AccessGroup], requests: Sequence[Sequence[Located]]) -> None:
        self._groups = groups
        numbers: dict[int, list[IntArray]] = {}
        places: dict[int, list[IntArray]] = {}
        for k, request in enumerate(requests):
            for group, units, rows in request:
                places.setdefault(group, []).append(self._place(group, units, rows))
                numbers.setdefault(group, []).append(np.full(len(units), k))
        self._numbers = {group: np.concatenate(found) for group, found in numbers.items()}
        self._places = {group: np.concatenate(found) for group, found in places.items()}
        self._labels, self._left = {}, {}
        for group, every in self._places.items():
            self._labels[group], self._left[group] = np.unique(every, return_counts=True)
        cells = {g: self._groups[g].cells_per_unit[np.unique(p // self._rows(g))] for g, p in self._places.items()}
        self.chunks = int(sum(c.sum() for c in cells.values()))
        self.bytes_decoded = int(sum(c.sum() * groups[g].first.chunk_bytes for g, c in cells.items()))

    def __repr__(self) -> str:
        samples = sum(map(len, self._places.values()))
        return f"<insitu_xr.Foresight of {samples} fields in {self.chunks} chunks>"

    def _rows(self, group: int) -> int:
        return max(1, self._groups[group].first.slot_rows)

    def _place(self, group: int, units: IntArray, rows: IntArray) -> IntArray:
        """One number for unit and row together."""
        return units * self._rows(group) + rows

    def uses(self) -> dict[Address, Foreseen]:
        """The uses of every unit, by group and unit."""
        found = {}
        for group, every in self._places.items():
            units = every // self._rows(group)
            order = np.argsort(units, kind="stable")  # so the numbers of a unit stay ascending
            ordered, numbers = units[order], self._numbers[group][order]
            starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            for start, mine in zip(starts.tolist(), np.split(numbers, starts[1:]), strict=True):
                found[Address(group, int(ordered[start]))] = Foreseen(mine)
        return found

    def consume(self, located: Iterable[Located]) -> dict[Address, int]:
        """Some samples are read: how many announced uses of each unit are done by that."""
        done: dict[Address, int] = {}
        distinct = functools.cache(lambda number: np.unique(places[number], return_counts=True))
        places: dict[int, IntArray] = {}
        for group, units, rows in located:
            labels = self._labels.get(group)
            if labels is None:
                continue
            # Variables that are cut alike share their arrays.
            if id(units) not in places:
                places[id(units)] = self._place(group, units, rows)
            asked, counts = distinct(id(units))
            at = np.minimum(np.searchsorted(labels, asked), len(labels) - 1)
            known = labels[at] == asked
            at, counts = at[known], np.minimum(counts[known], self._left[group][at[known]])
            self._left[group][at] -= counts
            for unit, count in zip((asked[known] // self._rows(group)).tolist(), counts.tolist(), strict=True):
                if count:
                    address = Address(group, unit)
                    done[address] = done.get(address, 0) + count
        return done
