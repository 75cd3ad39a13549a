"""The wrapper that every testing store is built on: each read, coalesced or not, passes one method of it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Self, override

from zarr.abc.store import ByteRequest, Store
from zarr.storage import WrapperStore

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer, BufferPrototype

METADATA_NAMES = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


def is_metadata(key: str) -> bool:
    """Whether a key names metadata of an array or a group.

    Examples
    --------
    >>> is_metadata("t2m/zarr.json"), is_metadata(".zmetadata"), is_metadata("t2m/c/0/0")
    (True, True, False)
    """
    return key.rsplit("/", 1)[-1] in METADATA_NAMES


type KeyPredicate = Callable[[str], bool]


def choose_keys(keys: KeyPredicate | Collection[str] | None) -> KeyPredicate:
    """Make a predicate of keys from what a caller may give; ``None`` chooses every key."""
    if keys is None:
        return lambda key: True
    if callable(keys):
        return keys
    if isinstance(keys, str):
        raise TypeError(f"keys must be a collection of keys or a function of one, but got {keys!r}; use {{{keys!r}}}")
    chosen = frozenset(keys)
    return chosen.__contains__


class InterceptingStore(WrapperStore[Store]):
    """A wrapper through whose ``get`` or ``get_sync`` every read passes, one call per request.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to wrap.
    sync : bool, optional
        ``False`` hides the synchronous methods of the wrapped store, so that readers take the asynchronous path;
        ``None`` and ``True`` offer them where the wrapped store has them.
    """

    def __init__(self, store: Store, *, sync: bool | None = None) -> None:
        super().__init__(store)
        if sync and not super()._supports_sync_io:
            raise ValueError(
                f"sync must be False or None for {type(store).__name__}, but got True; it has no sync reads"
            )
        self._offers_sync = sync is not False

    @override
    def _with_store(self, store: Store) -> Self:
        # xarray and zarr ask for a read-only twin on opening: it must share records, gates and faults with this one.
        twin = copy.copy(self)
        twin._store = store
        return twin

    @property
    @override
    def _supports_sync_io(self) -> bool:
        return self._offers_sync and super()._supports_sync_io

    @override
    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if not self._offers_sync:
            raise TypeError(f"sync reads must be asked of a store that offers them, but got {key!r}; use get")
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges))

    @override
    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_concurrency: int | None = None,
        max_gap_bytes: int | None = None,
        max_coalesced_bytes: int | None = None,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        # The wrapped store's own get_ranges would coalesce out of our sight.
        given = {
            "max_concurrency": max_concurrency,
            "max_gap_bytes": max_gap_bytes,
            "max_coalesced_bytes": max_coalesced_bytes,
        }
        options = {name: value for name, value in given.items() if value is not None}
        async for group in Store.get_ranges(self, key, byte_ranges, prototype=prototype, **options):
            yield group

    @override
    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for key, prototype, byte_range in requests:
            yield key, await self.get(key, prototype, byte_range)
