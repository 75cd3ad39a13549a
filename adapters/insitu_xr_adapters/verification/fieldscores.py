"""Metrics of precipitation, of neighbourhoods and of waves along latitude circles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

import numpy as np

from insitu_xr.errors import RequestError

from .events import Event
from .means import Means
from .metrics import Metric
from .spatial import FractionDifferences, SeepsScore, ZonalPower
from .statistics import Statistic


@dataclass(frozen=True)
class SEEPS(Metric):
    """Stable equitable error in probability space, of accumulated precipitation; see `SeepsScore`.

    Attributes
    ----------
    dry : float
        Precipitation up to which it is dry, in the units of the variable.
    lowest, highest : float
        Limits of the climatological dry fraction.
    """

    dry: float = 0.00025
    lowest: float = 0.1
    highest: float = 0.85
    default_name = "seeps"
    power = 0
    title = "stable equitable error in probability space"

    @property
    @override
    def estimator(self) -> str:  # type: ignore[override]
        return f"dry up to {self.dry:g}; dry fraction from {self.lowest:g} to {self.highest:g}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (SeepsScore(self.dry, self.lowest, self.highest),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        (part,) = self.parts(means.members)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(means.of(part) / means.of(part, 1))

    @override
    def attrs(self, units: str | None, members: int = 0) -> dict[str, object]:
        found = super().attrs(units)
        return {**found, "forecast": "mean of the scores of the members"} if members else found


@dataclass(frozen=True)
class FSS(Metric):
    """Fractions skill score of an event in windows; see `FractionDifferences`.

    Attributes
    ----------
    event : Event or str
        The event.
    window : int
        Grid cells along each side of the window, odd.
    wrap : bool
        Whether the last longitude borders on the first.
    """

    event: Event | str
    window: int = 5
    wrap: bool = False
    power = 0
    best = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "event", Event.parse(self.event))
        self.parts(0)

    @property
    @override
    def default_name(self) -> str:
        return f"fss{self.event}_{self.window}"

    @property
    @override
    def title(self) -> str:  # type: ignore[override]
        return f"fractions skill score of {self.event} in windows of {self.window}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (FractionDifferences(Event.parse(self.event), self.window, self.wrap),)

    @override
    def compute(self, means: Means) -> np.ndarray:
        (part,) = self.parts(means.members)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(1 - means.of(part) / means.of(part, 1))

    @override
    def attrs(self, units: str | None, members: int = 0) -> dict[str, object]:
        found = super().attrs(units)
        return {**found, "forecast": "probability"} if members else found


@dataclass(frozen=True)
class ZonalSpectrum(Metric):
    """Energy spectral density along latitude circles; see `ZonalPower`.

    Regions that do not go round the globe have none.

    Attributes
    ----------
    source : {"forecast", "reference"}
        Whose spectrum.
    shortest_twice : bool
        See `ZonalPower`.
    """

    source: str = "forecast"
    shortest_twice: bool = False
    dims = ("wavenumber",)
    power = 2
    best = None

    def __post_init__(self) -> None:
        if self.source not in ("forecast", "reference"):
            raise RequestError(f"source must be 'forecast' or 'reference', but got {self.source!r}; name one of them")

    @property
    @override
    def default_name(self) -> str:
        return "zonal_spectrum" if self.source == "forecast" else "reference_zonal_spectrum"

    @property
    @override
    def title(self) -> str:  # type: ignore[override]
        return f"zonal energy spectral density of the {self.source}"

    @override
    def parts(self, members: int) -> tuple[Statistic, ...]:
        return (ZonalPower(self.source, self.shortest_twice),)

    @override
    def coords(self, members: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"wavenumber": np.arange(shape[1] // 2 + 1)}

    @override
    def compute(self, means: Means) -> np.ndarray:
        return means.all(self.parts(means.members)[0])

    @override
    def attrs(self, units: str | None, members: int = 0) -> dict[str, object]:
        found = super().attrs(units)
        return {**found, "units": f"m ({units or 'unknown'})**2"}
