"""Every dial in one place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

MIB = 1 << 20

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine.

    Attributes
    ----------
    memory : int
        Default ceiling in bytes; raised to what one batch needs when a request gives none.
    threads : int
        Threads that read, decode and gather, at most: fewer where the ceiling leaves no room for the memory that each
        decodes in. More than the cores gains nothing on local stores.
    prefetch : int
        Batches that may be ready before the consumer asks.
    max_inflight : int, optional
        Reads under way at once in a store that is read asynchronously; found while reading where it is not given.
    inflight_bytes : int
        Decoded bytes that those reads may stand for; one read is always allowed.
    job_bytes : int
        Decoded bytes of the chunks of a shard that are read together; one chunk is always allowed.
    max_gap_bytes : int, optional
        Byte ranges of one shard that lie at most this far apart are fetched as one; where it is not given, what a
        remote store sends in the time that a request takes.
    tries : int
        Tries of a read that fails for a reason that may pass; stores that try again by themselves are asked twice at
        most. One means that the first failure counts.
    retry_seconds : float
        Wait before the second try, give or take; twice as long before the third, and so on.
    read_seconds : float
        Longest time of one try of a read in a store that is read asynchronously.
    hedge : bool
        Ask a second time for what takes longer than nearly all reads, and take what comes first; at most one read in
        twenty. In stores that are read asynchronously.
    close_seconds : float
        Longest time that closing waits for reads under way.
    """

    memory: int = 1024 * MIB
    threads: int = _cores()
    prefetch: int = 2
    max_inflight: int | None = None
    inflight_bytes: int = 256 * MIB
    job_bytes: int = 16 * MIB
    max_gap_bytes: int | None = None
    tries: int = 3
    retry_seconds: float = 0.1
    read_seconds: float = 300.0
    hedge: bool = False
    close_seconds: float = 10.0


def remote_limits(limits: Limits, max_inflight: Any = None, hedge: Any = False) -> Limits:
    """Limits with what a caller asked for of remote reads.

    Examples
    --------
    >>> remote_limits(Limits(), max_inflight=8).max_inflight
    8
    """
    if not isinstance(hedge, bool | np.bool_):
        raise RequestError(f"hedge must be True or False, but got {hedge!r}; give one of them")
    limits = replace(limits, hedge=bool(hedge))
    if max_inflight is None:
        return limits
    if isinstance(max_inflight, bool) or not isinstance(max_inflight, int | np.integer) or max_inflight < 1:
        raise RequestError(
            f"max_inflight must be a positive number of reads, but got {max_inflight!r}; give one, or leave it out to "
            "have it found while reading"
        )
    return replace(limits, max_inflight=int(max_inflight))


def parse_bytes(value: Any, thing: str = "memory") -> int:
    """A number of bytes from an int or a text such as ``"4GiB"``.

    Examples
    --------
    >>> parse_bytes("1.5 GiB"), parse_bytes("200MB"), parse_bytes(4096)
    (1610612736, 200000000, 4096)
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", value)
        factor = _UNITS.get(match[2].upper()) if match else None
        if match and factor:
            return int(float(match[1]) * factor)
    elif isinstance(value, int | np.integer) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise RequestError(
        f"{thing} must be a positive number of bytes or a text such as '4GiB', but got {value!r}; give one of those"
    )


def format_bytes(count: float) -> str:
    """A number of bytes for people.

    Examples
    --------
    >>> format_bytes(512), format_bytes(3 * 1024**2), format_bytes(1536 * 1024**2)
    ('512 B', '3.0 MiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
