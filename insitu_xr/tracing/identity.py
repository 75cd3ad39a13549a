"""What names the stored arrays of a variable: the same tomorrow and on another path through zarr, and no secrets."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

from zarr.storage import FsspecStore, LocalStore, WrapperStore

if TYPE_CHECKING:
    import zarr

    from insitu_xr.tracing.traced import TracedVariable

#: memory is found again within the process alone
_PROCESS = uuid.uuid4().hex[:12]
#: more stored arrays than this are named by their ends and a digest, so that an identity stays small
_LISTED = 4

_USER = re.compile(r"(?<=//)[^/@\s]*@")
_QUERY = re.compile(r"\?[^\s\"')>]*")
_ADDRESS = re.compile(r" (object )?at 0x[0-9a-fA-F]+")


def identity(traced: TracedVariable) -> dict[str, Any]:
    """Name the stored arrays of a variable; only the kind is known of what is not read in place.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from insitu_xr.tracing import trace
    >>> identity(trace(xr.DataArray(np.zeros(3), dims="x", name="t")))
    {'kind': 'memory'}
    """
    if traced.kind != "stored":
        return {"kind": traced.kind}
    return {"kind": "stored", **_named([location(segment.array) for segment in traced.segments])}


def _named(places: list[str]) -> dict[str, Any]:
    if len(places) <= _LISTED:
        return {"arrays": places}
    digest = hashlib.blake2b("\n".join(places).encode(), digest_size=8).hexdigest()
    return {"arrays": [places[0], places[-1]], "count": len(places), "digest": digest}


def location(array: zarr.Array[Any]) -> str:
    """Where an array is stored, without user names, passwords and signatures.

    Examples
    --------
    >>> import zarr
    >>> store = zarr.storage.MemoryStore()
    >>> array = zarr.create_array(store, name="t", shape=(1,), dtype="f4")
    >>> location(array) == location(zarr.open_array(store, path="t")), location(array).endswith("/t")
    (True, True)
    """
    return f"{_place(array.store).rstrip('/')}/{array.path}"


def _place(store: Any) -> str:
    while isinstance(store, WrapperStore):
        store = store._store
    if isinstance(store, LocalStore):
        return f"file://{os.path.abspath(store.root)}"
    if isinstance(store, FsspecStore):
        return _fsspec_place(store)
    text = str(store)
    if "memory" in text.lower():
        return f"{text} of process {_PROCESS}"
    return without_secrets(_ADDRESS.sub("", text))


def _fsspec_place(store: Any) -> str:
    protocol = store.fs.protocol if isinstance(store.fs.protocol, str) else store.fs.protocol[0]
    path = str(store.path)
    if protocol == "memory":
        return f"memory://{path} of process {_PROCESS}"
    if protocol in ("file", "local"):
        return f"file://{os.path.abspath(path)}"
    return without_secrets(path if "://" in path else f"{protocol}://{path}")


def without_secrets(url: str) -> str:
    """Leave out the user and the query of a URL, where credentials and signatures are.

    Examples
    --------
    >>> without_secrets("https://me:password@host/era5.zarr?signature=abc")
    'https://host/era5.zarr'
    """
    return _QUERY.sub("", _USER.sub("", url))
