"""A run: reads in the order of a sweep, measures piece by piece, and keeps the sums of each pair."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

import insitu_xr
from insitu_xr.errors import MissingExtraError
from insitu_xr_adapters.verification.arrays import Scratch
from insitu_xr_adapters.verification.feeding import Streams
from insitu_xr_adapters.verification.measuring import measure_pairs
from insitu_xr_adapters.verification.plan import ScorePlan
from insitu_xr_adapters.verification.setup import Setup
from insitu_xr_adapters.verification.state import Column, State
from insitu_xr_adapters.verification.storing import Part, StateStore, snapshots_of
from insitu_xr_adapters.verification.sums import Node, Sums
from insitu_xr_adapters.verification.times import IntArray

Float = npt.NDArray[np.float64]

#: sums are written at least so often, in seconds
WRITE_SECONDS = 2.0


def described(setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    """What tells a request from others whose sums do not add up with its own, and what its results say of it."""
    grid = setup.grid
    labels = {d: [*map(_plain, c.to_numpy().tolist())] for d, c in grid.labels.items()}
    statistics = sorted([m, v, s.key] for (m, v), several in setup.statistics.items() for s in several)
    models = {m.name: m.members for m in setup.models}
    identity = {
        "models": models,
        "references": sorted(setup.references),
        "sources": {name: [s["kind"], s["url"]] for name, s in setup.sources.items()},
        "statistics": statistics,
        "nan": setup.nan,
        "domain": setup.domain.identity,
        "variables": sorted(grid.variables),
        "levels": labels,
        "calendar": setup.pairs.calendar,
    }
    first = next(f.matched.ds for f in setup.feeds.values())
    about = {
        "models": models,
        "references": [*setup.references],
        "named_models": setup.named_models,
        "named_references": setup.named_references,
        "metrics": [m.name for m in setup.metrics],
        "variables": {v: {k: _plain(a) for k, a in first[v].attrs.items()} for v in grid.variables},
        "extras": {v: [*dims] for v, dims in grid.extras.items()},
        "labels": {
            d: {"values": labels[d], "attrs": {k: _plain(a) for k, a in c.attrs.items()}}
            for d, c in grid.labels.items()
        },
        "regions": [*setup.domain.names],
        "shape": [*setup.domain.shape],
        "calendar": setup.pairs.calendar,
        "convention": setup.convention,
        "pooled": setup.pooled,
        "weights": setup.weights,
        "align": setup.align,
        "nan": setup.nan,
        "sources": {name: dict(s) for name, s in setup.sources.items()},
        "insitu_xr_version": insitu_xr.__version__,
    }
    return identity, about


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def begun(
    setup: Setup,
    columns: Sequence[Column],
    identity: Mapping[str, Any],
    about: Mapping[str, Any],
    store: StateStore | None,
    *,
    missing_ok: bool = False,
    resume: bool | str = True,
) -> tuple[State, list[Part]]:
    """The sums that a run begins with: those that are kept, of the pairs that are wanted.

    Parameters
    ----------
    resume : bool or "new"
        Whether those of other snapshots are refused, or stay as they are.
    """
    sums = State.empty(setup.pairs.inits, setup.pairs.leads, columns, identity, about)
    if store is None or (missing_ok and not store.exists):
        return sums, []
    if resume != "new":
        store.check_snapshots(about)
    kept, parts = store.load()
    parts = [part for part in parts if part.snapshots == snapshots_of(about)]
    sums.absorb(kept)
    sums.forget(~setup.pairs.wanted)
    return sums, parts


class Runner:
    """Carries a plan out.

    Parameters
    ----------
    plan : ScorePlan
    sums : State
        Where the sums go.
    store : StateStore, optional
        Where they are kept as well.
    parts : sequence of Part
        What is kept of pairs of which some rows are missing.
    """

    def __init__(
        self,
        plan: ScorePlan,
        sums: State,
        columns: Sequence[Column],
        store: StateStore | None = None,
        parts: Sequence[Part] = (),
        device: Any = None,
    ) -> None:
        self._plan, self._sums, self._store, self._parts = plan, sums, store, parts
        self._place = None if device is None else placer(device)
        self._numbers = sum(c.size for c in columns)
        #: memory of each worker
        self._own = threading.local()
        #: pairs of this run, and the place of each among them
        self._pairs = np.concatenate(plan.sweep.pieces) if plan.sweep.pieces else np.empty(0, np.int64)
        self._at = np.full(plan.setup.pairs.wanted.size, -1, np.int64)
        self._at[self._pairs] = np.arange(len(self._pairs))

    def run(self, *, progress: bool = False) -> None:
        """Read and measure all pieces."""
        if not len(self._pairs):
            return
        total: Sums | None = None
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(self._plan.workers, thread_name_prefix="insitu-score"))
            bar = stack.enter_context(progress_bar(self._plan.bytes_decoded)) if progress else None
            for rows in self._plan.sweep.bands:
                band = self._band(rows, pool, bar)
                total = band if total is None else total.merge(band)
        assert total is not None
        pairs = np.unravel_index(self._pairs, self._plan.setup.pairs.wanted.shape)
        self._sums.add((pairs[0], pairs[1]), total.total)
        if self._store is not None:
            self._store.finish(*self._labels(self._pairs), total.total, self._plan.setup.domain.shape[0])

    def _band(self, rows: slice, pool: ThreadPoolExecutor, bar: Any) -> Sums:
        """Sums of all pairs over some rows."""
        nodes: dict[Node, Float] = {}
        done = self._resumed(rows, nodes)
        pieces = [left for p in self._plan.sweep.pieces if len(left := p[~done[self._at[p]]])]
        writer = _Writer(self._store, self._covered(rows), self._labels)
        try:
            for piece, found in self._measured(rows, pieces, pool, bar):
                for node, values in found.items():
                    if node not in nodes:
                        nodes[node] = np.zeros((len(self._pairs), self._numbers))
                    nodes[node][self._at[piece]] = values
                writer.add(piece, found)
        finally:
            writer.write()
        return Sums(self._plan.setup.domain.shape[0], nodes)

    def _resumed(self, rows: slice, nodes: dict[Node, Float]) -> npt.NDArray[np.bool_]:
        """Take over what is kept of some rows; tells of which pairs."""
        done = np.zeros(len(self._pairs), bool)
        pairs = self._plan.setup.pairs
        for part in self._parts:
            if part.rows != self._covered(rows):
                continue
            init = np.searchsorted(pairs.inits, part.inits).clip(0, len(pairs.inits) - 1)
            lead = np.searchsorted(pairs.leads, part.leads).clip(0, len(pairs.leads) - 1)
            known = (pairs.inits[init] == part.inits) & (pairs.leads[lead] == part.leads)
            at = self._at[np.ravel_multi_index((init, lead), pairs.wanted.shape)]
            known &= at >= 0
            for name, values in part.nodes.items():
                height, index = map(int, name.split("."))
                node = nodes.setdefault((height, index), np.zeros((len(self._pairs), self._numbers)))
                node[at[known]] = values[known]
            done[at[known]] = True
        return done

    def _measured(
        self, rows: slice, pieces: Sequence[IntArray], pool: ThreadPoolExecutor, bar: Any
    ) -> Iterator[tuple[IntArray, dict[Node, Float]]]:
        plan = self._plan
        memory = {name: reading.memory for name, reading in plan.readings.items()}
        waiting: deque[Future[tuple[IntArray, dict[Node, Float]]]] = deque()
        with Streams(plan.setup.feeds, rows, plan.setup.grid, pieces, memory) as streams:
            try:
                for _ in pieces:
                    waiting.append(pool.submit(self._one, streams, rows))
                    if len(waiting) > plan.workers:
                        yield waiting.popleft().result()
                    if bar is not None:
                        bar.update(streams.new_bytes())
                while waiting:
                    yield waiting.popleft().result()
                if bar is not None:
                    bar.update(streams.new_bytes())
            except (Exception, KeyboardInterrupt):
                # What others have measured is worth keeping.
                yield from (f.result() for f in waiting if not f.cancel() and f.exception() is None)
                raise

    def _one(self, streams: Streams, rows: slice) -> tuple[IntArray, dict[Node, Float]]:
        """Read and measure the next piece; runs on a worker."""
        piece, fields = streams.next()
        points = self._plan.points if self._place is None else None
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        found = measure_pairs(self._plan.setup, piece, rows, fields, self._place, points, self._own.scratch)
        return piece, self._with_outer(rows, found)

    def _with_outer(self, rows: slice, nodes: dict[Node, Float]) -> dict[Node, Float]:
        """With the rows beside that lie in no region, which are not read: they add nothing."""
        whole, read = self._plan.setup.domain.shape[0], self._plan.setup.rows
        sums, shape = Sums(whole, nodes), next(iter(nodes.values())).shape
        if rows.start == read.start > 0:
            sums = sums.merge(Sums.of(np.zeros((read.start, *shape)), 0, whole))
        if rows.stop == read.stop < whole:
            sums = sums.merge(Sums.of(np.zeros((whole - read.stop, *shape)), read.stop, whole))
        return {**sums.nodes}

    def _covered(self, rows: slice) -> tuple[int, int]:
        """Rows that the sums of a band are of, those beside that are not read among them."""
        whole, read = self._plan.setup.domain.shape[0], self._plan.setup.rows
        return (0 if rows.start == read.start else rows.start), (whole if rows.stop == read.stop else rows.stop)

    def _labels(self, pairs: IntArray) -> tuple[IntArray, IntArray]:
        """Init and lead times of pairs."""
        init, lead = np.unravel_index(pairs, self._plan.setup.pairs.wanted.shape)
        return self._plan.setup.pairs.inits[init], self._plan.setup.pairs.leads[lead]


class _Writer:
    """Gathers sums, and writes them now and then."""

    def __init__(
        self, store: StateStore | None, rows: tuple[int, int], labels: Callable[[IntArray], tuple[IntArray, IntArray]]
    ) -> None:
        self._store, self._rows, self._labels = store, rows, labels
        self._held: list[tuple[IntArray, dict[Node, Float]]] = []
        self._since = time.monotonic()

    def add(self, piece: IntArray, nodes: dict[Node, Float]) -> None:
        if self._store is not None:
            self._held.append((piece, nodes))
            if time.monotonic() - self._since > WRITE_SECONDS:
                self.write()

    def write(self) -> None:
        """Write what is held."""
        if self._store is not None and self._held:
            pairs = np.concatenate([p for p, _ in self._held])
            names = self._held[0][1]
            joined = {f"{h}.{i}": np.concatenate([n[h, i] for _, n in self._held]) for h, i in names}
            self._store.write(Part(*self._labels(pairs), self._rows, joined))
            self._held = []
        self._since = time.monotonic()


def progress_bar(total: int) -> Any:
    """A bar of so many bytes."""
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="scoring")


def placer(device: Any) -> Callable[[npt.NDArray[Any]], Any]:
    """What takes arrays to a device of torch."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            'torch must be installed for device=, but got no such package; pip install "insitu-xr[torch]"'
        ) from error
    target = torch.device(device)
    return lambda values: torch.from_numpy(np.ascontiguousarray(values)).to(target)
