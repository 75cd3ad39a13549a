"""One engine on one store in a process of its own; prints a line of JSON.

python -m tests.benchmarks.measure measure ORDER
python -m tests.benchmarks.measure check '[ORDER, ...]'
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.benchmarks.cases import Case
from tests.benchmarks.engines import ENGINES, Batch, Epochs, Source, open_with_xarray
from tests.benchmarks.floors import Floor
from tests.benchmarks.layouts import Layout


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is told to do."""

    engine: str
    source: Source
    case: Case
    #: measure epochs for this long, or one
    seconds: float = 1.0
    #: stop an epoch after this long; the rate is that of the part
    longest: float = 4.0

    def to_json(self) -> str:
        """The order as an argument of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The order that `to_json` put down."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """The order that a dict holds."""
        layout = Layout.of(record["source"]["layout"])
        source = Source(record["source"]["location"], layout)
        case = Case.from_json(record["case"])
        return cls(**{**record, "source": source, "case": case})


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process found."""

    per_s: float
    first_ms: float
    #: processor seconds of an epoch
    cpu_s: float
    #: resident memory before the first epoch, and the most ever
    idle_mb: float
    peak_mb: float
    #: samples of an epoch; fewer than there are where it took too long
    samples: int
    whole: bool
    #: the floor alone: reading the chunks that our first batch needs
    own_reads_ms: float | None = None


def memory_mb(field: str) -> float:
    """Resident memory of this process: VmRSS now, or VmHWM at its peak."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Not ru_maxrss: it counts what the parent held when this process was started.
    (line,) = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


@dataclass(frozen=True, slots=True)
class Pass:
    """One epoch."""

    samples: int
    seconds: float
    first: float
    whole: bool

    @classmethod
    def of(cls, epochs: Epochs, work: float, longest: float) -> Self:
        """Run an epoch, or as much of it as there is time for."""
        began, samples, first, whole = time.perf_counter(), 0, 0.0, True
        for batch in epochs():
            first = first or time.perf_counter() - began
            samples += batch.samples
            if work:
                time.sleep(work)
            ended = time.perf_counter()
            if ended - began > longest:
                whole = False
                break
        else:
            ended = time.perf_counter()
        return cls(samples, ended - began, first, whole)


def measure(order: Order) -> Measured:
    """Run an uncounted epoch, then measure."""
    case = order.case
    epochs = ENGINES[order.engine].start(order.source, case)
    idle, work = memory_mb("VmRSS"), case.work_ms / 1e3
    Pass.of(epochs, 0.0, order.longest)
    passes: list[Pass] = []
    cpu = time.process_time()
    while not passes or sum(p.seconds for p in passes) < order.seconds:
        passes.append(Pass.of(epochs, work, order.longest))
    cpu = (time.process_time() - cpu) / max(1, sum(p.samples for p in passes)) * case.samples(order.source.layout)
    return Measured(
        per_s=statistics.median(p.samples / p.seconds for p in passes),
        first_ms=1e3 * statistics.median(p.first for p in passes),
        cpu_s=cpu,
        idle_mb=idle,
        peak_mb=memory_mb("VmHWM"),
        samples=min(p.samples for p in passes),
        whole=all(p.whole for p in passes),
        own_reads_ms=first_reads_ms(order) if order.engine == "floor" and not case.warm else None,
    )


def first_reads_ms(order: Order) -> float:
    """Milliseconds that reading the chunks of our first batch takes."""
    import insitu_xr  # noqa: F401  registers the accessor; only now, since it takes memory

    case, layout = order.case, order.source.layout
    arguments: dict[str, Any] = {"leads": list(case.leads)} if case.leads else {}
    ds = open_with_xarray(order.source, case)
    with ds.insitu.loader(variables=layout.names, batch_size=case.batch_size, shuffle=True, **arguments) as loader:
        positions = next(iter(loader)).positions
    steps = {int(p) + lead for p in positions for lead in case.lead_steps}
    floor = Floor(Path(order.source.location), layout.names, quarter=case.quarter, copies=len(case.lead_steps))
    floor.run(steps=steps)
    return 1e3 * statistics.median(timed(lambda: floor.run(steps=steps)) for _ in range(5))


def timed(act: Callable[[], object]) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def check(order: Order) -> int:
    """Compare what an engine hands out with what zarr holds, and count the samples of one epoch.

    Raises
    ------
    AssertionError
        If a value differs, or a sample does not come exactly once.
    """
    case, layout = order.case, order.source.layout
    ds = open_with_xarray(order.source, case).load()
    wanted = {f"{name}@{lead}" if lead else name for name in layout.names for lead in case.leads or ("",)}
    seen: list[int] = []
    samples = 0
    for batch in ENGINES[order.engine].start(order.source, case)():
        samples += batch.samples
        if batch.positions is None or batch.arrays is None:
            continue
        seen += [int(p) for p in batch.positions]
        for label in wanted:
            compare(ds, batch, label, dict(zip(case.leads, case.lead_steps, strict=False)))
    assert not seen or sorted(seen) == sorted(set(seen)), f"{order.engine} repeats samples"
    return samples


def compare(ds: Any, batch: Batch, label: str, steps: dict[str, int]) -> None:
    """Compare one array of a batch with the dataset."""
    assert batch.positions is not None
    assert batch.arrays is not None
    name, _, lead = label.partition("@")
    expected = ds[name].values[np.asarray(batch.positions) + steps.get(lead, 0)]
    np.testing.assert_array_equal(np.asarray(batch.arrays[label]), expected, err_msg=label, strict=True)


def main(command: str, text: str) -> None:
    """Measure, or check several, and say what was found."""
    found: Any
    if command == "measure":
        found = asdict(measure(Order.from_json(text)))
    else:
        found = [check(Order.of(record)) for record in json.loads(text)]
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what others leave running is not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
