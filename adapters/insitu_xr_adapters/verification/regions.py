"""Regions by preset, box and mask, as what each point of a grid counts for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError, UnknownNameError

from .grids import LATITUDE_NAMES, LONGITUDE_NAMES, on_grid

#: the regions of WeatherBench2; "extra-tropics" is the two bands that "tropics" leaves
WB2_REGIONS: Mapping[str, Mapping[str, Any]] = {
    "global": {},
    "tropics": {"latitude": slice(-20, 20)},
    "extra-tropics": {"latitude": [slice(None, -20), slice(20, None)]},
    "northern-hemisphere": {"latitude": slice(20, None)},
    "southern-hemisphere": {"latitude": slice(None, -20)},
    "europe": {"latitude": slice(35, 75), "longitude": slice(-12.5, 42.5)},
    "north-america": {"latitude": slice(25, 60), "longitude": slice(240, 285)},
    "north-atlantic": {"latitude": slice(25, 65), "longitude": slice(290, 350)},
    "north-pacific": {"latitude": slice(25, 60), "longitude": slice(145, 230)},
    "east-asia": {"latitude": slice(25, 60), "longitude": slice(102.5, 150)},
    "ausnz": {"latitude": slice(-45, -12.5), "longitude": slice(120, 175)},
    "arctic": {"latitude": slice(60, 90)},
    "antarctic": {"latitude": slice(-90, -60)},
}

#: sets of regions that go by one name
PRESETS = {"wb2": WB2_REGIONS, "global": {"global": WB2_REGIONS["global"]}}

#: a region on a grid: rows that may count, columns that may count (None: all), what each of their points counts for
#: beside its weight (None: one)
type Shape = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


def resolve_regions(regions: Any, latitude: np.ndarray, longitude: np.ndarray) -> dict[str, Shape]:
    """Return regions on a grid by name.

    Parameters
    ----------
    regions : None, str, sequence of str or mapping
        None is the globe. A name is a preset (``"wb2"``) or a region of one. A mapping gives each region by name: as a
        name out of the presets; as a box ``{"latitude": slice(20, 90), "longitude": slice(-10, 40)}``, bounds included
        (several slices in a list; longitudes go eastwards, across the seam where the second is smaller); as a mask
        (DataArray, or array ``(latitude, longitude)``), true or a share between 0 and 1; or as a box with a ``"mask"``.
    latitude, longitude : numpy.ndarray
        The grid; latitudes ascend.

    Raises
    ------
    RequestError, UnknownNameError
        For a name that is no region, and for regions without any point.
    """
    shapes = {name: _shape(name, spec, latitude, longitude) for name, spec in _specs(regions).items()}
    for name, (rows, columns, factor) in shapes.items():
        inside = rows.any() and (columns is None or len(columns)) and (factor is None or factor[rows].any())
        if not inside:
            raise RequestError(
                f"region {name!r} must contain a point of the grid, but got none between latitudes {latitude[0]} and "
                f"{latitude[-1]} and longitudes {longitude.min()} and {longitude.max()}; leave it out"
            )
    return shapes


def _specs(regions: Any) -> dict[str, Any]:
    if regions is None:
        return dict(PRESETS["global"])
    if isinstance(regions, str):
        regions = [regions]
    if isinstance(regions, Mapping):
        return {str(name): _named(spec) if isinstance(spec, str) else spec for name, spec in regions.items()}
    specs: dict[str, Any] = {}
    for name in regions:
        specs |= PRESETS[name] if name in PRESETS else {name: _named(name)}
    return specs


def _named(name: str) -> Mapping[str, Any]:
    if name not in WB2_REGIONS:
        raise UnknownNameError(
            f"regions must be among {sorted({*PRESETS, *WB2_REGIONS})} or given as boxes or masks, but got {name!r}; "
            'pass {"name": {"latitude": slice(south, north), "longitude": slice(west, east)}}'
        )
    return WB2_REGIONS[name]


def _shape(name: str, spec: Any, latitude: np.ndarray, longitude: np.ndarray) -> Shape:
    if not isinstance(spec, Mapping):
        spec = {"mask": spec}
    rows, columns, factor = np.ones(len(latitude), bool), None, None
    for key, value in spec.items():
        if key in LATITUDE_NAMES:
            rows = _within(_slices(name, key, value), latitude)
        elif key in LONGITUDE_NAMES:
            inside = _eastwards(_slices(name, key, value), longitude)
            columns = None if inside.all() else np.flatnonzero(inside)
        elif key == "mask":
            factor = _mask(name, value, latitude, longitude)
        else:
            raise RequestError(
                f"region {name!r} must be made of latitude, longitude and mask, but got {key!r}; "
                "pass other limits as a mask"
            )
    if factor is not None and columns is not None:
        factor = np.ascontiguousarray(factor[:, columns])
    return rows, columns, factor


def _slices(name: str, key: str, value: Any) -> list[slice]:
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, slice) for item in found):
        raise RequestError(
            f"{key} of region {name!r} must be a slice, or a list of slices, but got {value!r}; "
            f'write {{"{key}": slice(first, last)}}'
        )
    return found


def _within(slices: list[slice], latitude: np.ndarray) -> np.ndarray:
    inside = np.zeros(len(latitude), bool)
    for item in slices:
        limits = [bound for bound in (item.start, item.stop) if bound is not None]
        low = -np.inf if item.start is None else min(limits)
        high = np.inf if item.stop is None else max(limits)
        inside |= (latitude >= low) & (latitude <= high)
    return inside


def _eastwards(slices: list[slice], longitude: np.ndarray) -> np.ndarray:
    inside = np.zeros(len(longitude), bool)
    for item in slices:
        west = 0.0 if item.start is None else item.start
        east = 360.0 if item.stop is None else item.stop
        whole = abs(east - west) >= 360
        inside |= whole | ((longitude - west) % 360 <= (east - west) % 360)
    return inside


def _mask(name: str, value: Any, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    factor = on_grid(value, latitude, longitude, f"mask of region {name!r}")
    if not ((factor >= 0) & (factor <= 1)).all():
        raise RequestError(
            f"mask of region {name!r} must be true, false or a share between 0 and 1, but got values from "
            f"{factor.min()} to {factor.max()}; fill what is missing"
        )
    if factor.ndim == 1:
        factor = np.broadcast_to(factor[:, None], (len(latitude), len(longitude)))
    return np.ascontiguousarray(factor)
