"""Why a read failed is told from the errors that real stores raise, and decides whether it is tried again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, WrapperStore

from insitu_xr.engine._zarr import retries_itself, run_on_loop
from insitu_xr.engine.failing import RETRIED, CorruptError, Kind, Retry, classify, remedy, retried
from insitu_xr.limits import Limits
from insitu_xr.testing.serving import Fault, Served, serve

pytestmark = pytest.mark.timeout(60)
ONCE: Any = {
    "max_retries": 0,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}
KINDS: dict[Fault, Kind | None] = {
    401: Kind.CREDENTIALS,
    403: Kind.CREDENTIALS,
    404: None,
    429: Kind.THROTTLED,
    500: Kind.TRANSIENT,
    503: Kind.THROTTLED,
    "ExpiredToken": Kind.CREDENTIALS,
    "reset": Kind.TRANSIENT,
    "cut": Kind.TRANSIENT,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "bucket").mkdir()
    (folder / "bucket" / "object").write_bytes(bytes(range(250)))
    with serve(folder) as server:
        yield server


def over_http(served: Served) -> Store:
    return served.store("bucket", retry_config=ONCE)


def over_s3(served: Served) -> Store:
    from obstore.store import S3Store

    options: Any = {"allow_http": True}
    keys: Any = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    store = S3Store("bucket", endpoint=served.url, client_options=options, retry_config=ONCE, **keys)
    return ObjectStore(store, read_only=True)


def over_fsspec(served: Served) -> Store:
    pytest.importorskip("aiohttp")
    return FsspecStore.from_url(f"{served.url}/bucket", read_only=True)


def over_s3fs(served: Served) -> Store:
    pytest.importorskip("s3fs")
    options = {"key": "a", "secret": "b", "endpoint_url": served.url, "client_kwargs": {"region_name": "us-east-1"}}
    once = {"retries": {"max_attempts": 0}}
    return FsspecStore.from_url(
        "s3://bucket", storage_options={**options, "config_kwargs": once, "max_concurrency": 1}, read_only=True
    )


def failure(store: Store, key: str = "object", span: RangeByteRequest | None = None) -> BaseException | None:
    """What a read raises; None if the store has no such object."""

    async def read() -> Any:
        return await store.get(key, default_buffer_prototype(), span)

    try:
        assert run_on_loop(read()) is None
    except AssertionError:
        raise
    except Exception as error:
        return error
    return None


OPENED = (over_http, over_s3, over_fsspec, over_s3fs)
LEFT_OUT = {
    (over_s3fs, "reset"),  # s3fs tries for 13 seconds, whatever it is told
    (over_fsspec, "ExpiredToken"),  # only S3 has such codes, and aiohttp does not show the body
}
CASES = [(opened, fault) for opened in OPENED for fault in KINDS if (opened, fault) not in LEFT_OUT]


@pytest.mark.parametrize(("opened", "fault"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_errors_of_real_stores(served: Served, opened: Callable[[Served], Store], fault: Fault) -> None:
    served.fail("object", fault)
    try:
        error = failure(opened(served))
    finally:
        served.recover()
    wanted = KINDS[fault]
    assert (None if error is None else classify(error)) is wanted


def test_a_range_beyond_the_end_is_not_tried_again(served: Served) -> None:
    error = failure(over_http(served), span=RangeByteRequest(1000, 1100))
    assert error is not None
    assert classify(error) is Kind.PERMANENT


def test_a_server_that_knows_no_ranges_is_not_tried_again(served: Served) -> None:
    served.fail("object", "whole")
    error = failure(over_http(served), span=RangeByteRequest(3, 7))
    served.recover()
    assert error is not None
    assert classify(error) is Kind.PERMANENT


def test_a_server_that_is_not_there() -> None:
    with serve({}) as gone:
        store = over_http(gone)
    error = failure(store)
    assert error is not None
    assert classify(error) is Kind.TRANSIENT


@pytest.fixture(scope="module")
def icechunk_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Store]]:
    icechunk = pytest.importorskip("icechunk")
    folder = tmp_path_factory.mktemp("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / "bucket" / "repo")))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(2048,), chunks=(1024,), dtype="f8", compressors=None)
    array[:] = np.arange(2048.0)
    session.commit("written")
    config = icechunk.RepositoryConfig.default()
    retries = icechunk.StorageRetriesSettings(max_tries=1, initial_backoff_ms=1, max_backoff_ms=1)
    config.storage = icechunk.StorageSettings(retries=retries)
    with serve(folder) as served:
        storage = icechunk.s3_storage(
            bucket="bucket",
            prefix="repo",
            endpoint_url=served.url,
            region="us-east-1",
            allow_http=True,
            force_path_style=True,
            access_key_id="a",
            secret_access_key="b",
        )
        yield served, icechunk.Repository.open(storage, config=config).readonly_session("main").store


@pytest.mark.parametrize("fault", [fault for fault in KINDS if fault not in ("reset", "cut")], ids=str)
def test_errors_of_icechunk(icechunk_store: tuple[Served, Store], fault: Fault) -> None:
    served, store = icechunk_store
    served.fail("chunks/", fault)
    error = failure(store, "a/c/1")
    served.recover()
    assert error is not None  # an object that is gone was written once: it is not absent
    assert classify(error) is (KINDS[fault] or Kind.PERMANENT)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class Answer(Exception):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), Kind.TRANSIENT),
        (ConnectionRefusedError(), Kind.TRANSIENT),
        (OSError(errno.EIO, "input/output error"), Kind.TRANSIENT),
        (OSError(errno.ESTALE, "stale file handle"), Kind.TRANSIENT),
        (PermissionError(errno.EACCES, "permission denied"), Kind.PERMANENT),
        (FileNotFoundError(errno.ENOENT, "no such file"), Kind.PERMANENT),
        (OSError("disk on fire"), Kind.PERMANENT),
        (ValueError("bad"), Kind.PERMANENT),
        (MemoryError(), Kind.PERMANENT),
        (CorruptError("2 bytes instead of 4"), Kind.CORRUPT),
        (caused(OSError(errno.EIO, "s3"), Answer(401)), Kind.CREDENTIALS),
        (caused(OSError(errno.EIO, "s3"), Answer(429)), Kind.THROTTLED),
        (caused(OSError(errno.EBUSY, "s3"), Answer(503)), Kind.THROTTLED),
        (caused(OSError(errno.EIO, "s3"), Answer(404)), Kind.PERMANENT),
        (caused(RuntimeError("while reading"), TimeoutError()), Kind.TRANSIENT),
        (ExceptionGroup("reads", [TimeoutError(), ConnectionResetError()]), Kind.TRANSIENT),
        (ExceptionGroup("reads", [TimeoutError(), ValueError("no such codec")]), Kind.TRANSIENT),
        (ExceptionGroup("reads", [TimeoutError(), FileNotFoundError(errno.ENOENT, "x")]), Kind.PERMANENT),
        (ExceptionGroup("reads", [ExceptionGroup("more", [OSError("ExpiredToken")])]), Kind.CREDENTIALS),
        (BaseExceptionGroup("reads", [TimeoutError(), asyncio.CancelledError()]), Kind.TRANSIENT),
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else None,
)
def test_other_errors(error: BaseException, kind: Kind) -> None:
    assert classify(error) is kind


def test_errors_that_cause_one_another() -> None:
    first, second = OSError("one"), OSError("SlowDown")
    first.__cause__, second.__cause__ = second, first
    assert classify(first) is Kind.THROTTLED


def test_remedies_differ() -> None:
    assert "renew the credentials" in remedy(Kind.CREDENTIALS)
    assert "max_inflight" in remedy(Kind.THROTTLED)
    assert len({remedy(kind) for kind in Kind}) == len(Kind)


# -- trying again ----------------------------------------------------------------------------------------------------

AT_ONCE = Retry(tries=3, seconds=0.0)


class Failing:
    """Fails with each of these errors in turn, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def aread(self) -> str:
        return self()


