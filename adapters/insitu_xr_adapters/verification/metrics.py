"""Metrics: functions of mean statistics. Here what they have in common, and those of one forecast.

A metric is a frozen dataclass: its fields are its parameters, with the defaults that `resolve` may change by
convention. It says which statistics it needs, and computes scores out of their means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, override

import numpy as np

from insitu_xr.errors import RequestError

from .means import Means, weight_of
from .statistics import AbsoluteError, Moment, Statistic, Weight

ERROR = Moment(("error",))
SQUARED_ERROR = Moment(("error", "error"))


@dataclass(frozen=True)
class Metric:
    """What all metrics have.

    Attributes
    ----------
    label : str, optional
        What the scores are called; by default after metric and parameters.
    """

    label: str | None = field(default=None, kw_only=True)

    #: whether only an ensemble has it
    ensemble: ClassVar[bool] = False
    #: dimensions of the scores beside those of the forecast
    dims: ClassVar[tuple[str, ...]] = ()
    #: power of the units of the variable: 0 for a number without
    power: ClassVar[int] = 1
    #: the best value: of an error 0, of a skill 1; None where there is none
    best: ClassVar[float | None] = 0.0
    #: what attributes call it
    title: ClassVar[str] = ""
    #: how it is estimated, where more than one way is in use
    estimator: ClassVar[str] = ""

    @property
    def default_name(self) -> str:
        """What it is called where no label is given."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What the scores are called."""
        return self.label or self.default_name

    def parts(self, members: int) -> tuple[Statistic, ...]:
        """Return the statistics that `compute` takes."""
        raise NotImplementedError

    def statistics(self, members: int) -> tuple[Statistic, ...]:
        """Return the statistics that must be summed, those that weigh and count among them.

        Parameters
        ----------
        members : int
            Number of members of the forecast, 0 where it has no such dimension.

        Raises
        ------
        RequestError
            If the metric is of ensembles and the forecast is none.
        """
        if self.ensemble and not members:
            raise RequestError(
                f"a forecast must have a dimension of members for {self.name!r}, but got none; name it with dims=, or "
                "leave the metric out"
            )
        parts = self.parts(members)
        counts = (self._count(part) for part in parts)
        return tuple(dict.fromkeys((*parts, *map(weight_of, parts), *counts)))

    def _count(self, part: Statistic) -> Weight:
        return Weight(part.inputs, counted=True)

    def compute(self, means: Means) -> np.ndarray:
        """Return scores ``(*kept, region, *dims)``."""
        raise NotImplementedError

    def n_valid(self, means: Means) -> np.ndarray:
        """Return how many points the scores are made of, ``(*kept, region)``."""
        return means.total(self._count(self.parts(means.members)[0]))

    def coords(self, members: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """Return the labels along ``dims``.

        Parameters
        ----------
        members : int
            Number of members.
        shape : (int, int)
            Number of latitudes and longitudes.
        """
        return {}

    def attrs(self, units: str | None, members: int = 0) -> dict[str, Any]:
        """Return the attributes of the scores: estimator, units, orientation and whether a mean was scored."""
        found: dict[str, Any] = {"metric": self.default_name, "long_name": self.title}
        if self.estimator:
            found["estimator"] = self.estimator
        found["units"] = self._units(units)
        found["orientation"] = self._orientation()
        if self.best is not None:
            found["best"] = self.best
        if members and not self.ensemble:
            found["forecast"] = "mean of the members"
        return found

    def _orientation(self) -> str:
        return {None: "none", 0.0: "negative", 1.0: "positive"}[self.best]

    def _units(self, units: str | None) -> str:
        if self.power == 0:
            return "1"
        units = units or "unknown"
        return units if self.power == 1 else f"({units})**{self.power}"


@dataclass(frozen=True)
class MSE(Metric):
    """Mean of the squared error."""

    default_name = "mse"
    title = "mean squared error"
    power = 2

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (SQUARED_ERROR,)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(SQUARED_ERROR)


@dataclass(frozen=True)
class RMSE(MSE):
    """Root of the mean over space and inits of the squared error: the root is taken last."""

    default_name = "rmse"
    title = "root mean squared error"
    power = 1

    @override
    def compute(self, means: Means) -> np.ndarray:
        return np.sqrt(means.of(SQUARED_ERROR))


@dataclass(frozen=True)
class MAE(Metric):
    """Mean of the absolute error."""

    default_name = "mae"
    title = "mean absolute error"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (AbsoluteError(),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(AbsoluteError())


@dataclass(frozen=True)
class Bias(Metric):
    """Mean of forecast less reference."""

    default_name = "bias"
    title = "mean error, forecast less reference"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (ERROR,)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(ERROR)

    def _orientation(self) -> str:
        return "zero is best"


@dataclass(frozen=True)
class VectorRMSE(Metric):
    """Root mean squared length of the error of a vector: of each component the squared error is averaged, then added.

    Attributes
    ----------
    variables : tuple of str
        The components, such as ``("u10", "v10")``.
    output : str
        Name of the variable that the scores are of.
    """

    variables: tuple[str, ...] = ("u", "v")
    output: str = "wind_vector"
    default_name = "vector_rmse"
    title = "root mean squared error of the vector"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (SQUARED_ERROR,)

    def compute(self, *means: Means) -> np.ndarray:
        """Return the scores out of the means of each component."""
        return np.sqrt(sum(component.of(SQUARED_ERROR) for component in means))


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


def parameters(metric: Metric) -> Mapping[str, Any]:
    """Return the parameters of a metric by name, without its label."""
    return {name: getattr(metric, name) for name in type(metric).__dataclass_fields__ if name != "label"}
