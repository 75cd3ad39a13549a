"""Metrics of the spread of an ensemble, and of how it compares with its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

import numpy as np

from insitu_xr.errors import RequestError

from .ensemble import EnsembleVariance
from .means import Means
from .metrics import SQUARED_ERROR, Metric
from .statistics import Statistic

VARIANCE = EnsembleVariance()


@dataclass(frozen=True)
class Variance(Metric):
    """Mean variance of the members, divided by their number less one."""

    ensemble = True
    default_name = "ensemble_variance"
    title = "mean variance of the members"
    power = 2
    best = None

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (VARIANCE,)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(VARIANCE)


@dataclass(frozen=True)
class Spread(Variance):
    """Root of the mean variance of the members."""

    default_name = "spread"
    title = "root of the mean variance of the members"
    power = 1

    @override
    def compute(self, means: Means) -> np.ndarray:
        return np.sqrt(means.of(VARIANCE))


@dataclass(frozen=True)
class DebiasedMSE(Metric):
    """Squared error of the mean of the members, less what it owes to their small number."""

    ensemble = True
    default_name = "mse_debiased"
    title = "mean squared error of the ensemble mean, debiased"
    power = 2

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (SQUARED_ERROR, VARIANCE)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(SQUARED_ERROR) - means.of(VARIANCE) / means.members


@dataclass(frozen=True)
class SpreadSkill(Metric):
    """Ratio of spread and error of the mean: 1 where the spread says how large errors are.

    Attributes
    ----------
    form : {"unbiased", "fortin", "naive"}
        ``"unbiased"`` divides by the debiased error (WeatherBench-X), ``"fortin"`` multiplies the plain ratio by the
        root of (M + 1) / M, ``"naive"`` leaves it (Earth2Studio).
    """

    form: str = "unbiased"
    ensemble = True
    power = 0
    best = 1.0
    title = "ratio of spread and skill"

    def __post_init__(self) -> None:
        if self.form not in ("unbiased", "fortin", "naive"):
            raise RequestError(f"form must be 'unbiased', 'fortin' or 'naive', but got {self.form!r}; name one of them")

    @property
    @override
    def default_name(self) -> str:
        return "spread_skill" if self.form == "unbiased" else f"spread_skill_{self.form}"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return self.form

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (SQUARED_ERROR, VARIANCE)

    def _orientation(self) -> str:
        return "one is best"

    @override
    def compute(self, means: Means) -> np.ndarray:
        error, variance, members = means.of(SQUARED_ERROR), means.of(VARIANCE), means.members
        if self.form == "unbiased":
            error = error - variance / members
        elif self.form == "fortin":
            variance = variance * (members + 1) / members
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.sqrt(variance / error))
