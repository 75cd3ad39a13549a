"""Where stored data lives, and which version of it is seen: a URL without secrets, and evidence of the version."""

from __future__ import annotations

import datetime as dt
import os
import re
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, override

from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore, ZipStore

from insitu_xr.engine._zarr import run_on_loop

#: documents that make a folder a group or an array of Zarr: the first that exists is taken for the version of all
DOCUMENTS = ("zarr.json", ".zmetadata", ".zgroup", ".zarray")
#: facts that tell one version of a store from another; a snapshot does so exactly, the others are evidence
VERSION = ("snapshot", "uncommitted", "etag", "last_modified", "mtime", "size")

#: memory is found again within the process alone
PROCESS = uuid.uuid4().hex[:12]

_USER = re.compile(r"(?<=//)[^/@\s]*@")
_QUERY = re.compile(r"\?[^\s\"')>]*")
_FRAGMENT = re.compile(r"(//[^\s\"')>#]*)#[^\s\"')>]*")
_ADDRESS = re.compile(r" (object )?at 0x[0-9a-fA-F]+")

#: what openers know of stores, by the identity of the store, for few stores can be hashed
_noted: dict[int, tuple[weakref.ref[Any], Source]] = {}


class Source(Mapping[str, Any]):
    """Where data lives and which version of it is seen: a mapping of plain facts, without credentials.

    Attributes
    ----------
    kind : str
        "zarr", "icechunk", ..., "memory", or "several" for a dataset of several stores, which are
        ``source["sources"]``.
    url : str
        The place, without user and query.
    version : dict
        What tells this version from others: ``snapshot``, or evidence such as ``etag``, ``last_modified``, ``mtime``
        and ``size`` of the root metadata.

    Examples
    --------
    >>> source = Source(kind="icechunk", url="icechunk+s3://bucket/era5", branch="main", snapshot="VSEZTNYS3AKB")
    >>> source["branch"], source.version
    ('main', {'snapshot': 'VSEZTNYS3AKB'})
    >>> source
    <insitu_xr.Source>
      kind      icechunk
      url       icechunk+s3://bucket/era5
      branch    main
      snapshot  VSEZTNYS3AKB
    """

    __slots__ = ("_facts",)

    def __init__(self, **facts: Any) -> None:
        self._facts = {name: value for name, value in facts.items() if value is not None}

    @override
    def __getitem__(self, name: str, /) -> Any:
        return self._facts[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    @override
    def __len__(self) -> int:
        return len(self._facts)

    @property
    def kind(self) -> str:
        """What the data is stored in."""
        return str(self._facts.get("kind", "zarr"))

    @property
    def url(self) -> str:
        """Where the data is stored."""
        return str(self._facts.get("url", ""))

    @property
    def version(self) -> dict[str, Any]:
        """What tells this version from others."""
        return {name: self._facts[name] for name in VERSION if name in self._facts}

    @property
    def snapshot(self) -> str | None:
        """The exact version, where the store has such."""
        return self._facts.get("snapshot")

    @override
    def __repr__(self) -> str:
        several: list[Source] = self._facts.get("sources", [])
        facts = {name: value for name, value in self._facts.items() if name != "sources"}
        facts |= {f"{k}": f"{s.kind}, {s.url}" for k, s in enumerate(several)}
        width = max((len(name) for name in facts), default=0)
        return "\n".join(["<insitu_xr.Source>", *(f"  {name:<{width}}  {value}" for name, value in facts.items())])


def note(store: Any, source: Source) -> None:
    """Keep what an opener knows of a store for as long as the store lives."""
    key = id(unwrapped(store))
    _noted[key] = (weakref.ref(unwrapped(store), lambda _: _noted.pop(key, None)), source)


def source_of(store: Any, *, ask: bool = False) -> Source:
    """Name a store and its version.

    Parameters
    ----------
    ask : bool
        Send one request for evidence of the version where nothing else gives it.
    """
    store = unwrapped(store)
    kept = _noted.get(id(store))
    if kept is not None and kept[0]() is store:
        return kept[1]
    session: Any = getattr(store, "session", None)
    if (snapshot := getattr(session, "snapshot_id", None)) is not None:
        changed = not session.read_only and session.has_uncommitted_changes
        return Source(kind="icechunk", url="icechunk:", snapshot=snapshot, uncommitted=PROCESS if changed else None)
    facts: dict[str, Any] = {"kind": "zarr", "url": place_of(store), **_endpoint(store)}
    if isinstance(store, LocalStore):
        return Source(**facts, **_stat(Path(store.root) / name for name in DOCUMENTS))
    if isinstance(store, ZipStore):
        return Source(**facts, **_stat([Path(str(store.path))]))
    if ask and (evidence := _ask(store)):
        note(store, Source(**facts, **evidence))
        return Source(**facts, **evidence)
    return Source(**facts)


def unwrapped(store: Any) -> Any:
    """The store within wrappers."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def place_of(store: Any) -> str:
    """The URL of a store, the same whichever way it was opened, without user names, passwords and signatures."""
    store = unwrapped(store)
    if isinstance(store, LocalStore):
        return f"file://{os.path.abspath(store.root)}"
    if isinstance(store, ZipStore):
        return f"file://{os.path.abspath(str(store.path))}"
    if isinstance(store, FsspecStore):
        return _fsspec_place(store)
    if isinstance(store, ObjectStore) and (url := _obstore_place(store.store)):
        return without_secrets(url)
    text = str(store)
    if "memory" in text.lower():
        return f"{text} of process {PROCESS}"
    return without_secrets(_ADDRESS.sub("", text))


def _obstore_place(store: Any) -> str:
    kind, prefix = type(store).__name__, str(getattr(store, "prefix", None) or "")
    if kind == "LocalStore":
        return f"file://{os.path.abspath(prefix)}" if prefix else ""
    if kind == "HTTPStore":
        return str(store.url).rstrip("/")
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(kind)
    if scheme is None:
        return ""
    bucket = store.config.get("container_name" if scheme == "az" else "bucket")
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")


def _fsspec_place(store: FsspecStore) -> str:
    protocol = store.fs.protocol if isinstance(store.fs.protocol, str) else store.fs.protocol[0]
    path = str(store.path)
    if protocol == "memory":
        return f"memory://{path} of process {PROCESS}"
    if protocol in ("file", "local"):
        return f"file://{os.path.abspath(path)}"
    if isinstance(within := _options(store).get("fo"), str):  # one file that holds a file system, such as a zip
        return without_secrets(f"{protocol}://{path}::{within}")
    protocol = {"gcs": "gs", "s3a": "s3", "abfs": "az", "abfss": "az"}.get(protocol, protocol)
    return without_secrets(path if "://" in path else f"{protocol}://{path}").rstrip("/")


def _endpoint(store: Any) -> dict[str, str]:
    """Which of several servers or accounts that may have a bucket of this name."""
    if isinstance(store, ObjectStore):
        config = getattr(store.store, "config", None) or {}
        names = {"endpoint": "endpoint", "account": "account_name"}
        return {name: without_secrets(config[key]) for name, key in names.items() if key in config}
    if isinstance(store, FsspecStore):
        options = store.fs.storage_options
        found = options.get("endpoint_url") or (options.get("client_kwargs") or {}).get("endpoint_url")
        return {"endpoint": without_secrets(str(found))} if found else {}
    return {}


def _options(store: FsspecStore) -> Mapping[str, Any]:
    """What a file system was made with, without what makes it asynchronous."""
    options: Mapping[str, Any] = getattr(store.fs, "sync_fs", store.fs).storage_options
    return options


def _stat(paths: Iterable[Path]) -> dict[str, Any]:
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        return {"mtime": _mtime(stat.st_mtime), "size": stat.st_size}
    return {}


def _ask(store: Any) -> dict[str, Any]:
    """Evidence of the version of a remote store; none where it does not answer, for nothing depends on it."""
    look = _look_obstore if isinstance(store, ObjectStore) else _look_fsspec if isinstance(store, FsspecStore) else None
    for name in DOCUMENTS if look else ():
        try:
            return look(store, name)  # type: ignore[misc]
        except Exception:
            continue
    return {}


def _look_obstore(store: ObjectStore[Any], name: str) -> dict[str, Any]:
    import obstore

    return evidence_of(obstore.head(store.store, name))


def evidence_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the metadata of an object says of its version.

    Examples
    --------
    >>> evidence_of({"e_tag": '"abc"', "last_modified": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "size": 10})
    {'etag': 'abc', 'last_modified': '2026-01-01T00:00:00+00:00', 'size': 10}
    """
    etag, modified = meta.get("e_tag"), meta.get("last_modified")
    known = isinstance(modified, dt.datetime) and modified.timestamp() > 0  # obstore says 1970 where no date is sent
    dated = modified.astimezone(dt.UTC).isoformat(timespec="seconds") if known and modified else None
    found = {"etag": str(etag).strip('"') if etag else None, "last_modified": dated}
    return {name: value for name, value in (found | {"size": meta.get("size")}).items() if value is not None}


def _look_fsspec(store: FsspecStore, name: str) -> dict[str, Any]:
    info: Mapping[str, Any] = run_on_loop(store.fs._info(f"{store.path}/{name}"))
    found = {"e_tag": info.get("ETag"), "last_modified": info.get("LastModified"), "size": info.get("size")}
    return ({"mtime": _mtime(info["mtime"])} if "mtime" in info else {}) | evidence_of(found)


def _mtime(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")


def without_secrets(url: str) -> str:
    """Leave out the user, the query and the fragment of a URL, where credentials and signatures are.

    Examples
    --------
    >>> without_secrets("https://me:password@host/era5.zarr?signature=abc")
    'https://host/era5.zarr'
    """
    return _FRAGMENT.sub(r"\1", _QUERY.sub("", _USER.sub("", url)))
