"""What carries out the epochs of a loader, and keeps what it holds from one epoch to the next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.blocks import BLOCKS, BlockStore
from insitu_xr.engine.events import Meter, Statistics
from insitu_xr.engine.executor import Executor
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.pacing import Pace
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.engine.tasks import Machine
from insitu_xr.limits import Limits
from insitu_xr.materials import Materials
from insitu_xr.plan.budget import Budget
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.schedule import Residency, lean_slots


class Machinery:
    """Slots, readers and counts of a loader.

    Parameters
    ----------
    materials : Materials
        What is read.
    limits : Limits
        Its dials.
    ceiling : int
        What may be held, in bytes.
    """

    def __init__(self, materials: Materials, limits: Limits, ceiling: int) -> None:
        self._materials, self._limits = materials, limits
        self.meter = Meter()
        self._ledger = Ledger(ceiling)
        self._pace = Pace(pinned=limits.max_inflight)
        self._machine: Machine | None = None
        #: slots of each access group that there are
        self._slots: tuple[int, ...] = ()
        #: gives the memory of batches, where it is not ordinary memory
        self._fresh: Callable[[int], npt.NDArray[np.uint8]] | None = None

    @property
    def stats(self) -> Statistics:
        """Counts and times since it was made."""
        return self.meter.read(self._ledger.resident, self._ledger.peak)

    def use_memory(self, fresh: Callable[[int], npt.NDArray[np.uint8]]) -> None:
        """Let batches lie in memory of another kind from now on."""
        self.let_go()
        self._fresh = fresh

    def let_go(self, ceiling: int | None = None) -> None:
        """Let go of all slots; the next epoch gets new ones."""
        self._machine = None
        self._ledger = Ledger(self._ledger.ceiling if ceiling is None else ceiling, self._ledger.peak)

    def discard(self) -> None:
        """Let go of slots that a stuck read may yet write into."""
        self.let_go()
        self._materials.forget_pending()

    def close(self) -> None:
        """Let go of all memory, even if an epoch that was closed is kept."""
        if self._machine is not None:
            self._machine.let_go()
        self.discard()

    def executor(
        self, plan: ReadPlan, budget: Budget, epoch: int, batches: range, every: range, *, keeping: bool
    ) -> Executor:
        """Begin to carry out some batches of an epoch.

        Parameters
        ----------
        batches, every : range
            Those of this epoch, and those of the epochs that follow.
        keeping : bool
            Whether chunks are held for the next epoch.
        """
        if self._machine is None or self._slots != budget.slots:
            self.let_go()
            self._machine, self._slots = self._build(plan, budget), budget.slots
        machine = self._machine
        walks = [_walk(plan, store, epoch, batches, every, keeping=keeping) for store in machine.stores]
        free = [g for g, n in zip(plan.groups, budget.slots, strict=True) if not n]
        spreads = [plan.spread_of(g, epoch, batches, budget.most) for g in free]
        depth = max([budget.depth, *(s.window for s in spreads)])
        return Executor(machine, plan.samples(epoch, batches), plan.step_size, walks, spreads, depth, budget.most)

    def _build(self, plan: ReadPlan, budget: Budget) -> Machine:
        # Before memory is asked for, so that what waits there makes room.
        BLOCKS.share(self._ledger, budget.ceiling)
        stores = [SlotStore(g, n) for g, n in zip(plan.groups, budget.slots, strict=True) if n]
        own = None if self._fresh is None else BlockStore((budget.most + 1) * budget.batch_bytes, self._fresh)
        return Machine(
            stores=stores,
            readers=self._materials.readers(plan.groups),
            gatherer=Gatherer(plan.request, stores, self._materials.memory, plan.stacks, own or BLOCKS),
            ledger=self._ledger,
            meter=self.meter,
            limits=self._limits,
            pace=self._pace,
            threads=budget.threads,
            inflight_bytes=budget.inflight_bytes,
        )


def _walk(plan: ReadPlan, store: SlotStore, epoch: int, batches: range, every: range, *, keeping: bool) -> Residency:
    """What an access group reads and holds, from the units that its slots have."""
    if keeping:
        return Residency(plan.uses(store.group, epoch, batches, every), store.n_slots, store.resident())
    uses = plan.uses_alone(store.group, epoch, batches)
    # What takes long to come is read as far ahead as there is room.
    lean = max(lean_slots(store.group, uses, store.n_slots), store.touched)
    return Residency(uses, store.n_slots if plan.remote else lean, store.resident())
