"""Windows and anchors, and the request in positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, Offset, describe, offset
from insitu_xr.geometry.window import KEPT, REASONS, Windows, windows
from insitu_xr.plan.request import Dropped, Request, Take
from insitu_xr.resolving.asked import Asked, Group
from insitu_xr.resolving.sampling import axis_of
from insitu_xr.resolving.splitting import Chosen, chosen_by

_FIRST_FEW = 3


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """Windows of a request: the columns, who takes which, and what they are on the axis."""

    offsets: tuple[Offset, ...]
    takes: tuple[Take, ...]
    windows: Windows


def resolve_windows(axis: LabelAxis, groups: Sequence[Group]) -> Resolved:
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
    return Resolved(tuple(offsets), tuple(takes), windows(axis, offsets))


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
    resolved = resolve_windows(axes[lead_axis], groups)
    complete, dropped = np.flatnonzero(resolved.windows.complete), dropped_of(axes[lead_axis], resolved.windows)
    every = [complete if k == lead_axis else np.arange(len(a)) for k, a in enumerate(axes)]
    limits = chosen_by(asked.manifest, asked.split, axes)
    if limits is not None:
        every, dropped = _within(limits, axes, lead_axis, resolved.windows)
        complete = every[lead_axis]
    if not len(complete):
        names = ", ".join(o.name for o in resolved.offsets)
        raise RequestError(
            f"leads must have a partner for at least one anchor, but got none for ({names}): "
            f"{'; '.join(map(str, dropped))}; the axis offers {describe(axes[lead_axis])}"
        )
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
    if not request.n_batches:
        raise RequestError(
            f"batch_size must be at most the {len(mesh)} anchors with drop_last=True, but got {asked.batch_size}; "
            "lower it, or keep the last batch"
        )
    return request


def _within(
    limits: Chosen, axes: Sequence[LabelAxis], lead_axis: int, found: Windows
) -> tuple[list[npt.NDArray[Any]], tuple[Dropped, ...]]:
    """Positions per sample dimension that a manifest allows, and why the others were dropped."""
    dropped = [d for a, m in zip(axes, limits.masks, strict=True) for d in _dropped(a, limits.reason, np.flatnonzero(~m))]
    dropped += dropped_of(axes[lead_axis], found, limits.masks[lead_axis])
    whole = limits.masks[lead_axis] & found.complete
    inside = whole & limits.within(lead_axis, found.partners)
    dropped += _dropped(axes[lead_axis], f"reaching {limits.reason}", np.flatnonzero(whole & ~inside))
    return [np.flatnonzero(inside if k == lead_axis else m) for k, m in enumerate(limits.masks)], tuple(dropped)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise RequestError(f"{name} must be a whole number of at least {least}, but got {value!r}; give one")
    return int(value)
