"""From labels that a person wrote to positions, with xarray's own meaning of them."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, describe


class CalendarIndex(xr.CFTimeIndex):
    """Dates of any calendar whose fields are indexes, as those of pandas are: ``t.month.isin([6, 7, 8])`` works.

    Examples
    --------
    >>> dates = xr.date_range("2000-01-30", periods=2, freq="MS", calendar="360_day", use_cftime=True)
    >>> CalendarIndex(dates).month.isin([3]).tolist()
    [False, True]
    """

    __slots__ = ()


def _field(name: str) -> property:
    return property(lambda self: pd.Index(getattr(xr.CFTimeIndex, name).fget(self)))


for _name in ("year", "month", "day", "hour", "minute", "second", "dayofyear", "dayofweek", "days_in_month", "quarter"):
    if hasattr(xr.CFTimeIndex, _name):
        setattr(CalendarIndex, _name, _field(_name))


@dataclass(eq=False)
class Labels:
    """Looks labels of one axis up as ``ds.sel`` does; partial dates included.

    Along a descending axis a slice may be written in either direction. Without labels, positions are meant.

    Raises
    ------
    RequestError
        If a label is there more than once.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis
    >>> days = np.arange("2000-01-30", "2000-02-04", dtype="M8[D]").astype("M8[ns]")
    >>> labels = Labels(label_axis("time", days, 5))
    >>> labels.positions("2000-02", "train").tolist(), labels.positions(["2000-01-30", days[4]], "val").tolist()
    ([2, 3, 4], [0, 4])
    """

    axis: LabelAxis

    def __post_init__(self) -> None:
        if self._index is not None and not self._index.is_unique:
            where = int(np.flatnonzero(self._index.duplicated())[0])
            shown = self.axis.show(len(self.axis) - 1 - where if self._descends else where)
            raise RequestError(
                f"labels of {self.axis.dim!r} must be unique to be told apart, but {shown} occurs more than once; drop "
                f"duplicates first, e.g. ds.drop_duplicates({self.axis.dim!r})"
            )

    @cached_property
    def _descends(self) -> bool:
        return (
            self.axis.kind in ("time", "number") and len(self.axis) > 1 and bool(np.all(np.diff(self.axis.ticks) < 0))
        )

    @cached_property
    def _lookup(self) -> xr.DataArray:
        """Positions along the axis, by label; ascending where that is possible, since pandas wants it for dates."""
        dim, positions = self.axis.dim, np.arange(len(self.axis))
        if self.axis.kind == "position":
            return xr.DataArray(positions, dims=dim)
        turn = slice(None, None, -1 if self._descends else 1)
        return xr.DataArray(positions[turn], {dim: (dim, self.axis.labels[turn])}, dim)

    @cached_property
    def _index(self) -> Any:
        return self._lookup.indexes.get(self.axis.dim)

    def positions(self, selection: Any, thing: str, *, may_be_empty: bool = False) -> IntArray:
        """Positions that a selection names, ascending.

        Parameters
        ----------
        selection : label, slice of labels, sequence of both, boolean mask, or callable
            A callable gets the pandas index of the labels, and returns any of the others.
        thing : str
            What the selection is for, for messages.
        may_be_empty : bool
            Whether a selection of nothing is fine.

        Raises
        ------
        RequestError, UnknownNameError
            If it cannot be read, names a label that is not there, or selects nothing.
        """
        chosen = selection(self._in_axis_order()) if callable(selection) else selection
        mask = self._mask(chosen, thing)
        found = np.flatnonzero(mask) if mask is not None else np.unique(self._labels(chosen, thing))
        if not len(found) and not may_be_empty:
            raise RequestError(
                f"{thing} must select at least one label, but got {reprlib.repr(selection)}, which selects none; there "
                f"are {describe(self.axis)}"
            )
        return found.astype(np.int64)

    def _in_axis_order(self) -> Any:
        if self._index is None:
            return pd.RangeIndex(len(self.axis))
        index = self._index[::-1] if self._descends else self._index
        return CalendarIndex(index) if isinstance(index, xr.CFTimeIndex) else index  # type: ignore[no-untyped-call]

    def _mask(self, selection: Any, thing: str) -> npt.NDArray[np.bool_] | None:
        if isinstance(selection, str | slice) or np.ndim(selection) == 0:
            return None
        if not (isinstance(selection, list | tuple) and any(isinstance(s, slice) for s in selection)):
            values = np.asarray(selection)
            if values.dtype == np.bool_:
                self._check_mask(selection, values, thing)
                return values
        return None

    def _check_mask(self, selection: Any, values: npt.NDArray[np.bool_], thing: str) -> None:
        dim, n = self.axis.dim, len(self.axis)
        if values.shape != (n,):
            raise RequestError(
                f"{thing} must be a mask of shape ({n},) for {dim!r}, but got shape {values.shape}; give one value per "
                "label"
            )
        own = selection.indexes.get(dim) if isinstance(selection, xr.DataArray) else None
        if own is not None and self._index is not None and not own.equals(self._in_axis_order()):
            raise RequestError(
                f"{thing} must be a mask with the labels of {dim!r}, but got one with others; select both alike"
            )

    def _labels(self, selection: Any, thing: str) -> IntArray:
        if isinstance(selection, str | slice) or np.ndim(selection) == 0:
            return self._one(selection, thing)
        listed = list(selection) if isinstance(selection, list | tuple) else np.asarray(selection)
        single = [s for s in listed if isinstance(s, str | slice)]
        if single:
            return np.concatenate([self._one(s, thing) for s in listed])
        return self._many(listed, thing)

    def _many(self, labels: Any, thing: str) -> IntArray:
        if self._index is None:
            wanted = np.asarray(labels)
            if wanted.size and wanted.dtype.kind not in "iu":
                raise RequestError(
                    f"{thing} must name positions of {self.axis.dim!r}, which has no labels, but got "
                    f"{reprlib.repr(labels)}; give whole numbers"
                )
            missing = (wanted < 0) | (wanted >= len(self.axis))
            found = wanted.astype(np.int64)
        else:
            found = self._index.get_indexer(labels) if len(labels) else np.empty(0, np.int64)
            missing = found < 0
        if missing.any():
            raise self._unknown(labels[int(np.argmax(missing))], thing)
        return np.asarray(self._lookup.values[found])

    def _one(self, selection: Any, thing: str) -> IntArray:
        if self._index is None and not isinstance(selection, slice):
            return self._many([selection], thing)
        try:
            return self._slice(selection) if isinstance(selection, slice) else self._sel(selection)
        except KeyError as error:
            if isinstance(selection, slice) and not self._index.is_monotonic_increasing:
                raise RequestError(
                    f"{thing} must list labels of {self.axis.dim!r} one by one, since they are not in order, but got "
                    f"{selection!r}; sort first, e.g. ds.sortby({self.axis.dim!r})"
                ) from error
            raise self._unknown(selection, thing) from error
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"{thing} must be written like the labels of {self.axis.dim!r}, but got {selection!r} ({error}); there "
                f"are {describe(self.axis)}"
            ) from error

    def _sel(self, selection: Any) -> IntArray:
        return np.atleast_1d(self._lookup.sel({self.axis.dim: selection}).values)

    def _slice(self, selection: slice) -> IntArray:
        start, stop, step = selection.start, selection.stop, selection.step
        if not self._descends:
            return self._sel(selection)
        found = self._sel(slice(stop, start))
        if not len(found) and start is not None and stop is not None:
            found = self._sel(slice(start, stop))
        return found[::-1][::step]

    def _unknown(self, label: Any, thing: str) -> UnknownNameError:
        return UnknownNameError(
            f"{thing} must name labels of {self.axis.dim!r}, but got {label!r}, which is none of them; there are "
            f"{describe(self.axis)}"
        )
