"""Where decoded chunks go: into a slot, or row by row into the batches that want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Target = tuple[Any, ...]


class Sink(Protocol):
    """Takes the chunks of one unit of one variable; any thread, different targets at once."""

    def direct(self, target: Target) -> npt.NDArray[Any] | None:
        """Contiguous memory that a chunk may be decoded into if all of it goes there as it is; None without one."""

    def put(self, target: Target, piece: npt.NDArray[Any]) -> None:
        """Write values, shape (rows per sample dimension..., *part of the field), to their place in the field."""


def _memory(values: npt.NDArray[Any], target: Target) -> npt.NDArray[Any] | None:
    """The memory of a part of an array, if it is contiguous; None for a position list, since that gives a copy."""
    if any(isinstance(t, np.ndarray) for t in target):
        return None
    found: npt.NDArray[Any] = values[(*target, ...)]
    return found if found.flags.c_contiguous else None


class SlotSink:
    """A slot, or the part of it that a short unit fills.

    Parameters
    ----------
    rows : array, shape (rows per sample dimension..., *field)
        The slot.
    counts : sequence of int
        Rows of the unit per sample dimension.
    """

    __slots__ = ("_inner", "_rows")

    def __init__(self, rows: npt.NDArray[Any], counts: Sequence[int]) -> None:
        self._rows, self._inner = rows, tuple(slice(0, n) for n in counts)

    def direct(self, target: Target) -> npt.NDArray[Any] | None:
        """The place in the slot, if it is contiguous."""
        return _memory(self._rows, (*self._inner, *target))

    def put(self, target: Target, piece: npt.NDArray[Any]) -> None:
        """Write to the slot."""
        self._rows[(*self._inner, *target)] = piece


class SpreadSink:
    """Places in the arrays of open batches.

    Parameters
    ----------
    copies : sequence of (array, pairs)
        Arrays of shape (samples, *field), each with pairs of the row in the unit and the place in the array.
    dtype : dtype
        Of the values before they are cast to that of the array.
    """

    __slots__ = ("_dtype", "_rows")

    def __init__(
        self, copies: Sequence[tuple[npt.NDArray[Any], Sequence[tuple[int, int]]]], dtype: np.dtype[Any]
    ) -> None:
        self._dtype = dtype
        self._rows = [(row, array[place, ...]) for array, pairs in copies for row, place in pairs]

    def direct(self, target: Target) -> npt.NDArray[Any] | None:
        """The only place in the only batch, if it is contiguous."""
        if len(self._rows) != 1:
            return None
        ((row, into),) = self._rows
        if row or into.dtype != self._dtype:
            return None
        found = _memory(into, target)
        return None if found is None else found[None]

    def put(self, target: Target, piece: npt.NDArray[Any]) -> None:
        """Write every row to each of its places."""
        # As in a slot, values are cast to the dtype of the variable first; a stacked array may have a wider one.
        if piece.dtype != self._dtype:
            piece = piece.astype(self._dtype)
        for row, into in self._rows:
            into[target] = piece[row]
