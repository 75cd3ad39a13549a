"""Metrics of ensembles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

import numpy as np

from .ensemble import EnergyDistances, MemberAbsoluteError, MemberDistance, RankCounts
from .means import Means
from .metrics import Metric
from .statistics import Statistic


def _estimated(fair: bool) -> str:
    return "fair: members are compared with others only" if fair else "ecdf: of the empirical distribution"


@dataclass(frozen=True)
class CRPS(Metric):
    """Continuous ranked probability score.

    Attributes
    ----------
    fair : bool
        Whether it is that of an ensemble of any size (WeatherBench2, WeatherBench-X); otherwise that of the empirical
        distribution (``"ecdf"``), which is smaller the more members there are. Of one member, the absolute error.
    """

    fair: bool = True
    ensemble = True
    title = "continuous ranked probability score"

    @property
    @override
    def default_name(self) -> str:
        return "crps" if self.fair else "crps_ecdf"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return _estimated(self.fair)

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (MemberAbsoluteError(), MemberDistance(self.fair))

    @override
    def compute(self, means: Means) -> np.ndarray:
        skill, distance = (means.of(part) for part in self.parts(means.members))
        return skill - distance / 2


@dataclass(frozen=True)
class CRPSSkill(Metric):
    """Mean absolute error of the members, the first part of CRPS."""

    ensemble = True
    default_name = "crps_skill"
    title = "mean absolute error of the members"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (MemberAbsoluteError(),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(MemberAbsoluteError())


@dataclass(frozen=True)
class CRPSSpread(Metric):
    """Mean absolute difference between members, twice the second part of CRPS.

    Attributes
    ----------
    fair : bool
        As for `CRPS`.
    """

    fair: bool = True
    ensemble = True
    best = None
    title = "mean absolute difference between members"

    @property
    @override
    def default_name(self) -> str:
        return "crps_spread" if self.fair else "crps_spread_ecdf"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return _estimated(self.fair)

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (MemberDistance(self.fair),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(MemberDistance(self.fair))


@dataclass(frozen=True)
class EnergyScore(Metric):
    """Energy score of whole fields: CRPS with the distance between fields in place of that between numbers.

    Attributes
    ----------
    fair : bool
        As for `CRPS`.
    adjacent : bool
        Whether members are compared with their neighbours only (WeatherBench2), instead of with all.
    area : bool
        Whether distances are roots of area means; otherwise of plain sums (WeatherBench-X).
    """

    fair: bool = True
    adjacent: bool = False
    area: bool = True
    ensemble = True
    title = "energy score"

    @property
    @override
    def default_name(self) -> str:
        parts = ["energy_score", *(() if self.fair or self.adjacent else ("ecdf",))]
        return "_".join([*parts, *(("adjacent",) if self.adjacent else ()), *(() if self.area else ("unweighted",))])

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        pairs = "adjacent pairs of members" if self.adjacent else _estimated(self.fair)
        return f"{pairs}; norm of {'area means' if self.area else 'plain sums'}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (EnergyDistances(self.adjacent, self.area),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        (part,), members = self.parts(means.members), means.members
        pairs = EnergyDistances(self.adjacent, self.area).pairs(members)
        squared = means.each if self.area else means.sum_each
        score = np.zeros(1)
        for member in range(members):
            score = score + np.sqrt(squared(part, member)) / members
        for number in range(len(pairs)):
            score = score - np.sqrt(squared(part, members + number)) * (self._share(members) / 2)
        return means.average(score, part)

    def _share(self, members: int) -> float:
        """What each distance is multiplied by to make a mean of all."""
        if members < 2:
            return 0.0
        if self.adjacent:
            return 1 / (members - 1)
        return 2 / (members * (members - 1 if self.fair else members))


@dataclass(frozen=True)
class RankHistogram(Metric):
    """Share of points in which the reference has each rank among the members.

    Attributes
    ----------
    ties : {"lowest", "split"}
        See `RankCounts`.
    area : bool
        Whether points count by weight.
    """

    ties: str = "lowest"
    area: bool = True
    ensemble = True
    dims = ("rank",)
    power = 0
    best = None
    title = "share of points by rank of the reference"

    @property
    @override
    def default_name(self) -> str:
        return "rank_histogram"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return f"ties {self.ties}; {'by area' if self.area else 'unweighted'}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (RankCounts(self.ties, self.area),)

    @override
    def coords(self, members: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"rank": np.arange(members + 1)}

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.all(self.parts(means.members)[0])
