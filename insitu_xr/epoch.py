"""One pass over the batches of a loader."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from insitu_xr.batch import Batch
from insitu_xr.engine.executor import Executor
from insitu_xr.engine.tasks import Ready
from insitu_xr.errors import ClosedError, ReadError


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What carries some batches out, and what makes the batches of what is ready, noting which the consumer has."""

    executor: Executor
    deliver: Callable[[Ready], Iterator[Batch]]
    #: the caller's own functions; one that fails loses one batch alone
    transform: Callable[[Batch], Batch]


class Epoch(Iterator[Batch]):
    """One pass over the batches.

    It is closed at the end, on an error, when nothing refers to it any more, and when the interpreter exits.

    Parameters
    ----------
    course : Course
        Carries the epoch out.
    discard : callable
        Lets go of slots that a stuck read may yet write into.
    singly : callable, optional
        Another course from the next batch on, one batch at a time; for when one of several that are made together
        cannot be made, since those before it can.
    bar : progress bar, optional
        Moves with every batch.
    """

    def __init__(
        self,
        course: Course,
        discard: Callable[[], None],
        singly: Callable[[], Course] | None = None,
        bar: Any = None,
    ) -> None:
        self._discard, self._singly, self._bar = discard, singly, bar
        self._ended = False
        #: what is left of the step of the engine that was delivered last
        self._parts: Iterator[Batch] = iter(())
        self._begin(course)

    def _begin(self, course: Course) -> None:
        self._executor, self._deliver, self._transform = course.executor, course.deliver, course.transform
        # The threads refer to the executor, never to this object, so leaving a loop early ends them.
        self._finish = weakref.finalize(self, _finish, course.executor, self._discard, self._bar)

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
        self.check_process()
        batch = next(self._parts, None)
        if batch is None:
            batch = self._next_step()
        batch = self._transform(batch)
        if self._bar is not None:
            self._bar.update()
        return batch

    def check_process(self) -> None:
        """Refuse to go on in a forked child, which has none of the threads.

        Raises
        ------
        ClosedError
            If this is one.
        """
        if self._executor.forked:
            raise ClosedError(
                "an epoch must be iterated in the process that began it, but this is a fork; its threads do not exist "
                "here. Start workers by spawn, or make the loader in the worker"
            )

    def _next_step(self) -> Batch:
        """The first batch of the next step of the engine."""
        # Whoever asks for more is done with what was before: its memory can be used again.
        self._parts = iter(())
        try:
            ready = self._next_ready() if not self._ended else None
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

    def _next_ready(self) -> Ready | None:
        try:
            return self._executor.next()
        except ReadError:
            if self._singly is None:
                raise
            singly, self._singly = self._singly, None
            self._finish.detach()
            if not self._executor.close():
                self._discard()
            self._begin(singly())
            return self._executor.next()

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
