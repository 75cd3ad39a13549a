"""Carries the schedule of one epoch out: threads that pull the next thing to do from the board.

What is here called a batch is a step of the engine, which may hold several of the consumer's batches.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from insitu_xr.engine.board import Board, Load
from insitu_xr.engine.decode import GROUP_BYTES, Job
from insitu_xr.engine.gather import Part, arena_rows
from insitu_xr.engine.tasks import BatchPlace, Machine, OpenBatch, Place, Ready, SlotPlace, Task
from insitu_xr.engine.workers import Action, Workers
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import AccessGroup
from insitu_xr.plan.schedule import Residency
from insitu_xr.plan.spread import Spread

#: small reads that a thread takes at once, at most
GROUP_JOBS = 16
#: jobs that are planned beyond the one whose turn it is, once there are few
JOBS_AHEAD, FEW_JOBS = 64, 32
#: batches that are planned at once, and beyond those that may be open: many of them may need no read of their own
BATCHES_AT_ONCE, BATCHES_AHEAD = 16, 256
#: but no more than this for the places of their samples
AHEAD_BYTES = 1 << 20
#: more batches may be open once threads were idle for this part of the time for want of them
IDLE_PART = 0.1


class Executor(Workers):
    """One epoch under way.

    Parameters
    ----------
    machine : Machine
        Slots, readers and accounts of the loader.
    order : array of int64
        Samples in the order in which they are drawn.
    size : int
        Samples of a batch.
    walks : sequence of Residency
        The schedule of each access group that is kept in slots.
    spreads : sequence of Spread
        The visits of each other access group.
    depth, most : int
        Batches that may be open at first, and at most.
    """

    _m: Machine

    def __init__(
        self,
        machine: Machine,
        order: IntArray,
        size: int,
        walks: Sequence[Residency],
        spreads: Sequence[Spread],
        depth: int,
        most: int,
    ) -> None:
        super().__init__(machine)
        self._order, self._size = order, size
        self._walks, self._spreads, self._most = walks, spreads, most
        places = 8 * size * sum(len(store.group.columns) for store in machine.stores)
        self._ahead = min(BATCHES_AHEAD, AHEAD_BYTES // max(1, places))
        self._board: Board[Job, Part] = Board(-(-len(order) // size), depth)
        self._open: dict[int, OpenBatch] = {}
        self._ready = threading.Condition(self._lock)
        self._idle_seconds, self._asked_at = 0.0, time.perf_counter()
        self._handed = 0
        self._start()

    # -- the consumer's side -------------------------------------------------------------------------------------

    def next(self) -> Ready | None:
        """The next batch, None after the last; blocks until it is ready.

        Raises
        ------
        ReadError
            If a chunk that the batch needs could not be read or decoded.
        """
        began = time.perf_counter()
        with self._lock:
            # Whoever asks for a batch is done with the one before.
            self._board.ask()
            self._release(self._handed)
            self._handed = 0
            self._wake()
            while not self._board.deliverable():
                if self._closed or self._board.finished():
                    return None
                if (error := self._board.failure()) is not None:
                    raise error
                self._ready.wait()
            number = self._board.deliver()
            batch = self._open.pop(number)
            self._handed = self._m.gatherer.batch_bytes(len(batch.samples))
            self._widen(time.perf_counter() - began)
        return Ready(number, batch.samples, batch.arrays)

    def _widen(self, waited: float) -> None:
        """Let one more batch be open where both sides waited for one another."""
        now = time.perf_counter()
        part, self._asked_at = IDLE_PART * (now - self._asked_at), now
        if self._board.depth < self._most and min(waited, self._idle_seconds / len(self._threads)) > part:
            self._board.depth += 1
        self._idle_seconds = 0.0
        self._m.meter.add(wait_seconds=waited)

    def close(self) -> bool:
        """Stop, and wait for what is under way.

        Returns
        -------
        bool
            False if a thread was still stuck in a read after ``limits.close_seconds``; the slots must then not be
            used again, since that thread may yet write into one.
        """
        if self.forked:
            return False  # the threads are the parent's, and so may be a lock that was held at the fork
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._ready.notify_all()
        quiet = self._stop()  # releases what is held
        with self._lock:
            self._open.clear()
        return quiet

    # -- the threads' side ---------------------------------------------------------------------------------------

    def _broken(self, error: BaseException) -> None:
        self._board.fail(self._board.gathered, error)

    def _rest(self) -> None:
        """Wait until there is something to do; called under the lock."""
        blocked, began = self._board.blocked(), time.perf_counter()
        self._idle += 1
        self._work.wait()
        self._idle -= 1
        idle = time.perf_counter() - began
        self._idle_seconds += idle if blocked == "consumer" else 0.0
        if stage := blocked or ("store" if self._remote.under_way else ""):
            self._m.meter.add(**{f"{stage}_seconds": idle})

    def _wake(self) -> None:
        """Tell who waits that there is something for them, one thread at a time; called under the lock."""
        board = self._board
        if board.deliverable() or board.delivered >= board.end or self._closed:
            self._ready.notify()
        found = board.peek_read()
        # A thread that is told of a read which there is no room for would tell the next before it rests, and so on.
        read = found is not None and self._has_room(found[1])
        waits = self._arrived or board.has_part() or read or board.gather_ready() is not None
        if self._idle and (waits or board.lacks_plan(FEW_JOBS)):
            self._work.notify()

    def _next_action(self) -> Action | None:
        """The next thing to do, called under the lock: gather, else place what arrived, else read."""
        board = self._board
        self._plan_ahead()
        self._begin_ready()
        if (part := board.take_part()) is not None:
            number, piece = part
            batch = self._open[number]
            return lambda: self._gather(number, piece, batch)
        while not self._arrived and (task := self._next_read()) is not None:
            if task.job.source.synchronous:
                return self._group(task)
            self._launch(task)
            self._plan_ahead()
        return self._next_placing()

    def _plan_ahead(self) -> None:
        """Plan more where few jobs are left: many batches at once, for the first costs several times what others do.

        The first read waits for the first batch alone, and a batch that may be delivered for no more than are open.
        """
        board = self._board
        if board.planned and board.queued > FEW_JOBS:
            return
        jobs, batches = (JOBS_AHEAD, BATCHES_AT_ONCE) if board.planned else (1, 1)
        while board.wants_plan(jobs, self._ahead) and (batches > 0 or board.lacks_plan(FEW_JOBS)):
            self._plan_batch()
            batches -= 1

    def _plan_batch(self) -> None:
        number = self._board.planned
        samples = self._order[number * self._size : (number + 1) * self._size]
        loads: list[Load[Job]] = []
        rows, hits = [], 0
        for walk, store in zip(self._walks, self._m.stores, strict=True):
            before = walk.hits
            for fetch in walk.step(number):
                place: Place = SlotPlace(store, fetch.slot, fetch.unit)
                loads.append(Load(number, fetch.after, self._jobs(store.group, fetch.unit), where=place))
            hits += walk.hits - before
            rows.append(arena_rows(self._m.gatherer.request, store.group, walk, number, samples))
        for spread in self._spreads:
            for visit in spread.step(number):
                jobs, place = self._jobs(spread.group, visit.unit), BatchPlace(visit.copies, {}, self._m.gatherer)
                loads.append(Load(number, -1, jobs, visit.last, tuple(visit.copies), place))
        self._m.meter.add(hits=hits)
        self._planned(number, samples).rows = rows
        self._board.plan(loads)

    def _jobs(self, group: AccessGroup, unit: int) -> deque[Job]:
        return deque(job for layout in group.layouts for job in self._m.readers[layout.spec.name].jobs(unit))

    def _planned(self, number: int, samples: IntArray | None = None) -> OpenBatch:
        """A batch that is planned, or that something is written into before it is."""
        if number not in self._open:
            if samples is None:
                samples = self._order[number * self._size : (number + 1) * self._size]
            self._open[number] = OpenBatch(samples, [], {})
        return self._open[number]

    def _allocated(self, number: int) -> OpenBatch:
        """A batch that can be written into."""
        batch = self._planned(number)
        if not batch.arrays:
            self._hold(self._m.gatherer.batch_bytes(len(batch.samples)))
            batch.arrays.update(self._m.gatherer.allocate(len(batch.samples)))
        return batch

    def _begin_ready(self) -> None:
        """Begin what can be gathered now, so that a batch that needs no more work is seen at once."""
        while not self._closed and (number := self._board.gather_ready()) is not None:
            batch = self._allocated(number)
            self._board.begin_gather(self._m.gatherer.parts(len(batch.samples)))

    def _has_room(self, job: Job) -> bool:
        return job.source.synchronous or self._remote.has_room(job)

    def _next_read(self) -> Task | None:
        """The read whose turn it is, if there is room for it."""
        found = self._board.peek_read()
        if found is None:
            return None
        load, job = found
        if not self._has_room(job):
            return None
        place: Place = load.where
        if not load.begun:
            if isinstance(place, SlotPlace):
                # Slots stay resident until the loader closes, so they are not among what close() releases.
                self._m.ledger.hold(place.store.begin(place.slot))
            else:
                place.batches = {number: self._allocated(number) for number in place.copies}
        self._board.take_read()
        return Task(load, job, place.sink(job))

    def _group(self, first: Task) -> Action:
        """The action that carries out a read, together with those that follow where all of them are small.

        What is paid per action, the lock and the waking of others, is then paid once for several chunks; but never so
        many that another thread is left without any, nor any of a later batch, which this one would wait for.
        """
        tasks, size = [first], first.job.decoded_bytes
        most = min(GROUP_JOBS, self._board.queued // (2 * len(self._threads)))
        while len(tasks) < most and (found := self._board.peek_read()) is not None:
            load, job = found
            size += job.decoded_bytes
            if size > GROUP_BYTES or load.batch != first.load.batch or not job.source.synchronous:
                break
            task = self._next_read()
            assert task is not None
            tasks.append(task)
        return self._reading(tasks)

    def _finished(self, task: Task) -> None:
        if self._board.read_done(task.load) and isinstance(task.load.where, SlotPlace):
            task.load.where.store.finish(task.load.where.slot, task.load.where.unit)

    def _failed(self, task: Task, error: BaseException) -> None:
        self._board.fail(task.load.batch, error)

    # -- outside the lock; returns what is left to note under it --------------------------------------------------

    def _gather(self, number: int, part: Part, batch: OpenBatch) -> Callable[[], None]:
        began, failure = time.perf_counter(), None
        try:
            self._m.gatherer.run(part, batch.samples, batch.rows, batch.arrays)
        except BaseException as error:
            failure = error
        took = time.perf_counter() - began

        def note() -> None:
            if failure is not None:
                self._board.fail(number, failure)
            else:
                self._m.meter.add(gather_seconds=took)
                self._board.part_done(number)
            self._wake()

        return note
