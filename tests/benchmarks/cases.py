"""What is measured: a case is a way of using a store; here is which engines take part, and on which layouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tests.benchmarks.layouts import LAYOUTS, REMOTE, Layout

STEP_HOURS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One way of using a store."""

    name: str
    warm: bool = False
    leads: tuple[str, ...] = ()
    quarter: bool = False
    work_ms: float = 0.0
    latency_ms: float = 0.0
    batch_size: int = 16
    #: requests under way at once, for those that have to be told
    inflight: int = 32

    @property
    def lead_steps(self) -> tuple[int, ...]:
        """Leads as steps; one of none where there are no windows."""
        return tuple(int(lead.removesuffix("h")) // STEP_HOURS for lead in self.leads) or (0,)

    @property
    def remote(self) -> bool:
        """Whether the store is behind a server."""
        return self.latency_ms > 0

    def samples(self, layout: Layout) -> int:
        """Samples that an epoch must deliver."""
        return layout.steps - max(0, *self.lead_steps) + min(0, *self.lead_steps)

    def to_json(self) -> dict[str, Any]:
        """The case in a form that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """The case that `to_json` put down."""
        return cls(**{**record, "leads": tuple(record["leads"])})


@dataclass(frozen=True, slots=True)
class Contest:
    """A case on some layouts, and those who take part; the first is what the others are compared with."""

    case: Case
    layouts: tuple[Layout, ...]
    engines: tuple[str, ...]
    title: str

    def scaled(self, scale: float) -> Contest:
        """The same on stores of fewer steps."""
        return replace(self, layouts=tuple(layout.scaled(scale) for layout in self.layouts))

    def small(self) -> Contest:
        """The same on small stores, to see whether all works."""
        return replace(self, layouts=tuple(layout.small() for layout in self.layouts))


_ALL = tuple(LAYOUTS.values())
_PEERS = ("floor", "ours", "insitubatch")
_LATENT = ("obstore", "ours", "pinned", "insitubatch", "zarr", "zarrs")

CONTESTS = {
    contest.case.name: contest
    for contest in (
        Contest(
            Case("cold"),
            _ALL,
            (*_PEERS, "zarr", "zarrs", "dataloader"),
            "Cold: a new loader for every epoch, files in the page cache",
        ),
        Contest(Case("warm", warm=True), _ALL, _PEERS, "Warm: everything fits in memory, second epoch and later"),
        Contest(Case("leads", leads=("0h", "6h", "24h")), _ALL, _PEERS, "Windows of three leads: 0 h, 6 h, 24 h"),
        Contest(
            Case("quarter", quarter=True),
            tuple(LAYOUTS[name] for name in ("tiled", "sharded", "blosc")),
            _PEERS,
            "A quarter of the grid",
        ),
        Contest(
            Case("work", work_ms=60),
            tuple(LAYOUTS[name] for name in ("fat", "tiled")),
            ("consumer", "floor", "ours", "insitubatch"),
            "A consumer that works for 60 ms on every batch",
        ),
        Contest(Case("remote-20", latency_ms=20), (REMOTE,), _LATENT, "HTTP with a latency of 20 ms"),
        Contest(Case("remote-100", latency_ms=100), (REMOTE,), _LATENT, "HTTP with a latency of 100 ms"),
    )
}
