"""Statistics of ensembles: spread, the parts of CRPS and of the energy score, and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import override

from insitu_xr.errors import RequestError

from .arrays import Array, added, difference, float64, namespace, wide_difference
from .blocks import Block
from .statistics import Statistic


@dataclass(frozen=True)
class EnsembleVariance(Statistic):
    """Variance of the members, divided by their number less one."""

    def values(self, block: Block) -> Iterator[Array]:
        """Give the variance; that of one member is missing."""
        yield variance(block)


@dataclass(frozen=True)
class MemberAbsoluteError(Statistic):
    """Mean absolute error of the members: the skill part of CRPS."""

    def values(self, block: Block) -> Iterator[Array]:
        """Give the mean over the members of the absolute error."""
        departures = block.departures
        apart = namespace(departures).abs(departures, out=block.room("members", tuple(departures.shape)))
        yield block.mean(apart, "values")


@dataclass(frozen=True)
class MemberDistance(Statistic):
    """Mean absolute difference between members: the spread part of CRPS.

    Attributes
    ----------
    fair : bool
        Whether a member is not compared with itself, so that the mean does not depend on how many there are.
    """

    fair: bool = True

    def values(self, block: Block) -> Iterator[Array]:
        """Give the mean difference; 0 for one member."""
        count = max(block.members, 1)
        ordered = sorted_members(block)
        error = block.error
        total = namespace(error).multiply(error, 0.0, out=block.room("values", tuple(error.shape)))
        for rank in range(count // 2):  # the outermost two differ in all comparisons across, the next in two less
            apart = wide_difference(ordered[count - 1 - rank], ordered[rank], block.room("apart", tuple(error.shape)))
            apart *= count - 1 - 2 * rank
            total += apart
        total *= 2 / (count * max(count - 1, 1) if self.fair else count * count)
        yield total


@dataclass(frozen=True)
class EnergyDistances(Statistic):
    """Squared distances that the energy score is made of: of each member to the reference, then between members.

    Attributes
    ----------
    adjacent : bool
        Whether only neighbouring members are compared, as WeatherBench2 does, instead of all pairs.
    area : bool
        Whether points count by weight.
    """

    adjacent: bool = False
    area: bool = True

    @property
    @override
    def weighted(self) -> bool:
        return self.area

    def pairs(self, members: int) -> list[tuple[int, int]]:
        """Return the pairs of members that are compared."""
        if self.adjacent:
            return [(member, member + 1) for member in range(members - 1)]
        return [(first, second) for first in range(members) for second in range(first + 1, members)]

    @override
    def components(self, members: int, columns: int) -> int:
        return members + len(self.pairs(members))

    def values(self, block: Block) -> Iterator[Array]:
        """Give the squares of each difference."""
        for member in range(block.members):
            yield block.departures[member] ** 2
        for first, second in self.pairs(block.members):
            yield float64(difference(block.forecast[first], block.forecast[second])) ** 2


@dataclass(frozen=True)
class RankCounts(Statistic):
    """How often the reference has each rank among the members.

    Attributes
    ----------
    ties : {"lowest", "split"}
        Where members equal the reference: its rank is the number of those below it, or it counts in equal shares in
        all ranks that it may have, which is what ranks drawn at random are on average.
    area : bool
        Whether points count by weight.
    """

    ties: str = "lowest"
    area: bool = True

    def __post_init__(self) -> None:
        if self.ties not in ("lowest", "split"):
            raise RequestError(f"ties must be 'lowest' or 'split', but got {self.ties!r}; name one of them")

    @property
    @override
    def weighted(self) -> bool:
        return self.area

    @override
    def components(self, members: int, columns: int) -> int:
        return members + 1

    def values(self, block: Block) -> Iterator[Array]:
        """Give for each rank from 0 to the number of members whether the reference has it."""
        below = (block.residuals < 0).sum(0)
        if self.ties == "lowest":
            for rank in range(block.members + 1):
                yield below == rank
            return
        ties = (block.residuals == 0).sum(0)
        share = 1.0 / float64(ties + 1)
        for rank in range(block.members + 1):
            yield share * ((below <= rank) & (rank <= below + ties))


def variance(block: Block) -> Array:
    """Return the variance of the members, computed once."""
    return block.once("variance", lambda: _variance(block))


def _variance(block: Block) -> Array:
    departures, xp = block.departures, namespace(block.departures)
    squares = xp.subtract(departures, block.error, out=block.room("members", tuple(departures.shape)))
    squares *= squares
    total = added(squares, block.room("variance", tuple(block.error.shape)))
    total /= block.members - 1 if block.members > 1 else float("nan")
    return total


def sorted_members(block: Block) -> list[Array]:
    """Return the residuals in ascending order, by the same comparisons for every kind of array."""
    ordered: list[Array] = block.once("sorted", lambda: _sorted(block))
    return ordered


def _sorted(block: Block) -> list[Array]:
    if not block.members:
        return [block.residuals]
    xp, residuals = namespace(block.residuals), block.residuals
    ordered, rows = [*residuals], _rows(block)
    own: set[int] = set()  # ranks that are no longer in the residuals, which others need as they are
    for first, second in _network(block.members):
        low, high = ordered[first], ordered[second]
        ordered[first], ordered[second] = rows.pop(), high if second in own else rows.pop()
        xp.minimum(low, high, out=ordered[first])
        xp.maximum(low, high, out=ordered[second])
        rows += [low] if first in own else []
        own |= {first, second}
    return ordered


def _rows(block: Block) -> list[Array]:
    """Room for each member, and for one more."""
    residuals = block.residuals
    shape = (block.members + 1, *residuals.shape[1:])
    room = block.room("sorted", shape, residuals.dtype)
    return [*(namespace(residuals).empty_like(residuals[0]) for _ in range(shape[0]))] if room is None else [*room]


@cache
def _network(size: int) -> tuple[tuple[int, int], ...]:
    """Comparisons that sort any ``size`` values (Batcher's merge exchange): whole fields are compared at once."""
    swaps = []
    top = 1 << max(0, (size - 1).bit_length() - 1)
    step = top
    while step:
        stride, offset, gap = top, 0, step
        while True:
            swaps += [(low, low + gap) for low in range(size - gap) if low & step == offset]
            if stride == step:
                break
            gap, offset, stride = stride - step, step, stride // 2
        step //= 2
    return tuple(swaps)
