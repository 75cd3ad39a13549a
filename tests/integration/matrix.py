"""What must hold for every kind of store, on one small dataset: written once, opened in every way there is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

import insitu_xr
from insitu_xr.testing import CountingStore, assert_batches_equal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS, CHUNK = 30, 4
LEADS = ["0h", "12h"]
NAMES = ["t2m", "z"]


def weather() -> xr.Dataset:
    """Make 30 six-hourly steps of t2m, packed, and of z on two levels, and a land-sea mask; one step is missing."""
    random = np.random.default_rng(5)
    time = pd.date_range("2000-02-25", periods=STEPS + 1, freq="6h").delete(17)
    fields = {
        "t2m": (("time", "lat", "lon"), random.normal(280, 9, (STEPS, 6, 8)).astype("f4"), {"units": "K"}),
        "z": (("time", "level", "lat", "lon"), random.normal(5e4, 99, (STEPS, 2, 6, 8)).astype("f4")),
        "lsm": (("lat", "lon"), random.integers(0, 2, (6, 8)).astype("u1")),
    }
    coords = {"time": time, "level": [500, 850], "lat": np.linspace(50, -50, 6), "lon": np.arange(0.0, 360.0, 45.0)}
    return xr.Dataset(fields, coords)


def write(folder: Path, **options: Any) -> Path:
    """Write it as Zarr; consolidated, for HTTP cannot list."""
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768, "chunks": (CHUNK, 3, 8)}
    encoding = {"t2m": packed, "z": {"chunks": (CHUNK, 1, 6, 4)}}
    weather().to_zarr(folder, encoding=encoding, zarr_format=2, consolidated=True, **options)
    return folder


def check_equality(ds: xr.Dataset) -> None:
    """An epoch of plain batches, with a static, is what xarray shows."""
    with ds.insitu.loader(variables=NAMES, statics=["lsm"], batch_size=7) as loader:
        batches = list(loader)
    np.testing.assert_array_equal(batches[0]["lsm"], ds["lsm"].values, strict=True)
    assert assert_batches_equal(batches, ds, sample_dim="time", variables=NAMES) == STEPS


def check_leads(ds: xr.Dataset) -> None:
    """Windows are found by label, across the gap."""
    with ds.insitu.loader(variables=NAMES, leads=LEADS, batch_size=5) as loader:
        assert assert_batches_equal(loader, ds, sample_dim="time", variables=NAMES, leads=LEADS) == STEPS - 3


def check_region(ds: xr.Dataset) -> None:
    """A region, a level and a stretch of time."""
    part = ds.sel(time=slice("2000-02-26", "2000-02-29"), level=[850]).insitu.region(lat=slice(-10, 50))
    assert 0 < part.sizes["lat"] < ds.sizes["lat"]
    with part.insitu.loader(variables=NAMES, batch_size=4) as loader:
        assert assert_batches_equal(loader, part, sample_dim="time", variables=NAMES) == part.sizes["time"]


def check_shuffle(ds: xr.Dataset) -> None:
    """A shuffled epoch has every sample once, and the same order for the same seed."""
    orders = []
    for _ in range(2):
        with ds.insitu.loader(variables=NAMES, batch_size=7, shuffle=True, seed=3) as loader:
            batches = list(loader)
        assert assert_batches_equal(batches, ds, sample_dim="time", variables=NAMES) == STEPS
        orders.append(np.concatenate([batch.positions for batch in batches]).tolist())
    assert orders[0] == orders[1] != sorted(orders[0])


CHECKS: dict[str, Callable[[xr.Dataset], None]] = {
    "equality": check_equality,
    "leads": check_leads,
    "region": check_region,
    "shuffle": check_shuffle,
}


def check_counts(ds: xr.Dataset, keys: Callable[[], Counter[str]], reset: Callable[[], None]) -> None:
    """Each of the distinct chunks is asked for once in an epoch with windows, shuffled.

    Parameters
    ----------
    keys : callable
        Requests for data since the last ``reset``, by key.
    """
    with ds.insitu.loader(variables=NAMES, leads=LEADS, batch_size=5, shuffle=True) as loader:
        reset()
        batches = list(loader)
        asked = keys()
        chunks = -(-STEPS // CHUNK) * (2 + 4)
        assert loader.plan.reads == loader.plan.chunks == loader.stats.gets == chunks
        assert len(asked) == sum(asked.values()) == chunks, asked
    assert_batches_equal(batches, ds, sample_dim="time", variables=NAMES, leads=LEADS)


def check_counting(store: Any, **options: Any) -> None:
    """`check_counts` of any zarr store."""
    counting = CountingStore(store)
    check_counts(insitu_xr.open_dataset(counting, **options), counting.by_key, counting.reset)
