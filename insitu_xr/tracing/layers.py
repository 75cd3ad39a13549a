"""The layers of a dask graph: single tasks without materialising the rest, and whole layers that need no tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from dask._task_spec import Task, TaskRef
from dask.array.core import getter, getter_inline, getter_nofancy
from dask.blockwise import Blockwise, blockwise_token
from dask.layers import ArraySliceDep

from insitu_xr.tracing.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dask.highlevelgraph import HighLevelGraph

GETTERS = (getter, getter_nofancy, getter_inline)

#: what a layer holds altogether, and where its blocks begin and end along each axis
Whole = tuple[Block, "Sequence[Sequence[int]]"]


class Layers:
    """Looks tasks up in a graph of layers, of which one may have a million that nobody has written out yet."""

    def __init__(self, graph: HighLevelGraph) -> None:
        self._layers = graph.layers
        self._homes: dict[Any, Any] = {}
        self._wholes: dict[Any, Whole | None] = {}

    def __contains__(self, key: Any) -> bool:
        return self._home(key) is not None

    def __getitem__(self, key: Any) -> Any:
        layer = self._home(key)
        if layer is None:
            raise KeyError(key)
        if type(layer) is not Blockwise:
            return layer[key]
        transposed = _transposition(layer)
        if transposed is None:
            return layer.cull({key}, ())[0][key]
        source, axes = transposed  # often many blocks, and culling is slow
        place = [i for _, i in sorted(zip(axes, key[1:], strict=True))]
        return Task(key, np.transpose, TaskRef((source, *place)), axes=axes)

    def _home(self, key: Any) -> Any:
        """Find the layer of a key: mostly it bears the name that the key begins with."""
        name = key[0] if isinstance(key, tuple) and key else key
        layer = self._layers.get(name) if isinstance(name, str) else None
        if layer is None and isinstance(name, str):
            layer = self._homes.get(name)
        if layer is None or not _has(layer, key):
            layer = next((each for each in self._layers.values() if _has(each, key)), None)
            if layer is not None and isinstance(name, str):
                self._homes[name] = layer
        return layer

    def part(self, key: Any, as_block: Callable[[Any], Block], resolve: Callable[[Any], Any]) -> Block | None:
        """Take a block out of a layer that is understood as a whole, if this is one."""
        if not isinstance(key, tuple):
            return None
        found = self.whole(key[0], as_block, resolve)
        if found is None:
            return None
        whole, bounds = found
        return whole.take([slice(ends[i], ends[i + 1]) for ends, i in zip(bounds, key[1:], strict=True)])

    def whole(self, name: Any, as_block: Callable[[Any], Block], resolve: Callable[[Any], Any]) -> Whole | None:
        """Say what a layer holds altogether, if it opens a stored array or transposes such a layer."""
        if name not in self._wholes:
            layer: Any = self._layers.get(name)
            found = None
            if type(layer) is Blockwise and layer.output == name and layer.output_blocks is None:
                found = _opened(layer, as_block, resolve) or self._transposed(layer, as_block, resolve)
            self._wholes[name] = found
        return self._wholes[name]

    def _transposed(self, layer: Any, as_block: Callable[[Any], Block], resolve: Callable[[Any], Any]) -> Whole | None:
        source, axes = _transposition(layer) or (None, ())
        found = self.whole(source, as_block, resolve)
        return None if found is None else (found[0].transpose(axes), [found[1][axis] for axis in axes])


def _transposition(layer: Any) -> tuple[str, tuple[int, ...]] | None:
    """Source and axes of a layer that transposes each block of one other layer."""
    task = layer.task
    if task.func is not np.transpose or task.args != (TaskRef(blockwise_token(0)),) or len(layer.indices) != 1:
        return None
    ((source, dims),) = layer.indices
    axes = task.kwargs.get("axes")
    if set(task.kwargs) != {"axes"} or layer.io_deps or layer.concatenate or layer.new_axes or dims is None:
        return None
    return (source, axes) if tuple(dims[axis] for axis in axes) == tuple(layer.output_indices) else None


def _opened(layer: Any, as_block: Callable[[Any], Block], resolve: Callable[[Any], Any]) -> Whole | None:
    if not any(layer.task.func is known for known in GETTERS) or len(layer.indices) != 2:
        return None
    if layer.task.args != (TaskRef(blockwise_token(0)), TaskRef(blockwise_token(1))):
        return None
    (leaf, whole_leaf), (slices, dims) = layer.indices
    bounds = layer.io_deps.get(slices) if isinstance(slices, str) else None
    if layer.concatenate or layer.new_axes:
        return None
    if whole_leaf is not None or type(bounds) is not ArraySliceDep or dims != layer.output_indices:
        return None
    block = as_block(resolve(leaf.key) if isinstance(leaf, TaskRef) else leaf)
    if block.shape != tuple(ends[-1] for ends in bounds.starts):
        return None
    return block, bounds.starts


def _has(layer: Any, key: Any) -> bool:
    if type(layer) is Blockwise:
        return isinstance(key, tuple) and len(key) == 1 + len(layer.output_indices) and key[0] == layer.output
    return key in layer
