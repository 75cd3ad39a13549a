"""What a read of a remote store takes, from those of late: latency, rate, and the time that only the slowest take."""

from __future__ import annotations

import math
from collections import deque

#: readings that the slowest share is taken from, how many it takes, and how often it is worked out
RECENT, ENOUGH_RECENT, REFRESH = 256, 32, 32
SLOWEST, SLOWER = 0.98, 2.0


class Costs:
    """What a read takes: a latency, and a time for its bytes."""

    #: weight that is left of a reading after the next, and by how much the least time of all grows old with each
    KEEP, AGE = 0.98, 1.0001
    #: seconds per byte before anything is known, the bytes after which more is known, and a latency
    GUESS, KNOWN, LATENCY = 1 / 50e6, float(1 << 17), 0.05

    def __init__(self) -> None:
        self._weight = self._bytes = self._seconds = 0.0
        self._least = (math.inf, 0)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._age = 0
        self.slow: float | None = None

    def add(self, seconds: float, nbytes: int) -> None:
        """Note a reading."""
        self._weight = self.KEEP * self._weight + 1
        self._bytes = self.KEEP * self._bytes + nbytes
        self._seconds = self.KEEP * self._seconds + seconds
        least = (self._least[0] * self.AGE, self._least[1])
        self._least = min(least, (seconds, nbytes))
        self._recent.append(seconds)
        self._age += 1
        if self._age >= REFRESH and len(self._recent) >= ENOUGH_RECENT:
            ordered, self._age = sorted(self._recent), 0
            middle, slow = (ordered[int(q * (len(ordered) - 1))] for q in (0.5, SLOWEST))
            self.slow = max(slow, SLOWER * middle)

    @property
    def least(self) -> float:
        """Seconds of the quickest read."""
        return self._least[0]

    @property
    def mean(self) -> float:
        """Mean seconds of a read."""
        return self._seconds / self._weight if self._weight else self.LATENCY

    @property
    def latency(self) -> float:
        """Seconds that a read takes beside its bytes: what the quickest took, less what its bytes may have taken."""
        seconds, nbytes = self._least
        return seconds - min(nbytes * self.GUESS, seconds / 2) if self._weight else self.LATENCY

    @property
    def rate(self) -> float:
        """Bytes per second of one read, beside the others that are under way."""
        nbytes = self._bytes / self._weight if self._weight else 0.0
        seconds = max(0.0, self.mean - self.latency) if self._weight else 0.0
        return (nbytes + self.KNOWN) / (seconds + self.KNOWN * self.GUESS)
