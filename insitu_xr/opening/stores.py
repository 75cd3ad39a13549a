"""From a URL to a zarr store: obstore for what it knows, fsspec for the rest, local folders as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from insitu_xr.errors import MissingExtraError, RequestError
from insitu_xr.opening.failures import not_zarr, nothing_at
from insitu_xr.opening.openers import shown
from insitu_xr.sources import DOCUMENTS, Source, evidence_of, note, source_of

if TYPE_CHECKING:
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, ObjectStore

#: what obstore opens; others are names for the same
SCHEMES = ("file", "memory", "s3", "gs", "az", "http", "https")
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az", "abfs": "abfs", "abfss": "abfss", "adl": "adl"}
#: connections that botocore keeps: its own ten would hold back what the engine has in flight
_POOL = 64
#: options of the connection, which belong into client_options; obstore panics where they stand among the others
_OF_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    }
)


@dataclass(frozen=True, slots=True)
class Place:
    """What xarray is given, and the format that was found there (None where it has to look)."""

    store: Store | str
    zarr_format: int | None = None
    #: metadata of a group within a store without a root has to be read from there
    rooted: bool = True
    #: whether members of a group can be found without consolidated metadata
    lists: bool = True


def scheme_of(source: str) -> str:
    """The scheme of a URL, "" for a local path.

    Examples
    --------
    >>> scheme_of("S3://bucket/a.zarr"), scheme_of("C:/data/a.zarr"), scheme_of("icechunk+s3://bucket/repo")
    ('s3', '', 'icechunk+s3')
    """
    return source.partition("://")[0].lower() if "://" in source else ""


def is_ours(scheme: str) -> bool:
    """Whether a scheme is opened without an adapter."""
    return scheme in ("", *SCHEMES, *_ALIASES)


def local_path(source: str) -> Path | None:
    """The path that a local name or a ``file://`` URL stands for; None for other URLs."""
    scheme = scheme_of(source)
    if scheme != "file":
        return None if scheme else Path(source)
    parts = urlsplit(source)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise RequestError(
            f"url must have three slashes before a local path, but got {shown(source)}; write file:///path, or leave "
            "out file://"
        )
    return Path(unquote(parts.path))


def has_documents(path: Path) -> bool:
    """Whether a folder is a group or an array of Zarr; kerchunk's Parquet has a ``.zmetadata``, too."""
    return path.suffix not in (".parq", ".parquet") and any((path / name).is_file() for name in DOCUMENTS)


def local(path: Path, group: str | None) -> Place:
    """A local folder; stays a path, which zarr reads in threads."""
    if not path.exists():
        raise nothing_at(repr(str(path)))
    if path.is_file() and path.suffix == ".zip":
        from zarr.storage import ZipStore

        return Place(ZipStore(os.path.abspath(path), mode="r", read_only=True))
    rooted = has_documents(path)
    if not rooted and not (group and has_documents(path / group.strip("/"))):
        raise not_zarr(repr(str(path)))
    return Place(str(path), rooted=rooted)


def remote(url: str, group: str | None, options: Mapping[str, Any]) -> Place:
    """An object store or an HTTP server, through obstore."""
    from zarr.storage import ObjectStore

    store = ObjectStore(_obstore(url, options), read_only=True)
    return _found(store, group, shown(url))


def _obstore(url: str, options: Mapping[str, Any]) -> Any:
    from obstore.store import HTTPStore, from_url

    parts = urlsplit(url)
    scheme = _ALIASES.get(parts.scheme.lower(), parts.scheme.lower())
    if misplaced := sorted(name for name in options if str(name).lower() in _OF_CLIENT):
        raise RequestError(
            f"storage_options must have options of the connection in client_options, but got {misplaced} among the "
            f"others; write client_options={{{misplaced[0]!r}: ...}}"
        )
    try:
        if scheme not in ("http", "https"):
            return from_url(urlunsplit(parts._replace(scheme=scheme)), **options)
        client = dict(options.get("client_options") or {})
        if scheme == "http":
            client.setdefault("allow_http", True)  # whoever writes http:// means it
        return HTTPStore.from_url(url, **{**options, "client_options": client})
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"storage_options must be those of obstore for {scheme}://, but got {sorted(options)} ({error}); s3fs and "
            "other fsspec file systems take theirs with backend='fsspec'"
        ) from error
    except Exception as error:
        if "Account must be specified" in str(error):
            raise RequestError(
                f"storage_options must have account_name for {shown(url)}, but got {sorted(options)}; add it"
            ) from error
        raise


def _found(store: ObjectStore[Any], group: str | None, name: str) -> Place:
    """Look for the metadata that says what is stored, for zarr would not tell nothing there from nothing of Zarr."""
    import obstore.exceptions

    refused: list[Exception] = []
    for folder in dict.fromkeys(["", f"{group.strip('/')}/" if group else ""]):
        for document in DOCUMENTS:
            try:
                meta = _look(store.store, folder + document)
            except (PermissionError, obstore.exceptions.PermissionDeniedError) as error:
                # Said also of what is absent, to those who may not list.
                refused.append(error)
                continue
            if meta is not None:
                note(store, Source(**{**source_of(store), **evidence_of(meta)}))
                return Place(store, 3 if document == "zarr.json" else 2, not folder, _lists(store.store))
    if refused:
        raise refused[0]
    raise not_zarr(name) if _has_anything(store.store) else nothing_at(name)


def _look(store: Any, key: str) -> Any:
    """Metadata of an object, None if it is absent.

    Raises
    ------
    Exception
        What the store says of a request that has an answer to read: those to HEAD come without one.
    """
    import obstore

    try:
        return obstore.head(store, key)
    except FileNotFoundError:
        return None
    except Exception:
        try:
            return obstore.get(store, key).meta
        except FileNotFoundError:
            return None


def _lists(store: Any) -> bool:
    """Whether a store can list: HTTP has no such request, and obstore then finds nothing without a word."""
    return type(store).__name__ != "HTTPStore"


def _has_anything(store: Any) -> bool:
    """Whether there is anything at a place, of which it is known that it is no Zarr."""
    import obstore

    if not _lists(store):
        try:
            obstore.head(store, "")
        except Exception:
            return False
        return True
    listed = obstore.list_with_delimiter(store)
    return bool(listed["objects"] or listed["common_prefixes"])


def fsspec_store(url: str, options: Mapping[str, Any]) -> FsspecStore:
    """Any file system of fsspec.

    For s3fs, whole chunks are asked for in one request instead of two, and by as many connections as the engine uses.
    """
    from zarr.storage import FsspecStore

    given = dict(options)
    if scheme_of(url) in ("s3", "s3a"):
        given.setdefault("max_concurrency", 1)
        given["config_kwargs"] = {"max_pool_connections": _POOL, **(given.get("config_kwargs") or {})}
    try:
        return FsspecStore.from_url(url, storage_options=given, read_only=True)
    except ImportError as error:
        raise MissingExtraError(
            f"the file system of {shown(url)} must be installed, but got {error}; install it, or leave out "
            "backend='fsspec'"
        ) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise RequestError(
            f"scheme must be known to fsspec, but got {scheme_of(url)!r} in {shown(url)}; see "
            "fsspec.available_protocols()"
        ) from error


def unknown_argument(error: BaseException, name: str) -> RequestError | None:
    """The error for an option that a file system does not know: they say so when they first connect."""
    if not isinstance(error, TypeError) or "unexpected keyword argument" not in str(error):
        return None
    return RequestError(
        f"storage_options must be those of the file system, but for {name} got another one ({error}); obstore takes "
        "its own with backend='obstore'"
    )
