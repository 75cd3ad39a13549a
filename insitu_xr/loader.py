"""The loader: epochs of batches."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from insitu_xr.batch import Batch, BatchContext
from insitu_xr.engine.decode import Part, VariableReader
from insitu_xr.engine.events import Meter, Statistics
from insitu_xr.engine.executor import Executor, Machine
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.errors import ClosedError, RequestError, UnknownNameError
from insitu_xr.limits import Limits
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.schedule import Residency

ADAPTERS = "insitu_xr.adapters"


@dataclass(frozen=True, slots=True, eq=False)
class Materials:
    """Where the values of a loader come from."""

    #: per variable that is read: its stored arrays
    parts: Mapping[str, Sequence[Part]]
    #: per variable that is read: dtype of its values before any cast
    value_dtypes: Mapping[str, np.dtype[Any]]
    #: variables that are in memory
    memory: Mapping[str, npt.NDArray[Any]]


class Loader:
    """Iterates batches of a dataset; made by ``ds.insitu.loader``.

    Iterating again is the next epoch. What the ceiling allows to keep is kept between epochs. One epoch runs at a
    time: a new one ends the one before. Safe to use from one thread; different loaders are independent.

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
        self, plan: ReadPlan, materials: Materials, context: BatchContext, limits: Limits, *, progress: bool = False
    ) -> None:
        self.plan = plan
        self._materials, self._context, self._limits, self._progress = materials, context, limits, progress
        self._meter, self._ledger = Meter(), Ledger(plan.budget.ceiling)
        self._machine: Machine | None = None
        self._epoch = 0
        self._running: weakref.ref[Epoch] | None = None
        self._closed = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch {self._epoch} next"
        return f"<insitu_xr.Loader of {len(self)} batches, {state}>\n{self.plan!r}"

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.plan.n_batches

    @property
    def stats(self) -> Statistics:
        """Counts and times since the loader was made."""
        return self._meter.read(self._ledger.resident, self._ledger.peak)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which its order depends on.

        Raises
        ------
        RequestError
            If the number is negative.
        """
        if epoch < 0:
            raise RequestError(f"epoch must be 0 or more, but got {epoch}; count from 0")
        self._epoch = int(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch.

        Raises
        ------
        ClosedError
            If the loader was closed, or this is a forked child of the process that made it.
        """
        if self._closed:
            raise ClosedError("a loader must be open to iterate, but it was closed; make a new one")
        if os.getpid() != self._process:
            raise ClosedError(
                "a loader must be used in the process that made it, but this is a fork; its threads do not exist "
                "here. Start workers by spawn, or make the loader in the worker"
            )
        self._stop_running()
        if self._machine is None:
            self._machine = self._build()
        number, self._epoch = self._epoch, self._epoch + 1
        walks = [
            Residency(self.plan.uses(store.group, number), store.n_slots, store.resident())
            for store in self._machine.stores
        ]
        executor = Executor(self._machine, self.plan.order(number), len(self), walks)
        epoch = Epoch(executor, self._context, len(self), self._discard, progress=self._progress)
        self._running = weakref.ref(epoch)
        return epoch

    def _build(self) -> Machine:
        stores = [SlotStore(g, n) for g, n in zip(self.plan.groups, self.plan.budget.slots, strict=True)]
        readers = {
            layout.spec.name: VariableReader(
                layout, self._materials.parts[layout.spec.name], self._materials.value_dtypes[layout.spec.name]
            )
            for group in self.plan.groups
            for layout in group.layouts
        }
        gatherer = Gatherer(self.plan.request, stores, self._materials.memory, self.plan.stacks)
        budget = self.plan.budget
        return Machine(
            stores, readers, gatherer, self._ledger, self._meter, self._limits, budget.depth, budget.inflight_bytes
        )

    def _discard(self) -> None:
        """Let go of slots that a stuck read may yet write into; the next epoch gets new ones."""
        self._machine = None
        self._ledger = Ledger(self.plan.budget.ceiling)

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
        from importlib.metadata import entry_points

        found = entry_points(group=ADAPTERS)
        if framework not in found.names:
            raise UnknownNameError(
                f"framework must be one of {sorted(found.names)}, but got {framework!r}; install an adapter for it "
                f"(entry point group {ADAPTERS!r})"
            )
        return found[framework].load()(self, **options)


class Epoch(Iterator[Batch]):
    """One pass over the batches.

    It is closed at the end, on an error, when nothing refers to it any more, and when the interpreter exits.
    """

    def __init__(
        self, executor: Executor, context: BatchContext, total: int, discard: Callable[[], None], *, progress: bool
    ) -> None:
        self._executor, self._context = executor, context
        self._bar = _progress_bar(total) if progress else None
        self._ended = False
        # The threads refer to the executor, never to this object, so leaving a loop early ends them.
        self._finish = weakref.finalize(self, _finish, executor, discard, self._bar)

    def __next__(self) -> Batch:
        """The next batch.

        Raises
        ------
        ReadError
            If a chunk that the batch needs could not be read or decoded.
        ClosedError
            If another epoch of the loader has begun since, or the loader was closed.
        """
        if not self._finish.alive and not self._ended:
            raise ClosedError(
                "an epoch must be the one that runs, but it was closed, since its loader was closed or another epoch "
                "began; iterate again"
            )
        try:
            ready = self._executor.next() if not self._ended else None
        except BaseException:
            self._ended = True
            self.close()
            raise
        if ready is None:
            self._ended = True
            self.close()
            raise StopIteration
        if self._bar is not None:
            self._bar.update()
        return Batch(self._context, ready.samples, ready.arrays)

    def close(self) -> None:
        """End the epoch. Idempotent."""
        self._finish()


def _finish(executor: Executor, discard: Callable[[], None], bar: Any) -> None:
    if not executor.close():
        discard()
    if bar is not None:
        bar.close()


def _progress_bar(total: int) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="batch")
