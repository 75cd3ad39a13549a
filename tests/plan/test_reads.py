"""Uses of units, against naive loops; and how variables share a schedule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.plan.reads import NEVER, Uses, access_groups, batch_uses, join_epochs
from tests.plan.requests import request, variable

Batches = list[set[int]]


@st.composite
def draws(draw: st.DrawFn) -> tuple[list[list[int]], int, int]:
    """Draw the units of samples in draw order, the batch size and the number of units."""
    n_units, columns = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    row = st.lists(st.integers(0, n_units - 1), min_size=columns, max_size=columns)
    return draw(st.lists(row, min_size=1, max_size=14)), draw(st.integers(1, 4)), n_units


def batches_of(rows: list[list[int]], size: int, n_batches: int) -> Batches:
    return [{u for row in rows[k * size : (k + 1) * size] for u in row} for k in range(n_batches)]


def uses_of(rows: list[list[int]], size: int, n_batches: int, n_units: int) -> Uses:
    return batch_uses(np.array(rows, np.int64), size, n_batches, n_units)


def following(batches: Batches, number: int, unit: int) -> int:
    return next((b for b in range(number + 1, len(batches)) if unit in batches[b]), int(NEVER))


@given(draws(), st.booleans())
def test_uses_of_batches(drawn: tuple[list[list[int]], int, int], drop_last: bool) -> None:
    rows, size, n_units = drawn
    n_batches = len(rows) // size if drop_last else -(-len(rows) // size)
    uses = uses_of(rows, size, n_batches, n_units)
    batches = batches_of(rows, size, n_batches)
    assert uses.n_batches == n_batches
    assert uses.largest == max(map(len, batches), default=0)
    for number, batch in enumerate(batches):
        inside = slice(uses.bounds[number], uses.bounds[number + 1])
        assert uses.units[inside].tolist() == sorted(batch)
        assert uses.next_use[inside].tolist() == [following(batches, number, u) for u in sorted(batch)]
    first = [next((b for b, batch in enumerate(batches) if u in batch), int(NEVER)) for u in range(n_units)]
    assert uses.first_use().tolist() == first


@given(draws())
def test_next_uses_reach_into_the_following_epoch(drawn: tuple[list[list[int]], int, int]) -> None:
    rows, size, n_units = drawn
    n_batches = -(-len(rows) // size)
    other = sorted(rows, key=lambda row: (row[-1] * 7) % 5)
    joined = join_epochs(uses_of(rows, size, n_batches, n_units), uses_of(other, size, n_batches, n_units))
    both = batches_of(rows, size, n_batches) + batches_of(other, size, n_batches)
    expected = [following(both, number, u) for number in range(n_batches) for u in sorted(both[number])]
    assert joined.next_use.tolist() == expected
    assert joined.n_batches == n_batches


def test_variables_with_the_same_chunks_and_leads_share_a_schedule() -> None:
    same = [variable("a", 12, 4), variable("b", 12, 4, field=(5, 2))]
    other = variable("c", 12, 3)
    groups = access_groups(request([*same, other], 12))
    assert [[x.spec.name for x in group.layouts] for group in groups] == [["a", "b"], ["c"]]
    assert [group.n_units for group in groups] == [3, 4]
    assert groups[0].slot_bytes == 4 * 4 * (3 + 10)
    assert groups[0].cells_per_unit.tolist() == [2, 2, 2]


def test_variables_with_other_leads_do_not() -> None:
    wanted = request([variable("a", 12, 4), variable("b", 12, 4)], 12, windowed={"a": [0], "b": [0, 1]})
    assert len(access_groups(wanted)) == 2


def test_units_of_samples_follow_the_partners() -> None:
    group = access_groups(request([variable("a", 12, AxisGrid.from_lengths(12, [5, 4, 3]))], 12, leads=[0, 4]))[0]
    wanted = request([variable("a", 12, 5)], 12, leads=[0, 4])
    units = group.units(wanted, np.arange(8))
    assert units.tolist() == [[0, 0], [0, 1], [0, 1], [0, 1], [0, 1], [1, 2], [1, 2], [1, 2]]


def test_only_what_a_sample_needs_is_in_a_slot() -> None:
    labels = np.array([0, 1, 2, *range(13, 22)])
    group = access_groups(request([variable("a", 12, 4)], 12, labels=labels, leads=[19]))[0]
    # The anchors lie in the first chunk, but only their partners are asked for: three rows of the last one.
    assert (group.n_units, group.first.units[0].chunk.tolist(), group.first.row_shape) == (1, [2], (3,))


def test_a_static_is_one_unit() -> None:
    (moving, still) = access_groups(request([variable("a", 8, 4), variable("m", 0, 0, field=(2, 3))], 8))
    assert (moving.n_units, still.n_units) == (2, 1)
    assert (still.slot_bytes, still.first.slot_rows) == (24, 1)
