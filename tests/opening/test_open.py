"""One call opens what is stored locally, in every form of Zarr; whatever it opens reads as xarray reads it."""

from __future__ import annotations

import json
import re
import shutil
import traceback
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
import xarray as xr
import zarr
from obstore.store import LocalStore as ObstoreLocal
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

import insitu_xr
from insitu_xr.errors import InsituError, NotFoundError, NotZarrError, RequestError, UnknownNameError
from insitu_xr.testing import CountingStore
from tests.integration.matrix import CHECKS, NAMES, check_counting, weather, write

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("local") / "t2m.zarr")


def in_memory(folder: Path) -> str:
    url = f"memory://{folder.parent.name}"
    target = zarr.storage.StorePath(FsspecStore.from_url(url))
    for file in folder.rglob("*"):
        if file.is_file():
            key = file.relative_to(folder).as_posix()
            zarr.core.sync.sync(target.store.set(key, zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes())))
    return url


WAYS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "path": lambda folder: (folder, {}),
    "text": lambda folder: (str(folder), {}),
    "file url": lambda folder: (f"file://{folder}", {}),
    "file url by fsspec": lambda folder: (f"file://{folder}", {"backend": "fsspec"}),
    "memory url": lambda folder: (in_memory(folder), {}),
    "local store": lambda folder: (LocalStore(folder), {}),
    "memory store": lambda folder: (memory_store(folder), {}),
    "obstore": lambda folder: (ObjectStore(ObstoreLocal(folder)), {}),
    "group": lambda folder: (zarr.open_group(folder, mode="r"), {}),
}


def memory_store(folder: Path) -> MemoryStore:
    files = {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    return MemoryStore({key: zarr.core.buffer.cpu.Buffer.from_bytes(content) for key, content in files.items()})


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(folder: Path, way: str, name: str) -> None:
    source, options = WAYS[way](folder)
    ds = insitu_xr.open_dataset(source, **options)
    xr.testing.assert_identical(ds.compute(), xr.open_zarr(folder, chunks=None).compute())
    assert all(variable.chunks is None for variable in ds.variables.values())
    CHECKS[name](ds)


@pytest.mark.parametrize("way", ["local store", "memory store", "obstore"])
def test_each_chunk_is_read_once(folder: Path, way: str) -> None:
    check_counting(WAYS[way](folder)[0])


def test_a_local_path_stays_one_that_is_read_in_threads(folder: Path) -> None:
    plan = insitu_xr.open_dataset(folder).insitu.plan(variables=NAMES)
    assert not any(spec.asynchronous for spec in plan.request.variables.values())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_formats(tmp_path: Path, zarr_format: Any, consolidated: bool) -> None:
    weather().to_zarr(tmp_path / "a.zarr", zarr_format=zarr_format, consolidated=consolidated)
    xr.testing.assert_identical(insitu_xr.open_dataset(tmp_path / "a.zarr").compute(), weather())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_stale_consolidated_metadata_are_taken_as_xarray_takes_them(tmp_path: Path, zarr_format: Any) -> None:
    path = tmp_path / "a.zarr"
    weather()[["t2m"]].to_zarr(path, zarr_format=zarr_format, consolidated=True)
    # Longer by ten steps, and with one more array, of which the consolidated metadata know nothing.
    for name in ("time", "t2m"):
        array = zarr.open_array(path, path=name, mode="r+")
        array.append(np.asarray(array[:10]) + (1000 if name == "time" else 0))
    zarr.create_array(
        path,
        name="later",
        data=np.arange(3),
        dimension_names=("n",) if zarr_format == 3 else None,
        zarr_format=zarr_format,
        attributes={"_ARRAY_DIMENSIONS": ["n"]},
    )
    ds, theirs = insitu_xr.open_dataset(path), xr.open_zarr(path, chunks=None)
    xr.testing.assert_identical(ds.compute(), theirs.compute())
    assert ds.sizes["time"] == 30
    fresh = insitu_xr.open_dataset(path, consolidated=False)
    assert fresh.sizes["time"] == 40
    assert "later" in fresh
    with fresh.insitu.loader(variables=["t2m"], batch_size=40) as loader:
        np.testing.assert_array_equal(next(iter(loader))["t2m"], fresh["t2m"].values)


def test_options_of_xarray_are_passed_on(folder: Path) -> None:
    ds = insitu_xr.open_dataset(folder, mask_and_scale=False, drop_variables=["z"])
    assert ds["t2m"].dtype == "int16"
    assert "z" not in ds


def test_dask_comes_only_when_asked_for(folder: Path) -> None:
    assert insitu_xr.open_dataset(folder, chunks={})["t2m"].chunks is not None


def test_a_zip_file(tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "a"), "zip", write(tmp_path / "a.zarr"))
    CHECKS["equality"](insitu_xr.open_dataset(packed))


