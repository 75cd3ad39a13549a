"""Visits: every sample gets its row exactly once, from as few readings as the window of open batches allows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.limits import Limits
from insitu_xr.plan import spread
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.reads import AccessGroup, access_groups
from insitu_xr.plan.request import Request
from insitu_xr.plan.spread import Spread, Visit, can_spread
from tests.plan.requests import request, variable


@st.composite
def spreads(draw: st.DrawFn) -> tuple[Request, AccessGroup, Any, int, int]:
    """Draw a group without windows, samples in any order (some repeat, some are left out), and sizes."""
    n = draw(st.integers(1, 30))
    leads = draw(st.sampled_from([None, [0], [2], [-1]]))
    several = [variable("b", n, draw(st.integers(1, 9)))] if draw(st.booleans()) else []
    wanted = request([variable("a", n, draw(st.integers(1, 9))), *several], n, leads if n > 3 else None)
    group = draw(st.sampled_from(access_groups(wanted)))
    samples = draw(
        st.permutations(range(len(wanted))) | st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=40)
    )
    return wanted, group, np.array(samples, np.int64), draw(st.integers(1, 7)), draw(st.integers(1, 6))


def visits_of(walk: Spread, n_batches: int) -> list[Visit]:
    return [visit for batch in range(n_batches) for visit in walk.step(batch)]


def located(wanted: Request, group: AccessGroup, samples: Any) -> list[tuple[int, int]]:
    positions = wanted.coordinates(samples, group.columns[0])[0]
    unit, row = group.first.locate([positions])
    return list(zip(unit.tolist(), row.tolist(), strict=True))


@settings(max_examples=150)
@given(spreads())
def test_every_place_of_every_batch_is_written_once(drawn: tuple[Request, AccessGroup, Any, int, int]) -> None:
    wanted, group, samples, size, most = drawn
    n_batches = -(-len(samples) // size)
    walk = Spread(wanted, group, samples, size, most)
    written: dict[int, tuple[int, int]] = {}
    first_of = []
    for batch in range(n_batches):
        for visit in walk.step(batch):
            first_of.append(batch)
            assert min(visit.copies) == visit.batch == batch
            assert max(visit.copies) == visit.last <= batch + walk.window - 1
            for into, pairs in visit.copies.items():
                for row, place in pairs:
                    assert 0 <= place < size
                    assert into * size + place not in written
                    written[into * size + place] = (visit.unit, row)
    assert [written[k] for k in range(len(samples))] == located(wanted, group, samples)
    assert len(written) == len(samples)
    assert len(first_of) == walk.visits
    assert 1 <= walk.window <= max(1, most)


@settings(max_examples=150)
@given(spreads())
def test_there_are_as_few_visits_as_the_window_allows(drawn: tuple[Request, AccessGroup, Any, int, int]) -> None:
    wanted, group, samples, size, most = drawn
    batches: dict[int, set[int]] = defaultdict(set)
    for k, (unit, _) in enumerate(located(wanted, group, samples)):
        batches[unit].add(k // size)
    walk = Spread(wanted, group, samples, size, most)
    # Greedily, each visit as late as it may be: the fewest intervals of one length that cover given points.
    fewest = 0
    for uses in batches.values():
        end = -1
        for batch in sorted(uses):
            if batch > end:
                fewest, end = fewest + 1, batch + walk.window - 1
    assert walk.visits == fewest
    assert walk.reads == sum(int(group.cells_per_unit[v.unit]) for v in visits_of(walk, -(-len(samples) // size)))
    # As short as it can be while it spans every unit that the longest one spans.
    spans = [max(uses) - min(uses) + 1 for uses in batches.values()]
    assert walk.window == max([span for span in spans if span <= most], default=1)


@given(spreads(), st.integers(2, 8))
def test_a_longer_window_reads_no_more(drawn: tuple[Request, AccessGroup, Any, int, int], more: int) -> None:
    wanted, group, samples, size, most = drawn
    short = Spread(wanted, group, samples, size, most)
    longer = Spread(wanted, group, samples, size, most + more)
    assert longer.reads <= short.reads
    assert Spread(wanted, group, samples, size, short.window).reads == short.reads
    whole = Spread(wanted, group, samples, size, len(samples))
    assert whole.visits == len({unit for unit, _ in located(wanted, group, samples)})


def test_far_uses_are_visited_again() -> None:
    wanted = request([variable("a", 8, 4)], 8)
    (group,) = access_groups(wanted)
    samples = np.array([0, 4, 5, 6, 1, 2, 3, 0])
    walk = Spread(wanted, group, samples, 1, 3)
    visits = visits_of(walk, 8)
    assert walk.window == 3
    assert [(v.unit, v.batch, v.last) for v in visits] == [(0, 0, 0), (1, 1, 3), (0, 4, 6), (0, 7, 7)]
    assert visits[1].copies == {1: [(0, 0)], 2: [(1, 0)], 3: [(2, 0)]}


def test_what_can_be_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    def able(specs: list[Any], leads: list[int] | None = None, **options: Any) -> list[bool]:
        wanted = request(specs, 40, leads, **options)
        return [can_spread(wanted, group) for group in access_groups(wanted)]

    small, large, static = variable("a", 40, 4), variable("b", 40, 4, field=(64, 64)), variable("s", 0, 0, (64, 64))
    assert able([large]) == able([large], [3]) == able([large], shuffle=True) == [True]
    assert able([small]) == [False], "many small rows are moved faster at once"
    assert able([large], [0, 1]) == [False], "windows use a row several times"
    assert able([large, static]) == [True, False]
    assert able([small, large]) == [False], "one schedule serves both, so both go the same way"
    for option in ({"shuffle": "global"}, {"weights": np.ones(40)}, {"sampler": lambda rng, n: np.arange(n)}):
        assert able([large], **option) == [False], "uses lie anywhere"
    monkeypatch.setattr(spread, "ROW_BYTES", 0)
    assert able([small]) == [True]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plan_announces_the_visits_of_its_first_epoch(shuffle: bool) -> None:
    large = variable("b", 60, 7, field=(64, 64))
    wanted = request([large], 60, batch_size=4, shuffle=shuffle)
    plan = ReadPlan.of(wanted, None, Limits())
    assert plan.spread is not None
    assert plan.spread.slots == (0,)
    walk = plan.spread_of(plan.groups[0], 0, range(plan.n_batches), plan.spread.most)
    assert (plan.reads, plan.chunks, plan.reread_factor) == (walk.reads, 9, 1.0)
    assert walk.window <= plan.spread.depth
    assert plan.spread.peak_bytes <= plan.budget.ceiling


@settings(max_examples=60)
@given(st.data())
def test_a_small_ceiling_never_makes_spreading_read_more_than_slots(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 60))
    specs = [variable(name, n, data.draw(st.integers(1, 9)), field=(64, 64)) for name in "ab"]
    shuffle = data.draw(st.sampled_from([False, True]))
    wanted = request(specs, n, batch_size=data.draw(st.integers(1, 6)), shuffle=shuffle)
    minimum = ReadPlan.of(wanted, None, Limits()).minimum_memory
    memory = minimum + data.draw(st.integers(0, 20)) * 64 * 64 * 4
    plan = ReadPlan.of(wanted, memory, Limits())
    slots = replace(plan, spread=None)
    assert plan.reads <= slots.reads
    assert plan.peak_bytes <= memory
    # Those who keep chunks go by slots, and the plan says so.
    assert ReadPlan.of(wanted, memory, Limits(), keep=True).reads == slots.reads
