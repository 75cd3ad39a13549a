"""The state of one epoch under way: pure transitions, without locks, threads or I/O.

Batches are gathered and delivered in order. A read into a slot may start once the batch that last needs the slot has
been gathered; a read that is written into batches may start once all of them are among the batches that may be open. A
batch may be gathered once all its reads are in place. Every cycle of waiting is broken by construction: the reads of a
batch wait only for earlier batches, and those wait only for reads that stand earlier in the queue.

::

    planned --reads--> placed --gather--> gathered --consumer--> delivered
       |                                      |                      |
       +------- slots freed by gathering <----+                      |
       +------- batches opened by delivering <-----------------------+
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Work = TypeVar("Work")
Piece = TypeVar("Piece")

#: why nothing can be read just now
Blocked = Literal["", "memory", "consumer"]


@dataclass(slots=True, eq=False)
class Load[Work]:
    """One unit on its way, as jobs.

    Attributes
    ----------
    batch, last : int
        The first and the last batch that it is written into; the same where it goes into a slot.
    after : int
        It may start once this batch has been gathered.
    feeds : tuple of int
        The batches that wait for it.
    where : object
        What the owner needs to know about its place.
    """

    batch: int
    after: int
    jobs: deque[Work]
    last: int = -1
    feeds: tuple[int, ...] = ()
    where: Any = None
    outstanding: int = 0
    begun: bool = False

    def __post_init__(self) -> None:
        self.outstanding = len(self.jobs)
        self.feeds = self.feeds or (self.batch,)


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
        Batches that may be written to, or be ready, from the one on that the consumer asked for last. The one before
        it may still be in the consumer's hands.

    Notes
    -----
    Not thread-safe; the executor guards it with one lock.
    """

    def __init__(self, n_batches: int, depth: int) -> None:
        self.n_batches, self.depth = n_batches, depth
        self.planned = self.gathering = self.gathered = self.delivered = self.asked = 0
        self.failures: dict[int, BaseException] = {}
        self._batches: dict[int, _Batch[Piece]] = {}
        #: loads that batches wait for which are not planned themselves yet
        self._early: Counter[int] = Counter()
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
        return min(self.failures) if self.failures else self.n_batches

    @property
    def queued(self) -> int:
        """Jobs that are planned and have not started."""
        return self._queued_jobs

    # -- planning ------------------------------------------------------------------------------------------------

    def wants_plan(self, jobs_ahead: int, batches_ahead: int) -> bool:
        """Whether the next batch should be planned: the queue is short, and the batch will be wanted before long."""
        return self._queued_jobs < jobs_ahead and self.planned < min(self.end, self.asked + self.depth + batches_ahead)

    def lacks_plan(self, few: int) -> bool:
        """Whether few jobs are left, and batches that may be open are not planned: nothing else may happen."""
        return self._queued_jobs <= few and self.planned < min(self.end, self.asked + self.depth)

    def plan(self, loads: list[Load[Work]]) -> None:
        """Add the next batch with the loads that it needs first."""
        number = self.planned
        batch: _Batch[Piece] = _Batch(self._early.pop(number, 0))
        self._batches[number] = batch
        for load in loads:
            self._queue.append(load)
            self._queued_jobs += len(load.jobs)
            for fed in load.feeds:
                if fed == number:
                    batch.loads += 1
                else:
                    self._early[fed] += 1
        self.planned += 1

    # -- reading -------------------------------------------------------------------------------------------------

    def peek_read(self) -> tuple[Load[Work], Work] | None:
        """The read whose turn it is, if there is room for it."""
        if not self._queue or self.blocked():
            return None
        load = self._queue[0]
        return None if load.batch >= self.end else (load, load.jobs[0])

    def blocked(self) -> Blocked:
        """What the next read waits for: room in the slots, or the consumer."""
        if not self._queue:
            waits = self.gathering - self.asked >= self.depth and self.planned < self.n_batches
            return "consumer" if waits else ""
        load = self._queue[0]
        if load.last >= self.asked + self.depth:
            return "consumer"
        if load.after >= self.gathered:
            return "consumer" if load.after >= self.asked + self.depth else "memory"
        return ""

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
        for fed in load.feeds:
            if fed < self.planned:
                self._batches[fed].loads -= 1
            else:
                self._early[fed] -= 1
        return True

    def fail(self, batch: int, error: BaseException) -> None:
        """A batch cannot be made; the batches before it still can."""
        self.failures.setdefault(batch, error)

    # -- gathering -----------------------------------------------------------------------------------------------

    def gather_ready(self) -> int | None:
        """The batch whose gathering may begin, if any."""
        number = self.gathering
        if number >= min(self.planned, self.end, self.asked + self.depth):
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

    def has_part(self) -> bool:
        """Whether a part waits to be copied."""
        return any(self._batches[k].parts for k in range(self.gathered, self.gathering) if k < self.end)

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

    def ask(self) -> None:
        """The consumer wants its next batch, so it is done with the one before."""
        self.asked = self.delivered

    def deliver(self) -> int:
        """The consumer takes its next batch; returns its number."""
        self.delivered += 1
        return self.delivered - 1
