"""Grids of every kind of store, as Earth2Studio compares them; or refused, with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr_adapters.earth2studio import InSituDataSource
from insitu_xr_adapters.earth2studio.grids import grid_of
from tests.adapters.earth2studio.stores import LAT, LON, analysis, times, written

T2M = {"t2m": "2m_temperature"}


def fields(lat: Any, lon: Any, dims: tuple[str, ...] = ("time", "latitude", "longitude")) -> xr.Dataset:
    """Fields whose values are their own latitude and longitude, so that it shows where each went."""
    lat, lon = np.asarray(lat), np.asarray(lon)
    values = np.broadcast_to(lat[:, None].astype("f8") * 1000 + np.round(lon, 3) % 360, (2, len(lat), len(lon)))
    ds = xr.Dataset(
        {"2m_temperature": (("time", "latitude", "longitude"), values)},
        {"time": times(2), "latitude": lat, "longitude": lon},
    )
    return ds.transpose(*dims)


def check(ds: xr.Dataset, lat: Any, lon: Any) -> None:
    """The coordinates are these to the bit, and every value is where it belongs."""
    opened, _ = written(ds, {"time": 1, "latitude": 5, "longitude": 7})
    with InSituDataSource(opened, T2M, verbose=False) as source:
        found = source(times(2)[::-1], ["t2m", "t2m"])
    np.testing.assert_array_equal(found.lat, lat, strict=True)
    np.testing.assert_array_equal(found.lon, lon, strict=True)
    assert found.values.flags.c_contiguous
    expected = (lat[:, None] * 1000 + lon % 360).astype("f4")
    np.testing.assert_allclose(found.values, np.broadcast_to(expected, found.shape), rtol=1e-5, atol=0.02)


WHOLE = np.linspace(0, 360, 24, endpoint=False)


@pytest.mark.parametrize(
    ("lat", "lon"),
    [
        (LAT, LON),
        (LAT[::-1], LON),
        (LAT, LON - 180),
        (LAT[::-1], LON - 180),
        (LAT, LON[::-1]),
        (LAT, np.append(LON, 360.0)),
        (LAT, np.linspace(-180, 180, 25)),
        (LAT, np.roll(LON, 7)),
        (LAT.astype("f4"), (LON - 180).astype("f4")),
        (LAT + 1e-9, LON - 1e-9),
    ],
    ids=["exact", "south", "west", "both", "turned", "closed", "seam", "rolled", "single", "noisy"],
)
def test_global_grids(lat: Any, lon: Any) -> None:
    check(fields(lat, lon), LAT, WHOLE)


@pytest.mark.parametrize("rows", [721, 720])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_rows_and_columns_are_those_of_models(rows: int, kind: str) -> None:
    lat, lon = np.linspace(90, -90, 721)[:rows], np.linspace(0, 360, 1440, endpoint=False)
    ds = xr.Dataset(coords={"lat": lat[::-1].astype(kind), "lon": np.sort((lon + 180) % 360 - 180).astype(kind)})
    grid = grid_of(ds)
    np.testing.assert_array_equal(
        grid.coords["lat"][1], np.linspace(90, -90, 720, endpoint=False) if rows == 720 else lat
    )
    np.testing.assert_array_equal(grid.coords["lon"][1], lon)
    assert (grid.first, grid.flips) == (720, (True, False))


def test_single_precision_at_a_tenth_of_a_degree() -> None:
    lat, lon = np.linspace(90, -90, 1801), np.linspace(0, 360, 3600, endpoint=False)
    single = xr.Dataset(coords={"lat": lat.astype("f4"), "lon": lon.astype("f4")})
    assert (single.lat.values.astype("f8") == lat).mean() < 0.5
    grid = grid_of(single)
    np.testing.assert_array_equal(grid.coords["lat"][1], lat)
    np.testing.assert_array_equal(grid.coords["lon"][1], lon)
    part = grid_of(single.isel(lat=slice(331, 700), lon=slice(1000, 1301)))
    np.testing.assert_array_equal(part.coords["lat"][1], lat[331:700])
    np.testing.assert_array_equal(part.coords["lon"][1], lon[1000:1301])


def test_cell_centres_and_gaussian_rows() -> None:
    centres = xr.Dataset(coords={"lat": np.arange(-89.5, 90, 1.0), "lon": np.arange(-179.5, 180, 1.0)})
    grid = grid_of(centres)
    np.testing.assert_array_equal(grid.coords["lat"][1], np.arange(89.5, -90, -1.0))
    np.testing.assert_array_equal(grid.coords["lon"][1], np.arange(0.5, 360, 1.0))
    rows = np.degrees(np.arcsin(np.polynomial.legendre.leggauss(16)[0]))
    check(fields(rows, LON), rows[::-1], WHOLE)


def test_regions() -> None:
    check(fields(LAT[3:8], LON[4:9]), LAT[3:8], WHOLE[4:9])
    check(fields(LAT[3:8], np.array([-60.0, -45.0, -30.0])), LAT[3:8], np.array([300.0, 315.0, 330.0]))
    # Across Greenwich they stay in one piece.
    check(fields(LAT[3:8], np.array([-15.0, 0.0, 15.0])), LAT[3:8], np.array([-15.0, 0.0, 15.0]))
    check(fields(LAT[3:8], np.array([345.0, 0.0, 15.0])), LAT[3:8], np.array([345.0, 0.0, 15.0]))


def test_any_order_of_dimensions() -> None:
    # As WeatherBench2 has its coarse stores.
    check(fields(LAT[::-1], LON, ("time", "longitude", "latitude")), LAT, WHOLE)
    check(fields(LAT, LON, ("longitude", "time", "latitude")), LAT, WHOLE)


def test_projected_and_unstructured_grids() -> None:
    y, x = np.arange(4.0), np.arange(5.0)
    lat, lon = 40 + y[:, None] + 0.1 * x, -100 + x + 0.1 * y[:, None]
    values = np.arange(40.0, dtype="f4").reshape(2, 4, 5)
    ds = xr.Dataset(
        {"t2m": (("time", "y", "x"), values)},
        {"time": times(2), "y": y, "x": x, "latitude": (("y", "x"), lat), "longitude": (("y", "x"), lon)},
    )
    with InSituDataSource(written(ds)[0], verbose=False) as source:
        found = source(times(2), "t2m")
    assert found.dims == ("time", "variable", "y", "x")
    np.testing.assert_array_equal(found.values[:, 0], values)
    for name, expected in {"lat": lat, "_lat": lat, "lon": lon % 360, "_lon": lon % 360}.items():
        np.testing.assert_array_equal(found[name], expected)
    cells = ds.stack(cell=("y", "x")).reset_index("cell").drop_vars(["y", "x"])
    with InSituDataSource(cells, verbose=False) as source:
        found = source(times(1), "t2m")
    assert found.dims == ("time", "variable", "cell")
    np.testing.assert_array_equal(found.lat, lat.ravel())


def test_what_cannot_be_put_in_order_is_refused() -> None:
    good = analysis(2)
    cases: dict[str, xr.Dataset] = {
        "must have a coordinate of latitudes": good.drop_vars("latitude"),
        "'longitude' must go one way.*ds.sortby": good.isel(longitude=[0, 2, 1, 3]),
        "latitudes must lie within -90 and 90": good.assign_coords(latitude=good.latitude * 2),
        "must hold finite numbers": good.assign_coords(latitude=np.append(LAT[:-1], np.nan)),
        "must lie within one turn": good.assign_coords(longitude=LON * 2),
        "must have one latitude.*choose variables": good.assign_coords(
            lat=("row", [0.0, 1.0]), lon=("col", [0.0, 1.0])
        ).assign(other=(("row", "col"), np.zeros((2, 2)))),
    }
    cases["must have a dimension of dates.*select times with a list"] = good.isel(time=0)
    for message, ds in cases.items():
        with pytest.raises((ValueError, TypeError), match=message):
            InSituDataSource(ds, T2M)
