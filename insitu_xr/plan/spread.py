"""Scatter: a chunk is decoded once and its rows are written into all the batches that want them, without a slot.

A *visit* is one reading of a unit for the batches of one window of open batches. Where a unit's uses lie farther apart
than the window is long, it is visited again; so any window of at least one batch works, and the reads are known before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import AccessGroup, sample_coordinates
from insitu_xr.plan.request import Request

#: rows of a chunk below this size are moved faster by one copy of many rows out of a slot
ROW_BYTES = 12 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One reading of a unit.

    Attributes
    ----------
    unit : int
        What to read.
    batch, last : int
        The first and the last batch that it is written into.
    copies : dict of int to list
        Per batch, pairs of the row in the unit and the place in the batch.
    """

    unit: int
    batch: int
    last: int
    copies: dict[int, list[tuple[int, int]]]


def can_spread(request: Request, group: AccessGroup) -> bool:
    """Whether rows of a group can go straight into batches: one row per sample, and rows that are worth it."""
    if len(group.columns) != 1 or any(len(x.sample_dims) != 1 for x in group.layouts):
        return False
    if request.shuffle == "global" or request.weights is not None or request.sampler is not None:
        return False
    return all(x.row_bytes >= ROW_BYTES * max(len(c) for c in x.cells) for x in group.layouts)


class Spread:
    """The visits of one epoch, batch by batch.

    Parameters
    ----------
    request : Request
        The request.
    group : AccessGroup
        One that can be spread.
    samples : array of int64
        Samples in the order in which they are drawn.
    size : int
        Samples of a batch.
    most : int
        The longest window of open batches there is room for.

    Attributes
    ----------
    window : int
        Batches that must be open at once: the shortest window under which no unit is visited again, as far as there
        is room for it.

    Examples
    --------
    >>> from insitu_xr.plan.spread import visits_of
    >>> first, follows = visits_of(np.array([0, 0, 3, 9]), np.array([5, 5, 5, 5]), window=4)
    >>> first.tolist(), follows.tolist()
    ([True, False, False, True], [0, 0, 0, 9])
    """

    def __init__(self, request: Request, group: AccessGroup, samples: IntArray, size: int, most: int) -> None:
        self.group = group
        layout = group.first
        units, rows = layout.locate(sample_coordinates(request, layout, samples, group.columns[0]))
        places = np.arange(len(samples))
        # By unit, and in the order of the batches within it.
        order = np.argsort(units, kind="stable")
        self._units, self._rows, places = units[order], rows[order], places[order]
        batches, self._places = np.divmod(places, size)
        self.window = _window(batches, self._units, most)
        fresh, _ = visits_of(batches, self._units, self.window)
        begins = np.flatnonzero(fresh)
        self._bounds = np.append(begins, len(samples))
        self._batches = batches
        # Visits in the order of the batches that need them first.
        first = batches[begins]
        self._order = np.argsort(first, kind="stable")
        self._due = first[self._order]
        self._next = 0
        self.visits = len(begins)
        self.reads = int(group.cells_per_unit[self._units[begins]].sum())

    def step(self, batch: int) -> Iterator[Visit]:
        """The visits that a batch needs first; call once per batch, in order."""
        while self._next < self.visits and self._due[self._next] == batch:
            number = int(self._order[self._next])
            self._next += 1
            low, high = int(self._bounds[number]), int(self._bounds[number + 1])
            copies: dict[int, list[tuple[int, int]]] = {}
            mine = slice(low, high)
            triples = zip(
                self._batches[mine].tolist(), self._rows[mine].tolist(), self._places[mine].tolist(), strict=True
            )
            for into, row, place in triples:
                copies.setdefault(into, []).append((row, place))
            yield Visit(int(self._units[low]), batch, int(self._batches[high - 1]), copies)


def _window(batches: IntArray, units: IntArray, most: int) -> int:
    """The shortest window that spans all uses of every unit, of those that ``most`` can span at all."""
    if not len(units):
        return 1
    begins = np.flatnonzero(np.r_[True, units[1:] != units[:-1]])
    ends = np.append(begins[1:], len(units)) - 1
    spans = batches[ends] - batches[begins] + 1
    return int(spans[spans <= most].max(initial=1))


def visits_of(batches: IntArray, units: IntArray, window: int) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Which uses begin a visit, and the batch that each visit began at; uses come by unit, then by batch."""
    fresh = np.ones(len(units), bool)
    fresh[1:] = units[1:] != units[:-1]
    began = np.maximum.accumulate(np.where(fresh, np.arange(len(units)), 0))
    began = batches[began]
    while (late := np.flatnonzero(batches - began >= window)).size:
        # The first late use of every unit begins a visit; the uses after it count from there.
        first = late[np.r_[True, units[late[1:]] != units[late[:-1]]]]
        fresh[first] = True
        starts = np.maximum.accumulate(np.where(fresh, np.arange(len(units)), 0))
        began = batches[starts]
    return fresh, began
