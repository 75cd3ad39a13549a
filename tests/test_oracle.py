"""Every batch equals what xarray shows, over generated stores, selections and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.testing import CountingStore, assert_batches_equal, expected_group, kept_anchors
from insitu_xr.testing.oracle import assert_same
from insitu_xr.testing.strategies import Request, datasets, requests, selections
from insitu_xr.testing.writing import StoredDataset, StoredVariable

if TYPE_CHECKING:
    from collections.abc import Iterable

Opening = Literal["lazy", "dask", "memory"]
OPENINGS: tuple[Opening, ...] = ("lazy", "dask", "memory")
#: Each drawn dataset is asked this many times, with a selection and a request of its own.
CASES = 5
#: Drawing a store takes its time.
CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


def open_as(stored: StoredDataset, opening: Opening, store: CountingStore | None = None) -> xr.Dataset:
    ds = stored.open(store, chunks={} if opening == "dask" else None)
    return ds.load() if opening == "memory" else ds


def ceiling(ds: xr.Dataset, arguments: dict[str, Any], room: float) -> int | None:
    """Find the ceiling of a request: None where it is ample."""
    minimum: int = ds.insitu.plan(**arguments).minimum_memory
    return None if room == 1.0 else int(minimum * (1 + 3 * room))


def check(ds: xr.Dataset, request: Request) -> None:
    arguments = {"sample_dim": "time", **request.arguments()}
    memory = ceiling(ds, arguments, request.room)
    names, eager = list(request.variables), ds[list(request.variables)].compute()
    kept = kept_anchors(ds, "time", request.leads)
    expected = len(kept) - (len(kept) % request.batch_size if request.drop_last else 0)
    with ds.insitu.loader(**arguments, memory=memory) as loader:
        for _epoch in range(2):
            batches = list(loader)
            options: dict[str, Any] = {"variables": names, "leads": request.leads, "complete": not request.drop_last}
            assert assert_batches_equal(batches, eager, sample_dim="time", **options) == expected
            assert len(batches) == len(loader)
            assert [len(batch) for batch in batches[:-1]] == [request.batch_size] * (len(batches) - 1)
            for batch in batches[:1] + batches[-1:]:
                check_labels(eager, batch, request)
        if memory is not None:
            assert loader.stats.peak_bytes <= memory


def check_labels(eager: xr.Dataset, batch: Any, request: Request) -> None:
    positions = list(batch.positions)
    labels = eager["time"].values if "time" in eager.indexes else np.arange(eager.sizes["time"])
    np.testing.assert_array_equal(batch.anchors, labels[positions])
    if request.leads is None:
        xr.testing.assert_identical(batch.to_xarray(), eager.isel(time=positions))


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute on an idle machine
@settings(CALM, max_examples=110)
@given(datasets(), st.data())
def test_every_batch_equals_xarray(stored: StoredDataset, data: st.DataObject) -> None:
    opened = {opening: open_as(stored, opening) for opening in OPENINGS}
    for case in range(CASES):
        ds = opened[data.draw(st.sampled_from(["lazy", *OPENINGS]), label=f"opening {case}")]
        selected = data.draw(selections(ds), label=f"selection {case}").apply(ds)
        check(selected, data.draw(requests(selected), label=f"request {case}"))


@settings(CALM, max_examples=50)
@given(datasets(max_variables=2), st.data())
def test_reads_and_bytes_are_as_planned(stored: StoredDataset, data: st.DataObject) -> None:
    store = CountingStore(stored.store, sync=data.draw(st.sampled_from([None, False]), label="sync"))
    ds = open_as(stored, "lazy", store)
    selected = data.draw(selections(ds)).apply(ds)
    request = data.draw(requests(selected))
    arguments = {"sample_dim": "time", **request.arguments()}
    memory = ceiling(selected, arguments, request.room)
    with selected.insitu.loader(**arguments, memory=memory) as loader:
        store.reset()
        for _ in loader:
            pass
        assert loader.stats.reads == loader.plan.reads
        assert loader.plan.reads >= loader.plan.chunks or request.drop_last
        assert store.metadata_gets == []
        assert loader.stats.gets == len(store.data_gets)
        assert loader.stats.bytes_read == store.bytes_read
        if memory is None:
            assert loader.plan.reads <= loader.plan.chunks


@settings(CALM, max_examples=40)
@given(datasets(max_variables=1), st.data())
def test_the_order_depends_on_seed_and_epoch_alone(stored: StoredDataset, data: st.DataObject) -> None:
    ds = stored.open()
    request = data.draw(requests(ds))
    arguments = {"sample_dim": "time", **request.arguments()}

    def epochs(numbers: Iterable[int], **changes: Any) -> list[list[int]]:
        orders = []
        with ds.insitu.loader(**arguments | changes) as loader:
            for number in numbers:
                loader.set_epoch(number)
                orders.append([int(position) for batch in loader for position in batch.positions])
        return orders

    memory = ds.insitu.plan(**arguments).minimum_memory
    first, second = epochs([0, 1])
    assert epochs([1, 0]) == [second, first]
    assert epochs([0, 1], memory=memory) == [first, second]
    if not request.shuffle:
        assert first == second == sorted(first)


GRID = {"level": 2, "y": 3, "x": 4}


def weather() -> StoredDataset:
    """Store three variables on one grid, of which z has levels and q another order and chunking."""
    shape = (20, 3, 4)
    return StoredDataset(
        variables=(
            StoredVariable("t2m", ("time", "y", "x"), shape, chunks=(3, 2, 4), kind="packed", seed=1),
            StoredVariable("msl", ("time", "y", "x"), shape, chunks=(7, 3, 4), kind="float32", seed=2),
            StoredVariable("q", ("y", "time", "x"), (3, 20, 4), chunks=(1, 6, 4), kind="float32", seed=3),
            StoredVariable("z", ("time", "level", "y", "x"), (20, 2, 3, 4), chunks=(4, 1, 3, 4), seed=4),
            StoredVariable("lsm", ("y", "x"), (3, 4), chunks=(2, 2), kind="uint8", seed=5),
        ),
        times=(*range(12), *range(14, 22)),
        sizes=GRID,
    )


@pytest.mark.parametrize("opening", ["lazy", "dask", "memory"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_inputs_and_targets(opening: Opening, shuffle: bool) -> None:
    ds = open_as(weather(), opening)
    groups: dict[str, dict[str, Any]] = {
        "inputs": {"variables": ["t2m", "z"], "leads": ["-1h", "0h"]},
        "targets": {"variables": ["t2m", "q"], "leads": ["1h", "4h"]},
    }
    seen: list[int] = []
    with ds.insitu.loader(**groups, statics=["lsm"], batch_size=4, shuffle=shuffle, seed=3) as loader:
        for batch in loader:
            positions = batch.positions.tolist()
            for group, asked in groups.items():
                expected = expected_group(ds.compute(), positions, sample_dim="time", **asked)
                actual = getattr(batch, group)
                assert list(actual) == list(expected)
                for name, values in expected.items():
                    assert_same(actual[name], values, f"{group}, {name}")
            assert_same(batch.statics["lsm"], ds.lsm.compute().values, "lsm")
            seen.extend(positions)
    assert sorted(seen) == kept_anchors(ds, "time", ["-1h", "0h", "1h", "4h"])


def channel(eager: xr.Dataset, label: str, positions: list[int]) -> Any:
    """Work out one channel from its label: name, level and lead."""
    what, _, lead = label.partition("@")
    name = next(name for name in ("t2m", "msl", "q", "z") if what.startswith(name))
    values = expected_group(eager, positions, sample_dim="time", variables=[name], leads=[lead or "0h"])[name][:, 0]
    level = what.removeprefix(name)
    return values[:, list(eager.level.values).index(int(level))] if level else values


@pytest.mark.parametrize("opening", ["lazy", "dask", "memory"])
@pytest.mark.parametrize("leads", [None, ["0h"], ["-1h", "0h", "2h"]])
def test_stacked_channels(opening: Opening, leads: list[str] | None) -> None:
    ds = open_as(weather(), opening)
    eager = ds.compute()
    with ds.insitu.loader(
        variables=["msl", "z", "q"], leads=leads, batch_size=3, shuffle=True, layout="stacked"
    ) as loader:
        seen: list[int] = []
        for batch in loader:
            positions = batch.positions.tolist()
            labels = [str(label) for label in batch.channels]
            assert len(set(labels)) == len(labels) == 4 * len(leads or [0])
            assert batch.variables.shape == (len(positions), len(labels), 3, 4)
            expected = np.stack([channel(eager, label, positions) for label in labels], axis=1)
            assert_same(batch.variables, expected, str(labels))
            seen.extend(positions)
    assert sorted(seen) == kept_anchors(ds, "time", leads)


def test_stacked_mixed_dtypes_take_the_common_one() -> None:
    ds = weather().open()
    with ds.insitu.loader(variables=["t2m", "msl"], batch_size=5, layout="stacked") as loader:
        batch = next(iter(loader))
    assert [str(label) for label in batch.channels] == ["t2m", "msl"]
    expected = np.stack([ds.t2m.values[:5], ds.msl.values[:5].astype("f8")], axis=1)
    assert_same(batch.variables, expected, "stacked")


def test_dtype_casts_every_array() -> None:
    ds = weather().open()
    with ds.insitu.loader(variables=["t2m", "msl"], batch_size=5, dtype="float32") as loader:
        batch = next(iter(loader))
    for name in ("t2m", "msl"):
        assert_same(batch[name], ds[name].values[:5].astype("f4"), name)


def test_batches_are_owned_by_the_consumer() -> None:
    ds = weather().open()
    with ds.insitu.loader(variables=["t2m", "msl"], batch_size=4) as loader:
        kept = [(batch, batch["t2m"].copy(), batch["msl"].copy()) for batch in loader]
        for batch in loader:
            batch["t2m"][...] = 0
            batch["msl"][...] = 0
    for batch, t2m, msl in kept:
        assert_same(batch["t2m"], t2m, "t2m")
        assert_same(batch["msl"], msl, "msl")
    assert_batches_equal([batch for batch, *_ in kept], ds, sample_dim="time", variables=["t2m", "msl"])


def test_a_data_array_loads_like_its_dataset() -> None:
    array = weather().open()["t2m"].isel(y=slice(1, None))
    with array.insitu.loader(batch_size=6) as loader:
        assert_batches_equal(loader, array.to_dataset(), sample_dim="time", variables=["t2m"])


def test_leads_and_valid_times() -> None:
    ds = weather().open()
    with ds.insitu.loader(variables=["t2m"], leads=["-1h", "2h"], batch_size=50) as loader:
        batch = next(iter(loader))
    leads = np.array([-1, 2], "m8[h]").astype("m8[ns]")
    np.testing.assert_array_equal(batch.leads, leads, strict=True)
    np.testing.assert_array_equal(batch.valid_times, batch.anchors[:, None] + leads)
