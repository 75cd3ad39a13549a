"""What names the stored arrays of a variable: the same tomorrow and on another path through zarr, and no secrets."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

from insitu_xr.errors import InsituError
from insitu_xr.sources import Source, source_of, unwrapped
from insitu_xr.tracing import trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    import xarray as xr
    import zarr

    from insitu_xr.tracing.traced import TracedVariable

#: more stored arrays than this are named by their ends and a digest, so that an identity stays small
_LISTED = 4
#: kinds of dtype whose elements are decoded one by one
PLAIN = "biufcSU"


def identity(traced: TracedVariable, *, ask: bool = False, stores: dict[int, Source] | None = None) -> dict[str, Any]:
    """Name the stored arrays of a variable; only the kind is known of what is not read in place.

    Parameters
    ----------
    ask : bool
        Send a request for evidence of the version to each remote store of which none is known.
    stores : dict, optional
        Stores that were named already, which one call leaves there for the next.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from insitu_xr.tracing import trace
    >>> identity(trace(xr.DataArray(np.zeros(3), dims="x", name="t")))
    {'kind': 'memory'}
    """
    if traced.kind != "stored":
        return {"kind": traced.kind}
    arrays = [segment.array for segment in traced.segments]
    listed = arrays if len(arrays) <= _LISTED else [arrays[0], arrays[-1]]
    known = {} if stores is None else stores
    versions = [source.version for source in sources_of(listed, ask=ask, known=known)]
    return {
        "kind": "stored",
        **_named([location(array, known) for array in arrays]),
        **({"versions": versions} if any(versions) else {}),
    }


def _named(places: list[str]) -> dict[str, Any]:
    if len(places) <= _LISTED:
        return {"arrays": places}
    digest = hashlib.blake2b("\n".join(places).encode(), digest_size=8).hexdigest()
    return {"arrays": [places[0], places[-1]], "count": len(places), "digest": digest}


def location(array: zarr.Array[Any], known: dict[int, Source] | None = None) -> str:
    """Where an array is stored, without user names, passwords and signatures.

    Parameters
    ----------
    known : dict, optional
        Stores that were named already.

    Examples
    --------
    >>> import zarr
    >>> store = zarr.storage.MemoryStore()
    >>> array = zarr.create_array(store, name="t", shape=(1,), dtype="f4")
    >>> location(array) == location(zarr.open_array(store, path="t")), location(array).endswith("/t")
    (True, True)
    """
    source = _source(array.store, False, {} if known is None else known)
    return f"{source.url.rstrip('/')}/{array.path}"


def _source(store: Any, ask: bool, known: dict[int, Source]) -> Source:
    number = id(unwrapped(store))
    if number not in known:
        known[number] = source_of(store, ask=ask)
    return known[number]


def sources_of(
    arrays: Iterable[zarr.Array[Any]], *, ask: bool = False, known: dict[int, Source] | None = None
) -> list[Source]:
    """Name the stores of arrays, each once, in order."""
    known = {} if known is None else known
    stores = {id(unwrapped(array.store)): array.store for array in arrays}
    found = [_source(store, ask, known) for store in stores.values()]
    return list({(source.url, str(source.version)): source for source in found}.values())


def source_of_all(variables: Iterable[xr.DataArray]) -> Source:
    """Name what variables are stored in; sends a request to each remote store of which no version is known.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> source_of_all([xr.DataArray(np.zeros(3), dims="x", name="t")])
    <insitu_xr.Source>
      kind  memory
    """
    arrays, kinds = [], set[str]()
    for variable in variables:
        # Tracing would load dates and the like to memory.
        if variable.dtype.kind in PLAIN:
            with contextlib.suppress(InsituError):  # what was computed is stored nowhere
                traced = trace(variable)
                arrays += [segment.array for segment in traced.segments]
                kinds.add(traced.kind)
    found = sources_of(arrays, ask=True)
    if len(found) > 1:
        return Source(kind="several", url=f"{found[0].url} and {len(found) - 1} more", sources=found)
    return found[0] if found else Source(kind="foreign" if "foreign" in kinds else "memory")
