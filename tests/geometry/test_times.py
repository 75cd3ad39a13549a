"""Labels as exact numbers, leads in the same unit, and both as text."""

from __future__ import annotations

import datetime
from typing import Any

import cftime
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, describe, format_duration, label_axis, modal_step, offset

HOUR = 3_600_000_000_000


def times(*labels: str, unit: str = "ns") -> LabelAxis:
    return label_axis("time", np.array(labels, f"datetime64[{unit}]"), len(labels))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.array(["2000-01-01"], "datetime64[s]"), "time"),
        (np.array([6], "timedelta64[h]"), "time"),
        (np.array([cftime.Datetime360Day(2000, 2, 30)]), "time"),
        (np.array([1, 2], "uint8"), "number"),
        (np.array([0.5, 1.5], "float32"), "number"),
        (np.array(["a", "b"]), "text"),
        (np.array(["a", "b"], object), "text"),
        (None, "position"),
    ],
)
def test_kinds_of_labels(labels: Any, kind: str) -> None:
    axis = label_axis("d", labels, 2 if labels is None else len(labels))
    assert axis.kind == kind
    assert len(axis) == (2 if labels is None else len(labels))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_lead_is_counted_in_the_unit_of_the_axis(unit: str) -> None:
    axis = times("2000-01-01", "2000-01-02", unit=unit)
    step = offset(axis, "1D")
    assert step.ticks == np.diff(axis.ticks)[0]
    assert (step.value, step.name) == (np.timedelta64(24 * HOUR, "ns"), "1D")


@given(st.integers(-(10**6), 10**6), st.sampled_from(["360_day", "noleap", "standard", "proleptic_gregorian"]))
def test_cftime_labels_are_exact(microseconds: int, calendar: str) -> None:
    base = cftime.datetime(1850, 2, 28, calendar=calendar)
    label = base + datetime.timedelta(days=30_000, microseconds=microseconds)
    axis = label_axis("time", np.array([base, label]), 2)
    assert np.diff(axis.ticks).tolist() == [30_000 * 86_400 * 10**6 + microseconds]
    assert (axis.calendar, axis.tick_ns) == (calendar, 1000)


@pytest.mark.parametrize(
    "lead",
    ["-6h", datetime.timedelta(hours=-6), np.timedelta64(-6, "h"), np.timedelta64(-360, "m"), "-360min", "-0.25D"],
)
def test_ways_to_write_a_duration(lead: Any) -> None:
    step = offset(times("2000-01-01"), lead)
    assert step.ticks == -6 * HOUR
    assert step.value == np.timedelta64(-6, "h")


def test_a_lead_finer_than_the_axis_has_no_ticks() -> None:
    assert offset(times("2000-01-01", unit="s"), "500ms").ticks is None
    assert offset(times("2000-01-01", unit="ms"), "500ms").ticks == 500
    axis = label_axis("time", np.array([cftime.DatetimeNoLeap(2000, 1, 1)]), 1)
    assert offset(axis, "1500ns").ticks is None


@pytest.mark.parametrize("lead", [6, 6.0, np.int64(6), "6 parsecs", "1M", "NaT", "", np.timedelta64("NaT", "ns")])
def test_what_is_no_duration_is_refused(lead: Any) -> None:
    with pytest.raises(RequestError, match=r"lead.*'time' must be a duration"):
        offset(times("2000-01-01"), lead)


def test_numeric_leads() -> None:
    whole = label_axis("step", np.array([0, 6, 12]), 3)
    assert (offset(whole, 6).ticks, offset(whole, 6).name, offset(whole, 6.0).value) == (6, "+6", 6)
    parts = label_axis("step", np.array([0.0, 0.5]), 2)
    assert (offset(parts, 0.5).ticks, offset(parts, -0.5).name, offset(parts, 0).name) == (0.5, "-0.5", "0")
    bare = label_axis("step", None, 3)
    assert (offset(bare, -2).ticks, offset(bare, -2).name, offset(bare, 0).name) == (-2, "-2", "0")


@pytest.mark.parametrize(
    ("labels", "lead", "rule"),
    [
        (np.array([0, 6]), "6h", "a difference of labels"),
        (np.array([0, 6]), True, "a difference of labels"),
        (np.array([0, 6]), np.timedelta64(6, "h"), "a difference of labels"),
        (None, 1.5, "a whole number of steps"),
        (None, "1h", "a whole number of steps"),
        (np.array(["a", "b"]), 1, "left out"),
    ],
)
def test_what_does_not_fit_the_labels_is_refused(labels: Any, lead: Any, rule: str) -> None:
    with pytest.raises(RequestError, match=rf"along 'd' must be {rule}"):
        offset(label_axis("d", labels, 2), lead)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0h"),
        (-6 * HOUR, "-6h"),
        (24 * HOUR, "24h"),
        (10 * 24 * HOUR, "10D"),
        (-10 * 24 * HOUR, "-10D"),
        (10 * 24 * HOUR + HOUR, "241h"),
        (HOUR // 2, "30min"),
        (90 * 10**9, "90s"),
        (1_500_000_000, "1500ms"),
        (-1_000, "-1us"),
        (1, "1ns"),
    ],
)
def test_durations_as_text(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


@given(st.integers(-(10**15), 10**15))
def test_a_duration_as_text_reads_back_the_same(nanoseconds: int) -> None:
    assert offset(times("2000-01-01"), format_duration(nanoseconds)).ticks == nanoseconds


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_labels_as_text(unit: str) -> None:
    axis = times("2000-01-01", "2000-01-01T06:00", unit=unit)
    assert [axis.show(0), axis.show(1)] == ["2000-01-01", "2000-01-01T06:00:00"]


def test_parts_of_a_second_are_shown() -> None:
    assert "06:00:00.25" in times("2000-01-01T06:00:00.250").show(0)
    assert times("2000-01-01T06:00:10", unit="ns").show(0) == "2000-01-01T06:00:10"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.array(["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-05"], "datetime64[ns]"), "mostly 24h apart"),
        (np.array([3, 1, -1]), "3 labels of 'd' from 3 to -1, mostly -2 apart"),
        (np.array(["a", "b"]), "2 labels of 'd' from a to b"),
        (np.array([5]), "1 labels of 'd' from 5 to 5"),
        (np.array([], "datetime64[ns]"), "no labels of 'd'"),
        (np.array([cftime.Datetime360Day(2000, 2, 29), cftime.Datetime360Day(2000, 2, 30)]), "(360_day calendar)"),
    ],
)
def test_what_an_axis_offers(labels: Any, text: str) -> None:
    assert text in describe(label_axis("d", labels, len(labels)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_the_usual_step(steps: list[int]) -> None:
    ticks = np.cumsum([0, *steps])
    assert steps.count(int(modal_step(ticks))) == max(map(steps.count, steps))
