"""The draw order: every sample once, the same for the same seed, and a bound on batches that always holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.limits import Limits
from insitu_xr.plan.order import epoch_order, largest_batch, runs_of
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.reads import access_groups, batch_uses
from insitu_xr.plan.request import Request
from tests.geometry.test_grid import grids
from tests.plan.requests import request, variable

LEADS: list[list[int] | None] = [None, [0, 1], [-3, 0, 5]]


def order_of(wanted: Request, epoch: int) -> list[int]:
    order: list[int] = epoch_order(wanted, runs_of(wanted, access_groups(wanted)), epoch).tolist()
    return order


@st.composite
def drawn_requests(draw: st.DrawFn) -> Request:
    """Draw shuffled requests over gappy labels and chunks of any length, two variables or one."""
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 4]), min_size=1, max_size=60))
    n = len(steps)
    grid = draw(grids(40))
    lengths = [grid.length(k) for k in range(grid.n_chunks)]
    covering = AxisGrid.from_lengths(n, [*lengths, max(1, n - sum(lengths))]) if draw(st.booleans()) else None
    first = variable("a", n, covering or draw(st.integers(1, 9)))
    second = [variable("b", n, draw(st.integers(1, 9)))] if draw(st.booleans()) else []
    windowed = {"a": draw(st.lists(st.integers(-3, 4), min_size=1, max_size=3, unique=True))}
    options: dict[str, Any] = {"batch_size": draw(st.integers(1, 7)), "seed": draw(st.integers(0, 9))}
    return request([first, *second], n, labels=np.cumsum(steps), windowed=windowed, shuffle=True, **options)


@settings(max_examples=60)
@given(drawn_requests(), st.integers(0, 3))
def test_every_sample_once(wanted: Request, epoch: int) -> None:
    assert sorted(order_of(wanted, epoch)) == list(range(len(wanted)))


@settings(max_examples=60)
@given(drawn_requests())
def test_no_batch_of_any_epoch_uses_more_than_the_bound(wanted: Request) -> None:
    if not len(wanted):
        return
    groups = access_groups(wanted)
    runs = runs_of(wanted, groups)
    for group in groups:
        bound = largest_batch(wanted, runs, group)
        assert bound <= group.n_units
        for epoch in range(20):
            units = group.units(wanted, epoch_order(wanted, runs, epoch))
            assert batch_uses(units, wanted.batch_size, wanted.n_batches, group.n_units).largest <= bound


@pytest.mark.parametrize("leads", LEADS)
def test_the_order_depends_on_seed_and_epoch_alone(leads: list[int] | None) -> None:
    orders = {}
    for seed in range(3):
        for epoch in range(3):
            wanted = request([variable("a", 90, 7)], 90, leads, shuffle=True, seed=seed)
            orders[seed, epoch] = order_of(wanted, epoch)
            assert orders[seed, epoch] == order_of(wanted, epoch)
    assert len({tuple(order) for order in orders.values()}) == 9


def test_memory_does_not_change_the_order() -> None:
    wanted = request([variable("a", 90, 7)], 90, [0, 3], shuffle=True, seed=2)
    plans = [ReadPlan.of(wanted, memory, Limits()) for memory in (None, 1 << 30)]
    plans.append(ReadPlan.of(wanted, plans[0].minimum_memory, Limits()))
    assert len({tuple(plan.order(4).tolist()) for plan in plans}) == 1
    assert plans[2].budget.slots < plans[1].budget.slots


def test_without_shuffling_the_order_is_that_of_the_labels() -> None:
    wanted = request([variable("a", 20, 7)], 20)
    assert order_of(wanted, 0) == order_of(wanted, 5) == list(range(20))
    group = access_groups(wanted)[0]
    assert largest_batch(wanted, runs_of(wanted, (group,)), group) == 2


def test_shuffling_mixes_within_blocks_of_neighbouring_chunks() -> None:
    wanted = request([variable("a", 600, 4)], 600, batch_size=4, shuffle=True)
    order = np.array(order_of(wanted, 0))
    block = runs_of(wanted, access_groups(wanted)).block
    assert len({int(k) // 4 for k in order[:block]}) == block // 4
    assert np.mean(np.diff(order) == 1) < 0.2


def test_windows_that_reach_far_are_drawn_from_long_runs() -> None:
    wanted = request([variable("a", 400, 2)], 400, [0, 4], batch_size=4, shuffle=True)
    runs = runs_of(wanted, access_groups(wanted))
    assert runs.lengths[:-1].min() >= 2 * 2 * 8
    plan = ReadPlan.of(wanted, None, Limits())
    tight = ReadPlan.of(wanted, plan.minimum_memory + 4 * runs.block * 3 * 4, Limits(prefetch=1))
    assert tight.reread_factor <= 1.3


def test_without_chunks_along_the_samples_the_whole_epoch_mixes() -> None:
    wanted = request([variable("m", 0, 0)], 40, batch_size=3, shuffle=True)
    assert runs_of(wanted, access_groups(wanted)).lengths.sum() == 40
    order = order_of(wanted, 0)
    assert sorted(order) == list(range(40))
    assert order != list(range(40))
