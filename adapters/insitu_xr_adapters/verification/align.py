"""What belongs together: dimensions by role, and init and lead times as valid times of the reference."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr_adapters.verification.times import IntArray, Times, spell, spell_lead

Align = Literal["maximize", "same_init", "same_valid"]

ALIGNMENTS = ("maximize", "same_init", "same_valid")

#: CF standard names count before any name; "time" is an init time where there is a lead time, and a valid time
#: elsewhere
_STANDARD_NAMES = {
    "forecast_reference_time": "init_time",
    "forecast_period": "lead_time",
    "realization": "member",
    "latitude": "latitude",
    "longitude": "longitude",
}
_NAMES = {
    "init_time": ("init_time", "forecast_reference_time", "initial_time", "init", "reference_time", "time"),
    "lead_time": ("lead_time", "prediction_timedelta", "step", "lead", "forecast_period"),
    "member": ("number", "realization", "member", "ensemble_member", "ensemble", "sample"),
    "time": ("valid_time", "time", "t"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon"),
    "dayofyear": ("dayofyear", "day_of_year", "doy"),
    "month": ("month", "month_of_year"),
    "hour": ("hour", "hour_of_day"),
}


@dataclass(frozen=True, slots=True)
class Roles:
    """Dimensions of a dataset by role; None where there is none."""

    latitude: str
    longitude: str
    init_time: str | None = None
    lead_time: str | None = None
    member: str | None = None
    time: str | None = None

    @property
    def named(self) -> set[str]:
        """The dimensions that have a role."""
        return {d for d in (getattr(self, name) for name in self.__slots__) if d is not None}


def roles_of(ds: xr.Dataset, thing: str, dims: Mapping[str, str] | None = None) -> Roles:
    """Find dimensions by role: those given first, then by CF standard name, then by the names in use.

    Examples
    --------
    >>> ds = xr.Dataset(coords={"time": np.array(["2020"], "M8[ns]"), "lat": [0.0], "lon": [0.0]})
    >>> roles_of(ds, "reference")
    Roles(latitude='lat', longitude='lon', init_time=None, lead_time=None, member=None, time='time')
    """
    found = _roles(ds, thing, dims or {})
    for role in ("latitude", "longitude"):
        if role not in found or found[role] not in ds.coords:
            raise RequestError(
                f"{thing} must have a dimension of {role} with labels, but got the dimensions {_names(ds.dims)}; "
                "rename "
                "one, or give it the CF standard_name"
            )
    grid = found["latitude"], found["longitude"]
    lead = found.get("lead_time")
    if lead is not None and lead in ds.coords:
        init = found.get("init_time")
        if init is None or init not in ds.coords:
            raise RequestError(
                f"{thing} must have a dimension of init times beside its lead times {lead!r}, but got the dimensions "
                f"{_names(ds.dims)}; rename it to 'init_time', or expand_dims one of a single label"
            )
        return Roles(*grid, init_time=init, lead_time=lead, member=found.get("member"))
    time = found.get("time") or found.get("init_time")
    if time is None or time not in ds.coords:
        raise RequestError(
            f"{thing} must have a dimension of times with labels, but got the dimensions {_names(ds.dims)}; rename "
            "one to "
            "'time'"
        )
    return Roles(*grid, member=found.get("member"), time=time)


def _roles(ds: xr.Dataset, thing: str, given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, dim in given.items():
        if role not in _NAMES or dim not in ds.dims:
            raise UnknownNameError(
                f"a role in dims= must be one of {sorted(_NAMES)} and name a dimension of {thing}, but got {role!r}: "
                f"{dim!r}; it has {_names(ds.dims)}"
            )
        found[role] = dim
    dims = [str(d) for d in ds.dims]
    for dim in dims:
        known = _STANDARD_NAMES.get(ds[dim].attrs.get("standard_name", "")) if dim in ds.coords else None
        if known is not None and dim not in found.values():
            found.setdefault(known, dim)
    for role, names in _NAMES.items():
        if role not in found:
            taken = found.values() if role in ("lead_time", "member", "init_time") else ()
            named = [n for n in names if n in dims and n not in taken]
            found.update({role: named[0]} if named else {})
    return found


def dim_of(ds: xr.Dataset, role: str) -> str | None:
    """The dimension of one role by its names in use, such as the day of the year of a climatology."""
    return next((n for n in _NAMES[role] if n in ds.dims), None)


def _names(dims: Sequence[Hashable] | Any) -> list[str]:
    return sorted(str(d) for d in dims)


# -- times ----------------------------------------------------------------------------------------------------------


# -- pairs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Init and lead times that are scored.

    Attributes
    ----------
    inits, leads : array of int64
        Microseconds, ascending.
    wanted : array of bool, shape (inits, leads)
        Which of them are scored: the reference has their valid times, and ``align`` keeps them.
    calendar : str
        Calendar of the init times.
    """

    inits: IntArray
    leads: IntArray
    wanted: npt.NDArray[np.bool_]
    calendar: str

    @property
    def valid(self) -> IntArray:
        """Valid times, shape (inits, leads)."""
        return self.inits[:, None] + self.leads


