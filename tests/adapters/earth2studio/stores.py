"""Stores like those that Earth2Studio reads, and a source on top of plain xarray to compare with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
import zarr

from insitu_xr.testing import CountingStore

START = np.datetime64("2020-01-01T00", "ns")
STEP = np.timedelta64(6, "h").astype("m8[ns]")
LEVELS = (50, 500, 850, 1000)
LAT, LON = np.linspace(90, -90, 13), np.linspace(0, 360, 24, endpoint=False)
#: in the words of WeatherBench2, as its lexicon has them
NAMES = {"t2m": "2m_temperature", "u10m": "10m_u_component_of_wind", "msl": "mean_sea_level_pressure"}
LEVELLED = {"z": "geopotential", "t": "temperature", "u": "u_component_of_wind", "v": "v_component_of_wind"}
VARIABLES = ["t2m", "z500", "u10m", "t850"]


def times(count: int, start: np.datetime64 = START, step: np.timedelta64 = STEP) -> Any:
    """Equidistant times."""
    return start + np.arange(count) * step


def hours(*leads: int) -> Any:
    """Lead times in nanoseconds."""
    return np.array(leads, "m8[h]").astype("m8[ns]")


def analysis(count: int = 20, lat: Any = LAT, lon: Any = LON, levels: Sequence[float] = LEVELS) -> xr.Dataset:
    """A dataset as WeatherBench2 has it, in memory; values that tell where they are."""
    rng = np.random.default_rng(7)
    coords = {"time": times(count), "latitude": lat, "longitude": lon, "level": np.array(levels)}
    shape = (count, len(lat), len(lon))
    flat = {
        name: (("time", "latitude", "longitude"), rng.normal(280, 20, shape).astype("f4")) for name in NAMES.values()
    }
    deep = {
        name: (
            ("time", "level", "latitude", "longitude"),
            rng.normal(0, 50, (count, len(levels), *shape[1:])).astype("f4"),
        )
        for name in LEVELLED.values()
    }
    static = {"land_sea_mask": (("latitude", "longitude"), rng.random(shape[1:]).astype("f4"))}
    ds = xr.Dataset({**flat, **deep, **static}, coords)
    ds["level"].attrs["units"] = "hPa"
    return ds


def forecast(count: int = 4, leads: int = 6, lat: Any = LAT, lon: Any = LON) -> xr.Dataset:
    """Forecasts by initial time and lead time, in the words of WeatherBench2."""
    rng = np.random.default_rng(11)
    coords = {
        "time": times(count, step=np.timedelta64(12, "h").astype("m8[ns]")),
        "prediction_timedelta": np.arange(leads) * STEP,
        "latitude": lat,
        "longitude": lon,
        "level": np.array(LEVELS),
    }
    shape = (count, leads, len(lat), len(lon))
    dims = ("time", "prediction_timedelta", "latitude", "longitude")
    t2m = rng.normal(280, 20, shape).astype("f4")
    z = rng.normal(0, 50, (count, leads, len(LEVELS), len(lat), len(lon))).astype("f4")
    return xr.Dataset(
        {"2m_temperature": (dims, t2m), "geopotential": ((*dims[:2], "level", *dims[2:]), z)},
        coords,
    )


def written(
    ds: xr.Dataset, chunks: Mapping[str, int] | None = None, encoding: Mapping[str, Any] | None = None
) -> tuple[xr.Dataset, CountingStore]:
    """A dataset in a store of its own, opened lazily, and the store, which counts reads from now on."""
    store = CountingStore(zarr.storage.MemoryStore())
    kept = {}
    for name, var in ds.data_vars.items():
        sizes = {str(dim): size for dim, size in var.sizes.items()}
        kept[name] = {"chunks": tuple((chunks or {}).get(dim, size) for dim, size in sizes.items())}
        kept[name] |= dict((encoding or {}).get(str(name), {}))
    ds.to_zarr(store, encoding=kept, consolidated=False, zarr_format=3)
    opened = xr.open_zarr(store, consolidated=False, chunks=None, decode_timedelta=True)
    store.reset()
    return opened, store


class Plain:
    """What a user would write: every variable selected by label with xarray, and loaded.

    It is a data source of Earth2Studio, and what the sources that read in place are compared with.
    """

    def __init__(self, ds: xr.Dataset, lexicon: Any) -> None:
        self.ds, self.lexicon = ds.sortby("latitude", ascending=False), lexicon

    def __call__(self, time: Any, variable: Any) -> xr.DataArray:
        when = np.atleast_1d(np.asarray(time, "M8[ns]"))
        names = [str(name) for name in np.atleast_1d(variable)]
        found = [self._one(name, when) for name in names]
        return xr.DataArray(
            np.stack(found, axis=1),
            {"time": when, "variable": names, "lat": self.ds.latitude.values, "lon": self.ds.longitude.values},
            ("time", "variable", "lat", "lon"),
        )

    def _one(self, name: str, when: Any) -> Any:
        key, function = self.lexicon[name]
        native, level = key.split("::")
        array = self.ds[native]
        if level:
            array = array.sel(level=int(level))
        if "time" not in array.dims:
            return np.broadcast_to(function(array.values), (len(when), *array.shape))
        return function(array.sel(time=when).values)

    async def fetch(self, time: Any, variable: Any) -> xr.DataArray:
        return await asyncio.to_thread(self, time, variable)
