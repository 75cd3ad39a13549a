"""Kerchunk references, JSON or Parquet, that others made.

They are read here and not through fsspec: what fsspec does not find it calls absent, and an absent scalar would read as
its fill value. Some writers name the only chunk of a scalar ``name/`` instead of ``name/0``.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from insitu_xr.errors import MissingExtraError, NotFoundError, NotZarrError

from .dataset import FileStore
from .files import Places, as_url, public, shown
from .references import INLINED, File, Ranges, References, grid_shape
from .store import local_path

#: documents of either format
_DOCUMENTS = (".zgroup", ".zarray", ".zattrs", "zarr.json")
_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def open_kerchunk(source: Any, options: Mapping[str, Any]) -> tuple[FileStore, Mapping[str, Any]]:
    """Open references as a virtual Zarr.

    Parameters
    ----------
    source : str or path
        A JSON file, or a folder of Parquet files.
    options : mapping
        In obstore's terms; for the references and for the files that they name.
    """
    places = Places(options)
    url = as_url(os.fspath(source).removeprefix("reference::"))
    found = parquet_references(url, places) if _is_parquet(url) else json_references(url, places)
    facts: dict[str, Any] = {"kind": "kerchunk", "url": public(url)}
    if url.startswith("file://"):
        facts["size"] = os.stat(local_path(url)).st_size
    places.locate_all([file.url for file in found.files])
    return FileStore(found, places.stores, facts), facts


def _is_parquet(url: str) -> bool:
    return url.partition("?")[0].rstrip("/").endswith((".parq", ".parquet"))


def json_references(url: str, places: Places) -> References:
    """Read references out of a JSON file.

    Raises
    ------
    NotZarrError
        If it is some other JSON.
    """
    try:
        content = json.loads(_content(url, places))
    except ValueError as error:
        raise NotZarrError(f"references must be JSON, but got {shown(url)!r}: {error}; check the file") from error
    refs = content.get("refs", content) if isinstance(content, dict) else {}
    if not any(key.rpartition("/")[2] in _DOCUMENTS for key in refs):
        raise NotZarrError(
            f"references must describe a Zarr, but got {shown(url)!r}, which has no .zgroup, .zarray, zarr.json; give "
            "a file made by kerchunk or VirtualiZarr"
        )
    if isinstance(content, dict) and content.get("gen"):
        raise NotZarrError(
            f"references must be written out, but got {shown(url)!r}, which generates some ('gen'); write them out "
            "with kerchunk.utils.consolidate"
        )
    build = _Builder(url, places, content.get("templates") or {})
    for key, entry in refs.items():
        build.add(key, entry)
    return build.finish()


def parquet_references(url: str, places: Places) -> References:
    """Read references out of a folder of Parquet files."""
    content = json.loads(_content(f"{url.rstrip('/')}/.zmetadata", places))
    build = _Builder(url, places, {})
    for key, entry in content["metadata"].items():
        build.add(key, entry)
    size = int(content["record_size"])
    for path in list(build.arrays()):
        count = math.prod(build.grid(path))
        for record in range(-(-count // size)):
            try:
                raw = _content(f"{url.rstrip('/')}/{path}/refs.{record}.parq", places)
            except (FileNotFoundError, NotADirectoryError):
                continue  # nothing is stored of these chunks
            for row, entry in _rows(raw):
                if record * size + row < count:
                    build.put(path, record * size + row, entry)
    return build.finish()


def _rows(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Entries of a Parquet file that are not null."""
    import pandas as pd

    try:
        table = pd.read_parquet(io.BytesIO(raw))
    except ImportError as error:
        raise MissingExtraError(
            "fastparquet or pyarrow must be installed to read Parquet references, but got neither; pip install "
            "insitu-xr[kerchunk]"
        ) from error
    for row, (path, offset, size, inlined) in enumerate(
        zip(table["path"], table["offset"], table["size"], table["raw"], strict=True)
    ):
        if isinstance(inlined, bytes):
            yield row, inlined
        elif isinstance(path, str) and path:
            yield row, [path, int(offset), int(size)] if size else [path]


def _content(url: str, places: Places) -> bytes:
    if url.startswith("file://"):
        if not os.path.exists(local_path(url)):
            raise NotFoundError(f"references must exist, but got {shown(url)!r}, where nothing is; check the path")
        with open(local_path(url), "rb") as opened:
            return opened.read()
    store, path = places.locate(url)
    return bytes(store.get(path).bytes())


