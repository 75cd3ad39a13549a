"""NetCDF files for tests: small, of every layout that people have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from tests.integration.matrix import CHUNK, weather

if TYPE_CHECKING:
    from pathlib import Path

ENCODING: dict[str, dict[str, Any]] = {
    "t2m": {
        "dtype": "i2",
        "scale_factor": 0.01,
        "add_offset": 280.0,
        "_FillValue": np.int16(-32768),
        "chunksizes": (CHUNK, 3, 8),
        "zlib": True,
        "shuffle": True,
    },
    "z": {"chunksizes": (CHUNK, 1, 6, 4), "zlib": True, "fletcher32": True},
    "lsm": {"contiguous": True},
}


def write_weather(path: Path, **z: Any) -> Path:
    """Write the dataset that every kind of store is tested with."""
    weather().to_netcdf(path, engine="h5netcdf", encoding={**ENCODING, "z": {**ENCODING["z"], **z}})
    return path


def assert_same(got: xr.Dataset, want: xr.Dataset, *, ordered: bool = True) -> None:
    """Compare every variable: names, dimensions, dtype and bytes."""
    assert set(got.variables) == set(want.variables)
    assert not ordered or list(got.variables) == list(want.variables)
    assert set(got.coords) == set(want.coords)
    for name in want.variables:
        mine, theirs = got.variables[name], want.variables[name]
        assert mine.dims == theirs.dims, name
        left, right = mine.values, theirs.values
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        if left.dtype.kind == "O":
            assert (left == right).all(), name
        else:
            assert left.tobytes() == right.tobytes(), name


def months(folder: Path, **options: Any) -> list[Path]:
    """Write three files of 31, 28 and 31 days that follow one another, each with dates of its own origin."""
    paths = []
    for number, first in enumerate(["2001-01-01", "2001-02-01", "2001-03-01"]):
        time = pd.date_range(first, periods=pd.Timestamp(first).days_in_month)
        values = np.random.default_rng(number).normal(280, 5, (time.size, 4, 6)).astype("f4")
        month = xr.Dataset(
            {"t2m": (("time", "lat", "lon"), values), "lsm": (("lat", "lon"), np.arange(24).reshape(4, 6))},
            {"time": time, "lat": [60.0, 20.0, -20.0, -60.0], "lon": np.arange(0.0, 360.0, 60.0)},
        )
        encoding: dict[str, Any] = {
            "time": {"units": f"hours since {first}", "dtype": "f8"},
            "t2m": {"contiguous": True},
        }
        encoding["t2m"] |= options.get(f"encoding{number}", options.get("encoding", {}))
        paths.append(folder / f"t2m_{number}.nc")
        month.to_netcdf(paths[-1], engine="h5netcdf", encoding=encoding)
    return paths


def nested(paths: list[Path], dim: str = "time") -> xr.Dataset:
    """Open files with xarray, one after another."""
    return xr.open_mfdataset(
        paths, combine="nested", concat_dim=dim, data_vars="minimal", coords="minimal", compat="override", join="exact"
    )
