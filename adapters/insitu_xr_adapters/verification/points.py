"""Statistics at every point: what maps of scores are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, Scratch, is_numpy
from .blocks import Block, Piece
from .domain import Domain
from .measure import Index, block_points, check_missing, checked, cuts, masked
from .statistics import Statistic, Weight
from .sums import Sums


def measure_points(
    piece: Piece,
    statistics: Iterable[Statistic],
    domain: Domain,
    start: int,
    length: int,
    *,
    nan: str = "raise",
    points: int | None = None,
    scratch: Scratch | None = None,
) -> dict[Statistic, Sums]:
    """Compute statistics at every point, summed over the first leading axis of a piece.

    Parameters
    ----------
    piece, statistics, domain, nan, points, scratch
        As for `measure`; regions and weights of the domain do not count. Statistics of whole rows are refused.
    start, length : int
        Position of the first entry of the axis among all that are summed, and their number.

    Returns
    -------
    dict of Statistic to Sums
        Over that axis; arrays of the shape ``(*other leading axes, component, latitude, longitude)``.
    """
    wanted = checked(piece, statistics, domain, nan)
    if by_row := [statistic.key for statistic in wanted if statistic.per_row]:
        raise RequestError(
            f"statistics at points must be of points, but got {by_row[0]}, which is of whole rows; "
            "reduce latitude and longitude as well"
        )
    scratch = Scratch() if scratch is None else scratch
    entries = [_entry(piece, wanted, domain, entry, nan, points, scratch) for entry in range(piece.leading[0])]
    return {item: Sums.of(np.stack([fields[item] for fields in entries]), start, length) for item in wanted}


def _entry(
    piece: Piece,
    statistics: Sequence[Statistic],
    domain: Domain,
    entry: int,
    nan: str,
    points: int | None,
    scratch: Scratch,
) -> dict[Statistic, np.ndarray]:
    """Statistics of one entry of the first leading axis, a block at a time."""
    rest, rows, columns = piece.leading[1:], piece.rows, domain.shape[1]
    members = int(piece.forecast.shape[-3]) if piece.members else 0
    found = {item: np.empty((*rest, item.components(members, columns), rows, columns)) for item in statistics}
    for whole in (False, True):
        some = [item for item in statistics if item.whole_field is whole]
        size = rows * columns if whole else block_points(piece, points)
        step = max(1, size // columns)
        for index in cuts(rest, rows * columns, size) if some else ():
            for first in range(0, rows, step):
                band = slice(first, min(first + step, rows))
                block = Block(piece, domain.latitude, (entry, *index), band, scratch)
                for item in some:
                    _place(item, block, found[item], (*index, ..., band, slice(None)), nan)
                check_missing(piece, block, some, (entry, *index), nan)
    return found


def _place(statistic: Statistic, block: Block, out: np.ndarray, index: Index, nan: str) -> None:
    """Compute a statistic of a block where it belongs."""
    by_component = np.moveaxis(out, -3, 0)
    if isinstance(statistic, Weight) and nan == "raise":
        by_component[(slice(None), *index)] = 1.0
        return
    for number, values in enumerate(statistic.values(block)):
        by_component[(number, *index)] = _here(masked(values, block, statistic, nan))


def _here(values: Array) -> np.ndarray:
    return np.asarray(values if is_numpy(values) else values.cpu().numpy())
