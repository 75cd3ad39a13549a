"""Means and standard deviations: against xarray in float64, in any order, kept, applied and undone."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import insitu_xr
from insitu_xr.errors import DtypeError, InsituError, RequestError, UnknownNameError
from insitu_xr.scaling.moments import Moments
from insitu_xr.testing import CountingStore

GRID = ("lat", "lon")
TOLERANCE = 1e-12


def weather(n: int = 40) -> xr.Dataset:
    """Fields of very different sizes, some NaN, on two levels, and a static mask."""
    rng = np.random.default_rng(7)
    t2m = (280 + 20 * rng.normal(size=(n, 6, 8))).astype("f4")
    t2m[rng.random(t2m.shape) < 0.1] = np.nan
    z = 5e5 + 30 * rng.normal(size=(n, 2, 6, 8)) + np.array([0.0, -4e5])[:, None, None]
    return xr.Dataset(
        {
            "t2m": (("time", *GRID), t2m),
            "z": (("time", "level", *GRID), z.astype("f4")),
            "q": (("time", *GRID, "level"), rng.random((n, 6, 8, 2))),
            "lsm": (GRID, (rng.random((6, 8)) > 0.5).astype("f4")),
        },
        {
            "time": pd.date_range("2001-01-01", periods=n, freq="6h"),
            "level": [500, 850],
            "lat": np.linspace(75, -75, 6),
            "lon": np.arange(0.0, 360, 45),
        },
    )


@pytest.fixture(scope="module")
def ds() -> xr.Dataset:
    return weather()


@pytest.fixture(scope="module")
def store(ds: xr.Dataset) -> CountingStore:
    """The fields in chunks of 7 steps, which no batch fits."""
    memory = zarr.storage.MemoryStore()
    ds.to_zarr(
        memory,
        encoding={n: {"chunks": [7 if d == "time" else s for d, s in ds[n].sizes.items()]} for n in ds},
        consolidated=False,
    )
    return CountingStore(memory)


@pytest.fixture(scope="module")
def stored(store: CountingStore) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return dataset


def fitted(ds: xr.Dataset, dims: Any = None, **options: Any) -> insitu_xr.Scaler:
    wanted: dict[str, Any] = {"variables": ["t2m", "z", "q"], "statics": ["lsm"], "batch_size": 9} | options
    with ds.insitu.loader(**wanted) as loader:
        return insitu_xr.fit_scaler(loader, dims)


def close(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Equal to twelve digits, dimensions and labels included."""
    assert set(found.data_vars) == set(expected.data_vars)
    for name in expected.data_vars:
        assert found[name].dims == expected[name].dims
        xr.testing.assert_allclose(found[name], expected[name].reset_coords(drop=True), rtol=TOLERANCE, atol=0)


# -- the numbers


@pytest.mark.parametrize("layout", ["dict", "stacked"])
@pytest.mark.parametrize("leads", [None, ["-6h", "0h", "12h"]], ids=["no leads", "leads"])
def test_mean_and_std_are_those_of_xarray_in_float64(
    stored: xr.Dataset, ds: xr.Dataset, layout: str, leads: Any
) -> None:
    scaler = fitted(stored, layout=layout, leads=leads, shuffle=True)
    exact = ds.astype("f8")
    over = {n: [d for d in ds[n].dims if d != "level"] for n in ds}
    close(scaler.mean, exact.map(lambda a: a.mean(over[a.name])))
    close(scaler.std, exact.map(lambda a: a.std(over[a.name])))
    assert scaler.count["t2m"] == ds["t2m"].count()
    assert scaler.count["z"].sel(level=850) == 40 * 48
    assert scaler.channels == ["t2m", "z500", "z850", "q500", "q850", "lsm"]


def test_a_window_counts_a_field_once_and_leaves_out_what_it_never_reaches(stored: xr.Dataset, ds: xr.Dataset) -> None:
    request = {
        "inputs": {"variables": ["t2m"], "leads": ["-6h", "0h"]},
        "targets": {"variables": ["t2m"], "leads": ["12h"]},
        "anchors": slice("2001-01-03", "2001-01-04"),
    }
    scaler = fitted(stored, variables=None, statics=[], **request)
    reached = ds["t2m"].sel(time=slice("2001-01-02T18", "2001-01-05T06"))
    # Between the last input and the first target nothing is missing: the leads overlap.
    assert scaler.count["t2m"] == reached.count()
    np.testing.assert_allclose(scaler.mean["t2m"], reached.astype("f8").mean(), rtol=TOLERANCE)


