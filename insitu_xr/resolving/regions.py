"""Regions by label: either direction of an axis, and longitudes across the seam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.grid import IntArray

CIRCLE = 360.0
_LONGITUDES = frozenset({"lon", "longitude", "long", "nav_lon"})
_EAST = frozenset({"degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"})


def region(ds: xr.Dataset, bounds: Mapping[Any, Any], *, wrap: bool = False) -> xr.Dataset:
    """Select a region, lazily.

    Parameters
    ----------
    bounds : mapping of dimension to slice
        Bounds, both inclusive. Along an axis they may be written in either order, whichever way the axis runs.
    wrap : bool
        Take longitudes as a circle of 360 degrees: ``slice(350, 10)`` goes east from 350 across the seam to 10, and
        ``slice(-10, 10)`` is the same region, whether the store counts from 0 or from -180.

    Returns
    -------
    xarray.Dataset
        Labels and data in the order of the axis; with ``wrap``, from west to east, with the labels of the store.

    Raises
    ------
    RequestError, UnknownNameError
        If a dimension has no labels, or nothing lies within the bounds.

    Examples
    --------
    >>> ds = xr.Dataset({"a": ("lon", np.arange(4))}, {"lon": [0.0, 90.0, 180.0, 270.0]})
    >>> region(ds, {"lon": slice(-90, 0)}, wrap=True)["lon"].values.tolist()
    [270.0, 0.0]
    """
    east = [dim for dim in bounds if is_longitude(ds, dim)] if wrap else []
    if wrap and not east:
        raise RequestError(
            f"wrap must be used with bounds of longitude, but got bounds of {sorted(map(str, bounds))}; give them, or "
            "leave wrap out"
        )
    return ds.isel({dim: _positions(ds, dim, chosen, dim in east) for dim, chosen in bounds.items()})


def is_longitude(ds: xr.Dataset, dim: Any) -> bool:
    """Whether the labels of a dimension are longitudes, by CF attributes or by name."""
    attrs = ds[dim].attrs if dim in ds.coords else {}
    return attrs.get("standard_name") == "longitude" or attrs.get("units") in _EAST or str(dim).lower() in _LONGITUDES


def _positions(ds: xr.Dataset, dim: Any, chosen: Any, east: bool) -> IntArray:
    if dim not in ds.dims:
        raise UnknownNameError(
            f"region must be given for dimensions of the dataset, but got {dim!r}; it has {sorted(map(str, ds.dims))}"
        )
    labels = ds[dim].to_numpy() if dim in ds.coords else np.empty(0)
    if labels.dtype.kind not in "iuf" or not len(labels):
        raise RequestError(f"region must be given along numbers, but {dim!r} has none; select along it with ds.sel")
    if not isinstance(chosen, slice) or chosen.start is None or chosen.stop is None or chosen.step is not None:
        raise RequestError(f"region along {dim!r} must be slice(first, last), but got {chosen!r}; write it so")
    for bound in (chosen.start, chosen.stop):
        number = isinstance(bound, int | float | np.integer | np.floating) and not isinstance(bound, bool)
        if not number or not np.isfinite(bound):
            raise RequestError(
                f"region along {dim!r} must be between numbers, but got {bound!r} in {chosen!r}; labels run from "
                f"{labels[0]:g} to {labels[-1]:g}"
            )
    found = _eastward(labels, chosen) if east else _between(labels, chosen)
    if not len(found):
        raise RequestError(
            f"region along {dim!r} must hold at least one label, but got none between {chosen.start} and "
            f"{chosen.stop}; labels run from {labels[0]:g} to {labels[-1]:g}"
        )
    return found.astype(np.int64)


def _between(labels: Any, chosen: slice) -> IntArray:
    low, high = sorted((chosen.start, chosen.stop))
    return np.flatnonzero((labels >= low) & (labels <= high))


def _eastward(labels: Any, chosen: slice) -> IntArray:
    span = chosen.stop - chosen.start
    width = CIRCLE if span and span % CIRCLE == 0 else span % CIRCLE
    # Labels that were stored in single precision lie beside the bounds that a person writes, by some of its steps.
    rounding = 4 * CIRCLE * np.finfo(labels.dtype if labels.dtype.kind == "f" else np.float64).eps
    distance = (labels.astype(np.float64) - chosen.start) % CIRCLE
    distance[distance >= CIRCLE - rounding] = 0.0
    inside = np.flatnonzero(distance <= width + rounding)
    return inside[np.argsort(distance[inside], kind="stable")]
