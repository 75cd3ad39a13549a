"""Statistics that add up over space and time: what is computed of a piece of forecast and reference.

A `Statistic` says which numbers of each point are summed; it is a value: two metrics that ask for equal statistics
share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, override

from .arrays import Array, float64, namespace
from .blocks import Block


@dataclass(frozen=True)
class Statistic:
    """Numbers of each point that are summed with weights, identified by value.

    A subclass is a frozen dataclass; its fields say what is computed, and its ``repr`` names it in stored states.
    """

    #: see `weighted`
    by_weight: ClassVar[bool] = True
    #: whether the whole field must be in a piece: it cannot be cut into latitude bands
    whole_field: ClassVar[bool] = False
    #: whether `values` gives numbers of whole latitude rows, ``(*leading, latitude)``, in place of numbers of points
    per_row: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """What must be there for a point to count: forecast, reference, climatological fields by kind."""
        return ("forecast", "reference")

    @property
    def weighted(self) -> bool:
        """Whether points count by weight; otherwise each in a region counts one."""
        return self.by_weight

    @property
    def key(self) -> str:
        """Text that names the statistic wherever it is stored."""
        return repr(self)

    def components(self, members: int, columns: int) -> int:
        """Return how many components `values` gives for a number of members and of longitudes."""
        return 1

    def values(self, block: Block) -> Iterator[Array]:
        """Give each component: ``(*leading, latitude, longitude)``, number or bool."""
        raise NotImplementedError


@dataclass(frozen=True)
class Weight(Statistic):
    """What the points count for at which all inputs are there: what sums are divided by to be means.

    Attributes
    ----------
    of : tuple of str
        The inputs.
    counted : bool
        Whether each point counts one, whatever its weight: the number of points.
    rows : bool
        Whether a row counts, with its weight, only where none of its points is missing.
    """

    of: tuple[str, ...] = ("forecast", "reference")
    counted: bool = False
    rows: bool = False

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        return self.of

    @property
    @override
    def weighted(self) -> bool:
        return not self.counted

    @property
    @override
    def per_row(self) -> bool:  # type: ignore[override]
        return self.rows

    def values(self, block: Block) -> Iterator[Array]:
        """Give one where all inputs are there, else zero."""
        valid = block.valid(self.of)
        yield float64(valid.all(-1) if self.rows else valid)


@dataclass(frozen=True)
class Moment(Statistic):
    """A product of one or two quantities.

    Attributes
    ----------
    factors : tuple of str
        ``"error"``, ``"forecast"``, ``"reference"``, and ``"forecast_anomaly"`` and ``"reference_anomaly"``, which are
        taken from a climatological field. Of an ensemble, the mean of the members is taken.
    base : str
        Kind of that field.
    """

    factors: tuple[str, ...]
    base: str = "mean"

    @property
    @override
    def inputs(self) -> tuple[str, ...]:
        anomalous = any(name.endswith("_anomaly") for name in self.factors)
        return ("forecast", "reference", *([self.base] if anomalous else []))

    def values(self, block: Block) -> Iterator[Array]:
        """Give the product."""
        first, *others = (self._factor(block, name) for name in self.factors)
        product = namespace(first).multiply
        yield product(first, others[0], out=block.room("values", tuple(first.shape))) if others else first

    def _factor(self, block: Block, name: str) -> Array:
        if name == "error":
            return block.error
        if name.endswith("_anomaly"):
            return block.anomaly(name.removesuffix("_anomaly"), self.base)
        return block.values(name)


@dataclass(frozen=True)
class AbsoluteError(Statistic):
    """Absolute value of the error; of an ensemble, of the error of its mean."""

    def values(self, block: Block) -> Iterator[Array]:
        """Give the absolute error."""
        yield namespace(block.error).abs(block.error, out=block.room("values", tuple(block.error.shape)))
