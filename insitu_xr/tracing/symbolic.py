"""The tasks of a dask graph, carried out on blocks of positions instead of values. Imports dask."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import dask.array.chunk
import numpy as np
import zarr
from dask._task_spec import Alias, DataNode, GraphNode, NestedContainer, Task, TaskRef, _execute_subgraph
from dask.array import _shuffle
from dask.array.core import concatenate_shaped, getter, getter_inline, getter_nofancy

from insitu_xr.tracing.block import Block, NotStoredError, Piece, concatenate
from insitu_xr.tracing.lazy import IN_MEMORY, trace_lazy

Graph = Any  # Layers, or the plain dict inside a fused task


def _getitem(source: Block, key: Any) -> Block:
    return source.take(expanded(key, source.ndim))


def _getter(source: Block, key: Any, **_: Any) -> Block:
    # The source is xarray's adapter or a stored array: only a slice or an integer per axis gets here.
    return source.take(expanded(key, source.ndim))


def _shuffle_getitem(source: Block, key: tuple[int, Any]) -> Block:
    return _getitem(source, key[1])


def _shuffle_concatenate(sources: Sequence[Block], sorter: tuple[int, Any], axis: int) -> Block:
    joined = concatenate(sources, axis)
    key: list[Any] = [slice(None)] * joined.ndim
    key[axis] = np.argsort(sorter[1])
    return joined.take(key)


def _concatenate_shaped(sources: Sequence[Block], shape: Sequence[int]) -> Block:
    for axis in reversed(range(len(shape))):
        run = shape[axis]
        sources = [concatenate(sources[start : start + run], axis) for start in range(0, len(sources), run)]
    return sources[0]


def _transpose(source: Block, axes: Sequence[int] | None = None) -> Block:
    return source.transpose(tuple(reversed(range(source.ndim))) if axes is None else axes)


def _broadcast_to(source: Block, *_: Any, **__: Any) -> Block:
    raise NotStoredError("foreign", "it was repeated along a new dimension")


#: everything that only moves values; any other function computes
MOVES: dict[Callable[..., Any], Callable[..., Block]] = {
    getter: _getter,
    getter_nofancy: _getter,
    getter_inline: _getter,
    dask.array.chunk.getitem: _getitem,
    operator.getitem: _getitem,
    _shuffle._getitem: _shuffle_getitem,
    _shuffle.concatenate_arrays: _shuffle_concatenate,
    concatenate_shaped: _concatenate_shaped,
    np.transpose: _transpose,
    np.broadcast_to: _broadcast_to,
}


def expanded(key: Any, ndim: int) -> list[Any]:
    """One entry per axis (and None for new ones), integers and arrays in a plain form."""
    entries = list(key) if isinstance(key, tuple) else [key]
    real = sum(1 for entry in entries if entry is not None and entry is not Ellipsis)
    missing = [slice(None)] * (ndim - real)
    place = next((i for i, entry in enumerate(entries) if entry is Ellipsis), None)
    entries = entries + missing if place is None else [*entries[:place], *missing, *entries[place + 1 :]]
    plain = [_plain(entry) for entry in entries]
    lists = [i for i, entry in enumerate(plain) if isinstance(entry, np.ndarray)]
    # NumPy indexes several arrays point by point, and an integer beside an array may move its axis.
    if len(lists) > 1 or (lists and any(isinstance(entry, int) for entry in plain)):
        raise NotStoredError("foreign", "it was indexed point by point")
    return plain


def _plain(entry: Any) -> Any:
    if entry is None or isinstance(entry, slice):
        return entry
    if isinstance(entry, (list, np.ndarray)) and np.ndim(entry):
        return np.asarray(entry, dtype=np.int64) if len(entry) == 0 else np.asarray(entry)
    return operator.index(entry)


def functions_of(node: Any) -> Iterator[Callable[..., Any]]:
    """Every function that a node calls, those of nested tasks and fused graphs included."""
    if isinstance(node, Task):
        if node.func is _execute_subgraph:
            for inner in node.args[0].values():
                yield from functions_of(inner)
        elif not isinstance(node, NestedContainer):
            yield node.func
        for argument in (*node.args, *node.kwargs.values()):
            if isinstance(argument, GraphNode):
                yield from functions_of(argument)
    elif isinstance(node, tuple) and node and callable(node[0]):
        yield node[0]
        for argument in node[1:]:
            yield from functions_of(argument)


def describe(function: Any) -> str:
    """Name of a function for a message."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


