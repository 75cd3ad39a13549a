"""The read plan: exact reads and memory of a request, known before any data is read."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import describe
from insitu_xr.limits import Limits, format_bytes
from insitu_xr.plan.arrays import batch_bytes
from insitu_xr.plan.budget import Budget, divide, divide_spread
from insitu_xr.plan.channels import Stack
from insitu_xr.plan.manifest import Manifest
from insitu_xr.plan.order import Runs, epoch_order, is_global, is_redrawn, largest_batch, runs_of
from insitu_xr.plan.reads import AccessGroup, Uses, access_groups, batch_uses, join_epochs
from insitu_xr.plan.request import Dropped, Request
from insitu_xr.plan.schedule import count_reads
from insitu_xr.plan.sharding import Shard
from insitu_xr.plan.spread import Spread, can_spread

#: nothing is kept for the next epoch where it would be less than this part
KEPT_PART = 0.25

_HOW = {"stored": "in place", "memory": "from memory", "foreign": "through xarray"}


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """What a loader will read and hold; printing it reads no data.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": ("time", np.zeros(6, "f4"))})
    >>> plan = ds.insitu.plan(variables=["t2m"], sample_dim="time", leads=[0, 2], batch_size=2)
    >>> plan.anchors_kept, [str(d) for d in plan.dropped]
    (4, ["2 after the end at lead +2 of 't2m' (4, 5)"])
    """

    request: Request
    groups: tuple[AccessGroup, ...]
    runs: Runs
    #: where every chunk has a slot, which is kept from one epoch to the next
    budget: Budget
    stacks: Mapping[str, Stack] | None = None
    #: batches that the engine makes at once, where they are small
    stride: int = 1
    #: where chunks of some groups, those without slots, go straight into the batches; None if that does not pay
    spread: Budget | None = None
    #: keep chunks for the next epoch: from the first one on, or never; None where it is to be decided by the source
    keep: bool | None = None
    #: the ceiling that was asked for; None for the default
    memory: int | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        memory: int | None,
        limits: Limits,
        stacks: Mapping[str, Stack] | None = None,
        keep: bool | None = None,
    ) -> ReadPlan:
        """Plan a request.

        Raises
        ------
        CeilingError
            If the ceiling is below what one batch needs.
        RequestError
            If a sampler does not return what it must.
        """
        groups = access_groups(request)
        runs = runs_of(request, groups)
        stride, budget = _divided(request, runs, groups, stacks, memory, limits)
        plan = cls(request, groups, runs, budget, stacks, stride, keep=keep, memory=memory)
        plan = replace(plan, spread=plan._spread_budget(limits))
        if request.sampler is not None:
            plan.order(0)  # what a sampler of the caller returns is checked before any data is read
        return plan

    def of_rank(self, rank: int, world_size: int, limits: Limits) -> ReadPlan:
        """The plan of the same request for one rank of several.

        Raises
        ------
        RequestError
            If there is no such rank, or it is left without a batch.
        """
        request = self.request
        shard = Shard.checked(len(request), rank, world_size, request.shard.partial)
        return self.of(request.sharded(shard), self.memory, limits, self.stacks, self.keep)

    def _spread_budget(self, limits: Limits) -> Budget | None:
        """How memory is divided if groups that can go straight into the batches do so; None if that does not pay."""
        free, window = [False] * len(self.groups), 0
        for k, group in enumerate(self.groups):
            if can_spread(self.request, group):
                most = self.budget.ceiling // max(1, self.budget.batch_bytes)
                walk = self.spread_of(group, 0, range(self.n_batches), most)
                # Under a small ceiling, slots keep what a short window would read again.
                if walk.reads <= self._reads_of(group, self.budget.slots[k]):
                    free[k], window = True, max(window, walk.window)
        return divide_spread(self.groups, free, window, self.budget, limits) if any(free) else None

    def keeps(self, epochs: int) -> bool:
        """Whether chunks are kept for the next epoch once so many have begun before.

        That there is a next one is certain only once a second has begun; but what comes from a remote store is too dear
        to be read twice.
        """
        if self.keep is not None:
            return self.keep
        if not epochs and not self.remote:
            return False
        return self.budget.slot_bytes >= KEPT_PART * sum(g.n_units * g.slot_bytes for g in self.groups)

    @property
    def remote(self) -> bool:
        """Whether anything is read from a store that has to be waited for."""
        return any(x.spec.asynchronous for g in self.groups for x in g.layouts)

    def budget_of(self, epochs: int) -> Budget:
        """How memory is used once so many epochs have begun before."""
        return self.budget if self.spread is None or self.keeps(epochs) else self.spread

    # -- epochs --------------------------------------------------------------------------------------------------

    def order(self, epoch: int) -> IntArray:
        """Samples of this rank in the order in which an epoch draws them."""
        if epoch not in self._orders:
            while len(self._orders) > 1:  # an epoch needs its own order and that of the following one
                self._orders.pop(next(iter(self._orders)), None)
            self._orders[epoch] = epoch_order(self.request, self.runs, epoch)
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, IntArray]:
        return {}

    def uses(
        self, group: AccessGroup, epoch: int, batches: range | None = None, following: range | None = None
    ) -> Uses:
        """Units per step of the engine, with next uses that reach into the following epoch.

        Parameters
        ----------
        batches, following : range, optional
            The batches of the epoch and of the following one that will be run; all by default. Uses count from the
            first of them.
        """
        every = range(self.n_batches)
        here = self.uses_alone(group, epoch, every if batches is None else batches)
        then = every if following is None else following
        if not is_redrawn(self.request) and batches in (None, then):
            return join_epochs(here, here)
        return join_epochs(here, self.uses_alone(group, epoch + 1, then))

    def uses_alone(self, group: AccessGroup, epoch: int, batches: range) -> Uses:
        """Units per batch of an epoch, as if there were no other."""
        size, steps = self.step_size, -(-len(batches) // self.stride)
        return batch_uses(group.units(self.request, self.samples(epoch, batches)), size, steps, group.n_units)

    def fits(self, budget: Budget, epoch: int, batches: range) -> bool:
        """Whether the slots suffice for steps that begin with other batches than those of a whole epoch."""
        groups = zip(self.groups, budget.slots, strict=True)
        return all(not n or self.uses_alone(g, epoch, batches).largest <= n for g, n in groups)

    def spread_of(self, group: AccessGroup, epoch: int, batches: range, most: int) -> Spread:
        """The visits of a group whose chunks go straight into the batches."""
        return Spread(self.request, group, self.samples(epoch, batches), self.step_size, most)

    @property
    def step_size(self) -> int:
        """Samples that the engine gathers at once: those of a few batches where batches are small."""
        return self.request.batch_size * self.stride

    def samples(self, epoch: int, batches: range) -> IntArray:
        """Samples of some batches in the order in which they are drawn."""
        size = self.request.batch_size
        return self.order(epoch)[batches.start * size : batches.stop * size]

    # -- figures -------------------------------------------------------------------------------------------------

    @property
    def anchors_kept(self) -> int:
        """Samples of an epoch."""
        return len(self.request)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Anchors whose window is incomplete, by reason."""
        return self.request.dropped

    @property
    def n_batches(self) -> int:
        """Batches of an epoch."""
        return self.request.n_batches

    @cached_property
    def reads_by_group(self) -> tuple[int, ...]:
        """Chunks that the first epoch fetches, per access group."""
        budget = self.budget_of(0)
        every = range(self.n_batches)
        return tuple(
            self._reads_of(g, n) if n else self.spread_of(g, 0, every, budget.depth).reads
            for g, n in zip(self.groups, budget.slots, strict=True)
        )

    def _reads_of(self, group: AccessGroup, n_slots: int) -> int:
        if n_slots >= group.n_units and self._touches_all:
            return int(group.cells_per_unit.sum())
        return count_reads(group, self.uses(group, 0), n_slots)

    @property
    def _touches_all(self) -> bool:
        """Whether every epoch draws every sample."""
        request = self.request
        drawn = request.weights is not None or request.sampler is not None
        return not (request.drop_last or drawn or request.shard.world_size > 1)

    @property
    def reads(self) -> int:
        """Chunks that the first epoch fetches; later epochs find some or all of them in memory."""
        return sum(self.reads_by_group)

    @cached_property
    def chunks(self) -> int:
        """Distinct chunks that the first epoch touches."""
        if self._touches_all:
            return sum(int(g.cells_per_unit.sum()) for g in self.groups)
        return sum(count_reads(g, self.uses(g, 0), g.n_units) for g in self.groups)

    @property
    def reread_factor(self) -> float:
        """Reads per distinct chunk."""
        return self.reads / self.chunks if self.chunks else 1.0

    @property
    def bytes_decoded(self) -> int:
        """Bytes of the chunks that the first epoch decodes, padding included."""
        total = 0
        for group, reads in zip(self.groups, self.reads_by_group, strict=True):
            cells = int(group.cells_per_unit.sum())
            for layout in group.layouts:
                total += reads * int(layout.cells_per_unit.sum()) // max(cells, 1) * layout.chunk_bytes
        return total

    @property
    def bytes_stored(self) -> int | None:
        """Bytes that the first epoch reads from the store; None where compression hides it."""
        total = 0
        for group, reads in zip(self.groups, self.reads_by_group, strict=True):
            cells = int(group.cells_per_unit.sum())
            for layout in group.layouts:
                if not layout.spec.encoded_chunk_bytes:
                    return None
                total += reads * int(layout.cells_per_unit.sum()) // max(cells, 1) * layout.spec.encoded_chunk_bytes
        return total

    @property
    def peak_bytes(self) -> int:
        """The most memory that the engine holds at once."""
        return max(b.peak_bytes for b in (self.budget, self.spread) if b is not None)

    @property
    def minimum_memory(self) -> int:
        """The smallest ``memory=`` that this request can run under."""
        return self.budget.minimum

    @cached_property
    def manifest(self) -> Manifest:
        """The request in a form that can be kept."""
        return Manifest.of(self.request)

    # -- showing -------------------------------------------------------------------------------------------------

    def _facts(self) -> list[tuple[str, str]]:
        request = self.request
        total = int(np.prod([len(a) for a in request.axes]))
        order = self._order_text()
        facts = [
            ("batches", f"{self.n_batches} of {request.batch_size} samples, {order}"),
            ("anchors", f"{self.anchors_kept} of {total} kept"),
            *[("dropped", str(d)) for d in self.dropped],
            *[("axis", describe(a)) for a in request.axes],
        ]
        if any(t.windowed for t in request.takes):
            facts.append(("leads", ", ".join(dict.fromkeys(o.name for o in request.offsets))))
        stored = self.bytes_stored
        facts += [
            ("reads", f"{self.reads} for {self.chunks} chunks, {self.reread_factor:.2f} per chunk in the first epoch"),
            (
                "bytes",
                f"{format_bytes(self.bytes_decoded)} decoded, stored "
                + ("unknown until read (compressed)" if stored is None else format_bytes(stored)),
            ),
            (
                "memory",
                (
                    f"peak {format_bytes(self.peak_bytes)} under a ceiling of {format_bytes(self.budget.ceiling)}; "
                    f"at least {format_bytes(self.minimum_memory)} needed"
                ),
            ),
        ]
        return facts

    def _order_text(self) -> str:
        request, shard = self.request, self.request.shard
        if request.sampler is not None:
            text = f"drawn by a sampler, seed {request.seed}"
        elif not request.shuffle:
            text = "in order"
        elif is_global(request, self.runs):
            text = f"shuffled globally, seed {request.seed}"
        else:
            text = f"shuffled in blocks of {self.runs.block}, seed {request.seed}"
        text += ", drawn by weight with replacement" if request.weights is not None else ""
        if shard.world_size > 1:
            text += f", rank {shard.rank} of {shard.world_size} ({shard.partial})"
        return text

    def _table(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("variable", "group", "dtype", "field", "chunks", "read")]
        chunks = {x.spec.name: int(x.cells_per_unit.sum()) for g in self.groups for x in g.layouts}
        grouped = [(t.variable, t.group) for t in self.request.takes] + [(n, "statics") for n in self.request.statics]
        for name, group in grouped:
            spec = self.request.variables[name]
            sizes = zip(spec.dims, spec.shape, strict=True)
            field = " x ".join(f"{d} {n}" for d, n in sizes if d not in self.request.sample_dims) or "a number"
            how = _HOW[spec.kind] + (f": {spec.note}" if spec.note else "")
            rows.append((name, group, str(spec.dtype), field, str(chunks.get(name, "-")), how))
        return rows

    def __repr__(self) -> str:
        facts = [f"  {name:<8} {text}" for name, text in self._facts()]
        table = self._table()
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        lines = ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join(["<insitu_xr.ReadPlan>", *facts, "", *lines])

    def _repr_html_(self) -> str:
        facts = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in self._facts())
        head, *body = self._table()
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body)
        return (
            "<div class='insitu-plan'><b>insitu_xr.ReadPlan</b>"
            f"<table>{facts}</table><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>"
        )


