"""Times and lead times as numbers that can be compared: microseconds, with their calendar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError

IntArray = npt.NDArray[np.int64]

_MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
_SHORT = {"d": "day", "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second"}
#: labels of the same calendar, as far as they are ever met
_STANDARD = ("standard", "gregorian", "proleptic_gregorian")


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Labels of a dimension as microseconds, with their calendar."""

    labels: npt.NDArray[Any]
    ticks: IntArray
    calendar: str

    def positions(self, wanted: IntArray) -> IntArray:
        """Position of each wanted time, -1 where there is none."""
        order = np.argsort(self.ticks, kind="stable")
        ordered = self.ticks[order]
        at = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
        if not len(ordered):
            return np.full(wanted.shape, -1, np.int64)
        return np.where(ordered[at] == wanted, order[at], -1)


def times_of(ds: xr.Dataset, dim: str, thing: str) -> Times:
    """Read the labels of a time dimension.

    Examples
    --------
    >>> times = times_of(xr.Dataset(coords={"time": np.array(["1970-01-01T01"], "M8[ns]")}), "time", "reference")
    >>> times.ticks.tolist(), times.calendar
    ([3600000000], 'standard')
    """
    labels = ds[dim].to_numpy()
    if labels.dtype.kind == "M":
        ticks, calendar = labels.astype("M8[us]").astype(np.int64), "standard"
    elif labels.dtype.kind == "O" and len(labels) and hasattr(labels[0], "calendar"):
        import cftime

        named = str(labels[0].calendar)
        calendar = "standard" if named in _STANDARD else named
        ticks = np.asarray(cftime.date2num(labels, "microseconds since 1970-01-01", named), np.int64)
    else:
        raise RequestError(
            f"times {dim!r} of the {thing} must be dates, but got {labels.dtype}; open it with decode_times=True"
        )
    distinct, counts = np.unique(ticks, return_counts=True)
    if len(distinct) < len(ticks):
        twice = labels[np.flatnonzero(ticks == distinct[np.argmax(counts > 1)])[0]]
        raise RequestError(
            f"times {dim!r} of the {thing} must differ, but got {twice} several times; drop_duplicates({dim!r})"
        )
    return Times(labels, ticks, calendar)


def leads_of(ds: xr.Dataset, dim: str, thing: str) -> Times:
    """Read lead times: durations, or numbers with units of a fixed length.

    Examples
    --------
    >>> leads_of(xr.Dataset(coords={"lead": ("lead", [0, 6], {"units": "hours"})}), "lead", "forecast").ticks.tolist()
    [0, 21600000000]
    """
    labels = ds[dim].to_numpy()
    if labels.dtype.kind != "m":
        unit = str(ds[dim].attrs.get("units", "")).strip().lower()
        unit = _SHORT.get(unit.removesuffix("s") or unit, unit).removesuffix("s")
        if labels.dtype.kind not in "iuf" or unit not in _MICROSECONDS:
            raise RequestError(
                f"lead times {dim!r} of the {thing} must be durations, or numbers with units of days, hours, minutes "
                "or "
                f"seconds, but got {labels.dtype} with units {ds[dim].attrs.get('units')!r}; assign such a coordinate"
            )
        labels = np.round(labels * _MICROSECONDS[unit]).astype("m8[us]")
    ticks = labels.astype("m8[us]").astype(np.int64)
    return Times(ticks.astype("m8[us]").astype("m8[ns]"), ticks, "")


def spell(ticks: int, calendar: str = "standard") -> str:
    """A time as a person would write it."""
    if calendar == "standard":
        return str(np.datetime64(int(ticks), "us").astype("M8[s]"))
    import cftime

    return str(cftime.num2date(int(ticks), "microseconds since 1970-01-01", calendar))


def spell_lead(ticks: int) -> str:
    """A lead time in hours, or in days where it is a whole number of them.

    Examples
    --------
    >>> spell_lead(21_600_000_000), spell_lead(-5_400_000_000)
    ('6h', '-1.5h')
    """
    return f"{ticks / _MICROSECONDS['hour']:g}h"
