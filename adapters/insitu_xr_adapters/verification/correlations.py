"""Metrics of anomalies and of correlation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

import numpy as np

from .means import Means
from .metrics import Metric
from .statistics import Moment, Statistic


@dataclass(frozen=True)
class Activity(Metric):
    """Standard deviation of the anomalies: ``forecast_activity``, or that of the reference.

    Attributes
    ----------
    source : {"forecast", "reference"}
        Whose anomalies.
    base : str
        Climatological field that they are taken from.
    """

    source: str = "forecast"
    base: str = "mean"
    best = None
    title = "root mean squared anomaly"

    @property
    @override
    def default_name(self) -> str:
        return "activity" if self.source == "forecast" else "reference_activity"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (Moment((f"{self.source}_anomaly",) * 2, self.base),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return np.sqrt(means.of(self.parts(means.members)[0]))


@dataclass(frozen=True)
class ACC(Metric):
    """Anomaly correlation coefficient.

    Attributes
    ----------
    centered : bool
        Whether the mean anomaly of each field is taken off first, as the WMO has it.
    pooled : bool, optional
        Whether moments are averaged over the inits before the ratio is taken, as WeatherBench-X has it; otherwise the
        ratios of the inits are averaged, as WeatherBench2 has it. By default, pooled where not centered.
    base : str
        Climatological field that anomalies are taken from.
    """

    centered: bool = False
    pooled: bool | None = None
    base: str = "mean"
    power = 0
    best = 1.0
    title = "anomaly correlation coefficient"

    @property
    def _pools(self) -> bool:
        return not self.centered if self.pooled is None else self.pooled

    @property
    @override
    def default_name(self) -> str:
        name = "acc_centered" if self.centered else "acc"
        if self._pools == (not self.centered):
            return name
        return f"{name}_pooled" if self._pools else f"{name}_mean_of_ratios"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        how = "pooled over inits" if self._pools else "mean over inits of ratios"
        return f"{'centered' if self.centered else 'uncentered'}, {how}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return _moments("forecast_anomaly", "reference_anomaly", self.centered, self.base)

    @override
    def compute(self, means: Means) -> np.ndarray:
        parts = self.parts(means.members)
        if self._pools:
            return _correlation([means.of(part) for part in parts])
        return means.average(_correlation([means.each(part) for part in parts]), parts[0])


@dataclass(frozen=True)
class Correlation(Metric):
    """Pearson's correlation of forecast and reference over all points and inits."""

    default_name = "correlation"
    power = 0
    best = 1.0
    title = "correlation of forecast and reference"
    estimator = "centered, pooled over inits"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return _moments("forecast", "reference", True, "mean")

    @override
    def compute(self, means: Means) -> np.ndarray:
        return _correlation([means.of(part) for part in self.parts(means.members)])


def _moments(first: str, second: str, centered: bool, base: str) -> tuple[Statistic, ...]:
    products = ((first, second), (first, first), (second, second), *(((first,), (second,)) if centered else ()))
    return tuple(Moment(factors, base) for factors in products)


def _correlation(moments: list[np.ndarray]) -> np.ndarray:
    both, first, second, *middles = moments
    if middles:
        one, other = middles
        both, first, second = both - one * other, first - one**2, second - other**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(both / np.sqrt(first * second))
