"""dask-backed variables: what their graph does is found out by carrying it out on positions. Imports dask.

Layer names, labels and encoding are no evidence. One line of blocks per axis gives the positions; blocks beside the
lines are compared with what the lines predict, and the functions of all tasks are looked at.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph

from insitu_xr.tracing.block import (
    Block,
    ComputedError,
    NotStoredError,
    Piece,
    concatenate,
    follow,
    same_functions,
    same_positions,
)
from insitu_xr.tracing.layers import Layers
from insitu_xr.tracing.lazy import IN_MEMORY
from insitu_xr.tracing.symbolic import MOVES, InMemoryBlockError, Resolver, describe, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: so many blocks are compared with what the lines predict: all if there are no more, else a random sample
SAMPLES = 64
#: but all of them, up to this number, where parts of one array are put together anew: any of them may be an odd one
MOST_COMPARED = 20_000

Coordinates = tuple[int, ...]


def trace_dask(data: Any) -> Block:
    """Trace a dask array to stored arrays.

    Raises
    ------
    ComputedError
        If the graph does more than indexing.
    NotStoredError
        If the values have to come through xarray.
    """
    graph = data.dask
    if not isinstance(graph, HighLevelGraph):
        raise NotStoredError("foreign", f"its graph is a {type(graph).__name__}, which is not looked into")
    _refuse_computed(graph, data)
    try:
        return _Lines(data).trace()
    except InMemoryBlockError:
        lazy = any(_is_lazy_leaf(value) for value in _values(graph))
        note = "it is in memory already" if not lazy else "some of its blocks are in memory, others are stored"
        raise NotStoredError("foreign" if lazy else "memory", note) from None


def _refuse_computed(graph: HighLevelGraph, data: Any) -> None:
    if _first_unknown(graph) is None:
        return
    # Layers keep the tasks of blocks that were sliced away: look again at those that are left.
    found = _first_unknown(graph.cull(data.__dask_keys__()))
    if found is not None:
        raise ComputedError(found[0], describe(found[1]))


def _first_unknown(graph: HighLevelGraph) -> tuple[str, Any] | None:
    for name in graph._toposort_layers():
        layer = graph.layers[name]
        nodes: Iterable[Any] = (layer.task,) if type(layer) is Blockwise else layer.values()
        if type(layer) is Blockwise and layer.concatenate:
            return _layer_name(layer, name), layer.task.func
        for node in nodes:
            for function in functions_of(node):
                if not _moves(function):
                    return _layer_name(layer, name), function
    return None


def _moves(function: Any) -> bool:
    try:
        return function in MOVES
    except TypeError:  # not hashable, so not one of ours
        return False


def _layer_name(layer: Any, name: str) -> str:
    if type(layer) is Blockwise:
        return str(layer.output)  # culling renames layers
    key = next(iter(layer), name)
    return str(key[0] if isinstance(key, tuple) else key)


def _values(graph: HighLevelGraph) -> Iterable[Any]:
    for layer in graph.layers.values():
        if type(layer) is not Blockwise:
            for node in layer.values():
                yield getattr(node, "value", node)


def _is_lazy_leaf(value: Any) -> bool:
    return type(value).__module__.startswith("xarray.") and not isinstance(value, IN_MEMORY)


class _Lines:
    """Reads the lines of blocks of one dask array and puts them together."""

    def __init__(self, data: Any) -> None:
        self._name: str = data.name
        self._graph: HighLevelGraph = data.dask
        self._numblocks: Coordinates = data.numblocks
        self._bounds = [[0, *accumulate(sizes)] for sizes in data.chunks]
        layers = Layers(data.dask)
        self._resolver = Resolver(layers, shortcuts=True)
        #: carries out every task, to compare with
        self._checker = Resolver(layers, self._resolver.leaves)
        #: the first block with anything in it
        self._origin = tuple(next((i for i, size in enumerate(sizes) if size), 0) for sizes in data.chunks)

    def trace(self) -> Block:
        whole, places = self._resolver.whole(self._name), self._samples()
        if whole is None:
            whole = self._from_lines()
            places = self._every() if self._recombined() else places
        self._compare(whole, places)
        return whole

    def _from_lines(self) -> Block:
        lines = {axis: self._line(self._origin, axis) for axis in range(len(self._numblocks))}
        joined = {axis: self._join(line, axis) for axis, line in lines.items()}
        mixed = {block.axis for block in joined.values() if block.axis is not None}
        if not mixed:
            return self._outer(self._block(self._origin), joined)
        if len(mixed) == 1:
            return self._along(mixed.pop(), lines)
        raise NotStoredError("foreign", "stores follow one another along two dimensions")

    def _along(self, axis: int, lines: Mapping[int, Sequence[Coordinates]]) -> Block:
        """Put a variable together in which stores change along an axis: each store has lines of its own."""
        runs = self._runs(lines[axis], axis)
        others = [other for other in lines if other != axis]
        pieces: list[Piece] = []
        for run in runs:
            joined = {other: self._join(self._line(run[0], other), other) for other in others}
            pieces += self._outer(self._join(run, axis), joined).pieces
        return follow(pieces, axis)

    def _runs(self, line: Sequence[Coordinates], axis: int) -> list[list[Coordinates]]:
        """Blocks of a line that come out of one stored array; a block that mixes stores stands alone."""
        runs: list[list[Coordinates]] = []
        for place in line:
            if runs and self._join([*runs[-1][-1:], place], axis).axis is None:
                runs[-1].append(place)
            else:
                runs.append([place])
        return runs

    @staticmethod
    def _outer(base: Block, joined: Mapping[int, Block]) -> Block:
        """Give the block the positions of each line along its axis."""
        pieces = []
        for number, piece in enumerate(base.pieces):
            index = list(piece.index)
            for axis, block in joined.items():
                if block.axis not in (None, base.axis) or len(block.pieces) != len(base.pieces):
                    raise NotStoredError("foreign", "stores follow one another along two dimensions")
                stored = piece.axes[axis]
                if stored is not None:
                    index[stored] = block.pieces[number].index[stored]
            pieces.append(replace(piece, index=tuple(index)))
        return Block(tuple(pieces), base.axis)

    def _recombined(self) -> bool:
        """Whether an array comes in by several ways, as where some of its steps are replaced by others.

        Blocks that come by one way are sliced and ordered alike, and each array that comes by one has lines of its own.
        """
        ways = Counter({self._name: 1})
        for layer in reversed(self._graph._toposort_layers()):
            for below in self._graph.dependencies[layer]:
                ways[below] += ways[layer]
        return max(ways.values()) > 1 and sum(n > 1 for n in self._numblocks) > 1

    def _every(self) -> list[Coordinates]:
        total = math.prod(self._numblocks)
        if total > MOST_COMPARED:
            raise NotStoredError("foreign", f"parts of one store are put together anew, in too many blocks ({total})")
        return [*itertools.product(*map(range, self._numblocks))]

    def _compare(self, whole: Block, places: Iterable[Coordinates]) -> None:
        for place in places:
            key = [slice(bounds[i], bounds[i + 1]) for bounds, i in zip(self._bounds, place, strict=True)]
            if not same_block(whole.take(key), self._checker.block((self._name, *place))):
                raise NotStoredError("foreign", "its blocks do not form a selection per dimension")

    def _samples(self) -> list[Coordinates]:
        total = int(np.prod(self._numblocks, dtype=np.int64))
        chosen = np.arange(total)
        if total > SAMPLES:
            # Seeded, so that one graph is always judged alike.
            chosen = np.random.default_rng(total).choice(total, SAMPLES, replace=False)
        places = np.unravel_index(chosen, self._numblocks) if self._numblocks else ()
        return [tuple(int(axis[i]) for axis in places) for i in range(len(chosen))]

    @staticmethod
    def _replaced(place: Coordinates, axis: int, number: int) -> Coordinates:
        return (*place[:axis], number, *place[axis + 1 :])

    def _line(self, place: Coordinates, axis: int) -> list[Coordinates]:
        return [self._replaced(place, axis, number) for number in range(self._numblocks[axis])]

    def _join(self, line: Sequence[Coordinates], axis: int) -> Block:
        return concatenate([self._block(place) for place in line], axis)

    def _block(self, place: Coordinates) -> Block:
        return self._resolver.block((self._name, *place))


def same_block(one: Block, other: Block) -> bool:
    """Whether two blocks hold the same positions of the same arrays."""
    if one.shape != other.shape or 0 in one.shape:
        return one.shape == other.shape
    return len(one.pieces) == len(other.pieces) and all(
        _same_piece(p, q) for p, q in zip(one.pieces, other.pieces, strict=True)
    )


def _same_piece(one: Piece, other: Piece) -> bool:
    return (
        one.array is other.array
        and one.axes == other.axes
        and same_functions(one.functions, other.functions)
        and all(same_positions(k, m) for k, m in zip(one.index, other.index, strict=True))
    )
