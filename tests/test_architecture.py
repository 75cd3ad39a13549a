"""Rules on the shape of the code that no linter knows. Which layer may import which is in pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "insitu_xr", ROOT / "adapters" / "insitu_xr_adapters")
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
CHECKED = sorted([*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])

LINES_CAP = 600
LINES_AIM = 300
MEDIAN_FUNCTION_LINES = 14
LONG_FUNCTION_LINES = 60
PUBLIC_NAMES_CAP = 12
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Give the name and the length, docstring left out, of every function in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                length -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.name, length


def public_names(source: str) -> list[str]:
    """Read ``__all__`` of a module from its source, so that nothing is imported."""
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


@pytest.mark.parametrize("path", CHECKED, ids=name_of)
def test_no_module_is_longer_than_the_cap(path: Path) -> None:
    assert lines_of(path) <= LINES_CAP, f"{name_of(path)} must have at most {LINES_CAP} lines; split it by what it does"


def test_nine_modules_in_ten_stay_within_the_aim() -> None:
    longer = [name_of(path) for path in MODULES if lines_of(path) > LINES_AIM]
    assert len(longer) <= len(MODULES) / 10, f"longer than {LINES_AIM} lines: {longer}"


def test_functions_are_short() -> None:
    lengths = [length for path in MODULES for _, length in functions_of(path)]
    assert median(lengths) <= MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_function_is_long(path: Path) -> None:
    long = {name: length for name, length in functions_of(path) if length > LONG_FUNCTION_LINES}
    assert not long, f"functions must have at most {LONG_FUNCTION_LINES} lines without their docstring, but got {long}"


@pytest.mark.parametrize("path", CHECKED, ids=name_of)
def test_a_module_is_named_for_what_it_does(path: Path) -> None:
    assert path.stem not in VAGUE_NAMES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_folder_of_modules_is_a_package(path: Path) -> None:
    assert (path.parent / "__init__.py").exists(), f"{name_of(path.parent)} must have an __init__.py to be in the wheel"


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_the_package_ships_its_types(package: Path) -> None:
    assert (package / "py.typed").exists()


def test_the_public_surface_is_small_and_documented() -> None:
    names = public_names((ROOT / "insitu_xr" / "__init__.py").read_text(encoding="utf-8"))
    reference = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert 0 < len(names) <= PUBLIC_NAMES_CAP
    assert [name for name in names if not name.startswith("__") and name not in reference] == []


def test_public_names_are_read_from_the_source() -> None:
    assert public_names('__all__ = ["a", "b"]') == ["a", "b"]
    assert public_names('__all__: list[str] = ["a"]') == ["a"]
    assert public_names("a = 1") == []


def test_function_lengths_leave_docstrings_out(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')
    assert list(functions_of(path)) == [("f", 2)]


def test_every_extra_is_part_of_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.removeprefix(f"{project['name']}[").removesuffix("]").split(",")
    assert sorted(named) == sorted(set(extras) - {"all"})


def test_changes_have_names_that_towncrier_reads() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in tool["type"]}
    fragments = [path for path in (ROOT / tool["directory"]).glob("*.md") if path.name != "README.md"]
    wrong = [path.name for path in fragments if path.name.split(".")[-2] not in kinds]
    assert not wrong, f"a fragment must be named <issue or +word>.<{'|'.join(sorted(kinds))}>.md, but got {wrong}"
