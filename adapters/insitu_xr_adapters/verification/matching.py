"""One grid for all that is compared: variables, levels and the horizontal, matched by label, taken by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr_adapters.verification.align import Roles
from insitu_xr_adapters.verification.times import IntArray

#: degrees within which two labels are one grid point: what float32 keeps of a longitude
TOLERANCE = 1e-4
#: names in use for the vertical, which datasets need not agree on
_LEVELS = ("level", "pressure_level", "plev", "isobaricInhPa", "pressure", "isobaric")
#: the same unit, spelt differently
_UNITS = {"kelvin": "K", "degk": "K", "m s**-1": "m s-1", "m/s": "m s-1", "m**2 s**-2": "m2 s-2", "m^2/s^2": "m2 s-2"}
#: dimensions that valid times choose along, in a climatology
_CYCLES = ("dayofyear", "day_of_year", "doy", "month", "month_of_year", "hour", "hour_of_day")


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Variables and field of what is scored, as the first forecast has them.

    Attributes
    ----------
    variables : tuple of str
    latitude, longitude : DataArray
        Labels; latitudes ascend, longitudes are in the order of the forecast.
    extras : mapping of variable to tuple of str
        Dimensions besides, such as levels.
    labels : mapping of dimension to DataArray
        Labels of those.
    """

    variables: tuple[str, ...]
    latitude: xr.DataArray
    longitude: xr.DataArray
    extras: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, xr.DataArray]

    @property
    def shape(self) -> tuple[int, int]:
        """Latitudes and longitudes."""
        return self.latitude.size, self.longitude.size

    def extra_shape(self, variable: str) -> tuple[int, ...]:
        """Sizes of the dimensions besides."""
        return tuple(self.labels[d].size for d in self.extras[variable])


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """A dataset whose fields lie on the grid, with the roles of its dimensions.

    Latitudes that descend where those of the grid ascend are read as they are stored and turned in memory.
    """

    name: str
    ds: xr.Dataset
    roles: Roles
    flipped: bool = False

    def band(self, rows: slice) -> xr.Dataset:
        """The dataset in some rows of the grid."""
        size = self.ds.sizes[self.roles.latitude]
        if rows == slice(0, size):
            return self.ds
        taken = slice(size - rows.stop, size - rows.start) if self.flipped else rows
        return self.ds.isel({self.roles.latitude: taken})

    def fields(self, values: npt.NDArray[Any], variable: str, extras: Sequence[str], sample_dims: Sequence[str]) -> Any:
        """A view of a batch: sample, extras, [member,] ascending latitude, longitude."""
        dims = [str(d) for d in self.ds[variable].dims if d not in sample_dims]
        member = [self.roles.member] if self.roles.member in dims else []
        wanted = [*extras, *member, self.roles.latitude, self.roles.longitude]
        turned = values.transpose(0, *(1 + dims.index(str(d)) for d in wanted))
        return turned[..., ::-1, :] if self.flipped else turned

    def members(self, variable: str) -> int:
        """Number of members, 0 where there is no such dimension."""
        return int(self.ds[variable].sizes.get(self.roles.member, 0))


def grid_of(
    ds: xr.Dataset, roles: Roles, variables: Sequence[str] | None, others: Mapping[str, xr.Dataset], level: Any = None
) -> Grid:
    """The grid of a forecast: what it shares with all others.

    Raises
    ------
    UnknownNameError
        If a variable is asked for that one of them lacks, or they share none.
    """
    names = _variables(ds, roles, variables, others)
    extras = {n: tuple(str(d) for d in ds[n].dims if d not in roles.named) for n in names}
    labels = {d: _label(ds, d) for dims in extras.values() for d in dims}
    if level is not None:
        labels |= _levels(labels, level)
    latitude = ds[roles.latitude]
    ascending = latitude.isel({roles.latitude: np.argsort(latitude.to_numpy(), kind="stable")})
    return Grid(names, ascending, ds[roles.longitude], extras, labels)


