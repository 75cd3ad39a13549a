"""Opening a dataset so that it can be read in place."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import xarray as xr

from insitu_xr.errors import RequestError


def open_dataset(url: str | Path, **options: Any) -> xr.Dataset:
    """Open a Zarr store lazily, without dask.

    Parameters
    ----------
    url : str or path
        A local path, ``file://...`` or ``memory://...``.
    **options
        Passed on to :func:`xarray.open_zarr`, such as ``group``, ``consolidated`` or ``mask_and_scale``.

    Returns
    -------
    xarray.Dataset
        Opened with ``chunks=None``: selections stay lazy, and ``ds.insitu`` reads them in place.

    Raises
    ------
    RequestError
        If the URL has a scheme that cannot be opened.
    FileNotFoundError
        If there is no store.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time",), np.arange(3.0))})
    >>> written = ds.to_zarr("memory://open-dataset-example", mode="w", consolidated=False)
    >>> insitu_xr.open_dataset("memory://open-dataset-example")["t2m"].values
    array([0., 1., 2.])
    """
    text = str(url)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme not in ("", "file", "memory"):
        raise RequestError(
            f"url must be a local path, file:// or memory://, but got {text!r}; open it with xarray.open_zarr(..., "
            "chunks=None), whose datasets work as well"
        )
    if scheme == "file":
        text = unquote(urlsplit(text).path)
    options.setdefault("chunks", None)
    with warnings.catch_warnings():
        # A store without consolidated metadata is as good as one with; only the opening takes longer.
        warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated", RuntimeWarning)
        dataset: xr.Dataset = xr.open_zarr(text, **options)
    return dataset
