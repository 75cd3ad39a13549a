"""insitu-xr: train, infer and verify in place on Zarr, through xarray.

Importing this package registers ``ds.insitu`` and ``da.insitu``.
"""

from __future__ import annotations

from insitu_xr.accessor import join, register
from insitu_xr.batch import Batch
from insitu_xr.errors import InsituError
from insitu_xr.loader import Loader
from insitu_xr.opening import open_dataset
from insitu_xr.plan.manifest import Manifest
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.quality import shuffle_quality
from insitu_xr.reader import Reader
from insitu_xr.scaling import Scaler, fit_scaler

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "InsituError",
    "Loader",
    "Manifest",
    "ReadPlan",
    "Reader",
    "Scaler",
    "__version__",
    "fit_scaler",
    "join",
    "open_dataset",
    "shuffle_quality",
]

register()
