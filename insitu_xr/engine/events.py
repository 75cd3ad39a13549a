"""What a loader did: frozen statistics."""

from __future__ import annotations

from dataclasses import dataclass, fields

from insitu_xr.limits import format_bytes

#: stages, and what a person can do where one limits
ADVICE = {
    "store": "reading is the bound; raise max_inflight= if the store is remote, move nearer to it, or give memory= for "
    "all of it and keep=True",
    "decode": "decoding is the bound; give it more cores, store larger or less compressed chunks, select less, or give "
    "memory= for all of it and keep=True",
    "gather": "copying into batches is the bound; ask for fewer leads or variables, or for layout='dict'",
    "memory": "threads wait for slots; raise memory=, or lower batch_size= or shuffle_window=",
    "consumer": "batches wait for the consumer; loading costs no time",
}


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
    store_seconds, memory_seconds, consumer_seconds : float
        Time that threads read or waited for the store, were idle because no slot was free yet, or were idle because
        the consumer was behind.
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
    store_seconds: float = 0.0
    memory_seconds: float = 0.0
    consumer_seconds: float = 0.0
    resident_bytes: int = 0
    peak_bytes: int = 0

    @property
    def limiting(self) -> str:
        """The stage that took most of the threads' time: "store", "decode", "gather", "memory" or "consumer".

        Empty before anything was read.

        Examples
        --------
        >>> Statistics(decode_seconds=2.0, store_seconds=0.5).limiting
        'decode'
        """
        taken = {stage: getattr(self, f"{stage}_seconds") for stage in ADVICE}
        stage = max(taken, key=taken.__getitem__)
        return stage if taken[stage] else ""

    @property
    def advice(self) -> str:
        """What to do about the stage that limits; empty before anything was read."""
        return ADVICE.get(self.limiting, "")

    def __str__(self) -> str:
        limit = f"; limited by {self.limiting}: {self.advice}" if self.limiting else ""
        return (
            f"{self.batches} batches, {self.samples} samples; {self.reads} chunks in {self.gets} GETs, "
            f"{format_bytes(self.bytes_read)} read, {self.absent} absent, {self.hits} hits; "
            f"waited {self.wait_seconds:.2f} s, read {self.read_seconds:.2f} s, decode {self.decode_seconds:.2f} s, "
            f"gather {self.gather_seconds:.2f} s; peak {format_bytes(self.peak_bytes)}{limit}"
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
