"""A mean and a standard deviation, brought to where the values are and applied there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import DtypeError, RequestError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """What one array of a batch is scaled by, shaped so that it broadcasts against it.

    Values may be of numpy, or of whatever else knows arithmetic with arrays. They are worked on in their own precision,
    half precision in single: fields such as geopotential do not fit into half of it.
    """

    mean: Floats
    std: Floats
    #: the same where and in the precision that they were last wanted in; copies to a device are made once
    _beside: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)

    def check_channels(self, names: Sequence[str], shape: Sequence[int]) -> None:
        """Refuse an array ``(..., channel, *grid)`` of another number of channels."""
        axis = len(shape) - self.mean.ndim
        if axis < 0 or shape[axis] != len(names):
            grid = ", grid" * (self.mean.ndim - 1)
            raise RequestError(
                f"array must have the shape (..., channel{grid}) with {len(names)} channels, but got {tuple(shape)}; "
                f"give the names of its channels, not {list(names)[:8]}"
            )

    def forward(self, values: Any) -> Any:
        """Subtract the mean and divide by the standard deviation."""
        values, mean, std = self._with(values)
        scaled = values - mean
        scaled /= std
        return scaled

    def backward(self, values: Any) -> Any:
        """Undo `forward`."""
        values, mean, std = self._with(values)
        restored = values * std
        restored += mean
        return restored

    def _with(self, values: Any) -> tuple[Any, Any, Any]:
        if hasattr(values, "new_tensor"):  # torch, which takes no part in numpy's promotion
            if not values.is_floating_point() or values.element_size() < 4:
                values = values.float()
            return values, *self._there(values, str(values.device), values.new_tensor)
        dtype = single_or_more(values.dtype)
        return values, *self._there(values, "", lambda constant: np.asarray(constant, dtype))

    def _there(self, values: Any, device: str, convert: Any) -> tuple[Any, Any]:
        place = (str(values.dtype), device)
        if place not in self._beside:
            self._beside[place] = convert(self.mean), convert(self.std)
        return self._beside[place]


def single_or_more(dtype: Any) -> np.dtype[Any]:
    """The precision that values of a dtype are scaled in."""
    try:
        found = np.result_type(np.dtype(dtype), np.float32)
    except TypeError:  # one that numpy does not know, such as bfloat16
        return np.dtype(np.float32)
    if found.kind != "f":
        raise DtypeError(f"values must be real numbers to be scaled, but got {dtype}; leave them out")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """Mean and standard deviation of one channel over its grid, of size 1 where they are the same everywhere."""

    name: str
    grid: tuple[str, ...]
    mean: Floats
    std: Floats

    def check(self) -> None:
        """Refuse to divide by nothing.

        Raises
        ------
        RequestError
            Names the channel.
        """
        constant = self.std == 0
        if not constant.any():
            return
        where = f" at {int(constant.sum())} of {constant.size} places" if constant.size > 1 else ""
        raise RequestError(
            f"std of {self.name!r} must be above 0 to divide by, but got 0{where}, since every value there is "
            f"{self.mean[constant][0]:g}; leave the variable as it is with fit_scaler(..., leave=[...]), or take the "
            "mean over more dimensions"
        )


def over_field(channels: Sequence[Channel], mean: Floats, std: Floats) -> Constants:
    """What an array ``(..., *field)`` of one variable is scaled by."""
    for channel in channels:
        channel.check()
    return Constants(mean, std)


def stacked(channels: Sequence[Channel], grid: tuple[str, ...]) -> Constants:
    """What an array ``(..., channel, *grid)`` is scaled by.

    Raises
    ------
    RequestError
        If a channel has another grid, or was constant.
    """
    parts: list[tuple[Floats, Floats]] = []
    for channel in channels:
        channel.check()
        if set(channel.grid) != set(grid):
            raise RequestError(
                f"channels of one array must have one grid, but got {channels[0].name!r} with {list(grid)} and "
                f"{channel.name!r} with {list(channel.grid)}; scale them one by one, as {{variable: array}}"
            )
        order = [channel.grid.index(dim) for dim in grid]
        parts.append((channel.mean.transpose(order), channel.std.transpose(order)))
    means, stds = (np.stack(np.broadcast_arrays(*values)) for values in zip(*parts, strict=True))
    return Constants(means, stds)
