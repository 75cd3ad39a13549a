"""The reader: any labels in any order, from any thread or loop, equal to what xarray selects; chunks read once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

import insitu_xr
from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.errors import CeilingError, ClosedError, ReadError, RequestError, UnknownNameError
from insitu_xr.reader import Reader
from insitu_xr.testing import CountingStore, FailingStore, GatedStore, expected_group
from insitu_xr.testing.oracle import assert_same
from insitu_xr.testing.strategies import datasets, selections, windows

TIMES = pd.date_range("2000-01-01", periods=48, freq="6h")


def write(store: Any, chunk: int = 4, names: tuple[str, ...] = ("t2m", "z")) -> Any:
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {n: (("time", "y", "x"), rng.normal(size=(len(TIMES), 5, 6)).astype("f4")) for n in names},
        {"time": TIMES, "y": np.arange(5.0), "x": np.arange(6.0)},
    )
    ds["mask"] = (("y", "x"), rng.normal(size=(5, 6)))
    encoding = {n: {"chunks": (chunk, 5, 6)} for n in names}
    ds.to_zarr(store, encoding=encoding, consolidated=False, zarr_format=3)
    return store


@pytest.fixture(scope="module")
def memory() -> MemoryStore:
    store = MemoryStore()
    write(store)
    return store


def opened(store: Any) -> xr.Dataset:
    ds: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return ds


def beyond_the_first(key: str) -> bool:
    """Whether a key is of t2m, but not its first chunk, which is read when a reader is made."""
    return key.startswith("t2m/c/") and not key.endswith("c/0/0/0")


@pytest.mark.parametrize("label", [[1.5], [2, 0.2], 3.7, [np.nan]])
def test_a_position_that_is_none_is_refused(label: Any) -> None:
    ds = xr.Dataset({"w": ("time", np.arange(5) * 1.5)})
    with ds.insitu.reader(["w"], sample_dim="time") as reader:
        assert reader.read([3.0, -1])["w"].tolist() == [4.5, 6.0]
        with pytest.raises(UnknownNameError, match="time"):
            reader.read(label)


class BrokenSource(ZarrSource):
    """Fails where no chunk is read yet, as no source should."""

    broken = True

    @override
    def stream(self, chunks: Any, cost: Any) -> Any:
        if self.broken:
            raise ZeroDivisionError("at once")
        return super().stream(chunks, cost)


def test_an_error_that_belongs_to_no_chunk_is_raised_and_leaves_nothing_behind(memory: MemoryStore) -> None:
    with opened(memory).insitu.reader(["t2m"]) as whole:
        readable = whole._readable
        source = BrokenSource(readable.materials.parts["t2m"][0].source.stored.array)
        parts = {"t2m": [replace(readable.materials.parts["t2m"][0], source=source)]}
        with Reader(replace(readable, materials=replace(readable.materials, parts=parts))) as reader:
            for tries in range(1, 4):
                with pytest.raises(ZeroDivisionError, match="at once"):
                    reader.read(TIMES[:3])
                assert reader.stats.resident_bytes <= tries * readable.groups[0].slot_bytes
            source.broken = False
            expected = whole.read(TIMES[:3])["t2m"]
            np.testing.assert_array_equal(reader.read(TIMES[:3])["t2m"], expected)


def chunks_of(positions: Any, names: int = 2, chunk: int = 4) -> int:
    return names * len({p // chunk for p in positions})


@settings(max_examples=60)
@given(data=st.data())
def test_any_labels_in_any_order_are_those_of_xarray(data: st.DataObject) -> None:
    ds = data.draw(datasets()).open()
    ds = data.draw(selections(ds)).apply(ds)
    names = [str(n) for n in ds.data_vars if "time" in ds[n].dims]
    leads = data.draw(windows(ds))
    eager = ds[names].compute()
    labels = ds["time"].values if "time" in ds.indexes else np.arange(ds.sizes["time"])
    memory = data.draw(st.sampled_from([None, "least"]))
    try:
        reader = ds.insitu.reader(names, sample_dim="time", memory=1 if memory else None)
    except CeilingError as error:
        reader = ds.insitu.reader(names, sample_dim="time", memory=int(str(error).split(" bytes")[0].split()[-1]))
    kept = insitu_xr.testing.kept_anchors(ds, "time", leads)
    with reader:
        for _ in range(3):
            chosen = data.draw(st.lists(st.sampled_from(kept), min_size=1, max_size=6))
            some = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
            batch = reader.read(labels[chosen], leads, variables=some)
            expected = expected_group(eager, chosen, sample_dim="time", variables=some, leads=leads)
            seen = {name: np.zeros_like(batch[name]) for name in some}
            fields = {n: v if leads is None else v.reshape(-1, *v.shape[2:]) for n, v in seen.items()}
            reader.visit(labels[chosen], lambda n, k, v, to=fields: to[n].__setitem__(k, v), leads, variables=some)
            for name in some:
                assert_same(batch[name], expected[name], name)
                assert_same(seen[name], expected[name], name)
            np.testing.assert_array_equal(batch.positions, chosen)
        assert reader.stats.peak_bytes <= reader._readable.budget.ceiling


def test_a_batch_says_what_it_is(memory: MemoryStore) -> None:
    ds = opened(memory)
    with ds.insitu.reader(["t2m"], statics=["mask"]) as reader:
        batch = reader.read(TIMES[[7, 3, 7]])
        xr.testing.assert_identical(batch.to_xarray(), ds[["t2m", "mask"]].isel(time=[7, 3, 7]).compute())
        windowed = reader.read(TIMES[3], leads=["-6h", "6h"])
        assert windowed["t2m"].shape == (1, 2, 5, 6)
        np.testing.assert_array_equal(windowed.valid_times, TIMES[[2, 4]].values[None])
        np.testing.assert_array_equal(windowed["mask"], ds["mask"].values)
        assert repr(reader).startswith("<insitu_xr.Reader of t2m at 48 labels of 'time', under 1.0 GiB>")


@pytest.mark.parametrize(
    "label",
    ["2000-01-02T06", "2000-01-02 06:00", TIMES[5], TIMES[5].to_pydatetime(), np.datetime64("2000-01-02T06", "h")],
    ids=["iso", "blank", "Timestamp", "datetime", "datetime64"],
)
def test_times_may_be_written_in_many_ways(memory: MemoryStore, label: Any) -> None:
    with opened(memory).insitu.reader(["t2m"]) as reader:
        assert reader.read(label).positions.tolist() == [5]
        assert reader.read([label, label]).positions.tolist() == [5, 5]


def test_other_calendars_and_other_labels() -> None:
    import cftime

    dates = xr.date_range("2000-01-29", periods=4, calendar="360_day", use_cftime=True)
    ds = xr.Dataset({"a": ("time", np.arange(4.0))}, {"time": dates})
    with ds.insitu.reader() as reader:
        assert reader.read(["2000-02-01", "2000-01-29"])["a"].tolist() == [2.0, 0.0]
        assert reader.read(cftime.Datetime360Day(2000, 1, 30), ["1D"])["a"].tolist() == [[2.0]]
        with pytest.raises(RequestError, match=r"labels of 'time' must be dates of the 360_day calendar, but got"):
            reader.read(np.datetime64("2000-02-01"))
    for labels, wanted, places in [
        (np.array([0.5, 1.5, 1.0]), [1.0, 0.5], [2, 0]),
        (np.array(["one", "two", "six"]), ["six", "one"], [2, 0]),
        (None, [-1, 0], [2, 0]),
    ]:
        coords = {} if labels is None else {"member": labels}
        ds = xr.Dataset({"a": ("member", np.arange(3.0))}, coords)
        with ds.insitu.reader(["a"], sample_dim="member") as reader:
            assert reader.read(wanted)["a"].tolist() == [float(p) for p in places]


def test_several_sample_dimensions_are_read_pointwise(tmp_path: Path) -> None:
    values = np.arange(4 * 3 * 2.0).reshape(4, 3, 2)
    leads = pd.to_timedelta([0, 6, 12], unit="h")
    ds = xr.Dataset({"t": (("init_time", "lead_time", "x"), values)}, {"init_time": TIMES[:4], "lead_time": leads})
    ds.to_zarr(tmp_path / "f.zarr", encoding={"t": {"chunks": (1, 2, 2)}}, consolidated=False)
    with opened(tmp_path / "f.zarr").insitu.reader(["t"], sample_dim=("init_time", "lead_time")) as reader:
        got = reader.read({"init_time": TIMES[[3, 0, 3]], "lead_time": ["6h", "12h", "0h"]})["t"]
        np.testing.assert_array_equal(got, values[[3, 0, 3], [1, 2, 0]])
        got = reader.read({"init_time": TIMES[2], "lead_time": leads})["t"]
        np.testing.assert_array_equal(got, values[2])
        with pytest.raises(RequestError, match=r"as many of each of \['init_time', 'lead_time'\], but got \[2, 3\]"):
            reader.read({"init_time": TIMES[:2], "lead_time": leads})
        with pytest.raises(RequestError, match=r"anchors must give labels of .*'lead_time'.*but got \['init_time'\]"):
            reader.read({"init_time": TIMES[:2]})


def test_what_is_shown_cannot_be_changed_and_a_failing_function_is_told(memory: MemoryStore) -> None:
    def change(name: str, number: int, field: Any) -> None:
        field[...] = 0

    with opened(memory).insitu.reader(["t2m"]) as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader.visit(TIMES[:8], change)
        with pytest.raises(ValueError, match="read-only"):
            asyncio.run(reader.avisit(TIMES[8:16], change))
        np.testing.assert_array_equal(reader.read(TIMES[:16])["t2m"], opened(memory)["t2m"].values[:16])


# -- what is read ------------------------------------------------------------------------------------------------------


def test_one_read_reads_each_chunk_once_under_the_smallest_ceiling(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    ds = opened(store)
    order = np.random.default_rng(1).permutation(48)
    least = ds.insitu.reader(["t2m", "z"], memory="1MiB")._readable.budget.minimum
    with ds.insitu.reader(["t2m", "z"], memory=least) as reader:
        store.reset()
        batch = reader.read(TIMES[order])
        assert set(store.by_key().values()) == {1}
        assert len(store.data_gets) == chunks_of(range(48)) == reader.stats.gets
        assert reader.stats.peak_bytes <= least
    np.testing.assert_array_equal(batch["z"], ds["z"].values[order])


def test_what_was_used_last_is_kept(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    with opened(store).insitu.reader(["t2m"]) as reader:
        reader.read(TIMES[:8])
        store.reset()
        reader.read(TIMES[4:12])
        assert len(store.data_gets) == 1
        assert reader.stats.hits == 1


def planned(reader: Any, requests: list[Any], reads: list[tuple[Any, Any]]) -> None:
    with reader.plan(requests) as plan:
        for anchors, leads in reads:
            reader.read(anchors, leads)
        assert plan.chunks == reader.stats.gets


LEADS = [f"{6 * k}h" for k in range(9)]
INITS = TIMES[:40]


@pytest.mark.parametrize("order", ["as planned", "by lead", "shuffled", "all at once"])
def test_a_campaign_reads_each_chunk_once_in_any_order(memory: MemoryStore, order: str) -> None:
    store = CountingStore(memory)
    with opened(store).insitu.reader(["t2m", "z"]) as reader:
        store.reset()
        single = [(init, lead) for init in INITS for lead in LEADS]
        if order == "by lead":
            reads: list[Any] = [(INITS, lead) for lead in LEADS]
        elif order == "all at once":
            reads = [(INITS, LEADS)]
        else:
            reads = single if order == "as planned" else random.Random(0).sample(single, len(single))
        planned(reader, [(init, LEADS) for init in INITS], reads)
        assert set(store.by_key().values()) == {1}
        assert len(store.data_gets) == chunks_of(range(48))


def test_a_campaign_in_order_needs_no_more_than_its_window(memory: MemoryStore) -> None:
    store = CountingStore(memory)
    chunk = 4 * 5 * 6 * 4
    ds = opened(store)
    least = ds.insitu.reader(["t2m"], memory="1MiB")._readable.budget.minimum
    with ds.insitu.reader(["t2m"], memory=least + 4 * chunk) as reader:
        planned(reader, [(init, LEADS) for init in INITS], [(init, LEADS) for init in INITS])
        assert reader.stats.peak_bytes <= least + 4 * chunk


def test_the_planned_is_read_ahead(memory: MemoryStore) -> None:
    store = GatedStore(memory, beyond_the_first)
    with opened(store).insitu.reader(["t2m"], max_inflight=3) as reader, reader.plan([TIMES[8:12], TIMES[20:24]]):
        assert sorted(store.wait_until_waiting(2)) == ["t2m/c/2/0/0", "t2m/c/5/0/0"]
        store.open_all()
        assert reader.read(TIMES[20]).positions.tolist() == [20]


def test_what_was_not_planned_is_read_as_well(memory: MemoryStore) -> None:
    ds = opened(memory)
    with ds.insitu.reader(["t2m"]) as reader:
        with reader.plan([TIMES[:4]]) as plan:
            assert repr(plan) == "<insitu_xr.Foresight of 4 fields in 1 chunks>"
            np.testing.assert_array_equal(reader.read(TIMES[40:])["t2m"], ds["t2m"].values[40:])
            with pytest.raises(RequestError, match="one plan at a time"), reader.plan([TIMES[:4]]):
                pass
        with reader.plan([TIMES[:4]]):
            pass


# -- threads and loops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_many_threads_and_loops_at_once(memory: MemoryStore, sync: bool) -> None:
    ds = opened(CountingStore(memory, sync=sync))
    truth, least = ds["t2m"].values, ds.insitu.reader(["t2m"], memory="1MiB")._readable.budget.minimum
    with ds.insitu.reader(["t2m"], memory=least + 2000) as reader:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(25):
                chosen = rng.integers(0, 48, rng.integers(1, 9))
                np.testing.assert_array_equal(reader.read(TIMES[chosen])["t2m"], truth[chosen])

        async def await_many(seed: int) -> None:
            rng = np.random.default_rng(seed)
            chosen = [rng.integers(0, 48, 5) for _ in range(25)]
            for wanted, batch in zip(
                chosen, await asyncio.gather(*(reader.aread(TIMES[c]) for c in chosen)), strict=True
            ):
                np.testing.assert_array_equal(batch["t2m"], truth[wanted])

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(work, k) for k in range(3)]
            jobs += [pool.submit(asyncio.run, await_many(k)) for k in range(3, 6)]
            for job in jobs:
                job.result(60)
        assert reader.stats.peak_bytes <= least + 2000


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def gated(memory: MemoryStore, request: pytest.FixtureRequest) -> Iterator[GatedStore]:
    store = GatedStore(memory, beyond_the_first, sync=request.param)
    yield store
    store.open_all()


def test_cancelling_stops_what_nobody_else_wants(memory: MemoryStore) -> None:
    store = CountingStore(gate := GatedStore(memory, beyond_the_first, sync=False), sync=False)

    async def run(reader: Any) -> None:
        both = asyncio.create_task(reader.aread(TIMES[4:12]))
        one = asyncio.create_task(reader.aread(TIMES[4:8]))
        await asyncio.to_thread(gate.wait_until_waiting, 2)
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both
        gate.open_gate("t2m/c/1/0/0")
        assert (await one).positions.tolist() == [4, 5, 6, 7]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reader.aread(TIMES[12:16])

    with opened(store).insitu.reader(["t2m"]) as reader:
        store.reset()
        asyncio.run(run(reader))
        # What was cancelled is asked for anew, and comes.
        gate.open_all()
        assert reader.read(TIMES[4:16])["t2m"].shape == (12, 5, 6)
        assert len([get for get in store.data_gets if get.length]) == 3


def test_closing_fails_those_who_wait(gated: GatedStore) -> None:
    reader = opened(gated).insitu.reader(["t2m"])
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(reader.read, TIMES[4:8]), pool.submit(lambda: asyncio.run(reader.aread(TIMES[8:12])))]
        gated.wait_until_waiting(2)
        closing = pool.submit(reader.close)
        for job in waiting:
            with pytest.raises(ClosedError, match="closed meanwhile"):
                job.result(10)
        gated.open_all()
        closing.result(10)
    reader.close()
    with pytest.raises(ClosedError, match="a reader must be open to read"):
        reader.read(TIMES[0])


def test_a_reader_that_is_dropped_ends_its_threads(memory: MemoryStore) -> None:
    reader = opened(memory).insitu.reader(["t2m"])
    reader.read(TIMES[0])
    assert any(t.name.startswith("insitu") for t in threading.enumerate())
    del reader
    gc.collect()  # the fixture of every test looks for threads that are left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_is_refused(memory: MemoryStore) -> None:
    with opened(memory).insitu.reader(["t2m"]) as reader:
        reader.read(TIMES[0])
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    reader.read(TIMES[1])
                except ClosedError:
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_copy_in_another_process_reads_the_same(tmp_path: Path) -> None:
    ds = opened(LocalStore(write(tmp_path / "a.zarr")))
    with ds.insitu.reader(["t2m"]) as reader, pickle.loads(pickle.dumps(reader)) as copy:
        np.testing.assert_array_equal(copy.read(TIMES[5])["t2m"], reader.read(TIMES[5])["t2m"])
        assert len(pickle.dumps(reader)) < 50_000


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_failing_chunk_fails_its_reads_alone(memory: MemoryStore, sync: bool) -> None:
    store = FailingStore(memory, ["t2m/c/1/0/0"], sync=sync, error=PermissionError)
    ds = opened(store)
    store.recover()
    with ds.insitu.reader(["t2m"]) as reader:
        store.fail(["t2m/c/1/0/0"])
        with reader.plan([TIMES[:12]]):
            with pytest.raises(ReadError, match=r"chunk \(1, 0, 0\) of variable 't2m' must be readable") as caught:
                reader.read(TIMES[:12])
            assert caught.value.key == "t2m/c/1/0/0"
            np.testing.assert_array_equal(reader.read(TIMES[8:12])["t2m"], reader.read(TIMES[8:12])["t2m"])
        store.recover()
        np.testing.assert_array_equal(reader.read(TIMES[:12])["t2m"], ds["t2m"].values[:12])


def test_a_read_that_fails_halfway_harms_no_other(memory: MemoryStore) -> None:
    gate = GatedStore(FailingStore(memory, ["t2m/c/2/0/0"], error=PermissionError), ["t2m/c/5/0/0"], sync=False)
    with opened(gate).insitu.reader(["t2m"]) as reader, ThreadPoolExecutor(1) as pool:
        reader.read(TIMES[4:8])  # in memory from now on
        waiting = pool.submit(reader.read, TIMES[20:24])
        gate.wait_until_waiting(1)
        with pytest.raises(ReadError, match=r"chunk \(2, 0, 0\)"):
            reader.read(TIMES[4:12])
        gate.open_all()
        assert waiting.result(10).positions.tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("2000-03-01",), UnknownNameError, r"labels of 'time' must be .* 48 labels .*2000-01-12T18.*got '2000-03-01'"),
        (("2000-01-01T03",), UnknownNameError, r"but got '2000-01-01T03'"),
        (("yesterday",), RequestError, r"labels of 'time' must be times, but got 'yesterday' \(str\)"),
        ((5,), RequestError, r"labels of 'time' must be times, but got 5 \(int\)"),
        (([],), RequestError, r"anchors must be at least one.*\[0\]"),
        (("2000-01-12T18", ["6h"]), UnknownNameError, r"got 2000-01-13 \(2000-01-12T18:00:00 \+ 6h\)"),
        (("2000-01-01", ["3h"]), UnknownNameError, r"got 2000-01-01T03:00:00 \(2000-01-01 \+ 3h\)"),
        (("2000-01-01", []), RequestError, "leads must name at least one"),
        (("2000-01-01", [6]), RequestError, "lead 6 along 'time' must be a duration"),
        (("2000-01-01", None, ["q"]), RequestError, r"variables must be some of those of the reader, \['t2m'\]"),
        (("2000-01-01", None, ["t2m", "t2m"]), RequestError, "each once"),
    ],
    ids=str,
)
def test_bad_requests_are_named_before_anything_is_read(
    memory: MemoryStore, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    store = CountingStore(memory)
    with opened(store).insitu.reader(["t2m"]) as reader:
        store.reset()
        with pytest.raises(error, match=message):
            reader.read(*arguments[:2], variables=arguments[2] if len(arguments) > 2 else None)
        assert not store.data_gets


def test_a_label_that_occurs_twice_is_refused() -> None:
    ds = xr.Dataset({"a": ("time", np.arange(3.0))}, {"time": TIMES[[0, 1, 1]]})
    with ds.insitu.reader() as reader:
        assert reader.read(TIMES[0])["a"].tolist() == [0.0]
        with pytest.raises(RequestError, match="2000-01-01T06:00:00 occurs more than once"):
            reader.read(TIMES[1])


def test_the_least_memory_is_told(memory: MemoryStore) -> None:
    with pytest.raises(CeilingError, match="memory must be at least"):
        opened(memory).insitu.reader(["t2m"], memory=100)
    with pytest.raises(RequestError, match="computed must be"):
        opened(memory).insitu.reader(["t2m"], computed="maybe")


def test_a_remote_store_is_asked_for_many_chunks_at_once(memory: MemoryStore) -> None:
    gate = GatedStore(memory, beyond_the_first, sync=False)
    with opened(gate).insitu.reader(["t2m"]) as reader, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.read, TIMES)
        gate.wait_until_waiting(11)
        gate.open_all()
        assert len(reading.result(10)) == 48


def test_rectilinear_chunks() -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        group = zarr.create_group(MemoryStore())
        array = group.create_array(
            "a", shape=(6, 2), chunks=((1, 3, 2), (2,)), dtype="f4", dimension_names=("time", "x")
        )
        array[:] = np.arange(12.0).reshape(6, 2)
        ds = xr.open_zarr(group.store, chunks=None, consolidated=False)
        with ds.insitu.reader(["a"], sample_dim="time") as reader:
            np.testing.assert_array_equal(reader.read([5, 1, 0])["a"], ds["a"].values[[5, 1, 0]])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_function_that_fails_is_not_kept_waiting_for_the_rest(
    error: type[BaseException], memory: MemoryStore
) -> None:
    gates = GatedStore(memory, beyond_the_first, sync=False)

    def bad(*_: Any) -> None:
        raise error("mine")

    with opened(gates).insitu.reader(["t2m"]) as reader:
        reader.read(TIMES[:1])
        with pytest.raises(error, match="mine"):
            reader.visit([TIMES[0], TIMES[20]], bad)
        gates.open_all()
        np.testing.assert_array_equal(reader.read(TIMES[20:21])["t2m"], opened(memory)["t2m"][20:21].values)
