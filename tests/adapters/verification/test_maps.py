"""Maps of scores, against the formulas written out over whole arrays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr.errors import CeilingError, RequestError
from insitu_xr_adapters.verification import score, score_plan
from tests.adapters.verification.cases import Shape, climatology, counting, distinct, forecast, reference, stored
from tests.adapters.verification.test_counts import data_gets

SHAPE = Shape(inits=7, leads=4, members=3)
METRICS = ["rmse", "bias", "acc", "crps", "rank_histogram"]
ASKED: dict[str, Any] = {"metrics": METRICS, "variables": ["t"], "dim": "init_time"}


def matched(ours: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Forecast, reference and climatology at its valid times, in double precision."""
    f = ours["t"].astype("f8")
    valid = f.init_time + f.lead_time
    o = reference(SHAPE)["t"].sel(time=valid).drop_vars("time").astype("f8")
    c = climatology()["t"].sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour).astype("f8")
    return f, o, c.drop_vars(["dayofyear", "hour"])


def expected(ours: xr.Dataset) -> dict[str, xr.DataArray]:
    """The scores of every point; missing values do not count."""
    f, o, c = matched(ours)
    f, o = f.where(o.notnull() & f.notnull().all("number")), o.where(f.notnull().all("number"))
    mean, members = f.mean("number", skipna=False), SHAPE.members
    c = c.where(mean.notnull())
    a, b = mean - c, o - c
    apart = abs(f - f.rename(number="other")).sum(["number", "other"], skipna=False) / (members * (members - 1))
    return {
        "rmse": ((mean - o) ** 2).mean("init_time") ** 0.5,
        "bias": (mean - o).mean("init_time"),
        "acc": (a * b).mean("init_time") / ((a**2).mean("init_time") * (b**2).mean("init_time")) ** 0.5,
        "crps": (abs(f - o).mean("number", skipna=False) - apart / 2).mean("init_time"),
    }


def assert_as_expected(scores: xr.Dataset, ours: xr.Dataset) -> None:
    assert scores["t"].dims == ("metric", "lead_time", "level", "latitude", "longitude")
    for name, values in expected(ours).items():
        wanted = values.transpose("lead_time", "level", "latitude", "longitude").sortby("latitude")
        np.testing.assert_allclose(scores["t"].sel(metric=name), wanted, rtol=1e-5, atol=2e-6, err_msg=name)
        np.testing.assert_array_equal(scores["latitude"], wanted["latitude"])


@pytest.mark.parametrize(("layout", "memory", "bands"), [("step", "4MiB", 1), ("deep", "700KiB", 4), ("deep", None, 1)])
def test_maps_have_the_bits_of_whole_arrays(layout: str, memory: str | None, bands: int) -> None:
    ours, truth, clim = (
        counting(d[["t"]], r, layout)
        for d, r in ((forecast(SHAPE), "forecast"), (reference(SHAPE), "reference"), (climatology(), "climatology"))
    )
    asked = {**ASKED, "climatology": clim[0], "memory": memory}
    plan = score_plan(ours[0], truth[0], **asked)
    assert len(plan.sweep.bands) == bands
    assert memory is None or plan.peak_bytes <= plan.ceiling
    ours[1].reset()
    scores = score(ours[0], truth[0], **asked)
    gets = data_gets(ours[1])
    assert len(set(gets)) == distinct(ours[0], ours[1])
    assert len(gets) == len(set(gets)) + 2 * bands  # one block of each band is read both ways
    assert_as_expected(scores, forecast(SHAPE))
    whole = score(forecast(SHAPE), reference(SHAPE), climatology=climatology(), **ASKED)
    for name in whole.data_vars:
        np.testing.assert_array_equal(scores[name], whole[name], str(name))
    assert scores["t__rank_histogram"].sizes["rank"] == SHAPE.members + 1
    np.testing.assert_allclose(scores["t__rank_histogram"].sum("rank"), 1)
    np.testing.assert_array_equal(scores["n_init"], SHAPE.inits)


