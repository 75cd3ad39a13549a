"""A read-only zarr store over byte ranges of files."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, override
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from insitu_xr.errors import InsituError

from .references import ABSENT, INLINED, File, Ranges, References, raw_chunk_bytes

#: a file, and the first and last byte (exclusive) in it
type Place = tuple[File, int, int]


class ChangedFileError(InsituError, OSError):
    """A file is no longer what it was when its references were taken."""


class ReferenceStore(Store):
    """The chunks of files as a Zarr, read by byte range.

    Local files are read on the calling thread; others through obstore, on the event loop.

    Parameters
    ----------
    references : References
        What lies where.
    stores : mapping of str to obstore store
        By the part of the URL up to the path, for files that are not local.
    source : mapping
        What names the data, for people and manifests; without secrets.
    """

    def __init__(self, references: References, stores: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        super().__init__(read_only=True)
        self.source = dict(source)
        self._stores = dict(stores)
        self._take(references)

    def _take(self, references: References) -> None:
        self.references = references
        self._documents = references.encoded()
        self._padded = {path: raw_chunk_bytes(references.metadata(path)) for path in references.arrays}
        self._supports_sync_io = all(file.is_local for file in references.files)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return ReferenceStore, (self.references, self._stores, self.source)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceStore) and other.references is self.references

    __hash__ = None  # type: ignore[assignment]

    @override
    def __str__(self) -> str:
        files = self.references.files
        return f"references to {files[0].url if len(files) == 1 else f'{len(files)} files'}"

    @override
    def __repr__(self) -> str:
        return f"ReferenceStore({str(self)!r})"

    # Reading

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read on the calling thread."""
        prototype = prototype or default_buffer_prototype()
        found = self._find(key, byte_range)
        if isinstance(found, tuple):
            file, start, stop, padding = found
            with _present(file):
                raw = read_local(file, start, stop) if file.is_local else self._read(file, start, stop)
            found = _pad(raw, padding)
        return None if found is None else prototype.buffer.from_bytes(found)

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = self._find(key, byte_range)
        if isinstance(found, tuple):
            file, start, stop, padding = found
            if file.is_local:
                with _present(file):
                    raw = await asyncio.to_thread(read_local, file, start, stop)
            else:
                store, path = self._locate(file)
                with _present(file):
                    raw = _checked(await store.get_range_async(path, start=start, end=stop), file, start, stop)
            found = _pad(raw, padding)
        return None if found is None else prototype.buffer.from_bytes(found)

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    @override
    async def exists(self, key: str) -> bool:
        return self._find(key, None) is not None

    def _find(self, key: str, byte_range: ByteRequest | None) -> bytes | tuple[File, int, int, int] | None:
        """Bytes at hand, or the place where they lie and how many zeros follow; None if nothing is stored."""
        if key in self._documents:
            return _cut(self._documents[key], byte_range)
        path, index = self._chunk(key)
        if path is None or index is None:
            return None
        ranges = self.references.arrays[path]
        if len(index) != ranges.files.ndim or any(i >= n for i, n in zip(index, ranges.files.shape, strict=True)):
            return None
        number = int(ranges.files[index])
        if number == ABSENT:
            return None
        if number == INLINED:
            place = int(np.ravel_multi_index(index, ranges.files.shape)) if index else 0
            return _cut(ranges.inlined[place], byte_range)
        offset, length = int(ranges.offsets[index]), int(ranges.lengths[index])
        start, stop = _bounds(byte_range, max(length, self._padded[path] or 0))
        end = min(stop, length)
        begin = min(start, end)
        return self.references.files[number], offset + begin, offset + end, stop - start - (end - begin)

    def _chunk(self, key: str) -> tuple[str | None, tuple[int, ...] | None]:
        """Path of the array that a key belongs to, and the place in its grid."""
        path = key
        while "/" in path:
            path = path.rpartition("/")[0]
            if path in self.references.arrays:
                return path, _index(key[len(path) + 1 :], self.references.arrays[path].files.ndim)
        return None, None

    def _locate(self, file: File) -> tuple[Any, str]:
        parts = urlsplit(file.url)
        return self._stores[f"{parts.scheme}://{parts.netloc}"], unquote(parts.path).lstrip("/")

    def _read(self, file: File, start: int, stop: int) -> Any:
        store, path = self._locate(file)
        return _checked(store.get_range(path, start=start, end=stop), file, start, stop)

    # Listing

    @override
    async def list(self) -> AsyncIterator[str]:
        for key in self._documents:
            yield key
        for path, ranges in self.references.arrays.items():
            for key in self._keys(path, ranges):
                yield key

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        seen = set()
        # Chunks are left out: zarr looks for nodes only, and an array may have millions of them.
        for key in self._documents:
            if key.startswith(prefix):
                name = key[len(prefix) :].partition("/")[0]
                if name not in seen:
                    seen.add(name)
                    yield name

    def _keys(self, path: str, ranges: Ranges) -> Iterable[str]:
        document = self.references.metadata(path)
        if document["zarr_format"] == 2:
            lead, separator = "", document.get("dimension_separator", ".")
        else:
            encoding = document["chunk_key_encoding"]
            separator = encoding.get("configuration", {}).get(
                "separator", "/" if encoding["name"] == "default" else "."
            )
            lead = f"c{separator}" if encoding["name"] == "default" else ""
        for index in np.argwhere(ranges.files != ABSENT):
            key = separator.join(map(str, index))
            yield f"{path}/{lead}{key}" if key else f"{path}/{lead.rstrip('/.') or '0'}"

    # What a read-only store does not do

    @property
    @override
    def supports_writes(self) -> bool:
        return False

    @property
    @override
    def supports_deletes(self) -> bool:
        return False

    @property
    @override
    def supports_listing(self) -> bool:
        return True

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    @override
    async def delete(self, key: str) -> None:
        self._check_writable()

    def set_sync(self, key: str, value: Buffer) -> None:
        """Refuse: zarr asks for it where stores are read on the calling thread."""
        self._check_writable()

    def delete_sync(self, key: str) -> None:
        """Refuse, like `set_sync`."""
        self._check_writable()


