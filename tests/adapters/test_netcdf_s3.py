"""NetCDF files on a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import xarray as xr

import insitu_xr
from insitu_xr.errors import ForbiddenError, NotFoundError
from insitu_xr_adapters.netcdf import opener
from tests.adapters.netcdf_files import assert_same, months, nested, write_weather
from tests.integration.matrix import CHECKS, check_counting
from tests.integration.servers import S3Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "s3://files/era5/weather.nc"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    write_weather(made / "weather.nc")
    months(made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.upload(folder, "files", "era5")
        yield running


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(server: S3Server, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(URL, storage_options=server.storage_options))


def test_each_chunk_is_read_once(server: S3Server) -> None:
    check_counting(opener.open(URL, storage_options=server.storage_options)[0])


def test_the_source_has_the_entity_tag_and_no_credentials(server: S3Server, folder: Path) -> None:
    ds = insitu_xr.open_dataset(URL, storage_options=server.storage_options)
    assert ds.insitu.source.url == URL
    assert ds.insitu.source["etag"]
    assert server.secret_access_key not in str(dict(ds.insitu.source))
    with xr.open_dataset(folder / "weather.nc") as want:
        assert_same(ds, want)


def test_a_pattern(server: S3Server, folder: Path) -> None:
    ds = insitu_xr.open_dataset("s3://files/era5/t2m_*.nc", storage_options=server.storage_options)
    with nested(sorted(folder.glob("t2m_*.nc"))) as want:
        assert_same(ds, want)


def test_what_is_not_there_and_what_is_refused(server: S3Server) -> None:
    with pytest.raises(NotFoundError, match=r"file must exist, but got 's3://files/nothing.nc', where there is none"):
        insitu_xr.open_dataset("s3://files/nothing.nc", storage_options=server.storage_options)
    with pytest.raises(ForbiddenError, match="credentials must be allowed to read"):
        insitu_xr.open_dataset(URL, storage_options=server.storage_options | {"secret_access_key": "wrong"})
