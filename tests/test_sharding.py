"""Ranks and worker processes: disjoint, together complete, and as many steps everywhere."""

from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr.storage

import insitu_xr
from insitu_xr import Batch, Loader
from insitu_xr.errors import RequestError, UnsupportedSourceError
from insitu_xr.materials import MEMORY_STORE_BYTES

N = 61
WORLDS = [1, 2, 4]


def dataset(n: int = N) -> xr.Dataset:
    times = np.datetime64("2000-01-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    values = np.arange(n * 3, dtype="f4").reshape(n, 3)
    return xr.Dataset({"t": (("time", "x"), values, {"units": "K"})}, {"time": times}, {"title": "steps"})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("sharding") / "steps.zarr"
    dataset().to_zarr(where, consolidated=False, encoding={"t": {"chunks": (5, 3)}})
    return where


def loader(path: Path, **options: Any) -> Loader:
    made: Loader = insitu_xr.open_dataset(path).insitu.loader(**{"variables": ["t"], "batch_size": 4, **options})
    return made


def steps(world: int) -> int:
    """Batches of 4 of a rank that is padded."""
    return math.ceil(math.ceil(N / world) / 4)


def own(batches: list[Batch]) -> list[int]:
    """Positions of the samples that do not repeat others."""
    return [int(k) for batch in batches for k in batch.positions[~batch.padded]]


@pytest.mark.parametrize("partial", ["drop", "pad"])
@pytest.mark.parametrize("shuffle", [False, "block", "global"])
@pytest.mark.parametrize("world", [*WORLDS, 7])
def test_ranks_are_disjoint_and_take_equally_many_steps(path: Path, world: int, shuffle: Any, partial: Any) -> None:
    for epoch in range(2):
        parts = []
        for rank in range(world):
            with loader(path, shuffle=shuffle, rank=rank, world_size=world, partial=partial, seed=2) as mine:
                mine.set_epoch(epoch)
                parts.append(list(mine))
                assert len(parts[-1]) == len(mine)
        assert len({len(part) for part in parts}) == 1
        assert len({tuple(len(batch) for batch in part) for part in parts}) == 1
        found = [k for part in parts for k in own(part)]
        assert len(set(found)) == len(found)
        repeats = sum(int(batch.padded.sum()) for part in parts for batch in part)
        if partial == "pad":
            assert len(found) == N
            assert repeats == -N % world
        else:
            assert (len(found), repeats) == (N - N % world, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 40])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True, "leads": ["0h", "12h"]}], ids=str)
def test_shares_hold_the_same_batches(path: Path, options: dict[str, Any], count: int) -> None:
    with loader(path, **options) as whole:
        expected = [[batch.positions.tolist() for batch in whole] for _ in range(2)]
        whole.set_epoch(0)
        shares = [whole.share(k, count) for k in range(count)]
        for epoch in expected:
            assert [batch.positions.tolist() for share in shares for batch in share] == epoch
        assert sum(map(len, shares)) == len(whole)
        for share in shares:
            share.close()


def test_a_share_is_one_of_its_count(path: Path) -> None:
    with pytest.raises(RequestError, match="number of a share must be from 0 to 1, but got 2"):
        loader(path).share(2, 2)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("world", WORLDS)
def test_shares_divide_every_rank(path: Path, world: int, workers: int) -> None:
    parts = []
    for rank in range(world):
        with loader(path, shuffle=True, rank=rank, world_size=world, partial="pad") as mine:
            shares = [mine.share(k, workers) for k in range(workers)]
            parts.append([batch for share in shares for batch in share])
            for share in shares:
                share.close()
    assert {len(part) for part in parts} == {steps(world)}
    assert sorted(k for part in parts for k in own(part)) == list(range(N))


