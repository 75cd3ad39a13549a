"""Where the units of variables lie: the stored array, the chunk along each sample dimension, the needed rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.geometry.axes import StoredAxes
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One unit of some variables: the stored array that it lies in, and its rows in each chunk."""

    number: int
    part: int
    #: per sample dimension: the chunk, and the needed rows in it
    chunk: tuple[int, ...]
    counts: tuple[int, ...]
    #: per sample dimension: the needed positions inside the chunk
    rows: tuple[slice | IntArray, ...]
    #: whether its chunks hold nothing but the needed rows
    whole: bool


class Units:
    """The units of all variables that are cut alike along their sample dimensions.

    Parameters
    ----------
    layout : Layout
        That of any of them.

    Notes
    -----
    Safe to use from any thread.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._axes = layout, layout.units
        #: per sample dimension and unit: the first needed position in the chunk, and the number of them
        self._firsts = [u.inside[u.bounds[:-1]] for u in layout.units]
        self._counts = [u.counts for u in layout.units]
        #: whether the needed positions follow one another
        self._dense = [
            u.inside[u.bounds[1:] - 1] - first + 1 == count
            for u, first, count in zip(layout.units, self._firsts, self._counts, strict=True)
        ]
        self._whole = [
            dense & (count == _lengths(dim, u.segment, u.chunk, layout.spec.segments))
            for dim, u, dense, count in zip(layout.sample_dims, layout.units, self._dense, self._counts, strict=True)
        ]
        #: the one asked for last: variables that are read together ask one after another
        self._last: Unit | None = None

    def unit(self, number: int) -> Unit:
        """Where a unit lies."""
        last = self._last
        if last is None or last.number != number:
            self._last = last = self._unit(number)
        return last

    def _unit(self, number: int) -> Unit:
        along = self._layout.axis_units_of(number)
        part, chunk, counts, whole = 0, [], [], True
        rows: list[slice | IntArray] = []
        for k, unit in enumerate(along):
            axis, count, first = self._axes[k], self._counts[k].item(unit), self._firsts[k].item(unit)
            part = max(part, axis.segment.item(unit))
            chunk.append(axis.chunk.item(unit))
            counts.append(count)
            rows.append(slice(first, first + count) if self._dense[k].item(unit) else axis.source(unit))
            whole = whole and self._whole[k].item(unit)
        return Unit(number, part, tuple(chunk), tuple(counts), tuple(rows), whole)


def _lengths(dim: str, segments: IntArray, chunks: IntArray, axes: Sequence[StoredAxes]) -> npt.NDArray[Any]:
    """Stored length of the chunk that each unit lies in."""
    lengths = np.empty_like(chunks)
    for number, stored in enumerate(axes):
        mine = segments == number
        lengths[mine] = stored.grids[stored.dims.index(dim)].length_of(chunks[mine])
    return lengths
