"""Sharding: which part of an epoch's order belongs to a rank, and which samples repeat to make the parts equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray

Partial = Literal["drop", "pad"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``world_size`` equal parts of an epoch.

    Every part is a contiguous stretch of the epoch's order, so that two ranks share the chunks at a border at most.

    Attributes
    ----------
    partial : {"drop", "pad"}
        What to do with samples that cannot be divided equally: leave the last ones of the order out, or give every
        rank one more and repeat samples from the start of the order.
    given : bool
        Whether somebody chose the rank; a framework that knows of ranks may choose it otherwise.

    Examples
    --------
    >>> [Shard(rank, 3, "pad").places(7).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    >>> [Shard(rank, 3, "drop").places(7).tolist() for rank in range(3)]
    [[0, 1], [2, 3], [4, 5]]
    >>> Shard(2, 3, "pad").own(7)
    1
    """

    rank: int = 0
    world_size: int = 1
    partial: Partial = "drop"
    given: bool = False

    @classmethod
    def checked(cls, n: int, rank: Any, world_size: Any, partial: Any) -> Self:
        """One of the parts of n samples; the only one where neither a rank nor their number is given.

        Raises
        ------
        RequestError
            If there is no such part, or it is left without samples.
        """
        given = rank is not None or world_size is not None
        rank, world = 0 if rank is None else rank, 1 if world_size is None else world_size
        for name, value, least in (("world_size", world, 1), ("rank", rank, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise RequestError(f"{name} must be a whole number of at least {least}, but got {value!r}; give one")
        if rank >= world:
            raise RequestError(f"rank must be below world_size, {world}, but got {rank}; count ranks from 0")
        if partial not in ("drop", "pad"):
            raise RequestError(f"partial must be 'drop' or 'pad', but got {partial!r}; give one of them")
        shard = cls(int(rank), int(world), partial, given)
        if not shard.size(n):
            raise RequestError(
                f"world_size must be at most the {n} anchors with partial='drop', but got {world}; use fewer ranks, or "
                "partial='pad'"
            )
        return shard

    def size(self, n: int) -> int:
        """Samples of every rank."""
        return n // self.world_size if self.partial == "drop" else -(-n // self.world_size)

    def used(self, n: int) -> int:
        """Places of the order that belong to any rank; the rest is dropped."""
        return min(n, self.size(n) * self.world_size)

    def repeated(self, n: int) -> int:
        """Samples that repeat, over all ranks."""
        return self.size(n) * self.world_size - self.used(n)

    def own(self, n: int) -> int:
        """Samples of this rank before those that repeat."""
        size = self.size(n)
        return min(max(n - self.rank * size, 0), size)

    def places(self, n: int) -> IntArray:
        """Places in the order of an epoch that belong to this rank."""
        size = self.size(n)
        places = np.arange(self.rank * size, (self.rank + 1) * size, dtype=np.int64)
        return places % n if n else places
