"""Many netCDF files as one dataset."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import esmvaltool_sample_data
import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr.errors import RequestError
from insitu_xr.testing import assert_batches_equal
from insitu_xr.testing.serving import serve
from tests.adapters.netcdf_files import assert_same, months, nested

CMIP = Path(esmvaltool_sample_data.__file__).parent / "data"
SERIES = [list(run) for _, run in groupby(sorted(CMIP.rglob("*.nc")), lambda path: path.parent)]
LONG = [run for run in SERIES if 1 < len(run) < 10]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("run", LONG, ids=lambda run: "-".join(run[0].stem.split("_")[1:3]))
def test_real_series_are_equal_to_what_xarray_reads(run: list[Path]) -> None:
    ds = insitu_xr.open_dataset(run, concat_dim="time")
    assert ds["ta"].chunks is None
    assert "in place" in str(ds.insitu.plan(variables=["ta"]))
    with nested(run) as want:
        assert_same(ds, want)


def test_files_in_any_order_by_their_labels(tmp_path: Path) -> None:
    first, second, third = months(tmp_path)
    ds = insitu_xr.open_dataset([str(third), str(first), str(second)])
    assert ds.insitu.source["files"] == 3
    assert ds.insitu.source.url == f"{tmp_path.as_uri()}/*"
    with nested([first, second, third]) as want:
        assert_same(ds, want)
    assert_same(insitu_xr.open_dataset(str(tmp_path / "t2m_*.nc")), ds)


def test_pieces_of_files_of_different_length_make_one_even_array(tmp_path: Path) -> None:
    paths = months(tmp_path)
    ds = insitu_xr.open_dataset(paths, concat_dim="time")
    assert ds["t2m"].encoding["chunks"] == (1, 4, 6)  # 31 and 28 days have no other divisor in common
    assert ds.sizes["time"] == 90


@pytest.mark.parametrize("shuffle", [False, True])
def test_windows_cross_from_file_to_file(tmp_path: Path, shuffle: bool) -> None:
    ds = insitu_xr.open_dataset(months(tmp_path), concat_dim="time")
    leads = ["0D", "3D"]
    with ds.insitu.loader(variables=["t2m"], leads=leads, batch_size=16, shuffle=shuffle) as loader:
        assert assert_batches_equal(loader, ds, sample_dim="time", variables=["t2m"], leads=leads) == 87
        assert loader.stats.gets == loader.plan.chunks == 90


def test_a_region_of_several_files(tmp_path: Path) -> None:
    whole = insitu_xr.open_dataset(months(tmp_path), concat_dim="time")
    ds = whole.insitu.region(lat=slice(-30, 30)).sel(time=slice("2001-01-20", "2001-03-05"))
    with ds.insitu.loader(variables=["t2m"], batch_size=16, shuffle=True) as loader:
        assert assert_batches_equal(loader, ds, sample_dim="time", variables=["t2m"]) == ds.sizes["time"] == 45


def packed(scale: float) -> dict[str, Any]:
    return {"dtype": "i2", "scale_factor": scale, "add_offset": 280.0, "_FillValue": np.int16(-32768)}


def test_files_that_are_packed_in_different_ways(tmp_path: Path) -> None:
    paths = months(tmp_path, encoding0=packed(0.01), encoding1=packed(0.02), encoding2=packed(0.01))
    ds = insitu_xr.open_dataset(paths, concat_dim="time")
    with nested(paths) as want:
        assert_same(ds, want)
    assert ds["t2m"].chunks is not None  # one array per file, which dask puts together
    assert "in place" in str(ds.insitu.plan(variables=["t2m"]))
    with ds.insitu.loader(variables=["t2m"], leads=["0D", "2D"], batch_size=16, shuffle=True) as loader:
        assert_batches_equal(loader, ds, sample_dim="time", variables=["t2m"], leads=["0D", "2D"])


def test_files_that_are_packed_alike_are_one_array(tmp_path: Path) -> None:
    paths = months(tmp_path, encoding=packed(0.01))
    ds = insitu_xr.open_dataset(paths, concat_dim="time")
    with nested(paths) as want:
        assert_same(ds, want)
    assert ds["t2m"].chunks is None


def test_compressed_chunks_that_do_not_follow_evenly(tmp_path: Path) -> None:
    chunked = {"contiguous": False, "chunksizes": (10, 4, 6), "zlib": True}
    paths = months(tmp_path, encoding=chunked)
    ds = insitu_xr.open_dataset(paths, concat_dim="time")
    with nested(paths) as want:
        assert_same(ds, want)
    with ds.insitu.loader(variables=["t2m"], leads=["0D", "2D"], batch_size=16) as loader:
        assert_batches_equal(loader, ds, sample_dim="time", variables=["t2m"], leads=["0D", "2D"])


@pytest.mark.filterwarnings("ignore:Unable to decode time axis")
def test_dates_as_objects_where_one_file_needs_them(tmp_path: Path) -> None:
    paths = []
    for number, (year, calendar) in enumerate([(1, "standard"), (1990, "standard"), (3000, "standard")]):
        times = xr.Variable("time", np.arange(3.0), {"units": f"days since {year:04d}-01-01", "calendar": calendar})
        ds = xr.Dataset({"a": (("time", "x"), np.full((3, 2), number)), "time": times})
        paths.append(tmp_path / f"{number}.nc")
        ds.to_netcdf(paths[-1], engine="h5netcdf", encoding={"time": {"dtype": "f8"}})
    with nested(paths) as want:
        assert_same(insitu_xr.open_dataset(paths, concat_dim="time"), want)


def test_over_http_only_versions_are_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    paths = months(tmp_path / "served")
    with serve(tmp_path / "served") as server:
        urls = [f"{server.url}/{path.name}" for path in paths]
        insitu_xr.open_dataset(urls)
        server.reset()
        ds = insitu_xr.open_dataset(urls)
        assert (server.counts().heads, server.counts().gets) == (3, 0)
        with nested(paths) as want:
            assert_same(ds, want)


# What is refused


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    first, second, _ = months(tmp_path)
    moved = xr.load_dataset(second)
    moved.assign_coords(lat=moved["lat"] + 1).to_netcdf(tmp_path / "moved.nc", engine="h5netcdf")
    with pytest.raises(
        RequestError, match=r"coordinate 'lat' must be equal in all files, but differs between .*moved.nc"
    ):
        insitu_xr.open_dataset([first, tmp_path / "moved.nc"], concat_dim="time")
    moved.drop_vars("lsm").to_netcdf(tmp_path / "less.nc", engine="h5netcdf")
    with pytest.raises(RequestError, match=r"every file must have the same variables, but 'lsm' is in .*t2m_0.nc"):
        insitu_xr.open_dataset([first, tmp_path / "less.nc"], concat_dim="time")
    ds = insitu_xr.open_dataset([first, tmp_path / "less.nc"], concat_dim="time", drop_variables=["lsm"])
    assert ds.sizes["time"] == 59
    moved.isel(lat=slice(3)).drop_vars("lat").to_netcdf(tmp_path / "small.nc", engine="h5netcdf")
    with pytest.raises(RequestError, match="must have the same"):
        insitu_xr.open_dataset([first, tmp_path / "small.nc"], concat_dim="time")


def test_a_dimension_that_is_none(tmp_path: Path) -> None:
    first, second, _ = months(tmp_path)
    with pytest.raises(
        RequestError, match=r"concat_dim must be a dimension of the files, but got 'member'; they have \['lat"
    ):
        insitu_xr.open_dataset([first, second], concat_dim="member")
    with pytest.raises(
        RequestError, match="concat_dim must be given where 2 files do not differ in exactly one coordinate"
    ):
        insitu_xr.open_dataset([first, first])
