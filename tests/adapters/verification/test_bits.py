"""The same float64 results, to the last bit, whatever the chunks, the ceiling and the order."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr_adapters.verification import score, score_plan
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored

SHAPE = Shape(inits=10, leads=6, members=4)
METRICS = ["rmse", "bias", "acc", "crps", "spread_skill", "rank_histogram", "brier:>281"]
ASKED: dict[str, Any] = {"metrics": METRICS, "regions": ["global", "tropics", "europe"], "variables": ["t"]}


def opened(layout: str) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    made = {
        "forecast": forecast(SHAPE)[["t"]],
        "reference": reference(SHAPE)[["t"]],
        "climatology": climatology()[["t"]],
    }
    found = [xr.open_zarr(stored(d, r, layout), consolidated=False, chunks=None) for r, d in made.items()]
    return found[0], found[1], found[2]


@cache
def in_memory() -> xr.Dataset:
    return score(forecast(SHAPE), reference(SHAPE), climatology=climatology(), **ASKED)


def assert_same_bits(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    assert set(ours.data_vars) == set(theirs.data_vars)
    for name in ours.data_vars:
        np.testing.assert_array_equal(ours[name].values.view(np.int64), theirs[name].values.view(np.int64), str(name))


#: layout, ceiling, and whether that makes several pieces and bands
CUTS = [
    ("step", None, False, False),
    ("step", "300KiB", True, False),
    ("several", "700KiB", True, False),
    ("deep", "330KiB", True, True),
    ("deep", "450KiB", True, True),
    ("deep", None, False, False),
]


@pytest.mark.parametrize(("layout", "memory", "pieces", "bands"), CUTS)
def test_chunks_and_ceilings_leave_the_bits_alone(layout: str, memory: str | None, pieces: bool, bands: bool) -> None:
    ours, truth, clim = opened(layout)
    plan = score_plan(ours, truth, climatology=clim, memory=memory, **ASKED)
    assert (len(plan.sweep.pieces) > 1, len(plan.sweep.bands) > 1) == (pieces, bands)
    assert_same_bits(score(ours, truth, climatology=clim, memory=memory, **ASKED), in_memory())


def test_several_models_have_the_bits_that_each_has_alone() -> None:
    truth, other = reference(SHAPE), forecast(SHAPE, seed=8)
    asked = {**ASKED, "climatology": climatology()}
    both = score({"a": forecast(SHAPE), "b": other}, truth, **asked)
    for name, alone in (("a", in_memory()), ("b", score(other, truth, **asked))):
        assert_same_bits(both.sel(model=name), alone)
