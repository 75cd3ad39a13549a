"""The numbers of scores, xskillscore and scoringrules, on random data."""

from __future__ import annotations

import importlib
import operator
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.compare import compare
from insitu_xr_adapters.verification.domain import Domain

from .scoring import differing_series, scores_of

DIMS = ("init_time", "latitude", "longitude")
SHAPE = (3, 5, 8)
LATITUDE = np.linspace(-60, 75, SHAPE[1])
LONGITUDE = np.arange(SHAPE[2]) * 45.0

#: for many members and for few, with and without values that are missing
CASES = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 10, 50]), st.booleans())


def oracle(name: str) -> Any:
    with warnings.catch_warnings():  # about their own source
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@dataclass(frozen=True)
class Case:
    """Fields with weights: as a piece, and as the oracles take them."""

    piece: Piece
    domain: Domain
    nan: str

    @property
    def observed(self) -> xr.DataArray:
        return self.array(self.piece.reference)

    @property
    def forecast(self) -> xr.DataArray:
        return self.array(self.piece.forecast) if not self.piece.members else self.members.mean("member")

    @property
    def members(self) -> xr.DataArray:
        values = np.moveaxis(self.piece.forecast, -3, 0)
        return xr.DataArray(values, dims=("member", *DIMS), coords=self.observed.coords)

    @property
    def weights(self) -> xr.DataArray:
        return self.array(np.broadcast_to(np.cos(np.deg2rad(LATITUDE))[:, None], SHAPE).copy())

    def array(self, values: np.ndarray) -> xr.DataArray:
        return xr.DataArray(values, dims=DIMS, coords={"latitude": LATITUDE, "longitude": LONGITUDE})

    def mean(self, values: xr.DataArray) -> xr.DataArray:
        return values.weighted(self.weights).mean()

    def scores(self, *names: str) -> dict[str, Any]:
        found = scores_of(self.piece, self.domain, names, nan=self.nan)
        return {name: float(values[..., 0]) if values.ndim == 1 else values[0] for name, values in found.items()}


def drawn(seed: int, members: int, missing: bool, weights: str | None = "cos") -> Case:
    random = np.random.default_rng(seed)
    reference = random.normal(1, 2, SHAPE)
    shape = (SHAPE[0], members, *SHAPE[1:]) if members else SHAPE
    forecast = random.normal(1.3, 1.5, shape) + (reference[:, None] if members else reference) * 0.5
    if missing:
        reference[random.random(SHAPE) < 0.1] = np.nan
    climate = {"mean": random.normal(1, 0.5, SHAPE)}
    domain = Domain.make(LATITUDE, LONGITUDE, weights=weights)
    return Case(Piece("t", forecast, reference, climate, bool(members)), domain, "mask" if missing else "raise")


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-10, atol=1e-12)


@settings(max_examples=8, deadline=None)
@given(case=CASES)
def test_errors(case: tuple[int, int, bool]) -> None:
    continuous, xs = oracle("scores.continuous"), oracle("xskillscore")
    data = drawn(case[0], 0, case[2])
    found = data.scores("rmse", "mse", "mae", "bias", "correlation")
    pair, weights = (data.forecast, data.observed), data.weights
    for name, function in (("rmse", "rmse"), ("mse", "mse"), ("mae", "mae"), ("bias", "additive_bias")):
        close(found[name], getattr(continuous, function)(*pair, weights=weights))
    for name, function in (("rmse", "rmse"), ("mae", "mae"), ("bias", "me"), ("correlation", "pearson_r")):
        close(found[name], getattr(xs, function)(*pair, dim=list(DIMS), weights=weights, skipna=True))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_anomaly_correlation(seed: int) -> None:
    xs, data = oracle("xskillscore"), drawn(seed, 0, False)
    climate = data.array(data.piece.climatology["mean"])
    first, second = data.forecast - climate, data.observed - climate
    each = xs.pearson_r(first, second, dim=list(DIMS[1:]), weights=data.weights[0])
    found = data.scores("acc_centered", "acc:centered=true:pooled=true", "acc", "activity")
    close(found["acc_centered"], each.mean())
    close(found["acc"], data.mean(first * second) / np.sqrt(data.mean(first**2) * data.mean(second**2)))
    close(found["activity"], np.sqrt(data.mean(first**2)))
    close(found["acc:centered=true:pooled=true"], xs.pearson_r(first, second, dim=list(DIMS), weights=data.weights))


@settings(max_examples=8, deadline=None)
@given(case=CASES)
def test_crps(case: tuple[int, int, bool]) -> None:
    probability, xs, rules = oracle("scores.probability"), oracle("xskillscore"), oracle("scoringrules")
    data = drawn(*case)
    found = data.scores("crps", "crps_ecdf")
    members, observed = data.members, data.observed
    last = np.moveaxis(members.values, 0, -1)
    for name, estimator in (("crps", "fair" if case[1] > 1 else "nrg"), ("crps_ecdf", "qd")):  # fair ones divide by 0
        each = rules.crps_ensemble(observed.values, last, estimator=estimator, backend="numpy")
        close(found[name], data.mean(data.array(each)))
    if case[1] > 1:
        for name, method in (("crps", "fair"), ("crps_ecdf", "ecdf")):
            expected = probability.crps_for_ensemble(
                members, observed, "member", method=method, weights=data.weights, reduce_dims=list(DIMS)
            )
            close(found[name], expected)
    if not case[2]:
        close(found["crps_ecdf"], xs.crps_ensemble(observed, members, dim=list(DIMS), weights=data.weights))


