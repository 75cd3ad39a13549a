"""Jax arrays hold what the numpy batch holds, in the same memory where jax can, and never change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr.engine import blocks
from insitu_xr.errors import DtypeError, InsituError, RequestError
from insitu_xr.testing import assert_batches_equal

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


def test_a_retained_array_never_changes(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go from batch to batch, but none that jax still refers to, itself or through a computation."""
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds, rng = dataset(), np.random.default_rng(0)
    values, kept, addresses = ds["t"].values, [], set()
    with ds.insitu.loader(variables=["t"], batch_size=4, shuffle="global", memory="2MiB") as loader:
        batches, steps = loader.to("jax"), 0
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


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    message = r'pip install "insitu-xr\[jax\]"'
    with dataset().insitu.loader(variables=["t"]) as loader, pytest.raises(ImportError, match=message) as caught:
        loader.to("jax")
    assert isinstance(caught.value, InsituError)