# -- groups and arrays ----------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["consolidated", "not consolidated"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "tree.zarr"
    xr.DataTree.from_dict({"/": xr.Dataset({"a": 1}), "/coarse/day": weather()}).to_zarr(
        path, zarr_format=2, consolidated=request.param
    )
    return path


def test_a_group(tree: Path) -> None:
    expected = weather()
    for ds in (
        insitu_xr.open_dataset(tree, group="coarse/day"),
        insitu_xr.open_dataset(tree, group="/coarse/day"),
        insitu_xr.open_dataset(LocalStore(tree), group="coarse/day"),
        insitu_xr.open_dataset(zarr.open_group(tree, mode="r"), group="coarse/day"),
        insitu_xr.open_dataset(zarr.open_group(tree, mode="r", path="coarse"), group="day"),
    ):
        xr.testing.assert_identical(ds.compute(), expected)
        with ds.insitu.loader(variables=["t2m"], batch_size=30) as loader:
            np.testing.assert_array_equal(next(iter(loader))["t2m"], expected["t2m"].values)


def test_an_unknown_group_lists_those_there_are(tree: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"group must be one of the store's, but got 'fine'; it has \['coarse'\]"
    ):
        insitu_xr.open_dataset(tree, group="fine")


def test_a_group_below_a_folder_that_is_none(tmp_path: Path) -> None:
    weather().to_zarr(tmp_path / "outer" / "inner.zarr", consolidated=False)
    assert insitu_xr.open_dataset(tmp_path / "outer", group="inner.zarr").sizes["time"] == 30
    with pytest.raises(NotZarrError, match="outer"):
        insitu_xr.open_dataset(tmp_path / "outer")


@pytest.mark.parametrize("node", ["ds", "to_dataset", "dataset"])
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_node_of_a_tree(tmp_path: Path, node: str, name: str) -> None:
    write(tmp_path / "tree.zarr", group="fine")
    opened = xr.open_datatree(tmp_path / "tree.zarr", engine="zarr", chunks=None)["fine"]
    ds = opened.to_dataset() if node == "to_dataset" else getattr(opened, node)
    assert ds.insitu.plan(variables=NAMES).request.variables["t2m"].kind == "stored"
    CHECKS[name](ds)


def test_an_array_comes_with_the_coordinates_of_its_group(folder: Path) -> None:
    array = zarr.open_array(folder, path="t2m", mode="r")
    for source in (array, str(folder / "t2m")):
        ds = insitu_xr.open_dataset(source)
        if source is array:
            xr.testing.assert_identical(ds.compute(), xr.open_zarr(folder, chunks=None)[["t2m"]].compute())
        with ds.insitu.loader(sample_dim="time", variables=list(ds.data_vars), batch_size=30) as loader:
            (name,) = ds.data_vars
            np.testing.assert_array_equal(next(iter(loader))[str(name)], ds[name].values)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_without_a_group(tmp_path: Path, zarr_format: Any) -> None:
    named = (
        {"dimension_names": ("time", "x")} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["time", "x"]}}
    )
    array = zarr.create_array(tmp_path / "a", shape=(6, 2), chunks=(2, 2), dtype="f4", zarr_format=zarr_format, **named)
    array[...] = np.arange(12).reshape(6, 2)
    for source in (array, tmp_path / "a"):
        ds = insitu_xr.open_dataset(source)
        with ds.insitu.loader(variables=["values"], sample_dim="time", batch_size=6) as loader:
            np.testing.assert_array_equal(next(iter(loader))["values"], array[...])


def test_an_array_without_names_of_dimensions(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(6, 2), chunks=(2, 2), dtype="f4")
    assert insitu_xr.open_dataset(array)["values"].dims == ("dim_0", "dim_1")


# -- refusals -------------------------------------------------------------------------------------------------------


