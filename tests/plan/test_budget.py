"""The ceiling divided: never exceeded, and exactly as small as the plan says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.errors import CeilingError
from insitu_xr.limits import Limits
from insitu_xr.plan.budget import divide, divide_spread
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.reads import AccessGroup, access_groups
from tests.plan.requests import request, variable


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[AccessGroup, ...], list[int]]:
    """Draw access groups of all kinds, and how many units one batch needs of each."""
    specs = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        spec = variable(name, 40, draw(st.integers(1, 9)), field=(draw(st.integers(1, 50)),))
        specs.append(
            replace(
                spec,
                value_itemsize=draw(st.sampled_from([0, 8])),
                chunks_per_job=draw(st.integers(1, 4)),
                asynchronous=draw(st.booleans()),
            )
        )
    found = access_groups(request(specs, 40))
    return found, [draw(st.integers(1, group.n_units)) for group in found]


limits = st.builds(
    Limits,
    memory=st.integers(1, 100_000),
    threads=st.integers(1, 8),
    prefetch=st.integers(1, 4),
    inflight_bytes=st.integers(0, 50_000),
)


@settings(max_examples=50)
@given(groups(), st.integers(0, 5_000), limits, st.integers(0, 100_000))
def test_the_parts_never_exceed_the_ceiling(
    drawn: tuple[tuple[AccessGroup, ...], list[int]], batch_bytes: int, given_limits: Limits, spare: int
) -> None:
    found, needed = drawn
    minimum = divide(found, needed, batch_bytes, None, given_limits).minimum
    for memory in (None, minimum, minimum + spare):
        budget = divide(found, needed, batch_bytes, memory, given_limits)
        assert budget.minimum == minimum
        assert budget.peak_bytes <= budget.ceiling
        assert budget.ceiling == (max(minimum, given_limits.memory) if memory is None else memory)
        assert 1 <= budget.depth == budget.most <= 1 + given_limits.prefetch
        assert 1 <= budget.threads <= given_limits.threads
        assert budget.needed == tuple(needed)
        # One batch is in the consumer's hands besides those that may be open.
        held = budget.slot_bytes + (budget.most + 1) * batch_bytes + budget.inflight_bytes + budget.scratch_bytes
        assert budget.peak_bytes == held
        assert all(n <= slots <= g.n_units for n, slots, g in zip(needed, budget.slots, found, strict=True))
        assert budget.slot_bytes == sum(n * g.slot_bytes for n, g in zip(budget.slots, found, strict=True))
        flying = [x.chunk_bytes * x.spec.chunks_per_job for g in found for x in g.layouts if x.spec.asynchronous]
        assert budget.inflight_bytes >= max(flying, default=0)
        assert bool(budget.inflight_bytes) == bool(flying)


@settings(max_examples=50)
@given(groups(), st.integers(0, 5_000), limits)
def test_the_minimum_is_the_smallest_that_is_accepted(
    drawn: tuple[tuple[AccessGroup, ...], list[int]], batch_bytes: int, given_limits: Limits
) -> None:
    found, needed = drawn
    minimum = divide(found, needed, batch_bytes, None, given_limits).minimum
    budget = divide(found, needed, batch_bytes, minimum, given_limits)
    assert (budget.slots, budget.depth, budget.threads, budget.peak_bytes) == (tuple(needed), 1, 1, minimum)
    with pytest.raises(CeilingError, match=rf"memory must be at least {minimum} bytes .*but got {minimum - 1} "):
        divide(found, needed, batch_bytes, minimum - 1, given_limits)


def test_an_ample_ceiling_keeps_everything() -> None:
    found = access_groups(request([variable("a", 40, 4), variable("b", 40, 3, field=(7,))], 40))
    budget = divide(found, [1, 2], 100, 1 << 20, Limits(prefetch=3))
    assert budget.slots == tuple(g.n_units for g in found)
    assert budget.depth == 1 + 3


@settings(max_examples=100)
@given(st.data(), groups(), st.integers(1, 5_000), limits, st.integers(0, 100_000), st.integers(1, 6))
def test_what_goes_straight_into_batches_needs_no_slots(
    data: st.DataObject,
    drawn: tuple[tuple[AccessGroup, ...], list[int]],
    batch_bytes: int,
    given_limits: Limits,
    spare: int,
    window: int,
) -> None:
    found, needed = drawn
    free = data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    minimum = divide(found, needed, batch_bytes, None, given_limits).minimum
    kept = divide(found, needed, batch_bytes, minimum + spare, given_limits)
    budget = divide_spread(found, free, window, kept, given_limits)
    working = sum(n * g.slot_bytes for n, g, none in zip(needed, found, free, strict=True) if not none)
    reading = minimum - sum(n * g.slot_bytes for n, g in zip(needed, found, strict=True)) - 2 * batch_bytes
    least = working + (max(2, window) + 1) * batch_bytes + reading
    assert (budget is None) == (kept.ceiling < least)
    if budget is None:
        return
    assert window <= budget.depth <= budget.most
    assert 1 <= budget.threads <= given_limits.threads
    assert budget.peak_bytes <= budget.ceiling == kept.ceiling
    assert (budget.minimum, budget.batch_bytes) == (minimum, batch_bytes)
    for n, slots, group, none in zip(needed, budget.slots, found, free, strict=True):
        assert slots == 0 if none else n <= slots <= group.n_units
    assert budget.slot_bytes == sum(n * g.slot_bytes for n, g in zip(budget.slots, found, strict=True))
    flying = [x.chunk_bytes * x.spec.chunks_per_job for g in found for x in g.layouts if x.spec.asynchronous]
    assert budget.inflight_bytes >= max(flying, default=0)
    assert bool(budget.inflight_bytes) == bool(flying)


def test_more_batches_may_be_open_where_there_is_room() -> None:
    found = access_groups(request([variable("a", 40, 4)], 40))
    kept = divide(found, [2], 100, 1 << 20, Limits(prefetch=3))
    budget = divide_spread(found, [True], 5, kept, Limits(prefetch=3))
    assert budget is not None
    assert (budget.slots, budget.depth, budget.most) == ((0,), 5, 5 + 5 + 3)


def test_what_is_left_goes_to_those_who_can_use_it() -> None:
    found = access_groups(request([variable("a", 40, 4, field=(10,)), variable("b", 40, 5, field=(10,))], 40))
    everything = sum(g.n_units * g.slot_bytes for g in found)
    minimum = divide(found, [1, 1], 0, None, Limits(threads=1)).minimum
    budget = divide(found, [1, 1], 0, minimum + everything // 2, Limits(threads=1))
    assert all(1 < slots < g.n_units for slots, g in zip(budget.slots, found, strict=True))


def test_a_minimum_that_was_accepted_holds_for_a_whole_plan() -> None:
    wanted = request([variable("a", 40, 4), variable("b", 40, 3)], 40, [0, 5], shuffle=True)
    minimum = ReadPlan.of(wanted, None, Limits()).minimum_memory
    assert ReadPlan.of(wanted, minimum, Limits()).peak_bytes == minimum
    with pytest.raises(CeilingError, match="raise memory=, or lower batch_size="):
        ReadPlan.of(wanted, minimum - 1, Limits())
