"""Windows and anchors, and the request in positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, Lead, Offset, describe, format_step, offset
from insitu_xr.geometry.window import KEPT, REASONS, Windows, longest_run, windows
from insitu_xr.plan.request import Dropped, Request, Take
from insitu_xr.resolving.asked import Asked, Group
from insitu_xr.resolving.choosing import Choice, choose
from insitu_xr.resolving.drawing import drawn
from insitu_xr.resolving.limiting import Chosen, chosen_by
from insitu_xr.resolving.sampling import axis_of

_FIRST_FEW = 3


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """Windows of a request: the columns, who takes which, and what they are on the axis."""

    offsets: tuple[Offset, ...]
    takes: tuple[Take, ...]
    windows: Windows


def resolve_windows(axis: LabelAxis, groups: Sequence[Group], time_tolerance: Lead | None = None) -> Resolved:
    """Give every distinct lead a column, and look up the partners.

    Raises
    ------
    RequestError
        If a lead cannot be read, or the axis is not fit for leads.
    """
    columns: dict[Any, int] = {}
    offsets: list[Offset] = []
    takes: list[Take] = []
    nothing = Offset(0, np.timedelta64(0, "ns") if axis.kind == "time" else 0, "0h" if axis.kind == "time" else "0")
    for group in groups:
        wanted = [nothing] if group.leads is None else [offset(axis, lead) for lead in group.leads]
        repeated = [o.name for k, o in enumerate(wanted) if o.value in [w.value for w in wanted[:k]]]
        if repeated:
            raise RequestError(f"leads of {group.name} must differ, but got {repeated[0]!r} again; drop one")
        for step in wanted:
            if step.value not in columns:
                columns[step.value] = len(offsets)
                offsets.append(step)
        chosen = tuple(columns[step.value] for step in wanted)
        takes += [Take(group.name, name, chosen, group.leads is not None) for name in group.variables]
    tolerance = None if time_tolerance is None else _tolerance(axis, time_tolerance)
    return Resolved(tuple(offsets), tuple(takes), windows(axis, offsets, tolerance=tolerance))


def _tolerance(axis: LabelAxis, time_tolerance: Lead) -> float:
    step = offset(axis, time_tolerance)
    ticks = step.ticks if step.ticks is not None else step.value / np.timedelta64(axis.tick_ns, "ns")
    if ticks < 0:
        raise RequestError(f"time_tolerance must be 0 or more, but got {time_tolerance!r}; give a span without a sign")
    return float(ticks)


def dropped_of(axis: LabelAxis, found: Windows, chosen: npt.NDArray[np.bool_] | None = None) -> tuple[Dropped, ...]:
    """Why chosen anchors were dropped: each is counted once, for the first lead that has no partner."""
    lost = np.flatnonzero(~found.complete if chosen is None else chosen & ~found.complete)
    if not len(lost):
        return ()
    status = found.status[lost]
    reason = status[np.arange(len(lost)), (status != KEPT).argmax(axis=1)]
    return tuple(d for code, text in REASONS.items() for d in _dropped(axis, text, lost[reason == code]))


def _dropped(axis: LabelAxis, reason: str, members: npt.NDArray[Any]) -> list[Dropped]:
    shown = tuple(axis.show(int(k)) for k in members[:_FIRST_FEW])
    return [Dropped(reason, len(members), shown)] if len(members) else []


def request_of(
    ds: xr.Dataset, asked: Asked, groups: Sequence[Group], sample_dims: Sequence[str], statics: Sequence[str]
) -> Request:
    """The request in positions; its variables are filled in after tracing.

    Raises
    ------
    RequestError
        If no anchor has a complete window, or a count is out of range.
    """
    axes = tuple(axis_of(ds, d) for d in sample_dims)
    lead_axis = next((k for k, a in enumerate(axes) if a.kind == "time"), 0)
    choice = choose(axes, lead_axis, anchors=asked.anchors, every=asked.every, at=asked.at, exclude=asked.exclude)
    resolved = resolve_windows(axes[lead_axis], groups, asked.time_tolerance)
    limits = chosen_by(asked.manifest, asked.split, axes)
    every, dropped = kept(axes, lead_axis, choice, resolved.windows, limits)
    if not all(map(len, every)):
        raise _nothing_kept(axes[lead_axis], resolved.offsets, dropped)
    mesh = np.stack([m.ravel() for m in np.meshgrid(*every, indexing="ij")], axis=1).astype(np.int64)
    request = Request(
        sample_dims=tuple(sample_dims),
        axes=axes,
        lead_axis=lead_axis,
        offsets=resolved.offsets,
        variables={},
        takes=resolved.takes,
        statics=tuple(statics),
        anchors=mesh,
        partners=resolved.windows.partners[mesh[:, lead_axis]],
        batch_size=_count("batch_size", asked.batch_size, 1),
        shuffle=asked.shuffle,
        seed=_count("seed", asked.seed, 0),
        drop_last=asked.drop_last,
        layout=asked.layout,
        dropped=dropped,
    )
    return drawn(ds, request, asked.drawing)


def kept(
    axes: Sequence[LabelAxis], lead_axis: int, choice: Choice, found: Windows, limits: Chosen | None
) -> tuple[list[npt.NDArray[Any]], tuple[Dropped, ...]]:
    """Positions of the anchors that are kept, per sample dimension, and why the others that were chosen are not."""
    masks, dropped = list(choice.anchors), []
    if limits is not None:
        for k, (axis, mask) in enumerate(zip(axes, limits.masks, strict=True)):
            dropped += _dropped(axis, limits.reason, np.flatnonzero(masks[k] & ~mask))
            masks[k] = masks[k] & mask
    axis = axes[lead_axis]
    dropped += dropped_of(axis, found, masks[lead_axis])
    whole = np.flatnonzero(masks[lead_axis] & found.complete)
    usable = choice.usable[found.partners[whole]].all(axis=1) & choice.usable[whole]
    dropped += _dropped(axis, "touching an excluded period", whole[~usable])
    whole = whole[usable]
    if limits is not None:
        inside = limits.within(lead_axis, found.partners[whole])
        dropped += _dropped(axis, f"reaching {limits.reason}", whole[~inside])
        whole = whole[inside]
    every = [np.flatnonzero(mask) for mask in masks]
    every[lead_axis] = whole
    return every, tuple(dropped)


def _nothing_kept(axis: LabelAxis, offsets: Sequence[Offset], dropped: Sequence[Dropped]) -> RequestError:
    names = ", ".join(o.name for o in offsets)
    ticks = [o.ticks for o in offsets if o.ticks is not None]
    reach, run = max(ticks, default=0) - min(ticks, default=0), longest_run(axis)
    lengths = ""
    if reach > run and axis.kind != "text":
        lengths = (
            f"; the window reaches over {format_step(axis, reach)}, but the longest run of labels without a gap "
            f"only over {format_step(axis, run)}"
        )
    return RequestError(
        f"leads must have a partner for at least one anchor, but got none for ({names}): "
        f"{'; '.join(map(str, dropped))}{lengths}; the axis offers {describe(axis)}"
    )


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise RequestError(f"{name} must be a whole number of at least {least}, but got {value!r}; give one")
    return int(value)
