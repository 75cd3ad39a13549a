"""The comparison itself: what it compares hands out the right values, and its figures are what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.benchmarks.cases import CONTESTS, Case
from tests.benchmarks.charts import COLOURS, draw
from tests.benchmarks.compare import check as check_all
from tests.benchmarks.compare import main, parse, served
from tests.benchmarks.engines import ENGINES, Batch, Source
from tests.benchmarks.floors import Array, Floor, WarmFloor, Where
from tests.benchmarks.layouts import LAYOUTS, REMOTE, Layout, write
from tests.benchmarks.measure import Measured, Order, Pass, check, compare, measure
from tests.benchmarks.report import markdown, rate
from tests.benchmarks.results import Results, Stand, Standing, machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


IN_THIS_PROCESS = [(c.case.name, e) for c in CONTESTS.values() for e in c.engines if e in ("floor", "ours", "zarr")]


@pytest.mark.parametrize("name", ["arco", "fat", "sharded", "blosc"])
@pytest.mark.parametrize(("case", "engine"), [pair for pair in IN_THIS_PROCESS if not pair[0].startswith("remote")])
def test_every_sample_is_handed_out_as_zarr_holds_it(folder: Path, case: str, engine: str, name: str) -> None:
    layout, wanted = LAYOUTS[name].small(), replace(CONTESTS[case].case, work_ms=0)
    order = Order(engine, Source(str(write(layout, folder)), layout), wanted)
    assert check(order) == wanted.samples(layout)


def test_others_hand_out_what_zarr_holds(folder: Path) -> None:
    # In processes of their own, where what they leave behind does not matter.
    local = [replace(CONTESTS[case], layouts=(LAYOUTS["blosc"],)) for case in ("cold", "leads", "quarter")]
    chosen = [replace(c, engines=("insitubatch", "zarrs")) for c in (*local, CONTESTS["remote-20"])]
    check_all(chosen, folder)


def test_values_that_differ_are_found(folder: Path) -> None:
    layout = LAYOUTS["fat"].small()
    path = write(layout, folder)
    other = zarr.open_array(path / "v1", mode="r")[:]
    ds = xr.Dataset({"v0": (("time", "latitude", "longitude"), np.asarray(other))})
    batch = Batch(2, np.array([3, 5]), {"v0": np.asarray(zarr.open_array(path / "v0", mode="r")[:])[[3, 5]]})
    with pytest.raises(AssertionError, match="v0"):
        compare(ds, batch, "v0", {})


def test_a_server_is_there_while_it_is_needed(folder: Path) -> None:
    layout = REMOTE.small()
    path = write(layout, folder)
    with served(Case("remote", latency_ms=1), folder, path, layout) as source:
        for engine in ("obstore", "ours"):
            assert check(Order(engine, source, CONTESTS["remote-20"].case)) == layout.steps, engine


def test_an_engine_that_is_left_out_says_why() -> None:
    assert "keeps nothing" in str(ENGINES["zarr"].lacks(CONTESTS["warm"].case))
    assert ENGINES["floor"].lacks(CONTESTS["remote-20"].case) == "it reads files"
    assert ENGINES["ours"].lacks(CONTESTS["cold"].case) is None


@pytest.mark.parametrize("quarter", [False, True], ids=["whole", "quarter"])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_the_floor_decodes_each_position_once(folder: Path, name: str, quarter: bool) -> None:
    layout = LAYOUTS[name].small()
    path = write(layout, folder)
    found = {v: np.full((layout.steps, *layout.grid), np.nan, "f4") for v in layout.names}
    seen = {v: np.zeros((layout.steps, *layout.grid), int) for v in layout.names}

    def keep(variable: str, where: Where, values: Array) -> None:
        found[variable][where] = values
        seen[variable][where] += 1

    floor = Floor(path, layout.names, quarter=quarter)
    floor.run(keep)
    floor.close()
    region = (slice(None), *(slice(0, n // 2 if quarter else n) for n in layout.grid))
    for variable in layout.names:
        expected = zarr.open_array(path / variable, mode="r")[:]
        np.testing.assert_array_equal(found[variable][region], np.asarray(expected)[region])
        assert (seen[variable][region] == 1).all()
        assert seen[variable].sum() == seen[variable][region].size


def test_the_floor_of_a_first_batch_reads_its_chunks_alone(folder: Path) -> None:
    layout = LAYOUTS["sharded"].small()
    floor = Floor(write(layout, folder), layout.names)
    steps: set[int] = set()
    floor.run(lambda _, where, __: steps.update(range(where[0].start, where[0].stop)), steps=[3, 40])
    floor.close()
    assert steps == {3, 40}


def test_the_warm_floor_copies_every_sample(folder: Path) -> None:
    layout = LAYOUTS["arco"].small()
    floor = Floor(write(layout, folder), layout.names)
    warm = WarmFloor(floor, dict.fromkeys(layout.names, (layout.steps, *layout.grid)))
    assert list(warm.epoch(np.random.default_rng(0), 16)) == [16, 16, 8]


def test_an_epoch_that_takes_too_long_is_measured_in_part() -> None:
    endless = iter(lambda: Batch(2), None)
    passed = Pass.of(lambda: endless, work=0.0, longest=0.001)
    assert not passed.whole
    assert passed.samples > 0
    assert passed.seconds >= 0.001
    whole = Pass.of(lambda: iter([Batch(2), Batch(1)]), work=0.0, longest=60)
    assert (whole.samples, whole.whole) == (3, True)


def test_a_measurement_counts_one_epoch(folder: Path) -> None:
    layout = LAYOUTS["blosc"].small()
    source = Source(str(write(layout, folder)), layout)
    found = measure(Order("floor", source, Case("cold"), seconds=0))
    assert (found.samples, found.whole) == (layout.steps, True)
    assert found.per_s > 0
    assert found.own_reads_ms is not None
    assert found.own_reads_ms > 0
    assert found.peak_mb >= found.idle_mb > 0


def run_at(per_s: float) -> Measured:
    return Measured(per_s, first_ms=1.0, cpu_s=0.5, idle_mb=50.0, peak_mb=100.0, samples=10, whole=True)


def test_ratios_are_those_of_a_round() -> None:
    # The machine slows down from round to round, which a ratio of medians would take for a difference.
    runs: dict[str, list[Measured | None]] = {
        "floor": [run_at(100), run_at(10), run_at(1)],
        "ours": [run_at(90), None, run_at(0.8)],
    }
    stand = Stand("arco", "", runs)
    assert stand.ratio("ours", "floor", rate) == pytest.approx(0.85)
    assert stand.ratio("ours", "insitubatch", rate) is None
    assert stand.median("ours", rate) == pytest.approx(45.4)


def results() -> Results:
    stand = Stand("arco", "fields", {"floor": [run_at(100)], "ours": [run_at(90)]}, {"zarrs": "zarrs is not installed"})
    settings = {"rounds": 1, "scale": 0.5, "small": False}
    return Results(machine(), settings, [Standing("cold", "Cold", [stand])])


def test_the_page_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    found = results()
    found.write(tmp_path / "results.json")
    page = markdown(found)
    assert markdown(Results.read(tmp_path / "results.json")) == page
    assert "| insitu-xr | 90.0 | 0.90 | - |" in page
    assert "zarrs, in order: left out, zarrs is not installed." in page


def test_every_engine_has_a_colour() -> None:
    assert set(COLOURS) == set(ENGINES)


def test_charts_are_drawn_where_there_are_figures(tmp_path: Path) -> None:
    names = [path.name for path in draw(results(), tmp_path)]
    assert names == ["bench-cold.png", "bench-first.png", "bench-memory.png"]
    first = (tmp_path / names[0]).read_bytes()
    draw(results(), tmp_path)
    assert (tmp_path / names[0]).read_bytes() == first


def test_layouts_keep_their_kind_when_they_shrink() -> None:
    small: dict[str, Layout] = {name: layout.small() for name, layout in LAYOUTS.items()}
    assert small["sharded"].shards == (32, 80, 160)
    assert small["sharded"].small() == small["sharded"]
    assert LAYOUTS["sharded"].scaled(0.01).steps == 64
    assert small["blosc"].grid[0] % small["blosc"].chunks[1] != 0


@pytest.mark.slow
def test_the_command_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--out", str(tmp_path / "out"), "--stores", str(tmp_path / "stores")]
    what = ["--small", "--rounds", "1", "--seconds", "0", "--cases", "cold", "--layouts", "fat"]
    main([*what, *where, "--engines", "floor,ours"])
    page = (tmp_path / "out" / "performance-figures.md").read_text(encoding="utf-8")
    assert "| insitu-xr |" in page
    assert "small stores" in page
    assert "cold       fat      ours" in capsys.readouterr().out
    main(["--from", str(tmp_path / "out" / "results.json"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "performance-figures.md").read_text(encoding="utf-8") == page


def test_a_choice_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="takes part"):
        main(["--cases", "work", "--layouts", "arco", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="--cases must be of cold"):
        main(["--cases", "luke", "--out", str(tmp_path)])
    assert parse([]).rounds == 3