#: small batches are made together, up to about this size
STEP_BYTES = 4 << 20
#: and as many as this
STEP_BATCHES = 16


def _divided(
    request: Request,
    runs: Runs,
    groups: tuple[AccessGroup, ...],
    stacks: Mapping[str, Stack] | None,
    memory: int | None,
    limits: Limits,
) -> tuple[int, Budget]:
    """Batches that are made at once, and the ceiling divided."""

    def needed(batches: int) -> tuple[list[int], int]:
        together = replace(request, batch_size=request.batch_size * batches)
        size = batch_bytes(request, stacks, min(together.batch_size, len(request)))
        return [largest_batch(together, runs, g) for g in groups], size

    units, size = needed(1)
    single = divide(groups, units, size, memory, limits)
    stride = min(STEP_BATCHES, request.n_batches, STEP_BYTES // max(1, size))
    if stride > 1:
        more, size = needed(stride)
        # The first batch must not wait for the chunks of others, nor a small ceiling be spent on them.
        if all(2 * m <= 3 * n for m, n in zip(more, units, strict=True)):
            budget = divide(groups, more, size, None, replace(limits, memory=single.ceiling))
            if 4 * budget.minimum <= single.ceiling:
                return stride, replace(budget, minimum=single.minimum)
    return 1, single
