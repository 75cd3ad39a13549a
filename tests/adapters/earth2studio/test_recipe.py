"""What Earth2Studio asks of every data source, in the order of its own recipe."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from insitu_xr_adapters.earth2studio import InSituDataSource, InSituForecastSource, to_earth2studio
from tests.adapters.earth2studio.stores import STEP, VARIABLES, Plain, analysis, forecast, hours, times, written
from tests.adapters.earth2studio.studio import DataSource, ForecastSource, WB2Lexicon

FORECAST = {"t2m": "2m_temperature", "z500": "geopotential::500"}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EARTH2STUDIO_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def opened() -> xr.Dataset:
    return written(analysis(), {"time": 5})[0]


@pytest.fixture
def source(opened: xr.Dataset) -> Iterator[InSituDataSource]:
    with InSituDataSource(opened, WB2Lexicon, verbose=False) as made:
        yield made


@pytest.mark.parametrize(
    "time",
    [
        dt.datetime(2020, 1, 2, 6),
        dt.datetime(2020, 1, 2, 8, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 3)],
        np.array(["2020-01-03T06", "2020-01-01T00", "2020-01-03T06"], "M8[h]"),
        [np.datetime64("2020-01-02T18")],
        (pd.Timestamp("2020-01-02"),),
        pd.date_range("2020-01-01", periods=3, freq="12h"),
        "2020-01-02T12",
    ],
    ids=["one", "aware", "list", "unsorted", "datetime64", "tuple", "index", "text"],
)
@pytest.mark.parametrize("variable", ["z500", np.array(["t2m", "lsm", "z500", "t2m"])], ids=["one", "several"])
def test_fetch(source: InSituDataSource, opened: xr.Dataset, time: Any, variable: Any) -> None:
    found = source(time, variable)
    naive = pd.DatetimeIndex([pd.Timestamp(t) for t in ([time] if np.ndim(time) == 0 else time)])
    naive = naive.tz_convert("UTC").tz_localize(None) if naive.tz is not None else naive
    expected = Plain(opened, WB2Lexicon)(naive.values, variable)
    xr.testing.assert_identical(found.drop_vars("time"), expected.drop_vars("time"))
    assert found.time.dtype == "M8[ns]"
    assert (found.time.values == naive.values).all()
    assert found.dtype == np.float32
    assert found.values.flags.c_contiguous
    assert found.values.flags.writeable
    assert not np.isnan(found.values).any()


@pytest.mark.parametrize("cache", [True, False])
def test_cache(opened: xr.Dataset, directory: Path, cache: bool) -> None:
    with InSituDataSource(opened, WB2Lexicon, cache=cache, verbose=False) as source:
        source(times(1), "t2m")
        assert Path(source.cache).is_dir() == cache
        assert Path(source.cache).is_relative_to(directory / "insitu")
        asyncio.run(source.fetch(times(1), "t2m"))
        assert Path(source.cache).is_dir() == cache


def test_a_call_and_fetch_agree(source: InSituDataSource) -> None:
    called = source(times(3), VARIABLES)
    xr.testing.assert_identical(asyncio.run(source.fetch(times(3), VARIABLES)), called)


def test_exceptions_come_before_any_read() -> None:
    ds, store = written(analysis(), {"time": 5})
    with InSituDataSource(ds, WB2Lexicon) as source:
        store.reset()
        with pytest.raises(KeyError, match=r"got 'q500' \(the dataset has no 'specific_humidity'\); it has \[lsm, msl"):
            source(times(1), ["t2m", "q500"])
        with pytest.raises(KeyError, match=r"got 'z700' \('geopotential' has 'level' \[50, 500, 850, 1000\] \(hPa\)\)"):
            source(times(1), "z700")
        with pytest.raises(KeyError, match="got 'nothing'"):
            source(times(1), "nothing")
        wrong = r"2020-01-01T00:00 to 2020-01-05T18:00, every 6h, but got 2019-12-31T18:00; ask source.available"
        with pytest.raises(ValueError, match=wrong):
            source(np.append(times(1), times(1) - STEP), "t2m")
        with pytest.raises(ValueError, match="but got 2020-01-01T03:00"):
            source(dt.datetime(2020, 1, 1, 3), ["lsm"])
        with pytest.raises(ValueError, match="but got NaT"):
            source(np.datetime64("NaT", "ns"), "t2m")
        with pytest.raises(ValueError, match="time must be dates"):
            source("yesterday", "t2m")
        with pytest.raises(ValueError, match="but got none"):
            source(times(1), [])
        with pytest.raises(ValueError, match="but got 2020-01-06"), source.plan(times(20), hours(0, 6), "t2m"):
            pass
    assert not store.data_gets


def test_available(source: InSituDataSource) -> None:
    assert source.available(dt.datetime(2020, 1, 1, 6))
    assert source.available(np.datetime64("2020-01-05T18"))
    assert source.available(times(3))
    assert not source.available(np.datetime64("2020-01-06T00"))
    assert not source.available(dt.datetime(2020, 1, 1, 7))
    assert not source.available(np.datetime64("NaT", "ns"))


def test_protocols_and_what_recipes_look_up(source: InSituDataSource) -> None:
    assert isinstance(source, DataSource)
    assert source.time_step == STEP
    assert {"t2m", "u10m", "msl", "lsm", "z50", "v1000"} <= set(source.variables)
    assert "q500" not in source.variables
    template = source._da
    assert (template.coords["time"].values == times(20)).all()
    assert template.dims == ("time", "variable", "lat", "lon")
    assert "every 6h" in repr(source)


def test_a_forecast_source() -> None:
    ds = forecast()
    opened, store = written(ds, {"time": 1, "prediction_timedelta": 3})
    with to_earth2studio(opened, FORECAST, verbose=False) as source:
        assert isinstance(source, InSituForecastSource)
        assert isinstance(source, ForecastSource)
        assert source.time_step == STEP
        when, leads = ds.time.values[[2, 0, 2]], hours(12, 0)
        found = source(when, leads, ["z500", "t2m"])
        assert found.dims == ("time", "lead_time", "variable", "lat", "lon")
        assert (found.time.dtype, found.lead_time.dtype, found.dtype) == ("M8[ns]", "m8[ns]", np.float32)
        chosen = ds.sel(time=when, prediction_timedelta=leads)
        np.testing.assert_array_equal(found.sel(variable="t2m"), chosen["2m_temperature"])
        np.testing.assert_array_equal(found.sel(variable="z500"), chosen["geopotential"].sel(level=500))
        xr.testing.assert_identical(asyncio.run(source.fetch(when, leads, ["z500", "t2m"])), found)
        assert source(dt.datetime(2020, 1, 1), dt.timedelta(hours=6), "t2m").shape == (1, 1, 1, 13, 24)
        assert source._da.dims == ("time", "lead_time", "variable", "lat", "lon")
        store.reset()
        with pytest.raises(ValueError, match=r"lead_time must be on the axis 'prediction_timedelta'.* but got 36h"):
            source(when, hours(36), "t2m")
        with pytest.raises(ValueError, match="but got 2020-01-01T06:00"):
            source(times(2), hours(0), "t2m")
        assert not store.data_gets


def test_the_wrong_class_says_which_is_right() -> None:
    with pytest.raises(ValueError, match="use InSituForecastSource"):
        InSituDataSource(forecast(), FORECAST)
    with pytest.raises(ValueError, match="use InSituDataSource"):
        InSituForecastSource(analysis(), FORECAST)
    with InSituDataSource(forecast().isel(prediction_timedelta=[0]), FORECAST) as source:
        assert source(times(1), "t2m").dims == ("time", "variable", "lat", "lon")


def test_data_that_was_never_written_is_told() -> None:
    ds, _ = written(analysis(4), {"time": 1})
    ds["2m_temperature"].values[1] = np.nan
    ds = ds.load().assign({"2m_temperature": ds["2m_temperature"].where(ds.time != ds.time[1])})
    with InSituDataSource(ds, WB2Lexicon) as source:
        with pytest.warns(UserWarning, match="'t2m' at 2020-01-01T06:00 are missing at every point"):
            assert np.isnan(source(times(3), ["z500", "t2m"]).values[1, 1]).all()
        source(times(1), "t2m")
    with InSituDataSource(ds, WB2Lexicon, missing="raise") as source, pytest.raises(ValueError, match="missing at ev"):
        source(times(3), "t2m")
    with InSituDataSource(ds, WB2Lexicon, missing="ignore") as source:
        source(times(3), "t2m")
