"""Files of a local store, read into memory that each thread uses again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.blocks import RAW

Bytes = npt.NDArray[np.uint8]

#: what zarr's own local store takes for an absent object
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class LocalFiles:
    """The files below a folder, by key.

    Memory that a read gives belongs to the thread and is valid until its next read.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def whole(self, key: str) -> Bytes | None:
        """The content of a file; None where there is none."""
        file = self._open(key)
        if file is None:
            return None
        try:
            return self._read(file, 0, os.fstat(file).st_size)
        finally:
            os.close(file)

    def ranges(self, key: str, spans: Sequence[tuple[int, int] | None]) -> Iterator[Bytes | None]:
        """Some stretches of a file one after another, first and last byte (exclusive); None for None.

        A stretch that reaches past the end of the file comes out shorter.
        """
        file = self._open(key)
        try:
            for span in spans:
                yield None if file is None or span is None else self._read(file, span[0], span[1] - span[0])
        finally:
            if file is not None:
                os.close(file)

    def _open(self, key: str) -> int | None:
        try:
            return os.open(f"{self._root}/{key}", os.O_RDONLY)
        except _ABSENT:
            return None

    def _read(self, file: int, start: int, size: int) -> Bytes | None:
        into = RAW.take(size)
        try:
            done = os.preadv(file, [into], start)
            while done < size and (count := os.preadv(file, [into[done:]], start + done)):
                done += count
        except IsADirectoryError:
            return None
        return into if done == size else into[:done]
