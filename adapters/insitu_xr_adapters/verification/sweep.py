"""In which order everything is read, and what that costs: chosen from the shapes of the chunks, before any read.

A *pair* is one init and one lead time. Pairs are read in *pieces*, in an order that keeps few chunks in memory for
long: each chunk is wanted from its first piece to its last one, so that the most that is ever wanted at once is a plain
count. Where that is too much for the ceiling, the field is cut into bands of latitude, along edges that all chunks
share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import CeilingError
from insitu_xr.limits import Limits, format_bytes
from insitu_xr_adapters.verification.align import IntArray
from insitu_xr_adapters.verification.requesting import Feed

#: bytes of the fields of a piece, at which more of them at once gain nothing
PIECE_BYTES = 8 << 20
#: pieces that are there at once besides those that are measured: one that is ready, and one that is made
SPARE_PIECES = 2


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
        Latitude rows at which a chunk begins, and the number of rows.
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
    def of(cls, feed: Feed) -> Stock:
        """Look at the chunks of a dataset; reads no data."""
        ds = feed.matched.ds
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
    edges = np.arange(matched.ds.sizes[matched.roles.latitude] + 1)
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


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The order of a run.

    Attributes
    ----------
    name : str
        "init times", "valid times" or "days of the year": what the order follows.
    pieces : tuple of array of int64
        Pairs of each piece, as flat indices of (inits, leads).
    bands : tuple of slice
        Rows of latitude; every band goes through all pieces.
    needed : mapping of dataset to int
        The ceiling of each dataset under which each of its chunks is read once.
    held_bytes : int
        Bytes of the pieces that are there at once.
    """

    name: str
    pieces: tuple[IntArray, ...]
    bands: tuple[slice, ...]
    needed: Mapping[str, int]
    held_bytes: int

    @property
    def bytes(self) -> int:
        """Of everything that is read and held."""
        return sum(self.needed.values()) + self.held_bytes


def nothing(rows: int) -> Sweep:
    """The order of a run that has nothing to read."""
    return Sweep("init times", (), (slice(0, rows),), {}, 0)


def choose(
    stocks: Sequence[Stock],
    wanted: npt.NDArray[np.bool_],
    valid: IntArray,
    yearly: IntArray | None,
    rows: int,
    room: int,
    *,
    held: int,
    strict: bool,
    whole: bool = False,
) -> Sweep:
    """Choose an order.

    Parameters
    ----------
    wanted, valid : arrays, shape (inits, leads)
        Which pairs are read, and their valid times.
    yearly : array, shape (inits,), optional
        Days of the year of the init times, where a climatology is read.
    rows : int
        Latitude rows.
    room : int
        What chunks and pieces may hold.
    held : int
        Pieces that are there at once.
    strict : bool
        Whether there is no more than that.
    whole : bool
        Whether a statistic needs whole fields.

    Raises
    ------
    CeilingError
        If nothing fits; it says how many bytes are lacking.
    """
    orders = _orders(stocks, wanted, valid, yearly)
    sweeps = []
    for name, blocks in orders.items():
        sweeps.append(_sweep(name, stocks, blocks, (slice(0, rows),), room, held))
        if sweeps[-1].bytes <= room:
            return sweeps[-1]
    best = min(sweeps, key=lambda s: s.bytes)
    banded = None if whole else _banded(stocks, orders[best.name], best, room, held)
    if banded is None and strict:
        lacking = best.bytes - room
        raise CeilingError(
            f"memory must hold what is wanted at once so that each chunk is read once, but got {lacking} bytes "
            f"({format_bytes(lacking)}) too few; raise memory= by them, or score fewer variables, levels or models at "
            "once"
        )
    return banded or best


def _sweep(
    name: str, stocks: Sequence[Stock], blocks: Sequence[IntArray], bands: tuple[slice, ...], room: int, held: int
) -> Sweep:
    rows, tallest = bands[-1].stop, max(b.stop - b.start for b in bands)
    pair = math.ceil(sum(s.sample_bytes for s in stocks) * tallest / rows)
    pieces = _pieces(blocks, pair, min(PIECE_BYTES, room // (4 * held)))
    held_bytes = held * pair * max(len(p) for p in pieces)
    return Sweep(name, pieces, bands, {s.name: s.needed(pieces, tallest / rows) for s in stocks}, held_bytes)


def _banded(stocks: Sequence[Stock], blocks: Sequence[IntArray], best: Sweep, room: int, held: int) -> Sweep | None:
    """The same order in the highest bands of latitude that fit; None where not even the lowest do."""
    rows = best.bands[0].stop
    edges = np.arange(rows + 1)
    for use in (use for stock in stocks for use in stock.uses):
        edges = np.intersect1d(edges, use.edges)
    fitting = None
    low, high = 1, len(edges) - 2  # intervals between edges that go into one band
    while low <= high:
        middle = (low + high) // 2
        cuts = [*edges[:-1:middle].tolist(), rows]
        bands = tuple(slice(a, b) for a, b in itertools.pairwise(cuts))
        sweep = _sweep(best.name, stocks, blocks, bands, room, held)
        if sweep.bytes <= room:
            fitting, low = sweep, middle + 1
        else:
            high = middle - 1
    return fitting


def _orders(
    stocks: Sequence[Stock], wanted: npt.NDArray[np.bool_], valid: IntArray, yearly: IntArray | None
) -> dict[str, list[IntArray]]:
    """Blocks of pairs that lie in one chunk of every forecast, in the orders that may pay."""
    pairs = np.flatnonzero(wanted)
    init, lead = np.unravel_index(pairs, wanted.shape)
    block = blocks(stocks, wanted)[init]
    found = {"init times": _grouped(pairs, (block, init, lead), block)}
    if yearly is not None:
        # Days of the year come round: what years share of a climatology is wanted at once.
        _, first = np.unique(block, return_index=True)
        day = yearly[init[first]][block] * (block.max() + 1) + block
        found["days of the year"] = _grouped(pairs, (day, init, lead), day)
    flat = valid.ravel()[pairs]
    return found | {"valid times": _grouped(pairs, (flat, init), flat)}


def blocks(stocks: Sequence[Stock], wanted: npt.NDArray[np.bool_]) -> IntArray:
    """Number of the block of each init: inits in one chunk of a forecast are in one block."""
    joined = np.zeros(len(wanted), bool)  # whether an init is in the block of the one before
    for use in (use for stock in stocks if stock.name.startswith("forecast") for use in stock.uses):
        joined[1:] |= (use.units[1:] == use.units[:-1]).any(axis=(1, 2))
    # Blocks without a wanted pair have no number.
    number = np.cumsum(~joined) - 1
    return np.searchsorted(np.unique(number[wanted.any(axis=1)]), number)


def _grouped(pairs: IntArray, keys: tuple[IntArray, ...], groups: IntArray) -> list[IntArray]:
    """Pairs sorted by keys, cut where the group changes."""
    order = np.lexsort(keys[::-1])
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(pairs[order], cuts)


def _pieces(blocks: Sequence[IntArray], pair_bytes: int, most: int) -> tuple[IntArray, ...]:
    """Cut blocks that are too large for a piece, and put together those that are small."""
    size = max(1, most // max(1, pair_bytes))
    pieces: list[IntArray] = []
    for block in blocks:
        if pieces and len(pieces[-1]) + len(block) <= size:
            pieces[-1] = np.concatenate([pieces[-1], block])
        else:
            pieces.extend(block[k : k + size] for k in range(0, len(block), size))
    return tuple(pieces)
