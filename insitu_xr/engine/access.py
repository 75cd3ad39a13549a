"""Random access: units are loaded as they are asked for or foreseen, and copied to those who asked.

Lock order as in `workers`. A read is cut into copies, one per unit; so one slot is enough, however large it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from insitu_xr.engine.board import Load
from insitu_xr.engine.decode import Job
from insitu_xr.engine.shelf import Shelf
from insitu_xr.engine.tasks import SlotPlace, Task, Tools
from insitu_xr.engine.workers import Action, Workers
from insitu_xr.errors import ClosedError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.foresight import Address, Foreseen

#: the address of no unit
NOWHERE = Address(-1, -1)
#: rows above this size are copied one by one, which needs no memory in between
ROW_BYTES = 4 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Rows of one unit that go into an array.

    Attributes
    ----------
    out : array, shape (rows, *field)
        Where they go.
    places, rows : array of int64
        Place in ``out`` of every row of the unit that is wanted, and its number in the slot.
    """

    out: npt.NDArray[Any]
    places: IntArray
    rows: IntArray

    def run(self, slot: npt.NDArray[Any]) -> None:
        """Copy out of a slot, shape (rows, *field)."""
        if slot[:1].nbytes >= ROW_BYTES:
            for place, row in zip(self.places.tolist(), self.rows.tolist(), strict=True):
                self.out[place] = slot[row]
        else:
            self.out[self.places] = slot[self.rows]


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """Rows of one unit that are shown to a function, where they lie.

    Attributes
    ----------
    function : callable
        Called with the place and the row, which it must neither change nor keep.
    places, rows : array of int64
        Place of every row among all that are asked for, and its number in the slot.
    """

    function: Callable[[int, npt.NDArray[Any]], None]
    places: IntArray
    rows: IntArray

    def run(self, slot: npt.NDArray[Any]) -> None:
        """Show rows of a slot, shape (rows, *field)."""
        shown = slot.view()
        shown.flags.writeable = False
        for place, row in zip(self.places.tolist(), self.rows.tolist(), strict=True):
            self.function(place, shown[row])


#: what is done with the rows of one unit
Errand = Copy | Visit


@dataclass(slots=True, eq=False)
class Ticket:
    """One read: what is still to be copied, and what happens when all of it is, or something failed.

    Attributes
    ----------
    done : callable
        Called once, with the lock held, so it must neither block nor ask for anything.
    """

    copies: Mapping[Address, Sequence[Errand]]
    done: Callable[[], None]
    left: int = 0
    error: BaseException | None = None
    ended: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.copies)


@dataclass(slots=True, eq=False)
class _Coming(Load[Job]):
    """A unit on its way.

    Attributes
    ----------
    flights : dict
        Its reads that are under way on the loop.
    given_up : bool
        Whether nobody wants it any more, so that it does not matter how its jobs end.
    """

    address: Address = NOWHERE
    flights: dict[Task, Any] = field(default_factory=dict)
    failure: BaseException | None = None
    given_up: bool = False


