"""The ceiling divided: slots, prefetched batches, reads in flight and the scratch of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from insitu_xr.errors import CeilingError
from insitu_xr.limits import Limits, format_bytes
from insitu_xr.plan.reads import AccessGroup


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory of a loader is used; everything in bytes except the counts."""

    #: slots of each access group, and how many of them one batch can need
    slots: tuple[int, ...]
    needed: tuple[int, ...]
    #: threads that read, decode and gather
    threads: int
    #: batches that are written to or wait for the consumer, at first
    depth: int
    #: and at most
    most: int
    inflight_bytes: int
    scratch_bytes: int
    batch_bytes: int
    slot_bytes: int
    #: the smallest ceiling that any epoch of this request can run under
    minimum: int
    ceiling: int

    @property
    def peak_bytes(self) -> int:
        """The most that can be resident at once; one more batch is in the consumer's hands."""
        return self.slot_bytes + (self.most + 1) * self.batch_bytes + self.inflight_bytes + self.scratch_bytes


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
    placing = _Placing.of(groups)
    working = sum(n * g.slot_bytes for n, g in zip(needed, groups, strict=True))
    minimum = working + 2 * batch_bytes + placing.flying + placing.per_thread
    ceiling = max(limits.memory, minimum) if memory is None else memory
    if ceiling < minimum:
        raise CeilingError(
            f"memory must be at least {minimum} bytes ({format_bytes(minimum)}), what one batch needs: "
            f"{format_bytes(working)} of chunks, {format_bytes(2 * batch_bytes)} of arrays (one batch is made while "
            f"another is used) and {format_bytes(placing.flying + placing.per_thread)} to read and decode, but got "
            f"{memory} ({format_bytes(ceiling)}); raise memory=, or lower batch_size="
        )
    spare = ceiling - minimum
    threads = placing.threads(limits, spare // 2)
    spare -= (threads - 1) * placing.per_thread
    # Half of what is left at most goes into batches and reads ahead; the rest keeps chunks.
    depth = 1 + min(limits.prefetch, spare // (2 * batch_bytes) if batch_bytes else 0)
    spare -= (depth - 1) * batch_bytes
    extra = placing.extra(limits, spare // 2)
    spare -= extra
    slots = _share(groups, needed, spare)
    return Budget(
        slots=slots,
        needed=tuple(needed),
        threads=threads,
        depth=depth,
        most=depth,
        inflight_bytes=placing.flying + extra,
        scratch_bytes=threads * placing.per_thread,
        batch_bytes=batch_bytes,
        slot_bytes=sum(n * g.slot_bytes for n, g in zip(slots, groups, strict=True)),
        minimum=minimum,
        ceiling=ceiling,
    )


def divide_spread(
    groups: Sequence[AccessGroup], spread: Sequence[bool], window: int, kept: Budget, limits: Limits
) -> Budget | None:
    """Divide a ceiling where some groups need no slots, since their chunks go into the batches as they are decoded.

    Parameters
    ----------
    spread : sequence of bool
        Which groups those are.
    window : int
        Batches that must be open at once.
    kept : Budget
        The same ceiling divided for slots alone.

    Returns
    -------
    Budget or None
        None if there is no room for the window.
    """
    placing, size = _Placing.of(groups), kept.batch_bytes
    needed = tuple(0 if free else n for free, n in zip(spread, kept.needed, strict=True))
    working = sum(n * g.slot_bytes for n, g in zip(needed, groups, strict=True))
    # A batch that waits for the consumer must not keep the next one from being begun.
    depth = max(window, 2)
    spare = kept.ceiling - working - (depth + 1) * size - placing.flying - placing.per_thread
    if spare < 0:
        return None
    threads = placing.threads(limits, spare // 2)
    spare -= (threads - 1) * placing.per_thread
    extra = placing.extra(limits, spare // 2)
    spare -= extra
    # Reads are under way for open batches alone, so many of those are needed where each takes long to come.
    wanted = max(window + limits.prefetch, -(-(placing.flying + extra) // max(1, size)))
    more = min(wanted, spare // (2 * size) if size else 0)
    spare -= more * size
    depth += more if extra else 0
    slots = _share(groups, needed, spare, spread)
    return replace(
        kept,
        slots=slots,
        needed=needed,
        threads=threads,
        depth=depth,
        most=depth if extra else depth + more,
        inflight_bytes=placing.flying + extra,
        scratch_bytes=threads * placing.per_thread,
        slot_bytes=sum(n * g.slot_bytes for n, g in zip(slots, groups, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _Placing:
    """What reading and decoding needs, in bytes."""

    #: the largest read on zarr's loop
    flying: int
    #: the largest read of a thread, and what it decodes in
    per_thread: int

    @classmethod
    def of(cls, groups: Sequence[AccessGroup]) -> _Placing:
        layouts = [layout for group in groups for layout in group.layouts]
        raw = [(x, x.chunk_bytes * x.spec.chunks_per_job) for x in layouts]
        flying = max((size for x, size in raw if x.spec.asynchronous), default=0)
        reading = max((size for x, size in raw if not x.spec.asynchronous or x.spec.mixed), default=0)
        return cls(flying, reading + max((x.place_bytes for x in layouts), default=0))

    def threads(self, limits: Limits, room: int) -> int:
        """One thread can do it; the others decode in memory of their own."""
        return 1 + min(limits.threads - 1, room // self.per_thread if self.per_thread else limits.threads)

    def extra(self, limits: Limits, room: int) -> int:
        """Bytes of more reads on the loop."""
        return min(max(0, limits.inflight_bytes - self.flying), room) if self.flying else 0


def _share(
    groups: Sequence[AccessGroup], needed: Sequence[int], spare: int, without: Sequence[bool] | None = None
) -> tuple[int, ...]:
    """Slots of each group: what it needs, and of the rest a share in proportion to what it could use."""
    without = without or [False] * len(groups)
    wanted = [0 if none else (g.n_units - n) * g.slot_bytes for g, n, none in zip(groups, needed, without, strict=True)]
    total = sum(wanted)
    slots = []
    for group, n, want in zip(groups, needed, wanted, strict=True):
        share = want if total <= spare else spare * want // total
        slots.append(n + (share // group.slot_bytes if group.slot_bytes else 0))
    return tuple(slots)
