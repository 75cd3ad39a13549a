"""Small arrays of many files, above all dates: decoded from values at hand, as often as their attributes change."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.zarr import FillValueCoder

from .joining import dimension_names
from .kept import kept_values
from .references import DTYPES, UNREADABLE, References

_OPTIONS = frozenset(inspect.signature(xr.decode_cf).parameters) - {"obj", "drop_variables"}


def typed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in the dtypes of the file, without our own."""
    made = dict(attributes)
    made.pop(UNREADABLE, None)
    for name, dtype in made.pop(DTYPES, {}).items():
        # The fill value stands there in a form of its own, and is given the dtype of the array.
        if name in made and name != "_FillValue":
            made[name] = np.asarray(made[name], dtype)[()]
    return made


def decode_lines(
    parts: Sequence[References], paths: Mapping[str, str], dim: str, options: Mapping[str, Any]
) -> xr.Dataset | None:
    """Decode small arrays of files that follow one another.

    Parameters
    ----------
    parts : sequence of References
        The files in order.
    paths : mapping of str to str
        Paths of the arrays, by name.
    dim : str
        Dimension along which they follow one another.
    options : mapping
        Of `xarray.open_dataset`.

    Returns
    -------
    xarray.Dataset or None
        What concatenating the decoded files gives; None if values are not at hand.
    """
    if any(kept_values(part, path) is None for part in parts for path in paths.values()):
        return None
    chosen = {name: value for name, value in options.items() if name in _OPTIONS}
    decoded = [one for run in _runs(parts, paths) for one in _decode(run, paths, dim, chosen)]
    if len(decoded) == 1:
        return decoded[0]
    # As for whole files: labels are put together in a way of their own, that of indexes.
    made: xr.Dataset = xr.concat(
        decoded, dim, data_vars="minimal", coords="minimal", compat="override", join="exact", combine_attrs="override"
    )
    return made


def _runs(parts: Sequence[References], paths: Mapping[str, str]) -> Iterator[list[References]]:
    """Files in which the arrays have the same attributes."""

    def attributes(part: References) -> list[Any]:
        return [part.metadata(path).get("attributes") for path in paths.values()]

    for _, run in groupby(parts, attributes):
        yield list(run)


def _decode(
    run: Sequence[References], paths: Mapping[str, str], dim: str, options: Mapping[str, Any]
) -> list[xr.Dataset]:
    whole = _decode_once(run, paths, dim, options)
    # What dates become is chosen by their values: all together they may be objects that alone would not be.
    settled = all(variable.dtype.kind in "Miufb" for variable in whole.variables.values())
    if settled or len(run) == 1:
        return [whole]
    return [_decode_once([part], paths, dim, options) for part in run]


def _decode_once(
    run: Sequence[References], paths: Mapping[str, str], dim: str, options: Mapping[str, Any]
) -> xr.Dataset:
    variables = {}
    for name, path in paths.items():
        document = run[0].metadata(path)
        dims = dimension_names(document)
        values = np.concatenate([kept_values(part, path) for part in run], dims.index(dim))
        attributes = typed(document.get("attributes", {}))
        if "_FillValue" in attributes:
            attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], values.dtype)
        variables[name] = xr.Variable(dims, values.astype(values.dtype.newbyteorder("="), copy=False), attributes)
    return xr.decode_cf(xr.Dataset(variables), **options).load()


def first_labels(parts: Sequence[References], path: str) -> list[Any]:
    """The first label of each file along a dimension, as it compares with the others; None where none is at hand."""
    name = path.rpartition("/")[2]
    stored = [kept_values(part, path) for part in parts]
    if any(values is None or not values.size for values in stored):
        return [None]
    if len(list(_runs(parts, {name: path}))) == 1:
        return [values[0] for values in stored if values is not None]
    return [_decode_once([part], {name: path}, name, {})[name].values[0] for part in parts]
