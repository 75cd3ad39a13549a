"""A real S3 server: read through obstore and through fsspec, and refused by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from zarr.storage import FsspecStore, ObjectStore

import insitu_xr
from insitu_xr.errors import ForbiddenError, NotFoundError, NotZarrError, RequestError
from insitu_xr.opening.stores import fsspec_store
from tests.integration.matrix import CHECKS, check_counting, write
from tests.integration.servers import S3Server, refusing_server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "s3://weather/era5/t2m.zarr"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        folder = write(tmp_path_factory.mktemp("local") / "t2m.zarr")
        assert running.upload(folder, "weather", "era5/t2m.zarr") == URL
        yield running


def options(server: S3Server, backend: str) -> dict[str, Any]:
    return server.storage_options if backend == "obstore" else server.fsspec_options


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(server: S3Server, backend: Any, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(URL, storage_options=options(server, backend), backend=backend))


def test_each_chunk_is_asked_for_once_through_obstore(server: S3Server) -> None:
    check_counting(ObjectStore(server.store("weather", "era5/t2m.zarr"), read_only=True))


def test_each_chunk_is_asked_for_once_through_fsspec(server: S3Server) -> None:
    check_counting(fsspec_store(URL, server.fsspec_options))


def test_s3fs_is_set_to_one_request_for_a_chunk_and_to_many_connections(server: S3Server) -> None:
    store = fsspec_store(URL, server.fsspec_options | {"config_kwargs": {"max_pool_connections": 7}})
    assert (store.fs.max_concurrency, store.fs.config_kwargs) == (1, {"max_pool_connections": 7})
    assert fsspec_store(URL, server.fsspec_options).fs.config_kwargs == {"max_pool_connections": 64}
    own = fsspec_store(URL, server.fsspec_options | {"max_concurrency": 3})
    assert own.fs.max_concurrency == 3


def test_both_ways_of_reading_give_one_name_and_version(server: S3Server) -> None:
    first = insitu_xr.open_dataset(URL, storage_options=server.storage_options)
    second = insitu_xr.open_dataset(URL, storage_options=server.fsspec_options, backend="fsspec")
    assert first.insitu.source == second.insitu.source
    assert first.insitu.source.url == URL
    assert first.insitu.source["endpoint"] == server.endpoint
    assert set(first.insitu.source.version) == {"etag", "last_modified", "size"}
    assert server.secret_access_key not in repr(first.insitu.source)


def test_a_store_that_xarray_opened_is_asked_for_its_version(server: S3Server) -> None:
    import xarray as xr

    store = ObjectStore(server.store("weather", "era5/t2m.zarr"), read_only=True)
    ds = xr.open_zarr(store, chunks=None)
    assert ds.insitu.source == insitu_xr.open_dataset(URL, storage_options=server.storage_options).insitu.source


def test_manifests_hold_the_version_and_go_with_either_backend(server: S3Server) -> None:
    first = insitu_xr.open_dataset(URL, storage_options=server.storage_options)
    second = insitu_xr.open_dataset(URL, storage_options=server.fsspec_options, backend="fsspec")
    manifest = first.insitu.split(fractions=(0.5, 0.5))
    (version,) = manifest.source["t2m"]["versions"]
    assert version == first.insitu.source.version
    assert server.secret_access_key not in manifest.to_json()
    plan = second.insitu.plan(variables=["t2m"], manifest=manifest, split="train")
    assert plan.anchors_kept == 15


@pytest.fixture
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_the_environment_is_enough() -> None:
    assert insitu_xr.open_dataset(URL).sizes["time"] == 30


def test_no_such_object(server: S3Server) -> None:
    with pytest.raises(NotFoundError, match=r"s3://weather/era6\.zarr.*check the spelling"):
        insitu_xr.open_dataset("s3://weather/era6.zarr", storage_options=server.storage_options)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_no_such_bucket(server: S3Server, backend: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"s3://wether/t2m\.zarr.*spelling"):
        insitu_xr.open_dataset("s3://wether/t2m.zarr", storage_options=options(server, backend), backend=backend)


def test_not_a_zarr(server: S3Server) -> None:
    with pytest.raises(NotZarrError, match=r"s3://weather/era5'.*no zarr\.json, \.zgroup or \.zmetadata"):
        insitu_xr.open_dataset("s3://weather/era5", storage_options=server.storage_options)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_forbidden(server: S3Server, backend: Any) -> None:
    wrong = options(server, backend) | {"secret_access_key" if backend == "obstore" else "secret": "WRONGKEY"}
    with pytest.raises(ForbiddenError, match=r"credentials must be allowed.*skip_signature=True") as caught:
        insitu_xr.open_dataset(URL, storage_options=wrong, backend=backend)
    assert isinstance(caught.value, PermissionError)
    assert "WRONGKEY" not in str(caught.value)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_an_expired_token(server: S3Server, backend: Any) -> None:
    with refusing_server(400, "ExpiredToken") as endpoint:
        key = "endpoint" if backend == "obstore" else "endpoint_url"
        expired = options(server, backend) | {key: endpoint}
        with pytest.raises(ForbiddenError, match=r"expired token.*get a new one"):
            insitu_xr.open_dataset(URL, storage_options=expired, backend=backend)


def test_an_endpoint_over_plain_http_must_be_allowed(server: S3Server) -> None:
    plain = {k: v for k, v in server.storage_options.items() if k != "client_options"}
    with pytest.raises(RequestError, match=r"client_options=\{'allow_http': True\}"):
        insitu_xr.open_dataset(URL, storage_options=plain)


def test_options_of_another_backend() -> None:
    with pytest.raises(RequestError, match=r"'key' is not valid.*backend='fsspec'"):
        insitu_xr.open_dataset(URL, storage_options={"key": "test", "secret": "testtest"})


def test_the_store_is_read_only(server: S3Server) -> None:
    assert fsspec_store(URL, server.fsspec_options).read_only
    assert isinstance(fsspec_store(URL, server.fsspec_options), FsspecStore)
