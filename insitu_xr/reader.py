"""The reader: random access by label, for those whose next request is not known, or known in part."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from insitu_xr.asking import Asking, parts_of
from insitu_xr.batch import Batch, BatchContext
from insitu_xr.engine.access import Access, Ticket
from insitu_xr.engine.blocks import BLOCKS
from insitu_xr.engine.events import Meter, Statistics
from insitu_xr.engine.pacing import Pace
from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.engine.tasks import Tools
from insitu_xr.errands import Errands, Sorter, Visitor
from insitu_xr.errors import ClosedError, RequestError
from insitu_xr.geometry.times import Lead
from insitu_xr.limits import Limits, format_bytes
from insitu_xr.materials import Materials
from insitu_xr.pickling import dumps, loads
from insitu_xr.plan.arrays import Key
from insitu_xr.plan.budget import Budget
from insitu_xr.plan.foresight import Foresight, Located
from insitu_xr.plan.reads import AccessGroup
from insitu_xr.plan.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """What a reader reads: every label of the sample dimensions as a sample of its own."""

    request: Request
    groups: tuple[AccessGroup, ...]
    budget: Budget
    materials: Materials
    context: BatchContext
    limits: Limits


class Reader:
    """Reads samples by label, in any order; made by ``ds.insitu.reader``.

    Decoded chunks are kept as far as the ceiling allows, and those that were used longest ago go first. With
    :meth:`plan` it is known what will be used, so chunks are read ahead and stay until their last use. Safe to use from
    several threads and event loops at once. What a read returns belongs to the caller, and does not count as memory of
    the reader.

    Examples
    --------
    >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
    >>> times = pd.date_range("2000-01-01", periods=4, freq="6h")
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))}, {"time": times})
    >>> with ds.insitu.reader(["t2m"]) as reader:
    ...     reader.read(["2000-01-01T12", "2000-01-01T00"])["t2m"].tolist()
    ...     reader.read("2000-01-01", leads=["0h", "6h"])["t2m"].shape
    [[4.0, 5.0], [0.0, 1.0]]
    (1, 2, 2)
    """

    def __init__(self, readable: Readable) -> None:
        self._readable = readable
        self._request, self._groups = readable.request, readable.groups
        self._asking = Asking(readable.request)
        self._sorter = Sorter(readable.groups, readable.materials.memory)
        self._meter, self._ledger = Meter(), Ledger(readable.budget.ceiling)
        self._lock = threading.Lock()
        self._foresight: Foresight | None = None
        self._access, self._finish = self._open()
        self._process = os.getpid()

    def _open(self) -> tuple[Access, weakref.finalize[Any, Any]]:
        readable = self._readable
        BLOCKS.share(self._ledger, readable.budget.ceiling)
        tools = Tools(
            stores=[SlotStore(g, n) for g, n in zip(self._groups, readable.budget.slots, strict=True)],
            readers=readable.materials.readers(self._groups),
            ledger=self._ledger,
            meter=self._meter,
            limits=readable.limits,
            pace=Pace(pinned=readable.limits.max_inflight),
            threads=readable.budget.threads,
            inflight_bytes=readable.budget.inflight_bytes,
        )
        access = Access(tools)
        # The threads refer to the access, never to this object, so whoever drops it ends them.
        return access, weakref.finalize(self, access.close)

    def __repr__(self) -> str:
        axes = " x ".join(f"{len(axis)} labels of {axis.dim!r}" for axis in self._request.axes)
        state = "" if self._finish.alive else ", closed"
        return (
            f"<insitu_xr.Reader of {', '.join(self.variables)} at {axes}, under "
            f"{format_bytes(self._readable.budget.ceiling)}{state}>"
        )

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that are read by label."""
        return self._asking.variables

    @property
    def stats(self) -> Statistics:
        """Counts and times since the reader was made."""
        return self._meter.read(self._ledger.resident, self._ledger.peak)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(
        self,
        anchors: Any,
        leads: Sequence[Lead] | Lead | None = None,
        *,
        variables: Sequence[str] | str | None = None,
    ) -> Batch:
        """Read some samples.

        Parameters
        ----------
        anchors : label, or sequence of labels, or dict of dimension to labels
            In any order, also repeated. With several sample dimensions, a dict of as many labels for each.
        leads : sequence of durations, optional
            Signed times from the anchor, looked up by label; counts of steps where there are no labels.
        variables : sequence of str, optional
            Some of the reader's variables; all by default.

        Returns
        -------
        Batch
            ``batch["t2m"]`` has the shape ``(anchors, [leads,] *field dims)``.

        Raises
        ------
        UnknownNameError
            If a label or a variable is not there; before anything is read.
        RequestError
            If something else is wrong with the request; likewise.
        ReadError
            If a chunk could not be read or decoded.
        ClosedError
            If the reader was closed, or this is a fork of its process.
        """
        request = self._requested(anchors, leads, variables)
        arrays, errands, located = self._sorter.copies(request)
        self._wait(errands, located)
        return self._batch(request, arrays)

    async def aread(
        self,
        anchors: Any,
        leads: Sequence[Lead] | Lead | None = None,
        *,
        variables: Sequence[str] | str | None = None,
    ) -> Batch:
        """Read some samples without blocking the event loop, whichever it is; takes the arguments of :meth:`read`.

        When it is cancelled, what only it needs is not read any more.
        """
        request = self._requested(anchors, leads, variables)
        arrays, errands, located = self._sorter.copies(request)
        await self._await(errands, located)
        return self._batch(request, arrays)

    def visit(
        self,
        anchors: Any,
        function: Visitor,
        leads: Sequence[Lead] | Lead | None = None,
        *,
        variables: Sequence[str] | str | None = None,
    ) -> None:
        """Show fields to a function where they lie, for those who have a place of their own for them.

        Saves the copy that :meth:`read` makes. Takes its arguments, and raises its errors.

        Parameters
        ----------
        function : callable
            Called once for each field, in any order and on any thread, with the name of the variable, the number of
            the field (``anchor * leads + lead``) and the field, which it must neither change nor keep.

        Examples
        --------
        >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
        >>> times = pd.date_range("2000-01-01", periods=3)
        >>> ds = xr.Dataset({"a": (("time", "x"), np.arange(6).reshape(3, 2))}, {"time": times})
        >>> found = {}
        >>> with ds.insitu.reader() as reader:
        ...     reader.visit(["2000-01-03", "2000-01-01"], lambda name, k, field: found.update({k: field.sum().item()}))
        >>> sorted(found.items())
        [(0, 9), (1, 1)]
        """
        request = self._requested(anchors, leads, variables)
        self._wait(*self._sorter.visits(request, function))

    async def avisit(
        self,
        anchors: Any,
        function: Visitor,
        leads: Sequence[Lead] | Lead | None = None,
        *,
        variables: Sequence[str] | str | None = None,
    ) -> None:
        """Like :meth:`visit`, without blocking the event loop; the function is called on threads of the reader."""
        request = self._requested(anchors, leads, variables)
        await self._await(*self._sorter.visits(request, function))

    def _wait(self, errands: Errands, located: Sequence[Located]) -> None:
        """Have errands done and wait for it."""
        waiting = threading.Event()
        ticket = self._submit(errands, located, waiting.set, inline=True)
        try:
            waiting.wait()
        except BaseException as error:
            self._access.withdraw(ticket, error)
            raise
        if ticket.error is not None:
            raise ticket.error

    async def _await(self, errands: Errands, located: Sequence[Located]) -> None:
        """Have errands done without blocking the event loop."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                return  # the loop is closed, and so is whoever waited

        ticket = self._submit(errands, located, tell, inline=False)
        try:
            await done.wait()
        except BaseException as error:
            self._access.withdraw(ticket, error)
            raise
        if ticket.error is not None:
            raise ticket.error

    def _submit(self, errands: Errands, located: Sequence[Located], done: Any, *, inline: bool) -> Ticket:
        ticket = self._access.submit(errands, done, inline=inline)
        foresight = self._foresight
        if foresight is not None:
            with self._lock:
                counts = foresight.consume(located)
            self._access.used(counts)
        return ticket

    def _batch(self, request: Request, arrays: dict[Key, npt.NDArray[Any]]) -> Batch:
        self._meter.add(batches=1, samples=len(request))
        return Batch(replace(self._readable.context, request=request), np.arange(len(request)), arrays)

    def _requested(self, anchors: Any, leads: Any, variables: Any) -> Request:
        """What is asked as a request of its own."""
        if os.getpid() != self._process:
            raise ClosedError(
                "a reader must be used in the process that made it, but this is a fork; its threads do not exist here. "
                "Start workers by spawn, or make the reader in the worker"
            )
        return self._asking.request(anchors, leads, variables)

    # -- what is known beforehand --------------------------------------------------------------------------------

    @contextmanager
    def plan(self, requests: Iterable[Any]) -> Iterator[Foresight]:
        """Say what will be read, so that chunks are read ahead, stay until their last use, and are read once.

        Reads may come in any order and grouping, also others than were planned; the order that is given here is the one
        to prepare for. One plan at a time.

        Parameters
        ----------
        requests : iterable
            Of anchors as for :meth:`read`, or of tuples ``(anchors, leads)`` or ``(anchors, leads, variables)``.

        Yields
        ------
        Foresight
            What will be read: ``chunks`` and ``reads`` of it.

        Examples
        --------
        >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
        >>> times = pd.date_range("2000-01-01", periods=4, freq="6h")
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(4.0))}, {"time": times})
        >>> with ds.insitu.reader(["t2m"]) as reader, reader.plan([(times[:2], ["0h", "6h"])]):
        ...     [reader.read(time, ["0h", "6h"])["t2m"].tolist() for time in times[:2]]
        [[[0.0, 1.0]], [[1.0, 2.0]]]
        """
        asked = [self._requested(*parts_of(each)) for each in requests]
        found = Foresight(self._groups, [self._sorter.locations(request) for request in asked])
        with self._lock:
            if self._foresight is not None:
                raise RequestError("a reader must have one plan at a time, but got a second one; leave the first one")
            self._foresight = found
        try:
            self._access.foresee(found.uses())
            yield found
        finally:
            self._foresight = None
            self._access.foresee({})

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop, and let go of all memory. Idempotent; reads that are under way fail."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._readable.materials.check_movable("a reader")
        return _restore, (dumps(self._readable),)


def _restore(blob: bytes) -> Reader:
    """Undo ``Reader.__reduce__``: a reader without threads or memory, as it was when it was made."""
    return Reader(loads(blob))
