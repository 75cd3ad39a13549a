"""Epochs carried out by threads: right under any schedule, within the ceiling, and closed in bounded time."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import replace
from typing import Any, override

import numpy as np
import pytest

from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.errors import ReadError
from insitu_xr.limits import Limits
from insitu_xr.loader import Loader
from insitu_xr.testing import CountingStore, FailingStore, GatedStore, InterceptingStore, assert_batches_equal
from insitu_xr.testing.writing import StoredDataset, StoredVariable
from tests.engine.loaders import loader_with

pytestmark = pytest.mark.timeout(60)


def stored(shards: tuple[int, ...] | None = None) -> StoredDataset:
    """Store two variables whose chunks differ, 30 hours with a gap."""
    first = StoredVariable("a", ("time", "y"), (30, 6), chunks=(4, 3), kind="packed", shards=shards)
    second = StoredVariable("b", ("y", "time"), (6, 30), chunks=(6, 3), kind="float32")
    times = (*range(20), *range(22, 32))
    return StoredDataset((first, second), times=times, sizes={"y": 6})


def is_data(key: str) -> bool:
    return key.startswith(("a/", "b/"))


class DisorderlyStore(InterceptingStore):
    """Answers reads in an order drawn from a seed, by letting each wait for a number of others to pass."""

    def __init__(self, store: Any, seed: int, *, sync: bool | None) -> None:
        super().__init__(store, sync=sync)
        self._random, self._lock = random.Random(seed), threading.Lock()

    def _yield(self) -> None:
        with self._lock:
            turns = self._random.randrange(4)
        for _ in range(turns):
            time.sleep(0)  # only gives way to another thread

    @override
    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        with self._lock:
            turns = self._random.randrange(6)
        for _ in range(turns):
            await asyncio.sleep(0)
        return await super().get(key, prototype, byte_range)

    @override
    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        self._yield()
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(24))
def test_any_schedule_gives_the_same_batches_within_the_ceiling(placement: str, seed: int, sync: bool | None) -> None:
    draw = random.Random(seed)
    written = stored(shards=draw.choice([None, (8, 6)]))
    limits = Limits(
        threads=draw.choice([1, 2, 5]),
        prefetch=draw.choice([1, 2, 4]),
        max_inflight=draw.choice([1, 3, 32]),
        inflight_bytes=draw.choice([1, 200, 1 << 20]),
        max_gap_bytes=draw.choice([0, 1 << 20]),
    )
    asked: dict[str, Any] = {
        "variables": ["a", "b"],
        "leads": draw.choice([None, ["0h", "3h"], ["-5h"]]),
        "batch_size": draw.choice([1, 3, 8]),
        "shuffle": draw.random() < 0.7,
        "seed": seed,
    }
    ds = written.open(DisorderlyStore(written.store, seed, sync=sync))
    keep = draw.choice([None, None, True, False])
    with loader_with(limits, ds, draw.choice([0, 0, 100, 1000, 10_000, None]), keep, **asked) as loader:
        ceiling = loader.plan.budget.ceiling
        for epoch in range(3):
            before = loader.stats.reads
            batches = list(loader)
            # Had the engine held more than the ceiling, its accounts would have raised.
            assert 0 < loader.stats.peak_bytes <= loader.plan.peak_bytes <= ceiling
            if epoch == 0:
                assert loader.stats.reads - before == loader.plan.reads
            assert_batches_equal(batches, written.open(), sample_dim="time", variables=["a", "b"], leads=asked["leads"])
        assert loader.stats.resident_bytes <= loader.plan.budget_of(2).slot_bytes


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
@pytest.mark.parametrize("shards", [None, (8, 6)])
def test_a_loader_left_early_starts_over(placement: str, sync: bool | None, shards: Any) -> None:
    written = stored(shards)
    asked: dict[str, Any] = {"variables": ["a", "b"], "batch_size": 2, "shuffle": True}
    for seed in range(5):
        ds = written.open(DisorderlyStore(written.store, seed, sync=sync))
        with loader_with(Limits(threads=3), ds, 0, **asked) as loader:
            for stop in range(4):
                for number, _ in enumerate(loader):
                    if number == stop:
                        break
            assert_batches_equal(loader, written.open(), sample_dim="time", variables=["a", "b"])


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
def test_a_failure_at_any_read_leaves_the_batches_before_it(placement: str, sync: bool | None) -> None:
    written = stored()
    truth = written.open()
    for key in ("a/c/0/0", "a/c/3/1", "b/c/0/7"):
        store = FailingStore(written.store, (), sync=sync)
        loader = loader_with(Limits(threads=3), written.open(store), 0, variables=["a", "b"], batch_size=3)
        store.fail({key})
        seen: list[Any] = []
        with loader, pytest.raises(ReadError, match=key):
            seen.extend(loader)
        step = int(key.split("/")[2]) * 4 if key.startswith("a") else int(key.split("/")[3]) * 3
        assert len(seen) == step // 3
        for batch in seen:
            assert np.array_equal(batch["a"], truth["a"].values[batch.positions], equal_nan=True)


@pytest.mark.parametrize("shards", [None, (8, 6)], ids=["chunks", "shards"])
@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
def test_closing_while_reads_hang_is_bounded_and_the_loader_goes_on(
    placement: str, sync: bool | None, shards: Any
) -> None:
    written = stored(shards)
    gates = GatedStore(written.store, is_data, sync=sync)
    limits = Limits(threads=2, close_seconds=0.2)
    loader = loader_with(limits, written.open(gates), variables=["a", "b"], batch_size=4)
    try:
        epoch = iter(loader)
        gates.wait_until_waiting(1)
        began = time.monotonic()
        epoch.close()  # type: ignore[attr-defined]
        assert time.monotonic() - began < 5
        gates.open_all()
        assert_batches_equal(loader, written.open(), sample_dim="time", variables=["a", "b"])
    finally:
        gates.open_all()
        loader.close()


class StuckOnceStore(InterceptingStore):
    """Its first read of data does not end before the test does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.armed, self.stuck, self.end = threading.Event(), threading.Event(), threading.Event()

    @override
    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        if self.armed.is_set() and is_data(key):
            self.armed.clear()
            self.stuck.set()
            self.end.wait(60)
            raise OSError("ended with the test")
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)


