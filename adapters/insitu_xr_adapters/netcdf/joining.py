"""Many files as one: arrays that follow one another along a dimension become one array of the virtual Zarr."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

from .files import shown
from .kept import bounds_of, kept_values
from .references import DTYPES, Document, Ranges, References, chunk_shape
from .splitting import finer, is_contiguous, with_chunks

#: attributes that decide what stored numbers mean
MEANING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "dtype", "units", "calendar")


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """What became of the arrays of several files.

    Attributes
    ----------
    references : References
        Arrays that could be joined, and those that do not have the dimension, out of the first file.
    apart : mapping of str to str
        Paths of the others, and why: they are decoded file by file, as dates are whose units differ.
    """

    references: References
    apart: Mapping[str, str]


def join(parts: Sequence[References], dim: str) -> Joined:
    """Join the arrays of files along a dimension that they have.

    Raises
    ------
    RequestError
        If a file lacks a variable, or the files do not fit together.
    """
    first = parts[0]
    shifts = np.cumsum([0, *(len(part.files) for part in parts)]).tolist()
    documents, arrays, apart = dict(first.documents), dict(first.arrays), dict[str, str]()
    if dim not in (dims := _all_dims(first)):
        raise RequestError(
            f"concat_dim must be a dimension of the files, but got {dim!r}; they have {sorted(dims)}; a new dimension "
            "is made with xarray.concat of datasets opened one by one with chunks={}"
        )
    _check_present(parts)
    together = _decoded_together(first)
    for path in first.arrays:
        axes = dimension_names(first.metadata(path))
        if dim not in axes:
            _check_equal(parts, path)
            continue
        axis = axes.index(dim)
        _check_shapes(parts, path, axis)
        reason = "it is decoded file by file" if len(axes) == 1 or path in together else difference(parts, path)
        made = None if reason else _join_array(parts, path, axis, shifts)
        if made is None:
            apart[path] = reason or "its chunks do not follow one another evenly"
            del documents[f"{path}/zarr.json"], arrays[path]
        else:
            documents[f"{path}/zarr.json"], arrays[path] = made
    files = tuple(file for part in parts for file in part.files)
    return Joined(References(files, documents, arrays), apart)


def dimension_names(document: Document) -> tuple[str, ...]:
    """Names of the dimensions of an array."""
    return tuple(document.get("dimension_names") or ())


def differing_coordinate(parts: Sequence[References]) -> str:
    """Find the dimension along which files differ: the path of the coordinate that is not the same in all.

    Raises
    ------
    RequestError
        If none or several differ.
    """
    first, differing = parts[0], []
    for path in first.arrays:
        dims = dimension_names(first.metadata(path))
        name = path.rpartition("/")[2]
        if dims == (name,) and any(not _same(first, part, path) for part in parts[1:]):
            differing.append(path)
    names = sorted({path.rpartition("/")[2] for path in differing})
    if len(names) == 1:
        return differing[0]
    raise RequestError(
        f"concat_dim must be given where {len(parts)} files do not differ in exactly one coordinate, but got "
        f"{names or 'none that differs'}; name the dimension along which they follow one another"
    )


def _all_dims(references: References) -> set[str]:
    return {dim for path in references.arrays for dim in dimension_names(references.metadata(path))}


def _decoded_together(references: References) -> set[str]:
    """Arrays that mean something with another's attributes only, and dates."""
    return bounds_of(references.documents) | {
        path for path in references.arrays if _is_dates(references.metadata(path))
    }


def _is_dates(document: Document) -> bool:
    attributes = document.get("attributes", {})
    return " since " in str(attributes.get("units", "")) or "dtype" in attributes


def _same(one: References, other: References, path: str) -> bool:
    if path not in other.arrays:
        return False
    mine, theirs = one.metadata(path), other.metadata(path)
    return (
        mine["shape"] == theirs["shape"]
        and meaning(mine) == meaning(theirs)
        and mine["codecs"] == theirs["codecs"]
        and one.arrays[path].inlined == other.arrays[path].inlined
    )


def _check_present(parts: Sequence[References]) -> None:
    for part in parts[1:]:
        for name in sorted(set(parts[0].arrays) ^ set(part.arrays)):
            holder, lacking = (parts[0], part) if name in parts[0].arrays else (part, parts[0])
            raise RequestError(
                f"every file must have the same variables, but {name!r} is in {_name(holder)} and not in "
                f"{_name(lacking)}; pass drop_variables=[{name!r}], or open the files apart"
            )


