"""What each latitude of a grid counts for."""

from __future__ import annotations

from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

from .grids import on_grid

#: names of the weights that are computed out of the latitudes
WEIGHTS = ("area", "wb2", "cos", "none")


def area_weights(latitude: np.ndarray, *, to_poles: bool = False) -> np.ndarray:
    """Area of the cells around latitudes, with mean 1.

    Cells end halfway between latitudes. The outer ones reach as far out as in, and to the poles at most, so that the
    weights of a regional subset are right; with ``to_poles`` they reach to the poles, as WeatherBench2 has it.

    Parameters
    ----------
    latitude : numpy.ndarray
        Degrees north, ascending.
    to_poles : bool, optional
        Whether the outer cells end at the poles.

    Examples
    --------
    >>> area_weights(np.array([-30.0, 0.0, 30.0, 60.0])).round(3).tolist()
    [1.072, 1.238, 1.072, 0.619]
    """
    radians = np.deg2rad(np.asarray(latitude, np.float64))
    middles = (radians[:-1] + radians[1:]) / 2
    if to_poles:
        bounds = np.concatenate([[-np.pi / 2], middles, [np.pi / 2]])
    elif len(radians) == 1:
        return np.ones(1)
    else:
        ends = 2 * radians[[0, -1]] - middles[[0, -1]]
        bounds = np.clip(np.concatenate([ends[:1], middles, ends[1:]]), -np.pi / 2, np.pi / 2)
    weights = np.diff(np.sin(bounds))
    return np.asarray(weights / weights.mean())


def cos_weights(latitude: np.ndarray) -> np.ndarray:
    """Cosine of latitudes, with mean 1; poles count nothing.

    Examples
    --------
    >>> cos_weights(np.array([-60.0, 0.0, 60.0])).round(2).tolist()
    [0.75, 1.5, 0.75]
    """
    weights = np.clip(np.cos(np.deg2rad(np.asarray(latitude, np.float64))), 0, None)
    return np.asarray(weights / weights.mean())


def resolve_weights(weights: Any, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Return weights by name, or those given, as an array of latitudes or of latitudes and longitudes.

    Parameters
    ----------
    weights : {"area", "wb2", "cos", "none"}, None, xarray.DataArray or array
        What each point counts for. Those given are not negative; a DataArray is found by its coordinates.
    latitude, longitude : numpy.ndarray
        The grid; latitudes ascend.

    Raises
    ------
    RequestError
        For an unknown name, and weights that do not fit the grid or are negative, missing or all zero.
    """
    if weights is None or (isinstance(weights, str) and weights == "none"):
        return np.ones(len(latitude))
    if isinstance(weights, str):
        if weights not in WEIGHTS:
            raise RequestError(f"weights must be one of {list(WEIGHTS)} or an array, but got {weights!r}; name one")
        return cos_weights(latitude) if weights == "cos" else area_weights(latitude, to_poles=weights == "wb2")
    given = on_grid(weights, latitude, longitude, "weights")
    if not (np.isfinite(given).all() and (given >= 0).all() and given.any()):
        raise RequestError(
            f"weights must be finite, not negative and not all zero, but got values from {given.min()} to "
            f"{given.max()}; use 0 where points do not count"
        )
    return given
