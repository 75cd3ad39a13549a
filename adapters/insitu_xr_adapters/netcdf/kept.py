"""Small arrays whose values are kept with the references: what coordinates are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from .filters import reason
from .references import INLINED, Document, Ranges, References, raw_chunk_bytes
from .store import ReferenceStore

#: 1-D arrays up to this many bytes are kept with the references
KEPT_BYTES = 1 << 20


def with_small_arrays(references: References, stores: Mapping[str, Any]) -> References:
    """Keep the values of small 1-D arrays and of bounds, which coordinates are made of, as they are in memory.

    Opening the file again reads nothing then.
    """
    documents, arrays, bounds = dict(references.documents), dict(references.arrays), bounds_of(references.documents)
    store = ReferenceStore(references, stores, {})
    for path, ranges in references.arrays.items():
        document = references.metadata(path)
        dtype = number_dtype(document)
        if dtype is None or not (ranges.files.ndim <= 1 or path in bounds) or reason(document):
            continue
        if 0 < math.prod(document["shape"]) * dtype.itemsize <= KEPT_BYTES:
            values = np.asarray(zarr.open_array(store, path=path, mode="r")[...], dtype)
            documents[f"{path}/zarr.json"] = {
                **document,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": document["shape"]}},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            }
            grid = (1,) * ranges.files.ndim
            place, size = np.full(grid, INLINED, np.int32), np.full(grid, values.nbytes, np.int64)
            arrays[path] = Ranges(place, np.zeros(grid, np.int64), size, {0: values.tobytes()})
    return References(references.files, documents, arrays)


def kept_values(references: References, path: str) -> npt.NDArray[Any] | None:
    """Stored values of a small array; None if they must be read."""
    document = references.metadata(path)
    dtype, ranges = number_dtype(document), references.arrays[path]
    if dtype is None or ranges.files.size != 1 or 0 not in ranges.inlined or raw_chunk_bytes(document) is None:
        return None
    return np.frombuffer(ranges.inlined[0], dtype).reshape(document["shape"])


def number_dtype(document: Document) -> np.dtype[Any] | None:
    """Little-endian dtype of an array of numbers, None for others."""
    name = document.get("data_type")
    if not isinstance(name, str):
        return None
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype.newbyteorder("<") if dtype.kind in "iuf" else None


def bounds_of(documents: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Paths of the arrays that others name as their bounds."""
    found = set()
    for key, document in documents.items():
        parent = key.removesuffix("/zarr.json").rpartition("/")[0]
        for kind in ("bounds", "climatology"):
            name = document.get("attributes", {}).get(kind)
            if isinstance(name, str):
                found.add(f"{parent}/{name}".lstrip("/"))
    return found
