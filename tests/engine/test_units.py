"""Units are where the layout says, for any grid, selection and order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.engine.units import Units
from insitu_xr.geometry.axes import StoredAxes
from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.plan.reads import access_groups
from insitu_xr.plan.request import VariableSpec
from tests.plan.requests import request


@st.composite
def stored_axes(draw: st.DrawFn) -> tuple[AxisGrid, np.ndarray]:
    """Draw a grid, regular or not, and positions of it in any order."""
    if draw(st.booleans()):
        grid = AxisGrid(draw(st.integers(1, 12)), size=draw(st.integers(1, 5)))
    else:
        lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        grid = AxisGrid.from_lengths(sum(lengths), lengths)
    positions = draw(st.lists(st.integers(0, grid.extent - 1), min_size=1, max_size=12))
    return grid, np.array(positions, np.int64)


@given(stored_axes())
def test_rows_and_chunks_are_those_of_the_stored_positions(drawn: tuple[AxisGrid, np.ndarray]) -> None:
    grid, index = drawn
    axes = StoredAxes((AxisGrid(3, size=2), grid), (np.arange(3), index), ("y", "step"))
    spec = VariableSpec("v", "stored", ("step", "y"), (len(index), 3), np.dtype("f4"), (axes,), stored_itemsize=4)
    (group,) = access_groups(request([spec], len(index)))
    layout, units = group.first, Units(group.first)
    for number in range(layout.n_units):
        unit = units.unit(number)
        (chunk,), (rows,), (count,) = unit.chunk, unit.rows, unit.counts
        inside = np.arange(grid.length(chunk))[rows]
        wanted = np.unique(index[grid.chunk_of(index) == chunk])
        assert (unit.number, unit.part, count) == (number, 0, len(wanted))
        assert (grid.start(chunk) + inside).tolist() == wanted.tolist()
        assert unit.whole == (len(wanted) == grid.length(chunk))
        assert units.unit(number) is unit, "variables that are read together ask one after another"
