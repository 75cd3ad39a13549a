"""The state of one epoch under way: pure transitions, without locks, threads or I/O.

Batches are gathered and delivered in order. A read may start once the batch that last needs its slot has been
gathered; a batch may be gathered once all its reads are in place and a place among the prefetched batches is free.
Every cycle of waiting is broken by construction: the reads of a batch wait only for earlier batches, and those wait
only for reads that stand earlier in the queue.

::

    planned --reads--> placed --gather--> gathered --consumer--> delivered
       |                                      |
       +------- slots freed by gathering <----+
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

Work = TypeVar("Work")
Piece = TypeVar("Piece")


@dataclass(slots=True, eq=False)
class Load[Work]:
    """One unit on its way into a slot, as jobs."""

    batch: int
    after: int
    jobs: deque[Work]
    outstanding: int = 0
    begun: bool = False

    def __post_init__(self) -> None:
        self.outstanding = len(self.jobs)


@dataclass(slots=True, eq=False)
class _Batch[Piece]:
    loads: int
    parts: deque[Piece] = field(default_factory=deque)
    outstanding: int = -1  # parts not yet gathered; -1 before gathering began


class Board[Work, Piece]:
    """Which read and which gather may start next.

    Parameters
    ----------
    n_batches : int
        Batches of the epoch.
    depth : int
        Batches that may be gathered, or be in gathering, before the consumer takes them.

    Notes
    -----
    Not thread-safe; the executor guards it with one lock.
    """

    def __init__(self, n_batches: int, depth: int) -> None:
        self.n_batches, self.depth = n_batches, depth
        self.planned = self.gathering = self.gathered = self.delivered = 0
        self.failures: dict[int, BaseException] = {}
        self._batches: dict[int, _Batch[Piece]] = {}
        self._queue: deque[Load[Work]] = deque()
        self._queued_jobs = 0

    def __repr__(self) -> str:
        return (
            f"Board(planned={self.planned}, gathering={self.gathering}, gathered={self.gathered}, "
            f"delivered={self.delivered}, queued={self._queued_jobs}, failed={sorted(self.failures)})"
        )

    @property
    def end(self) -> int:
        """The first batch that will not be delivered."""
        return min(self.failures, default=self.n_batches)

    @property
    def queued(self) -> int:
        """Jobs that are planned and have not started."""
        return self._queued_jobs

    # -- planning ------------------------------------------------------------------------------------------------

    def wants_plan(self, jobs_ahead: int) -> bool:
        """Whether the next batch should be planned: the queue is short and the batch will be wanted."""
        return self.planned < self.end and self._queued_jobs < jobs_ahead

    def plan(self, loads: list[Load[Work]]) -> None:
        """Add the next batch with the loads that it needs first."""
        self._batches[self.planned] = _Batch(len(loads))
        for load in loads:
            self._queue.append(load)
            self._queued_jobs += len(load.jobs)
        self.planned += 1

    # -- reading -------------------------------------------------------------------------------------------------

    def peek_read(self) -> tuple[Load[Work], Work] | None:
        """The read whose turn it is, if its slot is free."""
        if not self._queue:
            return None
        load = self._queue[0]
        if load.after >= self.gathered or load.batch >= self.end:
            return None
        return load, load.jobs[0]

    def take_read(self) -> None:
        """The read that was peeked at has started."""
        load = self._queue[0]
        load.begun = True
        load.jobs.popleft()
        self._queued_jobs -= 1
        if not load.jobs:
            self._queue.popleft()

    def read_done(self, load: Load[Work]) -> bool:
        """A job of a load is in place; returns whether the load is complete."""
        load.outstanding -= 1
        if load.outstanding:
            return False
        self._batches[load.batch].loads -= 1
        return True

    def fail(self, batch: int, error: BaseException) -> None:
        """A batch cannot be made; the batches before it still can."""
        self.failures.setdefault(batch, error)

    # -- gathering -----------------------------------------------------------------------------------------------

    def gather_ready(self) -> int | None:
        """The batch whose gathering may begin, if any."""
        number = self.gathering
        if number >= min(self.planned, self.end, self.delivered + self.depth):
            return None
        return number if self._batches[number].loads == 0 else None

    def begin_gather(self, parts: list[Piece]) -> None:
        """Gathering of the next batch begins, in these parts."""
        batch = self._batches[self.gathering]
        batch.parts.extend(parts)
        batch.outstanding = len(parts)
        self.gathering += 1
        self._advance()

    def take_part(self) -> tuple[int, Piece] | None:
        """A part of the earliest batch that has one left."""
        for number in range(self.gathered, self.gathering):
            parts = self._batches[number].parts
            if parts and number < self.end:
                return number, parts.popleft()
        return None

    def part_done(self, number: int) -> None:
        """A part is copied."""
        self._batches[number].outstanding -= 1
        self._advance()

    def _advance(self) -> None:
        # A failed batch is never gathered, so that what waits for it does not start.
        while self.gathered < min(self.gathering, self.end) and self._batches[self.gathered].outstanding == 0:
            del self._batches[self.gathered]
            self.gathered += 1

    # -- delivering ----------------------------------------------------------------------------------------------

    def deliverable(self) -> bool:
        """Whether the consumer's next batch is ready."""
        return self.delivered < self.gathered

    def failure(self) -> BaseException | None:
        """The error to raise instead of the consumer's next batch, if it is one that failed."""
        return self.failures.get(self.delivered) if not self.deliverable() else None

    def finished(self) -> bool:
        """Whether every batch was delivered."""
        return self.delivered >= self.n_batches

    def deliver(self) -> int:
        """The consumer takes its next batch; returns its number."""
        self.delivered += 1
        return self.delivered - 1
