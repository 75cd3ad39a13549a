"""Engines side by side: every one in a process of its own, round by round, so that only ratios count.

    python -m tests.benchmarks.compare [--engines floor,ours] [--cases cold,warm] [--layouts arco] [--rounds 5] ...

Stores are made in a scratch folder, and made once where ``--stores`` names one that is kept. What every engine hands
out is checked on small stores before anything is timed. ``--publish`` writes into ``docs``; otherwise the page and the
charts are in ``build/bench``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from tests.benchmarks.cases import CONTESTS, Case, Contest
from tests.benchmarks.charts import draw
from tests.benchmarks.engines import ENGINES, Source
from tests.benchmarks.layouts import LAYOUTS, REMOTE, Layout, write
from tests.benchmarks.measure import Measured, Order
from tests.benchmarks.report import OURS, PEER, markdown, rate, times
from tests.benchmarks.results import Results, Stand, Standing, machine

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 300


def say(text: str) -> None:
    """Tell what happens."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Failed(Exception):
    """A process did not end well."""


def ask(command: str, text: str) -> object:
    """Run a process of `measure` and return what it found.

    Raises
    ------
    Failed
        With its last line, if it did not find anything.
    """
    line = [sys.executable, "-m", "tests.benchmarks.measure", command, text]
    try:
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=_PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"it took more than {_PATIENCE_SECONDS} s") from None
    if done.returncode or not done.stdout.strip():
        raise Failed((done.stderr.strip() or "no output").splitlines()[-1][:200])
    found: object = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@contextmanager
def served(case: Case, folder: Path, path: Path, layout: Layout) -> Iterator[Source]:
    """The store as the case asks for it: a folder, or an address behind a server that runs meanwhile."""
    if not case.remote:
        yield Source(str(path), layout)
        return
    from insitu_xr.testing.serving import serve

    with serve(folder, apart=True, latency=case.latency_ms / 1e3) as server:
        yield Source(f"{server.url}/{path.name}", layout)


def left_out(contest: Contest) -> dict[str, str]:
    """Engines that do not take part, and why."""
    reasons = {engine: ENGINES[engine].lacks(contest.case) for engine in contest.engines}
    return {engine: why for engine, why in reasons.items() if why is not None}


def check(contests: Sequence[Contest], folder: Path) -> None:
    """Let every engine run whole epochs on small stores, and compare counts and values.

    Raises
    ------
    Failed
        If one hands out other values than zarr holds, or another number of samples than there are.
    """
    with ExitStack() as stack:
        trials: dict[str, list[tuple[Order, str]]] = {}
        for contest in contests:
            case, absent = replace(contest.case, work_ms=0), left_out(contest)
            for layout in contest.small().layouts:
                source = stack.enter_context(served(case, folder, write(layout, folder), layout))
                for engine in contest.engines:
                    if engine not in absent:
                        trial = (Order(engine, source, case), f"{case.name} {layout.name}")
                        trials.setdefault(engine, []).append(trial)
        for engine, orders in trials.items():
            _check_one(engine, orders)


def _check_one(engine: str, trials: Sequence[tuple[Order, str]]) -> None:
    try:
        found = ask("check", json.dumps([asdict(order) for order, _ in trials]))
    except Failed as error:
        raise Failed(f"{engine}, on small stores: {error}") from None
    assert isinstance(found, list)
    for (order, what), samples in zip(trials, found, strict=True):
        expected = order.case.samples(order.source.layout)
        if samples != expected:
            raise Failed(f"{engine} must deliver {expected} samples of {what}, but delivered {samples}")


def run(contest: Contest, folder: Path, options: argparse.Namespace) -> Standing:
    """Measure one case on its stores."""
    absent, stands = left_out(contest), []
    taking_part = [engine for engine in contest.engines if engine not in absent]
    say(f"\n{contest.title}")
    for layout in contest.layouts:
        path = write(layout, folder)
        runs: dict[str, list[Measured | None]] = {engine: [] for engine in taking_part}
        failed: dict[str, str] = {}
        with served(contest.case, folder, path, layout) as source:
            for number in range(options.rounds):
                for engine in (e for e in taking_part if number == 0 or not ENGINES[e].once):
                    order = Order(engine, source, contest.case, options.seconds, options.longest)
                    runs[engine].append(_measured(order, failed))
        kept = {engine: rounds for engine, rounds in runs.items() if any(r is not None for r in rounds)}
        stand = Stand(layout.name, layout.title, kept, absent | failed)
        stands.append(stand)
        _tell(contest, stand)
    return Standing(contest.case.name, contest.title, stands)


