"""Datasets over a virtual Zarr, with attributes of the dtypes that the files give them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.zarr import ZarrStore

from insitu_xr.errors import MissingExtraError, RequestError, UnknownNameError

from .filters import refuse_unreadable
from .joining import join
from .kept import kept_values
from .lines import decode_lines, typed
from .parsing import is_grib
from .references import UNREADABLE, References
from .splitting import split_contiguous
from .store import ReferenceStore

#: whether the fill value of Zarr is a missing value, which it is by default in references of format 2
_FILL = "use_zarr_fill_value_as_mask"

#: what `xarray.open_zarr` takes and means the same for a file
_OPTIONS = set(inspect.signature(xr.open_dataset).parameters) & set(inspect.signature(xr.open_zarr).parameters) | {
    _FILL
}


class TypedZarrStore(ZarrStore):
    """xarray's Zarr reader, but for attributes.

    A scale factor stored as float32 unpacks to float32, and masks compare in the dtype of ``missing_value``; as JSON
    numbers both would be float64, and values would differ from those that xarray reads out of the file.
    """

    __slots__ = ()

    def open_store_variable(self, name: str) -> xr.Variable:
        """Open one variable."""
        variable: xr.Variable = super().open_store_variable(name)  # type: ignore[no-untyped-call]
        variable.attrs = typed(variable.attrs)
        return _fixed_length(variable) if variable.dtype.kind == "T" else variable


def _fixed_length(variable: xr.Variable) -> xr.Variable:
    """Texts as xarray gives those of a netCDF file; they are in memory already."""
    texts = np.asarray(variable.values.astype(object).astype(str))
    return xr.Variable(variable.dims, texts, variable.attrs, {"dtype": texts.dtype})


class FileStore(ReferenceStore):
    """References with a way of their own to become a dataset, which `insitu_xr.open_dataset` asks for."""

    def __init__(self, references: References, stores: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        super().__init__(references, stores, source)
        self._dropped: set[str] = set()

    def open_as_dataset(self, group: str | None, options: Mapping[str, Any]) -> xr.Dataset:
        """Open a group as xarray opens one of a file.

        Raises
        ------
        UnknownNameError
            If there is no such group.
        RequestError
            If a variable is stored with filters that Zarr lacks.
        """
        options = {name: value for name, value in options.items() if name in _OPTIONS}
        dropped = options.pop("drop_variables", None)
        self._dropped |= {dropped} if isinstance(dropped, str) else set(dropped or ())
        return self._opened((group or "").strip("/"), options)

    def _opened(self, group: str, options: Mapping[str, Any]) -> xr.Dataset:
        _check_group(self.references, group)
        _check_messages(self.references, group)
        refuse_unreadable(self.references, group, self._dropped)
        return self._dataset(self, group, options)

    def _dataset(self, store: ReferenceStore, group: str, options: Mapping[str, Any]) -> xr.Dataset:
        given = {"chunks": None, **options}
        opened = TypedZarrStore.open_group(
            store,
            group=group or None,
            consolidated=False,
            zarr_format=2 if ".zgroup" in store.references.documents else 3,
            use_zarr_fill_value_as_mask=given.pop(_FILL, None),
        )
        dataset: xr.Dataset = xr.open_dataset(opened, **given, drop_variables=list(self._dropped))
        dataset.attrs.pop(UNREADABLE, None)
        return dataset


class JoinedStore(FileStore):
    """Many files as one: joined when it is known which group and which variables are wanted."""

    def __init__(
        self, parts: Sequence[References], dim: str, stores: Mapping[str, Any], source: Mapping[str, Any]
    ) -> None:
        super().__init__(References((), {}, {}), stores, source)
        self._parts = parts
        self._dim = dim

    def _opened(self, group: str, options: Mapping[str, Any]) -> xr.Dataset:
        _check_group(self._parts[0], group)
        for part in self._parts:
            refuse_unreadable(part, group, self._dropped)
        parts = [only(part, group, self._dropped) for part in self._parts]
        joined = join(parts, self._dim)
        self._take(joined.references)
        dataset = self._dataset(self, group, options)
        apart = {path.rpartition("/")[2]: path for path in joined.apart}
        if not apart:
            return dataset
        at_hand = {name: path for name, path in apart.items() if kept_values(parts[0], path) is not None}
        made, coords = self._decoded(at_hand, options)
        rest = {name: path for name, path in apart.items() if name not in made}
        if rest:
            opened = [self._few(part, set(apart.values()), group, options) for part in parts]
            coords |= set(opened[0].coords)
            made |= {name: self._concatenated(name, opened, joined.apart[path]) for name, path in rest.items()}
        return self._together(dataset, made, coords)

    def _decoded(
        self, paths: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[dict[str, xr.Variable], set[Hashable]]:
        lines = decode_lines(self._parts, paths, self._dim, options) if paths else None
        if lines is None:
            return {}, set()
        return {name: lines.variables[name] for name in paths}, set(lines.coords)

    def _few(self, part: References, paths: set[str], group: str, options: Mapping[str, Any]) -> xr.Dataset:
        """Some variables of one file."""
        documents = {
            key: document
            for key, document in part.documents.items()
            if (path := key.removesuffix("/zarr.json")) in paths or path not in part.arrays
        }
        few = split_contiguous(replace(part, documents=documents, arrays={path: part.arrays[path] for path in paths}))
        return self._dataset(ReferenceStore(few, self._stores, self.source), group, options)

    def _concatenated(self, name: str, opened: Sequence[xr.Dataset], reason: str) -> xr.Variable:
        variables = [one.variables[name] for one in opened]
        if variables[0].ndim > 1:
            variables = [_chunked(variable, name, reason) for variable in variables]
        made: xr.Variable = xr.Variable.concat(variables, self._dim)  # type: ignore[no-untyped-call]
        made.encoding = variables[0].encoding
        return made

    def _together(self, dataset: xr.Dataset, made: Mapping[str, xr.Variable], coords: set[Hashable]) -> xr.Dataset:
        """Put what was decoded file by file beside what was joined, in the order of the first file."""
        order = [path.rpartition("/")[2] for path in self._parts[0].arrays]
        everything: dict[Hashable, xr.Variable] = {**dataset.variables}
        everything.update(made)
        coords = coords | set(dataset.coords)
        names = sorted(everything, key=lambda name: order.index(str(name)) if name in order else len(order))
        whole = xr.Dataset(
            {name: everything[name] for name in names if name not in coords},
            {name: everything[name] for name in names if name in coords},
            dataset.attrs,
        )
        whole.encoding = dataset.encoding
        return whole


def _chunked(variable: xr.Variable, name: str, reason: str) -> xr.Variable:
    if variable.chunks is not None:
        return variable
    try:
        with warnings.catch_warnings():
            # dask is told to split nothing, so that no choice of chunks is worth a word.
            warnings.filterwarnings("ignore", ".*chunk.*", UserWarning)
            return variable.chunk({})
    except ImportError as error:
        raise MissingExtraError(
            f"dask must be installed to put {name!r} together, of which {reason}, but got no such package; pip install "
            f"insitu-xr[dask], or pass drop_variables=[{name!r}]"
        ) from error


def _check_group(references: References, group: str) -> None:
    groups = groups_of(references)
    if group not in groups:
        raise UnknownNameError(f"group must be one of {sorted(groups - {''})}, but got {group!r}; take one of those")


def _check_messages(references: References, group: str) -> None:
    """GRIB messages stand in groups by level and step; their root would look like a file of nothing."""
    groups = sorted({_parent(path) for path in references.arrays if is_grib(references.metadata(path))})
    if groups and group not in groups:
        raise RequestError(f"group must be given for GRIB, one of {groups}, but got {group!r}; take one of those")


def only(references: References, group: str, dropped: Collection[str]) -> References:
    """References of one group, without some of its variables."""
    arrays = {
        path: ranges
        for path, ranges in references.arrays.items()
        if _parent(path) == group and path.rpartition("/")[2] not in dropped
    }
    documents = {
        key: document
        for key, document in references.documents.items()
        if (path := key.removesuffix("/zarr.json")) in arrays or path not in references.arrays
    }
    return replace(references, documents=documents, arrays=arrays)


def groups_of(references: References) -> set[str]:
    """Paths of all groups, "" for the root."""
    nodes = {key.rpartition("/")[0] for key in references.documents}
    return nodes - set(references.arrays)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
