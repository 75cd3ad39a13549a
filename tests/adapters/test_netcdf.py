"""One netCDF file, read in place: values as xarray shows them, chunk by chunk."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf
import h5py
import iris_sample_data
import netCDF4
import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr.errors import InsituError, MissingExtraError, NotFoundError, NotZarrError, RequestError, UnknownNameError
from insitu_xr.testing import assert_batches_equal
from insitu_xr.testing.serving import Served, serve
from insitu_xr_adapters.netcdf import opener
from tests.adapters.netcdf_files import assert_same, write_weather
from tests.integration.matrix import CHECKS, check_counting, check_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"
FILES = sorted(path for path in SAMPLES.rglob("*.nc"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep references of tests out of the home of whoever runs them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def weather_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weather(tmp_path_factory.mktemp("weather") / "weather.nc")


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(weather_file: Path, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(weather_file))


def test_each_chunk_is_read_once(weather_file: Path) -> None:
    check_counting(opener.open(weather_file, storage_options={})[0])


def test_everything_is_read_in_place_and_says_where_it_lies(weather_file: Path) -> None:
    ds = insitu_xr.open_dataset(weather_file)
    table = str(ds.insitu.plan(variables=["t2m", "z"]))
    assert table.count("in place") == 2
    assert ds.insitu.source.kind == "netcdf"
    assert ds.insitu.source.url == weather_file.as_uri()
    assert ds.insitu.source["size"] == weather_file.stat().st_size


@pytest.mark.filterwarnings("ignore:.*unable to decode time.*")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_files_are_equal_to_what_xarray_reads(path: Path) -> None:
    ds = insitu_xr.open_dataset(path)
    with xr.open_dataset(path) as want:
        assert_same(ds, want)
        for name in want.variables:
            assert str(ds[name].attrs) == str(want[name].attrs)


def test_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.nc"
    xr.Dataset({"a": ("x", np.arange(3.0))}).to_netcdf(path, engine="h5netcdf")
    deep = xr.Dataset({"b": (("x", "y"), np.arange(6.0).reshape(3, 2))}, {"x": [1, 2, 3]})
    deep.to_netcdf(path, engine="h5netcdf", group="forecast/surface", mode="a")
    with xr.open_dataset(path, group="forecast/surface") as want:
        assert_same(insitu_xr.open_dataset(path, group="forecast/surface"), want)
    with pytest.raises(
        UnknownNameError, match=r"group must be one of \['forecast', 'forecast/surface'\], but got 'sky'"
    ):
        insitu_xr.open_dataset(path, group="sky")


def packed(path: Path, version: Any) -> None:
    """Write what numbers in JSON cannot say: scales and missing values in single precision."""
    with netCDF4.Dataset(path, "w", format=version) as file:
        file.createDimension("x", 5)
        single = file.createVariable("single", "i2", ("x",))
        single.scale_factor = np.float32(0.1)
        both = file.createVariable("both", "i2", ("x",), fill_value=-7)
        both.scale_factor, both.add_offset = np.float32(0.1), np.float32(273.15)
        double = file.createVariable("double", "i2", ("x",))
        double.scale_factor = np.float64(0.1)
        missing = file.createVariable("missing", "f4", ("x",))
        missing.missing_value = np.float32(1e20)
        unsigned = file.createVariable("unsigned", "i1", ("x",))
        unsigned.setncattr("_Unsigned", "true")
        for variable in (single, both, double):
            variable.set_auto_maskandscale(False)
            variable[:] = np.array([1, 2, -7, 4, 300], "i2")
        missing[:] = np.array([1, 2, 1e20, 4, 5], "f4")
        unsigned.set_auto_maskandscale(False)
        unsigned[:] = np.array([1, -2, 3, -4, 127], "i1")


@pytest.mark.parametrize("version", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
def test_attributes_keep_the_dtypes_that_decide_values(tmp_path: Path, version: str) -> None:
    packed(tmp_path / "packed.nc", version)
    ds = insitu_xr.open_dataset(tmp_path / "packed.nc")
    with xr.open_dataset(tmp_path / "packed.nc", engine="netcdf4") as want:
        assert_same(ds, want)
    assert [str(ds[name].dtype) for name in ("both", "double")] == ["float32", "float64"]
    assert np.isnan(ds["missing"].values[2])


@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (3, 4), "compression": "gzip"},
        {"chunks": (3, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (3, 4), "fletcher32": True},
        {"chunks": (4, 5)},
        {"chunks": (3, 4), "maxshape": (None, 9)},
        {"chunks": (64, 9), "maxshape": (None, 9)},
        {"chunks": None},
    ],
    ids=["gzip", "all filters", "checksums", "edges", "unlimited", "chunk beyond the end", "contiguous"],
)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", ">i2", "u1", "<f2", "?"])
def test_layouts(tmp_path: Path, layout: dict[str, Any], dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 99, (10, 9)).astype(dtype)
    with h5py.File(tmp_path / "layout.h5", "w") as file:
        file.create_dataset("a", data=values, **layout)
        file.create_dataset("unwritten", shape=(10, 9), dtype=dtype, chunks=(5, 9), fillvalue=1)
    ds = insitu_xr.open_dataset(tmp_path / "layout.h5")
    np.testing.assert_array_equal(ds["a"].values, values)
    np.testing.assert_array_equal(ds["unwritten"].values, np.ones((10, 9), dtype))
    with ds.insitu.loader(variables=["a"], sample_dim=ds["a"].dims[0], batch_size=4, shuffle=True) as loader:
        got = np.concatenate([batch["a"] for batch in loader])
    assert sorted(map(tuple, got.tolist())) == sorted(map(tuple, values.tolist()))


def test_text_of_any_length(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "text.nc", "w") as file:
        file.dimensions = {"x": 3}
        names = file.create_variable("names", ("x",), dtype=h5py.string_dtype())
        names[:] = ["a", "bcdé", ""]
        one = file.create_variable("one", (), dtype=h5py.string_dtype())
        one[...] = "hello"
    with xr.open_dataset(tmp_path / "text.nc", engine="h5netcdf") as want:
        assert_same(insitu_xr.open_dataset(tmp_path / "text.nc"), want)


@pytest.mark.parametrize(("shape", "chunks"), [((37, 256, 512), (2, 256, 512)), ((3, 1200, 2000), (1, 1200, 2000))])
def test_what_lies_in_one_piece_is_read_in_parts(
    tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    values = np.random.default_rng(1).normal(size=shape).astype("f4")
    dims = ("time", "y", "x")
    xr.Dataset({"a": (dims, values)}).to_netcdf(
        tmp_path / "a.nc", engine="h5netcdf", encoding={"a": {"contiguous": True}}
    )
    ds = insitu_xr.open_dataset(tmp_path / "a.nc")
    assert ds["a"].encoding["chunks"] == chunks
    assert ds["a"].values.tobytes() == values.tobytes()
    with ds.isel(time=[shape[0] - 1]).insitu.loader(variables=["a"], sample_dim="time", batch_size=1) as loader:
        np.testing.assert_array_equal(next(iter(loader))["a"][0], values[-1])
        assert loader.stats.bytes_read <= 2 * values[0].nbytes


def test_a_piece_larger_than_a_row_may_be(tmp_path: Path) -> None:
    values = np.arange(2 * 1500 * 3000, dtype="i4").reshape(2, 1500, 3000)
    xr.Dataset({"a": (("time", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    ds = insitu_xr.open_dataset(tmp_path / "a.nc")
    assert ds["a"].encoding["chunks"] == (1, 87, 3000)
    np.testing.assert_array_equal(ds["a"].values, values)


def test_stores_go_to_other_processes(weather_file: Path) -> None:
    ds = insitu_xr.open_dataset(weather_file)
    with ds.insitu.loader(variables=["t2m"], batch_size=7) as loader:
        copy = pickle.loads(pickle.dumps(loader))
        with copy:
            assert_batches_equal(copy, ds, sample_dim="time", variables=["t2m"])


def test_a_file_that_changes_is_not_read_on(tmp_path: Path) -> None:
    ds = insitu_xr.open_dataset(write_weather(tmp_path / "weather.nc"))
    changed = xr.load_dataset(tmp_path / "weather.nc") + 1
    with ds.insitu.loader(variables=["t2m"], batch_size=7) as loader:
        changed.to_netcdf(tmp_path / "weather.nc", engine="h5netcdf")
        with pytest.raises(InsituError, match="must stay as it was when it was opened"):
            list(loader)


# The second time


def test_a_file_is_parsed_once(tmp_path: Path, cache: Path) -> None:
    path = write_weather(tmp_path / "weather.nc")
    want = insitu_xr.open_dataset(path).load()
    status = path.stat()
    start = path.read_bytes()[:96]
    with path.open("r+b") as opened:
        opened.write(bytes(96))  # what a parser looks at first; chunks and coordinates stay
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_same(insitu_xr.open_dataset(path), want)
    with pytest.raises(NotZarrError):
        insitu_xr.open_dataset(path, reference_cache=False)
    with pytest.raises(NotZarrError):
        insitu_xr.open_dataset(path, reference_cache=tmp_path / "elsewhere")
    with path.open("r+b") as opened:
        opened.write(start)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_same(insitu_xr.open_dataset(path, reference_cache=tmp_path / "elsewhere"), want)
    assert len(list(cache.rglob("*.npz"))) == 1


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    path = write_weather(tmp_path / "weather.nc")
    before = insitu_xr.open_dataset(path).load()
    (before * 2).to_netcdf(path, engine="h5netcdf")
    with xr.open_dataset(path) as want:
        assert_same(insitu_xr.open_dataset(path), want)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"something else"])
def test_a_damaged_cache_is_written_again(tmp_path: Path, cache: Path, damage: bytes) -> None:
    path = write_weather(tmp_path / "weather.nc")
    want = insitu_xr.open_dataset(path).load()
    kept = next(cache.rglob("*.npz"))
    size = kept.stat().st_size
    kept.write_bytes(damage)
    assert_same(insitu_xr.open_dataset(path), want)
    assert kept.stat().st_size == size


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ds = insitu_xr.open_dataset(write_weather(tmp_path / "weather.nc"), reference_cache=tmp_path / "file")
    assert ds["t2m"].values.any()


# Over HTTP


@pytest.fixture
def server(tmp_path: Path, weather_file: Path) -> Iterator[Served]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "weather.nc").write_bytes(weather_file.read_bytes())
    (folder / "classic.nc").write_bytes((SAMPLES / "space_weather.nc").read_bytes())
    with serve(folder) as running:
        yield running


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading_over_http(server: Served, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(f"{server.url}/weather.nc"))


def test_each_chunk_is_one_ranged_request(server: Served) -> None:
    def asked() -> Counter[str]:
        counts = server.counts()
        assert counts.heads == 0
        return Counter({f"request {k}": 1 for k in range(counts.gets)})

    check_counts(insitu_xr.open_dataset(f"{server.url}/weather.nc"), asked, server.reset)


def test_opening_again_asks_for_the_version_alone(server: Served, weather_file: Path) -> None:
    insitu_xr.open_dataset(f"{server.url}/weather.nc")
    first = server.counts()
    assert first.gets >= 1
    server.reset()
    ds = insitu_xr.open_dataset(f"{server.url}/weather.nc")
    assert (server.counts().heads, server.counts().gets) == (1, 0)
    assert ds.insitu.source["size"] == weather_file.stat().st_size
    with xr.open_dataset(weather_file) as want:
        assert_same(ds, want)


def test_classic_files_over_http(server: Served) -> None:
    with xr.open_dataset(SAMPLES / "space_weather.nc") as want:
        assert_same(insitu_xr.open_dataset(f"netcdf+{server.url}/classic.nc"), want)


def test_secrets_of_a_url_are_not_shown(server: Served) -> None:
    url = server.url.replace("//", "//me:PASSWORD@")
    ds = insitu_xr.open_dataset(f"{url}/weather.nc?sig=SIGNATURE")
    assert ds.insitu.source.url == f"{server.url}/weather.nc"
    with ds.insitu.loader(variables=["t2m"]) as loader:
        shown = [repr(loader.plan), ds.insitu.split(fractions=(0.8, 0.2), variables=["t2m"]).to_json()]
        next(iter(loader))
    with pytest.raises(RequestError, match="wildcards") as caught:
        insitu_xr.open_dataset(f"{url}/*.nc?sig=SIGNATURE")
    for text in (*shown, str(caught.value)):
        assert not re.search("PASSWORD|SIGNATURE", text)


def test_what_is_not_served(server: Served) -> None:
    with pytest.raises(NotFoundError, match=r"file must exist, but got 'http://.*nothing.nc', where there is none"):
        insitu_xr.open_dataset(f"{server.url}/nothing.nc")
    with pytest.raises(RequestError, match="wildcards must stand in a place that can be listed"):
        insitu_xr.open_dataset(f"{server.url}/*.nc")


# What is refused


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"file must exist, but got '.*nothing.nc', where there is none; check the path"
    ):
        insitu_xr.open_dataset(tmp_path / "nothing.nc")
    with pytest.raises(NotFoundError, match=r"pattern must match a file, but got '.*\*.nc', which matches none"):
        insitu_xr.open_dataset(str(tmp_path / "*.nc"))


def test_no_netcdf(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_text("hello world")
    with pytest.raises(
        NotZarrError, match=r"file must be netCDF, HDF5 or GRIB, but got '.*a.nc', which starts with b'hello"
    ):
        insitu_xr.open_dataset(tmp_path / "a.nc")


@pytest.mark.parametrize(("sample", "size"), [("A1B_north_america.nc", 5000), ("space_weather.nc", 500)])
def test_a_file_that_was_cut(tmp_path: Path, sample: str, size: int) -> None:
    (tmp_path / "a.nc").write_bytes((SAMPLES / sample).read_bytes()[:size])
    with pytest.raises(
        NotZarrError, match=r"file must be whole, but got '.*a.nc'.*check that it was written and copied"
    ):
        insitu_xr.open_dataset(tmp_path / "a.nc")


def test_a_file_under_another_name(tmp_path: Path, weather_file: Path) -> None:
    (tmp_path / "weather.dat").write_bytes(weather_file.read_bytes())
    assert insitu_xr.open_dataset(tmp_path / "weather.dat").sizes["time"] == 30


def test_filters_that_zarr_lacks_are_named_before_a_read(tmp_path: Path) -> None:
    values = np.arange(100.0).reshape(10, 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("good", data=values, chunks=(5, 5), compression="gzip")
        file.create_dataset("fast", data=values, chunks=(5, 5), compression="lzf")
        file.create_dataset("rounded", data=values.astype("i4"), chunks=(5, 5), scaleoffset=0)
    with pytest.raises(
        RequestError, match=r"but got 'fast' with filter 'lzf' in .*; pass drop_variables=\['fast', 'rounded'\]"
    ):
        insitu_xr.open_dataset(tmp_path / "a.h5")
    ds = insitu_xr.open_dataset(tmp_path / "a.h5", drop_variables=["fast", "rounded"])
    np.testing.assert_array_equal(ds["good"].values, values)
    assert list(ds.attrs) == []


@pytest.mark.parametrize("options", [{"concat_dim": 3}, {"reference_cache": 5}, {"reference_cache": True}])
def test_options_that_are_wrong(weather_file: Path, options: dict[str, Any]) -> None:
    with pytest.raises(
        RequestError, match=rf"{next(iter(options))} must be .*, but got {next(iter(options.values()))!r}"
    ):
        insitu_xr.open_dataset(weather_file, **options)


def test_no_files() -> None:
    with pytest.raises(RequestError):
        insitu_xr.open_dataset([])


def test_without_what_the_extra_brings(weather_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "virtualizarr", None)
    with pytest.raises(
        MissingExtraError,
        match=r"netcdf must be installed to open .*no module 'virtualizarr'; pip install insitu-xr\[netcdf\]",
    ):
        insitu_xr.open_dataset(weather_file)
