"""What a run will read and hold, known before it reads."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import CeilingError
from insitu_xr.limits import Limits, format_bytes, parse_bytes
from insitu_xr_adapters.verification.climatology import Calendar
from insitu_xr_adapters.verification.measure import BLOCK_POINTS, scratch_bytes
from insitu_xr_adapters.verification.setup import Setup
from insitu_xr_adapters.verification.state import Column
from insitu_xr_adapters.verification.stocks import Stock
from insitu_xr_adapters.verification.sweep import Sweep, blocks, choose, nothing
from insitu_xr_adapters.verification.times import IntArray, spell_lead

#: bytes that the engine may read ahead of each dataset, at most
AHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of one dataset.

    Attributes
    ----------
    chunks : int
        Distinct stored chunks; each is read once.
    bytes : int
        Decoded bytes of them.
    memory : int
        Ceiling of what the engine holds of it.
    """

    chunks: int
    bytes: int
    memory: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays in memory of what is measured.

    Attributes
    ----------
    bytes : int
        All the time.
    row_bytes : int
        For each row of latitude, as long as its band is read. Init times are then read in ascending order.
    """

    bytes: int
    row_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ScorePlan:
    """What scoring will read and hold; printing it reads no data.

    Attributes
    ----------
    setup : Setup
        The checked request.
    sweep : Sweep
        The order.
    blocks : array of int64, shape (inits,)
        Init times that lie in one chunk of a forecast have one number.
    readings : mapping of dataset to Reading
    workers : int
        Threads that measure pieces.
    points : int
        Points that are measured together.
    work_bytes : int
        Bytes of the pieces that are there at once, and of what measuring them takes.
    state_bytes : int
        Bytes of the sums that are kept.
    peak_bytes : int
        The most memory that is held at once.
    ceiling : int
        ``memory=``.
    """

    setup: Setup
    sweep: Sweep
    blocks: IntArray
    readings: Mapping[str, Reading]
    workers: int
    points: int
    work_bytes: int
    state_bytes: int
    ceiling: int

    @property
    def chunks(self) -> int:
        """Distinct stored chunks."""
        return sum(r.chunks for r in self.readings.values())

    @property
    def gets(self) -> int:
        """Requests to the stores, at most: one for each chunk; chunks of one shard may share one."""
        return self.chunks

    @property
    def bytes_decoded(self) -> int:
        """Decoded bytes of all that is read."""
        return sum(r.bytes for r in self.readings.values())

    @property
    def peak_bytes(self) -> int:
        """The most memory that is held at once, sums included."""
        return sum(r.memory for r in self.readings.values()) + self.work_bytes + self.state_bytes

    @property
    def n_pairs(self) -> int:
        """Pairs of init and lead time that are scored."""
        return int(self.setup.pairs.wanted.sum())

    def _facts(self) -> list[tuple[str, str]]:
        pairs, sweep = self.setup.pairs, self.sweep
        leads = f"{spell_lead(int(pairs.leads[0]))} to {spell_lead(int(pairs.leads[-1]))}"
        bands = f", in {len(sweep.bands)} bands of latitude" if len(sweep.bands) > 1 else ""
        rows, every = self.setup.rows, self.setup.domain.shape[0]
        read = rows.stop - rows.start
        outside = f"; {read} of {every} latitudes are read, for the others lie in none" if read < every else ""
        return [
            ("pairs", f"{self.n_pairs}: {len(pairs.inits)} init times, {len(pairs.leads)} lead times ({leads})"),
            ("scores", f"{', '.join(m.name for m in self.setup.metrics)} of {', '.join(self.setup.grid.variables)}"),
            ("regions", ", ".join(self.setup.domain.names) + outside),
            ("order", f"by {sweep.name}, {len(sweep.pieces) * len(sweep.bands)} pieces{bands}"),
            ("reads", f"{self.chunks} chunks, each once, {format_bytes(self.bytes_decoded)} decoded"),
            ("memory", f"peak {format_bytes(self.peak_bytes)} under a ceiling of {format_bytes(self.ceiling)}"),
            ("sums", f"{format_bytes(self.state_bytes)} are kept"),
        ]

    def _table(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("dataset", "chunks", "decoded", "memory")]
        for name, r in self.readings.items():
            rows.append((name, str(r.chunks), format_bytes(r.bytes), format_bytes(r.memory)))
        return rows

    def __repr__(self) -> str:
        facts = [f"  {name:<8} {text}" for name, text in self._facts()]
        table = self._table()
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        lines = ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join(["<insitu_xr ScorePlan>", *facts, "", *lines])

    def _repr_html_(self) -> str:
        facts = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in self._facts())
        head, *body = self._table()
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body)
        return (
            "<div class='insitu-plan'><b>insitu_xr ScorePlan</b>"
            f"<table>{facts}</table><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>"
        )


def plan_of(
    setup: Setup,
    columns: Sequence[Column],
    memory: int | str | None,
    *,
    wanted: npt.NDArray[np.bool_] | None = None,
    kept: Kept | None = None,
) -> ScorePlan:
    """Choose the order, and divide the ceiling.

    Parameters
    ----------
    wanted : array of bool, shape (inits, leads), optional
        Pairs that are to be read; all of the request by default.
    kept : Kept, optional
        What stays in memory of what is measured; by default the sums of each pair.

    Raises
    ------
    CeilingError
        If the ceiling is too low, with what is needed.
    """
    wanted = setup.pairs.wanted if wanted is None else wanted
    given = None if memory is None else parse_bytes(memory)
    rows = setup.rows
    stocks = [Stock.of(feed, rows) for feed in setup.feeds.values()]
    kept = Kept(8 * sum(c.size for c in columns) * (wanted.size + int(wanted.sum()))) if kept is None else kept
    usual = Limits()
    # A quarter of the ceiling is for measuring, which one thread can do as well.
    measuring = (usual.memory if given is None else given) // 4
    points = _points(setup, max(measuring // 8, measuring // usual.threads))
    scratch = _scratch(setup, points)
    workers = max(1, min(usual.threads, measuring // scratch))
    work_bytes = workers * scratch
    fixed = work_bytes + kept.bytes
    if given is not None and given <= fixed:
        raise CeilingError(
            f"memory must hold the sums and the arrays that statistics take, {fixed} bytes ({format_bytes(fixed)}), "
            f"but got {given}; raise memory="
        )
    sweep = nothing(rows)
    if wanted.any():
        room = max(0, (usual.memory if given is None else given) - fixed)
        options: dict[str, Any] = {"held": workers, "strict": given is not None, "whole": setup.whole}
        yearly = None if kept.row_bytes else _yearly(setup)
        sweep = choose(stocks, wanted, setup.pairs.valid, yearly, rows, room, row_bytes=kept.row_bytes, **options)
    ceiling = max(usual.memory, fixed + sweep.bytes) if given is None else given
    reading = [s.name for s in stocks if s.uses and s.name in sweep.needed]
    # More than this is of no use: what is read ahead is as much as can be under way at once.
    ahead = min(AHEAD_BYTES, (ceiling - fixed - sweep.bytes) // max(1, len(reading)))
    ceilings = {name: sweep.needed[name] + ahead for name in reading}
    readings = {s.name: _reading(s, sweep, ceilings.get(s.name, 0)) for s in stocks}
    return ScorePlan(
        setup,
        sweep,
        blocks(stocks, wanted),
        readings,
        workers,
        points,
        work_bytes + sweep.held_bytes,
        kept.bytes,
        ceiling,
    )


def _reading(stock: Stock, sweep: Sweep, memory: int) -> Reading:
    """What is read of a dataset."""
    pairs = np.concatenate(sweep.pieces) if sweep.pieces else np.empty(0, np.int64)
    chunks = [len(np.unique(use.of(pairs))) * use.chunks for use in stock.uses]
    decoded = sum(n * use.chunk_bytes for n, use in zip(chunks, stock.uses, strict=True))
    return Reading(sum(chunks), decoded, memory)


def _points(setup: Setup, room: int) -> int:
    """Points that are measured together: fewer where the ceiling is low."""
    points = BLOCK_POINTS
    while points > setup.domain.shape[1] and _scratch(setup, points) > room:
        points //= 2
    return points


def _scratch(setup: Setup, points: int) -> int:
    """Memory that measuring a piece takes besides."""
    found = [0]
    for model in setup.models:
        for variable in setup.grid.variables:
            statistics = setup.statistics.get((model.name, variable), ())
            found.append(
                scratch_bytes(
                    statistics, model.members, setup.domain.shape, regions=len(setup.domain.names), points=points
                )
            )
    return max(found)


def _yearly(setup: Setup) -> npt.NDArray[np.int64] | None:
    """Day of the year of each init time, where a climatology is read along it."""
    if "climatology" not in setup.feeds:
        return None
    days = Calendar(("dayofyear",), ("dayofyear",), (np.arange(1, 367),))
    return days.positions(setup.pairs.inits, setup.pairs.calendar)[0]
