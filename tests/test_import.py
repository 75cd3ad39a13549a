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


def time_ratio(statement: str, reference: str, rounds: int = ROUNDS) -> float:
    """Compare the time of both statements with that of the reference alone, as the median of fresh interpreters.

    The reference comes first, and what it has imported is not imported again: the two times are of one process, so
    what slows that down counts for both. Processor time, because what other processes do must not fail a test.
    """
    times = "times.append(time.process_time())"
    script = f"import time\ntimes = []\n{times}\n{reference}\n{times}\n{statement}\n{times}\nprint(*times)"
    ratios = []
    for _ in range(rounds):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
        began, between, ended = map(float, run.stdout.split())
        ratios.append((ended - began) / (between - began))
    return median(ratios)


def test_import_loads_no_framework() -> None:
    assert loaded_by("import insitu_xr", FRAMEWORKS) == set()


def test_the_check_sees_a_framework() -> None:
    pytest.importorskip("dask")
    assert loaded_by("import dask", FRAMEWORKS) == {"dask"}


@pytest.mark.slow
def test_import_takes_less_than_half_more_than_xarray_and_zarr() -> None:
    assert time_ratio("import insitu_xr", "import xarray, zarr") < 1.5


def test_the_ratio_sees_a_slow_import() -> None:
    slow = "until = 2 * times[-1] - times[0]\nwhile time.process_time() < until: pass"
    assert time_ratio(slow, "import xarray, zarr", rounds=1) > 1.5
