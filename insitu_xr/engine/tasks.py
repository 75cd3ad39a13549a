"""What the executor works with: jobs under way, batches being made, and what the epochs of a loader share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from insitu_xr.engine.board import Load
from insitu_xr.engine.decode import Job, VariableReader
from insitu_xr.engine.events import Meter
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.pacing import Pace
from insitu_xr.engine.placing import Sink, SlotSink, SpreadSink
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.geometry.grid import IntArray
from insitu_xr.limits import Limits
from insitu_xr.plan.arrays import Key


@dataclass(slots=True, eq=False)
class Ready:
    """A step of the engine as arrays: samples in the order drawn, and the arrays by group and variable."""

    number: int
    samples: IntArray
    arrays: dict[Key, npt.NDArray[Any]]


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that is planned: its samples, and the arena rows of every sample per group that is kept in slots."""

    samples: IntArray
    rows: list[IntArray]
    arrays: dict[Key, npt.NDArray[Any]]


@dataclass(slots=True, eq=False)
class SlotPlace:
    """A unit goes into a slot."""

    store: SlotStore
    slot: int
    unit: int

    def sink(self, job: Job) -> Sink:
        """Where the chunks of a job go."""
        # The ellipsis keeps a number, too, a view of the slot.
        return SlotSink(self.store.arenas[job.reader.layout.spec.name][self.slot, ...], job.unit.counts)


@dataclass(slots=True, eq=False)
class BatchPlace:
    """A unit goes into open batches, row by row; their arrays are there once its reading has begun."""

    copies: dict[int, list[tuple[int, int]]]
    batches: dict[int, OpenBatch]
    gatherer: Gatherer
    _sinks: dict[str, Sink] = field(default_factory=dict)

    def sink(self, job: Job) -> Sink:
        """Where the chunks of a job go."""
        spec = job.reader.layout.spec
        found = self._sinks.get(spec.name)
        if found is None:
            copies = [
                (view, pairs)
                for number, pairs in self.copies.items()
                for view in self.gatherer.views(spec.name, self.batches[number].arrays)
            ]
            found = self._sinks[spec.name] = SpreadSink(copies, spec.dtype)
        return found


Place = SlotPlace | BatchPlace


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A job under way, the load it belongs to, and where its chunks go."""

    load: Load[Any]
    job: Job
    sink: Sink


@dataclass(slots=True, eq=False)
class Tools:
    """What threads work with: slots, readers, and the accounts."""

    stores: Sequence[SlotStore]
    readers: dict[str, VariableReader]
    ledger: Ledger
    meter: Meter
    limits: Limits
    pace: Pace
    threads: int
    inflight_bytes: int


@dataclass(slots=True, eq=False)
class Machine(Tools):
    """What the epochs of one loader share: the tools, and what makes batches out of slots."""

    gatherer: Gatherer

    def let_go(self) -> None:
        """Let go of all slots; nothing can be carried out any more."""
        for store in self.stores:
            store.let_go()
        self.gatherer.let_go()
