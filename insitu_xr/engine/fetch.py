"""Where bytes come from: stored arrays chunk by chunk or by ranges of a shard, and blocks read through xarray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import RangeByteRequest

from insitu_xr.engine._zarr import ByteRange, StoredArray, retries_itself, run_on_loop
from insitu_xr.engine.failing import CorruptError
from insitu_xr.engine.local import LocalFiles
from insitu_xr.geometry.grid import AxisGrid, affordable_gap, coalesce
from insitu_xr.limits import MIB

Chunk = tuple[int, ...]

#: what a shard's index is to those who wait when the one who reads it is cancelled
_GIVEN_UP = object()


@dataclass(slots=True)
class Fetched:
    """Raw chunks in the order asked, None where the store has none, and what they cost."""

    raw: list[Any]
    gets: int = 0
    bytes: int = 0

    def drain(self) -> Iterator[Any]:
        """The raw chunks one after another; each is let go of here as it is handed out."""
        for number in range(len(self.raw)):
            raw, self.raw[number] = self.raw[number], None
            yield raw


class Source(Protocol):
    """One stored array, or what stands for it.

    ``read`` may be called from any thread; ``aread`` runs on zarr's event loop and is used where the store cannot
    be read on the calling thread.
    """

    synchronous: bool
    sharded: bool
    #: whether the store tries failed requests again by itself
    patient: bool
    #: whether chunks can be decoded into given memory
    decodes_into: bool
    #: of decoded chunks
    dtype: np.dtype[Any]
    #: chunks that one stored object holds, at most
    chunks_per_object: int

    def objects_of(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The stored objects that hold chunks."""

    def key(self, chunk: Chunk) -> str:
        """Key of that object."""

    def read(self, chunks: Sequence[Chunk]) -> Fetched:
        """Read chunks of one object, blocking."""

    def stream(self, chunks: Sequence[Chunk], cost: Fetched) -> Iterator[Any]:
        """Raw chunks one after another, blocking; each is valid until the next is asked for.

        Those of shards must lie in one; others are objects of their own. What they cost is added to ``cost``. Nothing
        is read, and nothing raised, before the first is asked for.
        """

    async def aread(self, chunks: Sequence[Chunk], gap: int = MIB, room: int = MIB) -> Fetched:
        """Read chunks of one object; byte ranges that lie at most ``gap`` apart are read as one.

        What is read in all stays within ``room``, or the decoded size of the chunks if that is more.
        """

    def decode(self, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """Decode a raw chunk; the fill value where ``raw`` is None."""

    def decode_into(self, raw: Any, out: npt.NDArray[Any]) -> bool:
        """Decode a raw chunk into contiguous memory of its shape and dtype; False where that cannot be done."""

    def forget_pending(self) -> None:
        """Wait no longer for reads that others began, since they may never end."""


class ShortReadError(CorruptError):
    """The store returned fewer bytes than the range that was asked for."""


def _short_read(length: int, start: int, stop: int) -> ShortReadError:
    return ShortReadError(f"bytes {start} to {stop} of the shard gave {max(length, 0)} bytes")


def _check_length(length: int, start: int, stop: int) -> None:
    if length != stop - start:
        raise _short_read(length, start, stop)


class ZarrSource:
    """Chunks of a zarr array.

    The index of a shard is read once and kept for as long as the source lives.

    Parameters
    ----------
    max_gap_bytes : int, optional
        Byte ranges of a shard that lie at most this far apart are read as one, whatever a reader asks for.
    """

    def __init__(self, array: zarr.Array[Any], max_gap_bytes: int | None = None) -> None:
        self.stored = StoredArray(array)
        # Codecs that only run on the event loop are read through zarr's own pipeline, from any thread.
        self.synchronous = self.stored.synchronous or not self.stored.decodable
        self.sharded = self.stored.sharded and self.stored.decodable
        self.patient = retries_itself(self.stored.store)
        self.dtype, self.decodes_into = self.stored.dtype, self.stored.decodes_into
        self.chunks_per_object = self.stored.chunks_per_object
        self._max_gap = max_gap_bytes
        self._files = self.stored.local_files()
        self._indexes: dict[Chunk, Future[Any]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ZarrSource, (self.stored.array, self._max_gap)

    def objects_of(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The shards that hold chunks, or the chunks themselves."""
        return self.stored.objects_of(chunks)

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
        fetched: Fetched = self._drive(self._steps(chunks, MIB, MIB), self.key(chunks[0]))
        return fetched

    def _drive(self, steps: Generator[ByteRange | Future[Any], Any, Any], key: str) -> Any:
        """Carry steps out on this thread."""
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                return done.value
            try:
                if isinstance(step, Future):
                    answer = step.result()
                else:
                    get = self.stored.store.get_sync  # type: ignore[attr-defined]
                    answer = get(key, prototype=self.stored.prototype, byte_range=step)
            except BaseException as error:
                steps.throw(error)

    def stream(self, chunks: Sequence[Chunk], cost: Fetched) -> Iterator[Any]:
        """Raw chunks, of one shard or each an object, one after another; each is valid until the next is asked for."""
        if self._files is not None:
            return self._from_files(self._files, chunks, cost)
        return self._from_store(chunks, cost)

    def _from_store(self, chunks: Sequence[Chunk], cost: Fetched) -> Iterator[Any]:
        for together in [chunks] if self.sharded else [[chunk] for chunk in chunks]:
            fetched = self.read(together)
            cost.gets, cost.bytes = cost.gets + fetched.gets, cost.bytes + fetched.bytes
            yield from fetched.drain()

    def _from_files(self, files: LocalFiles, chunks: Sequence[Chunk], cost: Fetched) -> Iterator[Any]:
        """Straight from the file system: a range that is not wanted is never cheaper than one call more."""
        if not self.sharded:
            for chunk in chunks:
                raw = files.whole(self.key(chunk))
                cost.gets, cost.bytes = cost.gets + 1, cost.bytes + (0 if raw is None else raw.nbytes)
                yield raw
            return
        (shard,), key = self.objects_of(chunks[:1]), self.key(chunks[0])
        index = self._drive(self._index(shard, cost), key)
        spans = [None] * len(chunks) if index is None else self.stored.ranges_in_shard(index, chunks, shard)
        for raw, span in zip(files.ranges(key, spans), spans, strict=True):
            if span is not None:
                start, stop = span
                length = -1 if raw is None else raw.nbytes
                if length != stop - start:
                    raise _short_read(length, start, stop)
                cost.gets += 1
                cost.bytes += length
            yield raw

    async def aread(self, chunks: Sequence[Chunk], gap: int = MIB, room: int = MIB) -> Fetched:
        """Read chunks of one object on the event loop; byte ranges at most ``gap`` apart are read as one."""
        steps, key, answer = self._steps(chunks, gap, room), self.key(chunks[0]), None
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

    def _steps(self, chunks: Sequence[Chunk], gap: int, room: int) -> Generator[ByteRange | Future[Any], Any, Fetched]:
        """What to read, step by step: yields a byte range of the object or a future, and is sent what it gave.

        Written once for both kinds of store; an error of a step is thrown in here.
        """
        if not self.sharded:
            raw = yield None
            return Fetched([raw], gets=1, bytes=0 if raw is None else len(raw))
        fetched = Fetched([None] * len(chunks))
        if len(chunks) > 1 and (yield from self._whole_shard(chunks, fetched)):
            return fetched
        (shard,) = self.objects_of(chunks[:1])
        index = yield from self._index(shard, fetched)
        if index is None:
            return fetched
        spans = self.stored.ranges_in_shard(index, chunks, shard)
        present = [k for k, span in enumerate(spans) if span is not None]
        wanted = [span for span in spans if span is not None]
        gap = affordable_gap(
            wanted, gap if self._max_gap is None else self._max_gap, max(room, self.stored.decoded_bytes(len(chunks)))
        )
        for start, stop, members in coalesce(wanted, gap):
            blob = yield RangeByteRequest(start, stop)
            fetched.gets += 1
            length = -1 if blob is None else len(blob)
            _check_length(length, start, stop)
            fetched.bytes += length
            for member in members:
                first, last = spans[present[member]]  # type: ignore[misc]
                fetched.raw[present[member]] = blob[first - start : last - start]
        return fetched

    def _whole_shard(self, chunks: Sequence[Chunk], fetched: Fetched) -> Generator[ByteRange | Future[Any], Any, bool]:
        """Read a shard of which every chunk is wanted at once, index and all, if its index is not known; else False."""
        (shard,) = self.objects_of(chunks[:1])
        if shard in self._indexes or len(chunks) != self.stored.chunks_in(shard):
            return False
        blob = yield None
        fetched.gets = 1
        if blob is None:
            return True
        fetched.bytes = len(blob)
        index = self.stored.decode_index(self.stored.index_of(blob, shard), shard)
        for number, span in enumerate(self.stored.ranges_in_shard(index, chunks, shard)):
            if span is not None:
                piece = blob[span[0] : span[1]]
                _check_length(len(piece), *span)
                fetched.raw[number] = piece
        return True

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

    def decode_into(self, raw: Any, out: npt.NDArray[Any]) -> bool:
        """Decode one chunk into given memory, if its codecs can."""
        return out.dtype == self.dtype and self.stored.decode_into(raw, out)

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

    synchronous, sharded, decodes_into, patient, chunks_per_object = True, False, False, False, 1

    def __init__(
        self,
        read_block: Callable[[Mapping[str, slice]], npt.NDArray[Any]],
        dims: Sequence[str],
        grids: Sequence[AxisGrid],
        dtype: np.dtype[Any],
    ) -> None:
        self._read, self._dims, self._grids, self.dtype = read_block, tuple(dims), tuple(grids), dtype

    def objects_of(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Every block stands alone."""
        return list(chunks)

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

    def stream(self, chunks: Sequence[Chunk], cost: Fetched) -> Iterator[Any]:
        """Blocks one after another, read on this thread."""
        for chunk in chunks:
            raw = np.asarray(self._read(self._where(chunk)))
            cost.gets, cost.bytes = cost.gets + 1, cost.bytes + raw.nbytes
            yield raw

    async def aread(self, chunks: Sequence[Chunk], gap: int = MIB, room: int = MIB) -> Fetched:
        """Never called: blocks are read on the calling thread."""
        raise NotImplementedError

    def decode(self, raw: Any, chunk: Chunk) -> npt.NDArray[Any]:
        """The block itself."""
        return np.asarray(raw)

    def decode_into(self, raw: Any, out: npt.NDArray[Any]) -> bool:
        """Blocks come decoded."""
        return False

    def forget_pending(self) -> None:
        """Blocks do not wait for one another."""
