"""Metrics by name, their attributes, and means over inits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from insitu_xr.errors import InsituError, RequestError, UnknownNameError
from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.catalogue import NAMED, OF_EVENTS, names, resolve
from insitu_xr_adapters.verification.conventions import convention
from insitu_xr_adapters.verification.correlations import ACC
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.events import Event, ThresholdField
from insitu_xr_adapters.verification.eventscores import RPS, Brier, Contingency, Reliability
from insitu_xr_adapters.verification.fieldscores import FSS
from insitu_xr_adapters.verification.means import Means
from insitu_xr_adapters.verification.metrics import RMSE, SQUARED_ERROR, VectorRMSE
from insitu_xr_adapters.verification.probabilistic import CRPS, RankHistogram
from insitu_xr_adapters.verification.spreads import SpreadSkill
from insitu_xr_adapters.verification.weights import area_weights

from .scoring import means_of, scores_of, wanted

SHAPE = (4, 3, 5, 8)
DOMAIN = Domain.make(np.linspace(-60, 60, 5), np.arange(8) * 45.0)


def piece(seed: int = 0, members: int = 0) -> Piece:
    random = np.random.default_rng(seed)
    shape = (*SHAPE[:2], members, *SHAPE[2:]) if members else SHAPE
    return Piece("t", random.normal(size=shape), random.normal(size=SHAPE), members=bool(members))


def test_every_name_is_a_metric_of_that_name() -> None:
    texts = [*NAMED, *(f"{name}:>1" for name in OF_EVENTS), "rps:0,1"]
    for text in texts:
        (metric,) = resolve(text)
        assert metric.name == text
        attrs = metric.attrs("K", 5)
        assert attrs["long_name"]
        assert attrs["units"]
        assert attrs["orientation"]
        assert metric.statistics(5)
        assert tuple(metric.coords(5, (5, 8))) == metric.dims
    assert len(names()) > 35


def test_units_estimators_and_orientation() -> None:
    found = {metric.name: metric.attrs("K", 5) for metric in resolve(["rmse", "mse", "acc", "crps", "ssr", "bias"])}
    assert [attrs["units"] for attrs in found.values()] == ["K", "(K)**2", "1", "K", "1", "K"]
    assert found["acc"]["estimator"] == "uncentered, pooled over inits"
    assert found["ssr"]["estimator"] == "unbiased"
    assert found["acc"]["orientation"] == "positive"
    assert found["rmse"]["forecast"] == "mean of the members"
    assert "forecast" not in found["crps"]
    assert RMSE().attrs(None)["units"] == "unknown"


def test_objects_and_texts_are_equal() -> None:
    pairs = {
        "crps:fair=false": CRPS(fair=False),
        "acc:centered=true": ACC(centered=True),
        "brier:>=quantile_0.9:fair=true": Brier(">=quantile_0.9", fair=True),
        "csi:<273.15": Contingency("<273.15", "csi"),
        "fss:>1:window=7": FSS(Event(">", 1.0), 7),
        "rps:1,2.5:relation=<": RPS((1, 2.5), "<"),
        "reliability:>1:bins=4": Reliability(">1", 4),
        "spread_skill_fortin": SpreadSkill("fortin"),
    }
    for text, metric in pairs.items():
        (found,) = resolve(text)
        assert found.parts(3) == metric.parts(3)
        assert found.default_name == metric.default_name


def test_a_threshold_may_differ_from_point_to_point() -> None:
    field = np.linspace(-1, 1, 40).reshape(5, 8)
    made = piece()
    (found,) = scores_of(made, DOMAIN, Contingency(Event(">", ThresholdField.of(field)), "accuracy")).values()
    right = (made.forecast > field) == (made.reference > field)
    weights = np.broadcast_to(area_weights(DOMAIN.latitude)[:, None], SHAPE[2:])
    np.testing.assert_allclose(found[:, 0], [np.average(right[:, lead].mean(0), weights=weights) for lead in range(3)])
    assert ThresholdField.of(field) == ThresholdField.of(field.copy()) != ThresholdField.of(field + 1)


def test_vector_error_adds_the_components() -> None:
    pieces = [piece(seed) for seed in (1, 2)]
    metric = VectorRMSE(("u10", "v10"), label="wind")
    means = [means_of(item, DOMAIN, wanted((metric,), 0)) for item in pieces]
    found = metric.compute(*means)
    np.testing.assert_allclose(found**2, sum(scores_of(item, DOMAIN, "mse")["mse"] for item in pieces))


def test_inits_are_kept_chosen_and_drawn_twice() -> None:
    metrics = resolve(["rmse", "correlation"])
    whole = means_of(piece(), DOMAIN, wanted(metrics, 0))
    kept = Means(whole.totals, keep=True)
    assert metrics[0].compute(kept).shape == (4, 3, 1)
    twice = Means(whole.totals, weights=np.array([2, 0, 1, 0]))
    made = piece()
    picked = Piece("t", made.forecast[[0, 0, 2]], made.reference[[0, 0, 2]])
    for metric in metrics:
        np.testing.assert_allclose(metric.compute(twice), scores_of(picked, DOMAIN, metric)[metric.name])
    np.testing.assert_array_equal(metrics[0].n_valid(whole), np.full((3, 1), 4 * 40))


def test_pooled_sums_and_means_of_inits_differ_where_values_are_missing() -> None:
    made = piece()
    made.reference[0, :, :4] = np.nan
    squared = (made.forecast - made.reference) ** 2
    flat = Domain.make(DOMAIN.latitude, DOMAIN.longitude, weights=None)
    pooled = scores_of(made, flat, "mse", nan="mask")["mse"]
    each = scores_of(made, flat, "mse", nan="mask", pooled=convention("wb2").pooled)["mse"]
    np.testing.assert_allclose(pooled[:, 0], np.nanmean(squared, (0, 2, 3)))
    np.testing.assert_allclose(each[:, 0], np.nanmean(squared, (2, 3)).mean(0))
    made.reference[1] = np.nan  # a whole init
    assert np.isfinite(scores_of(made, flat, "mse", nan="mask", pooled=False)["mse"]).all()


def test_one_member_has_an_error_and_no_spread() -> None:
    found = scores_of(
        piece(members=1), DOMAIN, ["crps", "crps_ecdf", "mae", "spread", "energy_score", "rank_histogram"]
    )
    np.testing.assert_allclose(found["crps"], found["mae"])
    np.testing.assert_allclose(found["crps_ecdf"], found["mae"])
    assert np.isnan(found["spread"]).all()
    assert np.isfinite(found["energy_score"]).all()
    assert found["rank_histogram"].shape == (3, 1, 2)


def test_ranks_that_members_share() -> None:
    made = Piece("t", np.zeros((1, 3, 5, 8)), np.zeros((1, 5, 8)), members=True)
    found = scores_of(made, DOMAIN, [RankHistogram(), RankHistogram("split", label="split")])
    np.testing.assert_allclose(found["rank_histogram"][0], [1, 0, 0, 0])
    np.testing.assert_allclose(found["split"][0], [0.25] * 4)


def test_a_statistic_that_was_not_kept_is_named() -> None:
    means = means_of(piece(), DOMAIN, [])
    with pytest.raises(RequestError, match=r"sums must have been kept of Moment\(factors=\('error', 'error'\)"):
        means.of(SQUARED_ERROR)


@pytest.mark.parametrize(
    ("metrics", "error", "rule"),
    [
        ("rsme", UnknownNameError, "a metric must be one of ['acc', 'acc_centered', 'acc_mean_of_ratios', 'accuracy:>"),
        ("brier", RequestError, "metric 'brier' must be written like 'brier:>281', but got 'brier'"),
        ("rmse:>1", RequestError, "metric 'rmse' must be written like 'rmse', but got 'rmse:>1'"),
        ("crps:fare=true", RequestError, "parameters of metric 'crps' must be its own, but got 'crps:fare=true'"),
        (["rmse", RMSE()], RequestError, "metrics must have different names, but got 'rmse' twice"),
        ([], RequestError, "metrics must be at least one, but got none"),
        ("spread_skill:form=best", RequestError, "form must be 'unbiased', 'fortin' or 'naive', but got 'best'"),
        ("fss:>1:window=4", RequestError, "window must be an odd number of grid cells, but got 4"),
        ("rank_histogram:ties=random", RequestError, "ties must be 'lowest' or 'split', but got 'random'"),
    ],
)
def test_bad_names(metrics: Any, error: type[InsituError], rule: str) -> None:
    with pytest.raises(error, match=re.escape(rule)):
        wanted(resolve(metrics), 5)


def test_ensembles_and_conventions_are_asked_for() -> None:
    with pytest.raises(RequestError, match="a forecast must have a dimension of members for 'crps'"):
        CRPS().statistics(0)
    with pytest.raises(UnknownNameError, match=re.escape("convention must be one of ['wb2', 'wbx', 'wmo'] or None")):
        resolve("acc", convention="wb1")
    with pytest.raises(RequestError, match="an event must be written as a relation and a threshold, but got '281'"):
        Event.parse("281")
