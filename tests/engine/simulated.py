"""A store in virtual time: latency, a rate of each read, and what all reads share."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from insitu_xr.engine.pacing import Pace


@dataclass(frozen=True)
class Store:
    latency: float
    #: of one read, and of all reads together
    rate: float = math.inf
    shared_rate: float = math.inf
    #: reads that are served at once, others wait; and reads under way above which more are refused
    servers: int | None = None
    refuses_above: int | None = None
    #: relative spread of the latency
    spread: float = 0.0


@dataclass
class Run:
    """Reads until as many as asked have landed; a refused one is tried again after a pause."""

    store: Store
    pace: Pace
    sizes: Callable[[random.Random], int] = lambda draw: 1_000_000
    #: reads that the caller wants at once, if fewer than the pace allows
    wanted: Callable[[float], int] = lambda now: 1 << 30
    seed: int = 0
    now: float = 0.0
    landings: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    limits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._events: list[tuple[float, int, float, int, str]] = []
        self._serial = self._at_store = 0
        self._pipe_free = 0.0
        self._free = [0.0] * (self.store.servers or 0)

    def _push(self, at: float, began: float, size: int, what: str) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, self._serial, began, size, what))

    def _ask(self, began: float, size: int) -> None:
        store = self.store
        latency = store.latency * max(0.1, self._draw.gauss(1.0, store.spread))
        if store.refuses_above is not None and self._at_store >= store.refuses_above:
            self._push(self.now + latency, began, size, "refused")
            return
        self._at_store += 1
        start = self.now
        if self._free:
            start = max(start, heapq.heappop(self._free))
        first = start + latency
        self._pipe_free = max(self._pipe_free, first) + size / store.shared_rate
        end = max(first + size / store.rate, self._pipe_free)
        if store.servers:
            heapq.heappush(self._free, end)
        self._push(end, began, size, "landed")

    def _launch(self) -> None:
        while self.pace.under_way < min(self.pace.limit, self.wanted(self.now)):
            self.pace.launched(self.now)
            self._ask(self.now, self.sizes(self._draw))

    def until(self, landed: int) -> Run:
        while len(self.landings) < landed:
            self._launch()
            at, _, began, size, what = heapq.heappop(self._events)
            self.now = at
            if what == "landed":
                self._at_store -= 1
                self.landings.append((self.now, size))
                self.pace.landed(self.now, self.now - began, size)
                self.limits.append(self.pace.limit)
            elif what == "refused":
                self.refused += 1
                self.pace.throttled(self.now)
                self._push(self.now + self._draw.uniform(0.1, 0.3), began, size, "again")
            else:
                self._ask(began, size)
        return self

    def throughput(self, first: int = 0) -> float:
        """Bytes per second, the first landings left out."""
        since = self.landings[first - 1][0] if first else 0.0
        return sum(size for _, size in self.landings[first:]) / (self.now - since)
