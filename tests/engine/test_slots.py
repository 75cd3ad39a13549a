"""Slots and the accounts of memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.engine.slots import Ledger, SlotStore
from insitu_xr.errors import InsituError
from insitu_xr.plan.reads import access_groups
from tests.plan.requests import request, variable


def store(n_slots: int = 3) -> SlotStore:
    wanted = request([variable("a", 12, 4), variable("b", 12, 4, field=(2, 5))], 12)
    return SlotStore(access_groups(wanted)[0], n_slots)


def test_a_slot_from_empty_to_valid_and_back() -> None:
    slots = store()
    assert slots.resident() == {}
    assert slots.begin(1) == slots.group.slot_bytes == 4 * 4 * (3 + 10)
    assert slots.resident() == {}
    slots.finish(1, 7)
    assert slots.resident() == {7: 1}
    # The second time its memory is there already.
    assert slots.begin(1) == 0
    assert slots.resident() == {}
    slots.finish(1, 8)
    assert slots.begin(2) == slots.group.slot_bytes
    slots.finish(2, 7)
    assert slots.resident() == {8: 1, 7: 2}


def test_arenas_hold_a_slot_of_every_variable() -> None:
    slots = store()
    assert {name: arena.shape for name, arena in slots.arenas.items()} == {"a": (3, 4, 3), "b": (3, 4, 2, 5)}
    assert slots.rows("b").shape == (12, 2, 5)
    slots.arenas["b"][1, 2] = np.arange(10).reshape(2, 5)
    assert slots.rows("b")[1 * 4 + 2].tolist() == np.arange(10).reshape(2, 5).tolist()
    assert np.shares_memory(slots.rows("b"), slots.arenas["b"])


@given(st.lists(st.integers(1, 20), max_size=20), st.integers(10, 60))
def test_the_ledger_keeps_the_peak_and_refuses_to_exceed_the_ceiling(amounts: list[int], ceiling: int) -> None:
    ledger, held, peak = Ledger(ceiling), [0], 0
    for number, amount in enumerate(amounts):
        if sum(held) + amount > ceiling:
            with pytest.raises(InsituError, match=rf"must be at most {ceiling} B, but got {sum(held) + amount} B"):
                ledger.hold(amount)
            ledger.release(amount)
        else:
            ledger.hold(amount)
            held.append(amount)
        peak = max(peak, sum(held))
        assert (ledger.resident, ledger.peak) == (sum(held), peak)
        if number % 3 == 2:
            ledger.release(held.pop())
    assert ledger.peak <= ceiling
