"""Windows from labels to batches, against dictionaries of labels in plain Python.

The oracle here knows nothing of how partners are looked up: labels are Python numbers or dates, a partner is
label + lead.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from insitu_xr.errors import InsituError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CALENDARS = ("360_day", "noleap", "all_leap", "julian", "standard")
HOUR_NS = 3_600_000_000_000
WHY = {"before": "before the start", "after": "after the end", "gap": "in a gap"}


# -- the oracle --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels as a coordinate, and as Python objects that can be added to and compared."""

    coordinate: Any  # None: no labels
    plain: list[Any]

    def step(self, lead: Any) -> Any:
        """A lead as something that can be added to a label."""
        if self.plain and isinstance(self.plain[0], cftime.datetime):
            return pd.Timedelta(lead).to_pytimedelta()
        if self.coordinate is None or self.coordinate.dtype.kind in "iuf":
            return lead
        return int(pd.Timedelta(lead).as_unit("ns").value)

    def shows(self, text: str, place: int) -> bool:
        """Whether a label as text is the one at a place."""
        plain = self.plain[place]
        if isinstance(plain, cftime.datetime):
            return bool(text == str(plain).removesuffix(" 00:00:00"))
        if self.coordinate is not None and self.coordinate.dtype.kind == "M":
            return bool(np.datetime64(text) == self.coordinate[place])
        return bool(float(text) == plain)


def times(values: Any) -> Labels:
    """Labels from datetime64 of any unit."""
    coordinate = np.asarray(values)
    unit = {"s": 10**9, "us": 1000, "ns": 1}[np.datetime_data(coordinate.dtype)[0]]
    return Labels(coordinate, [int(v) * unit for v in coordinate.astype(np.int64)])


def objects(values: Sequence[Any]) -> Labels:
    """Labels from cftime dates."""
    return Labels(np.array(values, dtype=object), list(values))


@dataclass
class Expected:
    """What a request must keep and drop."""

    #: positions of anchors, and of the partner of each column
    kept: dict[int, list[int]] = field(default_factory=dict)
    #: text of the reason -> positions
    dropped: dict[str, list[int]] = field(default_factory=dict)


def naive(labels: Labels, request: Mapping[str, Sequence[Any]], tolerance: Any = None) -> Expected:
    """Look every label + lead up in a dictionary, or by comparing it with every label where there is a tolerance."""
    columns: dict[str, tuple[Any, list[str]]] = {}
    for variable, leads in request.items():
        for lead in leads:
            columns.setdefault(repr(labels.step(lead)), (lead, []))[1].append(variable)
    where = {label: place for place, label in enumerate(labels.plain)}
    found = Expected()
    for place, anchor in enumerate(labels.plain):
        partners = []
        for lead, users in columns.values():
            wanted = anchor + labels.step(lead)
            partner = where.get(wanted) if tolerance is None else nearest(labels.plain, wanted, tolerance)
            if partner is None:
                why = "before" if wanted < min(labels.plain) else "after" if wanted > max(labels.plain) else "gap"
                name = lead if isinstance(lead, str) else f"{lead:+g}" if lead else "0"
                reason = f"{WHY[why]} at lead {name} of {', '.join(map(repr, users))}"
                found.dropped.setdefault(reason, []).append(place)
                break
            partners.append(partner)
        else:
            found.kept[place] = partners
    return found


def nearest(labels: Sequence[Any], wanted: Any, tolerance: Any) -> int | None:
    """The one label within a tolerance."""
    fits = [place for place, label in enumerate(labels) if abs(label - wanted) <= tolerance]
    assert len(fits) < 2, "the tolerance of a test must not be ambiguous"
    return fits[0] if fits else None


