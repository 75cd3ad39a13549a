"""Scores in the layouts that other tools draw: those of WeatherBench 2 and of Earth2Studio."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.results import scores_of, state_of


def to_wb2(scores: xr.Dataset, model: str | None = None) -> xr.Dataset:
    """Scores as WeatherBench 2 writes them: ``variable(metric, region, lead_time, level)`` of one model.

    Parameters
    ----------
    model : str, optional
        Which one, where there are several.

    Examples
    --------
    >>> dims, labels = ("metric", "lead_time", "model"), {"metric": ["rmse"], "model": ["a", "b"]}
    >>> ds = xr.Dataset({"t": (dims, [[[1.0, 2.0]]])}, labels)
    >>> to_wb2(ds, "b")["t"].values.tolist()
    [[2.0]]
    """
    ds = _one_model(scores, model)
    scalar = [n for n in ds.data_vars if "metric" in ds[n].dims]
    keep = {"metric", "region", "lead_time", "level"}
    found = ds[scalar].drop_vars([c for c in ds.coords if c not in ds.dims])
    front = [d for d in ("metric", "region", "lead_time", "level") if d in found.dims]
    found = found.transpose(*front, *[d for d in found.dims if d not in keep])
    for name in found.data_vars:
        found[name].attrs.pop("metric_units", None)
    return found


def _one_model(scores: xr.Dataset, model: str | None) -> xr.Dataset:
    if "model" not in scores.dims:
        if model is not None:
            raise RequestError(f"model must be left out where there is one, but got {model!r}; leave it out")
        return scores
    known = scores["model"].values.tolist()
    if model not in known:
        raise RequestError(f"model must be one of {known}, but got {model!r}; a file of this layout holds one")
    return scores.sel(model=model, drop=True)


def to_e2s(scores: xr.Dataset, model: str | None = None, region: str | None = None) -> xr.Dataset:
    """Scores of every init time as the Earth2Studio recipe for evaluation writes them.

    Variables are ``metric__variable(time, lead_time)``. Levels become part of the name, as in ``rmse__z500``.

    Parameters
    ----------
    model : str, optional
        Which one, where there are several.
    region : str, optional
        The first one by default.

    Raises
    ------
    RequestError
        If the scores carry no sums of their init times.
    """
    each = _one_model(scores_of(state_of(scores), per_init=True), model)
    known = each["region"].values.tolist()
    if region is not None and region not in known:
        raise RequestError(f"region must be one of {known}, but got {region!r}; give one of them")
    each = each.sel(region=known[0] if region is None else region, drop=True)
    found: dict[str, xr.DataArray] = {}
    for name, array in each.data_vars.items():
        if "metric" in array.dims:
            for metric in array["metric"].values.tolist():
                found |= _flat(f"{metric}__{name}", array.sel(metric=metric, drop=True))
    ds = xr.Dataset(found).rename({"init_time": "time"})
    return ds.drop_vars([c for c in ds.coords if c not in ds.dims]).transpose("time", "lead_time", ...)


def _flat(name: str, array: xr.DataArray) -> dict[str, xr.DataArray]:
    """One array for each label of further dimensions, such as levels, which go into its name."""
    more = [d for d in array.dims if d not in ("init_time", "lead_time")]
    if not more:
        return {name: array.drop_vars([c for c in array.coords if c not in array.dims])}
    found = {}
    for index in np.ndindex(*(array.sizes[d] for d in more)):
        at: dict[Any, int] = dict(zip(more, index, strict=True))
        labels = [_label(array[d].values[k]) for d, k in at.items()]
        found[name + "_".join(labels)] = array.isel(at, drop=True)
    return found


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
