"""Fields of a climatology at valid times."""

from __future__ import annotations

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification import score
from insitu_xr_adapters.verification.climatology import Calendar
from tests.adapters.verification.cases import Shape, climatology, forecast, reference

SHAPE = Shape(inits=4, leads=3)


def microseconds(index: pd.DatetimeIndex) -> np.ndarray:
    return np.asarray(index.to_numpy().astype("M8[us]").astype(np.int64))


@pytest.mark.parametrize("hours", [[0, 6, 12, 18], [18, 12, 6, 0]])
def test_days_and_hours_are_those_of_pandas(hours: list[int]) -> None:
    ds = xr.Dataset(coords={"hour": hours, "dayofyear": np.arange(366, 0, -1)})
    index = pd.date_range("1999-12-30", "2001-01-02", freq="6h")
    days, of_day = Calendar.of(ds).positions(microseconds(index), "standard")
    assert ds["dayofyear"].values[days].tolist() == index.day_of_year.tolist()
    assert ds["hour"].values[of_day].tolist() == index.hour.tolist()


def test_months_and_other_calendars() -> None:
    months = Calendar.of(xr.Dataset(coords={"month": np.arange(1, 13)}))
    index = pd.date_range("2000-01-01", "2001-12-31", freq="D")
    assert (months.positions(microseconds(index), "standard")[0] + 1).tolist() == index.month.tolist()
    date = cftime.datetime(2001, 2, 30, calendar="360_day")
    ticks = np.array([cftime.date2num(date, "microseconds since 1970-01-01", "360_day")])
    days = Calendar.of(xr.Dataset(coords={"dayofyear": np.arange(1, 361)}))
    assert days.positions(ticks, "360_day")[0].tolist() == [59]


def anomalies(ours: xr.Dataset, truth: xr.Dataset, clim: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    valid = ours.init_time + ours.lead_time
    reference_at = truth["t"].sel(time=valid).astype("f8")
    return ours["t"].astype("f8") - clim, reference_at - clim


@pytest.mark.parametrize("kind", ["dayofyear and hour", "dayofyear", "month"])
def test_anomaly_correlation_is_that_of_xarray(kind: str) -> None:
    ours, truth, clim = forecast(SHAPE), reference(SHAPE), climatology()
    valid = ours.init_time + ours.lead_time
    if kind == "month":
        clim = xr.concat([clim.isel(dayofyear=k % 9, hour=0, drop=True) for k in range(12)], "month")
        clim = clim.assign_coords(month=np.arange(1, 13))
        at = clim["t"].sel(month=valid.dt.month)
    elif kind == "dayofyear":
        clim = clim.isel(hour=0, drop=True)
        at = clim["t"].sel(dayofyear=valid.dt.dayofyear)
    else:
        at = clim["t"].sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour)
    f, o = anomalies(ours, truth, at)
    weights = xr.DataArray(np.cos(np.deg2rad(truth.latitude.values)), {"latitude": truth.latitude})
    dims = ["init_time", "latitude", "longitude"]
    fo, ff, oo = (array.weighted(weights).mean(dims) for array in (f * o, f**2, o**2))
    expected = (fo / np.sqrt(ff * oo)).transpose("lead_time", "level")
    scores = score(ours, truth, metrics=["acc"], climatology=clim, weights="cos", variables=["t"])
    np.testing.assert_allclose(scores["t"].isel(metric=0, region=0).values, expected.values, rtol=1e-5)


def test_what_a_climatology_lacks_is_named() -> None:
    ours, truth, clim = forecast(SHAPE), reference(SHAPE), climatology()
    with pytest.raises(RequestError, match=r"got none for dayofyear 364, 365 \(valid at 2019-12-30"):
        score(ours, truth, metrics=["acc"], climatology=clim.isel(dayofyear=slice(0, 30)))
    with pytest.raises(RequestError, match="every hour of the valid times, but got none for hour 6"):
        score(ours, truth, metrics=["acc"], climatology=clim.sel(hour=[0, 12, 18]))
    with pytest.raises(RequestError, match=r"'t' \(mean\)"):
        score(ours, truth, metrics=["acc"], climatology=clim.drop_vars("t"))
    with pytest.raises(RequestError, match=r"'dayofyear'.*or 'month'"):
        score(ours, truth, metrics=["acc"], climatology=truth)
    named = clim.rename(t="t_mean", u="u_mean")
    xr.testing.assert_identical(
        score(ours, truth, metrics=["acc"], climatology=named), score(ours, truth, metrics=["acc"], climatology=clim)
    )
