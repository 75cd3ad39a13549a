"""Units along sample dimensions and cells of the field, put together again with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.geometry.axes import StoredAxes, axis_units, field_cells
from insitu_xr.geometry.grid import AxisGrid
from tests.geometry.test_grid import grids, selections


def padded(grid: AxisGrid, offset: int) -> npt.NDArray[Any]:
    """Number the positions of an axis, padding of the last chunk included."""
    last = grid.n_chunks - 1
    return np.arange(offset, offset + grid.start(last) + grid.length(last))


@settings(max_examples=60)
@given(st.data(), st.lists(grids(12), min_size=1, max_size=3))
def test_units_hold_every_needed_position(data: st.DataObject, axes: list[AxisGrid]) -> None:
    parts = [(grid, data.draw(selections(grid.extent))) for grid in axes]
    values = [padded(grid, 1000 * number) for number, grid in enumerate(axes)]
    expected = np.concatenate([values[k][index] for k, (_, index) in enumerate(parts)])
    needed = np.array(data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected))), bool)
    units = axis_units(parts, needed)

    places = list(zip(units.segment.tolist(), units.chunk.tolist(), strict=True))
    assert len(set(places)) == len(places) == units.n_units
    held = []
    for number, (segment, chunk) in enumerate(places):
        start = axes[segment].start(chunk)
        held.append(values[segment][start : start + axes[segment].length(chunk)][units.source(number)].tolist())
        assert units.rows(number) == len(held[-1])
    assert units.counts.tolist() == [len(rows) for rows in held]
    assert units.capacity == max(map(len, held), default=0)

    assert (units.unit >= 0).tolist() == needed.tolist()
    for position in np.flatnonzero(needed):
        assert held[units.unit[position]][units.row[position]] == expected[position]
    # Nothing is held that is not needed, and nothing twice.
    assert sorted(value for rows in held for value in rows) == sorted(set(expected[needed].tolist()))


def test_no_position_needed() -> None:
    units = axis_units([(AxisGrid(6, size=4), np.arange(6))], np.zeros(6, bool))
    assert (units.n_units, units.capacity, units.counts.tolist()) == (0, 0, [])
    assert units.unit.tolist() == [-1] * 6


def test_the_same_chunk_of_two_stores_is_two_units() -> None:
    parts = [(AxisGrid(4, size=4), np.array([1, 2])), (AxisGrid(4, size=4), np.array([1, 3]))]
    units = axis_units(parts, np.ones(4, bool))
    assert units.segment.tolist() == [0, 1]
    assert units.chunk.tolist() == [0, 0]
    assert units.unit.tolist() == [0, 0, 1, 1]
    assert units.row.tolist() == [0, 1, 0, 1]


@st.composite
def stored_axes(draw: st.DrawFn) -> tuple[StoredAxes, tuple[str, ...], tuple[str, ...]]:
    """Draw a stored array of up to four axes, some indexed by an integer, one of them perhaps drawn along."""
    names = draw(st.permutations(["s", "a", "b", "c"]))[: draw(st.integers(1, 4))]
    axes, index, dims = [], [], []
    for name in names:
        grid = draw(grids(6))
        dropped = name != "s" and draw(st.booleans())
        axes.append(grid)
        index.append(draw(st.integers(0, grid.extent - 1) if dropped else selections(grid.extent).filter(len)))
        dims.append(None if dropped else name)
    sample = tuple(d for d in dims if d == "s")
    field = draw(st.permutations([d for d in dims if d is not None and d != "s"]))
    extra = ("new",) if draw(st.booleans()) else ()
    return StoredAxes(tuple(axes), tuple(index), tuple(dims)), sample, (*field, *extra)


@settings(max_examples=60)
@given(stored_axes())
def test_cells_make_up_the_field(drawn: tuple[StoredAxes, tuple[str, ...], tuple[str, ...]]) -> None:
    axes, sample, field = drawn
    shape = [len(padded(grid, 0)) for grid in axes.grids]
    stored = np.arange(int(np.prod(shape))).reshape(shape)
    expected = stored
    for axis in reversed(range(stored.ndim)):
        expected = np.take(expected, 0 if axes.dims[axis] in sample else axes.index[axis], axis=axis)
    left = [d for d in axes.dims if d is not None and d not in sample]
    kept = [d for d in field if d in left]
    expected = expected.transpose([left.index(d) for d in kept])
    expected = expected.reshape([*expected.shape, *[1 for d in field if d not in left]])

    built = np.full(expected.shape, -1)
    cells = field_cells(axes, sample, field)
    for cell in cells:
        piece = stored
        for axis in reversed(range(stored.ndim)):
            source = cell.source[axis]
            if source is None:
                assert cell.chunk[axis] == -1
                piece = np.take(piece, 0, axis=axis)
                continue
            start = axes.grids[axis].start(cell.chunk[axis])
            chunk = np.arange(start, start + axes.grids[axis].length(cell.chunk[axis]))
            piece = np.take(piece, chunk[source], axis=axis)
        piece = piece.transpose([left.index(d) for d in kept])
        piece = piece.reshape([*piece.shape, *[1 for d in field if d not in left]])
        assert (built[cell.target] == -1).all()
        built[cell.target] = piece
    assert built.tolist() == expected.tolist()
    assert len({cell.chunk for cell in cells}) == len(cells)


def test_the_largest_chunk_counts_its_padding() -> None:
    grid = (AxisGrid(10, size=4), AxisGrid.from_lengths(6, [1, 5]))
    assert StoredAxes(grid, (0, 0), (None, None)).chunk_elements == 20
