"""From raw chunks to rows of a slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.engine.carrying import Placing
from insitu_xr.engine.decode import Part, VariableReader, crop, is_contiguous
from insitu_xr.engine.fetch import BlockSource
from insitu_xr.engine.placing import SlotSink
from insitu_xr.errors import ReadError, VerificationError
from insitu_xr.geometry.axes import StoredAxes
from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.plan.reads import access_groups
from insitu_xr.plan.request import VariableSpec
from tests.plan.requests import request


@st.composite
def selections(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    """Draw a shape and, per axis, an integer, a slice or a list of positions."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    chosen: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(["integer", "slice", "list"]))
        position = st.integers(0, size - 1)
        if kind == "integer":
            chosen.append(draw(position))
        elif kind == "list":
            chosen.append(np.array(draw(st.lists(position, min_size=1, max_size=5)), np.int64))
        else:
            step = draw(st.sampled_from([-2, -1, 1, 2]))
            chosen.append(slice(draw(position), None, step))
    return shape, chosen


@given(selections())
def test_axes_are_cropped_independently(drawn: tuple[tuple[int, ...], list[Any]]) -> None:
    shape, chosen = drawn
    values = np.arange(int(np.prod(shape))).reshape(shape)
    expected = values
    for axis in reversed(range(len(shape))):
        index = chosen[axis]
        expected = np.take(expected, np.arange(shape[axis])[index], axis=axis)
    cropped = crop(values, chosen)
    assert cropped.tolist() == expected.tolist()
    if cropped.ndim and not any(isinstance(c, np.ndarray) for c in chosen):
        assert np.shares_memory(cropped, values)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 4), st.sampled_from([1, 1, 2, -1])), max_size=4
    )
)
def test_a_part_is_contiguous_where_numpy_says_so(axes: list[tuple[int, int, int, int]]) -> None:
    field = tuple(size for size, *_ in axes)
    target = tuple(
        slice(None, None, -1) if step < 0 else slice(min(first, size - 1), first + n, step)
        for size, first, n, step in axes
    )
    assert is_contiguous(target, field) == np.empty(field)[target].flags.c_contiguous


def reader_of(*functions: Any, dtype: str = "i8", value: str = "i8") -> tuple[VariableReader, np.ndarray[Any, Any]]:
    """Read a variable (step, y) that is stored as (y, 1, step), every other y of it."""
    stored = np.arange(4 * 2 * 10).reshape(4, 2, 10)
    grids = (AxisGrid(4, size=3), AxisGrid(2, size=1), AxisGrid(10, size=4))
    axes = StoredAxes(grids, (np.array([3, 1]), 1, np.arange(10)), ("y", None, "step"))
    spec = VariableSpec("v", "stored", ("step", "y"), (10, 2), np.dtype(dtype), (axes,), stored_itemsize=8)
    (group,) = access_groups(request([spec], 10))
    source = BlockSource(
        lambda where: stored[where["y"], where["1"], where["step"]], ("y", "1", "step"), grids, stored.dtype
    )
    return VariableReader(group.layouts[0], [Part(source, functions)], np.dtype(value)), stored[[3, 1], 1].T


def placed(reader: VariableReader, unit: int) -> list[Any]:
    layout = reader.layout
    rows = np.full((*layout.row_shape, *layout.field_shape), -1, layout.spec.dtype)
    sink = SlotSink(rows, reader.unit(unit).counts)
    for job in reader.jobs(unit):
        placing = Placing(job, sink)
        for number, raw in enumerate(job.source.read(job.chunks).drain()):
            assert placing.place(number, raw) > 0
    count = layout.units[0].rows(unit)
    assert (rows[count:] == -1).all()
    return list(rows[:count].tolist())


def test_chunks_are_placed_in_the_order_of_the_batch() -> None:
    reader, expected = reader_of()
    assert [job.chunks for job in reader.jobs(2)] == [((0, 1, 2),), ((1, 1, 2),)]
    for unit, rows in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
        assert placed(reader, unit) == expected[rows].tolist()


def test_functions_are_applied_and_the_cast_comes_last() -> None:
    reader, expected = reader_of(lambda v: v / 4, lambda v: v + 1, dtype="f4", value="f8")
    assert placed(reader, 0) == (expected[:4] / 4 + 1).astype("f4").tolist()


def test_values_of_another_dtype_are_refused() -> None:
    reader, _ = reader_of(lambda v: v / 4)
    with pytest.raises(VerificationError, match="'v' must be int64, as xarray shows them, but got float64"):
        placed(reader, 0)


def test_one_row_is_peeked_at() -> None:
    reader, expected = reader_of()
    cells = reader.layout.cells[0]
    for unit, row, position in ((0, 3, 3), (2, 1, 9)):
        built = np.full((1, 2), -1)
        for cell in cells:
            built[(slice(None), *cell.target)] = reader.peek(unit, row, cell)
        assert built[0].tolist() == expected[position].tolist()


def test_a_failure_names_variable_chunk_and_key() -> None:
    reader, _ = reader_of()
    job = reader.jobs(1)[0]
    error = job.failure(ValueError("bad"), "decoded")
    assert isinstance(error, ReadError)
    assert (error.variable, error.chunk, error.key) == ("v", (0, 1, 1), "y=0:3, 1=1:2, step=4:8")
    assert "could not be decoded: ValueError: bad; check the store" in str(error)
