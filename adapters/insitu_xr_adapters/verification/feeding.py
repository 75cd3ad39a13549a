"""The fields of each piece, read in the order of a sweep, each stored chunk once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from insitu_xr_adapters.verification.matching import Grid
from insitu_xr_adapters.verification.setup import Feed
from insitu_xr_adapters.verification.times import IntArray

#: arrays of a piece by use ("valid", "init") and variable: (pairs, *extras, [member,] latitude, longitude)
Fields = Mapping[tuple[str, str], npt.NDArray[Any]]


class Stream:
    """Reads what pieces ask of a dataset, in their order.

    Parameters
    ----------
    rows : slice
        Rows of latitude.
    memory : int
        Ceiling of the engine.
    """

    def __init__(self, feed: Feed, rows: slice, grid: Grid, pieces: Sequence[IntArray], memory: int) -> None:
        self._feed, self._grid, self._told = feed, grid, 0
        self._names = [str(n) for n in feed.matched.ds.data_vars]
        self._left = [self._request(piece) for piece in reversed(pieces)]
        self._stack = ExitStack()
        # In memory there is nothing to hold.
        ceiling = {"memory": memory} if memory else {}
        reader = feed.matched.band(rows).insitu.reader(self._names, sample_dim=feed.dims, **ceiling)
        self._reader = self._stack.enter_context(reader)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._reader.plan(self._left[::-1]))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def stats(self) -> Any:
        """Counts of the engine."""
        return self._reader.stats

    def next(self) -> Fields:
        """The fields of the next piece."""
        asked = self._left.pop()
        batch = self._reader.read(asked)
        feed, found = self._feed, {}
        pairs = len(next(iter(asked.values()))) // len(feed.asks)
        for name in self._names:
            values, extras = batch[name], self._grid.extras[name.partition("|")[0]]
            for number, ask in enumerate(feed.asks):
                part = values[number * pairs : (number + 1) * pairs]
                found[ask, name] = feed.matched.fields(part, name, extras, feed.dims)
        return found

    def new_bytes(self) -> int:
        """Bytes decoded since it was asked before."""
        told, self._told = self._told, self.stats.bytes_decoded
        return int(self._told - told)

    def _request(self, piece: IntArray) -> dict[str, IntArray]:
        """Positions along each dimension: those of every use, one after another."""
        asks = self._feed.asks.values()
        return {
            dim: np.concatenate([positions[k].ravel()[piece] for positions in asks])
            for k, dim in enumerate(self._feed.dims)
        }


class Streams:
    """The streams of all datasets, for several threads: pieces are read one at a time, in their order.

    While one thread waits for a piece, others measure what they got before.

    Parameters
    ----------
    feeds : mapping of str to Feed
    memory : mapping of str to int
        Ceiling of the engine of each.
    """

    def __init__(
        self, feeds: Mapping[str, Feed], rows: slice, grid: Grid, pieces: Sequence[IntArray], memory: Mapping[str, int]
    ) -> None:
        self._lock = threading.Lock()
        self._pieces: Iterator[IntArray] = iter(pieces)
        self._failure: BaseException | None = None
        with ExitStack() as opened:
            self._streams = {
                name: opened.enter_context(Stream(feed, rows, grid, pieces, memory[name]))
                for name, feed in feeds.items()
            }
            self._stack = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next(self) -> tuple[IntArray, dict[str, Fields]]:
        """The next piece, and its fields by dataset; after a failure there are no more."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                return next(self._pieces), {name: stream.next() for name, stream in self._streams.items()}
            except BaseException as error:
                self._failure = error
                raise

    def new_bytes(self) -> int:
        """Bytes decoded since it was asked before."""
        return sum(stream.new_bytes() for stream in self._streams.values())
