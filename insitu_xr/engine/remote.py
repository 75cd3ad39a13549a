"""Reads of one epoch in a store that is read on zarr's loop: how many may be under way, and how large together."""

from __future__ import annotations

import time
from collections.abc import Callable

from insitu_xr.engine.decode import Job
from insitu_xr.engine.failing import Retry, retried
from insitu_xr.engine.fetch import Fetched
from insitu_xr.engine.flights import Flight, Flights
from insitu_xr.engine.pacing import Pace
from insitu_xr.limits import Limits

#: a read of several chunks of a shard may take this part of the bytes in flight, for gaps that it reads over
GAP_PART = 64


class RemoteReads:
    """Starts reads at the pace that pays.

    Not thread-safe: the owner guards it with its lock.

    Parameters
    ----------
    pace : Pace
        What was found out about the store, also in earlier epochs.
    limits : Limits
        How often to try, and whether to ask twice.
    most_bytes : int
        Decoded bytes that the reads under way may stand for; one read is always allowed.

    Attributes
    ----------
    under_way : int
        Reads that have not landed.
    """

    def __init__(self, pace: Pace, limits: Limits, most_bytes: int) -> None:
        self._pace, self._limits, self._most_bytes = pace, limits, most_bytes
        self._flights = Flights()
        self._bytes = 0
        self.under_way = 0
        pace.restart()

    def has_room(self, job: Job) -> bool:
        """Whether one more read may be started."""
        if not self._bytes:
            return True
        return self.under_way < self._pace.limit and self._bytes + self.bytes_of(job) <= self._most_bytes

    def bytes_of(self, job: Job) -> int:
        """What a read may hold: its chunks, and gaps between them in a shard that cost less than another request."""
        return max(job.raw_bytes, min(job.object_bytes, self._most_bytes // GAP_PART) if len(job.cells) > 1 else 0)

    def launch(
        self,
        job: Job,
        refused: Callable[[], None],
        land: Callable[[float, Fetched | None, BaseException | None], None],
    ) -> Flight:
        """Start a read; returns at once.

        Parameters
        ----------
        refused : callable
            Called on the loop when the store refuses the read for now.
        land : callable
            Called on the loop when it ends, with the time it began at, and what it brought or the error.
        """
        began, pace = time.perf_counter(), self._pace
        room = self.bytes_of(job)
        self._bytes += room
        self.under_way += 1
        pace.launched(began)
        policy = Retry.of(self._limits, patient_store=job.source.patient)
        return self._flights.launch(
            lambda: retried(lambda: job.source.aread(job.chunks, pace.gap_bytes, room), policy, refused),
            lambda *end: land(began, *end),
            pace.hedge_after if self._limits.hedge else None,
        )

    def give_up(self, flight: Flight) -> None:
        """Cancel a read; it lands all the same, with an error."""
        self._flights.give_up(flight)

    def refused(self) -> None:
        """The store refuses reads for now."""
        self._pace.throttled(time.perf_counter())

    def landed(self, began: float, fetched: Fetched | None) -> float:
        """A read has ended; returns the seconds that it took. Its bytes count until it is placed."""
        self.under_way -= 1
        now = time.perf_counter()
        self._pace.landed(now, now - began, fetched.bytes if fetched is not None else 0)
        return now - began

    def placed(self, job: Job) -> None:
        """What a read brought is not held any more."""
        self._bytes -= self.bytes_of(job)

    def stop(self, timeout: float) -> bool:
        """Cancel what is under way and wait for its end; returns whether all ended in time. Idempotent."""
        return self._flights.stop(timeout)
