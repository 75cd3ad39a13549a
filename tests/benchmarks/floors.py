"""The floor: what no loader undercuts. All cores read and decode into buffers of their own, and copy once.

It knows the files: a local store in zarr format 3, little-endian, compressed by zstd or blosc or not at all, perhaps in
shards. It reads a file into a buffer, decodes into another, and copies what is wanted once for every lead into a third.
It keeps no order, holds nothing, and hands nothing out; whatever a loader does beyond that is overhead.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd
from zarr.codecs import BytesCodec, ShardingCodec

#: chunks are handed to a thread in groups of about so many decoded bytes
_JOB_BYTES = 1 << 22
#: the index of a shard: an offset and a length for each chunk, then a checksum
_ENTRY_BYTES, _CHECKSUM_BYTES = 16, 4
_ABSENT = np.uint64(2**64 - 1)

type Array = npt.NDArray[Any]
type Cell = tuple[int, ...]
type Where = tuple[slice, ...]
#: takes a decoded part: the variable, the positions that it holds, its values, which are gone after the call
type Sink = Callable[[str, Where, Array], None]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How a stored array is laid out in files."""

    name: str
    folder: Path
    shape: Cell
    chunks: Cell
    #: chunks along each axis of a stored object
    inside: Cell
    decode: Callable[[Any, Array], Any] | None
    sharded: bool
    key: Callable[[Cell], str]

    @classmethod
    def of(cls, folder: Path, name: str) -> Plan:
        """Look at the metadata of an array."""
        array = zarr.open_array(folder / name, mode="r")
        metadata: Any = array.metadata
        codecs, stored = list(metadata.codecs), tuple(metadata.chunk_grid.chunk_shape)
        sharded, chunks = isinstance(codecs[0], ShardingCodec), stored
        if isinstance(codecs[0], ShardingCodec):
            chunks, codecs = tuple(codecs[0].chunk_shape), list(codecs[0].codecs)
        inside = tuple(s // c for s, c in zip(stored, chunks, strict=True))
        return cls(
            name, folder / name, array.shape, chunks, inside, decoder(codecs), sharded, metadata.encode_chunk_key
        )

    def part(self, cell: Cell, region: Where) -> tuple[Where, Where] | None:
        """Positions of the array that a chunk holds of a region, and where they are in the chunk."""
        positions, within = [], []
        for k, size, length, wanted in zip(cell, self.chunks, self.shape, region, strict=True):
            first, last, _ = wanted.indices(length)
            start, stop = max(k * size, first), min((k + 1) * size, last)
            if start >= stop:
                return None
            positions.append(slice(start, stop))
            within.append(slice(start - k * size, stop - k * size))
        return tuple(positions), tuple(within)

    def cells(self, region: Where) -> Iterator[Cell]:
        """Chunks that hold a part of a region."""
        spans = []
        for size, length, wanted in zip(self.chunks, self.shape, region, strict=True):
            first, last, _ = wanted.indices(length)
            spans.append(range(first // size, -(-last // size)))
        yield from product(*spans)


def decoder(codecs: list[Any]) -> Callable[[Any, Array], Any] | None:
    """What decodes into a given array; none where the bytes are the values."""
    serializer, *compressors = codecs
    assert isinstance(serializer, BytesCodec)
    kinds: dict[str, Any] = {"zstd": Zstd().decode, "blosc": Blosc().decode}
    names = [codec.to_dict()["name"] for codec in compressors]
    if not names:
        return None
    (name,) = names
    return kinds[name]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Job:
    """Chunks of one variable that a thread reads together; in shards, of one shard."""

    plan: Plan
    cells: tuple[Cell, ...]


class Buffers:
    """What one thread reads into, decodes into and copies into."""

    def __init__(self, plan: Plan) -> None:
        self.decoded, self.copied = np.empty(plan.chunks, "f4"), np.empty(plan.chunks, "f4")
        self.read = memoryview(bytearray(self.decoded.nbytes + (1 << 16)))


class Floor:
    """Reads a local store as fast as can be.

    Parameters
    ----------
    decode : callable, optional
        Decodes into a given array, in place of numcodecs.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        *,
        quarter: bool = False,
        copies: int = 1,
        decode: Callable[[Any, Array], Any] | None = None,
    ) -> None:
        plans = [Plan.of(folder, name) for name in names]
        if decode is not None:
            plans = [replace(plan, decode=decode) for plan in plans]
        self._regions = {plan.name: region_of(plan.shape, quarter) for plan in plans}
        self._copies = copies
        self._jobs = [job for plan in plans for job in jobs_of(plan, plan.cells(self._regions[plan.name]))]
        self._threads = cores()
        self._pool = ThreadPoolExecutor(self._threads)
        self._buffers: list[dict[Cell, Buffers]] = [{} for _ in range(self._threads)]

    def run(self, sink: Sink | None = None, steps: Iterable[int] | None = None) -> None:
        """Read everything, or the chunks that hold these steps; with a sink, hand out what would be copied."""
        jobs = deque(self._jobs if steps is None else self._holding(set(steps)))
        for done in [self._pool.submit(self._work, jobs, buffers, sink) for buffers in self._buffers]:
            done.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _holding(self, steps: set[int]) -> Iterator[Job]:
        for job in self._jobs:
            size = job.plan.chunks[0]
            rows = {step // size for step in steps}
            yield from jobs_of(job.plan, (cell for cell in job.cells if cell[0] in rows))

    def _work(self, jobs: deque[Job], buffers: dict[Cell, Buffers], sink: Sink | None) -> None:
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            if job.plan.chunks not in buffers:
                buffers[job.plan.chunks] = Buffers(job.plan)
            read = self._shard if job.plan.sharded else self._files
            read(job, buffers[job.plan.chunks], sink)

    def _files(self, job: Job, buffers: Buffers, sink: Sink | None) -> None:
        for cell in job.cells:
            descriptor = os.open(job.plan.folder / job.plan.key(cell), os.O_RDONLY)
            try:
                self._place(job.plan, cell, (descriptor, 0, os.fstat(descriptor).st_size), buffers, sink)
            finally:
                os.close(descriptor)

    def _shard(self, job: Job, buffers: Buffers, sink: Sink | None) -> None:
        inside = job.plan.inside
        shard = tuple(k // n for k, n in zip(job.cells[0], inside, strict=True))
        descriptor = os.open(job.plan.folder / job.plan.key(shard), os.O_RDONLY)
        try:
            size = _ENTRY_BYTES * math.prod(inside)
            end = os.fstat(descriptor).st_size - _CHECKSUM_BYTES
            index = np.frombuffer(os.pread(descriptor, size, end - size), "<u8").reshape(*inside, 2)
            for cell in job.cells:
                offset, length = index[tuple(k % n for k, n in zip(cell, inside, strict=True))]
                if offset != _ABSENT:
                    self._place(job.plan, cell, (descriptor, int(offset), int(length)), buffers, sink)
        finally:
            os.close(descriptor)

    def _place(self, plan: Plan, cell: Cell, stored: tuple[int, int, int], buffers: Buffers, sink: Sink | None) -> None:
        descriptor, offset, length = stored
        if plan.decode is None:
            os.preadv(descriptor, [memoryview(buffers.decoded).cast("B")], offset)
        else:
            raw = buffers.read[:length]
            os.preadv(descriptor, [raw], offset)
            plan.decode(raw, buffers.decoded)
        where = plan.part(cell, self._regions[plan.name])
        assert where is not None
        wanted = buffers.decoded[where[1]]
        if sink is not None:
            sink(plan.name, where[0], wanted)
            return
        for _ in range(self._copies):
            np.copyto(buffers.copied[where[1]], wanted)


def region_of(shape: Cell, quarter: bool) -> Where:
    """Positions that are wanted: all, or the first half of either direction of the grid."""
    return tuple(slice(0, n // 2 if quarter and axis else n) for axis, n in enumerate(shape))


def jobs_of(plan: Plan, cells: Iterable[Cell]) -> Iterator[Job]:
    """Cut chunks into jobs, each within one stored object where objects are shards."""
    size = max(1, _JOB_BYTES // (4 * math.prod(plan.chunks)))
    shards: dict[Cell, list[Cell]] = {}
    for cell in cells:
        shard = tuple(k // n for k, n in zip(cell, plan.inside, strict=True)) if plan.sharded else ()
        shards.setdefault(shard, []).append(cell)
    for together in shards.values():
        for start in range(0, len(together), size):
            yield Job(plan, tuple(together[start : start + size]))


class WarmFloor:
    """Everything decoded in memory, and batches copied from it by all cores into buffers that are used again."""

    def __init__(self, floor: Floor, shapes: dict[str, Cell]) -> None:
        self._arenas = {name: np.empty(shape, "f4") for name, shape in shapes.items()}

        def keep(name: str, where: Where, values: Array) -> None:
            self._arenas[name][where] = values

        floor.run(keep)
        floor.close()
        self._threads = cores()
        self._pool = ThreadPoolExecutor(self._threads)
        self._batch: dict[str, Array] = {}

    def epoch(self, random: np.random.Generator, size: int) -> Iterator[int]:
        """Copy one shuffled epoch, batch by batch."""
        n = len(next(iter(self._arenas.values())))
        order = random.permutation(n)
        for start in range(0, n, size):
            rows = order[start : start + size]
            for name, arena in self._arenas.items():
                if name not in self._batch:
                    self._batch[name] = np.empty((size, *arena.shape[1:]), "f4")
                self._take(arena, rows, self._batch[name][: len(rows)])
            yield len(rows)

    def _take(self, arena: Array, rows: Array, out: Array) -> None:
        if out.nbytes < _JOB_BYTES:  # a hop to another thread would cost more than the copy
            np.take(arena, rows, axis=0, out=out, mode="clip")
            return
        bounds = np.linspace(0, len(rows), self._threads + 1).astype(int)
        parts = [self._pool.submit(np.take, arena, rows[a:b], 0, out[a:b], "clip") for a, b in pairwise(bounds)]
        for part in parts:
            part.result()
