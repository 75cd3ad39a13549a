"""The testing stores against real zarr reads, on the synchronous and the asynchronous path."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest, _store_supports_sync_io
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from insitu_xr.testing import CountingStore, FailingStore, GatedStore, Get, InterceptingStore, SlowStore, is_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from zarr.abc.store import Store

PROTOTYPE = default_buffer_prototype()


def memory(**options: Any) -> MemoryStore:
    """Hold ten numbers in chunks (or shards) of a MemoryStore."""
    store = MemoryStore()
    array = zarr.create_array(store, shape=(12,), dtype="i4", compressors=None, **{"chunks": (2,)} | options)
    array[:] = np.arange(12)
    return store


def through(store: Store) -> Any:
    return zarr.open_array(store, mode="r", zarr_format=3)


@pytest.fixture(params=[None, False], ids=["sync", "async"])
def sync(request: pytest.FixtureRequest) -> bool | None:
    value: bool | None = request.param
    return value


def test_metadata_names() -> None:
    keys = ["zarr.json", "a/.zarray", "a/.zattrs", ".zgroup", ".zmetadata", "a/c/0", "a/0.0", "zarr.json/c/0"]
    assert [is_metadata(key) for key in keys] == [True] * 5 + [False] * 3


def test_records_keys_ranges_and_lengths(sync: bool | None) -> None:
    store = CountingStore(memory(), sync=sync)
    array = through(store)
    assert store.data_gets == []
    assert {get.key for get in store.metadata_gets} == {"zarr.json"}
    store.reset()
    assert array[3:6].tolist() == [3, 4, 5]
    assert sorted(store.gets, key=lambda get: get.key) == [Get("c/1", None, 8), Get("c/2", None, 8)]
    assert store.by_key() == Counter({"c/1": 1, "c/2": 1})
    assert store.bytes_read == 16


def test_absent_key_has_no_length(sync: bool | None) -> None:
    wrapped = memory()
    wrapped.delete_sync("c/1")
    store = CountingStore(wrapped, sync=sync)
    assert through(store)[2] == 0
    assert store.data_gets == [Get("c/1", None, None)]


def test_sync_capability_follows_the_wrapped_store() -> None:
    assert _store_supports_sync_io(CountingStore(memory()))
    assert _store_supports_sync_io(CountingStore(memory(), sync=True))
    assert not _store_supports_sync_io(CountingStore(memory(), sync=False))
    assert not _store_supports_sync_io(CountingStore(CountingStore(memory(), sync=False)))
    with pytest.raises(ValueError, match="sync must be False or None"):
        CountingStore(CountingStore(memory(), sync=False), sync=True)


def test_sync_reads_are_refused_when_hidden() -> None:
    with pytest.raises(TypeError, match=r"got 'c/0'; use get"):
        CountingStore(memory(), sync=False).get_sync("c/0")


def test_shard_reads_are_recorded_as_they_reach_the_store(sync: bool | None) -> None:
    store = CountingStore(memory(shards=(12,), chunks=(2,)), sync=sync)
    array = through(store)
    store.reset()
    assert array[2:4].tolist() == [2, 3]
    ranges = [get.byte_range for get in store.data_gets]
    assert {get.key for get in store.data_gets} == {"c/0"}
    assert len(ranges) == 2
    assert sum(isinstance(byte_range, SuffixByteRequest) for byte_range in ranges) == 1


def test_coalesced_ranges_are_one_record(sync: bool | None) -> None:
    store = CountingStore(memory(shards=(12,), chunks=(2,)), sync=sync)
    wanted = [RangeByteRequest(0, 8), RangeByteRequest(8, 16), RangeByteRequest(32, 40)]
    options: dict[str, Any] = {"prototype": PROTOTYPE, "max_gap_bytes": 0}

    async def collect() -> list[tuple[int, Any]]:
        return [pair async for group in store.get_ranges("c/0", wanted, **options) for pair in group]

    pairs: list[tuple[int, Any]] = (
        list(store.get_ranges_sync("c/0", wanted, **options)) if sync is None else asyncio.run(collect())
    )
    merged = sorted((get.byte_range.start, get.byte_range.end) for get in store.gets if get.byte_range)  # type: ignore[union-attr]
    assert merged == [(0, 16), (32, 40)]
    assert {index: value.to_bytes() for index, value in pairs} == {
        0: np.array([0, 1], "<i4").tobytes(),
        1: np.array([2, 3], "<i4").tobytes(),
        2: np.array([8, 9], "<i4").tobytes(),
    }


def test_partial_values_and_many_are_recorded() -> None:
    store = CountingStore(memory())

    async def read() -> None:
        await store.get_partial_values(PROTOTYPE, [("c/0", None), ("c/1", RangeByteRequest(0, 4))])
        assert [key async for key, _ in store._get_many([("c/2", PROTOTYPE, None)])] == ["c/2"]

    asyncio.run(read())
    assert store.gets == [Get("c/0", None, 8), Get("c/1", RangeByteRequest(0, 4), 4), Get("c/2", None, 8)]


def test_read_only_twin_shares_the_record() -> None:
    store = CountingStore(memory(), sync=False)
    twin = store.with_read_only(True)
    assert twin.read_only
    assert not store.read_only
    assert not _store_supports_sync_io(twin)
    assert through(twin)[0] == 0
    assert store.by_key() == {"c/0": 1}


def test_counts_from_many_threads() -> None:
    store = CountingStore(memory())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.get_sync("c/0", prototype=PROTOTYPE), range(400)))
    assert store.by_key() == {"c/0": 400}


def test_local_store(tmp_path: Path) -> None:
    array = zarr.create_array(LocalStore(tmp_path), shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 7
    store = CountingStore(LocalStore(tmp_path))
    assert through(store)[3] == 7
    assert store.by_key() == {"c/1": 1}


def read_in_thread(store: Store, results: list[Any]) -> threading.Thread:
    array = through(store)
    thread = threading.Thread(target=lambda: results.append(array[:4].tolist()))
    thread.start()
    return thread


def test_gate_holds_reads_until_opened(sync: bool | None) -> None:
    counting = CountingStore(memory())
    store = GatedStore(counting, {"c/1"}, sync=sync)
    results: list[Any] = []
    thread = read_in_thread(store, results)
    assert store.wait_until_waiting(1) == ["c/1"]
    assert store.waiting == ["c/1"]
    assert "c/1" not in counting.by_key()
    assert results == []
    store.open_gate("c/1")
    thread.join(10)
    assert results == [[0, 1, 2, 3]]
    assert store.waiting == []


def test_open_all_lets_later_reads_pass(sync: bool | None) -> None:
    store = GatedStore(memory(), sync=sync)
    results: list[Any] = []
    thread = read_in_thread(store, results)
    store.wait_until_waiting(1)
    store.open_all()
    thread.join(10)
    assert through(store)[4] == 4
    assert results == [[0, 1, 2, 3]]


def test_a_gate_never_hangs(sync: bool | None) -> None:
    store = GatedStore(memory(), lambda key: key == "c/0", timeout=0.01, sync=sync)
    array = through(store)
    with pytest.raises(TimeoutError):
        array[0]
    assert store.waiting == []
    with pytest.raises(TimeoutError, match=r"waiting reads must be 1 within 0.01 s, but got 0: \[\]"):
        store.wait_until_waiting(1, timeout=0.01)


def test_a_cancelled_read_leaves_the_gate() -> None:
    store = GatedStore(memory())

    async def read() -> None:
        task = asyncio.create_task(store.get("c/0", PROTOTYPE))
        await asyncio.to_thread(store.wait_until_waiting, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(read())
    assert store.waiting == []
    store.open_all()


def test_failing_keys(sync: bool | None) -> None:
    store = FailingStore(memory(), {"c/1"}, sync=sync)
    array = through(store)
    assert array[0] == 0
    with pytest.raises(OSError, match="c/1"):
        array[2]
    store.recover()
    assert array[2] == 2
    assert store.failures == ["c/1"]


def test_failing_some_times(sync: bool | None) -> None:
    store = FailingStore(memory(), error=lambda key: KeyError(f"gone: {key}"), times=2, sync=sync)
    array = through(store)
    for _ in range(2):
        with pytest.raises(KeyError, match="gone: c/0"):
            array[0]
    assert array[0] == 0
    store.fail(lambda key: key == "c/2")
    with pytest.raises(KeyError, match="gone: c/2"):
        array[4]


def test_failing_with_a_given_exception() -> None:
    error = RuntimeError("this one")
    with pytest.raises(RuntimeError, match="this one") as caught:
        through(FailingStore(memory(), error=error))[0]
    assert caught.value is error


def test_a_single_key_is_not_a_collection() -> None:
    with pytest.raises(TypeError, match=r"use \{'c/0'\}"):
        FailingStore(memory(), "c/0")


def test_failed_reads_are_counted_outside_but_not_inside(sync: bool | None) -> None:
    inner = CountingStore(memory())
    outer = CountingStore(FailingStore(inner, {"c/0"}, sync=sync))
    array = through(outer)
    with pytest.raises(OSError, match="c/0"):
        array[0]
    assert inner.data_gets == []
    assert outer.data_gets == [Get("c/0", None, None)]


def test_slow_store() -> None:
    store = SlowStore(memory(), latency=0.5, bytes_per_second=100.0)
    assert store.delay(50) == 1.0
    fast = SlowStore(memory())
    assert not _store_supports_sync_io(fast)
    assert through(fast)[5] == 5


@pytest.mark.parametrize("kind", [InterceptingStore, CountingStore, GatedStore, FailingStore, SlowStore])
def test_writes_pass_through(kind: type[InterceptingStore]) -> None:
    wrapped = MemoryStore()
    zarr.create_array(kind(wrapped), shape=(2,), chunks=(2,), dtype="i4")[:] = 3
    assert through(wrapped)[:].tolist() == [3, 3]
