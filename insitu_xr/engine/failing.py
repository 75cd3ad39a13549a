"""Why a read failed, and whether, how often and how soon it is tried again.

Absent data are no failure: a store says None for them. Classes of other libraries are known by name, so that none of
those has to be imported, or installed.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from insitu_xr.limits import Limits


class Kind(IntEnum):
    """Why a read failed; of several reasons in one error, the highest counts."""

    #: a connection, a time-out, a server that stumbled: the next try may succeed
    TRANSIENT = 1
    #: the store has too many requests
    THROTTLED = 2
    #: other bytes than the store should have
    CORRUPT = 3
    PERMANENT = 4
    #: the store does not know who asks, or not any more, or does not let them read
    CREDENTIALS = 5


class CorruptError(OSError):
    """A store gave bytes that cannot be right."""


RETRIED = frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.CORRUPT})

_REMEDIES = {
    Kind.TRANSIENT: "check that the store can be reached, then iterate again",
    Kind.THROTTLED: "lower max_inflight= or ask the store for a higher rate, then iterate again",
    Kind.CORRUPT: "compare the object with what was written, and write it anew",
    Kind.PERMANENT: "check the store, then iterate again",
    Kind.CREDENTIALS: "renew the credentials or ask for the right to read this object, then open the dataset again",
}

_STATUS_TEXT = re.compile(r"status(?: code)?:? ?(\d{3})\b", re.IGNORECASE)
_CREDENTIALS_TEXT = re.compile(
    r"AccessDenied|Access Denied|ExpiredToken|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch|Unauthorized"
    r"|TokenRefreshRequired|RequestTimeTooSkewed|AuthenticationFailed|AuthorizationFailure|Forbidden"
)
_THROTTLED_TEXT = re.compile(r"SlowDown|Slow Down|Throttl|TooManyRequests|Too Many Requests|ServerBusy")

_TRANSIENT_CODES = frozenset(
    {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE, errno.ENETDOWN}
    | {errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {121}  # EREMOTEIO, which s3fs raises and only Linux has
)
_PERMANENT_CODES = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})

#: classes by the library that they belong to; a subclass counts as well
_CLASSES: dict[tuple[str, str], Kind] = {
    ("obstore", "PermissionDeniedError"): Kind.CREDENTIALS,
    ("obstore", "UnauthenticatedError"): Kind.CREDENTIALS,
    ("obstore", "NotSupportedError"): Kind.PERMANENT,
    ("obstore", "InvalidPathError"): Kind.PERMANENT,
    ("obstore", "NotFoundError"): Kind.PERMANENT,
    ("aiohttp", "ClientConnectionError"): Kind.TRANSIENT,
    ("aiohttp", "ClientPayloadError"): Kind.TRANSIENT,
    ("httpx", "TransportError"): Kind.TRANSIENT,
    ("botocore", "HTTPClientError"): Kind.TRANSIENT,
    ("botocore", "NoCredentialsError"): Kind.CREDENTIALS,
    ("botocore", "PartialCredentialsError"): Kind.CREDENTIALS,
}
#: what icechunk calls its errors
_ICECHUNK = {
    "object-store": Kind.TRANSIENT,
    "io": Kind.TRANSIENT,
    "virtual-chunk-fetch": Kind.TRANSIENT,
    "throttled": Kind.THROTTLED,
    "invalid-credentials": Kind.CREDENTIALS,
    "unauthorized-virtual-chunk-container": Kind.CREDENTIALS,
}


def classify(error: BaseException) -> Kind:
    """Why a read failed: the error, the members of a group, and what caused them.

    Examples
    --------
    >>> classify(ConnectionResetError()).name, classify(ValueError("no such codec")).name
    ('TRANSIENT', 'PERMANENT')
    >>> classify(ExceptionGroup("reads", [TimeoutError(), OSError("SlowDown")])).name
    'THROTTLED'
    """
    return max((kind for one in _walk(error, set()) if (kind := _kind(one)) is not None), default=Kind.PERMANENT)


def remedy(kind: Kind) -> str:
    """What a person can do."""
    return _REMEDIES[kind]


def _walk(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for other in (*(error.exceptions if isinstance(error, BaseExceptionGroup) else ()), error.__cause__):
        if other is not None:
            yield from _walk(other, seen)


def _kind(error: BaseException) -> Kind | None:
    """What one error says by itself; None if that is nothing."""
    if isinstance(error, CorruptError):
        return Kind.CORRUPT
    if isinstance(error, BaseExceptionGroup):
        return None
    texts = f"{_code(error)} {error}"
    if _CREDENTIALS_TEXT.search(texts):
        return Kind.CREDENTIALS
    if _THROTTLED_TEXT.search(texts):
        return Kind.THROTTLED
    if (status := _status(error)) is not None:
        return _kind_of_status(status)
    return _kind_of_class(error)


def _response(error: BaseException) -> dict[str, Any]:
    """The response that errors of botocore carry."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _code(error: BaseException) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException) -> int | None:
    """The status of the answer over HTTP."""
    found = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    for value in (found, getattr(error, "status", None), getattr(error, "status_code", None)):
        if isinstance(value, int) and 300 <= value < 600:
            return value
    text = _STATUS_TEXT.search(str(error))
    return int(text[1]) if text else None


