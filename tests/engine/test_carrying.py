"""What a thread does with one job: every chunk in its place and counted, or an error that names the one that failed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from insitu_xr.engine.board import Load
from insitu_xr.engine.carrying import Tally, carry_out
from insitu_xr.engine.decode import JOBS_PER_UNIT, Job, VariableReader
from insitu_xr.engine.placing import SlotSink
from insitu_xr.engine.tasks import Task
from insitu_xr.limits import Limits
from insitu_xr.testing.writing import StoredDataset, StoredVariable
from tests.engine.loaders import loader_with

TILES = StoredVariable("a", ("time", "y", "x"), (8, 16, 4), chunks=(4, 1, 2))
WRITTEN = StoredDataset((TILES,), times=tuple(range(8)), sizes={"y": 16, "x": 4})


def jobs_of(unit: int) -> tuple[VariableReader, list[Job]]:
    """The jobs of one unit of 32 small chunks."""
    with loader_with(Limits(), WRITTEN.open(), variables=["a"], batch_size=4) as loader:
        (reader,) = loader._materials.readers(loader.plan.groups).values()
    return reader, reader.jobs(unit)


def raws(job: Job, tally: Tally, *, absent: int = -1, broken: int = -1) -> Iterator[Any]:
    for number, raw in enumerate(job.source.stream(job.chunks, tally.cost)):
        if number == broken:
            raise OSError("the disk is gone")
        yield None if number == absent else raw


def task_of(job: Job, rows: np.ndarray) -> Task:
    return Task(Load(0, -1, [job]), job, SlotSink(rows, job.unit.counts))  # type: ignore[arg-type]


def test_small_chunks_are_read_in_a_row_and_fill_the_unit() -> None:
    reader, jobs = jobs_of(1)
    assert len(jobs) == JOBS_PER_UNIT
    assert [len(job.chunks) for job in jobs] == [32 // JOBS_PER_UNIT] * JOBS_PER_UNIT
    rows, tally = np.full((4, *reader.layout.field_shape), np.nan, reader.layout.spec.dtype), Tally()
    for job in jobs:
        assert job.raw_bytes < job.decoded_bytes == 2 * reader.layout.chunk_bytes
        assert carry_out(task_of(job, rows), raws(job, tally), tally) is None
    np.testing.assert_array_equal(rows, WRITTEN.open()["a"].isel(time=slice(4, 8)).values)
    assert (tally.reads, tally.decodes, tally.absent, tally.cost.gets) == (32, 32, 0, 32)
    assert tally.bytes_decoded == 32 * reader.layout.chunk_bytes


def test_what_is_absent_is_filled_and_not_decoded() -> None:
    reader, (job, *_) = jobs_of(0)
    rows, tally = np.full((4, *reader.layout.field_shape), 7, reader.layout.spec.dtype), Tally()
    assert carry_out(task_of(job, rows), raws(job, tally, absent=1), tally) is None
    assert (tally.reads, tally.decodes, tally.absent) == (2, 1, 1)
    np.testing.assert_array_equal(rows[:, 0, 2:], job.source.decode(None, job.chunks[1])[:, 0])
    assert tally.bytes_decoded == reader.layout.chunk_bytes


@pytest.mark.parametrize("broken", [0, 1])
def test_the_chunk_that_fails_is_named_and_nothing_of_the_job_is_counted(broken: int) -> None:
    _, (job, *_) = jobs_of(0)
    rows, tally = np.zeros((4, 16, 4), job.reader.layout.spec.dtype), Tally()
    failure = carry_out(task_of(job, rows), raws(job, tally, broken=broken), tally)
    assert failure is not None
    assert (failure.chunk, failure.key) == ((0, 0, broken), f"a/c/0/0/{broken}")
    assert isinstance(failure.__cause__, OSError)
    assert "could not be read: OSError: the disk is gone" in str(failure)
    assert (tally.reads, tally.decodes, tally.bytes_decoded) == (0, 0, 0)
    # Bytes that came are counted all the same.
    assert tally.cost.gets == broken + 1


def test_a_chunk_that_cannot_be_decoded_is_told_from_one_that_cannot_be_read() -> None:
    _, (job, *_) = jobs_of(0)
    rows, tally = np.zeros((4, 16, 4), job.reader.layout.spec.dtype), Tally()
    failure = carry_out(task_of(job, rows), iter([np.zeros(3, "u1")]), tally)
    assert "'a/c/0/0/0' could not be decoded" in str(failure)


def test_one_raw_chunk_is_held_at_a_time() -> None:
    reader, (job, *_) = jobs_of(0)
    before: list[Any] = []

    def one_at_a_time() -> Iterator[Any]:
        for chunk in job.chunks:
            assert all(raw() is None for raw in before)
            raw = [np.frombuffer(bytes(job.source.read([chunk]).raw[0].to_bytes()), np.uint8)]
            before.append(weakref.ref(raw[0]))
            yield raw.pop()

    rows, tally = np.zeros((4, 16, 4), reader.layout.spec.dtype), Tally()
    assert carry_out(task_of(job, rows), one_at_a_time(), tally) is None
    assert len(before) == 2
