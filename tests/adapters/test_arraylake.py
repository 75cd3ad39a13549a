"""The real client of Arraylake against a stub of its service; the repositories lie on a real S3 server."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import obstore
import pytest
import xarray as xr
import zarr

from insitu_xr.errors import ForbiddenError, MissingExtraError, NotFoundError, OpenError, RequestError, UnknownNameError
from insitu_xr.testing import assert_batches_equal
from tests.adapters.arraylake_stub import (
    TOKEN,
    Arraylake,
    answer_of,
    arraylake_stub,
    configure,
    credentials,
    delegated,
)
from tests.adapters.icechunk_cases import VARIABLES, History, commit, epoch_of, history, opened, weather
from tests.integration.servers import S3Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "weather"
URL = "arraylake://acme/era5"


def storage_of(server: S3Server, prefix: str) -> Any:
    options: dict[str, Any] = {"endpoint_url": server.endpoint, "region": server.region, "allow_http": True}
    options |= {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    return icechunk.s3_storage(bucket=BUCKET, prefix=prefix, force_path_style=True, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket(BUCKET)
        yield running


@pytest.fixture(scope="module")
def past(server: S3Server) -> History:
    return history(storage_of(server, "era5"))


@pytest.fixture
def stub(server: S3Server, past: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Arraylake]:
    """Serve a repository; nobody is logged in."""
    with arraylake_stub() as running:
        configure(monkeypatch, tmp_path, running.url)
        running.repositories["era5"] = answer_of(server, BUCKET, "era5")
        yield running


@pytest.mark.parametrize("way", ["argument", "environment", "configuration", "login"])
def test_the_token_comes_from_the_usual_places(
    stub: Arraylake, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from arraylake.config import config

    options = {}
    if way == "argument":
        options = {"token": TOKEN}
    elif way == "environment":
        monkeypatch.setenv("ARRAYLAKE_TOKEN", TOKEN)
        config.refresh()
    elif way == "configuration":
        with config.set(token=TOKEN):
            assert opened(URL).sizes["time"] == 30
        assert stub.asked == [("/repos/acme/era5/open", TOKEN)]
        return
    else:
        host = stub.url.removeprefix("http://").replace(":", "_")
        tokens = tmp_path / ".arraylake" / "tokens" / f"{host}.json"
        tokens.parent.mkdir(parents=True)
        content = {"access_token": "", "id_token": TOKEN, "refresh_token": "", "token_type": "Bearer", "expires_in": 1}
        tokens.write_text(json.dumps(content))
    assert opened(URL, **options).sizes["time"] == 30
    assert stub.asked == [("/repos/acme/era5/open", TOKEN)]


def test_another_service_is_asked(stub: Arraylake, monkeypatch: pytest.MonkeyPatch) -> None:
    from arraylake.config import config

    monkeypatch.setenv("ARRAYLAKE_SERVICE__URI", "http://127.0.0.1:1")
    config.refresh()
    assert opened(URL, token=TOKEN, service_uri=stub.url).sizes["time"] == 30


def test_versions_are_chosen(stub: Arraylake, past: History) -> None:
    second, first, *_ = past.repository.ancestry(branch="main")
    moment = first.written_at + (second.written_at - first.written_at) / 2
    for options, chosen in [
        ({}, 1),
        ({"branch": "main"}, 1),
        ({"tag": "v1"}, 0),
        ({"snapshot": past.snapshots[0]}, 0),
        ({"as_of": moment.replace(tzinfo=None)}, 0),
        ({"as_of": dt.datetime.now(dt.UTC)}, 1),
    ]:
        ds = opened(URL, token=TOKEN, **options)
        assert ds.insitu.source["snapshot"] == past.snapshots[chosen]
        xr.testing.assert_allclose(ds.compute(), past.datasets[chosen], atol=0.051)


def test_the_source_names_organisation_and_repository(stub: Arraylake, server: S3Server, past: History) -> None:
    source = dict(opened(URL, token=TOKEN, tag="v1").insitu.source)
    assert source.pop("endpoint") == server.endpoint
    assert source == {"kind": "arraylake", "url": URL, "tag": "v1", "snapshot": past.snapshots[0]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"tag": "nope"}, "has 'v1', but got 'nope'"), ({"branch": "nope"}, "has 'main', but got 'nope'")],
)
def test_unknown_versions_name_what_exists(stub: Arraylake, options: dict[str, str], expected: str) -> None:
    with pytest.raises(UnknownNameError, match=expected):
        opened(URL, token=TOKEN, **options)


def test_credentials_are_renewed(stub: Arraylake, server: S3Server) -> None:
    stub.repositories["era5"] = lambda: delegated(server, BUCKET, "era5")
    ds = opened(URL, token=TOKEN)
    with ds.insitu.loader(variables=VARIABLES, batch_size=8) as loader:
        before = stub.opened()
        batches = epoch_of(loader)
        assert stub.opened() > before
    assert_batches_equal(batches, ds, sample_dim="time", variables=VARIABLES)


@pytest.mark.slow
def test_a_spawned_worker_renews_credentials_and_reads_the_same_snapshot(
    stub: Arraylake, server: S3Server, past: History
) -> None:
    stub.repositories["era5"] = lambda: delegated(server, BUCKET, "era5")
    past.repository.create_branch("moving", past.snapshots[1])
    ds = opened(URL, token=TOKEN, branch="moving")
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader:
        commit(past.repository, weather(9), "after", branch="moving")
        before = stub.opened()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            batches = pool.apply(epoch_of, (loader,))
        assert stub.opened() > before
    assert_batches_equal(batches, ds, sample_dim="time", variables=["z"])
    past.repository.delete_branch("moving")  # other tests name what the repository has


@pytest.mark.parametrize("config", [None, icechunk.RepositoryConfig.default()], ids=["stored config", "own config"])
def test_virtual_chunks_that_the_service_allows_are_read(stub: Arraylake, server: S3Server, config: Any) -> None:
    values = np.arange(200, dtype="f4")
    obstore.put(server.store(BUCKET), "outside/a.bin", values.tobytes())
    prefix = f"virtual-{config is None}".lower()
    stored = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(
        region=server.region, endpoint_url=server.endpoint, allow_http=True, s3_compatible=True, force_path_style=True
    )
    stored.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"s3://{BUCKET}/outside/", store))
    repository = icechunk.Repository.create(storage_of(server, prefix), config=stored)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("t", shape=(200,), chunks=(200,), dtype="f4", compressors=None, dimension_names=["time"])
    session.store.set_virtual_ref("t/c/0", f"s3://{BUCKET}/outside/a.bin", offset=0, length=800)
    session.commit("references")
    allowed = {
        "credentials": credentials(server, None),
        "org": "acme",
        "bucket_nickname": "bucket",
        "platform": "s3-compatible",
        "region": server.region,
        "endpoint_url": server.endpoint,
        "allow_http": True,
        "force_path_style": True,
    }
    virtual = {f"s3://{BUCKET}/outside/": allowed}
    stub.repositories["virtual"] = answer_of(server, BUCKET, prefix, virtual_chunk_credentials=virtual)
    ds = opened("arraylake://acme/virtual", token=TOKEN, **({} if config is None else {"config": config}))
    with ds.insitu.loader(variables=["t"], sample_dim="time", batch_size=200) as loader:
        np.testing.assert_array_equal(epoch_of(loader)[0]["t"], values)


REFUSALS: dict[int, tuple[type[Exception], str]] = {
    401: (ForbiddenError, r"token for arraylake://acme/era5 .* refuses \(401, request request-1\).*ARRAYLAKE_TOKEN"),
    403: (ForbiddenError, r"allowed to read arraylake://acme/era5.*\(403.*ask the owners"),
    404: (NotFoundError, r"arraylake://acme/era5, which there is not.*\(404.*'acme' has 'era5', 'era6'"),
    422: (OpenError, r"arraylake://acme/era5, but it failed \(status 422"),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_refusals_are_explained(stub: Arraylake, status: int) -> None:
    kind, expected = REFUSALS[status]
    stub.repositories |= {"era5": status, "era6": 404}
    with pytest.raises(kind, match=expected) as caught:
        opened(URL, token=TOKEN)
    assert TOKEN not in str(caught.value)


def test_a_refused_token_is_not_shown(stub: Arraylake) -> None:
    with pytest.raises(ForbiddenError, match="401") as caught:
        opened(URL, token="ema_not-the-one")  # which the service repeats
    assert "not-the-one" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_unknown_organisation_is_not_found(stub: Arraylake) -> None:
    with pytest.raises(NotFoundError, match=r"arraylake://other/era5.*check the spelling of both"):
        opened("arraylake://other/era5", token=TOKEN)


def test_no_login_is_said_to_be_none(stub: Arraylake) -> None:
    with pytest.raises(ForbiddenError, match=r"arraylake auth login.*ARRAYLAKE_TOKEN.*token="):
        opened(URL)
    assert stub.asked == []


def test_an_offline_repository_says_why(stub: Arraylake, server: S3Server) -> None:
    stub.repositories["era5"] = answer_of(server, BUCKET, "era5", mode="offline")
    with pytest.raises(OpenError, match=r"acme/era5 must be online.*moving house"):
        opened(URL, token=TOKEN)


@pytest.mark.slow
def test_a_service_that_does_not_answer_is_named(stub: Arraylake) -> None:
    with pytest.raises(OpenError, match=r"http://127.0.0.1:1 did not \(ConnectError\); check the network"):
        opened(URL, token=TOKEN, service_uri="http://127.0.0.1:1")


def test_a_place_without_a_repository_is_said_to_be_one(stub: Arraylake, server: S3Server) -> None:
    stub.repositories["era5"] = answer_of(server, BUCKET, "elsewhere")
    with pytest.raises(NotFoundError, match="arraylake://acme/era5 must hold an Icechunk repository"):
        opened(URL, token=TOKEN)


def test_a_bucket_that_refuses_the_keys_is_said_to(stub: Arraylake, server: S3Server) -> None:
    wrong = {"method": "hmac", "access_key_id": server.access_key_id, "secret_access_key": "hush-hush"}
    answer = answer_of(server, BUCKET, "era5", repo_credentials=credentials(server, None))
    answer["repo_bucket"]["auth_config"] = wrong
    answer["repo_credentials"]["aws_secret_access_key"] = "hush-hush"
    stub.repositories["era5"] = answer
    with pytest.raises(ForbiddenError, match=r"bucket of arraylake://acme/era5.*SignatureDoesNotMatch") as caught:
        opened(URL, token=TOKEN)
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "arraylake://acme",
        "arraylake://acme/era5/group",
        "arraylake://",
        "arraylake://a/b",
        "arraylake://me:SECRET@a/b?c=SECRET",
    ],
)
def test_names_have_two_parts(wrong: str) -> None:
    with pytest.raises(RequestError, match="arraylake://organisation/repository, but got") as caught:
        opened(wrong, token=TOKEN)
    assert "SECRET" not in str(caught.value)


def test_a_token_has_a_form(stub: Arraylake, monkeypatch: pytest.MonkeyPatch) -> None:
    from arraylake.config import config

    with pytest.raises(RequestError, match="starts with 'ema_'") as caught:
        opened(URL, token="hush-hush")
    assert "hush-hush" not in str(caught.value)
    monkeypatch.setenv("ARRAYLAKE_TOKEN", "hush-hush")
    config.refresh()
    with pytest.raises(RequestError, match="ARRAYLAKE_TOKEN") as caught:
        opened(URL)
    assert "hush-hush" not in str(caught.value)


def test_the_service_has_a_url(stub: Arraylake) -> None:
    with pytest.raises(RequestError, match=r"service_uri must start with https://, but got 'api.earthmover.io'"):
        opened(URL, token=TOKEN, service_uri="api.earthmover.io")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arraylake", None)
    with pytest.raises(MissingExtraError, match=r"pip install insitu-xr\[arraylake\]"):
        opened(URL, token=TOKEN)
