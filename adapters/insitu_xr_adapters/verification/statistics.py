"""Statistics that add up over space and time: what is computed of a piece of forecast and reference.

A `Piece` is what was read together. A `Statistic` says which numbers of each point are summed; it is a value: two
metrics that ask for equal statistics share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, override

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, broadcast, difference, float64, floating, has_nan, namespace


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Values that were read together: whole longitudes of some latitude rows, for any inits, leads and levels.

    Attributes
    ----------
    variable : str
        Name of the variable, for messages.
    forecast : numpy.ndarray or torch.Tensor
        ``(*leading, [member,] latitude, longitude)``. The leading axes are free: ``(init, lead, level)``,
        ``(pair, level)`` or none. Latitudes ascend.
    reference : numpy.ndarray or torch.Tensor
        ``(*leading, latitude, longitude)``, of the same kind and grid; broadcast to the forecast's leading shape.
    climatology : mapping of str to array, optional
        Climatological fields at the valid times by kind (``"mean"``, ``"quantile_0.9"``, ``"seeps_threshold"``,
        ``"seeps_dry_fraction"``), shaped as the reference.
    members : bool, optional
        Whether the third last axis of the forecast counts members.
    start : int, optional
        First latitude row of the piece in the whole domain.
    place : callable, optional
        Text that says where an index ``(*leading, latitude, longitude)`` of the piece is, for messages.
    """

    variable: str
    forecast: Array
    reference: Array
    climatology: Mapping[str, Array] = field(default_factory=dict)
    members: bool = False
    start: int = 0
    place: Callable[[tuple[int, ...]], str] = "index {}".format

    @property
    def leading(self) -> tuple[int, ...]:
        """Shape of the leading axes."""
        return tuple(self.forecast.shape[: -3 if self.members else -2])

    @property
    def rows(self) -> int:
        """Number of latitude rows."""
        return int(self.forecast.shape[-2])


class Block:
    """A part of a piece that is worked on at once; what several statistics need is computed once.

    Attributes
    ----------
    forecast : array
        ``(*leading, latitude, longitude)``, with the members in front where there are any.
    reference : array
        ``(*leading, latitude, longitude)``.
    climatology : mapping of str to array
        As the reference.
    members : int
        Number of members, 0 where the forecast has no such axis.
    start : int
        First latitude row in the whole domain.
    latitude : numpy.ndarray
        Latitudes of the rows.
    """

    def __init__(self, piece: Piece, latitude: np.ndarray, index: tuple[int | slice, ...], rows: slice) -> None:
        shape = (*piece.leading, *piece.forecast.shape[-2:])
        forecast = piece.forecast[(*index, ..., rows, slice(None))]
        self.members = int(piece.forecast.shape[-3]) if piece.members else 0
        self.forecast = namespace(forecast).moveaxis(forecast, -3, 0) if piece.members else forecast
        self.reference = broadcast(piece.reference, shape)[(*index, ..., rows, slice(None))]
        self.climatology = {
            kind: broadcast(values, shape)[(*index, ..., rows, slice(None))]
            for kind, values in piece.climatology.items()
        }
        self.start = piece.start + rows.start
        self.latitude = latitude[self.start : piece.start + rows.stop]
        self.variable = piece.variable
        self._known: dict[object, Array] = {}

    def once(self, key: object, make: Callable[[], Array]) -> Array:
        """Return what was made under the key, making it where it was not asked for before."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def input(self, name: str) -> Array:
        """Return the forecast, the reference or the climatological field of a name."""
        if name in ("forecast", "reference"):
            return getattr(self, name)
        if name not in self.climatology:
            raise RequestError(
                f"climatology of {self.variable!r} must have the field {name!r} that a metric needs, but got "
                f"{sorted(self.climatology)}; pass climatology= with it"
            )
        return self.climatology[name]

    @property
    def residuals(self) -> Array:
        """Forecast, or each member, less the reference; in the precision that is stored."""
        return self.once("residuals", lambda: difference(self.forecast, self.reference))

    @property
    def error(self) -> Array:
        """Forecast, or the mean of its members, less the reference."""
        return self.once("error", lambda: self.mean(self.residuals))

    def anomaly(self, name: str, base: str = "mean") -> Array:
        """Return the forecast (the mean of its members) or the reference, less a climatological field."""

        def make() -> Array:
            anomaly = difference(self.input(name), self.input(base))
            return self.mean(anomaly) if name == "forecast" else float64(anomaly)

        return self.once((name, base), make)

    def values(self, name: str) -> Array:
        """Return the forecast (the mean of its members) or the reference, in double precision."""
        found = self.input(name)
        return self.once(name, lambda: self.mean(found) if name == "forecast" else float64(found))

    def mean(self, values: Array) -> Array:
        """Return the mean of the members in double precision, added in their order."""
        if not self.members:
            return float64(values)
        total = float64(values[0]) + 0.0
        for member in range(1, self.members):
            total += float64(values[member])
        total /= self.members
        return total

    def complete(self, inputs: tuple[str, ...]) -> bool:
        """Whether none of the inputs is missing anywhere."""
        return not any(self._lacks(name) for name in inputs)

    def _lacks(self, name: str) -> bool:
        return bool(self.once(("lacks", name), lambda: has_nan(self.input(name))))

    def valid(self, inputs: tuple[str, ...]) -> Array:
        """Where none of the inputs is missing."""
        return self.once(("valid", inputs), lambda: self._valid(inputs))

    def _valid(self, inputs: tuple[str, ...]) -> Array:
        xp, valid = namespace(self.reference), None
        for name in inputs:
            present = ~xp.isnan(floating(self.input(name)))
            if name == "forecast" and self.members:
                present = present.all(0) if xp is not np else present.all(axis=0)
            valid = present if valid is None else valid & present
        return valid


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
        yield first * others[0] if others else first

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
        yield namespace(block.error).abs(block.error)
