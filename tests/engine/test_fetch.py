"""Reads of chunks: the same on a thread and on the event loop, no request too many, and honest failures."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, override

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.storage import MemoryStore

from insitu_xr.engine._zarr import run_on_loop
from insitu_xr.engine.fetch import BlockSource, Fetched, ShortReadError, ZarrSource
from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.testing import CountingStore, FailingStore, GatedStore, InterceptingStore
from tests.engine.flipping import Flip

MIB = 1 << 20


def source_of(store: Any, max_gap: int = MIB) -> ZarrSource:
    return ZarrSource(zarr.open_array(store, path="a", mode="r"), max_gap)


def stored(shape: tuple[int, ...] = (8, 6), written: int = 8, **options: Any) -> MemoryStore:
    """Store counting numbers, rows beyond ``written`` left out."""
    store = MemoryStore()
    array = zarr.create_array(
        store, name="a", shape=shape, dtype="i4", **{"chunks": (2, 3), "fill_value": -1, "compressors": None, **options}
    )
    array[:written] = 1 + np.arange(np.prod(shape), dtype="i4").reshape(shape)[:written]
    return store


@pytest.fixture(params=["thread", "loop", "thread onto loop"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def counting(store: Any, way: str) -> CountingStore:
    return CountingStore(store, sync=False if way != "thread" else None)


def read(source: ZarrSource, chunks: list[tuple[int, ...]], way: str) -> Fetched:
    return run_on_loop(source.aread(chunks)) if way == "loop" else source.read(chunks)


def decoded(source: ZarrSource, fetched: Fetched, chunks: list[tuple[int, ...]]) -> list[Any]:
    return [source.decode(raw, chunk).tolist() for raw, chunk in zip(fetched.raw, chunks, strict=True)]


def expected(store: Any, chunks: list[tuple[int, ...]]) -> list[Any]:
    array = zarr.open_array(store, path="a", mode="r")
    return [np.asarray(array[2 * i : 2 * i + 2, 3 * j : 3 * j + 3]).tolist() for i, j in chunks]


def test_a_chunk(way: str) -> None:
    store = counting(stored(), way)
    source = source_of(store)
    assert (source.synchronous, source.sharded) == (way == "thread", False)
    store.reset()
    fetched = read(source, [(1, 1)], way)
    assert decoded(source, fetched, [(1, 1)]) == expected(store, [(1, 1)])
    assert (fetched.gets, fetched.bytes) == (1, 24)
    assert store.gets[0].key == source.key((1, 1)) == "a/c/1/1"


def test_an_absent_chunk(way: str) -> None:
    source = source_of(counting(stored(written=4), way))
    fetched = read(source, [(3, 0)], way)
    assert (fetched.raw, fetched.gets, fetched.bytes) == ([None], 1, 0)
    assert decoded(source, fetched, [(3, 0)]) == [[[-1] * 3] * 2]


SHARD: list[tuple[int, ...]] = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("chunks", [SHARD, SHARD[::-1], [(1, 0)], [(1, 1), (0, 0)]])
def test_chunks_of_a_shard_in_one_range(way: str, chunks: list[tuple[int, ...]], location: str) -> None:
    store = counting(stored(shards={"shape": (4, 6), "index_location": location}), way)
    source = source_of(store)
    assert source.sharded
    store.reset()
    fetched = read(source, chunks, way)
    # A shard of which everything is wanted comes in one piece.
    assert fetched.gets == len(store.data_gets) == (1 if len(chunks) == 4 else 2)
    assert fetched.bytes == store.bytes_read
    assert decoded(source, fetched, chunks) == expected(store, chunks)


def test_far_ranges_are_fetched_apart(way: str) -> None:
    store = counting(stored(shards=(4, 6)), way)
    source = source_of(store, max_gap=0)
    where = source.stored.index_range((0, 0))
    raw = run_on_loop(source.stored.store.get("a/c/0/0", source.stored.prototype, where))
    assert raw is not None
    index = source.stored.decode_index(raw, (0, 0))
    places = dict(zip(SHARD, source.stored.ranges_in_shard(index, SHARD, (0, 0)), strict=True))
    by_place = sorted(SHARD, key=lambda chunk: places[chunk] or (0, 0))
    chunks: list[tuple[int, ...]] = [by_place[0], by_place[2], by_place[3]]
    store.reset()
    fetched = read(source, chunks, way)
    ranges = [get.byte_range for get in store.data_gets if isinstance(get.byte_range, RangeByteRequest)]
    assert sorted(r.end - r.start for r in ranges) == [24, 48]
    assert fetched.gets == 3
    assert decoded(source, fetched, chunks) == expected(store, chunks)


def test_chunks_and_shards_that_are_absent(way: str) -> None:
    store = counting(stored(written=2, shards=(4, 6)), way)
    source = source_of(store)
    fetched = read(source, SHARD, way)
    assert [raw is None for raw in fetched.raw] == [False, False, True, True]
    assert decoded(source, fetched, SHARD) == expected(store, SHARD)
    store.reset()
    missing = read(source, [(2, 0), (3, 1)], way)
    assert (missing.raw, missing.gets, missing.bytes) == ([None, None], 1, 0)
    assert read(source, [(2, 1)], way).gets == 0  # that the shard is absent is known by now
    assert [get.length for get in store.data_gets] == [None]


def indexes(store: CountingStore) -> list[str]:
    return [get.key for get in store.data_gets if isinstance(get.byte_range, SuffixByteRequest)]


def test_an_index_is_read_once_by_many_threads(way: str) -> None:
    gates = GatedStore(stored(shards=(4, 6)), sync=False if way != "thread" else None)
    store = counting(gates, way)
    source = source_of(store)
    store.reset()
    chunks = SHARD * 4
    start = threading.Barrier(len(chunks) + 1)

    def work(chunk: tuple[int, ...]) -> Any:
        start.wait(10)
        return decoded(source, read(source, [chunk], way), [chunk])

    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = [pool.submit(work, chunk) for chunk in chunks]
        start.wait(10)
        gates.wait_until_waiting(1)
        gates.open_all()
        results = [future.result(10) for future in futures]
    assert len(indexes(store)) == 1
    assert len(store.data_gets) == 1 + len(chunks)
    assert results == [expected(store, [chunk]) for chunk in chunks]


def test_a_failed_index_is_read_again(way: str) -> None:
    store = FailingStore(stored(shards=(4, 6)), (), sync=False if way != "thread" else None)
    source = source_of(store)
    store.fail(None, times=1)
    with pytest.raises(OSError, match="a/c/0/0"):
        read(source, [(0, 0)], way)
    assert decoded(source, read(source, [(0, 0)], way), [(0, 0)]) == expected(store, [(0, 0)])


def test_those_who_wait_for_a_failing_index_fail_as_well() -> None:
    failing = FailingStore(stored(shards=(4, 6)))
    gates = GatedStore(failing)
    source = source_of(gates)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(source.read, [chunk]) for chunk in SHARD[:3]]
        gates.wait_until_waiting(1)
        gates.open_all()
        errors = [future.exception(10) for future in futures]
    assert all(isinstance(error, OSError) for error in errors)
    failing.recover()
    assert source.read([(0, 0)]).gets == 2


class ClippingStore(InterceptingStore):
    """Answers ranges one byte short; what a cut connection leaves."""

    def _clip(self, value: Any, byte_range: Any) -> Any:
        return value[:-1] if isinstance(byte_range, RangeByteRequest) and value is not None else value

    @override
    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        return self._clip(await super().get(key, prototype, byte_range), byte_range)

    @override
    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        return self._clip(super().get_sync(key, prototype=prototype, byte_range=byte_range), byte_range)


def test_a_short_range_is_an_error(way: str) -> None:
    source = source_of(ClippingStore(stored(shards=(4, 6)), sync=False if way != "thread" else None))
    with pytest.raises(ShortReadError, match=r"bytes \d+ to \d+ of the shard gave 23 bytes"):
        read(source, [(0, 1)], way)


def test_a_shard_that_vanished_is_an_error(way: str) -> None:
    store = stored(shards=(4, 6))
    source = source_of(counting(store, way))
    read(source, [(0, 0)], way)
    store.delete_sync("a/c/0/0")
    with pytest.raises(ShortReadError, match="gave 0 bytes"):
        read(source, [(0, 1)], way)


@pytest.mark.parametrize("shards", [None, (4, 6)])
@pytest.mark.parametrize("sync", [None, False])
def test_codecs_of_the_event_loop(shards: Any, sync: bool | None) -> None:
    store = CountingStore(stored(written=4, shards=shards, compressors=Flip()), sync=sync)
    source = source_of(store)
    # These are read through zarr, on the calling thread, whatever the store.
    assert (source.synchronous, source.sharded) == (True, False)
    for chunk in [(0, 0), (1, 1), (3, 1)]:
        fetched = source.read([chunk])
        assert decoded(source, fetched, [chunk]) == expected(store, [chunk])
        assert (fetched.gets, fetched.bytes) == (1, 24)


def test_an_error_of_the_loop_is_raised_as_it_was() -> None:
    source = source_of(FailingStore(stored(), error=ConnectionResetError("gone"), sync=False))
    with pytest.raises(ConnectionResetError, match="gone"):
        source.read([(0, 0)])


def test_a_cancelled_index_read_does_not_cancel_who_comes_next() -> None:
    gates = GatedStore(stored(shards=(4, 6)), sync=False)
    source = source_of(LingeringStore(gates, sync=False))

    async def take_turns() -> Fetched:
        first = asyncio.ensure_future(source.aread([(0, 0)]))
        while not gates.waiting:
            await asyncio.sleep(0)
        first.cancel()
        second = asyncio.ensure_future(source.aread([(0, 1)]))
        gates.open_all()
        return await second

    fetched = run_on_loop(take_turns())
    assert decoded(source, fetched, [(0, 1)]) == expected(gates, [(0, 1)])


class LingeringStore(InterceptingStore):
    """Needs a few turns of the loop to be cancelled, as a session that closes its connection does."""

    @override
    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        try:
            return await super().get(key, prototype, byte_range)
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            raise


def test_blocks() -> None:
    values = np.arange(30).reshape(5, 6)
    asked: list[Any] = []

    def read_block(where: Any) -> Any:
        asked.append(dict(where))
        return values[where["t"], where["x"]]

    source = BlockSource(read_block, ("t", "x"), (AxisGrid(5, size=2), AxisGrid(6, size=6)), values.dtype)
    fetched = source.read([(0, 0), (2, 0)])
    assert asked == [{"t": slice(0, 2), "x": slice(0, 6)}, {"t": slice(4, 5), "x": slice(0, 6)}]
    assert [source.decode(raw, (0, 0)).tolist() for raw in fetched.raw] == [values[:2].tolist(), values[4:].tolist()]
    assert (fetched.gets, fetched.bytes) == (2, values[:2].nbytes + values[4:].nbytes)
    cost = Fetched([])
    streamed = [source.decode(raw, (0, 0)).tolist() for raw in source.stream([(0, 0), (2, 0)], cost)]
    assert streamed == [values[:2].tolist(), values[4:].tolist()]
    assert (cost.gets, cost.bytes) == (fetched.gets, fetched.bytes)
    assert source.key((2, 0)) == "t=4:5, x=0:6"
    assert source.objects_of([(2, 0), (0, 0)]) == [(2, 0), (0, 0)]
    assert not source.decodes_into
    assert source.dtype == values.dtype
