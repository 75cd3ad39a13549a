"""One snapshot per loader: which one is chosen, and that nothing changes it."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import insitu_xr
from insitu_xr.errors import (
    ForbiddenError,
    MissingExtraError,
    NotFoundError,
    NotZarrError,
    OpenError,
    ReadError,
    RequestError,
    UnknownNameError,
)
from insitu_xr.testing import assert_batches_equal
from insitu_xr_adapters.icechunk import opener
from insitu_xr_adapters.icechunk.places import Place, described, s3_options
from tests.adapters.icechunk_cases import VARIABLES, History, commit, create, epoch_of, history, opened, weather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

EMPTY = "1CECHNKREP0F1RSTCMT0"  # the snapshot that every repository begins with


@pytest.fixture
def past(tmp_path: Path) -> History:
    return history(icechunk.local_filesystem_storage(str(tmp_path / "repo")))


@pytest.fixture
def url(tmp_path: Path, past: History) -> str:
    return f"icechunk://{tmp_path}/repo"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, str]:
    """A history that tests do not add to."""
    folder = tmp_path_factory.mktemp("icechunk")
    return history(icechunk.local_filesystem_storage(str(folder / "repo"))), f"icechunk://{folder}/repo"


def assert_is(ds: xr.Dataset, expected: xr.Dataset) -> None:
    xr.testing.assert_allclose(ds[VARIABLES].compute(), expected, atol=0.051)  # as precise as the packing


def between(past: History) -> dt.datetime:
    """Find a moment after the first commit and before the second."""
    second, first, *_ = past.repository.ancestry(branch="main")
    moment: dt.datetime = first.written_at + (second.written_at - first.written_at) / 2
    return moment


SELECTIONS: dict[str, tuple[Callable[[History], dict[str, Any]], int]] = {
    "default": (lambda past: {}, 1),
    "branch": (lambda past: {"branch": "main"}, 1),
    "tag": (lambda past: {"tag": "v1"}, 0),
    "first snapshot": (lambda past: {"snapshot": past.snapshots[0]}, 0),
    "second snapshot": (lambda past: {"snapshot": past.snapshots[1]}, 1),
    "as of then": (lambda past: {"as_of": between(past)}, 0),
    "as of then on a branch": (lambda past: {"as_of": between(past), "branch": "main"}, 0),
    "as of then, no zone": (lambda past: {"as_of": between(past).replace(tzinfo=None)}, 0),
    "as of then, other zone": (lambda past: {"as_of": between(past).astimezone(dt.timezone(dt.timedelta(hours=5)))}, 0),
    "as of then, text": (lambda past: {"as_of": between(past).replace(tzinfo=None).isoformat()}, 0),
    "as of then, text with a zone": (lambda past: {"as_of": between(past).isoformat()}, 0),
    "as of then, numpy": (lambda past: {"as_of": np.datetime64(between(past).replace(tzinfo=None))}, 0),
    "as of then, pandas": (lambda past: {"as_of": pd.Timestamp(between(past))}, 0),
    "as of tomorrow": (lambda past: {"as_of": dt.datetime.now(dt.UTC) + dt.timedelta(days=1)}, 1),
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("by", ["url", "path", "repository"])
def test_a_version_is_chosen(shared: tuple[History, str], selection: str, by: str) -> None:
    past, url = shared
    options, chosen = SELECTIONS[selection]
    source = {"url": url, "path": Path(url.removeprefix("icechunk://")), "repository": past.repository}[by]
    ds = opened(source, **options(past))
    assert_is(ds, past.datasets[chosen])
    assert ds.insitu.source["snapshot"] == past.snapshots[chosen]
    assert ds.insitu.source["url"] == url


def test_another_branch_is_chosen(past: History, url: str) -> None:
    past.repository.create_branch("trial", past.snapshots[0])
    ds = weather(7)
    commit(past.repository, ds, "trial", branch="trial")
    assert_is(opened(url, branch="trial"), ds)
    assert_is(opened(url), past.datasets[1])
    assert opened(url, branch="trial").insitu.source["branch"] == "trial"


def test_the_source_says_what_was_opened(shared: tuple[History, str]) -> None:
    past, url = shared
    source = opened(url, tag="v1").insitu.source
    assert dict(source) == {"kind": "icechunk", "url": url, "tag": "v1", "snapshot": past.snapshots[0]}
    assert past.snapshots[0] in repr(source)
    assert opened(url).isel(time=slice(3)).insitu.source["branch"] == "main"


def test_two_snapshots_have_two_identities(shared: tuple[History, str]) -> None:
    past, url = shared
    manifests = []
    for snapshot in past.snapshots:
        ds = opened(url, snapshot=snapshot)
        manifests.append(ds.insitu.plan(variables=["t2m"]).manifest)
        assert snapshot in manifests[-1].to_json()
    assert manifests[0] != manifests[1]


def test_a_manifest_fits_however_the_snapshot_is_opened(shared: tuple[History, str]) -> None:
    past, url = shared
    manifest = opened(url).insitu.split(train=slice("2020-01-01", "2020-01-01"), variables=["t2m"])
    sources = [url, past.repository, past.repository.readonly_session("main")]
    datasets = [opened(source) for source in sources]
    datasets.append(xr.open_zarr(past.repository.readonly_session("main").store, chunks=None, consolidated=False))
    for ds in datasets:
        assert ds.insitu.plan(variables=["t2m"], manifest=manifest, split="train").anchors_kept == 22


def test_a_commit_during_an_epoch_changes_nothing(past: History, url: str) -> None:
    ds = opened(url)
    with ds.insitu.loader(variables=VARIABLES, batch_size=4, shuffle=True, memory="1MiB") as loader:
        batches = iter(loader)
        seen = [next(batches)]
        commit(past.repository, weather(9, range(60)), "longer, and different")
        seen += list(batches)
        again = epoch_of(loader)
    for epoch in (seen, again):
        assert_batches_equal(epoch, ds, sample_dim="time", variables=VARIABLES)
    assert_is(ds, past.datasets[1])
    assert opened(url).sizes["time"] == 60


def test_an_append_is_not_seen(past: History, url: str) -> None:
    ds = opened(url)
    session = past.repository.writable_session("main")
    array = zarr.open_array(session.store, path="w")
    array.resize((40, 6, 8))
    array[:] = 0
    session.commit("append")
    with ds.insitu.loader(variables=["w"], batch_size=4) as loader:
        assert_batches_equal(loader, ds, sample_dim="time", variables=["w"])
    assert_is(ds, past.datasets[1])


@pytest.mark.slow
def test_a_spawned_worker_reads_the_same_snapshot(past: History, url: str) -> None:
    ds = opened(url)
    with ds.insitu.loader(variables=VARIABLES, batch_size=8, shuffle=True) as loader:
        commit(past.repository, weather(9), "after")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            batches = pool.apply(epoch_of, (loader,))
    assert_batches_equal(batches, ds, sample_dim="time", variables=VARIABLES)
    assert_is(ds, past.datasets[1])


def test_a_vanished_snapshot_is_an_error_and_not_fill_values(past: History, url: str) -> None:
    with opened(url, tag="v1").insitu.loader(variables=["z"], batch_size=8) as loader:
        past.repository.delete_tag("v1")
        now = dt.datetime.now(dt.UTC)
        past.repository.expire_snapshots(now)
        assert past.repository.garbage_collect(now).chunks_deleted
        with pytest.raises(ReadError, match="'z'"):
            epoch_of(loader)


SESSIONS: dict[str, Callable[[Any], Any]] = {
    "session": lambda repository: repository.readonly_session("main"),
    "its store": lambda repository: repository.readonly_session("main").store,
    "writable session": lambda repository: repository.writable_session("main"),
    "its writable store": lambda repository: repository.writable_session("main").store,
    "fork": lambda repository: repository.writable_session("main").fork(),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_sessions_are_opened_where_they_are(shared: tuple[History, str], kind: str) -> None:
    past, _ = shared
    ds = opened(SESSIONS[kind](past.repository))
    assert_is(ds, past.datasets[1])
    assert ds.insitu.source["snapshot"] == past.snapshots[1]
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader, pickle.loads(pickle.dumps(loader)) as again:
        assert_batches_equal(again, ds, sample_dim="time", variables=["z"])


@pytest.mark.parametrize("kind", SESSIONS)
def test_stores_of_sessions_cannot_be_written_to(shared: tuple[History, str], kind: str) -> None:
    store, facts = opener.open(SESSIONS[kind](shared[0].repository))
    assert store.read_only
    assert facts["snapshot"] == shared[0].snapshots[1]
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(store, path="z", mode="r+")[:] = 0


def test_what_a_session_writes_later_is_not_seen(past: History) -> None:
    session = past.repository.writable_session("main")
    ds = opened(session)
    zarr.open_array(session.store, path="z")[:] = 0
    assert_is(ds, past.datasets[1])
    session.commit("zeros")
    assert_is(ds.drop_vars(["t2m", "w"]).assign(past.datasets[1][["t2m", "w"]]), past.datasets[1])


def test_uncommitted_changes_are_refused(past: History) -> None:
    session = past.repository.writable_session("main")
    zarr.open_array(session.store, path="z")[:] = 0
    for source in (session, session.store):
        with pytest.raises(RequestError, match=r"no uncommitted changes, but got a writable one of .*'main'.*commit"):
            opened(source)


@pytest.mark.parametrize(
    "option", [{"tag": "v1"}, {"as_of": "2090"}, {"virtual": "s3://b/"}, {"storage_options": {"a": 1}}]
)
def test_a_session_is_at_a_snapshot_already(shared: tuple[History, str], option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(RequestError, match=f"session.*{name}.*Repository"):
        opened(shared[0].repository.readonly_session("main"), **option)


def test_a_repository_has_its_storage_already(shared: tuple[History, str]) -> None:
    with pytest.raises(RequestError, match=r"storage_options .* with a URL, but got an icechunk\.Repository"):
        opened(shared[0].repository, storage_options={"region": "eu-west-1"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"branch": "nope"}, r"branch .* has 'main', but got 'nope'"),
        ({"tag": "nope"}, r"tag .* has 'v1', but got 'nope'"),
        ({"snapshot": "nope"}, r"snapshot .* but got 'nope'; .* {1} \(.*: second\), {0} \(.*: first\)"),
        ({"snapshot": "VSEZTNYS3AKBVSEZTNY0"}, r"snapshot .* but got 'VSEZTNYS3AKBVSEZTNY0'; .* {1} "),
        ({"as_of": "1999-12-31T12:00"}, r"as_of .* first snapshot of branch 'main'.*but got 1999-12-31 12:00:00 UTC"),
        ({"as_of": "2090", "branch": "nope"}, r"branch .* has 'main', but got 'nope'"),
    ],
    ids=["branch", "tag", "no id", "other id", "as_of", "as_of on a branch"],
)
def test_unknown_versions_name_what_exists(shared: tuple[History, str], options: dict[str, str], expected: str) -> None:
    past, url = shared
    for source in (url, past.repository):
        with pytest.raises(UnknownNameError, match=expected.format(*past.snapshots)):
            opened(source, **options)


def test_many_tags_are_counted(past: History, url: str) -> None:
    for k in range(20):
        past.repository.create_tag(f"w{k:02}", past.snapshots[0])
    with pytest.raises(UnknownNameError, match=r"has 'v1', 'w00', .* 'w08' and 11 more, but"):
        opened(url, tag="nope")


def test_a_repository_without_tags_says_so(tmp_path: Path) -> None:
    repository = create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    with pytest.raises(UnknownNameError, match="which has none, but got 'v1'; choose a branch"):
        opened(repository, tag="v1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"branch": "main", "tag": "v1"}, "one of branch, tag and snapshot.* but got branch and tag"),
        ({"tag": "v1", "as_of": "2020"}, "but got tag and as_of"),
        ({"snapshot": "x", "as_of": "2020"}, "but got snapshot and as_of"),
        ({"branch": 3}, "branch must be a name, but got 3"),
        ({"tag": ""}, "tag must be a name, but got ''"),
        ({"as_of": 2020}, "as_of must be a time, but got 2020"),
        ({"as_of": "yesterday noon"}, "as_of must be a time, but got 'yesterday noon'"),
        ({"as_of": np.datetime64("NaT", "s")}, "as_of must be a time"),
        ({"storage_options": {"region": "x"}}, "storage_options must be empty"),
        ({"virtual": 3}, "virtual must be URL prefixes, but got 3"),
        ({"virtual": ["/data"]}, "virtual must be prefixes of URLs .* but got '/data'; .*file:///"),
        ({"virtual": {"s3://b/": {"acess_key_id": "x"}}}, "'s3://b/', but got acess_key_id; choose .*access_key_id"),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, dict) else "",
)
def test_what_contradicts_itself_is_refused(
    shared: tuple[History, str], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RequestError, match=expected):
        opened(shared[1], **options)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("icechunk://repo/era5", "three slashes.*'icechunk://repo/era5'"),
        ("icechunk:///", "three slashes"),
        ("icechunk+ftp://host/era5", r"icechunk\+s3://bucket/prefix.*but got 'icechunk\+ftp://host/era5'"),
        ("icechunk+s3:///era5", "but got"),
        ("icechunk://me:SECRET@repo/era5", "three slashes.*'icechunk://repo/era5'"),
        ("icechunk+ftp://me:SECRET@host/era5?sig=SECRET", "but got 'icechunk\\+ftp://host/era5'"),
    ],
)
def test_urls_that_name_no_place_are_refused(wrong: str, expected: str) -> None:
    with pytest.raises(RequestError, match=expected) as caught:
        opened(wrong)
    assert "SECRET" not in str(caught.value)


def test_no_repository_is_said_to_be_none(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "plain.zarr")
    for name in ("none", "plain.zarr"):
        with pytest.raises(NotFoundError, match=f"Icechunk repository.*{name}.* none; .*plain Zarr"):
            opened(f"icechunk://{tmp_path}/{name}")
    assert not (tmp_path / "none").exists()


def test_an_empty_snapshot_holds_no_zarr(shared: tuple[History, str]) -> None:
    with pytest.raises((NotZarrError, NotFoundError)):
        opened(shared[1], snapshot=EMPTY)


def test_the_missing_extra_is_named(shared: tuple[History, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icechunk", None)
    with pytest.raises(MissingExtraError, match=r"pip install insitu-xr\[icechunk\]"):
        opened(shared[1])


def test_the_adapter_imports_no_icechunk() -> None:
    script = (
        "import sys, insitu_xr, insitu_xr_adapters.icechunk, insitu_xr_adapters.arraylake\n"
        "insitu_xr_adapters.icechunk.opener.claims('a.zarr')\n"
        "assert not {'icechunk', 'arraylake'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_a_folder_is_claimed_by_what_is_in_it(shared: tuple[History, str], tmp_path: Path) -> None:
    folder = shared[1].removeprefix("icechunk://")
    zarr.create_group(tmp_path / "plain.zarr")
    assert opener.claims(folder)
    assert opener.claims(Path(folder))
    assert not opener.claims(str(tmp_path / "plain.zarr"))
    assert not opener.claims(str(tmp_path / "none"))
    assert not opener.claims(shared[0].repository.storage)
    assert_is(opened(folder), shared[0].datasets[1])


def raw(repository: Any, locations: Iterable[str], checksum: dt.datetime | None = None) -> None:
    """Commit an array whose chunks of four numbers are in other files."""
    session = repository.writable_session("main")
    locations = list(locations)
    group = zarr.create_group(session.store)
    array = group.create_array(
        "t", shape=(4 * len(locations),), chunks=(4,), dtype="f4", compressors=None, dimension_names=["time"]
    )
    assert array.nchunks == len(locations)
    for k, location in enumerate(locations):
        session.store.set_virtual_ref(f"t/c/{k}", location, offset=0, length=16, checksum=checksum)
    session.commit("references")


@pytest.mark.parametrize("saved", [True, False], ids=["container saved", "container not saved"])
@pytest.mark.parametrize("slash", ["/", ""], ids=["slash", "no slash"])
def test_virtual_chunks_are_read_where_allowed(tmp_path: Path, saved: bool, slash: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    values = np.arange(8, dtype="f4")
    values[:4].tofile(outside / "a.bin")
    values[4:].tofile(outside / "b.bin")
    prefix = f"file://{outside}{slash}"
    container = icechunk.VirtualChunkContainer(f"file://{outside}/", icechunk.local_filesystem_store(str(outside)))
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(container)
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    repository = icechunk.Repository.create(storage, config=config)
    raw(repository, [f"file://{outside}/a.bin", f"file://{outside}/b.bin"])
    config.clear_virtual_chunk_containers() if not saved else None
    source = f"icechunk://{tmp_path}/repo" if saved else icechunk.Repository.open(storage, config=config)
    for virtual in (prefix, [prefix], {prefix: None}, {prefix: icechunk.credentials.LocalFileSystemAccess}):
        ds = opened(source, virtual=virtual)
        with ds.insitu.loader(variables=["t"], sample_dim="time", batch_size=3) as loader:
            np.testing.assert_array_equal(np.concatenate([batch["t"] for batch in loader]), values)
            with pickle.loads(pickle.dumps(loader)) as again:
                np.testing.assert_array_equal(np.concatenate([batch["t"] for batch in again]), values)


def virtual_repository(tmp_path: Path) -> str:
    np.arange(4, dtype="f4").tofile(tmp_path / "a.bin")
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{tmp_path}/", store))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")), config=config)
    raw(repository, [f"file://{tmp_path}/a.bin"], checksum=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5))
    return f"icechunk://{tmp_path}/repo"


def test_virtual_chunks_are_not_read_where_nobody_allowed_it(tmp_path: Path) -> None:
    ds = opened(virtual_repository(tmp_path))
    with pytest.raises(Exception, match=rf"authorize|allowed.*{tmp_path}") as caught:
        epoch_of(ds.insitu.loader(variables=["t"], sample_dim="time"))
    explained = opener.explain(caught.value, "it")
    assert isinstance(explained, ForbiddenError)
    assert f"file://{tmp_path}/" in str(explained)
    assert "virtual={" in str(explained)


def test_virtual_coordinates_are_explained_at_opening(tmp_path: Path) -> None:
    url = virtual_repository(tmp_path)
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    session = icechunk.Repository.open(storage).rearrange_session("main")
    session.move("/t", "/time")
    session.commit("a coordinate")
    with pytest.raises(ForbiddenError, match=rf"allowed to be read from file://{tmp_path}/, .*; pass virtual="):
        opened(url)
    assert opened(url, virtual=f"file://{tmp_path}/")["time"].values.tolist() == [0, 1, 2, 3]


def test_a_virtual_file_that_changed_is_refused(tmp_path: Path) -> None:
    ds = opened(virtual_repository(tmp_path), virtual=f"file://{tmp_path}/")
    os.utime(tmp_path / "a.bin", (4e9, 4e9))
    with pytest.raises(OSError, match=r"modified|changed"):
        epoch_of(ds.insitu.loader(variables=["t"], sample_dim="time"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("icechunk+s3://bucket/a/b/", "icechunk+s3://bucket/a/b"),
        ("icechunk+gcs://bucket/a", "icechunk+gs://bucket/a"),
        ("icechunk+az://container/a", "icechunk+az://container/a"),
        ("icechunk+https://me:pass@host/a/?sig=x", "icechunk+https://host/a"),
        ("icechunk+file:///data/a", "icechunk:///data/a"),
        ("icechunk:///data/some%20where", "icechunk:///data/some where"),
    ],
)
def test_a_place_has_one_name_without_secrets(url: str, text: str) -> None:
    assert Place.of(url).text == text


STORAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "s3": ("icechunk+s3://b/p", {"region": "eu-west-1", "access_key_id": "K", "secret_access_key": "S"}, "bucket: b"),
    "s3, obstore": ("icechunk+s3://b/p", {"aws_region": "eu-west-1", "skip_signature": True}, "region: eu-west-1"),
    "gs": ("icechunk+gs://b/p", {"anonymous": True}, "type: GCS"),
    "gs, obstore": ("icechunk+gs://b/p", {"skip_signature": True}, "prefix: p"),
    "az": ("icechunk+az://b/p", {"account": "a", "access_key": "S"}, "account: a"),
    "az, obstore": (
        "icechunk+az://b/p",
        {"account_name": "a", "azure_storage_account_key": "S", "client_options": {"allow_http": True}},
        "container: b|bucket: b",
    ),
    "https": ("icechunk+https://host/p", {"headers": {"authorization": "S"}}, "url: https://host/p"),
    "https, obstore": ("icechunk+https://host/p", {"client_options": {"timeout": "5s"}}, "type: HTTP"),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_options_of_both_icechunk_and_obstore_are_taken(kind: str) -> None:
    url, options, told = STORAGES[kind]
    storage = Place.of(url).storage(options)
    assert any(part in str(storage) for part in told.split("|"))


def test_a_repository_that_somebody_opened_has_the_same_name() -> None:
    for url, options, _ in STORAGES.values():
        assert described(Place.of(url).storage(options))["url"] == url
    assert described(icechunk.in_memory_storage())["kind"] == "icechunk"


def test_a_repository_in_memory_is_opened() -> None:
    repository = create(icechunk.in_memory_storage())
    commit(repository, weather(3), "in memory")
    assert_is(opened(repository), weather(3))


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("icechunk+s3://b/p", {"acces_key_id": "SECRET"}, "s3_storage, but got acces_key_id; choose .*access_key_id"),
        ("icechunk+s3://b/p", {"access_key_id": 5}, "refuses"),
        ("icechunk+az://b/p", {}, "account"),
    ],
)
def test_storage_options_are_checked(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(RequestError, match=expected) as caught:
        opened(url, storage_options=options)
    assert "SECRET" not in str(caught.value)


def test_an_endpoint_of_ones_own_needs_no_more() -> None:
    options = s3_options({"endpoint": "http://localhost:9000"})
    assert options["force_path_style"]
    assert options["allow_http"]
    assert "force_path_style" not in s3_options({"endpoint": "https://s3.example.org"})


def test_an_unreachable_server_is_named() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "access_key_id": "K", "secret_access_key": "S"}
    config = icechunk.RepositoryConfig.default()
    retries = icechunk.StorageRetriesSettings(max_tries=1)
    config.storage = icechunk.StorageSettings(retries=retries)
    with pytest.raises(OpenError, match=r"icechunk\+s3://b/p.*check the endpoint"):
        insitu_xr.open_dataset("icechunk+s3://b/p", storage_options=options, config=config)