def _kind_of_status(status: int) -> Kind:
    if status in (401, 403, 407):
        return Kind.CREDENTIALS
    if status in (429, 503):
        return Kind.THROTTLED
    return Kind.TRANSIENT if status in (408, 425) or status >= 500 else Kind.PERMANENT


def _kind_of_class(error: BaseException) -> Kind | None:
    library = {(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__}
    for name in library & _CLASSES.keys():
        return _CLASSES[name]
    if ("icechunk", "IcechunkError") in library:
        kind = getattr(error, "kind", "")
        return _ICECHUNK.get(str(getattr(kind, "value", kind)), Kind.PERMANENT)
    if ("obstore", "GenericError") in library:
        return Kind.TRANSIENT
    if isinstance(error, TimeoutError | ConnectionError):
        return Kind.TRANSIENT
    if isinstance(error, OSError):
        return _kind_of_code(error.errno)
    return None


def _kind_of_code(code: int | None) -> Kind | None:
    if code in _TRANSIENT_CODES:
        return Kind.TRANSIENT
    return Kind.PERMANENT if code in _PERMANENT_CODES else None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed read is tried again.

    Attributes
    ----------
    tries : int
        Tries in all.
    seconds : float
        Wait before the second try; each further one is twice as long, and after a refusal four times.
    most_seconds : float
        Longest wait.
    try_seconds : float, optional
        Longest time of one try on the event loop.
    draw : callable
        Random numbers from 0 to 1, so that not all reads come back at once.

    Examples
    --------
    >>> policy = Retry(tries=3, seconds=0.1, draw=lambda: 1.0)
    >>> [policy.delay(tried, Kind.TRANSIENT) for tried in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    >>> policy.delay(1, Kind.THROTTLED)
    0.4
    """

    tries: int = 3
    seconds: float = 0.1
    most_seconds: float = 10.0
    try_seconds: float | None = None
    draw: Callable[[], float] = random.random

    @classmethod
    def of(cls, limits: Limits, *, patient_store: bool = False) -> Self:
        """The policy for a store; one that tries again by itself is asked twice at most."""
        tries = min(2, limits.tries) if patient_store else limits.tries
        return cls(tries, limits.retry_seconds, try_seconds=limits.read_seconds)

    def again(self, tried: int, kind: Kind) -> bool:
        """Whether to try once more after so many tries."""
        return tried < self.tries and kind in RETRIED

    def delay(self, tried: int, kind: Kind) -> float:
        """Seconds to wait after so many tries."""
        longest = self.seconds * (4.0 if kind is Kind.THROTTLED else 1.0) * 2.0 ** min(tried - 1, 30)
        return min(self.most_seconds, longest) * (0.5 + 0.5 * self.draw())


async def retried[T](
    read: Callable[[], Awaitable[T]], policy: Retry, on_throttle: Callable[[], None] | None = None
) -> T:
    """Read on the event loop, again where that may help; nothing is held while it waits, and it can be cancelled.

    Parameters
    ----------
    read : callable
        Gives a new awaitable for each try.
    policy : Retry
    on_throttle : callable, optional
        Called on the thread of the loop at each refusal by the store; must not block.
    """
    tried = 0
    while True:
        tried += 1
        try:
            async with asyncio.timeout(policy.try_seconds):
                return await read()
        except Exception as error:
            wait = _wait(error, tried, policy, on_throttle)
        await asyncio.sleep(wait)


def _wait(error: Exception, tried: int, policy: Retry, on_throttle: Callable[[], None] | None) -> float:
    """Seconds until the next try; raises the error where there is none."""
    kind = classify(error)
    if kind is Kind.THROTTLED and on_throttle is not None:
        on_throttle()
    if not policy.again(tried, kind):
        raise error
    return policy.delay(tried, kind)
