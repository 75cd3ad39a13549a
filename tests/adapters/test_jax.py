"""Jax arrays hold what the numpy batch holds, in the same memory where jax can, and never change."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr.engine import blocks
from insitu_xr.errors import DtypeError, InsituError, RequestError
from insitu_xr.testing import assert_batches_equal
from tests.integration.servers import free_port

N = 24


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


def dataset(dtype: str = "float32", n: int = N) -> xr.Dataset:
    times = np.datetime64("2000-01-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    values = np.arange(n * 48).reshape(n, 6, 8).astype(dtype)
    return xr.Dataset(
        {"t": (("time", "y", "x"), values), "mask": (("y", "x"), np.arange(48, dtype="f4").reshape(6, 8))},
        {"time": times},
    )


class Numpy:
    """A batch of jax as the oracle looks at it."""

    def __init__(self, batch: insitu_xr.Batch) -> None:
        self._batch, self.positions = batch, batch.positions

    def __getitem__(self, name: str) -> Any:
        return np.asarray(self._batch[name])


@pytest.mark.parametrize("leads", [None, ["0h", "12h"]], ids=["plain", "window"])
def test_an_epoch_is_what_xarray_shows(jax: Any, leads: Any) -> None:
    ds = dataset()
    with ds.insitu.loader(variables=["t"], leads=leads, statics=["mask"], batch_size=5, shuffle=True) as loader:
        batches = loader.to("jax")
        assert len(batches) == len(loader)
        found = list(batches)
        assert all(isinstance(batch["t"], jax.Array) for batch in found)
        assert_batches_equal([Numpy(b) for b in found], ds, sample_dim="time", variables=["t"], leads=leads)
        np.testing.assert_array_equal(found[0].statics["mask"], ds["mask"].values)
        np.testing.assert_array_equal(found[0].anchors, ds["time"].values[found[0].positions])


def test_aligned_memory_is_adopted(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    pointers = []
    with dataset(n=5).insitu.loader(variables=["t"], batch_size=5) as loader:
        gathered = [array.ctypes.data for batch in loader for array in batch.arrays.values()]
        pointers = [batch["t"].unsafe_buffer_pointer() for batch in loader.to("jax")]
    assert pointers == gathered, "the block of the first epoch, used again and not copied"


@pytest.mark.parametrize("sharded", [False, True], ids=["default", "sharded"])
def test_a_retained_array_never_changes(jax: Any, monkeypatch: pytest.MonkeyPatch, sharded: bool) -> None:
    """Blocks go from batch to batch, but none that jax still refers to, itself or through a computation."""
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds, rng = dataset(), np.random.default_rng(0)
    values, kept, addresses = ds["t"].values, [], set()
    with ds.insitu.loader(variables=["t"], batch_size=4, shuffle="global", memory="2MiB") as loader:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch")) if sharded else None
        batches, steps = loader.to("jax", sharding=sharding), 0
        while steps < 300:
            for batch in batches:
                steps += 1
                addresses.add(batch["t"].unsafe_buffer_pointer())
                kept.append((batch["t"], values[batch.positions]))
                if len(kept) > 8:
                    array, expected = kept.pop(int(rng.integers(len(kept))))
                    np.testing.assert_array_equal(array, expected)
                    np.testing.assert_array_equal(jax.numpy.negative(array), -expected)
                del batch
    for array, expected in kept:
        np.testing.assert_array_equal(array, expected)
    assert len(addresses) < 150, "memory must have been used again for this test to say anything"


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("M8[ns]", r"'t' must have a dtype that jax knows, but got datetime64\[ns\]"),
        ("S3", r"'t' must have a dtype that jax knows, but got \|?S3"),
        (
            "f8",
            "'t' must have a dtype that jax keeps, but got float64, which it would make float32; give dtype='float32'",
        ),
        ("i8", "'t' must have a dtype that jax keeps, but got int64, which it would make int32"),
    ],
)
def test_a_dtype_that_jax_lacks_is_refused_by_name(jax: Any, dtype: str, message: str) -> None:
    values = np.zeros((4, 2)).astype(dtype)
    with xr.Dataset({"t": (("step", "x"), values)}).insitu.loader(variables=["t"], sample_dim="step") as loader:
        with pytest.raises(DtypeError, match=message):
            loader.to("jax")
        assert loader.stats.batches == 0


def test_what_is_no_sharding_is_refused(jax: Any) -> None:
    with dataset().insitu.loader(variables=["t"], batch_size=5) as loader:
        with pytest.raises(RequestError, match=r"sharding must be a jax\.sharding\.Sharding"):
            loader.to("jax", sharding="batch")
        with pytest.raises(RequestError, match=r"sharding must be by group, \['variables'\], but got 'inputs'"):
            loader.to("jax", sharding={"inputs": None})


def test_resuming_goes_on(jax: Any) -> None:
    options: dict[str, Any] = {"variables": ["t"], "batch_size": 5, "shuffle": True}
    with dataset().insitu.loader(**options) as loader, dataset().insitu.loader(**options) as other:
        batches, resumed = loader.to("jax"), other.to("jax")
        epoch = iter(batches)
        next(epoch)
        resumed.load_state_dict(json.loads(json.dumps(batches.state_dict())))
        assert [b.positions.tolist() for b in resumed] == [b.positions.tolist() for b in epoch]


SHARDED = """
import numpy as np, xarray as xr, jax, insitu_xr
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tests.adapters.test_jax import dataset

