"""Made-up weather in the form that real stores have it: waves that travel east, south to north, from -180 to 180."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

START, STEP = np.datetime64("2020-01-01T00", "ns"), np.timedelta64(6 * 3600 * 10**9, "ns")
LAT, LON = np.linspace(-90, 90, 73), np.arange(-180.0, 180.0, 5.0)
LEVELS = [500, 850]

type Array = np.ndarray[Any, np.dtype[Any]]


def waves(when: Array, *, error: float | Array = 0.0, seed: int = 0) -> Array:
    """A field of waves at some times (hours), shape ``(*when, lat, lon)``; the error moves and bends them."""
    rng = np.random.default_rng(seed)
    lat, lon = np.radians(LAT)[:, None], np.radians(LON)
    field = np.zeros((*np.shape(when), len(LAT), len(LON)))
    for number in (2, 4, 5, 7):
        phase, height = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 1) / number
        days = np.asarray(when)[..., None, None] / 24
        shift = np.asarray(error)[..., None, None] * rng.normal()
        field += height * np.cos(lat) ** 2 * np.cos(number * lon - phase - 0.25 * number * days + shift)
    return field


def analyses(count: int) -> xr.Dataset:
    """Analyses under the names that WeatherBench2 and ARCO have."""
    hours = np.arange(count) * 6.0
    pole = np.abs(np.sin(np.radians(LAT)))[:, None]
    warm = 28 - 45 * pole**2
    height = np.stack([5600 - 600 * pole**2 + 120 * waves(hours), 1500 - 150 * pole**2 + 60 * waves(hours)], axis=1)
    return xr.Dataset(
        {
            "2m_temperature": (("time", "latitude", "longitude"), f4(warm + 8 * waves(hours)), {"units": "degC"}),
            "geopotential": (("time", "level", "latitude", "longitude"), f4(height), {"units": "gpm"}),
        },
        {"time": START + np.arange(count) * STEP, "level": ("level", LEVELS, {"units": "hPa"}), **grid()},
    )


def forecasts(inits: int, every: int, leads: int) -> xr.Dataset:
    """Forecasts of the same, whose waves go astray with the lead time."""
    start, lead = np.arange(inits) * every * 6.0, np.arange(leads) * 6.0
    wrong = np.broadcast_to(0.004 * lead, (inits, leads))
    pole = np.abs(np.sin(np.radians(LAT)))[:, None]
    moved = waves(start[:, None] + lead, error=wrong)
    dims = ("time", "prediction_timedelta", "latitude", "longitude")
    return xr.Dataset(
        {
            "2m_temperature": (dims, f4(28 - 45 * pole**2 + 8 * moved), {"units": "degC"}),
            "geopotential": (
                (*dims[:2], "level", *dims[2:]),
                f4(5600 - 600 * pole**2 + 120 * moved)[:, :, None],
                {"units": "gpm"},
            ),
        },
        {
            "time": START + np.arange(inits) * every * STEP,
            "prediction_timedelta": np.arange(leads) * STEP,
            "level": ("level", [500], {"units": "hPa"}),
            **grid(),
        },
    )


def f4(values: Array) -> Array:
    """Single precision."""
    return np.asarray(values, "f4")


def grid() -> dict[str, Array]:
    """The coordinates of both."""
    return {"latitude": LAT, "longitude": LON}


def write(ds: xr.Dataset, place: Path, steps: int) -> str:
    """Write a store with some steps in a chunk, and return where it is."""
    sizes = {"time": steps, "prediction_timedelta": steps}
    chunks = {name: tuple(min(sizes.get(str(d), n), n) for d, n in var.sizes.items()) for name, var in ds.items()}
    ds.to_zarr(place, mode="w", consolidated=False, encoding={name: {"chunks": c} for name, c in chunks.items()})
    return str(place)
