"""Fields that a user gives (weights, masks, thresholds), on the grid that is scored."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

#: names that the horizontal dimensions go by
LATITUDE_NAMES = ("latitude", "lat")
LONGITUDE_NAMES = ("longitude", "lon")

#: degrees that coordinates of one place may differ by: what single precision does to them
TOLERANCE = 1e-4


def digest(array: np.ndarray) -> str:
    """Return a short text that equal arrays share."""
    content = np.ascontiguousarray(array)
    head = f"{content.dtype.str}{content.shape}".encode()
    return hashlib.sha256(head + content.tobytes()).hexdigest()[:16]


def on_grid(field: Any, latitude: np.ndarray, longitude: np.ndarray, what: str) -> np.ndarray:
    """Return a field as doubles ``(latitude,)`` or ``(latitude, longitude)``.

    Parameters
    ----------
    field : xarray.DataArray or array
        A DataArray is looked up by its coordinates, in whatever order they are; an array is taken as it is.
    latitude, longitude : numpy.ndarray
        The grid.
    what : str
        What the field is, for messages.

    Raises
    ------
    RequestError
        If the field is not given at every point of the grid.
    """
    if hasattr(field, "dims"):
        return _looked_up(field, latitude, longitude, what)
    values = np.asarray(field, np.float64)
    if values.shape not in ((len(latitude),), (len(latitude), len(longitude))):
        raise RequestError(
            f"{what} must have the shape ({len(latitude)},) or ({len(latitude)}, {len(longitude)}) of the grid, but "
            f"got {values.shape}; pass a DataArray with latitude and longitude to have it looked up"
        )
    return values


def _looked_up(field: Any, latitude: np.ndarray, longitude: np.ndarray, what: str) -> np.ndarray:
    lat = next((name for name in LATITUDE_NAMES if name in field.dims), None)
    lon = next((name for name in LONGITUDE_NAMES if name in field.dims), None)
    if lat is None or set(field.dims) - {lat, lon}:
        raise RequestError(
            f"{what} must have the dimension latitude, and longitude or none, but got {tuple(field.dims)}; "
            "select one label of the others and rename these"
        )
    values = np.asarray(field.transpose(lat, *([lon] if lon else [])).values, np.float64)
    values = values[_positions(np.asarray(field[lat].values), latitude, False, f"latitude of {what}")]
    if lon is not None:
        values = values[:, _positions(np.asarray(field[lon].values), longitude, True, f"longitude of {what}")]
    return np.asarray(values)


def _positions(have: np.ndarray, want: np.ndarray, around: bool, what: str) -> np.ndarray:
    apart = np.abs(np.asarray(want, np.float64)[:, None] - np.asarray(have, np.float64)[None, :])
    if around:
        apart = np.minimum(apart % 360, 360 - apart % 360)
    nearest = apart.argmin(axis=1)
    lacking = apart[np.arange(len(want)), nearest] > TOLERANCE
    if lacking.any():
        raise RequestError(
            f"{what} must have every label of the grid, but got none for {want[lacking][:3].tolist()}; "
            "interpolate it to the grid first"
        )
    return nearest
