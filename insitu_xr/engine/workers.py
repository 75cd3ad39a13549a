"""Threads that pull the next thing to do: what epochs and random access have in common.

Lock order: there is one lock per pool of threads; store, codecs and user code are never called under it.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from insitu_xr.engine.carrying import Tally, carry_out, failure_of
from insitu_xr.engine.fetch import Fetched
from insitu_xr.engine.flights import on_event_loop
from insitu_xr.engine.remote import RemoteReads
from insitu_xr.engine.tasks import Task, Tools

#: what a thread does outside the lock; returns what is left to note under it
Action = Callable[[], Callable[[], None]]


class Workers:
    """Threads that read, decode and place; what comes next is the business of those who inherit.

    Parameters
    ----------
    tools : Tools
        Slots, readers and accounts.

    Notes
    -----
    Methods whose names begin with one underscore are called under the lock, unless they say otherwise.
    """

    def __init__(self, tools: Tools) -> None:
        self._m = tools
        # It may be taken again by its owner: garbage may be collected, and a pool closed, on any thread at any time.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._idle = 0
        self._arrived: deque[tuple[Task, Fetched]] = deque()
        self._remote = RemoteReads(tools.pace, tools.limits, tools.inflight_bytes)
        self._closed = False
        self._held = 0
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._run, name=f"insitu-{k}", daemon=True) for k in range(tools.threads)
        ]

    # -- what those who inherit decide ---------------------------------------------------------------------------

    def _next_action(self) -> Action | None:
        """The next thing to do."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Tell who waits that there is something for them."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Wait until there is something to do."""
        raise NotImplementedError

    def _finished(self, task: Task) -> None:
        """A job is in place."""
        raise NotImplementedError

    def _failed(self, task: Task, error: BaseException) -> None:
        """A job failed."""
        raise NotImplementedError

    def _broken(self, error: BaseException) -> None:
        """Something went wrong that belongs to no job; whoever waits must see it rather than wait for ever."""
        raise NotImplementedError

    # -- the threads ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process whose threads these are."""
        return os.getpid() != self._process

    def _stop(self) -> bool:
        """Stop, and wait for what is under way; called without the lock, which must be marked closed before.

        Returns
        -------
        bool
            False if a thread was still stuck in a read after ``limits.close_seconds``; the slots must then not be
            used again, since that thread may yet write into one.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]
            # Garbage was collected by one of the threads in the midst of something: none can end before it goes on.
            self._remote.stop(0)
            return False
        deadline = time.monotonic() + self._m.limits.close_seconds
        quiet = self._remote.stop(self._m.limits.close_seconds)
        # Garbage may be collected on any thread: none may wait for itself, nor the loop for those that wait for it.
        for thread in self._threads:
            if thread.ident and thread is not threading.current_thread() and not on_event_loop():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._release(self._held)
            self._arrived.clear()
        return quiet and not any(t.is_alive() for t in self._threads)

    def _run(self) -> None:
        """What a thread does; takes the lock itself."""
        with self._lock:
            while not self._closed:
                action = self._guarded(self._next_action)
                self._wake()
                if action is None:
                    if not self._closed:  # it may have been meanwhile, as garbage
                        self._rest()
                    continue
                self._lock.release()
                try:
                    note = action()
                except BaseException as error:  # nobody may wait for ever because of it
                    note = partial(self._broken, error)
                finally:
                    self._lock.acquire()
                self._guarded(note)
                del action, note  # a thread that waits must not keep a batch alive

    def _guarded[T](self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except BaseException as error:
            self._broken(error)
            self._wake()
            return None

    def _hold(self, count: int) -> None:
        self._held += count
        self._m.ledger.hold(count)

    def _release(self, count: int) -> None:
        self._held -= count
        self._m.ledger.release(count)

    def _next_placing(self) -> Action | None:
        """Place what arrived from the loop, if anything did."""
        if not self._arrived:
            return None
        landed, fetched = self._arrived.popleft()
        self._hold(landed.job.reader.layout.place_bytes)
        return lambda: self._place(landed, fetched)

    def _reading(self, tasks: Sequence[Task]) -> Action:
        """Read and place some jobs, one after another."""
        # What the largest of them needs is what all of them need.
        held = max(task.job.raw_bytes + task.job.reader.layout.place_bytes for task in tasks)
        self._hold(held)
        return lambda: self._read(tasks, held)

    def _launch(self, task: Task) -> Any:
        """Start a read on zarr's loop; returns at once, with what it can be given up by."""
        self._hold(self._remote.bytes_of(task.job))
        return self._remote.launch(task.job, self._refused, lambda *end: self._landed(task, *end))

    def _note(
        self, done: Sequence[Task], failed: Sequence[tuple[Task, BaseException]], tally: Tally, held: int
    ) -> None:
        """Some jobs ended."""
        self._release(held)
        self._m.meter.add(**tally.totals())
        for task in done:
            self._finished(task)
        for task, failure in failed:
            self._failed(task, failure)
        self._wake()

    # -- called without the lock ---------------------------------------------------------------------------------

    def _refused(self) -> None:
        """The store refuses reads; called on the loop."""
        with self._lock:
            if not self._closed:
                self._remote.refused()

    def _landed(self, task: Task, began: float, fetched: Fetched | None, error: BaseException | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._m.meter.add(read_seconds=self._remote.landed(began, fetched))
            if fetched is not None:
                self._arrived.append((task, fetched))
            else:
                assert error is not None
                self._remote.placed(task.job)
                self._note([], [(task, failure_of(task.job, error, "read"))], Tally(), self._remote.bytes_of(task.job))
            self._wake()

    def _read(self, tasks: Sequence[Task], held: int) -> Callable[[], None]:
        """Read and place on this thread."""
        tally = Tally()
        done: list[Task] = []
        failed: list[tuple[Task, BaseException]] = []
        for task in tasks:
            failure = _carried(task, partial(task.job.source.stream, task.job.chunks, tally.cost), tally)
            if failure is None:
                done.append(task)
            else:
                failed.append((task, failure))
        return lambda: self._note(done, failed, tally, held)

    def _place(self, task: Task, fetched: Fetched) -> Callable[[], None]:
        """Place what arrived from the loop."""
        job, tally = task.job, Tally()
        tally.cost = fetched
        failure = _carried(task, fetched.drain, tally)
        tally.read_seconds = 0.0  # it was counted when it landed

        def note() -> None:
            self._remote.placed(job)
            done, failed = ([task], []) if failure is None else ([], [(task, failure)])
            self._note(done, failed, tally, self._remote.bytes_of(job) + job.reader.layout.place_bytes)

        return note


def _carried(task: Task, raws: Callable[[], Iterator[Any]], tally: Tally) -> BaseException | None:
    """Carry a job out; returns what went wrong, for those who need it must see it rather than wait for ever."""
    try:
        failure = carry_out(task, raws(), tally)
    except BaseException as error:  # of no chunk: a fault of a source, or ours
        return error
    if failure is not None and failure.__cause__ is not None:
        # Whoever keeps the error must not keep open files and memory by what the frames of its traceback refer to.
        traceback.clear_frames(failure.__cause__.__traceback__)
    return failure
