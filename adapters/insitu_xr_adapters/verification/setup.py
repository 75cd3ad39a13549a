"""What was asked, once it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from insitu_xr_adapters.verification.align import Pairs
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.matching import Grid, Matched
from insitu_xr_adapters.verification.metrics import Metric
from insitu_xr_adapters.verification.statistics import Statistic
from insitu_xr_adapters.verification.times import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Arguments of ``score`` as they were given."""

    forecast: Any
    reference: Any
    metrics: Any
    climatology: Any = None
    regions: Any = None
    weights: Any = "auto"
    align: Any = "maximize"
    nan: Any = "raise"
    lead_time: Any = None
    level: Any = None
    variables: Any = None
    baselines: Any = ()
    convention: str | None = None
    dims: Mapping[str, str] | None = None

    def with_options(self, **options: Any) -> Asked:
        """The same with other options."""
        return replace(self, **options)


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """A dataset that is read, and where each pair finds its samples in it.

    Attributes
    ----------
    name : str
        Such as "forecast 'gc'".
    dims : tuple of str
        The dimensions that pairs choose along.
    asks : mapping of str to tuple of array, shape (inits, leads)
        For each use of the dataset, positions along those dimensions: "valid" for the field at the valid time, and
        "init" for that at the init time.
    """

    name: str
    matched: Matched
    dims: tuple[str, ...]
    asks: Mapping[str, tuple[IntArray, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Something that is scored: a forecast, or a baseline made of what is there anyway."""

    name: str
    #: name of the feed; of a baseline, None for the reference
    feed: str | None
    ask: str
    members: int = 0
    #: kind of the climatology whose fields are the forecast
    kind: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """A checked request.

    Attributes
    ----------
    feeds : mapping of str to Feed
        Everything that is read.
    models : tuple of Model
    references : mapping of str to str
        Feed of each reference.
    kinds : mapping of str to tuple of str
        Per variable, the fields of the climatology that are needed.
    statistics : mapping of (model, variable) to tuple of Statistic
    named_models, named_references : bool
        Whether results have a dimension for them.
    """

    pairs: Pairs
    grid: Grid
    domain: Domain
    metrics: tuple[Metric, ...]
    feeds: Mapping[str, Feed]
    models: tuple[Model, ...]
    references: Mapping[str, str]
    kinds: Mapping[str, tuple[str, ...]]
    statistics: Mapping[tuple[str, str], tuple[Statistic, ...]]
    nan: str
    pooled: bool
    convention: str | None
    weights: str
    align: str
    named_models: bool
    named_references: bool
    sources: Mapping[str, Mapping[str, Any]]

    @property
    def whole(self) -> bool:
        """Whether a statistic needs whole fields."""
        return any(s.whole_field for several in self.statistics.values() for s in several)

    @property
    def rows(self) -> slice:
        """Rows of latitude that are read: those that lie in a region, or all where a statistic needs whole fields."""
        return slice(0, self.domain.shape[0]) if self.whole else self.domain.touched

    def during(self, inits: IntArray) -> Setup:
        """The same request for some init times, by number."""
        pairs = replace(self.pairs, inits=self.pairs.inits[inits], wanted=self.pairs.wanted[inits])
        feeds = {
            name: replace(f, asks={a: tuple(p[inits] for p in ps) for a, ps in f.asks.items()})
            for name, f in self.feeds.items()
        }
        return replace(self, pairs=pairs, feeds=feeds)
