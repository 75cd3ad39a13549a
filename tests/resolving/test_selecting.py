"""Labels looked up as ``ds.sel`` does."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.resolving.sampling import axis_of
from insitu_xr.resolving.selecting import Labels

SIX_HOURLY = pd.date_range("2000-01-01", periods=40, freq="6h")
NOLEAP = xr.date_range("2000-01-01", periods=800, freq="D", calendar="noleap", use_cftime=True)
D360 = xr.date_range("2000-02-28", periods=400, freq="D", calendar="360_day", use_cftime=True)


def along(labels: Any, n: int = 0) -> tuple[xr.Dataset, Labels]:
    coords = {} if labels is None else {"time": labels}
    size = n if labels is None else len(labels)
    ds = xr.Dataset({"place": ("time", np.arange(size))}, coords)
    return ds, Labels(axis_of(ds, "time"))


@pytest.mark.parametrize(
    ("labels", "selection"),
    [
        (SIX_HOURLY, slice("2000-01-01", "2000-01-02")),
        (SIX_HOURLY, slice("2000-01-01", pd.Timestamp("2000-01-02"))),
        (SIX_HOURLY, slice(None, "2000-01-03T05")),
        (SIX_HOURLY, slice("2000-01-04", None, 3)),
        (SIX_HOURLY, "2000"),
        (SIX_HOURLY, "2000-01-03"),
        (SIX_HOURLY, pd.Timestamp("2000-01-03T06")),
        (SIX_HOURLY, np.datetime64("2000-01-03T06")),
        (SIX_HOURLY, list(SIX_HOURLY[[4, 2]])),
        (SIX_HOURLY, SIX_HOURLY[[4, 2]].to_numpy()),
        (SIX_HOURLY, xr.DataArray(SIX_HOURLY[3:9])),
        (SIX_HOURLY.astype("M8[s]"), slice("2000-01-02", "2000-01-03")),
        (NOLEAP, "2001"),
        (NOLEAP, slice("2000-02-27", "2000-03-02")),
        (NOLEAP, slice(cftime.DatetimeNoLeap(2000, 5, 1), None)),
        (NOLEAP, [NOLEAP[7], NOLEAP[2]]),
        (D360, "2000-02-30"),
        (D360, slice("2000-02-29", "2000-03")),
        (D360[::-1], slice("2000-03", "2000-02-29")),
        (SIX_HOURLY[::-1], slice(pd.Timestamp("2000-01-03"), pd.Timestamp("2000-01-02"))),
        (SIX_HOURLY[::-1], slice(None, pd.Timestamp("2000-01-03"), 2)),
        (np.array([0.5, 1.5, 2.5, 4.0]), slice(1, 2.5)),
        (np.array([4, 3, 2, 1]), slice(3, 1)),
        (np.array([4, 3, 2, 1]), [1, 4]),
        (np.array(["a", "b", "c"]), "b"),
        (np.array(["a", "b", "c"]), ["c", "a"]),
        (None, slice(2, 5)),
        (None, slice(-3, None)),
        (None, [5, 1]),
        (None, 4),
    ],
)
def test_a_selection_means_what_it_means_to_xarray(labels: Any, selection: Any) -> None:
    ds, found = along(labels, 8)
    expected = np.unique(ds.sel(time=selection)["place"].values)
    assert found.positions(selection, "train").tolist() == expected.tolist()
    assert len(expected)


def test_a_day_is_whole_and_a_timestamp_is_an_instant() -> None:
    _, found = along(SIX_HOURLY)
    assert len(found.positions(slice("2000-01-01", "2000-01-02"), "train")) == 8
    assert len(found.positions(slice("2000-01-01", pd.Timestamp("2000-01-02")), "train")) == 5


def test_lists_mix_labels_periods_and_slices() -> None:
    _, found = along(SIX_HOURLY)
    chosen = ["2000-01-03", slice("2000-01-01", "2000-01-01T06"), SIX_HOURLY[20]]
    assert found.positions(chosen, "train").tolist() == [0, 1, 8, 9, 10, 11, 20]


def test_dates_of_a_descending_axis_may_be_written_in_either_direction() -> None:
    _, found = along(SIX_HOURLY[::-1])
    expected = [k for k, t in enumerate(SIX_HOURLY[::-1]) if t.day in (2, 3)]
    assert found.positions(slice("2000-01-03", "2000-01-02"), "train").tolist() == expected
    assert found.positions(slice("2000-01-02", "2000-01-03"), "train").tolist() == expected
    assert found.positions("2000-01-02", "train").tolist() == expected[4:]


def test_masks_and_callables() -> None:
    ds, found = along(SIX_HOURLY[::-1])
    mask = (ds.time.dt.hour == 6).to_numpy()
    for chosen in (mask, mask.tolist(), ds.time.dt.hour == 6, lambda t: t.hour == 6):
        assert found.positions(chosen, "train").tolist() == np.flatnonzero(mask).tolist()
    _, unlabelled = along(None, 8)
    assert unlabelled.positions(lambda k: k % 3 == 0, "train").tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    ("labels", "selection", "error", "message"),
    [
        (SIX_HOURLY, "2005", UnknownNameError, "train must name labels of 'time', but got '2005'.*2000-01-01 to"),
        (SIX_HOURLY, [SIX_HOURLY[0], pd.Timestamp("2005")], UnknownNameError, "but got Timestamp.'2005-01-01"),
        (SIX_HOURLY, slice("2005", "2006"), RequestError, "must select at least one label, but got slice"),
        (SIX_HOURLY, slice("2000-01-05", "2000-01-02"), RequestError, "must select at least one label"),
        (SIX_HOURLY, [], RequestError, r"must select at least one label, but got \[\]"),
        (SIX_HOURLY, slice(3, 5), RequestError, "train must be written like the labels of 'time', but got slice.3"),
        (SIX_HOURLY, [True] * 3, RequestError, r"mask of shape \(40,\) for 'time', but got shape \(3,\)"),
        (NOLEAP, pd.Timestamp("2000-01-01"), UnknownNameError, "must name labels of 'time'.*noleap"),
        (NOLEAP, slice("x", None), RequestError, "must be written like the labels"),
        (SIX_HOURLY[[3, 1, 2]], slice("2000-01-01", "2000-01-02"), RequestError, "are not in order.*ds.sortby"),
        (None, [8], UnknownNameError, "but got 8, which is none of them; there are 8 labels"),
        (None, ["x"], RequestError, "must name positions of 'time', which has no labels"),
        (None, slice("a", "b"), RequestError, "must be written like the labels of 'time'"),
    ],
)
def test_what_cannot_be_found_is_refused(labels: Any, selection: Any, error: type[Exception], message: str) -> None:
    _, found = along(labels, 8)
    with pytest.raises(error, match=message):
        found.positions(selection, "train")


def test_a_mask_of_other_labels_is_refused() -> None:
    ds, found = along(SIX_HOURLY)
    shifted = ds.assign_coords(time=SIX_HOURLY + pd.Timedelta("1h"))
    with pytest.raises(RequestError, match="mask with the labels of 'time', but got one with others"):
        found.positions(shifted.time.dt.day == 1, "train")


@pytest.mark.parametrize("turn", [1, -1])
def test_repeated_labels_are_refused_by_name(turn: int) -> None:
    with pytest.raises(RequestError, match=r"labels of 'time' must be unique.*2000-01-01T06:00.* occurs more"):
        along(SIX_HOURLY[[0, 1, 1, 2]][::turn])