@contextlib.contextmanager
def _present(file: File) -> Iterator[None]:
    """Tell a file that is gone from a chunk that was never written, for which zarr would give fill values."""
    try:
        yield
    except FileNotFoundError as error:
        raise ChangedFileError(
            f"file {file.url} must stay where it was when it was opened, but it is gone; put it back"
        ) from error


def _index(rest: str, ndim: int) -> tuple[int, ...] | None:
    """Place in the grid out of the last part of a key: ``c/0/1``, ``0.1``; of a scalar ``c``, ``0`` or nothing."""
    parts = rest.replace(".", "/").split("/")
    if parts[0] == "c":
        parts = parts[1:]
    if ndim == 0:
        return () if rest in ("c", "0", "") else None
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _bounds(request: ByteRequest | None, length: int) -> tuple[int, int]:
    match request:
        case None:
            return 0, length
        case RangeByteRequest(start=start, end=end):
            return min(start, length), min(end, length)
        case OffsetByteRequest(offset=offset):
            return min(offset, length), length
        case SuffixByteRequest(suffix=suffix):
            return max(length - suffix, 0), length
    raise TypeError(f"byte range must be one of zarr's requests, but got {request!r}")


def _cut(raw: bytes, request: ByteRequest | None) -> bytes:
    start, stop = _bounds(request, len(raw))
    return raw[start:stop]


def _pad(raw: Any, padding: int) -> Any:
    """The last chunk of an array that was stored in one piece ends where the array does; what follows is cropped."""
    return bytes(raw) + bytes(padding) if padding else raw


def local_path(url: str) -> str:
    """Path of a local file."""
    return unquote(urlsplit(url).path)


def version_of(status: os.stat_result) -> str:
    """What changes when a local file does."""
    return str(status.st_mtime_ns)


def read_local(file: File, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """Read a range of a local file.

    Raises
    ------
    ChangedFileError
        If it is no longer the file whose references were taken.
    """
    with open(local_path(file.url), "rb", buffering=0) as opened:
        status = os.fstat(opened.fileno())
        if file.version and (status.st_size, version_of(status)) != (file.size, file.version):
            raise ChangedFileError(
                f"file {local_path(file.url)!r} must stay as it was when it was opened, but got another size or time "
                "of modification; open the dataset again"
            )
        opened.seek(start)
        room, filled = np.empty(stop - start, np.uint8), 0
        while filled < room.size:  # one read stops at 2 GiB
            count = opened.readinto(memoryview(room)[filled:])
            if not count:
                break
            filled += count
    _checked(room[:filled], file, start, stop)
    return room


def _checked(raw: Any, file: File, start: int, stop: int) -> Any:
    if len(raw) != stop - start:
        raise ChangedFileError(
            f"range {start}-{stop} of {file.url} must hold {stop - start} bytes, but got {len(raw)}; the file is cut, "
            "or changed since it was opened"
        )
    return raw
