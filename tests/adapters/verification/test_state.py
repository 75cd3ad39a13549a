"""Sums that are kept: resumed, appended, merged and put together anew without reading."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.errors import ReadError, RequestError
from insitu_xr.testing import CountingStore, FailingStore
from insitu_xr_adapters.verification import load, merge, score, score_plan
from insitu_xr_adapters.verification.storing import StateStore
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored
from tests.adapters.verification.test_bits import assert_same_bits

SHAPE = Shape(inits=10, leads=4)
ASKED: dict[str, Any] = {"metrics": ["rmse", "acc"], "regions": ["global", "tropics"], "variables": ["t"]}


def asked() -> dict[str, Any]:
    return {**ASKED, "climatology": climatology()}


def beyond(init: int, key: str) -> bool:
    """Whether a chunk is of an init time from a number on."""
    return key.startswith(("t/", "u/")) and int(key.split("/")[2]) >= init


@pytest.mark.parametrize(("layout", "memory"), [("step", "150KiB"), ("deep", "190KiB")])
def test_interrupted_again_and_again_and_resumed(tmp_path: Path, layout: str, memory: str) -> None:
    whole = score(forecast(SHAPE), reference(SHAPE), **asked())
    store = FailingStore(stored(forecast(SHAPE), "forecast", layout), error=PermissionError)
    store.fail(())
    ours = xr.open_zarr(store, consolidated=False, chunks=None)
    truth, clim = (
        xr.open_zarr(stored(d, r, layout), consolidated=False, chunks=None)
        for d, r in ((reference(SHAPE), "reference"), (climatology(), "climatology"))
    )
    options = {**ASKED, "climatology": clim, "memory": memory}
    plan = score_plan(ours, truth, **options)
    assert len(plan.sweep.pieces) * len(plan.sweep.bands) >= 8
    assert (len(plan.sweep.bands) > 1) is (layout == "deep")
    kept, stops = tmp_path / "scores.zarr", 0
    for stop in range(2, SHAPE.inits, 2):
        store.fail(partial(beyond, stop))
        with pytest.raises(ReadError):
            score(ours, truth, state=kept, resume=stops > 0, **options)
        stops += 1
    store.recover()
    scores = score(ours, truth, state=kept, resume=True, **options)
    assert stops == 4
    assert_same_bits(scores, whole)
    assert_same_bits(load(kept), whole)


def test_new_init_times_read_only_their_own_chunks(tmp_path: Path) -> None:
    counting = CountingStore(stored(forecast(SHAPE), "forecast", "step"))
    ours, truth = xr.open_zarr(counting, consolidated=False, chunks=None), reference(SHAPE)
    kept, done = tmp_path / "scores.zarr", 0
    for n in (1, 2, 3, 5, SHAPE.inits):
        counting.reset()
        scores = score(ours.isel(init_time=slice(0, n)), truth, state=kept, resume=n > 1, **asked())
        read = {int(g.key.split("/")[2]) for g in counting.data_gets if g.key.startswith(("t/", "u/"))}
        # One block of each variable is compared with what xarray reads: that of the first label.
        assert read - {0} == set(range(done, n)) - {0}
        done = n
    assert_same_bits(scores, score(forecast(SHAPE), truth, **asked()))
    counting.reset()
    again = score(ours, truth, state=kept, resume=True, **asked())
    assert not [g for g in counting.data_gets if g.key.startswith(("t/", "u/"))]
    assert_same_bits(again, scores)
    assert "0 chunks" in repr(score_plan(ours, truth, state=kept, resume=True, **asked()))


@given(st.permutations(["rmse", "bias", "acc"]), st.permutations(["t", "u"]), st.permutations(["a", "b"]))
@settings(max_examples=6, deadline=None)
def test_sums_add_up_in_whatever_order_they_were_asked_for(
    tmp_path_factory: pytest.TempPathFactory, metrics: list[str], variables: list[str], names: list[str]
) -> None:
    kept = tmp_path_factory.mktemp("kept") / "scores.zarr"
    ours, truth = {"a": forecast(SHAPE), "b": forecast(SHAPE) + 1}, {"a": reference(SHAPE), "b": reference(SHAPE) * 2}
    some = {n: d.isel(init_time=slice(0, 3)) for n, d in ours.items()}
    options: dict[str, Any] = {"climatology": climatology(), "regions": ["global"]}
    score(some, truth, state=kept, metrics=["rmse", "bias", "acc"], variables=["t", "u"], **options)
    permuted = [{n: d[n] for n in names} for d in (ours, truth)]
    scores = score(*permuted, state=kept, resume=True, metrics=metrics, variables=variables, **options)
    assert [*scores.data_vars][:2] == variables
    assert (scores["metric"].values.tolist(), scores["model"].values.tolist()) == (metrics, names)
    whole = score(ours, truth, metrics=metrics, **options)
    for variable in variables:
        found = scores[variable].sel(model=["a", "b"], reference=["a", "b"])
        np.testing.assert_array_equal(found.transpose(*whole[variable].dims).values, whole[variable].values)


def test_states_of_other_init_times_are_merged(tmp_path: Path) -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    first = score(ours.isel(init_time=slice(0, 4)), truth, state=tmp_path / "a.zarr", **asked())
    rest = score(ours.isel(init_time=slice(4, None)), truth, **asked())
    whole = score(ours, truth, **asked())
    assert_same_bits(merge([tmp_path / "a.zarr", rest]), whole)
    assert_same_bits(merge([rest, first]), whole)


def test_sums_of_another_request_are_refused(tmp_path: Path) -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    kept = tmp_path / "scores.zarr"
    score(ours, truth, state=kept, **asked())
    with pytest.raises(RequestError, match=r"state must be a new place.*resume=True"):
        score(ours, truth, state=kept, **asked())
    with pytest.raises(RequestError, match="same request, but got other statistics"):
        score(ours, truth, state=kept, resume=True, metrics=["mae"], variables=["t"])
    with pytest.raises(RequestError, match="other nan"):
        score(ours, truth, state=kept, resume=True, nan="mask", **asked())
    with pytest.raises(RequestError, match="other levels"):
        merge([kept, score(ours, truth, level=500, **asked())])
    with pytest.raises(RequestError, match="place with sums"):
        load(tmp_path / "nothing.zarr")
    with pytest.raises(RequestError, match="with state="):
        score(ours, truth, resume=True)


def test_scores_by_season_and_draw_need_no_reading(tmp_path: Path) -> None:
    shape = Shape(inits=8, leads=2, every=24 * 45, step=24 * 45)
    ours, truth = forecast(shape), reference(shape)
    kept = tmp_path / "scores.zarr"
    scores = score(ours, truth, metrics=["mse", "rmse"], state=kept)
    seasons = load(kept).insitu.state.by("season")
    winter = ours.isel(init_time=ours["init_time.season"].values == "DJF")
    xr.testing.assert_equal(seasons.sel(season="DJF", drop=True).t, score(winter, truth, metrics=["mse", "rmse"]).t)
    draws = scores.insitu.state.resampled(50, block=2, seed=1)
    assert draws.t.sizes["draw"] == 50
    spread = draws.t.sel(metric="mse").std("draw")
    assert float(spread.min()) > 0
    assert float(np.abs(draws.t.mean("draw") - scores.t).max()) < 4 * float(draws.t.std("draw").max())
    each = scores.insitu.state.each().t.sel(metric="mse").mean("init_time")
    np.testing.assert_allclose(each.values, scores.t.sel(metric="mse").values, rtol=1e-12)


def test_a_state_that_was_saved_goes_on(tmp_path: Path) -> None:
    ours, truth = forecast(SHAPE), reference(SHAPE)
    first = score(ours.isel(init_time=slice(0, 3)), truth, **asked())
    first.insitu.state.save(tmp_path / "kept.zarr")
    assert_same_bits(load(tmp_path / "kept.zarr"), first)
    whole = score(ours, truth, state=tmp_path / "kept.zarr", resume=True, **asked())
    assert_same_bits(whole, score(ours, truth, **asked()))
    tree = whole.insitu.state.to_datatree()
    assert tree["forecast/reference/t"].ds.sizes["init_time"] == SHAPE.inits


def test_scores_read_from_a_file_have_no_sums(tmp_path: Path) -> None:
    scores = score(forecast(SHAPE), reference(SHAPE))
    assert scores.sel(metric="rmse").isel(lead_time=[0]).insitu.state.state is scores.insitu.state.state
    scores.to_zarr(tmp_path / "scores.zarr", consolidated=False)
    again = xr.open_zarr(tmp_path / "scores.zarr", consolidated=False, chunks=None)
    xr.testing.assert_identical(again.load(), scores)
    with pytest.raises(RequestError, match="carry their sums"):
        again.insitu.state  # noqa: B018


def test_segments_are_put_together_when_a_run_ends(tmp_path: Path) -> None:
    import zarr

    kept = tmp_path / "scores.zarr"
    score(forecast(SHAPE), reference(SHAPE), state=kept, memory="1MiB", **asked())
    group = zarr.open_group(kept, mode="r")
    assert len(list(group["segments"].group_keys())) == 1  # type: ignore[union-attr]
    state, parts = StateStore(kept).load()
    assert state.done.all()
    assert not parts


def test_sums_of_another_snapshot_are_refused_or_stay_as_they_are(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.in_memory_storage())

    def committed(some: xr.Dataset, **how: Any) -> xr.Dataset:
        session = repo.writable_session("main")
        some.to_zarr(session.store, consolidated=False, zarr_format=3, **how)
        session.commit("more")
        found: xr.Dataset = xr.open_zarr(repo.readonly_session("main").store, consolidated=False, chunks=None)
        return found

    ours, truth, kept = forecast(SHAPE)[["t"]], reference(SHAPE), tmp_path / "scores.zarr"
    first = committed(ours.isel(init_time=slice(0, 3)), encoding={"t": {"chunks": (1, 1, 2, 8, 12)}})
    score(first, truth, state=kept, **asked())
    score(first, truth, state=kept, resume=True, **asked())
    more = committed(ours.isel(init_time=slice(3, 6)), append_dim="init_time")
    snapshots = [ds.insitu.source.snapshot for ds in (first, more)]
    refused = rf"{snapshots[0]}' of forecast .*{snapshots[1]}' now; pass resume='new'"
    for call in (score, score_plan):
        with pytest.raises(RequestError, match=refused):
            call(more, truth, state=kept, resume=True, **asked())
    plan = score_plan(more, truth, state=kept, resume="new", **asked())
    assert plan.readings["forecast 'forecast'"].chunks == 3 * SHAPE.leads
    scores = score(more, truth, state=kept, resume="new", **asked())
    assert_same_bits(scores, score(ours.isel(init_time=slice(0, 6)), truth, **asked()))
    with pytest.raises(RequestError, match="resume must be True, False or 'new', but got 'again'"):
        score(more, truth, state=kept, **{**asked(), "resume": "again"})
