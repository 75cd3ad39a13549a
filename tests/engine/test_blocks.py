"""Memory is used again only when nobody can see it any more."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

from insitu_xr.engine.blocks import ALIGNMENT, SMALL_BYTES, BlockStore

SHAPE = (SMALL_BYTES // 8 + 5,)


@pytest.mark.parametrize("dtype", ["f8", "i2", "?", "M8[ns]", "S3", "c16"])
def test_arrays_are_aligned_writable_and_contiguous(dtype: str) -> None:
    array = BlockStore(1 << 24).array((SMALL_BYTES, 3), np.dtype(dtype))
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = np.zeros((), dtype)


def test_what_is_held_never_changes() -> None:
    """Two thousand steps of taking, viewing, keeping and dropping: every kept view holds what was written to it."""
    store, dice = BlockStore(1 << 23), random.Random(1)
    kept: list[tuple[np.ndarray, float]] = []
    for step in range(2000):
        array = store.array(SHAPE, np.dtype("f8"))
        array[...] = step
        view = array[dice.randrange(5) :: dice.choice([1, 2, -1])] if dice.random() < 0.7 else array
        if dice.random() < 0.5:
            kept.append((view, float(step)))
        del array, view
        if len(kept) > 6:
            kept.pop(dice.randrange(len(kept)))
        if step % 50 == 0:
            assert all((held == value).all() for held, value in kept)
    assert all((held == value).all() for held, value in kept)


def test_no_more_waits_than_the_limit() -> None:
    store = BlockStore(3 * 8 * SHAPE[0])
    arrays = [store.array(SHAPE, np.dtype("f8")) for _ in range(10)]
    del arrays
    gc.collect()
    assert 0 < store.waiting_bytes <= store.limit


def test_many_threads() -> None:
    store, wrong = BlockStore(1 << 24), []

    def work(number: int) -> None:
        for step in range(200):
            array = store.array(SHAPE, np.dtype("f8"))
            array[...] = number * 1000 + step
            if not (array == number * 1000 + step).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
