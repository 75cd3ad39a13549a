"""Sums that no cutting and no order changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.sums import Sums


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 70), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_the_same_bits_for_every_cutting_and_order(length: int, seed: int, data: st.DataObject) -> None:
    values = np.random.default_rng(seed).normal(size=(length, 3)) * 10.0 ** np.arange(0, 9, 3)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=6)) - {length})
    bounds = [0, *cuts, length]
    parts = [Sums.of(values[a:b], a, length) for a, b in pairwise(bounds)]
    ordered = data.draw(st.permutations(parts))
    merged = ordered[0]
    for part in ordered[1:]:
        merged = Sums.from_arrays(length, merged.merge(part).to_arrays())
    assert merged.complete
    np.testing.assert_array_equal(merged.total, Sums.of(values, 0, length).total)
    np.testing.assert_allclose(merged.total, values.sum(axis=0), rtol=1e-9, atol=1e-6)


def test_numpy_and_torch_fold_alike() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=(37, 4))
    found = Sums.of(torch.from_numpy(values)[5:], 5, 37)
    expected = Sums.of(values[5:], 5, 37)
    assert found.nodes.keys() == expected.nodes.keys()
    for node, value in found.nodes.items():
        np.testing.assert_array_equal(value, expected.nodes[node])


def test_parts_are_checked() -> None:
    part = Sums.of(np.ones((3, 1)), 2, 8)
    assert part.covered == [(2, 4), (4, 5)]
    assert not part.complete
    with pytest.raises(RequestError, match=r"got positions \[\(2, 4\), \(4, 5\)\] of 8"):
        _ = part.total
    with pytest.raises(RequestError, match="sums to merge must cover different positions"):
        part.merge(Sums.of(np.ones((1, 1)), 4, 8))
    with pytest.raises(RequestError, match="positions must be a part of the 8"):
        Sums.of(np.ones((3, 1)), 6, 8)
