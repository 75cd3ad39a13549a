"""What people reported in public trackers, by number: ``shared/reference/field-reports.md``, sections A, C and D.

Tested elsewhere:

- 7, 58, 59 (the intersection), 65: ``test_join.py``
- 44, 45, 46, 67: ``test_forecast.py``
- 38, 53, 57 and 69 for splits: ``test_splits.py``
- 84, 93, 95, 100, 101: ``test_sharding.py``, ``test_order_options.py`` and ``test_resume.py``

Not delivered, or not ours:

- 8: needs Icechunk, which has tests of its own once the package depends on it.
- 59 (``mask`` policy): streams that lack a date drop the anchor; there is no boolean mask in the batch.
- 60 (fill policy), 23, 32: nothing looks into the data before an epoch, so NaN within a present chunk is found by the
  caller, who names the labels in ``exclude=``.
- 62: an init time stands for itself; there is no choice of the latest one within a maximal staleness.
- 69 (pad variant): the last batch is short or left out; padding, with its mask ``batch.padded``, is for ranks.
- 70: there are no spatial tiles, so none can be ragged or empty.
- 140: a DataTree is taken apart by the caller; ``insitu_xr.join`` takes its datasets.
- 141: no predicate on the content of samples; see 60.
"""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr.errors import InsituError


def raw(
    values: Any,
    attributes: dict[str, Any] | None = None,
    *,
    fill: Any = None,
    zarr_format: Any = 3,
    chunk: int = 2,
    shard: int | None = None,
    absent: tuple[str, ...] = (),
    **options: Any,
) -> xr.Dataset:
    """One stored array ``a`` along ``time``, in every detail, as xarray opens it."""
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=zarr_format)
    named: dict[str, Any] = {"attributes": dict(attributes or {})}
    if zarr_format == 2:
        named["attributes"]["_ARRAY_DIMENSIONS"] = ["time"]
    else:
        named["dimension_names"] = ("time",)
    if shard is not None:
        named["shards"] = (shard,)
    data = np.asarray(values)
    named["config"] = {"write_empty_chunks": False}
    array = group.create_array("a", shape=data.shape, dtype=data.dtype, chunks=(chunk,), fill_value=fill, **named)
    array[:] = data
    for key in absent:
        del store._store_dict[key]
    ds: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False, **options)
    return ds


def all_of(ds: xr.Dataset, name: str = "a", **arguments: Any) -> Any:
    """All values of a variable, through a loader; the same as xarray shows."""
    with ds.insitu.loader(variables=[name], sample_dim="time", batch_size=3, **arguments) as loader:
        found = np.concatenate([batch[name] for batch in loader])
    if not arguments:
        np.testing.assert_array_equal(found, ds[name].values, strict=True)
    return found


# -- A. decoding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("masked", "dtype"), [(True, "f4"), (False, "i1")])
def test_002_the_dtype_is_that_of_the_same_opening(masked: bool, dtype: str) -> None:
    ds = raw(np.arange(6, dtype="i1"), fill=-1, zarr_format=2, mask_and_scale=masked)
    found = all_of(ds)
    assert found.dtype == dtype
    assert found.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("masked", [True, False])
def test_003_fill_values_are_masked_if_the_dataset_says_so(masked: bool) -> None:
    values = np.array([1, 2, -9999, -9999, 5, 6], "f4")
    ds = raw(values, fill=-9999.0)
    if masked:  # what the switch ``use_zarr_fill_value_as_mask`` does where xarray heeds it
        ds.a.attrs["_FillValue"] = np.float32(-9999)
        ds = xr.decode_cf(ds)
    found = all_of(ds)
    assert np.isnan(found).tolist() == [masked and value == -9999 for value in values]


def test_004_a_chunk_that_was_never_written_is_the_fill_value() -> None:
    ds = raw(np.arange(1, 7, dtype="f4"), fill=0.0, absent=("a/c/1",))
    with ds.insitu.loader(variables=["a"], sample_dim="time", batch_size=6) as loader:
        (batch,) = loader
        assert batch["a"].tolist() == [1, 2, 0, 0, 5, 6]
        assert loader.stats.absent == 1


def test_005_zeros_that_were_not_written_are_not_missing() -> None:
    ds = raw(np.array([0, 0, 1, 1], "f4"), {"_FillValue": "AAAAAAAA+H8="}, fill=0.0, shard=4)
    assert all_of(ds).tolist() == [0, 0, 1, 1]


def test_009_packed_numbers_have_the_dtype_that_xarray_gives_them() -> None:
    ds = raw(np.array([0, 100, -100, 7], "i2"), {"scale_factor": 0.01, "add_offset": 273.15}, fill=0)
    assert all_of(ds).dtype == ds.a.dtype == np.float64
    narrow = all_of(ds, dtype="f4")
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow, ds.a.values.astype("f4"))