def something(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("hello")
    return tmp_path / "notes"


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], type[InsituError], str]] = {
    "nothing there": (
        lambda p: p / "nope.zarr",
        {},
        NotFoundError,
        r"nope\.zarr', where there is none; check the spelling",
    ),
    "nothing in memory": (lambda p: "memory://nope-at-all", {}, NotFoundError, "memory://nope-at-all"),
    "not a zarr": (something, {}, NotZarrError, r"notes', which has no zarr\.json, \.zgroup or \.zmetadata"),
    "a file": (lambda p: something(p) / "readme.txt", {}, NotZarrError, r"readme\.txt"),
    "unknown scheme": (lambda p: "gopher://host/a.zarr", {}, RequestError, r"gopher://host/a\.zarr.*s3, gs, az, http"),
    "unknown to fsspec": (
        lambda p: "gopher://h/a",
        {"backend": "fsspec"},
        RequestError,
        "scheme must be known to fsspec",
    ),
    "unknown backend": (
        lambda p: p,
        {"backend": "boto"},
        RequestError,
        "backend must be 'obstore' or 'fsspec'.*'boto'",
    ),
    "no source": (lambda p: 42, {}, RequestError, "source must be a path, a URL, a zarr store.*got int"),
    "options of nobody": (
        lambda p: write(p / "a"),
        {"brunch": "main"},
        RequestError,
        r"xarray\.open_zarr.*\['brunch'\]",
    ),
    "options for a folder": (
        lambda p: write(p / "a"),
        {"storage_options": {"region": "x"}},
        RequestError,
        r"storage_options must be given for a remote URL, but got \['region'\]",
    ),
    "options for a store": (
        lambda p: LocalStore(write(p / "a")),
        {"storage_options": {"region": "x"}},
        RequestError,
        r"storage_options must be given for a remote URL.*LocalStore",
    ),
    "no account": (lambda p: "az://container/a.zarr", {}, RequestError, "storage_options must have account_name"),
    "not an option of http": (
        lambda p: "https://host.invalid/a.zarr",
        {"storage_options": {"access_key_id": "x"}},
        RequestError,
        r"those of obstore for https://, but got \['access_key_id'\]",
    ),
    "an option of the connection": (
        lambda p: "s3://bucket/a.zarr",
        {"storage_options": {"allow_http": True}},
        RequestError,
        r"in client_options, but got \['allow_http'\] among the others; write client_options=\{'allow_http': \.\.\.\}",
    ),
    "a value that cannot be read": (
        lambda p: "s3://bucket/a.zarr",
        {"storage_options": {"client_options": {"timeout": "SECRET"}}},
        RequestError,
        r"values that obstore can read, .*failed to parse '\*\*\*' as Duration",
    ),
    "not an option of a file system": (
        lambda p: "s3://bucket/a.zarr",
        {"storage_options": {"kee": "SECRET"}, "backend": "fsspec"},
        RequestError,
        "storage_options must be those of the file system.*'kee'",
    ),
    "options that are no mapping": (
        lambda p: "s3://bucket/a.zarr",
        {"storage_options": "region=SECRET"},
        RequestError,
        "storage_options must be a mapping of names to values, but got a str",
    ),
    "a group that is no name": (lambda p: write(p / "a"), {"group": 3}, RequestError, "group must be a path.*got 3"),
    "a group elsewhere": (lambda p: write(p / "a"), {"group": "../b"}, RequestError, r"group must be a path.*'\.\./b'"),
    "no name": (lambda p: " ", {}, RequestError, "source must be a path, a URL.*but got ' '"),
    "two slashes": (lambda p: "file://a.zarr", {}, RequestError, "three slashes before a local path.*file://a.zarr"),
    "another host": (lambda p: f"file://host{write(p / 'a')}", {}, RequestError, "three slashes before a local path"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refused(tmp_path: Path, case: str) -> None:
    source, options, error, pattern = REFUSED[case]
    with pytest.raises(error) as caught:
        insitu_xr.open_dataset(source(tmp_path), **options)
    assert type(caught.value) is error
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert "SECRET" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None or "SECRET" not in str(caught.value.__cause__)


@pytest.mark.parametrize("way", ["~", "PurePath", "blank", "%20", "FILE", "localhost", "slash", "relative"])
def test_ways_to_write_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    path = write(tmp_path / "a b.zarr")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ways: dict[str, Any] = {
        "~": "~/a b.zarr",
        "PurePath": PurePath(path),
        "blank": f"file://{path}",
        "%20": f"file://{quote(str(path))}",
        "FILE": f"FILE://{path}",
        "localhost": f"file://localhost{path}",
        "slash": f"{path}//",
        "relative": "./a b.zarr",
    }
    assert insitu_xr.open_dataset(ways[way]).insitu.source.url == f"file://{path}"


@pytest.mark.parametrize("consolidated", [True, False])
def test_a_group_that_is_an_array(tmp_path: Path, consolidated: bool) -> None:
    path = tmp_path / "a.zarr"
    weather().to_zarr(path, consolidated=consolidated, zarr_format=2)
    assert list(insitu_xr.open_dataset(path, group="t2m").data_vars) == ["t2m"]


def test_a_broken_document_is_not_taken_for_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr")
    (path / ".zmetadata").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        insitu_xr.open_dataset(path)


def test_a_wrapper_is_kept(folder: Path) -> None:
    store = CountingStore(LocalStore(folder))
    ds = insitu_xr.open_dataset(store)
    store.reset()
    with ds.insitu.loader(variables=["t2m"]) as loader:
        next(iter(loader))
    assert store.data_gets
