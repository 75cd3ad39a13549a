"""Labels of a sample dimension as exact numbers, and leads in the same unit."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError

Lead = str | int | float | datetime.timedelta | np.timedelta64

_NS = {"W": 604_800_000_000_000, "D": 86_400_000_000_000, "h": 3_600_000_000_000, "m": 60_000_000_000}
_NS |= {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, slots=True, eq=False)
class LabelAxis:
    """The labels of one sample dimension, and what a lead means along it.

    ``ticks`` are the labels as exact numbers: nanoseconds or the axis's own resolution for times (``tick_ns``
    nanoseconds each), the labels themselves for numbers, and positions where the dimension has no labels.
    """

    dim: str
    labels: npt.NDArray[Any]
    ticks: npt.NDArray[Any]
    kind: str  # "time", "number", "position" or "text"
    tick_ns: int = 0
    calendar: str = ""

    def __len__(self) -> int:
        return len(self.ticks)

    def show(self, position: int) -> str:
        """A label as a person would write it."""
        label = self.labels[position]
        if isinstance(label, np.timedelta64) and not np.isnat(label):
            return format_duration(int(self.ticks[position]) * self.tick_ns)
        if isinstance(label, np.datetime64 | np.timedelta64):
            return re.sub(r"\.0+$", "", str(label)).removesuffix("T00:00:00")
        return str(label).removesuffix(" 00:00:00")


def label_axis(dim: str, labels: npt.NDArray[Any] | None, length: int) -> LabelAxis:
    """Read the labels of a dimension.

    Parameters
    ----------
    dim : str
        Name of the dimension.
    labels : array, shape (length,), or None
        datetime64, timedelta64, cftime objects, numbers or text; None where the dimension has no labels.
    length : int
        Length of the dimension.

    Examples
    --------
    >>> axis = label_axis("time", np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]"), 2)
    >>> axis.kind, np.diff(axis.ticks).tolist(), axis.show(1)
    ('time', [86400000000000], '2000-01-02')
    """
    if labels is None:
        positions = np.arange(length, dtype=np.int64)
        return LabelAxis(dim, positions, positions, "position")
    if labels.dtype.kind in "mM":
        unit, count = np.datetime_data(labels.dtype)
        return LabelAxis(dim, labels, labels.astype(np.int64), "time", _NS[unit] * count)
    if labels.dtype.kind == "O" and length and hasattr(labels[0], "calendar"):
        return LabelAxis(dim, labels, _microseconds(labels), "time", 1_000, str(labels[0].calendar))
    if labels.dtype.kind in "iuf":
        return LabelAxis(dim, labels, labels.astype(np.float64 if labels.dtype.kind == "f" else np.int64), "number")
    return LabelAxis(dim, labels, np.arange(length, dtype=np.int64), "text")


def _microseconds(labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Microseconds since 1970 of dates of any calendar, which counts its days without a gap.

    ``cftime.date2num`` gives the same, ten times slower.
    """
    n = len(labels)
    days = np.fromiter((t.toordinal() for t in labels), np.int64, n)
    seconds = np.fromiter(((t.hour * 60 + t.minute) * 60 + t.second for t in labels), np.int64, n)
    parts = np.fromiter((t.microsecond for t in labels), np.int64, n)
    first = int(labels[0].replace(year=1970, month=1, day=1, hour=0).toordinal())
    return ((days - first) * 86_400 + seconds) * 1_000_000 + parts


@dataclass(frozen=True, slots=True)
class Offset:
    """A lead along one axis: its step in ticks, its value for the batch and its name for channels."""

    ticks: float | int | None  # None: finer than the axis resolves, so that no partner exists
    value: Any  # numpy timedelta64[ns] for times, a number otherwise
    name: str


def offset(axis: LabelAxis, lead: Lead, thing: str = "lead") -> Offset:
    """Turn a lead into a step along an axis.

    Parameters
    ----------
    thing : str
        What the step is for, for messages.

    Raises
    ------
    RequestError
        If the lead cannot be read, or does not fit the axis: a duration for times, a difference of labels for
        numbers, a count of steps where there are no labels.

    Examples
    --------
    >>> axis = label_axis("time", np.array(["2000-01-01"], "datetime64[s]"), 1)
    >>> step = offset(axis, "-6h")
    >>> step.ticks, str(step.value), step.name
    (-21600, '-21600000000000 nanoseconds', '-6h')
    """
    if axis.kind == "time":
        nanoseconds = _duration_ns(axis, lead, thing)
        whole, rest = divmod(nanoseconds, axis.tick_ns)
        name = lead.strip() if isinstance(lead, str) else format_duration(nanoseconds)
        return Offset(None if rest else whole, np.timedelta64(nanoseconds, "ns"), name)
    numeric = isinstance(lead, int | float | np.integer | np.floating) and not isinstance(lead, bool | np.timedelta64)
    rule = {"position": "a whole number of steps, since the dimension has no labels"}.get(
        axis.kind, "a difference of labels, since the labels are numbers"
    )
    step = float(lead) if numeric else math.nan  # type: ignore[arg-type]
    if axis.kind == "text" or not math.isfinite(step) or (axis.kind == "position" and not step.is_integer()):
        if axis.kind == "text":
            rule = "left out, since the labels are text"
        raise RequestError(
            f"{thing} {lead!r} along {axis.dim!r} must be {rule}, but got {type(lead).__name__}; ask for that"
        )
    if axis.ticks.dtype.kind == "f":
        return Offset(step, step, f"{step:+g}" if step else "0")
    name = f"{step:+g}" if step else "0"
    return Offset(int(step), int(step), name) if step.is_integer() else Offset(None, step, name)


