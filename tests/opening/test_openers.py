"""What adapters open: found by scheme or by claim, chained, and told what they lack."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr.errors import MissingExtraError, RequestError
from insitu_xr.opening import openers

PLUGIN = """
import zarr, numpy as np
class Opener:
    name, schemes, extra, options = "toy", ("toy",), "", frozenset({"size"})
    def claims(self, source): return isinstance(source, str) and source.endswith(".toy")
    def open(self, source, *, storage_options, size=3):
        store = zarr.storage.MemoryStore()
        group = zarr.create_group(store)
        group.create_array("a", data=np.arange(size), dimension_names=("x",))
        return store.with_read_only(True), {"kind": "toy", "url": source, "opened_with": sorted(storage_options)}
opener = Opener()
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a distribution with an opener, as far as Python can tell."""
    (tmp_path / "toy_plugin.py").write_text(PLUGIN)
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[insitu_xr.openers]\ntoy = toy_plugin:opener\n")
    monkeypatch.syspath_prepend(tmp_path)
    openers.openers.cache_clear()
    yield tmp_path
    openers.openers.cache_clear()
    sys.modules.pop("toy_plugin", None)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("source", ["toy://a", "toy+s3://a", "a.toy", "s3://bucket/a.toy"])
def test_an_installed_opener_is_found(source: str) -> None:
    ds = insitu_xr.open_dataset(source, size=5, storage_options={"region": "x"})
    assert dict(ds.insitu.source) == {"kind": "toy", "url": source, "opened_with": ["region"]}
    assert ds["a"].values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("plugin")
def test_its_schemes_are_listed_with_ours() -> None:
    with pytest.raises(RequestError, match=r"schemes are file, memory, s3, gs, az, http, https, .*toy"):
        insitu_xr.open_dataset("gopher://a")


@pytest.mark.usefixtures("plugin")
def test_options_of_xarray_reach_xarray_and_others_are_refused() -> None:
    assert list(insitu_xr.open_dataset("toy://a", drop_variables=["a"])) == []
    with pytest.raises(RequestError, match=r"got \['brunch'\]"):
        insitu_xr.open_dataset("toy://a", brunch=1)


@pytest.mark.usefixtures("plugin")
def test_a_zarr_is_not_offered_to_openers(tmp_path: Path) -> None:
    xr.Dataset({"b": ("x", np.arange(2))}).to_zarr(tmp_path / "b.toy", consolidated=False)
    assert list(insitu_xr.open_dataset(tmp_path / "b.toy")) == ["b"]


@dataclass
class Toy:
    """An opener that makes whatever it is told to."""

    made: Any
    name: str = "outer"
    schemes: tuple[str, ...] = ("outer",)
    extra: str = ""
    options: frozenset[str] = frozenset()
    claimed: type = Exception
    calls: list[dict[str, Any]] = field(default_factory=list)

    def claims(self, source: Any) -> bool:
        return isinstance(source, self.claimed)

    def open(self, source: Any, *, storage_options: Mapping[str, Any], **options: Any) -> Any:
        self.calls.append({"source": source, "storage_options": dict(storage_options), **options})
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


class Repository:
    """An object that the inner opener claims."""


def store() -> Any:
    filled = MemoryStore()
    xr.Dataset({"a": ("x", np.arange(2))}).to_zarr(filled, consolidated=False)
    return filled


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Toy]:
    toys: list[Toy] = []
    monkeypatch.setattr(openers, "openers", lambda: tuple(toys))
    return toys


def test_what_an_opener_makes_is_handed_on(registered: list[Toy]) -> None:
    repository = Repository()
    outer = Toy((repository, {"kind": "outer", "url": "outer://a"}), options=frozenset({"token"}))
    facts = {"kind": "inner", "url": "inner://", "snapshot": "S"}
    inner = Toy((store(), facts), "inner", ("inner",), options=frozenset({"branch"}), claimed=Repository)
    registered += [outer, inner]
    ds = insitu_xr.open_dataset("outer://a", branch="main", token="t", storage_options={"k": 1})
    assert outer.calls == [{"source": "outer://a", "storage_options": {"k": 1}, "token": "t"}]
    assert inner.calls == [{"source": repository, "storage_options": {}, "branch": "main"}]
    assert dict(ds.insitu.source) == {"kind": "outer", "url": "outer://a", "snapshot": "S"}


def test_options_that_nobody_on_the_way_takes_are_refused(registered: list[Toy]) -> None:
    registered += [Toy((store(), {})), Toy((store(), {}), "inner", ("inner",), options=frozenset({"branch"}))]
    with pytest.raises(RequestError, match=r"got \['branch'\]"):
        insitu_xr.open_dataset("outer://a", branch="main")


def test_an_object_is_claimed(registered: list[Toy]) -> None:
    registered.append(Toy((store(), {"kind": "inner"}), claimed=Repository))
    assert insitu_xr.open_dataset(Repository()).insitu.source.kind == "inner"
    with pytest.raises(RequestError, match=r"source must be a path.*got complex"):
        insitu_xr.open_dataset(1j)


def test_a_dataset_is_taken_as_it_is(registered: list[Toy]) -> None:
    made = xr.Dataset({"a": 1})
    registered.append(Toy(made))
    assert insitu_xr.open_dataset("outer://a") is made


def test_what_nobody_can_go_on_with_is_an_error_of_the_opener(registered: list[Toy]) -> None:
    registered.append(Toy((Repository(), {})))
    with pytest.raises(TypeError, match="opener 'outer' must make a zarr store, but made a Repository"):
        insitu_xr.open_dataset("outer://a")


def test_a_missing_package_names_the_extra(registered: list[Toy]) -> None:
    registered.append(Toy(ModuleNotFoundError("No module named 'ice'", name="ice"), "Icechunk", extra="icechunk"))
    with pytest.raises(MissingExtraError, match=r"no module 'ice'; pip install insitu-xr\[icechunk\]") as caught:
        insitu_xr.open_dataset("outer://a")
    assert isinstance(caught.value, ImportError)


def test_a_broken_import_of_another_opener_is_its_own_error(registered: list[Toy]) -> None:
    registered.append(Toy(ModuleNotFoundError("No module named 'ice'", name="ice")))
    with pytest.raises(ModuleNotFoundError, match="ice") as caught:
        insitu_xr.open_dataset("outer://a")
    assert type(caught.value) is ModuleNotFoundError


HIDDEN = """
import sys
sys.modules.update({name: None for name in %r})
import insitu_xr
try:
    insitu_xr.open_dataset(%r)
except insitu_xr.InsituError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("extra", "source", "modules"),
    [
        ("icechunk", "icechunk+s3://bucket/repo", ["icechunk"]),
        ("arraylake", "arraylake://org/repo", ["arraylake"]),
        ("netcdf", "https://host.invalid/a.nc", ["virtualizarr", "h5py"]),
    ],
)
def test_a_missing_extra_says_what_to_install(extra: str, source: str, modules: list[str]) -> None:
    run = [sys.executable, "-c", HIDDEN % (modules, source)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("MissingExtraError"), done.stdout
    assert f"pip install insitu-xr[{extra}]" in done.stdout


def test_our_openers_import_nothing_heavy() -> None:
    heavy = ("icechunk", "arraylake", "virtualizarr", "h5py", "dask", "fsspec.implementations.reference")
    script = (
        "import sys\nfrom insitu_xr.opening.openers import openers\nprint([o.name for o in openers()])\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    names, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert all(name in names for name in ("icechunk", "arraylake", "netcdf"))
