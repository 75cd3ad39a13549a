"""Climatologies by (day of the year, hour), day of the year or month: which of their fields a valid time needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.align import dim_of
from insitu_xr_adapters.verification.times import IntArray, spell

#: sample dimensions of a climatology by role; an hour may come beside either of the others
_ROLES = ("dayofyear", "month", "hour")


@dataclass(frozen=True, slots=True, eq=False)
class Calendar:
    """How valid times find their field in a climatology.

    Attributes
    ----------
    dims : tuple of str
        Dimensions of the climatology that valid times choose along.
    roles : tuple of str
        What each of them is: "dayofyear", "month" or "hour".
    labels : tuple of array of int
        Labels of each.
    """

    dims: tuple[str, ...]
    roles: tuple[str, ...]
    labels: tuple[IntArray, ...]

    @classmethod
    def of(cls, ds: xr.Dataset) -> Calendar:
        """Find the dimensions of a climatology.

        Raises
        ------
        RequestError
            If it has none of a day of the year or a month, or labels that are no whole numbers.

        Examples
        --------
        >>> Calendar.of(xr.Dataset(coords={"dayofyear": np.arange(1, 367), "hour": [0, 12]})).roles
        ('dayofyear', 'hour')
        """
        found = {role: dim for role in _ROLES if (dim := dim_of(ds, role)) is not None}
        if "dayofyear" not in found and "month" not in found:
            raise RequestError(
                "a climatology must have a dimension 'dayofyear' (and perhaps 'hour') or 'month', but got "
                f"{sorted(map(str, ds.dims))}; rename one, or make one by groupby('time.dayofyear').mean()"
            )
        if len(found) > 2 or ("dayofyear" in found and "month" in found):
            raise RequestError(
                f"a climatology must go by day of the year or by month, but got both {sorted(found.values())}; select "
                "one"
            )
        labels = []
        for role, dim in found.items():
            numbers: npt.NDArray[Any] = ds[dim].to_numpy() if dim in ds.coords else np.empty(0)
            if numbers.dtype.kind == "m":
                numbers = numbers / np.timedelta64(1, "h")
            if numbers.dtype.kind not in "iuf" or not len(numbers) or np.any(numbers % 1):
                raise RequestError(
                    f"labels {dim!r} of the climatology must be whole numbers, but got {numbers.dtype} of length "
                    f"{len(numbers)}; assign the {role}s as coordinate"
                )
            labels.append(numbers.astype(np.int64))
        return cls(tuple(found.values()), tuple(found), tuple(labels))

    def positions(self, valid: IntArray, calendar: str) -> tuple[IntArray, ...]:
        """Position along each dimension for every valid time.

        Raises
        ------
        RequestError
            If a day, month or hour is not there, named with the valid time that needs it.
        """
        times, inverse = np.unique(valid, return_inverse=True)
        parts = _parts(times, calendar)
        return tuple(
            self._looked_up(role, labels, parts[role], times, calendar)[inverse].reshape(valid.shape)
            for role, labels in zip(self.roles, self.labels, strict=True)
        )

    def _looked_up(self, role: str, labels: IntArray, wanted: IntArray, times: IntArray, calendar: str) -> IntArray:
        order = np.argsort(labels, kind="stable")
        at = np.minimum(np.searchsorted(labels[order], wanted), len(labels) - 1)
        found = labels[order][at] == wanted
        if not found.all():
            missing = np.unique(wanted[~found])
            first = spell(int(times[np.argmin(found)]), calendar)
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            hint = "fill day 366 from day 365" if role == "dayofyear" and missing.tolist() == [366] else "extend it"
            raise RequestError(
                f"the climatology must have every {role} of the valid times, but got none for {role} "
                f"{', '.join(map(str, missing[:5]))}{more} (valid at {first}); {hint}, or select other times"
            )
        return order[at]


def _parts(times: IntArray, calendar: str) -> dict[str, IntArray]:
    """Day of the year, month and hour of times; an hour is the whole one that a time lies in."""
    hours = (times // 3_600_000_000) % 24
    if calendar == "standard":
        import pandas as pd

        index = pd.DatetimeIndex(times.astype("M8[us]"))
        return {"dayofyear": _int(index.day_of_year), "month": _int(index.month), "hour": hours}
    import cftime

    dates = cftime.num2date(times, "microseconds since 1970-01-01", calendar)
    return {"dayofyear": _int([d.dayofyr for d in dates]), "month": _int([d.month for d in dates]), "hour": hours}


def _int(values: Any) -> npt.NDArray[np.int64]:
    return np.asarray(values, np.int64)


def variable_of(ds: xr.Dataset, name: str, statistic: str = "") -> str | None:
    """The variable of a climatology for a variable of a forecast, such as ``t2m_mean`` for ``t2m``.

    Examples
    --------
    >>> variable_of(xr.Dataset({"t2m_mean": 0.0}), "t2m")
    't2m_mean'
    """
    tried = (f"{name}_{statistic}",) if statistic else (name, f"{name}_mean")
    return next((n for n in tried if n in ds.data_vars), None)


def field_of(ds: xr.Dataset, variable: str, kind: str) -> xr.DataArray:
    """The field of a climatology that is of a kind, such as "mean" or "quantile_0.9".

    Raises
    ------
    RequestError
        If it has none.
    """
    statistic, _, number = kind.partition("_")
    if statistic == "quantile":
        name = variable_of(ds, variable, statistic)
        if name is not None and "quantile" in ds[name].dims:
            known = ds["quantile"].to_numpy().astype(float)
            at = np.flatnonzero(np.isclose(known, float(number)))
            if len(at):
                return ds[name].isel(quantile=int(at[0]))
            raise RequestError(
                f"the climatology must have quantile {number} of {variable!r}, but got {known.tolist()}; ask for one "
                "of them"
            )
    else:
        name = variable_of(ds, variable, "" if kind == "mean" else kind)
    if name is None:
        raise RequestError(
            f"the climatology must have {variable!r} ({kind}), but got {sorted(map(str, ds.data_vars))}; rename its "
            "variable "
            f"to {variable if kind == 'mean' else f'{variable}_{statistic if statistic == "quantile" else kind}'!r}"
        )
    return ds[name]
