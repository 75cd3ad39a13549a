"""Statistics of events: a threshold, fixed or climatological, that is crossed or not."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, override

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, float64, like, namespace
from .blocks import Block
from .grids import digest
from .statistics import Statistic

RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

_WRITTEN = re.compile(r"\s*(>=|<=|>|<)\s*(.+?)\s*$")


@dataclass(frozen=True)
class ThresholdField:
    """A threshold for each point ``(latitude, longitude)`` of the domain; equal where the values are.

    Attributes
    ----------
    identity : str
        Digest of the values.
    """

    identity: str
    array: np.ndarray = field(compare=False, repr=False)

    @classmethod
    def of(cls, values: Any) -> ThresholdField:
        """Make one of an array on the grid, latitudes ascending."""
        array = np.ascontiguousarray(values)
        return cls(digest(array), array)


@dataclass(frozen=True)
class Event:
    """A value beyond a threshold.

    Attributes
    ----------
    relation : {">", ">=", "<", "<="}
        How a value must lie to the threshold.
    threshold : float, str or ThresholdField
        A number in the units of the variable; a climatological field by kind, such as ``"quantile_0.9"``; or a field.

    Examples
    --------
    >>> Event.parse(">281"), str(Event.parse("<= quantile_0.1"))
    (Event(relation='>', threshold=281.0), '<=quantile_0.1')
    """

    relation: str
    threshold: float | str | ThresholdField

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise RequestError(f"relation of an event must be one of {list(RELATIONS)}, but got {self.relation!r}")
        if isinstance(self.threshold, str) and not self.threshold.isidentifier() and "." not in self.threshold:
            raise RequestError(f"threshold must be a number or the name of a climatology, but got {self.threshold!r}")

    @classmethod
    def parse(cls, text: str | Event) -> Event:
        """Read an event as it is written in the name of a metric."""
        if isinstance(text, Event):
            return text
        found = _WRITTEN.match(text)
        if not found:
            raise RequestError(
                f"an event must be written as a relation and a threshold, but got {text!r}; write '>281' or "
                "'>=quantile_0.9'"
            )
        relation, threshold = found.groups()
        try:
            return cls(relation, float(threshold))
        except ValueError:
            return cls(relation, threshold)

    def __str__(self) -> str:
        if isinstance(self.threshold, float | int):
            return f"{self.relation}{self.threshold:g}"
        return f"{self.relation}{self.threshold if isinstance(self.threshold, str) else self.threshold.identity}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Climatological fields that the threshold is taken from."""
        return (self.threshold,) if isinstance(self.threshold, str) else ()

    def happens(self, values: Array, block: Block) -> Array:
        """Where values of a block are beyond the threshold."""
        threshold: Any = self.threshold
        if isinstance(threshold, str):
            threshold = block.input(threshold)
        elif isinstance(threshold, ThresholdField):
            threshold = like(threshold.array[block.start : block.start + len(block.latitude)], values)
        return RELATIONS[self.relation](values, threshold)

    def probability(self, block: Block) -> Array:
        """Share of the members for which it happens; 0 or 1 for a single forecast."""

        def make() -> Array:
            happens = self.happens(block.forecast, block)
            return float64(happens.sum(0)) / block.members if block.members else float64(happens)

        return block.once((self, "probability"), make)

    def observed(self, block: Block) -> Array:
        """Whether it happens in the reference."""
        return block.once((self, "observed"), lambda: self.happens(block.reference, block))


@dataclass(frozen=True)
class _EventStatistic(Statistic):
    event: Event

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("forecast", "reference", *self.event.inputs)


@dataclass(frozen=True)
class BrierDifference(_EventStatistic):
    """Squared difference of the probability of an event and whether it happened.

    Attributes
    ----------
    event : Event
        The event.
    fair : bool
        Whether what the score gains by having few members is taken off.
    """

    fair: bool = False

    def values(self, block: Block) -> Iterator[Array]:
        """Give the score."""
        probability = self.event.probability(block)
        score = (probability - float64(self.event.observed(block))) ** 2
        if self.fair and block.members > 1:
            score = score - probability * (1 - probability) / (block.members - 1)
        yield score


@dataclass(frozen=True)
class RankedProbability(Statistic):
    """Ranked probability score: squared differences of the distributions at thresholds, summed.

    Attributes
    ----------
    events : tuple of Event
        One for each threshold, all with the same relation.
    fair : bool
        As for the Brier score.
    """

    events: tuple[Event, ...]
    fair: bool = False

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        return ("forecast", "reference", *dict.fromkeys(name for event in self.events for name in event.inputs))

    def values(self, block: Block) -> Iterator[Array]:
        """Give the sum over the thresholds."""
        yield sum(next(BrierDifference(event, self.fair).values(block)) for event in self.events)


@dataclass(frozen=True)
class ContingencyCounts(_EventStatistic):
    """Hits, misses and false alarms of an event; of an ensemble, of the event in more than half of the members.

    Attributes
    ----------
    event : Event
        The event.
    probability : float
        The event is forecast where its probability is above this.
    """

    probability: float = 0.5

    @override
    def components(self, members: int, columns: int) -> int:
        return 3

    def values(self, block: Block) -> Iterator[Array]:
        """Give the hits, the misses and the false alarms."""
        forecast, observed = self.event.probability(block) > self.probability, self.event.observed(block)
        yield forecast & observed
        yield ~forecast & observed
        yield forecast & ~observed


@dataclass(frozen=True)
class ReliabilityCounts(_EventStatistic):
    """How often an event had a probability, and how often it happened then.

    Attributes
    ----------
    event : Event
        The event.
    bins : int
        Number of equal bins of probability; the last one includes 1.
    """

    bins: int = 10

    @override
    def components(self, members: int, columns: int) -> int:
        return 3 * self.bins

    def values(self, block: Block) -> Iterator[Array]:
        """Give for each bin: whether the probability is in it; the probability then; whether the event happens."""
        probability, observed = self.event.probability(block), self.event.observed(block)
        xp = namespace(probability)
        found = xp.floor(probability * self.bins + 1e-9)  # 0.3 * 10 falls short of 3 by rounding
        found = xp.where(found >= self.bins, found * 0 + (self.bins - 1), found)
        for number in range(self.bins):
            inside = found == number
            yield inside
            yield inside * probability
            yield inside & observed
