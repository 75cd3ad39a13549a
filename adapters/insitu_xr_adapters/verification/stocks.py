"""What reading a dataset takes: its chunks, and what of them is in memory at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from insitu_xr.limits import Limits
from insitu_xr_adapters.verification.setup import Feed
from insitu_xr_adapters.verification.times import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """What pairs want of some variables of a dataset that are cut into chunks alike.

    Attributes
    ----------
    units : array of int64, shape (inits, leads, uses)
        Number of what is read together for each pair and use: for one chunk along the dimensions that pairs choose
        along, all chunks of the field.
    unit_bytes : int
        Decoded bytes of one of them, cropped to what is wanted.
    n_units : int
        How many there are.
    variables : int
        Number of the variables.
    chunks : int
        Stored chunks of one unit.
    chunk_bytes : int
        Decoded bytes of a stored chunk, padding included.
    edges : array of int64
        Latitude rows, of those that are read, at which a chunk begins, and their number.
    """

    units: IntArray
    unit_bytes: int
    n_units: int
    variables: int
    chunks: int
    chunk_bytes: int
    edges: IntArray

    def of(self, pairs: IntArray) -> IntArray:
        """Units of pairs, one pair after another."""
        return self.units.reshape(-1, self.units.shape[-1])[pairs].ravel()

    def alive(self, pieces: Sequence[IntArray]) -> int:
        """The most units that are wanted at once, where each stays from its first piece to its last.

        Examples
        --------
        >>> use = Use(np.array([[[0], [1]], [[1], [2]]]), 10, 3, 1, 1, 10, np.array([0, 4]))
        >>> use.alive([np.array([0, 1]), np.array([2, 3])])
        2
        """
        number = np.repeat(np.arange(len(pieces)), [len(p) for p in pieces])
        _, unit = np.unique(self.of(np.concatenate(pieces)), return_inverse=True)
        n, when = int(unit.max(initial=-1)) + 1, np.repeat(number, self.units.shape[-1])
        first, last = np.full(n, len(pieces)), np.zeros(n, np.int64)
        np.minimum.at(first, unit, when)
        np.maximum.at(last, unit, when)
        begun, ended = (np.bincount(x, minlength=len(pieces) + 1) for x in (first, last + 1))
        return int(np.cumsum(begun - ended).max(initial=0))


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """What reading a dataset takes.

    Attributes
    ----------
    uses : tuple of Use
    thread_bytes : int
        What a thread reads and decodes in.
    flying_bytes : int
        The largest read on the event loop, 0 where reads are synchronous.
    sample_bytes : int
        Bytes of what a pair is given.
    """

    name: str
    uses: tuple[Use, ...]
    thread_bytes: int
    flying_bytes: int
    sample_bytes: int

    @classmethod
    def of(cls, feed: Feed, rows: slice) -> Stock:
        """Look at the chunks of some rows of a dataset; reads no data."""
        ds = feed.matched.band(rows)
        plan = ds.insitu.plan([str(n) for n in ds.data_vars], sample_dim=feed.dims, batch_size=1)
        uses = tuple(_use(feed, group) for group in plan.groups)
        waited = any(x.spec.asynchronous for g in plan.groups for x in g.layouts)
        raw = [x.chunk_bytes * x.spec.chunks_per_job for g in plan.groups for x in g.layouts]
        placed = max((x.place_bytes for g in plan.groups for x in g.layouts), default=0)
        sample = sum(
            math.prod(n for d, n in ds[v].sizes.items() if d not in feed.dims) * ds[v].dtype.itemsize
            for v in ds.data_vars
        )
        read = max(raw, default=0)
        thread = placed if waited else placed + read
        return cls(feed.name, uses, thread, read if waited else 0, sample * len(feed.asks))

    def needed(self, pieces: Sequence[IntArray], part: float = 1) -> int:
        """The ceiling under which each chunk is read once, for a part of the field."""
        if not self.uses:
            return 0
        sizes = [math.ceil(u.unit_bytes * part) for u in self.uses]
        kept = sum((u.n_units - 1) * s for u, s in zip(self.uses, sizes, strict=True))
        # What is not needed at all times is shared out in proportion to what each could use, in whole units.
        wanted = [(u.alive(pieces) + u.variables) * kept / (u.n_units - 1) for u in self.uses if u.n_units > 1]
        spare = min(kept, math.ceil(max(wanted, default=0)))
        spare += min(Limits().inflight_bytes, spare) if self.flying_bytes else 0
        threads = min(spare, (Limits().threads - 1) * self.thread_bytes)
        return sum(sizes) + self.flying_bytes + self.thread_bytes + spare + threads


def _use(feed: Feed, group: Any) -> Use:
    matched = feed.matched
    shape = next(iter(feed.asks.values()))[0].shape
    units = np.zeros((*shape, len(feed.asks)), np.int64)
    for number, positions in enumerate(feed.asks.values()):
        for dim, along in zip(group.first.sample_dims, group.first.units, strict=True):
            units[..., number] *= along.n_units
            units[..., number] += along.unit[positions[feed.dims.index(dim)]]
    edges = np.arange(group.first.field_shape[group.first.field_dims.index(matched.roles.latitude)] + 1)
    for layout in group.layouts:
        edges = np.intersect1d(edges, _edges(layout, matched.roles.latitude, matched.flipped))
    return Use(
        units,
        group.slot_bytes,
        group.n_units,
        len(group.layouts),
        int(group.cells_per_unit[0]) if group.n_units else 0,
        max(x.chunk_bytes for x in group.layouts),
        edges,
    )


def _edges(layout: Any, latitude: str, flipped: bool) -> IntArray:
    """Rows of the grid at which another chunk begins in all segments, 0 and the number of rows among them."""
    rows = layout.field_shape[layout.field_dims.index(latitude)]
    shared = np.arange(rows + 1)
    for segment in layout.spec.segments:
        if latitude in segment.dims:
            axis = segment.dims.index(latitude)
            chunk = segment.grids[axis].chunk_of(np.asarray(segment.index[axis]))
            own = np.flatnonzero(np.diff(chunk)) + 1
            shared = np.intersect1d(shared, np.concatenate([[0], rows - own[::-1] if flipped else own, [rows]]))
    return shared.astype(np.int64)
