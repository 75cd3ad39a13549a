"""Windows: the partner of every anchor at every lead, looked up by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, Offset

KEPT, BEFORE_START, AFTER_END, GAP = 0, 1, 2, 3
REASONS = {BEFORE_START: "before the start", AFTER_END: "after the end", GAP: "in a gap"}


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Partners of the anchors of one axis.

    Attributes
    ----------
    partners : array of int64, shape (labels, leads)
        Position of label + lead; undefined where ``status`` is not ``KEPT``.
    status : array of int8, shape (labels, leads)
        ``KEPT``, or why there is no partner.
    """

    partners: IntArray
    status: npt.NDArray[np.int8]

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Per label, whether every lead has a partner."""
        return np.asarray((self.status == KEPT).all(axis=1))


def windows(axis: LabelAxis, offsets: Sequence[Offset]) -> Windows:
    """Look up the partner of every label at every lead.

    The partner is the label that equals anchor + lead exactly; positions are never counted off, so that a window
    cannot reach across a gap.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis, offset
    >>> axis = label_axis("time", np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "datetime64[D]"), 3)
    >>> found = windows(axis, [offset(axis, "0D"), offset(axis, "1D")])
    >>> found.partners[found.complete].tolist(), found.status.tolist()
    ([[0, 1]], [[0, 0], [0, 3], [0, 2]])
    """
    n = len(axis)
    partners = np.repeat(np.arange(n, dtype=np.int64)[:, None], len(offsets), axis=1)
    status = np.zeros((n, len(offsets)), np.int8)
    if all(o.ticks == 0 for o in offsets) or not n:
        return Windows(partners, status)
    order = _order(axis)
    ticks = axis.ticks if order is None else axis.ticks[order]
    for column, step in enumerate(offsets):
        if step.ticks == 0:
            continue
        if step.ticks is None:
            status[:, column] = GAP
            continue
        wanted = axis.ticks + np.asarray(step.ticks, axis.ticks.dtype)
        place = np.searchsorted(ticks, wanted)
        inside = np.minimum(place, n - 1)
        hit = ticks[inside] == wanted
        partners[:, column] = inside if order is None else order[inside]
        status[:, column] = np.where(
            hit, KEPT, np.where(wanted < ticks[0], BEFORE_START, np.where(wanted > ticks[-1], AFTER_END, GAP))
        )
    return Windows(partners, status)


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
