"""From a variable of a Dataset to the stored arrays that its values come from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from xarray.namedarray.pycompat import is_chunked_array

from insitu_xr.errors import ComputedVariableError
from insitu_xr.tracing.block import Block, ComputedError, NotStoredError, Piece
from insitu_xr.tracing.foreign import hinted_chunks, load, native, reader, refuse_netcdf
from insitu_xr.tracing.lazy import trace_lazy
from insitu_xr.tracing.traced import Segment, TracedVariable

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Segment", "TracedVariable", "trace"]


def trace(array: xr.DataArray, *, computed: Literal["raise", "load"] = "raise") -> TracedVariable:
    """Find out where the values of a variable come from, without reading them.

    The array given stays as lazy as it was. Values are loaded only where they cannot be read in place: dates that
    are decoded all together, and with ``computed="load"`` the result of a computation.

    Parameters
    ----------
    array : xarray.DataArray
        A variable, after any selection.
    computed : {"raise", "load"}
        What to do with a dask variable on which more than indexing was done.

    Returns
    -------
    TracedVariable
        Stored arrays with positions and functions, or values in memory, or a function that reads through xarray.

    Raises
    ------
    ComputedVariableError
        If something was computed, with ``computed="raise"``.
    UnsupportedSourceError
        If the variable comes from a netCDF file.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from insitu_xr.tracing import trace
    >>> da = xr.DataArray(np.zeros((4, 3)), dims=("time", "x"), name="t2m")
    >>> da.to_dataset().to_zarr("memory://trace-doctest", mode="w", consolidated=False)  # doctest: +ELLIPSIS
    <xarray.backends.zarr.ZarrStore object at ...>
    >>> ds = xr.open_zarr("memory://trace-doctest", chunks=None, consolidated=False)
    >>> traced = trace(ds["t2m"].isel(time=[3, 1], x=0))
    >>> traced.kind, traced.segments[0].index, traced.segments[0].axis_dims
    ('stored', (array([3, 1]), 0), ('time', None))
    """
    name = str(array.name)
    variable = array.variable
    try:
        return _stored(name, variable, _find(variable._data))
    except ComputedError as found:
        if computed == "load":
            return _in_memory(name, variable, found.note)
        if is_chunked_array(variable._data):
            raise _refusal(name, found) from None
        return _foreign(name, variable, found.note)
    except NotStoredError as elsewhere:
        refuse_netcdf(name, elsewhere.leaf)
        # What is empty costs nothing to hold, however it came to be empty.
        if elsewhere.kind == "memory" or not variable.size:
            return _in_memory(name, variable, elsewhere.note)
        return _foreign(name, variable, elsewhere.note)


def _find(data: Any) -> Block:
    if is_chunked_array(data):
        from insitu_xr.tracing.dasked import trace_dask  # imports dask

        return trace_dask(data)
    return trace_lazy(data)


def _refusal(name: str, found: ComputedError) -> ComputedVariableError:
    return ComputedVariableError(
        f"variable {name!r} must be selected from a store by indexing alone, but got a dask graph whose layer "
        f"{found.layer!r} calls {found.function}; open the dataset with chunks=None, or move the operation to a "
        f'transform, or pass computed="load" to compute the variable into memory'
    )


def _stored(name: str, variable: xr.Variable, block: Block) -> TracedVariable:
    dims = tuple(map(str, variable.dims))
    assert block.shape == variable.shape, (block.shape, variable.shape)
    dtypes = {_dtype(piece) for piece in block.pieces}
    if len(dtypes) > 1:
        raise NotStoredError("foreign", f"stores with different dtypes follow one another: {sorted(map(str, dtypes))}")
    dtype = dtypes.pop()
    if not dtype.isnative:
        block = block.apply(partial(np.asarray, dtype=native(dtype)))
    segments = tuple(piece.segment(dims) for piece in block.pieces)
    concat_dim = None if block.axis is None else dims[block.axis]
    return TracedVariable(name, dims, variable.shape, native(dtype), "stored", segments=segments, concat_dim=concat_dim)


def _dtype(piece: Piece) -> np.dtype[Any]:
    """Call the functions on nothing, to see the dtype that they give: what xarray declares may differ."""
    values: npt.NDArray[Any] = np.empty((0,), piece.array.dtype)
    for function in piece.functions:
        values = function(values)
    return values.dtype


def _in_memory(name: str, variable: xr.Variable, note: str) -> TracedVariable:
    values = load(variable)
    return TracedVariable(
        name, tuple(map(str, variable.dims)), values.shape, values.dtype, "memory", values=values, note=note
    )


def _foreign(name: str, variable: xr.Variable, note: str) -> TracedVariable:
    return TracedVariable(
        name,
        tuple(map(str, variable.dims)),
        variable.shape,
        native(np.dtype(variable.dtype)),
        "foreign",
        read=reader(variable),
        preferred_chunks=hinted_chunks(variable),
        note=note,
    )
