"""anchors=, every=, at= and exclude=, against plain selections by xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from insitu_xr import InsituError

TIMES = {
    "6-hourly": pd.date_range("2000-01-01", periods=200, freq="6h"),
    "half-hour": pd.date_range("2000-01-01T00:30", periods=200, freq="3h"),
    "360-day": xr.date_range("2000-02-28", periods=200, freq="6h", calendar="360_day", use_cftime=True),
    "descending": pd.date_range("2000-01-01", periods=200, freq="6h")[::-1],
    "gappy": pd.date_range("2000-01-01", periods=240, freq="6h").delete(slice(40, 80)),
}


def dataset(kind: str) -> xr.Dataset:
    times = TIMES[kind]
    return xr.Dataset({"a": ("time", np.arange(float(len(times))))}, {"time": times})


def positions(ds: xr.Dataset, **arguments: Any) -> list[int]:
    loader = ds.insitu.loader(variables=["a"], batch_size=7, **arguments)
    found = np.concatenate([np.atleast_1d(batch.positions) for batch in loader])
    np.testing.assert_array_equal(found, np.concatenate([batch["a"].reshape(len(batch), -1)[:, 0] for batch in loader]))
    return [int(k) for k in found]


def where(ds: xr.Dataset, mask: Any) -> list[int]:
    return [int(k) for k in np.flatnonzero(np.asarray(mask))]


@pytest.mark.parametrize("kind", sorted(TIMES))
def test_a_callable_over_the_index(kind: str) -> None:
    ds = dataset(kind)
    expected = where(ds, ds.time.dt.day.isin([2, 3, 30]))
    assert positions(ds, anchors=lambda t: t.day.isin([2, 3, 30])) == expected


@pytest.mark.parametrize("kind", sorted(TIMES))
def test_a_mask_a_slice_and_labels(kind: str) -> None:
    ds = dataset(kind)
    mask = np.arange(len(ds.time)) % 3 == 0
    assert positions(ds, anchors=mask) == where(ds, mask)
    assert positions(ds, anchors=ds.time[5:9].to_numpy()) == [5, 6, 7, 8]
    assert positions(ds, anchors=slice(ds.indexes["time"][20], None)) == list(range(20, len(ds.time)))


@pytest.mark.parametrize("kind", ["6-hourly", "360-day", "descending", "gappy"])
def test_times_of_day(kind: str) -> None:
    ds = dataset(kind)
    assert positions(ds, at=["00:00", "12:00"]) == where(ds, ds.time.dt.hour.isin([0, 12]))
    assert positions(ds, at="18:00") == where(ds, ds.time.dt.hour == 18)


def test_half_hours() -> None:
    ds = dataset("half-hour")
    assert positions(ds, at=["00:30"]) == where(ds, (ds.time.dt.hour == 0) & (ds.time.dt.minute == 30))
    with pytest.raises(InsituError, match="anchors must hold at least one label of 'time'"):
        ds.insitu.plan(variables=["a"], at="00:00")


@pytest.mark.parametrize("kind", ["6-hourly", "gappy"])
def test_every_counts_from_the_first_chosen(kind: str) -> None:
    ds = dataset(kind)
    index = ds.indexes["time"]
    first = index[3]
    expected = [k for k, t in enumerate(index) if t >= first and (t - first) % pd.Timedelta("12h") == pd.Timedelta(0)]
    assert positions(ds, anchors=slice(first, None), every="12h") == expected


def test_excluded_periods_are_touched_by_no_window() -> None:
    ds = dataset("6-hourly")
    period = slice("2000-01-10", "2000-01-11")
    bad = {int(k) for k in ds.a.sel(time=period)}
    loader = ds.insitu.loader(variables=["a"], leads=["0h", "24h"], exclude=[period], batch_size=9)
    touched = {int(v) for batch in loader for v in batch["a"].ravel()}
    assert not touched & bad
    kept = [k for k in range(196) if k not in bad and k + 4 not in bad]
    assert sorted(int(p) for batch in loader for p in batch.positions) == kept
    assert "excluded" in str(loader.plan)


def test_a_period_without_labels_excludes_nothing() -> None:
    ds = dataset("gappy")
    assert len(positions(ds, exclude=slice("1990", "1991"))) == len(ds.time)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": "25:00"}, "at must be times of day"),
        ({"at": "06:00+01:00"}, "at must be times of day"),
        ({"every": "-6h"}, "every must be a span above 0"),
        ({"anchors": {"nope": [1]}}, "anchors must be given for sample dimensions, but got 'nope'"),
        ({"anchors": ["1999-01-01"]}, "anchors must name labels of 'time'"),
        ({"anchors": np.ones(3, bool)}, r"anchors must be a mask of shape \(200,\)"),
    ],
)
def test_bad_choices(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InsituError, match=message):
        dataset("6-hourly").insitu.plan(variables=["a"], **arguments)