def _measured(order: Order, failed: dict[str, str]) -> Measured | None:
    if order.engine in failed:
        return None
    try:
        found = ask("measure", order.to_json())
    except Failed as error:
        failed[order.engine] = f"it failed: {error}"
        return None
    assert isinstance(found, dict)
    measured = Measured(**found)
    samples = order.case.samples(order.source.layout)
    if measured.whole and measured.samples != samples:
        failed[order.engine] = f"it delivered {measured.samples} samples of {samples}"
        return None
    return measured


def _tell(contest: Contest, stand: Stand) -> None:
    for engine in stand.runs:
        figures = f"{stand.median(engine, rate):10.1f}/s  x{times(stand.ratio(engine, stand.baseline, rate)):>6}"
        first = f"first {stand.median(engine, lambda r: r.first_ms):7.1f} ms"
        cpu = f"cpu {stand.median(engine, lambda r: r.cpu_s):6.2f} s"
        memory = f"peak {stand.median(engine, lambda r: r.peak_mb):5.0f} MB"
        peer = f"x{times(stand.ratio(engine, PEER, rate)):>6} of {PEER}" if engine == OURS else ""
        say(f"{contest.case.name:10} {stand.layout:8} {engine:12} {figures}  {first}  {cpu}  {memory}  {peer}".rstrip())
    for engine, why in stand.left_out.items():
        say(f"{contest.case.name:10} {stand.layout:8} {engine:12} left out: {why}")


def chosen(options: argparse.Namespace) -> list[Contest]:
    """The contests that the options leave."""
    found = []
    for name in options.cases.split(","):
        if name not in CONTESTS:
            raise SystemExit(f"--cases must be of {', '.join(CONTESTS)}, but got {name}")
        contest = CONTESTS[name].small() if options.small else CONTESTS[name].scaled(options.scale)
        engines = tuple(e for e in contest.engines if e in options.engines.split(","))
        layouts = tuple(layout for layout in contest.layouts if layout.name in options.layouts.split(","))
        case = replace(contest.case, batch_size=options.batch_size, inflight=options.inflight)
        if engines and layouts:
            found.append(replace(contest, case=case, engines=engines, layouts=layouts))
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--cases", default=",".join(CONTESTS), help="default: %(default)s")
    option("--engines", default=",".join(ENGINES), help="default: %(default)s")
    option("--layouts", default=",".join([*LAYOUTS, REMOTE.name]), help="default: %(default)s")
    option("--rounds", type=int, default=3, help="times that every engine runs, in turn; some run once")
    option("--scale", type=float, default=0.5, help="length of the stores, 1 for about half a gigabyte each")
    option("--small", action="store_true", help="a ninth of the grid in either direction, to see whether all works")
    option("--seconds", type=float, default=0.6, help="measure epochs for so long")
    option("--longest", type=float, default=3.0, help="stop an epoch after so long")
    option("--batch-size", type=int, default=16)
    option("--inflight", type=int, default=32, help="requests at once, for engines that have to be told")
    option("--stores", type=Path, help="keep the stores in this folder, and use those that are there")
    option("--out", type=Path, default=ROOT / "build" / "bench", help="folder of the page, the charts and the JSON")
    option("--publish", action="store_true", help="write the page and the charts into docs")
    option("--from", type=Path, dest="source", help="write them again from this JSON, and measure nothing")
    option("--no-check", action="store_true", help="do not check what the engines hand out")
    option("--profile", action="store_true", help="measure what a chunk costs instead, and where it goes; needs Linux")
    return parser.parse_args(arguments)


def publish(results: Results, options: argparse.Namespace) -> Path:
    """Write the page, the charts and the JSON."""
    page: Path = options.out / "performance-figures.md"
    images = options.out
    if options.publish:
        page, images = ROOT / "docs" / "explanation" / page.name, ROOT / "docs" / "_static"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(markdown(results, draw(results, images)), encoding="utf-8")
    return page


def compare(options: argparse.Namespace, folder: Path) -> Results:
    """Check, then measure."""
    contests = chosen(options)
    if not contests:
        raise SystemExit("no engine or layout that was named takes part in a case that was named; see --help")
    if not options.no_check:
        say("checking what the engines hand out, on small stores")
        check(contests, folder)
    settings = {name: getattr(options, name) for name in ("rounds", "scale", "small", "seconds", "batch_size")}
    return Results(machine(), settings, [run(contest, folder, options) for contest in contests])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, and write what was found."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="insitu-bench-") as scratch:
        folder = options.stores or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if options.profile:
            from tests.benchmarks.profiling import profile

            say(f"\nwritten: {profile(folder, options)}")
            return
        if options.source:
            results = Results.read(options.source)
        else:
            results = compare(options, folder)
            results.write(options.out / "results.json")
        say(f"\nwritten: {publish(results, options)}")


if __name__ == "__main__":
    main()
