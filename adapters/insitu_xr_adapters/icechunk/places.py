"""Where a repository is: URLs, and options for its storage."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from insitu_xr.errors import RequestError
from insitu_xr_adapters.icechunk.failing import without_secrets

_SCHEME = "icechunk"
_HINT = "icechunk+s3://bucket/prefix, icechunk+gs://, icechunk+az://, icechunk+https:// or icechunk:///local/path"
#: other schemes for the same
_SAME = {"": "file", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az", "s3a": "s3"}
#: what obstore calls the arguments of Icechunk; a leading ``aws_``, ``google_`` or ``azure_`` is left out before
_NAMES = {
    "s3": {
        "endpoint": "endpoint_url",
        "default_region": "region",
        "skip_signature": "anonymous",
        "token": "session_token",
    },
    "gs": {
        "service_account": "service_account_file",
        "service_account_path": "service_account_file",
        "skip_signature": "anonymous",
    },
    "az": {
        "account_name": "account",
        "account_key": "access_key",
        "sas_key": "sas_token",
        "token": "bearer_token",
        "skip_signature": "anonymous",
    },
    "http": {},
}
_VENDOR = re.compile(r"^(aws|google|azure_storage|azure)_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A repository by its URL.

    Attributes
    ----------
    scheme : str
        ``s3``, ``gs``, ``az``, ``http``, ``https`` or ``file``.
    root : str
        Bucket or container; empty for files, the whole URL for HTTP.
    path : str
        Prefix in the bucket, or the folder.
    """

    scheme: str
    root: str
    path: str

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> Place:
        """Take a URL apart.

        Examples
        --------
        >>> Place.of("icechunk+s3://bucket/some/prefix/")
        Place(scheme='s3', root='bucket', path='some/prefix')
        >>> Place.of("icechunk:///data/era5").text
        'icechunk:///data/era5'
        """
        text = os.fspath(source)
        if "://" not in text:
            return cls("file", "", os.path.abspath(text))
        outer, _, rest = text.partition("://")
        scheme = outer.removeprefix(_SCHEME).removeprefix("+").lower()
        scheme = _SAME.get(scheme, scheme)
        if scheme in ("http", "https"):
            return cls(scheme, f"{scheme}://{rest}", "")
        parts = urlsplit(f"{scheme}://{rest}")
        if scheme == "file":
            return cls._folder(text, parts.netloc, unquote(parts.path))
        if scheme not in ("s3", "gs", "az") or not parts.netloc:
            raise RequestError(
                f"url must be {_HINT}, but got {without_secrets(text)!r}; name the bucket and the prefix so"
            )
        return cls(scheme, parts.netloc, unquote(parts.path).strip("/"))

    @classmethod
    def _folder(cls, text: str, host: str, path: str) -> Place:
        if host not in ("", "localhost") or not path.strip("/"):
            raise RequestError(
                f"url must have three slashes before a local path, but got {without_secrets(text)!r}; write icechunk:///path"
            )
        return cls("file", "", os.path.abspath(path))

    @property
    def text(self) -> str:
        """The URL, without a user, a password or a query."""
        if self.scheme == "file":
            return f"{_SCHEME}://{self.path}"
        if self.scheme in ("http", "https"):
            parts = urlsplit(self.root)
            host = parts.netloc.rpartition("@")[2]
            return f"{_SCHEME}+{urlunsplit((parts.scheme, host, parts.path.rstrip('/'), '', ''))}"
        return f"{_SCHEME}+{self.scheme}://{self.root}/{self.path}".rstrip("/")

    def storage(self, options: Mapping[str, Any]) -> Any:
        """Where Icechunk reads; asks no network."""
        import icechunk

        if self.scheme == "file":
            if options:
                raise RequestError(
                    f"storage_options must be empty for {self.text!r}, but got {sorted(options)}; leave them out"
                )
            return icechunk.local_filesystem_storage(self.path)
        if self.scheme in ("http", "https"):
            return _called(icechunk.http_storage, {"base_url": self.root}, _http_options(options))
        if self.scheme == "s3":
            return _called(icechunk.s3_storage, {"bucket": self.root, "prefix": self.path}, s3_options(options))
        renamed = _renamed(self.scheme, options)
        if self.scheme == "gs":
            return _called(icechunk.gcs_storage, {"bucket": self.root, "prefix": self.path}, renamed)
        return _called(icechunk.azure_storage, {"container": self.root, "prefix": self.path}, _azure_options(renamed))


