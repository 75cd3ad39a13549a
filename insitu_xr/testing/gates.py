"""A store whose reads wait until a test lets them go."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, override

from insitu_xr.testing.intercepting import InterceptingStore, KeyPredicate, choose_keys, is_metadata

if TYPE_CHECKING:
    from collections.abc import Collection

    from zarr.abc.store import ByteRequest, Store
    from zarr.core.buffer import Buffer, BufferPrototype


class _Gates:
    """Waiting reads by key. Futures, because both a thread and an event loop can wait on one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[tuple[str, Future[None]]] = []
        self.opened: set[str] = set()
        self.all_open = False

    def enter(self, key: str) -> Future[None] | None:
        with self.changed:
            if self.all_open or key in self.opened:
                return None
            ticket: Future[None] = Future()
            self.waiting.append((key, ticket))
            self.changed.notify_all()
            return ticket

    def leave(self, ticket: Future[None]) -> None:
        with self.changed:
            self.waiting = [entry for entry in self.waiting if entry[1] is not ticket]
            self.changed.notify_all()

    def release(self, key: str | None) -> None:
        with self.changed:
            if key is None:
                self.all_open = True
            else:
                self.opened.add(key)
            freed = [ticket for name, ticket in self.waiting if key in (None, name)]
            self.waiting = [entry for entry in self.waiting if entry[1] not in freed]
            self.changed.notify_all()
        for ticket in freed:
            # A reader that was cancelled has cancelled its ticket.
            if ticket.set_running_or_notify_cancel():
                ticket.set_result(None)


class GatedStore(InterceptingStore):
    """Holds data reads back until their key is opened.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to wrap.
    gate : callable or collection of str, optional
        Which data keys are gated; all of them by default. Metadata is never gated.
    timeout : float
        Seconds after which a gated read raises `TimeoutError` instead of hanging the test.
    sync : bool, optional
        As for `InterceptingStore`.
    """

    def __init__(
        self,
        store: Store,
        gate: KeyPredicate | Collection[str] | None = None,
        *,
        timeout: float = 30.0,
        sync: bool | None = None,
    ) -> None:
        super().__init__(store, sync=sync)
        self._gated = choose_keys(gate)
        self._gates = _Gates()
        self._timeout = timeout

    @property
    def waiting(self) -> list[str]:
        """Keys of the reads that wait at a gate, in order of arrival."""
        with self._gates.changed:
            return [key for key, _ in self._gates.waiting]

    def open_gate(self, key: str) -> None:
        """Let the reads of one key pass, those that wait and those to come."""
        self._gates.release(key)

    def open_all(self) -> None:
        """Let every read pass from now on."""
        self._gates.release(None)

    def wait_until_waiting(self, count: int, timeout: float = 10.0) -> list[str]:
        """Block until at least ``count`` reads wait; their keys. Raises `TimeoutError` when they do not come."""
        with self._gates.changed:
            if not self._gates.changed.wait_for(lambda: len(self._gates.waiting) >= count, timeout):
                held = [key for key, _ in self._gates.waiting]
                raise TimeoutError(f"waiting reads must be {count} within {timeout:g} s, but got {len(held)}: {held}")
            return [key for key, _ in self._gates.waiting]

    def _ticket(self, key: str) -> Future[None] | None:
        return None if is_metadata(key) or not self._gated(key) else self._gates.enter(key)

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        ticket = self._ticket(key)
        if ticket is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(ticket), self._timeout)
            finally:
                self._gates.leave(ticket)
        return await super().get(key, prototype, byte_range)

    @override
    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        ticket = self._ticket(key)
        if ticket is not None:
            try:
                ticket.result(self._timeout)
            finally:
                self._gates.leave(ticket)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)
