"""Statistics as JSON and as a Dataset, both exact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr.scaling.statistics import FieldAxes, Statistics, comparable

FORMAT = 1
NUMBERS = ("count", "mean", "std")


def to_json(statistics: Mapping[str, Statistics]) -> str:
    """Write; a line for each variable."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(_content(found), allow_nan=False)}" for name, found in statistics.items()
    ]
    return f'{{\n "format": {FORMAT},\n "variables": {{\n' + ",\n".join(lines) + "\n }\n}"


def from_json(text: str) -> dict[str, Statistics]:
    """Read.

    Raises
    ------
    RequestError
        If the content is not a scaler that this version reads.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RequestError(f"scaler must be JSON, but got other text ({error}); write it with to_json") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        got = content.get("format") if isinstance(content, dict) else content
        raise RequestError(
            f"format of a scaler must be {FORMAT}, but got {got!r}; read it with the version that wrote it"
        )
    try:
        return {name: _statistics(found) for name, found in content["variables"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"scaler must be complete, but reading it failed with {error!r}; fit it again") from error


def _content(found: Statistics) -> dict[str, Any]:
    axes = found.axes
    labels = {dim: {"dtype": v.dtype.str, "values": _plain(v)} for dim, v in axes.labels.items()}
    described = {"dims": axes.dims, "kept": axes.kept, "labels": labels, "channels": axes.channels}
    return described | {number: _plain(getattr(found, number)) for number in NUMBERS}


def _plain(values: npt.NDArray[Any]) -> Any:
    """As nested lists; NaN, which JSON lacks, as null."""
    if values.dtype.kind in "mM":
        return values.view(np.int64).tolist()
    if values.dtype.kind == "f" and np.isnan(values).any():
        plain = values.astype(object)
        plain[np.isnan(values)] = None
        return plain.tolist()
    return values.tolist()


def _statistics(content: Mapping[str, Any]) -> Statistics:
    labels = {}
    for dim, found in content["labels"].items():
        dtype = np.dtype(found["dtype"])
        times = dtype.kind in "mM"
        values = np.array(found["values"], np.int64 if times else dtype)
        labels[dim] = values.view(dtype) if times else values
    channels = {dim: tuple(names) for dim, names in content["channels"].items()}
    axes = FieldAxes(tuple(content["dims"]), tuple(content["kept"]), labels, channels)
    count, mean, std = (
        np.array(content["count"], np.int64),
        *(np.array(content[k], np.float64) for k in ("mean", "std")),
    )
    return Statistics(axes, count, mean, std)


def to_xarray(statistics: Mapping[str, Statistics]) -> xr.Dataset:
    """One variable for each, along ``statistic`` and what is kept; the rest as attributes."""
    coords: dict[str, npt.NDArray[Any]] = {"statistic": np.array(NUMBERS, object)}
    variables = {}
    for name, found in statistics.items():
        names = tuple(_dimension(coords, name, dim, found) for dim in found.axes.kept)
        values = np.stack([np.asarray(getattr(found, number), np.float64) for number in NUMBERS])
        attrs = {"variable": name, "dims": list(found.axes.dims), "kept": list(found.axes.kept)}
        attrs["channels"] = json.dumps(found.axes.channels)
        variables[name.replace("/", ".")] = (("statistic", *names), values, attrs)
    # Stores list variables in any order.
    return xr.Dataset(variables, coords, {"format": FORMAT, "variables": list(variables)})


def _dimension(coords: dict[str, npt.NDArray[Any]], variable: str, dim: str, found: Statistics) -> str:
    """Name of a dimension: with the variable's where another one has other labels or another size."""
    labels = found.axes.labels.get(dim)
    if labels is None:
        labels = np.arange(found.mean.shape[found.axes.kept.index(dim)])
    labels = labels.astype(object) if labels.dtype.kind == "U" else labels
    name = dim if dim not in coords or np.array_equal(coords[dim], labels) else f"{dim}_{variable.replace('/', '.')}"
    coords[name] = labels
    return name


def from_xarray(dataset: xr.Dataset) -> dict[str, Statistics]:
    """Undo `to_xarray`.

    Raises
    ------
    RequestError
        If it is not such a Dataset.
    """
    if dataset.attrs.get("format") != FORMAT or "statistic" not in dataset.dims:
        raise RequestError(
            f"Dataset must be what Scaler.to_xarray gave, of format {FORMAT}, but got one with the attributes "
            f"{sorted(map(str, dataset.attrs))}; write it with to_zarr"
        )
    ordered = [dataset[name] for name in np.atleast_1d(dataset.attrs["variables"])]
    return {array.attrs["variable"]: _from_array(array) for array in ordered}


def _from_array(array: xr.DataArray) -> Statistics:
    kept = tuple(map(str, np.atleast_1d(array.attrs["kept"]))) if len(array.dims) > 1 else ()
    labels = {dim: comparable(array[name].to_numpy()) for dim, name in zip(kept, array.dims[1:], strict=True)}
    channels = {dim: tuple(names) for dim, names in json.loads(array.attrs["channels"]).items()}
    axes = FieldAxes(tuple(map(str, np.atleast_1d(array.attrs["dims"]))), kept, labels, channels)
    count, mean, std = (array.sel(statistic=number).to_numpy() for number in NUMBERS)
    return Statistics(axes, count.astype(np.int64), mean, std)
