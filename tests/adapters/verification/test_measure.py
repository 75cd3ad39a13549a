"""Statistics of pieces: the same bits however they are cut, the same numbers on tensors, and what missing values do."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from insitu_xr.errors import InsituError, RequestError
from insitu_xr_adapters.verification import measure as measuring
from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.catalogue import resolve
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.ensemble import EnergyDistances
from insitu_xr_adapters.verification.measure import measure, scratch_bytes
from insitu_xr_adapters.verification.metrics import SQUARED_ERROR
from insitu_xr_adapters.verification.points import measure_points
from insitu_xr_adapters.verification.statistics import Statistic, Weight
from insitu_xr_adapters.verification.sums import Sums

from .scoring import members_of, scores_of, wanted

SHAPE = (3, 2, 19, 24)
ROWS = SHAPE[-2]
LATITUDE, LONGITUDE = np.linspace(-90, 90, ROWS), np.arange(SHAPE[-1]) * 15.0

BANDED = (
    *(
        "mse",
        "mae",
        "bias",
        "acc",
        "acc_centered",
        "correlation",
        "activity",
        "reference_activity",
        "crps",
        "crps_ecdf",
    ),
    *("spread_skill", "energy_score", "energy_score:adjacent=true:area=false", "brier:>281:fair=true"),
    *("rank_histogram", "rank_histogram:ties=split", "rps:270,280", "reliability:>281", "csi:>quantile_0.9"),
    *("zonal_spectrum", "reference_zonal_spectrum", "seeps:dry=278"),
)

type Cut = Callable[[np.ndarray], Any]


def domain() -> Domain:
    land = np.random.default_rng(9).random(SHAPE[-2:]) > 0.4
    regions = {"global": "global", "europe": "europe", "land": land, "nh": {"lat": slice(20, 90), "mask": 0.5 * land}}
    return Domain.make(LATITUDE, LONGITUDE, regions=regions)


def fields(members: int = 6) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    shape = (*SHAPE[:2], members, *SHAPE[2:])
    return {
        "forecast": random.normal(280, 5, shape).astype("f4"),
        "reference": random.normal(280, 5, SHAPE).astype("f4"),
        "mean": random.normal(280, 3, SHAPE).astype("f4"),
        "quantile_0.9": random.normal(285, 1, SHAPE).astype("f4"),
        "seeps_threshold": random.normal(284, 1, SHAPE).astype("f4"),
        "seeps_dry_fraction": random.uniform(0, 1, SHAPE).astype("f4"),
    }


def piece(found: dict[str, np.ndarray], cut: Cut = lambda values: values, start: int = 0) -> Piece:
    made = {name: cut(values) for name, values in found.items()}
    return Piece("t", made.pop("forecast"), made.pop("reference"), made, members=True, start=start)


@pytest.fixture(scope="module")
def statistics() -> list[Statistic]:
    return list(dict.fromkeys(wanted(resolve(BANDED), 6)))


@pytest.fixture(scope="module")
def whole(statistics: list[Statistic]) -> dict[Statistic, Sums]:
    return measure(piece(fields()), statistics, domain())


def same(found: dict[Statistic, Sums], expected: dict[Statistic, Sums], index: Any = ...) -> None:
    for statistic, sums in expected.items():
        np.testing.assert_array_equal(found[statistic].total, sums.total[index], err_msg=statistic.key)


@pytest.mark.parametrize("nan", ["raise", "mask", "propagate"])
def test_bands_in_any_order_give_the_same_bits(nan: str, statistics: list[Statistic]) -> None:
    found = fields()
    if nan != "raise":
        found["forecast"][0, 1, 2, 5, 6] = np.nan
        found["reference"][2, 0, 9, 9] = np.nan
    expected = measure(piece(found), statistics, domain(), nan=nan)
    merged: dict[Statistic, Sums] = {}
    for start, stop in [(11, 18), (0, 3), (18, 19), (3, 4), (4, 11)]:
        part = measure(piece(found, lambda values: values[..., start:stop, :], start), statistics, domain(), nan=nan)  # noqa: B023
        merged = {item: merged[item].merge(sums) if merged else sums for item, sums in part.items()}
    same(merged, expected)


def test_inits_apart_give_the_same_bits(statistics: list[Statistic], whole: dict[Statistic, Sums]) -> None:
    for init in range(SHAPE[0]):
        same(measure(piece(fields(), lambda values: values[init]), statistics, domain()), whole, init)  # noqa: B023


@pytest.mark.parametrize("points", [1, 100, 1000, 1 << 20])
def test_blocks_of_any_size_give_the_same_bits(
    points: int, statistics: list[Statistic], whole: dict[Statistic, Sums], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "BLOCK_POINTS", points)
    same(measure(piece(fields()), statistics, domain()), whole)


def test_views_give_the_same_bits(statistics: list[Statistic], whole: dict[Statistic, Sums]) -> None:
    def stored(values: np.ndarray) -> np.ndarray:  # longitude first, latitude descending, as at WeatherBench2
        return np.ascontiguousarray(np.swapaxes(values, -1, -2)[..., ::-1]).swapaxes(-1, -2)[..., ::-1, :]

    same(measure(piece(fields(), stored), statistics, domain()), whole)


@pytest.mark.parametrize("nan", ["raise", "mask", "propagate"])
def test_tensors_give_the_same_numbers(nan: str, statistics: list[Statistic]) -> None:
    torch = pytest.importorskip("torch")
    found = fields()
    if nan != "raise":
        found["reference"][2, 0, 9, 9] = np.nan
    expected = measure(piece(found), statistics, domain(), nan=nan)
    tensors = measure(piece(found, torch.from_numpy), statistics, domain(), nan=nan)
    for statistic, sums in expected.items():
        np.testing.assert_allclose(tensors[statistic].total, sums.total, rtol=1e-9, atol=1e-9, err_msg=statistic.key)


def test_neighbourhoods_need_whole_fields() -> None:
    metrics = resolve("fss:>281:window=3")
    statistics = wanted(metrics, 6)
    assert any(statistic.whole_field for statistic in statistics)
    assert measure(piece(fields()), statistics, domain())[statistics[0]].complete
    with pytest.raises(RequestError, match="a piece must hold all 19 latitudes for FractionDifferences"):
        measure(piece(fields(), lambda values: values[..., :5, :]), statistics, domain())


def test_equal_statistics_are_one() -> None:
    statistics = wanted(resolve(["mse", "rmse", "spread_skill", "spread", "mse_debiased"]), 6)
    assert len(set(statistics)) == 4  # error, variance, weight, count
    assert len({statistic.key for statistic in statistics}) == 4
    different = wanted(resolve(["brier:>281", "csi:>282", "csi:>281", "acc", "acc_centered"]), 6)
    assert len({statistic.key for statistic in different}) == len(set(different))


def test_a_missing_value_is_named() -> None:
    found = fields()
    found["mean"][1, 0, 7, 3] = np.nan
    made = piece(found)
    statistics = wanted(resolve("acc"), 6)
    with pytest.raises(
        RequestError,
        match=re.escape(
            "values of 't' must be present, but got a missing one in the climatology (mean) at index (1, 0, 7, 3)"
        ),
    ):
        measure(made, statistics, domain())
    assert measure(made, [SQUARED_ERROR], domain())[SQUARED_ERROR].complete  # which does not need it


def test_missing_values_are_left_out_or_passed_on() -> None:
    found = fields()
    found["forecast"][0, 0, 2, 8, 23] = np.nan
    names = ["mse", "crps", "brier:>281", "rank_histogram", "csi:>281"]
    world = Domain.make(LATITUDE, LONGITUDE, regions=["global", "europe"])
    masked = scores_of(piece(found), world, names, nan="mask", keep=True)
    passed = scores_of(piece(found), world, names, nan="propagate", keep=True)
    for name in names:
        assert np.isfinite(masked[name]).all()
        assert np.isnan(passed[name][0, 0, 0]).all(), name
        np.testing.assert_array_equal(passed[name][1:], masked[name][1:])
        np.testing.assert_array_equal(passed[name][0, 0, 1], masked[name][0, 0, 1])
    counted = Weight(counted=True)
    assert measure(piece(found), [counted], world, nan="mask")[counted].total[0, 0, 0, 0] == ROWS * SHAPE[-1] - 1


def test_maps_are_sums_over_inits() -> None:
    found = fields()
    statistics = [SQUARED_ERROR, Weight()]
    expected = ((found["forecast"].mean(2, dtype="f8") - found["reference"]) ** 2).sum(0)
    parts = [measure_points(piece(found, lambda v: v[a:b]), statistics, domain(), a, 3) for a, b in [(1, 3), (0, 1)]]  # noqa: B023
    merged = parts[0][SQUARED_ERROR].merge(parts[1][SQUARED_ERROR]).total
    np.testing.assert_allclose(merged[:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(merged, measure_points(piece(found), statistics, domain(), 0, 3)[SQUARED_ERROR].total)
    with pytest.raises(RequestError, match="statistics at points must be of points"):
        measure_points(piece(found), wanted(resolve("zonal_spectrum"), 6), domain(), 0, 3)


def test_single_precision_residuals_do_not_cancel() -> None:
    reference = np.full((1, 4, 8), 5.4e4, np.float32)
    made = Piece("z", reference + np.float32(0.125), reference)
    assert float(scores_of(made, Domain.make([-45, -15, 15, 45], np.arange(8)), "mse")["mse"][0]) == 0.125**2


def test_integers_are_scored() -> None:
    made = Piece("n", np.full((1, 2, 2), 7, np.uint8), np.full((1, 2, 2), 9, np.uint8))
    assert float(scores_of(made, Domain.make([-45, 45], [0, 180]), "bias")["bias"][0]) == -2


@pytest.mark.parametrize("nan", ["raise", "mask"])
def test_scratch_is_bounded(nan: str, statistics: list[Statistic]) -> None:
    found = {name: np.repeat(np.repeat(values, 8, -1), 8, -2) for name, values in fields().items()}
    world = Domain.make(np.linspace(-90, 90, 8 * ROWS), np.arange(8 * SHAPE[-1]) * 360 / 192, regions="wb2")
    some = [statistic for statistic in statistics if not isinstance(statistic, EnergyDistances)]
    tracemalloc.start()
    sums = measure(piece(found), some, world, nan=nan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = sum(value.nbytes for item in sums.values() for value in item.nodes.values())
    bound = scratch_bytes(some, 6, world.shape)
    assert 0.2 * bound < peak - result < bound
    assert scratch_bytes(wanted(resolve("fss:>1"), 0), 0, (721, 1440)) > 8 * 721 * 1440


def test_components_are_counted(statistics: list[Statistic], whole: dict[Statistic, Sums]) -> None:
    for statistic in statistics:
        assert whole[statistic].total.shape[-2] == statistic.components(6, SHAPE[-1]), statistic.key


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"nan": "skip"}, "nan must be one of ['raise', 'mask', 'propagate'], but got 'skip'"),
        ({"cut": lambda values: values[..., :5]}, "a piece of 't' must have rows of the grid (19, 24)"),
        ({"start": 3}, "from row 3 on; cut it along latitudes only"),
        ({"without": "mean"}, "climatology of 't' must have the field 'mean' that a metric needs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_pieces(change: dict[str, Any], rule: str) -> None:
    found = fields()
    found.pop(change.pop("without", ""), None)
    nan = change.pop("nan", "raise")
    with pytest.raises(InsituError, match=re.escape(rule)):
        measure(piece(found, **change), wanted(resolve("acc"), 6), domain(), nan=nan)


def test_members_are_counted() -> None:
    assert members_of(piece(fields(4))) == 4
