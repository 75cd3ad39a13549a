"""Virtual chunks: which files outside of a repository may be read, and with which credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any
from urllib.parse import unquote, urlsplit

from insitu_xr.errors import RequestError

_SCHEMES = ("file", "s3", "gs", "gcs", "az", "azure", "abfs", "http", "https")


@dataclass(frozen=True, slots=True)
class Authorized:
    """URL prefixes that may be read, with credentials or options for each."""

    prefixes: Mapping[str, Any]

    @classmethod
    def of(cls, virtual: Any) -> Authorized:
        """Check what was given; asks no network.

        Examples
        --------
        >>> Authorized.of("s3://bucket/").prefixes
        {'s3://bucket/': None}
        """
        if virtual is None:
            return cls({})
        if isinstance(virtual, str):
            virtual = [virtual]
        if not isinstance(virtual, Iterable):
            raise RequestError(f"virtual must be URL prefixes, but got {virtual!r}; write {{'s3://bucket/': None}}")
        prefixes = dict(virtual) if isinstance(virtual, Mapping) else dict.fromkeys(virtual)
        for prefix in prefixes:
            if not isinstance(prefix, str) or urlsplit(prefix).scheme not in _SCHEMES or "://" not in prefix:
                raise RequestError(
                    f"virtual must be prefixes of URLs with one of {', '.join(_SCHEMES)}, but got {prefix!r}; write "
                    "file:///folder/ for local files"
                )
        return cls(prefixes)


def authorize(repository: Any, authorized: Authorized, config: Any) -> Any:
    """Allow a repository to read the prefixes; what the repository was allowed before is not passed on."""
    if not authorized.prefixes:
        return repository if config is None else repository.reopen(config=config)
    import icechunk

    config = repository.config if config is None else config
    known = {prefix.rstrip("/"): prefix for prefix in config.virtual_chunk_containers or {}}
    credentials = {}
    for prefix, given in authorized.prefixes.items():
        access, store, options = _access(prefix, given)
        if options or prefix.rstrip("/") not in known:
            container = icechunk.VirtualChunkContainer(known.get(prefix.rstrip("/"), _closed(prefix)), store())
            config.set_virtual_chunk_container(container)
        credentials[known.get(prefix.rstrip("/"), _closed(prefix))] = access
    allowed = icechunk.containers_credentials(credentials)
    return repository.reopen(config=config, authorize_virtual_chunk_access=allowed)


def _closed(prefix: str) -> str:
    return prefix if prefix.endswith("/") else f"{prefix}/"


def _access(prefix: str, given: Any) -> tuple[Any, Callable[[], Any], Mapping[str, Any]]:
    """Credentials, a function that makes the store of a container, and the options that are for the store."""
    make_access, make_store = _makers(prefix)
    if given is not None and not isinstance(given, Mapping):
        return given, make_store, {}
    for_access, for_store = _divided(prefix, given or {}, make_access, make_store)
    return make_access(**for_access), lambda: make_store(**for_store), for_store


def _makers(prefix: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What makes credentials, and what makes the store of a container."""
    import icechunk

    parts = urlsplit(prefix)
    if parts.scheme == "file":
        # Not credentials but a word that stands for them.
        return lambda: icechunk.credentials.LocalFileSystemAccess, partial(_local_store, unquote(parts.path))
    if parts.scheme in ("http", "https"):
        return lambda: icechunk.credentials.HttpAccess, icechunk.http_store
    if parts.scheme == "s3":
        return icechunk.s3_credentials, icechunk.s3_store
    if parts.scheme in ("gs", "gcs"):
        return icechunk.gcs_credentials, icechunk.storage.gcs_store
    return icechunk.azure_credentials, icechunk.storage.azure_store


def _local_store(path: str) -> Any:
    import icechunk

    return icechunk.local_filesystem_store(path)


def _divided(
    prefix: str, given: Mapping[str, Any], make_access: Callable[..., Any], make_store: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    access, store = set(signature(make_access).parameters), set(signature(make_store).parameters)
    unknown = sorted(set(given) - access - store)
    if unknown:
        raise RequestError(
            f"virtual must have options of Icechunk for {prefix!r}, but got {', '.join(unknown)}; choose from "
            f"{', '.join(sorted(access | store))}"
        )
    return {k: v for k, v in given.items() if k in access}, {k: v for k, v in given.items() if k in store}
