"""Failing reads, early ends and many loaders: no hang, no thread, no message, and usable afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.engine.executor import AHEAD_BYTES, BATCHES_AHEAD, BATCHES_AT_ONCE, Executor
from insitu_xr.errors import ClosedError, InsituError, ReadError
from insitu_xr.testing import CountingStore, FailingStore, GatedStore, assert_batches_equal
from insitu_xr.testing.oracle import assert_same
from insitu_xr.testing.writing import StoredDataset, StoredVariable, data_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.timeout(60)
REPEATS = 20


def stored(**options: Any) -> StoredDataset:
    """Store 24 steps in six chunks of four, each halved along y."""
    variable = StoredVariable("t2m", ("time", "y"), (24, 6), chunks=(4, 3), kind="float32", **options)
    return StoredDataset((variable,), times=tuple(range(24)), sizes={"y": 6})


@pytest.fixture(params=[None, False], ids=["sync", "async"])
def sync(request: pytest.FixtureRequest) -> bool | None:
    value: bool | None = request.param
    return value


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fail a test during which anything was printed."""
    yield
    for thread in our_threads():
        thread.join(10)
    assert [thread.name for thread in our_threads()] == []
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("insitu")]


def expected_rows(ds: xr.Dataset, batch: Any) -> Any:
    return ds["t2m"].values[batch.positions]


KEYS = data_keys(stored().store, "t2m")


def deliver(batches: Iterable[Any]) -> tuple[list[Any], InsituError | None]:
    """Take batches until the end or the first error of ours."""
    delivered: list[Any] = []
    try:
        delivered.extend(batches)
    except InsituError as error:
        return delivered, error
    return delivered, None


@pytest.mark.parametrize("key", KEYS)
def test_a_failing_chunk_raises_at_the_batch_that_needs_it(key: str, sync: bool | None) -> None:
    store = FailingStore(stored().store, (), sync=sync)
    chunk = tuple(int(part) for part in key.split("/")[2:])
    truth = stored().open()
    with stored().open(store).insitu.loader(variables=["t2m"], batch_size=3) as loader:
        store.fail({key})
        delivered, error = deliver(loader)
        assert isinstance(error, ReadError)
        assert (error.variable, error.chunk, error.key) == ("t2m", chunk, key)
        assert all(word in str(error) for word in ("'t2m'", str(chunk), key))
        assert isinstance(error.__cause__, OSError)
        assert [batch.positions.tolist() for batch in delivered] == [
            [first, first + 1, first + 2] for first in range(0, chunk[0] * 4 - 2, 3)
        ]
        for number, batch in enumerate(delivered):
            assert_same(batch["t2m"], expected_rows(truth, batch), f"batch {number}")
        store.recover()
        assert_batches_equal(loader, truth, sample_dim="time", variables=["t2m"])


ERRORS: list[Any] = [
    OSError("disk on fire"),
    ValueError("bad value"),
    KeyError("gone"),
    RuntimeError("broken"),
    TimeoutError("too slow"),
    ConnectionResetError("hung up"),
    MemoryError("no room"),
    StopIteration("over"),
    StopAsyncIteration("over"),
    ExceptionGroup("many", [OSError("one"), ValueError("two")]),
]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_of_the_store_becomes_a_read_error(error: Exception, shuffle: bool, sync: bool | None) -> None:
    store = FailingStore(stored().store, (), error=error, sync=sync)
    ds = stored().open(store)
    with ds.insitu.loader(variables=["t2m"], leads=["0h", "5h"], batch_size=4, shuffle=shuffle) as loader:
        store.fail(None)
        with pytest.raises(ReadError, match=type(error).__name__):
            list(loader)
        store.recover()
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"], leads=["0h", "5h"])


def test_one_failure_after_another(sync: bool | None) -> None:
    store = FailingStore(stored().store, (), sync=sync)
    ds = stored().open(store)
    with ds.insitu.loader(variables=["t2m"], batch_size=5, shuffle=True) as loader:
        errors = []
        for key in KEYS:
            # Where several batches are made at once, each of them is tried once more by itself.
            store.fail({key}, times=1 + (loader.plan.stride > 1))
            delivered, error = deliver(loader)
            errors.append(error)
            for batch in delivered:
                assert_same(batch["t2m"], expected_rows(stored().open(), batch), key)
        # What an earlier epoch has read may be kept, and then its failure is not met.
        assert isinstance(errors[0], ReadError)
        assert all(error is None or isinstance(error, ReadError) for error in errors)
        store.recover()
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])


