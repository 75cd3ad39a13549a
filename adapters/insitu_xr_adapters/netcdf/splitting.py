"""Finer chunks for arrays that are stored in one piece, so that a sample is read without the whole array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .references import Ranges, References, chunk_shape, grid_shape, raw_chunk_bytes

#: bytes that a chunk should have, and more than which the rest of a row is split, too
TARGET, LARGEST = 1 << 20, 16 << 20


def is_contiguous(document: Mapping[str, Any], ranges: Ranges) -> bool:
    """Whether an array of several elements lies in a file as it would in memory."""
    return (
        ranges.files.size == 1
        and bool(ranges.files.reshape(-1)[0] >= 0)
        and math.prod(document["shape"]) > 1
        and tuple(document["shape"]) == chunk_shape(document)
        and raw_chunk_bytes(document) == int(ranges.lengths.reshape(-1)[0])
    )


def finer(document: Mapping[str, Any], lengths: Mapping[int, int] | None = None) -> tuple[int, ...]:
    """A chunk shape that cuts an array in memory order into pieces of some `TARGET` bytes.

    Parameters
    ----------
    document : mapping
        Metadata of the array.
    lengths : mapping of int to int, optional
        Per axis: what the chunk length must divide.
    """
    shape = document["shape"]
    chunks = [max(n, 1) for n in shape]
    row = raw_chunk_bytes(document) or 0
    for axis, length in enumerate(shape):
        if row <= TARGET:
            break
        row //= max(length, 1)
        chunks[axis] = max(1, min(length, TARGET // max(row, 1)))
        if chunks[axis] > 1 or row <= LARGEST:
            break
    for axis, length in (lengths or {}).items():
        if length % chunks[axis]:
            chunks[axis] = next(c for c in range(chunks[axis], 0, -1) if length % c == 0)
            chunks[:axis] = [1] * axis
    return tuple(chunks)


def with_chunks(document: Mapping[str, Any], ranges: Ranges, chunks: tuple[int, ...]) -> tuple[dict[str, Any], Ranges]:
    """State the chunks of a contiguous array; they must cut it in memory order."""
    made = {**document, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}}
    grid, shape = grid_shape(made), document["shape"]
    itemsize = int(ranges.lengths.reshape(-1)[0]) // math.prod(shape)
    starts = [np.arange(n) * c for n, c in zip(grid, chunks, strict=True)]
    steps = [math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
    offsets = np.full(grid, int(ranges.offsets.reshape(-1)[0]), np.int64)
    lengths = np.full(grid, itemsize, np.int64)
    for axis, (start, step, chunk) in enumerate(zip(starts, steps, chunks, strict=True)):
        along = [1] * len(grid)
        along[axis] = -1
        offsets = offsets + (start * step).reshape(along)
        lengths = lengths * np.minimum(chunk, shape[axis] - start).reshape(along)
    return made, Ranges(np.full(grid, ranges.files.reshape(-1)[0], np.int32), offsets, lengths)


def split_contiguous(references: References) -> References:
    """Cut every large array that is stored in one piece."""
    documents, arrays = dict(references.documents), dict(references.arrays)
    for path, ranges in references.arrays.items():
        document = references.metadata(path)
        if document["zarr_format"] == 3 and is_contiguous(document, ranges):
            chunks = finer(document)
            if chunks != tuple(document["shape"]):
                documents[f"{path}/zarr.json"], arrays[path] = with_chunks(document, ranges, chunks)
    return replace(references, documents=documents, arrays=arrays)