def test_samples_drawn_several_times_count_once(stored: xr.Dataset, ds: xr.Dataset) -> None:
    weights = np.r_[np.full(3, 100.0), np.full(37, 1e-9)]
    scaler = fitted(stored, variables=["z"], statics=[], weights=weights, shuffle="global")
    assert scaler.count["z"].max() == 3 * 48
    np.testing.assert_allclose(scaler.mean["z"], ds["z"][:3].astype("f8").mean(("time", *GRID)), rtol=TOLERANCE)


@pytest.mark.parametrize(
    "dims",
    ["time", ("time", "lon"), ("time", *GRID), ("time", *GRID, "level")],
    ids=lambda d: "-".join(np.atleast_1d(d)),
)
@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_what_is_not_among_the_dims_keeps_its_own(ds: xr.Dataset, dims: Any, layout: str) -> None:
    scaler = fitted(ds, dims=dims, layout=layout)
    exact = ds.astype("f8")
    over = {n: [d for d in ds[n].dims if d in np.atleast_1d(dims)] for n in ds}
    close(scaler.mean, exact.map(lambda a: a.mean(over[a.name])))
    close(scaler.std, exact.map(lambda a: a.std(over[a.name])))


def test_the_order_changes_nothing(stored: xr.Dataset) -> None:
    orders: list[dict[str, Any]] = [
        {"batch_size": 1},
        {"batch_size": 40},
        *({"batch_size": 7, "shuffle": "global", "seed": k} for k in range(3)),
    ]
    scalers = [fitted(stored, **order) for order in orders]
    for number in ("mean", "std"):
        for a, b in itertools.pairwise(getattr(s, number) for s in scalers):
            close(a, b)
    assert not all(a.mean.equals(b.mean) for a, b in itertools.pairwise(scalers)), "orders must differ at all"


@settings(max_examples=25)
@given(
    values=hnp.arrays(np.float32, (12, 3), elements=st.floats(-1e6, 1e6, width=32) | st.just(np.float32(np.nan))),
    cuts=st.lists(st.integers(0, 12), max_size=5),
)
def test_moments_of_parts_merge_to_those_of_the_whole(values: np.ndarray[Any, Any], cuts: list[int]) -> None:
    parts = np.split(values, sorted(cuts))
    found = Moments.empty((3,))
    for part in reversed(parts):
        found = found.add(part, (0,))
    exact = values.astype("f8")
    counted = (~np.isnan(exact)).sum(axis=0)
    np.testing.assert_array_equal(found.count, counted)
    for k in np.flatnonzero(counted):
        scale = np.nanmax(np.abs(exact[:, k])) + 1
        np.testing.assert_allclose(found.mean[k], np.nanmean(exact[:, k]), rtol=TOLERANCE, atol=TOLERANCE * scale)
        np.testing.assert_allclose(found.std[k], np.nanstd(exact[:, k]), rtol=1e-9, atol=TOLERANCE * scale)
    assert np.isnan(found.std[counted == 0]).all()


def test_a_large_mean_costs_no_digits() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=(3000, 2))
    whole = Moments.empty((2,)).add(values, (0,))
    np.testing.assert_allclose(whole.std, (values - 1e9).std(axis=0), rtol=1e-9)


# -- the pass


def test_every_chunk_is_read_once(store: CountingStore, stored: xr.Dataset) -> None:
    with stored.insitu.loader(
        inputs={"variables": ["t2m", "z"], "leads": ["-6h", "0h"]},
        targets={"variables": ["t2m", "z"], "leads": ["6h"]},
        shuffle=True,
        batch_size=5,
    ) as loader:
        store.reset()
        insitu_xr.fit_scaler(loader)
    assert set(store.by_key().values()) == {1}
    assert len(store.by_key()) == loader.plan.chunks


