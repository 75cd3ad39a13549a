"""Times of every kind of store, found exactly; or refused, with what to do."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr

from insitu_xr_adapters.earth2studio import InSituDataSource, InSituForecastSource
from tests.adapters.earth2studio.stores import STEP, analysis, forecast, hours, times

T2M = {"t2m": "2m_temperature"}


def replaced(labels: Any, dim: str = "time") -> xr.Dataset:
    """Fields at other times."""
    return analysis(len(labels))[["2m_temperature"]].assign_coords(time=labels).rename(time=dim)


def check(ds: xr.Dataset, when: Any, places: list[int]) -> None:
    """What is asked for is what lies at these places."""
    with InSituDataSource(ds, T2M, verbose=False) as source:
        np.testing.assert_array_equal(source(when, "t2m").values[:, 0], ds["2m_temperature"].values[places])


def test_irregular_and_unsorted_axes() -> None:
    labels = times(8)[[0, 3, 1, 7, 6]]
    check(replaced(labels), labels[[4, 0, 2, 4]], [4, 0, 2, 4])
    with InSituDataSource(replaced(labels), T2M) as source:
        assert source.time_step is None
        with pytest.raises(ValueError, match="5 labels at unequal steps, but got 2020-01-01T12:00"):
            source(times(3), "t2m")


@pytest.mark.parametrize("dim", ["valid_time", "init_time", "whatever"])
def test_names_of_the_dimension(dim: str) -> None:
    check(replaced(times(3), dim), times(2)[::-1], [1, 0])


def test_labels_that_occur_twice() -> None:
    ds = replaced(times(3)[[0, 1, 1, 2]])
    check(ds, times(3)[[0, 2]], [0, 3])
    with (
        InSituDataSource(ds, T2M) as source,
        pytest.raises(ValueError, match="several times; drop them with"),
    ):
        source(times(2), "t2m")


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_units_of_the_axis(unit: str) -> None:
    check(replaced(times(3).astype(f"M8[{unit}]")), times(2), [0, 1])


def test_years_that_nanoseconds_do_not_hold() -> None:
    labels = np.array(["3000-01-01", "3000-01-02"], "M8[s]")
    check(replaced(labels), labels[::-1], [1, 0])
    with InSituDataSource(replaced(labels), T2M, verbose=False) as source:
        assert source(labels, "t2m").time.dtype == "M8[us]"
        assert not source.available("2000-01-01")


@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian", "noleap"])
def test_calendars_of_cftime(calendar: str) -> None:
    labels = xr.date_range("2020-02-27", periods=4, freq="D", calendar=calendar, use_cftime=True).values
    ds = replaced(labels)
    assert ds.time.dtype.kind == "O"
    check(ds, np.array(["2020-03-01", "2020-02-27"], "M8[ns]"), [2 if calendar == "noleap" else 3, 0])
    with InSituDataSource(ds, T2M) as source:
        assert source.available("2020-02-29") == (calendar != "noleap")


@pytest.mark.parametrize(("calendar", "year"), [("360_day", 2000), ("julian", 2000), ("standard", 1500)])
def test_calendars_that_are_refused(calendar: str, year: int) -> None:
    labels = np.array([cftime.datetime(year, 1, day, calendar=calendar) for day in (1, 2)])
    with pytest.raises(ValueError, match=rf"calendar is '{calendar}'.*ds.convert_calendar\('standard', dim='time'"):
        InSituDataSource(replaced(labels), T2M)


def test_times_that_were_not_decoded() -> None:
    with pytest.raises(ValueError, match="decode_times=True"):
        InSituDataSource(replaced([0, 6, 12]), T2M)


@pytest.mark.parametrize(("dim", "units"), [("step", None), ("lead_time", "hours"), ("fhr", "hours")])
def test_lead_times(dim: str, units: str | None) -> None:
    ds = forecast().rename(prediction_timedelta=dim)
    if units:
        labels = ds[dim].values.astype("m8[h]").astype("f8")
        ds = ds.assign_coords({dim: (dim, labels, {"units": units, "standard_name": "forecast_period"})})
    with InSituForecastSource(ds, T2M, verbose=False) as source:
        found = source(times(1), hours(12, 6), "t2m")
        assert source.time_step == STEP
    np.testing.assert_array_equal(found.values[0, :, 0], ds["2m_temperature"].values[0, [2, 1]])


def test_lead_times_without_units_are_refused() -> None:
    ds = forecast().assign_coords(prediction_timedelta=[0, 6, 12, 18, 24, 30])
    with pytest.raises(ValueError, match="decode_timedelta=True"):
        InSituForecastSource(ds, T2M)
