"""Regions: either direction, across the seam, and each chunk once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr.testing import CountingStore

LATITUDES = {"north first": np.linspace(90, -90, 19), "south first": np.linspace(-90, 90, 19)}
LONGITUDES = {"from 0": np.arange(0.0, 360.0, 10.0), "from -180": np.arange(-180.0, 180.0, 10.0)}


def written(latitude: str, longitude: str) -> tuple[CountingStore, xr.Dataset]:
    lat, lon = LATITUDES[latitude], LONGITUDES[longitude]
    values = lat[:, None] * 1000 + lon[None] % 360 + np.zeros((4, 1, 1))
    ds = xr.Dataset({"a": (("time", "lat", "lon"), values)}, {"time": np.arange(4), "lat": lat, "lon": lon})
    store = MemoryStore()
    ds.to_zarr(store, encoding={"a": {"chunks": (1, 10, 6)}}, consolidated=False)
    counting = CountingStore(store)
    return counting, xr.open_zarr(counting, chunks=None, consolidated=False)


@pytest.mark.parametrize("latitude", LATITUDES)
@pytest.mark.parametrize("longitude", LONGITUDES)
@pytest.mark.parametrize("bounds", [slice(30, 60), slice(60, 30)])
@pytest.mark.parametrize(("west", "last"), [(350, 10), (-10, 10), (170, 200), (0, 350), (-180, 180), (355, 355.5)])
def test_a_region_holds_the_same_labels_wherever_the_seam_lies(
    latitude: str, longitude: str, bounds: slice, west: float, last: float
) -> None:
    store, ds = written(latitude, longitude)
    expected = [(west + d) % 360 for d in range(360) if (west + d) % 10 == 0 and d <= ((last - west) % 360 or 360)]
    if (last - west) % 360 < 5 and last - west < 5:
        with pytest.raises(insitu_xr.InsituError, match="'lon' must hold at least one label, but got none between"):
            ds.insitu.region(lat=bounds, lon=slice(west, last), wrap=True)
        return
    chosen = ds.insitu.region(lat=bounds, lon=slice(west, last), wrap=True)
    assert (chosen.lon.values % 360).tolist() == expected
    assert sorted(chosen.lat.values) == [30, 40, 50, 60]
    store.reset()
    loader = chosen.insitu.loader(variables=["a"], sample_dim="time", batch_size=2)
    store.reset()
    for batch in loader:
        xr.testing.assert_identical(batch.to_xarray(), chosen.isel(time=batch.positions).compute())
        # Data and coordinates moved together: each value says where it was stored.
        found = batch.to_xarray()
        np.testing.assert_allclose(
            found.a.values, np.broadcast_to(found.lat.values[:, None] * 1000 + found.lon.values % 360, found.a.shape)
        )
    chunks_lon = {int(k) // 6 for k in np.flatnonzero(np.isin(LONGITUDES[longitude] % 360, expected))}
    chunks_lat = {int(k) // 10 for k in np.flatnonzero(np.isin(LATITUDES[latitude], [30, 40, 50, 60]))}
    ours = [g for g in store.data_gets if g.key.startswith("a/")]
    assert loader.stats.reads == 4 * len(chunks_lon) * len(chunks_lat)
    assert len(ours) >= loader.stats.reads == len({g.key for g in ours})


@pytest.mark.parametrize(
    ("bounds", "wrap", "message"),
    [
        ({"lat": slice(30, 60)}, True, "wrap must be used with bounds of longitude"),
        ({"x": slice(30, 60)}, False, "must be given for dimensions of the dataset, but got 'x'"),
        ({"lat": slice(30, None)}, False, r"region along 'lat' must be slice\(first, last\)"),
        ({"lat": slice(91, 95)}, False, "region along 'lat' must hold at least one label"),
    ],
)
def test_bad_regions(bounds: dict[str, Any], wrap: bool, message: str) -> None:
    _, ds = written("north first", "from 0")
    with pytest.raises(insitu_xr.InsituError, match=message):
        ds.insitu.region(**bounds, wrap=wrap)