def test_the_loader_goes_on_where_it_was(stored: xr.Dataset) -> None:
    with stored.insitu.loader(variables=["t2m"], batch_size=9, shuffle=True) as loader:
        whole = [b.positions.tolist() for b in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        first = next(batches).positions.tolist()
        before = loader.state_dict()
        scaler = insitu_xr.fit_scaler(loader)
        assert loader.state_dict() == before
        assert [first, *(b.positions.tolist() for b in batches)] == whole
        loader.load_state_dict(before)
        # Also in the midst of an epoch it is fitted on a whole one.
        assert insitu_xr.fit_scaler(loader).count == scaler.count
        assert [b.positions.tolist() for b in loader] == whole[1:]


def test_every_rank_gets_the_numbers_of_all(stored: xr.Dataset) -> None:
    whole = fitted(stored)
    for rank in range(2):
        close(fitted(stored, rank=rank, world_size=2, shuffle=True).mean, whole.mean)


def test_progress_is_shown_when_asked(ds: xr.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    with ds.insitu.loader(variables=["t2m"], batch_size=10) as loader:
        insitu_xr.fit_scaler(loader)
        assert capsys.readouterr().err == ""
        insitu_xr.fit_scaler(loader, progress=True)
        assert "4/4" in capsys.readouterr().err


# -- keeping


def assert_same(a: insitu_xr.Scaler, b: insitu_xr.Scaler) -> None:
    xr.testing.assert_identical(a.to_xarray(), b.to_xarray())
    assert a.channels == b.channels


@pytest.mark.parametrize("dims", [None, "time", ("time", *GRID, "level")], ids=["levels", "places", "variables"])
def test_json_and_zarr_give_back_every_bit(ds: xr.Dataset, dims: Any, tmp_path: Path) -> None:
    partly = ds.assign(t2m=ds["t2m"].where(ds["lat"] > -70))
    scaler = fitted(partly, dims=dims)
    scaler.to_json(tmp_path / "scaler.json")
    scaler.to_zarr(tmp_path / "scaler.zarr")
    assert_same(insitu_xr.Scaler.from_json(tmp_path / "scaler.json"), scaler)
    assert_same(insitu_xr.Scaler.from_json(scaler.to_json()), scaler)
    assert_same(insitu_xr.Scaler.from_zarr(tmp_path / "scaler.zarr"), scaler)
    assert_same(pickle.loads(pickle.dumps(scaler)), scaler)
    assert "NaN" not in scaler.to_json()
    batch = next(iter(partly.insitu.loader(variables=["t2m", "z"], batch_size=2)))
    again = insitu_xr.Scaler.from_json(scaler.to_json())
    np.testing.assert_array_equal(again(batch)["z"], scaler(batch)["z"])


def test_datasets_with_other_levels_stay_apart(ds: xr.Dataset, tmp_path: Path) -> None:
    other = xr.Dataset(
        {"z": (("time", "level", "station"), np.random.default_rng(1).random((40, 3, 2)))},
        {"time": ds["time"], "level": [1, 2, 3], "station": ["a", "b"]},
    )
    joined = insitu_xr.join({"era5": ds, "sonde": other}, on="time")
    with joined.loader(variables=["era5/z", "sonde/z"], batch_size=8) as loader:
        scaler = insitu_xr.fit_scaler(loader, ("time", *GRID))
        batch = next(iter(loader))
    scaler.to_zarr(tmp_path / "scaler.zarr")
    for again in (insitu_xr.Scaler.from_zarr(tmp_path / "scaler.zarr"), insitu_xr.Scaler.from_json(scaler.to_json())):
        assert_same(again, scaler)
        assert again.statistics["sonde/z"].mean.shape == (3, 2)
        np.testing.assert_array_equal(again(batch)["sonde/z"], scaler(batch)["sonde/z"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON", "scaler must be JSON"),
        ('{"format": 9}', "format of a scaler must be 1, but got 9"),
        ('{"format": 1, "variables": {"t2m": {}}}', "reading it failed with KeyError"),
    ],
)
def test_other_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "scaler.json").write_text(text)
    with pytest.raises(RequestError, match=message):
        insitu_xr.Scaler.from_json(tmp_path / "scaler.json")


def test_another_dataset_is_refused(ds: xr.Dataset) -> None:
    with pytest.raises(RequestError, match=r"must be what Scaler.to_xarray gave"):
        insitu_xr.Scaler.from_xarray(ds)


# -- applying


@pytest.mark.parametrize("layout", ["dict", "stacked"])
@pytest.mark.parametrize("dims", [None, "time"], ids=["levels", "places"])
def test_a_batch_is_scaled_by_label_and_back(ds: xr.Dataset, layout: str, dims: Any) -> None:
    both = ds[["z", "q"]].astype("f8")
    scaler = fitted(both.transpose(..., "lon", "lat"), variables=["z", "q"], statics=[], dims=dims)
    part = both.sel(level=[850], lat=slice(50, -50))
    with part.insitu.loader(variables=["z", "q"], leads=["0h", "6h"], batch_size=4, layout=layout) as loader:
        batch = next(iter(loader))
    before = {key: array.copy() for key, array in batch.arrays.items()}
    scaled = scaler(batch)
    expected = ((part - scaler.mean) / scaler.std).transpose("time", "level", *GRID)
    for name in ("z", "q"):
        found = scaled[name].reshape(4, 2, 1, 4, 8)
        for k in range(2):
            np.testing.assert_allclose(found[:, k], expected[name].isel(time=slice(k, k + 4)), rtol=1e-9)
    for key, array in scaler.invert(scaled).arrays.items():
        np.testing.assert_array_equal(batch.arrays[key], before[key])  # what was given stays as it was
        np.testing.assert_allclose(array, before[key], rtol=TOLERANCE)
    assert scaled.channels == batch.channels
    np.testing.assert_array_equal(scaled.anchors, batch.anchors)


def groups(ds: xr.Dataset) -> Any:
    """A batch of two groups of channels."""
    request = {
        "inputs": {"variables": ["t2m", "z"], "leads": ["-6h", "0h"]},
        "targets": {"variables": ["z"], "leads": ["6h"]},
    }
    with ds.insitu.loader(**request, statics=["lsm"], batch_size=3, layout="stacked") as loader:
        return next(iter(loader))


def test_names_of_channels_lead_to_their_statistics(ds: xr.Dataset) -> None:
    scaler, batch = fitted(ds), groups(ds)
    names = batch.channels
    assert names["inputs"] == ["t2m@-6h", "t2m@0h", "z500@-6h", "z850@-6h", "z500@0h", "z850@0h", "lsm"]
    scaled = scaler(batch)
    for group in ("inputs", "targets"):
        by_name = scaler.transform(batch.group(group), channels=names[group])
        np.testing.assert_array_equal(by_name, scaled.group(group))
    both = scaler.transform({g: batch.group(g) for g in batch.groups}, channels=names)
    np.testing.assert_array_equal(both["targets"], scaled.targets)
    # What a model gives, with axes of its own in front, goes back by the same names.
    outputs = np.stack([scaled.targets, scaled.targets])
    np.testing.assert_allclose(scaler.invert(outputs, channels=names["targets"])[1], batch.targets, rtol=1e-6)


def test_a_mapping_of_variables_needs_no_names(ds: xr.Dataset) -> None:
    scaler = fitted(ds)
    fields = {"t2m": ds["t2m"].values, "z": ds["z"].values[:, None]}
    found = scaler({"inputs": fields})["inputs"]
    np.testing.assert_allclose(np.nanmean(found["t2m"]), 0, atol=1e-5)
    np.testing.assert_allclose(found["z"].std(axis=(0, 1, 3, 4)), 1, rtol=1e-5)
    assert found["z"].dtype == np.float32


def test_jax_arrays_stay_jax_arrays(ds: xr.Dataset) -> None:
    numpy = pytest.importorskip("jax.numpy")
    scaler, batch = fitted(ds), groups(ds)
    names = batch.channels["targets"]
    scaled = scaler.transform(numpy.asarray(batch.targets), channels=names)
    assert isinstance(scaled, numpy.ndarray)
    assert scaled.dtype == numpy.float32
    np.testing.assert_allclose(scaled, scaler.transform(batch.targets, channels=names), rtol=1e-5, atol=1e-5)
    back = scaler.invert(scaled.astype(numpy.bfloat16), channels=names)
    np.testing.assert_allclose(back, batch.targets, rtol=0, atol=1)


def test_whole_numbers_become_floats(ds: xr.Dataset) -> None:
    counts = xr.Dataset({"n": (("time", "x"), np.arange(8, dtype="i2").reshape(4, 2))})
    with counts.insitu.loader(variables=["n"], sample_dim="time") as loader:
        batch = next(iter(loader))
        scaled = insitu_xr.fit_scaler(loader)(batch)["n"]
    assert scaled.dtype == np.float32
    np.testing.assert_allclose([scaled.mean(), scaled.std()], [0, 1], atol=1e-6)


def test_what_is_left_stays_as_it_is(ds: xr.Dataset) -> None:
    with ds.insitu.loader(variables=["z"], statics=["lsm"], batch_size=4) as loader:
        scaler, batch = insitu_xr.fit_scaler(loader, leave="lsm"), next(iter(loader))
    np.testing.assert_array_equal(scaler(batch)["lsm"], ds["lsm"])
    again = insitu_xr.Scaler.from_json(scaler.to_json())
    np.testing.assert_array_equal(again(batch)["lsm"], ds["lsm"])


@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_it_is_a_transform_of_a_loader(ds: xr.Dataset, layout: str) -> None:
    counts = ds.assign(n=(("time", *GRID), np.arange(40 * 48, dtype="i2").reshape(40, 6, 8)))
    request: dict[str, Any] = {"variables": ["z", "n"], "statics": ["lsm"], "batch_size": 7, "layout": layout}
    with counts.insitu.loader(**request) as loader:
        scaler = insitu_xr.fit_scaler(loader)
        expected = [scaler(batch) for batch in loader]
    with counts.insitu.loader(**request, batch_transforms=[scaler]) as loader:
        for batch, scaled in zip(loader, expected, strict=True):
            for key, array in batch.arrays.items():
                np.testing.assert_array_equal(array, scaled.arrays[key])
        again = insitu_xr.fit_scaler(loader)
    np.testing.assert_allclose(again.mean["n"], 0, atol=1e-6)
    np.testing.assert_allclose(again.std["z"], 1, atol=1e-5)


# -- refusals


class Halved:
    """Leaves out every other latitude."""

    def __call__(self, batch: insitu_xr.Batch) -> insitu_xr.Batch:
        return batch.replaced({key: array[..., ::2, :] for key, array in batch.arrays.items()})

    def output(self, template: Any) -> Any:
        return {key: spec.replace(shape=(*spec.shape[:-2], 3, 8)) for key, spec in template.items()}


def with_values(ds: xr.Dataset, level: int, value: float) -> xr.Dataset:
    return ds.assign(z=ds["z"].where(ds["level"] != level, value))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dims": ("time", "x")}, UnknownNameError, "dims must be among .*'lat', 'level', 'lon', 'time'.*got 'x'"),
        ({"dims": GRID}, RequestError, "dims must hold the dimension that is drawn along, 'time'"),
        ({"leave": "sst"}, UnknownNameError, "leave must name variables of the loader, .*but got 'sst'"),
    ],
    ids=["unknown", "without time", "left"],
)
def test_arguments_are_checked_before_anything_is_read(
    store: CountingStore, stored: xr.Dataset, options: Any, error: type[InsituError], message: str
) -> None:
    with stored.insitu.loader(variables=["t2m", "z"]) as loader:
        store.reset()
        with pytest.raises(error, match=message):
            insitu_xr.fit_scaler(loader, **options)
        assert store.data_gets == []