def check_calendars(calendars: Mapping[str, str]) -> str:
    """The one calendar of all that is compared."""
    first, *others = calendars.items()
    for name, calendar in others:
        if calendar != first[1]:
            raise RequestError(
                f"calendars must be the same, but got {first[1]!r} of {first[0]} and {calendar!r} of {name}; "
                "convert_calendar() one of them"
            )
    return first[1]


def pair_times(
    models: Mapping[str, tuple[Times, Times]], references: Mapping[str, Times], align: Align, lead_time: Any = None
) -> Pairs:
    """Pair the init and lead times of forecasts with the times of references.

    Several models are scored on the init and lead times that all of them have: a difference between their scores then
    is one of the models, not of the sample.

    Raises
    ------
    RequestError
        If nothing overlaps, or a lead time that was asked for is missing.
    """
    if align not in ALIGNMENTS:
        raise RequestError(f"align must be one of {list(ALIGNMENTS)}, but got {align!r}; give one of them")
    calendar = check_calendars(
        {f"forecast {n!r}": inits.calendar for n, (inits, _) in models.items()}
        | {f"reference {n!r}": t.calendar for n, t in references.items()}
    )
    inits = _common([i.ticks for i, _ in models.values()])
    leads = _common([leads.ticks for _, leads in models.values()])
    if not len(inits) or not len(leads):
        thing = "init" if not len(inits) else "lead"
        raise RequestError(
            f"models must have {thing} times in common, but got none of {list(models)}; score them one by one"
        )
    leads = _chosen(leads, lead_time)
    every = inits[:, None] + leads
    have = np.logical_and.reduce([t.positions(every) >= 0 for t in references.values()])
    wanted = _kept(have, every, align)
    if not wanted.any():
        spans = [
            f"{n!r} {spell(int(t.ticks.min()), calendar)} to {spell(int(t.ticks.max()), calendar)}"
            for n, t in references.items()
            if len(t.ticks)
        ]
        raise RequestError(
            f"valid times must lie within the reference, but got {spell(int(every.min()), calendar)} to "
            f"{spell(int(every.max()), calendar)} against {', '.join(spans) or 'no times'}"
            + (f" with align={align!r}" if have.any() else "")
            + "; select times that overlap"
        )
    rows, columns = wanted.any(axis=1), wanted.any(axis=0)
    if lead_time is not None and not columns.all():
        missing = [spell_lead(t) for t in leads[~columns][:5]]
        raise RequestError(
            f"every lead time asked for must have a valid time in the reference, but got none for {missing}; extend "
            "the "
            "reference, or ask for other lead times"
        )
    return Pairs(inits[rows], leads[columns], wanted[rows][:, columns], calendar)


def _common(ticks: Sequence[IntArray]) -> IntArray:
    found = np.unique(ticks[0])
    for others in ticks[1:]:
        found = np.intersect1d(found, others)
    return found


def _chosen(leads: IntArray, wanted: Any) -> IntArray:
    if wanted is None:
        return leads
    if isinstance(wanted, slice):
        low, high = (None if bound is None else _lead(bound) for bound in (wanted.start, wanted.stop))
        step = None if wanted.step is None else _lead(wanted.step)
        kept = leads[(leads >= (leads[0] if low is None else low)) & (leads <= (leads[-1] if high is None else high))]
        if len(kept) and step is not None:
            kept = kept[(kept - kept[0]) % step == 0]
        if not len(kept):
            raise RequestError(
                f"lead_time must cover lead times of the forecast, but got {wanted} for {spell_lead(int(leads[0]))} to "
                f"{spell_lead(int(leads[-1]))}; give other bounds"
            )
        return kept
    given = [wanted] if isinstance(wanted, str | np.timedelta64 | int | float) or np.ndim(wanted) == 0 else list(wanted)
    asked = np.unique([_lead(w) for w in given])
    missing = np.setdiff1d(asked, leads)
    if len(missing):
        raise RequestError(
            f"lead_time must be lead times that every forecast has, but got {[spell_lead(t) for t in missing[:5]]}; "
            "there "
            f"are {len(leads)} from {spell_lead(int(leads[0]))} to {spell_lead(int(leads[-1]))}"
        )
    return asked.astype(np.int64)


def _lead(value: Any) -> int:
    import pandas as pd

    try:
        return int(pd.Timedelta(value).to_timedelta64().astype("m8[us]").astype(np.int64))
    except (TypeError, ValueError) as error:
        raise RequestError(f"lead_time must be durations such as '6h', but got {value!r}; write them so") from error


def _kept(have: npt.NDArray[np.bool_], valid: IntArray, align: Align) -> npt.NDArray[np.bool_]:
    if align == "same_init":
        return have & have.all(axis=1)[:, None]
    if align == "same_valid":
        # A valid time counts where every lead has an init time for it.
        common = _common([valid[have[:, k], k] for k in range(valid.shape[1])])
        return have & np.isin(valid, common)
    return have
