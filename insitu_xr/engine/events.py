"""What a loader did: frozen statistics."""

from __future__ import annotations

from dataclasses import dataclass, fields

from insitu_xr.limits import format_bytes


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts and times of a loader since it was made.

    Attributes
    ----------
    reads : int
        Chunks fetched, absent ones included.
    gets : int
        Requests to the store; several chunks of a shard may share one.
    bytes_read : int
        Bytes that came from the store.
    decodes : int
        Chunks decoded.
    bytes_decoded : int
        Bytes of those chunks, decoded.
    absent : int
        Chunks that the store does not have; they read as the fill value.
    hits : int
        Units that a batch found in memory.
    batches, samples : int
        What was delivered.
    wait_seconds : float
        Time that the consumer waited.
    read_seconds, decode_seconds, gather_seconds : float
        Time spent in each stage, summed over threads; for reads on the event loop, over reads.
    memory_seconds, consumer_seconds : float
        Time that threads were idle because slots were not free yet, or because the consumer was behind.
    resident_bytes, peak_bytes : int
        Memory held by the engine now, and the most it ever held.
    """

    reads: int = 0
    gets: int = 0
    bytes_read: int = 0
    decodes: int = 0
    bytes_decoded: int = 0
    absent: int = 0
    hits: int = 0
    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    gather_seconds: float = 0.0
    memory_seconds: float = 0.0
    consumer_seconds: float = 0.0
    resident_bytes: int = 0
    peak_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.batches} batches, {self.samples} samples; {self.reads} chunks in {self.gets} GETs, "
            f"{format_bytes(self.bytes_read)} read, {self.absent} absent, {self.hits} hits; "
            f"waited {self.wait_seconds:.2f} s, read {self.read_seconds:.2f} s, decode {self.decode_seconds:.2f} s, "
            f"gather {self.gather_seconds:.2f} s; peak {format_bytes(self.peak_bytes)}"
        )


class Meter:
    """Adds up statistics; guarded by the lock of its owner."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {f.name: f.default for f in fields(Statistics)}  # type: ignore[misc]

    def add(self, **counts: float) -> None:
        """Add to some of the counts."""
        for name, count in counts.items():
            self._totals[name] += count

    def read(self, resident: int, peak: int) -> Statistics:
        """The statistics now."""
        totals: dict[str, float] = {**self._totals, "resident_bytes": resident, "peak_bytes": peak}
        return Statistics(**totals)  # type: ignore[arg-type]