def test_a_failing_inner_chunk_of_a_shard(sync: bool | None) -> None:
    written = stored(shards=(8, 6))
    store = FailingStore(written.store, (), sync=sync)
    with written.open(store).insitu.loader(variables=["t2m"], batch_size=3) as loader:
        store.fail({"t2m/c/1/0"})
        with pytest.raises(ReadError, match=r"(?s)'t2m'.*t2m/c/1/0") as caught:
            list(loader)
        error = caught.value
        assert error.key == "t2m/c/1/0"
        store.recover()
        assert_batches_equal(loader, written.open(), sample_dim="time", variables=["t2m"])


def test_a_corrupt_chunk(sync: bool | None) -> None:
    written = stored()
    store = CountingStore(written.store, sync=sync)
    good = written.store.get_sync("t2m/c/3/1")
    assert good is not None
    with written.open(store).insitu.loader(variables=["t2m"], batch_size=3) as loader:
        written.store.set_sync("t2m/c/3/1", type(good).from_bytes(b"not a chunk"))
        with pytest.raises(ReadError, match=r"(?s)'t2m'.*t2m/c/3/1") as caught:
            list(loader)
        error = caught.value
        assert (error.variable, error.chunk, error.key) == ("t2m", (3, 1), "t2m/c/3/1")
        written.store.set_sync("t2m/c/3/1", good)
        assert_batches_equal(loader, written.open(), sample_dim="time", variables=["t2m"])


def test_a_failing_static(sync: bool | None) -> None:
    mask = StoredVariable("lsm", ("y",), (6,), chunks=(3,), kind="uint8")
    written = StoredDataset((*stored().variables, mask), times=tuple(range(24)), sizes={"y": 6})
    store = FailingStore(written.store, (), sync=sync)
    ds = written.open(store)
    store.fail({"lsm/c/1"})
    with (
        pytest.raises(ReadError, match="lsm"),
        ds.insitu.loader(variables=["t2m"], statics=["lsm"], batch_size=3) as loader,
    ):
        list(loader)


def test_an_early_break(sync: bool | None) -> None:
    store = CountingStore(stored().store, sync=sync)
    ds = stored().open(store)
    for repeat in range(REPEATS):
        loader = ds.insitu.loader(variables=["t2m"], batch_size=2, shuffle=True)
        for number, _ in enumerate(loader):
            if number == repeat % 5:
                break
        loader.close()


def test_an_early_break_then_another_epoch(sync: bool | None) -> None:
    ds = stored().open(CountingStore(stored().store, sync=sync))
    with ds.insitu.loader(variables=["t2m"], batch_size=2, shuffle=True) as loader:
        for repeat in range(REPEATS):
            for number, _ in enumerate(loader):
                if number == repeat % 5:
                    break
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])


def test_a_loader_that_is_merely_dropped(sync: bool | None) -> None:
    ds = stored().open(CountingStore(stored().store, sync=sync))
    for _ in range(REPEATS):
        next(iter(ds.insitu.loader(variables=["t2m"], batch_size=2)))


class OurError(Exception):
    """Raised by a loop body."""


def raise_in_the_body(ds: xr.Dataset, at: int) -> None:
    with ds.insitu.loader(variables=["t2m"], batch_size=2, shuffle=True) as loader:
        for number, _ in enumerate(loader):
            if number == at:
                raise OurError("body")


def test_an_exception_in_the_loop_body(sync: bool | None) -> None:
    ds = stored().open(CountingStore(stored().store, sync=sync))
    for repeat in range(REPEATS):
        with pytest.raises(OurError, match="body"):
            raise_in_the_body(ds, repeat % 5)


def test_close_in_the_middle(sync: bool | None) -> None:
    ds = stored().open(CountingStore(stored().store, sync=sync))
    for _ in range(REPEATS):
        loader = ds.insitu.loader(variables=["t2m"], batch_size=2)
        batches = iter(loader)
        next(batches)
        loader.close()
        loader.close()
        with pytest.raises(ClosedError, match=r"closed|ended"):
            next(batches)
        with pytest.raises(ClosedError, match="closed"):
            list(loader)


def test_close_while_reads_wait(sync: bool | None) -> None:
    store = GatedStore(stored().store, set(KEYS) - {"t2m/c/0/0", "t2m/c/0/1"}, sync=sync)
    ds = stored().open(store)
    loader = ds.insitu.loader(variables=["t2m"], batch_size=4)
    batches = iter(loader)
    first = next(batches)
    assert_same(first["t2m"], expected_rows(stored().open(), first), "first batch")
    store.wait_until_waiting(1)
    closing = threading.Thread(target=loader.close)
    closing.start()
    store.open_all()
    closing.join(20)
    assert not closing.is_alive()