def test_an_index_read_that_never_ends_costs_its_own_epoch_only(placement: str) -> None:
    written = stored((8, 6))
    store = StuckOnceStore(written.store)
    loader = loader_with(Limits(threads=2, close_seconds=0.2), written.open(store), variables=["a"], batch_size=4)
    store.armed.set()
    try:
        epoch = iter(loader)
        assert store.stuck.wait(10)
        epoch.close()  # type: ignore[attr-defined]
        assert_batches_equal(loader, written.open(), sample_dim="time", variables=["a"])
    finally:
        store.end.set()
        loader.close()


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
def test_closing_the_loader_while_reads_hang(placement: str, sync: bool | None) -> None:
    gates = GatedStore(stored().store, is_data, sync=sync)
    loader = loader_with(Limits(threads=2, close_seconds=0.2), stored().open(gates), variables=["a"], batch_size=4)
    epoch = iter(loader)
    gates.wait_until_waiting(1)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5
    assert loader.stats.resident_bytes == 0
    gates.open_all()
    del epoch


def test_statistics_outlive_the_loader() -> None:
    with loader_with(Limits(), stored().open(), variables=["a"], batch_size=4) as loader:
        list(loader)
        peak = loader.stats.peak_bytes
    assert peak > 0
    assert loader.stats.peak_bytes == peak
    assert loader.stats.resident_bytes == 0


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
def test_figures_of_an_epoch(sync: bool | None) -> None:
    written = stored()
    store = CountingStore(written.store, sync=sync)
    with loader_with(Limits(), written.open(store), keep=True, variables=["a"], batch_size=4) as loader:
        store.reset()
        list(loader)
        stats = loader.stats
        assert (stats.batches, stats.samples, stats.absent) == (8, 30, 0)
        assert stats.reads == stats.gets == stats.decodes == len(store.data_gets) == 16
        assert stats.bytes_read == store.bytes_read
        assert stats.bytes_decoded == 16 * 4 * 3 * 2
        # Eight batches of four lie on eight chunks of four.
        assert stats.hits == 0
        list(loader)
        assert loader.stats.hits == 8
        assert min(stats.read_seconds, stats.decode_seconds, stats.gather_seconds, stats.wait_seconds) > 0
        assert str(loader.stats).startswith("16 batches, 60 samples; 16 chunks in 16 GETs")


@pytest.mark.parametrize("max_inflight", [1, 3])
def test_no_more_reads_are_in_flight_than_allowed(max_inflight: int) -> None:
    gates = GatedStore(stored().store, is_data, sync=False)
    limits = Limits(threads=4, max_inflight=max_inflight)
    with loader_with(limits, stored().open(gates), variables=["a", "b"], batch_size=8) as loader:
        batches = iter(loader)
        while True:
            waiting = gates.wait_until_waiting(1)
            assert len(waiting) <= max_inflight
            if "b/c/0/5" in waiting:
                break
            for key in waiting:
                gates.open_gate(key)
        gates.open_all()
        assert len(list(batches)) == 4


@pytest.mark.parametrize("sync", [True, False])
def test_a_failure_names_the_chunk_among_many_small_ones(*, sync: bool) -> None:
    """A thread reads several small chunks one after another; those before and after the one that fails are placed."""
    tiles = StoredVariable("a", ("time", "y", "x"), (8, 16, 4), chunks=(4, 1, 2))
    written = StoredDataset((tiles,), times=tuple(range(8)), sizes={"y": 16, "x": 4})
    failing = FailingStore(written.store, (), sync=sync)
    ds = written.open(failing)
    with loader_with(Limits(tries=1), ds, variables=["a"], batch_size=4) as loader:
        failing.fail({"a/c/1/5/1"})
        batches = iter(loader)
        next(batches)
        with pytest.raises(ReadError, match=r"chunk \(1, 5, 1\) .* 'a/c/1/5/1' could not be read") as found:
            next(batches)
        assert (found.value.chunk, found.value.key) == ((1, 5, 1), "a/c/1/5/1")
        failing.recover()
        for batch, first in zip(loader, (0, 4), strict=True):
            np.testing.assert_array_equal(batch["a"], ds["a"].isel(time=slice(first, first + 4)))


class BrokenSource(ZarrSource):
    """Fails where no read is under way yet, which no source should."""

    @override
    def stream(self, chunks: Any, cost: Any) -> Any:
        raise ZeroDivisionError("at once")


def test_what_belongs_to_no_read_is_raised_rather_than_waited_for() -> None:
    loader = loader_with(Limits(), stored().open(), variables=["a"], batch_size=4)
    whole = loader._materials
    broken = [replace(part, source=BrokenSource(part.source.stored.array)) for part in whole.parts["a"]]  # type: ignore[attr-defined]
    materials = replace(whole, parts={"a": broken})
    with Loader(loader.plan, materials, loader.context, Limits()) as other:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="at once"):
                list(other)
