"""Where the chunks of a file lie: metadata of a virtual Zarr, and a table of byte ranges per array."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

#: attribute of an array that names the dtypes of its attributes, which JSON does not keep
DTYPES = "_insitu_dtypes"
#: attribute of an array that says why its chunks cannot be read; of the root: of variables that are left out
UNREADABLE = "_insitu_unreadable"

type Document = Mapping[str, Any]

#: numbers of files that are none
ABSENT, INLINED = -1, -2


@dataclass(frozen=True, slots=True)
class File:
    """One file, and what tells its version.

    Attributes
    ----------
    url : str
        ``file://...`` with the path quoted, or the URL of an object; never with a query or credentials.
    size : int
        Length in bytes.
    version : str
        Whatever changes when the content does: time of modification or entity tag.
    """

    url: str
    size: int = 0
    version: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it lies in the file system."""
        return self.url.startswith("file://")


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Byte ranges of the chunks of one array, one entry per chunk of its grid.

    Attributes
    ----------
    files : ndarray of int32
        Number of the file, `ABSENT` where no chunk is stored, `INLINED` where its bytes stand in ``inlined``.
    offsets, lengths : ndarray of int64
        Where the chunk lies in the file.
    inlined : mapping of int to bytes
        Encoded chunks by their place in the flattened grid.
    """

    files: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    inlined: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def nothing(cls, grid: tuple[int, ...]) -> Ranges:
        """No chunk is stored."""
        return cls(np.full(grid, ABSENT, np.int32), np.zeros(grid, np.int64), np.zeros(grid, np.int64))

    def shifted(self, files: int) -> Ranges:
        """The same, for a list of files in which these stand ``files`` places later."""
        return replace(self, files=np.where(self.files >= 0, self.files + files, self.files).astype(np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """A virtual Zarr over files that stay as they are.

    Attributes
    ----------
    files : tuple of File
        What the ranges count in.
    documents : mapping of str to mapping
        Metadata documents by key, such as ``"zarr.json"`` and ``"t2m/zarr.json"``.
    arrays : mapping of str to Ranges
        By path of the array.
    """

    files: tuple[File, ...]
    documents: Mapping[str, Document]
    arrays: Mapping[str, Ranges]

    def metadata(self, path: str) -> Document:
        """Metadata document of an array, of either format."""
        key = f"{path}/zarr.json"
        return self.documents[key if key in self.documents else f"{path}/.zarray"]

    def encoded(self) -> dict[str, bytes]:
        """Metadata documents as they would be stored."""
        return {key: json.dumps(document).encode() for key, document in self.documents.items()}


def chunk_shape(document: Document) -> tuple[int, ...]:
    """Chunk shape that a metadata document of either format states."""
    if document["zarr_format"] == 2:
        return tuple(document["chunks"])
    return tuple(document["chunk_grid"]["configuration"]["chunk_shape"])


def grid_shape(document: Document) -> tuple[int, ...]:
    """Number of chunks per axis."""
    return tuple(-(-n // c) for n, c in zip(document["shape"], chunk_shape(document), strict=True))


def raw_chunk_bytes(document: Document) -> int | None:
    """Bytes of a whole chunk where chunks are stored as they are in memory; None where a codec changes their length."""
    if document["zarr_format"] == 2:
        plain = not document.get("compressor") and not document.get("filters")
        dtype = document["dtype"]
        itemsize = np.dtype(dtype).itemsize if isinstance(dtype, str) and "O" not in dtype else 0
    else:
        plain = [codec["name"] for codec in document["codecs"]] == ["bytes"]
        itemsize = _itemsize(document["data_type"])
    return math.prod(chunk_shape(document)) * itemsize if plain and itemsize else None


def _itemsize(data_type: Any) -> int:
    if not isinstance(data_type, str):
        length = data_type.get("configuration", {}).get("length_bytes")
        return int(length) if length else 0
    try:
        return np.dtype(data_type).itemsize
    except TypeError:
        return 0