@settings(max_examples=8, deadline=None)
@given(case=CASES)
def test_spread(case: tuple[int, int, bool]) -> None:
    data = drawn(case[0], max(2, case[1]), case[2])
    observed = data.observed.notnull()
    variance = data.mean(data.members.var("member", ddof=1).where(observed))
    error = data.mean((data.forecast - data.observed) ** 2)
    found = data.scores("spread", "spread_skill", "spread_skill_fortin", "spread_skill_naive", "ensemble_variance")
    size = data.members.sizes["member"]
    close(found["ensemble_variance"], variance)
    close(found["spread"], np.sqrt(variance))
    close(found["spread_skill_naive"], np.sqrt(variance / error))
    close(found["spread_skill_fortin"], np.sqrt((size + 1) / size * variance / error))
    close(found["spread_skill"], np.sqrt(variance / (error - variance / size)) if error > variance / size else np.nan)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), members=st.sampled_from([2, 5, 50]))
def test_energy_score(seed: int, members: int) -> None:
    rules, data = oracle("scoringrules"), drawn(seed, members, False)
    scale = np.sqrt(data.weights[0] / data.weights[0].sum())
    observed = (data.observed * scale).values.reshape(SHAPE[0], -1)
    forecast = (data.members * scale).transpose(DIMS[0], "member", ...).values.reshape(SHAPE[0], members, -1)
    found = data.scores("energy_score", "energy_score:fair=false", "energy_score:area=false")
    for name, estimator in (("energy_score", "fair"), ("energy_score:fair=false", "nrg")):
        close(found[name], rules.es_ensemble(observed, forecast, estimator=estimator, backend="numpy").mean())
    plain = (data.observed.values.reshape(SHAPE[0], -1), data.piece.forecast.reshape(SHAPE[0], members, -1))
    close(found["energy_score:area=false"], rules.es_ensemble(*plain, estimator="fair", backend="numpy").mean())


@settings(max_examples=8, deadline=None)
@given(case=CASES)
def test_probabilities(case: tuple[int, int, bool]) -> None:
    probability, xs = oracle("scores.probability"), oracle("xskillscore")
    data = drawn(case[0], max(2, case[1]), case[2])
    found = data.scores("brier:>1", "brier:>1:fair=true", "rps:0,1,2.5", "rps:0,1,2.5:fair=true")
    for name, fair in (("brier:>1", False), ("brier:>1:fair=true", True)):
        expected = probability.brier_score_for_ensemble(
            *(data.members, data.observed, "member", 1.0),
            weights=data.weights,
            fair_correction=fair,
            reduce_dims=list(DIMS),
            event_threshold_operator=operator.gt,
        )
        close(found[name], expected)
    if not case[2]:
        edges = np.array([-1e9, 0, 1, 2.5, 1e9])
        for name, fair in (("rps:0,1,2.5", False), ("rps:0,1,2.5:fair=true", True)):
            close(found[name], xs.rps(data.observed, data.members, edges, list(DIMS), fair, data.weights))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), members=st.sampled_from([1, 4, 10, 50]))
def test_histograms(seed: int, members: int) -> None:
    xs, data = oracle("xskillscore"), drawn(seed, members, False, None)
    found = data.scores("rank_histogram", "rank_histogram:ties=split", "reliability:>1:bins=5")
    ranks = xs.rank_histogram(data.observed, data.members, list(DIMS)).values / data.observed.size
    close(found["rank_histogram"], ranks)
    close(found["rank_histogram:ties=split"], ranks)
    share = (data.members > 1).mean("member")
    edges = np.linspace(0, 1, 6) - 1e-9  # xskillscore closes bins to the right at the last only
    edges[-1] = 1
    expected = xs.reliability(data.observed > 1, share, list(DIMS), edges)
    close(found["reliability:>1:bins=5"][1], expected)
    close(found["reliability:>1:bins=5"][2], expected.samples / data.observed.size)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), missing=st.booleans())
