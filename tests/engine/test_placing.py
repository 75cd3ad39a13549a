"""Where decoded chunks go: slots, and rows of open batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.placing import Sink, SlotSink, SpreadSink
from insitu_xr.plan.channels import stacks_of
from tests.plan.requests import request, variable

FIELD = (4, 3)


@st.composite
def targets(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw places in a field: slices either way and with steps, or position lists, as an open mesh."""
    found: list[Any] = []
    for size in FIELD:
        positions = draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
        whole = draw(st.booleans())
        found.append(slice(0, size) if whole else slice(min(positions), max(positions) + 1, draw(st.integers(1, 2))))
        if draw(st.integers(0, 2)) == 0:
            found[-1] = np.array(positions)
    if any(isinstance(t, np.ndarray) for t in found):
        return tuple(np.ix_(*[np.arange(n)[t] for t, n in zip(found, FIELD, strict=True)]))
    return tuple(found)


def check_direct(sink: Sink, target: tuple[Any, ...], holds: Any) -> None:
    """What is written to memory that a sink gives must be in the array, and all of it."""
    into = sink.direct(target)
    if into is None:
        return
    assert into.flags.c_contiguous
    assert np.shares_memory(into, holds)
    into[...] = 5
    expected = np.zeros(into.shape[1:])
    expected[...] = 5
    assert np.array_equal(np.squeeze(np.asarray(into)), np.squeeze(np.broadcast_to(expected, into.shape)))


@given(targets(), st.integers(1, 3))
def test_a_slot(target: tuple[Any, ...], count: int) -> None:
    slot = np.zeros((3, *FIELD), "f4")
    sink = SlotSink(slot, (count,))
    piece = 1 + np.arange(count * np.zeros(FIELD)[target].size).reshape(count, *np.zeros(FIELD)[target].shape)
    expected = slot.copy()
    expected[:count][(slice(None), *target)] = piece
    sink.put(target, piece)
    assert np.array_equal(slot, expected)
    basic = not any(isinstance(t, np.ndarray) for t in target)
    place = slot[:count][(slice(None), *target)]
    assert (sink.direct(target) is not None) == (basic and place.flags.c_contiguous)
    check_direct(sink, target, slot)


@st.composite
def copies(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Draw, per array, pairs of the row in the unit and the place in the array; a place once."""
    return [
        [(draw(st.integers(0, 2)), place) for place in draw(st.lists(st.integers(0, 4), unique=True, max_size=3))]
        for _ in range(draw(st.integers(1, 3)))
    ]


@given(targets(), copies(), st.sampled_from(["f4", "f8"]))
def test_rows_of_open_batches(target: tuple[Any, ...], pairs: list[list[tuple[int, int]]], dtype: str) -> None:
    """Values are cast to the dtype of the variable, f4, before they reach an array that may be wider."""
    arrays = [np.zeros((5, *FIELD), dtype) for _ in pairs]
    sink = SpreadSink(list(zip(arrays, pairs, strict=True)), np.dtype("f4"))
    shape = np.zeros(FIELD)[target].shape
    piece = (1 + np.arange(3 * np.prod(shape, dtype=int)).reshape(3, *shape)) / 3
    sink.put(target, piece)
    for array, wanted in zip(arrays, pairs, strict=True):
        expected = np.zeros_like(array)
        for row, place in wanted:
            expected[place][target] = piece[row].astype("f4")
        assert np.array_equal(array, expected)
    # Only a unit of one row that goes to one place can be decoded there.
    once = sum(map(len, pairs)) == 1
    (row, place) = next(pair for found in pairs for pair in found) if once else (0, 0)
    basic = not any(isinstance(t, np.ndarray) for t in target)
    array = next((a for a, found in zip(arrays, pairs, strict=True) if found), arrays[0])
    possible = once and row == 0 and dtype == "f4" and basic and array[place][target].flags.c_contiguous
    into = sink.direct(target)
    assert (into is not None) == possible
    if into is not None:
        assert into.shape == (1, *shape)
        assert np.shares_memory(into, array)
        into[...] = 5
        assert (array[place][target] == 5).all()


def test_a_field_that_is_a_number() -> None:
    array = np.zeros(4)
    sink = SpreadSink([(array, [(0, 2)])], np.dtype("f8"))
    sink.put((), np.array([7.0]))
    assert array.tolist() == [0, 0, 7, 0]
    into = sink.direct(())
    assert into is not None
    into[...] = 9
    assert array.tolist() == [0, 0, 9, 0]


@pytest.mark.parametrize("leads", [None, [0]])
@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_views_are_where_a_variable_goes_in_a_batch(layout: str, leads: list[int] | None) -> None:
    """What is written to the views, row by row, is what gathering would have put into the arrays."""
    specs = [variable("a", 6, 2, (3, 2)), variable("z", 6, 3, (3, 2, 2)), variable("s", 0, 0, (3, 2))]
    wanted = request(specs, 6, leads, layout=layout)
    stacks = stacks_of(wanted, {"z": {"level": ["500", "850"]}}) if layout == "stacked" else None
    gatherer = Gatherer(wanted, [], {}, stacks)
    assert gatherer.parts(5)[1:] == [], "nothing is copied of what is written straight"
    arrays = gatherer.allocate(5)
    for array in arrays.values():
        array[...] = -1
    values = {spec.name: np.random.default_rng(0).random((5, *wanted.field_shape(spec.name)), "f4") for spec in specs}
    for name in ("a", "z"):
        (view,) = gatherer.views(name, arrays)
        assert view.shape == (5, *wanted.field_shape(name))
        assert any(np.shares_memory(view, array) for array in arrays.values())
        view[...] = values[name]
    if layout == "dict":
        for name in ("a", "z"):
            array = arrays["variables", name]
            assert np.array_equal(array if leads is None else array[:, 0], values[name])
        return
    stacked = arrays["variables", ""]
    assert np.array_equal(stacked[:, 0], values["a"])
    assert np.array_equal(stacked[:, 1:3], np.moveaxis(values["z"], -1, 1))
    assert (stacked[:, 3] == -1).all(), "a static is no row of a chunk"
