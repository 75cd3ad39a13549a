"""Where bytes come from: stored arrays chunk by chunk or by ranges of a shard, and blocks read through xarray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import RangeByteRequest

from insitu_xr.engine._zarr import ByteRange, StoredArray, run_on_loop
from insitu_xr.geometry.grid import AxisGrid, coalesce

Chunk = tuple[int, ...]

#: what a shard's index is to those who wait when the one who reads it is cancelled
_GIVEN_UP = object()


@dataclass(slots=True)
class Fetched:
    """Raw chunks in the order asked, None where the store has none, and what they cost."""

    raw: list[Any]
    gets: int = 0
    bytes: int = 0


class Source(Protocol):
    """One stored array, or what stands for it.

    ``read`` may be called from any thread; ``aread`` runs on zarr's event loop and is used where the store cannot
    be read on the calling thread.
    """

    synchronous: bool
    sharded: bool
    #: of decoded chunks
    dtype: np.dtype[Any]

    def object_of(self, chunk: Chunk) -> Chunk:
        """The stored object that holds a chunk."""

    def key(self, chunk: Chunk) -> str:
        """Key of that object."""

    def read(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read chunks of one object, blocking."""

    async def aread(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read chunks of one object."""

    def decode(self, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """Decode a raw chunk; the fill value where ``raw`` is None."""

    def decode_into(self, raw: Any, chunk: Chunk, out: npt.NDArray[Any]) -> bool:
        """Decode a raw chunk into contiguous memory of its shape and dtype; False where that cannot be done."""

    def forget_pending(self) -> None:
        """Wait no longer for reads that others began, since they may never end."""


class ShortReadError(OSError):
    """The store returned fewer bytes than the range that was asked for."""


class ZarrSource:
    """Chunks of a zarr array.

    The index of a shard is read once and kept for as long as the source lives.
    """

    def __init__(self, array: zarr.Array[Any], max_gap_bytes: int) -> None:
        self.stored = StoredArray(array)
        # Codecs that only run on the event loop are read through zarr's own pipeline, from any thread.
        self.synchronous = self.stored.synchronous or not self.stored.decodable
        self.sharded = self.stored.sharded and self.stored.decodable
        self.dtype = self.stored.dtype
        self._max_gap = max_gap_bytes
        self._indexes: dict[Chunk, Future[Any]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ZarrSource, (self.stored.array, self._max_gap)

    def object_of(self, chunk: Chunk) -> Chunk:
        """The shard that holds a chunk, or the chunk itself."""
        return self.stored.object_of(chunk)

    def key(self, chunk: Chunk) -> str:
        """Key of the stored object that holds a chunk."""
        return self.stored.key(chunk)

    def read(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read chunks of one object, blocking this thread."""
        if not self.stored.decodable:
            slow = [self.stored.read_slowly(c) for c in chunks]
            return Fetched(slow, gets=len(slow), bytes=sum(r.nbytes for r in slow))
        if not self.stored.synchronous:
            return run_on_loop(self.aread(chunks))
        steps, key, answer = self._steps(chunks), self.key(chunks[0]), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                fetched: Fetched = done.value
                return fetched
            try:
                if isinstance(step, Future):
                    answer = step.result()
                else:
                    get = self.stored.store.get_sync  # type: ignore[attr-defined]
                    answer = get(key, prototype=self.stored.prototype, byte_range=step)
            except BaseException as error:
                steps.throw(error)

    async def aread(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read chunks of one object on the event loop."""
        steps, key, answer = self._steps(chunks), self.key(chunks[0]), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                fetched: Fetched = done.value
                return fetched
            try:
                if isinstance(step, Future):
                    answer = await asyncio.wrap_future(step)
                else:
                    answer = await self.stored.store.get(key, self.stored.prototype, step)
            except BaseException as error:
                steps.throw(error)

    def _steps(self, chunks: Sequence[Chunk]) -> Generator[ByteRange | Future[Any], Any, Fetched]:
        """What to read, step by step: yields a byte range of the object or a future, and is sent what it gave.

        Written once for both kinds of store; an error of a step is thrown in here.
        """
        if not self.sharded:
            raw = yield None
            return Fetched([raw], gets=1, bytes=0 if raw is None else len(raw))
        fetched = Fetched([None] * len(chunks))
        shard = self.object_of(chunks[0])
        index = yield from self._index(shard, fetched)
        if index is None:
            return fetched
        spans = [self.stored.range_in_shard(index, c, shard) for c in chunks]
        present = [k for k, span in enumerate(spans) if span is not None]
        for start, stop, members in coalesce([spans[k] for k in present], self._max_gap):  # type: ignore[misc]
            blob = yield RangeByteRequest(start, stop)
            fetched.gets += 1
            length = -1 if blob is None else len(blob)
            if length != stop - start:
                raise ShortReadError(f"bytes {start} to {stop} of the shard gave {max(length, 0)} bytes")
            fetched.bytes += length
            for member in members:
                first, last = spans[present[member]]  # type: ignore[misc]
                fetched.raw[present[member]] = blob[first - start : last - start]
        return fetched

    def _index(self, shard: Chunk, fetched: Fetched) -> Generator[ByteRange | Future[Any], Any, Any]:
        """The index of a shard, None if the store has no such shard; read by whoever asks first."""
        while True:
            with self._lock:
                future = self._indexes.get(shard)
                mine = future is None
                if future is None:
                    future = self._indexes[shard] = Future()
                    # Running, so that no one who waits for it can cancel it for the others.
                    future.set_running_or_notify_cancel()
            if mine:
                return (yield from self._read_index(shard, future, fetched))
            index = yield future
            if index is not _GIVEN_UP:
                return index

    def _read_index(
        self, shard: Chunk, future: Future[Any], fetched: Fetched
    ) -> Generator[ByteRange | Future[Any], Any, Any]:
        try:
            raw = yield self.stored.index_range(shard)
            fetched.gets += 1
            fetched.bytes += 0 if raw is None else len(raw)
            index = None if raw is None else self.stored.decode_index(raw, shard)
        except BaseException as error:
            with self._lock:
                if self._indexes.get(shard) is future:
                    del self._indexes[shard]
            if isinstance(error, asyncio.CancelledError | GeneratorExit):
                future.set_result(_GIVEN_UP)  # whoever waits reads it themselves
            else:
                future.set_exception(error)
            raise
        future.set_result(index)
        return index

    def decode(self, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """Decode one chunk, padding included; the fill value where it is absent."""
        if not self.stored.decodable:
            return np.asarray(raw)
        return self.stored.fill(chunk) if raw is None else self.stored.decode(raw, chunk)

    def decode_into(self, raw: Any, chunk: Chunk, out: npt.NDArray[Any]) -> bool:
        """Decode one chunk into given memory, if its codecs can."""
        stored = self.stored
        return raw is not None and stored.decodable and out.dtype == stored.dtype and stored.decode_into(raw, out)

    def forget_pending(self) -> None:
        """Read the index of a shard anew where whoever reads it is stuck."""
        with self._lock:
            self._indexes = {shard: future for shard, future in self._indexes.items() if future.done()}


class BlockSource:
    """Blocks of a variable, read through xarray; values come as xarray shows them.

    Parameters
    ----------
    read_block : callable
        Given a slice per dimension, returns the values in the order of ``dims``; thread-safe.
    """

    synchronous, sharded = True, False

    def __init__(
        self,
        read_block: Callable[[Mapping[str, slice]], npt.NDArray[Any]],
        dims: Sequence[str],
        grids: Sequence[AxisGrid],
        dtype: np.dtype[Any],
    ) -> None:
        self._read, self._dims, self._grids, self.dtype = read_block, tuple(dims), tuple(grids), dtype

    def object_of(self, chunk: Chunk) -> Chunk:
        """Every block stands alone."""
        return chunk

    def key(self, chunk: Chunk) -> str:
        """The block as a selection, since its keys are not known."""
        return ", ".join(f"{dim}={s.start}:{s.stop}" for dim, s in self._where(chunk).items())

    def _where(self, chunk: Chunk) -> dict[str, slice]:
        spans = zip(self._dims, self._grids, chunk, strict=True)
        return {d: slice(g.start(c), min(g.start(c) + g.length(c), g.extent)) for d, g, c in spans}

    def read(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read blocks on this thread."""
        raw = [np.asarray(self._read(self._where(c))) for c in chunks]
        return Fetched(raw, gets=len(raw), bytes=sum(r.nbytes for r in raw))

    async def aread(self, chunks: Sequence[Chunk]) -> Fetched:
        """Never called: blocks are read on the calling thread."""
        raise NotImplementedError

    def decode(self, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """The block itself."""
        return np.asarray(raw)

    def decode_into(self, raw: Any, chunk: Chunk, out: npt.NDArray[Any]) -> bool:
        """Blocks come decoded."""
        return False

    def forget_pending(self) -> None:
        """Blocks do not wait for one another."""
