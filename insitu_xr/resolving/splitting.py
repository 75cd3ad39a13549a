"""Named splits: who gets which labels of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, modal_step, offset
from insitu_xr.geometry.window import Windows
from insitu_xr.plan.split import NOBODY, Splits, even_blocks, span_blocks, usual_block, window_within
from insitu_xr.resolving.asked import Asked, groups_of
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.requesting import resolve_windows
from insitu_xr.resolving.roles import lead_times, roles_of
from insitu_xr.resolving.sampling import axis_of, check_not_empty, lead_axis_of, sample_dims_of, time_like
from insitu_xr.resolving.selecting import Labels

#: names of a sequence of fractions
USUAL_NAMES = ("train", "val", "test")

Fractions = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SplitAsked:
    """The arguments of ``ds.insitu.split`` that say who gets which labels."""

    named: Mapping[str, Any]
    fractions: Fractions | None = None
    by: str = "time"
    block: Any = None
    gap: Any = None
    seed: Any = 0


def splits_of(catalog: Catalog, asked: Asked, wanted: SplitAsked) -> tuple[Splits, tuple[str, ...]]:
    """Split the labels of a dataset; and the variables that they are labels of.

    Raises
    ------
    RequestError, UnknownNameError
        If an argument breaks a rule, two splits share a label, or one would be empty.
    """
    if asked.variables is None and asked.inputs is None and asked.targets is None:
        asked = replace(asked, variables=_variables_along(catalog, asked.sample_dim))
    groups = groups_of(catalog, asked)
    sample_dims = sample_dims_of(catalog, groups, asked.sample_dim)
    names = tuple(dict.fromkeys(name for group in groups for name in group.variables))
    check_not_empty(catalog, names)
    axes = [axis_of(catalog.primary, dim) for dim in sample_dims]
    axis = axes[lead_axis_of(catalog.primary, axes)]
    wanted = replace(wanted, gap=_default_gap(catalog, axis) if wanted.gap is None else wanted.gap)
    if all(leads is None for group in groups for leads in group.leads.values()):
        return split_axis(axis, wanted), names
    along = {home: axis_of(ds, axis.dim) for home, ds in catalog.datasets.items()}
    resolved = resolve_windows(along | {catalog.first: axis}, groups, catalog, asked.time_tolerance)
    steps = [0, *(o.ticks for o in resolved.offsets if o.ticks is not None)]
    return split_axis(axis, wanted, resolved.windows, max(steps) - min(steps)), names


def _default_gap(catalog: Catalog, axis: LabelAxis) -> Any:
    """The longest lead time along init times: forecasts of one split must not reach into another's."""
    roles = roles_of(catalog.primary)
    if roles.lead_time is None or roles.init_time != axis.dim:
        return 0
    return np.abs(lead_times(catalog.primary, roles.lead_time)).max()


def _variables_along(catalog: Catalog, sample_dim: Any) -> list[str]:
    """All variables along the sample dimension, that given or the time-like one."""
    if catalog.on is not None:
        dims = {catalog.on}
    elif sample_dim is None:
        dims = set(time_like(catalog.primary, [str(dim) for dim in catalog.primary.dims]))
    else:
        plain = isinstance(sample_dim, str) or not isinstance(sample_dim, Sequence)
        roles = roles_of(catalog.primary)
        dims = {roles.dim(str(dim)) for dim in ([sample_dim] if plain else sample_dim)}
    return [name for name in catalog.names if dims & set(map(str, catalog[name].dims))]


def split_axis(axis: LabelAxis, asked: SplitAsked, windows: Windows | None = None, reach: float = 0) -> Splits:
    """Split the labels of an axis.

    Parameters
    ----------
    axis : LabelAxis
        Labels to split.
    asked : SplitAsked
        Who gets which.
    windows : Windows, optional
        Windows of the loaders that will use the splits: each split must then hold a whole one.
    reach : float
        How far those windows reach, in ticks.

    Raises
    ------
    RequestError, UnknownNameError
        If an argument breaks a rule, two splits share a label, or one would be empty.
    """
    if isinstance(asked.seed, bool) or not isinstance(asked.seed, int | np.integer) or asked.seed < 0:
        raise RequestError(f"seed must be a whole number of at least 0, but got {asked.seed!r}; give one")
    labels = Labels(axis)
    named = {name: selection for name, selection in asked.named.items() if selection is not None}
    fractions = _fractions(asked.fractions, named)
    if not named and not fractions:
        raise RequestError(
            "split must be given labels or fractions, but got neither; write for example train=slice('1979', '2015'), "
            "val='2016', or fractions=(0.8, 0.1, 0.1)"
        )
    splits = Splits.of(axis, {name: labels.positions(chosen, name) for name, chosen in named.items()})
    gap = _ticks(axis, "gap", 0 if asked.gap is None else asked.gap, least=0)
    if fractions:
        splits = splits.dealt(fractions, *_pieces(splits, asked, fractions, gap, reach))
    elif asked.by != "time" or asked.block is not None:
        raise RequestError(
            "by= and block= must be given with fractions=, but got none; give fractions=, or leave them out"
        )
    found = splits.apart(gap)
    _check_not_empty(splits, found, asked, windows)
    return found


