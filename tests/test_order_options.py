"""``shuffle=``, ``shuffle_window=``, ``weights=`` and ``sampler=`` as a person gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr.storage

import insitu_xr
from insitu_xr.errors import RequestError

N = 60
TIMES = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")


@pytest.fixture
def ds() -> xr.Dataset:
    """Variables whose chunks differ along time, one series in a single chunk, and one in memory."""
    rows = np.arange(N * 6, dtype="f4").reshape(N, 2, 3)
    fields = {name: (("time", "y", "x"), rows + k) for k, name in enumerate("abc")}
    written = xr.Dataset({**fields, "co2": ("time", np.arange(N, dtype="f4"))}, coords={"time": TIMES})
    store = zarr.storage.MemoryStore()
    chunks = {name: {"chunks": (size, 2, 3)} for name, size in (("a", 3), ("b", 5), ("c", 1))}
    written.to_zarr(store, consolidated=False, encoding={**chunks, "co2": {"chunks": (N,)}})
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened.assign(held=("time", np.arange(N)))


def positions(ds: xr.Dataset, epochs: int = 2, **options: Any) -> list[list[int]]:
    with ds.insitu.loader(**{"variables": ["a"], "batch_size": 2, **options}) as loader:
        return [np.concatenate([batch.positions for batch in loader]).tolist() for _ in range(epochs)]


VARIABLES = [["a"], ["b"], ["c"], ["co2"], ["held"], ["a", "b", "c"]]


@pytest.mark.parametrize("options", [{}, {"leads": ["0h", "12h"]}, {"shuffle_window": 12}], ids=str)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_loaders_of_different_variables_draw_the_same_anchors(
    ds: xr.Dataset, options: dict[str, Any], rank: int
) -> None:
    """Field report 95: two loaders must not fall out of step, whatever the chunks of their variables."""
    shared = {"shuffle": True, "seed": 4, "rank": rank, "world_size": 3, **options}
    first, *others = (positions(ds, variables=names, **shared) for names in VARIABLES)
    assert all(other == first for other in others)
    assert first[0] != first[1]


def test_the_longest_chunks_that_matter_set_the_runs(ds: xr.Dataset) -> None:
    plan = ds.insitu.plan(variables=["a", "co2"], batch_size=2, shuffle=True, shuffle_window=10)
    assert set(plan.runs.lengths.tolist()) == {5}
    assert ds[["a", "co2"]].insitu.plan(batch_size=2, variables=["a"], shuffle=True).runs.lengths.max() == 3


def test_true_means_block_and_global_mixes_more(ds: xr.Dataset) -> None:
    assert positions(ds, shuffle=True) == positions(ds, shuffle="block")
    assert sorted(positions(ds, shuffle="global")[0]) == list(range(N))
    qualities = [
        insitu_xr.shuffle_quality(ds.insitu.plan(variables=["a"], batch_size=6, **options))
        for options in ({}, {"shuffle": True, "shuffle_window": 5}, {"shuffle": "global"})
    ]
    assert qualities[0] == 0
    assert 0 < qualities[1] < qualities[2] <= 1


def test_a_window_may_be_given_in_bytes(ds: xr.Dataset) -> None:
    plans = [
        ds.insitu.plan(variables=["a"], batch_size=2, shuffle=True, shuffle_window=window) for window in (10, "240 B")
    ]
    assert [plan.runs.block for plan in plans] == [10, 10]
    assert "shuffled in blocks of 10, seed 0" in repr(plans[0])


def test_weights_follow_labels(ds: xr.Dataset) -> None:
    plain = np.where(np.arange(N) % 4 == 1, 1.0, 0.0)
    labelled = xr.DataArray(plain, {"time": TIMES}, "time")[::-1]
    drawn = positions(ds, weights=labelled, shuffle=True)
    assert drawn == positions(ds, weights=plain, shuffle=True)
    assert len(drawn[0]) == N
    assert {k % 4 for k in drawn[0]} == {1}
    assert drawn[0] != drawn[1]
    assert len(set(drawn[0])) < N, "with replacement"
    ordered = positions(ds, weights=plain)[0]
    assert ordered == sorted(ordered)


def test_values_are_those_of_the_draws(ds: xr.Dataset) -> None:
    options = {"leads": ["0h", "6h"], "weights": np.arange(N), "shuffle": "global"}
    with ds.insitu.loader(variables=["a"], batch_size=7, **options) as loader:
        for batch in loader:
            for k in range(2):
                np.testing.assert_array_equal(batch["a"][:, k], ds["a"].values[batch.positions + k])


def test_a_sampler_draws_by_number_of_the_anchor(ds: xr.Dataset) -> None:
    found = positions(ds, epochs=2, sampler=lambda rng, n: rng.integers(n // 2, size=n), leads=["-12h", "0h"])
    assert min(found[0]) >= 2, "the first two times are no anchors"
    assert max(found[0]) < 2 + (N - 2) // 2
    assert found[0] != found[1]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"shuffle": "blocks"}, r"shuffle must be 'block' \(or True\), 'global' or False, but got 'blocks'"),
    ({"shuffle_window": 8}, "shuffle_window must be given with shuffle='block', but got 8 with shuffle=False"),
    ({"shuffle": True, "shuffle_window": 0}, "shuffle_window must be a number of samples of at least 1"),
    ({"shuffle": True, "shuffle_window": 1.5}, "shuffle_window must be a number of samples"),
    ({"shuffle": True, "shuffle_window": "much"}, "shuffle_window must be a positive number of bytes"),
    ({"weights": np.ones(3)}, r"one number per label of 'time', 60, but got shape \(3,\)"),
    ({"weights": np.full(N, -1.0)}, "weights must be 0 or more and finite, but got -1.0 at 'time' = 2000-01-01"),
    ({"weights": np.where(np.arange(N) == 4, np.nan, 1)}, "but got nan at 'time' = 2000-01-02;"),
    ({"weights": np.zeros(N)}, "weights must not all be 0, but got 0 for all 60 anchors of 'time' from 2000-01-01"),
    ({"weights": np.array(["a"] * N)}, "weights must be numbers, but got <U1"),
    (
        {"weights": xr.DataArray(np.ones(N - 1), {"time": TIMES[1:]}, "time")},
        "weights must have every anchor of 'time', but got none for 2000-01-01;",
    ),
    ({"weights": xr.DataArray(np.ones(4), dims="x")}, r"weights must have one dimension, out of \['time'\]"),
    (
        {"weights": xr.DataArray(np.ones(2 * N), {"time": np.repeat(TIMES, 2)}, "time")},
        "labels of weights must be unique, but got 2000-01-01",
    ),
    ({"sampler": 3}, "sampler must be a function of a generator and a count, but got 3"),
    ({"sampler": lambda rng, n: np.arange(n), "shuffle": True}, "sampler must be given alone"),
    ({"sampler": lambda rng, n: np.arange(n), "weights": np.ones(N)}, "but got weights as well"),
    ({"sampler": lambda rng, n: np.arange(3)}, "sampler must return 60 whole numbers"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_what_cannot_be_meant_is_refused(ds: xr.Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ds.insitu.plan(variables=["a"], **options)


def test_weights_of_dropped_anchors_do_not_matter(ds: xr.Dataset) -> None:
    late = xr.DataArray(np.ones(N - 2), {"time": TIMES[2:]}, "time")
    assert min(positions(ds, weights=late, leads=["-12h", "0h"])[0]) >= 2


def test_a_sampler_that_fails_uses_no_epoch_up() -> None:
    calls = 0

    def sampler(random: np.random.Generator, n: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("the third call")
        return random.permutation(n)

    ds = xr.Dataset({"a": ("t", np.arange(64.0))})
    drawn = []
    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=16, sampler=sampler, seed=5) as loader:
        for _ in range(4):
            try:
                drawn.append(np.concatenate([batch.positions for batch in loader]).tolist())
            except ValueError:
                drawn.append([])
    failed = drawn.index([])
    orders = [np.random.default_rng([5, epoch]).permutation(64).tolist() for epoch in range(3)]
    assert [d for d in drawn if d] == orders
    assert failed < 3
