"""Chunk arithmetic against numpy: what is cut into chunks can be put together again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.geometry.grid import AxisGrid, as_slice, coalesce, split_axis


@st.composite
def grids(draw: st.DrawFn, max_extent: int = 20) -> AxisGrid:
    """Draw regular and rectilinear axes; the last chunk may hang over, or the first be longer than the axis."""
    extent = draw(st.integers(1, max_extent))
    if draw(st.booleans()):
        return AxisGrid(extent, size=draw(st.integers(1, extent + 5)))
    cuts = draw(st.sets(st.integers(1, extent), max_size=5))
    bounds = [0, *sorted(cuts - {extent}), extent + draw(st.integers(0, 4))]
    return AxisGrid.from_lengths(extent, np.diff(bounds).tolist())


def bounds_of(grid: AxisGrid) -> list[tuple[int, int]]:
    """List first and last position (exclusive) of every chunk."""
    return [(grid.start(k), grid.start(k) + grid.length(k)) for k in range(grid.n_chunks)]


@given(grids())
def test_chunks_follow_one_another_and_cover_the_axis(grid: AxisGrid) -> None:
    bounds = bounds_of(grid)
    assert bounds[0][0] == 0
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    assert bounds[-1][0] < grid.extent <= bounds[-1][1]
    assert grid.longest == max(stop - start for start, stop in bounds)


@given(grids())
def test_every_position_lies_in_its_chunk(grid: AxisGrid) -> None:
    positions = np.arange(grid.extent, dtype=np.int64)
    chunks = grid.chunk_of(positions)
    bounds = bounds_of(grid)
    assert all(bounds[k][0] <= p < bounds[k][1] for p, k in zip(positions.tolist(), chunks.tolist(), strict=True))
    assert grid.start_of(chunks).tolist() == [bounds[k][0] for k in chunks.tolist()]
    assert chunks.dtype == np.int64


@pytest.mark.parametrize(
    ("grid", "bounds"),
    [
        (AxisGrid(10, size=4), [(0, 4), (4, 8), (8, 12)]),
        (AxisGrid(8, size=4), [(0, 4), (4, 8)]),
        (AxisGrid(3, size=7), [(0, 7)]),
        (AxisGrid.from_lengths(6, [1, 2, 3]), [(0, 1), (1, 3), (3, 6)]),
        (AxisGrid.from_lengths(5, [4, 4]), [(0, 4), (4, 8)]),
        (AxisGrid.from_lengths(4, [4, 4]), [(0, 4)]),
        (AxisGrid(0, size=4), []),
    ],
    ids=[
        "overhang",
        "even",
        "longer than the axis",
        "rectilinear",
        "rectilinear overhang",
        "chunk without data",
        "none",
    ],
)
def test_known_grids(grid: AxisGrid, bounds: list[tuple[int, int]]) -> None:
    assert bounds_of(grid) == bounds


@st.composite
def selections(draw: st.DrawFn, extent: int) -> Any:
    """Draw positions as an indexer may give them: slices, reversed, repeated, in any order."""
    kind = draw(st.sampled_from(["list", "slice"]))
    if kind == "list":
        return np.array(draw(st.lists(st.integers(0, extent - 1), max_size=12)), np.int64)
    step = draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    first, last = draw(st.integers(0, extent - 1)), draw(st.integers(0, extent - 1))
    return np.arange(extent, dtype=np.int64)[first:last:step]


@given(st.data(), grids())
def test_the_parts_of_a_selection_make_it_up(data: st.DataObject, grid: AxisGrid) -> None:
    # An empty selection is refused before anything is planned.
    index = data.draw(selections(grid.extent).filter(len))
    padded = np.arange(1000, 1000 + grid.start(grid.n_chunks - 1) + grid.length(grid.n_chunks - 1))
    built = np.full(len(index), -1)
    chunks = []
    for part in split_axis(grid, index):
        chunk = padded[grid.start(part.chunk) : grid.start(part.chunk) + grid.length(part.chunk)]
        target: Any = part.target
        assert (built[target] == -1).all()
        built[target] = chunk[part.source]
        chunks.append(part.chunk)
    assert built.tolist() == (index + 1000).tolist()
    assert chunks == sorted(set(grid.chunk_of(index).tolist()))


@given(st.data(), grids())
def test_an_integer_lies_in_one_part(data: st.DataObject, grid: AxisGrid) -> None:
    position = data.draw(st.integers(0, grid.extent - 1))
    for index in (position, np.int64(position)):
        (part,) = split_axis(grid, index)  # type: ignore[arg-type]  # numpy integers are taken as well
        assert part.target is None
        assert isinstance(part.source, int)
        assert grid.start(part.chunk) + part.source == position
        assert 0 <= part.source < grid.length(part.chunk)


@given(st.data(), st.integers(1, 30))
def test_a_slice_selects_what_the_positions_do(data: st.DataObject, extent: int) -> None:
    positions = data.draw(selections(extent))
    chosen = as_slice(positions)
    assert np.arange(extent)[chosen].tolist() == positions.tolist()
    steps = set(np.diff(positions).tolist())
    assert isinstance(chosen, slice) == (not steps or (len(steps) == 1 and 0 not in steps))


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=8).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


@given(ranges, st.integers(0, 6))
def test_merged_ranges(given_ranges: list[tuple[int, int]], max_gap: int) -> None:
    merged = coalesce(given_ranges, max_gap)
    assert sorted(number for _, _, members in merged for number in members) == list(range(len(given_ranges)))
    for start, stop, members in merged:
        inside = sorted(given_ranges[number] for number in members)
        assert (start, stop) == (min(a for a, _ in inside), max(b for _, b in inside))
        reached = start
        for first, last in inside:
            assert first - reached <= max_gap
            reached = max(reached, last)
    assert all(after[0] - before[1] > max_gap for before, after in pairwise(merged))
