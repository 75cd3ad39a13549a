"""What a thread does with a job: take the raw chunks one after another, decode each, and put it in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from insitu_xr.engine.decode import Job
from insitu_xr.engine.fetch import Fetched
from insitu_xr.engine.placing import Sink
from insitu_xr.engine.tasks import Task
from insitu_xr.errors import ReadError


class Placing:
    """Decodes the chunks of one job and puts them into their place; for one thread, which does nothing else meanwhile.

    What is the same for all chunks of the job is worked out once.
    """

    __slots__ = ("_cells", "_even", "_job", "_reader", "_scratch", "_sink", "_source", "_whole")

    def __init__(self, job: Job, sink: Sink) -> None:
        self._job, self._sink, self._reader, self._source = job, sink, job.reader, job.source
        self._cells, self._whole, self._even = job.cells, job.unit.whole, job.reader.even
        self._scratch: npt.NDArray[Any] | None = None

    def place(self, number: int, raw: Any) -> int:
        """Decode one chunk of the job and write it to its place.

        Parameters
        ----------
        number : int
            The number of the chunk in the job.
        raw : bytes or None
            What the store holds of it.

        Returns
        -------
        int
            Decoded bytes; 0 where the store has no such chunk.
        """
        cell = self._cells[number]
        target, as_it_is = cell.cell.target, self._whole and cell.whole and raw is not None
        if as_it_is and cell.contiguous:
            into = self._sink.direct(target)
            if into is not None and self._source.decode_into(raw, into):
                return into.nbytes
        if self._scratch is None or not self._even:
            self._scratch = self._reader.scratch(self._job, number)
        decoded = self._reader.decoded(self._job, number, raw, self._scratch)
        if as_it_is and decoded.dtype == self._reader.value_dtype:
            self._sink.put(target, decoded)
        else:
            self._sink.put(target, self._reader.values(self._job, number, decoded))
        return 0 if raw is None else decoded.nbytes


class Tally:
    """What some jobs cost, gathered without a lock."""

    __slots__ = ("absent", "bytes_decoded", "cost", "decode_seconds", "decodes", "read_seconds", "reads")

    def __init__(self) -> None:
        self.cost = Fetched([])
        self.reads = self.decodes = self.absent = self.bytes_decoded = 0
        self.read_seconds = self.decode_seconds = 0.0

    def totals(self) -> dict[str, float]:
        """Everything by the names of the statistics."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "cost"}
        return {**own, "gets": self.cost.gets, "bytes_read": self.cost.bytes, "store_seconds": self.read_seconds}


def failure_of(job: Job, error: BaseException, doing: str, number: int = 0) -> ReadError:
    """The error to raise at the batch that needs a job of which so many chunks were placed."""
    failure = job.failure(error, doing, number)
    failure.__cause__ = error
    return failure


def carry_out(task: Task, raws: Iterator[Any], tally: Tally) -> ReadError | None:
    """Take the raw chunks of a job one after another, decode each and put it in its place.

    Returns
    -------
    ReadError or None
        Why a chunk could not be read or decoded, if one could not.
    """
    place, clock = Placing(task.job, task.sink).place, time.perf_counter
    number = absent = decoded = 0
    read = decode = 0.0
    doing, at = "read", clock()
    try:
        for raw in raws:
            doing, began = "decoded", clock()
            decoded += place(number, raw)
            absent += raw is None
            number += 1
            del raw  # before the next one is read, for one at a time is what is counted
            doing, ended = "read", clock()
            read, decode, at = read + began - at, decode + ended - began, ended
    except BaseException as error:
        return failure_of(task.job, error, doing, number)
    tally.read_seconds += read
    tally.decode_seconds += decode
    tally.bytes_decoded += decoded
    tally.absent += absent
    tally.reads += number
    tally.decodes = tally.reads - tally.absent
    return None
