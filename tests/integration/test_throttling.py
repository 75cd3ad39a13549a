"""Real HTTP servers that are late, that refuse what is too much, and that fail: through loaders, and below them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Self

import pytest
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.engine.failing import Kind, Retry, classify, retried
from insitu_xr.engine.flights import HEDGED_SHARE, Flights
from insitu_xr.engine.pacing import START, Pace
from insitu_xr.errors import ReadError
from insitu_xr.testing import assert_batches_equal
from insitu_xr.testing.serving import Served, serve
from insitu_xr.testing.writing import StoredDataset, StoredVariable

pytestmark = pytest.mark.timeout(120)
pytest.importorskip("aiohttp")
IMPATIENT: Any = {
    "max_retries": 0,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}


def over_obstore(served: Served) -> Store:
    return served.store(retry_config=IMPATIENT)


def over_fsspec(served: Served) -> Store:
    return FsspecStore.from_url(served.url, read_only=True)


clients = pytest.mark.parametrize("client", [over_obstore, over_fsspec], ids=lambda f: f.__name__)


# -- what the engine does, without a loader ---------------------------------------------------------------------------


class Pump:
    """Reads keys of a store, as many at once as the pace allows."""

    def __init__(self, store: Store, pace: Pace, policy: Retry, *, hedge: bool = False) -> None:
        self.store, self.pace, self.policy, self.hedge = store, pace, policy, hedge
        self.flights = Flights()
        self.got: dict[str, bytes] = {}
        self.errors: list[BaseException] = []
        self._changed = threading.Condition(threading.RLock())

    def read(self, keys: list[str]) -> dict[str, bytes]:
        waiting = [key for key in reversed(keys) if key not in self.got]
        with self._changed:
            while len(self.got) + len(self.errors) < len(keys):
                while waiting and self.pace.under_way < self.pace.limit:
                    self._launch(waiting.pop())
                assert self._changed.wait(60)
        return self.got

    def _launch(self, key: str) -> None:
        began = time.perf_counter()
        self.pace.launched(began)

        def land(value: Any, error: BaseException | None) -> None:
            now = time.perf_counter()
            with self._changed:
                self.pace.landed(now, now - began, 0 if value is None else len(value))
                if error is None:
                    self.got[key] = value.to_bytes()
                else:
                    self.errors.append(error)
                self._changed.notify()

        prototype = default_buffer_prototype()
        read = lambda: retried(lambda: self.store.get(key, prototype), self.policy, self._throttled)  # noqa: E731
        self.flights.launch(read, land, self.pace.hedge_after if self.hedge else None)

    def _throttled(self) -> None:
        with self._changed:
            self.pace.throttled(time.perf_counter())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.flights.stop(30)


FILES: Mapping[str, bytes] = {f"c/{k}": bytes([k % 256]) * (1000 + k) for k in range(400)}
MANY_TRIES = Retry(tries=20, seconds=0.01, most_seconds=0.1)


@clients
def test_all_is_read_from_a_store_that_refuses_much(client: Callable[[Served], Store]) -> None:
    with serve(FILES, latency=0.005, throttle_above=6, throttle_status=429) as served:
        with Pump(client(served), Pace(), MANY_TRIES) as pump:
            assert pump.read(list(FILES)) == FILES
            counts = served.counts()
        assert pump.errors == []
        assert counts.most_under_way <= 6
        assert counts.throttled > 0
        # How far depends on how many of them a busy machine brings there at once.
        assert 1 <= pump.pace.limit <= START // 2
        assert pump.pace.refusals == counts.throttled


@clients
def test_more_are_under_way_where_that_brings_more(client: Callable[[Served], Store]) -> None:
    with serve(FILES, latency=0.1) as served, Pump(client(served), Pace(), MANY_TRIES) as pump:
        assert pump.read(list(FILES)) == FILES
        assert served.counts().most_under_way > START
    assert pump.pace.limit > START
    assert 0.09 < pump.pace.latency_seconds < 1.0


@clients
def test_a_pinned_number_is_kept(client: Callable[[Served], Store]) -> None:
    with serve(FILES, latency=0.001) as served, Pump(client(served), Pace(pinned=3), MANY_TRIES) as pump:
        assert pump.read(list(FILES)) == FILES
        assert served.counts().most_under_way == 3


def test_without_further_tries_a_refusal_is_an_error() -> None:
    once = Retry(tries=1)
    with serve(FILES, latency=0.01, throttle_above=4) as served, Pump(over_fsspec(served), Pace(), once) as pump:
        got = pump.read(list(FILES)[:64])
    assert pump.errors
    assert {classify(error) for error in pump.errors} == {Kind.THROTTLED}
    assert got == {key: FILES[key] for key in got}


@clients
def test_answers_that_do_not_come_are_asked_for_again(client: Callable[[Served], Store]) -> None:
    keys = list(FILES)
    with serve(FILES, latency=0.01) as served, Pump(client(served), Pace(pinned=8), MANY_TRIES, hedge=True) as pump:
        pump.read(keys[:200])  # so that it is known what is slow
        for key in keys[220:320:20]:
            served.fail(f"{key}$", "hang", times=1)
        served.reset()
        assert pump.read(keys) == FILES
        assert served.counts().failed == 5
        assert 5 <= pump.flights.hedged <= HEDGED_SHARE * len(FILES)


# -- through loaders -------------------------------------------------------------------------------------------------


def stored(count: int = 60) -> StoredDataset:
    variable = StoredVariable("t2m", ("time", "y"), (count, 6), chunks=(1, 6), kind="float32")
    # Version 2: its consolidated metadata, which a server that cannot list needs, are no news to anyone.
    return StoredDataset((variable,), times=tuple(range(count)), sizes={"y": 6}, zarr_format=2)


@pytest.fixture(scope="module")
def written() -> MemoryStore:
    store = stored().store
    zarr.consolidate_metadata(store, zarr_format=2)
    return store


@pytest.fixture
def served(written: MemoryStore) -> Iterator[Served]:
    with serve(written) as server:
        yield server


def opened(store: Store) -> xr.Dataset:
    ds: xr.Dataset = xr.open_zarr(store, consolidated=True, chunks=None)
    return ds


CHUNK = r"t2m/\d"


@clients
def test_a_loader_takes_what_a_store_refuses_later(served: Served, client: Callable[[Served], Store]) -> None:
    with opened(client(served)).insitu.loader(variables=["t2m"], batch_size=4, shuffle=True) as loader:
        served.change(latency=0.005, throttle_above=4)
        served.reset()
        # What is refused comes back a little later each time; few are refused as often as that.
        for _ in range(3):
            try:
                assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])
                break
            except ReadError as error:
                assert "max_inflight" in str(error)  # noqa: PT017
        else:
            pytest.fail("three epochs in a row met refusals that did not end")
        counts = served.counts()
    assert counts.most_under_way <= 4
    assert counts.gets <= 10 * 60


@clients
@pytest.mark.parametrize("most", [1, 3])
def test_max_inflight_pins_the_reads_under_way(served: Served, client: Callable[[Served], Store], most: int) -> None:
    with opened(client(served)).insitu.loader(variables=["t2m"], batch_size=8, max_inflight=most) as loader:
        served.change(latency=0.002, throttle_above=most)
        served.reset()
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])
        counts = served.counts()
    assert (counts.most_under_way, counts.throttled) == (most, 0)


@pytest.mark.parametrize("fault", [429, 500, 503, "reset", "cut"], ids=str)
def test_a_loader_gets_over_two_failures_in_a_row(served: Served, fault: Any) -> None:
    # fsspec over HTTP does not try again by itself.
    with opened(over_fsspec(served)).insitu.loader(variables=["t2m"], batch_size=8) as loader:
        served.fail("t2m/7[.]", fault, times=2)
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])
        assert served.counts().failed == 2


@clients
@pytest.mark.parametrize(
    ("fault", "remedy", "times"),
    [(403, "renew the credentials", 1), (503, "max_inflight", None), (500, "can be reached", None)],
    ids=["403", "503", "500"],
)
def test_a_failure_that_lasts_is_told_with_its_remedy(
    served: Served, client: Callable[[Served], Store], fault: Any, remedy: str, times: int | None
) -> None:
    with opened(client(served)).insitu.loader(variables=["t2m"], batch_size=8) as loader:
        served.fail("t2m/7[.]", fault)
        with pytest.raises(ReadError, match=remedy) as caught:
            list(loader)
        assert (caught.value.variable, caught.value.chunk, caught.value.key) == ("t2m", (7, 0), "t2m/7.0")
        assert times is None or served.counts().failed == times
        served.recover()
        assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])


def test_a_loader_that_hedges_gives_the_same(served: Served) -> None:
    with opened(over_obstore(served)).insitu.loader(variables=["t2m"], batch_size=2, hedge=True) as loader:
        served.change(latency=0.002, tail=0.05, tail_seconds=0.1)
        served.reset()
        for _ in range(3):
            assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m"])
        assert served.counts().gets <= 3 * 60 * (1 + HEDGED_SHARE)