def dataset(labels: Labels | int, chunk: int = 4) -> xr.Dataset:
    """Stored fields whose every value says where it is from."""
    coordinate = None if isinstance(labels, int) else labels.coordinate
    n = labels if isinstance(labels, int) else len(labels.plain)
    place = np.arange(n, dtype="f4")
    fields = xr.Dataset(
        {
            "a": (("time", "x"), place[:, None] + [0.0, 0.25]),
            "z": (("level", "time"), 1000 * np.arange(1, 4)[:, None] + place),
        },
        {"level": [850.0, 700.0, 500.0]},
    )
    store = MemoryStore()
    encoding = {"a": {"chunks": (chunk, 2)}, "z": {"chunks": (2, chunk + 1)}}
    fields.astype("f4").to_zarr(store, encoding=encoding, consolidated=False)
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened if coordinate is None else opened.assign_coords(time=("time", coordinate))


def check(ds: xr.Dataset, labels: Labels, leads: Sequence[Any], **options: Any) -> Expected:
    """Compare a plan and its batches with the oracle; the same leads for both variables."""
    tolerance = options.get("time_tolerance")
    expected = naive(labels, {"a": leads, "z": leads}, None if tolerance is None else labels.step(tolerance))
    request = {"variables": ["a", "z"], "leads": list(leads), "sample_dim": "time", "batch_size": 3, **options}
    if not expected.kept:
        with pytest.raises(RequestError, match="must have a partner for at least one anchor"):
            ds.insitu.plan(**request)
        return expected
    with ds.insitu.loader(**request) as loader:
        check_dropped(loader.plan, labels, expected)
        seen = []
        for batch in loader:
            seen += batch.positions.tolist()
            check_batch(batch, labels, expected, tolerance is None)
    assert seen == list(expected.kept)
    return expected


def check_dropped(plan: Any, labels: Labels, expected: Expected) -> None:
    assert plan.anchors_kept == len(expected.kept)
    assert {d.reason: d.count for d in plan.dropped} == {k: len(v) for k, v in expected.dropped.items()}
    for dropped in plan.dropped:
        places = expected.dropped[dropped.reason][:3]
        assert len(dropped.first) == len(places)
        assert all(labels.shows(text, place) for text, place in zip(dropped.first, places, strict=True))


def check_batch(batch: Any, labels: Labels, expected: Expected, exact: bool) -> None:
    partners = np.array([expected.kept[int(p)] for p in batch.positions])
    np.testing.assert_array_equal(batch["a"], partners[..., None] + np.array([0, 0.25], np.float32))
    np.testing.assert_array_equal(batch["z"], partners[..., None] + np.array([1000, 2000, 3000], np.float32))
    coordinate = np.arange(len(labels.plain)) if labels.coordinate is None else labels.coordinate
    np.testing.assert_array_equal(batch.anchors, coordinate[batch.positions])
    np.testing.assert_array_equal(batch.valid_times, coordinate[partners])
    if exact and coordinate.dtype.kind == "M" and coordinate.dtype != "M8[s]":  # which nanoseconds do not hold
        np.testing.assert_array_equal(batch.valid_times, batch.anchors[:, None] + batch.leads)
        assert batch.leads.dtype == "m8[ns]"


# -- labels of every kind ----------------------------------------------------------------------------------------


def spelled(duration: pd.Timedelta) -> str:
    """A duration as text, which becomes the name of the lead."""
    hours = duration / pd.Timedelta("1h")
    return f"{hours:g}h" if hours.is_integer() else f"{int(duration.as_unit('ns').value)}ns"


