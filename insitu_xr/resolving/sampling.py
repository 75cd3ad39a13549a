"""What to draw along: the sample dimensions and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.times import LabelAxis, label_axis
from insitu_xr.resolving.asked import Group
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.roles import roles_of


def sample_dims_of(catalog: Catalog, groups: Sequence[Group], sample_dim: Any) -> tuple[str, ...]:
    """The dimensions to draw along: those given, else the time-like one.

    Raises
    ------
    RequestError, UnknownNameError
        If there is none, or a variable does not have it.
    """
    names = [n for g in groups for n in g.variables]
    dims = tuple(dict.fromkeys(str(d) for n in names for d in catalog[n].dims))
    given = (sample_dim,) if isinstance(sample_dim, str) or not isinstance(sample_dim, Sequence) else tuple(sample_dim)
    chosen = tuple(map(str, given))
    if catalog.on is not None:
        if sample_dim is not None and chosen != (catalog.on,):
            raise RequestError(
                f"sample_dim must be {catalog.on!r}, which the datasets are joined on, but got {sample_dim!r}; "
                "leave it out"
            )
        chosen = (catalog.on,)
    elif sample_dim is None:
        chosen = time_like(catalog.primary, dims)
    else:
        roles = roles_of(catalog.primary)
        chosen = tuple(d if d in dims else roles.dim(d) for d in chosen)
    if not chosen:
        raise RequestError("sample_dim must name a dimension, but got none; leave it out for the time dimension")
    if len(set(chosen)) < len(chosen):
        raise RequestError(f"sample_dim must name each dimension once, but got {chosen}; drop one")
    for dim in chosen:
        if dim not in dims:
            raise UnknownNameError(
                f"sample_dim must be a dimension of the variables, but got {dim!r}; they have {list(dims)}"
            )
    for name in names:
        if not set(chosen) & set(catalog[name].dims):
            raise RequestError(
                f"variable {name!r} must have the sample dimension {' or '.join(map(repr, chosen))}, but got "
                f"{tuple(map(str, catalog[name].dims))}; pass it in statics=, or give another sample_dim="
            )
    return chosen


def sampled(catalog: Catalog, sample_dim: Any, without: Any) -> list[str]:
    """The variables that have the sample dimension, for those who name none."""
    left_out = {without} if isinstance(without, str) else {*without}
    names = [name for name in catalog.names if name not in left_out]
    dims = tuple(dict.fromkeys(str(d) for name in names for d in catalog[name].dims))
    if sample_dim is None:
        chosen: tuple[str, ...] = (catalog.on,) if catalog.on is not None else time_like(catalog.primary, dims)
    else:
        chosen = (sample_dim,) if isinstance(sample_dim, str) else tuple(map(str, sample_dim))
    roles = roles_of(catalog.primary)
    chosen = tuple(d if d in dims else roles.dim(d) for d in chosen)
    return [name for name in names if set(chosen) & set(map(str, catalog[name].dims))]


def time_like(ds: xr.Dataset, dims: Sequence[str]) -> tuple[str, ...]:
    """The one of some dimensions that holds times.

    Raises
    ------
    RequestError
        If there is none, or several.
    """

    def is_time(dim: str) -> bool:
        labels = _labels(ds, dim)
        if labels is None or labels.ndim != 1:
            return False
        _check_zone(ds, dim)
        if np.issubdtype(labels.dtype, np.datetime64):
            return True
        return labels.dtype == object and isinstance(ds.indexes.get(dim), xr.CFTimeIndex)

    found = [d for d in dims if is_time(d)]
    if len(found) == 1:
        return (found[0],)
    if "time" in dims:
        return ("time",)
    if found:
        raise RequestError(
            f"sample_dim must be one dimension, but {found} all hold times; give the one to draw along as sample_dim="
        )
    raise RequestError(
        f"sample_dim must be given where no dimension holds times, but got none; the variables have {list(dims)}"
    )


def axis_of(ds: xr.Dataset, dim: str) -> LabelAxis:
    """The labels of a dimension of the dataset."""
    _check_zone(ds, dim)
    labels = _labels(ds, dim)
    return label_axis(dim, labels.to_numpy() if labels is not None and labels.dims == (dim,) else None, ds.sizes[dim])


def _labels(ds: xr.Dataset, dim: str) -> xr.Variable | None:
    """The coordinate of a dimension, without the other coordinates that xarray would look for."""
    return ds.variables[dim] if dim in ds.coords else None


def _check_zone(ds: xr.Dataset, dim: str) -> None:
    labels = _labels(ds, dim)
    if labels is not None and getattr(labels.dtype, "tz", None) is not None:
        raise RequestError(
            f"labels of {dim!r} must be times without a zone, but got {labels.dtype}; convert them, e.g. with "
            f"ds.assign_coords({dim}=ds.indexes[{dim!r}].tz_convert(None))"
        )


def lead_axis_of(ds: xr.Dataset, axes: Sequence[LabelAxis]) -> int:
    """Which of the sample dimensions leads move along: the init time of a forecast, else the first that holds times."""
    init = roles_of(ds).init_time
    named = [k for k, axis in enumerate(axes) if axis.dim == init]
    return next(iter([*named, *(k for k, axis in enumerate(axes) if axis.kind == "time")]), 0)


def check_not_empty(catalog: Catalog, names: Sequence[str]) -> None:
    """Refuse a selection that left a dimension empty.

    Raises
    ------
    RequestError
        Names the dimension and a variable that has it.
    """
    for name in names:
        for dim, size in catalog[name].sizes.items():
            if size == 0:
                raise RequestError(
                    f"dimension {str(dim)!r} must hold at least one label, but got 0 (variable {name!r}); the "
                    "selection left nothing, so check its bounds and the direction of the axis"
                )
