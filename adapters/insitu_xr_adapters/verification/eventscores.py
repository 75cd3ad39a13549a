"""Metrics of events: a threshold that is crossed or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import override

import numpy as np

from insitu_xr.errors import RequestError

from .events import BrierDifference, ContingencyCounts, Event, RankedProbability, ReliabilityCounts
from .means import Means
from .metrics import Metric
from .statistics import Statistic


def _rates(hits: np.ndarray, misses: np.ndarray, alarms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hits expected by chance, and correct negatives."""
    return (hits + alarms) * (hits + misses), 1 - hits - misses - alarms


def _ets(hits: np.ndarray, misses: np.ndarray, alarms: np.ndarray) -> np.ndarray:
    chance, _ = _rates(hits, misses, alarms)
    return np.asarray((hits - chance) / (hits + misses + alarms - chance))


def _hss(hits: np.ndarray, misses: np.ndarray, alarms: np.ndarray) -> np.ndarray:
    _, negatives = _rates(hits, misses, alarms)
    below = (hits + misses) * (misses + negatives) + (hits + alarms) * (alarms + negatives)
    return np.asarray(2 * (hits * negatives - alarms * misses) / below)


#: scores of a table of hits, misses and false alarms, as shares of all points: formula, title, best value
CONTINGENCY: Mapping[str, tuple[Callable[..., np.ndarray], str, float]] = {
    "csi": (lambda h, m, f: h / (h + m + f), "critical success index", 1.0),
    "ets": (_ets, "equitable threat score", 1.0),
    "far": (lambda h, m, f: f / (h + f), "false alarm ratio", 0.0),
    "pod": (lambda h, m, f: h / (h + m), "probability of detection", 1.0),
    "hss": (_hss, "Heidke skill score", 1.0),
    "frequency_bias": (lambda h, m, f: (h + f) / (h + m), "frequency of forecast and observed events", 1.0),
    "accuracy": (lambda h, m, f: 1 - m - f, "share of right forecasts", 1.0),
}


@dataclass(frozen=True)
class Contingency(Metric):
    """A score of the table of hits, misses and false alarms of an event.

    Attributes
    ----------
    event : Event or str
        The event, such as ``">281"``.
    score : {"csi", "ets", "far", "pod", "hss", "frequency_bias", "accuracy"}
        Which score.
    probability : float
        An ensemble forecasts the event where more than this share of its members has it.
    """

    event: Event | str
    score: str = "csi"
    probability: float = 0.5
    power = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "event", Event.parse(self.event))
        if self.score not in CONTINGENCY:
            raise RequestError(f"score must be one of {sorted(CONTINGENCY)}, but got {self.score!r}; name one of them")

    @property
    @override
    def default_name(self) -> str:
        return f"{self.score}{self.event}"

    @property
    @override
    def title(self) -> str:  # type: ignore[override]
        return f"{CONTINGENCY[self.score][1]} of {self.event}"

    @property
    @override
    def best(self) -> float:  # type: ignore[override]
        return CONTINGENCY[self.score][2]

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (ContingencyCounts(Event.parse(self.event), self.probability),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        (part,) = self.parts(means.members)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(CONTINGENCY[self.score][0](*(means.of(part, number) for number in range(3))))

    @override
    def attrs(self, units: str | None, members: int = 0) -> dict[str, object]:
        found = super().attrs(units)
        if members:
            found["forecast"] = f"probability above {self.probability:g}"
        return found


@dataclass(frozen=True)
class Brier(Metric):
    """Brier score of an event.

    Attributes
    ----------
    event : Event or str
        The event, such as ``">281"`` or ``">quantile_0.9"``.
    fair : bool
        Whether what an ensemble of any size would have is estimated.
    """

    event: Event | str
    fair: bool = False
    ensemble = True
    power = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "event", Event.parse(self.event))

    @property
    @override
    def default_name(self) -> str:
        return f"brier{'_fair' if self.fair else ''}{self.event}"

    @property
    @override
    def title(self) -> str:  # type: ignore[override]
        return f"Brier score of {self.event}"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return "fair" if self.fair else "share of the members"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (BrierDifference(Event.parse(self.event), self.fair),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(self.parts(means.members)[0])


@dataclass(frozen=True)
class RPS(Metric):
    """Ranked probability score: Brier scores of several thresholds, added.

    Attributes
    ----------
    thresholds : tuple of float or str
        Ascending thresholds, or climatological fields by kind.
    relation : {"<=", "<", ">", ">="}
        What is a category: by default, up to and with a threshold.
    fair : bool
        As for `Brier`.
    """

    thresholds: tuple[float | str, ...]
    relation: str = "<="
    fair: bool = False
    ensemble = True
    power = 0
    title = "ranked probability score"

    def __post_init__(self) -> None:
        if not self.thresholds:
            raise RequestError("thresholds must be at least one, but got none; pass RPS(thresholds=(0.0, 10.0))")
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        self.parts(0)

    @property
    @override
    def default_name(self) -> str:
        return "rps_fair" if self.fair else "rps"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        kind = "fair" if self.fair else "share of the members"
        return f"{kind}; thresholds {self.relation} {', '.join(map(str, self.thresholds))}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        events = tuple(Event(self.relation, threshold) for threshold in self.thresholds)
        return (RankedProbability(events, self.fair),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.of(self.parts(means.members)[0])


@dataclass(frozen=True)
class Reliability(Metric):
    """What a reliability diagram shows: by bin of probability, its mean, how often the event happened, and its share.

    Attributes
    ----------
    event : Event or str
        The event.
    bins : int
        Number of equal bins.
    """

    event: Event | str
    bins: int = 10
    ensemble = True
    dims = ("quantity", "probability_bin")
    power = 0
    best = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "event", Event.parse(self.event))
        if self.bins < 1:
            raise RequestError(f"bins must be at least 1, but got {self.bins}; 10 is usual")

    @property
    @override
    def default_name(self) -> str:
        return f"reliability{self.event}"

    @property
    @override
    def title(self) -> str:  # type: ignore[override]
        return f"reliability of the probability of {self.event}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (ReliabilityCounts(Event.parse(self.event), self.bins),)

    @override
    def coords(self, members: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        quantities = np.array(["forecast_probability", "observed_frequency", "share"])
        return {"quantity": quantities, "probability_bin": (np.arange(self.bins) + 0.5) / self.bins}

    @override
    def compute(self, means: Means) -> np.ndarray:
        counts = means.all(self.parts(means.members)[0])
        share, forecast, observed = (counts[..., number::3] for number in range(3))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack([forecast / share, observed / share, share], -2)
