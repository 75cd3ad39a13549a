"""Variables that are read through xarray, block by block or once and for all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import UnsupportedSourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import xarray as xr

#: xarray's wrappers of netCDF files, by exact type; by name, so that no netCDF library is imported
NETCDF_WRAPPERS = {
    ("xarray.backends.netCDF4_", "NetCDF4ArrayWrapper"),
    ("xarray.backends.h5netcdf_", "H5NetCDFArrayWrapper"),
    ("xarray.backends.scipy_", "ScipyArrayWrapper"),
}


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype in native byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def load(variable: xr.Variable) -> npt.NDArray[Any]:
    """Load the whole variable as xarray shows it; the object given stays lazy."""
    # A copy has a cache of its own: only that one is filled.
    values = np.asarray(variable.copy(deep=False).values)
    return values if values.dtype.isnative else values.astype(native(values.dtype))


def reader(variable: xr.Variable) -> Callable[[Mapping[str, slice]], npt.NDArray[Any]]:
    """Make a function that reads a block through xarray, from any thread, and keeps nothing."""
    return partial(_read_block, variable.copy(deep=False))


def _read_block(variable: xr.Variable, block: Mapping[str, slice]) -> npt.NDArray[Any]:
    dims = {str(dim): dim for dim in variable.dims}
    return load(variable.isel({dims[dim]: key for dim, key in block.items()}))


def hinted_chunks(variable: xr.Variable) -> dict[str, int]:
    """Chunk sizes to read in, as far as anything hints at them; never more than a hint."""
    if variable.chunks is not None:
        return {str(dim): int(max(sizes)) for dim, sizes in zip(variable.dims, variable.chunks, strict=True)}
    hint = variable.encoding.get("preferred_chunks") or {}
    return {str(dim): int(hint[dim]) for dim in variable.dims if isinstance(hint.get(dim), int)}


def refuse_netcdf(name: str, leaf: Any) -> None:
    """Raise if a chain ends in a netCDF file.

    Raises
    ------
    UnsupportedSourceError
        With the ways to open such a file.
    """
    kind = type(leaf)
    if (kind.__module__, kind.__qualname__) in NETCDF_WRAPPERS:
        raise UnsupportedSourceError(
            f"variable {name!r} must be opened so that its chunks can be read, but got a netCDF file opened by xarray "
            f"({kind.__qualname__}); open the same files with insitu_xr.open_dataset(path), which reads them in place, "
            "or convert them once with ds.to_zarr(path), "
            f"or call ds[{name!r}].load() first"
        )
