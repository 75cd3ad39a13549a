"""The state of an epoch as a machine that takes any turn: order, safety of slots, failures, and no deadlock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from insitu_xr.engine.board import Board, Load
from insitu_xr.plan.reads import batch_uses
from insitu_xr.plan.schedule import Residency

Unit = tuple[int, int]  # unit and slot


class Epoch(RuleBasedStateMachine):
    """Carries out a real schedule, in any order that the board allows; slots are remembered by what is in them."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        n_units = data.draw(st.integers(1, 5))
        columns = data.draw(st.integers(1, 2))
        row = st.lists(st.integers(0, n_units - 1), min_size=columns, max_size=columns)
        rows = data.draw(st.lists(row, min_size=1, max_size=8))
        size = data.draw(st.integers(1, 3))
        n_batches = -(-len(rows) // size)
        uses = batch_uses(np.array(rows, np.int64), size, n_batches, n_units)
        self.walk = Residency(uses, data.draw(st.integers(uses.largest, n_units)))
        self.needed = [uses.units[uses.bounds[b] : uses.bounds[b + 1]].tolist() for b in range(n_batches)]
        self.jobs_ahead = data.draw(st.integers(1, 4))
        self.jobs_per_load = data.draw(st.integers(1, 2))
        self.board: Board[Unit, int] = Board(n_batches, data.draw(st.integers(1, 3)))
        self.slots: dict[int, int | None] = {}
        self.places: list[dict[int, int]] = []
        self.reading: list[tuple[Load[Unit], Unit]] = []
        self.copying: list[int] = []
        self.read_of: dict[int, set[int]] = {}
        self.delivered: list[int] = []
        self.failed: dict[int, Exception] = {}

    # -- what may be done ----------------------------------------------------------------------------------------

    def can_plan(self) -> bool:
        return self.board.wants_plan(self.jobs_ahead)

    def can_read(self) -> bool:
        return self.board.peek_read() is not None

    def can_begin(self) -> bool:
        return self.board.gather_ready() is not None

    def has_parts(self) -> bool:
        board = self.board
        return any(board._batches[b].parts for b in range(board.gathered, board.gathering) if b < board.end)

    @precondition(lambda self: self.can_plan())
    @rule()
    def plan(self) -> None:
        number = self.board.planned
        fetches = self.walk.step(number)
        loads: list[Load[Unit]] = [
            Load(number, f.after, deque([(f.unit, f.slot)] * self.jobs_per_load)) for f in fetches
        ]
        self.places.append({u: self.walk.slot_of[u] for u in self.needed[number]})
        self.board.plan(loads)

    @precondition(lambda self: self.can_read())
    @rule()
    def read(self) -> None:
        found = self.board.peek_read()
        assert found is not None
        load, (unit, slot) = found
        if not load.begun:
            # What the slot held has been read for the last time by batches that are gathered.
            for number in range(self.board.gathered, load.batch):
                assert self.places[number].get(self.slots.get(slot, -1)) != slot  # type: ignore[arg-type]
            self.slots[slot] = None
        self.board.take_read()
        self.reading.append((load, (unit, slot)))

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def finish_read(self, data: st.DataObject) -> None:
        load, (unit, slot) = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
        if self.board.read_done(load):
            self.slots[slot] = unit

    @precondition(lambda self: self.can_begin())
    @rule(parts=st.integers(1, 3))
    def begin_gather(self, parts: int) -> None:
        number = self.board.gather_ready()
        assert number == self.board.gathering
        self.board.begin_gather(list(range(parts)))

    @precondition(lambda self: self.has_parts())
    @rule()
    def take_part(self) -> None:
        taken = self.board.take_part()
        assert taken is not None
        self.copying.append(taken[0])

    @precondition(lambda self: self.copying)
    @rule(data=st.data())
    def finish_part(self, data: st.DataObject) -> None:
        number = self.copying.pop(data.draw(st.integers(0, len(self.copying) - 1)))
        for unit, slot in self.places[number].items():
            assert self.slots[slot] == unit
        self.board.part_done(number)

    @precondition(lambda self: self.board.deliverable())
    @rule()
    def deliver(self) -> None:
        self.delivered.append(self.board.deliver())

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), unlikely=st.integers(0, 9))
    def fail_read(self, data: st.DataObject, unlikely: int) -> None:
        if unlikely:
            return
        load, _ = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
        self.fail(load.batch)

    @precondition(lambda self: self.copying)
    @rule(unlikely=st.integers(0, 9))
    def fail_part(self, unlikely: int) -> None:
        if not unlikely:
            self.fail(self.copying.pop())

    @precondition(lambda self: self.board.finished() or self.board.failure() is not None)
    @rule()
    def rest(self) -> None:
        """The epoch is over; there must be something that the machine may do."""

    def fail(self, number: int) -> None:
        error = RuntimeError(f"batch {number}")
        self.failed.setdefault(number, error)
        self.board.fail(number, error)

    # -- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def counts_are_in_order(self) -> None:
        board = self.board
        assert self.delivered == list(range(board.delivered))
        assert board.delivered <= board.gathered <= board.gathering <= board.planned <= board.n_batches
        assert board.gathering <= board.delivered + board.depth
        assert board.gathered <= board.end == min(self.failed, default=board.n_batches)

    @invariant()
    def the_first_failure_is_told_once_the_batches_before_it_are_delivered(self) -> None:
        board = self.board
        if board.delivered == board.end < board.n_batches:
            assert board.failure() is self.failed[board.end]
        else:
            assert board.failure() is None

    @invariant()
    def something_can_always_be_done(self) -> None:
        board = self.board
        if board.finished() or board.failure() is not None:
            return
        assert (
            self.can_plan()
            or self.can_read()
            or self.reading
            or self.can_begin()
            or self.has_parts()
            or self.copying
            or board.deliverable()
        ), repr(board)

    def teardown(self) -> None:
        """Go on in a fixed order: the epoch must come to its end, or to its first failure."""
        if not hasattr(self, "board"):
            return
        first: Any = _First()
        steps: list[tuple[Callable[[], bool], Callable[[], Any]]] = [
            (self.can_plan, self.plan),
            (self.can_read, self.read),
            (lambda: bool(self.reading), lambda: self.finish_read(first)),
            (self.can_begin, lambda: self.begin_gather(2)),
            (self.has_parts, self.take_part),
            (lambda: bool(self.copying), lambda: self.finish_part(first)),
            (self.board.deliverable, self.deliver),
        ]
        while act := next((act for may, act in steps if may()), None):
            act()
            self.counts_are_in_order()
        assert len(self.delivered) == self.board.end
        assert self.board.finished() != bool(self.failed)


