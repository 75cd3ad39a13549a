"""``ds.insitu`` and ``da.insitu``, and several datasets joined: what is read, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from insitu_xr import extending
from insitu_xr.reading import Reading
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.catalog import join as check_joined
from insitu_xr.resolving.regions import region


class _Accessor(Reading):
    """What both accessors have."""

    def __init__(self, ds: xr.Dataset) -> None:
        self._ds = ds

    def to(self, framework: str, **options: Any) -> Any:
        """The dataset as a source of a framework, through its adapter.

        Parameters
        ----------
        framework : str
            Name of an installed adapter, such as "earth2studio".
        **options
            Passed on to the adapter.

        Raises
        ------
        UnknownNameError
            If no adapter of that name is installed.
        """
        return extending.adapter(extending.DATASETS, framework, "framework")(self._ds, **options)

    def __getattr__(self, name: str) -> Any:
        # Names of Python's own protocols are asked for by many; none is looked up in what is installed.
        if name.startswith("_"):
            raise AttributeError(name)
        return extending.method(name, self._ds)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *extending.method_names()})


class DatasetAccessor(_Accessor):
    """``ds.insitu``: train, infer and verify in place.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("step", "x"), np.zeros((6, 2), "f4"))})
    >>> ds.insitu.plan(variables=["t2m"], sample_dim="step", batch_size=4).n_batches
    2
    """

    def _source(self) -> tuple[xr.Dataset | Catalog, str | None]:
        return self._ds, None

    def region(self, *, wrap: bool = False, **bounds: slice) -> xr.Dataset:
        """Select a region by label, lazily: in the order of the axes, or with ``wrap`` from west to east.

        Parameters
        ----------
        wrap : bool
            Take longitudes as a circle: ``slice(350, 10)`` goes east across the seam.
        **bounds : slice
            Per dimension ``slice(first, last)``, inclusive, in either order.

        Returns
        -------
        xarray.Dataset

        Raises
        ------
        InsituError
            If nothing lies within the bounds.

        Examples
        --------
        >>> import numpy as np, xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"a": (("lat", "lon"), np.zeros((3, 4)))},
        ...                 {"lat": [60.0, 0.0, -60.0], "lon": [0.0, 90.0, 180.0, 270.0]})
        >>> dict(ds.insitu.region(lat=slice(0, 90), lon=slice(270, 0), wrap=True).sizes)
        {'lat': 2, 'lon': 2}
        """
        return region(self._ds, bounds, wrap=wrap)


class DataArrayAccessor(_Accessor):
    """``da.insitu``: the same for a single variable, which is delivered where no other is named.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> da = xr.DataArray(np.arange(4.0), dims="step", name="t2m")
    >>> [batch["t2m"].tolist() for batch in da.insitu.loader(sample_dim="step", batch_size=3)]
    [[0.0, 1.0, 2.0], [3.0]]
    """

    def __init__(self, array: xr.DataArray) -> None:
        self._array, self._name = array, "values" if array.name is None else str(array.name)
        super().__init__(array.to_dataset(name=self._name))

    def _source(self) -> tuple[xr.Dataset | Catalog, str | None]:
        return self._ds, self._name

    def region(self, *, wrap: bool = False, **bounds: slice) -> xr.DataArray:
        """Select a region by label, lazily, as ``ds.insitu.region`` does.

        Parameters
        ----------
        wrap : bool
            Take longitudes as a circle: ``slice(350, 10)`` goes east across the seam.
        **bounds : slice
            Per dimension ``slice(first, last)``, inclusive, in either order.

        Returns
        -------
        xarray.DataArray

        Raises
        ------
        InsituError
            If nothing lies within the bounds.

        Examples
        --------
        >>> import numpy as np, xarray as xr, insitu_xr
        >>> da = xr.DataArray(np.arange(4.0), {"lon": [0.0, 90.0, 180.0, 270.0]}, name="t2m")
        >>> da.insitu.region(lon=slice(270, 90), wrap=True).values.tolist()
        [3.0, 0.0, 1.0]
        """
        return region(self._ds, bounds, wrap=wrap)[self._name].rename(self._array.name)


class Joined(Reading):
    """Several datasets in one loader, aligned by label; made by :func:`insitu_xr.join`."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __repr__(self) -> str:
        lines = [f"  {name}: {dict(ds.sizes)}" for name, ds in self._catalog.datasets.items()]
        return "\n".join([f"<insitu_xr.Joined on {self._catalog.on!r}>", *lines])

    def _source(self) -> tuple[xr.Dataset | Catalog, str | None]:
        return self._catalog, None


def join(datasets: Mapping[str, xr.Dataset], on: str = "time") -> Joined:
    """Join datasets of different stores, grids, chunks, starts and steps in one loader.

    Anchors are the labels of the first dataset. The others are looked up by label, and what they lack drops anchors,
    which the plan counts for each of them. Variables are named ``"dataset/variable"``, or by the variable alone where
    only one dataset has it.

    Parameters
    ----------
    datasets : mapping of name to Dataset
    on : str
        The dimension to align along.

    Returns
    -------
    Joined
        Has ``loader``, ``plan`` and ``split``, as ``ds.insitu`` has them.

    Raises
    ------
    InsituError
        If a dataset does not have the dimension, or labels for it.

    Examples
    --------
    >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
    >>> sixes, hours = pd.date_range("2000", periods=4, freq="6h"), pd.date_range("2000-01-01T06", periods=7, freq="1h")
    >>> era5 = xr.Dataset({"t2m": ("time", np.arange(4.0))}, {"time": sixes})
    >>> sat = xr.Dataset({"ir": ("time", np.arange(7.0))}, {"time": hours})
    >>> both = insitu_xr.join({"era5": era5, "sat": sat})
    >>> [(batch["t2m"].tolist(), batch["ir"].tolist()) for batch in both.loader(variables=["t2m", "ir"])]
    [([1.0, 2.0], [0.0, 6.0])]
    """
    return Joined(check_joined(datasets, on))


def register() -> None:
    """Register both accessors with xarray; once, when the package is imported."""
    xr.register_dataset_accessor("insitu")(DatasetAccessor)  # type: ignore[no-untyped-call]
    xr.register_dataarray_accessor("insitu")(DataArrayAccessor)  # type: ignore[no-untyped-call]
