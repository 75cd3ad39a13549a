"""The server behind `insitu_xr.testing.serving`; also a script, which serves a folder until its input ends.

It needs the standard library alone, so that a process of its own is there in a tenth of a second.
"""

from __future__ import annotations

import asyncio
import json
import math
import mmap
import random
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote
from zlib import crc32

#: a status, or: the connection closed at once, the body cut in half, no answer at all, the whole file for a range, an
#: error code of S3 with status 400
type Fault = int | Literal["reset", "cut", "hang", "whole", "ExpiredToken"]
type Content = Callable[[str], bytes | memoryview | None]
type _Planned = tuple[re.Pattern[str], Fault, list[int | None]]

CONTROL = "/-/"
_REASONS = {200: "OK", 206: "Partial Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden"}
_REASONS |= {404: "Not Found", 405: "Method Not Allowed", 416: "Range Not Satisfiable", 429: "Too Many Requests"}
_REASONS |= {500: "Internal Server Error", 503: "Slow Down"}
#: what S3 says in the body
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 416: "InvalidRange", 500: "InternalError", 503: "SlowDown"}
_PIECE_BYTES = 1 << 17
_PIECES = 8


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the server answers.

    Attributes
    ----------
    latency : float
        Seconds before the first byte of an answer.
    bytes_per_second : float
        Rate of each single request.
    shared_bytes_per_second : float
        Rate of all requests together.
    throttle_above : int, optional
        Requests under way at once, above which further ones are refused.
    throttle_status : int
        Status of a refusal: 503 or 429.
    tail, tail_seconds : float
        Share of the requests that take so much longer.
    """

    latency: float = 0.0
    bytes_per_second: float = math.inf
    shared_bytes_per_second: float = math.inf
    throttle_above: int | None = None
    throttle_status: int = 503
    tail: float = 0.0
    tail_seconds: float = 0.0


@dataclass(slots=True)
class Counts:
    """What a server was asked since it was started, or reset.

    Attributes
    ----------
    gets, heads, ranged : int
        Requests by kind, refused and failed ones included; ranged ones are also gets.
    throttled, failed, dropped : int
        Requests refused as too much, answered with a fault, and given up by the client.
    bytes_sent : int
        Bytes of file content.
    under_way, most_under_way : int
        Requests being answered now, and the most so far.
    """

    gets: int = 0
    heads: int = 0
    ranged: int = 0
    throttled: int = 0
    failed: int = 0
    dropped: int = 0
    bytes_sent: int = 0
    under_way: int = 0
    most_under_way: int = 0


def listen(content: Content, conditions: Conditions) -> tuple[int, Callable[[], None]]:
    """Serve on a thread until told to stop: the port, and what to call for that."""
    server = _Server(content, conditions)
    ready, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        listening = await loop.create_server(lambda: _Connection(server, loop), "127.0.0.1", 0, backlog=1024)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await end.wait()
        # What was accepted is a task until its protocol has it. A server closed meanwhile would let go of it unclosed.
        while arriving := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(arriving)
        listening.close()
        for connection in list(server.connections):
            connection.transport.abort()
        await listening.wait_closed()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="serving", daemon=True)
    thread.start()
    ready.wait()

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(end.set)
            thread.join(10)

    return server.port, stop


def files(folder: Path) -> Content:
    """Files of a folder, mapped once each."""
    root, known = folder.resolve(), dict[str, memoryview]()

    def lookup(path: str) -> memoryview | None:
        if path not in known:
            file = (root / path).resolve()
            if not file.is_file() or not file.is_relative_to(root):
                return None
            with file.open("rb") as opened:
                empty = file.stat().st_size == 0
                known[path] = memoryview(b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        return known[path]

    return lookup


class _Server:
    """What all connections share; belongs to the thread of the loop."""

    def __init__(self, content: Content, conditions: Conditions) -> None:
        self.content, self.conditions, self.counts = content, conditions, Counts()
        self.port = 0
        self.connections: set[_Connection] = set()
        self.random = random.Random(0)
        self._pipe_free = 0.0
        self._faults: list[_Planned] = []

    def control(self, what: Mapping[str, Any]) -> bytes:
        """Carry out what was asked of the server itself."""
        if "fail" in what:
            new: list[_Planned] = [(re.compile(pattern), fault, [times]) for pattern, fault, times in what["fail"]]
            self._faults = [*new, *self._faults] if new else []
        if what.get("reset"):
            self.counts = Counts(under_way=self.counts.under_way, most_under_way=self.counts.under_way)
        self.conditions = replace(self.conditions, **what.get("conditions", {}))
        return json.dumps(asdict(self.counts)).encode()

    def fault(self, path: str) -> Fault | None:
        """The fault to answer a request with, if any."""
        for pattern, fault, left in self._faults:
            if pattern.search(path) and left[0] != 0:
                left[0] = None if left[0] is None else left[0] - 1
                self.counts.failed += 1
                return fault
        return None

    def admit(self) -> bool:
        """Whether one more request may be under way."""
        most = self.conditions.throttle_above
        if most is not None and self.counts.under_way >= most:
            self.counts.throttled += 1
            return False
        self.counts.under_way += 1
        self.counts.most_under_way = max(self.counts.most_under_way, self.counts.under_way)
        return True

    def latency(self) -> float:
        """Seconds before the first byte of the next answer."""
        slow = self.conditions.tail > 0 and self.random.random() < self.conditions.tail
        return self.conditions.latency + (self.conditions.tail_seconds if slow else 0.0)

    def duration(self, now: float, size: int) -> float:
        """Seconds that a body takes, given what others are being sent."""
        self._pipe_free = max(self._pipe_free, now) + size / self.conditions.shared_bytes_per_second
        return max(size / self.conditions.bytes_per_second, self._pipe_free - now)


class _Connection(asyncio.Protocol):
    """One connection: a request is answered before the next one is looked at."""

    transport: asyncio.Transport

    def __init__(self, server: _Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._loop = server, loop
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.counts.dropped += self._busy
        if self._timer is not None:
            self._timer.cancel()
        self._leave()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._busy:
            self._next()

    def _leave(self) -> None:
        self._server.counts.under_way -= self._admitted
        self._admitted = self._busy = False

    def _next(self) -> None:
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._received = rest[length:]
        method, target, _ = line.split(" ", 2)
        self._busy = True
        if target == CONTROL:
            self._send(200, self._server.control(json.loads(rest[:length])), "")
            self._done()
        else:
            self._file(method, unquote(target.partition("?")[0]).lstrip("/"), headers.get("range"))

    def _file(self, method: str, path: str, span: str | None) -> None:
        counts = self._server.counts
        counts.gets += method == "GET"
        counts.heads += method == "HEAD"
        counts.ranged += span is not None
        fault = self._server.fault(path)
        if fault in ("reset", "hang"):
            if fault == "reset":
                self._leave()
                self.transport.abort()
            else:
                self._admitted = self._server.admit()
            return
        if not self._server.admit():
            status = self._server.conditions.throttle_status
            self._later(self._server.latency(), lambda: self._refuse(method, status))
            return
        self._admitted = True
        self._later(self._server.latency(), lambda: self._answer(method, path, span, fault))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if seconds > 0:
            self._timer = self._loop.call_later(seconds, act)
        else:
            act()

    def _refuse(self, method: str, status: int, code: str = "") -> None:
        code = code or _CODES.get(status) or _REASONS.get(status, "Error").replace(" ", "")
        body = f"<Error><Code>{code}</Code></Error>".encode()
        self._send(status, b"" if method == "HEAD" else body, "")
        self._done()

    def _answer(self, method: str, path: str, span: str | None, fault: Fault | None) -> None:
        content = self._server.content(path)
        if fault == "ExpiredToken":
            self._refuse(method, 400, fault)
        elif isinstance(fault, int) or content is None or method not in ("GET", "HEAD"):
            self._refuse(method, fault if isinstance(fault, int) else 404 if content is None else 405)
        else:
            self._deliver(method, memoryview(content), span, fault)

    def _deliver(self, method: str, view: memoryview, span: str | None, fault: Fault | None) -> None:
        extra, status = f'ETag: "{len(view):x}-{crc32(view[:4096]):x}"\r\n', 200
        if span is not None and fault != "whole":
            start, stop = _bounds(span, len(view))
            if start >= stop:
                self._refuse(method, 416)
                return
            extra, status = f"{extra}Content-Range: bytes {start}-{stop - 1}/{len(view)}\r\n", 206
            view = view[start:stop]
        self._send(status, b"", extra, length=len(view))
        body = view if method == "GET" else view[:0]
        self._body(body[: len(body) // 2] if fault == "cut" else body, cut=fault == "cut")

    def _body(self, body: memoryview, *, cut: bool) -> None:
        """Send a body in a few pieces, each when it would have arrived whole."""
        seconds = self._server.duration(self._loop.time(), len(body))
        pieces = 1 if seconds <= 0 else min(_PIECES, max(1, math.ceil(len(body) / _PIECE_BYTES)))
        size, began = math.ceil(len(body) / pieces), self._loop.time()

        def send(k: int) -> None:
            if self.transport.is_closing():
                return  # the client is gone; connection_lost is about to be called
            piece = body[k * size : (k + 1) * size]
            self._server.counts.bytes_sent += len(piece)
            self.transport.write(piece)
            if k + 1 < pieces:
                self._later(began + seconds * (k + 2) / pieces - self._loop.time(), lambda: send(k + 1))
            else:
                self._done(cut=cut)

        self._later(seconds / pieces, lambda: send(0))

    def _send(self, status: int, body: bytes, extra: str, length: int | None = None) -> None:
        fixed = "Accept-Ranges: bytes\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n"
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\n{fixed}{extra}"
        size = len(body) if length is None else length
        self.transport.write(f"{head}Content-Length: {size}\r\n\r\n".encode() + body)

    def _done(self, *, cut: bool = False) -> None:
        self._leave()
        if cut:
            self.transport.close()
        else:
            self._next()


def _bounds(span: str, size: int) -> tuple[int, int]:
    """First byte and the one past the last that a Range header asks for."""
    first, _, last = span.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


def _main(folder: str, conditions: str) -> None:
    port, stop = listen(files(Path(folder)), Conditions(**json.loads(conditions)))
    print(port, flush=True)  # noqa: T201 - how the parent learns it
    sys.stdin.read()
    stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
