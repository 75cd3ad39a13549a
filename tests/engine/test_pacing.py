"""The number of reads under way finds what a store can do, and stays within its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.engine.pacing import FORGET_SECONDS, LEAST_GAP, MOST, MOST_GAP, START, Pace, Phase
from tests.engine.simulated import Run, Store

MB = 1_000_000
FIXED = (1, 4, 16, 32, 64, 128, 256)
READS = 2400

STORES = {
    "near, wide": Store(0.001, 500 * MB, 1000 * MB),
    "cloud": Store(0.02, 50 * MB, 1250 * MB),
    "far cloud": Store(0.1, 50 * MB, 1250 * MB),
    "far, narrow": Store(0.1, 10 * MB, 12 * MB),
    "queues above 24": Store(0.1, 50 * MB, 1250 * MB, servers=24),
    "queues above 3": Store(0.02, 50 * MB, 1250 * MB, servers=3),
    "one at a time": Store(0.05, servers=1),
    "a second away": Store(1.0, 50 * MB, 500 * MB),
    "no end": Store(0.1),
}


def varied(size: int) -> Callable[[Random], int]:
    return lambda draw: int(size * draw.uniform(0.5, 1.5))


@cache
def best_fixed(store: Store, size: int) -> float:
    """Throughput of the best of many fixed numbers of reads."""
    return max(Run(store, Pace(pinned=k), varied(size)).until(900).throughput(256) for k in FIXED)


@pytest.mark.parametrize("spread", [0.0, 0.4])
@pytest.mark.parametrize("size", [20_000, MB], ids=["small", "large"])
@pytest.mark.parametrize("name", STORES)
def test_it_comes_close_to_the_best_fixed_number(name: str, size: int, spread: float) -> None:
    store = replace(STORES[name], spread=spread)
    run = Run(store, Pace(), varied(size)).until(READS)
    assert run.throughput(READS // 2) >= 0.8 * best_fixed(store, size)
    assert run.throughput() >= 0.6 * best_fixed(store, size)  # what was lost while it grew included


@pytest.mark.parametrize("name", ["near, wide", "far, narrow", "one at a time"])
def test_it_does_not_ask_for_more_than_is_of_use(name: str) -> None:
    run = Run(STORES[name], Pace(), varied(MB)).until(READS)
    assert run.pace.limit <= START
    assert max(run.limits) <= 2 * START


@pytest.mark.parametrize("latency", [0.02, 0.1])
@pytest.mark.parametrize("above", [2, 5, 12, 24, 48, 100])
def test_it_settles_below_what_is_refused(above: int, latency: float) -> None:
    store = Store(latency, 50 * MB, 1250 * MB, refuses_above=above)
    best = Run(store, Pace(pinned=above)).until(1500).throughput(300)
    run = Run(store, Pace()).until(READS)
    assert run.throughput(READS // 2) >= 0.8 * best
    early, total = Run(store, Pace()).until(READS // 2).refused, run.refused
    assert total - early <= 0.02 * READS


def test_a_refusal_takes_the_limit_down_at_once_and_once_for_all_that_were_under_way() -> None:
    pace = Pace()
    for _ in range(START):
        pace.launched(0.0)
    pace.throttled(0.01)
    lowered = pace.limit
    assert lowered <= 0.75 * START
    for k in range(10):
        pace.throttled(0.01 + 0.001 * k)
    assert pace.limit == lowered
    pace.throttled(1.0)
    assert pace.limit < lowered
    assert pace.refusals == 12


def test_a_store_that_refuses_everything_is_asked_for_one_read() -> None:
    pace = Pace()
    for second in range(100):
        pace.throttled(float(second))
    assert pace.limit == 1


def test_what_was_refused_is_tried_again_later() -> None:
    store = Store(0.1, 50 * MB, refuses_above=24)
    run = Run(store, Pace()).until(2000)
    assert run.pace.limit <= 24
    run.store = replace(store, refuses_above=None)
    since = run.now
    while run.now < since + FORGET_SECONDS / 2:
        run.until(len(run.landings) + 100)
        assert run.pace.limit <= 24
    assert run.until(len(run.landings) + 4000).pace.limit > 48


def test_it_adapts_when_the_store_changes() -> None:
    narrow, wide = Store(0.1, 10 * MB, 12 * MB), Store(0.1, 50 * MB, 1250 * MB)
    run = Run(narrow, Pace()).until(1500)
    assert run.pace.limit <= 8
    run.store = wide
    run.until(6000)
    assert run.throughput(4500) >= 0.8 * best_fixed(wide, MB)


def test_a_caller_who_wants_few_reads_changes_nothing() -> None:
    run = Run(STORES["no end"], Pace(), wanted=lambda now: 4).until(500)
    assert run.pace.limit == START
    assert run.pace.phase is Phase.GROWING
    run.wanted = lambda now: 1 << 30
    assert run.until(3000).pace.limit == MOST


def test_pauses_of_the_caller_are_not_held_against_the_store() -> None:
    steady, pausing = (Run(STORES["far cloud"], Pace()) for _ in range(2))
    for stop in range(100, 3001, 100):
        steady.until(stop)
        pausing.until(stop)
        drained = pausing.pace
        while drained.under_way:  # the reads land, the caller comes back much later
            pausing.wanted = lambda now: 0
            pausing.until(len(pausing.landings) + 1)
        pausing.now += 60.0
        pausing.wanted = lambda now: 1 << 30
    assert pausing.pace.limit >= 0.5 * steady.pace.limit


def test_a_pinned_pace_stays() -> None:
    run = Run(Store(0.01, refuses_above=5), Pace(pinned=7)).until(1000)
    assert set(run.limits) == {7}
    assert run.pace.phase is Phase.PINNED
    assert run.refused > 0


events = st.lists(
    st.tuples(
        st.sampled_from(["launch", "land", "refuse"]),
        st.floats(0, 100, allow_nan=False),
        st.integers(0, 1 << 33),
        st.floats(0, 1000, allow_nan=False),
    ),
    max_size=300,
)


@given(events, st.integers(1, 300), st.none() | st.integers(1, 300))
def test_whatever_happens_the_bounds_hold(
    happened: list[tuple[str, float, int, float]], most: int, pinned: int | None
) -> None:
    pace, now = Pace(most, pinned), 0.0
    for what, later, nbytes, seconds in happened:
        now += later
        if what == "launch":
            pace.launched(now)
        elif what == "land":
            pace.landed(now, seconds, nbytes)
        else:
            pace.throttled(now)
        assert 1 <= pace.limit <= (most if pinned is None else pinned)
        assert pinned is None or pace.limit == pinned
        assert pace.under_way >= 0
        assert pace.latency_seconds >= 0
        assert pace.bytes_per_second > 0
        assert LEAST_GAP <= pace.gap_bytes <= MOST_GAP
        assert pace.hedge_after is None or pace.hedge_after >= 0


@given(st.integers(0, 1 << 16), st.floats(0.0, 0.6), st.sampled_from([1, 3, 40, None]), st.sampled_from([None, 2, 30]))
def test_any_store_is_read_to_the_end(seed: int, spread: float, servers: int | None, above: int | None) -> None:
    draw = Random(seed)
    store = Store(
        10 ** draw.uniform(-3, 0), 10 ** draw.uniform(5, 9), 10 ** draw.uniform(5, 10), servers, above, spread
    )
    run = Run(store, Pace(), varied(int(10 ** draw.uniform(2, 7))), seed=seed).until(300)
    assert len(run.landings) >= 300
    assert max(run.limits) <= MOST


@pytest.mark.parametrize(("latency", "rate"), [(0.1, 50 * MB), (0.02, 20 * MB), (0.2, 5 * MB)])
def test_latency_and_rate_are_told_apart_when_reads_are_of_many_sizes(latency: float, rate: float) -> None:
    sizes = [200, MB, 200_000, 3 * MB]
    pace = Run(Store(latency, rate), Pace(), lambda draw: draw.choice(sizes)).until(500).pace
    assert pace.latency_seconds == pytest.approx(latency, rel=0.1)
    assert pace.bytes_per_second == pytest.approx(rate, rel=0.3)
    assert pace.gap_bytes == pytest.approx(min(MOST_GAP, latency * rate), rel=0.4)


def test_a_store_whose_line_is_full_reads_over_small_gaps_only() -> None:
    full = Run(Store(0.1, 50 * MB, 20 * MB), Pace(pinned=64), varied(MB)).until(1000).pace
    free = Run(Store(0.1, 50 * MB), Pace(pinned=64), varied(MB)).until(1000).pace
    assert full.gap_bytes < free.gap_bytes / 8


def test_nothing_is_hedged_before_enough_is_known_nor_after_a_refusal() -> None:
    pace = Pace(pinned=4)
    for k in range(100):
        assert (pace.hedge_after is None) == (k < 32)
        pace.launched(float(k))
        pace.landed(k + 0.1, 0.1, MB)
    pace.throttled(200.0)
    assert pace.hedge_after is None
    for k in range(201, 201 + 64):
        pace.launched(float(k))
        pace.landed(k + 0.1, 0.1, MB)
    assert pace.hedge_after == pytest.approx(0.2)


def test_what_takes_longer_than_nearly_all_reads_is_hedged() -> None:
    pace, draw = Pace(pinned=1), Random(1)
    times = [2.0 if k % 100 == 50 else draw.uniform(0.1, 0.15) for k in range(1000)]
    for k, seconds in enumerate(times):
        pace.launched(float(k))
        pace.landed(k + seconds, seconds, MB)
    assert pace.hedge_after is not None
    assert sum(seconds > pace.hedge_after for seconds in times) == 10
    assert 0.2 <= pace.hedge_after < 2.0
