"""What was asked, checked: forecasts, references and climatology on one grid and one axis of pairs; reads no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

import insitu_xr
from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.align import Pairs, Roles, check_calendars, pair_times, roles_of
from insitu_xr_adapters.verification.catalogue import resolve
from insitu_xr_adapters.verification.climatology import Calendar, field_of
from insitu_xr_adapters.verification.conventions import convention as convention_of
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.matching import Grid, check_units, grid_of, matched
from insitu_xr_adapters.verification.metrics import Metric, VectorRMSE
from insitu_xr_adapters.verification.setup import Asked, Feed, Model, Setup
from insitu_xr_adapters.verification.statistics import Statistic
from insitu_xr_adapters.verification.times import IntArray, Times, leads_of, times_of

PERSISTENCE, CLIMATOLOGY = "persistence", "climatology"
BASELINES = (PERSISTENCE, CLIMATOLOGY)

NAN_POLICIES = ("raise", "mask", "propagate")


def set_up(asked: Asked) -> Setup:
    """Check a request and bring everything onto one grid; reads no data but coordinates.

    Raises
    ------
    InsituError
        If an argument breaks a rule.
    """
    if asked.nan not in NAN_POLICIES:
        raise RequestError(f"nan must be one of {list(NAN_POLICIES)}, but got {asked.nan!r}; give one of them")
    baselines = _baselines(asked.baselines)
    rules = convention_of(asked.convention) if asked.convention is not None else None
    metrics = resolve(asked.metrics, convention=asked.convention)
    forecasts, named_models = _opened(asked.forecast, "forecast", "forecast")
    references, named_references = _opened(asked.reference, "reference", "reference")
    if taken := sorted(set(forecasts) & set(baselines)):
        raise RequestError(f"a model must not have the name of a baseline, but got {taken}; name it otherwise")
    others = {f"forecast {n!r}": d for n, d in list(forecasts.items())[1:]}
    others |= {f"reference {n!r}": d for n, d in references.items()}
    roles = {n: _forecast_roles(d, f"forecast {n!r}", asked.dims) for n, d in forecasts.items()}
    first = next(iter(forecasts))
    grid = grid_of(forecasts[first], roles[first], _wanted(asked.variables, metrics), others, asked.level)
    units = {v: str(forecasts[first][v].attrs.get("units", "")) for v in grid.variables}
    for name, other in others.items():
        check_units(name, other, {}, f"forecast {first!r}", units)
    pairs, feeds = _paired(forecasts, references, roles, grid, asked)
    models = [
        Model(n, f"forecast {n!r}", "valid", feeds[f"forecast {n!r}"].matched.members(grid.variables[0]))
        for n in forecasts
    ]
    models += [
        Model(n, None, "init") if n == PERSISTENCE else Model(n, "climatology", "valid", kind="mean") for n in baselines
    ]
    statistics = _statistics(metrics, models, grid)
    kinds = _kinds(statistics, grid, CLIMATOLOGY in baselines)
    if any(kinds.values()):
        feeds["climatology"] = _climatology(asked.climatology, grid, kinds, pairs, units, metrics)
    if PERSISTENCE in baselines:
        feeds |= {f"reference {n!r}": _persisting(feeds[f"reference {n!r}"], n, references, pairs) for n in references}
    weights = asked.weights
    if isinstance(weights, str) and weights == "auto":
        weights = "area" if rules is None else rules.weights
    domain = Domain.make(grid.latitude, grid.longitude, weights=weights, regions=asked.regions)
    sources = {f"forecast {n!r}": _source(d) for n, d in forecasts.items()}
    sources |= {f"reference {n!r}": _source(d) for n, d in references.items()}
    if "climatology" in feeds:
        sources["climatology"] = _source(asked.climatology)
    return Setup(
        pairs=pairs,
        grid=grid,
        domain=domain,
        metrics=metrics,
        feeds=feeds,
        models=tuple(models),
        references={n: f"reference {n!r}" for n in references},
        kinds=kinds,
        statistics=statistics,
        nan=asked.nan,
        pooled=True if rules is None else rules.pooled,
        convention=asked.convention,
        weights=weights if isinstance(weights, str) else "none" if weights is None else "given",
        align=asked.align,
        named_models=named_models or bool(baselines),
        named_references=named_references,
        sources=sources,
    )


def _baselines(given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in BASELINES:
            raise RequestError(f"baselines must be of {list(BASELINES)}, but got {name!r}; pass others as forecasts")
    return names


def _opened(given: Any, thing: str, default: str) -> tuple[dict[str, xr.Dataset], bool]:
    """Datasets by name, and whether they were given by name."""
    named = isinstance(given, Mapping) and not isinstance(given, xr.Dataset)
    every = dict(given) if named else {default: given}
    if not every:
        raise RequestError(f"{thing} must be one dataset at least, but got none; give one")
    return {str(n): _dataset(d, f"{thing} {n!r}") for n, d in every.items()}, named


def _dataset(given: Any, thing: str) -> xr.Dataset:
    if isinstance(given, xr.Dataset):
        return given
    if isinstance(given, xr.DataArray):
        if given.name is None:
            raise RequestError(
                f"{thing} must have a name to be found in others, but got an unnamed DataArray; rename it"
            )
        return given.to_dataset()
    return insitu_xr.open_dataset(given)


def _forecast_roles(ds: xr.Dataset, thing: str, dims: Mapping[str, str] | None) -> Roles:
    return roles_of(ds, thing, dims)


def _wanted(variables: Any, metrics: Sequence[Metric]) -> list[str] | None:
    """Variables that are asked for by name, and those that metrics need."""
    if variables is None:
        return None
    names = [variables] if isinstance(variables, str) else list(variables)
    return list(dict.fromkeys([*names, *(v for m in metrics for v in inputs_of(m, ()))]))


def _paired(
    forecasts: Mapping[str, xr.Dataset],
    references: Mapping[str, xr.Dataset],
    roles: Mapping[str, Roles],
    grid: Grid,
    asked: Asked,
) -> tuple[Pairs, dict[str, Feed]]:
    times = {n: _init_and_lead(forecasts[n], roles[n], n) for n in forecasts}
    reference_roles = {n: roles_of(d, f"reference {n!r}", None) for n, d in references.items()}
    known = {n: _valid_times(references[n], reference_roles[n], n) for n in references}
    pairs = pair_times(times, known, asked.align, asked.lead_time)
    feeds = {}
    for n, ds in forecasts.items():
        inits, leads = times[n]
        shape = pairs.wanted.shape
        rows = np.broadcast_to(inits.positions(pairs.inits)[:, None], shape)
        columns = np.broadcast_to(leads.positions(pairs.leads), shape)
        dims: tuple[str, ...] = tuple(d for d in (roles[n].init_time, roles[n].lead_time) if d is not None)
        positions = (rows, columns) if dims else (rows,)
        name = f"forecast {n!r}"
        feeds[name] = Feed(name, matched(name, ds, roles[n], grid), dims or (str(roles[n].time),), {"valid": positions})
    for n, ds in references.items():
        name, time = f"reference {n!r}", str(reference_roles[n].time)
        found = matched(name, ds, reference_roles[n], grid)
        feeds[name] = Feed(name, found, (time,), {"valid": (known[n].positions(pairs.valid),)})
    return pairs, feeds


def _init_and_lead(ds: xr.Dataset, roles: Roles, name: str) -> tuple[Times, Times]:
    thing = f"forecast {name!r}"
    if roles.lead_time is None:
        assert roles.time is not None
        return times_of(ds, roles.time, thing), Times(np.zeros(1, "m8[ns]"), np.zeros(1, np.int64), "")
    assert roles.init_time is not None
    return times_of(ds, roles.init_time, thing), leads_of(ds, roles.lead_time, thing)


def _valid_times(ds: xr.Dataset, roles: Roles, name: str) -> Times:
    if roles.time is None:
        raise RequestError(
            f"reference {name!r} must have valid times, but got lead times {roles.lead_time!r}; select one lead time "
            "and "
            "assign its valid times as 'time'"
        )
    if roles.member is not None:
        raise RequestError(
            f"reference {name!r} must be one field at each time, but got members along {roles.member!r}; select one"
        )
    return times_of(ds, roles.time, f"reference {name!r}")


def _statistics(
    metrics: Sequence[Metric], models: Sequence[Model], grid: Grid
) -> dict[tuple[str, str], tuple[Statistic, ...]]:
    """What is summed for each model and variable, in the order of keys; each metric must fit one model at least."""
    found: dict[tuple[str, str], tuple[Statistic, ...]] = {}
    for metric in metrics:
        refused: list[RequestError] = []
        for model in models:
            try:
                needed = metric.statistics(model.members)
            except RequestError as error:
                refused.append(error)
                continue
            for variable in inputs_of(metric, grid.variables):
                before = found.get((model.name, variable), ())
                found[model.name, variable] = tuple(dict.fromkeys([*before, *needed]))
        if len(refused) == len(models):
            raise refused[0]
        for variable in inputs_of(metric, ()):
            if variable not in grid.variables:
                raise RequestError(
                    f"metric {metric.name!r} must find its variables {list(inputs_of(metric, ()))}, but got "
                    f"{list(grid.variables)}; give it the names of two of them"
                )
    return {key: tuple(sorted(several, key=lambda s: s.key)) for key, several in found.items()}


def inputs_of(metric: Metric, others: Sequence[str]) -> Sequence[str]:
    """Variables that a metric takes together; those given where it takes each by itself."""
    return metric.variables if isinstance(metric, VectorRMSE) else others


def _kinds(
    statistics: Mapping[tuple[str, str], tuple[Statistic, ...]], grid: Grid, baseline: bool
) -> dict[str, tuple[str, ...]]:
    kinds = {}
    for variable in grid.variables:
        inputs = [i for (_, v), several in statistics.items() if v == variable for s in several for i in s.inputs]
        wanted = [i for i in inputs if i not in ("forecast", "reference")] + (["mean"] if baseline else [])
        kinds[variable] = tuple(dict.fromkeys(wanted))
    return kinds


def _climatology(
    given: Any,
    grid: Grid,
    kinds: Mapping[str, tuple[str, ...]],
    pairs: Pairs,
    units: Mapping[str, str],
    metrics: Sequence[Metric],
) -> Feed:
    if given is None:
        raise RequestError(
            f"climatology must be given for metrics {[m.name for m in metrics]} of which one needs "
            f"{sorted({k for several in kinds.values() for k in several})}, but got None; pass climatology=, or ask "
            "for "
            "other metrics"
        )
    ds = _dataset(given, "climatology")
    calendar = Calendar.of(ds)
    fields = {f"{v}|{k}": field_of(ds, v, k) for v, several in kinds.items() for k in several}
    roles = roles_of(ds.assign_coords(time=("time", np.zeros(1))), "climatology")
    roles = replace(roles, time=None)
    own = {v: str(fields[f"{v}|mean"].name) for v in grid.variables if f"{v}|mean" in fields}
    check_units("the climatology", ds, own, "the forecast", {v: u for v, u in units.items() if v in own})
    taken = xr.Dataset({n: f.drop_vars([c for c in f.coords if c not in f.dims]) for n, f in fields.items()})
    positions = calendar.positions(pairs.valid[pairs.wanted], pairs.calendar)
    spread = tuple(_spread(p, pairs) for p in positions)
    found = matched("the climatology", taken, roles, grid, {n: n for n in fields})
    return Feed("climatology", found, calendar.dims, {"valid": spread})


def _spread(values: IntArray, pairs: Pairs) -> IntArray:
    out = np.full(pairs.wanted.shape, -1, np.int64)
    out[pairs.wanted] = values
    return out


def _persisting(feed: Feed, name: str, references: Mapping[str, xr.Dataset], pairs: Pairs) -> Feed:
    times = _valid_times(references[name], roles_of(references[name], name), name)
    at = times.positions(pairs.inits)
    if (at < 0).any():
        check_calendars({"forecast": pairs.calendar, f"reference {name!r}": times.calendar})
        raise RequestError(
            f"persistence must find every init time in reference {name!r}, but got none for "
            f"{int((at < 0).sum())} of {len(at)}; select others, or leave the baseline out"
        )
    return replace(feed, asks={**feed.asks, "init": (np.broadcast_to(at[:, None], pairs.wanted.shape),)})


def _source(given: Any) -> dict[str, Any]:
    source = _dataset(given, "dataset").insitu.source
    several = source.get("sources")
    facts = {"kind": source.kind, "url": source.url, "version": dict(source.version)}
    return facts | ({"sources": [dict(s) for s in several]} if several else {})
