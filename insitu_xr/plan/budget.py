"""The ceiling divided: slots, prefetched batches, reads in flight and the scratch of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from insitu_xr.errors import CeilingError
from insitu_xr.limits import Limits, format_bytes
from insitu_xr.plan.reads import AccessGroup


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory of a loader is used; everything in bytes except the counts."""

    #: slots of each access group
    slots: tuple[int, ...]
    #: threads that read, decode and gather
    threads: int
    #: batches gathered ahead of the consumer
    depth: int
    inflight_bytes: int
    scratch_bytes: int
    batch_bytes: int
    slot_bytes: int
    #: the smallest ceiling that any epoch of this request can run under
    minimum: int
    ceiling: int

    @property
    def peak_bytes(self) -> int:
        """The most that can be resident at once."""
        return self.slot_bytes + self.depth * self.batch_bytes + self.inflight_bytes + self.scratch_bytes


def divide(
    groups: Sequence[AccessGroup], needed: Sequence[int], batch_bytes: int, memory: int | None, limits: Limits
) -> Budget:
    """Divide a ceiling.

    Parameters
    ----------
    needed : sequence of int
        Per group, the units that one batch can use at most.
    memory : int or None
        The ceiling; None for the default, raised to what one batch needs.

    Raises
    ------
    CeilingError
        If the ceiling is below what one batch needs.
    """
    layouts = [layout for group in groups for layout in group.layouts]
    raw = [(x, x.chunk_bytes * x.spec.chunks_per_job) for x in layouts]
    flying = max((size for x, size in raw if x.spec.asynchronous), default=0)
    reading = max((size for x, size in raw if not x.spec.asynchronous), default=0)
    placing = max((x.place_bytes for x in layouts), default=0)
    per_thread = reading + placing
    working = sum(n * g.slot_bytes for n, g in zip(needed, groups, strict=True))
    minimum = working + batch_bytes + flying + per_thread
    ceiling = max(limits.memory, minimum) if memory is None else memory
    if ceiling < minimum:
        raise CeilingError(
            f"memory must be at least {minimum} bytes ({format_bytes(minimum)}), what one batch needs: "
            f"{format_bytes(working)} of chunks, {format_bytes(batch_bytes)} of arrays and "
            f"{format_bytes(flying + per_thread)} to read and decode, but got {memory} ({format_bytes(ceiling)}); "
            "raise memory=, or lower batch_size="
        )
    spare = ceiling - minimum
    # One thread can do it; the others come out of half of what is left, since each decodes in memory of its own.
    threads = 1 + min(limits.threads - 1, spare // (2 * per_thread) if per_thread else limits.threads)
    spare -= (threads - 1) * per_thread
    # Half of what is left at most goes into batches and reads ahead; the rest keeps chunks.
    depth = 1 + min(limits.prefetch - 1, spare // (2 * batch_bytes) if batch_bytes else 0)
    spare -= (depth - 1) * batch_bytes
    extra = min(max(0, limits.inflight_bytes - flying), spare // 2) if flying else 0
    spare -= extra
    slots = _share(groups, needed, spare)
    held = sum(n * g.slot_bytes for n, g in zip(slots, groups, strict=True))
    return Budget(slots, threads, depth, flying + extra, threads * per_thread, batch_bytes, held, minimum, ceiling)


def _share(groups: Sequence[AccessGroup], needed: Sequence[int], spare: int) -> tuple[int, ...]:
    """Slots of each group: what it needs, and of the rest a share in proportion to what it could use."""
    wanted = [(g.n_units - n) * g.slot_bytes for g, n in zip(groups, needed, strict=True)]
    total = sum(wanted)
    slots = []
    for group, n, want in zip(groups, needed, wanted, strict=True):
        share = want if total <= spare else spare * want // total
        slots.append(n + (share // group.slot_bytes if group.slot_bytes else 0))
    return tuple(slots)