def test_a_batch_does_not_wait_for_later_chunks(sync: bool | None) -> None:
    late = [key for key in KEYS if int(key.split("/")[2]) >= 2]
    store = GatedStore(stored().store, late, sync=sync)
    with stored().open(store).insitu.loader(variables=["t2m"], batch_size=4) as loader:
        batches = iter(loader)
        assert [next(batches).positions.tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        store.open_all()
        assert len(list(batches)) == 4


def test_two_loaders_in_zip(sync: bool | None) -> None:
    ds, truth = stored().open(CountingStore(stored().store, sync=sync)), stored().open()
    arguments: dict[str, Any] = {"variables": ["t2m"], "batch_size": 5}
    with ds.insitu.loader(**arguments) as plain, ds.insitu.loader(**arguments, shuffle=True, leads=["0h"]) as windowed:
        pairs = list(zip(plain, windowed, strict=True))
    assert_batches_equal([pair[0] for pair in pairs], truth, sample_dim="time", variables=["t2m"])
    assert_batches_equal([pair[1] for pair in pairs], truth, sample_dim="time", variables=["t2m"], leads=["0h"])


def test_a_failing_loader_leaves_the_other_alone(sync: bool | None) -> None:
    store = FailingStore(stored().store, (), sync=sync)
    ds, truth = stored().open(store), stored().open()
    with ds.insitu.loader(variables=["t2m"], batch_size=4) as bad, truth.insitu.loader(variables=["t2m"]) as good:
        store.fail({"t2m/c/2/0"})
        healthy = iter(good)
        with pytest.raises(ReadError):
            list(bad)
        assert_batches_equal(healthy, truth, sample_dim="time", variables=["t2m"])


def test_two_iterations_of_one_loader_at_once_do_not_mix() -> None:
    truth = stored().open()
    with stored().open().insitu.loader(variables=["t2m"], batch_size=4) as loader:
        first = iter(loader)
        next(first)
        assert_batches_equal(loader, truth, sample_dim="time", variables=["t2m"])
        for batch in deliver(first)[0]:
            assert_same(batch["t2m"], expected_rows(truth, batch), "older iteration")


EXIT = textwrap.dedent(
    """
    import contextlib
    import os
    import sys
    import insitu_xr
    from insitu_xr.testing import CountingStore
    from insitu_xr.testing.writing import StoredDataset, StoredVariable

    with contextlib.suppress(ImportError):
        import dask.base  # which xarray would import in every process
    sync, *kinds = {"sync": None, "async": False}[sys.argv[1]], *sys.argv[2:]
    children = {}
    for kind in kinds:
        child = os.fork()
        if child == 0:
            break
        children[child] = kind
    else:
        ended = {child: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
        failed = [f"{children[child]}: {status}" for child, status in ended.items() if status]
        sys.exit(f"processes ended with {failed}" if failed else 0)
    variable = StoredVariable("t2m", ("time", "y"), (400, 6), chunks=(4, 3), kind="float32")
    stored = StoredDataset((variable,), times=tuple(range(400)), sizes={"y": 6})
    ds = stored.open(CountingStore(stored.store, sync=sync))
    loader = ds.insitu.loader(variables=["t2m"], batch_size=2, shuffle=True)
    batches = iter(loader)
    next(batches)
    if kind == "exit":
        sys.exit(0)
    if kind == "function":
        del loader, batches
    """
)


@pytest.mark.slow
@pytest.mark.timeout(250)  # it imports everything anew, which takes long where nothing is compiled yet
@pytest.mark.parametrize("way", ["sync", "async"])
def test_interpreter_exit_in_the_middle_is_silent(way: str) -> None:
    """Several processes end in each way, forked by one that has imported what takes the time."""
    command = [sys.executable, "-W", "error", "-c", EXIT, way, *("fall off", "exit", "function") * 3]
    # Python warns of a fork where there are threads; those of linear algebra are begun by importing it.
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=one_thread)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_many_steps_in_a_row_that_need_no_read_of_their_own() -> None:
    """One chunk fills more batches than are planned at once, so threads come to rest with many of them unplanned."""
    long = StoredVariable("t2m", ("time", "y", "x"), (1600, 64, 64), chunks=(800, 64, 64))
    ds = StoredDataset((long,), times=tuple(range(1600)), sizes={"y": 64, "x": 64}).open()
    with ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=1) as loader:
        assert loader.plan.spread is not None
        assert loader.plan.spread.depth > 2 * BATCHES_AT_ONCE
        for epoch in range(3):
            assert sum(len(batch) for batch in loader) == 1600, epoch


