"""Reads under way on zarr's event loop: started from any thread, and all ended before the owner is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from insitu_xr.engine._zarr import event_loop

Land = Callable[[Any, BaseException | None], None]


def on_event_loop() -> bool:
    """Whether this thread is the one that runs zarr's loop, which must never wait for anything of ours."""
    try:
        return asyncio.get_running_loop() is event_loop()
    except RuntimeError:
        return False


class Flights:
    """The reads of one owner on the loop.

    Only tasks made here are ever cancelled; the loop itself is never stopped, and its executor never touched.
    ``_tasks`` and ``_stopped`` belong to the loop's thread.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._used = False
        self._ended = threading.Event()

    def launch(self, read: Callable[[], Coroutine[Any, Any, Any]], land: Land) -> None:
        """Start a read; ``land(result, error)`` is called on the loop's thread when it ends, and must not block."""
        self._used = True
        event_loop().call_soon_threadsafe(self._start, read, land)

    def _start(self, read: Callable[[], Coroutine[Any, Any, Any]], land: Land) -> None:
        if not self._stopped:
            task = event_loop().create_task(read())
            self._tasks.add(task)
            task.add_done_callback(partial(self._landed, land))

    def _landed(self, land: Land, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError("the read was cancelled") if task.cancelled() else task.exception()
        land(None if error else task.result(), error)
        if self._stopped and not self._tasks:
            self._ended.set()

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
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            self._ended.set()
