"""A campaign: what a source is going to be asked, so that its chunks are read ahead and each once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

from insitu_xr.errors import ClosedError
from insitu_xr_adapters.earth2studio.fetching import Part
from insitu_xr_adapters.earth2studio.reading import Opened, Readers, selection_of


class Campaign:
    """What will be asked of a source, in the order in which it is expected; a context manager, to be entered once.

    Made by ``source.plan(...)``.
    """

    def __init__(self, readers: Readers, work: Sequence[tuple[Opened, Sequence[Any]]]) -> None:
        self._readers, self._work = readers, work
        self._stack: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise ClosedError("a plan must be entered once, but was entered before; make another with source.plan(...)")
        self._stack = ExitStack()
        with ExitStack() as stack:
            for opened, requests in self._work:
                stack.callback(opened.reader.close)
                stack.enter_context(opened.reader.plan(requests))
            stack.enter_context(self._readers.preferring([opened for opened, _ in self._work]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._stack is not None:
            self._stack.close()

    @property
    def stats(self) -> list[Any]:
        """What was read so far, of each reader of the campaign: one for all, and one for each kind of sum."""
        return [opened.reader.stats for opened, _ in self._work]


def campaign(readers: Readers, steps: Sequence[Sequence[Part]], memory: Any) -> Campaign:
    """Sort what is going to be asked by the readers that will read it, and make them.

    Parameters
    ----------
    steps : sequence of sequences of Part
        The parts of each request, in order; every request has the same variables.
    """
    work = []
    for parts in zip(*steps, strict=True):
        selection = selection_of(one for _, one in parts[0].members)
        requests = [part.anchors(readers.described.sample_dims) for part in parts]
        work.append((readers.open(selection, memory), requests))
    return Campaign(readers, work)
