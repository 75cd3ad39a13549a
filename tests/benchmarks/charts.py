"""The figures as pictures for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.engines import ENGINES
from tests.benchmarks.measure import Measured
from tests.benchmarks.report import first, peak, rate
from tests.benchmarks.results import Results, Stand, Standing

COLOURS = {
    "floor": "#9aa0a6",
    "consumer": "#9aa0a6",
    "obstore": "#9aa0a6",
    "ours": "#0b6e4f",
    "pinned": "#6fb98f",
    "insitubatch": "#d08c2e",
    "zarr": "#6b8fb5",
    "zarrs": "#3d5a80",
    "dataloader": "#b56576",
}
_WIDTH, _HEIGHT, _DPI = 7.2, 3.0, 110


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in groups, one group for each store of a case."""

    file: str
    title: str
    label: str
    cases: tuple[str, ...]
    #: height of a bar, None where there is none
    height: Callable[[Stand, str], float | None]
    #: a line to compare with
    line: float | None = None
    log: bool = False
    leave_out: tuple[str, ...] = ()


def _of_baseline(stand: Stand, engine: str) -> float | None:
    return stand.ratio(engine, stand.baseline, rate)


def _of_peer(stand: Stand, engine: str) -> float | None:
    return stand.ratio(engine, "insitubatch", rate)


def _median(of: Callable[[Measured], float]) -> Callable[[Stand, str], float | None]:
    return lambda stand, engine: stand.median(engine, of) if stand.took_part(engine) else None


_FLOOR = ("floor", "consumer", "obstore")
CHARTS = (
    Chart("bench-cold.png", "Cold epochs", "speed, floor = 1", ("cold",), _of_baseline, line=1, leave_out=("floor",)),
    Chart("bench-first.png", "First batch, cold", "ms", ("cold",), _median(first), log=True, leave_out=("floor",)),
    Chart("bench-memory.png", "Peak memory, cold", "MB resident", ("cold",), _median(peak)),
    Chart(
        "bench-others.png",
        "Warm epochs, windows, a quarter of the grid",
        "speed, insitubatch = 1",
        ("warm", "leads", "quarter"),
        _of_peer,
        line=1,
        leave_out=_FLOOR,
    ),
    Chart(
        "bench-remote.png",
        "HTTP, 300 chunks of 1 MB",
        "speed, GETs alone = 1",
        ("remote-20", "remote-100"),
        _of_baseline,
        line=1,
        leave_out=_FLOOR,
    ),
)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw every chart that there are figures for, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for chart in CHARTS:
        standings = [s for s in results.standings if s.case in chart.cases]
        if any(_bars(chart, standings).values()):
            drawn.append(_draw(chart, standings, folder / chart.file))
    return drawn


def _bars(chart: Chart, standings: Sequence[Standing]) -> dict[str, list[tuple[int, float]]]:
    """Bars of each engine: the number of the group, and the height."""
    groups = [stand for standing in standings for stand in standing.stands]
    engines = [name for name in ENGINES if name not in chart.leave_out]
    found: dict[str, list[tuple[int, float]]] = {}
    for engine in engines:
        heights = [(k, chart.height(stand, engine)) for k, stand in enumerate(groups)]
        bars = [(k, h) for k, h in heights if h is not None]
        if bars:
            found[engine] = bars
    return found


def _draw(chart: Chart, standings: Sequence[Standing], path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    several = len(standings) > 1
    names = [f"{stand.layout}\n{s.case}" if several else stand.layout for s in standings for stand in s.stands]
    figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    bars = _bars(chart, standings)
    width = 0.8 / len(bars)
    for number, (engine, found) in enumerate(bars.items()):
        places = [k + width * (number - (len(bars) - 1) / 2) for k, _ in found]
        heights = [h for _, h in found]
        drawn = axes.bar(places, heights, width * 0.92, color=COLOURS[engine], label=ENGINES[engine].title)
        if engine == "ours":
            axes.bar_label(drawn, fmt="{:.2f}" if max(heights) < 20 else "{:.0f}", fontsize=7)
    _dress(axes, chart, names)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
    return path


def _dress(axes: Any, chart: Chart, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel(chart.label, fontsize=8)
    axes.set_title(chart.title, fontsize=10, loc="left")
    axes.tick_params(axis="y", labelsize=8)
    if chart.line is not None:
        axes.axhline(chart.line, color="#555555", linewidth=0.8, linestyle="--", zorder=0)
    if chart.log:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        fontsize=7,
        frameon=False,
        ncols=6,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16 if "\n" not in names[0] else -0.24),
    )