class _First:
    """Stands for Hypothesis when there is nothing to choose any more."""

    def draw(self, strategy: Any) -> int:
        return 0


TestEpoch = Epoch.TestCase
TestEpoch.settings = settings(max_examples=80, stateful_step_count=30)


def board_of(*afters: list[int], depth: int = 1) -> Board[str, str]:
    """Plan batches, each with loads of one job that wait for the given batches."""
    board: Board[str, str] = Board(len(afters), depth)
    for number, waits in enumerate(afters):
        board.plan([Load(number, after, deque([f"{number}.{k}"])) for k, after in enumerate(waits)])
    return board


def read_one(board: Board[str, str]) -> Load[str]:
    found = board.peek_read()
    assert found is not None
    board.take_read()
    return found[0]


def test_a_read_waits_until_its_slot_was_read() -> None:
    board = board_of([-1], [0], depth=2)
    load = read_one(board)
    assert board.peek_read() is None
    board.read_done(load)
    assert board.peek_read() is None
    board.begin_gather(["part"])
    assert board.take_part() == (0, "part")
    assert board.peek_read() is None
    board.part_done(0)
    assert board.peek_read() is not None


def test_a_batch_without_parts_is_gathered_at_once() -> None:
    board = board_of([])
    assert board.gather_ready() == 0
    board.begin_gather([])
    assert board.deliverable()


def test_no_more_batches_are_gathered_than_the_consumer_may_want() -> None:
    board = board_of([], [], [], depth=2)
    for _ in range(2):
        board.begin_gather([])
    assert board.gather_ready() is None
    board.deliver()
    assert board.gather_ready() == 2


def test_what_waits_for_a_failed_batch_never_starts() -> None:
    board = board_of([-1], [-1], [0], depth=3)
    first = read_one(board)
    read_one(board)
    board.read_done(first)
    board.fail(1, RuntimeError("one"))
    board.begin_gather(["part"])
    board.take_part()
    board.part_done(0)
    assert board.peek_read() is None
    assert board.deliver() == 0
    assert str(board.failure()) == "one"


def test_the_first_error_of_a_batch_is_kept_and_the_earliest_batch_ends_the_epoch() -> None:
    board = board_of([-1], [-1], [-1])
    board.fail(2, RuntimeError("late"))
    board.fail(1, RuntimeError("first"))
    board.fail(1, RuntimeError("second"))
    assert board.end == 1
    assert board.failure() is None
    load = read_one(board)
    board.read_done(load)
    board.begin_gather([])
    board.deliver()
    assert str(board.failure()) == "first"
    assert "failed=[1, 2]" in repr(board)


def test_a_batch_that_failed_while_it_was_copied_is_not_delivered() -> None:
    board = board_of([], [])
    board.begin_gather(["part", "other"])
    board.take_part()
    board.fail(0, RuntimeError("planning"))
    assert board.take_part() is None
    board.part_done(0)
    board.part_done(0)
    assert not board.deliverable()
    assert str(board.failure()) == "planning"
