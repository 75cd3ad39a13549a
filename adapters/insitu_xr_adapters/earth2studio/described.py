"""What a dataset is to Earth2Studio: its times, lead times, grid, and the vertical dimension of each variable."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError, UnsupportedSourceError
from insitu_xr_adapters.earth2studio.grids import Grid, grid_of
from insitu_xr_adapters.earth2studio.times import Axis, lead_axis, time_axis

_TIMES = ("time", "valid_time", "init_time", "forecast_reference_time", "reference_time")
_LEADS = ("lead_time", "step", "prediction_timedelta", "forecast_period", "leadtime", "lead")
_MEMBERS = ("number", "member", "ensemble", "ensemble_member", "realization", "realisation")
_PRESSURES = ("level", "pressure_level", "isobaricinhpa", "isobaric", "plev", "lev", "pressure")
_PASCALS, _HECTOPASCALS = ("pa", "pascal", "pascals"), ("hpa", "hectopascal", "mbar", "mb", "millibar", "millibars")


@dataclass(frozen=True, eq=False)
class Described:
    """A dataset with one sample dimension, or two, one grid, and at most one further dimension per variable.

    Attributes
    ----------
    ds : Dataset
        Without dimensions of length one that say nothing, and of a single member.
    time, lead : Axis
        Labels along the dimensions that are drawn; ``lead`` for forecasts alone.
    grid : Grid
        The horizontal dimensions.
    """

    ds: xr.Dataset
    time: Axis
    lead: Axis | None
    grid: Grid

    @property
    def sample_dims(self) -> tuple[str, ...]:
        """Dimensions that are drawn."""
        return (self.time.dim,) if self.lead is None else (self.time.dim, self.lead.dim)

    @cached_property
    def columns(self) -> dict[str, str | None]:
        """The further dimension of every variable that has the grid, such as that of levels."""
        found = {}
        for name, var in self.ds.data_vars.items():
            rest = [str(dim) for dim in var.dims if dim not in (*self.sample_dims, *self.grid.dims)]
            drawn = sum(dim in self.sample_dims for dim in var.dims)
            fits = set(self.grid.dims).issubset(var.dims) and len(rest) <= 1 and drawn in (0, len(self.sample_dims))
            if fits and var.dtype.kind in "fiub":
                found[str(name)] = rest[0] if rest else None
        return found

    @cached_property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Dimensions of every variable; asked for so often that xarray's own way would be seen in the time."""
        return {str(name): tuple(map(str, var.dims)) for name, var in self.ds.variables.items()}

    def is_static(self, name: str) -> bool:
        """Whether a variable is the same at all times."""
        return not set(self.sample_dims) & set(self.dims[name])

    def level_coord(self, name: str) -> xr.DataArray | None:
        """The coordinate of levels of a variable: that of its further dimension, or of a level that was selected."""
        column = self.columns[name]
        if column is not None:
            return self.ds[column] if column in self.ds.coords else None
        scalars = [c for c in self.ds[name].coords.values() if c.ndim == 0 and _is_vertical(c)]
        return scalars[0] if len(scalars) == 1 else None

    def column_of(self, name: str, level: float | str) -> int | None:
        """Position of a level along the further dimension of a variable; None where it has none and is at the level.

        Parameters
        ----------
        level : float or str
            Pressure in hPa or the number of a native level; or the label of a channel.

        Raises
        ------
        KeyError
            If it is not at the level, with what it has.
        """
        coord = self.level_coord(name)
        if coord is None:
            raise KeyError(f"{name!r} has no coordinate of levels")
        values = np.atleast_1d(coord.values)
        if isinstance(level, str) or values.dtype.kind not in "iuf":
            at = np.flatnonzero(values.astype(str) == str(level))
        else:
            at = np.flatnonzero(np.isclose(values.astype("f8"), level * _pascals_per(coord), rtol=1e-5, atol=0.0))
        if len(at) != 1:
            units = str(coord.attrs.get("units", "without units"))
            raise KeyError(f"{name!r} has {coord.name!r} {values.tolist()} ({units})")
        return int(at[0]) if self.columns[name] is not None else None


def _pascals_per(coord: xr.DataArray) -> float:
    """What one hPa is in the units of a coordinate; one for what are no units of pressure."""
    return 100.0 if str(coord.attrs.get("units", "")).strip().lower() in _PASCALS else 1.0


def _is_vertical(coord: xr.DataArray) -> bool:
    units, standard = str(coord.attrs.get("units", "")).strip().lower(), coord.attrs.get("standard_name")
    pressure = units in (*_PASCALS, *_HECTOPASCALS) or standard == "air_pressure"
    return pressure or str(coord.name).lower() in _PRESSURES


def is_forecast(ds: xr.Dataset) -> bool:
    """Whether a dataset has a dimension of lead times with more than one.

    Examples
    --------
    >>> is_forecast(xr.Dataset({"t2m": (("time", "step"), np.zeros((1, 2)))}))
    True
    """
    return any(_is_lead(ds, dim) and ds.sizes[dim] > 1 for dim in ds.dims)


