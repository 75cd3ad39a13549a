"""Windows: the partner of every anchor at every lead, looked up by label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, Offset, common_ticks, format_duration, format_step, modal_step

KEPT, BEFORE_START, AFTER_END, GAP = 0, 1, 2, 3
REASONS = {BEFORE_START: "before the start", AFTER_END: "after the end", GAP: "in a gap"}

#: labels that miss an even spacing by less than this part of a step have been rounded, and are called jittered
JITTER = 0.01
#: the same for labels that are no whole minutes
COARSE = 0.25
#: the part of the steps that must be so
MOST = 0.9

MINUTE, HALF_DAY = 60_000_000_000, 43_200_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Partners of the anchors of one axis.

    Attributes
    ----------
    partners : array of int64, shape (labels, columns)
        Position of label + lead; undefined where ``status`` is not ``KEPT``.
    status : array of int8, shape (labels, columns)
        ``KEPT``, or why there is no partner.
    """

    partners: IntArray
    status: npt.NDArray[np.int8]

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Per label, whether every lead has a partner."""
        return np.asarray((self.status == KEPT).all(axis=1))


def windows(
    axis: LabelAxis,
    offsets: Sequence[Offset],
    targets: Sequence[LabelAxis] | None = None,
    tolerance: float | None = None,
) -> Windows:
    """Look up the partner of every label at every lead.

    The partner is the label that equals anchor + lead; positions are never counted off, so that a window cannot
    reach across a gap.

    Parameters
    ----------
    axis : LabelAxis
        Labels of the anchors.
    offsets : sequence of Offset
        The lead of each column.
    targets : sequence of LabelAxis, optional
        The axis that each column looks on; ``axis`` itself by default.
    tolerance : number, optional
        In ticks of ``axis``: the nearest label within it is the partner. Exact labels by default.

    Raises
    ------
    RequestError
        If labels are repeated, out of order or jittered, or a tolerance is ambiguous; only where that matters.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis, offset
    >>> axis = label_axis("time", np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "datetime64[D]"), 3)
    >>> found = windows(axis, [offset(axis, "0D"), offset(axis, "1D")])
    >>> found.partners[found.complete].tolist(), found.status.tolist()
    ([[0, 1]], [[0, 0], [0, 3], [0, 2]])
    """
    partners = np.empty((len(axis), len(offsets)), np.int64)
    status = np.empty((len(axis), len(offsets)), np.int8)
    searches: dict[int, _Search] = {}
    for column, step in enumerate(offsets):
        target = axis if targets is None else targets[column]
        if target is axis and step.ticks == 0:
            partners[:, column], status[:, column] = np.arange(len(axis)), KEPT
            continue
        if id(target) not in searches:
            searches[id(target)] = _Search(axis, target, tolerance)
        partners[:, column], status[:, column] = searches[id(target)].partners(step)
    return Windows(partners, status)


class _Search:
    """Looks up labels of one axis on another."""

    def __init__(self, axis: LabelAxis, target: LabelAxis, tolerance: float | None) -> None:
        for labels in (axis, target):
            _refuse_missing(labels)
        order = _order(target)
        self._axis = axis
        self._wanted, ticks, self._factor = common_ticks(axis, target)
        self._order = order
        self._ticks = ticks if order is None else ticks[order]
        self._tolerance = 0 if tolerance is None else tolerance * self._factor
        if tolerance is None:
            _refuse_jitter(target)
        else:
            self._refuse_ambiguity(target)

    def partners(self, step: Offset) -> tuple[IntArray, npt.NDArray[np.int8]]:
        n, ticks = len(self._ticks), self._steps(step)
        nowhere = GAP if ticks is None or not n else self._beyond(ticks)
        if ticks is None or nowhere is not None:
            return np.zeros(len(self._wanted), np.int64), np.full(len(self._wanted), nowhere, np.int8)
        wanted = self._wanted + np.asarray(ticks, self._wanted.dtype)
        right = np.minimum(np.searchsorted(self._ticks, wanted), n - 1)
        left = np.maximum(right - 1, 0)
        nearer = np.abs(self._ticks[left] - wanted) < np.abs(self._ticks[right] - wanted)
        place = np.where(nearer, left, right)
        hit = np.abs(self._ticks[place] - wanted) <= self._tolerance
        outside = np.where(wanted < self._ticks[0], BEFORE_START, np.where(wanted > self._ticks[-1], AFTER_END, GAP))
        positions = place if self._order is None else self._order[place]
        return positions.astype(np.int64), np.where(hit, KEPT, outside).astype(np.int8)

    def _steps(self, step: Offset) -> float | int | None:
        """A lead in the common unit, which may be finer than that of the anchors; None where it is finer still."""
        if self._axis.kind != "time":
            return step.ticks
        whole, rest = divmod(int(step.value.astype(np.int64)), self._axis.tick_ns // self._factor)
        return None if rest else whole

    def _beyond(self, ticks: float) -> int | None:
        """The reason that holds for every anchor where a lead is longer than all the time there is."""
        # In Python's own numbers, since a sum of such size does not fit an array of integers.
        lowest, highest = _number(self._wanted.min()), _number(self._wanted.max())
        if lowest + ticks > _number(self._ticks[-1]) + self._tolerance:
            return AFTER_END
        return BEFORE_START if highest + ticks < _number(self._ticks[0]) - self._tolerance else None

    def _refuse_ambiguity(self, target: LabelAxis) -> None:
        closest = np.diff(self._ticks).min() if len(self._ticks) > 1 else np.inf
        if 2 * self._tolerance >= closest:
            raise RequestError(
                f"time_tolerance must be less than half of {format_step(self._axis, closest / self._factor)}, the "
                f"smallest step of {target.dim!r}, but got {format_step(self._axis, self._tolerance / self._factor)}, "
                "which may fit two labels; lower it"
            )


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _refuse_missing(axis: LabelAxis) -> None:
    missing = np.isnat(axis.labels) if axis.labels.dtype.kind in "mM" else axis.ticks != axis.ticks
    if missing.any():
        where = int(missing.argmax())
        raise RequestError(
            f"labels of {axis.dim!r} must not be missing, but that at position {where} is {axis.labels[where]}; drop "
            f"it, e.g. ds.dropna({axis.dim!r})"
        )


def _order(axis: LabelAxis) -> npt.NDArray[Any] | None:
    """Positions in ascending order of labels, None where they ascend already; refuses what has no unique order."""
    steps = np.diff(axis.ticks)
    if np.all(steps > 0):
        return None
    if np.all(steps < 0):
        return np.arange(len(axis))[::-1]
    order = np.argsort(axis.ticks, kind="stable")
    repeats = np.flatnonzero(np.diff(axis.ticks[order]) == 0)
    if len(repeats):
        where = int(np.sort(order[repeats + 1])[0])
        raise RequestError(
            f"labels of {axis.dim!r} must be unique for leads, but {axis.show(where)} occurs more than once "
            f"(again at position {where}); drop duplicates first, e.g. ds.drop_duplicates({axis.dim!r})"
        )
    rising = steps[np.flatnonzero(steps)[0]] > 0
    where = int(np.flatnonzero(steps < 0 if rising else steps > 0)[0]) + 1
    raise RequestError(
        f"labels of {axis.dim!r} must be in order for leads, but {axis.show(where)} at position {where} follows "
        f"{axis.show(where - 1)}; sort first, e.g. ds.sortby({axis.dim!r})"
    )


def _refuse_jitter(axis: LabelAxis) -> None:
    """Refuse labels that were meant to be even but are not, as those that were stored as floats."""
    steps = np.abs(np.diff(axis.ticks))
    if len(steps) < 2:
        return
    median = np.sort(steps)[len(steps) // 2]
    # The median of jittered steps is itself off, the mean of them is not.
    typical = float(np.mean(steps[np.round(steps / median) == 1]))
    off = np.abs(steps - np.round(steps / typical) * typical)
    if not _jittered(axis, steps, off / typical):
        return
    worst = float(off.max())
    spare = 2 * worst if 4 * worst < steps.min() else 1.01 * worst
    shown, step, example = (_round(axis, value) for value in (worst, typical, spare))
    example = repr(example) if axis.kind == "time" else example
    raise RequestError(
        f"labels of {axis.dim!r} must be exact for leads, but they jitter by up to {shown} around a step of {step}; "
        f"give time_tolerance=, for example {example}, or round the labels"
    )


def _jittered(axis: LabelAxis, steps: npt.NDArray[Any], off: npt.NDArray[np.float64]) -> bool:
    """Whether steps, which are off whole multiples of the typical one by some part of it, are rounded even ones."""
    unit = int(np.gcd.reduce(steps)) * axis.tick_ns if axis.kind == "time" else 0
    if not off.any() or (unit and unit % HALF_DAY == 0):
        return False
    if np.mean(off <= JITTER) > MOST:
        return not _even(axis, steps)
    # Hours or days as float32 are rounded to many seconds, a large part of a short step. Those who vary the step on
    # purpose write whole minutes, or repeat one step.
    usual = np.mean(steps == abs(modal_step(axis.ticks)))
    return bool(unit and unit % MINUTE and np.mean(off <= COARSE) > MOST and usual < MOST)


def _round(axis: LabelAxis, ticks: float) -> str:
    """A step along the axis, to about three digits."""
    if axis.kind != "time":
        return f"{ticks:.3g}"
    nanoseconds = ticks * axis.tick_ns
    digit = next((u for u in (1_000_000_000, 1_000_000, 1_000) if nanoseconds >= 100 * u), 1)
    return format_duration(math.ceil(round(nanoseconds / digit, 2)) * digit)


def _even(axis: LabelAxis, steps: npt.NDArray[Any]) -> bool:
    """Whether steps are multiples of the most frequent one, but for a few that differ by more than jitter."""
    step = abs(modal_step(axis.ticks))
    rest = np.abs(steps - np.round(steps / step) * step)
    return bool(np.all((rest == 0) | (rest > JITTER * step)) and np.mean(rest == 0) > MOST)


def carry_over(axis: LabelAxis, allowed: npt.NDArray[np.bool_], target: LabelAxis) -> npt.NDArray[np.bool_]:
    """Which labels of another axis lie where labels of this one are allowed: on one, or between two neighbours.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis
    >>> axis, target = label_axis("x", np.array([0, 2, 4]), 3), label_axis("x", np.array([0, 1, 2, 3, 4, 5]), 6)
    >>> carry_over(axis, np.array([True, True, False]), target).tolist()
    [True, True, True, False, False, False]
    """
    ticks, wanted, _ = common_ticks(axis, target)
    order = np.argsort(ticks, kind="stable")
    ticks, allowed = ticks[order], allowed[order]
    below = np.searchsorted(ticks, wanted, side="right") - 1
    above = np.searchsorted(ticks, wanted, side="left")
    inside = (below >= 0) & (above < len(ticks))
    last = len(ticks) - 1
    return np.asarray(inside & allowed[np.clip(below, 0, last)] & allowed[np.clip(above, 0, last)])


def longest_run(axis: LabelAxis) -> int | float:
    """Reach of the longest stretch without a gap, in ticks: labels apart by the most frequent step.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis
    >>> longest_run(label_axis("x", np.array([0, 1, 2, 3, 7, 8]), 6))
    3
    """
    step = modal_step(axis.ticks)
    unbroken = np.diff(axis.ticks) == step
    ends = np.flatnonzero(~np.append(unbroken, False))
    lengths = np.diff(np.append(-1, ends)) - 1
    return abs(step) * int(lengths.max(initial=0))
