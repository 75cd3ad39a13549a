"""Scores end to end: values against xarray, what is selected, and what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification import score, to_e2s, to_wb2
from insitu_xr_adapters.verification.align import Align
from insitu_xr_adapters.verification.metrics import RMSE, VectorRMSE
from tests.adapters.verification import golden
from tests.adapters.verification.cases import Shape, climatology, forecast, reference
from tests.adapters.verification.test_bits import assert_same_bits

SHAPE = Shape(inits=6, leads=4)
DIMS = ["init_time", "latitude", "longitude"]


def mean(array: xr.DataArray) -> xr.DataArray:
    weights = xr.DataArray(np.cos(np.deg2rad(array.latitude.values)), {"latitude": array.latitude})
    return array.weighted(weights).mean(DIMS).transpose("lead_time", "level")


def errors(ours: xr.Dataset, truth: xr.Dataset) -> xr.DataArray:
    found = ours["t"].astype("f8") - truth["t"].astype("f8").sel(time=ours.init_time + ours.lead_time)
    return xr.DataArray(found.drop_vars("time"))


def test_scores_are_those_of_xarray() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    scores = ours.insitu.score(truth, metrics=["rmse", "mae", "bias"], weights="cos", regions={"all": {}})
    error = errors(ours, truth)
    for metric, expected in (("rmse", mean(error**2) ** 0.5), ("mae", mean(abs(error))), ("bias", mean(error))):
        found = scores["t"].sel(metric=metric, region="all")
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-5, atol=1e-6)
    assert scores["t"].dims == ("metric", "region", "lead_time", "level")
    assert json.loads(scores["t"].attrs["metric_units"]) == {"rmse": "K", "mae": "K", "bias": "K"}
    assert scores["n_init"].values.tolist() == [6, 6, 6, 6]
    assert scores.attrs["weights"] == "cos"


def test_the_goldens_end_to_end() -> None:
    for ours, frozen in ((golden.deterministic(), golden.DETERMINISTIC), (golden.ensemble(), golden.ENSEMBLE)):
        scores = score(ours, golden.truth(), metrics=list(frozen), climatology=golden.climatology(), level=500)
        for metric, expected in frozen.items():
            found = scores["t"].sel(metric=metric).values.ravel()
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11, err_msg=metric)


@pytest.mark.parametrize(("school", "metric"), [("wb2", "acc_mean_of_ratios"), ("wbx", "acc"), ("wmo", "acc_centered")])
def test_conventions_end_to_end(school: Any, metric: str) -> None:
    asked: dict[str, Any] = {"metrics": ["acc"], "climatology": golden.climatology(), "level": 500}
    asked["weights"] = "area" if school == "wmo" else "auto"  # those that its frozen numbers were made with
    acc = score(golden.deterministic(), golden.truth(), convention=school, **asked)
    np.testing.assert_allclose(acc["t"].values.ravel(), golden.DETERMINISTIC[metric], rtol=1e-9)
    assert acc.attrs["convention"] == school


def test_the_wmo_weighs_with_the_cosine_of_latitudes() -> None:
    ours, truth, clim = (
        ds["t"].sel(level=500) for ds in (golden.deterministic(), golden.truth(), golden.climatology())
    )
    asked: dict[str, Any] = {"metrics": ["rmse", "acc"], "climatology": golden.climatology(), "level": 500}
    scores = score(golden.deterministic(), golden.truth(), convention="wmo", **asked)
    valid = ours.init_time + ours.lead_time
    o = truth.sel(time=valid).drop_vars("time")
    c = clim.sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour).drop_vars(["dayofyear", "hour"])
    cosines, dims = np.cos(np.deg2rad(ours.latitude)).clip(0), ["latitude", "longitude"]

    def mean(values: xr.DataArray) -> xr.DataArray:
        return xr.DataArray(values.weighted(cosines).mean(dims))

    a, b = (x - c - mean(x - c) for x in (ours, o))
    acc = (mean(a * b) / (mean(a**2) * mean(b**2)) ** 0.5).mean("init_time")
    rmse = mean((ours - o) ** 2).mean("init_time") ** 0.5
    for name, expected in (("acc", acc), ("rmse", rmse)):
        np.testing.assert_allclose(scores["t"].sel(metric=name).values.ravel(), expected, rtol=1e-12)
    assert scores.attrs["weights"] == "cos"


def test_statistics_on_tensors_agree() -> None:
    pytest.importorskip("torch")
    shape = Shape(inits=3, leads=2, members=4)
    asked: dict[str, Any] = {"metrics": ["rmse", "crps", "acc"], "climatology": climatology()}
    ours, truth = forecast(shape), reference(shape)
    tensors = score(ours, truth, device="cpu", **asked)
    np.testing.assert_allclose(tensors["t"].values, score(ours, truth, **asked)["t"].values, rtol=1e-6)


def test_results_can_be_written_as_netcdf(tmp_path: Path) -> None:
    scores = score({"a": forecast(SHAPE), "b": forecast(SHAPE)}, reference(SHAPE))
    scores.to_netcdf(tmp_path / "scores.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "scores.nc", engine="h5netcdf", decode_timedelta=True) as again:
        np.testing.assert_array_equal(again["t"].values, scores["t"].values)
        assert again.attrs["forecast_a"] == "memory"


def test_lead_times_levels_and_variables_are_selected() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    whole = score(ours, truth)
    some = score(ours, truth, lead_time=slice("6h", "12h"), level=850, variables="t")
    assert list(some.data_vars) == ["t"]
    xr.testing.assert_equal(some["t"], whole["t"].isel(lead_time=[1, 2]).sel(level=[850]))
    xr.testing.assert_equal(score(ours, truth, lead_time="6h")["u"], whole["u"].isel(lead_time=[1]))
    xr.testing.assert_equal(
        score(ours, truth, lead_time=slice(None, None, "12h"))["t"], whole["t"].isel(lead_time=slice(None, None, 2))
    )


def test_alignments_count_their_init_times() -> None:
    shape = Shape(inits=6, leads=3, step=12, every=12)
    ours, truth = forecast(shape), reference(shape).isel(time=slice(0, 5))
    several: tuple[Align, ...] = ("maximize", "same_init", "same_valid")
    counts = {how: score(ours, truth, align=how)["n_init"].values.tolist() for how in several}
    assert counts == {"maximize": [5, 4, 3], "same_init": [3, 3, 3], "same_valid": [3, 3, 3]}
    short = score(ours.isel(init_time=slice(0, 3)), truth)
    xr.testing.assert_equal(score(ours, truth, align="same_init")["t"], short["t"])
    common = score(ours, truth, align="same_valid")["t"].isel(lead_time=2)
    xr.testing.assert_equal(common, short["t"].isel(lead_time=2))
    assert not common.equals(short["t"].isel(lead_time=0))


def test_several_references_and_models_at_once() -> None:
    ours, truth, other = forecast(SHAPE), reference(SHAPE), reference(SHAPE, seed=7)
    both = score({"a": ours, "b": ours + 1}, {"era5": truth, "analysis": other}, metrics=["bias"])
    assert both["t"].dims == ("metric", "region", "lead_time", "level", "reference", "model")
    assert_same_bits(both.sel(model="a", reference="analysis"), score(ours, other, metrics=["bias"]))
    difference = both["t"].sel(model="b") - both["t"].sel(model="a")
    np.testing.assert_allclose(difference.values, 1, rtol=1e-4)


def test_models_are_scored_on_what_they_have_in_common() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    both = score({"a": ours, "b": ours.isel(init_time=slice(2, None), lead_time=slice(0, 3))}, truth)
    assert both["n_init"].values.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(both["t"].sel(model="a").values, both["t"].sel(model="b").values)


def test_ensembles_beside_single_forecasts() -> None:
    truth = reference(SHAPE)
    models = {"five": forecast(Shape(6, 4, 5)), "three": forecast(Shape(6, 4, 3)), "one": forecast(SHAPE)}
    scores = score(models, truth, metrics=["rmse", "crps", "rank_histogram"])
    assert scores["t"].sel(model="one", metric="crps").isnull().all()
    assert scores["t"].sel(model="one", metric="rmse").notnull().all()
    assert scores["t__rank_histogram"].sizes["rank"] == 6
    assert scores["t__rank_histogram"].sel(model="three", rank=[4, 5]).isnull().all()
    alone = score(models["three"], truth, metrics=["rank_histogram"])
    np.testing.assert_array_equal(
        scores["t__rank_histogram"].sel(model="three", rank=slice(0, 3)).values, alone["t__rank_histogram"].values
    )


def test_vectors_and_labels_of_ones_own() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    scores = score(ours, truth, metrics=["mse", VectorRMSE(variables=("t", "u"), output="wind"), RMSE(label="root")])
    both = (scores["t"].sel(metric="mse") + scores["u"].sel(metric="mse")) ** 0.5
    np.testing.assert_allclose(scores["wind"].sel(metric="vector_rmse").values, both.values, rtol=1e-12)
    assert "root" in scores["metric"].values


def test_missing_values() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    truth["t"][3, 0, 2, 5] = np.nan
    with pytest.raises(
        RequestError, match=r"'t'.*missing.*reference.*init time.*lead time.*latitude -33.75, longitude 150"
    ):
        score(ours, truth)
    masked = score(ours, truth, nan="mask")
    assert int(masked["t__n_valid"].min()) < int(masked["t__n_valid"].max()) == 6 * 8 * 12
    assert masked["t"].notnull().all()
    assert score(ours, truth, nan="propagate")["t"].isnull().any()


def test_baselines() -> None:
    ours, truth, clim = forecast(SHAPE), reference(SHAPE), climatology()
    scores = score(ours, truth, metrics=["rmse"], climatology=clim, baselines=["persistence", "climatology"])
    persisting = truth.sel(time=ours.init_time.values).rename(time="init_time")
    persisting = persisting.expand_dims(lead_time=ours.lead_time, axis=1)
    np.testing.assert_array_equal(
        scores["t"].sel(model="persistence").values, score(persisting, truth, metrics=["rmse"])["t"].values
    )
    assert scores["t"].sel(model="climatology").notnull().all()


def test_init_times_are_kept_where_they_are_not_averaged() -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    each = score(ours, truth, metrics=["mse"], dim=("latitude", "longitude"))
    assert each["t"].dims == ("metric", "region", "init_time", "lead_time", "level")
    np.testing.assert_allclose(each["t"].mean("init_time").values, score(ours, truth, metrics=["mse"])["t"].values)
    with pytest.raises(RequestError, match="dim must be"):
        score(ours, truth, dim=("latitude",))


def test_two_models_are_compared() -> None:
    shape = Shape(inits=20, leads=2)
    ours, truth = forecast(shape), reference(shape)
    scores = score({"a": ours, "b": ours * np.float32(1.01)}, truth, metrics=["mse"], variables=["t"])
    for test in ("paired_t", "geer_ar2", "dm", "block_bootstrap"):
        found = scores.insitu.compare("a", "b", test=test)["t"].isel(metric=0, region=0)
        assert found.sel(result="n").values.ravel().tolist() == [20] * 4
        expected = scores["t"].sel(model="a") - scores["t"].sel(model="b")
        np.testing.assert_allclose(
            found.sel(result="difference").values, expected.isel(metric=0, region=0).values, rtol=1e-9
        )
        assert (found.sel(result="lower") < found.sel(result="upper")).all()
    with pytest.raises(RequestError, match=r"models to compare must be two of \['a', 'b'\], but got 'c'"):
        scores.insitu.compare("a", "c")


def test_exports_have_the_names_that_others_read() -> None:
    scores = score({"a": forecast(SHAPE), "b": forecast(SHAPE, seed=4)}, reference(SHAPE), metrics=["rmse", "mae"])
    theirs = to_wb2(scores, "b")
    assert theirs["t"].dims == ("metric", "region", "lead_time", "level")
    np.testing.assert_array_equal(theirs["t"].values, scores["t"].sel(model="b").values)
    recipe = scores.insitu.to_e2s(model="a")
    assert sorted(recipe.data_vars) == [
        "mae__t500",
        "mae__t850",
        "mae__u500",
        "mae__u850",
        "rmse__t500",
        "rmse__t850",
        "rmse__u500",
        "rmse__u850",
    ]
    assert recipe["rmse__t500"].dims == ("time", "lead_time")
    assert to_e2s(scores, "a").equals(recipe)


def test_figures_are_drawn() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    shape = Shape(inits=6, leads=4, members=3)
    models = {"a": forecast(shape), "b": forecast(shape, seed=6)}
    scores = score(models, reference(shape), metrics=["rmse", "spread", "rank_histogram"])
    draw: Any = scores.insitu.plot
    assert len(draw.skill("rmse", "t", dashed="spread", level=500, draws=20).get_lines()) >= 4
    draw.scorecard("a", "b")
    draw.heatmap("rmse", "u", model="b", level=850)
    draw.rank_histogram("t", lead_time="6h")
    with pytest.raises(RequestError, match="variable must be one of"):
        draw.skill("rmse", "z")
    with pytest.raises(RequestError, match="level must be one of"):
        draw.skill("rmse", "t", level=700)
    plt.close("all")
