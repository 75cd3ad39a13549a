"""What went wrong while opening, in words that say what to do: stores say it in many ways, and at great length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from insitu_xr.errors import ForbiddenError, InsituError, NotFoundError, NotZarrError, OpenError, RequestError
from insitu_xr.sources import without_secrets

_EXPIRED = re.compile(
    r"ExpiredToken|RequestExpired|token (has|is) expired|expired token|InvalidAuthenticationInfo", re.IGNORECASE
)
_REFUSED = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|Forbidden|Unauthorized|\b40[13]\b"
)
_ABSENT = re.compile(r"NoSuchKey|\b404\b")
_QUOTED = re.compile(r'"[^"]*"')
#: how obstore begins to tell of a value, which it then repeats
_CONFIG = "Generic Config error"
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_NO_CREDENTIALS = re.compile(r"169\.254\.|metadata\.google|NoCredentials|Unable to locate credentials", re.IGNORECASE)


@contextmanager
def explaining(name: str, first: Callable[[BaseException, str], InsituError | None] | None = None) -> Iterator[None]:
    """Raise errors of stores as our own; what is not known to come from a store passes as it is.

    ``first`` is asked first: the ``explain`` of an opener, if it has one.
    """
    try:
        yield
    except InsituError:
        raise
    except Exception as error:
        explained = (first(error, name) if first is not None else None) or explain(error, name)
        if explained is None:
            raise
        # What a store says may hold the signature of a URL.
        told = " ".join(map(str, _causes(error)))
        raise explained from (error if without_secrets(told) == told and _CONFIG not in told else None)


def explain(error: BaseException, name: str) -> InsituError | None:
    """The same error in our words; None for what does not come from a store."""
    causes = list(_causes(error))
    told = " ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
    first = without_secrets(_first_line(causes))
    if any(_of_obstore(cause, "UnknownConfigurationKeyError") for cause in causes):
        return RequestError(
            f"storage_options must be those of obstore, but for {name} got another one ({first}); s3fs and other "
            "fsspec file systems take theirs with backend='fsspec'"
        )
    if _CONFIG in told:
        return RequestError(
            f"storage_options must have values that obstore can read, but for {name} got another one "
            f"({_QUOTED.sub("'***'", first)}); times are such as '30s', switches True or False"
        )
    if "builder error" in told and "http://" in told:
        return RequestError(
            f"storage_options must allow plain http for {name}, but got an http endpoint without that; add "
            "client_options={'allow_http': True}"
        )
    return _refused(causes, told, first, name) or _missing(causes, told, first, name)


def _refused(causes: list[BaseException], told: str, first: str, name: str) -> InsituError | None:
    if _EXPIRED.search(told):
        return ForbiddenError(
            f"credentials must be valid to open {name}, but got an expired token ({first}); get a new one, or give a "
            "credential_provider= that does, in storage_options"
        )
    if _NO_CREDENTIALS.search(told):
        return ForbiddenError(
            f"credentials must be given to open {name}, but got none; give access_key_id= and secret_access_key= (or "
            "what the provider calls them) in storage_options, or skip_signature=True for public data"
        )
    refused = any(
        isinstance(cause, PermissionError) or _of_obstore(cause, "PermissionDeniedError", "UnauthenticatedError")
        for cause in causes
    )
    if refused or (_from_store(causes) and _REFUSED.search(told)):
        return ForbiddenError(
            f"credentials must be allowed to read {name}, but the store refused ({first}); check them and the rights "
            "of the bucket, or give skip_signature=True in storage_options for public data"
        )
    return None


def _missing(causes: list[BaseException], told: str, first: str, name: str) -> InsituError | None:
    absent = any(isinstance(cause, FileNotFoundError) or _of_obstore(cause, "NotFoundError") for cause in causes)
    if _NO_BUCKET.search(told):
        return NotFoundError(
            f"bucket must exist to open {name}, but the store has none of that name; check its spelling, and "
            "the endpoint"
        )
    if absent or (_from_store(causes) and _ABSENT.search(told)):
        return nothing_at(name)
    if _from_store(causes):
        return OpenError(f"store must answer to open {name}, but got {first}; check the address and the connection")
    return None


def nothing_at(name: str) -> NotFoundError:
    """The error for a place where nothing is."""
    return NotFoundError(
        f"source must be the place of a Zarr store, but got {name}, where there is none; check the spelling of the "
        "path and the bucket, and the endpoint if there is one"
    )


def not_zarr(name: str) -> NotZarrError:
    """The error for a place where something else is."""
    return NotZarrError(
        f"source must be a Zarr store, but got {name}, which has no zarr.json, .zgroup or .zmetadata; give the folder "
        "that has one, or group= of the store that holds it"
    )


def unlisted(name: str) -> NotZarrError:
    """The error for a group whose members nobody names."""
    return NotZarrError(
        f"metadata must be consolidated where the server cannot list, but got {name} without that; write it with "
        "zarr.consolidate_metadata(), or open the store in a way that lists"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_obstore(error: BaseException, *names: str) -> bool:
    """Whether an error is one of obstore's; by name, for whoever reads files need not import obstore for this."""
    return any(k.__module__.partition(".")[0] == "obstore" and k.__name__ in names for k in type(error).__mro__)


def _from_store(causes: list[BaseException]) -> bool:
    """Whether a store said so, rather than code that works on what a store gave."""
    homes = ("obstore", "aiohttp", "botocore", "gcsfs", "azure", "fsspec", "s3fs", "requests")
    return any(isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] in homes for cause in causes)


def _first_line(causes: list[BaseException]) -> str:
    """The first line of what the store said last."""
    told = [str(cause).strip().partition("\n")[0] for cause in causes if _from_store([cause])]
    lines = [line for line in told if line]
    text = lines[0] if lines else type(causes[0]).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
