"""Figures: what is drawn are the numbers given."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.patches import Rectangle

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification import plot

LEADS = pd.timedelta_range("0h", "48h", freq="12h")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    matplotlib.use("Agg", force=True)
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def curves(**dims: list[str]) -> xr.DataArray:
    shape = (*(len(labels) for labels in dims.values()), len(LEADS))
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    coords = {**dims, "lead_time": LEADS, "metric": "rmse"}
    return xr.DataArray(values, coords, (*dims, "lead_time"), "t", {"long_name": "error", "units": "K"})


def test_skill_with_ribbons_and_spread() -> None:
    scores = curves(model=["a", "b"])
    ax = plot.skill(scores, scores - 1, scores + 1, dashed=scores / 2)
    solid = [line for line in ax.lines if line.get_linestyle() == "-"]
    np.testing.assert_array_equal(solid[1].get_xdata(), [0, 0.5, 1, 1.5, 2])
    np.testing.assert_array_equal(solid[1].get_ydata(), scores.sel(model="b"))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert len(ax.collections) == 2
    assert (ax.get_ylabel(), ax.get_title()) == ("error (K)", "rmse")
    assert plot.skill(scores.sel(model="a"), ax=ax) is ax


def test_scorecard_by_error_and_by_skill() -> None:
    baseline = curves(level=["500", "850"])
    ax = plot.scorecard(baseline * 1.1, baseline, baseline * 0 + 0.5)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), 10)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["t 500", "t 850"]
    assert len(ax.patches) == 10
    skilled = xr.full_like(baseline, 0.8).assign_attrs(orientation="positive")
    better = plot.scorecard((skilled + 0.1).assign_attrs(orientation="positive"), skilled)
    np.testing.assert_allclose(np.asarray(better.images[0].get_array()), -50)
    with pytest.raises(RequestError, match="a baseline must have the rows"):
        plot.scorecard(baseline, baseline.isel(level=[0]))


def test_heatmap() -> None:
    scores = curves(init_time=["x", "y"]).assign_coords(init_time=pd.date_range("2020", periods=2))
    ax = plot.heatmap(scores)
    np.testing.assert_array_equal(ax.collections[0].get_array(), scores.T)


def test_rank_histogram() -> None:
    shares = xr.DataArray([0.5, 0.25, 0.25], {"rank": [0, 1, 2]}, "rank")
    ax = plot.rank_histogram(shares)
    assert [bar.get_height() for bar in ax.patches if isinstance(bar, Rectangle)] == [0.5, 0.25, 0.25]
    assert np.asarray(ax.lines[0].get_ydata())[0] == pytest.approx(1 / 3)


def test_map_sorts_longitudes_and_parts_at_zero() -> None:
    values = [[-1.0, 2.0], [3.0, 4.0]]
    scores = xr.DataArray(values, {"lat": [10.0, -10.0], "lon": [180.0, 0.0]}, ("lat", "lon"))
    mesh = plot.map_of(scores).collections[0]
    np.testing.assert_array_equal(mesh.get_array(), [[2, -1], [4, 3]])
    assert mesh.get_clim() == (-4, 4)


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(RequestError, match=r"must have the dimensions \['lead_time'\] and at most 1 more"):
        plot.skill(curves(model=["a"], region=["b"]))
    with pytest.raises(RequestError, match=r"must have the dimensions \['init_time', 'lead_time'\], but got"):
        plot.heatmap(curves())