class _Builder:
    """Collects entries by key; chunks may come before the array that they belong to."""

    def __init__(self, url: str, places: Places, templates: Mapping[str, str]) -> None:
        self._url, self._places, self._templates = url, places, templates
        self._documents: dict[str, Any] = {}
        self._chunks: list[tuple[str, Any]] = []
        self._placed: list[tuple[str, int, Any]] = []
        self._files: dict[str, int] = {}

    def add(self, key: str, entry: Any) -> None:
        """Take one entry of a JSON file."""
        name = key.rpartition("/")[2]
        if name in _DOCUMENTS:
            self._documents[key] = entry if isinstance(entry, dict) else json.loads(_inlined(entry))
        elif name != ".zmetadata":
            self._chunks.append((key, entry))

    def put(self, path: str, place: int, entry: Any) -> None:
        """Take an entry at a place of the flattened grid of an array."""
        self._placed.append((path, place, entry))

    def arrays(self) -> Iterator[str]:
        """Paths of the arrays."""
        for key, document in self._documents.items():
            folder, _, name = key.rpartition("/")
            if name == ".zarray" or (name == "zarr.json" and document.get("node_type") == "array"):
                yield folder

    def grid(self, path: str) -> tuple[int, ...]:
        """Chunks per axis."""
        key = f"{path}/.zarray"
        return grid_shape(self._documents[key if key in self._documents else f"{path}/zarr.json"])

    def finish(self) -> References:
        """Put everything in its place."""
        arrays = {path: Ranges.nothing(self.grid(path)) for path in self.arrays()}
        for path, ranges in arrays.items():
            arrays[path] = Ranges(ranges.files, ranges.offsets, ranges.lengths, {})
        for key, entry in self._chunks:
            found, index = _place(key, arrays)
            path = found or ""
            if found is None or len(index) != arrays[path].files.ndim:
                raise NotZarrError(
                    f"every reference must be a document or a chunk of an array, but got {key!r} in "
                    f"{shown(self._url)!r}; make the references again"
                )
            if all(i < n for i, n in zip(index, arrays[path].files.shape, strict=True)):
                self._fill(arrays[path], index, entry)
        for path, place, entry in self._placed:
            shape = arrays[path].files.shape
            self._fill(arrays[path], tuple(map(int, np.unravel_index(place, shape))) if shape else (), entry)
        files = tuple(File(url) for url in self._files)
        return References(files, self._documents, arrays)

    def _fill(self, ranges: Ranges, index: tuple[int, ...], entry: Any) -> None:
        if isinstance(entry, list):
            url = self._resolve(entry[0])
            ranges.files[index] = self._files.setdefault(url, len(self._files))
            offset, length = entry[1:] if len(entry) == 3 else (0, self._places.examine(url).size)
            ranges.offsets[index], ranges.lengths[index] = offset, length
            return
        raw = entry if isinstance(entry, bytes) else _inlined(entry)
        ranges.files[index] = INLINED
        inlined: dict[int, bytes] = ranges.inlined  # type: ignore[assignment]
        inlined[int(np.ravel_multi_index(index, ranges.files.shape)) if index else 0] = raw

    def _resolve(self, path: str) -> str:
        """URL of a file that references name; relative to where they lie if it is not found from here."""
        path = _TEMPLATE.sub(lambda match: str(self._templates[match[1]]), path)
        if (
            "://" not in path
            and not os.path.isabs(path)
            and self._url.startswith("file://")
            and not os.path.exists(path)
        ):
            path = os.path.join(os.path.dirname(local_path(self._url)), path)
        return as_url(path)


def _place(key: str, arrays: Mapping[str, Ranges]) -> tuple[str | None, tuple[int, ...]]:
    """Array and place in its grid of a chunk's key."""
    path = key
    while "/" in path:
        path = path.rpartition("/")[0]
        if path in arrays:
            parts = [part for part in re.split(r"[./]", key[len(path) + 1 :]) if part]
            if parts and parts[0] == "c":
                parts = parts[1:]
            if not all(part.isdigit() for part in parts):
                return None, ()
            return path, () if arrays[path].files.ndim == 0 else tuple(map(int, parts))
    return None, ()


def _inlined(entry: Any) -> bytes:
    """Bytes that stand in the references themselves."""
    if isinstance(entry, dict):
        return json.dumps(entry).encode()
    text = str(entry)
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()
