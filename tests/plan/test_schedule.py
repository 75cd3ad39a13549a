"""The schedule against simulation: nothing is overwritten too soon, and no other order of frees reads less."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.plan.reads import NEVER, access_groups, batch_uses, join_epochs
from insitu_xr.plan.schedule import Fetch, Residency, count_reads, most_wanted
from tests.plan.requests import request, variable
from tests.plan.test_reads import Batches, batches_of, draws, uses_of

Drawn = tuple[list[list[int]], int, int]


def simulate(walk: Residency, batches: Batches, resident: Mapping[int, int]) -> list[Fetch]:
    """Carry the fetches out as late and as early as they may be; check what every batch finds."""
    content = {slot: unit for unit, slot in resident.items()}
    readers: dict[int, int] = {}  # slot: last batch that read what is in it
    fetches: list[Fetch] = []
    for number, batch in enumerate(batches):
        for fetch in walk.step(number):
            assert fetch.batch == number
            assert fetch.unit in batch
            assert fetch.unit not in content.values()
            # The slot is free as soon as the last reader of what it held is gone, and no sooner.
            assert fetch.after == readers.get(fetch.slot, -1) < number
            content[fetch.slot] = fetch.unit
            readers.pop(fetch.slot, None)
            fetches.append(fetch)
        for unit in batch:
            assert content[walk.slot_of[unit]] == unit
            readers[walk.slot_of[unit]] = number
        assert len(set(walk.slot_of.values())) == len(walk.slot_of)
    return fetches


def fewest_fetches(batches: Batches, n_slots: int, resident: frozenset[int]) -> int:
    """Try every way to free slots."""

    @cache
    def fewest(number: int, held: frozenset[int]) -> int:
        if number == len(batches):
            return 0
        needed = frozenset(batches[number])
        others, room = held - needed, n_slots - len(needed)
        kept = [frozenset(c) for size in range(min(room, len(others)) + 1) for c in combinations(sorted(others), size)]
        return len(needed - held) + min(fewest(number + 1, needed | keep) for keep in kept)

    return fewest(0, resident)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Drawn, int, dict[int, int]]:
    """Draw batches, a number of slots that is enough for each, and what the slots hold beforehand."""
    rows, size, n_units = draw(draws())
    largest = uses_of(rows, size, -(-len(rows) // size), n_units).largest
    n_slots = draw(st.integers(largest, max(largest, n_units)))
    held = draw(st.lists(st.integers(0, n_units - 1), unique=True, max_size=n_slots))
    slots = draw(st.permutations(range(n_slots)))
    return (rows, size, n_units), n_slots, dict(zip(held, slots, strict=False))


@given(cases())
def test_every_batch_finds_its_units_with_the_fewest_fetches(case: tuple[Drawn, int, dict[int, int]]) -> None:
    (rows, size, n_units), n_slots, resident = case
    n_batches = -(-len(rows) // size)
    batches = batches_of(rows, size, n_batches)
    walk = Residency(uses_of(rows, size, n_batches, n_units), n_slots, resident)
    fetches = simulate(walk, batches, resident)
    assert all(0 <= f.slot < n_slots for f in fetches)
    assert len(fetches) == fewest_fetches(batches, n_slots, frozenset(resident))
    assert walk.hits == sum(map(len, batches)) - len(fetches)


@given(cases())
def test_two_epochs_together_fetch_the_fewest(case: tuple[Drawn, int, dict[int, int]]) -> None:
    (rows, size, n_units), n_slots, _ = case
    n_batches = -(-len(rows) // size)
    other = rows[::-1]
    here, there = uses_of(rows, size, n_batches, n_units), uses_of(other, size, n_batches, n_units)
    first, second = batches_of(rows, size, n_batches), batches_of(other, size, n_batches)
    if there.largest > n_slots:
        return
    walk = Residency(join_epochs(here, there), n_slots)
    before = simulate(walk, first, {})
    held = dict(walk.slot_of)
    after = simulate(Residency(there, n_slots, held), second, held)
    assert len(before) + len(after) == fewest_fetches(first + second, n_slots, frozenset())


@given(cases())
def test_reads_are_counted_without_a_walk(case: tuple[Drawn, int, dict[int, int]]) -> None:
    (rows, size, n_units), n_slots, _ = case
    group = access_groups(request([variable("a", n_units, 1)], n_units))[0]
    n_batches = -(-len(rows) // size)
    alone = uses_of(rows, size, n_batches, n_units)
    for uses in (alone, join_epochs(alone, alone)):
        assert count_reads(group, uses, n_slots) == len(list(Residency(uses, n_slots)))


@given(draws())
def test_the_most_that_is_wanted_at_once(drawn: Drawn) -> None:
    rows, size, n_units = drawn
    n_batches = -(-len(rows) // size)
    batches = batches_of(rows, size, n_batches)
    wanted = [
        sum(any(u in b for b in batches[: k + 1]) and any(u in b for b in batches[k:]) for u in range(n_units))
        for k in range(n_batches)
    ]
    assert most_wanted(uses_of(rows, size, n_batches, n_units)) == max(wanted)


def test_what_is_never_used_again_goes_first() -> None:
    uses = batch_uses(np.array([[0], [1], [2], [1]]), 1, 4, 3)
    assert uses.next_use.tolist() == [NEVER, 3, NEVER, NEVER]
    assert list(Residency(uses, 2)) == [Fetch(0, 0, 0, -1), Fetch(1, 1, 1, -1), Fetch(2, 0, 2, 0)]


def test_the_next_epoch_decides_between_equals() -> None:
    here = batch_uses(np.array([[0], [1], [2]]), 1, 3, 3)
    there = batch_uses(np.array([[0], [2], [1]]), 1, 3, 3)
    evicted = {f.unit: f.slot for f in Residency(join_epochs(here, there), 2)}
    assert evicted[2] == evicted[1] != evicted[0]


def test_many_units_take_no_time_to_speak_of() -> None:
    samples = np.random.default_rng(0).integers(0, 500, (2000, 1))
    walk = Residency(batch_uses(samples, 20, 100, 500), 100)
    assert sum(1 for _ in walk) > 500
