"""Batches of a campaign: the same as Earth2Studio fetches one by one, every chunk read once, pairs ready to score."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from insitu_xr_adapters.earth2studio import (
    InSituDataSource,
    InSituForecastSource,
    compat,
    fetch_batches,
    verification_batches,
)
from tests.adapters.earth2studio.stores import (
    LAT,
    LON,
    STEP,
    VARIABLES,
    Plain,
    analysis,
    forecast,
    hours,
    times,
    written,
)
from tests.adapters.earth2studio.studio import WB2Lexicon, fetch_data, lat_weight, rmse

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")

BOTH = ["t2m", "z500"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARTH2STUDIO_CACHE", str(tmp_path))


@pytest.fixture(params=[8, 1], ids=["fat", "thin"])
def opened(request: pytest.FixtureRequest) -> Any:
    return written(analysis(20), {"time": request.param})


@pytest.fixture
def source(opened: Any) -> Iterator[InSituDataSource]:
    with InSituDataSource(opened[0], WB2Lexicon, verbose=False) as made:
        yield made


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_same_as_fetch_data(source: InSituDataSource, prefetch: int) -> None:
    when, leads = times(6)[[3, 1, 5, 2, 2]], hours(-6, 0)
    found = list(fetch_batches(source, when, VARIABLES, leads, batch_size=2, prefetch=prefetch))
    blocks = [when[:2], when[2:4], when[4:]]
    assert len(found) == len(blocks)
    for (x, coords), block in zip(found, blocks, strict=True):
        y, expected = fetch_data(source, block, np.array(VARIABLES), leads)
        assert torch.equal(x, y)
        assert list(coords) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(coords[name], values, strict=True)


def test_a_campaign_reads_each_chunk_once(opened: Any, source: InSituDataSource) -> None:
    ds, store = opened
    when, leads = times(12), hours(*range(0, 54, 6))
    batches = fetch_batches(source, when, VARIABLES, leads, batch_size=3, memory="4MiB")
    store.reset()
    plain = Plain(ds.load(), WB2Lexicon)
    store.reset()
    for k, (x, _) in enumerate(batches):
        valid = (when[3 * k : 3 * k + 3, None] + leads).ravel()
        np.testing.assert_array_equal(x.numpy().reshape(-1, *x.shape[2:]), plain(valid, VARIABLES))
    per_variable = {8: 3, 1: 20}[ds["2m_temperature"].encoding["chunks"][0]]
    assert len(store.by_key()) == 4 * per_variable
    assert set(store.by_key().values()) == {1}


def test_other_sources_and_shapes(source: InSituDataSource, opened: Any) -> None:
    plain = Plain(opened[0], WB2Lexicon)
    request = (times(3), VARIABLES, hours(0, 6))
    for (x, _), (y, _) in zip(fetch_batches(source, *request), fetch_batches(plain, *request), strict=True):
        assert torch.equal(x, y)
    for field, other in zip(
        fetch_batches(source, *request, legacy=False), fetch_batches(plain, *request, legacy=False), strict=True
    ):
        assert isinstance(field, xr.DataArray)
        xr.testing.assert_identical(field, other)
    grid = {"_lat": np.linspace(80, -80, 9), "_lon": np.linspace(10, 300, 7)}
    x, coords = next(iter(fetch_batches(source, *request, interp_to=grid, interp_method="linear")))
    y, _ = fetch_data(source, times(1), np.array(VARIABLES), hours(0, 6), interp_to=grid, interp_method="linear")
    assert torch.equal(x, y)
    assert list(coords)[-2:] == ["_lat", "_lon"]


def test_leaving_early_ends_everything(source: InSituDataSource) -> None:
    batches: Any = fetch_batches(source, times(12), VARIABLES, prefetch=3)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("insitu-batches")]
    assert source(times(1), "t2m").shape == (1, 1, 13, 24)


def test_errors_come_at_once(source: InSituDataSource) -> None:
    with pytest.raises(KeyError, match="got 'nothing'"):
        fetch_batches(source, times(3), ["nothing"])
    with pytest.raises(ValueError, match="but got 2020-01-06T00:00"):
        fetch_batches(source, times(20), ["t2m"], hours(0, 6))
    for name in ("batch_size", "prefetch"):
        with pytest.raises(ValueError, match=f"{name} must be a number"):
            fetch_batches(source, times(3), ["t2m"], **{name: -1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="legacy=True"):
        fetch_batches(source, times(3), ["t2m"], legacy=False, interp_to={})
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda'"):
        list(fetch_batches(source, times(3), ["t2m"], legacy=False, device="meta"))


def test_pairs_to_score(opened: Any, source: InSituDataSource) -> None:
    ds = forecast()
    stored, store = written(ds, {"time": 1, "prediction_timedelta": 2})
    lexicon = {"t2m": "2m_temperature", "z500": "geopotential::500"}
    leads = hours(0, 12, 24)
    metric = rmse(["lat", "lon"], weights=lat_weight(torch.as_tensor(LAT)).unsqueeze(1).repeat(1, len(LON)))
    scores = []
    with InSituForecastSource(stored, lexicon, verbose=False) as forecasts:
        pairs = verification_batches(forecasts, source, ds.time.values, leads, BOTH, batch_size=3)
        for made in (store, opened[1]):
            made.reset()
        for (x, xc), (y, yc) in pairs:
            assert list(xc) == list(yc) == ["time", "lead_time", "variable", "lat", "lon"]
            assert all(xc[name] is yc[name] for name in xc)
            scores.append(metric(x, xc, y, yc)[0])
    assert set(store.by_key().values()) == set(opened[1].by_key().values()) == {1}
    truth = Plain(opened[0], WB2Lexicon)
    weights = lat_weight(torch.as_tensor(LAT)).numpy()[:, None]
    for at, when in enumerate(ds.time.values):
        for k, lead in enumerate(leads):
            chosen = ds.sel(time=when, prediction_timedelta=lead)
            fields = np.stack([chosen["2m_temperature"], chosen["geopotential"].sel(level=500)])
            error = (fields - truth(when + lead, BOTH).values[0]).astype("f8") ** 2
            expected = np.sqrt((error * weights).mean(axis=(1, 2)) / weights.mean())
            np.testing.assert_allclose(torch.cat(scores)[at, k], expected, rtol=1e-5)


def test_references_on_other_grids() -> None:
    lexicon = {"t2m": "2m_temperature"}
    with InSituForecastSource(forecast(lat=LAT[:-1]), lexicon) as fewer, InSituDataSource(analysis(), lexicon) as every:
        (x, _), (y, yc) = next(verification_batches(fewer, every, times(1), hours(0, 6), "t2m"))
        assert x.shape == y.shape == (1, 2, 1, 12, 24)
        np.testing.assert_array_equal(yc["lat"], LAT[:-1])
        np.testing.assert_array_equal(y[0, :, 0], analysis()["2m_temperature"][:2, :-1])
    other = forecast(lat=LAT[:-1] - 1)
    with InSituForecastSource(other, lexicon) as shifted, InSituDataSource(analysis(), lexicon) as every:
        pairs = verification_batches(shifted, every, times(1), hours(0), "t2m")
        with pytest.raises(ValueError, match=r"lacks points of the forecast in \['lat'\]"):
            next(pairs)


def fetch_as_in_1_0(
    source: Any,
    time: Any,
    variable: Any,
    lead_time: Any = None,
    device: str = "cpu",
    target_grid: Any = None,
    regridder: str = "nearest",
    delta_t: Any = None,
) -> xr.DataArray:
    """The contract of 1.0, as it is published: one call for the union of the samples of a statistic."""
    leads = hours(0) if lead_time is None else lead_time
    made = []
    for label in variable:
        base, _, modifier = str(label).partition(":")
        if not modifier:
            fields = [source(time + lead, [base]) for lead in leads]
            made.append(np.stack([field.values for field in fields], axis=1))
            continue
        kind, window = modifier.split(":")
        step = source.time_step if delta_t is None else delta_t
        offsets = np.arange(-np.timedelta64(int(window[:-1]), "h").astype("m8[ns]"), np.timedelta64(0, "ns"), step)
        wanted = time[:, None, None] + leads[:, None] + offsets
        union = np.unique(wanted)
        field = source(union, [base])
        samples = field.values[np.searchsorted(union, wanted)]
        made.append(getattr(samples, kind)(axis=2))
    spatial = source(time[:1], [str(variable[0]).partition(":")[0]]).coords
    return xr.DataArray(
        np.concatenate(made, axis=2),
        {
            "time": time,
            "lead_time": leads,
            "variable": np.array(variable),
            "lat": spatial["lat"],
            "lon": spatial["lon"],
        },
        ("time", "lead_time", "variable", "lat", "lon"),
    )


def test_the_contract_of_1_0(source: InSituDataSource, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compat.exchanges_arrays(fetch_as_in_1_0)
    assert not compat.exchanges_arrays(fetch_data)
    labels = np.array(["t2m", "t2m:mean:24h", "z500:sum:12h"])
    field = fetch_as_in_1_0(source, times(8)[6:], labels, hours(0, 6))
    ds = opened[0]
    assert source.time_step == STEP
    assert field.dtype == np.float32
    assert field.time.dtype == "M8[ns]"
    at = 7 + 1
    t2m, z500 = ds["2m_temperature"].values, ds["geopotential"].sel(level=500).values
    np.testing.assert_array_equal(field[1, 1, 0], t2m[at])
    np.testing.assert_allclose(field[1, 1, 1], t2m[at - 4 : at].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(field[1, 1, 2], z500[at - 2 : at].sum(axis=0), rtol=1e-4)
    monkeypatch.setattr(compat, "fetch_data", lambda: fetch_as_in_1_0)
    made = list(fetch_batches(source, times(2), BOTH, hours(0, 6)))
    assert all(isinstance(one, xr.DataArray) for one in made)
    plain = list(fetch_batches(Plain(ds, WB2Lexicon), times(2), BOTH, hours(0, 6)))
    for one, other in zip(made, plain, strict=True):
        xr.testing.assert_equal(one, other)
