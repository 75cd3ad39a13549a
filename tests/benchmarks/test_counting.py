"""What an epoch costs in reads, decodes and memory, on every layout that is measured; `make bench` adds the times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import LocalStore, MemoryStore

import insitu_xr  # noqa: F401  registers the accessor
from insitu_xr.testing import CountingStore
from tests.benchmarks.layouts import LAYOUTS, Layout, write

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

BATCH = 16
LEADS = ["0h", "6h", "24h"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param].small()


@pytest.fixture
def store(folder: Path, layout: Layout) -> CountingStore:
    return CountingStore(LocalStore(write(layout, folder), read_only=True))


def opened(store: CountingStore) -> xr.Dataset:
    ds: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return ds


def chunks_of(layout: Layout, rows: int | None = None, columns: int | None = None) -> int:
    """Chunks that a region holds, from the first row and column on."""
    sizes = (layout.steps, rows or layout.grid[0], columns or layout.grid[1])
    return layout.variables * math.prod(-(-n // c) for n, c in zip(sizes, layout.chunks, strict=True))


def requests_allowed(layout: Layout, chunks: int) -> int:
    """One for each chunk, and one for the index of each shard."""
    return chunks + (layout.variables * layout.steps // layout.unit if layout.shards else 0)


@pytest.mark.benchmark(group="cold epoch, small stores")
def test_a_cold_epoch_reads_and_decodes_each_chunk_once(
    benchmark: BenchmarkFixture, layout: Layout, store: CountingStore
) -> None:
    ds = opened(store)

    def epoch() -> Any:
        store.reset()
        with ds.insitu.loader(variables=layout.names, batch_size=BATCH, shuffle=True) as loader:
            store.reset()  # what the loader is checked with at construction is not of the epoch
            samples = sum(len(batch) for batch in loader)
            return samples, loader.plan, loader.stats

    samples, plan, stats = benchmark(epoch)
    chunks = chunks_of(layout)
    assert samples == layout.steps
    assert (plan.reads, plan.chunks, plan.reread_factor) == (chunks, chunks, 1.0)
    assert stats.reads == stats.decodes == chunks
    assert len(store.data_gets) <= requests_allowed(layout, chunks)
    assert stats.peak_bytes <= plan.peak_bytes <= plan.budget.ceiling


@pytest.mark.benchmark(group="warm epoch, small stores")
def test_a_warm_epoch_reads_and_decodes_nothing(
    benchmark: BenchmarkFixture, layout: Layout, store: CountingStore
) -> None:
    ds = opened(store)
    arguments: dict[str, Any] = {"variables": layout.names, "batch_size": BATCH, "memory": "1GiB", "keep": True}
    with ds.insitu.loader(**arguments, shuffle=True) as loader:
        assert sum(len(batch) for batch in loader) == layout.steps
        decoded = loader.stats.decodes
        store.reset()
        assert benchmark(lambda: sum(len(batch) for batch in loader)) == layout.steps
        assert store.gets == []
        assert loader.stats.decodes == decoded


@pytest.mark.benchmark(group="epoch of windows, small stores")
def test_windows_share_their_chunks(benchmark: BenchmarkFixture, layout: Layout, store: CountingStore) -> None:
    ds = opened(store)

    def epoch() -> Any:
        arguments: dict[str, Any] = {"variables": layout.names, "leads": LEADS, "batch_size": BATCH}
        with ds.insitu.loader(**arguments, shuffle=True) as loader:
            store.reset()
            return sum(len(batch) for batch in loader), loader.plan, loader.stats

    samples, plan, stats = benchmark(epoch)
    assert samples == layout.steps - 4
    assert plan.reads == stats.reads == stats.decodes == chunks_of(layout)
    assert stats.peak_bytes <= plan.peak_bytes <= plan.budget.ceiling


@pytest.mark.benchmark(group="a quarter of the grid, small stores")
def test_a_quarter_of_the_grid_costs_its_own_chunks(
    benchmark: BenchmarkFixture, layout: Layout, store: CountingStore
) -> None:
    rows, columns = layout.grid[0] // 2, layout.grid[1] // 2
    ds = opened(store).isel(latitude=slice(0, rows), longitude=slice(0, columns))

    def epoch() -> Any:
        with ds.insitu.loader(variables=layout.names, batch_size=BATCH, shuffle=True) as loader:
            store.reset()
            return sum(len(batch) for batch in loader), loader.plan, loader.stats

    samples, plan, stats = benchmark(epoch)
    chunks = chunks_of(layout, rows, columns)
    assert samples == layout.steps
    assert plan.reads == stats.reads == stats.decodes == chunks
    assert len(store.data_gets) <= requests_allowed(layout, chunks)


def described(steps: int, chunk: int) -> xr.Dataset:
    """A store of which nothing is written but what describes it: enough for a plan."""
    group = zarr.open_group(MemoryStore(), mode="w")
    dims = ("time", "y", "x")
    group.create_array("v0", shape=(steps, 32, 64), chunks=(chunk, 32, 64), dtype="f4", dimension_names=dims)
    attributes: dict[str, Any] = {"units": "hours since 1940-01-01", "calendar": "proleptic_gregorian"}
    time = group.create_array(
        "time", shape=(steps,), chunks=(steps,), dtype="i8", dimension_names=("time",), attributes=attributes
    )
    time[:] = 6 * np.arange(steps)
    ds: xr.Dataset = xr.open_zarr(group.store, chunks=None, consolidated=False)
    return ds


AXES = {"arco": (96, 1), "fat": (8000, 100), "10,000 single steps": (10_000, 1), "600 chunks of 16": (9600, 16)}


@pytest.mark.benchmark(group="planning windows")
@pytest.mark.parametrize("name", AXES)
def test_four_shuffle_blocks_are_memory_enough_for_windows(benchmark: BenchmarkFixture, name: str) -> None:
    """Few chunks are read again, whatever the length of the axis."""
    ds = described(*AXES[name])
    arguments: dict[str, Any] = {"variables": ["v0"], "leads": LEADS, "batch_size": BATCH, "shuffle": True}
    free = ds.insitu.plan(**arguments)
    blocks = 4 * free.runs.block * 4 * 32 * 64

    def plan() -> float:
        bounded = ds.insitu.plan(**arguments, memory=blocks + free.minimum_memory)
        return float(bounded.reread_factor)

    assert 1.0 <= benchmark(plan) <= 1.1