def _duration_ns(axis: LabelAxis, lead: Lead, thing: str) -> int:
    import pandas as pd

    if isinstance(lead, int | float | np.integer | np.floating) and not isinstance(lead, np.timedelta64):
        raise RequestError(
            f"{thing} {lead!r} along {axis.dim!r} must be a duration, since the labels are times, but got a number; "
            f"write for example '{lead}h'"
        )
    try:
        value = pd.Timedelta(lead)
        # To pandas a bare number is nanoseconds, which nobody means.
        if value is pd.NaT or (isinstance(lead, str) and re.fullmatch(r"[\s\d.+-]*", lead)):
            raise ValueError("not a time")
        return int(value.as_unit("ns").value)
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"{thing} along {axis.dim!r} must be a duration such as '-6h' or '1D', but got {lead!r}; "
            "months and years have no fixed length, so use days"
        ) from error


def format_duration(nanoseconds: int) -> str:
    """A duration in the largest unit that reads well.

    Examples
    --------
    >>> format_duration(-21_600_000_000_000), format_duration(86_400_000_000_000), format_duration(0)
    ('-6h', '24h', '0h')
    >>> format_duration(360 * 86_400_000_000_000), format_duration(1_500_000_000)
    ('360D', '1500ms')
    """
    if abs(nanoseconds) >= 10 * _NS["D"] and nanoseconds % _NS["D"] == 0:
        return f"{nanoseconds // _NS['D']}D"
    for unit, name in (("h", "h"), ("m", "min"), ("s", "s"), ("ms", "ms"), ("us", "us")):
        if nanoseconds % _NS[unit] == 0:
            return f"{nanoseconds // _NS[unit]}{name}"
    return f"{nanoseconds}ns"


def format_step(axis: LabelAxis, ticks: float) -> str:
    """A step along an axis as a person would write it.

    Examples
    --------
    >>> format_step(label_axis("time", np.array(["2000-01-01"], "datetime64[s]"), 1), 5400)
    '90min'
    >>> format_step(label_axis("x", np.array([0.5]), 1), 2.0)
    '2'
    """
    return format_duration(round(ticks * axis.tick_ns)) if axis.kind == "time" else f"{ticks:g}"


def common_ticks(axis: LabelAxis, target: LabelAxis) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Ticks of two axes in one unit, and how many of those one tick of the first is.

    Raises
    ------
    RequestError
        If their labels are of different kinds or calendars.
    """
    if (axis.kind, axis.calendar) != (target.kind, target.calendar):
        raise RequestError(
            f"labels of {target.dim!r} must be of one kind to be aligned, but got {_kind(axis)} and {_kind(target)}; "
            "convert one of them, e.g. with ds.convert_calendar"
        )
    if axis.kind != "time" or axis.tick_ns == target.tick_ns:
        return axis.ticks, target.ticks, 1
    finest = math.gcd(axis.tick_ns, target.tick_ns)
    ours, theirs = axis.tick_ns // finest, target.tick_ns // finest
    return _times(axis.ticks, ours), _times(target.ticks, theirs), ours


def _times(ticks: npt.NDArray[Any], factor: int) -> npt.NDArray[Any]:
    """Ticks of a finer unit, in Python's own numbers where those would not fit (the year 1600 in nanoseconds)."""
    fits = not len(ticks) or max(abs(int(ticks.min())), abs(int(ticks.max()))) * factor < 1 << 62
    return ticks * factor if fits else ticks.astype(object) * factor


def _kind(axis: LabelAxis) -> str:
    return f"{axis.kind} labels" + (f" ({axis.calendar} calendar)" if axis.calendar else "")


def describe(axis: LabelAxis) -> str:
    """What the axis offers, for messages: count, first, last and the usual step.

    Examples
    --------
    >>> axis = label_axis("time", np.array(["2000-01-01", "2000-01-02"], "datetime64[D]"), 2)
    >>> describe(axis)
    "2 labels of 'time' from 2000-01-01 to 2000-01-02, mostly 24h apart"
    """
    if not len(axis):
        return f"no labels of {axis.dim!r}"
    text = f"{len(axis)} labels of {axis.dim!r} from {axis.show(0)} to {axis.show(len(axis) - 1)}"
    if len(axis) > 1 and axis.kind != "text":
        step = modal_step(axis.ticks)
        text += f", mostly {format_step(axis, step)} apart"
        other = np.flatnonzero(np.diff(axis.ticks) != step)
        if len(other):
            where = int(other[0]) + 1
            text += f", but {format_step(axis, axis.ticks[where] - axis.ticks[where - 1])} before {axis.show(where)}"
    return text + (f" ({axis.calendar} calendar)" if axis.calendar else "")


def modal_step(ticks: npt.NDArray[Any]) -> int | float:
    """The most frequent difference of neighbouring ticks; 0 for fewer than two."""
    if len(ticks) < 2:
        return 0
    steps, counts = np.unique(np.diff(ticks), return_counts=True)
    step: int | float = steps[counts.argmax()].item()
    return step
