"""Splits, from labels to batches: nothing is used by two, and nobody else's manifest is taken."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr import Manifest
from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.testing import CountingStore

if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR = pd.Timedelta("1h")


def dataset(labels: Any, n: int = 0, dim: str = "time") -> xr.Dataset:
    size = n if labels is None else len(labels)
    values = np.arange(size, dtype="f4")
    coords = {} if labels is None else {dim: labels}
    return xr.Dataset({"t2m": (dim, values), "z": ((dim, "x"), values[:, None] * [1, 2])}, coords)


def stored(ds: xr.Dataset, chunk: int = 7) -> xr.Dataset:
    store = MemoryStore()
    ds.to_zarr(store, encoding={"t2m": {"chunks": (chunk,)}, "z": {"chunks": (chunk, 2)}}, consolidated=False)
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened


def labels_of(ds: xr.Dataset, manifest: Manifest, split: str, dim: str = "time") -> list[Any]:
    return list(ds[dim].to_numpy()[manifest.split_positions(split)])


def used(ds: xr.Dataset, manifest: Manifest, split: str, **request: Any) -> tuple[list[Any], set[Any]]:
    """Anchors that a split draws, and all labels that its batches hold."""
    anchors: list[Any] = []
    labels: set[Any] = set()
    with ds.insitu.loader(manifest=manifest, split=split, batch_size=5, **request) as loader:
        for batch in loader:
            valid = batch.valid_times
            for times in valid.values() if isinstance(valid, dict) else [valid]:
                labels |= set(times.ravel().tolist())
            anchors += batch.anchors.tolist()
    return anchors, labels


# -- exact labels ------------------------------------------------------------------------------------------------


def test_days_are_whole_and_timestamps_are_instants() -> None:
    """Field report 38."""
    ds = dataset(pd.date_range("2000-01-01", periods=40, freq="6h"))
    days = ds.insitu.split(train=slice("2000-01-01", "2000-01-02"))
    instant = ds.insitu.split(train=slice("2000-01-01", pd.Timestamp("2000-01-02")))
    assert len(days.split_positions("train")) == 8
    assert len(instant.split_positions("train")) == 5


def test_the_same_labels_from_stores_that_start_at_different_dates() -> None:
    """Field report 53."""
    found = []
    for start in ("1940", "1979"):
        ds = stored(dataset(pd.date_range(start, "1985", freq="D")), chunk=100)
        manifest = ds.insitu.split(train=slice("1980", "1981"), val="1982")
        anchors, labels = used(ds, manifest, "train", variables=["t2m"], leads=["0D", "2D"])
        found.append((labels_of(ds, manifest, "train"), labels_of(ds, manifest, "val"), anchors, labels))
    assert found[0] == found[1]
    assert len(found[0][0]) == 366 + 365
    assert len(found[0][2]) == 366 + 365 - 2


def test_a_split_is_not_snapped_to_chunks() -> None:
    ds = stored(dataset(pd.date_range("2000-01-01", periods=60)), chunk=7)
    manifest = ds.insitu.split(train=slice("2000-01-05", "2000-01-17"), val=slice("2000-01-18", "2000-01-18"))
    assert len(used(ds, manifest, "train", variables=["t2m"])[0]) == 13
    assert len(used(ds, manifest, "val", variables=["t2m"])[0]) == 1


def test_len_is_exact_with_gaps_and_partial_batches() -> None:
    """Field reports 57 and 69."""
    times = pd.date_range("2000-01-01", periods=200, freq="6h").delete([20, 21, 60])
    ds = dataset(times)
    manifest = ds.insitu.split(fractions=(0.8, 0.1, 0.1), gap="1D")
    for drop_last in (False, True):
        for split in ("train", "val", "test"):
            loader = ds.insitu.loader(
                variables=["t2m"],
                leads=["0h", "6h"],
                manifest=manifest,
                split=split,
                batch_size=4,
                drop_last=drop_last,
            )
            sizes = [len(batch) for batch in loader]
            kept = loader.plan.anchors_kept
            assert len(sizes) == len(loader) == (kept // 4 if drop_last else -(-kept // 4))
            assert sum(sizes) == (kept // 4 * 4 if drop_last else kept)
            assert kept + sum(d.count for d in loader.plan.dropped) == len(times)


def test_dropped_anchors_are_counted_by_reason() -> None:
    times = pd.date_range("2000-01-01", periods=20).delete([4])
    ds = dataset(times)
    manifest = ds.insitu.split(train=slice(None, "2000-01-10"), val=slice("2000-01-11", None))
    plan = ds.insitu.plan(variables=["t2m"], leads=["0D", "1D"], manifest=manifest, split="train")
    assert [str(d) for d in plan.dropped] == [
        "10 outside the split 'train' (2000-01-11, 2000-01-12, 2000-01-13, ...)",
        "1 in a gap at lead 1D of 't2m' (2000-01-04)",
        "1 reaching outside the split 'train' (2000-01-10)",
    ]
    assert plan.anchors_kept == 7
    assert "reaching outside the split 'train'" in repr(plan)


def test_other_names_and_masks() -> None:
    ds = dataset(pd.date_range("2000-01-01", "2001-12-31"))
    summer = ds.time.dt.month.isin([6, 7, 8]) & (ds.time.dt.year == 2000)
    manifest = ds.insitu.split(train=lambda t: t.year == 2001, summer=summer)
    assert list(manifest.splits) == ["train", "summer"]
    assert {t.astype("M8[M]").item().month for t in labels_of(ds, manifest, "summer")} == {6, 7, 8}
    assert len(labels_of(ds, manifest, "train")) == 365


def test_a_product_is_split_along_time() -> None:
    ds = xr.Dataset(
        {"t": (("time", "number"), np.arange(40.0).reshape(10, 4))},
        {"time": pd.date_range("2000-01-01", periods=10), "number": [3, 5, 7, 9]},
    )
    manifest = ds.insitu.split(fractions=(0.6, 0.4), sample_dim=("time", "number"))
    plan = ds.insitu.plan(
        variables=["t"], leads=["0D", "1D"], sample_dim=("time", "number"), manifest=manifest, split="train"
    )
    assert plan.anchors_kept == 5 * 4
    members = ds.insitu.split(train=[3, 9], test=5, sample_dim="number")
    plan = ds.insitu.plan(
        variables=["t"], leads=["0D", "1D"], sample_dim=("time", "number"), manifest=members, split="train"
    )
    assert plan.anchors_kept == 9 * 2
    assert plan.manifest.positions == (((0, 9, 1),), ((0, 6, 3),))
    again = ds.insitu.plan(variables=["t"], sample_dim=("time", "number"), manifest=plan.manifest)
    assert again.request.anchors.tolist() == plan.request.anchors.tolist()


# -- nothing is shared -------------------------------------------------------------------------------------------


@st.composite
def axes(draw: st.DrawFn) -> Any:
    """Gappy hours in some calendar and direction, or steps without labels (None)."""
    hours = np.cumsum(draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 7]), min_size=12, max_size=40)))
    kind = draw(st.sampled_from(["datetime", "noleap", "360_day", "none", "number"]))
    if kind == "none":
        return len(hours)
    if kind == "number":
        labels: Any = hours
    elif kind == "datetime":
        labels = pd.DatetimeIndex(pd.Timestamp("2000-02-28") + hours * HOUR).as_unit(draw(st.sampled_from(["s", "ns"])))
    else:
        start = xr.date_range("2000-02-28", periods=1, calendar=kind, use_cftime=True)[0]
        labels = pd.Index([start + pd.Timedelta(h, "h").to_pytimedelta() for h in hours.tolist()])
    return labels[:: draw(st.sampled_from([1, -1]))]


def split_unless_empty(ds: xr.Dataset, **arguments: Any) -> Manifest | None:
    try:
        manifest: Manifest = ds.insitu.split(**arguments)
    except RequestError as error:
        if "must hold at least one label" in str(error) or "must give every split something" in str(error):
            return None
        raise
    return manifest


def numeric(labels: Mapping[Any, float], some: Any) -> list[float]:
    return [labels[label] for label in some]


@settings(max_examples=60)
@given(st.data(), axes(), st.sampled_from(["time", "block"]), st.integers(0, 5), st.integers(0, 3))
def test_no_label_is_used_by_two_splits(data: st.DataObject, labels: Any, by: str, seed: int, gap: int) -> None:
    unlabelled = isinstance(labels, int)
    timed = not unlabelled and not np.issubdtype(np.asarray(labels).dtype, np.integer)
    ds = dataset(None, labels) if unlabelled else dataset(labels)
    steps = st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True)

    def leads(chosen: list[int]) -> list[Any]:
        return [f"{k}h" for k in chosen] if timed else list(chosen)

    ins, outs = data.draw(steps), data.draw(steps)
    request = {
        "inputs": {"variables": ["t2m", "z"], "leads": leads(ins)},
        "targets": {"variables": ["t2m"], "leads": leads(outs)},
    }
    block = {"block": data.draw(st.integers(3, 6))} if by == "block" else {}
    wanted = {"by": by, "seed": seed, "gap": f"{gap}h" if timed else gap, **block}
    manifest = split_unless_empty(ds, fractions=(0.5, 0.3, 0.2), sample_dim="time", **wanted)
    assume(manifest is not None)
    assert manifest is not None
    ticks = np.arange(labels) if unlabelled else np.asarray((labels - labels.min()) / HOUR if timed else labels)
    hours = dict(zip(ds.time.to_numpy().tolist(), ticks.tolist(), strict=True))
    seen: dict[str, tuple[list[Any], set[Any]]] = {}
    for name in manifest.splits:
        own = set(ticks[manifest.split_positions(name)].tolist())
        expected = [t for t in ticks.tolist() if t in own and all(t + k in own for k in (*ins, *outs))]
        try:
            seen[name] = used(ds, manifest, name, sample_dim="time", **request)
        except RequestError:
            assert expected == []
            continue
        assert numeric(hours, seen[name][0]) == expected
        assert set(numeric(hours, seen[name][1])) <= own
    for (anchors, read), (others, theirs) in combinations(seen.values(), 2):
        assert not (read | set(anchors)) & (theirs | set(others))
        assert np.abs(np.subtract.outer(numeric(hours, read), numeric(hours, theirs))).min() > gap


def test_a_window_over_the_boundary_is_in_neither_split() -> None:
    ds = dataset(pd.date_range("2000-01-01", periods=20))
    manifest = ds.insitu.split(train=slice(None, "2000-01-10"), val=slice("2000-01-11", None))
    request = {
        "inputs": {"variables": ["z"], "leads": ["-1D", "0D"]},
        "targets": {"variables": ["t2m"], "leads": ["2D"]},
    }
    train, read = used(ds, manifest, "train", **request)
    val, others = used(ds, manifest, "val", **request)
    days = [pd.Timestamp(t).day for t in train], [pd.Timestamp(t).day for t in val]
    assert days == (list(range(2, 9)), list(range(12, 19)))
    assert not read & others


def test_an_anchor_that_is_not_read_is_still_its_splits_own() -> None:
    ds = dataset(pd.date_range("2000-01-01", periods=20))
    manifest = ds.insitu.split(train=slice(None, "2000-01-10"), val=slice("2000-01-11", None))
    anchors, labels = used(ds, manifest, "val", variables=["t2m"], leads=["5D"])
    assert {pd.Timestamp(t).day for t in anchors} == set(range(11, 16))
    assert {pd.Timestamp(t).day for t in labels} == set(range(16, 21))


def test_jittered_labels_are_split_within_their_tolerance() -> None:
    times = pd.date_range("2000-01-01", periods=40, freq="6h") + pd.to_timedelta(np.arange(40) % 3, "ms")
    ds = dataset(times)
    request = {"leads": ["0h", "12h"], "time_tolerance": "1s"}
    manifest = ds.insitu.split(fractions=(0.5, 0.5), **request)
    train, read = used(ds, manifest, "train", variables=["t2m"], **request)
    val, others = used(ds, manifest, "val", variables=["t2m"], **request)
    assert (len(train), len(val)) == (18, 18)
    assert not read & others


def test_choices_and_splits_that_do_not_meet_are_refused() -> None:
    ds = dataset(pd.date_range("2000-01-01", periods=20))
    manifest = ds.insitu.split(train=slice(None, "2000-01-10"), val=slice("2000-01-11", None))
    request = {"variables": ["t2m"], "manifest": manifest, "split": "train"}
    assert ds.insitu.plan(anchors=slice("2000-01-08", None), leads=["0D", "1D"], **request).anchors_kept == 2
    with pytest.raises(RequestError, match="10 outside the split 'train'"):
        ds.insitu.plan(anchors=slice("2000-01-11", None), **request)


def test_members_that_do_not_meet_are_refused() -> None:
    ds = xr.Dataset(
        {"t": (("time", "number"), np.zeros((10, 4)))},
        {"time": pd.date_range("2000-01-01", periods=10), "number": [3, 5, 7, 9]},
    )
    manifest = ds.insitu.split(train=[3, 9], test=5, sample_dim="number")
    with pytest.raises(RequestError, match=r"10 outside the split 'train' \(5, 10 samples each\)"):
        ds.insitu.plan(
            variables=["t"], sample_dim=("time", "number"), manifest=manifest, split="train", anchors={"number": [5]}
        )


# -- gap and fractions -------------------------------------------------------------------------------------------


def test_labels_within_the_gap_of_a_boundary_belong_to_none() -> None:
    ds = dataset(pd.date_range("1999-01-01", "2001-12-31"))
    manifest = ds.insitu.split(train="1999", val="2000", test="2001", gap="10D")
    assert manifest.spans == {
        "train": ["1999-01-01", "1999-12-21"],
        "val": ["2000-01-11", "2000-12-21"],
        "test": ["2001-01-11", "2001-12-31"],
    }
    steps = dataset(None, 10).insitu.split(fractions=(0.5, 0.5), gap=2, sample_dim="time")
    assert steps.splits == {"train": ((0, 3, 1),), "val": ((7, 10, 1),)}


def test_blocks_are_dealt_out_by_the_seed() -> None:
    ds = dataset(pd.date_range("1990-01-01", "2009-12-31"))
    first, again, other = (ds.insitu.split(fractions=(0.8, 0.1, 0.1), by="block", seed=s) for s in (3, 3, 4))
    assert first == again
    assert first != other
    counts = {name: len(first.split_positions(name)) for name in first.splits}
    assert sum(counts.values()) == ds.sizes["time"]
    assert abs(counts["train"] / ds.sizes["time"] - 0.8) < 0.02
    months = ds.insitu.split(fractions={"tune": 0.25, "hold": 0.25}, by="block", block="30D", seed=0)
    assert {len(range(*r)) % 30 for r in months.splits["tune"]} == {0}


def test_blocks_are_long_enough_for_gap_and_leads() -> None:
    ds = dataset(pd.date_range("1990-01-01", "2009-12-31"))
    manifest = ds.insitu.split(fractions=(0.8, 0.1, 0.1), by="block", gap="10D", leads=["0D", "20D"])
    for name in manifest.splits:
        assert used(ds, manifest, name, variables=["t2m"], leads=["0D", "20D"])[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "split must be given labels or fractions"),
        ({"train": "2000", "val": "2000-02"}, "got 29 of 'time' in both 'train' and 'val', first 2000-02-01"),
        ({"train": "1990"}, "train must name labels of 'time', but got '1990'"),
        ({"train": slice("1990", "1991")}, "train must select at least one label"),
        ({"fractions": (0.999, 0.001)}, "got train 366, val 0 of 366 labels; raise the smallest fraction"),
        ({"fractions": (0.8, 0.3)}, r"sum up to 1 at most, but got .*\(sum 1.1\)"),
        ({"fractions": (1.2, -0.2)}, "must be above 0"),
        ({"fractions": (0.25,) * 4}, "at most 3 numbers, for train, val, test, but got 4"),
        ({"fractions": {"train": 0.5}, "train": "2000"}, "split 'train' must be given once"),
        ({"fractions": (0.5,), "test": "2000"}, "fractions must have labels of 'time' to share"),
        ({"fractions": (0.5, 0.5), "by": "week"}, "by must be 'time' or 'block', but got 'week'"),
        ({"fractions": (0.5, 0.5), "block": 3}, "block must be given with by='block'"),
        ({"fractions": (0.5, 0.5), "by": "block", "block": 0}, "block must be at least 1 label"),
        ({"fractions": (0.5, 0.5), "by": "block", "block": "1 fortnight"}, "block along 'time' must be a duration"),
        ({"fractions": (0.5, 0.5), "by": "block", "block": 300}, "got train 1, val 0 of 1 blocks.*shorter block="),
        ({"fractions": (0.5, 0.5), "by": "block", "seed": -1}, "seed must be a whole number"),
        ({"train": "2000-01", "by": "block"}, "by= and block= must be given with fractions="),
        (
            {"train": "2000-01", "val": "2000-02", "gap": 3},
            "gap along 'time' must be a duration such as '10D', but got 3",
        ),
        ({"train": "2000-01", "val": "2000-02", "gap": "-3D"}, "gap along 'time' must not be less than 0"),
        (
            {"train": "2000-01", "val": "2000-02", "gap": "29D"},
            "'val' must hold .* the gap of '29D' takes all of its 29",
        ),
        ({"train": "2000-01", "val": "2000-02-01", "leads": ["1D"]}, "'val' must hold at least one whole window"),
    ],
)
def test_what_is_wrong_with_a_split_is_said(arguments: dict[str, Any], message: str) -> None:
    ds = dataset(pd.date_range("2000-01-01", "2000-12-31"))
    with pytest.raises((RequestError, UnknownNameError), match=message):
        ds.insitu.split(**arguments)


# -- manifests ---------------------------------------------------------------------------------------------------


def test_a_manifest_survives_json(tmp_path: Path) -> None:
    ds = stored(dataset(pd.date_range("2000-01-01", periods=100)))
    manifest = ds.insitu.split(fractions=(0.5, 0.3, 0.2), by="block", block=5, gap="1D")
    text = manifest.to_json(tmp_path / "splits.json")
    assert Manifest.from_json(text) == Manifest.from_json(tmp_path / "splits.json") == manifest
    read = Manifest.from_json(str(tmp_path / "splits.json"))
    for split in ("train", "val", "test"):
        request = {"variables": ["t2m"], "leads": ["0D", "1D"]}
        assert used(ds, read, split, **request) == used(ds, manifest, split, **request)


def test_a_manifest_shows_its_splits() -> None:
    ds = dataset(pd.date_range("2000-01-01", periods=100))
    lines = repr(ds.insitu.split(train=slice(None, "2000-02"), val=["2000-03", "2000-04-01"])).splitlines()
    assert lines[1:] == [
        "  axis     100 labels of 'time' from 2000-01-01 to 2000-04-09",
        "  train    60 labels, 2000-01-01 to 2000-02-29",
        "  val      32 labels, 2000-03-01 to 2000-04-01",
        "  of       t2m, z",
    ]


def test_no_data_is_read() -> None:
    store = CountingStore(MemoryStore())
    ds = dataset(pd.date_range("2000-01-01", periods=100))
    ds.to_zarr(store, consolidated=False)
    opened = xr.open_zarr(store, chunks=None, consolidated=False)
    store.reset()
    manifest = opened.insitu.split(fractions=(0.8, 0.2), gap="3D")
    opened.insitu.plan(variables=["t2m"], manifest=manifest, split="val")
    assert store.data_gets == []


DAYS = pd.date_range("2000-01-01", periods=100)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (DAYS[:90], "made on 100 labels of 'time' from 2000-01-01 to 2000-04-09, where .* 90 labels .* to 2000-03-30"),
        (
            DAYS.append(DAYS[-1:] + 24 * HOUR),
            "has 101 labels .* to 2000-04-10: they differ in length and first or last",
        ),
        (DAYS + 24 * HOUR, "from 2000-01-02 to 2000-04-10: they differ in first or last label; make it again"),
        (DAYS[:50].append(DAYS[50:51] + HOUR).append(DAYS[51:]), "they differ in labels between the ends"),
        (DAYS[::-1], "differ in first or last label"),
    ],
)
def test_a_manifest_made_on_other_labels_is_refused(labels: Any, message: str) -> None:
    manifest = dataset(DAYS).insitu.split(fractions=(0.8, 0.2))
    with pytest.raises(RequestError, match=message):
        dataset(labels).insitu.loader(variables=["t2m"], manifest=manifest, split="train")


def test_calendars_differ() -> None:
    def days(calendar: str) -> Any:
        return xr.date_range("2000-01-01", periods=20, calendar=calendar, use_cftime=True)

    manifest = dataset(days("noleap")).insitu.split(fractions=(0.8, 0.2))
    with pytest.raises(RequestError, match=r"\(noleap calendar\).*\(standard calendar\): they differ in calendar"):
        dataset(days("standard")).insitu.plan(variables=["t2m"], manifest=manifest, split="train")


def test_the_same_labels_in_another_resolution_are_the_same() -> None:
    hours = pd.date_range("1969-12-20", periods=100, freq="7h")
    manifest = dataset(hours.as_unit("s")).insitu.split(fractions=(0.8, 0.2))
    plan = dataset(hours.as_unit("ns")).insitu.plan(variables=["t2m"], manifest=manifest, split="val")
    assert plan.anchors_kept == 20


def test_a_manifest_made_on_another_store_is_refused(tmp_path: Path) -> None:
    ds = dataset(DAYS)
    for name in ("a.zarr", "b.zarr"):
        ds.to_zarr(tmp_path / name, consolidated=False)
    a, b = (insitu_xr.open_dataset(tmp_path / name) for name in ("a.zarr", "b.zarr"))
    manifest = Manifest.from_json(a.insitu.split(fractions=(0.8, 0.2)).to_json())
    message = "variable 't2m' is file://.*/a.zarr/t2m, where the dataset has file://.*/b.zarr/t2m; make it again"
    with pytest.raises(RequestError, match=message):
        b.insitu.loader(variables=["t2m"], manifest=manifest, split="train")
    moved = replace(manifest, source={})
    assert b.insitu.plan(variables=["t2m"], manifest=moved, split="val").anchors_kept == 20
    part = insitu_xr.open_dataset(tmp_path / "a.zarr").isel(x=0)
    assert part.insitu.plan(variables=["z"], manifest=manifest, split="val").anchors_kept == 20


def test_memory_stores_are_told_apart() -> None:
    a, b = stored(dataset(DAYS)), stored(dataset(DAYS))
    manifest = a.insitu.split(fractions=(0.8, 0.2))
    assert a.insitu.plan(variables=["t2m"], manifest=manifest, split="val").anchors_kept == 20
    with pytest.raises(RequestError, match="must be made on the store of this dataset"):
        b.insitu.plan(variables=["t2m"], manifest=manifest, split="val")


def test_a_manifest_of_a_plan_gives_its_anchors_again() -> None:
    ds = stored(dataset(DAYS))
    plan = ds.insitu.plan(variables=["t2m"], leads=["0D", "3D"])
    again = ds.insitu.plan(variables=["z"], leads=["0D"], manifest=Manifest.from_json(plan.manifest.to_json()))
    assert again.request.anchors.tolist() == plan.request.anchors.tolist()
    assert [str(d) for d in again.dropped] == ["3 not in the manifest (2000-04-07, 2000-04-08, 2000-04-09)"]
    longer = ds.insitu.plan(variables=["z"], leads=["0D", "5D"], manifest=plan.manifest)
    assert longer.anchors_kept == 95
    assert [d.count for d in longer.dropped] == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "vall"}, UnknownNameError, r"but got 'vall'; it has \['train', 'val'\]"),
        ({}, RequestError, r"split must be given .* give one of \['train', 'val'\]"),
        ({"split": "train", "manifest": None}, RequestError, "split='train' must be given with manifest="),
        ({"split": "train", "manifest": "splits.json"}, RequestError, "must be a Manifest, but got str; read it with"),
        (
            {"split": "train", "sample_dim": "x", "variables": ["z"]},
            RequestError,
            r"\['x'\]\), but got one made on 'time'",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_said(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    ds = dataset(DAYS)
    manifest = ds.insitu.split(fractions=(0.8, 0.2))
    with pytest.raises(error, match=message):
        ds.insitu.loader(**{"variables": ["t2m"], "manifest": manifest, **arguments})


def test_a_manifest_without_splits_has_none() -> None:
    ds = dataset(DAYS)
    with pytest.raises(UnknownNameError, match=r"but got 'train'; it has none; make some with ds.insitu.split"):
        ds.insitu.plan(variables=["t2m"], manifest=ds.insitu.plan(variables=["t2m"]).manifest, split="train")


def test_a_million_anchors_stay_small_and_quick() -> None:
    n = 1_000_000
    ds = xr.Dataset({"t2m": ("time", np.zeros(n, "f4"))}, {"time": pd.date_range("1900", periods=n, freq="h")})
    begun = time.perf_counter()
    manifest = ds.insitu.split(fractions=(0.8, 0.1, 0.1), by="block", gap="2D", seed=1)
    plan = ds.insitu.plan(variables=["t2m"], leads=["0h", "6h"], manifest=manifest, split="train")
    assert time.perf_counter() - begun < 20
    assert plan.anchors_kept > 700_000
    assert len(manifest.to_json()) < 50_000
    assert len(plan.manifest.to_json()) < 50_000
    assert json.loads(manifest.to_json())["axes"][0]["length"] == n


def test_forecasts_of_two_splits_share_no_valid_time() -> None:
    inits = pd.date_range("2000-01-01", periods=60, freq="12h")
    leads = np.arange(0, 61, 6).astype("timedelta64[h]").astype("timedelta64[ns]")
    ds = xr.Dataset({"t2m": (("init_time", "lead_time"), np.zeros((60, 11)))}, {"init_time": inits, "lead_time": leads})
    manifest = ds.insitu.split(fractions=(0.5, 0.5))
    valid = []
    for split in ("train", "val"):
        loader = ds.insitu.loader(variables=["t2m"], manifest=manifest, split=split)
        valid.append({t for batch in loader for t in batch.valid_times.ravel().tolist()})
    assert valid[0]
    assert valid[1]
    assert not valid[0] & valid[1]
    shared = ds.insitu.split(fractions=(0.5, 0.5), gap=0)
    assert len(shared.split_positions("train")) > len(manifest.split_positions("train"))
