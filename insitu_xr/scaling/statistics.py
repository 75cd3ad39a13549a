"""Statistics of one variable: which of its dimensions they are kept for, and under which names of channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.batch import BatchContext
from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.plan.request import Request
from insitu_xr.resolving.channels import channel_dims_of
from insitu_xr.scaling.constants import Channel

Labels = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class FieldAxes:
    """Dimensions of the field of a variable, in order.

    Attributes
    ----------
    kept : tuple of str
        Those that have statistics of their own for every place.
    labels : mapping of dimension to labels
        Of those that are kept, where there are labels.
    channels : mapping of dimension to text
        Levels and members, kept or not, as they are written in the names of channels.
    """

    dims: tuple[str, ...]
    kept: tuple[str, ...]
    labels: Labels
    channels: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, context: BatchContext, variable: str, reduced: frozenset[str] | None) -> FieldAxes:
        """Of a variable of a loader; without ``reduced`` levels and members are kept."""
        dims, coords = field_dims(context.request, variable), context.coords[context.homes[variable]]
        shape = context.request.field_shape(variable)
        known = {d: coords[d] for d in dims if d in coords.variables}
        field = xr.DataArray(np.broadcast_to(np.int8(0), shape), known, dims)
        channels = {d: tuple(labels) for d, labels in channel_dims_of(field, ()).items()}
        kept = tuple(d for d in dims if (d in channels if reduced is None else d not in reduced))
        return cls(dims, kept, labels_of(context, variable, kept), channels)

    @property
    def grid(self) -> tuple[str, ...]:
        """Dimensions that do not become channels."""
        return tuple(d for d in self.dims if d not in self.channels)

    def names(self, variable: str) -> list[str]:
        """Names of its channels, as the stacked layout writes them, without leads."""
        return [variable + "_".join(labels) for labels in product(*self.channels.values())]


def field_dims(request: Request, variable: str) -> tuple[str, ...]:
    """Dimensions of one sample of a variable."""
    return tuple(d for d in request.variables[variable].dims if d not in request.sample_dims)


def labels_of(context: BatchContext, variable: str, dims: Sequence[str]) -> Labels:
    """Labels of some dimensions of a variable, where there are any."""
    coords = context.coords[context.homes[variable]]
    return {d: comparable(coords[d].to_numpy()) for d in dims if d in coords.variables}


def comparable(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels as what can be kept and compared: objects, such as cftime, as text."""
    return labels if labels.dtype.kind in "biufmM" else np.array([str(label) for label in labels], np.str_)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Count, mean and standard deviation of a variable, each over ``axes.kept``."""

    axes: FieldAxes
    count: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]

    @classmethod
    def identity(cls, axes: FieldAxes) -> Statistics:
        """Of a variable that is to stay as it is."""
        return cls(axes, np.zeros((), np.int64), np.zeros(()), np.ones(()))

    def within(self, context: BatchContext, variable: str) -> Statistics:
        """Those of what a loader delivers of it: a field of the same dimensions, of which places may be selected.

        Raises
        ------
        InsituError
            If it has other dimensions, or places without statistics; names the variable and the place.
        """
        reduced = frozenset(self.axes.dims) - frozenset(self.axes.kept)
        axes = FieldAxes.of(context, variable, reduced)
        if set(axes.dims) != set(self.axes.dims):
            raise RequestError(
                f"variable {variable!r} must have the dimensions {list(self.axes.dims)} that the scaler was fitted "
                f"with, but got {list(axes.dims)}; fit it on what it is applied to"
            )
        found: list[npt.NDArray[Any]] = [self.count, self.mean, self.std]
        for axis, dim in enumerate(self.axes.kept):
            mine, theirs = self.axes.labels.get(dim), axes.labels.get(dim)
            if mine is not None and theirs is not None and not np.array_equal(mine, theirs):
                places = _places(variable, dim, mine, theirs)
                found = [values.take(places, axis) for values in found]
        order = [self.axes.kept.index(d) for d in axes.kept]
        count, mean, std = (values.transpose(order) for values in found)
        return Statistics(axes, count, mean, std)

    def over_field(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Mean and standard deviation over all dimensions of the field, of size 1 where they are the same."""
        return self._over_field(self.mean), self._over_field(self.std)

    def _over_field(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sizes = iter(values.shape)
        return values.reshape([next(sizes) if d in self.axes.kept else 1 for d in self.axes.dims])

    def by_channel(self, variable: str) -> list[Channel]:
        """Those of every channel, over the dimensions of the grid."""
        parts = zip(self._channels(self.mean), self._channels(self.std), strict=True)
        return [
            Channel(name, self.axes.grid, *found) for name, found in zip(self.axes.names(variable), parts, strict=True)
        ]

    def _channels(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values with one axis for all channels, followed by those of the grid."""
        axes = self.axes
        full = self._over_field(values).transpose([axes.dims.index(d) for d in (*axes.channels, *axes.grid)])
        grid = full.shape[len(axes.channels) :]
        channels = tuple(len(labels) for labels in axes.channels.values())
        return np.broadcast_to(full, channels + grid).reshape(math.prod(channels), *grid)

    def check(self, variable: str) -> None:
        """Refuse statistics that mean nothing.

        Raises
        ------
        RequestError
            If there was nothing but NaN in a channel, or something infinite.
        """
        for name, count, mean in zip(
            self.axes.names(variable), self._channels(self.count), self._channels(self.mean), strict=True
        ):
            if not count.any():
                raise RequestError(
                    f"{name!r} must have a value somewhere, but got nothing but NaN in all that the loader delivers; "
                    f"do not ask for it, or add {variable!r} to leave="
                )
            if not np.isfinite(mean[count > 0]).all():
                raise RequestError(
                    f"{name!r} must be finite or NaN, but got infinite values; mask them, or add {variable!r} to leave="
                )


def _places(variable: str, dim: str, mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    import pandas as pd

    places: npt.NDArray[np.intp] = pd.Index(mine).get_indexer(pd.Index(theirs))
    if (places < 0).any():
        lacking = theirs[places < 0][0]
        raise UnknownNameError(
            f"variable {variable!r} must have statistics at {dim} {lacking}, but got a scaler that was fitted at "
            f"{_ends(mine)}; fit it on what it is applied to, or select"
        )
    return places


def _ends(labels: npt.NDArray[Any]) -> str:
    if len(labels) <= 8:
        return ", ".join(map(str, labels))
    return f"{len(labels)} labels from {labels[0]} to {labels[-1]}"
