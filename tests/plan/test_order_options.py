"""Windows, weights, samplers and ranks: who draws what, and a bound on batches that holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr.limits import Limits
from insitu_xr.plan.order import epoch_order, largest_batch, runs_of
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.quality import shuffle_quality
from insitu_xr.plan.reads import access_groups, batch_uses
from insitu_xr.plan.request import Request
from insitu_xr.plan.sharding import Shard
from tests.plan.requests import request, variable
from tests.plan.test_order import drawn_requests


@st.composite
def options(draw: st.DrawFn, n: int) -> dict[str, Any]:
    """Draw how to shuffle, weigh and shard n samples."""
    shuffle = draw(st.sampled_from(["block", "block", "global", False]))
    found: dict[str, Any] = {"shuffle": shuffle, "drop_last": draw(st.booleans())}
    if shuffle == "block":
        found["shuffle_window"] = draw(st.none() | st.integers(1, 20))
    if draw(st.booleans()):
        weights = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=n, max_size=n))
        found["weights"] = np.array(weights) if any(weights) else np.ones(n)
    world = draw(st.integers(1, 5))
    found["shard"] = Shard(draw(st.integers(0, world - 1)), world, draw(st.sampled_from(["drop", "pad"])))
    return found


@given(st.data(), drawn_requests())
def test_no_batch_of_any_rank_and_epoch_uses_more_than_the_bound(data: st.DataObject, plain: Request) -> None:
    if not len(plain):
        return
    wanted = replace(plain, **data.draw(options(len(plain))))
    groups = access_groups(wanted)
    runs = runs_of(wanted, groups)
    for group in groups:
        bound = largest_batch(wanted, runs, group)
        assert bound <= group.n_units
        for rank in range(wanted.shard.world_size):
            mine = replace(wanted, shard=replace(wanted.shard, rank=rank))
            assert largest_batch(mine, runs, group) == bound, "a ceiling fits all ranks or none"
            for epoch in range(8):
                order = epoch_order(mine, runs, epoch)
                assert len(order) == mine.shard.size(len(plain))
                units = group.units(mine, order)
                assert batch_uses(units, mine.batch_size, mine.n_batches, group.n_units).largest <= bound


@given(st.data(), drawn_requests())
def test_ranks_divide_the_epoch(data: st.DataObject, plain: Request) -> None:
    n = len(plain)
    if not n:
        return
    wanted = replace(plain, **{**data.draw(options(n)), "weights": None})
    runs, world = runs_of(wanted, access_groups(wanted)), wanted.shard.world_size
    shards = [replace(wanted.shard, rank=rank) for rank in range(world)]
    parts = [epoch_order(replace(wanted, shard=shard), runs, 1) for shard in shards]
    own = np.concatenate([part[: shard.own(n)] for part, shard in zip(parts, shards, strict=True)])
    assert len(set(own.tolist())) == len(own) == wanted.shard.used(n)
    assert len({len(part) for part in parts}) == 1
    repeated = np.concatenate([part[shard.own(n) :] for part, shard in zip(parts, shards, strict=True)])
    if wanted.shard.partial == "pad":
        assert len(own) == n
        assert repeated.tolist() == np.resize(own, len(repeated)).tolist(), (
            "what repeats comes from the start of the order"
        )
    else:
        assert not len(repeated)
        assert n - len(own) < world


def orders(wanted: Request, epochs: int) -> list[list[int]]:
    runs = runs_of(wanted, access_groups(wanted))
    return [epoch_order(wanted, runs, epoch).tolist() for epoch in range(epochs)]


@pytest.mark.parametrize("options", [{"shuffle": "block"}, {"shuffle": "global"}, {"weights": np.arange(50.0)}])
def test_the_order_ignores_ambient_generators_and_later_epochs(options: dict[str, Any]) -> None:
    wanted = request([variable("a", 50, 7)], 50, **options)
    np.random.seed(0)  # noqa: NPY002 (the state that others may have left)
    first = orders(wanted, 1)
    np.random.seed(1)  # noqa: NPY002
    assert orders(wanted, 3)[0] == first[0]
    assert len({tuple(order) for order in orders(wanted, 3)}) == 3


def test_weights_are_frequencies() -> None:
    weights = np.repeat([0.0, 1.0, 3.0], 100)
    wanted = request([variable("a", 300, 7)], 300, shuffle="block", weights=weights)
    drawn = np.concatenate([np.array(order) for order in orders(wanted, 100)])
    counts = np.bincount(drawn // 100, minlength=3) / len(drawn)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], [0.25, 0.75], atol=0.01)


def test_weighted_draws_keep_neighbouring_chunks_together() -> None:
    wanted = request([variable("a", 4000, 10)], 4000, batch_size=8, shuffle="block", weights=np.ones(4000))
    group = access_groups(wanted)[0]

    def units_per_batch(asked: Request) -> float:
        uses = batch_uses(group.units(asked, np.array(orders(asked, 1)[0])), 8, asked.n_batches, group.n_units)
        return len(uses.units) / asked.n_batches

    assert units_per_batch(wanted) < 0.8 * units_per_batch(replace(wanted, shuffle="global"))


def test_a_sampler_draws_the_order() -> None:
    def reversed_order(_: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
        return np.arange(n)[::-1]

    wanted = request([variable("a", 10, 3)], 10, sampler=reversed_order)
    assert orders(wanted, 1) == [list(range(9, -1, -1))]
    second = replace(wanted, shard=Shard(1, 3, "pad"))
    assert orders(second, 1) == [[5, 4, 3, 2]]


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (np.arange(9), "return 10 whole numbers"),
        (np.zeros(10), "whole numbers, one per draw, but got float64"),
        (np.arange(1, 11), "from 0 to 9, but got 10 as draw 9"),
    ],
)
def test_a_sampler_must_give_anchors(drawn: Any, message: str) -> None:
    wanted = request([variable("a", 10, 3)], 10, sampler=lambda rng, n: drawn)
    with pytest.raises(RequestError, match=message):
        ReadPlan.of(wanted, None, Limits())


def quality(**options: Any) -> float:
    wanted = request([variable("a", 2000, 20)], 2000, **{"batch_size": 16, **options})
    return shuffle_quality(ReadPlan.of(wanted, None, Limits()))


def test_quality_tells_orders_apart() -> None:
    assert quality() == 0
    assert quality(shuffle="global") == pytest.approx(1, abs=0.02)
    block = quality(shuffle="block", shuffle_window=80)
    assert block == pytest.approx(1 - 1 / 4, abs=0.08), "four runs are mixed"
    assert quality(shuffle="block", shuffle_window=20) < block < quality(shuffle="block", shuffle_window=400)
    assert quality(shuffle="global", batch_size=1) > 0.9
    assert quality(batch_size=2000) == 1


def test_a_window_in_bytes_counts_decoded_chunks() -> None:
    # 3 float32 per sample, all of them needed: 12 bytes.
    wanted = request([variable("a", 100, 5)], 100, shuffle="block", shuffle_bytes=240)
    assert runs_of(wanted, access_groups(wanted)).block == 20


def test_ranks_share_few_chunks() -> None:
    wanted = request([variable("a", 4000, 10)], 4000, batch_size=8, shuffle="block")
    group, world = access_groups(wanted)[0], 4
    runs = runs_of(wanted, (group,))
    parts = [epoch_order(replace(wanted, shard=Shard(r, world)), runs, 0) for r in range(world)]
    touched = [len(np.unique(group.units(wanted, part))) for part in parts]
    assert sum(touched) <= group.n_units + (world - 1)
