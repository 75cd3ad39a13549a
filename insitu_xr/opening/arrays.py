"""A single array as a Dataset: with the coordinates of its group, or alone where it has no group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr
import zarr
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core.indexing import LazilyIndexedArray

#: what an array is called that has no name of its own
NAME = "values"


def array_dataset(array: zarr.Array[Any], open_group: Callable[[str | None], xr.Dataset]) -> xr.Dataset:
    """Make a Dataset of an array.

    Parameters
    ----------
    open_group : callable
        Opens the Dataset of a group of the same store, None for its root.
    """
    parent, _, name = array.path.rpartition("/")
    if name:
        try:
            group = open_group(parent or None)
        except FileNotFoundError:
            return _alone(array, name)
        return group[[name]] if name in group.data_vars else group[[]]
    return _alone(array, NAME)


def _alone(array: zarr.Array[Any], name: str) -> xr.Dataset:
    named = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    dims = [dim or f"dim_{k}" for k, dim in enumerate(named or [None] * array.ndim)]  # type: ignore[arg-type]
    attrs = {key: value for key, value in array.attrs.items() if key != "_ARRAY_DIMENSIONS"}
    lazy = LazilyIndexedArray(ZarrArrayWrapper(array))  # type: ignore[no-untyped-call]
    variable = xr.Variable(dims, lazy, attrs)
    return xr.decode_cf(xr.Dataset({name: variable}))
