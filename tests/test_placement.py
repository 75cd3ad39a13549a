"""Batches equal what xarray shows wherever chunks go: into slots, or straight into batches; read from real folders."""

from __future__ import annotations

from collections import Counter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.plan import plan as planning
from insitu_xr.testing import CountingStore, assert_batches_equal, expected_group, kept_anchors
from insitu_xr.testing.oracle import assert_same
from insitu_xr.testing.strategies import datasets, requests, selections
from insitu_xr.testing.writing import StoredDataset, StoredVariable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from insitu_xr.loader import Loader

CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


def is_spread(loader: Loader) -> bool:
    return loader.plan.spread is not None


def cast(ds: xr.Dataset, dtype: str | None) -> xr.Dataset:
    if dtype is None:
        return ds
    return ds.assign({str(name): array.astype(dtype) for name, array in ds.data_vars.items()})


def check_drawn(data: st.DataObject, stored: StoredDataset, store: Any, used: Counter[bool]) -> None:
    """Draw a selection and a request, and compare three epochs with xarray."""
    ds = data.draw(selections(stored.open(store)), label="selection").apply(stored.open(store))
    request = data.draw(requests(ds), label="request")
    one_lead = data.draw(st.booleans(), label="at most one lead")
    leads = request.leads[:1] if request.leads and one_lead else request.leads
    dtype = data.draw(st.sampled_from([None, None, "float32", "complex128"]), label="dtype")
    keep = data.draw(st.sampled_from([None, True, False]), label="keep")
    asked = {"sample_dim": "time", **request.arguments(), "leads": leads, "dtype": dtype, "drop_last": False}
    minimum = ds.insitu.plan(**asked).minimum_memory
    memory = None if request.room == 1.0 else int(minimum * (1 + 6 * request.room))
    names = list(request.variables)
    eager = cast(ds[names].compute(), dtype)
    kept = kept_anchors(ds, "time", leads)
    with ds.insitu.loader(**asked, memory=memory, keep=keep) as loader:
        used[is_spread(loader)] += 1
        for epoch in range(3):
            before = loader.stats.reads
            batches = list(loader)
            options: dict[str, Any] = {"variables": names, "leads": leads}
            assert assert_batches_equal(batches, eager, sample_dim="time", **options) == len(kept)
            assert len(batches) == len(loader)
            if epoch == 0:
                assert loader.stats.reads - before == loader.plan.reads
        assert loader.stats.peak_bytes <= loader.plan.peak_bytes <= loader.plan.budget.ceiling


@settings(CALM, max_examples=30)
@given(data=st.data(), stored=datasets(max_variables=3))
def compare_folders(used: Counter[bool], data: st.DataObject, stored: StoredDataset) -> None:
    with TemporaryDirectory() as folder:
        stored.write(LocalStore(folder))
        for _ in range(3):
            check_drawn(data, stored, LocalStore(folder, read_only=True), used)


@settings(CALM, max_examples=25)
@given(data=st.data(), stored=datasets(max_variables=3))
def compare_stores(used: Counter[bool], data: st.DataObject, stored: StoredDataset) -> None:
    sync = data.draw(st.sampled_from([None, False]), label="sync")
    check_drawn(data, stored, CountingStore(stored.store, sync=sync), used)


@pytest.mark.slow
@pytest.mark.parametrize("compare", [compare_folders, compare_stores], ids=["folders", "stores"])
def test_every_batch_equals_xarray(placement: str, compare: Callable[[Counter[bool]], None]) -> None:
    used: Counter[bool] = Counter()
    compare(used)
    assert used[True] > 10 if placement == "spread" else not used[True]


GRID = {"level": 2, "y": 4, "x": 6}
STEPS = 20


def weather(**options: Any) -> StoredDataset:
    """Store variables on one grid: packed, sharded, with levels, in another order, with chunks at the edge, static."""
    shape = (STEPS, 4, 6)
    return StoredDataset(
        variables=(
            StoredVariable("t2m", ("time", "y", "x"), shape, chunks=(3, 4, 6), kind="packed", seed=1, **options),
            StoredVariable("u10", ("time", "y", "x"), shape, chunks=(1, 4, 3), seed=2, **options),
            StoredVariable("msl", ("time", "y", "x"), shape, chunks=(2, 3, 4), shards=(4, 6, 8), seed=3, **options),
            StoredVariable("q", ("y", "time", "x"), (4, STEPS, 6), chunks=(3, 6, 6), seed=4, **options),
            StoredVariable("z", ("time", "level", "y", "x"), (STEPS, 2, 4, 6), chunks=(7, 1, 4, 6), seed=5, **options),
            StoredVariable("lsm", ("y", "x"), (4, 6), chunks=(4, 4), kind="uint8", seed=6, **options),
        ),
        times=(*range(12), *range(14, 14 + STEPS - 12)),
        sizes=GRID,
    )