def _label(ds: xr.Dataset, dim: str) -> xr.DataArray:
    return ds[dim] if dim in ds.coords else xr.DataArray(np.arange(ds.sizes[dim]), dims=dim, name=dim)


def _variables(
    ds: xr.Dataset, roles: Roles, wanted: Sequence[str] | None, others: Mapping[str, xr.Dataset]
) -> tuple[str, ...]:
    needed = {roles.latitude, roles.longitude, *(d for d in (roles.init_time, roles.lead_time, roles.time) if d)}
    own = [str(n) for n in ds.data_vars if ds[n].dtype.kind in "iuf" and needed <= set(ds[n].dims)]
    if wanted is None:
        names = [n for n in own if all(n in other.data_vars for other in others.values())]
    else:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        lacking = [key for key, other in {"the forecast": ds[own], **others}.items() if name not in other.data_vars]
        if lacking:
            raise UnknownNameError(
                f"variable {name!r} must be in all that is compared, but got none in {lacking[0]}; rename it there, or "
                f"choose of {own}"
            )
    if not names:
        listed = "; ".join(f"{key} has {sorted(map(str, other.data_vars))}" for key, other in others.items())
        raise UnknownNameError(
            f"forecast and reference must have variables in common, but got {own} in the forecast; {listed}; rename "
            "them"
        )
    return tuple(names)


def _levels(labels: Mapping[str, xr.DataArray], level: Any) -> dict[str, xr.DataArray]:
    dim = next((d for d in labels if d in _LEVELS), None)
    if dim is None:
        raise RequestError(
            f"level must be of a dimension of levels, but got {level!r} for {sorted(labels)}; leave it out"
        )
    known, given = labels[dim].to_numpy(), np.atleast_1d(np.asarray(level))
    at = _nearest(known.astype(float), given.astype(float), 1e-6)
    if (at < 0).any():
        raise UnknownNameError(
            f"level must be one of {known.tolist()}, but got {given[at < 0].tolist()}; the forecast has no others"
        )
    return {dim: labels[dim].isel({dim: at})}


# -- one dataset on the grid ----------------------------------------------------------------------------------------


def matched(name: str, ds: xr.Dataset, roles: Roles, grid: Grid, renamed: Mapping[str, str] | None = None) -> Matched:
    """Bring a dataset onto the grid, lazily.

    Parameters
    ----------
    name : str
        What it is, for messages, such as "reference 'era5'".
    renamed : mapping of str to str, optional
        The variables to take: for each name here, its name in the dataset. Those of the grid by default.

    Raises
    ------
    RequestError
        If its grid or its levels are others.
    """
    own = {v: v for v in grid.variables} if renamed is None else renamed
    ds = ds[list(own.values())].rename({o: v for v, o in own.items() if o != v})
    ds = _same_levels(name, ds, roles, grid)
    latitudes = _rows(name, "latitude", ds[roles.latitude], grid.latitude, wrap=False)
    longitudes = _rows(name, "longitude", ds[roles.longitude], grid.longitude, wrap=True)
    flipped = len(latitudes) > 1 and bool(latitudes[0] > latitudes[-1])
    taken = latitudes[::-1] if flipped else latitudes
    ds = _taken(ds, {roles.latitude: taken, roles.longitude: longitudes})
    # From here on everything goes by position.
    return Matched(name, ds.drop_vars(list(ds.coords)), roles, flipped)


def _taken(ds: xr.Dataset, positions: Mapping[str, IntArray]) -> xr.Dataset:
    """Select positions, without touching a dimension that is taken whole and in order."""
    changed = {d: p for d, p in positions.items() if not np.array_equal(p, np.arange(ds.sizes[d]))}
    return ds.isel({d: _as_slice(p) for d, p in changed.items()}) if changed else ds


def _as_slice(positions: IntArray) -> slice | IntArray:
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    if step == 0 or np.any(np.diff(positions) != step):
        return positions
    stop = int(positions[-1]) + (1 if step > 0 else -1)
    return slice(int(positions[0]), stop if stop >= 0 else None, step)


