"""Every use of zarr's private interface, against what zarr itself reads through its public one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec
from zarr.storage import MemoryStore

from insitu_xr.engine._zarr import StoredArray, chunk_grids, event_loop, run_on_loop
from insitu_xr.testing import CountingStore
from insitu_xr.testing.writing import data_keys
from tests.engine.flipping import Flip

SHAPE = (7, 10)


def create(dtype: str = "<f4", *, shape: tuple[int, ...] = SHAPE, written: bool = True, **options: Any) -> Any:
    """Make an array in a MemoryStore, half of it written where ``written`` is false."""
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(MemoryStore(), name="a", shape=shape, dtype=dtype, **{"chunks": (3, 4), **options})
    values = (np.arange(1, np.prod(shape) + 1).reshape(shape) % 100).astype(dtype)
    if written:
        array[...] = values
    else:
        array[: shape[0] // 2] = values[: shape[0] // 2]
    return array


ARRAYS: dict[str, Callable[[], Any]] = {
    "v3": create,
    "v3 uncompressed": lambda: create(compressors=None),
    "v3 gzip": lambda: create(compressors=GzipCodec()),
    "v3 big-endian": lambda: create(serializer=BytesCodec(endian="big"), compressors=None),
    "v3 big-endian dtype": lambda: create(">i4"),
    "v3 transposed": lambda: create(filters=[TransposeCodec(order=(1, 0))]),
    "v3 absent": lambda: create(written=False, fill_value=-7),
    "v3 other separator": lambda: create(chunk_key_encoding={"name": "v2", "separator": "."}),
    "v3 chunk longer than the axis": lambda: create(chunks=(20, 4)),
    "rectilinear": lambda: create(chunks=((1, 2, 4), (5, 5))),
    "rectilinear absent": lambda: create(chunks=((1, 2, 4), (5, 2, 3)), written=False, fill_value=3),
    "rectilinear transposed": lambda: create(chunks=((1, 2, 4), (5, 2, 3)), filters=[TransposeCodec(order=(1, 0))]),
    "sharded": lambda: create(chunks=(2, 3), shards=(4, 6)),
    "sharded, index first": lambda: create(chunks=(2, 3), shards={"shape": (4, 6), "index_location": "start"}),
    "sharded, one shard": lambda: create(chunks=(2, 5), shards=(8, 10), compressors=None),
    "sharded absent": lambda: create(chunks=(2, 3), shards=(4, 6), written=False, fill_value=-7),
    "sharded big-endian": lambda: create(">i2", chunks=(2, 3), shards=(4, 6), serializer=BytesCodec(endian="big")),
    "v2": lambda: create(zarr_format=2),
    "v2 uncompressed": lambda: create(zarr_format=2, compressors=None),
    "v2 big-endian": lambda: create(">f8", zarr_format=2),
    "v2 filters": lambda: create("<i4", zarr_format=2, filters=[numcodecs.Delta("<i4")], compressors=numcodecs.Zlib()),
    "v2 order F": lambda: create(zarr_format=2, order="F", compressors=numcodecs.Blosc()),
    "v2 order F with filters": lambda: create("<i4", zarr_format=2, order="F", filters=[numcodecs.Delta("<i4")]),
    "v2 absent": lambda: create(zarr_format=2, written=False, fill_value=5),
    "v2 null fill": lambda: create(zarr_format=2, written=False, fill_value=None),
    "v2 null fill of bools": lambda: create("|b1", zarr_format=2, written=False, fill_value=None),
    "v2 separator": lambda: create(zarr_format=2, chunk_key_encoding={"name": "v2", "separator": "/"}),
    "bytes": lambda: create("|S4", zarr_format=2),
    "no axes": lambda: create(shape=(), chunks=()),
}
SHARDED = sorted(name for name in ARRAYS if "sharded" in name)


@pytest.fixture(params=sorted(ARRAYS))
def array(request: pytest.FixtureRequest) -> Any:
    return ARRAYS[request.param]()


def chunks_of(stored: StoredArray) -> list[tuple[int, ...]]:
    return list(product(*(range(grid.n_chunks) for grid in stored.grids)))


def raw_of(stored: StoredArray, chunk: tuple[int, ...]) -> Any:
    """Read one chunk as it lies in the store, None where it is absent."""

    def get(byte_range: Any) -> Any:
        return stored.store.get_sync(stored.key(chunk), prototype=stored.prototype, byte_range=byte_range)  # type: ignore[attr-defined]

    if not stored.sharded:
        return get(None)
    (shard,) = stored.objects_of([chunk])
    index = get(stored.index_range(shard))
    (span,) = [None] if index is None else stored.ranges_in_shard(stored.decode_index(index, shard), [chunk], shard)
    return None if span is None else get(RangeByteRequest(*span))


def read_by_chunks(stored: StoredArray) -> npt.NDArray[Any]:
    out: npt.NDArray[Any] = np.empty(stored.array.shape, stored.dtype)
    for chunk in chunks_of(stored):
        raw = raw_of(stored, chunk)
        decoded = stored.fill(chunk) if raw is None else stored.decode(raw, chunk)
        assert decoded.dtype == stored.dtype
        assert decoded.shape == tuple(g.length(c) for g, c in zip(stored.grids, chunk, strict=True))
        where = tuple(slice(g.start(c), g.start(c) + g.length(c)) for g, c in zip(stored.grids, chunk, strict=True))
        inside = tuple(slice(0, n) for n in out[where].shape)
        out[where] = decoded[inside]
    return out


def test_chunk_by_chunk_is_what_zarr_reads(array: Any) -> None:
    stored = StoredArray(array)
    assert stored.decodable
    expected = array[...]
    built = read_by_chunks(stored)
    assert built.dtype == expected.dtype
    assert built.tolist() == expected.tolist()


def test_keys_are_those_in_the_store(array: Any) -> None:
    stored = StoredArray(array)
    present = {stored.key(chunk) for chunk in chunks_of(stored) if raw_of(stored, chunk) is not None}
    assert sorted(present) == data_keys(array.store, "a")


def test_reading_slowly_is_reading_through_zarr(array: Any) -> None:
    stored = StoredArray(array)
    for chunk in chunks_of(stored):
        where = tuple(slice(g.start(c), g.start(c) + g.length(c)) for g, c in zip(stored.grids, chunk, strict=True))
        assert stored.read_slowly(chunk).tolist() == array[where].tolist()


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_fixed_sizes_of_chunks(name: str) -> None:
    stored = StoredArray(ARRAYS[name]())
    size = stored.encoded_chunk_bytes()
    lengths = {len(raw) for raw in (raw_of(stored, chunk) for chunk in chunks_of(stored)) if raw is not None}
    compressed = getattr(stored.array, "compressors", ()) and not stored.sharded
    if size:
        assert lengths == {size}
    if name in ("v3 uncompressed", "v3 big-endian", "sharded, one shard"):
        assert size == np.prod([g.longest for g in stored.grids]) * stored.dtype.itemsize
    if compressed:
        assert size == 0


@pytest.mark.parametrize("chunks", [(3, 4), (7, 10), (20, 3)])
def test_regular_grids(chunks: tuple[int, int]) -> None:
    grids = chunk_grids(create(chunks=chunks))
    assert [(g.extent, g.size, g.starts) for g in grids] == [(7, chunks[0], None), (10, chunks[1], None)]


def test_rectilinear_grids() -> None:
    array = create(chunks=((1, 2, 4), (5, 5)))
    first, second = chunk_grids(array)
    assert first.starts is not None
    assert first.starts.tolist() == [0, 1, 3, 7]
    assert [second.start(k) for k in range(second.n_chunks)] == [0, 5]
    read = [tuple(array.read_chunk_sizes[axis]) for axis in range(2)]
    assert read == [tuple(g.length(k) for k in range(g.n_chunks)) for g in (first, second)]


@pytest.mark.parametrize("name", SHARDED)
def test_grids_of_shards_are_those_of_their_chunks(name: str) -> None:
    array = ARRAYS[name]()
    stored = StoredArray(array)
    assert stored.sharded
    assert [g.size for g in stored.grids] == list(array.chunks)
    assert stored.chunks_per_object == np.prod([s // c for s, c in zip(array.shards, array.chunks, strict=True)])
    per_shard = [s // c for s, c in zip(array.shards, array.chunks, strict=True)]
    chunks = chunks_of(stored)
    expected = [tuple(c // n for c, n in zip(chunk, per_shard, strict=True)) for chunk in chunks]
    assert stored.objects_of(chunks) == expected
    assert stored.objects_of(chunks[::-1]) == expected[::-1]
    assert stored.objects_of([]) == []


def test_chunks_that_are_not_sharded_are_objects_of_their_own() -> None:
    stored = StoredArray(create())
    assert stored.objects_of(chunks_of(stored)) == chunks_of(stored)


@pytest.mark.parametrize("name", SHARDED)
def test_the_index_of_a_shard(name: str) -> None:
    stored = StoredArray(ARRAYS[name]())
    where = stored.index_range((0, 0))
    whole = stored.store.get_sync(stored.key((0, 0)), prototype=stored.prototype)  # type: ignore[attr-defined]
    size = 16 * stored.chunks_per_object + 4
    if "index first" in name:
        assert where == RangeByteRequest(0, size)
        raw = whole[:size]
    else:
        assert where == SuffixByteRequest(size)
        raw = whole[-size:]
    index = stored.decode_index(raw, (0, 0))
    assert index.dtype == np.uint64
    assert index.shape[:-1] == stored._chunks_per_shard((0, 0))
    chunks = chunks_of(stored)
    first = [chunk for chunk, shard in zip(chunks, stored.objects_of(chunks), strict=True) if shard == (0, 0)]
    spans = stored.ranges_in_shard(index, first, (0, 0))
    assert spans == [stored.ranges_in_shard(index, [chunk], (0, 0))[0] for chunk in first]
    present = sorted(span for span in spans if span is not None)
    assert present
    assert all(0 <= first < last <= len(whole) for first, last in present)
    assert all(before[1] <= after[0] for before, after in pairwise(present))


def test_an_absent_chunk_of_a_shard_has_no_range() -> None:
    array = create(chunks=(2, 3), shards=(8, 12), written=False)
    stored = StoredArray(array)
    held = [raw_of(stored, chunk) is not None for chunk in chunks_of(stored)]
    assert any(held)
    assert not all(held)


def test_the_fill_value_costs_no_memory_and_cannot_be_changed() -> None:
    fill = StoredArray(create(written=False, fill_value=-7)).fill((2, 2))
    assert (fill.shape, fill.strides, fill.flags.writeable) == ((3, 4), (0, 0), False)
    assert set(fill.ravel().tolist()) == {-7.0}


def test_a_codec_without_synchronous_methods_is_not_decoded_here() -> None:
    array = create(compressors=Flip())
    stored = StoredArray(array)
    assert not stored.decodable
    assert stored.encoded_chunk_bytes() == 0
    assert stored.read_slowly((2, 2)).tolist() == array[6:9, 8:12].tolist()
    array = create(chunks=(2, 3), shards=(4, 6), compressors=Flip())
    assert not StoredArray(array).decodable
    assert StoredArray(array).read_slowly((1, 1)).tolist() == array[2:4, 3:6].tolist()


def test_whether_a_store_is_read_synchronously(tmp_path: Any) -> None:
    array = create()
    for store, expected in (
        (array.store, True),
        (CountingStore(array.store), True),
        (CountingStore(array.store, sync=False), False),
    ):
        assert StoredArray(zarr.open_array(store, path="a", mode="r")).synchronous is expected
    local = zarr.create_array(str(tmp_path / "a.zarr"), shape=(4,), chunks=(2,), dtype="i4")
    assert StoredArray(local).synchronous


def test_the_event_loop_is_the_one_that_zarr_runs_on() -> None:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert zarr.core.sync.sync(running()) is event_loop()
    assert run_on_loop(running()) is event_loop()
    assert event_loop().is_running()
