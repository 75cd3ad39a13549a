"""The figures as Markdown, in an order that does not change from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.engines import ENGINES
from tests.benchmarks.measure import Measured
from tests.benchmarks.results import Results, Stand, Standing

HEAD = "<!-- Written by `make bench`. Do not edit. -->"
OURS, PEER = "ours", "insitubatch"


def rate(run: Measured) -> float:
    """Samples in a second."""
    return run.per_s


def first(run: Measured) -> float:
    """Milliseconds to the first batch."""
    return run.first_ms


def peak(run: Measured) -> float:
    """Most resident memory in MB."""
    return run.peak_mb


def grown(run: Measured) -> float:
    """Memory that the epochs added, in MB."""
    return run.peak_mb - run.idle_mb


def times(ratio: float | None) -> str:
    """A ratio for people."""
    return "-" if ratio is None else f"{ratio:.2f}"


def digits(value: float) -> str:
    """Three digits that count, no exponent.

    Examples
    --------
    >>> digits(0.01234), digits(45.67), digits(123456.0)
    ('0.0123', '45.7', '123456')
    """
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right.

    Examples
    --------
    >>> print(table(["a", "n"], [["x", "1.5"]]))
    | a | n |
    |---|--:|
    | x | 1.5 |
    """
    right = [
        bool(rows) and all(c[:1].isdigit() or c[:1] == "-" for c in column) for column in zip(*rows, strict=True)
    ] or [False]
    rule = "".join("--:|" if r else "---|" for r in right)
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + rule, *lines[1:]])


def markdown(results: Results, images: Sequence[Path] = ()) -> str:
    """The page."""
    parts = [HEAD, _conditions(results), *_charts(images), "### In short", _short(results)]
    for standing in results.standings:
        parts += [f"### {standing.title}", *_standing(standing)]
    return "\n\n".join(parts) + "\n"


def _conditions(results: Results) -> str:
    machine, settings = dict(results.machine), results.settings
    hardware = ", ".join(
        f"{machine.pop(k)}{unit}" for k, unit in (("processor", ""), ("cores", " cores"), ("memory", ""))
    )
    day, state = machine.pop("date"), machine.pop("commit")
    system = machine.pop("system")
    versions = ", ".join(f"{name} {number}" for name, number in machine.items())
    size = "on small stores, which say little" if settings["small"] else f"at scale {settings['scale']:g}"
    how = f"{settings['rounds']} round{'s' if settings['rounds'] > 1 else ''} {size}"
    return f"Measured on {day} at commit {state}: {hardware}, {system}; {how}.\nVersions: {versions}."


def _charts(images: Sequence[Path]) -> Iterator[str]:
    for image in sorted(images):
        yield f"![{image.stem.removeprefix('bench-').capitalize()}](../_static/{image.name})"


def _short(results: Results) -> str:
    rows = [row for standing in results.standings for stand in standing.stands for row in _short_row(standing, stand)]
    names = ("case", "store", "against", "of it", "times insitubatch", "first batch, ms", "its own reads, ms")
    head = (*names, "first batch of insitubatch's", "peak memory of insitubatch's")
    return table(head, rows) if rows else "Nothing was measured."


def _short_row(standing: Standing, stand: Stand) -> Iterator[list[str]]:
    if not stand.took_part(OURS):
        return
    base = stand.baseline
    own = [run.own_reads_ms for run in stand.runs.get("floor", ()) if run is not None and run.own_reads_ms]
    yield [
        standing.case,
        stand.layout,
        "-" if base == OURS else ENGINES[base].title,
        "-" if base == OURS else times(stand.ratio(OURS, base, rate)),
        times(stand.ratio(OURS, PEER, rate)),
        digits(stand.median(OURS, first)),
        digits(sorted(own)[len(own) // 2]) if own else "-",
        times(stand.ratio(OURS, PEER, first)),
        times(stand.ratio(OURS, PEER, peak)),
    ]


def _standing(standing: Standing) -> Iterator[str]:
    for stand in standing.stands:
        yield f"**{stand.layout}**: {stand.title}"
        rows = [_row(stand, engine) for engine in stand.runs if stand.took_part(engine)]
        head = ("engine", "samples/s", "ratio", "times insitubatch", "first batch, ms")
        if rows:
            yield table((*head, "CPU of an epoch, s", "peak memory, MB", "grown, MB"), rows)
        notes = [f"{ENGINES[engine].title}: left out, {why}." for engine, why in stand.left_out.items()]
        cut = [ENGINES[e].title for e, runs in stand.runs.items() if any(r is not None and not r.whole for r in runs)]
        notes += [f"Measured on a part of an epoch: {', '.join(cut)}."] if cut else []
        if notes:
            yield " ".join(notes)


def _row(stand: Stand, engine: str) -> list[str]:
    return [
        ENGINES[engine].title,
        digits(stand.median(engine, rate)),
        times(stand.ratio(engine, stand.baseline, rate)),
        times(stand.ratio(engine, PEER, rate)),
        digits(stand.median(engine, first)),
        digits(stand.median(engine, lambda run: run.cpu_s)),
        f"{stand.median(engine, peak):.0f}",
        f"{stand.median(engine, grown):.0f}",
    ]
