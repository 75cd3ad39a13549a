"""From a file to references: VirtualiZarr finds the chunks, and what it leaves out is added."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from insitu_xr.errors import MissingExtraError, NotZarrError, UnsupportedSourceError

from .classic import classic_attribute_dtypes
from .files import Places, shown
from .kept import with_small_arrays
from .references import ABSENT, DTYPES, INLINED, UNREADABLE, File, Ranges, References
from .store import local_path

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
#: where HDF5 allows its superblock to start: behind a user block
_USER_BLOCKS = (0, 512, 1024, 2048)


def parse(file: File, places: Places) -> References:
    """Take the references of one file; reads its metadata and its small coordinates.

    Raises
    ------
    NotZarrError
        If it is neither HDF5 nor a classic netCDF nor GRIB.
    UnsupportedSourceError
        If it holds what cannot be read in place.
    """
    reader = _reader(file, places)
    try:
        magic = reader.read(8)
        if any(_starts_with(reader, block, HDF5_MAGIC) for block in _USER_BLOCKS):
            found = _parse_hdf5(file, reader)
        elif magic.startswith((b"CDF\x01", b"CDF\x02", b"CDF\x05")):
            found = _parse_classic(file, reader)
        elif magic[:4] == b"GRIB":
            found = _parse_grib(file, places)
        else:
            raise NotZarrError(
                f"file must be netCDF, HDF5 or GRIB, but got {shown(file.url)!r}, which starts with {magic!r}; "
                "check that it was copied whole"
            )
        return with_small_arrays(found, places.stores)
    finally:
        reader.close()


def _starts_with(reader: BinaryIO, place: int, magic: bytes) -> bool:
    reader.seek(place)
    return reader.read(len(magic)) == magic


def _reader(file: File, places: Places) -> Any:
    if file.is_local:
        return open(local_path(file.url), "rb")
    from obspec_utils.readers import BlockStoreReader

    store, path = places.locate(file.url)
    return BlockStoreReader(store, path)


class _Registry:
    """What VirtualiZarr asks for the store of a URL; the reader at hand stands for it."""

    map: Mapping[Any, Any] = {}

    def resolve(self, url: str) -> tuple[None, str]:
        return None, url


class _Whole:
    """A reader in place of an object store, for the parser that takes no reader."""

    def __init__(self, reader: BinaryIO) -> None:
        self.reader = reader
        self.map: Mapping[Any, Any] = {}

    def resolve(self, url: str) -> tuple[_Whole, str]:
        return self, url

    def head(self, path: str) -> dict[str, int]:
        return {"size": self.reader.seek(0, io.SEEK_END)}

    def get_ranges(
        self, path: str, *, starts: list[int], ends: list[int] | None = None, lengths: list[int] | None = None
    ) -> list[bytes]:
        lengths = lengths or [end - start for start, end in zip(starts, ends or (), strict=True)]
        return [self.get_range(path, start=start, length=n) for start, n in zip(starts, lengths, strict=True)]

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        self.reader.seek(start)
        return self.reader.read(length if length is not None else (end or start) - start)


def _parse_hdf5(file: File, reader: BinaryIO) -> References:
    import h5py

    try:
        with h5py.File(reader, "r") as opened:
            notes = {path: _notes(item) for path, item in _datasets(opened)}
            names = [name for name in opened if isinstance(opened.get(name, getlink=False), h5py.Dataset)]
    except OSError as error:
        if "Unable to synchronously open" not in str(error):
            raise
        raise _cut_short(file, error) from error
    try:
        return from_manifest_store(_manifest_store(file, reader), (file,), notes)
    except _PARSING as error:
        unreadable = _unreadable(file, reader, names)
        if not unreadable:
            raise UnsupportedSourceError(
                f"file must hold what can be read in place, but got {shown(file.url)!r}: {error}; convert it once with "
                "ds.to_zarr(path)"
            ) from error
    found = from_manifest_store(_manifest_store(file, reader, unreadable), (file,), notes)
    root = found.documents["zarr.json"]
    root = {**root, "attributes": {**root.get("attributes", {}), UNREADABLE: unreadable}}
    return References(found.files, {**found.documents, "zarr.json": root}, found.arrays)


#: what parsers raise where they give up
_PARSING = (NotImplementedError, ValueError, TypeError, KeyError, AttributeError)


def _manifest_store(file: File, reader: BinaryIO, dropped: Iterable[str] = ()) -> Any:
    from virtualizarr.parsers import HDFParser

    parser = HDFParser(drop_variables=list(dropped), reader_factory=lambda store, path: reader)
    return parser(url=file.url, registry=_Registry())


def _unreadable(file: File, reader: BinaryIO, names: Sequence[str]) -> dict[str, str]:
    """Variables of the root that the parser gives up on, each tried alone, and why."""
    reasons = {}
    for name in names:
        try:
            _manifest_store(file, reader, set(names) - {name})
        except _PARSING as error:
            codec = re.search(r"codec '(?:numcodecs\.)?(?:imagecodecs_)?(\w+)'", str(error))
            reasons[name] = f"filter {codec[1]!r}" if codec else f"what VirtualiZarr does not know ({error})"
    return reasons


def _cut_short(file: File, error: Exception) -> NotZarrError:
    return NotZarrError(
        f"file must be whole, but got {shown(file.url)!r}: {error}; check that it was written and copied to its end"
    )


def _datasets(group: Any) -> Iterator[tuple[str, Any]]:
    import h5py

    found: list[tuple[str, Any]] = []
    group.visititems(lambda path, item: found.append((path, item)) if isinstance(item, h5py.Dataset) else None)
    return iter(found)


def _notes(dataset: Any) -> dict[str, Any]:
    notes: dict[str, Any] = {DTYPES: _attribute_dtypes(dataset.attrs)}
    if dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters():
        skipped: list[int] = []
        dataset.id.chunk_iter(lambda info: skipped.append(1) if info.filter_mask else None)
        if skipped:
            notes[UNREADABLE] = f"{len(skipped)} of its chunks leave out filters that the others use"
    return notes


def _attribute_dtypes(attributes: Any) -> dict[str, str]:
    dtypes = {}
    for name in attributes:
        dtype = attributes.get_id(name).dtype
        if dtype.kind in "iuf":
            dtypes[name] = dtype.newbyteorder("=").str
    return dtypes


def _parse_classic(file: File, reader: BinaryIO) -> References:
    from virtualizarr.parsers import NetCDF3Parser

    try:
        store = NetCDF3Parser()(url=file.url, registry=_Whole(reader))
    except ValueError as error:
        raise _cut_short(file, error) from error
    reader.seek(0)
    dtypes = classic_attribute_dtypes(reader)
    return from_manifest_store(store, (file,), {name: {DTYPES: found} for name, found in dtypes.items()})


def _parse_grib(file: File, places: Places) -> References:
    try:
        from gribberish.virtualizarr import GribberishParser
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"gribberish must be installed to open {shown(file.url)!r}, but got no module {error.name!r}; pip install "
            "insitu-xr[grib]"
        ) from error
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    if file.is_local:
        registry = ObjectStoreRegistry({"file://": LocalStore()})
    else:
        places.locate(file.url)
        registry = ObjectStoreRegistry(dict(places.stores))
    return from_manifest_store(GribberishParser()(url=file.url, registry=registry), (file,), {})


def is_grib(document: Mapping[str, Any]) -> bool:
    """Whether an array is decoded out of GRIB messages."""
    return any(codec["name"] == "gribberish" for codec in document.get("codecs") or ())


def from_manifest_store(store: Any, files: tuple[File, ...], notes: Mapping[str, Mapping[str, Any]]) -> References:
    """References out of a VirtualiZarr ``ManifestStore``.

    Parameters
    ----------
    store : virtualizarr.manifests.ManifestStore
        What a parser made.
    files : tuple of File
        The files that its chunks lie in.
    notes : mapping
        Attributes to add, by path of the array.
    """
    documents: dict[str, Mapping[str, Any]] = {}
    arrays: dict[str, Ranges] = {}
    for path, node in _nodes(store._group, ""):
        document = _document(node)
        if hasattr(node, "manifest"):
            document["attributes"] = {**document.get("attributes", {}), **notes.get(path, {})}
            arrays[path] = _ranges(node.manifest, document, files)
        documents[f"{path}/zarr.json".lstrip("/")] = document
    return References(files, documents, arrays)


def _nodes(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, node in group._members.items():
        inner = f"{path}/{name}".lstrip("/")
        if hasattr(node, "manifest"):
            yield inner, node
        else:
            yield from _nodes(node, inner)


def _document(node: Any) -> dict[str, Any]:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.errors import UnstableSpecificationWarning

    with warnings.catch_warnings():
        # Text of a fixed length has no settled form in Zarr, which matters to what is written: here nothing is.
        warnings.filterwarnings("ignore", category=UnstableSpecificationWarning)
        raw = node.metadata.to_buffer_dict(prototype=default_buffer_prototype())["zarr.json"].to_bytes()
    document: dict[str, Any] = json.loads(raw)
    return document


def _ranges(manifest: Any, document: Mapping[str, Any], files: tuple[File, ...]) -> Ranges:
    paths, offsets, lengths = manifest._paths, manifest._offsets, manifest._lengths
    numbers = np.full(paths.shape, ABSENT, np.int32)
    for number, file in enumerate(files):
        numbers[paths == file.url] = number
    inlined = {}
    for index, raw in manifest._inlined.items():
        numbers[index] = INLINED
        inlined[int(np.ravel_multi_index(index, numbers.shape)) if index else 0] = bytes(raw)
    elsewhere = (numbers == ABSENT) & (paths != "")
    if elsewhere.any():
        raise UnsupportedSourceError(
            f"chunks must lie in {shown(files[0].url)!r}, but got {str(paths[elsewhere].flat[0])!r}; convert it once "
            "with ds.to_zarr(path), for external files are not read in place"
        )
    return Ranges(numbers, offsets.astype(np.int64), lengths.astype(np.int64), inlined)
