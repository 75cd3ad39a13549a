"""Icechunk on local disk, on a real S3 server, and through Arraylake: the same values, each chunk read once."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import obstore
import pytest
import xarray as xr
import zarr

from insitu_xr.errors import ForbiddenError, NotFoundError, ReadError, RequestError
from insitu_xr.testing import CountingStore, assert_batches_equal
from insitu_xr.testing.serving import serve
from insitu_xr_adapters.arraylake import opener as arraylake_opener
from insitu_xr_adapters.icechunk import opener
from tests.adapters.arraylake_stub import TOKEN, answer_of, arraylake_stub, configure
from tests.adapters.icechunk_cases import (
    SHARDS,
    VARIABLES,
    History,
    assert_reads,
    commit,
    distinct,
    epoch_of,
    history,
    opened,
    weather,
)
from tests.integration.servers import S3Server, refusing_server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "testtest"


@dataclass(frozen=True, slots=True)
class Placed:
    """A history, and how users open it."""

    past: History
    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def opened(self, **version: str) -> xr.Dataset:
        return opened(self.url, **self.options, **version)

    def counted(self) -> tuple[xr.Dataset, CountingStore]:
        """Open what the adapter opens, and count what reaches it."""
        if self.url.startswith("arraylake"):
            repository, _ = arraylake_opener.open(self.url, **self.options)
            store, _ = opener.open(repository)
        else:
            store, _ = opener.open(self.url, **self.options)
        counting = CountingStore(store)
        return opened(counting), counting


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("weather")
        yield running


def storage_of(server: S3Server, prefix: str) -> Any:
    return icechunk.s3_storage(
        bucket="weather",
        prefix=prefix,
        endpoint_url=server.endpoint,
        region=server.region,
        allow_http=True,
        force_path_style=True,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


@pytest.fixture(scope="module", params=["local", "s3", "arraylake"])
def placed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "local":
        past = history(icechunk.local_filesystem_storage(str(folder / "repo")))
        yield Placed(past, f"icechunk://{folder}/repo")
        return
    server: S3Server = request.getfixturevalue("server")
    past = history(storage_of(server, request.param))
    if request.param == "s3":
        yield Placed(past, "icechunk+s3://weather/s3", {"storage_options": server.storage_options})
        return
    with arraylake_stub() as stub, pytest.MonkeyPatch.context() as monkeypatch:
        configure(monkeypatch, folder, stub.url)
        stub.repositories["era5"] = answer_of(server, "weather", "arraylake")
        yield Placed(past, "arraylake://acme/era5", {"token": TOKEN})


REGIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "region": {"y": slice(1, 3), "x": slice(4, None), "level": [1]},
    "rows": {"time": slice(9, 25), "y": [0, 5]},
}


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("leads", [None, ["0h", "1h", "4h"]], ids=["no leads", "leads"])
@pytest.mark.parametrize("region", REGIONS)
def test_values_are_those_of_xarray_and_chunks_are_read_once(
    placed: Placed, region: str, leads: list[str] | None, shuffle: bool
) -> None:
    ds, store = placed.counted()
    assert_reads(ds.isel(REGIONS[region]), store, leads=leads, shuffle=shuffle)


def test_the_values_are_those_that_were_written(placed: Placed) -> None:
    versions: list[dict[str, str]] = [{"tag": "v1"}, {}]
    for version, expected, snapshot in zip(versions, placed.past.datasets, placed.past.snapshots, strict=True):
        ds = placed.opened(**version)
        xr.testing.assert_allclose(ds.compute(), expected, atol=0.051)
        assert ds.insitu.source["snapshot"] == snapshot


def test_the_source_names_the_place(placed: Placed, server: S3Server) -> None:
    source = placed.opened(branch="main").insitu.source
    assert source["url"] == placed.url
    assert source["branch"] == "main"
    assert source.get("endpoint") == (None if placed.url.startswith("icechunk://") else server.endpoint)
    assert source["kind"] == placed.url.partition(":")[0].partition("+")[0]


@pytest.mark.slow
def test_a_spawned_worker_reads_the_same_snapshot(placed: Placed) -> None:
    repository = placed.past.repository
    repository.create_branch("moving", placed.past.snapshots[1])
    ds = placed.opened(branch="moving")
    with ds.insitu.loader(variables=VARIABLES, batch_size=8, shuffle=True) as loader:
        commit(repository, weather(9), "after", branch="moving")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            batches = pool.apply(epoch_of, (loader,))
    assert_batches_equal(batches, ds, sample_dim="time", variables=VARIABLES)
    xr.testing.assert_allclose(ds.compute(), placed.past.datasets[1], atol=0.051)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_over_http_each_chunk_is_one_request(tmp_path: Path, shuffle: bool) -> None:
    history(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    with serve(tmp_path / "repo") as served:
        ds = opened(f"icechunk+{served.url}").isel(x=slice(4, None))
        epoch_of(ds.insitu.loader(variables=VARIABLES, batch_size=30))  # manifests are read once for all
        with ds.insitu.loader(variables=["t2m", "z"], batch_size=5, shuffle=shuffle) as loader:
            served.reset()
            batches = epoch_of(loader)
            assert (
                served.counts().gets
                == loader.stats.gets
                == loader.plan.chunks
                == distinct(ds, "t2m") + distinct(ds, "z")
            )
        with ds.insitu.loader(variables=["w"], batch_size=5, shuffle=shuffle) as loader:
            served.reset()
            sharded = epoch_of(loader)
            counts = served.counts()
            assert counts.gets == loader.stats.gets <= loader.plan.chunks + distinct(ds, "w", SHARDS["w"])
            assert counts.ranged == counts.gets
        assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m", "z"])
        assert_batches_equal(sharded, ds, sample_dim="time", variables=["w"])


def test_secrets_are_not_shown(placed: Placed) -> None:
    ds = placed.opened()
    manifest = ds.insitu.split(fractions=(0.8, 0.2), variables=["z"])
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader:
        shown = [repr(loader), str(loader.plan), loader.plan._repr_html_(), loader.plan.manifest.to_json()]
        shown += [str(loader.state_dict()), repr(loader.stats)]
    shown += [manifest.to_json(), repr(manifest), repr(ds), str(dict(ds.insitu.source)), repr(ds.insitu.source)]
    shown += [str(ds.attrs), str(ds.encoding), str(ds["z"].encoding)]
    for text in shown:
        assert SECRET not in text
        assert TOKEN not in text


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "secret": ({"secret_access_key": "hush-hush"}, ForbiddenError, "must allow to read.*SignatureDoesNotMatch"),
    "key": ({"access_key_id": "hush-hush"}, ForbiddenError, "must allow to read.*InvalidAccessKeyId"),
    "option": ({"secret_acces_key": "hush-hush"}, RequestError, "s3_storage, but got secret_acces_key"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_refusals_are_explained_without_secrets(server: S3Server, wrong: str) -> None:
    change, kind, expected = WRONG[wrong]
    with pytest.raises(kind, match=expected) as caught:
        opened("icechunk+s3://weather/s3", storage_options=server.storage_options | change)
    chain: list[BaseException] = [caught.value]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    assert not any(word in str(error) for error in chain for word in ("hush-hush", SECRET))


@pytest.mark.parametrize("place", ["weather/elsewhere", "no-such-bucket/era5"])
def test_no_repository_is_said_to_be_none(server: S3Server, place: str) -> None:
    with pytest.raises(NotFoundError, match=f"Icechunk repository.*{place}.*none"):
        opened(f"icechunk+s3://{place}", storage_options=server.storage_options)


def test_no_credentials_are_said_to_be_none(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ForbiddenError, match=r"credentials must be given.*storage_options.*anonymous"):
        opened("icechunk+s3://weather/s3", storage_options={"endpoint": server.endpoint})


def test_expired_credentials_are_said_to_be() -> None:
    options = {"access_key_id": "K", "secret_access_key": "hush-hush", "session_token": "T"}
    with refusing_server(400, "ExpiredToken") as endpoint:
        options["endpoint"] = endpoint
        with pytest.raises(ForbiddenError, match=r"expired.*get_credentials"):
            opened("icechunk+s3://weather/s3", storage_options=options)


def test_credentials_come_from_the_environment_too(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    history(storage_of(server, "environment"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    ds = opened("icechunk+s3://weather/environment")
    assert ds.sizes["time"] == 30


@dataclass(slots=True)
class Renewing:
    """Gives keys that expire at once, and counts how often in a file, for the function is copied by pickling."""

    server: S3Server
    log: str

    def __call__(self) -> Any:
        with open(self.log, "a") as file:
            file.write(".")
        return icechunk.S3StaticCredentials(
            access_key_id=self.server.access_key_id,
            secret_access_key=self.server.secret_access_key,
            expires_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        )


def test_credentials_are_renewed_while_a_loader_runs(server: S3Server, tmp_path: Path) -> None:
    history(storage_of(server, "renewed"))
    log = tmp_path / "log"
    options = {name: value for name, value in server.storage_options.items() if "key" not in name}
    ds = opened(
        "icechunk+s3://weather/renewed", storage_options=options | {"get_credentials": Renewing(server, str(log))}
    )
    before = len(log.read_text())
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader:
        assert_batches_equal(pickle.loads(pickle.dumps(loader)), ds, sample_dim="time", variables=["z"])
    assert len(log.read_text()) > before


@dataclass(slots=True)
class Revoked(Renewing):
    """Gives keys that work until a file says otherwise."""

    def __call__(self) -> Any:
        keys = Renewing.__call__(self)
        if "revoked" in Path(self.log).read_text():
            keys = icechunk.S3StaticCredentials(
                access_key_id=self.server.access_key_id,
                secret_access_key="hush-hush",
                expires_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
            )
        return keys


def test_credentials_that_are_revoked_stop_a_loader_without_being_shown(server: S3Server, tmp_path: Path) -> None:
    history(storage_of(server, "revoked"))
    log = tmp_path / "log"
    options = {name: value for name, value in server.storage_options.items() if "key" not in name}
    options["get_credentials"] = Revoked(server, str(log))
    with opened("icechunk+s3://weather/revoked", storage_options=options).insitu.loader(variables=["z"]) as loader:
        log.write_text("revoked")
        with pytest.raises(ReadError, match="SignatureDoesNotMatch") as caught:
            epoch_of(loader)
        assert "hush-hush" not in str(caught.value)
        log.write_text("")
        assert sum(map(len, epoch_of(loader))) == 30


def test_virtual_chunks_on_s3_are_read_with_credentials(server: S3Server, tmp_path: Path) -> None:
    obstore.put(server.store("weather"), "outside/a.bin", np.arange(4, dtype="f4").tobytes())
    store = icechunk.s3_store(
        region=server.region, endpoint_url=server.endpoint, allow_http=True, s3_compatible=True, force_path_style=True
    )
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://weather/outside/", store))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")), config=config)
    session = repository.writable_session("main")
    zarr.create_group(session.store).create_array(
        "t", shape=(4,), chunks=(4,), dtype="f4", compressors=None, dimension_names=["time"]
    )
    session.store.set_virtual_ref("t/c/0", "s3://weather/outside/a.bin", offset=0, length=16)
    session.commit("references")
    keys = {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    everything = keys | {"region": server.region, "endpoint_url": server.endpoint, "allow_http": True}
    everything |= {"s3_compatible": True, "force_path_style": True}
    for given in (keys, icechunk.s3_credentials(**keys), everything):
        ds = opened(f"icechunk://{tmp_path}/repo", virtual={"s3://weather/outside/": given})
        with ds.insitu.loader(variables=["t"], sample_dim="time") as loader:
            np.testing.assert_array_equal(epoch_of(loader)[0]["t"], np.arange(4, dtype="f4"))
            assert SECRET not in repr(ds.insitu.source)
