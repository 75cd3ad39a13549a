"""Count, mean and sum of squared deviations of a stream of blocks, in float64.

Blocks are merged by the update of Chan, Golub and LeVeque ("Algorithms for computing the sample variance: analysis and
recommendations", The American Statistician 37, 1983, equation 2.1), which scikit-learn's ``partial_fit`` uses as well.
Deviations are taken from the mean of each block, so that a large mean costs no digits, and NaN is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: elements of a block in float64 that are worked on at once, so that they stay in the cache of a core
BLOCK_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations from the mean, each an array over what is kept.

    Examples
    --------
    >>> moments = Moments.of(np.array([[1.0, 2.0], [3.0, np.nan]]), (0,))
    >>> moments.count.tolist(), moments.mean.tolist(), moments.std.tolist()
    ([2, 1], [2.0, 2.0], [1.0, 0.0])
    """

    count: npt.NDArray[np.int64]
    mean: Floats
    squares: Floats

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Moments:
        """Of nothing."""
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, block: npt.NDArray[Any], axes: tuple[int, ...]) -> Moments:
        """Of a block, over ``axes``."""
        values = block.astype(np.float64)  # a copy of its own, to work in
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values show in the mean
            return cls._of(values, axes)

    @classmethod
    def _of(cls, values: Floats, axes: tuple[int, ...]) -> Moments:
        mean = values.mean(axis=axes, keepdims=True)
        counted = int(np.prod([values.shape[a] for a in axes]))
        count = np.full(mean.shape, counted, np.int64)
        if np.isnan(mean).any():
            valid = ~np.isnan(values)
            count = valid.sum(axis=axes, keepdims=True)
            total = np.sum(values, axis=axes, keepdims=True, where=valid)
            mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
            # What is left out deviates by nothing.
            np.copyto(values, np.broadcast_to(mean, values.shape), where=~valid)
        values -= mean
        squares = np.square(values, out=values).sum(axis=axes)
        return cls(np.squeeze(count, axes), np.squeeze(mean, axes), squares)

    def merged(self, other: Moments) -> Moments:
        """Of both together."""
        count = self.count + other.count
        share = np.divide(other.count, count, out=np.zeros(count.shape), where=count > 0)
        with np.errstate(invalid="ignore", over="ignore"):
            delta = other.mean - self.mean
            squares = self.squares + other.squares + np.square(delta) * self.count * share
            return Moments(count, self.mean + delta * share, squares)

    def add(self, rows: npt.NDArray[Any], axes: tuple[int, ...]) -> Moments:
        """Of these and of all rows, ``(row, ...)``, over ``axes``, of which the first is that of the rows."""
        found = self
        step = max(1, BLOCK_ELEMENTS // max(1, rows[:1].size))
        for start in range(0, len(rows), step):
            found = found.merged(Moments.of(rows[start : start + step], axes))
        return found

    @property
    def std(self) -> Floats:
        """Standard deviation, with the count as divisor; NaN where there is no value."""
        variance = np.divide(self.squares, self.count, out=np.full(self.count.shape, np.nan), where=self.count > 0)
        std: Floats = np.sqrt(variance)
        return std
