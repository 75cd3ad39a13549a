"""Small forecasts, references and climatologies, and how archives lay them out in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from insitu_xr.testing import CountingStore

LATITUDES, LONGITUDES, LEVELS = 8, 12, 2


@dataclass(frozen=True)
class Shape:
    """Sizes of a case."""

    inits: int = 6
    leads: int = 5
    members: int = 0
    step: int = 6
    every: int = 12


def fields(seed: int, *sizes: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(280, 5, (*sizes, LEVELS, LATITUDES, LONGITUDES)).astype("f4")


def grid(*, descending: bool = False) -> dict[str, Any]:
    latitude = np.linspace(-78.75, 78.75, LATITUDES)
    return {
        "level": [500, 850],
        "latitude": latitude[::-1] if descending else latitude,
        "longitude": np.arange(LONGITUDES) * 360 / LONGITUDES,
    }


def forecast(
    shape: Shape = Shape(), seed: int = 1, start: str = "2019-12-30", *, descending: bool = False
) -> xr.Dataset:
    inits = pd.date_range(start, periods=shape.inits, freq=f"{shape.every}h")
    leads = pd.to_timedelta(np.arange(shape.leads) * shape.step, "h")
    members = {"number": np.arange(shape.members)} if shape.members else {}
    dims = ("init_time", "lead_time", *members, "level", "latitude", "longitude")
    values = fields(seed, shape.inits, shape.leads, *([shape.members] if shape.members else []))
    coords = {"init_time": inits, "lead_time": leads, **members, **grid(descending=descending)}
    return xr.Dataset({"t": (dims, values, {"units": "K"}), "u": (dims, values / 20, {"units": "m s-1"})}, coords)


def reference(shape: Shape = Shape(), seed: int = 2, start: str = "2019-12-30") -> xr.Dataset:
    hours = shape.every * (shape.inits - 1) + shape.step * (shape.leads - 1)
    times = pd.date_range(start, periods=hours // shape.step + 1, freq=f"{shape.step}h")
    dims = ("time", "level", "latitude", "longitude")
    values = fields(seed, len(times))
    found = {"t": (dims, values, {"units": "K"}), "u": (dims, values / 20, {"units": "m s-1"})}
    return xr.Dataset(found, {"time": times, **grid()})


def climatology(seed: int = 3) -> xr.Dataset:
    dims = ("dayofyear", "hour", "level", "latitude", "longitude")
    # The days around New Year, which the cases need, and a few more.
    days, hours = np.r_[1:41, 355:367], np.arange(0, 24, 6)
    values = (fields(seed, 1, 1) + days[:, None, None, None, None] / 100 + np.zeros((1, 4, 1, 1, 1))).astype("f4")
    found = {"t": (dims, values, {"units": "K"}), "u": (dims, values / 20, {"units": "m s-1"})}
    return xr.Dataset(found, {"dayofyear": days, "hour": hours, **grid()})


#: chunks, and shards where there are any, by role and layout: "step" as WeatherBench 2 has it, one step in a chunk;
#: "deep" as archives for time series have it, long in time and small in space
LAYOUTS: dict[str, dict[str, dict[str, int]]] = {
    "step": {
        "forecast": {"init_time": 1, "lead_time": 1},
        "reference": {"time": 1},
        "climatology": {"dayofyear": 1, "hour": 1},
    },
    "several": {
        "forecast": {"init_time": 4, "lead_time": 1},
        "reference": {"time": 3},
        "climatology": {"dayofyear": 5, "hour": 4},
    },
    "deep": {
        "forecast": {"init_time": 1, "latitude": 2, "longitude": 6},
        "reference": {"time": 16, "latitude": 2, "longitude": 6},
        "climatology": {"dayofyear": 366, "hour": 4, "latitude": 2, "longitude": 6},
    },
}
SHARDS = {"reference": {"time": 16, "latitude": 4, "longitude": 12}}


def stored(ds: xr.Dataset, role: str, layout: str, store: Any = None) -> Any:
    """Write a dataset in one of the layouts; returns the store."""
    place = zarr.storage.MemoryStore() if store is None else store
    wanted, encoding = LAYOUTS[layout][role], {}
    for name in ds.data_vars:
        sizes = {str(d): n for d, n in ds[name].sizes.items()}
        chunks = {d: min(n, wanted.get(d, n)) for d, n in sizes.items()}
        encoding[name] = {"chunks": tuple(chunks.values())}
        if layout == "deep" and role in SHARDS:
            shards = {d: -(-min(n, SHARDS[role].get(d, n)) // chunks[d]) * chunks[d] for d, n in sizes.items()}
            encoding[name]["shards"] = tuple(shards.values())
    ds.to_zarr(place, encoding=encoding, consolidated=False)
    return place


def counting(ds: xr.Dataset, role: str, layout: str) -> tuple[xr.Dataset, CountingStore]:
    """A dataset read through a store that counts."""
    store = CountingStore(stored(ds, role, layout))
    return xr.open_zarr(store, consolidated=False, chunks=None), store


def distinct(ds: xr.Dataset, store: CountingStore) -> int:
    """How many chunks a dataset has, whatever objects they lie in."""
    return sum(int(zarr.open_array(store, path=str(n), mode="r").nchunks) for n in ds.data_vars)
