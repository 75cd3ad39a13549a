"""Data sources of Earth2Studio that read a store in place: `InSituDataSource` and `InSituForecastSource`."""

from __future__ import annotations

from typing import Any, Literal

import xarray as xr

from insitu_xr_adapters.earth2studio.base import Source, one_of, product
from insitu_xr_adapters.earth2studio.described import is_forecast
from insitu_xr_adapters.earth2studio.planning import Campaign
from insitu_xr_adapters.earth2studio.times import as_leads, as_times


class InSituDataSource(Source):
    """A data source of Earth2Studio that reads analyses in place, from any store that xarray opens from Zarr.

    Parameters
    ----------
    source : Dataset, str, path, or what `insitu_xr.open_dataset` opens, optional
        A dataset opened from Zarr, or where one is: a URL, or a session or repository of Icechunk or Arraylake.
    lexicon : "auto", lexicon of Earth2Studio or its name, or dict
        Where each variable is. "auto" goes by the names and the metadata of GRIB and CF, and converts units; so does a
        dict such as ``{"z500": "geopotential::500", "t2m": "2m_temperature"}``. A lexicon, and an entry
        ``("geopotential::500", function)``, say themselves what the values need.
    url, repo : str, optional
        Instead of ``source``, for configurations of plain values: a URL, or ``organisation/repository`` of Arraylake.
    group : str or sequence of str, optional
        Group of the store; several are merged.
    branch, tag, snapshot, storage_options : optional
        As for `insitu_xr.open_dataset`.
    member : label, optional
        Member of an ensemble to take.
    accumulations : dict, optional
        What is summed over the last hours, such as ``{"tp06": "6h"}`` where the lexicon has hourly samples for
        ``tp06``; ``("6h", "3h")`` for samples of three hours. "auto" and lexicons with ``ACCUMULATION_HOURS`` know
        some.
    memory : int or str, optional
        Ceiling of what is held for requests that come without a plan, such as ``"2GiB"``.
    missing : {"warn", "raise", "ignore"}
        What to do with fields that are missing at every point, as they are where nothing was written.
    cache : bool
        Whether the directory `cache` stays after a call. What is stored is read in place, and not copied there.
    verbose : bool
        Show the progress of requests that take longer than a second.
    async_timeout : float, optional
        Seconds after which a call that waits is cancelled.
    async_workers : int, optional
        Reads under way at once in a remote store; found while reading by default.
    retries : int
        Tries of what fails to be read; three are made in any case.
    computed : {"raise", "load"}
        What to do with dask variables on which more than indexing was done.

    Raises
    ------
    InsituError
        If the dataset has no times, no grid, or no variables that can be delivered, or an argument breaks a rule.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> times = np.array(["2020-01-01T00", "2020-01-01T06"], "M8[ns]")
    >>> ds = xr.Dataset({"2m_temperature": (("time", "lat", "lon"), np.zeros((2, 3, 4), "f4"), {"units": "degC"})},
    ...                 {"time": times, "lat": [-90.0, 0.0, 90.0], "lon": [-180.0, -90.0, 0.0, 90.0]})
    >>> source = InSituDataSource(ds)
    >>> field = source(times[[1, 0, 1]], "t2m")
    >>> field.dims, field.shape, float(field[0, 0, 0, 0])
    (('time', 'variable', 'lat', 'lon'), (3, 1, 3, 4), 273.1499938964844)
    >>> field.lat.values, field.lon.values
    (array([ 90.,   0., -90.]), array([  0.,  90., 180., 270.]))
    """

    def __call__(self, time: Any, variable: Any) -> xr.DataArray:
        """Read times and wait for them.

        Parameters
        ----------
        time : datetime, list of datetime, or array of datetime64
            Valid times in UTC, in any order.
        variable : str, list of str, or array of str
            Variables of Earth2Studio.

        Returns
        -------
        xarray.DataArray
            ``[time, variable, lat, lon]`` (or the dimensions of a projected grid), float32, in the order asked for.

        Raises
        ------
        KeyError
            If there is no such variable.
        ValueError
            If there is no such time.
        TimeoutError
            If it takes longer than ``async_timeout``.
        """
        times, fields = as_times(time), self._fields(variable)
        return self._array(self._waiting((times,), fields), {"time": times}, fields)

    async def fetch(self, time: Any, variable: Any) -> xr.DataArray:
        """Like calling the source, without blocking the event loop; cancelling it stops its reads."""
        times, fields = as_times(time), self._fields(variable)
        return self._array(await self._awaited((times,), fields), {"time": times}, fields)

    def plan(
        self,
        time: Any,
        lead_time: Any = "0h",
        variable: Any = None,
        *,
        memory: int | str | None = None,
        order: Literal["time", "lead_time"] = "time",
    ) -> Campaign:
        """Say what is going to be asked, so that it is read ahead, and every chunk once.

        Inside of ``with source.plan(...):``, the source is called as ever, by `earth2studio.run`, models, wrappers or
        loops; in any order, though that of the plan is the one that is read ahead.

        Parameters
        ----------
        time : datetime, list of datetime, or array of datetime64
            Initial times.
        lead_time : timedelta, list of timedelta, or array of timedelta64
            Lead times, lags or offsets that are added to each.
        variable : str, list of str, or array of str, optional
            Variables; all of the source by default.
        memory : int or str, optional
            Ceiling of what is held, such as ``"4GiB"``.
        order : {"time", "lead_time"}
            Which changes more slowly: "time" for loops over initial times, "lead_time" where all initial times are run
            together.

        Returns
        -------
        Campaign
            A context manager.

        Raises
        ------
        KeyError, ValueError
            If there is no such variable, or no such time.
        """
        times, leads = as_times(time), as_leads(lead_time)
        one_of("order", order, ("time", "lead_time"))
        rows = [(when + leads,) for when in times] if order == "time" else [(times + lead,) for lead in leads]
        return self._planned(rows, self.variables if variable is None else variable, memory)


