"""What `insitu_xr.open_dataset` hands files to."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from insitu_xr.errors import RequestError

from .cache import Cache, default_folder
from .files import Places, as_urls, expand, public, shown

if TYPE_CHECKING:
    from .references import File, References
    from .store import ReferenceStore

#: endings of names of files that are looked into
NETCDF = (".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".hdf", ".he5")
GRIB = (".grib", ".grib2", ".grb", ".grb2")
KERCHUNK = (".json", ".parq", ".parquet")

#: how such files start
MAGIC = (b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05", b"GRIB")

#: files that are asked for at once
_AT_ONCE = 16


class NetCDFOpener:
    """Opens netCDF, HDF5 and GRIB files and kerchunk references as a virtual Zarr."""

    name = "netcdf"
    schemes = ("netcdf", "kerchunk", "reference")
    extra = "netcdf"
    options = frozenset({"concat_dim", "reference_cache"})

    def claims(self, source: object) -> bool:
        """Whether a source is, by name, a file or a list of files."""
        if isinstance(source, str | PurePath):
            return _ending(source).endswith((*NETCDF, *GRIB, *KERCHUNK)) or _looks_like(source)
        if isinstance(source, Sequence) and not isinstance(source, bytes) and source:
            return all(isinstance(one, str | PurePath) and _ending(one).endswith((*NETCDF, *GRIB)) for one in source)
        return False

    def open(
        self,
        source: Any,
        *,
        storage_options: Mapping[str, Any],
        concat_dim: str | None = None,
        reference_cache: str | Path | Literal[False] | None = None,
    ) -> tuple[ReferenceStore, Mapping[str, Any]]:
        """Open files.

        Parameters
        ----------
        source : str, path or sequence of them
            Paths and URLs, with wildcards where they can be listed, or one file of kerchunk references.
        storage_options : mapping
            In obstore's terms.
        concat_dim : str, optional
            Dimension along which many files follow one another, in the order given. Without it, it is the one whose
            coordinate differs, and files are put in its order.
        reference_cache : path or False, optional
            Folder in which references are kept; False keeps none.

        Returns
        -------
        store, facts
            What `insitu_xr.open_dataset` asks for.
        """
        _check(concat_dim, reference_cache)
        if _is_kerchunk(source):
            from .kerchunk import open_kerchunk

            return open_kerchunk(source, storage_options)
        import virtualizarr  # noqa: F401 - its absence is told before a file is looked for

        from .dataset import FileStore, JoinedStore
        from .splitting import split_contiguous

        places = Places(storage_options)
        urls = expand(as_urls(source), places)
        cache = Cache(None if reference_cache is False else Path(reference_cache or default_folder()))
        parts = references_of(urls, places, cache)
        if len(parts) == 1:
            facts = {"kind": "netcdf", "url": parts[0].files[0].url, **_evidence(parts[0].files[0])}
            return FileStore(split_contiguous(parts[0]), places.stores, facts), facts
        dim, parts = _order(parts, concat_dim)
        facts = {"kind": "netcdf", "url": _common(urls), "files": len(parts), "snapshot": _digest(parts)}
        return JoinedStore(parts, dim, places.stores, facts), facts


opener = NetCDFOpener()


def _ending(source: str | PurePath) -> str:
    return str(source).partition("?")[0].rstrip("/").lower()


def _looks_like(source: str | PurePath) -> bool:
    """Whether a local file of another name starts like one of those."""
    if "://" in str(source) or not os.path.isfile(source):
        return False
    with open(source, "rb") as opened:
        return opened.read(8).startswith(MAGIC)


def _is_kerchunk(source: Any) -> bool:
    if not isinstance(source, str | PurePath):
        return False
    text = str(source)
    return text.startswith(("kerchunk", "reference:")) or _ending(text).endswith(KERCHUNK)


def _check(concat_dim: Any, reference_cache: Any) -> None:
    if concat_dim is not None and not isinstance(concat_dim, str):
        raise RequestError(f"concat_dim must be the name of a dimension, but got {concat_dim!r}; give a str")
    if reference_cache not in (None, False) and not isinstance(reference_cache, str | os.PathLike):
        raise RequestError(f"reference_cache must be a folder or False, but got {reference_cache!r}; give one of those")


def references_of(urls: Sequence[str], places: Places, cache: Cache) -> list[References]:
    """References of files, out of the cache where these versions were parsed before."""
    from .parsing import parse

    def one(url: str) -> References:
        file = places.examine(url)
        found = cache.find(file)
        if found is None:
            found = parse(file, places)
            cache.keep(file, found)
        return found

    if len(urls) == 1:
        return [one(urls[0])]
    places.locate_all(urls)
    with ThreadPoolExecutor(_AT_ONCE, "insitu-files") as pool:
        return list(pool.map(one, urls))


def _order(parts: list[References], dim: str | None) -> tuple[str, list[References]]:
    if dim is not None:
        return dim, parts
    from .joining import differing_coordinate
    from .lines import first_labels

    path = differing_coordinate(parts)
    labels = first_labels(parts, path)
    if None in labels:
        raise RequestError(
            f"concat_dim must be given where labels are no numbers, but got none for {path!r}; give the files in "
            "order, and concat_dim="
        )
    order = sorted(range(len(parts)), key=lambda k: labels[k])
    return path.rpartition("/")[2], [parts[k] for k in order]


def _evidence(file: File) -> dict[str, Any]:
    if not file.is_local:
        return {"size": file.size, "etag": file.version.strip('"')}
    modified = dt.datetime.fromtimestamp(int(file.version) / 1e9, dt.UTC)
    return {"size": file.size, "mtime": modified.isoformat(timespec="microseconds")}


def _common(urls: Sequence[str]) -> str:
    """The place that all files have in common."""
    parts = [public(url).split("/")[:-1] for url in urls]
    shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return "/".join([*(names[0] for names in shared), "*"])


def _digest(parts: Sequence[References]) -> str:
    """One text for the versions of many files."""
    import hashlib

    versions = [(shown(file.url), file.size, file.version) for part in parts for file in part.files]
    return hashlib.sha256(repr(versions).encode()).hexdigest()[:20]
