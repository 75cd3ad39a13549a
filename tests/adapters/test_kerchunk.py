"""Kerchunk references that others made."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import iris_sample_data
import numpy as np
import pytest
import xarray as xr
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

import insitu_xr
from insitu_xr.errors import NotFoundError, NotZarrError
from insitu_xr.testing.serving import serve
from insitu_xr_adapters.netcdf import opener
from tests.adapters.netcdf_files import assert_same, write_weather
from tests.integration.matrix import CHECKS, check_counting

SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"
NAMES = ["A1B_north_america", "hybrid_height", "ostia_monthly", "rotated_pole"]
#: references are of Zarr format 2, whose fill value xarray takes for a missing value
AS_WRITTEN: dict[str, Any] = {"use_zarr_fill_value_as_mask": False}


def write_references(source: Path, place: Path) -> Path:
    place.write_text(json.dumps(SingleHdf5ToZarr(str(source), inline_threshold=0).translate()))
    return place


def parquet(references: Path) -> Path:
    folder = references.with_suffix(".parq")
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The 'fastparquet' engine is deprecated")  # kerchunk asks pandas for it
        refs_to_dataframe(str(references), str(folder), record_size=7)
    return folder


@pytest.fixture(scope="module", params=["json", "parquet"])
def references(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    made = write_references(write_weather(folder / "weather.nc", fletcher32=False), folder / "weather.json")
    return made if request.param == "json" else parquet(made)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(references: Path, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(references))


def test_each_chunk_is_read_once(references: Path) -> None:
    check_counting(opener.open(references, storage_options={})[0])


def test_the_source_is_named(references: Path) -> None:
    source = insitu_xr.open_dataset(references).insitu.source
    assert (source.kind, source.url) == ("kerchunk", references.as_uri())


@pytest.mark.parametrize("name", NAMES)
def test_real_files_are_equal_to_what_xarray_reads_through_references(tmp_path: Path, name: str) -> None:
    made = write_references(SAMPLES / f"{name}.nc", tmp_path / "a.json")
    storage = {"fo": str(made), "remote_protocol": "file"}
    options = {"storage_options": storage, "consolidated": False}
    with xr.open_dataset("reference://", engine="zarr", chunks=None, backend_kwargs=options) as want:
        assert_same(insitu_xr.open_dataset(made), want, ordered=False)
        assert_same(insitu_xr.open_dataset(parquet(made)), want, ordered=False)


@pytest.mark.parametrize("name", NAMES)
def test_scalars_that_others_misname(tmp_path: Path, name: str) -> None:
    source = SAMPLES / f"{name}.nc"
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    virtual = open_virtual_dataset(source.as_uri(), registry=registry, parser=HDFParser(), loadable_variables=[])
    virtual.vz.to_kerchunk(str(tmp_path / "a.json"), format="json")
    keys = json.loads((tmp_path / "a.json").read_text())["refs"]
    assert any(key.endswith("/") for key in keys), "VirtualiZarr names them as others do: this test can go"
    ds = insitu_xr.open_dataset(tmp_path / "a.json", decode_times=False, **AS_WRITTEN)
    with xr.open_dataset(source, decode_times=False, mask_and_scale=False) as want:
        scalars = [name for name, variable in want.variables.items() if not variable.ndim]
        assert scalars
        for scalar in scalars:
            np.testing.assert_array_equal(ds[scalar].values, want[scalar].values)


def test_inlined_templates_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    np.arange(6.0).tofile(tmp_path / "data" / "raw.bin")
    array = {"zarr_format": 2, "dtype": "<f8", "order": "C", "compressor": None, "filters": None, "fill_value": None}
    content: dict[str, Any] = {
        "version": 1,
        "templates": {"u": "data/raw.bin"},
        "refs": {
            ".zgroup": {"zarr_format": 2},
            "a/.zarray": json.dumps({**array, "shape": [8], "chunks": [2]}),
            "a/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"]}),
            "a/0": ["{{u}}", 0, 16],
            "a/1": ["{{ u }}", 16, 16],
            "a/2": "base64:AAAAAAAAFEAAAAAAAAAYQA==",
            "whole/.zarray": {**array, "shape": [6], "chunks": [6]},
            "whole/.zattrs": {"_ARRAY_DIMENSIONS": ["y"]},
            "whole/0": ["{{u}}"],
        },
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    monkeypatch.chdir("/")
    ds = insitu_xr.open_dataset(tmp_path / "a.json")
    np.testing.assert_array_equal(ds["a"].values, [0, 1, 2, 3, 5, 6, 0, 0])
    np.testing.assert_array_equal(ds["whole"].values, np.arange(6.0))


def test_a_file_that_is_gone_is_an_error_and_no_fill_value(tmp_path: Path) -> None:
    write_weather(tmp_path / "weather.nc", fletcher32=False)
    made = write_references(tmp_path / "weather.nc", tmp_path / "a.json")
    os.rename(tmp_path / "weather.nc", tmp_path / "elsewhere")
    ds = insitu_xr.open_dataset(made, decode_times=False, drop_variables=["time", "lat", "lon", "level"])
    with pytest.raises(OSError, match="must stay where it was when it was opened, but it is gone"):
        ds["t2m"].load()


def test_over_http(tmp_path: Path) -> None:
    write_weather(tmp_path / "weather.nc", fletcher32=False)
    made = write_references(tmp_path / "weather.nc", tmp_path / "a.json")
    local = insitu_xr.open_dataset(made).load()
    assert made.read_text().count(str(tmp_path)) > 48
    with serve(tmp_path) as server:
        made.write_text(made.read_text().replace(str(tmp_path), server.url))
        assert_same(insitu_xr.open_dataset(f"{server.url}/a.json"), local)
        assert_same(insitu_xr.open_dataset(f"kerchunk+{server.url}/a.json"), local)
        ds = insitu_xr.open_dataset(f"{server.url}/a.json")
        server.fail("weather.nc", 404)
        with pytest.raises(OSError, match="it is gone"):
            ds["t2m"].load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "references must be JSON, but got"),
        ("[1]", "references must describe a Zarr, but got"),
        ('{"a": 1}', "references must describe a Zarr, but got"),
        ('{"version": 1, "gen": [1], "refs": {".zgroup": "{}"}}', "references must be written out, but got"),
        ('{".zgroup": "{\\"zarr_format\\": 2}", "b/0": "x"}', "every reference must be a document or a chunk"),
    ],
)
def test_what_is_no_reference(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(NotZarrError, match=message):
        insitu_xr.open_dataset(tmp_path / "a.json")


def test_no_references(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="references must exist, but got"):
        insitu_xr.open_dataset(tmp_path / "a.json")