class Resolver:
    """Carries out tasks on blocks, each once."""

    def __init__(self, graph: Graph, leaves: dict[int, Block] | None = None, *, shortcuts: bool = False) -> None:
        self._graph = graph
        #: take layers that are understood as a whole for granted, instead of carrying their tasks out
        self._shortcuts = shortcuts
        self._done: dict[Any, Any] = {}
        #: by identity, so that all blocks of one leaf share its functions
        self.leaves: dict[int, Block] = {} if leaves is None else leaves

    def resolve(self, key: Any) -> Any:
        """Find what a key would hold; without recursion, for chains of layers may be long."""
        pending = [key]
        while pending:
            here = pending[-1]
            if here in self._done:
                pending.pop()
                continue
            if self._shortcuts and (part := self._graph.part(here, self.as_block, self.resolve)) is not None:
                self._done[here] = part
                continue
            node = self._graph[here]
            waiting = [k for k in _dependencies(node, self._graph) if k not in self._done]
            if waiting:
                pending += waiting
            else:
                self._done[here] = self._evaluate(node)
        return self._done[key]

    def block(self, key: Any) -> Block:
        """Find the block that a key would hold."""
        return self.as_block(self.resolve(key))

    def whole(self, name: str) -> Block | None:
        """Find what a layer holds altogether, if it is one that is understood as a whole."""
        found = self._graph.whole(name, self.as_block, self.resolve)
        return None if found is None else found[0]

    def _evaluate(self, node: Any) -> Any:
        return self._evaluate_node(node) if isinstance(node, GraphNode) else self._evaluate_legacy(node)

    def _evaluate_node(self, node: Any) -> Any:
        """Nodes as dask writes them now: what is no node is itself, even if it looks like a key."""
        if isinstance(node, TaskRef):
            return self._done[node.key]
        if isinstance(node, Alias):
            return self._done[node.target]
        if isinstance(node, DataNode):
            return node.value
        if isinstance(node, NestedContainer):
            return node.klass(self._evaluate_node(argument) for argument in node.args)
        if isinstance(node, Task):
            arguments = [self._evaluate_node(argument) for argument in node.args]
            keywords = {name: self._evaluate_node(argument) for name, argument in node.kwargs.items()}
            return self._call(node.func, arguments, keywords)
        return node

    def _evaluate_legacy(self, node: Any) -> Any:
        """Tuples, lists and keys as they are, from the parts of dask that still write them."""
        if isinstance(node, tuple) and node and callable(node[0]):
            return self._call(node[0], [self._evaluate_legacy(argument) for argument in node[1:]], {})
        if isinstance(node, list):
            return [self._evaluate_legacy(argument) for argument in node]
        if isinstance(node, (str, tuple)) and _is_key(node, self._graph):
            return self._done[node]
        return node

    def _call(self, function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if function is _execute_subgraph:
            graph, output, names, *values = arguments
            inner = Resolver(graph, self.leaves)
            inner._done.update(zip(names, values, strict=True))
            return inner.resolve(output)
        move = MOVES.get(function)
        if move is None:
            raise NotStoredError("foreign", f"{describe(function)} computes")
        first, *rest = arguments
        if isinstance(first, list):
            return move([self.as_block(value) for value in first], *rest, **keywords)
        return move(self.as_block(first), *rest, **keywords)

    def as_block(self, value: Any) -> Block:
        """Take a value of the graph for a block; a leaf is traced, once."""
        if isinstance(value, Block):
            return value
        if id(value) not in self.leaves:
            self.leaves[id(value)] = _trace_leaf(value)
        return self.leaves[id(value)]


def _trace_leaf(value: Any) -> Block:
    if type(value) is zarr.Array:
        return Block((Piece.whole(value),))
    if isinstance(value, IN_MEMORY):
        raise InMemoryBlockError
    return trace_lazy(value)


class InMemoryBlockError(Exception):
    """A block of the graph holds values already."""


def _dependencies(node: Any, graph: Graph) -> list[Any]:
    if isinstance(node, GraphNode):
        return list(node.dependencies)
    if isinstance(node, (str, tuple)) and _is_key(node, graph):
        return [node]
    if isinstance(node, (list, tuple)):
        return [key for argument in node for key in _dependencies(argument, graph)]
    return []


def _is_key(node: Any, graph: Graph) -> bool:
    try:
        return node in graph
    except TypeError:  # a tuple that holds lists or slices is no key
        return False
