"""The loader: epochs of batches."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from insitu_xr import extending
from insitu_xr.ahead import Ahead, Place
from insitu_xr.batch import Batch, BatchContext
from insitu_xr.engine._zarr import memory_of
from insitu_xr.engine.blocks import BLOCKS, BlockStore
from insitu_xr.engine.decode import Part, VariableReader
from insitu_xr.engine.events import Meter, Statistics
from insitu_xr.engine.executor import Executor
from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.pacing import Pace
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.engine.tasks import Machine, Ready
from insitu_xr.epoch import Course, Epoch, progress_bar
from insitu_xr.errors import ClosedError, RequestError, UnsupportedSourceError
from insitu_xr.limits import MIB, Limits, format_bytes
from insitu_xr.pickling import dumps, loads
from insitu_xr.plan.arrays import Key, array_shapes
from insitu_xr.plan.budget import Budget
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.schedule import Residency, lean_slots
from insitu_xr.resuming import fingerprint, position_of, state_of
from insitu_xr.transforming import Template, Transform, declared, transformed

#: a MemoryStore that holds more is not pickled: every worker would get a copy
MEMORY_STORE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Materials:
    """Where the values of a loader come from."""

    #: per variable that is read: its stored arrays
    parts: Mapping[str, Sequence[Part]]
    #: per variable that is read: dtype of its values before any cast
    value_dtypes: Mapping[str, np.dtype[Any]]
    #: variables that are in memory
    memory: Mapping[str, npt.NDArray[Any]]


def check_movable(materials: Materials, thing: str) -> None:
    """Refuse to copy a loader, or a reader, where the values would be copied along, or would be lost."""
    for name, parts in materials.parts.items():
        for store in (part.source.stored.array.store for part in parts if isinstance(part.source, ZarrSource)):
            held, movable = memory_of(store)
            if not movable or held > MEMORY_STORE_BYTES:
                raise UnsupportedSourceError(
                    f"{thing} must read from a store that other processes can open to be pickled, but variable "
                    f"{name!r} lies in the memory of this process ({format_bytes(held)} in {store}); write it to a "
                    "disk or an object store, or stay in this process (num_workers=0)"
                )


class Loader:
    """Iterates batches of a dataset; made by ``ds.insitu.loader``.

    Iterating again is the next epoch. What the ceiling allows to keep is kept between epochs (see ``keep=``). One epoch
    runs at a time: a new one ends the one before. Safe to use from one thread; different loaders are independent.

    Attributes
    ----------
    plan : ReadPlan
        What is read and held.

    Examples
    --------
    >>> import xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))})
    >>> with ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=3) as loader:
    ...     [len(batch) for batch in loader], len(loader)
    ([3, 1], 2)
    """

    def __init__(
        self,
        plan: ReadPlan,
        materials: Materials,
        context: BatchContext,
        limits: Limits,
        *,
        progress: bool = False,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self.plan, self._transforms = plan, tuple(transforms)
        self._materials, self._context, self._limits, self._progress = materials, context, limits, progress
        self._begun = 0
        self._meter, self._ledger = Meter(), Ledger(plan.budget.ceiling)
        self._machine: Machine | None = None
        self._pace = Pace(pinned=limits.max_inflight)
        #: slots of each access group that there are
        self._slots: tuple[int, ...] = ()
        self._epoch = 0
        #: the batches of every epoch that this loader delivers, and how many of the next epoch's to leave out
        self._batches, self._skip = range(plan.n_batches), 0
        #: batches of the epoch that were made; and which epoch, and how many of it the consumer has
        self._made = 0
        self._consumed: Place = (0, 0)
        self._running: weakref.ref[Epoch | Ahead[Any]] | None = None
        #: gives the memory of batches, where it is not ordinary memory
        self._fresh: Callable[[int], npt.NDArray[np.uint8]] | None = None
        self._closed = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch {self._epoch} next"
        return f"<insitu_xr.Loader of {len(self)} batches, {state}>\n{self.plan!r}"

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self._batches)

    @property
    def context(self) -> BatchContext:
        """What all batches share."""
        return self._context

    @property
    def template(self) -> Template:
        """Shape and dtype of every array of a full batch, by group and variable (as in ``batch.arrays``)."""
        return declared(self._transforms, self._gathered(self.plan.request.batch_size))

    def _gathered(self, n: int) -> Template:
        """Shapes and dtypes before any transform."""
        return array_shapes(self.plan.request, self.plan.stacks, n)

    @property
    def stats(self) -> Statistics:
        """Counts and times since the loader was made."""
        return self._meter.read(self._ledger.resident, self._ledger.peak)

    def set_epoch(self, epoch: Any) -> None:
        """Set the number of the next epoch, which its order depends on.

        A loader that resumes in the midst of that very epoch still does.

        Raises
        ------
        RequestError
            If the number is negative.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or epoch < 0:
            raise RequestError(f"epoch must be a whole number of 0 or more, but got {epoch!r}; count from 0")
        if int(epoch) != self._epoch or not self._skip:
            self._epoch, self._skip = int(epoch), 0
            self._consumed = (self._epoch, 0)

    def set_rank(self, rank: int, world_size: int) -> None:
        """Take one of several disjoint parts of every epoch, as the arguments of the same names do.

        For frameworks that know which process this is. The next iteration begins with the epoch that would be next.

        Raises
        ------
        RequestError
            If there is no such rank, or it is left without a batch.
        """
        plan = self.plan.of_rank(rank, world_size, self._limits)
        self._stop_running()
        self.plan, self._context = plan, replace(self._context, request=plan.request)
        self._let_go()
        self._batches, self._skip, self._consumed = range(plan.n_batches), 0, (self._epoch, 0)
        self.__dict__.pop("_fingerprint", None)

    def use_memory(self, fresh: Callable[[int], npt.NDArray[np.uint8]]) -> None:
        """Let batches lie in memory of another kind from the next epoch on, such as page-locked memory.

        Parameters
        ----------
        fresh : callable
            Gives so many bytes of it; called on the threads of the loader. It is used for one batch after another, and
            counts in ``memory=`` as that of batches always does.
        """
        self._stop_running()
        self._let_go()
        self._fresh = fresh

    def state_dict(self) -> dict[str, Any]:
        """How far the consumer is, in a form that JSON can hold.

        Counts the batches that the consumer was given, not those that are read ahead. Carries a fingerprint of the
        request and of the labels, so that only a loader of the same batches accepts it.

        Examples
        --------
        >>> import xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))})
        >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=1)
        >>> first = next(iter(loader))
        >>> state = loader.state_dict()
        >>> state["epoch"], state["batch"]
        (0, 1)
        >>> again = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=1)
        >>> again.load_state_dict(state)
        >>> [batch.positions.tolist() for batch in again]
        [[1], [2], [3]]
        """
        return state_of(self._fingerprint, len(self), *self._consumed)

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self.plan, self._batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called: iterating gives the rest of that epoch, then those that follow.

        Batches that were delivered are not read again, nor is a chunk that they alone need.

        Raises
        ------
        RequestError
            If the state is of another request or of other labels; names the field that differs, and both values.
        """
        epoch, batch = position_of(state, self._fingerprint, len(self))
        self._stop_running()
        self._consumed = (epoch, batch)
        self._epoch, self._skip = (epoch + 1, 0) if batch == len(self) else (epoch, batch)

    def share(self, number: int, count: int, *, progress: bool | None = None) -> Loader:
        """A loader of a part of this one's batches: the ``number``-th of ``count`` stretches of every epoch.

        For worker processes: together the stretches hold every batch of this loader once, unchanged. It begins with
        the epoch, and at the batch, that this one would begin with. It shows progress as this one does, unless told.

        Raises
        ------
        RequestError
            If ``number`` is not one of 0 to ``count`` - 1.

        Examples
        --------
        >>> import xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))})
        >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=1)
        >>> [[batch.positions[0].item() for batch in loader.share(k, 2)] for k in range(2)]
        [[0, 1], [2, 3]]
        """
        if not 0 <= number < count:
            raise RequestError(f"number of a share must be from 0 to {count - 1}, but got {number}; count from 0")
        shown = self._progress if progress is None else progress
        shared = Loader(
            self.plan, self._materials, self._context, self._limits, progress=shown, transforms=self._transforms
        )
        whole = self._batches
        part = whole[len(whole) * number // count : len(whole) * (number + 1) // count]
        shared._batches, shared._epoch = part, self._epoch
        shared._skip = min(max(whole.start + self._skip - part.start, 0), len(part))
        shared._consumed = (shared._epoch, shared._skip)
        return shared

    def __reduce__(self) -> tuple[Any, ...]:
        check_movable(self._materials, "a loader")
        made_of = ("plan", "_materials", "_context", "_limits", "_progress", "_transforms")
        names = [*made_of, "_batches", "_epoch", "_skip", "_consumed"]
        return _restore, (dumps({name: getattr(self, name) for name in names}),)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch.

        Raises
        ------
        ClosedError
            If the loader was closed, or this is a forked child of the process that made it.
        """
        return self._begin(self._mark) or iter(())

    def ahead[T](self, function: Callable[[Batch], T]) -> Iterator[T]:
        """Begin the next epoch, and give what a function makes of each batch, made on a thread one batch ahead.

        For what takes time and does not need the consumer, such as copies to a device. ``state_dict`` counts what the
        consumer was given, here as well.

        Parameters
        ----------
        function : callable
            Given a batch. Once it has returned, the memory of the arrays may be used for others, unless it is kept.

        Raises
        ------
        ClosedError
            As iterating does.

        Examples
        --------
        >>> import xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))})
        >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=3)
        >>> list(loader.ahead(lambda batch: batch["t2m"].sum().item()))
        [15.0, 13.0]
        """
        places: list[Place] = []
        epoch = self._begin(places.append)
        if epoch is None:
            return iter(())
        running = Ahead(epoch, function, places, self._mark, len(self) - self._made)
        self._running = weakref.ref(running)
        return running

    def _mark(self, place: Place) -> None:
        self._consumed = place

    def _begin(self, mark: Callable[[Place], None]) -> Epoch | None:
        """The next epoch, which marks how far it is; None if there is nothing left of it."""
        if self._closed:
            raise ClosedError("a loader must be open to iterate, but it was closed; make a new one")
        if os.getpid() != self._process:
            raise ClosedError(
                "a loader must be used in the process that made it, but this is a fork; its threads do not exist "
                "here. Start workers by spawn, or make the loader in the worker"
            )
        self._stop_running()
        number, batches = self._epoch, self._batches[self._skip :]
        self._consumed, self._made = (number, self._skip), self._skip
        self._epoch, self._skip = number + 1, 0
        if not batches:
            return None
        keeping, budget = self.plan.keeps(self._begun), self.plan.budget_of(self._begun)
        self._begun += 1
        bar = progress_bar(len(self), len(self) - len(batches)) if self._progress else None
        singly = partial(self._singly, budget, number, keeping, mark) if self.plan.stride > 1 else None
        course = self._course(self.plan, budget, number, batches, keeping, mark)
        epoch = Epoch(course, self._discard, singly, bar)
        self._running = weakref.ref(epoch)
        return epoch

    def _singly(self, budget: Budget, epoch: int, keeping: bool, mark: Callable[[Place], None]) -> Course:
        """The rest of an epoch, one batch at a time."""
        rest = self._batches[self._made :]
        return self._course(replace(self.plan, stride=1), budget, epoch, rest, keeping, mark)

    def _course(
        self,
        plan: ReadPlan,
        budget: Budget,
        epoch: int,
        batches: range,
        keeping: bool,
        mark: Callable[[Place], None],
    ) -> Course:
        if self._machine is None or self._slots != budget.slots:
            self._let_go()
            self._machine, self._slots = self._build(budget), budget.slots
        machine, remote, walks = self._machine, plan.remote, []
        for store in machine.stores:
            if keeping:
                uses, slots = plan.uses(store.group, epoch, batches, self._batches), store.n_slots
            else:
                uses = plan.uses_alone(store.group, epoch, batches)
                # What takes long to come is read as far ahead as there is room.
                slots = store.n_slots if remote else max(lean_slots(store.group, uses, store.n_slots), store.touched)
            walks.append(Residency(uses, slots, store.resident()))
        free = [g for g, n in zip(plan.groups, budget.slots, strict=True) if not n]
        spreads = [plan.spread_of(g, epoch, batches, budget.most) for g in free]
        depth = max([budget.depth, *(s.window for s in spreads)])
        samples = plan.samples(epoch, batches)
        executor = Executor(machine, samples, plan.step_size, walks, spreads, depth, budget.most)
        return Course(executor, partial(self._deliver, epoch, batches, plan.stride, mark))

    def _deliver(
        self, epoch: int, batches: range, stride: int, mark: Callable[[Place], None], ready: Ready
    ) -> Iterator[Batch]:
        """The consumer's batches of one step of the engine."""
        request, size = self.plan.request, self.plan.request.batch_size
        first, own = batches[ready.number * stride], request.shard.own(len(request))
        several = len(ready.samples) > size
        for k in range(0, len(ready.samples), size):
            batch, here = first + k // size, slice(k, k + size)
            arrays = {key: _part(key, array, here) for key, array in ready.arrays.items()} if several else ready.arrays
            samples = ready.samples[here]
            self._made = batch + 1 - self._batches.start
            mark((epoch, self._made))
            self._meter.add(batches=1, samples=len(samples))
            end = batch * size + len(samples)
            padded = np.arange(end - len(samples), end) >= own if end > own else None
            yield self._transformed(Batch(self._context, samples, arrays, padded))

    def _transformed(self, batch: Batch) -> Batch:
        return transformed(self._transforms, batch, self._gathered(len(batch))) if self._transforms else batch

    def _build(self, budget: Budget) -> Machine:
        # Before memory is asked for, so that what waits there makes room.
        BLOCKS.share(self._ledger, budget.ceiling)
        stores = [SlotStore(g, n) for g, n in zip(self.plan.groups, budget.slots, strict=True) if n]
        readers = {
            layout.spec.name: VariableReader(
                layout, self._materials.parts[layout.spec.name], self._materials.value_dtypes[layout.spec.name]
            )
            for group in self.plan.groups
            for layout in group.layouts
        }
        own = None if self._fresh is None else BlockStore((budget.most + 1) * budget.batch_bytes, self._fresh)
        gatherer = Gatherer(self.plan.request, stores, self._materials.memory, self.plan.stacks, own or BLOCKS)
        return Machine(
            stores=stores,
            readers=readers,
            gatherer=gatherer,
            ledger=self._ledger,
            meter=self._meter,
            limits=self._limits,
            pace=self._pace,
            threads=budget.threads,
            inflight_bytes=budget.inflight_bytes,
        )

    def _let_go(self) -> None:
        """Let go of all slots."""
        self._machine = None
        self._ledger = Ledger(self.plan.budget.ceiling, self._ledger.peak)

    def _discard(self) -> None:
        """Let go of slots that a stuck read may yet write into; the next epoch gets new ones."""
        self._let_go()
        for parts in self._materials.parts.values():
            for part in parts:
                part.source.forget_pending()

    def _stop_running(self) -> None:
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()
        self._running = None

    def close(self) -> None:
        """Stop, and let go of all memory. Idempotent."""
        self._stop_running()
        self._discard()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def to(self, framework: str, **options: Any) -> Any:
        """The same batches for a framework, through its adapter.

        Parameters
        ----------
        framework : str
            Name of an installed adapter, such as "torch".
        **options
            Passed on to the adapter.

        Raises
        ------
        UnknownNameError
            If no adapter of that name is installed.
        """
        return extending.adapter(extending.LOADERS, framework, "framework")(self, **options)


def _part(key: Key, array: npt.NDArray[Any], here: slice) -> npt.NDArray[Any]:
    """The part of one batch in an array of several; statics have no samples, and every batch owns its own."""
    return array.copy() if key[0] == "statics" else array[here]


def _restore(blob: bytes) -> Loader:
    """Undo ``Loader.__reduce__``: a loader without threads or memory, as it was when it was made."""
    content = loads(blob)
    plan, materials, context, limits = (content.pop(k) for k in ("plan", "_materials", "_context", "_limits"))
    options = {"progress": content.pop("_progress"), "transforms": content.pop("_transforms")}
    loader = Loader(plan, materials, context, limits, **options)
    loader.__dict__.update(content)
    return loader
