"""What reaches the store: each chunk that a selection touches once, and nothing else."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from zarr.abc.store import SuffixByteRequest

import insitu_xr
from insitu_xr.engine._zarr import reads_synchronously
from insitu_xr.errors import RequestError
from insitu_xr.testing import CountingStore, assert_batches_equal, kept_anchors
from insitu_xr.testing.oracle import partner_positions
from insitu_xr.testing.writing import StoredDataset, StoredVariable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import xarray as xr

STEPS = 40
SIZES = {"level": 3, "y": 6, "x": 8}
LEADS = [None, ["0h", "1h", "4h"]]


def stored(**options: Any) -> StoredDataset:
    """Store two variables whose chunks differ, 40 hours with a gap of two."""
    surface = StoredVariable("t2m", ("time", "y", "x"), (STEPS, 6, 8), chunks=(7, 4, 3), kind="packed", **options)
    upper = StoredVariable("z", ("y", "time", "level", "x"), (6, STEPS, 3, 8), chunks=(3, 6, 1, 8))
    times = (*range(25), *range(27, 27 + STEPS - 25))
    return StoredDataset((surface, upper), times=times, sizes=SIZES)


@pytest.fixture(params=[None, False], ids=["sync", "async"])
def store(request: pytest.FixtureRequest) -> CountingStore:
    return CountingStore(stored().store, sync=request.param)


def keys(name: str, chunks: Mapping[str, int], wanted: Mapping[str, Iterable[int]]) -> Counter[str]:
    """Work out the keys of the chunks that hold the wanted positions of each dimension, in storage order."""
    grid = [sorted({position // chunks[dim] for position in wanted[dim]}) for dim in chunks]
    return Counter("/".join([name, "c", *map(str, cell)]) for cell in product(*grid))


def touched(ds: xr.Dataset, leads: list[str] | None) -> list[int]:
    """Find the positions along time that some sample needs."""
    if leads is None:
        return list(range(ds.sizes["time"]))
    return sorted({partner for row in partner_positions(ds, "time", leads).values() for partner in row})


def whole(time: list[int]) -> Counter[str]:
    every: dict[str, Iterable[int]] = {"time": time} | {dim: range(size) for dim, size in SIZES.items()}
    surface = keys("t2m", {"time": 7, "y": 4, "x": 3}, every)
    return surface + keys("z", {"y": 3, "time": 6, "level": 1, "x": 8}, every)


def epoch(loader: Any) -> list[Any]:
    return list(loader)


@pytest.mark.parametrize("leads", LEADS, ids=["no leads", "leads"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 31])
def test_each_chunk_is_read_once(store: CountingStore, batch_size: int, shuffle: bool, leads: list[str] | None) -> None:
    ds = stored().open(store)
    arguments: dict[str, Any] = {"variables": ["t2m", "z"], "leads": leads, "batch_size": batch_size}
    with ds.insitu.loader(**arguments, shuffle=shuffle, seed=1) as loader:
        store.reset()
        batches = epoch(loader)
        expected = whole(touched(ds, leads))
        assert store.by_key() == expected
        assert store.metadata_gets == []
        assert loader.plan.reads == loader.plan.chunks == len(expected)
        assert loader.stats.reads == loader.stats.gets == len(expected)
    assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m", "z"], leads=leads)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_second_epoch_reads_nothing_where_chunks_are_kept(
    store: CountingStore, placement: str, shuffle: bool
) -> None:
    ds = stored().open(store)
    options: dict[str, Any] = {"batch_size": 5, "shuffle": shuffle, "memory": "1GiB", "keep": True}
    with ds.insitu.loader(variables=["t2m", "z"], **options) as loader:
        store.reset()
        first = epoch(loader)
        assert len(store.gets) == loader.plan.reads == loader.plan.chunks
        store.reset()
        second = epoch(loader)
        assert store.gets == []
    for batches in (first, second):
        assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m", "z"])


@pytest.mark.parametrize("keep", [None, False])
@pytest.mark.parametrize("shuffle", [False, True])
def test_epochs_that_read_anew(store: CountingStore, placement: str, shuffle: bool, keep: bool | None) -> None:
    """By default a remote store is read in the first epoch alone, and any other in the second as well."""
    ds = stored().open(store)
    reads = []
    options: dict[str, Any] = {"batch_size": 5, "shuffle": shuffle, "memory": "1GiB", "keep": keep}
    with ds.insitu.loader(variables=["t2m", "z"], **options) as loader:
        for _ in range(4):
            store.reset()
            assert_batches_equal(loader, stored().open(), sample_dim="time", variables=["t2m", "z"])
            reads.append(len(store.data_gets))
            assert store.metadata_gets == []
        chunks = loader.plan.chunks
        assert loader.plan.reads == reads[0] == chunks
        assert loader.stats.peak_bytes <= loader.plan.peak_bytes
    asynchronous = not reads_synchronously(store)
    # What the last batches used may still be there; shuffled, that is nearly everything of so short an axis.
    assert all(count <= chunks for count in reads)
    if keep is None:
        assert reads[2:] == [0, 0]
        assert reads[1] == 0 if asynchronous else shuffle or reads[1] > 0
    else:
        # What is remote is read as far ahead as there is room, and what lies there is not read again.
        assert shuffle or asynchronous or all(reads)


def test_next_to_nothing_is_not_kept(store: CountingStore) -> None:
    """Where the ceiling has room for few chunks only, keeping them would read as much and cost memory."""
    ds = stored().open(store)
    asked: dict[str, Any] = {"variables": ["t2m", "z"], "batch_size": 1, "shuffle": True}
    with ds.insitu.loader(**asked, memory=ds.insitu.plan(**asked).minimum_memory) as loader:
        assert not loader.plan.keeps(1)
        for _ in range(3):
            store.reset()
            epoch(loader)
            assert store.data_gets


@pytest.mark.parametrize("wrong", ["yes", 1, 0.5])
def test_keep_must_be_true_false_or_none(store: CountingStore, wrong: Any) -> None:
    ds = stored().open(store)
    store.reset()
    with pytest.raises(RequestError, match=f"keep must be True, False or None, but got {wrong!r}"):
        ds.insitu.loader(variables=["t2m"], keep=wrong)
    assert store.gets == []


@pytest.mark.parametrize("keep", [True, False])
def test_datasets_that_are_joined_keep_as_well(keep: bool) -> None:
    store = CountingStore(stored().store)
    ds = stored().open(store)
    joined = insitu_xr.join({"a": ds[["t2m"]], "b": ds[["z"]]})
    with joined.loader(variables=["t2m", "z"], batch_size=5, keep=keep) as loader:
        first = epoch(loader)
        store.reset()
        assert len(epoch(loader)) == len(first)
        assert bool(store.gets) != keep


def test_what_is_kept_survives_pickling_as_a_wish() -> None:
    plan = pickle.loads(pickle.dumps(stored().open().insitu.loader(variables=["t2m"], keep=True))).plan
    assert plan.keep is True
    shared = stored().open().insitu.loader(variables=["t2m"], keep=False).share(0, 2)
    assert shared.plan.keep is False


def test_construction_reads_no_chunk_more_than_twice(store: CountingStore) -> None:
    ds = stored().open(store)
    store.reset()
    ds.insitu.loader(variables=["t2m", "z"], batch_size=5).close()
    assert len(store.data_gets) <= 4
    assert len({get.key for get in store.data_gets}) <= 2


def test_a_plan_reads_no_data(store: CountingStore) -> None:
    ds = stored().open(store)
    store.reset()
    plan = ds.insitu.plan(variables=["t2m", "z"], leads=["0h", "4h"], batch_size=5, shuffle=True)
    assert str(plan)
    assert plan._repr_html_()
    assert store.data_gets == []
    assert plan.anchors_kept == len(kept_anchors(ds, "time", ["0h", "4h"]))


SELECTIONS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "region": (
        "t2m",
        {"time": slice(0, 10), "y": slice(4, 6), "x": slice(0, 3)},
        ["t2m/c/0/1/0", "t2m/c/1/1/0"],
    ),
    "one step": ("t2m", {"time": [39], "y": [0], "x": [7]}, ["t2m/c/5/0/2"]),
    "strided": ("t2m", {"time": slice(0, None, 20), "y": 5, "x": [7]}, ["t2m/c/0/1/2", "t2m/c/2/1/2"]),
    "backwards": ("t2m", {"time": slice(8, 5, -1), "y": [5, 0], "x": -1}, [
        "t2m/c/0/0/2", "t2m/c/0/1/2", "t2m/c/1/0/2", "t2m/c/1/1/2",
    ]),
    "level": ("z", {"time": slice(0, 6), "level": 1}, ["z/c/0/0/1/0", "z/c/1/0/1/0"]),
    "levels and rows": (
        "z",
        {"time": slice(5, 7), "level": [2, 0], "y": slice(0, 3)},
        ["z/c/0/0/0/0", "z/c/0/0/2/0", "z/c/0/1/0/0", "z/c/0/1/2/0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("name", sorted(SELECTIONS))
def test_a_selection_reads_only_what_it_touches(name: str, chunks: dict[str, int] | None, store: CountingStore) -> None:
    variable, indexers, expected = SELECTIONS[name]
    ds = stored().open(store, chunks=chunks)[[variable]].isel(indexers)
    with ds.insitu.loader(variables=[variable], batch_size=3) as loader:
        store.reset()
        batches = epoch(loader)
        assert store.by_key() == Counter(expected)
    assert_batches_equal(batches, ds, sample_dim="time", variables=[variable])


def test_chunks_that_only_dropped_anchors_need_are_not_read(store: CountingStore) -> None:
    ds = stored().open(store)
    with ds.insitu.loader(variables=["t2m"], leads=["30h"], batch_size=4) as loader:
        store.reset()
        epoch(loader)
        wanted = {"time": touched(ds, ["30h"]), "y": range(6), "x": range(8)}
        assert store.by_key() == keys("t2m", {"time": 7, "y": 4, "x": 3}, wanted)


@pytest.mark.parametrize("leads", LEADS, ids=["no leads", "leads"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 31])
def test_the_minimal_ceiling_reads_what_the_plan_says(
    store: CountingStore, batch_size: int, shuffle: bool, leads: list[str] | None
) -> None:
    ds = stored().open(store)
    arguments: dict[str, Any] = {
        "variables": ["t2m", "z"],
        "leads": leads,
        "batch_size": batch_size,
        "shuffle": shuffle,
    }
    minimum = ds.insitu.plan(**arguments).minimum_memory
    with ds.insitu.loader(**arguments, memory=minimum) as loader:
        store.reset()
        batches = epoch(loader)
        assert len(store.data_gets) == loader.plan.reads == loader.stats.reads
        assert loader.stats.peak_bytes <= minimum
        assert loader.plan.peak_bytes <= minimum
        assert set(store.by_key()) == set(whole(touched(ds, leads)))
    assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m", "z"], leads=leads)


def test_absent_chunks_are_asked_for_once() -> None:
    written = stored(absent=(0, 5, 11))
    store = CountingStore(written.store)
    ds = written.open(store)
    with ds.insitu.loader(variables=["t2m"], batch_size=5) as loader:
        store.reset()
        batches = epoch(loader)
        assert set(store.by_key().values()) == {1}
        assert sum(get.length is None for get in store.data_gets) == loader.stats.absent == 3
    assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m"])


def sharded() -> StoredDataset:
    variable = StoredVariable(
        "t2m", ("time", "y", "x"), (STEPS, 6, 8), chunks=(2, 3, 4), shards=(8, 6, 8), compressed=False
    )
    return StoredDataset((variable,), times=tuple(range(STEPS)), sizes={"y": 6, "x": 8})


@pytest.mark.parametrize("sync", [None, False], ids=["sync", "async"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_are_read_by_ranges(sync: bool | None, shuffle: bool) -> None:
    store = CountingStore(sharded().store, sync=sync)
    ds = sharded().open(store).isel(time=slice(4, 22), x=slice(0, 4))
    with ds.insitu.loader(variables=["t2m"], batch_size=5, shuffle=shuffle) as loader:
        store.reset()
        batches = epoch(loader)
        inner = 2 * 9  # two of y; steps 4 to 21 lie in nine of time
        assert loader.plan.reads == loader.plan.chunks == inner
        assert set(store.by_key()) == {f"t2m/c/{shard}/0/0" for shard in range(3)}
        ranges = Counter((get.key, get.byte_range) for get in store.data_gets)
        assert set(ranges.values()) == {1}
        indexes = [get for get in store.data_gets if isinstance(get.byte_range, SuffixByteRequest)]
        assert len(indexes) <= 3  # the self-check at construction may have left one behind
        assert len(store.data_gets) - len(indexes) <= inner
    assert_batches_equal(batches, ds, sample_dim="time", variables=["t2m"])


def test_a_narrow_selection_of_a_shard_reads_few_bytes() -> None:
    store = CountingStore(sharded().store)
    ds = sharded().open(store).isel(time=[0, 17], y=[0], x=[7])
    with ds.insitu.loader(variables=["t2m"], batch_size=1) as loader:
        store.reset()
        epoch(loader)
        chunk = 2 * 3 * 4 * 4
        ranged = [get for get in store.data_gets if not isinstance(get.byte_range, SuffixByteRequest)]
        assert [get.length for get in ranged] == [chunk, chunk]
