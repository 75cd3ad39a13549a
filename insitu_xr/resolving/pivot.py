"""The variable of a dataset along whose chunks shuffling keeps neighbours together.

It is chosen among all variables, also those that are not read: loaders of different variables of one dataset then draw
the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.plan.order import axis_chunks
from insitu_xr.plan.request import VariableSpec
from insitu_xr.resolving.catalog import Catalog

#: a variable this small stays in memory whatever the order, so its chunks do not matter beside larger ones
SMALL_BYTES = 64 << 20


def pivot_of(
    catalog: Catalog, sample_dims: Sequence[str], spec_of: Callable[[str], VariableSpec | None]
) -> VariableSpec | None:
    """The variable of the longest chunks along the sample dimensions.

    Parameters
    ----------
    spec_of : callable
        Traces a variable; None if it cannot be read in place. Called for one variable of each chunking.
    """
    found: dict[Any, tuple[str, int]] = {}
    # Stores that are not consolidated list variables in any order: it must not decide, or ranks would draw differently.
    for name in sorted(n for n in catalog.names if catalog.home(n) == catalog.first):
        array = catalog[name]
        # Dates are decoded all together: tracing them would read them.
        if any(d in sample_dims for d in array.dims) and array.dtype.kind in "biufc":
            key = _chunking(array, sample_dims) or name
            first, size = found.get(key, (name, 0))
            found[key] = first, max(size, array.nbytes)
    traced = [(spec_of(name), size) for name, size in found.values()]
    usable = [(_chunks(spec, sample_dims), size, spec) for spec, size in traced if spec is not None and spec.segments]
    # A single chunk is held all the time, or it could not be read at all.
    cut = [(n, size, spec) for n, size, spec in usable if n > 1]
    large = [entry for entry in cut if entry[1] > SMALL_BYTES] or cut
    return min(large, key=lambda entry: entry[0])[2] if large else None


def _chunking(array: xr.DataArray, sample_dims: Sequence[str]) -> Any:
    """How a variable is cut along the sample dimensions, as far as xarray says; a guess that only saves tracing."""
    hint, chunked = array.encoding.get("preferred_chunks") or {}, array.variable.chunksizes
    chunks = [(d, chunked.get(d), hint.get(d)) for d in map(str, array.dims) if d in sample_dims]
    return tuple(chunks) if all(size is not None for _, _, size in chunks) else None


def _chunks(spec: VariableSpec, sample_dims: Sequence[str]) -> int:
    along = [np.sort(axis_chunks(spec, d)) for d in sample_dims if d in spec.dims]
    return math.prod(1 + int(np.count_nonzero(np.diff(chunks))) for chunks in along)