def test_latitudes_that_descend_and_valid_times_that_lack() -> None:
    ours, truth = forecast(SHAPE, descending=True), reference(SHAPE).isel(time=slice(None, -2))
    scores = score(ours, truth, **{**ASKED, "metrics": ["bias"]})
    counts = scores["n_init"].values.tolist()
    assert counts[-1] < counts[0] == SHAPE.inits
    f, o, _ = matched(ours)
    error = (f.mean("number") - o).isel(init_time=slice(0, counts[-1]), lead_time=-1).mean("init_time")
    found = scores["t"].sel(metric="bias").isel(lead_time=-1)
    np.testing.assert_allclose(found, error.transpose(*found.dims).sortby("latitude"), atol=1e-5)


@pytest.mark.parametrize("nan", ["raise", "mask", "propagate"])
def test_missing_values(nan: str) -> None:
    ours = forecast(SHAPE)
    ours["t"][2, 1, 0, 1, 3, 5] = np.nan
    asked: dict[str, Any] = {**ASKED, "climatology": climatology(), "nan": nan}
    if nan == "raise":
        with pytest.raises(RequestError, match=r"forecast at model 'forecast', init time 2019-12-31T00.*lead time 6h"):
            score(ours, reference(SHAPE), **asked)
        return
    scores = score(ours, reference(SHAPE), **asked)
    point = {"lead_time": 1, "level": 1, "latitude": 3, "longitude": 5}
    if nan == "mask":
        assert_as_expected(scores, ours)
        assert int(scores["t__n_valid"].isel(point)) == SHAPE.inits - 1
    else:
        assert scores["t"].isel(point).isnull().all()
        assert int(scores["t"].isnull().sum()) == 4


def test_maps_are_drawn() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    scores = score(forecast(SHAPE), reference(SHAPE), **{**ASKED, "metrics": ["bias"]})
    draw: Any = scores.insitu.plot
    mesh = draw.map("bias", lead_time="6h", level=850).collections[0]
    np.testing.assert_array_equal(mesh.get_array(), scores["t"].sel(metric="bias", lead_time="6h", level=850))
    whole: Any = score(forecast(SHAPE), reference(SHAPE), variables=["t"]).insitu.plot
    with pytest.raises(RequestError, match='score with dim="init_time"'):
        whole.map("bias")


def test_several_models_and_baselines() -> None:
    both = {"a": forecast(SHAPE), "b": forecast(SHAPE, seed=8)}
    asked: dict[str, Any] = {**ASKED, "metrics": ["rmse", "crps"]}
    scores = score(both, reference(SHAPE), baselines="persistence", **asked)
    for name, ours in both.items():
        np.testing.assert_array_equal(scores["t"].sel(model=name), score(ours, reference(SHAPE), **asked)["t"])
    lead = scores["t"].sel(model="persistence", metric="rmse")
    assert float(lead.isel(lead_time=0).max()) == 0 < float(lead.isel(lead_time=1).min())
    assert scores["t"].sel(model="persistence", metric="crps").isnull().all()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"metrics": ["energy_score"]}, "made of means over init times to have a map, but got 'energy_score'"),
        ({"metrics": ["zonal_spectrum"]}, "made of means over init times to have a map, but got 'zonal_spectrum'"),
        ({"metrics": ["bias"], "regions": "wb2"}, "regions must be left out for a map of scores"),
        ({"metrics": ["bias"], "weights": "cos"}, "weights must be left out for a map of scores"),
        ({"metrics": ["bias"], "state": "kept.zarr"}, "state must be left out for a map of scores"),
        ({"metrics": ["bias"], "dim": "latitude"}, "dim must be ['init_time', 'latitude', 'longitude']"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_has_no_map_is_named(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError, match=re.escape(rule)):
        score(forecast(SHAPE), reference(SHAPE), **{**ASKED, **change})


def test_a_ceiling_that_does_not_hold_the_maps_is_refused() -> None:
    ours = xr.open_zarr(stored(forecast(SHAPE), "forecast", "step"), consolidated=False, chunks=None)
    with pytest.raises(CeilingError, match="memory must hold"):
        score(ours, reference(SHAPE), **{**ASKED, "metrics": ["rmse"], "memory": "100KiB"})
