"""Partners of anchors, against a dictionary of the labels themselves."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import cftime
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis, label_axis, offset
from insitu_xr.geometry.window import AFTER_END, BEFORE_START, GAP, KEPT, windows

CALENDARS = ("360_day", "noleap", "standard")


@dataclass(frozen=True, slots=True)
class Case:
    """An axis, the labels as Python compares them, and leads in two forms: as asked and as added to a label."""

    axis: LabelAxis
    labels: list[Any]
    leads: list[Any]
    steps: list[Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw irregular, gappy axes of every kind, either way round, with leads on and off their grid."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 7]), max_size=15))
    counts = np.cumsum([0, *gaps])[:: draw(st.sampled_from([1, -1]))]
    wanted = draw(st.lists(st.integers(-8, 8), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["ns", "us", "ms", "s", "fast", *CALENDARS, "integer", "float", "none"]))
    if kind in CALENDARS:
        base = cftime.datetime(1850, 2, 27, calendar=kind)
        labels = [base + datetime.timedelta(hours=6 * int(c)) for c in counts]
        steps: list[Any] = [datetime.timedelta(hours=6 * w) for w in wanted]
        return Case(label_axis("d", np.array(labels), len(labels)), labels, list(steps), steps)
    if kind in ("integer", "float"):
        scale = 3 if kind == "integer" else 0.5
        numbers = counts * scale
        steps = [w * scale for w in wanted]
        return Case(label_axis("d", numbers, len(numbers)), numbers.tolist(), list(steps), steps)
    if kind == "none":
        n = len(counts)
        return Case(label_axis("d", None, n), list(range(n)), list(wanted), list(wanted))
    unit = np.timedelta64(250, "us").astype("m8[ns]") if kind == "fast" else np.timedelta64(6, "h")
    resolution = "ns" if kind == "fast" else kind
    times = (np.datetime64("1999-12-31", "ns") + counts * unit).astype(f"M8[{resolution}]")
    steps = [w * unit for w in wanted]
    return Case(label_axis("d", times, len(times)), list(times), list(steps), steps)


@given(cases())
def test_partners_are_looked_up_by_label(case: Case) -> None:
    found = windows(case.axis, [offset(case.axis, lead) for lead in case.leads])
    places = {label: position for position, label in enumerate(case.labels)}
    first, last = min(case.labels), max(case.labels)
    for position, label in enumerate(case.labels):
        for column, step in enumerate(case.steps):
            partner = label + step
            if partner in places:
                assert found.status[position, column] == KEPT
                assert found.partners[position, column] == places[partner]
            else:
                expected = BEFORE_START if partner < first else AFTER_END if partner > last else GAP
                assert found.status[position, column] == expected
    complete = [all(label + step in places for step in case.steps) for label in case.labels]
    assert found.complete.tolist() == complete


def test_a_window_never_reaches_across_a_gap() -> None:
    times = np.array(["2000-01-01", "2000-01-02", "2000-01-04", "2000-01-05"], "datetime64[ns]")
    axis = label_axis("time", times, 4)
    found = windows(axis, [offset(axis, "1D")])
    assert found.status.ravel().tolist() == [KEPT, GAP, KEPT, AFTER_END]


def test_the_leap_day_depends_on_the_calendar() -> None:
    for calendar, kept in (("noleap", [True, False]), ("standard", [False, False]), ("360_day", [False, False])):
        labels = np.array([cftime.datetime(2000, month, day, calendar=calendar) for month, day in ((2, 28), (3, 1))])
        axis = label_axis("time", labels, 2)
        assert windows(axis, [offset(axis, "1D")]).complete.tolist() == kept


def test_a_lead_finer_than_the_axis_falls_in_a_gap() -> None:
    axis = label_axis("time", np.arange(3).astype("M8[s]"), 3)
    assert windows(axis, [offset(axis, "500ms")]).status.ravel().tolist() == [GAP] * 3


def test_a_broken_lead_along_whole_numbers_has_no_partner() -> None:
    axis = label_axis("step", np.array([0, 1, 2]), 3)
    found = windows(axis, [offset(axis, 0.5)])
    assert found.complete.tolist() == [False, False, False]


def test_a_lead_beyond_all_time_is_after_the_end() -> None:
    axis = label_axis("time", np.array(["2000-01-01", "2200-01-01"], "datetime64[ns]"), 2)
    assert windows(axis, [offset(axis, "100000D")]).status.ravel().tolist() == [AFTER_END, AFTER_END]


def test_no_labels_at_all() -> None:
    axis = label_axis("time", np.array([], "M8[ns]"), 0)
    found = windows(axis, [offset(axis, "1D")])
    assert found.partners.shape == (0, 1)
    assert found.complete.tolist() == []


DAYS = ["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-04"]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 1, 2], r"unique for leads, but 2000-01-02 occurs more than once \(again at position 2\)"),
        ([3, 3, 2, 2], r"unique for leads, but 2000-01-04 occurs more than once \(again at position 1\)"),
        ([0, 2, 1, 3], "in order for leads, but 2000-01-02 at position 2 follows 2000-01-03"),
        ([3, 1, 2, 0], "in order for leads, but 2000-01-03 at position 2 follows 2000-01-02"),
        ([2, 3, 0, 1], "in order for leads, but 2000-01-01 at position 2 follows 2000-01-04"),
    ],
)
def test_labels_without_a_unique_order_are_refused(order: list[int], message: str) -> None:
    axis = label_axis("time", np.array(DAYS, "M8[ns]")[order], 4)
    with pytest.raises(RequestError, match=message) as caught:
        windows(axis, [offset(axis, "1D")])
    assert "'time'" in str(caught.value)
    # Without leads the order does not matter.
    assert windows(axis, [offset(axis, "0h")]).complete.all()


@given(st.permutations(range(6)), st.booleans())
def test_the_first_offending_label_is_named(order: list[int], repeat: bool) -> None:
    values = [*order, order[0]] if repeat else list(order)
    axis = label_axis("d", np.array(values), len(values))
    if not repeat and values in (sorted(values), sorted(values, reverse=True)):
        assert windows(axis, [offset(axis, 1)]).complete.sum() == 5
        return
    sign = 1 if values[1] > values[0] else -1
    wrong = next((k for k in range(1, len(values)) if (values[k] - values[k - 1]) * sign <= 0), 0)
    expected = (
        rf"\(again at position {len(values) - 1}\)" if repeat else f"at position {wrong} follows {values[wrong - 1]}"
    )
    with pytest.raises(RequestError, match=expected):
        windows(axis, [offset(axis, 1)])
