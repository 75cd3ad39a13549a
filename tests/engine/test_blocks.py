"""Memory is used again only when nobody can see it any more."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from insitu_xr.engine.blocks import ALIGNMENT, BLOCKS, SMALL_BYTES, BlockStore, ThreadMemory

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


FORKED = """
import os, sys
import numpy as np
from insitu_xr.engine.blocks import BlockStore
array = BlockStore(1 << 24).array((1 << 20,), np.dtype("u1"))
array[...] = 1
child = os.fork()
if not child:
    array[...] = 2
    os._exit(0)
os.waitpid(child, 0)
sys.exit(int((array != 1).any()))
"""


LOCKED = """
import os, sys
import numpy as np
from insitu_xr.engine.blocks import BLOCKS
with BLOCKS._lock:
    child = os.fork()
    if not child:
        BLOCKS.array((1 << 20,), np.dtype("u1"))
        os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_while_another_thread_asks_for_memory() -> None:
    assert subprocess.run([sys.executable, "-c", LOCKED], check=False, timeout=60).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_what_a_forked_child_writes_is_its_own() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED], check=False).returncode == 0


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


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_what_came_back_is_used_again_even_where_it_is_nearly_all_there_may_be() -> None:
    size = 8 * SHAPE[0]
    store = BlockStore(4 * size)
    arrays = [store.array(SHAPE, np.dtype("f8")) for _ in range(4)]
    addresses = {address_of(array) for array in arrays}
    del arrays
    again = [store.array(SHAPE, np.dtype("f8")) for _ in range(4)]
    assert {address_of(array) for array in again} == addresses
    assert store.waiting_bytes == 0


def test_what_is_given_out_leaves_less_room_for_what_waits() -> None:
    size = 8 * SHAPE[0]
    store = BlockStore(3 * size)
    arrays = [store.array(SHAPE, np.dtype("f8")) for _ in range(6)]
    del arrays[4:]
    assert store.waiting_bytes == 0, "four are out, more than there should be"
    del arrays[1:]
    assert store.waiting_bytes == 2 * size
    # Memory of another size takes the place of what waits.
    other = store.array((2 * SHAPE[0],), np.dtype("f8"))
    assert store.waiting_bytes == 0
    assert other.nbytes == 2 * size


def test_a_short_batch_is_put_into_memory_of_a_full_one() -> None:
    """Fresh memory for it would not only cost its pages, but take the place of a full one's."""
    rows = 4 * SHAPE[0]
    store = BlockStore(2 * 8 * rows)
    full = [store.array((rows,), np.dtype("f8")) for _ in range(2)]
    addresses = {address_of(array) for array in full}
    del full
    short = store.array((rows * 2 // 3,), np.dtype("f8"), roomy=True)
    assert address_of(short) in addresses
    again = store.array((rows,), np.dtype("f8"))
    assert {address_of(short), address_of(again)} == addresses
    del again
    tiny = store.array((rows // 2 - 1,), np.dtype("f8"), roomy=True)
    assert address_of(tiny) not in addresses, "more than half of it would be wasted"
    del short, tiny
    assert store.waiting_bytes
    store.limit = 8 * rows - 1
    short = store.array((rows * 2 // 3,), np.dtype("f8"), roomy=True)
    assert address_of(short) not in addresses, "what is given out would be more than there may be"


def test_memory_that_is_counted_by_its_own_size_is_never_larger() -> None:
    """A slot or scratch in a larger block would hold more than its ceiling knows of."""
    rows = 4 * SHAPE[0]
    store = BlockStore(2 * 8 * rows)
    full = store.array((rows,), np.dtype("f8"))
    address = address_of(full)
    del full
    smaller = store.array((rows * 2 // 3,), np.dtype("f8"))
    assert address_of(smaller) != address


def test_memory_that_there_is_not_is_named_and_not_counted() -> None:
    store = BlockStore(1 << 30)
    for _ in range(3):
        with pytest.raises(MemoryError, match=r"must be free for an array of .* TiB, but got .*; lower memory="):
            store.array((1 << 62,), np.dtype("u1"))
    array = store.array(SHAPE, np.dtype("f8"))
    del array
    assert store.waiting_bytes == 8 * SHAPE[0]


def test_what_a_thread_gives_back_serves_others() -> None:
    mine = ThreadMemory()
    address = address_of(mine.take(SMALL_BYTES))
    before = BLOCKS.waiting_bytes
    owner = threading.Event()  # anything that can be referred to weakly
    BLOCKS.share(owner, 1 << 30)
    mine.release()
    assert BLOCKS.waiting_bytes == before + SMALL_BYTES
    assert address_of(BLOCKS.array((SMALL_BYTES,), np.dtype("u1"))) == address


def test_ceilings_add_up_while_their_owners_live() -> None:
    class Owner:
        pass

    store, first, second = BlockStore(1), Owner(), Owner()
    store.share(first, 3 << 20)
    store.share(second, 2 << 20)
    assert store.limit == 5 << 20
    store.share(first, 1 << 20)
    assert store.limit == 3 << 20
    del first
    gc.collect()
    store.share(second, 2 << 20)
    assert store.limit == 2 << 20


def test_memory_of_a_thread_grows_and_is_its_own() -> None:
    memory = ThreadMemory()
    small = memory.take(100)
    assert np.shares_memory(small, memory.take(50))
    large = memory.take(3 * SMALL_BYTES)
    assert large.nbytes == 3 * SMALL_BYTES
    assert large.flags.writeable
    assert np.shares_memory(large, memory.take(SMALL_BYTES)), "what was enough once is taken again"
    assert memory.take(0).nbytes == 0
    addresses: list[int] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        addresses.append(address_of(memory.take(2 * SMALL_BYTES)))
        barrier.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*addresses, address_of(large)}) == 5


def test_memory_of_a_thread_comes_back_when_the_thread_ends() -> None:
    memory, size = ThreadMemory(), 64 * SMALL_BYTES
    owner = threading.local  # any object that can be watched
    BLOCKS.share(owner, 8 * size)

    def work() -> None:
        memory.take(size)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    before = BLOCKS.waiting_bytes
    assert before >= size
    found = BLOCKS.array((size,), np.dtype("u1"))
    assert BLOCKS.waiting_bytes == before - found.nbytes
