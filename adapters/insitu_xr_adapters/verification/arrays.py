"""The few operations that numpy and torch spell differently, so that every statistic is written once."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def difference(first: Array, second: Array) -> Array:
    """Subtract in the precision that the values are stored in: what both share cancels before anything is rounded."""
    return floating(first) - floating(second)


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
