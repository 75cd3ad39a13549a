"""References of files that were parsed before, so that a file is parsed once.

One file per parsed file, written whole and then renamed: any number of processes may read and write, and nothing can
be left half done. Icechunk was measured in its place, and takes longer to give references back than a local file takes
to be parsed: see ``docs/howto/netcdf.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .references import File, Ranges, References

#: raised when what is stored, or how, changes
VERSION = 1


def default_folder() -> Path:
    """Where references are kept unless told otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "insitu-xr" / "references"


class Cache:
    """Parsed references in a folder.

    Parameters
    ----------
    folder : path or None
        None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def find(self, file: File) -> References | None:
        """References of exactly this version of a file; None if it must be parsed."""
        if self.folder is None:
            return None
        try:
            raw = self._place(file).read_bytes()
        except OSError:
            return None
        with contextlib.suppress(ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
            return decode(raw, file)
        return None  # cut or of another kind: it is parsed and written again

    def keep(self, file: File, references: References) -> None:
        """Keep the references of a file; a folder that cannot be written keeps nothing."""
        if self.folder is None:
            return
        place = self._place(file)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(encode(references))
                os.replace(temporary, place)
            except BaseException:
                os.unlink(temporary)
                raise

    def _place(self, file: File) -> Path:
        assert self.folder is not None
        name = hashlib.sha256(json.dumps([VERSION, file.url, file.size, file.version]).encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}.npz"


def encode(references: References) -> bytes:
    """Write references of one file to bytes."""
    ranges = list(references.arrays.values())
    head = {
        "documents": references.documents,
        "paths": list(references.arrays),
        "grids": [one.files.shape for one in ranges],
        "inlined": [{place: len(raw) for place, raw in one.inlined.items()} for one in ranges],
    }
    columns = [np.stack([one.files.reshape(-1), one.offsets.reshape(-1), one.lengths.reshape(-1)]) for one in ranges]
    written = io.BytesIO()
    np.savez_compressed(
        written,
        allow_pickle=False,
        head=np.frombuffer(json.dumps(head).encode(), np.uint8),
        ranges=np.concatenate([np.zeros((3, 0), np.int64), *columns], 1),
        blob=np.frombuffer(b"".join(raw for one in ranges for raw in one.inlined.values()), np.uint8),
    )
    return written.getvalue()


def decode(raw: bytes, file: File) -> References:
    """Read references of one file back.

    Raises
    ------
    ValueError, KeyError, EOFError, zipfile.BadZipFile
        If the bytes are something else.
    """
    with np.load(io.BytesIO(raw), allow_pickle=False) as members:
        head: Mapping[str, Any] = json.loads(members["head"].tobytes())
        table, blob = members["ranges"], members["blob"].tobytes()
    arrays, row, byte = {}, 0, 0
    for path, grid, sizes in zip(head["paths"], head["grids"], head["inlined"], strict=True):
        count, inlined = math.prod(grid), {}
        for place, size in sizes.items():
            inlined[int(place)] = blob[byte : byte + size]
            byte += size
        numbers, offsets, lengths = (table[column, row : row + count].reshape(grid) for column in range(3))
        arrays[path] = Ranges(numbers.astype(np.int32), offsets, lengths, inlined)
        row += count
    return References((file,), head["documents"], arrays)
