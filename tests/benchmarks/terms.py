"""What bounds the figures: the time of a copy, by where its bytes lie, and what a process holds before it reads.

Both are measured in processes of their own, on one core.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.benchmarks.report import digits, table

ROOT = Path(__file__).parents[2]
ROUNDS = 9
#: bytes that a figure is for
UNIT = 100_000
#: what fits into a cache that a core has to itself, and what fits into none
SMALL, LARGE = 1 << 18, 1 << 28
#: what is imported one after another, as a person who opens a store with xarray does
PACKAGES = ("numpy", "pandas", "xarray", "zarr", "insitu_xr")


def copies() -> dict[str, float]:
    """Microseconds that copying 100 kB takes."""
    small, near, large, far = (_aligned(size) for size in (SMALL, SMALL, LARGE, LARGE))
    rows = np.random.default_rng(0).permutation(LARGE // SMALL)

    def scattered() -> None:
        for row in rows:
            far[row * SMALL : (row + 1) * SMALL] = large[row * SMALL : (row + 1) * SMALL]

    def out_of_cache() -> None:
        for row in rows:
            far[row * SMALL : (row + 1) * SMALL] = small

    def within() -> None:
        for _ in rows:
            near[:] = small

    return {
        "from a core's cache into itself": _median(within),
        "from a core's cache into memory": _median(out_of_cache),
        "from memory into memory": _median(scattered),
        "from memory into memory that is new to the process": _median(large.copy),
    }


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    """Aligned as batches are: some processors are ten times slower where a copy begins a few bytes off its source."""
    memory = np.ones(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size]


def timed(act: Any) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _median(act: Callable[[], Any]) -> float:
    act()
    found = [timed(act) for _ in range(ROUNDS)]
    return 1e6 * statistics.median(found) * UNIT / LARGE


#: run by itself: nothing else may be imported
_RESIDENT = """
import importlib, json, sys
def resident():
    return 4096e-6 * int(open("/proc/self/statm").read().split()[1])
found = {"python": resident()}
for name in sys.argv[1:]:
    importlib.import_module(name)
    found[name] = resident()
print(json.dumps(found))
"""


def resident() -> dict[str, float]:
    """Megabytes that are resident in a process once each package is imported."""
    return _apart("-c", _RESIDENT, *PACKAGES)


def markdown() -> str:
    """Both tables."""
    times, held = _apart("-m", "tests.benchmarks.terms"), resident()
    steps = zip(held, [0.0, *held.values()], held.values(), strict=False)
    return "\n\n".join(
        [
            "What a copy costs, by where the bytes lie:",
            table(("copy", "µs per 100 kB"), [(name, digits(value)) for name, value in times.items()]),
            "What a process holds before it opens a store:",
            table(
                ("imported", "resident, MB", "more"),
                [(name, digits(now), digits(now - was)) for name, was, now in steps],
            ),
        ]
    )


def _apart(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(copies()) + "\n")
