"""Several datasets in one loader, joined by label or concatenated along time, against plain dictionaries of labels."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr.errors import InsituError, RequestError, UnknownNameError
from insitu_xr.testing import CountingStore

if TYPE_CHECKING:
    from pathlib import Path


def stored(
    labels: Any, name: str, *, first: float = 0, chunk: int = 5, grid: tuple[int, ...] = (2,), **extra: Any
) -> xr.Dataset:
    """A stored field whose value is the number of its label, counted from ``first``, plus the point / 100."""
    values = np.arange(first, first + len(labels), dtype="f8").reshape(-1, *[1] * len(grid))
    values = values + np.arange(np.prod(grid)).reshape(grid) / 100
    dims = ("time", *(f"x{n}_{k}" for k, n in enumerate(grid)))
    ds = xr.Dataset({name: (dims, values), **extra}, {"time": ("time", labels)})
    store = MemoryStore()
    ds.drop_vars("time").to_zarr(store, encoding={name: {"chunks": (chunk, *grid)}}, consolidated=False)
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened.assign_coords(time=("time", labels))


def plain(labels: Any) -> list[Any]:
    """Labels as Python dates, or as numbers of nanoseconds."""
    values = np.asarray(labels)
    return list(values) if values.dtype == object else [int(v) for v in values.astype("M8[ns]").astype(np.int64)]


def step(label: Any, lead: str) -> Any:
    duration = pd.Timedelta(lead)
    return duration.to_pytimedelta() if isinstance(label, cftime.datetime) else int(duration.as_unit("ns").value)


def dropped(plan: Any) -> dict[str, int]:
    return {d.reason: d.count for d in plan.dropped}


# -- different steps, starts and chunks --------------------------------------------------------------------------


def test_streams_of_six_hours_and_thirty_minutes() -> None:
    """Field report 65: a window of B is found by label, not by counting off."""
    era5 = stored(pd.date_range("2000-01-01", periods=20, freq="6h"), "t2m", chunk=3)
    half_hours = pd.date_range("2000-01-01T02:00", periods=220, freq="30min")
    sat = stored(half_hours, "ir", chunk=17, grid=(3, 4))
    leads = {"t2m": ["0h", "6h"], "ir": ["-60min", "-30min", "0h"]}
    both = insitu_xr.join({"era5": era5, "sat": sat})
    with both.loader(variables=["t2m", "ir"], leads=leads, batch_size=4) as loader:
        seen = []
        for batch in loader:
            seen += batch.positions.tolist()
            assert batch["t2m"].shape[1:] == (2, 2)
            assert batch["ir"].shape[1:] == (3, 3, 4)
            for anchor, row, minutes in zip(batch.anchors, batch["t2m"], batch["ir"], strict=True):
                at = era5.indexes["time"].get_loc(anchor)
                assert row[:, 0].tolist() == [at, at + 1]
                wanted = [half_hours.get_loc(anchor + pd.Timedelta(lead)) for lead in leads["ir"]]
                assert minutes[:, 0, 0].tolist() == wanted
            assert batch.valid_times["ir"].dtype == batch.valid_times["t2m"].dtype
            np.testing.assert_array_equal(
                batch.valid_times["ir"], batch.anchors[:, None] + pd.to_timedelta(leads["ir"]).to_numpy()
            )
    # 00:00 has nothing before it, 18 h of the fifth day come after the satellite's end, the last has no next.
    assert seen == list(range(1, 19))
    assert dropped(loader.plan) == {
        "after the end at lead 6h of 't2m'": 1,
        "before the start at lead -60min of 'ir'": 1,
    }


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([1, 1, 1, 2, 4]), min_size=2, max_size=15),
    st.lists(st.sampled_from([1, 1, 2, 3]), min_size=2, max_size=30),
    st.integers(-6, 6),
    st.lists(st.integers(-3, 3), min_size=1, max_size=2, unique=True),
    st.lists(st.integers(-3, 3), min_size=1, max_size=2, unique=True),
    st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])),
    st.sampled_from(
        [("ns", "ns"), ("s", "ns"), ("us", "s"), ("ns", "ms"), ("360_day", "360_day"), ("julian", "julian")]
    ),
)
def test_joined_windows_are_those_of_two_dictionaries(
    gaps: list[int],
    others: list[int],
    start: int,
    first: list[int],
    second: list[int],
    turns: tuple[int, int],
    units: tuple[str, str],
) -> None:
    counts = np.cumsum([0, *gaps])[:: turns[0]], (start + np.cumsum([0, *others]))[:: turns[1]]
    labels = []
    for hours, unit, scale in zip(counts, units, (6, 3), strict=True):
        if unit in ("360_day", "julian"):
            base = cftime.datetime(2000, 2, 28, calendar=unit)
            labels.append(np.array([base + pd.Timedelta(hours=scale * int(h)).to_pytimedelta() for h in hours]))
        else:
            labels.append(
                (np.datetime64("2000-02-28", "ns") + hours * np.timedelta64(scale, "h")).astype(f"M8[{unit}]")
            )
    streams = {"a": stored(labels[0], "u"), "b": stored(labels[1], "v", chunk=4, grid=(3,))}
    leads = {"u": [f"{3 * w}h" for w in first], "v": [f"{3 * w}h" for w in second]}
    where = {"u": {t: k for k, t in enumerate(plain(labels[0]))}, "v": {t: k for k, t in enumerate(plain(labels[1]))}}
    kept: dict[int, dict[str, list[int]]] = {}
    lost: dict[str, int] = {}
    for place, anchor in enumerate(plain(labels[0])):
        wanted = [(name, lead, anchor + step(anchor, lead)) for name, own in leads.items() for lead in own]
        missing = [(name, lead, label) for name, lead, label in wanted if label not in where[name]]
        if missing:
            name, lead, label = missing[0]
            why = (
                "before the start"
                if label < min(where[name])
                else "after the end"
                if label > max(where[name])
                else "in a gap"
            )
            reason = f"{why} at lead {lead} of {name!r}"
            lost[reason] = lost.get(reason, 0) + 1
        else:
            kept[place] = {n: [where[n][label] for name, _, label in wanted if name == n] for n in leads}
    joined = insitu_xr.join(streams)
    if not kept:
        with pytest.raises(RequestError, match="must have a partner for at least one anchor"):
            joined.plan(variables=["u", "v"], leads=leads)
        return
    with joined.loader(variables=["u", "v"], leads=leads, batch_size=4) as loader:
        assert dropped(loader.plan) == lost
        seen = []
        for batch in loader:
            seen += batch.positions.tolist()
            for name in leads:
                np.testing.assert_array_equal(batch[name][..., 0], [kept[p][name] for p in seen[-len(batch) :]])
    assert seen == list(kept)


def test_years_that_nanoseconds_do_not_hold() -> None:
    """Joined with an axis in nanoseconds, they have no partner there, and no other year takes their place."""
    old = np.array(["1000-01-01", "1400-01-01", "2000-01-02", "9000-01-01"], "M8[s]")
    new = pd.date_range("2000-01-01", periods=3).to_numpy().astype("M8[ns]")
    joined = insitu_xr.join({"a": stored(old, "u"), "b": stored(new, "v")})
    with joined.loader(variables=["u", "v"]) as loader:
        (batch,) = loader
        assert batch.positions.tolist() == [2]
        assert batch["v"][:, 0].tolist() == [1]
        assert [str(d) for d in loader.plan.dropped] == [
            "2 before the start at lead 0h of 'v' (1000-01-01, 1400-01-01)",
            "1 after the end at lead 0h of 'v' (9000-01-01)",
        ]


def test_a_lead_finer_than_the_anchors() -> None:
    seconds = np.datetime64("2000", "s") + np.arange(5).astype("m8[s]")
    halves = np.datetime64("2000", "ms") + 500 * np.arange(10).astype("m8[ms]")
    joined = insitu_xr.join({"a": stored(seconds, "u"), "b": stored(halves, "v")})
    with joined.loader(variables=["u", "v"], leads={"u": ["0s"], "v": ["-500ms", "500ms"]}) as loader:
        (batch,) = loader
        assert batch.positions.tolist() == [1, 2, 3, 4]
        assert batch["v"][..., 0].tolist() == [[1, 3], [3, 5], [5, 7], [7, 9]]


def test_a_tolerance_holds_for_every_stream() -> None:
    exact = pd.date_range("2000", periods=28, freq="6h")
    late = exact.as_unit("us") + pd.to_timedelta(np.arange(28) % 3, "min")
    joined = insitu_xr.join({"a": stored(exact, "u"), "b": stored(late, "v")})
    with pytest.raises(RequestError, match="must be exact for leads, but they jitter by up to 2min"):
        joined.plan(variables=["u", "v"])
    with joined.loader(variables=["u", "v"], leads=["6h"], time_tolerance="2min", batch_size=30) as loader:
        (batch,) = loader
        assert batch["v"][:, 0, 0].tolist() == list(range(1, 28))
        np.testing.assert_array_equal(batch.valid_times["v"][:, 0], late[1:])
        np.testing.assert_array_equal(batch.valid_times["u"][:, 0], exact[1:])


# -- who removes what --------------------------------------------------------------------------------------------


def test_a_date_that_is_missing_in_one_stream() -> None:
    """Field report 58: found at plan time, and listed."""
    days = pd.date_range("2000-01-01", periods=30)
    joined = insitu_xr.join({"era5": stored(days, "t2m"), "sat": stored(days.delete([7, 8, 20]), "ir", chunk=4)})
    plan = joined.plan(variables=["t2m", "ir"], leads=["0D", "1D"])
    assert plan.anchors_kept == 30 - 1 - len({7, 8, 20} | {6, 7, 19})
    assert [str(d) for d in plan.dropped] == [
        "1 after the end at lead 1D of 't2m' (2000-01-30)",
        "3 in a gap at lead 0D of 'ir' (2000-01-08, 2000-01-09, 2000-01-21)",
        "2 in a gap at lead 1D of 'ir' (2000-01-07, 2000-01-20)",
    ]
    assert "in a gap at lead 0D of 'ir'" in repr(plan)
    with joined.loader(variables=["t2m", "ir"], leads=["0D", "1D"], shuffle=True, batch_size=4) as loader:
        assert sum(len(batch) for batch in loader) == plan.anchors_kept


def test_a_stream_with_forty_percent_missing_leaves_sixty() -> None:
    """Field report 59, the intersection."""
    days = pd.date_range("2000-01-01", periods=100)
    missing = np.sort(np.random.default_rng(0).choice(100, 40, replace=False))
    left = np.delete(np.arange(100), missing)
    joined = insitu_xr.join({"a": stored(days, "u"), "b": stored(days.delete(missing), "v")})
    with joined.loader(variables=["u", "v"], batch_size=16) as loader:
        assert loader.plan.anchors_kept == 60
        assert sum(d.count for d in loader.plan.dropped) == 40
        assert {reason.split(" of ")[1] for reason in dropped(loader.plan)} == {"'v'"}
        batches = list(loader)
    np.testing.assert_array_equal(np.concatenate([b["u"][:, 0] for b in batches]), left)
    np.testing.assert_array_equal(np.concatenate([b["v"][:, 0] for b in batches]), np.arange(60))


# -- names -------------------------------------------------------------------------------------------------------


def three() -> dict[str, xr.Dataset]:
    days = pd.date_range("2000-01-01", periods=12)
    return {
        "era5": stored(days, "t2m", grid=(2, 3), mask=(("x2_0", "x3_1"), np.ones((2, 3)))),
        "gfs": stored(days[1:], "t2m", first=100, chunk=3, grid=(2, 3)),
        "sat": stored(days[:-1], "ir", first=200, chunk=7, grid=(4,), area=("x4_0", np.arange(4.0))),
    }


def test_names_with_and_without_their_dataset() -> None:
    joined = insitu_xr.join(three())
    with joined.loader(variables=["era5/t2m", "gfs/t2m", "ir"], batch_size=5) as loader:
        batch = next(iter(loader))
    assert batch["era5/t2m"][:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert batch["gfs/t2m"][:, 0, 0].tolist() == [100, 101, 102, 103, 104]
    assert batch["ir"][:, 0].tolist() == [201, 202, 203, 204, 205]
    with pytest.raises(UnknownNameError, match=r"but got 't2m', which \['era5', 'gfs'\] have"):
        joined.plan(variables=["t2m"])
    with pytest.raises(UnknownNameError, match="but got 'sat/t2m'; there are"):
        joined.plan(variables=["sat/t2m"])
    with pytest.raises(UnknownNameError, match="but got 'other/t2m'"):
        joined.plan(variables=["other/t2m"])


def test_one_variable_under_two_names_is_asked_for_once() -> None:
    joined = insitu_xr.join(three())
    with pytest.raises(RequestError, match="must name each variable once, but got 'sat/ir' again"):
        joined.plan(variables=["ir", "sat/ir"])
    with pytest.raises(RequestError, match="'sat/ir' must be written alike everywhere, but got 'ir' as well"):
        joined.plan(inputs={"variables": ["ir"]}, targets={"variables": ["sat/ir"], "leads": ["1D"]})


def test_statics_of_several_datasets() -> None:
    joined = insitu_xr.join(three())
    request: dict[str, Any] = {"variables": ["era5/t2m", "ir"], "statics": ["mask", "sat/area"], "batch_size": 6}
    with joined.loader(**request) as loader:
        for batch in loader:
            assert batch.statics["mask"].shape == (2, 3)
            assert batch.statics["sat/area"].tolist() == [0, 1, 2, 3]
            assert batch["sat/area"] is batch.statics["sat/area"]
            tree = batch.to_xarray()
            assert tree["sat/area"].values.tolist() == [0, 1, 2, 3]
            assert tree["era5/mask"].dims == ("x2_0", "x3_1")


def test_a_static_of_a_dataset_that_is_read_for_nothing_else() -> None:
    joined = insitu_xr.join(three())
    with joined.loader(variables=["era5/t2m"], statics=["area"], batch_size=12) as loader:
        (batch,) = loader
        assert len(batch) == 12
        assert batch.statics["area"].tolist() == [0, 1, 2, 3]
        assert batch.to_xarray()["sat/area"].values.tolist() == [0, 1, 2, 3]


def test_stacked_with_equal_grids() -> None:
    joined = insitu_xr.join(three())
    leads = {"era5/t2m": ["0D", "1D"], "gfs/t2m": ["1D"]}
    request: dict[str, Any] = {"variables": list(leads), "leads": leads, "layout": "stacked", "batch_size": 4}
    # The grids have dimensions of the same names.
    with joined.loader(**request) as loader:
        for batch in loader:
            assert batch.channels == ["era5/t2m@0D", "era5/t2m@1D", "gfs/t2m@1D"]
            expected = batch.positions[:, None] + np.array([0, 1, 100])
            np.testing.assert_array_equal(np.asarray(batch.variables)[:, :, 0, 0], expected)
            np.testing.assert_array_equal(batch["gfs/t2m"][:, 0, 0, 0], batch.positions + 100)
            labelled = batch.to_xarray()
            assert isinstance(labelled, xr.Dataset)
            np.testing.assert_array_equal(labelled["variables"].sel(channel="gfs/t2m@1D")[:, 0, 0], expected[:, 2])
    with pytest.raises(InsituError, match=r"grid|shape|dimensions"):
        joined.plan(variables=["era5/t2m", "ir"], layout="stacked")


# -- labels and trees --------------------------------------------------------------------------------------------


def test_a_tree_holds_what_xarray_selects() -> None:
    streams = three()
    with insitu_xr.join(streams).loader(
        variables=["era5/t2m", "gfs/t2m", "ir"], batch_size=4, shuffle=True, seed=3
    ) as loader:
        for batch in loader:
            tree = batch.to_xarray()
            assert set(tree.children) == {"era5", "gfs", "sat"}
            for home, name in (("era5", "t2m"), ("gfs", "t2m"), ("sat", "ir")):
                expected = streams[home][[name]].sel(time=batch.anchors).compute()
                xr.testing.assert_equal(tree[home].to_dataset()[[name]], expected)


def test_a_tree_of_inputs_and_targets() -> None:
    streams = three()
    asked: dict[str, Any] = {
        "inputs": {"variables": ["era5/t2m", "ir"], "leads": ["-1D", "0D"]},
        "targets": {"variables": ["gfs/t2m"], "leads": ["1D"]},
    }
    with insitu_xr.join(streams).loader(**asked, batch_size=4) as loader:
        for batch in loader:
            tree = batch.to_xarray()
            ir = tree["inputs/sat/ir"]
            for sample, anchor in enumerate(ir.time.values):
                wanted = streams["sat"].ir.sel(time=[anchor - np.timedelta64(1, "D"), anchor])
                np.testing.assert_array_equal(ir.values[sample], wanted.values)
                np.testing.assert_array_equal(ir.valid_time.values[sample], wanted.time.values)
            target = tree["targets/gfs/t2m"]
            np.testing.assert_array_equal(
                target.values[:, 0], streams["gfs"].t2m.sel(time=target.valid_time.values[:, 0]).values
            )
            only = batch.to_xarray("targets")
            assert only["gfs/t2m"].shape == target.shape if isinstance(only, xr.DataTree) else only["t2m"].shape


def test_a_pickled_batch_is_the_same_and_small() -> None:
    days = pd.date_range("1900-01-01", periods=20_000)
    joined = insitu_xr.join({"a": stored(days, "u", chunk=500), "b": stored(days[100:], "v", chunk=700)})
    with joined.loader(
        variables=["u", "v"], leads={"u": ["0D"], "v": ["-1D", "3D"]}, shuffle=True, batch_size=8
    ) as loader:
        batch = next(iter(loader))
        sent = pickle.dumps(batch)
        back = pickle.loads(sent)
    assert len(sent) < 40_000
    for name in ("u", "v"):
        np.testing.assert_array_equal(back[name], batch[name])
        np.testing.assert_array_equal(back.valid_times[name], batch.valid_times[name])
    np.testing.assert_array_equal(back.positions, batch.positions)
    np.testing.assert_array_equal(back.anchors, batch.anchors)
    here, there = batch.to_xarray(), back.to_xarray()
    for home in ("a", "b"):
        xr.testing.assert_identical(there[home].to_dataset(), here[home].to_dataset())


# -- refusals ----------------------------------------------------------------------------------------------------


def test_calendars_that_differ_are_refused() -> None:
    here = stored(pd.date_range("2000", periods=5), "u")
    there = stored(xr.date_range("2000", periods=5, calendar="noleap", use_cftime=True), "v")
    also = stored(xr.date_range("2000", periods=5, calendar="360_day", use_cftime=True), "w")
    with pytest.raises(
        RequestError, match=r"must be of one kind to be aligned, but got time labels and time labels \(no"
    ):
        insitu_xr.join({"a": here, "b": there}).plan(variables=["u", "v"])
    with pytest.raises(RequestError, match=r"\(noleap calendar\) and time labels \(360_day calendar\); convert one"):
        insitu_xr.join({"b": there, "c": also}).plan(variables=["v", "w"])


@pytest.mark.parametrize(
    ("datasets", "error", "message"),
    [
        ({}, RequestError, "datasets must "),
        ({"a/b": xr.Dataset({"u": ("time", [1.0])}, {"time": [0]})}, RequestError, "text without '/'"),
        ({"a": xr.Dataset({"u": ("t", [1.0])})}, UnknownNameError, "on must be a dimension of every dataset"),
        (
            {"a": xr.Dataset({"u": ("time", [1.0])}, {"time": [0]}), "b": xr.Dataset({"v": ("time", [1.0])})},
            RequestError,
            "dimension 'time' must have labels to be joined on, but that of 'b' has none",
        ),
    ],
)
def test_what_cannot_be_joined(datasets: Any, error: type[InsituError], message: str) -> None:
    with pytest.raises(error, match=message):
        insitu_xr.join(datasets)


def test_datasets_without_a_common_label() -> None:
    days = pd.date_range("2000", periods=5)
    joined = insitu_xr.join({"a": stored(days, "u"), "b": stored(days + pd.Timedelta("1h"), "v")})
    with pytest.raises(RequestError, match=r"at least one anchor, but got none .* of 'v'"):
        joined.plan(variables=["u", "v"])


# -- splits ------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(
    st.integers(0, 40),
    st.sampled_from(["1h", "2h", "6h"]),
    st.sampled_from(["0h", "12h"]),
    st.lists(st.sampled_from(["-6h", "-3h", "0h", "3h", "6h", "12h"]), min_size=1, max_size=3, unique=True),
)
def test_no_label_of_any_stream_is_in_two_splits(start: int, freq: str, gap: str, leads: list[str]) -> None:
    first = pd.date_range("2000-01-01", periods=60, freq="6h").delete([10, 11, 30])
    second = pd.date_range(pd.Timestamp("2000-01-01") + start * pd.Timedelta("1h"), "2000-01-15", freq=freq)
    joined = insitu_xr.join({"a": stored(first, "u"), "b": stored(second, "v", chunk=11)})
    request: dict[str, Any] = {"variables": ["u", "v"], "leads": {"u": ["0h", "6h"], "v": leads}}
    manifest = joined.split(
        train=slice("2000-01-01", "2000-01-08"), val=slice("2000-01-09", "2000-01-11T06"), test="2000-01-13", gap=gap
    )
    used: dict[str, dict[str, set[int]]] = {}
    for split in ("train", "val", "test"):
        loader = None
        with contextlib.suppress(RequestError):  # where the other stream does not reach
            loader = joined.loader(**request, manifest=manifest, split=split, batch_size=8)
        if loader is None:
            continue
        with loader:
            found: dict[str, set[int]] = {"u": set(), "v": set()}
            for batch in loader:
                for name in found:
                    found[name] |= set(plain(batch.valid_times[name].ravel()))
            used[split] = found
    assume(len(used) > 1)
    ranges = {s: (min(found["u"] | found["v"]), max(found["u"] | found["v"])) for s, found in used.items()}
    for one in used:
        for other in used:
            if one < other:
                for name in ("u", "v"):
                    assert not used[one][name] & used[other][name]
                # Nor does a label of one lie among those of the other.
                assert ranges[one][1] < ranges[other][0] or ranges[other][1] < ranges[one][0]


# -- concatenated stores -----------------------------------------------------------------------------------------


def yearly(folder: Path, *, packed: bool = False) -> tuple[list[str], xr.Dataset]:
    """Stores of 2019 (365 days), 2020 (366) and 2021, and all of it in memory."""
    random, paths, parts = np.random.default_rng(0), [], []
    for number, year in enumerate((2019, 2020, 2021)):
        days = pd.date_range(f"{year}-01-01", f"{year}-12-31")
        ds = xr.Dataset({"t": (("time", "x"), random.normal(280, 10, (len(days), 3)))}, {"time": days})
        encoding: dict[str, Any] = {"chunks": (61, 3)}
        if packed:
            scale = (0.1, 0.2, 0.05)[number]
            encoding |= {"dtype": "i2", "scale_factor": scale, "add_offset": 270.0 + number, "_FillValue": -32768}
        path = str(folder / f"{year}.zarr")
        ds.to_zarr(path, encoding={"t": encoding}, consolidated=False)
        paths.append(path)
        parts.append(xr.open_zarr(path, chunks=None, consolidated=False).load())
    return paths, xr.concat(parts, "time")


def check_seam(ds: xr.Dataset, eager: xr.Dataset, how: str) -> None:
    leads = ["-2D", "0D", "5D"]
    with ds.insitu.loader(variables=["t"], leads=leads, batch_size=50, shuffle=True) as loader:
        assert f"  {how}" in repr(loader.plan)
        assert loader.plan.anchors_kept == 1096 - 7
        seen = []
        for batch in loader:
            seen += batch.positions.tolist()
            for column, lead in enumerate(leads):
                expected = eager.t.sel(time=batch.anchors + pd.Timedelta(lead).to_numpy())
                np.testing.assert_array_equal(batch["t"][:, column], expected.values)
                assert batch["t"].dtype == ds.t.dtype
    assert sorted(seen) == list(range(2, 1091))


@pytest.mark.parametrize("packed", [False, True])
def test_windows_across_the_seam_of_yearly_stores(tmp_path: Path, packed: bool) -> None:
    """Field report 7 (each store with its own packing), and 137 (365 and 366 days in chunks of 61)."""
    paths, eager = yearly(tmp_path, packed=packed)
    lazy = xr.concat([xr.open_zarr(path, consolidated=False) for path in paths], "time")
    check_seam(lazy, eager, "in place")
    opened = xr.open_mfdataset(paths, engine="zarr", combine="nested", concat_dim="time", consolidated=False)
    check_seam(opened, eager, "in place")
    opened.close()


@pytest.mark.parametrize("packed", [False, True])
def test_concatenated_without_dask_is_in_memory(tmp_path: Path, packed: bool) -> None:
    paths, eager = yearly(tmp_path, packed=packed)
    loaded = xr.concat([xr.open_zarr(path, chunks=None, consolidated=False) for path in paths], "time")
    check_seam(loaded, eager, "from memory")


def test_a_year_that_is_missing_between_stores(tmp_path: Path) -> None:
    paths, eager = yearly(tmp_path)
    lazy = xr.concat([xr.open_zarr(path, consolidated=False) for path in (paths[0], paths[2])], "time")
    with lazy.insitu.loader(variables=["t"], leads=["0D", "1D"], batch_size=64) as loader:
        assert loader.plan.anchors_kept == 364 + 364
        assert dropped(loader.plan) == {"after the end at lead 1D of 't'": 1, "in a gap at lead 1D of 't'": 1}
        for batch in loader:
            np.testing.assert_array_equal(batch["t"][:, 1], eager.t.sel(time=batch.valid_times[:, 1]).values)


def test_stores_that_overlap_are_refused(tmp_path: Path) -> None:
    paths, _ = yearly(tmp_path)
    parts = [xr.open_zarr(path, consolidated=False) for path in paths[:2]]
    lazy = xr.concat([parts[0], parts[0].isel(time=slice(-3, None)), parts[1]], "time")
    with pytest.raises(RequestError, match="must be unique for leads, but 2019-12-29 occurs more than once"):
        lazy.insitu.plan(variables=["t"], leads=["1D"])


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    step=st.sampled_from([None, slice(None, None, 2), [0, 1, 3, 7, 8], [5, 2, 2, 11]]),
    drawn=st.sampled_from(["time", ("time", "number"), ("number", "time"), "number"]),
    data=st.data(),
)
def test_stores_that_are_cut_differently_along_another_dimension(
    chunks: list[int], step: Any, drawn: Any, data: st.DataObject
) -> None:
    parts = []
    for k, chunk in enumerate(chunks):
        values = np.arange(4 * 12 * 2).reshape(4, 12, 2) + 1000.0 * (k + 1)
        store = MemoryStore()
        xr.Dataset({"t": (("time", "number", "x"), values)}, {"time": np.arange(4) + 4 * k}).to_zarr(
            store, encoding={"t": {"chunks": (data.draw(st.integers(1, 4)), chunk, 2)}}, consolidated=False
        )
        parts.append(xr.open_zarr(store, consolidated=False))
    ds = xr.concat(parts, "time")
    ds = ds if step is None else ds.isel(number=step)
    truth = ds.t.transpose(*np.atleast_1d(drawn).tolist(), ...).values
    with ds.insitu.loader(variables=["t"], sample_dim=drawn, batch_size=5, shuffle=True) as loader:
        alike = len({*chunks}) == 1 or "number" not in drawn
        assert "time" not in drawn or ("in place" if alike else "chunks along 'number' differ") in repr(loader.plan)
        seen = 0
        for batch in loader:
            seen += len(batch)
            np.testing.assert_array_equal(batch["t"], truth[tuple(np.atleast_2d(batch.positions.T))])
    assert seen == len(loader.plan.request)


def test_a_reader_of_joined_datasets_is_refused() -> None:
    """Labels would be looked up among those of the first dataset alone."""
    days = pd.date_range("2000-01-01", periods=8, freq="6h")
    both = insitu_xr.join({"era5": stored(days, "t2m"), "sat": stored(days[::2], "ir")})
    with pytest.raises(
        RequestError, match=r"from one dataset, but got 2 that are joined \('era5', 'sat'\); make a reader"
    ):
        both.reader(variables=["ir"])
    with insitu_xr.join({"era5": stored(days, "t2m")}).reader(variables=["t2m"]) as reader:
        assert reader.read(days[3])["t2m"][0].tolist() == [3.0, 3.01]


def test_a_join_reads_every_chunk_once() -> None:
    days, stores, streams = pd.date_range("2000-01-01", periods=60), [], {}
    for name, chunk in (("a", 7), ("b", 13)):
        inner = MemoryStore()
        xr.Dataset({f"v{name}": ("time", np.arange(60.0))}, {"time": days}).to_zarr(
            inner, encoding={f"v{name}": {"chunks": (chunk,)}}, consolidated=False
        )
        stores.append(CountingStore(inner))
        streams[name] = xr.open_zarr(stores[-1], chunks=None, consolidated=False)
        stores[-1].reset()
    joined = insitu_xr.join(streams)
    plan = joined.plan(variables=["va", "vb"], leads=["0D", "3D"])
    assert all(store.data_gets == [] for store in stores)
    assert plan.chunks == plan.reads == 9 + 5
    with joined.loader(variables=["va", "vb"], leads=["0D", "3D"], shuffle=True, batch_size=5) as loader:
        for store in stores:
            store.reset()  # a loader compares a small block first
        for _ in loader:
            pass
        assert loader.stats.reads == 14
    for store in stores:
        assert set(store.by_key().values()) == {1}
