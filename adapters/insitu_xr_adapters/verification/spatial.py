"""Statistics of neighbourhoods, of precipitation categories and of waves along latitude circles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, float64, floating, like, namespace
from .blocks import Block
from .events import Event
from .statistics import Statistic

#: circumference of the earth that WeatherBench2 takes, in metres
CIRCUMFERENCE = 2 * np.pi * 6_367_500.0


@dataclass(frozen=True)
class FractionDifferences(Statistic):
    """Shares of a window in which an event happens: the sums that the fractions skill score is made of.

    The windows reach across latitudes, so that whole fields must be read. Beyond the edges nothing happens.

    Attributes
    ----------
    event : Event
        The event.
    window : int
        Grid cells along each side of the window, odd.
    wrap : bool
        Whether the last longitude borders on the first.
    """

    event: Event
    window: int = 5
    wrap: bool = False
    whole_field: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise RequestError(f"window must be an odd number of grid cells, but got {self.window}; use 1, 3, 5, ...")

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        return ("forecast", "reference", *self.event.inputs)

    @override
    def components(self, members: int, columns: int) -> int:
        return 2

    def values(self, block: Block) -> Iterator[Array]:
        """Give the squared difference of the shares, and the sum of their squares."""
        forecast = self._shares(self.event.probability(block))
        observed = self._shares(float64(self.event.observed(block)))
        yield (forecast - observed) ** 2
        yield forecast**2 + observed**2

    def _shares(self, happens: Array) -> Array:
        """Mean over the windows, from sums that run along both axes."""
        for axis in (-2, -1):
            happens = self._running(happens, axis)
        return happens / self.window**2

    def _running(self, values: Array, axis: int) -> Array:
        xp, half = namespace(values), self.window // 2
        values = xp.moveaxis(values, axis, 0)
        if self.wrap and axis == -1:
            order = np.arange(-half, len(values) + half) % len(values)
            padded = values[like(order, values)]
        else:
            edge = xp.zeros_like(values[:1])
            padded = xp.concatenate([edge] * half + [values] + [edge] * half)
        sums = xp.cumsum(xp.concatenate([xp.zeros_like(padded[:1]), padded]), 0)
        return xp.moveaxis(sums[self.window :] - sums[: -self.window], 0, axis)


@dataclass(frozen=True)
class SeepsScore(Statistic):
    """Stable equitable error in probability space (Rodwell and others, 2010), of 24 h or 6 h of precipitation.

    Dry, light and heavy precipitation are told apart by the climatological fields ``"seeps_threshold"`` (between light
    and heavy) and ``"seeps_dry_fraction"`` of the place and season. Where it is nearly always or hardly ever dry,
    points do not count.

    Attributes
    ----------
    dry : float
        Precipitation up to which it is dry, in the units of the variable (0.25 mm for 24 h, 0.1 mm for 6 h).
    lowest, highest : float
        Limits of the dry fraction.
    """

    dry: float = 0.00025
    lowest: float = 0.1
    highest: float = 0.85

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        return ("forecast", "reference", "seeps_threshold", "seeps_dry_fraction")

    @override
    def components(self, members: int, columns: int) -> int:
        return 2

    def values(self, block: Block) -> Iterator[Array]:
        """Give the score where it counts, and whether it does."""
        xp = namespace(block.reference)
        fraction = float64(block.input("seeps_dry_fraction"))
        counts = (fraction >= self.lowest) & (fraction <= self.highest)
        inner = xp.where(counts, fraction, xp.full_like(fraction, 0.5))
        scores = self._table(inner)
        observed = self._category(block.reference, block)
        forecasts = block.forecast if block.members else block.forecast[None]
        total = xp.zeros_like(inner)
        for member in forecasts:
            category = self._category(member, block)
            for (given, happened), score in scores.items():
                total = total + score * ((category == given) & (observed == happened))
        missing = xp.isnan(floating(block.reference)) | xp.isnan(floating(forecasts)).any(0)
        yield xp.where(counts, xp.where(missing, total * np.nan, total / len(forecasts)), xp.zeros_like(total))
        yield counts

    def _category(self, values: Array, block: Block) -> Array:
        """0 dry, 1 light, 2 heavy."""
        return float64(values > self.dry) + float64((values > self.dry) & (values > block.input("seeps_threshold")))

    def _table(self, dry: Array) -> dict[tuple[int, int], Array]:
        """Penalties by category of forecast and of reference."""
        wet = 0.5 / (1 - dry)
        return {
            (0, 1): wet,
            (0, 2): 4 * wet,
            (1, 0): 0.5 / dry,
            (1, 2): 3 * wet,
            (2, 0): 0.5 / dry + 1.5 / (2 + dry),
            (2, 1): 1.5 / (2 + dry),
        }


@dataclass(frozen=True)
class ZonalPower(Statistic):
    """Energy spectral density along latitude circles, by wave number.

    Attributes
    ----------
    source : {"forecast", "reference"}
        Whose. Of an ensemble, the mean of the spectra of its members.
    shortest_twice : bool
        Whether the shortest wave of an even number of longitudes counts twice, as in WeatherBench2.
    """

    source: str = "forecast"
    shortest_twice: bool = False
    per_row: ClassVar[bool] = True

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)

    @override
    def components(self, members: int, columns: int) -> int:
        return columns // 2 + 1

    def values(self, block: Block) -> Iterator[Array]:
        """Give the density at each wave number, row by row."""
        xp, field = namespace(block.reference), block.input(self.source)
        length = field.shape[-1]
        members = field if self.source == "forecast" and block.members else field[None]
        total: Array = 0.0
        for member in members:
            waves = xp.fft.rfft(float64(member), norm="forward")
            total = total + xp.abs(waves) ** 2
        circle = like(CIRCUMFERENCE * np.cos(np.deg2rad(block.latitude)), block.reference)
        for number in range(length // 2 + 1):
            once = number == 0 or (2 * number == length and not self.shortest_twice)
            yield total[..., number] / len(members) * circle * (1 if once else 2)
