"""Statistics of a piece over every region, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, Scratch, float64, is_numpy, namespace
from .blocks import Block, Piece
from .domain import Domain
from .statistics import Statistic, Weight
from .sums import Node, Sums

#: points of one member that are worked on together: their doubles fit into a core's cache
BLOCK_POINTS = 1 << 16

#: the same on an accelerator, which wants more at once
DEVICE_POINTS = 1 << 23

#: sums along rows that are weighed together, for each point of a block
WEIGHED_NUMBERS = 2

#: what a missing value does
NAN_POLICIES = ("raise", "mask", "propagate")

type Index = tuple[Any, ...]


def scratch_bytes(
    statistics: Iterable[Statistic],
    members: int,
    shape: tuple[int, int],
    itemsize: int = 4,
    regions: int = 16,
    points: int = BLOCK_POINTS,
) -> int:
    """Return about how much memory `measure` takes beside the piece and its result, and rarely more.

    Parameters
    ----------
    statistics : iterable of Statistic
        What is computed.
    members : int
        Number of members, 0 for none.
    shape : (int, int)
        Number of latitudes and longitudes.
    itemsize : int, optional
        Bytes of a stored value.
    regions : int, optional
        Number of regions.
    points : int, optional
        As for `measure`.
    """
    wanted, (rows, columns) = set(statistics), shape
    points = max(columns, _fewer(points, members))
    held = points // columns + rows  # rows of a block of several fields, or of all blocks of one
    whole = 8 * 8 * rows * columns if any(item.whole_field for item in wanted) else 0
    # what statistics share (errors, anomalies, masks), and of members residuals: plain, sorted, and twice as doubles
    shared = 8 * (12 + 2 * len({name for item in wanted for name in item.inputs})) + (members + 1) * (2 * itemsize + 16)
    each = (item.components(members, columns) * (1 if item.per_row else min(regions, 8)) for item in wanted)
    weighed = 4 * max(WEIGHED_NUMBERS * points, held * regions)
    return whole + points * shared + 8 * (held * sum(each) + weighed)


def measure(
    piece: Piece,
    statistics: Iterable[Statistic],
    domain: Domain,
    *,
    nan: str = "raise",
    points: int | None = None,
    scratch: Scratch | None = None,
) -> dict[Statistic, Sums]:
    """Compute statistics over every region of a domain, passing over a piece once.

    Parameters
    ----------
    piece : Piece
        What was read.
    statistics : iterable of Statistic
        What is wanted; equal ones are computed once.
    domain : Domain
        Grid, weights and regions.
    nan : {"raise", "mask", "propagate"}, optional
        What a missing value does: it raises, its point does not count, or it makes the sum missing.
    points : int, optional
        How many are worked on together, which the sums do not depend on; by default what a processor's cache holds.
    scratch : Scratch, optional
        Memory to work in, of the thread that calls.

    Returns
    -------
    dict of Statistic to Sums
        Over the latitude rows of the domain. The arrays have the shape ``(*leading, component, region)``. Sums of other
        bands of rows are merged with ``Sums.merge``, in any order; ``Sums.total`` is the result.

    Raises
    ------
    RequestError
        Where a value is missing and ``nan`` is ``"raise"``; it names variable, input and place.

    Examples
    --------
    >>> import numpy as np
    >>> from insitu_xr_adapters.verification.statistics import Moment
    >>> domain = Domain.make([-45.0, 45.0], [0.0, 180.0], regions=["global", "northern-hemisphere"])
    >>> piece = Piece("t2m", np.full((3, 2, 2), 2.0), np.zeros((3, 2, 2)))
    >>> mse, weight = Moment(("error", "error")), Weight()
    >>> sums = measure(piece, [mse, weight], domain)
    >>> (sums[mse].total / sums[weight].total)[:, 0].tolist()
    [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]
    """
    wanted = checked(piece, statistics, domain, nan)
    size = block_points(piece, points)
    constant = [item for item in wanted if isinstance(item, Weight) and nan == "raise"]
    results: dict[Statistic, dict[Node, np.ndarray]] = {statistic: {} for statistic in wanted}
    scratch = Scratch() if scratch is None else scratch
    for whole in (False, True):
        some = [item for item in wanted if item.whole_field is whole and item not in constant]
        for index in cuts(piece.leading, piece.rows * domain.shape[1], size) if some else ():
            for statistic, sums in _measured(
                piece, some, domain, index, nan, piece.rows * domain.shape[1] if whole else size, scratch
            ):
                for node, value in sums.nodes.items():
                    _put(results[statistic], node, piece.leading, index, value)
    found = {statistic: Sums(domain.shape[0], nodes) for statistic, nodes in results.items()}
    return found | {statistic: _constant(statistic, piece, domain) for statistic in constant}


def checked(piece: Piece, statistics: Iterable[Statistic], domain: Domain, nan: str) -> list[Statistic]:
    """The statistics, each once; raises where a piece is not fit for them."""
    wanted = list(dict.fromkeys(statistics))
    if nan not in NAN_POLICIES:
        raise RequestError(f"nan must be one of {list(NAN_POLICIES)}, but got {nan!r}; name one")
    rows, columns = domain.shape
    if piece.forecast.shape[-1] != columns or piece.start + piece.rows > rows:
        raise RequestError(
            f"a piece of {piece.variable!r} must have rows of the grid {domain.shape}, but got "
            f"{tuple(piece.forecast.shape[-2:])} from row {piece.start} on; cut it along latitudes only"
        )
    for statistic in wanted:
        if statistic.whole_field and piece.rows != rows:
            raise RequestError(
                f"a piece must hold all {rows} latitudes for {statistic.key}, but got {piece.rows}; read whole fields"
            )
    return wanted


def block_points(piece: Piece, points: int | None = None) -> int:
    """Points of a piece that are worked on together: what is given or usual, and fewer where they have many members."""
    if points is None:
        here = is_numpy(piece.forecast) or piece.forecast.device.type == "cpu"
        points = BLOCK_POINTS if here else DEVICE_POINTS
    return _fewer(points, int(piece.forecast.shape[-3]) if piece.members else 0)


def cuts(leading: tuple[int, ...], field: int, size: int) -> Iterator[Index]:
    """Cut leading axes so that a part has about as many points as a block; several fields where these are small."""
    room = max(1, size // field)
    axis = len(leading)
    while axis and math.prod(leading[axis - 1 :]) <= room:
        axis -= 1
    if not axis:
        yield ()
        return
    step = max(1, room // max(1, math.prod(leading[axis:])))
    for outer in np.ndindex(leading[: axis - 1]):
        for first in range(0, leading[axis - 1], step):
            yield (*outer, slice(first, min(first + step, leading[axis - 1])))


def _fewer(points: int, members: int) -> int:
    return points // max(1, members // 4)


def _measured(
    piece: Piece,
    statistics: Sequence[Statistic],
    domain: Domain,
    index: Index,
    nan: str,
    size: int,
    scratch: Scratch,
) -> Iterator[tuple[Statistic, Sums]]:
    """Give the sums ``(*leading, component, region)`` of a part of the leading axes."""
    step = max(1, size // domain.shape[1])
    bands: dict[Statistic, list[list[Array]]] = {statistic: [] for statistic in statistics}
    for first in range(0, piece.rows, step):
        block = Block(piece, domain.latitude, index, slice(first, min(first + step, piece.rows)), scratch)
        for statistic in statistics:
            parts = (_along_rows(statistic, values, block, domain, nan) for values in statistic.values(block))
            bands[statistic].append(list(parts))
        check_missing(piece, block, statistics, index, nan)  # by now it is quickly seen
    kinds: dict[tuple[bool, bool], list[Statistic]] = {}
    for statistic in statistics:
        kinds.setdefault((statistic.weighted, statistic.per_row), []).append(statistic)
    for (weighted, by_row), some in kinds.items():
        components = [parts for statistic in some for parts in zip(*bands[statistic], strict=True)]
        sums = _folded(piece, components, domain, (weighted, by_row), size)
        first = 0
        for statistic in some:
            chosen = slice(first, first := first + len(bands[statistic][0]))
            yield statistic, Sums(sums.length, {node: value[..., chosen, :] for node, value in sums.nodes.items()})


def _folded(
    piece: Piece, components: Sequence[Sequence[Array]], domain: Domain, kind: tuple[bool, bool], size: int
) -> Sums:
    """Weigh the sums along rows for each region, and fold the rows: of many small components together."""
    xp, sums, (weighted, by_row) = namespace(components[0][0]), [], kind
    one = math.prod(components[0][0].shape[:-2]) * len(domain.names) * piece.rows
    step = max(1, WEIGHED_NUMBERS * size // one)
    for first in range(0, len(components), step):
        some = (
            parts[0] if len(parts) == 1 else xp.concatenate(parts, -1) for parts in components[first : first + step]
        )
        rows = domain.weigh(xp.stack(list(some), -3), piece.start, weighted=weighted, whole=by_row)
        sums.append(Sums.of(xp.moveaxis(rows, -1, 0), piece.start, domain.shape[0]))
    return sums[0] if len(sums) == 1 else Sums.join(sums, -2)


def _along_rows(statistic: Statistic, values: Array, block: Block, domain: Domain, nan: str) -> Array:
    present = masked(values, block, statistic, nan)
    if statistic.per_row:
        return present[..., None, :]
    return domain.along_rows(present, block.start, weighted=statistic.weighted)


def _constant(statistic: Weight, piece: Piece, domain: Domain) -> Sums:
    """Weights where nothing is missing: the same for all leading indices."""
    ones, weighted = np.ones((piece.rows, domain.shape[1])), statistic.weighted
    by_row = statistic.per_row
    along = ones[:, 0][None] if by_row else domain.along_rows(ones, piece.start, weighted=weighted)
    rows = domain.weigh(along, piece.start, weighted=weighted, whole=by_row)
    sums = Sums.of(np.moveaxis(rows, -1, 0), piece.start, domain.shape[0])
    shape = (*piece.leading, 1, len(domain.names))
    return Sums(sums.length, {node: np.broadcast_to(value, shape).copy() for node, value in sums.nodes.items()})


def masked(values: Array, block: Block, statistic: Statistic, nan: str) -> Array:
    """Put 0 where points do not count, or make missing what would be compared with something missing."""
    values = float64(values)
    if nan == "raise" or isinstance(statistic, Weight) or block.complete(statistic.inputs):
        return values
    valid = block.valid(statistic.inputs)
    valid = valid.all(-1) if statistic.per_row else valid
    xp = namespace(values)
    return xp.where(valid, values, xp.full_like(values, 0.0 if nan == "mask" else xp.nan))


def check_missing(piece: Piece, block: Block, statistics: Sequence[Statistic], index: Index, nan: str) -> None:
    """Raise where a value is missing that may not be."""
    if nan != "raise":
        return
    for name in dict.fromkeys(name for statistic in statistics for name in statistic.inputs):
        if not block.complete((name,)):
            raise RequestError(
                f"values of {piece.variable!r} must be present, but got a missing one in the {_called(name)} at "
                f"{piece.place(_first_missing(block, name, index))}; pass nan='mask' to leave such points out, or "
                "nan='propagate'"
            )


def _called(name: str) -> str:
    return name if name in ("forecast", "reference") else f"climatology ({name})"


def _first_missing(block: Block, name: str, index: Index) -> tuple[int, ...]:
    missing = ~block.valid((name,))
    inner = [int(axis[0]) for axis in namespace(missing).where(missing)]
    found = [item if isinstance(item, int) else item.start + inner.pop(0) for item in index]
    *between, row, column = inner
    return (*found, *between, row + block.start, column)


def _put(nodes: dict[Node, np.ndarray], node: Node, leading: tuple[int, ...], index: Index, value: Any) -> None:
    if node not in nodes:
        nodes[node] = np.empty((*leading, *value.shape[-2:]))
    nodes[node][index] = value