def on_the_loop(read: Failing, policy: Retry, on_throttle: Callable[[], None] | None = None) -> str:
    return asyncio.run(retried(read.aread, policy, on_throttle))


@pytest.mark.parametrize("kind", sorted(RETRIED), ids=lambda kind: kind.name)
def test_what_may_pass_is_tried_again(kind: Kind) -> None:
    error = {Kind.TRANSIENT: TimeoutError(), Kind.THROTTLED: OSError("SlowDown"), Kind.CORRUPT: CorruptError()}[kind]
    read = Failing(error, error)
    assert on_the_loop(read, AT_ONCE) == "done"
    assert read.calls == 3


def test_the_last_error_is_raised_after_all_tries() -> None:
    errors = [TimeoutError(str(k)) for k in range(9)]
    read = Failing(*errors)
    with pytest.raises(TimeoutError, match="2"):
        on_the_loop(read, AT_ONCE)
    assert read.calls == 3


@pytest.mark.parametrize("error", [ValueError("bad"), OSError("AccessDenied"), FileNotFoundError(2, "gone")], ids=repr)
def test_what_will_not_pass_is_not(error: Exception) -> None:
    read = Failing(error)
    with pytest.raises(type(error)) as caught:
        on_the_loop(read, AT_ONCE)
    assert caught.value is error
    assert read.calls == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_what_stops_a_program_is_not_held_up(error: BaseException) -> None:
    read = Failing(error)
    with pytest.raises(type(error)):
        on_the_loop(read, AT_ONCE)
    assert read.calls == 1


