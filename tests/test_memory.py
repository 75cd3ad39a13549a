"""Memory of the process: what ``memory=`` promises is what the process grows by, epoch after epoch."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from insitu_xr.engine.blocks import BLOCKS
from insitu_xr.testing import GatedStore, InterceptingStore

pytestmark = [
    pytest.mark.slow,  # every process reads 100 MiB, epoch after epoch
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc"),
]
MIB = 1 << 20

#: the chunks of about 100 MiB in the layouts of the benchmark
LAYOUTS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int] | None]] = {
    "arco": ((96, 361, 720), (1, 361, 720), None),
    "fat": ((12000, 32, 64), (100, 32, 64), None),
    "tiled": ((96, 360, 720), (16, 45, 90), None),
    "sharded": ((96, 360, 720), (1, 90, 180), (32, 360, 720)),
}

#: prints by how much the process grew: at most while it ran, and after every epoch
MEASURE = """
import json, os, re, sys
import xarray as xr
import insitu_xr

path, ceiling, epochs, leads = json.loads(sys.argv[1])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

ds = xr.open_zarr(path, chunks=None, consolidated=False)
ds.insitu.plan(variables=["v"], batch_size=4)
before = resident()
grown = []
loader = ds.insitu.loader(variables=["v"], leads=leads, batch_size=8, shuffle=True, memory=ceiling or None)
for _ in range(epochs):
    for batch in loader:
        pass
    del batch
    grown.append(resident() - before)
# Not ru_maxrss, which counts what the process that started this one had.
with open("/proc/self/status") as file:
    peak = int(re.search(r"VmHWM:\\s*(\\d+)", file.read())[1]) * 1024 - before
held = loader.stats.peak_bytes
print(json.dumps({"peak": peak, "grown": grown, "ceiling": loader.plan.budget.ceiling, "held": held}))
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    random = np.random.default_rng(0)
    for name, (shape, chunks, shards) in LAYOUTS.items():
        values = np.round(random.standard_normal(shape, np.float32), 1)
        time = np.datetime64("2000-01-01", "ns") + np.arange(shape[0]) * np.timedelta64(6, "h")
        encoding: dict[str, Any] = {"chunks": chunks, **({"shards": shards} if shards else {})}
        ds = xr.Dataset({"v": (("time", "y", "x"), values)}, {"time": time})
        ds.to_zarr(folder / name, encoding={"v": encoding}, zarr_format=3, consolidated=False)
    return folder