@pytest.mark.filterwarnings("ignore:variable 'a' has multiple fill values")
def test_010_every_sentinel_is_masked() -> None:
    values = np.array([1, -999, -99, 4], "f4")
    ds = raw(values, {"_FillValue": -999.0, "missing_value": -99.0}, fill=0.0, zarr_format=2)
    assert np.isnan(all_of(ds)).tolist() == np.isnan(ds.a.values).tolist()
    assert np.isnan(all_of(ds))[2]


def test_011_unsigned_before_masking() -> None:
    ds = raw(np.array([-1, -2, 5], "i1"), {"_Unsigned": "true", "_FillValue": -1}, fill=0)
    found = all_of(ds)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([np.nan, 254, 5], "f4"))


def test_014_no_mask_is_invented() -> None:
    ds = raw(np.array([1, 1e37, 3, 1e37], "f4"), fill=0.0)
    assert all_of(ds).tolist() == [1, np.float32(1e37), 3, np.float32(1e37)]


# -- C. time, leads, labels --------------------------------------------------------------------------------------


def steps(times: Any, **variables: Any) -> xr.Dataset:
    """A field whose value is the position along time."""
    return xr.Dataset({"a": ("time", np.arange(float(len(times)))), **variables}, {"time": times})


def kept(ds: xr.Dataset, **arguments: Any) -> list[int]:
    with ds.insitu.loader(variables=["a"], batch_size=7, **arguments) as loader:
        return [int(p) for batch in loader for p in batch.positions]


@pytest.mark.parametrize(
    ("stop", "n"),
    [("2000-01-02", 8), (pd.Timestamp("2000-01-02"), 5), (np.datetime64("2000-01-02", "ns"), 5)],
)
def test_038_days_are_whole_and_timestamps_are_instants(stop: Any, n: int) -> None:
    ds = steps(pd.date_range("2000-01-01", periods=40, freq="6h"))
    assert ds.sel(time=slice("2000-01-01", stop)).sizes["time"] == n
    assert kept(ds, anchors=slice("2000-01-01", stop)) == list(range(n))


@pytest.mark.parametrize(("calendar", "whole"), [("julian", 29), ("noleap", 28)])
def test_040_windows_are_of_decoded_labels(calendar: str, whole: int) -> None:
    numbers = ("time", np.arange(40), {"units": "days since 2000-02-01", "calendar": calendar})
    ds = xr.decode_cf(xr.Dataset({"a": ("time", np.arange(40.0))}, {"time": numbers}))
    plan = ds.insitu.plan(variables=["a"], leads=["0D", "5D"])
    assert plan.anchors_kept == 35
    last = cftime.datetime(2000, 2, 1, calendar=calendar) + pd.Timedelta("39D").to_pytimedelta()
    assert f"from 2000-02-01 to {last:%Y-%m-%d}, mostly 24h apart ({calendar} calendar)" in repr(plan)
    assert len(kept(ds, anchors=lambda t: t.month == 2)) == whole


def test_042_stamps_that_move_are_told_and_no_window_spans_them() -> None:
    times = pd.date_range("2024-01-01", periods=10).append(pd.date_range("2024-01-11T06", periods=10))
    ds = steps(times)
    plan = ds.insitu.plan(variables=["a"], leads=["0D", "1D"])
    assert plan.anchors_kept == 18
    assert [str(d) for d in plan.dropped] == [
        "1 after the end at lead 1D of 'a' (2024-01-20T06:00:00)",
        "1 in a gap at lead 1D of 'a' (2024-01-10)",
    ]
    assert "mostly 24h apart, but 30h before 2024-01-11T06:00:00" in repr(plan)
    assert kept(ds, leads=["0D", "1D"]) == [k for k in range(19) if k != 9]
    assert kept(ds, leads=["0D", "1D"], time_tolerance="6h") == list(range(19))


def test_049_coordinates_and_data_move_together() -> None:
    found = []
    for first in (-180, 0):
        lon = np.arange(first, first + 360)
        values = np.where(lon == 90, 7.0, 0.0) + np.where(lon % 360 == 350, 3.0, 0.0)
        ds = xr.Dataset(
            {"a": (("time", "lon"), np.broadcast_to(values, (4, 360)))},
            {"time": pd.date_range("2000", periods=4), "lon": lon.astype("f4")},
        )
        store = MemoryStore()
        ds.to_zarr(store, encoding={"a": {"chunks": (2, 50)}}, consolidated=False)
        opened = xr.open_zarr(store, chunks=None, consolidated=False)
        for region in (opened, opened.insitu.region(lon=slice(-20, 100), wrap=True)):
            with region.insitu.loader(variables=["a"], batch_size=4) as loader:
                (batch,) = loader
                labelled = batch.to_xarray()
                assert labelled.a.sel(lon=90).values.tolist() == [7.0] * 4
                assert labelled.a.sel(lon=-10 if first else 350).values.tolist() == [3.0] * 4
        found.append(batch["a"])
        assert batch["a"].shape == (4, 121)
    np.testing.assert_array_equal(found[0], found[1])


