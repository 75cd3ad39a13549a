"""From calls that wait to coroutines, wherever the caller is: in a script, a notebook, or on a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any


def run[T](work: Callable[[], Coroutine[Any, Any, T]], timeout: float | None) -> T:
    """Run a coroutine to its end on an event loop of its own, on this thread or, if that runs a loop, on another.

    Parameters
    ----------
    work : callable
        Makes the coroutine.
    timeout : float, optional
        Seconds until it is cancelled.

    Raises
    ------
    TimeoutError
        If it takes longer.

    Examples
    --------
    >>> async def answer():
    ...     return 42
    >>> run(answer, timeout=10)
    42
    """

    async def bounded() -> T:
        try:
            async with asyncio.timeout(timeout) as clock:
                return await work()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise TimeoutError(
                f"reading must finish within async_timeout, but took longer than {timeout:g} s; give "
                "async_timeout=None, or ask for less at once"
            ) from error

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _here(bounded)
    return _elsewhere(bounded)


def _here[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """On this thread; leaving early cancels it.

    ``asyncio.run`` takes many times longer: it puts handlers of signals in place and back, and by that writes out the
    result of the task as text.
    """
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(work())
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            raise
    finally:
        loop.close()


def _elsewhere[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """On a thread that ends with the work; leaving early cancels it."""
    result: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def told() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work()

    def target() -> None:
        try:
            result.set_result(_here(told))
        except BaseException as error:
            result.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name="insitu-earth2studio", daemon=True)
    thread.start()
    try:
        return result.result()
    except BaseException:
        if not result.done():
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()
