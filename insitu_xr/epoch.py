"""One pass over the batches of a loader."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from insitu_xr.batch import Batch
from insitu_xr.engine.executor import Executor
from insitu_xr.engine.tasks import Ready
from insitu_xr.errors import ClosedError


class Epoch(Iterator[Batch]):
    """One pass over the batches.

    It is closed at the end, on an error, when nothing refers to it any more, and when the interpreter exits.

    Parameters
    ----------
    executor : Executor
        Carries the epoch out.
    discard : callable
        Lets go of slots that a stuck read may yet write into.
    deliver : callable
        Makes the batches of what is ready, and notes which the consumer has.
    bar : progress bar, optional
        Moves with every batch.
    """

    def __init__(
        self,
        executor: Executor,
        discard: Callable[[], None],
        deliver: Callable[[Ready], Iterator[Batch]],
        bar: Any = None,
    ) -> None:
        self._executor, self._deliver, self._bar = executor, deliver, bar
        self._ended = False
        #: what is left of the step of the engine that was delivered last
        self._parts: Iterator[Batch] = iter(())
        # The threads refer to the executor, never to this object, so leaving a loop early ends them.
        self._finish = weakref.finalize(self, _finish, executor, discard, self._bar)

    def __next__(self) -> Batch:
        """The next batch.

        Raises
        ------
        ReadError
            If a chunk that the batch needs could not be read or decoded.
        ClosedError
            If another epoch of the loader has begun since, or the loader was closed.
        """
        if not self._finish.alive and not self._ended:
            raise ClosedError(
                "an epoch must be the one that runs, but it was closed, since its loader was closed or another epoch "
                "began; iterate again"
            )
        if self._executor.forked:
            raise ClosedError(
                "an epoch must be iterated in the process that began it, but this is a fork; its threads do not exist "
                "here. Start workers by spawn, or make the loader in the worker"
            )
        batch = next(self._parts, None)
        if batch is None:
            batch = self._next_step()
        if self._bar is not None:
            self._bar.update()
        return batch

    def _next_step(self) -> Batch:
        """The first batch of the next step of the engine."""
        # Whoever asks for more is done with what was before: its memory can be used again.
        self._parts = iter(())
        try:
            ready = self._executor.next() if not self._ended else None
        except BaseException:
            self._ended = True
            self.close()
            raise
        if ready is None:
            self._ended = True
            self.close()
            raise StopIteration
        self._parts = self._deliver(ready)
        return next(self._parts)

    def close(self) -> None:
        """End the epoch. Idempotent."""
        self._finish()


def _finish(executor: Executor, discard: Callable[[], None], bar: Any) -> None:
    if not executor.close():
        discard()
    if bar is not None:
        bar.close()


def progress_bar(total: int, done: int) -> Any:
    """A bar that is closed with its epoch."""
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, unit="batch")