def test_an_epoch_begins_before_all_of_it_is_planned() -> None:
    """Batches that need no read are planned as they come up: the first one does not wait for thousands."""
    ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((16_000, 2), "f4"))})
    with ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=1) as loader:
        batches = iter(loader)
        next(batches)
        board = loader._running()._executor._board
        assert 0 < board.planned <= board.asked + board.depth + BATCHES_AHEAD < board.n_batches == 1000
        assert sum(len(batch) for batch in batches) == 15_999
        assert board.planned == 1000


def test_plans_of_batches_ahead_are_small() -> None:
    """Where a sample is a number, the place of each of its values in memory takes twice as much as the value."""
    ds = xr.Dataset({"a": ("t", np.arange(40_000, dtype="f4"))})
    store = MemoryStore()
    ds.to_zarr(store, consolidated=False, encoding={"a": {"chunks": (5000,)}})
    ds = xr.open_zarr(store, consolidated=False, chunks=None)
    with ds.insitu.loader(variables=["a"], sample_dim="t", leads=range(48), batch_size=1024, keep=True) as loader:
        for _ in range(2):
            batches = iter(loader)
            next(batches)
            executor = loader._running()._executor
            with executor._lock:
                held = sum(rows.nbytes for batch in executor._open.values() for rows in batch.rows)
                depth = executor._board.depth
            assert 0 < executor._ahead < BATCHES_AHEAD
            assert held <= AHEAD_BYTES + (depth + 1) * 8 * 1024 * 48
            del batches


def test_threads_rest_while_there_is_no_room_for_another_read() -> None:
    """They told one another of the read that had no room, for as long as the store took."""
    gates = GatedStore(stored().store, lambda key: key.startswith("t2m/c/") and "/c/0/" not in key, sync=False)
    ds = stored().open(gates)
    loader = ds.insitu.loader(variables=["t2m"], batch_size=4, max_inflight=1)
    consumer = threading.Thread(target=lambda: [None for _ in loader])
    consumer.start()
    gates.wait_until_waiting(1)
    executor = loader._running()._executor
    looks = 0

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return Executor._next_action(executor)

    with executor._lock:
        executor._next_action = counted
        executor._work.notify()
    ended = time.monotonic() + 0.2
    while time.monotonic() < ended:
        time.sleep(0)  # gives way to the threads
    gates.open_all()
    consumer.join(30)
    loader.close()
    assert 1 <= looks < 50


@pytest.mark.parametrize("way", [None, False], ids=["sync", "async"])
def test_garbage_collected_by_a_thread_of_its_own_stops_nothing(
    way: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = stored().open(GatedStore(stored().store, lambda key: False, sync=way))
    armed, took, original = threading.Event(), [], Executor._next_action

    def collecting(self: Executor) -> Any:
        if armed.is_set():
            armed.clear()
            began = time.perf_counter()
            gc.collect()
            took.append(time.perf_counter() - began)
            done.set()
        return original(self)

    done = threading.Event()
    monkeypatch.setattr(Executor, "_next_action", collecting)
    loader = ds.insitu.loader(variables=["t2m"], batch_size=2)
    epoch = iter(loader)
    next(epoch)
    executor, ring = epoch._executor, [epoch]
    ring.append(ring)
    gc.disable()
    try:
        armed.set()
        del epoch, ring
        with executor._lock:
            executor._work.notify_all()
        assert done.wait(30)
    finally:
        gc.enable()
    assert took[0] < 5, "close_seconds are 10"
    assert_batches_equal(loader, ds, sample_dim="time", variables=["t2m"])
    loader.close()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no list of open files")
def test_an_error_that_is_kept_keeps_no_file_open(tmp_path: Any) -> None:
    array = zarr.create_array(
        tmp_path / "a.zarr/a", shape=(16, 64), chunks=(1, 16), shards=(4, 64), dtype="f4", dimension_names=("t", "x")
    )
    array[:] = np.random.default_rng(0).random((16, 64))
    (last,) = (tmp_path / "a.zarr/a/c/3").iterdir()
    content = last.read_bytes()
    last.write_bytes(b"\xff" * 200 + content[200:])
    zarr.open_group(tmp_path / "a.zarr", mode="a")
    ds = xr.open_zarr(tmp_path / "a.zarr", consolidated=False, chunks=None)

    def opened() -> int:
        links = (f"/proc/self/fd/{k}" for k in os.listdir("/proc/self/fd"))
        return sum("a.zarr" in os.readlink(link) for link in links if os.path.exists(link))

    kept = []
    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=4) as loader:
        for _ in range(3):
            with pytest.raises(ReadError) as found:
                list(loader)
            kept.append(found.value)
    assert [error.key for error in kept] == ["a/c/3/0"] * 3
    assert opened() == 0
