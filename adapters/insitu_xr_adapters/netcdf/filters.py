"""Filters that files are written with, and Zarr may lack."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from insitu_xr.errors import RequestError

from .files import shown
from .references import UNREADABLE, Document, References


def refuse_unreadable(references: References, group: str, dropped: Collection[str]) -> None:
    """Raise if chunks of an array of a group cannot be decoded, and it is not dropped.

    Raises
    ------
    RequestError
        Naming the variables and the filters.
    """
    root = references.documents.get("zarr.json", {})
    reasons = dict(root.get("attributes", {}).get(UNREADABLE, {})) if not group else {}
    for path in references.arrays:
        parent, _, name = path.rpartition("/")
        if parent == group and (found := reason(references.metadata(path))):
            reasons[name] = found
    left = sorted(set(reasons) - set(dropped))
    if left:
        raise RequestError(
            f"variables must be stored with filters that Zarr can undo, but got {left[0]!r} with {reasons[left[0]]} in "
            f"{shown(references.files[0].url)!r}; pass drop_variables={left}, or rewrite the file with zlib"
        )


def reason(document: Document) -> str:
    """Why chunks of an array cannot be decoded; nothing if they can."""
    return document.get("attributes", {}).get(UNREADABLE) or _missing_codec(document)


def _missing_codec(document: Document) -> str:
    if document["zarr_format"] == 2:
        configurations = [c for c in (document.get("compressor"), *(document.get("filters") or ())) if c]
        return next((f"filter {c['id']!r}" for c in configurations if not _known_to_numcodecs(c)), "")
    from zarr.registry import get_codec_class

    for codec in document["codecs"]:
        try:
            kind = get_codec_class(codec["name"])
            kind.from_dict(codec)
        except (KeyError, ValueError, TypeError, ImportError):
            return f"filter {codec['name'].removeprefix('numcodecs.').removeprefix('imagecodecs_')!r}"
        if codec["name"].startswith("numcodecs.") and not _known_to_numcodecs(
            {"id": codec["name"].removeprefix("numcodecs."), **(codec.get("configuration") or {})}
        ):
            return f"filter {codec['name'].removeprefix('numcodecs.')!r}"
    return ""


def _known_to_numcodecs(configuration: Mapping[str, Any]) -> bool:
    import numcodecs

    try:
        numcodecs.get_codec(dict(configuration))
    except (ValueError, TypeError, ImportError):
        return False
    return True