def test_transforms_that_change_shapes_are_refused(ds: xr.Dataset) -> None:
    with (
        ds.insitu.loader(variables=["t2m"], batch_transforms=[Halved()]) as loader,
        pytest.raises(RequestError, match=r"'variables/t2m' float32\[32, 3, 8\] of float32\[32, 6, 8\]"),
    ):
        insitu_xr.fit_scaler(loader)


def test_what_is_no_loader_is_refused(ds: xr.Dataset) -> None:
    with pytest.raises(RequestError, match=r"must be an insitu_xr.Loader, but got Dataset"):
        insitu_xr.fit_scaler(ds)  # type: ignore[arg-type]


def test_text_is_refused() -> None:
    words = xr.Dataset({"name": (("time",), np.array(["a", "b"]))})
    with (
        words.insitu.loader(variables=["name"], sample_dim="time") as loader,
        pytest.raises(DtypeError, match="variable 'name' must be of real numbers"),
    ):
        insitu_xr.fit_scaler(loader)


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "'z850' must have a value somewhere, but got nothing but NaN"), (np.inf, "'z850' must be finite or NaN")],
    ids=["NaN", "infinite"],
)
def test_values_that_give_no_statistics_are_refused(ds: xr.Dataset, value: float, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        fitted(with_values(ds, 850, value))


@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_a_constant_channel_is_named(ds: xr.Dataset, layout: str) -> None:
    constant = with_values(ds, 500, 3.5)
    scaler = fitted(constant, layout=layout)
    with constant.insitu.loader(variables=["z"], layout=layout) as loader:
        batch = next(iter(loader))
    with pytest.raises(RequestError, match=r"std of 'z500' must be above 0 to divide by, but got 0.* is 3.5"):
        scaler(batch)
    with pytest.raises(RequestError, match="std of 'z500' must be above 0"):
        scaler.transform(np.zeros((1, 2, 6, 8), "f4"), channels=["z850", "z500"])
    places = fitted(constant, dims="time", layout=layout)
    with pytest.raises(RequestError, match=r"std of 'z500' .* at 48 of 48 places"):
        places(batch)


def test_what_has_no_statistics_is_named(ds: xr.Dataset) -> None:
    scaler = fitted(ds.sel(level=[500]), variables=["z"], statics=[])
    array = np.zeros((2, 1, 6, 8), "f4")
    with pytest.raises(UnknownNameError, match=r"one that the scaler has statistics of, .*but got 'z850@6h'"):
        scaler.transform(array, channels=["z850@6h"])
    with pytest.raises(UnknownNameError, match=r"variable must be one that .*but got 'q'"):
        scaler({"q": array})
    with ds.insitu.loader(variables=["z"]) as loader, pytest.raises(UnknownNameError, match=r"'z' .* at level 850"):
        scaler(next(iter(loader)))
    with ds.insitu.loader(variables=["t2m"]) as loader, pytest.raises(UnknownNameError, match="but got 't2m'"):
        scaler(next(iter(loader)))
    with (
        ds.isel(lon=0).insitu.loader(variables=["z"]) as loader,
        pytest.raises(RequestError, match=r"'z' must have the dimensions \['level', 'lat', 'lon'\]"),
    ):
        scaler(next(iter(loader)))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 2, 6, 8), {}, "channels must be a list of names for an array, but got None"),
        ((2, 2, 6, 8), {"channels": {"inputs": ["z500"]}}, "channels must be a list of names"),
        ((2, 1, 6, 8), {"channels": "t2m"}, "channels must be a list of names for an array, but got 't2m'"),
        ((2, 0, 6, 8), {"channels": []}, "channels must be a list of names"),
        ((2, 2, 6, 8), {"channels": ["z500"]}, r"\(..., channel, grid, grid\) with 1 channels, but got \(2, 2, 6, 8\)"),
        ((6, 8), {"channels": ["z500"]}, "with 1 channels"),
    ],
    ids=["none", "by group", "text", "empty", "too few", "no axis"],
)
def test_arrays_must_fit_their_channels(ds: xr.Dataset, shape: Any, options: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        fitted(ds).transform(np.zeros(shape, "f4"), **options)


def test_it_prints_its_channels(ds: xr.Dataset) -> None:
    lines = repr(fitted(ds)).splitlines()
    assert lines[0] == "<insitu_xr.Scaler of 6 channels>"
    assert lines[2].split() == ["z500", "500000", "±", "29.2421"]
    assert repr(fitted(ds, dims="time")).splitlines()[1] == "  t2m   at each of 48 places"
    assert json.loads(fitted(ds).to_json())["variables"]["z"]["labels"]["level"]["values"] == [500, 850]
