"""Batches of a campaign, read ahead: states to start models from, and pairs to score."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.earth2studio import compat
from insitu_xr_adapters.earth2studio.sources import InSituDataSource, InSituForecastSource
from insitu_xr_adapters.earth2studio.times import Labels, as_leads, as_names, as_times

#: a tensor and its coordinates
type Pair = tuple[Any, Any]


def fetch_batches(
    source: Any,
    time: Any,
    variable: Any,
    lead_time: Any = "0h",
    *,
    batch_size: int = 1,
    device: Any = "cpu",
    prefetch: int = 2,
    interp_to: Any = None,
    interp_method: str = "nearest",
    legacy: bool | None = None,
    memory: int | str | None = None,
) -> Iterator[Any]:
    """Yield what ``earth2studio.data.fetch_data`` returns, for some initial times after the other, read ahead.

    Parameters
    ----------
    source : data source or forecast source of Earth2Studio
        Chunks are read once where it reads in place.
    time : datetime, list of datetime, or array of datetime64
        Initial times.
    variable : str, list of str, or array of str
        Variables, such as ``model.input_coords()["variable"]``.
    lead_time : timedelta, list of timedelta, or array of timedelta64
        Lead times of each, such as ``model.input_coords()["lead_time"]``.
    batch_size : int
        Initial times in a batch; the last one may have fewer.
    device : str or torch.device
        Where the tensors go.
    prefetch : int
        Batches that may be ready before they are asked for.
    interp_to, interp_method : optional
        As for ``fetch_data``.
    legacy : bool, optional
        True gives pairs ``(x, coords)``, False DataArrays; by default what the installed release does.
    memory : int or str, optional
        Ceiling of what is held of the store, such as ``"4GiB"``.

    Yields
    ------
    tuple of (torch.Tensor, dict) or xarray.DataArray
        ``[time, lead_time, variable, ...]``.

    Raises
    ------
    KeyError, ValueError
        If there is no such variable, or no such time, or an argument breaks a rule; before anything is read.
    """
    times, leads, names = as_times(time), as_leads(lead_time), as_names(variable)
    _count("batch_size", batch_size)
    fetch = compat.fetch_data()
    as_arrays = compat.exchanges_arrays(fetch) if legacy is None else not legacy
    if as_arrays and interp_to is not None:
        raise RequestError("interp_to must be given for tensors, but got it for DataArrays; give legacy=True")

    def one(some: Labels) -> Any:
        field = _field(fetch, source, some, leads, names)
        if as_arrays:
            return compat.arrays(field, device)
        return compat.tensors(field, device, interp_to, interp_method)

    plan = _plan(source, times, leads, names, memory)
    return _ahead(one, _blocks(times, batch_size), _count("prefetch", prefetch), plan)


def verification_batches(
    forecast: Any,
    reference: Any,
    time: Any,
    lead_time: Any,
    variable: Any,
    *,
    batch_size: int = 1,
    device: Any = "cpu",
    prefetch: int = 2,
    memory: int | str | None = None,
) -> Iterator[tuple[Pair, Pair]]:
    """Yield forecasts with what happened, ready for any metric of Earth2Studio: ``metric(*forecast, *reference)``.

    Parameters
    ----------
    forecast : forecast source of Earth2Studio
        Asked for initial times and lead times.
    reference : data source of Earth2Studio
        Asked for the valid times; each of its chunks is read once where it reads in place. It may have more rows and
        columns than the forecast.
    time, lead_time, variable, batch_size, device, prefetch
        As for `fetch_batches`.
    memory : int or str, optional
        Ceiling of what is held of each store.

    Yields
    ------
    tuple of (torch.Tensor, dict) and (torch.Tensor, dict)
        ``[time, lead_time, variable, lat, lon]`` of both, with the very same coordinates.

    Raises
    ------
    KeyError, ValueError
        If there is no such variable, or no such time, or the grids differ, or an argument breaks a rule.
    """
    times, leads, names = as_times(time), as_leads(lead_time), as_names(variable)
    _count("batch_size", batch_size)
    fetch = compat.fetch_data()

    def one(some: Labels) -> tuple[Pair, Pair]:
        x, coords = compat.tensors(_field(fetch, forecast, some, leads, names), device)
        y, found = compat.tensors(_field(fetch, reference, some, leads, names), device)
        same = list(coords) == list(found) and all(np.array_equal(coords[name], found[name]) for name in coords)
        if not same:
            y, _ = compat.on_grid_of((y, found), coords)
        # A metric does not compare them.
        return (x, coords), (y, type(coords)(coords))

    plans = [plan for source in (forecast, reference) for plan in _plan(source, times, leads, names, memory)]
    return _ahead(one, _blocks(times, batch_size), _count("prefetch", prefetch), plans)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < (name == "batch_size"):
        raise RequestError(f"{name} must be a number of batches or samples, but got {value!r}; give a positive one")
    return int(value)


def _field(fetch: Callable[..., Any], source: Any, times: Labels, leads: Labels, names: list[str]) -> xr.DataArray:
    if isinstance(source, InSituDataSource | InSituForecastSource):
        return source._window(times, leads, names)
    return compat.fetched(fetch, source, times, leads, names)


def _plan(source: Any, times: Labels, leads: Labels, names: list[str], memory: Any) -> list[Any]:
    if isinstance(source, InSituDataSource | InSituForecastSource):
        return [source.plan(times, leads, names, memory=memory)]
    return []


def _blocks(times: Labels, size: int) -> list[Labels]:
    return [times[start : start + size] for start in range(0, len(times), size)]


def _ahead[T](one: Callable[[Labels], T], blocks: list[Labels], prefetch: int, plans: list[Any]) -> Iterator[T]:
    """Yield the batches in order, the next ones being made on a thread meanwhile."""
    with ExitStack() as stack:
        for plan in plans:
            stack.enter_context(plan)
        if not prefetch:
            yield from map(one, blocks)
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="insitu-batches")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        waiting: deque[Future[T]] = deque()
        for block in blocks:
            waiting.append(pool.submit(one, block))
            if len(waiting) > prefetch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
