"""Which files are meant, what version each has, and how to get at them."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from insitu_xr.errors import NotFoundError, RequestError

from .references import File
from .store import local_path, version_of

#: how obstore says that an object is not there
_ABSENT = ("NotFoundError", "FileNotFoundError")


def as_urls(source: Any) -> list[str]:
    """URL of each file that is meant.

    Parameters
    ----------
    source : str, path or sequence of them
        Local paths and ``file://`` may hold wildcards, and so may URLs of stores that can list.

    Returns
    -------
    list of str
        In the order given; what a wildcard finds is sorted.
    """
    many = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not many:
        raise RequestError("files must be at least one, but got none; give a path, a URL or a list of them")
    return [as_url(os.fspath(one)) for one in many]


def as_url(text: str) -> str:
    """URL of a path or a URL.

    Examples
    --------
    >>> as_url("/data/a b.nc"), as_url("netcdf+https://host/x.nc"), as_url("s3://bucket/x.nc")
    ('file:///data/a%20b.nc', 'https://host/x.nc', 's3://bucket/x.nc')
    """
    text = text.removeprefix("netcdf+").removeprefix("kerchunk+")
    for own in ("netcdf://", "kerchunk://"):
        if text.startswith(own):
            text = text.removeprefix(own)
    if "://" in text:
        return text
    return "file://" + quote(os.path.abspath(os.path.expanduser(text)), safe="/*?[]")


def expand(urls: Sequence[str], places: Places) -> list[str]:
    """Replace URLs with wildcards by what they find."""
    found: list[str] = []
    for url in urls:
        if not has_wildcard(url):
            found.append(url)
            continue
        matches = sorted(_local_matches(url) if url.startswith("file://") else places.matches(url))
        if not matches:
            raise NotFoundError(
                f"pattern must match a file, but got {shown(url)!r}, which matches none; check the path"
            )
        found += matches
    return found


def has_wildcard(url: str) -> bool:
    """Whether a URL is a pattern; what an existing local file is named is no pattern."""
    path = urlsplit(url).path if not url.startswith("file://") else url
    if not any(sign in path for sign in "*?["):
        return False
    return not (url.startswith("file://") and os.path.exists(_pattern(url)))


def _pattern(url: str) -> str:
    return unquote(url.removeprefix("file://"))


def _local_matches(url: str) -> list[str]:
    return [Path(path).as_uri() for path in glob.glob(_pattern(url), recursive=True)]


def shown(url: str) -> str:
    """What people call a file."""
    return _pattern(url) if url.startswith("file://") else public(url)


def public(url: str) -> str:
    """A URL without a user, a password and a query.

    Examples
    --------
    >>> public("https://me:pass@host/x.nc?sig=abc")
    'https://host/x.nc'
    """
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


class Places:
    """Object stores of the hosts and buckets that URLs name, made when first needed.

    Parameters
    ----------
    options : mapping
        In obstore's terms, the same for all.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.stores: dict[str, Any] = {}

    def locate(self, url: str) -> tuple[Any, str]:
        """Object store and path of a URL."""
        import obstore.store

        parts = urlsplit(url)
        full = f"{parts.scheme}://{parts.netloc}"
        base = public(full)
        if base not in self.stores:
            options = dict(self._options)
            if parts.scheme == "http":
                options["client_options"] = {"allow_http": True, **(options.get("client_options") or {})}
            try:
                self.stores[base] = obstore.store.from_url(full, **options)
            except ValueError as error:
                raise RequestError(
                    f"url must start with one of file, s3, gs, az, http, https, but got {shown(url)!r}; {error}"
                ) from error
        return self.stores[base], unquote(parts.path).lstrip("/")

    def locate_all(self, urls: Sequence[str]) -> None:
        """Make the object stores of all URLs, so that threads share them."""
        for url in urls:
            if not url.startswith("file://"):
                self.locate(url)

    def matches(self, url: str) -> list[str]:
        """Objects that a pattern finds."""
        parts = urlsplit(url)
        if parts.scheme in ("http", "https"):
            raise RequestError(
                f"wildcards must stand in a place that can be listed, but got {shown(url)!r}; give the URLs as a list"
            )
        store, pattern = self.locate(url)
        prefix = pattern[: min(pattern.find(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0]
        names = (meta["path"] for page in store.list(prefix or None) for meta in page)
        depth = pattern.count("/")
        fits = (n for n in names if ("**" in pattern or n.count("/") == depth) and fnmatch.fnmatchcase(n, pattern))
        return [f"{parts.scheme}://{parts.netloc}/{quote(name)}" for name in fits]

    def examine(self, url: str) -> File:
        """Find out the size and version of a file.

        Raises
        ------
        NotFoundError
            If there is none.
        """
        if url.startswith("file://"):
            path = local_path(url)
            if not os.path.isfile(path):
                raise NotFoundError(f"file must exist, but got {path!r}, where there is none; check the path")
            status = os.stat(path)
            return File(url, status.st_size, version_of(status))
        store, path = self.locate(url)
        try:
            found = store.head(path)
        except Exception as error:
            if type(error).__name__ not in _ABSENT:
                raise
            raise NotFoundError(
                f"file must exist, but got {shown(url)!r}, where there is none; check the URL"
            ) from error
        return File(public(url), int(found["size"]), str(found.get("e_tag") or found["last_modified"]))