def test_contingency(seed: int, missing: bool) -> None:
    categorical, data = oracle("scores.categorical"), drawn(seed, 0, missing, None)
    events = (
        (data.forecast > 1.5).where(data.observed.notnull()),
        (data.observed > 1.5).where(data.observed.notnull()),
    )
    table = categorical.BinaryContingencyManager(*events).transform()
    found = data.scores(*(f"{name}:>1.5" for name in ("csi", "ets", "far", "pod", "hss", "frequency_bias", "accuracy")))
    for name, function in (
        ("csi", table.critical_success_index),
        ("ets", table.equitable_threat_score),
        ("far", table.false_alarm_ratio),
        ("pod", table.probability_of_detection),
        ("hss", table.heidke_skill_score),
        ("frequency_bias", table.frequency_bias),
        ("accuracy", table.accuracy),
    ):
        close(found[f"{name}:>1.5"], function())


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), missing=st.booleans())
def test_seeps(seed: int, missing: bool) -> None:
    categorical, random = oracle("scores.categorical"), np.random.default_rng(seed)
    rain = [np.round(random.exponential(2, SHAPE) * (random.random(SHAPE) > 0.4), 1) for _ in range(2)]
    if missing:
        rain[1][0, 1, 2] = np.nan
    fields = {"seeps_dry_fraction": random.uniform(0.02, 0.98, SHAPE), "seeps_threshold": random.uniform(1, 3, SHAPE)}
    domain = Domain.make(LATITUDE, LONGITUDE, weights="cos")
    data = Case(Piece("tp", rain[0], rain[1], fields), domain, "mask" if missing else "raise")
    expected = categorical.seeps(
        *(data.array(rain[0]), data.array(rain[1]), data.array(fields["seeps_dry_fraction"])),
        data.array(fields["seeps_threshold"]),
        dry_light_threshold=0.2,
        weights=data.weights,
    )
    close(data.scores("seeps:dry=0.2")["seeps:dry=0.2"], expected)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), window=st.sampled_from([1, 3, 5]))
def test_fractions(seed: int, window: int) -> None:
    spatial, filters = oracle("scores.spatial"), oracle("scipy.ndimage")
    data = drawn(seed, 0, False, None)
    inside, half = np.zeros(SHAPE[1:], bool), window // 2
    inside[half : SHAPE[1] - half, half : SHAPE[2] - half] = True
    regions = {"all": "global", "inside": inside}
    domain = Domain.make(LATITUDE, LONGITUDE, weights=None, regions=regions)
    found = scores_of(data.piece, domain, f"fss:>1:window={window}")
    options = {"event_threshold": 1, "window_size": (window, window), "spatial_dims": DIMS[1:]}
    expected = spatial.fss_2d(data.forecast, data.observed, **options, reduce_dims=list(DIMS))
    shares = [
        filters.uniform_filter((values > 1).values.astype(float), (1, window, window), mode="constant")
        for values in (data.forecast, data.observed)
    ]
    whole = 1 - ((shares[0] - shares[1]) ** 2).sum() / (shares[0] ** 2 + shares[1] ** 2).sum()
    close(next(iter(found.values())), [whole, expected])


def test_every_oracle_is_there() -> None:
    for name in ("scores", "xskillscore", "scoringrules"):
        assert oracle(name), name


@pytest.mark.parametrize("members", [0, 3])
def test_spectrum_keeps_the_energy(members: int) -> None:
    data = drawn(5, members, False, None)
    forecast = data.members if members else data.forecast
    power = data.scores("zonal_spectrum")["zonal_spectrum"]
    circle = 2 * np.pi * 6_367_500 * np.cos(np.deg2rad(data.observed.latitude))
    close(power.sum(), ((forecast**2) * circle).mean())


def test_paired_t_is_scipys() -> None:
    stats = oracle("scipy.stats")
    first, second = differing_series(30)
    first[3, 1] = np.nan
    found = compare(first, second, "paired_t", confidence=0.9)
    expected = stats.ttest_rel(first, second, nan_policy="omit", axis=0)
    interval = expected.confidence_interval(0.9)
    np.testing.assert_allclose(found.p_value, expected.pvalue, rtol=1e-10)
    np.testing.assert_allclose(found.lower, interval.low, rtol=1e-10)
    np.testing.assert_allclose(found.upper, interval.high, rtol=1e-10)
    assert found.n.values.tolist() == [[30, 30], [29, 29], [30, 30]]
    assert found.sizes == {"lead_time": 3, "region": 2}
    assert "init_time" not in found.coords


def test_dm_is_that_of_scores() -> None:
    diebold_mariano = oracle("scores.stats.statistical_tests").diebold_mariano
    first, second = differing_series(40, leads=4)
    found = compare(first, second, "dm").isel(region=0)
    differences = (first - second).isel(region=0).transpose("lead_time", ...)
    differences = differences.assign_coords(h=("lead_time", [1, 2, 3, 4]))  # inits are 12 h apart, as leads are
    expected = diebold_mariano(differences, "lead_time", "h", method="HLN", statistic_distribution="t")
    np.testing.assert_allclose(found.difference, expected["mean"], rtol=1e-10)
    np.testing.assert_allclose(found.p_value, 2 * np.minimum(expected.confidence_gt_0, 1 - expected.confidence_gt_0))
    bounds = np.sort([expected.ci_lower, expected.ci_upper], axis=0)
    np.testing.assert_allclose([found.lower, found.upper], bounds, rtol=1e-10)
