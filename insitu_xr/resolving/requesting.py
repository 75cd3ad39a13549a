"""Windows and anchors, and the request in positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, Lead, Offset, describe, format_step, offset
from insitu_xr.geometry.window import KEPT, REASONS, Windows, carry_over, longest_run, windows
from insitu_xr.plan.request import Dropped, Request, Take
from insitu_xr.resolving.asked import Asked, Group
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.choosing import Choice, choose
from insitu_xr.resolving.drawing import drawn
from insitu_xr.resolving.limiting import Chosen, chosen_by
from insitu_xr.resolving.roles import roles_of
from insitu_xr.resolving.sampling import axis_of, lead_axis_of

_FIRST_FEW = 3


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """Windows of a request: the columns, who takes which, and what they are on the axes.

    A *column* is a lead in one of the datasets: its offset, and the axis on which the partner is looked up.
    """

    offsets: tuple[Offset, ...]
    targets: tuple[LabelAxis, ...]
    takes: tuple[Take, ...]
    windows: Windows
    #: per column, which dataset and variables it is for
    wanted_by: tuple[str, ...]


def resolve_windows(
    axes: Mapping[str, LabelAxis], groups: Sequence[Group], catalog: Catalog, time_tolerance: Lead | None = None
) -> Resolved:
    """Give every distinct lead of every dataset a column, and look up the partners.

    Parameters
    ----------
    axes : mapping of dataset to LabelAxis
        The labels that leads move along; those of the first dataset are the anchors.

    Raises
    ------
    RequestError
        If a lead cannot be read, or an axis is not fit for leads.
    """
    axis = axes[catalog.first]
    columns: dict[Any, int] = {}
    offsets: list[Offset] = []
    homes: list[str] = []
    users: dict[int, list[str]] = {}
    takes: list[Take] = []
    for group in groups:
        for name in group.variables:
            leads, chosen = group.leads[name], []
            for step in [_here(axis)] if leads is None else [offset(axis, lead) for lead in leads]:
                key = (catalog.home(name), step.value)
                if key not in columns:
                    columns[key] = len(offsets)
                    offsets.append(step)
                    homes.append(key[0])
                if columns[key] in chosen:
                    raise RequestError(f"leads of {group.name} must differ, but got {step.name!r} again; drop one")
                chosen.append(columns[key])
                users.setdefault(columns[key], []).append(name)
            takes.append(Take(group.name, name, tuple(chosen), leads is not None))
    tolerance = None if time_tolerance is None else _tolerance(axis, time_tolerance)
    targets = [axes[home] for home in homes]
    wanted_by = tuple(", ".join(map(repr, dict.fromkeys(users[k]))) for k in range(len(offsets)))
    return Resolved(tuple(offsets), tuple(targets), tuple(takes), windows(axis, offsets, targets, tolerance), wanted_by)


def _here(axis: LabelAxis) -> Offset:
    """No lead: the anchor itself."""
    return Offset(0, np.timedelta64(0, "ns"), "0h") if axis.kind == "time" else Offset(0, 0, "0")


def _tolerance(axis: LabelAxis, time_tolerance: Lead) -> float:
    step = offset(axis, time_tolerance, "time_tolerance")
    ticks = step.ticks if step.ticks is not None else step.value / np.timedelta64(axis.tick_ns, "ns")
    if ticks < 0:
        raise RequestError(f"time_tolerance must be 0 or more, but got {time_tolerance!r}; give a span without a sign")
    return float(ticks)


def dropped_of(axis: LabelAxis, found: Resolved, chosen: npt.NDArray[np.bool_]) -> list[Dropped]:
    """Why chosen anchors were dropped: each is counted once, for the first column that has no partner."""
    status = found.windows.status
    lost = np.flatnonzero(chosen & ~found.windows.complete)
    column = (status[lost] != KEPT).argmax(axis=1)
    code = status[lost, column]
    dropped: list[Dropped] = []
    for k, step in enumerate(found.offsets):
        for number, reason in REASONS.items():
            text = f"{reason} at lead {step.name} of {found.wanted_by[k]}"
            dropped += _dropped(axis, text, lost[(column == k) & (code == number)])
    return dropped


def _dropped(axis: LabelAxis, reason: str, members: npt.NDArray[Any]) -> list[Dropped]:
    shown = tuple(axis.show(int(k)) for k in members[:_FIRST_FEW])
    return [Dropped(reason, len(members), shown)] if len(members) else []


def request_of(
    catalog: Catalog, asked: Asked, groups: Sequence[Group], sample_dims: Sequence[str], statics: Sequence[str]
) -> Request:
    """The request in positions; its variables are filled in after tracing.

    Raises
    ------
    RequestError
        If no anchor has a complete window, or a count is out of range.
    """
    axes = tuple(axis_of(catalog.primary, d) for d in sample_dims)
    lead_axis = lead_axis_of(catalog.primary, axes)
    others = {home: ds for home, ds in catalog.datasets.items() if home != catalog.first}
    along = {catalog.first: axes[lead_axis]} | {home: axis_of(ds, axes[lead_axis].dim) for home, ds in others.items()}
    anchors = _by_dim(asked.anchors, catalog, sample_dims)
    choice = choose(axes, lead_axis, anchors=anchors, every=asked.every, at=asked.at, exclude=asked.exclude)
    resolved = resolve_windows(along, groups, catalog, asked.time_tolerance)
    limits = chosen_by(asked.manifest, asked.split, axes)
    every, dropped = kept(axes, lead_axis, choice, resolved, limits)
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
        targets=resolved.targets,
        batch_size=_count("batch_size", asked.batch_size, 1),
        shuffle=asked.shuffle,
        seed=_count("seed", asked.seed, 0),
        drop_last=asked.drop_last,
        layout=asked.layout,
        dropped=dropped,
    )
    return drawn(catalog.primary, request, asked.drawing)


def _by_dim(anchors: Any, catalog: Catalog, sample_dims: Sequence[str]) -> Any:
    """Anchors by dimension, also where those are named by role."""
    if not isinstance(anchors, Mapping):
        return anchors
    roles = roles_of(catalog.primary)
    return {dim if dim in sample_dims else roles.dim(dim): chosen for dim, chosen in anchors.items()}


def kept(
    axes: Sequence[LabelAxis], lead_axis: int, choice: Choice, resolved: Resolved, limits: Chosen | None
) -> tuple[list[npt.NDArray[Any]], tuple[Dropped, ...]]:
    """Positions of the anchors that are kept, per sample dimension, and why the others that were chosen are not."""
    masks, dropped = list(choice.anchors), []
    if limits is not None:
        for k, (axis, mask) in enumerate(zip(axes, limits.masks, strict=True)):
            lost = _dropped(axis, limits.reason, np.flatnonzero(masks[k] & ~mask))
            dropped += _in_samples(lost, masks, k)
            masks[k] = masks[k] & mask
    axis = axes[lead_axis]
    lost = dropped_of(axis, resolved, masks[lead_axis])
    whole = np.flatnonzero(masks[lead_axis] & resolved.windows.complete)
    usable = choice.usable[whole] & _inside(axis, choice.usable, resolved, whole)
    lost += _dropped(axis, "touching an excluded period", whole[~usable])
    whole = whole[usable]
    if limits is not None and limits.place == lead_axis:
        inside = _inside(axis, limits.masks[lead_axis], resolved, whole)
        lost += _dropped(axis, f"reaching {limits.reason}", whole[~inside])
        whole = whole[inside]
    every = [np.flatnonzero(mask) for mask in masks]
    every[lead_axis] = whole
    return every, tuple(dropped + _in_samples(lost, masks, lead_axis))


def _in_samples(lost: Sequence[Dropped], masks: Sequence[npt.NDArray[np.bool_]], place: int) -> list[Dropped]:
    """Counts of labels as counts of samples: each is drawn with every label of the other dimensions."""
    others = math.prod(int(mask.sum()) for k, mask in enumerate(masks) if k != place)
    return [replace(dropped, count=dropped.count * others, each=others) for dropped in lost]


def _inside(
    axis: LabelAxis, allowed: npt.NDArray[np.bool_], resolved: Resolved, anchors: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Per anchor, whether every label of its window is allowed, in whichever dataset it lies."""
    inside = np.ones(len(anchors), bool)
    if allowed.all():
        return inside
    on_target: dict[int, npt.NDArray[np.bool_]] = {id(axis): allowed}
    for column, target in enumerate(resolved.targets):
        if id(target) not in on_target:
            on_target[id(target)] = carry_over(axis, allowed, target)
        inside &= on_target[id(target)][resolved.windows.partners[anchors, column]]
    return inside


def _nothing_kept(axis: LabelAxis, offsets: Sequence[Offset], dropped: Sequence[Dropped]) -> RequestError:
    names = ", ".join(o.name for o in offsets)
    # A window reaches from the anchor, whether or not that is one of its labels.
    ticks = [0, *(o.ticks for o in offsets if o.ticks is not None)]
    reach, run = max(ticks) - min(ticks), longest_run(axis)
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
