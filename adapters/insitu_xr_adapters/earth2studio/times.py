"""Times and lead times: what Earth2Studio and its users ask with, looked up exactly in the axes of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from insitu_xr.errors import RequestError

type Labels = npt.NDArray[Any]
type Positions = npt.NDArray[np.int64]

#: years that datetime64[ns] holds
_NS_FIRST, _NS_LAST = np.datetime64("1678-01-01", "s"), np.datetime64("2262-01-01", "s")
#: calendars whose dates all exist in the calendar of datetime64
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian", "noleap", "365_day")
#: nanoseconds
_UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9, "second": 10**9, "s": 10**9}
_UNITS |= {"minutes": 60 * 10**9, "minute": 60 * 10**9, "hours": 3600 * 10**9, "hour": 3600 * 10**9, "hr": 3600 * 10**9}
_UNITS |= {"h": 3600 * 10**9, "days": 86400 * 10**9, "day": 86400 * 10**9}
_SHOWN = 3


def as_times(time: Any) -> Labels:
    """Times in UTC as a one-dimensional datetime64 array, in nanoseconds where they fit.

    Examples
    --------
    >>> import datetime as dt
    >>> as_times(dt.datetime(2020, 1, 1, 6)), as_times(["2020-01-01T00:00+02:00"])
    (array(['2020-01-01T06:00:00.000000000'], dtype='datetime64[ns]'),
     array(['2019-12-31T22:00:00.000000000'], dtype='datetime64[ns]'))
    """
    values = _flat(time, "time")
    if values.dtype.kind != "M":
        values = np.array([_utc(value) for value in values], "M8[us]" if len(values) else "M8[ns]")
    if np.isnat(values).any():
        raise RequestError("time must hold dates only, but got NaT; leave it out")
    return _fine(values)


def as_leads(lead_time: Any) -> npt.NDArray[np.timedelta64]:
    """Lead times as a one-dimensional timedelta64[ns] array.

    Examples
    --------
    >>> import datetime as dt
    >>> as_leads([dt.timedelta(hours=6), np.timedelta64(1, "D")]), as_leads("12h")
    (array([21600000000000, 86400000000000], dtype='timedelta64[ns]'), array([43200000000000], dtype='timedelta64[ns]'))
    """
    values = _flat(lead_time, "lead_time")
    if values.dtype.kind != "m":
        try:
            values = np.array([pd.Timedelta(v).to_timedelta64() for v in values], "m8[ns]")
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"lead_time must be durations such as timedelta(hours=6), but got {lead_time!r}; give those"
            ) from error
    if np.isnat(values).any():
        raise RequestError("lead_time must hold durations only, but got NaT; leave it out")
    return values.astype("m8[ns]")


def as_names(variable: Any) -> list[str]:
    """Names of variables, in order and with repetitions.

    Examples
    --------
    >>> as_names("t2m"), as_names(np.array(["z500", "t2m"]))
    (['t2m'], ['z500', 't2m'])
    """
    names = [variable] if isinstance(variable, str) else [str(name) for name in np.atleast_1d(np.asarray(variable))]
    if not names:
        raise RequestError("variable must name at least one variable, but got none; give one, such as 't2m'")
    return names


def _flat(values: Any, what: str) -> Labels:
    if isinstance(values, xr.DataArray | xr.Variable):
        values = values.values
    if isinstance(values, pd.DatetimeIndex) and values.tz is not None:
        values = values.tz_convert("UTC").tz_localize(None)
    array = np.asarray(values)
    if array.dtype.kind not in "mM":
        # Through objects: numpy would turn dates of several kinds into whatever holds them all.
        several = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
        array = np.empty(len(values) if several else 1, object)
        array[:] = list(values) if several else [values]
    array = np.atleast_1d(array)
    if array.ndim != 1 or not array.size:
        raise RequestError(
            f"{what} must be one label or a list of them, but got shape {array.shape}; give at least one, in one row"
        )
    return array


def _utc(value: Any) -> np.datetime64:
    try:
        stamp = pd.Timestamp(value)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"time must be dates such as datetime(2020, 1, 1) or np.datetime64, but got {value!r}; give those"
        ) from error
    if stamp is pd.NaT:
        return np.datetime64("NaT", "us")
    naive: np.datetime64 = (
        stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)
    ).to_datetime64()
    return naive


def _fine(times: Labels) -> Labels:
    if np.datetime_data(times.dtype)[0] == "ns":
        return times
    fits = times.size == 0 or bool(np.all((times >= _NS_FIRST) & (times <= _NS_LAST)))
    return times.astype("M8[ns]" if fits else "M8[us]")


def _in_units_of(labels: Labels, wanted: Labels) -> tuple[Labels, npt.NDArray[np.bool_]]:
    """The same times in the units of others, and which of them could be told so exactly."""
    if labels.dtype == wanted.dtype:
        return wanted, np.ones(len(wanted), bool)
    if np.datetime_data(labels.dtype)[0] == "ns":
        exact = (wanted >= _NS_FIRST) & (wanted <= _NS_LAST)
        return np.where(exact, wanted, _NS_FIRST).astype(labels.dtype), exact
    own = wanted.astype(labels.dtype)
    return own, own.astype(wanted.dtype) == wanted


@dataclass(frozen=True, eq=False)
class Axis:
    """The labels of a dimension of a store, in its order.

    Attributes
    ----------
    dim : str
        The dimension.
    labels : array
        datetime64 or timedelta64, in nanoseconds where they fit.
    what : str
        "time" or "lead_time", for messages.

    Examples
    --------
    >>> axis = Axis("time", np.array(["2020-01-01T06", "2020-01-01T00"], "M8[ns]"), "time")
    >>> axis.find(as_times(["2020-01-01T00", "2020-01-01T06", "2020-01-01T00"]))
    array([1, 0, 1])
    """

    dim: str
    labels: Labels
    what: str = "time"

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _sorted(self) -> tuple[Labels, Positions | None]:
        steps = np.diff(self.labels)
        if bool(np.all(steps > np.timedelta64(0, "ns"))):
            return self.labels, None  # no index as long as the axis
        order = np.argsort(self.labels, kind="stable")
        return self.labels[order], order

    def _look(self, wanted: Labels) -> tuple[Positions, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Positions; which labels there are; which there are more than once."""
        labels, order = self._sorted
        wanted, exact = _in_units_of(labels, wanted)
        left, right = np.searchsorted(labels, wanted), np.searchsorted(labels, wanted, side="right")
        found = (right > left) & exact
        places = np.where(found, left, 0)
        return places if order is None else order[places], found, right > left + 1

    def has(self, wanted: Labels) -> npt.NDArray[np.bool_]:
        """Which labels are on the axis."""
        return self._look(wanted)[1]

    def find(self, wanted: Labels) -> Positions:
        """Positions of labels, each found exactly.

        Raises
        ------
        RequestError
            If one is not on the axis, or there more than once.
        """
        places, found, several = self._look(wanted)
        if not found.all():
            raise RequestError(
                f"{self.what} must be on the axis {self.dim!r} of the store, which has {self}, but got "
                f"{_listed(wanted[~found])}; ask source.available(...), or leave it out"
            )
        if several.any():
            raise RequestError(
                f"{self.what} must be on the axis {self.dim!r} once, but it has {_listed(wanted[several])} several "
                f"times; drop them with ds.drop_duplicates({self.dim!r})"
            )
        return places.astype(np.int64)

    @property
    def step(self) -> np.timedelta64 | None:
        """Distance between neighbours, where it is the same for all."""
        steps = np.unique(np.diff(self.labels))
        return steps[0].astype("m8[ns]") if len(steps) == 1 and steps[0] > np.timedelta64(0, "ns") else None

    def __str__(self) -> str:
        if not len(self.labels):
            return "no labels"
        step = self.step
        every = f", every {shown(step)}" if step is not None else f", {len(self.labels)} labels at unequal steps"
        if len(self.labels) == 1:
            return f"{shown(self.labels[0])} alone"
        return f"{shown(self.labels.min())} to {shown(self.labels.max())}{every}"