def _same_levels(name: str, ds: xr.Dataset, roles: Roles, grid: Grid) -> xr.Dataset:
    for dim in dict.fromkeys(d for dims in grid.extras.values() for d in dims):
        if dim not in ds.dims:
            ds = ds.rename({_alias(name, ds, roles, dim): dim})
        wanted, have = grid.labels[dim].to_numpy(), _label(ds, dim).to_numpy()
        numbers = wanted.dtype.kind in "iuf" and have.dtype.kind in "iuf"
        at = _nearest(have.astype(float), wanted.astype(float), 1e-6) if numbers else _equal(have, wanted)
        if (at < 0).any():
            raise RequestError(
                f"{name} must have every {dim!r} of the forecast, but got none for {wanted[at < 0][:5].tolist()}; it "
                "has "
                f"{have[:10].tolist()}; select those in common"
            )
        ds = _taken(ds, {dim: at})
    known = {*grid.labels, *roles.named, *_CYCLES}
    for variable in ds.data_vars:
        if more := [str(d) for d in ds[variable].dims if d not in known]:
            raise RequestError(
                f"variable {variable!r} of {name} must have the dimensions of the forecast, but got {more} besides; "
                "select "
                "one label of each"
            )
    return ds


def _alias(name: str, ds: xr.Dataset, roles: Roles, dim: str) -> str:
    """What a dataset calls the vertical of the forecast."""
    found = next((d for d in _LEVELS if d in ds.dims and d not in roles.named), None) if dim in _LEVELS else None
    if found is None:
        raise RequestError(
            f"{name} must have the dimension {dim!r} of the forecast, but got {sorted(map(str, ds.dims))}; select one "
            "label "
            "of it in the forecast, or rename it"
        )
    return found


def _rows(name: str, thing: str, have: xr.DataArray, wanted: xr.DataArray, *, wrap: bool) -> IntArray:
    ours, theirs = wanted.to_numpy().astype(float), have.to_numpy().astype(float)
    at = _nearest(theirs % 360, ours % 360, TOLERANCE, 360) if wrap else _nearest(theirs, ours, TOLERANCE)
    if (at < 0).any():
        raise RequestError(
            f"{name} must be on the grid of the forecast, but got no {thing} {ours[at < 0][0]:g} (it has "
            f"{len(theirs)} from "
            f"{theirs[0]:g} to {theirs[-1]:g}, the forecast {len(ours)} from {ours[0]:g} to {ours[-1]:g}); regrid one "
            "of them"
        )
    return at


def _nearest(
    have: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64], within: float, period: float = 0
) -> IntArray:
    """Position of the nearest label within a distance, -1 where there is none."""
    order = np.argsort(have, kind="stable").astype(np.int64)
    ordered = have[order]
    if period:
        ordered = np.concatenate([ordered[-1:] - period, ordered, ordered[:1] + period])
        order = np.concatenate([order[-1:], order, order[:1]])
    right = np.clip(np.searchsorted(ordered, wanted), 0, len(ordered) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(np.abs(ordered[left] - wanted) < np.abs(ordered[right] - wanted), left, right)
    return np.where(np.abs(ordered[nearest] - wanted) <= within, order[nearest], -1)


def _equal(have: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> IntArray:
    found = {label: k for k, label in reversed([*enumerate(have.tolist())])}
    return np.array([found.get(label, -1) for label in wanted.tolist()], np.int64)


def check_units(name: str, ds: xr.Dataset, own: Mapping[str, str], first: str, units: Mapping[str, str]) -> None:
    """Refuse values of another unit: the difference of two of them would be a number like any other."""
    for variable, unit in units.items():
        found = str(ds[own.get(variable, variable)].attrs.get("units", ""))
        if unit and found and _unit(found) != _unit(unit):
            raise RequestError(
                f"units of {variable!r} must be the same, but got {unit!r} in {first} and {found!r} in {name}; "
                "convert one "
                "(or correct its attribute)"
            )


def _unit(text: str) -> str:
    text = " ".join(text.split())
    return _UNITS.get(text.lower(), text)
