"""Named splits of one axis: who owns each label, so that none is owned, or read, by two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis

NOBODY = -1

#: a split dealt out in blocks gets this many of them where there is no reason for longer ones
BLOCKS_PER_SPLIT = 10
#: a block is at least this many times as long as the labels that it may lose at its ends
BLOCK_PER_LOSS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Who owns each label of an axis.

    Attributes
    ----------
    axis : LabelAxis
        Labels, each there once.
    names : tuple of str
        Names of the splits.
    owner : array of int64, shape (labels,)
        Place in ``names``, or ``NOBODY``.
    """

    axis: LabelAxis
    names: tuple[str, ...]
    owner: IntArray

    @classmethod
    def of(cls, axis: LabelAxis, chosen: Mapping[str, IntArray]) -> Splits:
        """Give every split the positions chosen for it.

        Raises
        ------
        RequestError
            If two splits share a label.

        Examples
        --------
        >>> from insitu_xr.geometry.times import label_axis
        >>> axis = label_axis("step", None, 4)
        >>> Splits.of(axis, {"train": np.array([0, 1]), "val": np.array([3])}).owner.tolist()
        [0, 0, -1, 1]
        """
        owner = np.full(len(axis), NOBODY, np.int64)
        for number, (name, positions) in enumerate(chosen.items()):
            taken = positions[owner[positions] != NOBODY]
            if len(taken):
                first = int(taken.min())
                raise RequestError(
                    f"splits must share no label, but got {len(taken)} of {axis.dim!r} in both "
                    f"{list(chosen)[owner[first]]!r} and {name!r}, first {axis.show(first)}; a slice includes its end, "
                    "so end one before the other begins"
                )
            owner[positions] = number
        return cls(axis, tuple(chosen), owner)

    def positions(self, name: str) -> IntArray:
        """Positions of a split, ascending."""
        return np.flatnonzero(self.owner == self.names.index(name)).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """Labels of each split."""
        found = np.bincount(self.owner[self.owner != NOBODY], minlength=len(self.names))
        return dict(zip(self.names, found.tolist(), strict=True))

    def dealt(self, fractions: Mapping[str, float], bounds: IntArray, seed: int | None) -> Splits:
        """Deal the labels that nobody owns to further splits, in pieces of neighbours.

        Parameters
        ----------
        fractions : mapping of name to float
            Share of the pieces that each split gets, in order.
        bounds : array of int64
            First place of each piece among the labels that nobody owns, in label order, and the end.
        seed : int or None
            Permute the pieces; None deals them in label order.

        Raises
        ------
        RequestError
            If a split would get nothing.

        Examples
        --------
        >>> from insitu_xr.geometry.times import label_axis
        >>> nothing = Splits.of(label_axis("step", None, 6), {})
        >>> nothing.dealt({"train": 2 / 3, "val": 1 / 3}, np.arange(7), None).owner.tolist()
        [0, 0, 0, 0, 1, 1]
        """
        free = _in_order(self.axis)
        free = free[self.owner[free] == NOBODY]
        pieces = len(bounds) - 1
        turn = np.arange(pieces) if seed is None else np.random.default_rng(seed).permutation(pieces)
        # Shares are rounded at their ends, so that they neither overlap nor leave pieces over.
        ends = np.floor(np.cumsum([*fractions.values()]) * pieces + 0.5).astype(np.int64)
        shares = np.diff(ends, prepend=0)
        if not shares.all():
            got = ", ".join(f"{name} {n}" for name, n in zip(fractions, shares.tolist(), strict=True))
            what = "labels" if seed is None else f"blocks of about {len(free) // max(1, pieces)} labels"
            raise RequestError(
                f"fractions must give every split something, but got {got} of {pieces} {what}; raise the smallest "
                f"fraction{'' if seed is None else ', or give a shorter block='}"
            )
        owner = self.owner.copy()
        number = np.full(pieces, NOBODY, np.int64)
        number[turn[: ends[-1]]] = len(self.names) + np.repeat(np.arange(len(shares)), shares)
        owner[free] = np.repeat(number, np.diff(bounds))
        return replace(self, names=(*self.names, *fractions), owner=owner)

    def apart(self, gap: float) -> Splits:
        """Take away the labels that lie within ``gap`` ticks of a label of another split.

        Examples
        --------
        >>> from insitu_xr.geometry.times import label_axis
        >>> two = Splits.of(label_axis("step", None, 8), {"train": np.arange(4), "val": np.arange(4, 8)})
        >>> two.apart(2).owner.tolist()
        [0, 0, -1, -1, -1, -1, 1, 1]
        """
        order = _in_order(self.axis)
        held = order[self.owner[order] != NOBODY]
        if not gap or not len(held):
            return self
        ticks, run = self.axis.ticks[held], np.cumsum(np.diff(self.owner[held], prepend=self.owner[held[0]]) != 0)
        # Labels of one split that follow one another are a run: the nearest others end the runs before and after it.
        first = np.flatnonzero(np.diff(run, prepend=-1))
        last = np.append(first[1:], len(held)) - 1
        near = np.zeros(len(held), np.bool_)
        after, before = run > 0, run < len(first) - 1
        near[after] = ticks[after] - ticks[last[run[after] - 1]] <= gap
        near[before] |= ticks[first[run[before] + 1]] - ticks[before] <= gap
        owner = self.owner.copy()
        owner[held[near]] = NOBODY
        return replace(self, owner=owner)


def _in_order(axis: LabelAxis) -> IntArray:
    return np.argsort(axis.ticks, kind="stable").astype(np.int64)


def even_blocks(n: int, length: int) -> IntArray:
    """Bounds of blocks of a number of labels; a rest shorter than half a block joins the last one.

    Examples
    --------
    >>> even_blocks(10, 4).tolist(), even_blocks(9, 4).tolist()
    ([0, 4, 8, 10], [0, 4, 9])
    """
    starts = np.arange(0, max(1, n - (length + 1) // 2 + 1), length, dtype=np.int64)
    return np.append(starts, n)


def span_blocks(ticks: npt.NDArray[Any], length: float) -> IntArray:
    """Bounds of blocks of a span, for ascending ticks; a block without labels is none.

    Examples
    --------
    >>> span_blocks(np.array([0, 1, 2, 3, 9]), 3).tolist()
    [0, 3, 4, 5]
    """
    block = (ticks - ticks[0]) // length
    return np.concatenate([[0], np.flatnonzero(np.diff(block)) + 1, [len(ticks)]]).astype(np.int64)


def usual_block(n: int, fractions: Sequence[float], lost: int) -> int:
    """Labels of a block where the user gives none: long against what is lost at its ends, short against a split.

    Parameters
    ----------
    n : int
        Labels to deal out.
    fractions : sequence of float
        Shares of the splits.
    lost : int
        Labels that a block loses at its ends to the gap, or whose windows leave it.

    Examples
    --------
    >>> usual_block(1000, [0.8, 0.1, 0.1], 0), usual_block(1000, [0.8, 0.1, 0.1], 8)
    (10, 32)
    """
    smallest = min(fractions)
    many = int(n * smallest / BLOCKS_PER_SPLIT)
    return max(1, min(max(many, BLOCK_PER_LOSS * lost), int(n * smallest)))


def window_within(member: npt.NDArray[np.bool_], partners: IntArray) -> npt.NDArray[np.bool_]:
    """Per anchor, whether every label of its window is a member.

    Examples
    --------
    >>> window_within(np.array([True, True, False]), np.array([[0, 1], [1, 2]])).tolist()
    [True, False]
    """
    return np.asarray(member[partners].all(axis=1))