def is_repository(source: object) -> bool:
    """Whether this is a local folder with an Icechunk repository in it, by the names of what is there."""
    if not isinstance(source, str | os.PathLike) or "://" in str(source):
        return False
    folder = Path(source)
    return (folder / "snapshots").is_dir() and ((folder / "repo").is_file() or (folder / "refs").is_dir())


def described(storage: Any, place: Place | None = None) -> dict[str, str]:
    """What to show of a storage, as far as Icechunk tells if nobody knows the place."""
    told = dict(re.findall(r"^(\w+): (.*)$", str(storage), re.MULTILINE))
    place = place or _told(told)
    server = {"endpoint": without_secrets(told.get("endpoint_url", "")), "account": told.get("account", "")}
    url = place.text if place is not None else f"{_SCHEME}:"
    return {"kind": "icechunk", "url": url} | {name: value for name, value in server.items() if value}


def _told(told: Mapping[str, str]) -> Place | None:
    bucket = told.get("bucket") or told.get("container")
    if "path" in told:
        return Place.of(told["path"])
    if "url" in told:
        return Place.of(f"{_SCHEME}+{told['url']}")
    if not bucket:
        return None
    scheme = {"gcs": "gs", "azure": "az"}.get(told.get("type", "").lower(), "s3")
    return Place(scheme, bucket, told.get("prefix", "").strip("/"))


def _called(function: Callable[..., Any], place: Mapping[str, str], options: Mapping[str, Any]) -> Any:
    known = [name for name in signature(function).parameters if name not in place]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise RequestError(
            f"storage_options must be arguments of icechunk.{function.__name__}, but got {', '.join(unknown)}; "
            f"choose from {', '.join(known)}"
        )
    try:
        return function(**place, **options)
    except (TypeError, ValueError) as error:
        # Without its text, which may repeat a secret.
        raise RequestError(
            f"storage_options must suit icechunk.{function.__name__}, but got {', '.join(sorted(options)) or 'none'}, "
            f"which it refuses ({type(error).__name__}); see its documentation"
        ) from None


def _renamed(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[scheme]
    short = {_VENDOR.sub("", name).lower(): value for name, value in options.items()}
    return {names.get(name, name): value for name, value in short.items()}


def s3_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``icechunk.s3_storage``, with what an endpoint other than Amazon's needs.

    Examples
    --------
    >>> sorted(s3_options({"endpoint": "http://127.0.0.1:9000", "region": "here"}))
    ['allow_http', 'endpoint_url', 'force_path_style', 'region']
    """
    renamed = _renamed("s3", options)
    client = renamed.pop("client_options", None) or {}
    if _true(client.get("allow_http")):
        renamed.setdefault("allow_http", True)
    if "virtual_hosted_style_request" in renamed:
        renamed.setdefault("force_path_style", not _true(renamed.pop("virtual_hosted_style_request")))
    endpoint = renamed.get("endpoint_url")
    if isinstance(endpoint, str):
        # Icechunk would ask the metadata service of a cloud machine for the region, which such servers do not look at.
        if not any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
            renamed.setdefault("region", "us-east-1")
        if endpoint.startswith("http://"):
            renamed.setdefault("allow_http", True)
        if _has_no_subdomains(endpoint):
            renamed.setdefault("force_path_style", True)
    return renamed


def _has_no_subdomains(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _http_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Transport options, and headers apart from them."""
    given = dict(options)
    client = dict(given.pop("client_options", None) or {}) | dict(given.pop("opts", None) or {})
    headers = {**client.pop("default_headers", {}), **(given.pop("headers", None) or {})}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in client.items()}
    return given | ({"opts": texts} if texts else {}) | ({"headers": headers} if headers else {})


def _azure_options(renamed: dict[str, Any]) -> dict[str, Any]:
    account = renamed.get("account") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise RequestError(
            "storage_options must name the account of icechunk+az://, but got none; pass {'account': name}, or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    config = dict(renamed.pop("config", None) or {})
    for name, value in dict(renamed.pop("client_options", None) or {}).items():
        config.setdefault(name, str(value).lower() if isinstance(value, bool) else str(value))
    if "endpoint" in renamed:
        config.setdefault("endpoint", renamed.pop("endpoint"))
    return {**renamed, "account": account} | ({"config": config} if config else {})


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
