"""What a comparison found, and the ratios that count."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from tests.benchmarks.floors import cores
from tests.benchmarks.measure import Measured

PACKAGES = (
    "insitu-xr",
    "insitubatch",
    "zarr",
    "zarrs",
    "numcodecs",
    "zstandard",
    "obstore",
    "xarray",
    "numpy",
    "torch",
)


@dataclass(frozen=True, slots=True)
class Stand:
    """One store in one case: what every engine reached, round by round."""

    layout: str
    title: str
    #: per engine, None for a round that failed; the first engine is the baseline
    runs: Mapping[str, Sequence[Measured | None]]
    #: per engine that does not take part: why
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        """The first of those who took part."""
        return next(iter(self.runs))

    def median(self, engine: str, of: Callable[[Measured], float]) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(of(run) for run in self.runs[engine] if run is not None)

    def ratio(self, engine: str, other: str, of: Callable[[Measured], float]) -> float | None:
        """The median over rounds of the ratio in that round; None where the two never met."""
        pairs = zip(self.runs.get(engine, ()), self.runs.get(other, ()), strict=False)
        ratios = [of(a) / of(b) for a, b in pairs if a is not None and b is not None and of(b)]
        return statistics.median(ratios) if ratios else None

    def took_part(self, engine: str) -> bool:
        """Whether an engine finished a round."""
        return any(run is not None for run in self.runs.get(engine, ()))


@dataclass(frozen=True, slots=True)
class Standing:
    """One case on all its stores."""

    case: str
    title: str
    stands: Sequence[Stand]


@dataclass(frozen=True, slots=True)
class Results:
    """A whole comparison."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    standings: Sequence[Standing]

    def write(self, path: Path) -> None:
        """Keep as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` kept."""
        record = json.loads(path.read_text(encoding="utf-8"))
        standings = [
            Standing(s["case"], s["title"], [_stand(stand) for stand in s["stands"]]) for s in record["standings"]
        ]
        return cls(record["machine"], record["settings"], standings)


def _stand(record: dict[str, Any]) -> Stand:
    runs = {name: [None if r is None else Measured(**r) for r in rounds] for name, rounds in record["runs"].items()}
    return Stand(record["layout"], record["title"], runs, record["left_out"])


def machine() -> dict[str, str]:
    """The machine, the day and the versions."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": str(cores()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "python": platform.python_version(),
        **packages,
    }


def processor() -> str:
    """The processor's own name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def commit() -> str:
    """What is measured, as git names it."""
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip() or "unknown"
