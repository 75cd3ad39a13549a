"""What reaches the stores: every chunk once, for all metrics, regions, models and lead times together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.abc.store import SuffixByteRequest

from insitu_xr.testing import CountingStore
from insitu_xr_adapters.verification import load, score, score_plan
from tests.adapters.verification.cases import Shape, climatology, counting, forecast, reference
from tests.adapters.verification.test_bits import assert_same_bits

SHAPE = Shape(inits=4, leads=41, step=6, every=12, members=2)
ASKED: dict[str, Any] = {"metrics": ["rmse", "acc", "crps"], "regions": ["global", "tropics", "europe"]}


def case(layout: str) -> tuple[dict[str, xr.Dataset], xr.Dataset, xr.Dataset, dict[str, CountingStore]]:
    first, one = counting(forecast(SHAPE)[["t"]], "forecast", layout)
    second, two = counting(forecast(SHAPE, seed=5, descending=True)[["t"]], "forecast", layout)
    truth, three = counting(reference(SHAPE)[["t"]], "reference", layout)
    clim, four = counting(climatology()[["t"]], "climatology", layout)
    stores = {"forecast 'a'": one, "forecast 'b'": two, "reference 'reference'": three, "climatology": four}
    return {"a": first, "b": second}, truth, clim, stores


def data_gets(store: CountingStore) -> list[tuple[str, str]]:
    """Reads of what is scored: no coordinates, and no index of a shard, which each band of latitude asks for."""
    wanted = [g for g in store.data_gets if g.key.startswith("t/") and not isinstance(g.byte_range, SuffixByteRequest)]
    return [(g.key, str(g.byte_range)) for g in wanted]


@pytest.mark.parametrize(("layout", "memory"), [("step", "1MiB"), ("several", "1MiB"), ("deep", "800KiB")])
def test_every_chunk_is_read_once_for_all_scores(layout: str, memory: str) -> None:
    models, truth, clim, stores = case(layout)
    asked = {**ASKED, "climatology": clim, "memory": memory}
    plan = score_plan(models, truth, **asked)
    score(models, truth, **asked)  # one block of each variable is read both ways, once in a process
    for store in stores.values():
        store.reset()
    scores = score(models, truth, **asked)
    assert len(plan.sweep.pieces) > 1
    assert (len(plan.sweep.bands) > 1) is (layout == "deep")
    for name, store in stores.items():
        gets = data_gets(store)
        assert len(set(gets)) == len(gets), f"{name} was asked for something twice"
        if layout != "deep" or not name.startswith("reference"):  # chunks of a shard may share a request
            assert len(gets) == plan.readings[name].chunks, name
    assert dict(scores.sizes) == {"metric": 3, "region": 3, "lead_time": 41, "level": 2, "model": 2}


def test_planning_reads_no_data() -> None:
    models, truth, clim, stores = case("step")
    assert repr(score_plan(models, truth, climatology=clim, **ASKED))
    assert all(not data_gets(store) for store in stores.values())


def test_baselines_are_made_of_what_is_read_anyway() -> None:
    models, truth, clim, stores = case("step")
    asked: dict[str, Any] = {
        "metrics": ["rmse", "acc"],
        "climatology": clim,
        "baselines": ["persistence", "climatology"],
    }
    score(models["a"], truth, **asked)
    stores["reference 'reference'"].reset()
    scores = score(models["a"], truth, **asked)
    gets = data_gets(stores["reference 'reference'"])
    assert len(gets) == len(set(gets)) == truth.sizes["time"]
    assert scores["model"].values.tolist() == ["forecast", "persistence", "climatology"]
    assert float(scores["t"].sel(model="persistence", metric="rmse", region="global").isel(lead_time=0).max()) == 0


@pytest.mark.parametrize("layout", ["several", "deep"])
def test_the_engine_stays_under_what_the_plan_gives_it(layout: str) -> None:
    from insitu_xr_adapters.verification.feeding import Stream

    models, truth, clim, _ = case(layout)
    plan = score_plan(models, truth, climatology=clim, memory="2MiB", **ASKED)
    assert plan.peak_bytes <= 2 << 20
    rows = plan.sweep.bands[0]
    for name, feed in plan.setup.feeds.items():
        with Stream(feed, rows, plan.setup.grid, plan.sweep.pieces, plan.readings[name].memory) as stream:
            for _ in plan.sweep.pieces:
                stream.next()
            assert 0 < stream.stats.peak_bytes <= plan.readings[name].memory, name


@pytest.mark.parametrize(("layout", "memory", "bands"), [("deep", None, 1), ("deep", "500KiB", 2), ("step", None, 1)])
def test_rows_outside_of_all_regions_are_not_read(layout: str, memory: str | None, bands: int) -> None:
    models, truth, clim, stores = case(layout)
    asked: dict[str, Any] = {"metrics": ["rmse", "acc"], "climatology": clim}
    boxes = {"tropics": {"latitude": slice(-20, 20)}, "some": {"latitude": slice(-20, 30), "longitude": slice(0, 90)}}
    every = score(models, truth, regions={"global": {}, **boxes}, **asked)
    for store in stores.values():
        store.reset()
    plan = score_plan(models, truth, regions=boxes, memory=memory, **asked)
    scores = score(models, truth, regions=boxes, memory=memory, **asked)
    assert len(plan.sweep.bands) == bands
    name = "forecast 'a'"
    gets = {key for key, _ in data_gets(stores[name])}
    assert len(gets) == plan.readings[name].chunks
    assert "2 of 8 latitudes are read" in repr(plan)
    if layout == "deep":  # two rows in a chunk: those at 11 degrees south and north are in the middle two
        assert {key.split("/")[-2] for key in gets} == {"1", "2"}
    np.testing.assert_array_equal(scores["t"], every["t"].sel(region=[*boxes]))


def test_rows_that_are_not_read_are_kept_as_nothing(tmp_path: Path) -> None:
    models, truth, _, stores = case("step")
    asked: dict[str, Any] = {"metrics": ["rmse"], "regions": "tropics", "state": tmp_path / "kept.zarr"}
    first = score({n: ds.isel(init_time=slice(0, 2)) for n, ds in models.items()}, truth, **asked)
    assert_same_bits(load(tmp_path / "kept.zarr"), first)
    stores["forecast 'a'"].reset()
    scores = score(models, truth, resume=True, **asked)
    inits = [key.split("/")[2] for key in {key for key, _ in data_gets(stores["forecast 'a'"])}]
    assert (inits.count("2"), inits.count("3"), len(inits)) == (41, 41, 83)  # and one chunk, which is compared
    assert_same_bits(scores, score(models, truth, metrics=["rmse"], regions="tropics"))
