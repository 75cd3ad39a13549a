"""Scores out of sums: a Dataset with one variable for each that was scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.catalogue import resolve
from insitu_xr_adapters.verification.means import Means
from insitu_xr_adapters.verification.metrics import Metric, VectorRMSE
from insitu_xr_adapters.verification.state import State

#: where a Dataset of scores keeps the state that it was made of: selections keep it, files do not
STATE = "insitu_xr_state"


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """What scores are made of a state: metrics, init times and their weights.

    Attributes
    ----------
    per_init : bool
        Keep the init times.
    draws : array of shape (draws, inits), optional
        How often each init time counts in each of several draws.
    """

    state: State
    metrics: tuple[Metric, ...]
    per_init: bool = False
    draws: npt.NDArray[np.float64] | None = None

    @property
    def outer(self) -> tuple[str, ...]:
        """Dimensions before that of lead times."""
        return ("init_time",) if self.per_init else ("draw",) if self.draws is not None else ()

    @property
    def about(self) -> Mapping[str, Any]:
        """Names and labels of what was scored."""
        return self.state.attrs

    def members(self, model: str) -> int:
        """Members of a model."""
        return int(self.about["models"][model])

    @property
    def most_members(self) -> int:
        """Members of the largest ensemble."""
        return max(int(m) for m in self.about["models"].values())

    def values(self, metric: Metric, model: str, reference: str, variables: Sequence[str]) -> npt.NDArray[Any] | None:
        """A metric, shape (*outer, lead, *extras, region, *dims); None where the model cannot have it."""
        return self._computed(metric, model, reference, variables, metric.compute)

    def n_valid(self, metric: Metric, model: str, reference: str, variables: Sequence[str]) -> npt.NDArray[Any] | None:
        """Points that a metric was taken over, shape (*outer, lead, *extras, region)."""
        return self._computed(metric, model, reference, variables[:1], metric.n_valid)

    def _computed(
        self, metric: Metric, model: str, reference: str, variables: Sequence[str], compute: Callable[..., Any]
    ) -> npt.NDArray[Any] | None:
        members = self.members(model)
        try:
            statistics = metric.statistics(members)
        except RequestError:
            return None
        totals = [{s: self.state.totals((model, reference, v, s.key)) for s in statistics} for v in variables]

        def once(weights: npt.NDArray[np.float64] | None) -> npt.NDArray[Any]:
            options: dict[str, Any] = {"keep": self.per_init, "pooled": self.about["pooled"], "weights": weights}
            return np.asarray(compute(*(Means(t, members, **options) for t in totals)), np.float64)

        return once(None) if self.draws is None else np.stack([once(weights) for weights in self.draws])


def scores_of(
    state: State,
    metrics: Sequence[Any] | None = None,
    *,
    per_init: bool = False,
    draws: npt.NDArray[np.float64] | None = None,
) -> xr.Dataset:
    """Scores of a state.

    Parameters
    ----------
    metrics : sequence, optional
        Names or objects whose statistics the state holds; by default those that it was made for.
    per_init : bool
        Keep the init times.
    draws : array of shape (draws, inits), optional
        How often each init time counts in each of several draws, which become a dimension.

    Returns
    -------
    xarray.Dataset
    """
    if not state.done.any():
        raise RequestError("a state must hold sums of one pair at least, but got none; score first")
    about = state.attrs
    named = about["metrics"] if metrics is None else metrics
    scoring = Scoring(state, resolve(named, convention=about["convention"]), per_init, draws)
    arrays: dict[str, xr.DataArray] = {}
    for variable in _outputs(scoring):
        arrays |= _variable(scoring, *variable)
    coords: dict[str, Any] = {"lead_time": ("lead_time", _leads(state), {"standard_name": "forecast_period"})}
    if per_init:
        coords["init_time"] = ("init_time", init_times(state), {"standard_name": "forecast_reference_time"})
    else:
        coords["n_init"] = ("lead_time", state.done.sum(axis=0), {"long_name": "init times of each lead time"})
    ds = xr.Dataset(arrays)
    scalars = [m for m in scoring.metrics if not m.dims]
    if scalars:
        ds = ds.reindex(metric=[m.name for m in scalars])
        told = [m.attrs("", scoring.most_members) for m in scalars]
        coords |= {k: ("metric", [str(t.get(k, "")) for t in told]) for k in ("estimator", "orientation")}
    ds = ds.assign_coords(coords)
    for dim, labels in about["labels"].items():
        if dim in ds.dims:
            ds = ds.assign_coords({dim: (dim, labels["values"], labels["attrs"])})
    ds.attrs = _attrs(about)
    ds.encoding[STATE] = state
    return ds


def state_of(ds: xr.Dataset) -> State:
    """The state that a Dataset of scores was made of.

    Raises
    ------
    RequestError
        If it has none: it was read from a file, or made by operations that drop it.
    """
    found = ds.encoding.get(STATE)
    if not isinstance(found, State):
        raise RequestError(
            "scores must carry their sums for this, but got a dataset without; use what score() returned, or "
            "insitu_xr_adapters.verification.load(state) where state= was given"
        )
    return found


def _outputs(scoring: Scoring) -> list[tuple[str, tuple[str, ...], tuple[str, ...], list[Metric]]]:
    """Name, inputs, extras and metrics of each variable of the result."""
    about = scoring.about
    found: dict[tuple[str, tuple[str, ...]], list[Metric]] = {}
    for metric in scoring.metrics:
        if isinstance(metric, VectorRMSE):
            found.setdefault((metric.output, tuple(metric.variables)), []).append(metric)
        else:
            for variable in about["variables"]:
                found.setdefault((variable, (variable,)), []).append(metric)
    return [(name, inputs, tuple(about["extras"][inputs[0]]), ms) for (name, inputs), ms in found.items()]


def _variable(
    scoring: Scoring, name: str, inputs: tuple[str, ...], extras: tuple[str, ...], metrics: Sequence[Metric]
) -> dict[str, xr.DataArray]:
    about = scoring.about
    attrs = dict(about["variables"][inputs[0]])
    units = str(attrs.pop("units", ""))
    attrs.pop("standard_name", None)
    found: dict[str, xr.DataArray] = {}
    scalars = [m for m in metrics if not m.dims]
    if scalars:
        told = [m.attrs(units, scoring.most_members) for m in scalars]
        coords: dict[str, Any] = {"metric": [m.name for m in scalars]}
        each = {m.name: str(t.get("units", "")) for m, t in zip(scalars, told, strict=True)}
        numbers = np.stack([_numbers(scoring, m, inputs)[0] for m in scalars])
        attrs_of = attrs | {"metric_units": json.dumps(each)}
        found[name] = _array(scoring, numbers, ("metric",), extras, (), coords, attrs_of)
    for metric in metrics:
        if metric.dims:
            numbers, own = _numbers(scoring, metric, inputs)
            told_of = attrs | _plain(metric.attrs(units, scoring.most_members))
            found[f"{name}__{metric.name}"] = _array(scoring, numbers, (), extras, tuple(metric.dims), own, told_of)
    if about["nan"] == "mask":
        numbers, _ = _numbers(scoring, metrics[0], inputs, count=True)
        told_of = attrs | {"long_name": "points that scores were taken over", "units": "1"}
        found[f"{name}__n_valid"] = _array(scoring, numbers, (), extras, (), {}, told_of)
    return found


def _numbers(
    scoring: Scoring, metric: Metric, inputs: tuple[str, ...], *, count: bool = False
) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
    """A metric of all models, (model, reference, *outer, lead, *extras, region, *dims), and the labels of its dims."""
    about, compute = scoring.about, scoring.n_valid if count else scoring.values
    every = {m: [compute(metric, m, r, inputs) for r in about["references"]] for m in about["models"]}
    own = () if count else tuple(metric.dims)
    shape = tuple(about["shape"])
    known = {m: metric.coords(scoring.members(m), shape) for m, v in every.items() if own and v[0] is not None}
    # Ensembles of other sizes have other ranks.
    labels = {d: np.unique(np.concatenate([np.asarray(c[d]) for c in known.values()])) for d in own}
    first = next(v[0] for v in every.values() if v[0] is not None)
    outer = first.shape[: first.ndim - len(own)]
    sizes = (*outer, *(len(labels[d]) for d in own))
    out = np.full((len(every), len(about["references"]), *sizes), np.nan)
    for number, (model, values) in enumerate(every.items()):
        if values[0] is None:
            continue  # a model that cannot have the metric has no number for it
        at = [np.searchsorted(labels[d], np.asarray(known[model][d])) for d in own]
        for k, value in enumerate(values):
            out[number, k][np.ix_(*map(np.arange, outer), *at)] = value
    return out, labels


def _array(
    scoring: Scoring,
    numbers: npt.NDArray[Any],
    front: tuple[str, ...],
    extras: tuple[str, ...],
    own: tuple[str, ...],
    coords: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> xr.DataArray:
    about = scoring.about
    dims = (*front, "model", "reference", *scoring.outer, "lead_time", *extras, "region", *own)
    wanted = (*front, "region", *scoring.outer, "lead_time", *extras, *own)
    array = xr.DataArray(numbers, dims=dims, coords=coords, attrs=dict(attrs))
    array = array.assign_coords(region=list(about["regions"]))
    for dim, labels in (("reference", about["references"]), ("model", [*about["models"]])):
        if about[f"named_{dim}s"]:
            array, wanted = array.assign_coords({dim: labels}), (*wanted, dim)
        else:
            array = array.isel({dim: 0})
    return array.transpose(*wanted)


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, str | int | float) else str(v) for k, v in attrs.items()}


def _leads(state: State) -> npt.NDArray[Any]:
    return state.leads.astype("m8[us]").astype("m8[ns]")


def init_times(state: State) -> Any:
    """Init times of a state as labels."""
    calendar = state.attrs["calendar"]
    if calendar == "standard":
        return state.inits.astype("M8[us]").astype("M8[ns]")
    import cftime

    return cftime.num2date(state.inits, "microseconds since 1970-01-01", calendar)


def _attrs(about: Mapping[str, Any]) -> dict[str, Any]:
    attrs = {key: about[key] for key in ("weights", "align", "nan", "insitu_xr_version")}
    attrs["convention"] = about["convention"] or "none"
    # Names of attributes that every format takes.
    return attrs | {name.replace("'", "").replace(" ", "_"): _spelt(s) for name, s in about["sources"].items()}


def _spelt(source: Mapping[str, Any]) -> str:
    version = ", ".join(f"{k} {v}" for k, v in source.get("version", {}).items())
    return " ".join(
        filter(None, [str(source.get("kind", "")), str(source.get("url", "")), f"({version})" if version else ""])
    )
