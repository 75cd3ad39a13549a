"""Blocks against NumPy: what a block says after any operations is what the values themselves do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from insitu_xr.tracing.block import Block, NotStoredError, Piece, concatenate, join
from tests.tracing.evaluation import _part

DIMS = ("a", "b", "c", "d", "e")


def stored(offset: int) -> tuple[Block, npt.NDArray[Any]]:
    values = np.arange(60).reshape(3, 4, 5) + offset
    return Block((Piece.whole(zarr.create_array(MemoryStore(), data=values)),)), values


ONE, OTHER = stored(0), stored(1000)


def read(block: Block) -> npt.NDArray[Any]:
    dims = DIMS[: block.ndim]
    parts = [_part(piece.segment(dims), dims) for piece in block.pieces]
    return parts[0] if block.axis is None else np.concatenate(parts, block.axis)


@st.composite
def entries(draw: st.DrawFn, size: int) -> Any:
    if size == 0:
        return slice(None)
    position = st.integers(-size, size - 1)
    return draw(
        st.one_of(
            st.slices(size),
            position,
            st.lists(position, min_size=1, max_size=4).map(np.array),
            st.lists(st.booleans(), min_size=size, max_size=size).filter(any).map(np.array),
        )
    )


def outer(values: npt.NDArray[Any], key: list[Any]) -> npt.NDArray[Any]:
    for axis in reversed(range(values.ndim)):
        values = values[(*(slice(None),) * axis, key[axis])]
    return values


@given(st.data())
def test_operations_do_to_blocks_what_they_do_to_values(data: st.DataObject) -> None:
    (block, values), (second, others) = ONE, OTHER
    if data.draw(st.booleans()):
        axis = data.draw(st.integers(0, 2))
        block, values = concatenate([block, second, block], axis), np.concatenate([values, others, values], axis)
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(values.ndim)))
            block, values = block.transpose(order), values.transpose(order)
        else:
            key = [data.draw(entries(size)) for size in values.shape]
            block, values = block.take(key), outer(values, key)
        assert block.shape == values.shape
    np.testing.assert_array_equal(read(block), values)


def test_a_new_axis() -> None:
    block = ONE[0].take([None, 1, slice(None), None, slice(0, 2)])
    assert block.shape == (1, 4, 1, 2)
    np.testing.assert_array_equal(read(block), ONE[1][None, 1, :, None, :2])
    assert block.take([0, slice(None), slice(None), slice(None)]).shape == (4, 1, 2)
    with pytest.raises(NotStoredError):
        block.take([[0, 0], slice(None), slice(None), slice(None)])


def test_pieces_of_one_array_become_one() -> None:
    block = ONE[0]
    cut = concatenate([block.take([slice(0, 1), *[slice(None)] * 2]), block.take([slice(1, 3), *[slice(None)] * 2])], 0)
    assert len(cut.pieces) == 1
    assert cut.pieces[0].index == block.pieces[0].index


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([range(3), range(3, 5)], range(5)),
        ([range(3), range(0), range(3, 5)], range(5)),
        ([range(4, 1, -1), range(1, -1, -1)], range(4, -1, -1)),
        ([], range(0)),
    ],
)
def test_ranges_stay_ranges(parts: list[range], expected: range) -> None:
    assert join(parts) == expected


def test_ranges_that_do_not_follow_one_another() -> None:
    np.testing.assert_array_equal(np.asarray(join([range(3), range(4, 6)])), [0, 1, 2, 4, 5])


def test_positions_out_of_bounds() -> None:
    with pytest.raises(IndexError):
        ONE[0].take([np.array([3]), slice(None), slice(None)])
