"""The endpoints of Arraylake that opening a repository calls, on the loopback interface, for its real client."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from tests.integration.servers import S3Server

TOKEN = "ema_0123456789abcdef"
ORGANISATION = "acme"
_EXPIRED = "2020-01-01T00:00:00Z"

type Answer = int | Mapping[str, Any] | Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class Arraylake:
    """A running stub.

    Attributes
    ----------
    url : str
        The service URI.
    repositories : dict of str to answer
        By name within the organisation: what opening it answers, or the status of a refusal, or a function of neither.
    asked : list of (str, str)
        Path and token of each request.
    """

    url: str = ""
    token: str = TOKEN
    repositories: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def opened(self) -> int:
        """Count the requests that open a repository."""
        return sum(path.endswith("/open") for path, _ in self.asked)

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        """Answer as the service does."""
        token = authorization.removeprefix("Bearer ")
        self.asked.append((path, token))
        if token != self.token:
            return 401, {"detail": f"Invalid token {token}"}
        match path.strip("/").split("/"):
            case ["repos", organisation, name, "open"] if organisation == ORGANISATION:
                return self._open(self.repositories.get(name, 404))
            case ["orgs", organisation, "repos", "paginated"] if organisation == ORGANISATION:
                items = [_listed(name) for name in self.repositories]
                return 200, {"items": items, "total": len(items), "page": 1, "size": 100, "pages": 1}
        return 404, {"detail": "Not Found"}

    @staticmethod
    def _open(answer: Answer) -> tuple[int, Any]:
        if isinstance(answer, int):
            return answer, {"detail": f"status {answer}"}
        return 200, answer() if callable(answer) else answer


@contextlib.contextmanager
def arraylake_stub() -> Iterator[Arraylake]:
    """Run the stub while in the context."""
    stub = Arraylake()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, content = stub.answer(urlsplit(self.path).path, self.headers.get("Authorization", ""))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Request-Id", "request-1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Keep what was asked to itself."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # the client keeps its connections
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """Keep the client away from the real home, from proxies, and from the real service."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "ARRAYLAKE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ARRAYLAKE_CONFIG", str(folder / "arraylake"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("ARRAYLAKE_SERVICE__URI", url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    from arraylake.config import config  # writes its configuration on import

    config.refresh(paths=[str(folder / "arraylake")])


def answer_of(server: S3Server, bucket: str, prefix: str, *, mode: str = "online", **changes: Any) -> dict[str, Any]:
    """Answer with a repository on an S3 server, with keys that last."""
    keys = {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    extra = {"endpoint_url": server.endpoint, "region_name": server.region, "use_ssl": False}
    return {
        "repo_bucket": {
            "id": str(uuid.UUID(int=1)),
            "nickname": "bucket",
            "platform": "s3-compatible",
            "name": bucket,
            "prefix": "",
            "extra_config": extra,
            "is_default": True,
            "auth_config": {"method": "hmac", **keys},
        },
        "repo_prefix": prefix,
        "repo_credentials": credentials(server, None),
        "virtual_chunk_credentials": {},
        "author": {"name": "A", "email": "a@example.org"},
        "principal_id": str(uuid.UUID(int=2)),
        "status": {"mode": mode, "message": "moving house", "initiated_by": {}},
        **changes,
    }


def credentials(server: S3Server, expiration: str | None) -> dict[str, Any]:
    """Keys as the service sends them."""
    return {
        "aws_access_key_id": server.access_key_id,
        "aws_secret_access_key": server.secret_access_key,
        "aws_session_token": None,
        "expiration": expiration,
    }


def delegated(server: S3Server, bucket: str, prefix: str) -> dict[str, Any]:
    """Answer with keys that have expired, so that each use of them asks for new ones."""
    answer = answer_of(server, bucket, prefix, repo_credentials=credentials(server, _EXPIRED))
    role = {"method": "aws_customer_managed_role", "external_customer_id": "1", "external_role_name": "reader"}
    answer["repo_bucket"] |= {"platform": "s3", "auth_config": role}
    return answer


def _listed(name: str) -> dict[str, Any]:
    return {
        "id": "0" * 24,
        "org": ORGANISATION,
        "name": name,
        "prefix": name,
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
        "status": {"mode": "online", "message": None, "initiated_by": {}},
    }
