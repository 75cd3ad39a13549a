"""Stores that count, hold back, fail or delay reads, for tests of whatever reads zarr data.

They wrap any zarr store and are fakes at the one seam where tests should have them. Only reads are touched; writes,
listings and deletes pass through. One record (one gate, one failure) stands for one request to the wrapped store.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, override

from insitu_xr.testing.gates import GatedStore
from insitu_xr.testing.intercepting import InterceptingStore, KeyPredicate, choose_keys, is_metadata

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest, Store
    from zarr.core.buffer import Buffer, BufferPrototype

__all__ = ["CountingStore", "FailingStore", "GatedStore", "Get", "InterceptingStore", "SlowStore", "is_metadata"]


@dataclass(frozen=True, slots=True)
class Get:
    """One read that reached the wrapped store."""

    key: str
    byte_range: ByteRequest | None = None
    #: Bytes delivered; ``None`` when the key is absent or the read failed.
    length: int | None = None

    @property
    def is_metadata(self) -> bool:
        """Whether the key names metadata."""
        return is_metadata(self.key)


@dataclass(slots=True)
class _Record:
    gets: list[Get] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class CountingStore(InterceptingStore):
    """Records every read that reaches the wrapped store, in order of completion. Safe to use from many threads.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> store = CountingStore(zarr.storage.MemoryStore())
    >>> array = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    >>> array[:] = np.arange(4)
    >>> store.reset()
    >>> array[3]
    array(3, dtype=int32)
    >>> [get.key for get in store.data_gets], store.metadata_gets
    (['c/1'], [])
    """

    def __init__(self, store: Store, *, sync: bool | None = None) -> None:
        super().__init__(store, sync=sync)
        self._record = _Record()

    @property
    def gets(self) -> list[Get]:
        """All reads so far, a copy."""
        with self._record.lock:
            return list(self._record.gets)

    @property
    def data_gets(self) -> list[Get]:
        """Reads of stored chunks and shards."""
        return [get for get in self.gets if not get.is_metadata]

    @property
    def metadata_gets(self) -> list[Get]:
        """Reads of metadata documents."""
        return [get for get in self.gets if get.is_metadata]

    @property
    def bytes_read(self) -> int:
        """Bytes delivered by the data reads."""
        return sum(get.length or 0 for get in self.data_gets)

    def by_key(self) -> Counter[str]:
        """Count the data reads per key."""
        return Counter(get.key for get in self.data_gets)

    def reset(self) -> None:
        """Forget all records."""
        with self._record.lock:
            self._record.gets.clear()

    def _note(self, key: str, byte_range: ByteRequest | None, value: Buffer | None) -> None:
        with self._record.lock:
            self._record.gets.append(Get(key, byte_range, None if value is None else len(value)))

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value: Buffer | None = None
        try:
            value = await super().get(key, prototype, byte_range)
        finally:
            self._note(key, byte_range, value)
        return value

    @override
    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        value: Buffer | None = None
        try:
            value = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        finally:
            self._note(key, byte_range, value)
        return value


type Fault = BaseException | Callable[[str], BaseException]


class FailingStore(InterceptingStore):
    """Raises on the reads of chosen data keys.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to wrap.
    fail : callable or collection of str, optional
        Which data keys fail; all of them by default. Metadata never fails.
    error : exception or callable
        What to raise; a callable, such as an exception class, gets the key.
    times : int, optional
        How many reads fail before the store recovers; without it they fail until `recover`.
    sync : bool, optional
        As for `InterceptingStore`.
    """

    def __init__(
        self,
        store: Store,
        fail: KeyPredicate | Collection[str] | None = None,
        *,
        error: Fault = OSError,
        times: int | None = None,
        sync: bool | None = None,
    ) -> None:
        super().__init__(store, sync=sync)
        self._faults = _Faults(choose_keys(fail), error, times)

    @property
    def failures(self) -> list[str]:
        """Keys of the reads that failed, in order."""
        with self._faults.lock:
            return list(self._faults.failed)

    def fail(self, keys: KeyPredicate | Collection[str] | None, times: int | None = None) -> None:
        """Fail these keys from now on instead of those chosen before."""
        with self._faults.lock:
            self._faults.chosen, self._faults.left = choose_keys(keys), times

    def recover(self) -> None:
        """Answer every read from now on."""
        self.fail(())

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        self._faults.check(key)
        return await super().get(key, prototype, byte_range)

    @override
    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        self._faults.check(key)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)


class _Faults:
    def __init__(self, chosen: KeyPredicate, error: Fault, times: int | None) -> None:
        self.lock = threading.Lock()
        self.chosen, self.error, self.left = chosen, error, times
        self.failed: list[str] = []

    def check(self, key: str) -> None:
        with self.lock:
            if is_metadata(key) or self.left == 0 or not self.chosen(key):
                return
            if self.left is not None:
                self.left -= 1
            self.failed.append(key)
        raise self.error(key) if callable(self.error) else self.error


class SlowStore(InterceptingStore):
    """Delays each data read as a remote store would, on the event loop; it offers no synchronous reads.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to wrap.
    latency : float
        Seconds before the first byte.
    bytes_per_second : float
        Rate of each single read; unlimited by default.
    """

    def __init__(self, store: Store, *, latency: float = 0.0, bytes_per_second: float = float("inf")) -> None:
        super().__init__(store, sync=False)
        self._latency, self._rate = latency, bytes_per_second

    def delay(self, length: int) -> float:
        """Seconds that a read of ``length`` bytes takes."""
        return self._latency + length / self._rate

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if not is_metadata(key):
            await asyncio.sleep(self.delay(0 if value is None else len(value)))
        return value