def _check_shapes(parts: Sequence[References], path: str, axis: int) -> None:
    def others(part: References) -> tuple[Any, ...]:
        """Names of all dimensions, and the lengths of those but the one."""
        document = part.metadata(path)
        shape = list(document["shape"])
        return dimension_names(document), shape[:axis] + shape[axis + 1 :]

    for part in parts[1:]:
        if others(part) != others(parts[0]):
            raise RequestError(
                f"variable {path!r} must have the same other dimensions in all files, but got {others(parts[0])} in "
                f"{_name(parts[0])} and {others(part)} in {_name(part)}; open them apart"
            )


def _check_equal(parts: Sequence[References], path: str) -> None:
    """Coordinates of other dimensions must be the same; what has no coordinate is taken out of the first file."""
    name = path.rpartition("/")[2]
    if dimension_names(parts[0].metadata(path)) != (name,):
        return
    for part in parts[1:]:
        if not _same(parts[0], part, path) and not _equal_values(parts[0], part, path):
            raise RequestError(
                f"coordinate {name!r} must be equal in all files, but differs between {_name(parts[0])} and "
                f"{_name(part)}; open them apart, or give concat_dim={name!r}"
            )


def _equal_values(one: References, other: References, path: str) -> bool:
    """Compare stored values: they may be written with other attributes that say nothing about the values."""
    mine, theirs = kept_values(one, path), kept_values(other, path)
    if mine is None or theirs is None or meaning(one.metadata(path)) != meaning(other.metadata(path)):
        return False
    return np.array_equal(mine, theirs)


def difference(parts: Sequence[References], path: str) -> str:
    """Say in what the stored forms of an array differ; nothing if one description fits all."""
    first = parts[0].metadata(path)
    for part in parts[1:]:
        document = part.metadata(path)
        mine, theirs = meaning(first), meaning(document)
        for name in MEANING:
            if mine.get(name) != theirs.get(name):
                return (
                    f"{name} is {_shown(mine, name)} in {_name(parts[0])} and {_shown(theirs, name)} in {_name(part)}"
                )
        for name in ("data_type", "codecs", "fill_value", "chunk_key_encoding"):
            if first[name] != document[name] and not _both_nan(first[name], document[name]):
                return f"{name} differs between {_name(parts[0])} and {_name(part)}"
    return ""


def _both_nan(one: Any, other: Any) -> bool:
    return isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)


def _shown(meaning: Mapping[str, Any], name: str) -> str:
    return repr(meaning[name][0]) if name in meaning else "not given"


def meaning(document: Document) -> dict[str, tuple[Any, Any]]:
    """Attributes that decide what stored numbers mean, with their dtypes."""
    attributes = document.get("attributes", {})
    dtypes = attributes.get(DTYPES, {})
    return {name: (attributes[name], dtypes.get(name)) for name in MEANING if name in attributes}


def _name(part: References) -> str:
    return repr(shown(part.files[0].url))


def _join_array(
    parts: Sequence[References], path: str, axis: int, shifts: Sequence[int]
) -> tuple[dict[str, Any], Ranges] | None:
    """One array over all files; None if their chunks do not make a regular grid."""
    pieces = list(_evenly(parts, path, axis))
    documents = [document for document, _ in pieces]
    lengths = [document["shape"][axis] for document in documents]
    chunks = chunk_shape(documents[0])
    if any(chunk_shape(document) != chunks for document in documents):
        return None
    if any(length % chunks[axis] for length in lengths[:-1]):
        return None
    shape = list(documents[0]["shape"])
    shape[axis] = sum(lengths)
    ranges = [piece.shifted(shift) for (_, piece), shift in zip(pieces, shifts, strict=False)]
    return {**documents[0], "shape": shape}, _concatenate(ranges, axis)


def _evenly(parts: Sequence[References], path: str, axis: int) -> Iterator[tuple[Document, Ranges]]:
    """The array of each file, cut alike where it is stored in one piece."""
    found = [(part.metadata(path), part.arrays[path]) for part in parts]
    lengths = [document["shape"][axis] for document, _ in found]
    if not all(is_contiguous(document, ranges) for document, ranges in found):
        yield from found
        return
    step = math.gcd(*lengths[:-1]) if len(set(lengths)) > 1 else lengths[0]
    chunks = finer(found[int(np.argmax(lengths))][0], {axis: step})
    for document, ranges in found:
        yield with_chunks(document, ranges, chunks)


def _concatenate(ranges: Sequence[Ranges], axis: int) -> Ranges:
    files = np.concatenate([part.files for part in ranges], axis)
    inlined, start = {}, 0
    for part in ranges:
        for place, raw in part.inlined.items():
            index = list(np.unravel_index(place, part.files.shape))
            index[axis] += start
            inlined[int(np.ravel_multi_index(tuple(index), files.shape))] = raw
        start += part.files.shape[axis]
    offsets = np.concatenate([part.offsets for part in ranges], axis)
    return Ranges(files, offsets, np.concatenate([part.lengths for part in ranges], axis), inlined)