@pytest.fixture(scope="module", params=["compressed", "plain"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder that holds the weather."""
    path = tmp_path_factory.mktemp(request.param)
    weather(compressed=request.param == "compressed").write(LocalStore(path))
    return path


def opened(folder: Path) -> xr.Dataset:
    return weather().open(LocalStore(folder, read_only=True))


CUTS: dict[str, dict[str, Any]] = {
    "all": {},
    "region": {"y": slice(1, 3), "x": slice(2, 5)},
    "backwards": {"time": slice(None, None, -1), "y": slice(None, None, -1), "x": slice(4, None, -1)},
    "any order": {"x": [4, 0, 5, 3, 1, 2], "y": [3, 0, 1, 2]},
    # All of the first chunk along x is wanted in its own order, but it does not lie side by side in the field.
    "whole chunks apart": {"x": [0, 4, 1, 2, 3, 5]},
    "repeated": {"x": [1, 1, 0], "y": [2]},
    "strided": {"time": slice(1, None, 3), "x": slice(0, None, 2)},
    "a row": {"y": 2},
}
VARIABLES = ["t2m", "u10", "msl", "q", "z"]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_selections_of_folders(placement: str, folder: Path, cut: str, shuffle: bool) -> None:
    ds = opened(folder).isel(CUTS[cut])
    eager = ds[VARIABLES].compute()
    with ds.insitu.loader(variables=VARIABLES, batch_size=3, shuffle=shuffle) as loader:
        assert is_spread(loader) == (placement == "spread")
        for _ in range(3):
            assert_batches_equal(loader, eager, sample_dim="time", variables=VARIABLES)


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("leads", [None, ["1h"], ["-1h", "0h", "4h"]])
def test_stacked_channels_of_folders(placement: str, folder: Path, leads: list[str] | None, dtype: str | None) -> None:
    ds = opened(folder).isel(x=[5, 0, 3, 4], y=slice(None, None, -1))
    eager = cast(ds.compute(), dtype)
    asked: dict[str, Any] = {"variables": VARIABLES, "leads": leads, "statics": ["lsm"], "dtype": dtype}
    with ds.insitu.loader(**asked, batch_size=3, shuffle=True, layout="stacked") as loader:
        assert is_spread(loader) == (placement == "spread" and len(leads or [0]) == 1)
        for _ in range(3):
            seen: list[int] = []
            for batch in loader:
                positions = batch.positions.tolist()
                expected = [channel(eager, str(label), positions) for label in batch.channels]
                stacked = np.stack(expected, axis=1)
                assert stacked.shape[1] == 6 * len(leads or [0]) + 1
                assert_same(batch.variables, stacked, str(list(batch.channels)))
                seen += positions
            assert sorted(seen) == kept_anchors(ds, "time", leads)


def channel(eager: xr.Dataset, label: str, positions: list[int]) -> Any:
    """Work out one channel from its label: name, level and lead."""
    what, _, lead = label.partition("@")
    name = next(name for name in (*VARIABLES, "lsm") if what.startswith(name))
    level = what.removeprefix(name)
    if name == "lsm":
        return np.broadcast_to(eager[name].values, (len(positions), *eager[name].shape))
    asked: dict[str, Any] = {"sample_dim": "time", "variables": [name], "leads": [lead or "0h"]}
    values = expected_group(eager, positions, **asked)[name][:, 0]
    return values[:, list(eager.level.values).index(int(level))] if level else values


@pytest.mark.parametrize("leads", [["0h"], ["-1h", "0h"]], ids=["taken twice", "windows beside"])
def test_several_takes_of_a_variable(placement: str, folder: Path, leads: list[str]) -> None:
    """With one lead in all, t2m goes to two places of every batch; with windows, some go to slots and some do not."""
    ds = opened(folder)
    groups: dict[str, dict[str, Any]] = {
        "inputs": {"variables": ["t2m", "u10"], "leads": leads},
        "targets": {"variables": ["t2m", "z"], "leads": ["0h"]},
    }
    eager = ds.compute()
    with ds.insitu.loader(**groups, statics=["lsm"], batch_size=4, shuffle=True) as loader:
        if placement == "spread":
            slots = loader.plan.spread.slots
            assert 0 in slots
            assert any(slots)
        seen: list[int] = []
        for batch in loader:
            positions = batch.positions.tolist()
            for group, asked in groups.items():
                for name, values in expected_group(eager, positions, sample_dim="time", **asked).items():
                    assert_same(getattr(batch, group)[name], values, f"{group}, {name}")
            assert_same(batch.statics["lsm"], eager.lsm.values, "lsm")
            seen += positions
    assert sorted(seen) == kept_anchors(ds, "time", ["0h", *leads])


def test_absent_chunks_of_folders_hold_the_fill_value(placement: str, tmp_path: Path) -> None:
    written = weather(absent=(0, 2, 5), sparse=True)
    written.write(LocalStore(tmp_path))
    ds = written.open(LocalStore(tmp_path))
    with ds.insitu.loader(variables=VARIABLES, batch_size=3) as loader:
        assert_batches_equal(loader, ds, sample_dim="time", variables=VARIABLES)
        assert loader.stats.absent > 3
        assert loader.stats.gets <= loader.stats.reads + 6


def test_batches_that_are_kept_do_not_change(placement: str, folder: Path) -> None:
    ds = opened(folder)
    with ds.insitu.loader(variables=VARIABLES, batch_size=3, shuffle=True) as loader:
        kept = [batch for _ in range(3) for batch in loader]
    eager = ds[VARIABLES].compute()
    for epoch in range(3):
        mine = kept[epoch * len(loader) : (epoch + 1) * len(loader)]
        assert_batches_equal(mine, eager, sample_dim="time", variables=VARIABLES)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_small_batches_are_made_several_at_once(
    placement: str, layout: str, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = (
        StoredVariable("a", ("time", "y"), (STEPS, 4), chunks=(STEPS, 4)),
        StoredVariable("s", ("y",), (4,), chunks=(4,)),
    )
    ds = StoredDataset(coarse, times=tuple(range(STEPS)), sizes={"y": 4}).open()
    asked: dict[str, Any] = {"variables": ["a"], "batch_size": 3, "shuffle": shuffle, "layout": layout, "seed": 1}
    found, strides = [], []
    for most in (1, 4, 16):
        monkeypatch.setattr(planning, "STEP_BATCHES", most)
        with ds.insitu.loader(**asked, statics=["s"]) as loader:
            assert is_spread(loader) == (placement == "spread")
            strides.append(loader.plan.stride)
            batches = list(loader)
            assert loader.stats.batches == len(batches) == len(loader)
            assert loader.stats.reads == loader.plan.reads == 2
            found.append([(batch.positions.tolist(), copied(batch.arrays)) for batch in batches])
            # What is written to one batch is not seen in another.
            for number, batch in enumerate(batches):
                for array in batch.arrays.values():
                    array[...] = number
            assert all((array == k).all() for k, batch in enumerate(batches) for array in batch.arrays.values())
    assert strides == [1, 4, 7]
    assert found[0] == found[1] == found[2]
    if layout == "dict":
        with ds.insitu.loader(**asked) as loader:
            assert_batches_equal(loader, ds, sample_dim="time", variables=["a"])


def copied(arrays: Any) -> list[Any]:
    return [(key, array.shape, array.dtype.str, array.tobytes()) for key, array in arrays.items()]


def test_a_step_left_in_its_midst_is_gone_on_with(placement: str) -> None:
    ds = StoredDataset((StoredVariable("a", ("time",), (STEPS,), chunks=(STEPS,)),), times=tuple(range(STEPS))).open()
    asked: dict[str, Any] = {"variables": ["a"], "batch_size": 2, "shuffle": True}
    with ds.insitu.loader(**asked) as loader:
        assert loader.plan.stride > 1
        whole = [batch.positions.tolist() for batch in loader]
        for stop in range(len(loader)):
            with ds.insitu.loader(**asked) as again:
                batches = iter(again)
                first = [next(batches).positions.tolist() for _ in range(stop)]
                state = again.state_dict()
                assert again.stats.batches == stop
            with ds.insitu.loader(**asked) as resumed:
                resumed.load_state_dict(state)
                assert first + [batch.positions.tolist() for batch in resumed] == whole
