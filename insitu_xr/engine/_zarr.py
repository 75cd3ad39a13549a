"""Everything that touches zarr's private API, each use covered by a test of its own."""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest, _store_supports_sync_io
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.chunk_grids import ChunkGrid, FixedDimension
from zarr.core.chunk_utils import ChunkTransform, evolve_codecs
from zarr.core.sync import _get_loop
from zarr.core.sync import sync as run_on_loop
from zarr.storage import FsspecStore, LocalStore, ManagedMemoryStore, MemoryStore, ObjectStore, WrapperStore

from insitu_xr.engine.direct import check_blosc, direct_decoder, ends_in_blosc
from insitu_xr.engine.local import LocalFiles
from insitu_xr.errors import UnsupportedSourceError
from insitu_xr.geometry.grid import AxisGrid

__all__ = ["ByteRange", "StoredArray", "chunk_grids", "event_loop", "memory_of", "run_on_loop"]

ByteRange = RangeByteRequest | SuffixByteRequest | None
Decoder = Callable[[Buffer], npt.NDArray[Any]]

_ABSENT = np.iinfo(np.uint64).max


def event_loop() -> asyncio.AbstractEventLoop:
    """Zarr's own loop, which fsspec sessions are bound to."""
    return _get_loop()


def chunk_grids(array: zarr.Array[Any]) -> tuple[AxisGrid, ...]:
    """The chunks that are decoded alone, along every axis: inner chunks where the array is sharded."""
    sharding = _sharding(array)
    if sharding is not None:
        return tuple(AxisGrid(n, size=c) for n, c in zip(array.shape, sharding.chunk_shape, strict=True))
    return _object_grids(array)


def _object_grids(array: zarr.Array[Any]) -> tuple[AxisGrid, ...]:
    grids = []
    for dimension in ChunkGrid.from_metadata(array.metadata).dimensions:
        if isinstance(dimension, FixedDimension):
            grids.append(AxisGrid(dimension.extent, size=max(dimension.size, 1)))
        else:
            lengths = [dimension.chunk_size(k) for k in range(dimension.ngridcells)]
            grids.append(AxisGrid.from_lengths(dimension.extent, lengths))
    return tuple(grids)


def _sharding(array: zarr.Array[Any]) -> ShardingCodec | None:
    return getattr(array.metadata, "sharding_codec", None)


def memory_of(store: Store) -> tuple[int, bool]:
    """Bytes of a store that lie in the memory of this process, and whether another process can have them at all."""
    while isinstance(store, WrapperStore):
        store = store._store
    if isinstance(store, FsspecStore):
        return 0, "memory" not in ([store.fs.protocol] if isinstance(store.fs.protocol, str) else store.fs.protocol)
    if not isinstance(store, MemoryStore):
        return 0, True
    return sum(len(value) for value in store._store_dict.values()), not isinstance(store, ManagedMemoryStore)


def retries_itself(store: Store) -> bool:
    """Whether a store tries failed requests again by itself, so that doing so on top of it multiplies the wait."""
    while isinstance(store, WrapperStore):
        store = store._store
    return isinstance(store, ObjectStore) or type(store).__module__.partition(".")[0] == "icechunk"


def reads_synchronously(store: Store) -> bool:
    """Whether a store gives the same bytes on the calling thread as on the event loop.

    A wrapper that overrides ``get`` alone, to decrypt or cache, inherits a ``get_sync`` that goes past it.
    """
    if not _store_supports_sync_io(store):
        return False
    for kind in type(store).__mro__:
        if "get_sync" in vars(kind):
            break
        if "get" in vars(kind):
            return False
    inner = getattr(store, "_store", None)
    return not isinstance(inner, Store) or reads_synchronously(inner)


