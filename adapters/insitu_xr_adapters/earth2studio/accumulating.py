"""Sums over the last hours, such as ``tp06``, from samples of one hour each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr_adapters.earth2studio.times import Axis, as_leads, shown

_HOUR = np.timedelta64(1, "h").astype("m8[ns]")
_ZERO = np.timedelta64(0, "ns")


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The sum of the samples that end within a window, the last of them at the time that is asked for.

    Attributes
    ----------
    window : numpy.timedelta64
        How far back the sum goes.
    step : numpy.timedelta64
        What each sample is the sum of.

    Examples
    --------
    >>> accumulation("tp06", "6h").offsets.astype("m8[h]")
    array([-5, -4, -3, -2, -1,  0], dtype='timedelta64[h]')
    """

    window: np.timedelta64
    step: np.timedelta64

    @property
    def offsets(self) -> npt.NDArray[np.timedelta64]:
        """Times of the samples, from the time that is asked for."""
        return np.arange(self.step - self.window, self.step, self.step)

    def check(self, variable: str, axis: Axis) -> None:
        """Refuse an axis on which samples would be left out of the sum, or counted for more than they are.

        Raises
        ------
        RequestError
            If neighbours on the axis are not ``step`` apart.
        """
        steps = np.diff(np.sort(axis.labels))
        if len(steps) and (closest := steps.min()) != self.step:
            raise RequestError(
                f"{variable!r} is a sum of samples of {shown(self.step)}, which must lie that far apart, but the store "
                f"has {axis}; give what each sample is the sum of: "
                f"accumulations={{{variable!r}: ({shown(self.window)!r}, {shown(closest)!r})}}"
            )


def accumulation(variable: str, given: Any) -> Accumulation:
    """An accumulation from a window, or from a window and the step of the samples, one hour by default.

    Raises
    ------
    RequestError
        If the window is no multiple of the step.
    """
    window, step = given if isinstance(given, tuple | list) else (given, _HOUR)
    made = Accumulation(as_leads(window)[0], as_leads(step)[0])
    if made.step <= _ZERO or made.window <= _ZERO or made.window % made.step != _ZERO:
        raise RequestError(
            f"accumulations must be windows of whole steps, but got {given!r} for {variable!r}; give such as '6h', or "
            "('6h', '3h') for samples of three hours"
        )
    return made
