"""Dates of every calendar as exact numbers: those of cftime itself."""

from __future__ import annotations

import cftime
import numpy as np
import pytest
import xarray as xr

from insitu_xr.geometry.times import label_axis

CALENDARS = [
    "standard",
    "gregorian",
    "proleptic_gregorian",
    "julian",
    "noleap",
    "365_day",
    "all_leap",
    "366_day",
    "360_day",
]


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize(
    ("start", "freq"), [("1580-01-01", "17h"), ("1969-12-25T03:20:11", "7h"), ("2000-02-25", "6h")]
)
def test_ticks(calendar: str, start: str, freq: str) -> None:
    dates = np.asarray(xr.date_range(start, periods=3000, freq=freq, calendar=calendar, use_cftime=True))
    expected = cftime.date2num(dates, "microseconds since 1970-01-01", calendar=calendar)
    axis = label_axis("time", dates, len(dates))
    np.testing.assert_array_equal(axis.ticks, np.asarray(expected, np.int64))
    assert np.unique(np.diff(axis.ticks)).tolist() == [int(freq[:-1]) * 3_600_000_000]


def test_microseconds_count() -> None:
    dates = np.array([cftime.datetime(2000, 2, 30, 23, 59, 59, 999_999, calendar="360_day")])
    expected = cftime.date2num(dates, "microseconds since 1970-01-01", calendar="360_day")
    assert label_axis("time", dates, 1).ticks.tolist() == [int(expected[0])]