def torch_loaders(path: Path, world: int, workers: int) -> list[Any]:
    """Make the DataLoader of every rank."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    options = {"multiprocessing_context": "spawn", "persistent_workers": True} if workers else {}
    found = []
    for rank in range(world):
        batches = loader(path, shuffle=True, rank=rank, world_size=world, partial="pad").to("torch")
        assert isinstance(batches, data.IterableDataset)
        found.append(data.DataLoader(batches, batch_size=None, num_workers=workers, **options))
    return found


# A worker takes seconds to start, so workers are those of two ranks; four ranks of two, and two of one, are left to the
# shares above, which is what workers iterate.
@pytest.mark.slow
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 0), (4, 0), (2, 2)])
def test_workers_divide_a_rank(path: Path, world: int, workers: int) -> None:
    expected, ds = dataset(), insitu_xr.open_dataset(path)
    loaders = torch_loaders(path, world, workers)
    epochs = []
    for _ in range(2):
        running = [iter(each) for each in loaders]  # so that the processes of all ranks start together
        parts = [list(each) for each in running]
        assert [len(part) for part in parts] == [len(each) for each in loaders]
        assert {len(part) for part in parts} == {steps(world)}
        epochs.append([k for part in parts for k in own([batch.source for batch in part])])
        assert sorted(epochs[-1]) == list(range(N)), "every sample once"
    assert epochs[0] != epochs[1], "workers that live on go on with the next epoch"
    for batch in parts[-1]:
        np.testing.assert_array_equal(batch["t"].numpy(), expected["t"].values[batch.positions])
        np.testing.assert_array_equal(batch.anchors, expected["time"].values[batch.positions])
        xr.testing.assert_identical(batch.to_xarray(), ds.isel(time=batch.positions))


# -- pickling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "leads": ["0h", "6h"]}, {"rank": 1, "world_size": 3}], ids=str
)
def test_a_loader_pickles_with_its_place(path: Path, options: dict[str, Any]) -> None:
    with loader(path, **options) as here:
        list(here)
        copy: Loader = pickle.loads(pickle.dumps(here))
        with copy:
            for one, other in zip(here, copy, strict=True):
                np.testing.assert_array_equal(one["t"], other["t"])
                xr.testing.assert_identical(one.to_xarray(), other.to_xarray())


def test_a_batch_pickles_with_its_labels_alone(path: Path) -> None:
    with loader(path, leads=["-6h", "6h"], shuffle=True) as batches:
        for batch in batches:
            copy: Batch = pickle.loads(pickle.dumps(batch))
            xr.testing.assert_identical(copy.to_xarray(), batch.to_xarray())
            xr.testing.assert_identical(copy.coords, batch.coords)
            for name in ("positions", "anchors", "leads", "valid_times", "padded"):
                np.testing.assert_array_equal(getattr(copy, name), getattr(batch, name))


def test_a_million_anchors_pickle_small(tmp_path: Path) -> None:
    """Field report 84: workers must start fast, so a loader holds ranges and no lists."""
    n = 1_000_000
    group = zarr.open_group(tmp_path / "long.zarr", mode="w")
    group.create_array("t", shape=(n, 2), chunks=(100, 2), dtype="f4", dimension_names=("time", "x"))
    hours: dict[str, Any] = {"units": "hours since 1940-01-01"}
    time = group.create_array("time", shape=(n,), chunks=(n,), dtype="i8", dimension_names=("time",), attributes=hours)
    time[:] = np.arange(n)
    options = {"variables": ["t"], "leads": ["0h", "6h", "24h"], "shuffle": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = xr.open_zarr(tmp_path / "long.zarr", chunks=None, consolidated=False)
    with ds.insitu.loader(**options) as here:
        blob = pickle.dumps(here)
        assert len(blob) < 1_000_000
        copy: Loader = pickle.loads(blob)
        first, again = next(iter(here)), next(iter(copy))
        np.testing.assert_array_equal(first.positions, again.positions)
        assert len(pickle.dumps(again)) < 100_000
        copy.close()


def test_a_large_memory_store_is_not_copied_to_workers() -> None:
    n = MEMORY_STORE_BYTES // (1 << 20) + 1
    values = np.random.default_rng(0).integers(0, 255, (n, 1 << 20), "u1")
    store = zarr.storage.MemoryStore()
    xr.Dataset({"t": (("step", "x"), values)}).to_zarr(
        store, consolidated=False, encoding={"t": {"chunks": (1, 1 << 20), "compressors": None}}
    )
    with xr.open_zarr(store, chunks=None, consolidated=False).insitu.loader(variables="t", sample_dim="step") as large:
        with pytest.raises(UnsupportedSourceError, match=r"variable 't' lies in the memory of this process \(65.0 MiB"):
            pickle.dumps(large)
        assert len(next(iter(large))) == 32


def test_a_small_memory_store_is_copied() -> None:
    store = zarr.storage.MemoryStore()
    dataset().to_zarr(store, consolidated=False)
    with xr.open_zarr(store, chunks=None, consolidated=False).insitu.loader(variables="t", shuffle=True) as here:
        copy: Loader = pickle.loads(pickle.dumps(here))
        np.testing.assert_array_equal(next(iter(copy))["t"], next(iter(here))["t"])
        copy.close()


def test_a_store_that_exists_in_this_process_alone_is_refused() -> None:
    dataset().to_zarr("memory://sharding-alone", consolidated=False)
    here = insitu_xr.open_dataset("memory://sharding-alone").insitu.loader(variables="t")
    with here, pytest.raises(UnsupportedSourceError, match="from a store that other processes can open"):
        pickle.dumps(here)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, "world_size must be a whole number of at least 1, but got 0"),
        ({"rank": -1}, "rank must be a whole number of at least 0, but got -1"),
        ({"rank": 2, "world_size": 2}, "rank must be below world_size, 2, but got 2; count ranks from 0"),
        ({"partial": "keep"}, "partial must be 'drop' or 'pad', but got 'keep'"),
        ({"world_size": 62}, "world_size must be at most the 61 anchors with partial='drop', but got 62"),
        ({"world_size": 16, "drop_last": True}, "at most the 3 anchors of each of 16 ranks with drop_last=True"),
    ],
)
def test_ranks_that_cannot_be_are_refused(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        loader(path, **options)


def test_padded_is_all_false_without_ranks(path: Path) -> None:
    with loader(path) as batches:
        assert not any(batch.padded.any() for batch in batches)
        assert {len(batch.padded) for batch in batches} == {4, 1}