def describe(ds: xr.Dataset, *, forecast: bool, member: Any = None) -> Described:
    """Find out what the dimensions of a dataset are.

    Parameters
    ----------
    forecast : bool
        Whether lead times are drawn as well.
    member : label, optional
        Member of an ensemble to take.

    Raises
    ------
    InsituError
        If that cannot be told, or is not what was asked for.
    """
    ds = _one_member(ds, member)
    lead = _lead_of(ds)
    ds, lead = _without_lead(ds, lead) if not forecast else (ds, lead)
    if forecast and lead is None:
        raise RequestError(
            f"a forecast source must have a dimension of lead times, but got the dimensions {_dims(ds)}; use "
            "InSituDataSource for analyses, or rename it to 'lead_time'"
        )
    time = _time_of(ds)
    grid = grid_of(ds)
    kept = {time.dim, *grid.dims, *(() if lead is None else (lead.dim,))}
    ds = ds.isel({dim: 0 for dim, size in ds.sizes.items() if size == 1 and dim not in kept and not _tells(ds, dim)})
    described = Described(ds, time, lead, grid)
    if not described.columns:
        raise UnsupportedSourceError(
            f"the dataset must have variables of the dimensions {(*described.sample_dims, *grid.dims)} and at most "
            f"one more, but got { ({str(n): v.dims for n, v in ds.data_vars.items()}) }; select one of the others "
            "with ds.isel"
        )
    return described


def _dims(ds: xr.Dataset) -> list[str]:
    return [str(dim) for dim in ds.dims]


def _tells(ds: xr.Dataset, dim: Hashable) -> bool:
    """Whether the labels of a dimension say what its variables are: names of channels, or levels.

    As a scalar coordinate, a level would be that of all variables.
    """
    return dim in ds.coords and (ds[dim].dtype.kind in "UTO" or _is_vertical(ds[dim]))


def _is_lead(ds: xr.Dataset, dim: Hashable) -> bool:
    coord = ds.coords.get(dim)
    told = coord is not None and (coord.dtype.kind == "m" or coord.attrs.get("standard_name") == "forecast_period")
    return told or str(dim).lower() in _LEADS


def _lead_of(ds: xr.Dataset) -> Axis | None:
    dims = [dim for dim in ds.dims if _is_lead(ds, dim)]
    if len(dims) > 1:
        raise UnsupportedSourceError(
            f"the dataset must have one dimension of lead times, but got {dims}; select one of the others with ds.isel"
        )
    if not dims:
        return None
    if dims[0] not in ds.coords:
        raise UnsupportedSourceError(
            f"dimension {dims[0]!r} must have labels, but got none; assign lead times with "
            f"ds.assign_coords({dims[0]}=...)"
        )
    return lead_axis(ds[dims[0]], str(dims[0]))


def _without_lead(ds: xr.Dataset, lead: Axis | None) -> tuple[xr.Dataset, None]:
    if lead is None:
        return ds, None
    if len(lead) > 1 or lead.labels[0] != np.timedelta64(0, "ns"):
        raise RequestError(
            f"an analysis source must have no lead times but zero, but got {lead.dim!r} with {lead}; use "
            f"InSituForecastSource, or select one with ds.isel({lead.dim}=0)"
        )
    return ds.isel({lead.dim: 0}, drop=True), None


def _time_of(ds: xr.Dataset) -> Axis:
    dated = [dim for dim in ds.dims if dim in ds.coords and _holds_dates(ds[dim])]
    if len(dated) > 1:
        dated = [dim for dim in dated if str(dim).lower() in _TIMES] or dated
        dated = sorted(dated, key=lambda dim: _TIMES.index(str(dim).lower()) if str(dim).lower() in _TIMES else 99)[:1]
    if dated:
        return time_axis(ds[dated[0]], str(dated[0]))
    named = [dim for dim in ds.dims if str(dim).lower() in _TIMES and dim in ds.coords]
    if named:
        return time_axis(ds[named[0]], str(named[0]))
    raise UnsupportedSourceError(
        f"the dataset must have a dimension of dates, but got {_dims(ds)}; select times with a list, such as "
        "ds.sel(time=['2020-01-01']), so that the dimension stays"
    )


def _holds_dates(coord: xr.DataArray) -> bool:
    if coord.dtype.kind == "O":
        return bool(coord.size) and hasattr(coord.values[0], "calendar")
    return coord.dtype.kind == "M"


def _one_member(ds: xr.Dataset, member: Any) -> xr.Dataset:
    dims = [dim for dim in ds.dims if _is_member(ds, dim)]
    if not dims:
        if member is not None:
            raise RequestError(
                f"member must be given for a dataset with a dimension of members, but got {member!r} and the "
                f"dimensions {_dims(ds)}; leave it out"
            )
        return ds
    dim = dims[0]
    labels: Sequence[Any] = ds[dim].values.tolist()
    if member is None:
        if len(labels) == 1:
            return ds.isel({dim: 0})
        raise RequestError(
            f"member must be given, for a source delivers one member, but got none of {len(labels)} along {dim!r}; "
            f"give member={labels[0]!r}"
        )
    if member not in labels:
        raise RequestError(
            f"member must be one of the labels of {dim!r}, but got {member!r}; there are {labels[:10]} of {len(labels)}"
        )
    return ds.isel({dim: labels.index(member)})


def _is_member(ds: xr.Dataset, dim: Hashable) -> bool:
    told = dim in ds.coords and ds[dim].attrs.get("standard_name") == "realization"
    return told or str(dim).lower() in _MEMBERS