class StoredArray:
    """One zarr array, opened for reading single chunks.

    Parameters
    ----------
    array : zarr.Array
        Any array of format 2 or 3.

    Attributes
    ----------
    synchronous : bool
        Whether the store can be read on the calling thread.
    sharded : bool
        Whether chunks lie in shards.
    decodable : bool
        Whether every codec runs synchronously; if not, chunks are read with ``read_slowly``.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        self.array = array
        self.store: Store = array.store
        #: of decoded chunks, in stored byte order
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.synchronous = reads_synchronously(self.store)
        self.prototype = default_buffer_prototype()
        self._object_grids = _object_grids(array)
        self._sharding = _sharding(array)
        self.grids = self._object_grids if self._sharding is None else chunk_grids(array)
        #: per shard, its first chunk
        self._first_chunks: dict[tuple[int, ...], list[int]] = {}
        self.sharded = self._sharding is not None
        self._prefix = f"{array.path}/" if array.path else ""
        metadata: Any = array.metadata
        codecs = self._sharding.codecs if self._sharding else _codecs(array)
        self._spec = ArraySpec(
            shape=tuple(g.longest for g in self.grids),
            dtype=metadata.dtype,
            fill_value=metadata.fill_value,
            # The order of bytes in a chunk of format 2 stands in the metadata, not in the configuration.
            config=ArrayConfig(order=array.order, write_empty_chunks=False),
            prototype=self.prototype,
        )
        self._fill = metadata.fill_value if metadata.fill_value is not None else metadata.dtype.default_scalar()
        try:
            self._transform: ChunkTransform | None = ChunkTransform(codecs=evolve_codecs(codecs, self._spec))
        except TypeError:
            self._transform = None
        self.decodable = self._transform is not None
        chain = self._transform.codecs if self._transform is not None else ()
        self._into = direct_decoder(chain, self.dtype, array.order) if chain else None
        self._blosc = ends_in_blosc(chain)

    def decoded_bytes(self, count: int) -> int:
        """Bytes of so many chunks, decoded, padding included."""
        return count * math.prod(self._spec.shape) * self.dtype.itemsize

    def encoded_chunk_bytes(self) -> int:
        """Bytes of one chunk in the store where the codecs fix it, else 0."""
        uneven = any(g.starts is not None for g in self.grids)
        if uneven or self._transform is None or not all(c.is_fixed_size for c in self._transform.codecs):
            return 0
        return int(self._transform.compute_encoded_size(math.prod(self._spec.shape) * self.dtype.itemsize, self._spec))

    def objects_of(self, chunks: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The stored objects that hold chunks: their shards, or the chunks themselves."""
        if not self.sharded:
            return list(chunks)
        columns = np.array(chunks, np.int64).reshape(len(chunks), len(self.grids)).T
        inner, outer = self.grids, self._object_grids
        found = [o.chunk_of(g.start_of(c)).tolist() for o, g, c in zip(outer, inner, columns, strict=True)]
        return [tuple(k) for k in zip(*found, strict=True)]

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        stored = self.objects_of([chunk])[0] if self.sharded else chunk
        return self._prefix + self.array.metadata.encode_chunk_key(stored)

    def _chunks_per_shard(self, shard: tuple[int, ...]) -> tuple[int, ...]:
        assert self._sharding is not None
        lengths = [g.length(k) for g, k in zip(self._object_grids, shard, strict=True)]
        return tuple(n // c for n, c in zip(lengths, self._sharding.chunk_shape, strict=True))

    def stored_keys(self) -> set[str]:
        """Keys of all objects that the store holds of this array; lists them, which takes long where they are many.

        Raises
        ------
        UnsupportedSourceError
            If the store cannot list.
        """
        if not self.store.supports_listing:
            raise UnsupportedSourceError(
                f"store must list its keys for absent='drop', but got {type(self.store).__name__}; use absent='keep'"
            )

        async def listed() -> set[str]:
            return {key async for key in self.store.list_prefix(self._prefix)}

        return run_on_loop(listed())

    @property
    def chunks_per_object(self) -> int:
        """Chunks that one stored object holds, at most."""
        spans = zip(self._object_grids, self.grids, strict=True)
        return math.prod(-(-outer.longest // inner.longest) for outer, inner in spans) if self.sharded else 1

    def index_range(self, shard: tuple[int, ...]) -> ByteRange:
        """Where the index of a shard lies in it."""
        assert self._sharding is not None
        return self._sharding._shard_index_byte_range(self._chunks_per_shard(shard))

    def index_of(self, blob: Buffer, shard: tuple[int, ...]) -> Buffer:
        """The index in a whole shard."""
        where = self.index_range(shard)
        if isinstance(where, RangeByteRequest):
            return blob[where.start : where.end]
        assert isinstance(where, SuffixByteRequest)
        return blob[max(0, len(blob) - where.suffix) :]

    def chunks_in(self, shard: tuple[int, ...]) -> int:
        """Chunks that a shard holds, if all of them are stored."""
        return math.prod(self._chunks_per_shard(shard))

    def decode_index(self, raw: Buffer, shard: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        """Offsets and lengths of the chunks of a shard, shape (chunks per axis..., 2)."""
        assert self._sharding is not None
        index = self._sharding._decode_shard_index_sync(raw, self._chunks_per_shard(shard))
        return index.offsets_and_lengths

    def ranges_in_shard(
        self, index: npt.NDArray[np.uint64], chunks: Sequence[tuple[int, ...]], shard: tuple[int, ...]
    ) -> list[tuple[int, int] | None]:
        """First and last byte (exclusive) of chunks in their shard; None where the shard does not hold one."""
        first = self._first_chunks.get(shard)
        if first is None:
            origin = [g.start(k) for g, k in zip(self._object_grids, shard, strict=True)]
            first = [int(g.chunk_of(np.array([o]))[0]) for g, o in zip(self.grids, origin, strict=True)]
            self._first_chunks[shard] = first
        if len(chunks) == 1:
            found = [index[tuple(map(operator.sub, chunks[0], first))].tolist()]
        else:
            found = index[tuple((np.array(chunks) - first).T)].tolist()
        return [None if offset == _ABSENT else (offset, offset + length) for offset, length in found]

    def local_files(self) -> LocalFiles | None:
        """The files of a local store, to be read past the store; None for any other store, subclasses included."""
        if type(self.store) is not LocalStore or not self.decodable:
            return None
        return LocalFiles(str(self.store.root))

    def decode(self, raw: Buffer | npt.NDArray[np.uint8], chunk: tuple[int, ...]) -> npt.NDArray[Any]:
        """Decode one chunk, padding included; pure compute, any thread. May refer to the memory of ``raw``."""
        assert self._transform is not None
        if self._blosc:
            check_blosc(_bytes(raw))
        if isinstance(raw, np.ndarray):
            raw = self.prototype.buffer.from_array_like(raw)
        decoded = self._transform.decode_chunk(raw, self._chunk_spec(chunk)).as_numpy_array()
        return decoded.astype(self.dtype, copy=False)

    def decode_into(self, raw: Buffer | npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> bool:
        """Decode one chunk into contiguous memory of its shape and dtype; False where that cannot be done."""
        into = self._into
        return into is not None and into(_bytes(raw), out)

    @property
    def decodes_into(self) -> bool:
        """Whether chunks can be decoded into given memory."""
        return self._into is not None

    def _chunk_spec(self, chunk: tuple[int, ...]) -> ArraySpec:
        shape = tuple(g.length(c) for g, c in zip(self.grids, chunk, strict=True))
        if shape == self._spec.shape:
            return self._spec
        spec = self._spec
        return ArraySpec(shape, spec.dtype, spec.fill_value, spec.config, spec.prototype)

    def fill(self, chunk: tuple[int, ...]) -> npt.NDArray[Any]:
        """What an absent chunk holds: a read-only view of the fill value."""
        shape = tuple(g.length(c) for g, c in zip(self.grids, chunk, strict=True))
        return np.broadcast_to(np.asarray(self._fill, self.dtype), shape)

    def read_slowly(self, chunk: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read one chunk through zarr's own pipeline, for codecs that only run on the event loop."""
        where = tuple(
            slice(g.start(c), min(g.start(c) + g.length(c), g.extent)) for g, c in zip(self.grids, chunk, strict=True)
        )
        return np.asarray(self.array[where])


def _bytes(raw: Buffer | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return raw if isinstance(raw, np.ndarray) else np.asarray(raw.as_numpy_array()).view(np.uint8)


def _codecs(array: zarr.Array[Any]) -> tuple[Any, ...]:
    metadata: Any = array.metadata
    if array.metadata.zarr_format == 3:
        return tuple(metadata.codecs)
    from zarr.codecs._v2 import V2Codec

    return (V2Codec(filters=metadata.filters, compressor=metadata.compressor),)
