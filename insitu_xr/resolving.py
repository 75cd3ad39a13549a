"""From what a person typed to a request in positions: every rule is checked here, before any data is read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.times import LabelAxis, Lead, Offset, describe, label_axis, offset
from insitu_xr.geometry.window import KEPT, REASONS, Windows, windows
from insitu_xr.plan.request import Dropped, Request, Take

#: names of dimensions that become channels in the stacked layout, beside what CF attributes say
CHANNEL_NAMES = frozenset(
    (
        *("level", "pressure_level", "isobaricInhPa", "plev", "lev", "height", "depth", "altitude", "model_level"),
        *("hybrid", "number", "realization", "member", "ensemble", "ens", "channel", "band"),
    )
)
_FIRST_FEW = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of ``ds.insitu.loader`` that say what to read."""

    variables: Sequence[str] | str | None = None
    leads: Sequence[Lead] | Lead | None = None
    inputs: Mapping[str, Any] | None = None
    targets: Mapping[str, Any] | None = None
    statics: Sequence[str] | str = ()
    sample_dim: Hashable | Sequence[Hashable] | None = None
    batch_size: int = 32
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    layout: Literal["dict", "stacked"] = "dict"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of arrays: variables and the leads that they share, None for no lead axis."""

    name: str
    variables: tuple[str, ...]
    leads: tuple[Lead, ...] | None


def groups_of(ds: xr.Dataset, asked: Asked) -> tuple[Group, ...]:
    """Read the groups that were asked for.

    Raises
    ------
    RequestError, UnknownNameError
        If a group is empty, malformed, or names a variable that the dataset does not have.
    """
    if asked.variables is not None and (asked.inputs is not None or asked.targets is not None):
        raise RequestError(
            "variables must be given alone, but got inputs or targets as well; put everything into inputs= and targets="
        )
    if asked.variables is not None:
        return (_group(ds, "variables", asked.variables, asked.leads),)
    if asked.leads is not None:
        raise RequestError("leads must be given with variables=, but got none; put them into inputs= and targets=")
    given = [(name, content) for name, content in (("inputs", asked.inputs), ("targets", asked.targets)) if content]
    if not given:
        raise RequestError(
            "variables must name at least one variable, but got none; give variables=, or inputs= and targets=, out of "
            f"{sorted(map(str, ds.data_vars))}"
        )
    groups = []
    for name, content in given:
        if not {"variables"} <= set(content) <= {"variables", "leads"}:
            raise RequestError(f"{name} must be dict(variables=[...], leads=[...]), but got {content!r}; write it so")
        groups.append(_group(ds, name, content["variables"], content.get("leads")))
    return tuple(groups)


def _group(ds: xr.Dataset, name: str, variables: Sequence[str] | str, leads: Any) -> Group:
    names = names_of(ds, name, variables)
    if not names:
        raise RequestError(
            f"{name} must name at least one variable, but got {variables!r}; "
            f"the dataset has {sorted(map(str, ds.data_vars))}"
        )
    if leads is None:
        return Group(name, names, None)
    listed = tuple(leads) if isinstance(leads, list | tuple | np.ndarray) else (leads,)
    if not listed:
        raise RequestError(f"leads of {name} must hold at least one lead, but got {leads!r}; leave them out for none")
    return Group(name, names, listed)


def names_of(ds: xr.Dataset, thing: str, names: Sequence[str] | str) -> tuple[str, ...]:
    """Names of variables, each checked to be one of the dataset and to be named once."""
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        if name not in ds.variables:
            raise UnknownNameError(
                f"{thing} must be variables of the dataset, but got {name!r}; it has {sorted(map(str, ds.data_vars))}"
            )
        if listed.count(name) > 1:
            raise RequestError(f"{thing} must name each variable once, but got {name!r} again; drop one")
    return listed


# -- sample dimensions ---------------------------------------------------------------------------------------------


def sample_dims_of(ds: xr.Dataset, groups: Sequence[Group], sample_dim: Any) -> tuple[str, ...]:
    """The dimensions to draw along: those given, else the time-like one.

    Raises
    ------
    RequestError, UnknownNameError
        If there is none, or a variable does not have it.
    """
    names = [n for g in groups for n in g.variables]
    dims = tuple(dict.fromkeys(str(d) for n in names for d in ds[n].dims))
    given = (sample_dim,) if isinstance(sample_dim, str) or not isinstance(sample_dim, Sequence) else tuple(sample_dim)
    chosen = tuple(map(str, given)) if sample_dim is not None else _time_like(ds, dims)
    if not chosen:
        raise RequestError("sample_dim must name a dimension, but got none; leave it out for the time dimension")
    for dim in chosen:
        if dim not in dims:
            raise UnknownNameError(
                f"sample_dim must be a dimension of the variables, but got {dim!r}; they have {list(dims)}"
            )
    for name in names:
        if not set(chosen) & set(ds[name].dims):
            raise RequestError(
                f"variable {name!r} must have the sample dimension {' or '.join(map(repr, chosen))}, but got "
                f"{tuple(map(str, ds[name].dims))}; pass it in statics=, or give another sample_dim="
            )
    return chosen


def _time_like(ds: xr.Dataset, dims: Sequence[str]) -> tuple[str, ...]:
    def is_time(dim: str) -> bool:
        if dim not in ds.coords or ds[dim].ndim != 1:
            return False
        if np.issubdtype(ds[dim].dtype, np.datetime64):
            return True
        return ds[dim].dtype == object and isinstance(ds.indexes.get(dim), xr.CFTimeIndex)

    found = [d for d in dims if is_time(d)]
    if len(found) == 1:
        return (found[0],)
    if "time" in dims:
        return ("time",)
    if found:
        raise RequestError(
            f"sample_dim must be one dimension, but {found} all hold times; give the one to draw along as sample_dim="
        )
    raise RequestError(
        f"sample_dim must be given where no dimension holds times, but got none; the variables have {list(dims)}"
    )


def axis_of(ds: xr.Dataset, dim: str) -> LabelAxis:
    """The labels of a dimension of the dataset."""
    labels = ds[dim].to_numpy() if dim in ds.coords and ds[dim].dims == (dim,) else None
    return label_axis(dim, labels, ds.sizes[dim])


def check_not_empty(ds: xr.Dataset, names: Sequence[str]) -> None:
    """Refuse a selection that left a dimension empty.

    Raises
    ------
    RequestError
        Names the dimension and a variable that has it.
    """
    for name in names:
        for dim, size in ds[name].sizes.items():
            if size == 0:
                raise RequestError(
                    f"dimension {str(dim)!r} must hold at least one label, but got 0 (variable {name!r}); the "
                    "selection left nothing, so check its bounds and the direction of the axis"
                )


# -- windows -------------------------------------------------------------------------------------------------------


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


def dropped_of(axis: LabelAxis, found: Windows) -> tuple[Dropped, ...]:
    """Why anchors were dropped: each is counted once, for the first lead that has no partner."""
    lost = np.flatnonzero(~found.complete)
    if not len(lost):
        return ()
    status = found.status[lost]
    reason = status[np.arange(len(lost)), (status != KEPT).argmax(axis=1)]
    dropped = []
    for code, text in REASONS.items():
        members = lost[reason == code]
        if len(members):
            dropped.append(Dropped(text, len(members), tuple(axis.show(int(k)) for k in members[:_FIRST_FEW])))
    return tuple(dropped)


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
    complete = np.flatnonzero(resolved.windows.complete)
    dropped = dropped_of(axes[lead_axis], resolved.windows)
    if not len(complete):
        names = ", ".join(o.name for o in resolved.offsets)
        raise RequestError(
            f"leads must have a partner for at least one anchor, but got none for ({names}): "
            f"{'; '.join(map(str, dropped))}; the axis offers {describe(axes[lead_axis])}"
        )
    every = [complete if k == lead_axis else np.arange(len(a)) for k, a in enumerate(axes)]
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


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise RequestError(f"{name} must be a whole number of at least {least}, but got {value!r}; give one")
    return int(value)


# -- the stacked layout --------------------------------------------------------------------------------------------


def channel_dims_of(ds: xr.Dataset, names: Sequence[str], sample_dims: Sequence[str]) -> dict[str, list[str]]:
    """Field dimensions that become channels, vertical ones and members, with the labels of their positions."""
    dims = dict.fromkeys(str(d) for n in names for d in ds[n].dims if d not in sample_dims)
    found = {}
    for dim in dims:
        attrs = ds[dim].attrs if dim in ds.coords else {}
        vertical = attrs.get("axis") == "Z" or "positive" in attrs
        if vertical or dim in CHANNEL_NAMES or attrs.get("standard_name") == "realization":
            labels = ds[dim].to_numpy() if dim in ds.coords else np.arange(ds.sizes[dim])
            found[dim] = [f"{v:g}" if isinstance(v, float | np.floating) else str(v) for v in labels]
    return found
