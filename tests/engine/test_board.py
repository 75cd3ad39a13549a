"""The state of an epoch as a machine that takes any turn: order, safety of slots, failures, and no deadlock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from insitu_xr.engine.board import Board, Load
from insitu_xr.plan.reads import access_groups, batch_uses
from insitu_xr.plan.schedule import Residency
from insitu_xr.plan.spread import Spread, Visit
from tests.plan.requests import request, variable

#: a unit and its slot, or the number of a visit and -1
Work = tuple[int, int]


class Epoch(RuleBasedStateMachine):
    """Carries out real schedules, of slots and of visits, in any order that the board allows.

    Slots are remembered by what is in them, batches by what was written into them; the consumer asks when it likes.
    """

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
        depth = data.draw(st.integers(1, 3))
        self.spread = self.draw_spread(data, len(rows), size) if data.draw(st.booleans()) else None
        self.depth_at_most = depth + 2
        if self.spread is not None:
            depth = max(depth, self.spread.window)
            self.depth_at_most = max(depth, self.depth_at_most)
        self.jobs_ahead, self.batches_ahead = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
        self.lazy, self.few_jobs = data.draw(st.booleans()), data.draw(st.integers(0, 3))
        self.jobs_per_load = data.draw(st.integers(1, 2))
        self.board: Board[Work, int] = Board(n_batches, depth)
        self.slots: dict[int, int | None] = {}
        self.places: list[dict[int, int]] = []
        self.visits: list[Visit] = []
        self.written: dict[int, dict[int, tuple[int, int]]] = {}
        self.opened: set[int] = set()
        self.reading: list[tuple[Load[Work], Work]] = []
        self.copying: list[int] = []
        self.asking = False
        self.delivered: list[int] = []
        self.failed: dict[int, Exception] = {}

    def draw_spread(self, data: st.DataObject, n: int, size: int) -> Spread:
        """Draw samples in any order, each with a row of a chunk, for windows of any length."""
        wanted = request([variable("a", n, data.draw(st.integers(1, 4)))], n)
        (group,) = access_groups(wanted)
        samples = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n)), np.int64)
        unit, row = group.first.locate([samples])
        self.wanted = [
            {k % size: (int(unit[k]), int(row[k])) for k in range(first, min(first + size, n))}
            for first in range(0, n, size)
        ]
        return Spread(wanted, group, samples, size, data.draw(st.integers(1, 4)))

    # -- what may be done ----------------------------------------------------------------------------------------

    def can_plan(self) -> bool:
        # Whoever plans no more than must be planned comes to the end as well.
        if self.lazy:
            return self.board.lacks_plan(self.few_jobs)
        return self.board.wants_plan(self.jobs_ahead, self.batches_ahead)

    def can_read(self) -> bool:
        return self.board.peek_read() is not None

    def can_begin(self) -> bool:
        return self.board.gather_ready() is not None

    def can_deliver(self) -> bool:
        return self.asking and self.board.deliverable()

    def can_ask(self) -> bool:
        return not self.asking and not self.over()

    def over(self) -> bool:
        return self.board.finished() or self.board.failure() is not None

    @precondition(lambda self: self.can_plan())
    @rule()
    def plan(self) -> None:
        number = self.board.planned
        loads: list[Load[Work]] = [
            Load(number, f.after, deque([(f.unit, f.slot)] * self.jobs_per_load)) for f in self.walk.step(number)
        ]
        self.places.append({u: self.walk.slot_of[u] for u in self.needed[number]})
        for visit in self.spread.step(number) if self.spread is not None else ():
            jobs = deque([(len(self.visits), -1)] * self.jobs_per_load)
            loads.append(Load(number, -1, jobs, visit.last, tuple(visit.copies), visit))
            self.visits.append(visit)
        self.board.plan(loads)

    @precondition(lambda self: self.can_read())
    @rule()
    def read(self) -> None:
        found = self.board.peek_read()
        assert found is not None
        load, (unit, slot) = found
        if not load.begun and slot < 0:
            self.open(load.feeds)
        elif not load.begun:
            # What the slot held has been read for the last time by batches that are gathered.
            for number in range(self.board.gathered, load.batch):
                assert self.places[number].get(self.slots.get(slot, -1)) != slot  # type: ignore[arg-type]
            self.slots[slot] = None
        self.board.take_read()
        self.reading.append((load, (unit, slot)))

    def open(self, numbers: Iterable[int]) -> None:
        """Arrays of these batches are about to be written to."""
        for number in numbers:
            assert self.board.gathering <= number or number in self.opened
            assert self.board.delivered <= number
        self.opened.update(numbers)

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def finish_read(self, data: st.DataObject) -> None:
        load, (unit, slot) = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
        if self.board.read_done(load) and slot >= 0:
            self.slots[slot] = unit
        elif load.outstanding == 0:
            for number, copies in self.visits[unit].copies.items():
                # Nothing is written to a batch that is complete, let alone to one that was delivered.
                assert number >= self.board.gathering
                content = self.written.setdefault(number, {})
                for row, place in copies:
                    assert place not in content
                    content[place] = (self.visits[unit].unit, row)

    @precondition(lambda self: self.can_begin())
    @rule(parts=st.integers(0, 3))
    def begin_gather(self, parts: int) -> None:
        number = self.board.gather_ready()
        assert number == self.board.gathering
        if self.spread is not None:
            assert self.written.pop(number) == self.wanted[number]
        self.open([number])
        self.board.begin_gather(list(range(parts)))

    @precondition(lambda self: self.board.has_part())
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

    @precondition(lambda self: self.can_ask())
    @rule()
    def ask(self) -> None:
        self.board.ask()
        self.asking = True

    @precondition(lambda self: self.can_deliver())
    @rule()
    def deliver(self) -> None:
        number = self.board.deliver()
        self.opened.remove(number)
        self.delivered.append(number)
        self.asking = False

    @precondition(lambda self: self.board.depth < self.depth_at_most)
    @rule(unlikely=st.integers(0, 4))
    def widen(self, unlikely: int) -> None:
        self.board.depth += not unlikely

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

    @precondition(lambda self: self.over())
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
        assert board.asked == board.delivered - (not self.asking and board.delivered > 0)
        assert board.gathering <= board.asked + board.depth
        assert board.gathered <= board.end == min(self.failed, default=board.n_batches)

    @invariant()
    def no_more_batches_are_open_than_there_is_room_for(self) -> None:
        board, held = self.board, not self.asking and bool(self.delivered)
        assert all(number < board.asked + board.depth for number in self.opened)
        # The one that the consumer holds has been delivered, so it is not among those that are open.
        assert len(self.opened) + held <= board.depth

    @invariant()
    def the_first_failure_is_told_once_the_batches_before_it_are_delivered(self) -> None:
        board = self.board
        if board.delivered == board.end < board.n_batches:
            assert board.failure() is self.failed[board.end]
        else:
            assert board.failure() is None

    @invariant()
    def what_is_waited_for_is_named(self) -> None:
        board, blocked = self.board, self.board.blocked()
        if not board.has_part():
            assert board.take_part() is None
        if blocked:
            assert not self.can_read()
        elif board.queued and board._queue[0].batch < board.end:
            assert self.can_read()
        if blocked == "memory" and not self.failed:
            # Room is made without the consumer.
            assert self.busy()

    def busy(self) -> bool:
        """Whether there is something to do, or being done, for which nobody has to ask."""
        return bool(
            self.can_plan()
            or self.can_read()
            or self.reading
            or self.can_begin()
            or self.board.has_part()
            or self.copying
        )

    @invariant()
    def who_asks_is_served(self) -> None:
        if self.asking and not self.over():
            assert self.busy() or self.can_deliver(), repr(self.board)

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
            (self.board.has_part, self.take_part),
            (lambda: bool(self.copying), lambda: self.finish_part(first)),
            (self.can_deliver, self.deliver),
            (self.can_ask, self.ask),
        ]
        while act := next((act for may, act in steps if may()), None):
            act()
            self.counts_are_in_order()
            self.no_more_batches_are_open_than_there_is_room_for()
            self.who_asks_is_served()
        assert len(self.delivered) == self.board.end
        assert self.board.finished() != bool(self.failed)


class _First:
    """Stands for Hypothesis when there is nothing to choose any more."""

    def draw(self, strategy: Any) -> int:
        return 0


TestEpoch = Epoch.TestCase
TestEpoch.settings = settings(max_examples=80, stateful_step_count=40)


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
    # It holds what was delivered until it asks for more.
    assert board.gather_ready() is None
    board.ask()
    assert board.gather_ready() == 2


def test_a_visit_waits_until_all_its_batches_may_be_open() -> None:
    board: Board[str, str] = Board(4, depth=2)
    board.plan(
        [Load(0, -1, deque(["first"]), last=1, feeds=(0, 1)), Load(0, -1, deque(["second"]), last=2, feeds=(2,))]
    )
    assert board.gather_ready() is None
    first = read_one(board)
    assert (board.peek_read(), board.blocked()) == (None, "consumer")
    assert board.read_done(first)
    board.plan([])
    for _ in range(2):
        board.begin_gather([])
    assert board.gather_ready() is None
    board.ask()
    board.deliver()
    assert board.peek_read() is None
    board.ask()
    assert board.blocked() == ""
    second = read_one(board)
    board.plan([])
    assert board.gather_ready() is None
    assert board.read_done(second)
    assert board.gather_ready() == 2


def test_what_is_read_for_a_batch_that_is_not_planned_counts_once_it_is() -> None:
    board: Board[str, str] = Board(2, depth=2)
    board.plan([Load(0, -1, deque(["a", "b"]), last=1, feeds=(0, 1))])
    load = read_one(board)
    assert not board.read_done(load)
    board.plan([])
    assert board.gather_ready() is None
    assert board.read_done(read_one(board))
    board.begin_gather([])
    assert board.gather_ready() == 1


def test_a_read_that_waits_for_a_slot_waits_for_memory() -> None:
    board = board_of([-1], [0], [2], depth=2)
    board.read_done(read_one(board))
    assert board.blocked() == "memory"
    board.begin_gather([])
    assert board.blocked() == ""
    board.read_done(read_one(board))
    # Batch 2 may not be made yet.
    assert (board.peek_read(), board.blocked()) == (None, "consumer")


def test_with_nothing_planned_to_read_it_is_the_consumer_who_is_waited_for() -> None:
    board: Board[str, str] = Board(3, depth=1)
    board.plan([])
    assert board.blocked() == ""
    board.begin_gather([])
    assert board.blocked() == "consumer"


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
