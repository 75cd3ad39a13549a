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

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import CeilingError
from insitu_xr.limits import format_bytes
from insitu_xr_adapters.verification.stocks import Stock
from insitu_xr_adapters.verification.times import IntArray

#: bytes of the fields of a piece, at which more of them at once gain nothing
PIECE_BYTES = 16 << 20


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
        Rows of latitude that are read; every band goes through all pieces.
    needed : mapping of dataset to int
        The ceiling of each dataset under which each of its chunks is read once.
    held_bytes : int
        Bytes of the pieces that are there at once, and of what is kept of a band.
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


def nothing(rows: slice) -> Sweep:
    """The order of a run that has nothing to read."""
    return Sweep("init times", (), (rows,), {}, 0)


def choose(
    stocks: Sequence[Stock],
    wanted: npt.NDArray[np.bool_],
    valid: IntArray,
    yearly: IntArray | None,
    rows: slice,
    room: int,
    *,
    held: int,
    strict: bool,
    whole: bool = False,
    row_bytes: int = 0,
) -> Sweep:
    """Choose an order.

    Parameters
    ----------
    wanted, valid : arrays, shape (inits, leads)
        Which pairs are read, and their valid times.
    yearly : array, shape (inits,), optional
        Days of the year of the init times, where a climatology is read.
    rows : slice
        Latitude rows that are read.
    room : int
        What chunks and pieces may hold.
    held : int
        Pieces that are there at once.
    strict : bool
        Whether there is no more than that.
    whole : bool
        Whether a statistic needs whole fields.
    row_bytes : int
        What is kept for each row of a band while it is read.

    Raises
    ------
    CeilingError
        If nothing fits; it says how many bytes are lacking.
    """
    orders = _orders(stocks, wanted, valid, yearly)
    sweeps = []
    for name, blocks in orders.items():
        sweeps.append(_sweep(name, stocks, blocks, (rows,), room, held, row_bytes))
        if sweeps[-1].bytes <= room:
            return sweeps[-1]
    best = min(sweeps, key=lambda s: s.bytes)
    banded = None if whole else _banded(stocks, orders[best.name], best, room, held, row_bytes)
    if banded is None and strict:
        lacking = best.bytes - room
        raise CeilingError(
            f"memory must hold what is wanted at once so that each chunk is read once, but got {lacking} bytes "
            f"({format_bytes(lacking)}) too few; raise memory= by them, or score fewer variables, levels or models at "
            "once"
        )
    return banded or best


def _sweep(
    name: str,
    stocks: Sequence[Stock],
    blocks: Sequence[IntArray],
    bands: tuple[slice, ...],
    room: int,
    held: int,
    row_bytes: int,
) -> Sweep:
    rows, tallest = bands[-1].stop - bands[0].start, max(b.stop - b.start for b in bands)
    pair = math.ceil(sum(s.sample_bytes for s in stocks) * tallest / rows)
    pieces = _pieces(blocks, pair, min(PIECE_BYTES, room // (4 * held)))
    held_bytes = held * pair * max(len(p) for p in pieces) + row_bytes * tallest
    return Sweep(name, pieces, bands, {s.name: s.needed(pieces, tallest / rows) for s in stocks}, held_bytes)


def _banded(
    stocks: Sequence[Stock], blocks: Sequence[IntArray], best: Sweep, room: int, held: int, row_bytes: int
) -> Sweep | None:
    """The same order in the highest bands of latitude that fit; None where not even the lowest do."""
    first, rows = best.bands[0].start, best.bands[0].stop - best.bands[0].start
    edges = np.arange(rows + 1)
    for use in (use for stock in stocks for use in stock.uses):
        edges = np.intersect1d(edges, use.edges)
    fitting = None
    low, high = 1, len(edges) - 2  # intervals between edges that go into one band
    while low <= high:
        middle = (low + high) // 2
        cuts = [*edges[:-1:middle].tolist(), rows]
        bands = tuple(slice(first + a, first + b) for a, b in itertools.pairwise(cuts))
        sweep = _sweep(best.name, stocks, blocks, bands, room, held, row_bytes)
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
            pieces.extend(np.array_split(block, -(-len(block) // size)))
    return tuple(pieces)
