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


def parameters(metric: Metric) -> Mapping[str, Any]:
    """Return the parameters of a metric by name, without its label."""
    return {name: getattr(metric, name) for name in type(metric).__dataclass_fields__ if name != "label"}
