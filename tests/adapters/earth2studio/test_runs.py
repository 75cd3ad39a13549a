"""Unmodified workflows and wrappers of Earth2Studio: equal to the bit to plain xarray, and every chunk read once."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from insitu_xr_adapters.earth2studio import InSituDataSource, InSituForecastSource
from tests.adapters.earth2studio.stores import LAT, LON, VARIABLES, Plain, analysis, forecast, hours, times, written
from tests.adapters.earth2studio.studio import (
    DataReplay,
    DerivedVPD,
    DerivedWS,
    LaggedEnsemble,
    Persistence,
    TimeWindow,
    WB2Lexicon,
    ZarrBackend,
    Zero,
    acc,
    datasource_to_file,
    fetch_data,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Using a non-tuple sequence:UserWarning")

DOMAIN = OrderedDict(lat=LAT, lon=LON)
CHUNKS = {"time": 8}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARTH2STUDIO_CACHE", str(tmp_path))


class Both:
    """The source that reads in place, and plain xarray on the same store."""

    def __init__(self) -> None:
        self.ds, self.store = written(analysis(), CHUNKS)
        self.source = InSituDataSource(self.ds, WB2Lexicon, verbose=False)
        self.plain = Plain(self.ds, WB2Lexicon)
        self.store.reset()

    def chunks(self, variables: list[str], count: int) -> set[str]:
        """Keys of the chunks that the first ``count`` times of some variables are in."""
        names = {WB2Lexicon[name][0].split("::")[0] for name in variables}
        blocks = range(-(-count // CHUNKS["time"]))
        return {f"{n}/c/{b}/{'/'.join('0' * (self.ds[n].ndim - 1))}" for n in names for b in blocks}

    def assert_each_read_once(self, variables: list[str], count: int) -> None:
        assert self.store.by_key() == dict.fromkeys(self.chunks(variables, count), 1)


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.source.close()


def arrays(io: Any) -> dict[str, Any]:
    return {name: array[:] for name, array in io.root.arrays()}


def assert_same(found: Any, expected: Any) -> None:
    mine, theirs = arrays(found), arrays(expected)
    assert set(mine) == set(theirs)
    for name, values in theirs.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)
        assert mine[name].dtype == values.dtype


@pytest.mark.parametrize("history", [1, 2])
def test_deterministic(both: Both, history: int) -> None:
    def forecast_of(data: Any) -> Any:
        model = Persistence(VARIABLES, DOMAIN, history=history)
        return run.deterministic(times(6)[history - 1 :], 3, model, data, ZarrBackend(), verbose=False)

    expected = forecast_of(both.plain)
    leads = Persistence(VARIABLES, DOMAIN, history=history).input_coords()["lead_time"]
    plan = both.source.plan(times(6)[history - 1 :], leads, VARIABLES, order="lead_time")
    both.store.reset()
    with plan:
        found = forecast_of(both.source)
    both.assert_each_read_once(VARIABLES, 6)
    assert_same(found, expected)


@pytest.mark.parametrize("model", ["winds", "deficit"])
def test_diagnostic(both: Both, model: str) -> None:
    variables = ["u10m", "v10m"] if model == "winds" else ["t850", "r850"]
    ds = both.ds.assign({"10m_v_component_of_wind": both.ds["10m_u_component_of_wind"]})
    ds = ds.assign(relative_humidity=both.ds["temperature"])
    with InSituDataSource(ds, WB2Lexicon, verbose=False) as source:

        def diagnosed(data: Any) -> Any:
            dx = DerivedWS(levels=["10m"]) if model == "winds" else DerivedVPD(levels=[850])
            px = Persistence(variables, DOMAIN)
            io = ZarrBackend()
            return run.diagnostic(times(2), 2, px, dx, data, io, output_coords=DOMAIN, verbose=False)

        assert_same(diagnosed(source), diagnosed(Plain(ds, WB2Lexicon)))


def test_ensemble_of_lags(both: Both) -> None:
    lags, starts = hours(-12, -6, 0), times(6)[3:5]

    def forecast_of(data: Any) -> Any:
        perturbation = LaggedEnsemble(data, lags)
        model = Persistence(VARIABLES, DOMAIN)
        return run.ensemble(starts, 2, 3, model, data, ZarrBackend(), perturbation, verbose=False)

    expected = forecast_of(both.plain)
    plan = both.source.plan(starts, np.append(0, lags).astype("m8[ns]"), VARIABLES)
    both.store.reset()
    with plan:
        found = forecast_of(both.source)
    both.assert_each_read_once(VARIABLES, 5)
    assert_same(found, expected)


def test_an_ensemble_in_batches(both: Both) -> None:
    def forecast_of(data: Any) -> Any:
        model = Persistence(VARIABLES, DOMAIN)
        return run.ensemble(times(1), 1, 3, model, data, ZarrBackend(), Zero(), batch_size=2, verbose=False)

    assert_same(forecast_of(both.source), forecast_of(both.plain))


def test_replay_of_analyses_reads_each_chunk_once(both: Both) -> None:
    def replayed(data: Any) -> list[Any]:
        found = []
        for start in times(10)[::3]:
            io = ZarrBackend()
            model = DataReplay(data, VARIABLES, DOMAIN)
            found.append(run.deterministic([start], 6, model, data, io, verbose=False))
        return found

    expected = replayed(both.plain)
    plan = both.source.plan(times(10)[::3], hours(*range(0, 42, 6)), VARIABLES, memory="2MiB")
    both.store.reset()
    with plan:
        found = replayed(both.source)
    both.assert_each_read_once(VARIABLES, 16)
    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine, theirs)


def test_replay_of_forecasts() -> None:
    ds = forecast()
    opened, store = written(ds, {"time": 1, "prediction_timedelta": 3})
    lexicon = {"t2m": "2m_temperature", "z500": "geopotential::500"}
    with InSituForecastSource(opened, lexicon, verbose=False) as source:
        plan = source.plan(ds.time.values, variable=["t2m", "z500"])
        store.reset()
        with plan:
            io = run.deterministic(
                ds.time.values, 5, DataReplay(source, ["t2m", "z500"], DOMAIN), source, ZarrBackend(), verbose=False
            )
        assert set(store.by_key().values()) == {1}
        assert len(store.by_key()) == 2 * 4 * 2
    np.testing.assert_array_equal(io.root["t2m"][:], ds["2m_temperature"])
    np.testing.assert_array_equal(io.root["z500"][:], ds["geopotential"].sel(level=500))


def test_windows_of_times(both: Both) -> None:
    def windowed(data: Any) -> xr.DataArray:
        wrapper = TimeWindow(data, [dt.timedelta(hours=h) for h in (-6, 0, 6)], ["_m", "_t", "_p"])
        found: xr.DataArray = wrapper(
            times(4)[1:3].astype("M8[us]").astype(object).tolist(), ["t2m_m", "z500_p", "t2m_t"]
        )
        return found

    xr.testing.assert_equal(windowed(both.source), windowed(both.plain))


@pytest.mark.parametrize("interp", [False, True])
def test_fetch_data(both: Both, interp: bool) -> None:
    options: dict[str, Any] = {}
    if interp:
        options["interp_to"] = {"_lat": np.linspace(80, -80, 9), "_lon": np.linspace(10, 300, 7)}
        options["interp_method"] = "linear"
    request = {"time": times(3)[[2, 1]], "variable": np.array(VARIABLES), "lead_time": hours(0, -6)}
    x, coords = fetch_data(both.source, **request, **options)
    y, expected = fetch_data(both.plain, **request, **options)
    assert torch.equal(x, y)
    assert list(coords) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(coords[name], values)
        assert coords[name].dtype == values.dtype
    field = fetch_data(both.source, **request, legacy=False)
    xr.testing.assert_identical(field, fetch_data(both.plain, **request, legacy=False))


def test_a_tensor_has_the_memory_that_was_filled(both: Both) -> None:
    field = both.source(times(2), VARIABLES)
    tensor = torch.Tensor(field.values)
    assert tensor.data_ptr() == field.values.ctypes.data
    kept = tensor.clone()
    for _ in range(3):
        both.source(times(8), VARIABLES)
    assert torch.equal(tensor, kept)


def test_a_climatology_and_a_file(both: Both, tmp_path: Path) -> None:
    (_, coords), (x, _), (y, _) = (
        fetch_data(both.source, times(2) + lead, np.array(VARIABLES)) for lead in hours(0, 6, 12)
    )
    weights = torch.ones(len(LAT), len(LON))
    scored = [
        acc(["lat", "lon"], climatology=c, weights=weights)(x, coords, y, coords)[0] for c in (both.source, both.plain)
    ]
    assert torch.isfinite(scored[0]).all()
    assert torch.equal(*scored)
    path = str(tmp_path / "kept.zarr")
    options = {"consolidated": False}
    datasource_to_file(path, both.source, times(3), np.array(VARIABLES), backend="zarr", backend_kwargs=options)
    kept = xr.open_zarr(path, consolidated=False)["__xarray_dataarray_variable__"]
    np.testing.assert_array_equal(kept.values, both.plain(times(3), VARIABLES).values)
