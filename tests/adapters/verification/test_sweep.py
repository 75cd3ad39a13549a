"""Orders of reading, and what they are known to cost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.errors import CeilingError
from insitu_xr_adapters.verification import score_plan
from insitu_xr_adapters.verification.stocks import Use
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=8))
def test_units_wanted_at_once_are_those_that_a_plain_loop_counts(pieces: list[list[int]]) -> None:
    flat = [unit for piece in pieces for unit in piece]
    use = Use(np.array(flat)[None, :, None], 1, 7, 1, 1, 1, np.array([0, 1]))
    bounds = np.cumsum([0, *map(len, pieces)])
    numbered = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    spans = [(min(w), max(w)) for u in set(flat) if (w := [k for k, p in enumerate(pieces) if u in p])]
    assert use.alive(numbered) == max(sum(a <= k <= b for a, b in spans) for k in range(len(pieces)))


def opened(shape: Shape, layout: str) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    made = {"forecast": forecast(shape), "reference": reference(shape), "climatology": climatology()}
    first, second, third = (
        xr.open_zarr(stored(d, r, layout), consolidated=False, chunks=None) for r, d in made.items()
    )
    return first, second, third


def test_the_plan_says_what_would_be_enough() -> None:
    ours, truth, clim = opened(Shape(inits=12, leads=7, members=4), "deep")
    with pytest.raises(CeilingError, match="too few; raise memory= by them") as caught:
        score_plan(ours, truth, metrics=["acc", "crps"], climatology=clim, memory="300KiB")
    lacking = int(str(caught.value).split("but got ")[1].split(" bytes")[0])
    plan = score_plan(ours, truth, metrics=["acc", "crps"], climatology=clim, memory=300 * 1024 + lacking)
    assert plan.peak_bytes <= plan.ceiling == 300 * 1024 + lacking
    text = repr(plan)
    assert "bands of latitude" in text or len(plan.sweep.bands) == 1
    assert f"{plan.chunks} chunks, each once" in text
    assert "climatology" in plan._repr_html_()


def test_whole_fields_are_not_cut() -> None:
    ours, truth, _ = opened(Shape(inits=12, leads=7), "deep")
    banded = score_plan(ours, truth, metrics=["rmse"], memory="100KiB")
    assert len(banded.sweep.bands) > 1
    with pytest.raises(CeilingError):
        score_plan(ours, truth, metrics=["fss:>280:window=3"], memory="100KiB")


def test_bands_lie_along_edges_of_chunks() -> None:
    ours, truth, clim = opened(Shape(inits=12, leads=7), "deep")
    for turned in (ours, ours.isel(latitude=slice(None, None, -1))):
        plan = score_plan(turned, truth, metrics=["acc"], climatology=clim, memory="300KiB")
        assert len(plan.sweep.bands) > 1
        assert all(band.start % 2 == 0 for band in plan.sweep.bands)
        assert sum(b.stop - b.start for b in plan.sweep.bands) == ours.sizes["latitude"]


def test_years_that_share_a_climatology_are_read_day_by_day() -> None:
    shape = Shape(inits=12, leads=2)
    years = [forecast(shape, start=f"{y}-01-03") for y in range(2001, 2011)]
    truths = [reference(shape, start=f"{y}-01-03") for y in range(2001, 2011)]
    ours = xr.open_zarr(stored(xr.concat(years, "init_time"), "forecast", "step"), consolidated=False, chunks=None)
    truth = xr.open_zarr(stored(xr.concat(truths, "time"), "reference", "step"), consolidated=False, chunks=None)
    clim = xr.open_zarr(stored(climatology(), "climatology", "step"), consolidated=False, chunks=None)
    plan = score_plan(ours, truth, metrics=["acc"], climatology=clim, memory="155KiB")
    assert plan.sweep.name == "days of the year"
    assert score_plan(ours, truth, metrics=["acc"], climatology=clim).sweep.name == "init times"
