"""One epoch over a local store, beside the least that any loader must do.

Ordinary runs assert counts. `make bench` adds timings, of which only the ratios within one run mean anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import insitu_xr  # noqa: F401  registers the accessor

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

STEPS, CHUNK, GRID = 512, 16, (64, 128)
BATCH = 32

pytestmark = pytest.mark.benchmark(group=f"epoch of {STEPS} steps, {CHUNK} to a chunk")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "store.zarr"
    rng = np.random.default_rng(0)
    values = rng.normal(280, 5, (STEPS, *GRID)).astype("float32")
    time = pd.date_range("2020-01-01", periods=STEPS, freq="6h")
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, {"time": time})
    ds.to_zarr(path, encoding={"t2m": {"chunks": (CHUNK, *GRID)}}, consolidated=False)
    return path


@pytest.fixture
def ds(path: Path) -> xr.Dataset:
    opened: xr.Dataset = xr.open_zarr(path, chunks=None, consolidated=False)
    return opened


def test_floor_every_chunk_once(benchmark: BenchmarkFixture, path: Path) -> None:
    array = zarr.open_array(path / "t2m", mode="r")

    def read_all() -> int:
        return sum(np.asarray(array[start : start + CHUNK]).shape[0] for start in range(0, STEPS, CHUNK))

    assert benchmark(read_all) == STEPS


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_loader(benchmark: BenchmarkFixture, ds: xr.Dataset, shuffle: bool) -> None:
    def epoch() -> tuple[int, int, int]:
        with ds.insitu.loader(variables=["t2m"], batch_size=BATCH, shuffle=shuffle, seed=0) as loader:
            samples = sum(len(batch) for batch in loader)
            return samples, loader.stats.reads, loader.plan.reads

    assert benchmark(epoch) == (STEPS, STEPS // CHUNK, STEPS // CHUNK)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_xarray_batch_by_batch(benchmark: BenchmarkFixture, ds: xr.Dataset, shuffle: bool) -> None:
    order = np.random.default_rng(0).permutation(STEPS) if shuffle else np.arange(STEPS)

    def epoch() -> int:
        batches = (ds["t2m"].isel(time=order[start : start + BATCH]).values for start in range(0, STEPS, BATCH))
        return sum(len(batch) for batch in batches)

    assert benchmark(epoch) == STEPS
