"""A loopback HTTP server that answers as a remote store does: late, at a limited rate, and refusing what is too much.

It serves files, ranges of them too, and counts what it was asked. It runs on a thread of its own, or in a process of
its own so that it does not share the interpreter with what is measured. A request costs it about 0.1 ms.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from insitu_xr.testing import answering
from insitu_xr.testing.answering import Conditions, Counts, Fault

if TYPE_CHECKING:
    from types import TracebackType

    from zarr.abc.store import Store
    from zarr.storage import ObjectStore

__all__ = ["Conditions", "Counts", "Fault", "Served", "serve"]


class Served:
    """A running server; made by :func:`serve`. Its methods may be called from any thread.

    Attributes
    ----------
    url : str
        Where the files are, without a slash at the end.
    """

    def __init__(self, port: int, end: Callable[[], None]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port, self._end = port, end

    def counts(self) -> Counts:
        """What was asked so far."""
        return self._ask()

    def reset(self) -> None:
        """Begin to count anew."""
        self._ask(reset=True)

    def change(self, **conditions: Any) -> None:
        """Change some of the `Conditions` for the requests to come."""
        self._ask(conditions=conditions)

    def fail(self, pattern: str, fault: Fault, times: int | None = None) -> None:
        """Answer requests for paths in which a regular expression is found with a fault, so many times or for ever.

        Of several that fit, the last one given counts.
        """
        self._ask(fail=[(pattern, fault, times)])

    def recover(self) -> None:
        """Answer every request from now on."""
        self._ask(fail=[])

    def store(self, path: str = "", **options: Any) -> ObjectStore[Any]:
        """Open the files below a path with obstore, as a store for zarr; it cannot list.

        Options are those of ``obstore.store.HTTPStore``, such as ``retry_config``.
        """
        from obstore.store import HTTPStore
        from zarr.storage import ObjectStore

        client: Any = {"allow_http": True}
        return ObjectStore(HTTPStore.from_url(f"{self.url}/{path}", client_options=client, **options), read_only=True)

    def close(self) -> None:
        """Stop the server. Idempotent."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **what: Any) -> Counts:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("POST", answering.CONTROL, json.dumps(what))
            return Counts(**json.loads(connection.getresponse().read()))
        finally:
            connection.close()


def serve(content: Path | str | Mapping[str, bytes] | Store, *, apart: bool = False, **conditions: Any) -> Served:
    """Start a server on a free port of the loopback interface.

    Parameters
    ----------
    content : path, mapping or zarr store
        A folder, whose files must not change meanwhile; or bytes by path, looked up at each request; or a store,
        which is copied.
    apart : bool
        Serve a folder from a process of its own.
    **conditions
        `Conditions` of the answers.

    Returns
    -------
    Served
        To be closed, or used as a context manager.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> with serve({"a/c/0": b"abc"}, latency=0.01) as served:
    ...     urlopen(f"{served.url}/a/c/0").read(), served.counts().gets
    (b'abc', 1)
    """
    Conditions(**conditions)  # names what is not one here, not in another process
    if apart:
        if not isinstance(content, Path | str):
            raise TypeError(f"content must be a folder to be served apart, but got a {type(content).__name__}")
        return _serve_apart(Path(content), conditions)
    if isinstance(content, Path | str):
        lookup: answering.Content = answering.files(Path(content))
    elif isinstance(content, Mapping):
        lookup = content.get
    else:
        lookup = _copied(content).get
    return Served(*answering.listen(lookup, Conditions(**conditions)))


def _serve_apart(folder: Path, conditions: Mapping[str, Any]) -> Served:
    # That file alone, not the package: the process is there in a tenth of a second.
    command = [sys.executable, "-P", answering.__file__, str(folder), json.dumps(conditions)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    port = int(process.stdout.readline())

    def stop() -> None:
        if process.poll() is None:
            process.communicate(timeout=10)  # it ends with its input

    return Served(port, stop)


def _copied(store: Store) -> dict[str, bytes]:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    async def copy() -> dict[str, bytes]:
        found = {key: await store.get(key, default_buffer_prototype()) async for key in store.list()}
        return {key: value.to_bytes() for key, value in found.items() if value is not None}

    return sync(copy())
