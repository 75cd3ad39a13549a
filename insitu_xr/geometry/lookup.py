"""Labels to positions, for those who name them one by one."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, Offset, describe, label_axis

_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d))?)?)?")


class Lookup:
    """Looks up labels of one axis, in any order and repeated.

    Examples
    --------
    >>> axis = label_axis("time", np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "datetime64[ns]"), 3)
    >>> lookup = Lookup(axis)
    >>> found = lookup.positions(["2000-01-02", "2000-01-01"])
    >>> found.tolist()
    [1, 0]
    >>> from insitu_xr.geometry.times import offset
    >>> lookup.partners(found, offset(axis, "2D"))
    Traceback (most recent call last):
    ...
    insitu_xr.errors.UnknownNameError: labels of 'time' must be ..., but got 2000-01-03 (2000-01-01 + 2D); ...
    """

    def __init__(self, axis: LabelAxis) -> None:
        self.axis = axis

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[Any], IntArray]:
        """Ticks in ascending order, and their positions."""
        order = np.argsort(self.axis.ticks, kind="stable")
        return self.axis.ticks[order], order

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        """Positions of labels that are text."""
        return {label: k for k, label in reversed([*enumerate(self.axis.labels.tolist())])}

    def positions(self, labels: Any) -> IntArray:
        """Positions of some labels.

        Parameters
        ----------
        labels : one label, or a sequence or array of them
            Times as datetime64, datetime, Timestamp, cftime or ISO text; numbers; text; positions where the dimension
            has no labels.

        Returns
        -------
        array of int64, shape (labels,)

        Raises
        ------
        UnknownNameError
            If a label is not there.
        RequestError
            If something is no label of this kind, or is there more than once.
        """
        given = _listed(labels)
        if not given:
            return np.empty(0, np.int64)
        if self.axis.kind == "text":
            return self._of_text(given)
        if self.axis.kind == "time":
            ticks, exact = self._ticks_of_times(given)
        else:
            ticks, exact = self._ticks_of_numbers(given)
        found, hit = self._search(ticks)
        lost = np.flatnonzero(~(hit & exact))
        if len(lost):
            raise self._unknown(_shown(given[int(lost[0])]))
        return found

    def partners(self, positions: IntArray, step: Offset) -> IntArray:
        """Positions of the labels that lie a step after some others.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        if step.ticks == 0:
            return positions
        if step.ticks is None:
            raise self._unknown(f"{self._of(positions)} + {step.name}")
        wanted = self.axis.ticks[positions] + np.asarray(step.ticks, self.axis.ticks.dtype)
        found, hit = self._search(wanted)
        if not hit.all():
            lost = int(np.flatnonzero(~hit)[0])
            raise self._unknown(f"{self._label(wanted[lost])}({self._of(positions[lost:])} + {step.name})")
        return found

    def _search(self, wanted: npt.NDArray[Any]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        ticks, order = self._sorted
        place = np.minimum(np.searchsorted(ticks, wanted), len(ticks) - 1)
        hit = ticks[place] == wanted
        again = np.minimum(place + 1, len(ticks) - 1)
        twice = np.flatnonzero(hit & (again != place) & (ticks[again] == wanted))
        if len(twice):
            position = int(order[place[twice[0]]])
            raise RequestError(
                f"labels of {self.axis.dim!r} must be unique to be read by label, but {self.axis.show(position)} "
                f"occurs more than once; drop duplicates first, e.g. ds.drop_duplicates({self.axis.dim!r})"
            )
        return order[place], hit

    def _of_text(self, given: list[Any]) -> IntArray:
        for label in given:
            if label not in self._numbers:
                raise self._unknown(repr(label))
        return np.array([self._numbers[label] for label in given], np.int64)

    def _ticks_of_numbers(self, given: list[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        values = np.asarray(given)
        if values.dtype.kind not in "iuf":
            raise self._wrong_kind("numbers", given)
        with np.errstate(invalid="ignore"):  # what is no number is none of the labels
            ticks = values.astype(self.axis.ticks.dtype)
        exact = np.asarray(ticks == values)
        if self.axis.kind == "position":
            ticks = np.where((ticks < 0) & (ticks >= -len(self.axis)), ticks + len(self.axis), ticks)
        return ticks, exact

    def _ticks_of_times(self, given: list[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        if self.axis.calendar:
            dates = [_date(label, type(self.axis.labels[0])) for label in given]
            kinds = {getattr(d, "calendar", None) for d in dates}
            if kinds - {self.axis.calendar}:
                raise self._wrong_kind(f"dates of the {self.axis.calendar} calendar", given)
            values = np.empty(len(dates), object)
            values[:] = dates
            return label_axis("", values, len(values)).ticks, np.ones(len(dates), bool)
        if self.axis.labels.dtype.kind == "M" and any(hasattr(label, "calendar") for label in given):
            raise self._wrong_kind("datetime64 times", given)
        kind = self.axis.labels.dtype.kind
        try:
            values = np.array([_numpy_time(label, kind) for label in given])
        except (ValueError, TypeError, OverflowError) as error:
            raise self._wrong_kind("times" if kind == "M" else "durations", given) from error
        if values.dtype.kind != kind:
            raise self._wrong_kind("times" if kind == "M" else "durations", given)
        own = values.astype(self.axis.labels.dtype)
        return own.astype(np.int64), np.asarray(own.astype(values.dtype) == values)

    def _of(self, positions: IntArray) -> str:
        return self.axis.show(int(positions[0]))

    def _label(self, tick: Any) -> str:
        """A tick as a label, where it can be written as one."""
        if self.axis.kind == "time" and not self.axis.calendar:
            label = np.array([tick]).astype(self.axis.labels.dtype)
            one = LabelAxis("", label, np.array([tick]), "time", self.axis.tick_ns)
            return f"{one.show(0)} "
        return f"{tick:g} " if self.axis.kind != "time" else ""

    def _unknown(self, what: str) -> UnknownNameError:
        return UnknownNameError(
            f"labels of {self.axis.dim!r} must be ones that the dataset has, {describe(self.axis)}, but got {what}; "
            "ask for those, or open a dataset that has it"
        )

    def _wrong_kind(self, rule: str, given: list[Any]) -> RequestError:
        return RequestError(
            f"labels of {self.axis.dim!r} must be {rule}, but got {_shown(given[0])} "
            f"({type(given[0]).__name__}); {describe(self.axis)}"
        )


def _listed(labels: Any) -> list[Any]:
    """Labels one by one, whatever holds them."""
    if isinstance(labels, str) or np.ndim(labels) == 0:
        return [labels[()] if isinstance(labels, np.ndarray) else labels]
    if hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    return [*labels.ravel()] if isinstance(labels, np.ndarray) else [*labels]


def _numpy_time(label: Any, kind: str) -> Any:
    import pandas as pd

    if isinstance(label, bool | int | float | np.integer | np.floating) and not isinstance(label, np.timedelta64):
        raise TypeError("a number is no time")
    if getattr(label, "tzinfo", None) is not None:
        raise ValueError("times must be without a zone")
    if kind == "m":
        return label if isinstance(label, np.timedelta64) else pd.Timedelta(label).to_timedelta64()
    return label.to_datetime64() if isinstance(label, pd.Timestamp) else np.datetime64(label)


def _date(label: Any, kind: Any) -> Any:
    """A date of a calendar of its own, also from ISO text."""
    match = _DATE.fullmatch(label) if isinstance(label, str) else None
    return kind(*(int(part or 0) for part in match.groups())) if match else label


def _shown(label: Any) -> str:
    if isinstance(label, np.datetime64):
        return re.sub(r"\.0+$", "", str(label)).removesuffix("T00:00:00")
    return repr(label) if isinstance(label, str) else str(label)