def _fractions(given: Any, named: Mapping[str, Any]) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise RequestError(
                f"fractions must be several numbers, or a mapping of names to numbers, but got {given!r}; write for "
                "example (0.8, 0.1, 0.1)"
            )
        given = tuple(given)
        if len(given) > len(USUAL_NAMES):
            raise RequestError(
                f"fractions must be at most 3 numbers, for {', '.join(USUAL_NAMES)}, but got {len(given)}; name the "
                "splits, as in fractions={'tune': 0.1, ...}"
            )
        given = dict(zip(USUAL_NAMES, given, strict=False))
    found = {str(name): _number(value, str(name)) for name, value in given.items()}
    twice = [name for name in found if name in named]
    if twice:
        raise RequestError(f"split {twice[0]!r} must be given once, but got labels and a fraction; drop one")
    if not found or not all(value > 0 for value in found.values()) or sum(found.values()) > 1 + 1e-9:
        raise RequestError(
            f"fractions must be above 0 and sum up to 1 at most, but got {found} (sum {sum(found.values()):g}); give "
            "shares of the labels that no other split names"
        )
    return found


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise RequestError(f"fraction of {name!r} must be a number, but got {value!r}; give a share such as 0.1")
    return float(value)


def _pieces(
    splits: Splits, asked: SplitAsked, fractions: Mapping[str, float], gap: float, reach: float
) -> tuple[IntArray, int | None]:
    """Bounds of what is dealt out, and the seed that permutes it."""
    axis = splits.axis
    free = np.sort(axis.ticks[splits.owner == NOBODY])
    if not len(free):
        raise RequestError(
            f"fractions must have labels of {axis.dim!r} to share, but got none that no other split names; shorten "
            "those"
        )
    if asked.by == "time":
        if asked.block is not None:
            raise RequestError(
                f"block must be given with by='block', but got block={asked.block!r} and by='time'; add by='block'"
            )
        return np.arange(len(free) + 1, dtype=np.int64), None
    if asked.by != "block":
        raise RequestError(f"by must be 'time' or 'block', but got {asked.by!r}; give one of them")
    seed = int(asked.seed)
    if asked.block is None:
        step = abs(modal_step(axis.ticks)) or 1
        lost = int(np.ceil(2 * gap / step) + np.ceil(reach / step))
        return even_blocks(len(free), usual_block(len(free), list(fractions.values()), lost)), seed
    if isinstance(asked.block, int | np.integer) and not isinstance(asked.block, bool | np.timedelta64):
        if asked.block < 1:
            raise RequestError(
                f"block must be at least 1 label, but got {asked.block}; give a number of labels or a duration"
            )
        return even_blocks(len(free), int(asked.block)), seed
    return span_blocks(free, max(1, _ticks(axis, "block", asked.block, least=1))), seed


def _ticks(axis: LabelAxis, thing: str, given: Any, least: int) -> float:
    """A span along the axis in ticks; what is finer than a tick is left away."""
    plain = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool | np.timedelta64)
    if plain and given == least == 0:
        return 0
    rule = {"time": "a duration such as '10D'", "number": "a difference of labels"}.get(
        axis.kind, "a whole number of steps"
    )
    try:
        if axis.kind == "text":
            if not plain or given != int(given):
                raise RequestError("labels are text")
            ticks = float(given)
        else:
            step = offset(axis, given)
            ticks = step.value.astype(np.int64).item() // axis.tick_ns if axis.kind == "time" else step.value
    except RequestError as error:
        raise RequestError(f"{thing} along {axis.dim!r} must be {rule}, but got {given!r}; write it so") from error
    if ticks < least:
        raise RequestError(f"{thing} along {axis.dim!r} must not be less than {least}, but got {given!r}; give {rule}")
    return ticks


def _check_not_empty(before: Splits, after: Splits, asked: SplitAsked, windows: Windows | None) -> None:
    labels = after.counts()
    for name, count in labels.items():
        if not count:
            had = before.counts()[name]
            raise RequestError(
                f"split {name!r} must hold at least one label, but the gap of {asked.gap!r} takes all of its {had} "
                f"({', '.join(f'{n} {c}' for n, c in labels.items())} are left); shorten gap=, or lengthen "
                f"{'block=' if asked.by == 'block' else 'the split'}"
            )
        if windows is None:
            continue
        member = after.owner == after.names.index(name)
        complete = np.flatnonzero(windows.complete & member)
        if not window_within(member, windows.partners[complete]).any():
            raise RequestError(
                f"split {name!r} must hold at least one whole window, but got {count} labels that hold none; lengthen "
                "it, or ask for shorter leads"
            )