assert len(jax.devices()) == 8
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "y"))
ds = dataset()
groups = dict(inputs=dict(variables=["t"]), targets=dict(variables=["t"], leads=["6h"]))
options = dict(**groups, statics=["mask"], shuffle=True)
with ds.insitu.loader(**options, batch_size=8, drop_last=True) as loader:
    expected = list(loader)
    loader.set_epoch(0)
    for sharding in (NamedSharding(mesh, P("batch")), {"inputs": NamedSharding(mesh, P("batch", "y"))}):
        loader.set_epoch(0)
        found = list(loader.to("jax", sharding=sharding))
        assert len(found) == len(expected) == 2
        for one, other in zip(found, expected, strict=True):
            for key, array in other.arrays.items():
                made = one.arrays[key]
                np.testing.assert_array_equal(np.asarray(made), array, strict=True)
                wanted = sharding if not isinstance(sharding, dict) else sharding.get(key[0])
                if wanted is not None and key[0] != "statics":
                    assert made.sharding == wanted and len(made.addressable_shards) == 8
                    shape = (2, *array.shape[1:]) if not isinstance(sharding, dict) else (2, 3, 8)
                    assert {shard.data.shape for shard in made.addressable_shards} == {shape}
        for key in (("statics", "mask"),):
            if not isinstance(sharding, dict):
                assert found[0].arrays[key].sharding.is_fully_replicated
with ds.insitu.loader(**options, batch_size=8) as loader:
    try:
        loader.to("jax", sharding=NamedSharding(mesh, P("batch")))
    except insitu_xr.InsituError as error:
        print(error)
