"""What others add by entry points: found by name, imported when asked for, and told of when it lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr  # noqa: F401
from insitu_xr.errors import MissingExtraError, UnknownNameError

MODULE = '''
class Shapes:
    """Sizes of a dataset."""

    def __init__(self, ds):
        self.sizes = dict(ds.sizes)


def doubled(ds, factor=2, *, name):
    """Multiply one variable."""
    return ds[name] * factor


def wrapped(content, **options):
    return content, options


def greet(who: str) -> None:
    """Greet."""
    print("hello", who)
'''

ENTRY_POINTS = """
[insitu_xr.methods]
shapes = planted_insitu:Shapes
doubled = planted_insitu:doubled
lacking = planted_lacking [extra]

[insitu_xr.adapters]
planted = planted_insitu:wrapped

[insitu_xr.dataset_adapters]
planted = planted_insitu:wrapped

[insitu_xr.commands]
greet = planted_insitu:greet
lacking = planted_lacking [extra]
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution on the path, as pip would leave it."""
    (tmp_path / "planted_insitu.py").write_text(MODULE)
    (tmp_path / "planted_lacking.py").write_text("import no_such_package_at_all")
    info = tmp_path / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("planted_insitu", "planted_lacking"):
        sys.modules.pop(name, None)


@pytest.fixture
def ds() -> xr.Dataset:
    return xr.Dataset({"t2m": ("time", np.arange(3.0))})


@pytest.mark.usefixtures("planted")
def test_a_function_becomes_a_method_and_a_class_a_namespace(ds: xr.Dataset) -> None:
    xr.testing.assert_identical(ds.insitu.doubled(3, name="t2m"), ds["t2m"] * 3)
    assert ds.insitu.shapes.sizes == {"time": 3}
    assert ds.insitu.doubled.__doc__ == "Multiply one variable."
    assert {"doubled", "shapes", "loader", "to"} <= set(dir(ds.insitu))


@pytest.mark.usefixtures("planted")
def test_frameworks_take_loaders_and_datasets(ds: xr.Dataset) -> None:
    with ds.insitu.loader(variables=["t2m"], sample_dim="time") as loader:
        assert loader.to("planted", a=1) == (loader, {"a": 1})
    assert ds.insitu.to("planted", b=2)[1] == {"b": 2}
    with pytest.raises(UnknownNameError, match=r"framework must be one of \[.*planted.*\], but got 'abacus'"):
        ds.insitu.to("abacus")


@pytest.mark.usefixtures("planted")
def test_what_lacks_a_package_says_what_to_install(ds: xr.Dataset) -> None:
    with pytest.raises(MissingExtraError, match=r"'lacking'.*no_such_package_at_all.*pip install insitu-xr\[extra\]"):
        ds.insitu.lacking()


def test_an_unknown_name_is_no_attribute(ds: xr.Dataset) -> None:
    assert not hasattr(ds.insitu, "nothing_of_the_kind")
    with pytest.raises(AttributeError, match=r"ds\.insitu has no attribute 'lodaer'"):
        _ = ds.insitu.lodaer


@pytest.mark.usefixtures("planted")
def test_commands_join_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from insitu_xr.cli import commands, main

    monkeypatch.setattr(commands.app, "registered_commands", [*commands.app.registered_commands])
    for arguments, code, said in [
        (["greet", "you"], 0, "hello you"),
        (["lacking", "a", "--b", "c"], 1, "pip install insitu-xr[extra]"),
    ]:
        monkeypatch.setattr(sys, "argv", ["insitu-xr", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        shown: Any = capsys.readouterr()
        assert left.value.code == code
        assert said in shown.out + shown.err


def test_entry_points_of_this_distribution_load() -> None:
    from importlib.metadata import distribution

    ours = [e for e in distribution("insitu-xr").entry_points if e.group.startswith("insitu_xr.")]
    assert ours
    assert all(e.attr for e in ours)
