"""A request written down and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import label_axis
from insitu_xr.plan.manifest import Manifest, _anchor_ranges, describe_axis
from insitu_xr.plan.ranges import from_ranges, to_ranges
from tests.plan.requests import request, variable

runs = st.tuples(st.integers(0, 50), st.integers(-4, 4), st.integers(1, 5)).map(
    lambda run: [max(0, run[0] + run[1] * k) for k in range(run[2])]
)
positions = st.lists(runs, max_size=6).map(lambda parts: [p for part in parts for p in part])


@given(positions)
@example([])
@example([3])
@example([2, 2, 2])
@example([4, 2, 0])
@example([0, 1, 1, 2])
def test_ranges_hold_the_same_positions_in_order(given_positions: list[int]) -> None:
    ranges = to_ranges(np.array(given_positions, np.int64))
    assert from_ranges(ranges).tolist() == given_positions
    assert all(type(number) is int for r in ranges for number in r)


@given(st.integers(0, 9), st.integers(2, 50), st.sampled_from([-3, -1, 1, 2]))
def test_even_steps_are_one_range(first: int, count: int, step: int) -> None:
    even = first + 200 + step * np.arange(count)
    assert len(to_ranges(even)) == 1


def manifest() -> Manifest:
    labels = np.array([0, 1, 2, 4, 5, 6, 9])
    specs = [variable("a", 7, 3), variable("m", 0, 0)]
    return Manifest.of(request(specs, 7, [0, 1], labels=labels, source={"a": {"kind": "stored", "arrays": ["x/a"]}}))


def test_a_manifest_says_what_is_read() -> None:
    found = manifest()
    assert found.source == {"a": {"kind": "stored", "arrays": ["x/a"]}}
    assert found.variables == (
        {"group": "variables", "name": "a", "leads": ["0", "+1"]},
        {"group": "statics", "name": "m", "leads": []},
    )
    assert [from_ranges(r).tolist() for r in found.positions] == [[0, 1, 3, 4]]
    assert (found.axes[0]["dim"], found.axes[0]["length"], found.axes[0]["ends"]) == ("step", 7, ["0", "9"])


def test_json_round_trip(tmp_path: Path) -> None:
    found = replace(manifest(), splits={"val": ((3, 5, 1),)})
    path = tmp_path / "manifest.json"
    text = found.to_json(path)
    assert Manifest.from_json(text) == found
    assert Manifest.from_json(path) == found
    assert Manifest.from_json(str(path)) == found
    assert json.loads(path.read_text())["format"] == 1


@pytest.mark.parametrize("content", [{"format": 2}, {}])
def test_another_format_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="format of a manifest must be 1, but got"):
        Manifest.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["{", '{"format": 1}', '{"format": 1, "source": {}, "axes": 3}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="manifest must"):
        Manifest.from_json(text)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Manifest.from_json(tmp_path / "splits.json")


def test_a_part_is_a_line(tmp_path: Path) -> None:
    lines = manifest().to_json(tmp_path / "m.json").splitlines()
    assert len(lines) == 2 + len(["format", *Manifest.__slots__])
    assert lines[5] == ' "positions": [[[0, 2, 1], [3, 5, 1]]],'


def test_anchors_of_several_dimensions_are_kept_as_selections_of_each() -> None:
    mesh = np.array([[a, b] for a in (0, 1, 4) for b in (2, 3)])
    assert _anchor_ranges(mesh, (6, 5)) == (((0, 2, 1), (4, 5, 1)), ((2, 4, 1),))
    odd = mesh[[0, 1, 2, 5]]
    assert from_ranges(_anchor_ranges(odd, (6, 5))[0]).tolist() == [a * 5 + b for a, b in odd]
    kept = replace(manifest(), axes=({}, {}), positions=_anchor_ranges(odd, (6, 5)))
    with pytest.raises(RequestError, match="must be the product of one selection per dimension"):
        kept.anchors()


def test_axes_with_the_same_ends_differ_by_their_digest() -> None:
    days = np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "M8[ns]")
    other = days.copy()
    other[1] += np.timedelta64(1, "D")
    first, again, second = (describe_axis(label_axis("time", labels, 3)) for labels in (days, days.copy(), other))
    assert first == again
    assert first["ends"] == second["ends"] == ["2000-01-01", "2000-01-04"]
    assert first["digest"] != second["digest"]
