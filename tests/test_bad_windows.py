"""Windows that cannot be had: refused with a reason, before any data is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from zarr.storage import MemoryStore

from insitu_xr.errors import RequestError
from insitu_xr.testing import CountingStore


def counted(labels: Any) -> tuple[CountingStore, xr.Dataset]:
    inner = MemoryStore()
    fields = xr.Dataset({"a": ("time", np.arange(len(labels), dtype="f4"))}, {"time": labels})
    fields.to_zarr(inner, encoding={"a": {"chunks": (2,)}}, consolidated=False)
    store = CountingStore(inner)
    ds = xr.open_zarr(store, chunks=None, consolidated=False)
    store.reset()
    return store, ds


DAYS = pd.date_range("2000-01-01", periods=6)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 1, 2], r"must be unique for leads, but 2000-01-02 occurs more than once \(again at position 2\)"),
        ([5, 4, 4, 1], r"must be unique for leads, but 2000-01-05 occurs more than once \(again at position 2\)"),
        ([0, 1, 3, 2, 4], "must be in order for leads, but 2000-01-03 at position 3 follows 2000-01-04"),
        ([5, 4, 2, 3], "must be in order for leads, but 2000-01-04 at position 3 follows 2000-01-03"),
    ],
)
@pytest.mark.parametrize("calendar", [None, "360_day"])
@pytest.mark.parametrize("method", ["plan", "loader"])
def test_what_has_no_unique_order_is_named_before_any_read(
    order: list[int], message: str, calendar: str | None, method: str
) -> None:
    labels: Any = DAYS
    if calendar is not None:
        labels = xr.date_range("2000-01-01", periods=6, calendar=calendar, use_cftime=True)
    store, ds = counted(labels[order])
    with pytest.raises(RequestError, match="labels of 'time' " + message):
        getattr(ds.insitu, method)(variables=["a"], leads=["1D"])
    assert store.data_gets == []
    assert ds.insitu.plan(variables=["a"]).anchors_kept == len(order)


def test_missing_labels_are_named() -> None:
    labels = pd.DatetimeIndex([*DAYS[:3], pd.NaT, *DAYS[4:]])
    ds = xr.Dataset({"a": ("time", np.arange(6.0))}, {"time": labels})
    with pytest.raises(RequestError, match="labels of 'time' must not be missing, but that at position 3 is NaT"):
        ds.insitu.plan(variables=["a"], leads=["1D"])


@pytest.mark.parametrize("leads", [["0h", "6h", "36h"], ["-18h", "18h"], ["36h"], ["-36h"]])
def test_a_window_longer_than_the_longest_run(leads: list[str]) -> None:
    days = pd.date_range("2000-01-01", periods=20)
    runs = pd.DatetimeIndex([day + pd.Timedelta(hours=6 * k) for day in days[::5] for k in range(4)])
    store, ds = counted(runs)
    with pytest.raises(RequestError, match="over 36h, but the longest run of labels without a gap only over 18h"):
        ds.insitu.plan(variables=["a"], leads=leads)
    assert store.data_gets == []


def test_a_window_longer_than_the_axis() -> None:
    _, ds = counted(pd.date_range("2000", periods=5, freq="6h"))
    with pytest.raises(RequestError, match="over 360D, but the longest run of labels without a gap only over 24h"):
        ds.insitu.plan(variables=["a"], leads=["0h", "360D"])