def test_051_grids_that_differ_are_named_at_construction() -> None:
    times = pd.date_range("2000", periods=4)
    ds = xr.Dataset(
        {"a": (("time", "lat", "lon"), np.zeros((4, 3, 2))), "b": (("time", "y", "lon"), np.zeros((4, 5, 2)))},
        {"time": times},
    )
    with pytest.raises(InsituError) as error:
        ds.insitu.loader(variables=["a", "b"], layout="stacked")
    assert all(part in str(error.value) for part in ("'a'", "'b'", "3", "5"))
    other = xr.Dataset({"c": (("time", "lat", "lon"), np.zeros((4, 5, 2)))}, {"time": times})
    with pytest.raises(InsituError) as error:
        insitu_xr.join({"one": ds, "two": other}).loader(variables=["a", "c"], layout="stacked")
    assert all(part in str(error.value) for part in ("'a'", "'c'", "3", "5"))


@pytest.mark.parametrize("lead", ["3h", "-3h"])
def test_052_half_past_the_hour_is_as_good_as_any(lead: str) -> None:
    on_the_hour, half_past = (
        kept(steps(pd.date_range(start, periods=30, freq="1h")), leads=["0h", lead])
        for start in ("2000-01-01", "2000-01-01T00:30")
    )
    assert on_the_hour == half_past
    assert len(half_past) == 27


def test_053_the_same_labels_whatever_the_start() -> None:
    found = []
    for start in ("1940-01-01", "1979-01-01"):
        ds = steps(pd.date_range(start, "1985-12-31"))
        with ds.insitu.loader(variables=["a"], anchors=slice("1980", "1981"), batch_size=100) as loader:
            found.append(np.concatenate([batch.anchors for batch in loader]))
    np.testing.assert_array_equal(found[0], found[1])
    assert len(found[0]) == 366 + 365


# -- D. windows, gaps, batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_057_lengths_are_exact(drop_last: bool, shuffle: bool) -> None:
    ds = steps(pd.date_range("2000", periods=120, freq="6h").delete([*range(20, 33), 70, 100, 101]))
    request: dict[str, Any] = {"variables": ["a"], "leads": ["-12h", "6h"], "drop_last": drop_last, "shuffle": shuffle}
    with ds.insitu.loader(**request, batch_size=8) as loader:
        sizes = [len(batch) for batch in loader]
        anchors = loader.plan.anchors_kept
        assert anchors + sum(d.count for d in loader.plan.dropped) == len(ds.time)
        assert len(sizes) == len(loader)
        assert sum(sizes) == (anchors - anchors % 8 if drop_last else anchors)


def test_060_one_missing_step_costs_every_window_that_would_touch_it() -> None:
    times = pd.date_range("2000", periods=200, freq="1h")
    leads = [f"{k}h" for k in range(-12, 33)]
    ds = steps(times)
    whole, without = kept(ds, leads=leads), kept(ds, leads=leads, exclude=[times[100]])
    assert len(whole) == 200 - 44
    assert sorted(set(whole) - set(without)) == list(range(100 - 32, 100 + 12 + 1))
    assert len(whole) - len(without) == 45
    plan = ds.insitu.plan(variables=["a"], leads=leads, exclude=[times[100]])
    assert [str(d) for d in plan.dropped][-1].startswith("45 touching an excluded period (2000-01-03T20:00:00, ")


def test_063_missing_values_stay_missing() -> None:
    values = np.array([1.0, np.nan, 3.0, np.inf, -0.0, np.nan])
    ds = xr.Dataset({"a": ("time", values)}, {"time": pd.date_range("2000", periods=6)})
    assert all_of(ds).tobytes() == values.tobytes()


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [10] * 10 + [3]), (True, [10] * 10)])
def test_069_the_last_batch_is_kept_or_dropped(drop_last: bool, sizes: list[int]) -> None:
    ds = steps(pd.date_range("2000", periods=103))
    with ds.insitu.loader(variables=["a"], batch_size=10, drop_last=drop_last) as loader:
        assert [len(batch) for batch in loader] == sizes
        assert len(loader) == len(sizes)


def test_071_a_long_window_is_a_view_of_few_chunks() -> None:
    times = pd.date_range("2000", periods=160, freq="1h")
    values = np.random.default_rng(0).normal(size=(160, 30, 10)).astype("f4")
    ds = xr.Dataset({"a": (("time", "y", "x"), values)}, {"time": times})
    store = MemoryStore()
    ds.to_zarr(store, encoding={"a": {"chunks": (10, 30, 10)}}, consolidated=False)
    opened = xr.open_zarr(store, chunks=None, consolidated=False)
    constructed = ds.a.rolling(time=100).construct("window").transpose("time", "window", ...)
    leads = [f"{k}h" for k in range(-99, 1)]
    with opened.insitu.loader(variables=["a"], leads=leads, batch_size=2) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["a"], constructed.values[batch.positions])
        assert loader.stats.reads == loader.plan.chunks == 16
        # All chunks once, and two batches or so; the windows themselves would hold 61 times 100 fields.
        assert loader.stats.peak_bytes <= loader.plan.peak_bytes
        assert loader.plan.minimum_memory < 61 * 100 * 1200
