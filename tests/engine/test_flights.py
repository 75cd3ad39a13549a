"""Reads on zarr's loop: each lands once, slow ones may be asked for twice, and only their own tasks are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from insitu_xr.engine._zarr import event_loop, run_on_loop
from insitu_xr.engine.flights import HEDGED_SHARE, Flights, on_event_loop

pytestmark = pytest.mark.timeout(60)
WAIT = 20.0


class Landings:
    """What landed, in order, and on which thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.seen: list[tuple[Any, BaseException | None]] = []
        self.on_loop: list[bool] = []

    def __call__(self, result: Any, error: BaseException | None) -> None:
        with self._changed:
            self.seen.append((result, error))
            self.on_loop.append(on_event_loop())
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[Any, BaseException | None]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, WAIT), self.seen
            return list(self.seen)


def our_tasks() -> set[asyncio.Task[Any]]:
    async def collect() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    return run_on_loop(collect())


@pytest.fixture(autouse=True)
def the_loop_is_as_before() -> Iterator[None]:
    before, executor = our_tasks(), event_loop().__dict__.get("_default_executor")
    yield
    assert our_tasks() == before
    assert event_loop().is_running()
    assert event_loop().__dict__.get("_default_executor") is executor


class Reads:
    """The k-th request for something does what the k-th of these says: a value, an error, or "never"."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.begun, self.cancelled = outcomes, 0, 0
        self.waiting = threading.Event()

    async def __call__(self) -> Any:
        outcome = self.outcomes[min(self.begun, len(self.outcomes) - 1)]
        self.begun += 1
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome == "never":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return outcome


def fill(flights: Flights, landings: Landings, count: int = 100) -> None:
    """Launch so many reads that hedging has a budget."""
    for k in range(count):
        flights.launch(Reads(k), landings)
    landings.wait(count)
    landings.seen.clear()


def test_a_read_lands_on_the_loop() -> None:
    flights, landings = Flights(), Landings()
    error = OSError("gone")
    flights.launch(Reads("bytes"), landings)
    landings.wait(1)
    flights.launch(Reads(error), landings)
    assert landings.wait(2) == [("bytes", None), (None, error)]
    assert landings.on_loop == [True, True]
    assert flights.stop(WAIT)


def test_stopping_cancels_what_is_under_way_and_nothing_else() -> None:
    flights, others, landings, theirs = Flights(), Flights(), Landings(), Landings()
    mine, foreign = [Reads("never") for _ in range(5)], Reads("never")
    for read in mine:
        flights.launch(read, landings)
    others.launch(foreign, theirs)
    assert all(read.waiting.wait(WAIT) for read in [*mine, foreign])
    assert flights.stop(WAIT)
    assert [type(error) for _, error in landings.seen] == [asyncio.CancelledError] * 5
    assert [read.cancelled for read in mine] == [1] * 5
    assert (foreign.cancelled, theirs.seen) == (0, [])
    assert flights.stop(WAIT)
    assert others.stop(WAIT)


def test_nothing_starts_after_the_stop() -> None:
    flights, landings, late = Flights(), Landings(), Reads("late")
    flights.launch(Reads("early"), landings)
    landings.wait(1)
    assert flights.stop(WAIT)
    flights.launch(late, landings)
    our_tasks()  # whatever was to start on the loop has had its turn
    assert late.begun == 0
    assert landings.seen == [("early", None)]


def test_flights_that_were_never_used_stop_at_once() -> None:
    assert Flights().stop(0.0)


def test_a_read_that_will_not_end_is_told() -> None:
    stubborn, release, waiting = Flights(), threading.Event(), threading.Event()

    async def read() -> None:
        waiting.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue

    landings = Landings()
    stubborn.launch(read, landings)
    assert waiting.wait(WAIT)
    assert not stubborn.stop(0.01)
    release.set()
    landings.wait(1)
    assert stubborn.stop(WAIT)


# -- asking twice ----------------------------------------------------------------------------------------------------


@pytest.fixture
def flying() -> Iterator[tuple[Flights, Landings]]:
    flights, landings = Flights(), Landings()
    fill(flights, landings)
    yield flights, landings
    assert flights.stop(WAIT)


def test_the_second_request_wins(flying: tuple[Flights, Landings]) -> None:
    flights, landings = flying
    read = Reads("never", "second")
    flights.launch(read, landings, hedge_after=0.0)
    assert landings.wait(1) == [("second", None)]
    our_tasks()
    assert (read.begun, read.cancelled, flights.hedged) == (2, 1, 1)


def test_the_first_request_wins(flying: tuple[Flights, Landings]) -> None:
    flights, landings = flying
    second, begun = threading.Event(), []

    async def read() -> str:
        begun.append(1)
        if len(begun) == 2:
            second.set()
            await asyncio.Event().wait()
        while not second.is_set():
            await asyncio.sleep(0)
        return "first"

    flights.launch(read, landings, hedge_after=0.0)
    assert landings.wait(1) == [("first", None)]
    assert flights.hedged == 1


def test_a_quick_read_is_not_asked_for_twice(flying: tuple[Flights, Landings]) -> None:
    flights, landings = flying
    read = Reads("quick")
    flights.launch(read, landings, hedge_after=1000.0)
    assert landings.wait(1) == [("quick", None)]
    assert (read.begun, flights.hedged) == (1, 0)


@pytest.mark.parametrize("second", ["bytes", OSError("second")], ids=["then bytes", "then an error"])
def test_an_error_counts_only_when_nothing_better_comes(flying: tuple[Flights, Landings], second: Any) -> None:
    flights, landings = flying
    first, begun, failed = OSError("first"), threading.Event(), threading.Event()

    async def read() -> Any:
        if not begun.is_set():
            begun.set()
            while flights.hedged == 0:
                await asyncio.sleep(0)
            failed.set()
            raise first
        while not failed.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        if isinstance(second, BaseException):
            raise second
        return second

    flights.launch(read, landings, hedge_after=0.0)
    wanted = (None, first) if isinstance(second, BaseException) else (second, None)
    assert landings.wait(1) == [wanted]


def test_few_reads_are_asked_for_twice() -> None:
    flights, landings = Flights(), Landings()
    reads = [Reads("never") for _ in range(200)]
    for read in reads:
        flights.launch(read, landings, hedge_after=0.0)
    assert all(read.waiting.wait(WAIT) for read in reads)

    async def until_quiet() -> None:
        # Timers of no delay fire in the turns of the loop that follow.
        for _ in range(10):
            await asyncio.sleep(0)

    run_on_loop(until_quiet())
    assert 0 < flights.hedged <= HEDGED_SHARE * len(reads)
    assert sum(read.begun for read in reads) == len(reads) + flights.hedged
    assert flights.stop(WAIT)
    assert len(landings.seen) == len(reads)


def test_stopping_cancels_both_requests(flying: tuple[Flights, Landings]) -> None:
    flights, landings = flying
    read = Reads("never")
    flights.launch(read, landings, hedge_after=0.0)

    async def until_both() -> None:
        while read.begun < 2:
            await asyncio.sleep(0)

    run_on_loop(until_both())
    assert flights.stop(WAIT)
    assert [type(error) for _, error in landings.seen] == [asyncio.CancelledError]
    assert read.cancelled == 2


def test_a_read_that_waits_for_its_second_request_does_not_outlive_the_stop(flying: tuple[Flights, Landings]) -> None:
    flights, landings = flying
    read = Reads("never")
    flights.launch(read, landings, hedge_after=1000.0)
    assert read.waiting.wait(WAIT)
    assert flights.stop(WAIT)
    assert (read.begun, read.cancelled) == (1, 1)
    pending = [handle for handle in event_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    assert not [handle for handle in pending if "_hedge" in repr(handle)]