class Access(Workers):
    """Threads that serve reads in any order out of slots, as long as it is open.

    Parameters
    ----------
    tools : Tools
        Slots, readers and accounts; each of its stores holds one variable.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._shelf: Shelf[Ticket] = Shelf([store.n_slots for store in tools.stores])
        self._rows = [store.rows(store.group.first.spec.name) for store in tools.stores]
        self._slot_rows = [store.group.first.slot_rows for store in tools.stores]
        #: units that are being loaded; those of which jobs are left to be started, in order
        self._coming: dict[Address, _Coming] = {}
        self._loads: deque[_Coming] = deque()
        #: copies from ready units that threads are to make: they are pinned
        self._copying: deque[tuple[Ticket, Address]] = deque()
        self._begun = False
        #: whether nothing more could be started when it was last looked
        self._stalled = False

    # -- those who ask -------------------------------------------------------------------------------------------

    def submit(self, copies: Mapping[Address, Sequence[Errand]], done: Callable[[], None], *, inline: bool) -> Ticket:
        """Ask for copies; returns at once, or with ``inline`` once what is in memory was copied on this thread.

        Raises
        ------
        ClosedError
            If it was closed.
        """
        ticket = Ticket(copies, done)
        with self._lock:
            if self._closed:
                raise ClosedError("a reader must be open to read, but it was closed; make a new one")
            self._begin()
            ready = [address for address in copies if self._shelf.want(address, ticket)]
            self._m.meter.add(hits=len(ready))
            if not copies:
                self._end(ticket)
            if not inline:
                self._copying.extend((ticket, address) for address in ready)
            self._changed()
        if inline and ready:
            self._copied(ticket, ready, sum(self._copy(ticket, address) for address in ready))
        return ticket

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._start()

    def withdraw(self, ticket: Ticket, error: BaseException) -> None:
        """Nobody waits for a read any more: what only it needs is not read, or is cancelled."""
        with self._lock:
            if not ticket.ended:
                ticket.error = error
                self._give_up(ticket)
                self._changed()

    def foresee(self, uses: Mapping[Address, Foreseen]) -> None:
        """Uses that are to come, in place of those foreseen before; they are read ahead as far as there is room."""
        with self._lock:
            if not self._closed:
                self._begin()
                self._shelf.foresee(uses)
                self._changed()

    def used(self, counts: Mapping[Address, int]) -> None:
        """So many of the foreseen uses are done; called after the read that they belong to was submitted."""
        with self._lock:
            self._shelf.used(counts)
            self._changed()

    def close(self) -> bool:
        """Stop, and let every read that is under way fail; returns whether no thread is stuck in a read."""
        if self.forked:
            return False
        with self._lock:
            self._closed = True
            why = ClosedError("a reader must be open to read, but it was closed meanwhile; make a new one")
            for ticket in [*self._shelf.askers(), *(ticket for ticket, _ in self._copying)]:
                ticket.error = ticket.error or why
                self._end(ticket)
            self._copying.clear()
            self._work.notify_all()
        quiet = self._stop() if self._begun else True
        if quiet:
            # Nobody writes into the slots any more, so whoever keeps the closed reader need not keep them.
            with self._lock:
                self._rows.clear()
                for store in self._m.stores:
                    store.let_go()
                self._m.ledger.release(self._m.ledger.resident)
        return quiet

    # -- the threads ---------------------------------------------------------------------------------------------

    def _next_action(self) -> Action | None:
        if self._copying:
            ticket, address = self._copying.popleft()
            return lambda: self._copy_ready(ticket, address)
        while not self._arrived and (found := self._next_task()) is not None:
            coming, task = found
            if task.job.source.synchronous:
                return self._reading([task])
            coming.flights[task] = self._launch(task)
        self._stalled = not self._arrived
        return self._next_placing()

    def _next_task(self) -> tuple[_Coming, Task] | None:
        """The job to start next, if there is one and room for it."""
        while self._loads and not self._loads[0].jobs:
            self._loads.popleft()
        if not self._loads and not self._begin_load():
            return None
        coming = self._loads[0]
        job = coming.jobs[0]
        if not job.source.synchronous and not self._remote.has_room(job):
            return None
        coming.jobs.popleft()
        return coming, Task(coming, job, coming.where.sink(job))

    def _begin_load(self) -> bool:
        """Begin to load one more unit."""
        found = self._shelf.next_load()
        if found is None:
            return False
        address, slot = found
        store = self._m.stores[address.group]
        # Slots stay resident until the reader closes.
        self._m.ledger.hold(store.begin(slot))
        jobs = deque(self._m.readers[store.group.first.spec.name].jobs(address.unit))
        coming = _Coming(0, -1, jobs, where=SlotPlace(store, slot, address.unit), address=address)
        self._coming[address] = coming
        self._loads.append(coming)
        return True

    def _finished(self, task: Task) -> None:
        assert isinstance(task.load, _Coming)
        self._ended(task.load, task)

    def _failed(self, task: Task, error: BaseException) -> None:
        assert isinstance(task.load, _Coming)
        if not task.load.given_up:
            task.load.failure = task.load.failure or error
        self._abandon(task.load)
        self._ended(task.load, task)

    def _ended(self, coming: _Coming, task: Task) -> None:
        coming.flights.pop(task, None)
        coming.outstanding -= 1
        self._settle(coming)
        self._stalled = False

    def _abandon(self, coming: _Coming) -> None:
        """Start no more jobs of a unit."""
        coming.outstanding -= len(coming.jobs)
        coming.jobs.clear()

    def _settle(self, coming: _Coming) -> None:
        """See whether all jobs of a unit have ended."""
        if coming.outstanding:
            return
        del self._coming[coming.address]
        if coming.failure is not None:
            for ticket in self._shelf.failed(coming.address):
                if not ticket.ended:
                    ticket.error = coming.failure
                    self._give_up(ticket)
        elif coming.given_up:
            self._shelf.abandoned(coming.address)
        else:
            coming.where.store.finish(coming.where.slot, coming.address.unit)
            # First in the line: it is still in the caches of this core.
            self._copying.extendleft((ticket, coming.address) for ticket in self._shelf.placed(coming.address))

    def _give_up(self, ticket: Ticket) -> None:
        """Read no more of what only one read wants, and end it."""
        self._end(ticket)
        for address in self._shelf.withdraw(ticket, ticket.copies):
            coming = self._coming[address]
            coming.given_up = True
            self._abandon(coming)
            for flight in coming.flights.values():
                self._remote.give_up(flight)
            self._settle(coming)

    def _end(self, ticket: Ticket) -> None:
        if not ticket.ended:
            ticket.ended = True
            ticket.done()

    def _broken(self, error: BaseException) -> None:
        for ticket in self._shelf.askers():
            ticket.error = ticket.error or error
            self._give_up(ticket)

    def _changed(self) -> None:
        """Something may be started that could not be before."""
        self._stalled = False
        # Found out here, since to wake a thread takes longer than to see that there is nothing for it.
        if self._idle and not self._copying and not self._arrived:
            self._stalled = not self._closed and not any(c.jobs for c in self._loads) and not self._begin_load()
        self._wake()

    def _wake(self) -> None:
        if self._idle and (self._copying or self._arrived or not self._stalled):
            self._work.notify()

    def _rest(self) -> None:
        began, waiting = time.perf_counter(), self._remote.under_way
        self._idle += 1
        self._work.wait()
        self._idle -= 1
        if waiting:
            self._m.meter.add(store_seconds=time.perf_counter() - began)

    # -- outside the lock ----------------------------------------------------------------------------------------

    def _copy_ready(self, ticket: Ticket, address: Address) -> Callable[[], None]:
        took = self._copy(ticket, address)
        return lambda: self._copied(ticket, [address], took)

    def _copy(self, ticket: Ticket, address: Address) -> float:
        """Copy from a unit that is pinned; returns the seconds that it took."""
        began = time.perf_counter()
        first = self._shelf.slot(address) * self._slot_rows[address.group]
        try:
            if not ticket.ended:
                slot = self._rows[address.group][first : first + self._slot_rows[address.group]]
                for copy in ticket.copies[address]:
                    copy.run(slot)
        except BaseException as error:
            ticket.error = ticket.error or error
        return time.perf_counter() - began

    def _copied(self, ticket: Ticket, addresses: Sequence[Address], took: float) -> None:
        """Some units were copied from; takes the lock itself."""
        with self._lock:
            self._m.meter.add(gather_seconds=took)
            for address in addresses:
                self._shelf.unpin(address)
            if ticket.error is not None and not ticket.ended:
                self._give_up(ticket)  # a function of the caller failed: the rest is not waited for
            ticket.left -= len(addresses)
            if not ticket.left:
                self._end(ticket)
            self._changed()
