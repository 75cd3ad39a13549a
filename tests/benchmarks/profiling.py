"""What a chunk costs beside reading, decoding and copying it; made by ``compare --profile``.

On one core nothing runs beside anything else, so the floor can be subtracted: what remains of an epoch is planning and
engine, and everything else that is not the work itself. The functions that take the time are found by looking at all
threads every two milliseconds, during epochs that are not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.benchmarks import steps, terms
from tests.benchmarks.cases import Case
from tests.benchmarks.engines import Source, open_with_xarray
from tests.benchmarks.floors import Floor
from tests.benchmarks.layouts import Layout, write
from tests.benchmarks.report import HEAD, digits, table
from tests.benchmarks.results import machine
from tests.benchmarks.terms import timed

ROOT = Path(__file__).parents[2]
#: 102 kB to a chunk
LAYOUTS = (
    Layout("one step", 2000, (160, 160), (1, 160, 160)),
    Layout("tiles", 512, (320, 320), (16, 40, 40)),
    Layout("shards", 512, (320, 320), (1, 160, 160), shards=(64, 320, 320)),
)
ROUNDS = 7
_INTERVAL_SECONDS = 0.002
_FUNCTIONS = 12
_PACKAGES = ("insitu_xr", "zarr", "numcodecs", "xarray", "pandas", "numpy", "threading", "concurrent", "obstore")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds per chunk, on one core."""

    layout: str
    chunks: int
    #: an epoch of the floor, and of a new loader
    floor: float
    epoch: float
    #: what the loader is made with: the request, the plan, the order
    planning: float
    #: stages as ``loader.stats`` tells them
    read: float
    decode: float
    gather: float
    #: share of the samples in which a function was at work, most first
    functions: tuple[tuple[str, float], ...]

    @property
    def overhead(self) -> float:
        """Planning and engine: what the epoch takes more than the floor."""
        return self.epoch - self.floor


def profile(folder: Path, options: argparse.Namespace) -> Path:
    """Measure every layout in a process on one core, and write the page."""
    found = [_apart(write(layout.scaled(options.scale), folder), layout.scaled(options.scale)) for layout in LAYOUTS]
    name = "performance-profile.md"
    page: Path = (ROOT / "docs" / "explanation" if options.publish else options.out) / name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{markdown(found)}\n{steps.markdown(folder, options.scale)}\n", encoding="utf-8")
    return page


def markdown(found: list[Overhead]) -> str:
    """The page."""
    facts = machine()
    conditions = (
        f"Measured on {facts['date']} at commit {facts['commit']}: {facts['processor']}, one core, {ROUNDS} rounds."
    )
    head = ("µs per chunk of 100 kB", *(f.layout for f in found))
    lines: list[tuple[str, Callable[[Overhead], float]]] = [
        ("an epoch with a new loader", lambda f: f.epoch),
        ("the floor: read, decode, one copy", lambda f: f.floor),
        ("**planning and engine** (the difference)", lambda f: f.overhead),
        ("of which making the loader", lambda f: f.planning),
        ("`stats`: read", lambda f: f.read),
        ("`stats`: decode and place", lambda f: f.decode),
        ("`stats`: gather", lambda f: f.gather),
    ]
    rows = [(what, *(digits_or_zero(of(f)) for f in found)) for what, of in lines]
    rows.insert(0, ("chunks", *(str(f.chunks) for f in found)))
    parts = [HEAD, conditions, table(head, rows), "Where the time goes, by the function that was at work:"]
    parts += [table((f.layout, "share"), [(f"`{name}`", f"{100 * n:.0f} %") for name, n in f.functions]) for f in found]
    return "\n\n".join([*parts, terms.markdown()]) + "\n"


def digits_or_zero(value: float) -> str:
    """A number of microseconds for people, below nothing too."""
    return digits(value) if value >= 0 else f"-{digits(-value)}"


def _apart(path: Path, layout: Layout) -> Overhead:
    line = [sys.executable, "-m", "tests.benchmarks.profiling", str(path), json.dumps(asdict(layout))]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    record["functions"] = tuple((name, share) for name, share in record["functions"])
    return Overhead(**record)


def measure(path: Path, layout: Layout) -> Overhead:
    """Measure one layout in this process, which must have a single core to itself from its start."""
    import insitu_xr  # noqa: F401  registers the accessor

    ds = open_with_xarray(Source(str(path), layout), Case("cold"))
    floor = Floor(path, layout.names)

    def make() -> Any:
        return ds.insitu.loader(variables=layout.names, batch_size=16, shuffle=True)

    def epoch() -> Any:
        with make() as loader:
            for _ in loader:
                pass
            return loader.stats

    floors, epochs, plannings = [], [], []
    stats = epoch()
    for _ in range(ROUNDS):
        floors.append(timed(floor.run))
        epochs.append(timed(epoch))
        plannings.append(timed(lambda: make().close()))
    per_chunk = 1e6 / stats.reads
    return Overhead(
        layout.name,
        stats.reads,
        floor=per_chunk * statistics.median(floors),
        epoch=per_chunk * statistics.median(epochs),
        planning=per_chunk * statistics.median(plannings),
        read=per_chunk * stats.read_seconds,
        decode=per_chunk * stats.decode_seconds,
        gather=per_chunk * stats.gather_seconds,
        functions=tuple(sampled(lambda: [epoch() for _ in range(3)])),
    )


def sampled(act: Any) -> list[tuple[str, float]]:
    """Functions at work while something runs: the innermost one of a known package, in all threads that do not wait."""
    found: Counter[str] = Counter()
    end = threading.Event()

    def look() -> None:
        own = threading.get_ident()
        while not end.wait(_INTERVAL_SECONDS):
            for thread, frame in sys._current_frames().items():
                name = None if thread == own else innermost(frame)
                if name is not None:
                    found[name] += 1

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        act()
    finally:
        end.set()
        watcher.join()
    total = max(1, sum(found.values()))
    return [(name, count / total) for name, count in found.most_common(_FUNCTIONS)]


def innermost(frame: FrameType | None) -> str | None:
    """Name the innermost function of a known package; none where the thread waits."""
    if frame is not None and frame.f_code.co_name in ("wait", "select", "_worker", "acquire"):
        return None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _PACKAGES:
            return f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return None


def main(path: str, text: str) -> None:
    """Measure, and print a line of JSON."""
    sys.stdout.write(json.dumps(asdict(measure(Path(path), Layout.of(json.loads(text))))) + "\n")


if __name__ == "__main__":
    # Before insitu_xr is imported, which counts the cores then.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main(*sys.argv[1:])
