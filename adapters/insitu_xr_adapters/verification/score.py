"""Forecasts scored in place: the public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.measuring import columns_of
from insitu_xr_adapters.verification.plan import ScorePlan, plan_of
from insitu_xr_adapters.verification.requesting import set_up
from insitu_xr_adapters.verification.results import scores_of
from insitu_xr_adapters.verification.running import Runner, begun, described, placer, progress_bar
from insitu_xr_adapters.verification.setup import Asked
from insitu_xr_adapters.verification.state import State
from insitu_xr_adapters.verification.state import merge as merge_states
from insitu_xr_adapters.verification.storing import StateStore

METRICS = ("rmse", "bias", "mae")
DIMS = ("init_time", "latitude", "longitude")


def score(
    forecast: Any,
    reference: Any,
    *,
    metrics: str | Sequence[Any] = METRICS,
    climatology: Any = None,
    regions: Any = None,
    weights: Any = "auto",
    align: Literal["maximize", "same_init", "same_valid"] = "maximize",
    nan: Literal["raise", "mask", "propagate"] = "raise",
    lead_time: Any = None,
    level: Any = None,
    variables: str | Sequence[str] | None = None,
    baselines: str | Sequence[str] = (),
    convention: Literal["wb2", "wbx", "wmo"] | None = None,
    dims: Mapping[str, str] | None = None,
    dim: str | Sequence[str] = DIMS,
    device: Any = None,
    memory: int | str | None = None,
    state: Any = None,
    resume: bool | Literal["new"] = False,
    progress: bool = False,
    client: Any = None,
) -> xr.Dataset:
    """Score forecasts against references, reading every stored chunk of either once.

    Parameters
    ----------
    forecast : Dataset, or dict of name to Dataset
        Dimensions of init and lead time, perhaps of members, of latitude and longitude and perhaps others such as
        levels;
        found by CF standard name, then by the names in use. A dataset of times alone is one of lead time 0. A dict adds
        the dimension ``model``: all are scored on the init and lead times that they have in common, and what they are
        compared with is read once for all. A path or URL is opened.
    reference : Dataset, or dict of name to Dataset
        The truth by valid time, on the same grid. A dict adds the dimension ``reference``.
    metrics : sequence of str or Metric
        Such as "rmse", "acc", "crps", "brier:>281", or objects of :mod:`insitu_xr_adapters.verification`, such as
        ``CRPS(fair=False)``.
    climatology : Dataset, optional
        By ``dayofyear`` (and ``hour``) or ``month``; needed by "acc", "activity" and the like.
    regions : str, sequence of str, or mapping, optional
        "wb2", names of regions, or boxes ``{"nh": {"latitude": slice(20, 90)}}`` and masks. The globe by default.
    weights : {"auto", "area", "wb2", "cos"}, None or DataArray
        Area of the cells, as found by their bounds; the cosine of the latitude; or what is given. "auto" is "area", or
        what the convention uses.
    align : {"maximize", "same_init", "same_valid"}
        Take every init and lead time whose valid time the reference has; only init times that have all lead times; or
        only valid times that all lead times reach.
    nan : {"raise", "mask", "propagate"}
        What a missing value does.
    lead_time : slice, label or sequence of labels, optional
        Lead times to score, such as ``slice("6h", "240h")``. All by default.
    level : label or sequence of labels, optional
        Levels to score. All of the forecast by default.
    variables : sequence of str, optional
        By default those that all have.
    baselines : sequence of {"persistence", "climatology"}, optional
        Scored beside the forecasts, out of what is read anyway.
    convention : {"wb2", "wbx", "wmo"}, optional
        Compute whatever is ambiguous as WeatherBench 2, WeatherBench-X or WMO do.
    dims : dict of role to dimension, optional
        Names of dimensions of the forecast that are not found by themselves, such as ``{"member": "k"}``.
    dim : str or sequence of str
        What is averaged over: init times, latitudes and longitudes; without "init_time", each init time has scores, and
        with "init_time" alone, each point: maps ``(metric, lead_time, ..., latitude, longitude)``, latitudes ascending.
    device : optional
        Compute statistics with torch there, such as "cuda"; with numpy by default.
    memory : int or str, optional
        Ceiling of all that is held, such as "4GiB". By default 1 GiB, or what is needed.
    state : str, path or zarr store, optional
        Keep the sums of every init and lead time there.
    resume : bool or "new"
        Go on with the sums that are there: what is done is not read again, be it an interrupted run or earlier init
        times. Sums of another snapshot of a store that has such are refused, unless it is "new", which takes them as
        they are and reads what is new: right where a store was added to and not changed otherwise.
    progress : bool
        Show a bar, in bytes of chunks.
    client : dask.distributed.Client, optional
        Split the init times over its workers. The same bits.

    Returns
    -------
    xarray.Dataset
        A variable for each that was scored, ``(metric, region, lead_time, ...)``. Metrics that are no single number,
        such as a rank histogram, are variables of their own, ``t2m__rank_histogram``.

    Raises
    ------
    InsituError
        If an argument breaks a rule, before any data is read; if a value is missing and ``nan`` is "raise".

    Examples
    --------
    >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
    >>> from insitu_xr_adapters.verification import score
    >>> grid = {"latitude": [-45.0, 45.0], "longitude": [0.0, 180.0]}
    >>> inits, leads = pd.date_range("2020", periods=3, freq="12h"), pd.to_timedelta([0, 12], "h")
    >>> times = pd.date_range("2020", periods=4, freq="12h")
    >>> truth = xr.Dataset({"t2m": (("time", *grid), np.zeros((4, 2, 2)))}, {"time": times, **grid})
    >>> forecast = xr.Dataset({"t2m": (("init_time", "lead_time", *grid), np.ones((3, 2, 2, 2)))},
    ...                       {"init_time": inits, "lead_time": leads, **grid})
    >>> scores = score(forecast, truth, metrics=["rmse", "bias"])
    >>> scores["t2m"].sel(metric="bias", region="global").values.tolist()
    [1.0, 1.0]
    """
    asked = Asked(forecast, reference, metrics, climatology, regions, weights, align, nan, lead_time, level)
    asked = asked.with_options(variables=variables, baselines=baselines, convention=convention, dims=dims)
    maps = _of_maps(dim)
    if not isinstance(progress, bool):
        raise RequestError(f"progress must be True or False, but got {progress!r}; give one of them")
    _check_resume(resume)
    if resume and state is None:
        raise RequestError("resume=True must come with state=, but got none; name the place of the sums")
    if maps:
        return _maps(asked, memory, device, state=state, client=client, progress=progress)
    setup = set_up(asked)
    columns = columns_of(setup)
    identity, about = described(setup)
    store = None if state is None else StateStore(state)
    if store is not None:
        if resume is True:
            store.check_snapshots(about)
        store.open(identity, columns, about, resume=bool(resume))
    sums, parts = begun(setup, columns, identity, about, store, resume=resume)
    plan = plan_of(setup, columns, memory, wanted=setup.pairs.wanted & ~sums.done)
    if client is None:
        Runner(plan, sums, columns, store, parts, device).run(progress=progress)
    else:
        from insitu_xr_adapters.verification.scaling import run_on

        run_on(client, plan, sums, columns, store, device, progress=progress)
    return scores_of(sums, setup.metrics, per_init="init_time" not in dim)


def _check_resume(resume: Any) -> None:
    if not isinstance(resume, bool) and resume != "new":
        raise RequestError(f"resume must be True, False or 'new', but got {resume!r}; give one of them")


def _of_maps(dim: str | Sequence[str]) -> bool:
    """Whether every point has scores of its own."""
    dims = {dim} if isinstance(dim, str) else {*dim}
    if dims not in ({*DIMS}, {*DIMS[1:]}, {DIMS[0]}):
        raise RequestError(
            f"dim must be {list(DIMS)}, {list(DIMS[1:])} or {DIMS[0]!r}, but got {dim!r}; give one of these"
        )
    return dims == {DIMS[0]}


def _maps(
    asked: Asked, memory: int | str | None, device: Any, *, state: Any, client: Any, progress: bool
) -> xr.Dataset:
    from insitu_xr_adapters.verification.mapping import score_maps, set_up_maps

    for name, value in {"state": state, "client": client}.items():
        if value is not None:
            raise RequestError(
                f"{name} must be left out for a map of scores (dim='init_time'), but got {value!r}; sums of every "
                "point are not kept"
            )
    setup = set_up_maps(asked)
    place = None if device is None else placer(device)
    return score_maps(setup, columns_of(setup), described(setup)[1], memory, place, progress_bar if progress else None)


def score_plan(
    forecast: Any,
    reference: Any,
    *,
    metrics: str | Sequence[Any] = METRICS,
    climatology: Any = None,
    memory: int | str | None = None,
    device: Any = None,
    state: Any = None,
    resume: bool | Literal["new"] = False,
    **options: Any,
) -> ScorePlan:
    """What :func:`score` with the same arguments will read and hold; reads no data.

    Takes the arguments of :func:`score`. With ``state=`` and ``resume=True``, what is done is left out.

    Returns
    -------
    ScorePlan
        Prints as text, and as HTML in a notebook.
    """
    for name in ("progress", "client"):
        options.pop(name, None)
    maps = _of_maps(options.pop("dim", DIMS))
    _check_resume(resume)
    fields = {
        "regions",
        "weights",
        "align",
        "nan",
        "lead_time",
        "level",
        "variables",
        "baselines",
        "convention",
        "dims",
    }
    if unknown := sorted(set(options) - fields):
        raise RequestError(f"arguments must be those of score(), but got {unknown}; leave them out")
    asked = Asked(forecast, reference, metrics, climatology, **options)
    if maps:
        from insitu_xr_adapters.verification.mapping import plan_maps, set_up_maps

        setup = set_up_maps(asked)
        return plan_maps(setup, columns_of(setup), memory)
    setup = set_up(asked)
    columns = columns_of(setup)
    identity, about = described(setup)
    wanted = setup.pairs.wanted
    if state is not None and resume:
        sums, _ = begun(setup, columns, identity, about, StateStore(state), missing_ok=True, resume=resume)
        wanted = wanted & ~sums.done
    return plan_of(setup, columns, memory, wanted=wanted)


def load(state: Any, metrics: Sequence[Any] | None = None, *, per_init: bool = False) -> xr.Dataset:
    """Scores of all that a state holds; reads no forecasts.

    Parameters
    ----------
    state : str, path, zarr store, or State
    metrics : sequence, optional
        By default those that it was made for; others whose statistics it holds will do.
    per_init : bool
        Keep the init times.
    """
    found = state if isinstance(state, State) else StateStore(state).load()[0]
    return scores_of(found, metrics, per_init=per_init)


def merge(states: Sequence[Any]) -> xr.Dataset:
    """Scores of several states, or of datasets of scores, of the same request and of different init or lead times.

    Parameters
    ----------
    states : sequence of str, path, zarr store, State, or Dataset of scores

    Raises
    ------
    RequestError
        If they are of different requests; names what differs.
    """
    from insitu_xr_adapters.verification.results import state_of

    def one(given: Any) -> State:
        if isinstance(given, State):
            return given
        return state_of(given) if isinstance(given, xr.Dataset) else StateStore(given).load()[0]

    return scores_of(merge_states([one(s) for s in states]))
