"""Opening a dataset so that it can be read in place, wherever it is stored."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.errors import ContainsArrayError, ContainsGroupError

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.opening import stores
from insitu_xr.opening.arrays import array_dataset
from insitu_xr.opening.failures import explaining, unlisted
from insitu_xr.opening.openers import Opener, by_scheme, claiming, open_with, refuse, shown
from insitu_xr.sources import Source, note, place_of

__all__ = ["open_dataset"]


def open_dataset(
    source: Any,
    *,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    backend: Literal["obstore", "fsspec"] = "obstore",
    **options: Any,
) -> xr.Dataset:
    """Open a dataset lazily and without dask, from wherever it is stored.

    Parameters
    ----------
    source : str, path, zarr store, group or array, or what an adapter opens
        A local path, or a URL with ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://`` or ``http(s)://``.
        Adapters open more: ``icechunk://...``, ``arraylake://org/repo``, netCDF files, or an Icechunk repository or
        session.
    group : str, optional
        A group within the store.
    storage_options : mapping, optional
        How to reach the store, as obstore calls it: ``region``, ``endpoint``, ``access_key_id``,
        ``secret_access_key``, ``skip_signature=True`` for public data, ``client_options={"allow_http": True}``,
        ``retry_config``, ... With ``backend="fsspec"``, as the file system calls it.
    backend : {"obstore", "fsspec"}
        What reads remote stores. "fsspec" knows more kinds of URL, and is slower.
    **options
        Those of the adapter, such as ``branch``, and those of :func:`xarray.open_zarr`, such as ``consolidated`` or
        ``mask_and_scale``.

    Returns
    -------
    xarray.Dataset
        Opened with ``chunks=None``: selections stay lazy, and ``ds.insitu`` reads them in place.

    Raises
    ------
    RequestError
        If an argument breaks a rule, or the scheme is unknown.
    NotFoundError, NotZarrError, ForbiddenError, OpenError
        If nothing is there, or something else, or the store refuses or does not answer.
    MissingExtraError
        If the adapter needs a package that is not installed.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": ("time", np.arange(3.0))})
    >>> written = ds.to_zarr("memory://open-dataset-example", mode="w", consolidated=False)
    >>> insitu_xr.open_dataset("memory://open-dataset-example")["t2m"].values
    array([0., 1., 2.])
    """
    _check(group, storage_options, backend)
    source = _named(source)
    given = dict(storage_options or {})
    if isinstance(source, zarr.Group | zarr.Array) or (isinstance(source, Store) and claiming(source) is None):
        _refuse_options(source, given)
        return _open_object(source, group, options)
    opener = _opener(source, group, backend)
    if opener is not None:
        return _open_through(opener, source, group, given, options)
    with explaining(shown(source), stores.unknown_argument if backend == "fsspec" else None):
        place = _place(source, group, given, backend)
        return _open(place, group, options)


def _check(group: Any, storage_options: Any, backend: Any) -> None:
    if backend not in ("obstore", "fsspec"):
        raise RequestError(f"backend must be 'obstore' or 'fsspec', but got {shown(backend)}; give one of them")
    if not isinstance(storage_options, Mapping | None):
        raise RequestError(
            f"storage_options must be a mapping of names to values, but got a {type(storage_options).__qualname__}; "
            "give a dict"
        )
    if not isinstance(group, str | None) or (group and not {".", ".."}.isdisjoint(group.split("/"))):
        raise RequestError(f"group must be a path within the store, such as 'a/b', but got {group!r}; give one")


def _named(source: Any) -> Any:
    """The text of a path, with ``~`` written out; other sources as they are."""
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        return source
    if not source.strip():
        raise refuse(source, stores.SCHEMES)
    return os.path.expanduser(source)


def _opener(source: Any, group: str | None, backend: str) -> Opener | None:
    """The adapter that opens a source; None for Zarr."""
    if not isinstance(source, str):
        opener = claiming(source)
        if opener is None:
            raise refuse(source, stores.SCHEMES)
        return opener
    scheme = stores.scheme_of(source)
    if not stores.is_ours(scheme):
        opener = by_scheme(scheme)
        if opener is None and backend == "obstore":
            raise RequestError(f"{refuse(source, stores.SCHEMES)}; with backend='fsspec' also those of fsspec")
        return opener
    path = stores.local_path(source)
    is_zarr = stores.has_documents(path) if path is not None else ".zarr" in source.partition("?")[0]
    return None if is_zarr or scheme == "memory" else claiming(source)


def _place(source: str, group: str | None, given: Mapping[str, Any], backend: str) -> stores.Place:
    if backend == "fsspec":
        return stores.Place(stores.fsspec_store(source, given))
    path = stores.local_path(source)
    if path is None and stores.scheme_of(source) != "memory":
        return stores.remote(source, group, given)
    _refuse_options(source, given)
    return stores.Place(source) if path is None else stores.local(path, group)


def _open_through(
    opener: Opener, source: Any, group: str | None, given: Mapping[str, Any], options: Mapping[str, Any]
) -> xr.Dataset:
    with explaining(shown(source), getattr(opener, "explain", None)):
        content, facts, rest = open_with(opener, source, given, options)
        if isinstance(content, xr.Dataset):
            return content
        store = content if content.read_only else content.with_read_only(True)
        note(store, Source(**facts))
        return _open(stores.Place(store), group, rest)


def _open_object(source: Any, group: str | None, options: Mapping[str, Any]) -> xr.Dataset:
    with explaining(type(source).__qualname__):
        if isinstance(source, Store):
            return _open(stores.Place(source), group, options)
        path = "/".join(part for part in (source.path, (group or "").strip("/")) if part)
        if isinstance(source, zarr.Group):
            return _open(stores.Place(source.store), path or None, options)
        return array_dataset(source, lambda parent: _open(stores.Place(source.store), parent, options))


def _open(place: stores.Place, group: str | None, options: Mapping[str, Any]) -> xr.Dataset:
    given = {"chunks": None, "zarr_format": place.zarr_format, **options}
    if not place.rooted:
        given.setdefault("consolidated", False)
    known = inspect.signature(xr.open_zarr).parameters
    unknown = [name for name in given if name not in known]
    if unknown:
        raise RequestError(
            f"options must be those of xarray.open_zarr, or of the adapter that opens the source, but got {unknown}; "
            "leave them out"
        )
    own = getattr(place.store, "open_as_dataset", None)
    if own is not None:  # what JSON cannot say of attributes, or several arrays for one variable
        made: xr.Dataset = own(group, options)
        return made
    with warnings.catch_warnings():
        # A store without consolidated metadata is as good as one with; only the opening takes longer.
        warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated", RuntimeWarning)
        try:
            dataset: xr.Dataset = xr.open_zarr(place.store, group=group, **given)
        except KeyError as error:
            if group is None:
                raise
            raise _no_group(place.store, group) from error
        except (ContainsArrayError, FileNotFoundError, AttributeError):  # the last where metadata are consolidated
            array = _array_at(place.store, group)
            if array is None:
                raise
            return array_dataset(array, lambda parent: _open(place, parent, options))
    if not place.lists and not dataset.variables:
        raise unlisted(repr(place_of(place.store)))
    return dataset


def _array_at(store: Any, path: str | None) -> zarr.Array[Any] | None:
    try:
        return zarr.open_array(store, path=path or "", mode="r")
    except (FileNotFoundError, ContainsGroupError):
        return None


def _no_group(store: Any, group: str) -> UnknownNameError:
    try:
        has = f"it has {sorted(zarr.open_group(store, mode='r').group_keys())}"
    except Exception:
        has = "list them with zarr.open_group(...)"  # not every store can
    return UnknownNameError(f"group must be one of the store's, but got {group!r}; {has}")


def _refuse_options(source: Any, given: Mapping[str, Any]) -> None:
    if given:
        raise RequestError(
            f"storage_options must be given for a remote URL, but got {sorted(given)} for {shown(source)}; leave "
            "them out"
        )
