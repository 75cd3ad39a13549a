"""Which labels are anchors: those named, at even steps or times of day, outside of excluded periods."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.times import LabelAxis, Lead, offset
from insitu_xr.resolving.selecting import Labels

_DAY_NS = 86_400_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Labels that a person chose.

    Attributes
    ----------
    anchors : tuple of bool arrays
        Per sample dimension, the labels that may be anchors.
    usable : array of bool
        Along the dimension that leads move along, the labels that a window may touch at all.
    """

    anchors: tuple[npt.NDArray[np.bool_], ...]
    usable: npt.NDArray[np.bool_]


def choose(
    axes: Sequence[LabelAxis],
    lead_axis: int,
    *,
    anchors: Any = None,
    every: Lead | None = None,
    at: str | Sequence[str] | None = None,
    exclude: Any = None,
) -> Choice:
    """Choose anchors.

    Parameters
    ----------
    anchors : selection, or dict of dimension to selection
        As ``ds.sel`` understands labels, or a mask, or a callable that is given the index of the labels. Without a
        dict it applies to the dimension that leads move along.
    every : duration
        Keep anchors that lie a multiple of it after the first one chosen.
    at : str or sequence of str
        Keep anchors at these times of day, such as ``["00:00", "12:00"]``.
    exclude : selection, or sequence of them
        Labels that no window may touch.

    Raises
    ------
    RequestError, UnknownNameError
        If an argument does not fit the labels, or nothing is left.

    Examples
    --------
    >>> from insitu_xr.geometry.times import label_axis
    >>> hours = np.arange("2000-01-01", "2000-01-03", np.timedelta64(6, "h"), dtype="M8[h]").astype("M8[ns]")
    >>> axis = label_axis("time", hours, len(hours))
    >>> choose([axis], 0, at=["00:00", "12:00"], anchors=slice("2000-01-02", None)).anchors[0].nonzero()[0].tolist()
    [4, 6]
    """
    masks = [np.ones(len(axis), bool) for axis in axes]
    by_dim = anchors if isinstance(anchors, Mapping) else {axes[lead_axis].dim: anchors}
    for dim, selection in by_dim.items():
        if dim not in [a.dim for a in axes]:
            raise UnknownNameError(
                f"anchors must be given for sample dimensions, but got {dim!r}; they are {[a.dim for a in axes]}"
            )
        if selection is not None:
            k = [a.dim for a in axes].index(dim)
            masks[k] = _mask(axes[k], selection, "anchors")
    axis, chosen = axes[lead_axis], masks[lead_axis]
    if at is not None:
        chosen &= _at(axis, list(at) if isinstance(at, list | tuple) else [at])
    if every is not None and chosen.any():
        chosen &= _every(axis, every, int(chosen.argmax()))
    usable = np.ones(len(axis), bool)
    for period in [] if exclude is None else exclude if isinstance(exclude, list | tuple) else [exclude]:
        usable &= ~_mask(axis, period, "exclude", may_be_empty=True)
    if not chosen.any():
        arguments = {"anchors": anchors, "at": at, "every": every}
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
        raise RequestError(
            f"anchors must hold at least one label of {axis.dim!r}, but got none for {given}; labels run from "
            f"{axis.show(0)} to {axis.show(len(axis) - 1)}, so check the times of day and the bounds"
        )
    return Choice(tuple(masks), usable)


def _mask(axis: LabelAxis, selection: Any, thing: str, *, may_be_empty: bool = False) -> npt.NDArray[np.bool_]:
    mask = np.zeros(len(axis), bool)
    mask[Labels(axis).positions(selection, thing, may_be_empty=may_be_empty)] = True
    return mask


def _every(axis: LabelAxis, every: Lead, first: int) -> npt.NDArray[np.bool_]:
    step = offset(axis, every, "every")
    if step.ticks is None or step.ticks <= 0:
        raise RequestError(
            f"every must be a span above 0 that the labels of {axis.dim!r} resolve, but got {every!r}; lengthen it"
        )
    return np.asarray((axis.ticks - axis.ticks[first]) % step.ticks == 0)


def _at(axis: LabelAxis, times: Sequence[Any]) -> npt.NDArray[np.bool_]:
    if axis.kind != "time" or axis.labels.dtype.kind == "m":
        raise RequestError(
            f"at must be used along times, but the labels of {axis.dim!r} are {axis.kind}s; choose them with anchors="
        )
    wanted = []
    for text in times:
        try:
            time = datetime.time.fromisoformat(text)
            if time.tzinfo is not None:
                raise ValueError("labels have no time zone")
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"at must be times of day such as '06:00', but got {text!r}; write hours and minutes"
            ) from error
        seconds = (time.hour * 60 + time.minute) * 60 + time.second
        ticks, rest = divmod(seconds * 1_000_000_000 + time.microsecond * 1_000, axis.tick_ns)
        wanted += [] if rest else [ticks]
    return np.isin(axis.ticks % max(1, _DAY_NS // axis.tick_ns), wanted)