def measured(store: Path, ceiling: int, epochs: int, leads: list[str] | None = None) -> dict[str, Any]:
    asked = json.dumps([str(store), ceiling, epochs, leads])
    run = subprocess.run([sys.executable, "-c", MEASURE, asked], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


LEADS = ["0h", "6h", "24h"]


@pytest.mark.parametrize("leads", [None, LEADS], ids=["no leads", "leads"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_process_grows_by_no_more_than_the_ceiling_and_a_quarter(
    stores: Path, name: str, leads: list[str] | None
) -> None:
    check(measured(stores / name, 200 * MIB, 3, leads))


# Where none is given, the ceiling is a share of what the machine has, far above these stores.
@pytest.mark.parametrize("name", ["fat", "sharded"])
def test_the_process_keeps_to_the_ceiling_of_the_machine(stores: Path, name: str) -> None:
    check(measured(stores / name, 0, 3, LEADS))


def check(found: dict[str, Any]) -> None:
    assert found["held"] <= found["ceiling"]
    assert found["peak"] <= 1.25 * found["ceiling"] + 64 * MIB, found


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_does_not_grow_over_twenty_epochs(stores: Path, name: str) -> None:
    grown = measured(stores / name, 120 * MIB, 20)["grown"][3:]
    slope = float(np.polyfit(np.arange(len(grown)), np.array(grown, float), 1)[0])
    assert slope < 0.01 * np.mean(grown), grown


@pytest.mark.parametrize("order", [(None, False), (False, None)])
def test_one_variable_in_stores_that_are_read_in_different_ways(order: tuple[bool | None, ...]) -> None:
    """Reads on threads and on the loop are both under way; the smallest ceiling has room for both."""
    parts = []
    for number, sync in enumerate(order):
        store, times = MemoryStore(), np.arange(64) + 64 * number
        values = np.random.default_rng(number).random((64, 5000), "f4")
        xr.Dataset({"a": (("t", "x"), values)}, {"t": times}).to_zarr(
            store, consolidated=False, encoding={"a": {"chunks": (16, 5000)}}
        )
        parts.append(xr.open_zarr(GatedStore(store, lambda key: False, sync=sync), consolidated=False))
    ds = xr.concat(parts, "t")
    request: dict[str, Any] = {"variables": ["a"], "sample_dim": "t", "batch_size": 2, "shuffle": "global"}
    memory = ds.insitu.plan(**request).minimum_memory
    with ds.insitu.loader(**request, memory=memory) as loader:
        assert sum(len(batch) for batch in loader) == 128
        assert loader.stats.peak_bytes <= memory
    with ds.insitu.reader(["a"], sample_dim="t", memory=1_280_000) as reader:
        for at in (100, 3, 100):
            np.testing.assert_array_equal(reader.read([at])["a"][0], ds.a.isel(t=at).values)


class SizedStore(InterceptingStore):
    """Notes the sizes of all reads of data."""

    sizes: ClassVar[list[int]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        blob = await super().get(key, prototype, byte_range)
        if blob is not None and "/c/" in key:
            self.sizes.append(len(blob))
        return blob


@pytest.mark.parametrize("memory", ["2MiB", None])
def test_gaps_that_are_read_over_in_shards_are_counted(memory: str | None) -> None:
    """A stripe of a shard: one read of all of it where the ceiling has room, else as many as fit."""
    store = MemoryStore()
    array = zarr.create_array(
        store,
        name="a",
        shape=(6, 512, 256),
        chunks=(1, 32, 32),
        shards=(1, 512, 256),
        dtype="f4",
        compressors=None,
        dimension_names=("t", "y", "x"),
    )
    array[:] = np.random.default_rng(0).random(array.shape, "f4")
    zarr.open_group(store, mode="a")
    counted = SizedStore(store, sync=False)
    ds = xr.open_zarr(counted, consolidated=False, chunks=None).isel(x=slice(0, 32))
    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=1, memory=memory) as loader:
        counted.sizes.clear()
        found = np.concatenate([batch["a"] for batch in loader])
        needed, budget = 512 * 32 * 4, loader.plan.budget_of(0)
        assert max(counted.sizes) <= max(needed, budget.inflight_bytes // 64)
        if memory is None:
            assert max(counted.sizes) > needed, "the default ceiling has room for gaps"
        else:
            assert sum(size for size in counted.sizes if size > 2052) <= 6 * needed, "an index takes 2052 bytes"
    np.testing.assert_array_equal(found, array[:, :, :32])


def test_what_is_closed_holds_no_memory() -> None:
    store = MemoryStore()
    xr.Dataset({"a": (("t", "x"), np.random.default_rng(0).random((16, 200_000), "f4"))}).to_zarr(
        store, consolidated=False, encoding={"a": {"chunks": (1, 200_000)}}
    )
    ds = xr.open_zarr(store, consolidated=False, chunks=None)

    def given() -> int:
        BLOCKS.tidy()
        return BLOCKS._given

    gc.collect()
    before = given()
    reader = ds.insitu.reader(["a"], sample_dim="t")
    for k in range(16):
        reader.read(k)
    assert given() > before
    reader.close()
    assert (given(), reader.stats.resident_bytes) == (before, 0)
    loader = ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=2, keep=True)
    epoch = iter(loader)
    assert sum(len(batch) for batch in epoch) == 16
    assert given() > before
    loader.close()
    gc.collect()
    assert (given(), loader.stats.resident_bytes) == (before, 0)
    with pytest.raises(StopIteration):
        next(epoch)
