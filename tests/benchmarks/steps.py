"""From the floor to the loader, a step at a time: what is added by each thing that a loader cannot leave out.

All run in one process, in turn, so that each ratio is that of two epochs next to one another.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from tests.benchmarks.cases import Case
from tests.benchmarks.engines import Source, open_with_xarray
from tests.benchmarks.floors import Floor, Where
from tests.benchmarks.layouts import LAYOUTS, Layout, write
from tests.benchmarks.report import digits, table
from tests.benchmarks.terms import timed

ROOT = Path(__file__).parents[2]
ROUNDS = 9
#: whose chunks go into batches as they are: nothing but reading, decoding and one copy is left to do
NAMES = ("tiled", "sharded")
#: steps that lie in the batches which exist at once: one that is used, one that is made, one that is begun
STEPS = 48
LEADS = ("0h", "6h", "24h")


class Decoder:
    """Decodes zstd as the loader does: each thread uses its tables again."""

    def __init__(self) -> None:
        self._own = threading.local()

    def __call__(self, raw: Any, out: npt.NDArray[Any]) -> None:
        """Decode into an array of the right size."""
        if not hasattr(self._own, "decompressor"):
            self._own.decompressor = zstandard.ZstdDecompressor()
        stream = self._own.decompressor.stream_reader(raw)
        if stream.readinto(out) != out.nbytes or stream.read(1):
            raise ValueError("a chunk must decode to its own size")


def steps(path: Path, layout: Layout) -> dict[str, Callable[[], Any]]:
    """What is measured, by what it does."""
    import insitu_xr  # noqa: F401  registers the accessor

    ds = open_with_xarray(Source(str(path), layout), Case("cold"))
    windows = np.zeros((len(LEADS), STEPS, *layout.grid), "f4")

    def into_batches(name: str, where: Where, values: npt.NDArray[Any], leads: int = 1) -> None:
        first = where[0].start % STEPS
        rows = min(len(values), STEPS - first)
        for batches in windows[:leads]:
            batches[(slice(first, first + rows), *where[1:])] = values[:rows]
            batches[(slice(0, len(values) - rows), *where[1:])] = values[rows:]

    def epoch(**asked: Any) -> None:
        with ds.insitu.loader(variables=layout.names, batch_size=16, shuffle=True, **asked) as loader:
            for _ in loader:
                pass

    floor, again = Floor(path, layout.names), Floor(path, layout.names, decode=Decoder())
    return {
        "the floor": floor.run,
        "with a decoder whose tables are used again": again.run,
        "and copied into batches, which lie in no cache": lambda: again.run(into_batches),
        "the loader": epoch,
        "floor, decoder, and copies for three leads": lambda: again.run(partial(into_batches, leads=len(LEADS))),
        "the loader, with three leads": partial(epoch, leads=LEADS),
    }


def measure(path: Path, layout: Layout) -> list[tuple[str, float, float]]:
    """Milliseconds of an epoch, and its speed as a part of the floor's; medians."""
    every = steps(path, layout)
    took: dict[str, list[float]] = {what: [] for what in every}
    for number in range(ROUNDS + 1):
        for what, act in every.items():
            seconds = timed(act)
            if number:
                took[what].append(seconds)
    floor = took["the floor"]
    return [
        (what, 1e3 * statistics.median(t), statistics.median(f / s for f, s in zip(floor, t, strict=True)))
        for what, t in took.items()
    ]


def markdown(folder: Path, scale: float) -> str:
    """A table for each layout, measured in a process of its own."""
    tables = []
    for name in NAMES:
        layout = LAYOUTS[name].scaled(scale)
        path = write(layout, folder)
        line = [sys.executable, "-m", "tests.benchmarks.steps", str(path), name, str(scale)]
        tables.append(subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip())
    told = f"From the floor to the loader, all cores, medians of {ROUNDS} rounds:"
    return "\n\n".join([told, *tables])


def main(path: str, name: str, scale: str) -> None:
    """Measure, and print a table."""
    found = measure(Path(path), LAYOUTS[name].scaled(float(scale)))
    rows = [(what, digits(ms), f"{ratio:.2f}") for what, ms, ratio in found]
    sys.stdout.write(table((name, "ms per epoch", "speed, of the floor's"), rows) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
