"""The loopback server answers as it was told to, and counts."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, override

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from insitu_xr.testing.serving import Served, serve

pytestmark = pytest.mark.timeout(60)
BODY = bytes(range(200)) * 5


def ask(served: Served, path: str = "/f", method: str = "GET", span: str | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, headers={} if span is None else {"Range": span})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture(params=["thread", "process"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "f").write_bytes(BODY)
    (tmp_path / "empty").write_bytes(b"")
    with serve(tmp_path, apart=request.param == "process") as server:
        yield server


@pytest.mark.parametrize(
    ("span", "wanted"),
    [("bytes=0-9", BODY[:10]), ("bytes=990-", BODY[990:]), ("bytes=-7", BODY[-7:]), ("bytes=998-2000", BODY[998:])],
)
def test_ranges(served: Served, span: str, wanted: bytes) -> None:
    assert ask(served, span=span) == (206, wanted)
    assert (served.counts().ranged, served.counts().bytes_sent) == (1, len(wanted))


def test_whole_files_heads_and_what_is_not_there(served: Served) -> None:
    assert ask(served) == (200, BODY)
    assert ask(served, "/empty") == (200, b"")
    assert ask(served, method="HEAD") == (200, b"")
    assert ask(served, "/g")[0] == 404
    assert ask(served, "/../etc/passwd")[0] == 404
    assert ask(served, method="PUT")[0] == 405
    assert ask(served, span="bytes=5000-6000")[0] == 416
    counts = served.counts()
    assert (counts.gets, counts.heads, counts.under_way) == (5, 1, 0)
    served.reset()
    assert served.counts().gets == 0


def test_latency_and_rate(served: Served) -> None:
    served.change(latency=0.05, bytes_per_second=10_000)
    began = time.perf_counter()
    assert ask(served) == (200, BODY)
    assert time.perf_counter() - began >= 0.15
    served.change(latency=0.0, bytes_per_second=float("inf"))
    assert ask(served) == (200, BODY)


def test_what_is_too_much_is_refused(served: Served) -> None:
    served.change(latency=0.05, throttle_above=2, throttle_status=429)
    with ThreadPoolExecutor(8) as pool:
        statuses = [status for status, _ in pool.map(lambda _: ask(served), range(8))]
    counts = served.counts()
    assert set(statuses) <= {200, 429}
    assert statuses.count(429) == counts.throttled
    assert counts.most_under_way <= 2


def test_faults(served: Served) -> None:
    served.fail("f$", 503, times=1)
    served.fail("f$", "ExpiredToken", times=1)
    assert ask(served) == (400, b"<Error><Code>ExpiredToken</Code></Error>")
    assert ask(served) == (503, b"<Error><Code>SlowDown</Code></Error>")
    assert ask(served) == (200, BODY)
    served.fail("f$", "whole")
    assert ask(served, span="bytes=0-9") == (200, BODY)
    served.fail("f$", "cut")
    with pytest.raises(IncompleteRead):
        ask(served)
    served.fail("f$", "reset")
    with pytest.raises((RemoteDisconnected, ConnectionResetError)):
        ask(served)
    served.recover()
    assert ask(served) == (200, BODY)
    assert served.counts().failed == 5


def test_requests_that_a_client_gives_up_are_counted(served: Served) -> None:
    served.fail("f$", "hang")
    connection = HTTPConnection(served.url.removeprefix("http://"))
    connection.request("GET", "/f")
    while served.counts().under_way == 0:
        pass
    connection.close()
    while served.counts().dropped == 0:
        pass
    assert served.counts().under_way == 0


def test_a_store_is_served_to_zarr() -> None:
    store = MemoryStore()
    zarr.create_array(store, shape=(8,), chunks=(2,), dtype="i4")[:] = np.arange(8)
    with serve(store) as served:
        assert np.array_equal(zarr.open_array(served.store(), mode="r")[:], np.arange(8))
        assert served.counts().gets >= 5


def test_a_mapping_is_looked_at_anew() -> None:
    content = {"f": b"old"}
    with serve(content) as served:
        content["f"] = b"new"
        assert ask(served) == (200, b"new")


def test_closing_twice_leaves_nothing(served: Served) -> None:
    before = [thread for thread in threading.enumerate() if thread.name == "serving"]
    served.close()
    served.close()
    assert [thread for thread in threading.enumerate() if thread.name == "serving"] == []
    assert len(before) <= 1
    with pytest.raises(ConnectionRefusedError):
        ask(served)


def test_a_connection_that_comes_as_the_server_stops_is_closed_too() -> None:
    """One left open is warned about when it is collected: while some other test runs, if nobody looks here."""
    busy, go_on = threading.Event(), threading.Event()

    class Content(dict[str, bytes]):
        @override
        def get(self, path: str, default: Any = None, /) -> bytes:
            if path == "hold up":  # so that both of what comes next are there when the loop looks again
                busy.set()
                assert go_on.wait(20)
            elif path == "stop":  # on the thread of the server itself, which is told so, but cannot be waited for
                with contextlib.suppress(RuntimeError):
                    running.close()
            return b""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])), timeout=20)

    def get(client: socket.socket, path: str) -> None:
        client.sendall(f"GET /{path} HTTP/1.1\r\n\r\n".encode())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with serve(Content()) as running, connect() as first, connect() as second:
            for client in (first, second):
                get(client, "now")
                assert client.recv(1 << 12)
            get(first, "hold%20up")
            assert busy.wait(20)
            get(second, "stop")
            with connect():
                go_on.set()
                running.close()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a folder"):
        serve({"f": b""}, apart=True)
    with pytest.raises(TypeError, match="lateness"):
        serve({"f": b""}, lateness=1.0)
