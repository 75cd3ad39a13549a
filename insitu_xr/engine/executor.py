"""Carries the schedule of one epoch out: threads that pull the next thing to do from the board.

Lock order: there is one lock per executor (``_changed``); store, codecs and user code are never called under it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from insitu_xr.engine.board import Board, Load
from insitu_xr.engine.decode import Job
from insitu_xr.engine.fetch import Fetched
from insitu_xr.engine.flights import Flights, on_event_loop
from insitu_xr.engine.gather import Gather
from insitu_xr.engine.slots import SlotStore
from insitu_xr.engine.tasks import Counts, Machine, OpenBatch, Ready, Task, failure_of
from insitu_xr.errors import ReadError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import sample_coordinates
from insitu_xr.plan.schedule import Residency

#: small reads that a thread takes at once, and the bytes of their chunks, at most
GROUP_JOBS = 16
GROUP_BYTES = 2 << 20
#: jobs that are planned beyond the one whose turn it is
JOBS_AHEAD = 256


class Executor:
    """One epoch under way.

    Parameters
    ----------
    machine : Machine
        Slots, readers and accounts of the loader.
    order : array of int64
        Samples in the order in which they are drawn.
    n_batches : int
        Batches of the epoch.
    walks : sequence of Residency
        The schedule of each access group.
    """

    def __init__(self, machine: Machine, order: IntArray, n_batches: int, walks: Sequence[Residency]) -> None:
        self._m = machine
        self._order, self._walks = order, walks
        self._batch_size = machine.gatherer.request.batch_size
        self._board: Board[tuple[SlotStore, Job], Gather] = Board(n_batches, machine.depth)
        self._open: dict[int, OpenBatch] = {}
        self._changed = threading.Condition()
        self._arrived: deque[tuple[Task, Fetched]] = deque()
        self._flights = Flights()
        self._inflight = 0
        self._inflight_bytes = 0
        self._closed = False
        self._held = 0
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._work, name=f"insitu-{k}", daemon=True) for k in range(machine.threads)
        ]
        for thread in self._threads:
            thread.start()

    # -- the consumer's side -------------------------------------------------------------------------------------

    def next(self) -> Ready | None:
        """The next batch, None after the last; blocks until it is ready.

        Raises
        ------
        ReadError
            If a chunk that the batch needs could not be read or decoded.
        """
        began = time.perf_counter()
        with self._changed:
            while not self._board.deliverable():
                if self._closed or self._board.finished():
                    return None
                if (error := self._board.failure()) is not None:
                    raise error
                self._changed.wait()
            number = self._board.deliver()
            batch = self._open.pop(number)
            self._release(self._m.gatherer.batch_bytes(len(batch.samples)))
            waited = time.perf_counter() - began
            self._m.meter.add(batches=1, samples=len(batch.samples), wait_seconds=waited)
            self._changed.notify_all()
        return Ready(number, batch.samples, batch.arrays)

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process whose threads carry the epoch out."""
        return os.getpid() != self._process

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
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + self._m.limits.close_seconds
        quiet = self._flights.stop(self._m.limits.close_seconds)
        # Garbage may be collected on any thread: none may wait for itself, nor the loop for those that wait for it.
        for thread in self._threads:
            if thread is not threading.current_thread() and not on_event_loop():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            self._release(self._held)
            self._open.clear()
            self._arrived.clear()
        return quiet and not any(t.is_alive() for t in self._threads)

    # -- the threads' side ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (action := None if self._closed else self._next_action()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
            action()

    def _next_action(self) -> Callable[[], None] | None:
        """The next thing to do, called under the lock: gather, else place what arrived, else read."""
        board = self._board
        try:
            while board.wants_plan(JOBS_AHEAD):
                self._plan_batch()
            while (ready := board.gather_ready()) is not None:
                self._begin_gather(ready)
            if (part := board.take_part()) is not None:
                number, piece = part
                batch = self._open[number]
                return lambda: self._gather(number, piece, batch)
            while not self._arrived and (task := self._next_read()) is not None:
                if task.job.source.synchronous:
                    return self._group(task)
                self._launch(task)
        except BaseException as error:  # whatever it is, the consumer must see it rather than wait for ever
            board.fail(board.gathered, error)
            self._changed.notify_all()
            return None
        if self._arrived:
            landed, fetched = self._arrived.popleft()
            return lambda: self._place(landed, fetched)
        return None

    def _plan_batch(self) -> None:
        number = self._board.planned
        samples = self._order[number * self._batch_size : (number + 1) * self._batch_size]
        loads, rows, hits = [], [], 0
        for walk, store in zip(self._walks, self._m.stores, strict=True):
            before = walk.hits
            for fetch in walk.step(number):
                jobs = [
                    (store, job)
                    for layout in store.group.layouts
                    for job in self._m.readers[layout.spec.name].jobs(fetch.unit, fetch.slot)
                ]
                loads.append(Load(number, fetch.after, deque(jobs)))
            hits += walk.hits - before
            rows.append(self._arena_rows(store, walk, number, samples))
        self._m.meter.add(hits=hits)
        self._open[number] = OpenBatch(samples, rows, {})
        self._board.plan(loads)
        # Another thread may find something to do in what was just planned.
        self._changed.notify_all()

    def _arena_rows(self, store: SlotStore, walk: Residency, number: int, samples: IntArray) -> IntArray:
        """Row in the arena of every sample and column; slots as they are when this batch is gathered."""
        uses, layout = walk.uses, store.group.first
        units = uses.units[uses.bounds[number] : uses.bounds[number + 1]]
        slots = np.array([walk.slot_of[u] for u in units.tolist()], np.int64)
        out = np.zeros((len(samples), len(store.group.columns)), np.int64)
        for k, column in enumerate(store.group.columns):
            coordinates = sample_coordinates(self._m.gatherer.request, layout, samples, column)
            unit, row = layout.locate(coordinates)
            out[:, k] = slots[np.searchsorted(units, unit)] * layout.slot_rows + row
        return out

    def _begin_gather(self, number: int) -> None:
        batch = self._open[number]
        self._hold(self._m.gatherer.batch_bytes(len(batch.samples)))
        batch.arrays.update(self._m.gatherer.allocate(len(batch.samples)))
        self._board.begin_gather(self._m.gatherer.parts(len(batch.samples)))
        self._changed.notify_all()

    def _next_read(self) -> Task | None:
        """The read whose turn it is, if there is room for it."""
        found = self._board.peek_read()
        if found is None:
            return None
        load, (store, job) = found
        if not job.source.synchronous and self._inflight_bytes:
            full = self._inflight >= self._m.limits.max_inflight
            if full or self._inflight_bytes + job.raw_bytes > self._m.inflight_bytes:
                return None
        if not load.begun:
            # Slots stay resident until the loader closes, so they are not among what close() releases.
            self._m.ledger.hold(store.begin(job.slot))
        self._board.take_read()
        return Task(load, store, job)

    def _group(self, first: Task) -> Callable[[], None]:
        """The action that carries out a read, together with those that follow where all of them are small.

        What is paid per action, the lock and the waking of others, is then paid once for several chunks; but never so
        many that another thread is left without any.
        """
        tasks, size = [first], first.job.raw_bytes
        most = min(GROUP_JOBS, self._board.queued // (2 * len(self._threads)))
        while len(tasks) < most and (found := self._board.peek_read()) is not None:
            job = found[1][1]
            size += job.raw_bytes
            if size > GROUP_BYTES or not job.source.synchronous:
                break
            task = self._next_read()
            assert task is not None
            tasks.append(task)
        # One chunk after another: what the largest of them needs is what the group needs.
        held = max(task.job.raw_bytes + task.job.reader.layout.place_bytes for task in tasks)
        self._hold(held)
        return lambda: self._read(tasks, held)

    def _hold(self, count: int) -> None:
        self._held += count
        self._m.ledger.hold(count)

    def _release(self, count: int) -> None:
        self._held -= count
        self._m.ledger.release(count)

    # -- actions, outside the lock -------------------------------------------------------------------------------

    def _read(self, tasks: Sequence[Task], held: int) -> None:
        """Read and place on this thread."""
        done: list[tuple[Task, Counts]] = []
        failed: list[tuple[Task, ReadError]] = []
        for task in tasks:
            counts = Counts()
            try:
                with counts.timed("read_seconds"):
                    fetched = task.job.source.read(task.job.chunks)
            except BaseException as error:
                failed.append((task, failure_of(task, error, "read")))
                continue
            try:
                self._put(task, fetched, counts)
            except BaseException as error:
                failed.append((task, failure_of(task, error, "decoded")))
                continue
            done.append((task, counts))
        with self._changed:
            self._release(held)
            for task, counts in done:
                self._placed(task, counts)
            for task, failure in failed:
                self._board.fail(task.load.batch, failure)
            self._changed.notify_all()

    def _put(self, task: Task, fetched: Fetched, counts: Counts) -> None:
        """Decode into the slot."""
        job, layout = task.job, task.job.reader.layout
        with counts.timed("decode_seconds"):
            absent, decoded = job.reader.place(job, fetched, task.store.arenas[layout.spec.name][job.slot])
        n = len(job.chunks)
        counts.add(reads=n, gets=fetched.gets, bytes_read=fetched.bytes, absent=absent)
        counts.add(decodes=n - absent, bytes_decoded=decoded)

    def _placed(self, task: Task, counts: Counts) -> None:
        """A job is in its slot; called under the lock."""
        self._m.meter.add(**counts.totals)
        if self._board.read_done(task.load):
            task.store.finish(task.job.slot, task.job.unit)

    def _launch(self, task: Task) -> None:
        """Start a read on zarr's loop; called under the lock, returns at once."""
        began, job = time.perf_counter(), task.job
        self._hold(job.raw_bytes)
        self._inflight_bytes += job.raw_bytes
        self._inflight += 1
        self._flights.launch(lambda: job.source.aread(job.chunks), lambda *end: self._landed(task, began, *end))

    def _landed(self, task: Task, began: float, fetched: Fetched | None, error: BaseException | None) -> None:
        with self._changed:
            self._inflight -= 1
            if self._closed:
                return
            self._m.meter.add(read_seconds=time.perf_counter() - began)
            if fetched is not None:
                self._arrived.append((task, fetched))
                self._changed.notify_all()
                return
        assert error is not None
        self._failed(task, failure_of(task, error, "read"), task.job.raw_bytes)

    def _place(self, task: Task, fetched: Fetched) -> None:
        """Place what arrived from the loop."""
        counts, job, scratch = Counts(), task.job, task.job.reader.layout.place_bytes
        try:
            with self._changed:
                self._hold(scratch)
            self._put(task, fetched, counts)
        except BaseException as error:
            self._failed(task, failure_of(task, error, "decoded"), job.raw_bytes + scratch)
            return
        with self._changed:
            self._release(job.raw_bytes + scratch)
            self._inflight_bytes -= job.raw_bytes
            self._placed(task, counts)
            self._changed.notify_all()

    def _failed(self, task: Task, failure: ReadError, held: int) -> None:
        """A read on the loop, or what it brought, failed."""
        with self._changed:
            self._release(held)
            self._inflight_bytes -= task.job.raw_bytes
            self._board.fail(task.load.batch, failure)
            self._changed.notify_all()

    def _gather(self, number: int, part: Gather, batch: OpenBatch) -> None:
        began = time.perf_counter()
        try:
            self._m.gatherer.run(part, batch.samples, batch.rows, batch.arrays)
        except BaseException as error:
            with self._changed:
                self._board.fail(number, error)
                self._changed.notify_all()
            return
        with self._changed:
            self._m.meter.add(gather_seconds=time.perf_counter() - began)
            self._board.part_done(number)
            self._changed.notify_all()
