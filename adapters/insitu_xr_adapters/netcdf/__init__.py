"""netCDF, HDF5 and GRIB files, and kerchunk references, read in place: ``insitu_xr.open_dataset("era5.nc")``.

VirtualiZarr finds out where the chunks of a file lie; what is opened is a Zarr whose chunks are ranges of the file.
"""

from __future__ import annotations

from .opening import opener

__all__ = ["opener"]
