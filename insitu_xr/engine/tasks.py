"""What the executor works with: jobs under way, batches being made, and what the epochs of a loader share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from insitu_xr.engine.board import Load
from insitu_xr.engine.decode import Job, VariableReader
from insitu_xr.engine.events import Meter
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.errors import ReadError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.limits import Limits
from insitu_xr.plan.arrays import Key


@dataclass(slots=True, eq=False)
class Ready:
    """A batch as arrays: samples in the order drawn, and the arrays by group and variable."""

    number: int
    samples: IntArray
    arrays: dict[Key, npt.NDArray[Any]]


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that is planned: its samples, and the arena rows of every sample per access group."""

    samples: IntArray
    rows: list[IntArray]
    arrays: dict[Key, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A job under way, the load it belongs to, and the slots it fills."""

    load: Load[Any]
    store: SlotStore
    job: Job


class Counts:
    """What a job cost, gathered without a lock."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}

    def add(self, **counts: float) -> None:
        """Note some counts."""
        self.totals.update(counts)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note the time that a stage takes."""
        began = time.perf_counter()
        yield
        self.totals[stage] = time.perf_counter() - began


def failure_of(task: Task, error: BaseException, doing: str) -> ReadError:
    """The error to raise at the batch that needs a job."""
    failure = task.job.failure(error, doing)
    failure.__cause__ = error
    return failure


@dataclass(slots=True, eq=False)
class Machine:
    """What the epochs of one loader share: slots, readers, the gatherer, and the accounts."""

    stores: Sequence[SlotStore]
    readers: dict[str, VariableReader]
    gatherer: Gatherer
    ledger: Ledger
    meter: Meter
    limits: Limits
    threads: int
    depth: int
    inflight_bytes: int
