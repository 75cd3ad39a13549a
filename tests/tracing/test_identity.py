"""Names of stored arrays: the same for the same place, and without secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from insitu_xr.testing import CountingStore
from insitu_xr.tracing import trace
from insitu_xr.tracing.identity import identity, location

if TYPE_CHECKING:
    from zarr.abc.store import Store


def array_in(store: Store) -> zarr.Array[Any]:
    return zarr.create_array(store, name="t2m", shape=(4,), chunks=(2,), dtype="f4", overwrite=True)


def test_a_path_has_one_name_however_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array_in(LocalStore("a.zarr"))
    stores = [
        LocalStore(tmp_path / "a.zarr"),
        LocalStore("a.zarr"),
        LocalStore("b/../a.zarr"),
        CountingStore(LocalStore("a.zarr")),
        FsspecStore.from_url(f"file://{tmp_path}/a.zarr"),
    ]
    assert {location(zarr.open_array(store, path="t2m")) for store in stores} == {f"file://{tmp_path}/a.zarr/t2m"}


def test_stores_in_memory_differ() -> None:
    first, second = MemoryStore(), MemoryStore()
    stores = [first, second, CountingStore(first), ObjectStore(obstore.store.MemoryStore())]
    a, b, wrapped, other = (location(array_in(store)) for store in stores)
    assert a == wrapped
    assert len({a, b, other}) == 3


def test_memory_of_another_process_has_another_name() -> None:
    made = "zarr.create_array('memory://same', name='t', shape=(1,), dtype='f4', overwrite=True)"
    run = [
        sys.executable,
        "-c",
        f"import zarr; from insitu_xr.tracing.identity import location; print(location({made}))",
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout.strip()
    here = location(zarr.create_array("memory://same", name="t", shape=(1,), dtype="f4", overwrite=True))
    assert there.startswith("memory://")
    assert here.startswith("memory://")
    assert here != there


def test_credentials_of_a_bucket_are_left_out() -> None:
    store = obstore.store.S3Store(
        "bucket", prefix="era5.zarr", access_key_id="KEY", secret_access_key="SECRET", region="eu-west-1"
    )
    array = array_in(MemoryStore())
    place = location(zarr.Array(zarr.AsyncArray(array.metadata, zarr.storage.StorePath(ObjectStore(store), "t2m"))))
    assert "bucket" in place
    assert "era5.zarr" in place
    assert "KEY" not in place
    assert "SECRET" not in place


def test_many_stores_have_a_short_name(tmp_path: Path) -> None:
    years = []
    for year in range(2000, 2020):
        ds = xr.Dataset({"t": ("time", np.zeros(3))}, {"time": np.arange(3) + 10 * year})
        ds.to_zarr(tmp_path / f"{year}.zarr", consolidated=False)
        years.append(xr.open_zarr(tmp_path / f"{year}.zarr", consolidated=False))
    found = identity(trace(xr.concat(years, "time")["t"]))
    assert found["count"] == 20
    assert [Path(a).parent.name for a in found["arrays"]] == ["2000.zarr", "2019.zarr"]
    other = identity(trace(xr.concat([years[0], years[2], years[1], *years[3:]], "time")["t"]))
    assert other["digest"] != found["digest"]
    assert len(str(found)) < 500


def test_what_is_not_stored_has_a_kind_alone() -> None:
    assert identity(trace(xr.DataArray(np.zeros(3), dims="x", name="t"))) == {"kind": "memory"}
