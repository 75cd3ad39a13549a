"""What Icechunk says when a repository cannot be opened, as errors that name the place, the reason and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from insitu_xr.errors import ForbiddenError, InsituError, NotFoundError, OpenError

_EXPIRED = re.compile(r"ExpiredToken|RequestExpired|TokenRefreshRequired|token[^.]{0,40}expired", re.IGNORECASE)
_REFUSED = re.compile(
    r"AccessDenied|Unauthorized|Forbidden|PermissionDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken"
    r"|AuthenticationFailed|AuthorizationFailure|\b40[13]\b",
    re.IGNORECASE,
)
_WITHOUT = re.compile(r"no providers in chain|credential provider was not enabled|Unauthenticated", re.IGNORECASE)
_ABSENT = re.compile(r"NoSuchBucket|ContainerNotFound|\b404\b")
_LONG = 300
#: a user with a password, and a query with a signature
_SECRET_PARTS = re.compile(r"(?<=://)[^/@\s]*@|\?[^\s\"')>]*")
_SECRET_NAMES = re.compile(r"key|secret|token|password|credential|sas|auth|header", re.IGNORECASE)


@contextmanager
def explained(place: str, options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn the errors of Icechunk into those of insitu_xr."""
    import icechunk

    try:
        yield
    except icechunk.IcechunkError as error:
        # The error of Icechunk is not the cause: its text may hold what must not be shown.
        raise explanation(error, place, options) from None


def explanation(error: Any, place: str, options: Mapping[str, Any] | None = None) -> InsituError:
    """Say why a repository could not be opened, and what to do."""
    text = without_secrets(str(error).partition("\n\ncontext")[0], options)
    if error.kind == "repository-not-found" or _ABSENT.search(text):
        return NotFoundError(
            f"url must lead to an Icechunk repository, but got {place!r}, where there is none; check the bucket and "
            "the prefix, and open a plain Zarr store without 'icechunk'"
        )
    if expiry := _EXPIRED.search(text):
        return ForbiddenError(
            f"credentials must be valid, but got expired ones for {place!r} ({expiry[0]}); get new ones, or pass "
            "storage_options={'get_credentials': f}, which is called again whenever they expire"
        )
    if _WITHOUT.search(text):
        return ForbiddenError(
            f"credentials must be given for {place!r}, but got none; pass them in storage_options or set them in the "
            "environment, or pass storage_options={'anonymous': True} for what is public"
        )
    if refusal := _REFUSED.search(text):
        return ForbiddenError(
            f"credentials must allow to read {place!r}, but got a refusal ({refusal[0]}); pass others in "
            "storage_options, or {'anonymous': True} for what is public"
        )
    return OpenError(
        f"url must lead to an Icechunk repository that can be read, but got {place!r}: {_first_line(text)}; check the "
        "endpoint, the region and the network"
    )


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONG else f"{line[:_LONG]}..."


def explained_reading(error: BaseException, name: str) -> InsituError | None:
    """Explain an error that came up after opening, in reading metadata or coordinates."""
    found = next((cause for cause in _causes(error) if type(cause).__module__ == "icechunk"), None)
    if found is None:
        return None
    kind = getattr(found, "kind", "")
    if kind == "unauthorized-virtual-chunk-container":
        prefix = re.search(r"url prefix (\S+?),", str(found))
        place = prefix[1] if prefix else "elsewhere"
        return ForbiddenError(
            f"virtual chunks of {name} must be allowed to be read from {place}, but nobody allowed it; "
            "pass virtual={prefix: None}, or credentials instead of None, if you trust the repository"
        )
    return explanation(found, name.strip("'"))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for member in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(member)
        error = error.__cause__ or error.__context__


def without_secrets(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Leave out users and queries of URLs, and the values of options that may be secret.

    Examples
    --------
    >>> without_secrets("GET https://me:pass@host/a?sig=b for abcd", {"access_key": "abcd"})
    'GET https://host/a for ***'
    """
    for secret in _secrets(options or {}):
        text = text.replace(secret, "***")
    return _SECRET_PARTS.sub("", text)


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            # Headers have harmless names and secret values.
            yield from _secrets({f"{name}.{inner}": entry for inner, entry in value.items()})
        elif isinstance(value, str) and value and _SECRET_NAMES.search(str(name)):
            yield value
