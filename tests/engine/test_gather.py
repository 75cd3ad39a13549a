"""From slots and memory into the arrays of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from insitu_xr.engine import gather
from insitu_xr.engine.gather import Gatherer
from insitu_xr.engine.slots import SlotStore
from insitu_xr.plan.channels import stacks_of
from insitu_xr.plan.reads import access_groups, sample_coordinates
from insitu_xr.plan.request import Request
from tests.plan.requests import request, variable

N = 12
LEVELS = {"level": ["500", "850"]}


class World:
    """Values of four variables, half of them in slots, half in memory, and a gatherer of them."""

    def __init__(self, layout: str, leads: list[int] | None) -> None:
        random = np.random.default_rng(0)
        stored = [variable("a", N, 4, (3, 2)), variable("z", N, 5, (3, 2, 2)), variable("s", 0, 0, (3, 2))]
        specs = [*stored, *(replace(s, name=f"{s.name}_memory", kind="memory", segments=()) for s in stored)]
        options: dict[str, Any] = {"layout": layout}
        self.request: Request = request(specs, N, leads, **options)
        self.values = {s.name: random.random(s.shape, np.float32) for s in specs}
        stacks = None
        if layout == "stacked":
            stacks = stacks_of(self.request, {"z": LEVELS, "z_memory": LEVELS})
        self.stores = [SlotStore(g, g.n_units) for g in access_groups(self.request)]
        for store in self.stores:
            self._fill(store)
        memory = {n: v for n, v in self.values.items() if n.endswith("memory")}
        self.gatherer = Gatherer(self.request, self.stores, memory, stacks)

    def _fill(self, store: SlotStore) -> None:
        for layout in store.group.layouts:
            rows = store.rows(layout.spec.name)
            values = self.values[layout.spec.name]
            if not layout.sample_dims:
                rows[0] = values
                continue
            unit, row = layout.locate([np.arange(N)])
            # Slots in another order than units.
            for position in np.flatnonzero(layout.units[0].unit >= 0):
                rows[(store.n_slots - 1 - unit[position]) * layout.slot_rows + row[position]] = values[position]

    def gather(self, samples: list[int]) -> dict[Any, Any]:
        chosen = np.array(samples, np.int64)
        rows = []
        for store in self.stores:
            layout = store.group.first
            out = np.zeros((len(chosen), len(store.group.columns)), np.int64)
            for k, column in enumerate(store.group.columns):
                unit, row = layout.locate(sample_coordinates(self.request, layout, chosen, column))
                slot = store.n_slots - 1 - unit if layout.sample_dims else unit
                out[:, k] = slot * layout.slot_rows + row
            rows.append(out)
        arrays = self.gatherer.allocate(len(chosen))
        for array in arrays.values():
            array[...] = np.nan
        for part in self.gatherer.parts(len(chosen)):
            self.gatherer.run(part, chosen, rows, arrays)
        return arrays

    def expected(self, name: str, samples: list[int]) -> np.ndarray[Any, Any]:
        """Index the values with the partners: (sample, lead, *field)."""
        found: np.ndarray[Any, Any] = self.values[name][self.request.partners[samples]]
        return found


SAMPLES = [5, 0, 0, 7, 3]


@pytest.fixture(params=[None, 1], ids=["one part", "a part per sample"])
def part_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(gather, "PIECE_BYTES", request.param)
        monkeypatch.setattr(gather, "PART_BYTES", request.param // 2)


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("leads", [None, [0], [-1, 0, 3]])
def test_arrays_by_name(leads: list[int] | None) -> None:
    world = World("dict", leads)
    arrays = world.gather(SAMPLES)
    assert sum(a.nbytes for a in arrays.values()) == world.gatherer.batch_bytes(len(SAMPLES))
    for name in ("a", "z", "a_memory", "z_memory"):
        expected = world.expected(name, SAMPLES)
        assert np.array_equal(arrays["variables", name], expected if leads else expected[:, 0])
    for name in ("s", "s_memory"):
        assert np.array_equal(arrays["statics", name], world.values[name])
    assert len(arrays) == 6


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("leads", [None, [-1, 0, 3]])
def test_one_array_of_channels(leads: list[int] | None) -> None:
    world = World("stacked", leads)
    arrays = world.gather(SAMPLES)
    (key,) = arrays
    built, stack = arrays[key], world.gatherer.stacks
    assert stack is not None
    channels = []
    for name in ("a", "z", "a_memory", "z_memory"):
        for lead in range(len(leads or [0])):
            field = world.expected(name, SAMPLES)[:, lead]
            channels += [field] if field.ndim == 3 else [field[..., k] for k in range(field.shape[-1])]
    order = [b.variable for b in stack["variables"].blocks]
    assert order[-2:] == ["s", "s_memory"]
    channels += [np.broadcast_to(world.values[name], (len(SAMPLES), 3, 2)) for name in ("s", "s_memory")]
    assert np.array_equal(built, np.stack(channels, axis=1))
    assert built.shape[1] == len(stack["variables"].channels)


@pytest.mark.parametrize(
    ("piece", "part", "least", "most"), [(1, 1, 20, 20), (400, 300, 4, 19), (1 << 20, 1 << 20, 1, 1)]
)
def test_a_batch_is_copied_in_parts_of_even_size(
    piece: int, part: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large arrays are cut, small ones are copied together; whatever the sizes, every row is copied once."""
    monkeypatch.setattr(gather, "PIECE_BYTES", piece)
    monkeypatch.setattr(gather, "PART_BYTES", part)
    world = World("dict", [0, 1])
    (statics, *parts) = world.gatherer.parts(5)
    assert [(p.take, p.start, p.stop) for p in statics] == [(-1, 0, 5)]
    assert least <= len(parts) <= most
    rows = sorted((p.take, k) for pieces in parts for p in pieces for k in range(p.start, p.stop))
    assert rows == [(take, k) for take in range(4) for k in range(5)]
    assert world.gatherer.parts(5) is world.gatherer.parts(5), "they are worked out once"


def test_fresh_arrays_every_time() -> None:
    world = World("dict", None)
    first, second = world.gather(SAMPLES), world.gather(SAMPLES)
    assert not any(np.shares_memory(first[key], second[key]) for key in first)
    assert not any(
        np.shares_memory(a, arena) for a in first.values() for s in world.stores for arena in s.arenas.values()
    )
