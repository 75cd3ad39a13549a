"""The shelf: no unit that somebody needs goes, everybody is served, and what is known beforehand is read once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from insitu_xr.engine.shelf import Shelf
from insitu_xr.plan.foresight import Address, Foreseen

UNITS = 6


class Walk(RuleBasedStateMachine):
    """Asks, loads, copies, fails and withdraws in any order, and looks after every step."""

    @initialize(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def begin(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.shelf: Shelf[int] = Shelf(sizes)
        self.askers = 0
        self.waiting: dict[int, Address] = {}
        self.copying: list[Address] = []
        self.loading: dict[Address, int] = {}
        self.given_up: set[Address] = set()

    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        address = Address(data.draw(st.integers(0, len(self.sizes) - 1)), data.draw(st.integers(0, UNITS - 1)))
        self.askers += 1
        if self.shelf.want(address, self.askers):
            self.copying.append(address)
        else:
            self.waiting[self.askers] = address

    @rule(data=st.data())
    def foresee(self, data: st.DataObject) -> None:
        order = data.draw(st.lists(st.tuples(st.integers(0, len(self.sizes) - 1), st.integers(0, UNITS - 1))))
        numbers: dict[Address, list[int]] = {}
        for k, place in enumerate(order):
            numbers.setdefault(Address(*place), []).append(k)
        self.shelf.foresee({address: Foreseen(np.array(mine)) for address, mine in numbers.items()})

    @rule(data=st.data(), count=st.integers(1, 2))
    def use(self, data: st.DataObject, count: int) -> None:
        self.shelf.used({Address(0, data.draw(st.integers(0, UNITS - 1))): count})

    @rule()
    def load(self) -> None:
        found = self.shelf.next_load()
        if found is not None:
            address, slot = found
            assert slot not in [s for a, s in self.loading.items() if a.group == address.group]
            assert slot not in [self.shelf.slot(a) for a in self.copying if a.group == address.group]
            assert 0 <= slot < self.sizes[address.group]
            self.loading[address] = slot

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), ends=st.sampled_from(["placed", "failed"]))
    def end(self, data: st.DataObject, ends: str) -> None:
        address = data.draw(st.sampled_from(sorted(self.loading)))
        del self.loading[address]
        if address in self.given_up:
            self.given_up.discard(address)
            self.shelf.abandoned(address)
            return
        served = self.shelf.placed(address) if ends == "placed" else self.shelf.failed(address)
        assert sorted(served) == sorted(k for k, a in self.waiting.items() if a == address)
        for asker in served:
            del self.waiting[asker]
        self.copying += [address] * len(served) if ends == "placed" else []

    @precondition(lambda self: self.copying)
    @rule(data=st.data())
    def copied(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.copying)))
        self.copying.remove(address)
        self.shelf.unpin(address)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        asker = data.draw(st.sampled_from(sorted(self.waiting)))
        # A read withdraws from all its units, also from those that are in place.
        idle = self.shelf.withdraw(asker, [self.waiting.pop(asker), *self.copying])
        assert set(idle) <= set(self.loading)
        assert not set(idle) & set(self.waiting.values())
        self.given_up |= set(idle)

    @invariant()
    def what_is_copied_from_stays(self) -> None:
        for address in self.copying if hasattr(self, "copying") else []:
            self.shelf.slot(address)

    def teardown(self) -> None:
        """Whoever still waits is served, if loads and copies go on."""
        if not hasattr(self, "shelf"):
            return
        self.shelf.foresee({})
        for _ in range(10 * UNITS * len(self.sizes) + len(self.waiting)):
            for address in self.copying:
                self.shelf.unpin(address)
            self.copying = []
            while (found := self.shelf.next_load()) is not None:
                self.loading[found[0]] = found[1]
            for address in [*self.loading]:
                del self.loading[address]
                if address in self.given_up:
                    self.given_up.discard(address)
                    self.shelf.abandoned(address)
                    continue
                for asker in self.shelf.placed(address):
                    del self.waiting[asker]
                    self.copying.append(address)
        assert not self.waiting


Walk.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWalk = Walk.TestCase


def order_of_loads(shelf: Shelf[str], count: int) -> list[int]:
    found = []
    for _ in range(count):
        load = shelf.next_load()
        if load is None:
            break
        shelf.placed(load[0])
        found.append(load[0].unit)
    return found


def foreseen(order: list[int]) -> dict[Address, Foreseen]:
    return {Address(0, u): Foreseen(np.flatnonzero(np.array(order) == u)) for u in set(order)}


def test_the_asked_for_comes_before_the_foreseen_and_that_in_its_order() -> None:
    shelf: Shelf[str] = Shelf([4])
    shelf.foresee(foreseen([5, 3, 5, 1]))
    assert not shelf.want(Address(0, 2), "me")
    assert order_of_loads(shelf, 9) == [2, 5, 3, 1]
    assert shelf.counts() == {"wanted": 0, "ready": 4}


def test_reading_ahead_never_takes_the_place_of_what_is_used_sooner() -> None:
    shelf: Shelf[str] = Shelf([2])
    shelf.foresee(foreseen([0, 1, 2, 0]))
    assert order_of_loads(shelf, 9) == [0, 1]
    shelf.used({Address(0, 0): 1})
    # 0 is used again after 2, so it gives way to it, and comes back when 1 is done.
    assert order_of_loads(shelf, 9) == [2]
    shelf.used({Address(0, 1): 1})
    assert order_of_loads(shelf, 9) == [0]


def test_the_asked_for_takes_the_place_of_what_is_used_last() -> None:
    shelf: Shelf[str] = Shelf([2])
    shelf.foresee(foreseen([0, 1]))
    assert order_of_loads(shelf, 9) == [0, 1]
    shelf.want(Address(0, 7), "me")
    assert order_of_loads(shelf, 1) == [7]
    with pytest.raises(KeyError):
        shelf.slot(Address(0, 1))


def test_without_foresight_what_was_used_longest_ago_goes() -> None:
    shelf: Shelf[str] = Shelf([2])
    for unit in (0, 1):
        shelf.want(Address(0, unit), "me")
        order_of_loads(shelf, 1)
        shelf.unpin(Address(0, unit))
    assert shelf.want(Address(0, 0), "me")
    shelf.unpin(Address(0, 0))
    shelf.want(Address(0, 2), "me")
    order_of_loads(shelf, 1)
    assert shelf.slot(Address(0, 0)) == 0
