"""Units as CF and GRIB spell them, and what turns one into another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

#: standard gravity, which turns a geopotential height into a geopotential
GRAVITY = 9.80665

_SPELLED = {
    "kelvin": "k",
    "degk": "k",
    "degc": "celsius",
    "degreec": "celsius",
    "degree_celsius": "celsius",
    "degrees_celsius": "celsius",
    "degreescelsius": "celsius",
    "c": "celsius",
    "percent": "%",
    "(0-1)": "1",
    "0-1": "1",
    "fraction": "1",
    "dimensionless": "1",
    "~": "1",
    "pascal": "pa",
    "hectopascal": "hpa",
    "mbar": "hpa",
    "mb": "hpa",
    "millibar": "hpa",
    "millibars": "hpa",
    "gpm": "m",
    "metre": "m",
    "metres": "m",
    "meter": "m",
    "meters": "m",
    "mofwaterequivalent": "m",
    "m/s": "ms-1",
    "m2/s2": "m2s-2",
    "kg/kg": "kgkg-1",
    "kgkg-1": "kgkg-1",
    "kg/m2": "kgm-2",
    "j/m2": "jm-2",
    "w/m2": "wm-2",
    "g/kg": "gkg-1",
    "pa/s": "pas-1",
}

#: from, to: factor and summand
_LINEAR = {
    ("celsius", "k"): (1.0, 273.15),
    ("k", "celsius"): (1.0, -273.15),
    ("m", "m2s-2"): (GRAVITY, 0.0),
    ("m2s-2", "m"): (1 / GRAVITY, 0.0),
    ("hpa", "pa"): (100.0, 0.0),
    ("pa", "hpa"): (0.01, 0.0),
    ("%", "1"): (0.01, 0.0),
    ("1", "%"): (100.0, 0.0),
    ("gkg-1", "kgkg-1"): (0.001, 0.0),
    ("1", "kgkg-1"): (1.0, 0.0),
    ("mm", "m"): (0.001, 0.0),
    ("kgm-2", "m"): (0.001, 0.0),
    ("m", "kgm-2"): (1000.0, 0.0),
    ("mm", "kgm-2"): (1.0, 0.0),
    ("kgkg-1", "1"): (1.0, 0.0),
    ("cm", "m"): (0.01, 0.0),
}


def spelled(units: Any) -> str:
    """One spelling for each unit; "" where there is none.

    Examples
    --------
    >>> spelled("m**2 s**-2"), spelled("m^2/s^2"), spelled("Kelvin"), spelled(None)
    ('m2s-2', 'm2s-2', 'k', '')
    """
    text = str(units or "").strip().lower()
    for mark in ("**", "^", " ", ".", "·"):
        text = text.replace(mark, "")
    return _SPELLED.get(text, text)


@dataclass(frozen=True, slots=True)
class Linear:
    """Multiplies and adds, in the precision of what it is given.

    Examples
    --------
    >>> import numpy as np
    >>> Linear(1.0, 273.15)(np.array([0.0], "f4"))
    array([273.15], dtype=float32)
    """

    factor: float
    summand: float

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert values."""
        scaled = values * self.factor if self.factor != 1.0 else values
        return scaled + self.summand if self.summand else scaled


class UnknownUnits(Exception):
    """Units between which nothing converts."""


def converter(units: Any, wanted: str) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None:
    """What turns units into others; None where nothing needs to be done, or nothing is known of one of them.

    Raises
    ------
    UnknownUnits
        If both are known, and nothing converts between them.

    Examples
    --------
    >>> converter("K", "K"), converter("gpm", "m2 s-2"), converter(None, "K")
    (None, Linear(factor=9.80665, summand=0.0), None)
    """
    given, target = spelled(units), spelled(wanted)
    if given == target or not given or not target:
        return None
    try:
        return Linear(*_LINEAR[given, target])
    except KeyError:
        raise UnknownUnits(f"{units!r} to {wanted!r}") from None
