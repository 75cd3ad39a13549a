"""What is measured: values that were read together, and the part of them that is worked on at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, Scratch, added, broadcast, difference, float64, floating, has_nan, is_numpy, namespace


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

    def only(self, number: int) -> Piece:
        """One entry of the first leading axis, which remains."""
        taken, place = slice(number, number + 1), self.place
        return replace(
            self,
            forecast=self.forecast[taken],
            reference=self.reference[taken],
            climatology={kind: values[taken] for kind, values in self.climatology.items()},
            place=lambda index: place((index[0] + number, *index[1:])),
        )


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

    def __init__(
        self,
        piece: Piece,
        latitude: np.ndarray,
        index: tuple[int | slice, ...],
        rows: slice,
        scratch: Scratch | None = None,
    ) -> None:
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
        self._scratch = scratch if is_numpy(piece.forecast) else None

    def room(self, name: str, shape: tuple[int, ...], kind: object = np.float64) -> Array | None:
        """Memory for a result of a shape; None where it is to be found by whoever computes.

        What is given under one name is overwritten when it is asked for again.
        """
        return None if self._scratch is None else self._scratch.take(name, shape, kind)

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
        return self.once("residuals", self._residuals)

    def _residuals(self) -> Array:
        forecast, reference = floating(self.forecast), floating(self.reference)
        kind = np.result_type(forecast, reference) if self._scratch is not None else None
        return difference(forecast, reference, self.room("residuals", tuple(forecast.shape), kind))

    @property
    def departures(self) -> Array:
        """The residuals in double precision."""
        return self.once("departures", self._departures)

    def _departures(self) -> Array:
        room = self.room("departures", tuple(self.residuals.shape))
        if room is None or self.residuals.dtype == np.float64:
            return float64(self.residuals)
        room[...] = self.residuals
        return room

    @property
    def error(self) -> Array:
        """Forecast, or the mean of its members, less the reference."""
        return self.once("error", lambda: self.mean(self.departures, "error"))

    def anomaly(self, name: str, base: str = "mean") -> Array:
        """Return the forecast (the mean of its members) or the reference, less a climatological field."""
        if name == "reference":
            return self.once((name, base), lambda: float64(difference(self.reference, self.input(base))))
        # The same as a mean over anomalies of members, of which there are many.
        return self.once((name, base), lambda: self.error + self.anomaly("reference", base))

    def values(self, name: str) -> Array:
        """Return the forecast (the mean of its members) or the reference, in double precision."""
        found = self.input(name)
        return self.once(name, lambda: self.mean(float64(found), name) if name == "forecast" else float64(found))

    def mean(self, values: Array, name: str) -> Array:
        """Return the mean of the members, added in their order; values in double precision.

        It is computed in the room of a name.
        """
        if not self.members:
            return values
        total = added(values, self.room(name, tuple(self.reference.shape)))
        total /= self.members
        return total

    def complete(self, inputs: tuple[str, ...]) -> bool:
        """Whether none of the inputs is missing anywhere."""
        return not any(self._lacks(name) for name in inputs)

    def _lacks(self, name: str) -> bool:
        # Whatever is missing in one of both is missing in their difference, which is smaller than an ensemble.
        compared = name in ("forecast", "reference") and "error" in self._known
        if compared and not self.once("lacks", lambda: has_nan(self.error)):
            return False
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
