"""``import insitu_xr`` stays light: no framework, and little more time than what it stands on."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import pytest

FRAMEWORKS = ("torch", "jax", "icechunk", "dask", "earth2studio", "arraylake")
ROUNDS = 5


def loaded_by(statement: str, modules: tuple[str, ...]) -> set[str]:
    """Tell which of ``modules`` a fresh interpreter has loaded after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sorted(set({modules!r}) & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(run.stdout.split())


def seconds_of(statement: str) -> float:
    """Time ``statement`` in a fresh interpreter, without the start of the interpreter itself.

    Processor time, because what other processes do on the same machine must not fail a test.
    """
    script = f"import time\nstart = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return float(run.stdout)


def time_ratio(statement: str, reference: str, rounds: int = ROUNDS) -> float:
    """Compare the median times of two statements, run in turns after one of each that fills the file cache."""
    seconds_of(statement), seconds_of(reference)
    pairs = [(seconds_of(statement), seconds_of(reference)) for _ in range(rounds)]
    return median(first for first, _ in pairs) / median(second for _, second in pairs)


def test_import_loads_no_framework() -> None:
    assert loaded_by("import insitu_xr", FRAMEWORKS) == set()


@pytest.mark.parametrize("framework", ["dask", "torch"])
def test_the_check_sees_a_framework(framework: str) -> None:
    pytest.importorskip(framework)
    assert framework in loaded_by(f"import {framework}", FRAMEWORKS)


def test_import_takes_less_than_half_more_than_xarray_and_zarr() -> None:
    assert time_ratio("import insitu_xr", "import xarray, zarr") < 1.5


def test_the_ratio_sees_a_slow_import() -> None:
    slow = "import xarray, zarr\nuntil = 2 * time.process_time()\nwhile time.process_time() < until: pass"
    assert time_ratio(slow, "import xarray, zarr", rounds=1) > 1.5
