"""Large arrays whose memory is used again once nobody refers to them: fresh pages cost as much as a copy.

An array given out ends in a small ctypes object. When the last view of it is gone, be it numpy's or a tensor's, that
object dies, and a weak reference to it gives the memory back; so what a consumer holds is never written to again.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.limits import format_bytes

#: arrays smaller than this come from the ordinary allocator, which is as fast for them
SMALL_BYTES = 256 << 10
#: from this size on, large pages are asked for
HUGE_BYTES = 4 << 20
#: memory that waits is at most this, whatever the ceilings
MOST_BYTES = 1 << 30
#: jax and vector instructions want arrays to begin at such addresses
ALIGNMENT = 64


def _ordinary(size: int) -> npt.NDArray[np.uint8]:
    """Fresh memory straight from the system, which has it back once it is let go of; a heap might keep it."""
    # Private: what a forked child writes must not be seen here.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = mmap.mmap(-1, size, **private)
    except OSError as error:
        raise MemoryError(
            f"memory must be free for an array of {format_bytes(size)}, but got {error.strerror}; lower memory= or "
            "batch_size="
        ) from error
    if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class _Block:
    """Memory of one size; what is the same each time it is given out is worked out once."""

    __slots__ = ("kind", "memory", "size", "start")

    def __init__(self, size: int, fresh: Callable[[int], npt.NDArray[np.uint8]]) -> None:
        self.size, self.memory = size, fresh(size + ALIGNMENT)
        self.start = -self.memory.ctypes.data % ALIGNMENT
        self.kind = ctypes.c_uint8 * size


class _Lease(weakref.ref[Any]):
    """A block that somebody has: refers to the object in which all views of it end."""

    __slots__ = ("block",)

    block: _Block


class BlockStore:
    """Memory that waits to be used again, up to a bound.

    What is given out and what waits are together at most the ceilings of those who share the store; so memory that
    waits is not on top of what a loader may hold.

    Thread-safe. Objects may die in the middle of anything on any thread, so their death only appends to a deque; the
    lock is taken by those who ask for memory.

    Parameters
    ----------
    limit : int
        Bytes that may wait.
    fresh : callable
        Gives so many bytes of new memory; page-locked memory, say. It is let go of like any other array.

    Examples
    --------
    >>> store = BlockStore(1 << 20)
    >>> first = store.array((1000, 100), np.dtype("f4"))
    >>> address = first.ctypes.data
    >>> view, first = first[10:], None
    >>> store.waiting_bytes, store.array((1000, 100), np.dtype("f4")).ctypes.data == address
    (0, False)
    >>> del view
    >>> store.array((1000, 100), np.dtype("f4")).ctypes.data == address
    True
    """

    def __init__(self, limit: int, fresh: Callable[[int], npt.NDArray[np.uint8]] = _ordinary) -> None:
        self.limit, self._fresh = limit, fresh
        self._ceilings: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        #: bytes that are given out, and that wait
        self._given = self._held = 0
        self._leases: dict[int, _Lease] = {}
        self._returned: deque[_Lease] = deque()
        self._free: dict[int, list[_Block]] = {}
        self._lock = threading.Lock()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be used again."""
        with self._lock:
            self._collect()
            return self._held

    def share(self, owner: object, ceiling: int) -> None:
        """From now on, and as long as the owner lives, so much memory is meant to be in use."""
        with self._lock:
            self._ceilings[owner] = ceiling
            self.limit = min(MOST_BYTES, sum(self._ceilings.values()))
            self._collect()

    def renew(self) -> None:
        """Begin anew in a forked child, where the lock may be held by a thread that there is none of."""
        self._lock, self._free, self._held = threading.Lock(), {}, 0

    def tidy(self) -> None:
        """Let go of memory that came back and is more than may wait."""
        with self._lock:
            self._collect()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, roomy: bool = False) -> npt.NDArray[Any]:
        """An array with undefined content, contiguous in C order.

        Parameters
        ----------
        roomy : bool
            Whether memory that is up to twice as large will do, as for the last, short batch of an epoch.

        Raises
        ------
        MemoryError
            Says how much there is not.
        """
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        with self._lock:
            self._collect()
            block = self._waiting(size, 2 * size if roomy else size)
            if block is None:
                # Fresh memory takes the place of memory that waits.
                self._make_room(size)
            self._given += size if block is None else block.size
        if block is None:
            block = self._new(size)
        owner = block.kind.from_buffer(block.memory, block.start)
        lease = _Lease(owner, self._returned.append)
        lease.block = block
        self._leases[id(lease)] = lease
        return np.ndarray(shape, dtype, buffer=owner)

    def _new(self, size: int) -> _Block:
        try:
            return _Block(size, self._fresh)
        except BaseException:
            with self._lock:
                self._given -= size
            raise

    def _waiting(self, size: int, most: int) -> _Block | None:
        """The smallest block that is large enough and not too large; a larger one only if all of it may be in use."""
        room = max(size, min(most, self.limit - self._given))
        fits = [k for k, blocks in self._free.items() if blocks and size <= k <= room]
        if not fits:
            return None
        block = self._free[min(fits)].pop()
        self._held -= block.size
        return block

    def _collect(self) -> None:
        """Sort in what came back."""
        while self._returned:
            lease = self._returned.popleft()
            del self._leases[id(lease)]
            block = lease.block
            self._given -= block.size
            self._held += block.size
            self._free.setdefault(block.size, []).append(block)
        self._make_room()

    def _make_room(self, fresh: int = 0) -> None:
        """Let go of what leaves no room for what is given out and for fresh memory, the largest first."""
        limit = self.limit - self._given - fresh
        if self._held <= limit:
            return
        for size in sorted(self._free, reverse=True):
            while self._held > limit and self._free[size]:
                self._free[size].pop()
                self._held -= size


#: one for all loaders of a process, so that a new one starts with warm memory; before the first one, nothing waits
BLOCKS = BlockStore(0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BLOCKS.renew)


class ThreadMemory:
    """Memory that a thread uses for one thing after another; it goes back to the store when the thread ends.

    Examples
    --------
    >>> memory = ThreadMemory()
    >>> first = memory.take(1000)
    >>> first.nbytes, np.shares_memory(first, memory.take(10))
    (1000, True)
    """

    def __init__(self) -> None:
        self._own = threading.local()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes, with undefined content; valid until the thread takes the next."""
        held: npt.NDArray[np.uint8] | None = getattr(self._own, "memory", None)
        if held is None or held.nbytes < size:
            self._own.memory = held = None
            # In few sizes, so that the same blocks serve all threads, one after another.
            step = max(4096, 1 << max(0, (size - 1).bit_length() - 3))
            self._own.memory = held = BLOCKS.array((-(-size // step) * step,), np.dtype(np.uint8))
        return held[:size]

    def release(self) -> None:
        """Give back what this thread has, for others to use."""
        self._own.memory = None
        BLOCKS.tidy()


#: what was read, and what was decoded from it
RAW, DECODED = ThreadMemory(), ThreadMemory()
