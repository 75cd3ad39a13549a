"""Who owns which label, against loops over labels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, label_axis
from insitu_xr.plan.split import NOBODY, Splits, even_blocks, span_blocks, usual_block, window_within


def steps(n: int) -> LabelAxis:
    return label_axis("step", None, n)


def numbers(*labels: float) -> LabelAxis:
    return label_axis("x", np.array(labels), len(labels))


def splits(axis: LabelAxis, **chosen: list[int]) -> Splits:
    return Splits.of(axis, {name: np.array(positions, np.int64) for name, positions in chosen.items()})


def test_a_shared_label_is_refused_by_name() -> None:
    days = np.arange("2000-01-01", "2000-01-11", dtype="M8[D]").astype("M8[ns]")
    with pytest.raises(RequestError, match=r"got 2 of 'time' in both 'train' and 'val', first 2000-01-05; a slice"):
        splits(label_axis("time", days, 10), train=[0, 1, 2, 3, 4, 5], val=[7, 5, 4])


def test_counts_and_positions_are_those_given() -> None:
    found = splits(steps(6), train=[4, 0, 1], val=[5])
    assert found.counts() == {"train": 3, "val": 1}
    assert found.positions("train").tolist() == [0, 1, 4]
    assert found.owner.tolist() == [0, 0, NOBODY, NOBODY, 0, 1]


@pytest.mark.parametrize("n", [10, 11, 19, 20, 99, 1000])
def test_fractions_of_one_leave_no_label_over(n: int) -> None:
    found = splits(steps(n)).dealt({"train": 0.8, "val": 0.1, "test": 0.1}, np.arange(n + 1), None)
    assert sum(found.counts().values()) == n
    assert abs(found.counts()["train"] - 0.8 * n) <= 0.5
    assert np.all(np.diff(found.owner) >= 0)


def test_fractions_below_one_leave_the_rest_to_nobody() -> None:
    found = splits(steps(10)).dealt({"train": 0.5, "val": 0.2}, np.arange(11), None)
    assert found.owner.tolist() == [0] * 5 + [1] * 2 + [NOBODY] * 3


def test_fractions_deal_what_no_other_split_names() -> None:
    found = splits(steps(8), test=[2, 3]).dealt({"train": 0.5, "val": 0.5}, np.arange(7), None)
    assert found.names == ("test", "train", "val")
    assert found.owner.tolist() == [1, 1, 0, 0, 1, 2, 2, 2]


def test_stretches_follow_the_labels_and_not_the_storage() -> None:
    found = splits(numbers(3, 2, 1, 0)).dealt({"train": 0.75, "val": 0.25}, np.arange(5), None)
    assert found.owner.tolist() == [1, 0, 0, 0]


def test_an_empty_share_is_refused_with_all_counts() -> None:
    with pytest.raises(RequestError, match=r"got train 4, val 0 of 4 labels; raise the smallest fraction$"):
        splits(steps(4)).dealt({"train": 0.9, "val": 0.1}, np.arange(5), None)
    with pytest.raises(RequestError, match=r"got train 2, val 0 of 2 blocks of about 4 labels; .* shorter block="):
        splits(steps(8)).dealt({"train": 0.8, "val": 0.2}, even_blocks(8, 4), 0)


def test_blocks_depend_on_the_seed_alone() -> None:
    def owner(seed: int) -> list[int]:
        found = splits(steps(100)).dealt({"train": 0.8, "val": 0.1, "test": 0.1}, even_blocks(100, 5), seed)
        assert found.counts() == {"train": 80, "val": 10, "test": 10}
        assert all(len(set(found.owner[k : k + 5].tolist())) == 1 for k in range(0, 100, 5))
        owners: list[int] = found.owner.tolist()
        return owners

    assert owner(1) == owner(1)
    assert len({tuple(owner(seed)) for seed in range(8)}) == 8


owners = st.lists(st.sampled_from([NOBODY, 0, 1, 2]), min_size=1, max_size=30)


@given(owners, st.integers(0, 6), st.randoms(use_true_random=False))
def test_a_gap_takes_what_is_near_to_another_split(given_owners: list[int], gap: int, random: Any) -> None:
    labels = random.sample(range(60), len(given_owners))
    before = Splits(numbers(*labels), ("a", "b", "c"), np.array(given_owners))
    expected = [
        NOBODY
        if any(other not in (NOBODY, mine) and abs(x - y) <= gap for other, y in zip(given_owners, labels, strict=True))
        else mine
        for mine, x in zip(given_owners, labels, strict=True)
    ]
    assert before.apart(gap).owner.tolist() == (expected if gap else given_owners)


@given(st.integers(1, 60), st.integers(1, 70))
def test_even_blocks_hold_every_label_once(n: int, length: int) -> None:
    bounds = even_blocks(n, length)
    assert bounds[0] == 0
    assert bounds[-1] == n
    sizes = np.diff(bounds)
    assert np.all(sizes[:-1] == length)
    assert len(sizes) == 1 or length / 2 <= sizes[-1] < 1.5 * length


@given(st.lists(st.integers(-50, 50), min_size=1, unique=True), st.integers(1, 20))
def test_blocks_of_a_span_do_not_reach_further(ticks: list[int], length: int) -> None:
    ticks = sorted(ticks)
    bounds = span_blocks(np.array(ticks), length)
    pieces = [ticks[a:b] for a, b in pairwise(bounds)]
    assert [tick for piece in pieces for tick in piece] == ticks
    assert all(piece and piece[-1] - piece[0] < length for piece in pieces)


@pytest.mark.parametrize("lost", [0, 3, 50, 10**6])
def test_the_usual_block_leaves_a_block_for_each_split(lost: int) -> None:
    for n in (10, 100, 1461):
        length = usual_block(n, [0.8, 0.1, 0.1], lost)
        found = splits(steps(n)).dealt({"a": 0.8, "b": 0.1, "c": 0.1}, even_blocks(n, length), 0)
        assert all(found.counts().values())


def test_a_window_is_within_if_all_of_it_is() -> None:
    member = np.array([True, True, False, True])
    assert window_within(member, np.array([[0, 1], [1, 2], [3, 0]])).tolist() == [True, False, True]
