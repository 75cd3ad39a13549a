"""How many reads may be under way in a remote store, found out while reading; pure: time is passed in.

A *round* is as many landings as reads were under way when it began. At first the limit triples with every round, for as
long as the throughput grows with the number of reads under way. Then it stays at the smallest number that gave nearly
the most; now and then more are tried, to see whether that pays, and fewer, to see whether they do as well. Refusals by
the store lower it at once, whatever the phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from insitu_xr.engine.costs import Costs

#: reads allowed at first, and at most where nothing else is said
START, MOST = 64, 256
#: how much a landing raises the limit while it grows: it is three times as high after every round
GROWTH = 2
#: what a read costs beside its bytes, in bytes, so that small reads count as well
READ_BYTES = 1 << 16
#: growth pays if throughput grows by at least this power of the growth of what is under way
PAYS = 0.2
#: share of the best throughput that is good enough
ENOUGH = 0.9
#: how many times more or fewer are tried, after how many rounds at first and at most, and what fewer must give
PROBE, PROBE_DOWN, PATIENCE, MOST_PATIENCE, AS_GOOD = 1.5, 1.3, 8, 64, 0.97
#: landings of a round at least, since few say little, and what is not gone below to see whether fewer do as well
LEAST_ROUND, LEAST_PROBED = 16, 4.0
#: rounds in a row with quite another throughput, after which it is found out anew
ODD_ROUNDS = 3
#: a read that took so many times as long as the quickest waited for others, and is no reason to allow more
QUEUED = 2.0
#: what a refusal leaves of the limit, how fast it comes back, and to what share of the refused number
BACK_OFF, RECOVER, BELOW = 0.7, 1.05, 0.95
#: a refusal is forgotten after so many seconds without another
FORGET_SECONDS = 30.0
#: landings without a refusal before a slow read may be asked for twice
CALM = 64
#: gaps that are read over, in bytes
LEAST_GAP, MOST_GAP = 1 << 16, 8 << 20


class Phase(Enum):
    """What the limit is doing."""

    GROWING = "growing"
    #: grown without gain in the last round: one more decides
    DOUBTING = "doubting"
    HOLDING = "holding"
    #: more are allowed for two rounds, to see whether it pays, or fewer, to see whether they do as well
    PROBING = "probing"
    PINNED = "pinned"


@dataclass(slots=True)
class _Round:
    """Landings since it began, and reads under way multiplied by seconds."""

    began: float
    landings: int
    landed: int = 0
    work: float = 0.0
    busy: float = 0.0
    full: bool = False


class Pace:
    """How many reads may be under way.

    Not safe between threads: call it under one lock.

    Parameters
    ----------
    most : int
        Reads under way at most, whatever the throughput.
    pinned : int, optional
        Allow exactly so many.

    Examples
    --------
    >>> pace = Pace()
    >>> pace.limit
    64
    >>> for _ in range(64):
    ...     pace.launched(0.0)
    >>> for _ in range(64):
    ...     pace.landed(0.1, 0.1, 1_000_000)
    >>> pace.limit
    192
    >>> pace.throttled(0.2)
    >>> pace.limit
    67
    >>> Pace(pinned=4).limit
    4
    """

    def __init__(self, most: int = MOST, pinned: int | None = None) -> None:
        self.phase = Phase.GROWING if pinned is None else Phase.PINNED
        self.refusals = 0
        self._most = most if pinned is None else pinned
        self._limit = float(min(START, most) if pinned is None else pinned)
        self._under_way = 0
        self._seen_at = 0.0
        self._round: _Round | None = None
        self._was_full = False
        #: (reads under way, throughput) of the rounds since growing began
        self._tried: list[tuple[float, float]] = []
        self._base = 0.0
        self._odd_rounds = 0
        self._wait = self._patience = PATIENCE
        self._before_probe, self._upwards = self._limit, True
        self._refused_at: float | None = None
        self._refused = 0.0
        self._calm = CALM
        self._costs = Costs()

    @property
    def limit(self) -> int:
        """Reads that may be under way now."""
        return int(self._limit)

    @property
    def under_way(self) -> int:
        """Reads that are under way."""
        return self._under_way

    @property
    def latency_seconds(self) -> float:
        """Time that a read takes beside its bytes."""
        return self._costs.latency

    @property
    def bytes_per_second(self) -> float:
        """Rate at which one read brings its bytes."""
        return self._costs.rate

    @property
    def gap_bytes(self) -> int:
        """Bytes that are read over in the time that one more request would take."""
        return int(min(MOST_GAP, max(LEAST_GAP, self.latency_seconds * self.bytes_per_second)))

    @property
    def hedge_after(self) -> float | None:
        """Seconds after which a read is one of the slowest; None while unknown, or while the store refuses reads."""
        return self._costs.slow if self._calm >= CALM else None

    # -- what happens --------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Nothing is under way any more: reads that were given up do not land."""
        self._under_way, self._round = 0, None

    def launched(self, now: float) -> None:
        """A read was started."""
        if self._under_way == 0:
            self._round = None  # there was a pause, which is no fault of the store
        self._advance(now)
        self._under_way += 1
        if self._round is None:
            self._begin(now)
        elif self._under_way >= self.limit:
            self._round.full = True

    def landed(self, now: float, seconds: float, nbytes: int) -> None:
        """A read ended, whatever came of it, after so many seconds and with so many stored bytes."""
        self._advance(now)
        self._under_way = max(0, self._under_way - 1)
        self._calm += 1
        self._costs.add(seconds, nbytes)
        if self._round is None or self.phase is Phase.PINNED:
            return
        self._round.landed += 1
        self._round.work += nbytes + READ_BYTES
        wanted = self._round.full or self._was_full
        if self.phase is Phase.GROWING and wanted and seconds <= QUEUED * self._costs.least:
            self._allow(self._limit + GROWTH, now)
        if self._round.landed >= self._round.landings and now > self._round.began:
            self._judge(self._round, now)
            self._was_full = self._round.full
            self._begin(now)

    def throttled(self, now: float) -> None:
        """The store refused a read because there are too many."""
        self.refusals += 1
        self._calm = 0
        if self.phase is Phase.PINNED:
            return
        # Those that were on their way when the limit was lowered say nothing of the new one.
        if self._refused_at is not None and now < self._refused_at + max(2 * self._costs.mean, 0.05):
            return
        self._refused, self._refused_at = max(2.0, min(self._limit, self._under_way or self._limit)), now
        # While it grew fast, what the last round had under way is a better guess.
        known = self._tried[-1][0] if self._tried else math.inf
        self._limit = max(1.0, self._refused * max(BACK_OFF / 2, min(BACK_OFF, known / self._refused)))
        self._hold(0.0)
        self._begin(now)

    # -- rounds --------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._round is not None:
            self._round.busy += self._under_way * max(0.0, now - self._seen_at)
        self._seen_at = now

    def _begin(self, now: float) -> None:
        landings = max(self._under_way, self.limit, LEAST_ROUND)
        self._round = _Round(now, landings, full=self._under_way >= self.limit)

    def _allow(self, limit: float, now: float) -> None:
        """Raise the limit, up to a little below what was refused lately."""
        if self._refused_at is not None:
            if now < self._refused_at + FORGET_SECONDS:
                limit = min(limit, max(self._limit, BELOW * self._refused))
            else:
                self._refused_at = None
        self._limit = min(limit, float(self._most))

    def _judge(self, done: _Round, now: float) -> None:
        """What the round that ended says of the limit."""
        seconds = now - done.began
        busy, rate = done.busy / seconds, done.work / seconds
        if self.phase in (Phase.GROWING, Phase.DOUBTING):
            self._judge_growth(busy, rate)
        elif busy < 0.7 * self._limit:
            return  # nobody asked for more, so that the round says nothing of the store
        elif self.phase is Phase.PROBING:
            self._judge_probe(rate)
        else:
            self._judge_hold(rate, now)

    def _judge_growth(self, busy: float, rate: float) -> None:
        before, best = max(self._tried, key=lambda pair: pair[1], default=(busy, rate))
        grown, full = not self._tried or busy >= 1.1 * before, busy >= 0.8 * self._limit
        if not grown and not full:
            return  # not that many more than before: nothing can be said yet
        pays = grown and rate >= best * (busy / before) ** PAYS
        self._tried.append((busy, rate))
        if pays and full and self.limit >= self._most:
            self._hold(rate, MOST_PATIENCE)
        elif pays:
            self.phase = Phase.GROWING
        elif self.phase is Phase.GROWING:
            self.phase = Phase.DOUBTING
        else:
            best = max(rate for _, rate in self._tried)
            enough, rate = min(pair for pair in self._tried if pair[1] >= ENOUGH * best)
            self._limit = min(float(self._most), max(1.0, enough + 0.5))
            self._hold(rate)

    def _hold(self, base: float, patience: int = PATIENCE) -> None:
        self.phase, self._base, self._tried = Phase.HOLDING, base, []
        self._wait = self._patience = patience
        self._odd_rounds = 0

    def _judge_hold(self, rate: float, now: float) -> None:
        if self._base and not 0.5 < rate / self._base < 1.5:
            self._odd_rounds += 1
            if self._odd_rounds >= ODD_ROUNDS:  # another store, or other reads: find out anew
                self._limit = self._limit if rate > self._base else max(1.0, self._limit / 2)
                self.phase, self._odd_rounds = Phase.GROWING, 0
            return
        self._odd_rounds = 0
        self._base = rate if self._base == 0.0 else 0.7 * self._base + 0.3 * rate
        self._wait -= 1
        if self._refused_at is not None:
            self._allow(max(self._limit + 1, self._limit * RECOVER), now)
        elif self._wait <= 0:
            self._probe(now)

    def _probe(self, now: float) -> None:
        self.phase, self._wait, self._before_probe = Phase.PROBING, 2, self._limit
        can_rise, can_fall = self.limit < self._most, self._limit > LEAST_PROBED
        self._upwards = can_rise and not (self._upwards and can_fall)
        if self._upwards:
            self._allow(max(self._limit + 1, self._limit * PROBE), now)
        elif can_fall:
            self._limit = max(LEAST_PROBED, self._limit / PROBE_DOWN)

    def _judge_probe(self, rate: float) -> None:
        self._wait -= 1
        if self._wait > 0:
            return  # the first round began with as many reads as before
        self.phase = Phase.HOLDING
        wanted = (self._limit / self._before_probe) ** PAYS if self._upwards else AS_GOOD
        if rate >= self._base * wanted:
            self._base, self._wait, self._patience = rate, 1, PATIENCE
            self._upwards = not self._upwards  # the same way again
        else:
            self._limit = self._before_probe
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
            self._wait = self._patience
