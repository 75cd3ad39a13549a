"""Which dimensions of a forecast are its init time, its lead time and its members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError

INIT, LEAD, MEMBER = "init_time", "lead_time", "member"

#: CF standard names, which count before any name
STANDARD_NAMES = {"forecast_reference_time": INIT, "forecast_period": LEAD, "realization": MEMBER}

#: names in use, by role; "time" is the init time where there is a lead time, and the valid time elsewhere
NAMES = {
    INIT: ("init_time", "forecast_reference_time", "initial_time", "init", "reference_time", "time"),
    LEAD: ("lead_time", "prediction_timedelta", "step", "lead", "forecast_period"),
    MEMBER: ("number", "realization", "member", "ensemble_member", "ensemble", "sample"),
}

_UNITS_NS = {"day": 86_400_000_000_000, "hour": 3_600_000_000_000, "minute": 60_000_000_000, "second": 1_000_000_000}
#: units in use whose length depends on the date
_NO_LENGTH = ("month", "year")
_SHORT = {"d": "day", "h": "hour", "hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute", "s": "second"}


@dataclass(frozen=True, slots=True)
class Roles:
    """Dimensions of a forecast by role; None where there is none."""

    init_time: str | None = None
    lead_time: str | None = None
    member: str | None = None

    def dim(self, name: str) -> str:
        """The dimension that a role names, by any of its names in use; the name itself where it is none."""
        dims = {INIT: self.init_time, LEAD: self.lead_time, MEMBER: self.member}
        role = next((r for r, names in NAMES.items() if name == r or (name in names and name != "time")), None)
        return (dims[role] if role is not None else None) or name


def roles_of(ds: xr.Dataset) -> Roles:
    """Find the dimensions of a forecast: by CF standard name first, then by the names in use.

    A dataset without lead times is not a forecast, and has no init time.

    Examples
    --------
    >>> lead = ("prediction_timedelta", np.array([0, 6], "timedelta64[h]").astype("timedelta64[ns]"))
    >>> time = np.array(["2020-01-01"], "datetime64[ns]")
    >>> roles_of(xr.Dataset(coords={"time": time, "prediction_timedelta": lead}))
    Roles(init_time='time', lead_time='prediction_timedelta', member=None)
    """
    found: dict[str, str] = {}
    dims = [str(d) for d in ds.dims]
    for dim in dims:
        role = STANDARD_NAMES.get(ds.variables[dim].attrs.get("standard_name", "")) if dim in ds.coords else None
        if role is not None:
            found.setdefault(role, dim)
    for role, names in NAMES.items():
        named = [n for n in names if n in dims and n not in found.values()]
        if role not in found and named:
            found[role] = named[0]
    if LEAD not in found or not _is_duration(ds, found[LEAD]):
        return Roles(member=found.get(MEMBER))
    return Roles(found.get(INIT), found[LEAD], found.get(MEMBER))


def _is_duration(ds: xr.Dataset, dim: str) -> bool:
    if dim not in ds.coords:
        return False
    # Months are lead times as well, though nothing can be counted with them: see ``lead_times``.
    kind = ds.variables[dim].dtype.kind
    return kind == "m" or (kind in "iuf" and _unit(ds, dim) in {*_UNITS_NS, *_NO_LENGTH})


def _unit(ds: xr.Dataset, dim: str) -> str:
    unit = str(ds[dim].attrs.get("units", "")).strip()
    return _SHORT.get(unit, unit).lower().removesuffix("s")


def lead_times(ds: xr.Dataset, dim: str) -> npt.NDArray[np.timedelta64]:
    """Lead times of a forecast, also where they are numbers with ``units``.

    Returns
    -------
    array of timedelta64[ns]

    Raises
    ------
    RequestError
        If they are neither durations nor numbers with a unit of fixed length.

    Examples
    --------
    >>> ds = xr.Dataset(coords={"lead": ("lead", [0, 6], {"units": "hours"})})
    >>> lead_times(ds, "lead").astype("timedelta64[h]")
    array([0, 6], dtype='timedelta64[h]')
    """
    labels = ds[dim].to_numpy()
    if labels.dtype.kind == "m":
        return labels.astype("timedelta64[ns]")
    unit = _unit(ds, dim)
    if labels.dtype.kind not in "iuf" or unit not in _UNITS_NS:
        raise RequestError(
            f"lead times {dim!r} must be durations, or numbers with units of days, hours, minutes or seconds, but got "
            f"{labels.dtype} with units {ds[dim].attrs.get('units')!r}; assign such a coordinate"
        )
    return np.round(labels * _UNITS_NS[unit]).astype("timedelta64[ns]")
