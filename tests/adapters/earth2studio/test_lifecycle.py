"""Loops, threads, timeouts, cancelling, pickles and processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec.asyn  # type: ignore[import-untyped]
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import insitu_xr
from insitu_xr.testing import CountingStore, FailingStore, GatedStore
from insitu_xr_adapters.earth2studio import InSituDataSource, to_earth2studio
from tests.adapters.earth2studio.stores import analysis, times, written

T2M = {"t2m": "2m_temperature", "z500": "geopotential::500"}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARTH2STUDIO_CACHE", str(tmp_path / "kept"))


@pytest.fixture
def ds() -> xr.Dataset:
    return written(analysis(8)[["2m_temperature", "geopotential"]], {"time": 2})[0]


@pytest.fixture
def source(ds: xr.Dataset) -> Iterator[InSituDataSource]:
    with InSituDataSource(ds, T2M, verbose=False) as made:
        yield made


class Held:
    """A source whose reads wait at a gate."""

    def __init__(self) -> None:
        inner = zarr.storage.MemoryStore()
        analysis(8)[["2m_temperature"]].chunk(time=2).to_zarr(inner, consolidated=False)
        self.held = False
        self.reads = CountingStore(inner, sync=False)
        self.gate = GatedStore(self.reads, lambda key: self.held, sync=False)
        opened = xr.open_zarr(self.gate, consolidated=False, chunks=None)
        self.source = InSituDataSource(opened, T2M, verbose=False)
        self.source(times(8)[6:], "t2m")  # the reader is made, and has compared its first block
        self.reads.reset()
        self.held = True


def test_inside_of_a_running_loop(source: InSituDataSource) -> None:
    expected = source(times(3), "t2m")

    async def called() -> xr.DataArray:
        return source(times(3), "t2m")

    xr.testing.assert_identical(asyncio.run(called()), expected)  # as in a notebook
    xr.testing.assert_identical(fsspec.asyn.sync(fsspec.asyn.get_loop(), called), expected)  # as in a wrapper
    fetched = fsspec.asyn.sync(fsspec.asyn.get_loop(), source.fetch, times(3), "t2m")
    xr.testing.assert_identical(fetched, expected)


def test_two_sources_on_two_loops_and_many_threads(ds: xr.Dataset) -> None:
    expected = {name: ds[key.split("::")[0]] for name, key in T2M.items()}
    expected["z500"] = expected["z500"].sel(level=500)
    with InSituDataSource(ds, T2M, verbose=False) as one, InSituDataSource(ds, T2M, verbose=False) as two:

        def ask(k: int) -> None:
            name, some = ["t2m", "z500"][k % 2], (one, two)[k % 3 == 0]
            at = (k * 3) % 7
            found = some(times(8)[at], name) if k % 4 else asyncio.run(_both(some, at, name))
            np.testing.assert_array_equal(found[0, 0], expected[name][at])

        async def _both(some: InSituDataSource, at: int, name: str) -> xr.DataArray:
            first, _ = await asyncio.gather(some.fetch(times(8)[at], name), one.fetch(times(2), "t2m"))
            return first

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(36)))


def test_a_loop_goes_on_while_fields_are_read() -> None:
    held = Held()

    async def main() -> int:
        task = asyncio.ensure_future(held.source.fetch(times(2), "t2m"))
        turns = 0
        while not held.gate.waiting:
            turns += 1
            await asyncio.sleep(0)
        assert not task.done()
        held.gate.open_all()
        assert (await task).shape == (2, 1, 13, 24)
        return turns

    with held.source:
        assert asyncio.run(main()) >= 1


def test_cancelling_stops_reads() -> None:
    held = Held()

    async def main() -> None:
        task = asyncio.ensure_future(held.source.fetch(times(6), "t2m"))
        while not held.gate.waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            while held.gate.waiting:
                await asyncio.sleep(0.001)

    async def impatient() -> None:
        async with asyncio.timeout(0.05):
            await held.source.fetch(times(6), "t2m")

    with held.source:
        asyncio.run(main())
        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        assert not held.reads.data_gets
        held.gate.open_all()
        np.testing.assert_array_equal(held.source(times(2), "t2m").shape, (2, 1, 13, 24))


@pytest.mark.parametrize("running", [False, True])
def test_a_call_that_waits_too_long_is_cancelled(running: bool) -> None:
    held = Held()
    held.source.async_timeout = 0.05

    async def called() -> None:
        held.source(times(2), "t2m")

    with held.source:
        with pytest.raises(TimeoutError, match=r"async_timeout, but took longer than 0.05 s"):
            asyncio.run(called()) if running else held.source(times(2), "t2m")
        held.gate.open_all()
        held.source.async_timeout = None
        held.source(times(2), "t2m")


def test_what_fails_is_tried_again() -> None:
    inner = zarr.storage.MemoryStore()
    analysis(4)[["2m_temperature"]].chunk(time=2).to_zarr(inner, consolidated=False)
    store = FailingStore(inner, error=OSError)
    store.recover()
    opened = xr.open_zarr(store, consolidated=False, chunks=None)
    for retries, fails in ((3, True), (5, False)):
        with InSituDataSource(opened, T2M, retries=retries, verbose=False) as source:
            source(times(1), "t2m")
            store.fail(lambda key: "/c/1/" in key, times=2)
            if fails:
                with pytest.raises(OSError, match="2m_temperature"):
                    source(times(4)[3], "t2m")
            else:
                assert source(times(4)[3], "t2m").notnull().all()
            store.recover()


def test_a_pickle_is_small_and_reads_alike(tmp_path: Path) -> None:
    place = tmp_path / "store.zarr"
    analysis(8).chunk(time=2).to_zarr(place, consolidated=False)
    with InSituDataSource(url=str(place), lexicon=T2M, verbose=False) as source:
        expected = source(times(3), ["z500", "t2m"])
        pickled = pickle.dumps(source)
        assert len(pickled) < 2000
        with pickle.loads(pickled) as again:
            xr.testing.assert_identical(again(times(3), ["z500", "t2m"]), expected)
        with ThreadPoolExecutor(1) as pool, multiprocessing.get_context("spawn").Pool(1) as workers:
            found = pool.submit(workers.apply, source, (times(3), ["z500", "t2m"])).result()
        xr.testing.assert_identical(found, expected)


@pytest.mark.parametrize("kind", ["place", "repository", "session", "dataset"])
def test_a_pickle_keeps_the_snapshot(tmp_path: Path, kind: str) -> None:
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icechunk.Repository.create(storage)
    before = analysis(4)[["2m_temperature"]]

    def commit(ds: xr.Dataset) -> None:
        session = repository.writable_session("main")
        ds.to_zarr(session.store, mode="w", consolidated=False, zarr_format=3)
        session.commit("data")

    commit(before)
    given: dict[str, Any] = {
        "place": f"icechunk://{tmp_path / 'repository'}",
        "repository": repository,
        "session": repository.readonly_session("main"),
        "dataset": None,
    }
    asked = given[kind] if kind != "dataset" else insitu_xr.open_dataset(repository)
    with InSituDataSource(asked, T2M, verbose=False) as source:
        pickled = pickle.dumps(source)
        commit(before + 1)
        with pickle.loads(pickled) as again:
            np.testing.assert_array_equal(again(times(4), "t2m")[:, 0], before["2m_temperature"])
        np.testing.assert_array_equal(source(times(4), "t2m")[:, 0], before["2m_temperature"])
    if kind != "dataset":
        asked = repository.readonly_session("main") if kind == "session" else asked
        with InSituDataSource(asked, T2M, verbose=False) as source:
            np.testing.assert_array_equal(source(times(4), "t2m")[:, 0], before["2m_temperature"] + 1)


def test_groups_of_a_store(tmp_path: Path) -> None:
    place, ds = tmp_path / "store.zarr", analysis(4)
    ds[["2m_temperature"]].to_zarr(place, group="single", consolidated=False)
    ds[["geopotential"]].to_zarr(place, group="pressure", mode="a", consolidated=False)
    ds.isel(time=slice(2))[["geopotential"]].to_zarr(place, group="other", mode="a", consolidated=False)
    with InSituDataSource(str(place), T2M, group=["single", "pressure"], verbose=False) as source:
        found = source(times(2), ["t2m", "z500"])
    np.testing.assert_array_equal(found[:, 1], ds["geopotential"].sel(level=500)[:2])
    with pytest.raises(ValueError, match="groups must share their coordinates"):
        InSituDataSource(str(place), T2M, group=["single", "other"])


def test_what_a_source_is_given_as(ds: xr.Dataset) -> None:
    with pytest.raises(ValueError, match="one of source, url and repo, but got none"):
        InSituDataSource()
    with pytest.raises(ValueError, match=r"but got \['source', 'url'\]"):
        InSituDataSource(ds, url="memory://x")
    with pytest.raises(ValueError, match="but got \\['branch'\\] with a Dataset"):
        InSituDataSource(ds, branch="main")
    with pytest.raises(ValueError, match="async_timeout must be a positive number"):
        InSituDataSource(ds, T2M, async_timeout=0)
    with pytest.raises(ValueError, match="missing must be one of"):
        InSituDataSource(ds, T2M, missing="drop")  # type: ignore[arg-type]
    with to_earth2studio(ds, T2M, verbose=False) as source:
        assert isinstance(source, InSituDataSource)
    array = ds["2m_temperature"].rename("t2m")
    with InSituDataSource(array, verbose=False) as source:
        assert source.variables == ["t2m"]


def test_a_plan_is_left_behind_by_an_error_and_entered_once(source: InSituDataSource) -> None:
    plan = source.plan(times(3), variable=["t2m"])
    with pytest.raises(ZeroDivisionError), plan:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="entered once"), plan:
        pass
    with source.plan(times(3), variable=["t2m"]), source.plan(times(2), variable="z500"):
        source(times(3), ["t2m"])
        source(times(2), "z500")
        source(times(2), ["z500", "t2m"])  # covered by neither
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("insitu-earth2studio")]
