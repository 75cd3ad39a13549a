"""Reads under way on zarr's event loop: started from any thread, and all ended before the owner is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from insitu_xr.engine._zarr import event_loop

Read = Callable[[], Coroutine[Any, Any, Any]]
Land = Callable[[Any, BaseException | None], None]


def on_event_loop() -> bool:
    """Whether this thread is the one that runs zarr's loop, which must never wait for anything of ours."""
    try:
        return asyncio.get_running_loop() is event_loop()
    except RuntimeError:
        return False


#: share of the reads that may be asked for twice
HEDGED_SHARE = 0.05
#: seconds after which at the earliest it is looked again whether a read may be
LOOK_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class Flight:
    """One read: the requests for it that are under way, the first error, and what asks a second time."""

    read: Read
    land: Land
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    error: BaseException | None = None
    timer: asyncio.TimerHandle | None = None
    landed: bool = False


class Flights:
    """The reads of one owner on the loop.

    Only tasks made here are ever cancelled; the loop itself is never stopped, and its executor never touched.
    ``_flights``, ``_tasks``, ``_stopped`` and the counts belong to the loop's thread.
    """

    def __init__(self) -> None:
        self._flights: set[Flight] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._used = False
        self._ended = threading.Event()
        self._launched = 0
        #: reads that were asked for twice
        self.hedged = 0

    def launch(self, read: Read, land: Land, hedge_after: float | None = None) -> Flight:
        """Start a read; ``land(result, error)`` is called on the loop's thread when it ends, and must not block.

        With ``hedge_after``, a read that takes longer than so many seconds is asked for a second time: the first result
        counts and the other request is cancelled. At most one read in twenty.
        """
        self._used = True
        flight = Flight(read, land)
        event_loop().call_soon_threadsafe(self._start, flight, hedge_after)
        return flight

    def give_up(self, flight: Flight) -> None:
        """Cancel one read, unless it has ended; it lands with a ``CancelledError``."""
        event_loop().call_soon_threadsafe(self._give_up, flight)

    def _give_up(self, flight: Flight) -> None:
        for task in flight.tasks:
            task.cancel()

    def _start(self, flight: Flight, hedge_after: float | None) -> None:
        if self._stopped:
            return
        self._launched += 1
        self._flights.add(flight)
        self._ask(flight)
        if hedge_after is not None:
            flight.timer = event_loop().call_later(hedge_after, self._hedge, flight, hedge_after)

    def _ask(self, flight: Flight) -> None:
        task = event_loop().create_task(flight.read())
        flight.tasks.add(task)
        self._tasks.add(task)
        task.add_done_callback(partial(self._landed, flight))

    def _hedge(self, flight: Flight, delay: float) -> None:
        if self.hedged + 1 <= HEDGED_SHARE * self._launched:
            self.hedged += 1
            self._ask(flight)
        else:  # what stays slow has its turn when more reads were launched
            flight.timer = event_loop().call_later(max(LOOK_SECONDS, delay), self._hedge, flight, delay)

    def _landed(self, flight: Flight, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        flight.tasks.discard(task)
        error = asyncio.CancelledError("the read was cancelled") if task.cancelled() else task.exception()
        flight.error = flight.error or error
        if not flight.landed and (error is None or not flight.tasks):
            self._end(flight)
            flight.land(None if error else task.result(), flight.error if error else None)
        if self._stopped and not self._tasks:
            self._ended.set()

    def _end(self, flight: Flight) -> None:
        """Nothing more is wanted of a read."""
        flight.landed = True
        self._flights.discard(flight)
        if flight.timer is not None:
            flight.timer.cancel()
        for task in flight.tasks:
            task.cancel()

    def stop(self, timeout: float) -> bool:
        """Cancel what is under way and wait for its end; returns whether all ended in time. Idempotent."""
        if not self._used:
            return True
        try:
            event_loop().call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return True  # the loop is closed, and its tasks with it
        return not on_event_loop() and self._ended.wait(timeout)

    def _cancel(self) -> None:
        self._stopped = True
        for flight in self._flights:
            if flight.timer is not None:
                flight.timer.cancel()
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            self._ended.set()
