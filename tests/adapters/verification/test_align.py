"""What belongs together, however it is named, ordered and wrapped."""

from __future__ import annotations

from collections.abc import Callable

import cftime
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr_adapters.verification import score
from insitu_xr_adapters.verification.align import Align, pair_times, roles_of
from insitu_xr_adapters.verification.times import Times, leads_of, times_of
from tests.adapters.verification.cases import Shape, forecast, reference
from tests.adapters.verification.test_bits import assert_same_bits

SHAPE = Shape(inits=4, leads=3)

FORECASTS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "weatherbench": lambda ds: ds.rename(init_time="time", lead_time="prediction_timedelta"),
    "cfgrib": lambda ds: ds.rename(init_time="time", lead_time="step", latitude="lat", longitude="lon"),
    "climpred": lambda ds: ds.rename(init_time="init", lead_time="lead").assign_coords(
        lead=("lead", np.arange(3) * 6, {"units": "hours"})
    ),
    "by standard name": lambda ds: ds.rename(init_time="a", lead_time="b").assign_coords(
        a=("a", ds.init_time.values, {"standard_name": "forecast_reference_time"}),
        b=("b", ds.lead_time.values, {"standard_name": "forecast_period"}),
    ),
    "longitude first": lambda ds: ds.transpose("longitude", "init_time", "latitude", "level", "lead_time"),
    "seconds": lambda ds: ds.assign_coords(lead_time=("lead_time", np.arange(3) * 21600.0, {"units": "seconds"})),
}

REFERENCES: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "descending latitudes": lambda ds: ds.isel(latitude=slice(None, None, -1)),
    "from -180": lambda ds: ds.assign_coords(longitude=(ds.longitude + 180) % 360 - 180).sortby("longitude"),
    "longitude first": lambda ds: ds.transpose("longitude", "latitude", ...),
    "more levels": lambda ds: xr.concat([ds.assign_coords(level=[300, 400]), ds], "level"),
    "another name of levels": lambda ds: ds.rename(level="pressure_level"),
    "times backwards": lambda ds: ds.isel(time=slice(None, None, -1)),
    "larger": lambda ds: xr.concat([ds.assign_coords(latitude=ds.latitude / 1000), ds], "latitude"),
    "single precision": lambda ds: ds.assign_coords(longitude=ds.longitude.astype("f4")),
}


@pytest.mark.parametrize("name", sorted(FORECASTS))
def test_forecasts_are_found_by_role(name: str) -> None:
    expected = score(forecast(SHAPE), reference(SHAPE))
    assert_same_bits(score(FORECASTS[name](forecast(SHAPE)), reference(SHAPE).rename(level="level")), expected)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_references_are_brought_onto_the_grid(name: str) -> None:
    expected = score(forecast(SHAPE), reference(SHAPE))
    assert_same_bits(score(forecast(SHAPE), REFERENCES[name](reference(SHAPE))), expected)


def test_the_order_of_latitudes_of_the_forecast_does_not_matter() -> None:
    ours = forecast(SHAPE)
    assert_same_bits(score(ours.isel(latitude=slice(None, None, -1)), reference(SHAPE)), score(ours, reference(SHAPE)))


def test_dimensions_can_be_named() -> None:
    odd = forecast(Shape(inits=4, leads=3, members=3)).rename(number="k")
    named = score(odd, reference(SHAPE), metrics=["crps"], dims={"member": "k"})
    assert_same_bits(named, score(odd.rename(k="number"), reference(SHAPE), metrics=["crps"]))


def test_a_dataset_of_times_alone_has_lead_time_0() -> None:
    truth = reference(SHAPE)
    scores = score(truth + 1, truth, metrics=["bias"])
    assert scores["lead_time"].values.tolist() == [0]
    np.testing.assert_allclose(scores["t"].values, 1, rtol=1e-5)


@pytest.mark.parametrize("calendar", ["360_day", "noleap"])
def test_other_calendars(calendar: str) -> None:
    ours, truth = forecast(SHAPE, start="2021-02-25"), reference(SHAPE, start="2021-02-25")
    dates = [cftime.datetime(2021, 2, 25, calendar=calendar) + np.timedelta64(6 * k, "h").item() for k in range(9)]
    ours = ours.assign_coords(init_time=dates[0:7:2])
    truth = truth.assign_coords(time=dates)
    scores = score(ours, truth, metrics=["rmse"])
    expected = score(forecast(SHAPE, start="2021-02-25"), reference(SHAPE, start="2021-02-25"), metrics=["rmse"])
    assert_same_bits(scores, expected)
    assert scores.insitu.state.each().init_time.values[0].calendar == calendar


def times(ticks: list[int]) -> Times:
    array = np.array(ticks, np.int64)
    return Times(array.astype("M8[us]"), array, "standard")


@settings(max_examples=25)
@given(
    inits=st.sets(st.integers(0, 12), min_size=1, max_size=5),
    leads=st.sets(st.integers(0, 6), min_size=1, max_size=4),
    valid=st.sets(st.integers(0, 18), min_size=1, max_size=12),
    align=st.sampled_from(["maximize", "same_init", "same_valid"]),
)
def test_pairs_are_those_that_a_plain_loop_finds(
    inits: set[int], leads: set[int], valid: set[int], align: Align
) -> None:
    have = {(i, k) for i in inits for k in leads if i + k in valid}
    if align == "same_init":
        have = {(i, k) for i, k in have if all((i, other) in have for other in leads)}
    if align == "same_valid":
        common = set.intersection(*[{i + k for i, k in have if k == other} for other in leads])
        have = {(i, k) for i, k in have if i + k in common}
    models = {"a": (times(sorted(inits)), times(sorted(leads)))}
    try:
        pairs = pair_times(models, {"b": times(sorted(valid))}, align)
    except ValueError:
        assert not have
        return
    rows, columns = np.nonzero(pairs.wanted)
    assert {(int(pairs.inits[r]), int(pairs.leads[c])) for r, c in zip(rows, columns, strict=True)} == have


def test_roles_say_what_is_lacking() -> None:
    with pytest.raises(ValueError, match="reference must have a dimension of latitude"):
        roles_of(xr.Dataset(coords={"time": [0], "lon": [0.0]}), "reference")
    with pytest.raises(ValueError, match="must be dates"):
        times_of(xr.Dataset(coords={"time": [0, 6]}), "time", "reference")
    with pytest.raises(ValueError, match="numbers with units"):
        leads_of(xr.Dataset(coords={"lead": ("lead", [0, 1], {"units": "months"})}), "lead", "forecast")
