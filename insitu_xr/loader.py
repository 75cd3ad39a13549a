"""The loader: epochs of batches."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from insitu_xr import extending
from insitu_xr.ahead import Ahead, Place
from insitu_xr.batch import Batch, BatchContext
from insitu_xr.engine.events import Statistics
from insitu_xr.engine.tasks import Ready
from insitu_xr.epoch import Course, Epoch, progress_bar
from insitu_xr.errors import ClosedError, RequestError
from insitu_xr.limits import Limits
from insitu_xr.machinery import Machinery
from insitu_xr.materials import Materials
from insitu_xr.pickling import dumps, loads
from insitu_xr.plan.arrays import Key, array_shapes
from insitu_xr.plan.budget import Budget
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.resuming import fingerprint, position_of, state_of
from insitu_xr.transforming import Template, Transform, declared, transformed


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
        self._machinery = Machinery(materials, limits, plan.budget.ceiling)
        self._begun = self._epoch = 0
        #: the batches of every epoch that this loader delivers, and how many of the next epoch's to leave out
        self._batches, self._skip = range(plan.n_batches), 0
        #: batches of the epoch that were made; and which epoch, and how many of it the consumer has
        self._made = 0
        self._consumed: Place = (0, 0)
        self._running: weakref.ref[Epoch | Ahead[Any]] | None = None
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
        return self._machinery.stats

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
        self._machinery.let_go(plan.budget.ceiling)
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
        self._machinery.use_memory(fresh)

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
        self._materials.check_movable("a loader")
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
        keeping, budget = self.plan.keeps(self._begun), self.plan.budget_of(self._begun)
        # What the caller's own functions refuse here leaves the loader as it was.
        course = self._course(self.plan, budget, number, batches, keeping, mark) if batches else None
        self._consumed, self._made = (number, self._skip), self._skip
        self._epoch, self._skip = number + 1, 0
        if course is None:
            return None
        self._begun += 1
        bar = progress_bar(len(self), len(self) - len(batches)) if self._progress else None
        singly = partial(self._singly, budget, number, keeping, mark) if self.plan.stride > 1 else None
        epoch = Epoch(course, self._machinery.discard, singly, bar)
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
        if plan.stride > 1 and batches.start % plan.stride and not plan.fits(budget, epoch, batches):
            plan = replace(plan, stride=1)
        executor = self._machinery.executor(plan, budget, epoch, batches, self._batches, keeping=keeping)
        return Course(executor, partial(self._deliver, epoch, batches, plan.stride, mark), self._transformed)

    def _deliver(
        self, epoch: int, batches: range, stride: int, mark: Callable[[Place], None], ready: Ready
    ) -> Iterator[Batch]:
        """The consumer's batches of one step of the engine."""
        request, meter = self.plan.request, self._machinery.meter
        size, own, n = request.batch_size, request.shard.own(len(request)), len(ready.samples)
        batch = batches[ready.number * stride]
        for k in range(0, n, size):
            samples, arrays = ready.samples, ready.arrays
            if n > size:
                here = slice(k, k + size)
                samples, arrays = samples[here], {key: _part(key, array, here) for key, array in arrays.items()}
            self._made = batch + 1 - self._batches.start
            mark((epoch, self._made))
            meter.add(batches=1, samples=len(samples))
            end = batch * size + len(samples)
            padded = np.arange(end - len(samples), end) >= own if end > own else None
            yield Batch(self._context, samples, arrays, padded)
            batch += 1

    def _transformed(self, batch: Batch) -> Batch:
        return transformed(self._transforms, batch, self._gathered(len(batch))) if self._transforms else batch

    def _stop_running(self) -> None:
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()
        self._running = None

    def close(self) -> None:
        """Stop, and let go of all memory. Idempotent."""
        self._stop_running()
        self._machinery.close()
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
