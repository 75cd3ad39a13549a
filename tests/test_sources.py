"""What a dataset is stored in: one name however it is opened, evidence of the version, and no secrets."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
from obstore.store import LocalStore as ObstoreLocal
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore

import insitu_xr
from insitu_xr import sources
from insitu_xr.plan.manifest import Manifest
from insitu_xr.sources import Source, note, place_of, source_of, without_secrets

ALLOW: Any = {"allow_http": True}


def write(path: Path, values: int = 0) -> Path:
    times = np.arange(12).astype("M8[D]").astype("M8[ns]")
    xr.Dataset({"t2m": ("time", np.arange(12.0) + values)}, {"time": times}).to_zarr(path, mode="w", consolidated=False)
    return path


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:pass@host/a.zarr", "https://host/a.zarr"),
        ("https://account.blob/a.zarr?sv=1&sig=SECRET", "https://account.blob/a.zarr"),
        ('object_store://HTTPStore("https://u:p@h/x?sig=abc")/t2m', 'object_store://HTTPStore("https://h/x")/t2m'),
        ("s3://bucket/a@b.zarr", "s3://bucket/a@b.zarr"),
        ("https://host/a.zarr#token=SECRET and b#c", "https://host/a.zarr and b#c"),
    ],
)
def test_users_and_queries_are_left_out(url: str, expected: str) -> None:
    assert without_secrets(url) == expected


def test_zip_files_are_told_apart_wherever_they_are_opened_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        shutil.make_archive(str(tmp_path / name), "zip", write(tmp_path / f"{name}.zarr"))
    monkeypatch.chdir(tmp_path)
    source = insitu_xr.open_dataset("a.zip").insitu.source
    assert source.url == f"file://{tmp_path}/a.zip"
    assert set(source.version) == {"mtime", "size"}
    chained = [insitu_xr.open_dataset(f"zip::file://{tmp_path}/{name}.zip", backend="fsspec") for name in ("a", "b")]
    assert [ds.insitu.source.url for ds in chained] == [f"zip://::{tmp_path}/{name}.zip" for name in ("a", "b")]


KEYS: Any = {"access_key_id": "KEY", "secret_access_key": "SECRET", "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (S3Store("bucket", prefix="a/era5.zarr", **KEYS), "s3://bucket/a/era5.zarr"),
        (S3Store("bucket", **KEYS), "s3://bucket"),
        (GCSStore("bucket", prefix="era5.zarr"), "gs://bucket/era5.zarr"),
        (AzureStore("box", prefix="era5.zarr", account_name="me", account_key="U0VDUkVU"), "az://box/era5.zarr"),
        (HTTPStore.from_url("https://me:SECRET@host/era5.zarr/?sig=SECRET"), "https://host/era5.zarr"),
        (ObstoreLocal("/tmp"), "file:///tmp"),
    ],
    ids=["s3", "s3 bucket", "gs", "az", "https", "file"],
)
def test_places_of_object_stores(store: Any, expected: str) -> None:
    store = ObjectStore(store)
    assert place_of(store).rstrip("/") == expected
    assert source_of(store).url == place_of(WrapperStore(store))
    assert "SECRET" not in repr(source_of(store))


def test_the_same_bucket_has_one_name_through_fsspec() -> None:
    pytest.importorskip("s3fs")
    options = {"key": "KEY", "secret": "SECRET", "client_kwargs": {"endpoint_url": "http://localhost:1"}}
    store = FsspecStore.from_url("s3://bucket/era5.zarr", storage_options=options, read_only=True)
    assert dict(source_of(store)) == {"kind": "zarr", "url": "s3://bucket/era5.zarr", "endpoint": "http://localhost:1"}


def test_endpoints_and_accounts_are_shown() -> None:
    s3 = ObjectStore(S3Store("b", endpoint="http://me:SECRET@localhost:1", client_options=ALLOW, **KEYS))
    assert source_of(s3)["endpoint"] == "http://localhost:1"
    assert source_of(ObjectStore(AzureStore("box", account_name="me", account_key="U0VDUkVU")))["account"] == "me"


def test_a_local_store_shows_the_time_and_size_of_its_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr")
    os.utime(path / "zarr.json", (1e9, 1e9 + 0.5))
    source = insitu_xr.open_dataset(path).insitu.source
    assert source.url == f"file://{path}"
    assert source.version == {
        "mtime": "2001-09-09T01:46:40.500+00:00",
        "size": (path / "zarr.json").stat().st_size,
    }
    assert repr(source).splitlines()[:2] == ["<insitu_xr.Source>", "  kind   zarr"]
    json.dumps(dict(source))
    assert insitu_xr.open_dataset(f"file://{path}", backend="fsspec").insitu.source == source


def test_it_is_the_same_after_selecting_and_for_one_variable(tmp_path: Path) -> None:
    ds = insitu_xr.open_dataset(write(tmp_path / "a.zarr"))
    assert ds.isel(time=slice(3)).rename(t2m="t").insitu.source == ds.insitu.source
    assert ds["t2m"].insitu.source == ds.insitu.source
    assert pickle.loads(pickle.dumps(ds)).insitu.source == ds.insitu.source


def test_several_stores(tmp_path: Path) -> None:
    parts = [xr.open_zarr(write(tmp_path / f"{k}.zarr"), consolidated=False) for k in range(2)]
    source = xr.concat(
        [parts[0], parts[1].assign_coords(time=parts[1].time + np.timedelta64(50, "D"))], "time"
    ).insitu.source
    assert source.kind == "several"
    assert source.url == f"file://{tmp_path}/0.zarr and 1 more"
    assert [each.url for each in source["sources"]] == [f"file://{tmp_path}/{k}.zarr" for k in range(2)]


def test_what_is_in_memory_or_read_by_another_backend(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": ("time", np.arange(3.0))})
    assert ds.insitu.source == Source(kind="memory")
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4") as opened:
        assert opened.insitu.source.kind != "zarr"


def test_what_an_opener_knows_is_kept_as_long_as_the_store() -> None:
    store = MemoryStore()
    note(WrapperStore(store), Source(kind="icechunk", url="icechunk:///repo", snapshot="S"))
    assert source_of(store).snapshot == "S"
    key = id(store)
    assert key in sources._noted
    del store
    gc.collect()
    assert key not in sources._noted


def test_evidence_of_a_missing_date_is_left_out() -> None:
    assert sources.evidence_of({"e_tag": None, "last_modified": dt.datetime.fromtimestamp(0, dt.UTC), "size": 3}) == {
        "size": 3
    }


# -- manifests -------------------------------------------------------------------------------------------------------


def split(path: Path) -> Manifest:
    made: Manifest = insitu_xr.open_dataset(path).insitu.split(fractions=(0.5, 0.5))
    return made


def test_a_manifest_of_another_place_is_refused(tmp_path: Path) -> None:
    manifest = split(write(tmp_path / "a.zarr"))
    with pytest.raises(insitu_xr.InsituError, match=r"a\.zarr/t2m, where the dataset has .*b\.zarr/t2m"):
        insitu_xr.open_dataset(write(tmp_path / "b.zarr")).insitu.plan(
            manifest=manifest, split="train", variables=["t2m"]
        )


def test_evidence_of_another_version_is_kept_and_refuses_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr")
    os.utime(path / "zarr.json", (1e9, 1e9))
    manifest = Manifest.from_json(split(path).to_json())
    write(path, values=1)
    ds = insitu_xr.open_dataset(path)
    assert ds.insitu.plan(manifest=manifest, split="train", variables=["t2m"]).anchors_kept == 6
    (version,) = manifest.source["t2m"]["versions"]
    assert version["mtime"] == "2001-09-09T01:46:40.000+00:00" != ds.insitu.source["mtime"]


def sourced(*, url: str, **version: Any) -> dict[str, Any]:
    return {"t2m": {"kind": "stored", "arrays": [f"{url}/t2m"], "versions": [version]}}


def test_another_snapshot_at_the_same_place_warns() -> None:
    manifest = Manifest(sourced(url="icechunk:///repo", snapshot="OLD"), (), (), ())
    with pytest.warns(
        UserWarning, match="'t2m' was of snapshot OLD, where the dataset is of NEW; the labels are the same"
    ):
        manifest.check_source(sourced(url="icechunk:///repo", snapshot="NEW"))


def test_the_same_snapshot_passes_whatever_its_place_is_called() -> None:
    Manifest(sourced(url="icechunk:///repo", snapshot="S"), (), (), ()).check_source(
        sourced(url="icechunk:", snapshot="S")
    )


def test_changes_that_are_not_committed_have_no_exact_version() -> None:
    manifest = Manifest(sourced(url="icechunk:///repo", snapshot="S", uncommitted="1"), (), (), ())
    with pytest.raises(insitu_xr.InsituError, match="must be made on the store of this dataset"):
        manifest.check_source(sourced(url="icechunk:///other", snapshot="S", uncommitted="1"))


def test_a_bare_icechunk_store_is_known_by_its_snapshot(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    write_to = xr.Dataset({"t2m": ("time", np.arange(3.0))})
    write_to.to_zarr(session.store, consolidated=False)
    pending = xr.open_zarr(session.store, consolidated=False, chunks=None).insitu.source
    snapshot = session.commit("first")
    ds = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    assert dict(ds.insitu.source) == {"kind": "icechunk", "url": "icechunk:", "snapshot": snapshot}
    assert "uncommitted" in pending
    array = zarr.open_array(LocalStore(tmp_path / "x"), mode="w", shape=(1,), dtype="f4")
    assert source_of(array.store).kind == "zarr"
