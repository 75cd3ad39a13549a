"""What a function makes of the batches of an epoch, made on a thread one batch ahead of the consumer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from insitu_xr.batch import Batch
from insitu_xr.epoch import Epoch
from insitu_xr.errors import ClosedError

#: longest time that closing waits for a function under way
CLOSE_SECONDS = 10.0

#: epoch and number of batches that the consumer has
type Place = tuple[int, int]


class Ahead[T](Iterator[T]):
    """Gives what ``function`` makes of each batch; the thread is done with the next while the consumer has this one.

    It is closed at the end, on an error, when nothing refers to it any more, and when the interpreter exits.

    Parameters
    ----------
    epoch : Epoch
        The batches; belongs to the thread from now on.
    function : callable
        Carried out on the thread. What it needs of the arrays must be done with when it returns.
    places : list of Place
        Where the epoch notes how far it is.
    mark : callable
        Notes how far the consumer is.
    count : int
        Batches that the epoch has.
    """

    def __init__(
        self,
        epoch: Epoch,
        function: Callable[[Batch], T],
        places: list[Place],
        mark: Callable[[Place], None],
        count: int,
    ) -> None:
        self._epoch, self._mark, self._left = epoch, mark, count
        self._box = _Box()
        # The thread refers to the box, never to this object, so leaving a loop early ends it.
        thread = threading.Thread(
            target=_run, args=(epoch, function, places, self._box), name="insitu-ahead", daemon=True
        )
        self._finish = weakref.finalize(self, _finish, epoch, self._box, thread)
        thread.start()

    def __next__(self) -> T:
        """The next one.

        Raises
        ------
        ClosedError
            If another epoch of the loader has begun since, or the loader was closed.
        """
        self._epoch.check_process()
        found = self._box.take() if self._finish.alive else None
        if found is None:
            error = self._box.error
            self.close()
            if error is not None:
                self._box.error, self._left = None, 0
                raise error
            if self._left:
                raise ClosedError(
                    "an epoch must be the one that runs, but it was closed, since its loader was closed or another "
                    "epoch began; iterate again"
                )
            raise StopIteration
        place, made = found
        self._left -= 1
        self._mark(place)
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the epoch. Idempotent."""
        self._finish()


class _Box:
    """Holds one thing for the consumer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: tuple[Place, Any] | None = None
        self._ended = False
        self.error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """Wait until it is empty; False once nobody takes anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is None or self._ended)
            return not self._ended

    def put(self, place: Place, made: Any) -> None:
        with self._changed:
            if not self._ended:
                self._held = place, made
            self._changed.notify_all()

    def take(self) -> tuple[Place, Any] | None:
        """Wait until there is something; None once there will be nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is not None or self._ended)
            found, self._held = self._held, None
            self._changed.notify_all()
            return found

    def end(self, error: BaseException | None = None, *, empty: bool = False) -> None:
        with self._changed:
            self._ended, self.error = True, error or self.error
            if empty:
                self._held = None
            self._changed.notify_all()


def _run(epoch: Epoch, function: Callable[[Batch], Any], places: list[Place], box: _Box) -> None:
    error: BaseException | None = None
    try:
        while box.wait_for_room():
            made = function(next(epoch))
            box.put(places.pop(), made)
            del made  # a thread that waits must not keep a batch alive
    except StopIteration:
        pass
    except BaseException as caught:
        error = caught
    box.end(error)


def _finish(epoch: Epoch, box: _Box, thread: threading.Thread) -> None:
    began = time.monotonic()
    box.end(empty=True)
    epoch.close()
    # Garbage may be collected on any thread: none may wait for itself.
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(max(0.0, CLOSE_SECONDS - (time.monotonic() - began)))
