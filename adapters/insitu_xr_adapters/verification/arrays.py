"""The few operations that numpy and torch spell differently, so that every statistic is written once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

#: a numpy array or a torch tensor
type Array = Any


def namespace(array: Array) -> Any:
    """Return the module whose functions take the array: numpy or torch."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import torch

    return torch


def is_numpy(array: Array) -> bool:
    """Whether the array is numpy's."""
    return isinstance(array, np.ndarray | np.generic)


def float64(array: Array) -> Array:
    """Return the values in double precision, the array itself where they are."""
    return array.astype(np.float64, copy=False) if is_numpy(array) else array.double()


def floating(array: Array) -> Array:
    """Return the values in a precision that differences may be taken in: at least single."""
    if is_numpy(array):
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.result_type(array, np.float32))
    import torch

    return array if array.dtype in (torch.float32, torch.float64) else array.to(torch.float32)


def difference(first: Array, second: Array, out: Array | None = None) -> Array:
    """Subtract in the precision that the values are stored in: what both share cancels before anything is rounded.

    The result of numpy lies in one block of memory, whatever views it was made of.
    """
    first, second = floating(first), floating(second)
    if not is_numpy(first):
        return first - second
    if out is None:
        out = np.empty(np.broadcast_shapes(first.shape, second.shape), np.result_type(first, second))
    return np.subtract(first, second, out=out)


def wide_difference(first: Array, second: Array, out: Array | None = None) -> Array:
    """Subtract in double precision."""
    return np.subtract(first, second, out, dtype=np.float64) if is_numpy(first) else first.double() - second.double()


def added(values: Array, out: Array | None = None) -> Array:
    """Add up doubles along the first axis, one after another, in their order."""
    if is_numpy(values) and values.flags.c_contiguous and values[0].size > 1:
        # Whole fields are added, as below; of single numbers, numpy would add several at once in another order.
        return np.add.reduce(values, axis=0, out=out)
    total = values[0] + 0.0
    for value in values[1:]:
        total += value
    return total


class Scratch:
    """Memory for the arrays of one block after another: fresh pages take longer than what is computed in them.

    Of one thread. An array is valid until another one is taken under its name.

    Examples
    --------
    >>> scratch = Scratch()
    >>> first = scratch.take("error", (2, 3), np.float64)
    >>> np.shares_memory(first, scratch.take("error", (3,), np.float32))
    True
    """

    def __init__(self) -> None:
        self._held: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """An array with undefined content."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._held or self._held[name].nbytes < size:
            self._held[name] = np.empty(size, np.uint8)
        array: npt.NDArray[Any] = self._held[name][:size].view(dtype)
        return array.reshape(shape)


def like(values: np.ndarray, array: Array) -> Array:
    """Return the values as an array of the other's kind, on its device."""
    if is_numpy(array):
        return values
    import torch

    return torch.from_numpy(np.array(values)).to(array.device)


def has_nan(array: Array) -> bool:
    """Whether a value is missing. A sum is quicker than a mask of all, and is missing where a value is."""
    total = array.sum()
    return bool(total != total) and bool(namespace(array).isnan(array).any())


def broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of the array with the shape."""
    return namespace(array).broadcast_to(array, shape)


def row_sums(values: Array) -> Array:
    """Add up the last axis, each row in an order that depends on its length alone.

    numpy adds the values of a contiguous row pairwise, in one order. torch does not promise that, so halves are added
    until one value is left.
    """
    if is_numpy(values):
        return np.add.reduce(np.ascontiguousarray(values), axis=-1)
    while (size := values.shape[-1]) > 1:
        half = size // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        if size % 2:
            folded[..., 0] += values[..., -1]
        values = folded
    return values[..., 0]
