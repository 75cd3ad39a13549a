"""Means out of sums over each init."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from insitu_xr.errors import RequestError

from .statistics import Statistic, Weight
from .sums import Sums


def weight_of(statistic: Statistic) -> Weight:
    """Return the statistic that a sum is divided by to be a mean."""
    return Weight(statistic.inputs, counted=not statistic.weighted, rows=statistic.per_row)


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """Totals over space of statistics, averaged over the inits or kept apart.

    Attributes
    ----------
    totals : mapping of Statistic to numpy.ndarray
        ``(init, *rest, component, region)``; zero where an init lacks a lead.
    members : int
        Number of members of the forecast, 0 for none.
    keep : bool
        Whether every init has a mean of its own.
    pooled : bool
        Whether sums of all inits are divided by the sum of all weights; otherwise the means of the inits are averaged,
        which differs where points are missing.
    weights : numpy.ndarray, optional
        How often each init counts: 0 leaves it out, and a draw with replacement has numbers above 1.

    Examples
    --------
    >>> from insitu_xr_adapters.verification.statistics import Moment
    >>> bias = Moment(("error",))
    >>> totals = {bias: np.array([2.0, 9.0]).reshape(2, 1, 1), Weight(): np.array([2.0, 3.0]).reshape(2, 1, 1)}
    >>> Means(totals).of(bias), Means(totals, pooled=False).of(bias)
    (array([2.2]), array([2.]))
    """

    totals: Mapping[Statistic, np.ndarray]
    members: int = 0
    keep: bool = False
    pooled: bool = True
    weights: np.ndarray | None = None

    def of(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        """Return the mean of a component, ``(*kept, region)``."""
        if not self.pooled and not self.keep:
            return self.average(self.each(statistic, component), statistic)
        return _ratio(self._summed(self._raw(statistic, component)), self.weight(statistic))

    def all(self, statistic: Statistic) -> np.ndarray:
        """Return the means of all components, ``(*kept, region, component)``."""
        count = self._found(statistic).shape[-2]
        return np.stack([self.of(statistic, component) for component in range(count)], -1)

    def each(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        """Return the mean of a component in each init, ``(init, *rest, region)``."""
        return _ratio(self._raw(statistic, component), self._raw(weight_of(statistic)))

    def sum_each(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        """Return the sum of a component in each init, ``(init, *rest, region)``; missing where nothing counts."""
        values = self._raw(statistic, component)
        return np.where(self._raw(weight_of(statistic)) > 0, values, np.nan)

    def average(self, values: np.ndarray, statistic: Statistic) -> np.ndarray:
        """Average numbers that each init has, over those in which something counts; or keep them.

        Parameters
        ----------
        values : numpy.ndarray
            ``(init, *rest, region)``.
        statistic : Statistic
            One that the numbers were made of.
        """
        if self.keep:
            return values
        counts = self._raw(weight_of(statistic)) > 0
        return _ratio(self._summed(np.where(counts, values, 0.0)), self._summed(counts.astype(np.float64)))

    def total(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        """Return the sum of a component, ``(*kept, region)``."""
        return self._summed(self._raw(statistic, component))

    def weight(self, statistic: Statistic) -> np.ndarray:
        """Return what the sum of a statistic is divided by, ``(*kept, region)``."""
        return self._summed(self._raw(weight_of(statistic)))

    def _raw(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        return self._found(statistic)[..., component, :]

    def _found(self, statistic: Statistic) -> np.ndarray:
        if statistic not in self.totals:
            raise RequestError(
                f"sums must have been kept of {statistic.key}, but got those of {[s.key for s in self.totals]}; score "
                "with a metric that needs it"
            )
        return self.totals[statistic]

    def _summed(self, values: np.ndarray) -> np.ndarray:
        if self.keep:
            return values
        if self.weights is not None:
            shape = (-1,) + (1,) * (values.ndim - 1)
            weights = np.asarray(self.weights, np.float64).reshape(shape)
            values = np.where(weights > 0, values * weights, 0.0)
        # the same order whatever else lies beside: numpy's own depends on the shape
        return Sums.of(values, 0, len(values)).total


def _ratio(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(weights > 0, values / weights, np.nan))