@st.composite
def axes(draw: st.DrawFn) -> tuple[Labels, list[Any]]:
    """Gappy, irregular axes of every kind, either way round, with leads on and off their grid."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 3, 7]), min_size=1, max_size=18))
    counts = np.cumsum([0, *gaps])[:: draw(st.sampled_from([1, -1]))]
    wanted = draw(st.lists(st.integers(-6, 6), min_size=1, max_size=3, unique=True))
    kind = draw(st.sampled_from(["ns", "us", "s", "half", "micro", "nano", "none", "integer", *CALENDARS]))
    if kind == "none":
        return Labels(None, list(range(len(counts)))), list(wanted)
    if kind == "integer":
        return Labels(3 * counts, (3 * counts).tolist()), [3 * w for w in wanted]
    if kind in CALENDARS:
        base = cftime.datetime(2000, 2, 27, 18, calendar=kind)
        leads = [spelled(pd.Timedelta(hours=6 * w)) for w in wanted]
        return objects([base + datetime.timedelta(hours=6 * int(c)) for c in counts]), leads
    start, step, unit = {
        "ns": ("1999-12-31", 6 * HOUR_NS, "ns"),
        "us": ("2000-02-28T06", 6 * HOUR_NS, "us"),
        "s": ("1600-01-01", 6 * HOUR_NS, "s"),
        "half": ("2000-01-01T00:30", HOUR_NS, "ns"),
        "micro": ("2000-01-01", 250_000, "us"),
        "nano": ("2000-01-01", 3, "ns"),
    }[kind]
    if kind == "s":  # outside of what nanoseconds hold
        leads = [spelled(pd.Timedelta(hours=6 * w)) for w in wanted]
        return times(np.datetime64(start, "s") + counts * np.timedelta64(6, "h")), leads
    stamps = (np.datetime64(start, "ns") + counts * np.timedelta64(step, "ns")).astype(f"M8[{unit}]")
    return times(stamps), [spelled(pd.Timedelta(w * step, "ns")) for w in wanted]


@settings(max_examples=50)
@given(axes(), st.integers(1, 9))
def test_windows_are_those_of_a_dictionary_of_labels(case: tuple[Labels, list[Any]], chunk: int) -> None:
    labels, leads = case
    check(dataset(labels, chunk), labels, leads)


MONTHS = pd.date_range("1999-11-01", periods=30, freq="MS")
IRREGULAR = {
    "monthly": MONTHS,
    "mid-month": MONTHS + pd.Timedelta("14D12h"),
    "yearly": pd.date_range("1990-01-01", periods=30, freq="YS"),
    "seasonal": pd.date_range("1990-03-01", periods=30, freq="QS"),
    "hourly with gaps": pd.date_range("2000", periods=80, freq="1h").delete([3, 4, 5, 30, 31, 60]),
    "6 h and 12 h": pd.date_range("2000", periods=80, freq="6h").delete(slice(41, 79, 2)),
    "stamps move from 00 to 06": pd.date_range("2024-01-01", periods=10).append(
        pd.date_range("2024-01-11T06", periods=10)
    ),
    "one late by 10 min": pd.DatetimeIndex(
        np.where(np.arange(40) == 17, 10, 0).astype("m8[m]") + pd.date_range("2000", periods=40, freq="1h").to_numpy()
    ),
    "satellite": pd.DatetimeIndex(
        np.datetime64("2000", "ns") + np.cumsum(np.random.default_rng(3).exponential(5400e9, 60)).astype("m8[ns]")
    ),
    "bursts": pd.DatetimeIndex(
        np.datetime64("2000", "ns") + np.cumsum(np.random.default_rng(4).uniform(1e9, 9e9, 60)).astype("m8[ns]")
    ),
}
LEADS = {
    "monthly": (["0D", "31D"], ["366D"], ["-28D", "30D"]),
    "mid-month": (["0D", "31D"],),
    "yearly": (["365D"], ["0D", "366D"], ["-365D"]),
    "seasonal": (["92D"], ["0D", "-90D"]),
    "hourly with gaps": (["1h", "2h"], ["-24h"]),
    "6 h and 12 h": (["6h"], ["12h"], ["-6h", "12h"]),
    "stamps move from 00 to 06": (["1D"], ["0D", "2D"], ["30h"]),
    "one late by 10 min": (["1h"], ["70min"], ["0h", "50min"]),
}


@pytest.mark.parametrize("kind", sorted(IRREGULAR))
def test_honest_irregular_axes_are_not_called_jittered(kind: str) -> None:
    labels = times(IRREGULAR[kind])
    ds = dataset(labels)
    for leads in LEADS.get(kind, ()):
        check(ds, labels, leads)
    # A step that does occur, exactly.
    step = f"{labels.plain[8] - labels.plain[7]}ns"
    assert 7 in check(ds, labels, [step]).kept


@pytest.mark.parametrize("calendar", CALENDARS)
def test_months_and_years_of_every_calendar(calendar: str) -> None:
    months = [cftime.datetime(1999 + k // 12, k % 12 + 1, 1, calendar=calendar) for k in range(30)]
    years = [cftime.datetime(1990 + k, 1, 1, calendar=calendar) for k in range(30)]
    for dates, leads in ((months, ["30D"]), (months, ["-31D", "0D"]), (years, ["365D"]), (years, ["366D"])):
        labels = objects(dates)
        check(dataset(labels), labels, leads)


@pytest.mark.parametrize(("calendar", "days"), [("360_day", 30), ("noleap", 28), ("all_leap", 29), ("julian", 29)])
def test_the_length_of_february_1900(calendar: str, days: int) -> None:
    dates = xr.date_range("1900-02-01", "1900-03-10", calendar=calendar, use_cftime=True)
    labels = objects(list(dates))
    expected = check(dataset(labels), labels, ["0D", f"{days}D"])
    assert labels.plain[expected.kept[0][1]] == cftime.datetime(1900, 3, 1, calendar=calendar)


@pytest.mark.parametrize(
    "spelling",
    ["6h", " 6h ", "0.25D", "360min", "PT6H", pd.Timedelta("6h"), np.timedelta64(6, "h"), datetime.timedelta(hours=6)],
    ids=str,
)
@pytest.mark.parametrize("calendar", [None, "noleap"])
def test_spellings_of_a_lead(spelling: Any, calendar: str | None) -> None:
    if calendar is None:
        labels = times(pd.date_range("2000", periods=9, freq="6h"))
    else:
        labels = objects(list(xr.date_range("2000", periods=9, freq="6h", calendar=calendar, use_cftime=True)))
    with dataset(labels).insitu.loader(variables=["a"], leads=[spelling], batch_size=8) as loader:
        (batch,) = loader
        assert batch.leads.tolist() == [6 * HOUR_NS]
        assert batch["a"][:, 0, 0].tolist() == list(range(1, 9))
        assert [d.count for d in loader.plan.dropped] == [1]


@pytest.mark.parametrize(
    ("lead", "message"),
    [
        (6, "lead 6 along 'time' must be a duration, since the labels are times"),
        (np.int64(6), "must be a duration, since the labels are times"),
        (True, "must be a duration"),
        ("6", "lead along 'time' must be a duration such as '-6h' or '1D', but got '6'"),
        ("soon", "lead along 'time' must be a duration such as '-6h' or '1D', but got 'soon'"),
        ("", "must be a duration"),
        ("NaT", "must be a duration"),
        (np.timedelta64(1, "M"), "months and years have no fixed length"),
        ("1M", "must be a duration"),
        ("400000D", "must be a duration"),
        (None, "must be a duration"),
        ([6], "must be a duration"),
    ],
)
def test_leads_that_are_no_durations(lead: Any, message: str) -> None:
    ds = dataset(times(pd.date_range("2000", periods=9, freq="6h")))
    with pytest.raises(RequestError, match=message):
        ds.insitu.plan(variables=["a"], leads=[lead, "0h"])


@pytest.mark.parametrize("lead", ["6h", np.timedelta64(6, "h"), 0.5, True, float("nan"), float("inf")])
def test_steps_are_whole_numbers_where_there_are_no_labels(lead: Any) -> None:
    with pytest.raises(RequestError, match="must be a whole number of steps, since the dimension has no labels"):
        dataset(9).insitu.plan(variables=["a"], sample_dim="time", leads=[lead])


@pytest.mark.parametrize("lead", [2, 2.0, np.int32(2)])
def test_steps_along_a_dimension_without_labels(lead: Any) -> None:
    with dataset(9).insitu.loader(variables=["a"], sample_dim="time", leads=[lead], batch_size=9) as loader:
        assert next(iter(loader))["a"][:, 0, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "leads",
    [
        "6h",
        pd.to_timedelta(["6h", "12h"]),
        np.array([6, 12], "m8[h]"),
        pd.Series(pd.to_timedelta(["6h", "12h"])),
        xr.DataArray(pd.to_timedelta(["6h", "12h"]), dims="lead"),
    ],
    ids=lambda leads: type(leads).__name__,
)
def test_collections_of_leads(leads: Any) -> None:
    labels = times(pd.date_range("2000", periods=9, freq="6h"))
    with dataset(labels).insitu.loader(variables=["a"], leads=leads, batch_size=9) as loader:
        (batch,) = loader
    n = 1 if isinstance(leads, str) else 2
    np.testing.assert_array_equal(batch["a"][..., 0], np.arange(9 - n)[:, None] + np.arange(1, n + 1))


def test_times_with_a_zone_are_refused() -> None:
    zoned = pd.date_range("2000", periods=9, freq="6h", tz="UTC")
    ds = xr.Dataset({"a": ("time", np.arange(9.0))}, {"time": zoned})
    for request in ({}, {"sample_dim": "time"}, {"leads": ["6h"]}):
        with pytest.raises(RequestError, match="labels of 'time' must be times without a zone, but got datetime64"):
            ds.insitu.plan(variables=["a"], **request)


def test_numbers_that_are_not_exact() -> None:
    labels = Labels(0.1 * np.arange(30), (0.1 * np.arange(30)).tolist())
    ds = dataset(labels)
    with pytest.raises(RequestError, match="they jitter by up to") as error:
        ds.insitu.plan(variables=["a"], sample_dim="time", leads=[0.1])
    remedy = float(str(error.value).partition("for example ")[2].split(",")[0])
    plan = ds.insitu.plan(variables=["a"], sample_dim="time", leads=[0.1], time_tolerance=remedy)
    assert plan.anchors_kept == 29


# -- labels that were stored as floats ---------------------------------------------------------------------------


def rounded(exact: pd.DatetimeIndex, units: str) -> pd.DatetimeIndex:
    """Labels after a round trip through float32 numbers."""
    hours, _, since = units.partition(" since ")
    one = pd.Timedelta(1, {"hours": "h", "days": "D"}[hours])
    numbers = ((exact - pd.Timestamp(since)) / one).to_numpy().astype("f4")
    attrs = {"units": units, "calendar": "proleptic_gregorian"}
    return pd.DatetimeIndex(xr.decode_cf(xr.Dataset({"time": ("time", numbers, attrs)}))["time"].to_numpy())


#: labels, the step that was meant, and the most that two neighbours are off it
JITTERED = {
    "20 min in hours": (rounded(pd.date_range("2000", periods=200, freq="20min"), "hours since 1990-01-01"), "20min"),
    "1 h in days": (rounded(pd.date_range("2000", periods=200, freq="1h"), "days since 1900-01-01"), "1h"),
    "1 h in days, gaps": (
        rounded(pd.date_range("2000", periods=200, freq="1h").delete([*range(20, 30), 90]), "days since 1979-01-01"),
        "1h",
    ),
    "80 min in days": (rounded(pd.date_range("1980", periods=60, freq="80min"), "days since 1979-01-01"), "80min"),
    "orbits": (
        pd.date_range("2000", periods=99, freq="98min")
        + pd.to_timedelta(np.random.default_rng(1).integers(-10, 11, 99), "s"),
        "98min",
    ),
}


@pytest.mark.parametrize("kind", sorted(JITTERED))
@pytest.mark.parametrize("turn", [1, -1])
def test_jitter_is_refused_and_quoted(kind: str, turn: int) -> None:
    index, step = JITTERED[kind][0][::turn], pd.Timedelta(JITTERED[kind][1])
    ds = dataset(times(index))
    with pytest.raises(RequestError, match=r"labels of 'time' must be exact for leads, but they jitter by up to ") as e:
        ds.insitu.plan(variables=["a"], leads=["0h", step])
    text = str(e.value)
    found = re.search(r"up to (\S+) around a step of (\S+); give time_tolerance=, for example '(\S+)', or", text)
    assert found is not None
    shown, around, remedy = map(pd.Timedelta, found.groups())
    steps = abs(index[1:] - index[:-1])
    assert abs(around / step - 1) < 0.002
    assert abs(steps - steps.round(step)).max() / shown == pytest.approx(1, rel=0.1)
    # Without leads nothing is looked up, and with the tolerance that the message names, all is found.
    assert ds.insitu.plan(variables=["a"]).anchors_kept == len(index)
    plan = ds.insitu.plan(variables=["a"], leads=["0h", step], time_tolerance=remedy)
    assert plan.anchors_kept == int((steps < 1.5 * step).sum())


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=4, max_size=40),
    st.sampled_from(["20min", "1h", "3h"]),
    st.sampled_from(["hours since 1900-01-01", "days since 1950-01-01"]),
    st.lists(st.integers(-4, 4), min_size=1, max_size=3, unique=True),
    st.sampled_from([1, -1]),
)
def test_windows_within_a_tolerance(gaps: list[int], freq: str, units: str, wanted: list[int], turn: int) -> None:
    step = pd.Timedelta(freq)
    exact = pd.Timestamp("1999-12-31") + np.cumsum([0, *gaps]) * step
    index = rounded(pd.DatetimeIndex(exact), units)
    off = abs(index - exact).max()
    tolerance = 2 * off + pd.Timedelta("1s")
    assume(2 * tolerance < abs(index[1:] - index[:-1]).min())
    labels = times(index[::turn])
    leads = [f"{w * step / pd.Timedelta('1min'):g}min" for w in wanted]
    found = check(dataset(labels), labels, leads, time_tolerance=f"{int(tolerance.as_unit('ns').value)}ns")
    # The windows are those of the exact axis.
    truth = naive(times(exact[::turn]), {"a": leads, "z": leads})
    assert found.kept == truth.kept


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("tolerance", ["3h", "4h", "30h"])
def test_a_tolerance_that_fits_two_labels_is_refused(unit: str, tolerance: str) -> None:
    ds = dataset(times(pd.date_range("2000", periods=9, freq="6h").as_unit(unit)))
    message = f"time_tolerance must be less than half of 6h, the smallest step of 'time', but got {tolerance}"
    with pytest.raises(RequestError, match=message):
        ds.insitu.plan(variables=["a"], leads=["6h"], time_tolerance=tolerance)
    assert ds.insitu.plan(variables=["a"], leads=["6h"], time_tolerance="179min").anchors_kept == 8


@pytest.mark.parametrize("tolerance", ["soon", 3, "-1s", "1M"])
def test_a_tolerance_that_is_none(tolerance: Any) -> None:
    ds = dataset(times(pd.date_range("2000", periods=9, freq="6h")))
    with pytest.raises(RequestError, match=r"^time_tolerance "):
        ds.insitu.plan(variables=["a"], leads=["6h"], time_tolerance=tolerance)


def test_a_tolerance_of_nothing_is_exact() -> None:
    labels = times(JITTERED["1 h in days"][0])
    found = check(dataset(labels), labels, ["3h"], time_tolerance="0s")
    assert found.kept
    assert found.dropped


# -- leads of each variable --------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([1, 1, 1, 1, 4]), min_size=3, max_size=20),
    st.lists(st.integers(-2, 2), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(-2, 2), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
def test_every_variable_has_its_own_leads(gaps: list[int], first: list[int], second: list[int], split: bool) -> None:
    labels = times(np.datetime64("2000", "ns") + np.cumsum([0, *gaps]) * np.timedelta64(6, "h"))
    leads = {"a": [f"{6 * w}h" for w in first], "z": [f"{6 * w}h" for w in second]}
    expected = naive(labels, leads)
    assume(bool(expected.kept))
    asked: dict[str, Any] = {"variables": ["a", "z"], "leads": leads}
    if split:
        asked = {
            "inputs": {"variables": ["a"], "leads": leads["a"]},
            "targets": {"variables": ["z"], "leads": leads["z"]},
        }
    seen = []
    with dataset(labels).insitu.loader(**asked, batch_size=4) as loader:
        check_dropped(loader.plan, labels, expected)
        for batch in loader:
            seen += batch.positions.tolist()
            for name, own in leads.items():
                wanted = np.array([[labels.plain[p] + labels.step(lead) for lead in own] for p in batch.positions])
                where = np.array([[labels.plain.index(w) for w in row] for row in wanted])
                np.testing.assert_array_equal(batch[name][..., 0] % 1000, where)
                valid = batch.valid_times
                valid = valid[{"a": "inputs", "z": "targets"}[name]] if split else valid
                valid = valid[name] if isinstance(valid, dict) else valid
                np.testing.assert_array_equal(valid.astype(np.int64), wanted)
                check_labelled(batch.to_xarray(), name, where, wanted)
    assert seen == list(expected.kept)


def check_labelled(tree: Any, name: str, where: Any, wanted: Any) -> None:
    """The values and valid times of one variable in what to_xarray gave."""
    ds = tree[{"a": "inputs", "z": "targets"}[name]].to_dataset() if isinstance(tree, xr.DataTree) else tree
    lead_dim = next(d for d in ds[name].dims if str(d).startswith("lead_time"))
    array = ds[name].transpose("time", lead_dim, ...)
    np.testing.assert_array_equal(array.values[..., 0] % 1000, where)
    valid = ds[str(lead_dim).replace("lead_time", "valid_time")]
    np.testing.assert_array_equal(valid.transpose("time", lead_dim).values.astype("M8[ns]").astype(np.int64), wanted)
    np.testing.assert_array_equal(
        (ds["time"].values[:, None] + ds[lead_dim].values).astype("M8[ns]").astype(np.int64), wanted
    )


def test_leads_of_each_variable_in_the_stacked_layout() -> None:
    labels = times(pd.date_range("2000", periods=12, freq="6h").delete(6))
    fields = dataset(labels)
    grid = fields["a"].transpose("time", "x")
    ds = xr.Dataset({"a": grid, "b": grid.rename("b") + 0}).drop_vars("level", errors="ignore")
    store = MemoryStore()
    ds.to_zarr(store, encoding={"a": {"chunks": (3, 2)}, "b": {"chunks": (5, 2)}}, consolidated=False)
    opened = xr.open_zarr(store, chunks=None, consolidated=False)
    leads = {"a": ["-6h", "0h"], "b": ["12h"]}
    expected = naive(labels, leads)
    with opened.insitu.loader(variables=["a", "b"], leads=leads, layout="stacked", batch_size=4) as loader:
        check_dropped(loader.plan, labels, expected)
        for batch in loader:
            assert batch.channels == ["a@-6h", "a@0h", "b@12h"]
            partners = np.array([expected.kept[int(p)] for p in batch.positions])
            np.testing.assert_array_equal(np.asarray(batch.variables)[..., 0], partners)
            labelled = batch.to_xarray()
            np.testing.assert_array_equal(labelled["variables"].sel(channel="b@12h").values[:, 0], partners[:, 2])
            assert labelled["channel"].values.tolist() == batch.channels


@pytest.mark.parametrize(
    ("leads", "message"),
    [
        ({"a": ["6h"]}, "leads of variables must be given for each of its variables"),
        ({"a": ["6h"], "z": ["6h"], "q": ["6h"]}, "leads of variables must be given for each of its variables"),
        ({"a": [], "z": ["6h"]}, "must hold at least one lead"),
        ({"a": ["6h", "360min"], "z": ["6h"]}, "must differ"),
    ],
)
def test_leads_of_each_variable_must_be_complete(leads: Any, message: str) -> None:
    ds = dataset(times(pd.date_range("2000", periods=9, freq="6h")))
    with pytest.raises(InsituError, match=message):
        ds.insitu.plan(variables=["a", "z"], leads=leads)


def test_none_of_a_variable_is_no_lead_axis() -> None:
    ds = dataset(times(pd.date_range("2000", periods=9, freq="6h")))
    with ds.insitu.loader(variables=["a", "z"], leads={"a": None, "z": ["6h"]}, batch_size=8) as loader:
        (batch,) = loader
        assert batch["a"].shape == (8, 2)
        assert batch["z"].shape == (8, 1, 3)
        labelled = batch.to_xarray()
        assert labelled["a"].dims == ("time", "x")
        np.testing.assert_array_equal(labelled["a"][:, 0], np.arange(8.0))
