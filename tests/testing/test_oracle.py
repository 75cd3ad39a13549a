"""The oracle on cases small enough to be worked out by hand, and on wrong batches."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from insitu_xr.testing import assert_batches_equal, expected_batch, expected_group, kept_anchors


@dataclass
class FakeBatch:
    positions: Any
    arrays: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]


def dataset(labels: Any = None, size: int = 4) -> xr.Dataset:
    values = np.arange(2 * size, dtype="f4").reshape(2, size)
    return xr.Dataset({"a": (("x", "time"), values)}, {} if labels is None else {"time": labels})


def test_positions_move_the_sample_dim_first() -> None:
    batch = FakeBatch(np.array([3, 0]), {})
    arrays = expected_batch(dataset(), batch, sample_dim="time", variables=["a"])
    np.testing.assert_array_equal(arrays["a"], np.array([[3, 7], [0, 4]], "f4"), strict=True)


def test_leads_come_second() -> None:
    arrays = expected_group(dataset(), [2, 1], sample_dim="time", variables=["a"], leads=[1, -1])
    np.testing.assert_array_equal(arrays["a"], np.array([[[3, 7], [1, 5]], [[2, 6], [0, 4]]], "f4"), strict=True)


def test_leads_by_variable() -> None:
    ds = dataset().assign(b=dataset().a + 10)
    arrays = expected_group(ds, [0], sample_dim="time", variables=["a", "b"], leads={"a": [0], "b": [1, 2]})
    assert arrays["a"].tolist() == [[[0, 4]]]
    assert arrays["b"].tolist() == [[[11, 15], [12, 16]]]


DAILY = pd.to_datetime(["2000-01-01", "2000-01-02", "2000-01-04", "2000-01-05"])
CFTIME = xr.date_range("2000-02-29", periods=4, calendar="360_day", use_cftime=True)


@pytest.mark.parametrize(
    ("labels", "leads", "kept"),
    [
        (None, [0, 1], [0, 1, 2]),
        (None, [-1, 2], [1]),
        ([10, 20, 40, 50], [0, 10], [0, 2]),
        ([50, 40, 20, 10], [0, 10], [1, 3]),
        ([0.0, 0.5, 1.5, 2.0], [0.5], [0, 2]),
        (DAILY, ["0h", "24h"], [0, 2]),
        (DAILY, [np.timedelta64(3, "D")], [0, 1]),
        (DAILY, [dt.timedelta(days=-1)], [1, 3]),
        (DAILY.as_unit("s"), ["1D"], [0, 2]),
        (CFTIME, ["0D", "2D"], [0, 1]),
        (DAILY - DAILY[0], ["1D"], [0, 2]),
        (DAILY, ["7D"], []),
        (DAILY, None, [0, 1, 2, 3]),
    ],
)
def test_kept_anchors(labels: Any, leads: Any, kept: list[int]) -> None:
    assert kept_anchors(dataset(labels), "time", leads) == kept


def batches(ds: xr.Dataset, *positions: list[int]) -> list[FakeBatch]:
    return [FakeBatch(np.array(p), expected_group(ds, p, sample_dim="time", variables=["a"])) for p in positions]


def test_right_batches_pass() -> None:
    ds = dataset()
    assert assert_batches_equal(batches(ds, [3, 1], [0, 2]), ds, sample_dim="time", variables=["a"]) == 4
    assert assert_batches_equal(batches(ds, [3, 1]), ds, sample_dim="time", variables=["a"], complete=False) == 2


@pytest.mark.parametrize(
    ("positions", "leads", "message"),
    [
        ([[0, 1], [2]], None, r"positions \[3\] did not"),
        ([[0, 1], [1, 2, 3]], None, r"positions \[1\] came more often"),
        ([[0, 1, 2, 3]], {"a": [0]}, "batch 0, a"),
    ],
)
def test_wrong_anchors_fail(positions: list[list[int]], leads: Any, message: str) -> None:
    ds = dataset()
    with pytest.raises(AssertionError, match=message):
        assert_batches_equal(batches(ds, *positions), ds, sample_dim="time", variables=["a"], leads=leads)


def test_an_anchor_without_its_window_fails() -> None:
    ds = dataset()
    wrong = [FakeBatch(np.array([3]), {"a": np.zeros((1, 1, 2), "f4")})]
    with pytest.raises((AssertionError, KeyError)):
        assert_batches_equal(wrong, ds, sample_dim="time", variables=["a"], leads=[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values + 1, "Mismatched elements"),
        (lambda values: values.astype("f8"), "dtype float64, but xarray has float32"),
        (lambda values: values[:, :1], r"shapes \(4, 1\), \(4, 2\)"),
        (lambda values: values.tolist(), "must be a numpy array"),
    ],
)
def test_wrong_values_fail(change: Any, message: str) -> None:
    ds = dataset()
    wrong = batches(ds, [0, 1, 2, 3])
    wrong[0].arrays["a"] = change(wrong[0].arrays["a"])
    with pytest.raises(AssertionError, match=message):
        assert_batches_equal(wrong, ds, sample_dim="time", variables=["a"])


def test_nan_equals_nan() -> None:
    ds = dataset().where(lambda each: each != 3)
    assert_batches_equal(batches(ds, [0, 1, 2, 3]), ds, sample_dim="time", variables=["a"])
