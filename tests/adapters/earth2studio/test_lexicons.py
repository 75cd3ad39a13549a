"""Where variables are: lexicons of Earth2Studio, dicts, and the metadata of stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr_adapters.earth2studio import InSituDataSource
from tests.adapters.earth2studio.stores import LAT, LEVELS, LON, analysis, hours, times, written


def dataset(**variables: Any) -> xr.Dataset:
    """Fields of ones with attributes; a fourth entry is the levels."""
    made = {}
    for name, (attrs, *levels) in variables.items():
        dims = ("time", *(["level"] if levels else []), "lat", "lon")
        shape = (2, *([len(levels[0])] if levels else []), 13, 24)
        made[name] = (dims, np.ones(shape, "f4"), attrs)
    found = next((levels[0] for _, *levels in variables.values() if levels), None)
    coords = {"time": times(2), "lat": LAT, "lon": LON, **({} if found is None else {"level": list(found)})}
    return xr.Dataset(made, coords)


def value(ds: xr.Dataset, variable: str, lexicon: Any = "auto", **options: Any) -> float:
    """The one value of a variable."""
    with InSituDataSource(ds, lexicon, verbose=False, **options) as source:
        found = np.unique(source(times(1), variable))
    assert found.dtype == np.float32
    assert len(found) == 1
    return float(found[0])


@pytest.mark.parametrize("units", ["hPa", "Pa", "millibars", None])
@pytest.mark.parametrize("lexicon", ["auto", {"z500": "z::500", "t850": "t::850"}], ids=["auto", "dict"])
def test_levels_by_value(units: str | None, lexicon: Any) -> None:
    ds = analysis(3)[["geopotential", "temperature"]].rename(geopotential="z", temperature="t")
    values = ds.level.values * (100.0 if units == "Pa" else 1.0)
    opened, _ = written(ds.assign_coords(level=("level", values[::-1].astype("f4"), {"units": units} if units else {})))
    with InSituDataSource(opened, lexicon, verbose=False) as source:
        found = source(times(3), ["t850", "z500"])
    np.testing.assert_array_equal(found.values[:, 0], ds["t"].values[:, LEVELS[::-1].index(850)])
    np.testing.assert_array_equal(found.values[:, 1], ds["z"].values[:, LEVELS[::-1].index(500)])


def test_levels_in_pascals_without_units_are_refused_with_what_there_is() -> None:
    ds = dataset(z=({}, [50000.0, 85000.0]))
    message = r"\[50000.0, 85000.0\] \(without units\)"
    with InSituDataSource(ds, {"z500": "z::500"}) as source, pytest.raises(KeyError, match=message):
        source(times(1), "z500")


def test_a_level_that_was_selected_or_is_in_a_name() -> None:
    ds = analysis(3)
    one = ds[["geopotential"]].sel(level=500)
    with InSituDataSource(one, {"z500": "geopotential::500", "z850": "geopotential::850"}, verbose=False) as source:
        np.testing.assert_array_equal(source(times(1), "z500")[0, 0], one["geopotential"][0])
        with pytest.raises(KeyError, match="has 'level'"):
            source(times(1), "z850")
    for mixed in (ds.sel(level=500), ds.sel(level=[500])):  # the level is a coordinate of all variables, or of one
        with InSituDataSource(mixed, verbose=False) as source:
            assert {"t2m", "u10m", "msl", "z500"} <= set(source.variables)
            assert not {"z", "z850"} & set(source.variables)
    flat = one.rename(geopotential="geopotential_500").drop_vars("level")
    assert flat["geopotential_500"].dims == ("time", "latitude", "longitude")
    with InSituDataSource(flat, {"z500": "geopotential::500"}, verbose=False) as source:
        np.testing.assert_array_equal(source(times(1), "z500")[0, 0], one["geopotential"][0])
    channels = one.geopotential.drop_vars("level").expand_dims(variable=["z500"], axis=1).to_dataset(name="data")
    with InSituDataSource(channels, verbose=False) as source:
        np.testing.assert_array_equal(source(times(1), "z500")[0, 0], one["geopotential"][0])
        assert source.variables == ["z500"]


@pytest.mark.parametrize(
    ("name", "attrs", "variable", "expected"),
    [
        ("t2m", {}, "t2m", 1.0),
        ("VAR_2T", {"GRIB_paramId": 167, "units": "K"}, "t2m", 1.0),
        ("x", {"GRIB_shortName": "2t", "units": "degC"}, "t2m", 274.15),
        ("2m_temperature", {"units": "celsius"}, "t2m", 274.15),
        ("x", {"standard_name": "air_pressure_at_mean_sea_level", "units": "hPa"}, "msl", 100.0),
        ("tcc", {"units": "%"}, "tcc", 0.01),
        ("tp", {"units": "mm"}, "tp", 0.001),
        ("tp", {"units": "kg m**-2"}, "tp", 0.001),
        ("orog", {"units": "m"}, "z", 9.80665),
        ("u10", {"units": "m s**-1"}, "u10m", 1.0),
        ("refc", {"units": "dB"}, "refc", 1.0),
    ],
)
def test_metadata_of_single_levels(name: str, attrs: dict[str, Any], variable: str, expected: float) -> None:
    assert value(dataset(**{name: (attrs,), "other": ({},)}), variable) == np.float32(expected)


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"GRIB_paramId": 129, "units": "m**2 s**-2"}, 1.0),
        ({"GRIB_shortName": "gh", "units": "gpm"}, 9.80665),
        ({"standard_name": "geopotential_height", "units": "m"}, 9.80665),
        ({"standard_name": "geopotential", "units": "m^2/s^2"}, 1.0),
    ],
)
def test_metadata_on_levels(attrs: dict[str, Any], expected: float) -> None:
    assert value(dataset(x=(attrs, [500.0, 850.0])), "z500") == np.float32(expected)


def test_a_standard_name_needs_the_height() -> None:
    ds = dataset(tas_2=({"standard_name": "air_temperature"},))
    with InSituDataSource(ds) as source, pytest.raises(KeyError, match="no variable has its names"):
        source(times(1), "t2m")
    assert value(ds.assign_coords(height=((), 2.0, {"standard_name": "height"})), "t2m") == 1.0
    with InSituDataSource(ds.assign_coords(height=10.0)) as source, pytest.raises(KeyError):
        source(times(1), "t2m")
    at_level = ds.assign_coords(level=((), 500.0, {"units": "hPa"}))
    with InSituDataSource(at_level.rename(tas_2="2t")) as source, pytest.raises(KeyError):
        source(times(1), "t2m")
    assert value(at_level, "t500") == 1.0


def test_what_answers_alike_is_ambiguous() -> None:
    ds = dataset(a=({"GRIB_shortName": "2t"},), b=({"GRIB_shortName": "2t"},), c=({"GRIB_paramId": 167},))
    assert value(ds, "t2m") == 1.0  # the number is surer than the name
    with InSituDataSource(ds[["a", "b"]]) as source:
        assert source.variables == ["a", "b"]
        with pytest.raises(ValueError, match=r"\['a', 'b'\] answer to it alike; say which: lexicon=\{'t2m': 'a'"):
            source(times(1), "t2m")


def test_units_that_do_not_convert_are_refused() -> None:
    ds = dataset(**{"2t": ({"units": "furlong"},)})
    for lexicon in ("auto", {"t2m": "2t"}):
        with InSituDataSource(ds, lexicon) as source, pytest.raises(ValueError, match="give a function: lexicon="):
            source(times(1), "t2m")
    assert value(ds, "t2m", {"t2m": ("2t", lambda x: x * np.float64(7))}) == 7.0


def test_packed_integers_are_decoded_first() -> None:
    ds = analysis(4)
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    opened, _ = written(ds[["2m_temperature"]], {"time": 1}, {"2m_temperature": packing})
    with InSituDataSource(opened, {"t2m": "2m_temperature"}, verbose=False) as source:
        found = source(times(4), "t2m")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.values[:, 0], opened["2m_temperature"].values.astype("f4"))
    np.testing.assert_allclose(found.values[:, 0], ds["2m_temperature"], atol=0.006)


def hourly(count: int = 12) -> xr.Dataset:
    """Hourly precipitation, and something that is not summed."""
    ds = analysis(count)[["2m_temperature"]].assign_coords(time=times(count, step=hours(1)[0]))
    return ds.assign(total_precipitation=ds["2m_temperature"] / 1000)


@pytest.mark.parametrize(
    "lexicon", ["auto", {"tp06": "total_precipitation", "t2m": "2m_temperature"}], ids=["auto", "dict"]
)
def test_sums_over_the_last_hours(lexicon: Any) -> None:
    ds = hourly()
    opened, store = written(ds, {"time": 4})
    given: dict[str, Any] = {} if lexicon == "auto" else {"accumulations": {"tp06": "6h"}}
    when = ds.time.values[[7, 11, 7]]
    with InSituDataSource(opened, lexicon, verbose=False, **given) as source:
        plan = source.plan(when, variable=["t2m", "tp06"])
        store.reset()
        with plan:
            found = source(when, ["tp06", "t2m"])
        assert set(store.by_key().values()) == {1}
        stored = ds["total_precipitation"].values
        expected = [np.sum(stored[at - 5 : at + 1], axis=0) for at in (7, 11, 7)]
        np.testing.assert_array_equal(found.values[:, 0], expected)
        np.testing.assert_array_equal(found.values[:, 1], ds["2m_temperature"].values[[7, 11, 7]])
        with pytest.raises(ValueError, match="but got 2019-12-31T23:00"):
            source(ds.time.values[4], "tp06")


def test_sums_of_samples_that_leave_gaps_are_refused() -> None:
    ds = hourly().isel(time=slice(None, None, 3))
    lexicon = {"tp06": "total_precipitation"}
    message = r"accumulations=\{'tp06': \('6h', '3h'\)\}"
    with (
        InSituDataSource(ds, lexicon, accumulations={"tp06": "6h"}) as source,
        pytest.raises(ValueError, match=message),
    ):
        source(ds.time.values[3], "tp06")
    with InSituDataSource(ds, lexicon, accumulations={"tp06": ("6h", "3h")}, verbose=False) as source:
        expected = ds["total_precipitation"].values[2:4].sum(axis=0)
        np.testing.assert_array_equal(source(ds.time.values[3], "tp06")[0, 0], expected)
    with pytest.raises(ValueError, match="windows of whole steps, but got '90min'"):
        InSituDataSource(ds, lexicon, accumulations={"tp06": "90min"})


def test_statics_are_read_once_and_stand_at_every_time() -> None:
    ds = analysis()
    opened, store = written(ds, {"time": 5})
    with InSituDataSource(opened, {"lsm": "land_sea_mask", "t2m": "2m_temperature"}, verbose=False) as source:
        store.reset()
        for _ in range(3):
            found = source(times(4), ["lsm", "t2m"])
        assert store.by_key()["land_sea_mask/c/0/0"] == 1
    np.testing.assert_array_equal(found.values[:, 0], np.broadcast_to(ds["land_sea_mask"], (4, 13, 24)))


def test_members_of_an_ensemble() -> None:
    ds = xr.concat([analysis(2), analysis(2) + 1], "number").assign_coords(number=[0, 7])
    lexicon = {"t2m": "2m_temperature"}
    with pytest.raises(ValueError, match=r"member must be given.*give member=0"):
        InSituDataSource(ds, lexicon)
    with pytest.raises(ValueError, match=r"got 3; there are \[0, 7\]"):
        InSituDataSource(ds, lexicon, member=3)
    with InSituDataSource(ds, lexicon, member=7, verbose=False) as source:
        np.testing.assert_array_equal(source(times(1), "t2m")[0, 0], ds["2m_temperature"].sel(number=7)[0])
    with pytest.raises(ValueError, match="leave it out"):
        InSituDataSource(analysis(2), lexicon, member=1)


def test_lexicons_that_are_none() -> None:
    for given in (3, ["t2m"], object()):
        with pytest.raises(ValueError, match="lexicon must be 'auto'"):
            InSituDataSource(analysis(2), given)
