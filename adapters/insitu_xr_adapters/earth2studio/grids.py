"""Grids as Earth2Studio compares them: bit for bit, latitudes from the north, longitudes from 0 to 360.

Models compare coordinates with ``==`` and take columns by value, so that a longitude that is off by one bit, or counted
from -180, gives the wrong column without a word. Whatever order a store has, its rows and columns are put in order as
slices while they are copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError, UnsupportedSourceError

type Values = npt.NDArray[Any]

_LATITUDES, _LONGITUDES = ("latitude", "lat", "nav_lat", "xlat"), ("longitude", "lon", "nav_lon", "xlong")
_NORTH = ("degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn")
_EAST = ("degrees_east", "degree_east", "degrees_e", "degree_e", "degreese")
#: how far a coordinate may lie from the exact one, in distances between neighbours
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """How the horizontal dimensions of a store become those of Earth2Studio.

    Attributes
    ----------
    dims : tuple of str
        Dimensions of the store, in the order of the output.
    names : tuple of str
        What they are called in the output.
    shape : tuple of int
        Of the output.
    coords : mapping
        Coordinates of the output, as xarray takes them.
    flips : tuple of bool
        Which dimensions are turned around.
    first : int
        Which of the (turned) columns of the store comes first.

    Examples
    --------
    >>> ds = xr.Dataset(coords={"lat": [-90.0, 0.0, 90.0], "lon": [-180.0, -90.0, 0.0, 90.0]})
    >>> grid = grid_of(ds)
    >>> grid.coords["lat"][1], grid.coords["lon"][1]
    (array([ 90.,   0., -90.]), array([  0.,  90., 180., 270.]))
    >>> out = np.empty((3, 4)); grid.place(out, np.arange(12.0).reshape(3, 4)); out[0]
    array([10., 11.,  8.,  9.])
    """

    dims: tuple[str, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]
    coords: Mapping[str, Any]
    flips: tuple[bool, ...] = field(default=(False, False))
    first: int = 0

    def place(self, out: Values, fields: Values) -> None:
        """Copy fields with the dimensions of the store, in the order of ``dims``, to where they belong."""
        if len(self.dims) == 2:
            rows, columns = (slice(None, None, -1 if flip else 1) for flip in self.flips)
            # A column that repeats the first one comes last, and is left out.
            fields = fields[..., rows, columns][..., : self.shape[1]]
        if not self.first:
            out[...] = fields
            return
        head = self.shape[1] - self.first
        out[..., :head] = fields[..., self.first :]
        out[..., head:] = fields[..., : self.first]


def grid_of(ds: xr.Dataset) -> Grid:
    """The grid of a dataset, by its latitudes and longitudes.

    Raises
    ------
    UnsupportedSourceError
        If it has none, or several.
    RequestError
        If they are in no order that can be mended.
    """
    lat, lon = _coordinate(ds, "latitude", _LATITUDES, _NORTH), _coordinate(ds, "longitude", _LONGITUDES, _EAST)
    if lat.ndim == lon.ndim == 1 and lat.dims != lon.dims:
        return _regular(lat, lon)
    if lat.dims != lon.dims:
        raise UnsupportedSourceError(
            f"latitudes and longitudes must be two dimensions, or share theirs, but got {lat.name!r} along {lat.dims} "
            f"and {lon.name!r} along {lon.dims}; assign others with ds.assign_coords"
        )
    return _native(ds, lat, lon)


def _coordinate(ds: xr.Dataset, what: str, names: tuple[str, ...], units: tuple[str, ...]) -> xr.DataArray:
    """The one coordinate that holds latitudes, or longitudes: by its standard name or units, else by its own name."""
    used: set[Hashable] = {dim for var in ds.data_vars.values() for dim in var.dims} or set(ds.dims)
    placed = [coord for coord in ds.coords.values() if coord.ndim and used.issuperset(coord.dims)]
    told = [c for c in placed if c.attrs.get("standard_name") == what]
    told = told or [c for c in placed if str(c.attrs.get("units", "")).lower() in units]
    found = told or [c for c in placed if str(c.name).lower() in names]
    # Of a rotated or projected grid, whose own axes may say the same, the geographic ones are the two-dimensional.
    found = [c for c in found if c.ndim == 2] or found
    if len(found) == 1:
        only: xr.DataArray = found[0]
        return only
    if found:
        raise UnsupportedSourceError(
            f"the dataset must have one {what}, but got {[str(c.name) for c in found]}; choose variables of one grid, "
            "such as ds[['t2m', 'z']]"
        )
    raise UnsupportedSourceError(
        f"the dataset must have a coordinate of {what}s, but got {[str(name) for name in ds.coords]}; name it "
        f"{names[0]!r}, or give it the attribute standard_name={what!r}"
    )


def _regular(lat: xr.DataArray, lon: xr.DataArray) -> Grid:
    dims = (str(lat.dims[0]), str(lon.dims[0]))
    rows, rows_flipped = _latitudes(lat)
    columns, columns_flipped, first = _longitudes(lon)
    coords = {"lat": ("lat", rows), "lon": ("lon", columns)}
    flips = (rows_flipped, columns_flipped)
    return Grid(dims, ("lat", "lon"), (len(rows), len(columns)), coords, flips, first)


def _native(ds: xr.Dataset, lat: xr.DataArray, lon: xr.DataArray) -> Grid:
    """A projected or unstructured grid: as it is, with latitudes and longitudes beside it."""
    dims = tuple(str(dim) for dim in lat.dims)
    east = np.asarray(lon.values, "f8")
    if not _crosses(east):
        east = east % 360
    coords: dict[str, Any] = {dim: (dim, ds[dim].values) for dim in dims if dim in ds.coords}
    coords |= {dim: (dim, np.arange(ds.sizes[dim])) for dim in dims if dim not in ds.coords}
    for prefix in ("", "_"):
        coords |= {f"{prefix}lat": (dims, np.asarray(lat.values, "f8")), f"{prefix}lon": (dims, east)}
    return Grid(dims, dims, lat.shape, coords)


def _crosses(lon: Values) -> bool:
    """Whether longitudes lie on both sides of Greenwich without going around the globe."""
    west, east = float(np.min(lon)), float(np.max(lon))
    return west < 0 < east and east - west < 300


def _ordered(coord: xr.DataArray) -> tuple[Values, float]:
    """Values in double precision, and how far each may be off."""
    values = np.asarray(coord.values)
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise RequestError(
            f"coordinate {coord.name!r} must hold finite numbers, but got {values.dtype} with missing ones or none; "
            f"assign them with ds.assign_coords({coord.name}=...)"
        )
    exact = values.astype("f8")
    rounding = 2 * np.finfo(values.dtype).eps * np.abs(exact).max() if values.dtype.kind == "f" else 0.0
    step = np.median(np.abs(np.diff(exact))) if len(exact) > 1 else 1.0
    return exact, float(rounding + _NEAR * step)


def _direction(coord: xr.DataArray, values: Values) -> bool:
    """Whether values descend."""
    steps = np.diff(values)
    if np.all(steps < 0):
        return len(values) > 1
    if np.all(steps > 0):
        return False
    raise RequestError(
        f"coordinate {coord.name!r} must go one way, but got {values[:4].tolist()} ...; sort it with "
        f"ds.sortby({coord.name!r})"
    )


def _latitudes(coord: xr.DataArray) -> tuple[Values, bool]:
    values, off = _ordered(coord)
    ascending = not _direction(coord, values) and len(values) > 1
    values = values[::-1] if ascending else values
    if np.abs(values).max() > 90 + off:
        raise RequestError(
            f"latitudes must lie within -90 and 90, but got {values.min()} to {values.max()} in {coord.name!r}; "
            "assign degrees with ds.assign_coords"
        )
    return _snapped(values, off, 180.0, 90.0, -1.0), ascending


def _longitudes(coord: xr.DataArray) -> tuple[Values, bool, int]:
    """Longitudes of the output, whether the columns are turned around, and which of them comes first."""
    values, off = _ordered(coord)
    broken = _breaks(values)
    values = np.unwrap(values, period=360) if broken else values
    flipped = _direction(coord, values)
    values = values[::-1] if flipped else values
    span = values[-1] - values[0]
    if span > 360 + off:
        raise RequestError(
            f"longitudes must lie within one turn, but got {values[0]} to {values[-1]} in {coord.name!r}; select one "
            "with ds.sel"
        )
    if len(values) > 2 and span >= 360 - off:  # the last column is the first one again
        values = values[:-1]
    east = values % 360
    east[np.abs(east - 360) <= off] = 0.0
    first = int(np.argmin(east))
    if first and not _closes(values, off):
        # A region across Greenwich stays in one piece, with the longitudes that it has.
        return east if broken else _snapped(values, off, 360.0, -180.0, 1.0), flipped, 0
    return _snapped(np.roll(east, -first), off, 360.0, 0.0, 1.0), flipped, first


def _breaks(values: Values) -> bool:
    """Whether there is one jump of about a turn in values that go one way otherwise, as in 350 ... 359, 0 ... 10."""
    steps = np.diff(values)
    return bool(np.sum(np.abs(steps) > 180) == 1)


def _closes(values: Values, off: float) -> bool:
    """Whether the columns go all the way around."""
    step = np.diff(values).max() if len(values) > 1 else 360.0
    return bool(values[-1] - values[0] + step >= 360 - len(values) * off - _NEAR)


def _snapped(values: Values, off: float, whole: float, start: float, sign: float) -> Values:
    """The exact values that were meant: a stretch of an equidistant grid over the globe, with or without the edges.

    Parameters
    ----------
    off : float
        How far each may be from what was meant.
    whole, start, sign : float
        Extent of the globe, where it begins, and in which direction it is counted.
    """
    if len(values) < 2:
        return _rounded(values, off)
    step = float(abs(values[-1] - values[0]) / (len(values) - 1))
    cells = round(whole / step)
    for offset in (0.0, 0.5):  # rows on the poles, or half a step from them
        begin = start + sign * offset * whole / cells
        every = np.linspace(begin, begin + sign * whole, cells + 1)
        at = round(float((values[0] - begin) * sign / (whole / cells)))
        meant = every[at : at + len(values)] if at >= 0 else every[:0]
        if len(meant) == len(values) and np.abs(meant - values).max() <= off:
            return meant
    ends = _rounded(values[[0, -1]], off)
    even = np.linspace(ends[0], ends[1], len(values))
    return even if np.abs(even - values).max() <= off else values


def _rounded(values: Values, off: float) -> Values:
    """Decimal values where they lie within the error."""
    near = np.round(values, 6)
    return near if np.abs(near - values).max() <= off else values