def shown(label: Any) -> str:
    """A time or a duration for people.

    Examples
    --------
    >>> shown(np.datetime64("2020-01-01T06:00", "ns")), shown(np.timedelta64(6, "h")), shown(np.timedelta64(36, "h"))
    ('2020-01-01T06:00', '6h', '36h')
    """
    if isinstance(label, np.datetime64):
        minutes = label.astype("M8[m]")
        return str(minutes if minutes == label else label)
    for unit in ("D", "h", "m", "s"):
        if label == label.astype(f"m8[{unit}]"):
            return f"{label.astype(f'm8[{unit}]').astype(int)}{unit}"
    return str(label)


def _listed(labels: Labels) -> str:
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(shown(label) for label in labels[:_SHOWN]) + more


def time_axis(coord: xr.DataArray, dim: str) -> Axis:
    """The axis of a coordinate of dates, of numpy or of cftime.

    Raises
    ------
    RequestError
        If it holds no dates, or dates that datetime64 does not have.
    """
    values = coord.values
    if values.dtype.kind == "M":
        return Axis(dim, _fine(values))
    if values.dtype.kind == "O" and len(values) and hasattr(values[0], "calendar"):
        return Axis(dim, _fine(_from_cftime(values, dim)))
    raise RequestError(
        f"coordinate {dim!r} must hold dates, but got {values.dtype}; open the store with decode_times=True, or assign "
        f"them with ds.assign_coords({dim}=...)"
    )


def _from_cftime(values: Labels, dim: str) -> Labels:
    calendar = values[0].calendar
    old = calendar in ("standard", "gregorian") and min(value.year for value in values) < 1583
    if calendar not in _CALENDARS or old:
        raise RequestError(
            f"dates of {dim!r} must all exist in the calendar of datetime64, but their calendar is {calendar!r}"
            f"{' and they begin before 1583' if old else ''}; convert them with "
            f"ds.convert_calendar('standard', dim={dim!r}, align_on='date')"
        )
    return np.array([np.datetime64(value.isoformat(), "us") for value in values])


def lead_axis(coord: xr.DataArray, dim: str) -> Axis:
    """The axis of a coordinate of durations, or of numbers with units of time.

    Raises
    ------
    RequestError
        If it is neither.
    """
    values = coord.values
    if values.dtype.kind == "m":
        return Axis(dim, values.astype("m8[ns]"), "lead_time")
    unit = _UNITS.get(str(coord.attrs.get("units", "")).strip().lower())
    if values.dtype.kind in "iuf" and unit is not None:
        return Axis(dim, np.round(values.astype("f8") * unit).astype("m8[ns]"), "lead_time")
    raise RequestError(
        f"coordinate {dim!r} must hold durations, but got {values.dtype} with units {coord.attrs.get('units')!r}; open "
        f"the store with decode_timedelta=True, or assign them with ds.assign_coords({dim}=...)"
    )