def test_each_refusal_is_told() -> None:
    told: list[int] = []
    read = Failing(OSError("SlowDown"), TimeoutError(), OSError("SlowDown"))
    with pytest.raises(OSError, match="SlowDown"):
        on_the_loop(read, AT_ONCE, lambda: told.append(read.calls))
    assert told == [1, 3]


def test_a_wait_on_the_loop_can_be_cancelled() -> None:
    read = Failing(TimeoutError())

    async def main() -> None:
        failed = asyncio.Event()
        policy = Retry(tries=2, seconds=1000.0, most_seconds=1000.0)
        reading = asyncio.create_task(retried(read.aread, policy, None))
        asyncio.get_running_loop().call_soon(failed.set)
        await failed.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert read.calls == 1


def test_a_try_that_never_ends_is_given_up() -> None:
    calls = []

    async def read() -> str:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "done"

    assert asyncio.run(retried(read, Retry(tries=2, seconds=0.0, try_seconds=0.01), None)) == "done"
    assert len(calls) == 2


@given(
    st.floats(0, 100), st.floats(0.001, 100), st.integers(1, 2000), st.sampled_from(sorted(Kind)), st.floats(0.0, 1.0)
)
def test_waits_grow_up_to_a_bound(seconds: float, most: float, tried: int, kind: Kind, drawn: float) -> None:
    policy = Retry(seconds=seconds, most_seconds=most, draw=lambda: drawn)
    assert 0.0 <= policy.delay(tried, kind) <= policy.delay(tried + 1, kind) <= most
    assert policy.delay(tried, Kind.TRANSIENT) <= policy.delay(tried, Kind.THROTTLED)


def test_the_policy_comes_from_the_limits() -> None:
    limits = Limits(tries=5, retry_seconds=0.25, read_seconds=7.0)
    assert (Retry.of(limits).tries, Retry.of(limits).seconds, Retry.of(limits).try_seconds) == (5, 0.25, 7.0)
    assert Retry.of(limits, patient_store=True).tries == 2
    assert Retry.of(Limits(tries=1), patient_store=True).tries == 1


def test_stores_that_try_again_themselves(served: Served, icechunk_store: tuple[Served, Store]) -> None:
    assert retries_itself(over_http(served))
    assert retries_itself(WrapperStore(over_http(served)))
    assert retries_itself(icechunk_store[1])
    assert not retries_itself(over_fsspec(served))
    assert not retries_itself(MemoryStore())


def test_no_library_is_imported_to_know_its_errors() -> None:
    source = (Path(__file__).parents[2] / "insitu_xr" / "engine" / "failing.py").read_text()
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in imports if any(name in line for name in ("fsspec", "aiohttp", "obstore", "icechunk"))]
