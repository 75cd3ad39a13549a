"""The quickstart as a person runs it: a script, a cache folder and a picture."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import xarray as xr

SCRIPT = Path(__file__).parents[2] / "examples" / "quickstart.py"
pytestmark = pytest.mark.slow  # two runs of a script that imports xarray and matplotlib
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Run:
    status: int
    printed: str
    progress: str
    picture: Path


def run(cache: Path, out: Path) -> Run:
    command = [sys.executable, "-W", "error", str(SCRIPT), "--cache", str(cache), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    return Run(done.returncode, done.stdout, done.stderr, out / "quickstart.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def first(folder: Path) -> Run:
    return run(folder / "cache", folder / "first")


@pytest.fixture(scope="module")
def again(folder: Path, first: Run) -> Run:
    return run(folder / "cache", folder / "again")


@pytest.fixture(scope="module")
def store(folder: Path, first: Run) -> Path:
    return folder / "cache" / "north_america.zarr"


def test_it_succeeds(first: Run) -> None:
    assert first.status == 0, first.progress


def test_every_chunk_of_the_training_years_is_read_once(first: Run, store: Path) -> None:
    with xr.open_zarr(store, chunks=None, consolidated=False) as dataset:
        selected = dataset[["air_temperature_e1", "air_temperature_a1b"]].sel(time=slice(None, "2039"))
        years_per_chunk = dataset["air_temperature_e1"].encoding["chunks"][0]
    chunks = len(selected) * selected.sizes["time"] // years_per_chunk
    assert f"Reads: {chunks} for {chunks} chunks" in first.printed


def test_the_split_and_a_gap_are_shown(first: Run) -> None:
    assert re.search(r"train +180 labels, 1860-06-01.* to 2039-06-01", first.printed)
    assert re.search(r"1 reaching outside the split 'train' \(2039-06-01", first.printed)
    assert re.search(r"Without 1950 and 1951: 1 in a gap at lead 360D .*\(1949-06-01", first.printed)


def test_a_batch_was_compared_with_xarray(first: Run) -> None:
    assert "equals what xarray gives, bit for bit" in first.printed


def test_a_progress_bar_was_shown(first: Run) -> None:
    assert re.search(r"12/12", first.progress), first.progress


def test_the_correction_beats_persistence_in_both_scenarios(first: Run) -> None:
    rows = re.findall(r"(E1|A1B) +persistence ([\d.]+) K, corrected ([\d.]+) K, ([\d.]+)% better", first.printed)
    assert [scenario for scenario, *_ in rows] == ["E1", "A1B"]
    for _, persistence, corrected, margin in rows:
        assert float(corrected) < float(persistence)
        assert float(margin) == pytest.approx(100 * (1 - float(corrected) / float(persistence)), abs=0.2)


def test_the_picture_is_a_png(first: Run) -> None:
    assert f"Picture: {first.picture}" in first.printed
    content = first.picture.read_bytes()
    assert content.startswith(PNG_SIGNATURE)
    assert len(content) > 10_000


def test_the_store_holds_both_scenarios_and_their_calendar(store: Path) -> None:
    with xr.open_zarr(store, chunks=None, consolidated=False) as dataset:
        assert set(dataset.data_vars) == {"air_temperature_e1", "air_temperature_a1b"}
        assert dataset.sizes == {"time": 240, "latitude": 37, "longitude": 49}
        times = dataset.indexes["time"]
        assert isinstance(times, xr.CFTimeIndex)
        assert times.calendar == "360_day"
        assert dataset["air_temperature_e1"].attrs["units"] == "K"


def test_the_second_run_re_uses_the_store(first: Run, again: Run, store: Path) -> None:
    assert again.status == 0, again.progress
    assert f"Store: wrote {store}" in first.printed
    assert f"Store: re-used {store}" in again.printed
    assert [path.name for path in store.parent.iterdir()] == [store.name]


def test_the_second_run_gives_the_same(first: Run, again: Run) -> None:
    assert first.printed.splitlines()[1:-1] == again.printed.splitlines()[1:-1]
    assert first.picture.read_bytes() == again.picture.read_bytes()
