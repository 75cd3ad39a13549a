"""Sums whose bits do not depend on how, where or in which order they were made.

The numbers added up (one per latitude row, or one per init) are the leaves of one fixed binary tree over their
positions: a node is always the sum of its two halves, whoever computes it. Whatever a piece holds is folded into the
fewest nodes; merging two sums puts their nodes together and folds again. The root is the total, to the last bit the
same for every cutting and order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

#: what a node covers: ``(height, index)`` stands for positions ``index << height`` to ``(index + 1) << height``
type Node = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A part of a sum over ``length`` positions, or all of it.

    Attributes
    ----------
    length : int
        Number of positions that the whole sum has.
    nodes : mapping of (int, int) to numpy.ndarray
        Float64 sums over parts of the positions, as few as can be.

    Examples
    --------
    >>> values = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    >>> first, rest = Sums.of(values[:2], 0, 5), Sums.of(values[2:], 2, 5)
    >>> bool(rest.merge(first).total == Sums.of(values, 0, 5).total)
    True
    """

    length: int
    nodes: Mapping[Node, np.ndarray]

    @classmethod
    def of(cls, values: Any, start: int, length: int) -> Sums:
        """Fold the values at the positions from ``start`` on, along the first axis, numpy or torch."""
        nodes: dict[Node, Any] = {}
        height, stop = 0, start + len(values)
        if not 0 <= start < stop <= length:
            raise RequestError(
                f"positions must be a part of the {length} that are summed, but got {start} to {stop}; "
                "cut the piece out of the whole"
            )
        while len(values) and (1 << height) < length:
            if start % 2:
                nodes[height, start], values, start = values[0], values[1:], start + 1
            alone = (stop % 2 == 1) and stop > start
            last = values[-1:] if alone else None
            pairs = values[: len(values) - alone]
            folded = pairs[0::2] + pairs[1::2]
            start, end = start // 2, stop // 2
            if last is not None and (stop << height) >= length:  # nothing lies to its right: it moves up as it is
                folded, end = _joined(folded, last), end + 1
            elif last is not None:
                nodes[height, stop - 1] = last[0]
            values, stop, height = folded, end, height + 1
        if len(values):
            nodes[height, start] = values[0]
        return cls(length, {node: _numpy(value) for node, value in nodes.items()})

    @classmethod
    def join(cls, parts: Iterable[Sums], axis: int = 0) -> Sums:
        """Put sums of the same positions side by side along an axis of their values."""
        parts = list(parts)
        return cls(
            parts[0].length,
            {node: np.concatenate([part.nodes[node] for part in parts], axis) for node in parts[0].nodes},
        )

    def merge(self, other: Sums) -> Sums:
        """Return the sum of both; they must cover different positions."""
        if self.length != other.length or not self._apart(other):
            raise RequestError(
                f"sums to merge must cover different positions out of the same number, but got {self.covered} of "
                f"{self.length} and {other.covered} of {other.length}; add each piece once"
            )
        nodes = {**self.nodes, **other.nodes}
        height = 0
        while (1 << height) < self.length:
            for index in sorted(i for h, i in nodes if h == height and i % 2 == 0):
                if ((index + 1) << height) >= self.length:
                    nodes[height + 1, index // 2] = nodes.pop((height, index))
                elif (height, index + 1) in nodes:
                    nodes[height + 1, index // 2] = nodes.pop((height, index)) + nodes.pop((height, index + 1))
            height += 1
        return Sums(self.length, nodes)

    def _apart(self, other: Sums) -> bool:
        ranges = sorted((*self.covered, *other.covered))
        return all(before[1] <= after[0] for before, after in pairwise(ranges))

    @property
    def covered(self) -> list[tuple[int, int]]:
        """Ranges of positions that the nodes stand for."""
        return sorted((i << h, min((i + 1) << h, self.length)) for h, i in self.nodes)

    @property
    def complete(self) -> bool:
        """Whether every position is in."""
        return sum(stop - start for start, stop in self.covered) == self.length

    @property
    def total(self) -> np.ndarray:
        """The sum over all positions; raises where some are not in yet."""
        if not self.complete:
            raise RequestError(
                f"a sum must be complete to be used, but got positions {self.covered} of {self.length}; "
                "merge the other parts first"
            )
        (value,) = self.nodes.values()
        return value

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name, to be stored; `from_arrays` is the way back."""
        return {f"{height}.{index}": value for (height, index), value in self.nodes.items()}

    @classmethod
    def from_arrays(cls, length: int, arrays: Mapping[str, np.ndarray]) -> Sums:
        """Make sums out of what `to_arrays` gave."""
        split = {name: name.split(".") for name in arrays}
        return cls(length, {(int(h), int(i)): np.asarray(arrays[name]) for name, (h, i) in split.items()})


def _joined(first: Any, last: Any) -> Any:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, last])
    import torch

    return torch.cat([first, last])


def _numpy(value: Any) -> np.ndarray:
    return np.ascontiguousarray(value if isinstance(value, np.ndarray | np.generic) else value.cpu().numpy())