class InSituForecastSource(Source):
    """A forecast source of Earth2Studio that reads forecasts in place, by initial time and lead time.

    Takes the arguments of `InSituDataSource`.

    Raises
    ------
    InsituError
        If the dataset has no initial times, no lead times, no grid, or no variables that can be delivered, or an
        argument breaks a rule.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> ds = xr.Dataset({"t2m": (("time", "step", "lat", "lon"), np.zeros((1, 2, 3, 4), "f4"))},
    ...                 {"time": np.array(["2020-01-01"], "M8[ns]"), "step": np.array([0, 6], "m8[h]").astype("m8[ns]"),
    ...                  "lat": [90.0, 0.0, -90.0], "lon": [0.0, 90.0, 180.0, 270.0]})
    >>> InSituForecastSource(ds)(np.datetime64("2020-01-01"), np.timedelta64(6, "h"), "t2m").dims
    ('time', 'lead_time', 'variable', 'lat', 'lon')
    """

    _FORECAST = True

    def __call__(self, time: Any, lead_time: Any, variable: Any) -> xr.DataArray:
        """Read lead times of forecasts and wait for them.

        Parameters
        ----------
        time : datetime, list of datetime, or array of datetime64
            Initial times in UTC, in any order.
        lead_time : timedelta, list of timedelta, or array of timedelta64
            Lead times, in any order.
        variable : str, list of str, or array of str
            Variables of Earth2Studio.

        Returns
        -------
        xarray.DataArray
            ``[time, lead_time, variable, lat, lon]`` (or the dimensions of a projected grid), float32, in the order
            asked for.

        Raises
        ------
        KeyError
            If there is no such variable.
        ValueError
            If there is no such initial time or lead time.
        TimeoutError
            If it takes longer than ``async_timeout``.
        """
        return self._window(as_times(time), as_leads(lead_time), variable)

    async def fetch(self, time: Any, lead_time: Any, variable: Any) -> xr.DataArray:
        """Like calling the source, without blocking the event loop; cancelling it stops its reads."""
        times, leads, fields = as_times(time), as_leads(lead_time), self._fields(variable)
        out = await self._awaited(product(times, leads), fields)
        return self._array(out, {"time": times, "lead_time": leads}, fields)

    def plan(
        self,
        time: Any,
        lead_time: Any = None,
        variable: Any = None,
        *,
        memory: int | str | None = None,
        order: Literal["time", "lead_time"] = "time",
    ) -> Campaign:
        """Say what is going to be asked, so that it is read ahead, and every chunk once.

        See `InSituDataSource.plan`; all lead times by default.
        """
        times = as_times(time)
        lead = self._described.lead
        leads = as_leads(lead_time) if lead_time is not None or lead is None else lead.labels
        one_of("order", order, ("time", "lead_time"))
        rows = [product(times[i : i + 1], leads) for i in range(len(times))]
        if order == "lead_time":
            rows = [product(times, leads[i : i + 1]) for i in range(len(leads))]
        return self._planned(rows, self.variables if variable is None else variable, memory)


def to_earth2studio(ds: xr.Dataset, lexicon: Any = "auto", **options: Any) -> InSituDataSource | InSituForecastSource:
    """Return a dataset as a data source of Earth2Studio; one with lead times as a forecast source.

    Called as ``ds.insitu.to("earth2studio", lexicon=...)``.

    Parameters
    ----------
    ds : Dataset
        The dataset.
    lexicon, **options
        As for `InSituDataSource`.

    Raises
    ------
    InsituError
        As for `InSituDataSource`.
    """
    made = InSituForecastSource if is_forecast(ds) else InSituDataSource
    return made(ds, lexicon, **options)