"""


def test_batches_are_laid_out_over_devices(jax: Any) -> None:
    """Eight devices that the CPU plays, in a process of their own: their number is fixed when jax begins."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHARDED],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **flags, "PYTHONPATH": ".:adapters"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "must divide among the devices of the sharding, but got one of shape (7, " in done.stdout
    assert "drop_last=True" in done.stdout


PROCESSES = """
import sys
import numpy as np, jax, insitu_xr
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tests.adapters.test_jax import dataset

port, process = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
assert (jax.process_count(), len(jax.local_devices()), len(jax.devices())) == (2, 2, 4)
devices, ds = np.array(jax.devices()), dataset(n=26)
values, mask = ds["t"].values, ds["mask"].values
groups = dict(inputs=dict(variables=["t"]), targets=dict(variables=["t"], leads=["6h"]), statics=["mask"])
total = jax.jit(lambda array: array.sum())


def loader(**options):
    return ds.insitu.loader(**groups, shuffle=True, seed=4, batch_size=4, drop_last=True, **options)


def alone(rank, count):
    with loader(rank=rank, world_size=count) as one:
        return [batch.positions for batch in one]


def check(sharding, count, pieces=1):
    parts = [alone(rank, count) for rank in range(count)]
    drawn = np.concatenate([positions for part in parts for positions in part])
    assert len(set(drawn.tolist())) == len(drawn) == count * 4 * len(parts[0])
    own = parts[process if count == 2 else 0]
    with loader() as source:
        found = list(source.to("jax", sharding=sharding))
    assert [batch.positions.tolist() for batch in found] == [positions.tolist() for positions in own]
    for step, batch in enumerate(found):
        # Pieces of the processes by turns, as their devices are in the mesh.
        rows = np.stack([part[step].reshape(pieces, -1) for part in parts], axis=1).ravel()
        for array, shown in ((batch.inputs["t"], values[rows]), (batch.targets["t"], values[rows + 1][:, None])):
            assert array.sharding == sharding and array.shape == shown.shape
            assert len(array.addressable_shards) == 2
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), shown[shard.index], strict=True)
            assert float(total(array)) == shown.sum(dtype="f8"), "as the processes compute it together"
        assert batch.statics["mask"].sharding.is_fully_replicated
        np.testing.assert_array_equal(np.asarray(batch.statics["mask"].addressable_data(0)), mask)


square = Mesh(devices.reshape(2, 2), ("batch", "y"))
check(NamedSharding(square, P("batch")), 2)
check(NamedSharding(square, P(("batch", "y"))), 2)
check(NamedSharding(Mesh(devices[[0, 2, 1, 3]], ("batch",)), P("batch")), 2, pieces=2)
# Where the batch axis does not tell processes apart, they read the same.
check(NamedSharding(square, P()), 1)
with loader() as source, loader(rank=process, world_size=2) as given:
    rank_by_process = [batch.positions.tolist() for batch in source.to("jax")]
    assert rank_by_process == [batch.positions.tolist() for batch in given]
# Fields that are divided among processes, here along y.
across = NamedSharding(Mesh(devices.reshape(2, 2).T, ("batch", "y")), P("batch", "y"))
with ds.insitu.loader(variables=["t"], shuffle=True, seed=4, batch_size=4) as source:
    array = next(iter(source.to("jax", sharding=across)))["t"]
    with ds.insitu.loader(variables=["t"], shuffle=True, seed=4, batch_size=4, rank=0, world_size=1) as one:
        shown = next(iter(one))["t"]
    assert array.shape == shown.shape == (4, 6, 8)
    for shard in array.addressable_shards:
        assert shard.data.shape == (2, 3, 8)
        np.testing.assert_array_equal(np.asarray(shard.data), shown[shard.index], strict=True)


def refused(sharding, **options):
    with loader(**options) as source:
        try:
            source.to("jax", sharding=sharding)
        except insitu_xr.errors.RequestError as error:
            print(error)
        else:
            print("not refused")


refused(NamedSharding(square, P("batch")), rank=0, world_size=1)
refused(NamedSharding(Mesh(devices[:3], ("batch",)), P("batch")))
refused({"inputs": NamedSharding(square, P("batch")), "targets": NamedSharding(square, P())})
if process == 1:
    refused(NamedSharding(Mesh(devices[:2], ("batch",)), P("batch")))
"""


@pytest.mark.slow
def test_processes_give_their_rows_of_global_arrays(jax: Any, tmp_path: Path) -> None:
    """Two processes with two devices each, which compute together."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **flags, "PYTHONPATH": ".:adapters"}
    port = str(free_port())
    logs = [tmp_path / f"{process}.txt" for process in range(2)]
    started = []
    try:
        for process, log in enumerate(logs):
            command = [sys.executable, "-W", "error", "-c", PROCESSES, port, str(process)]
            with log.open("w") as file:
                started.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
        for each in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(timeout=120)
    finally:
        for each in started:
            each.kill()
            each.wait()
    printed = [log.read_text() for log in logs]
    assert [each.returncode for each in started] == [0, 0], "\n".join(printed)
    for process, text in enumerate(printed):
        lines = [line for line in text.splitlines() if not line.startswith("[Gloo]")]
        assert lines[0].startswith("rank and world_size must be those of this process in the sharding, ")
        assert f", {process} and 2, but got 0 and 1; leave them out" in lines[0]
        assert lines[1].startswith("sharding must give processes the same samples, or none in common")
        assert lines[2].startswith("shardings must give all groups of a process the same samples")
        assert len(lines) == 3 + process
    assert lines[3].startswith("sharding must have devices of every process that reads")


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    message = r'pip install "insitu-xr\[jax\]"'
    with dataset().insitu.loader(variables=["t"]) as loader, pytest.raises(ImportError, match=message) as caught:
        loader.to("jax")
    assert isinstance(caught.value, InsituError)
