"""The command: what it prints, how it fails, and what it says without typer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import insitu_xr
from insitu_xr.cli.commands import app
from insitu_xr.testing.serving import serve
from tests.integration.matrix import weather, write

RUN = [sys.executable, "-c", "from insitu_xr.cli import main; main()"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("cli") / "t2m.zarr"))


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: str, status: int = 1) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_info_shows_every_variable_with_chunks_and_codecs(store: str) -> None:
    shown = ran("info", store)
    (t2m,) = lines_with(shown, "t2m ", "float64")
    assert " ".join(t2m.split()) == "t2m float64 time 30, lat 6, lon 8 4 x 3 x 8 - int16, 192 B a chunk blosc(lz4, 5)"
    assert lines_with(shown, "lsm", "uint8", "lat 6, lon 8")
    assert f"url    file://{store}" in shown


def test_info_shows_labels_calendar_and_gaps(store: str) -> None:
    shown = ran("info", store)
    assert lines_with(shown, "time  30 labels from 2000-02-25 to 2000-03-03", "mostly 6h apart", "(standard calendar)")
    assert lines_with(shown, "gap after 2000-02-29, up to 2000-02-29T12:00:00: 1 step of 6h missing")
    assert lines_with(shown, "level  2 labels from 500 to 850")


def test_info_shows_shards_and_calendars(tmp_path: Path) -> None:
    ds = weather()[["t2m"]].isel(time=slice(10))
    ds["time"] = xr.date_range("2000-01-01", periods=10, calendar="360_day", use_cftime=True)
    encoding = {"t2m": {"chunks": (2, 3, 4), "shards": (8, 6, 8)}}
    ds.to_zarr(tmp_path / "a.zarr", encoding=encoding, consolidated=False)
    shown = ran("info", str(tmp_path / "a.zarr"))
    assert lines_with(shown, "t2m", "2 x 3 x 4  8 x 6 x 8", "zstd")
    assert lines_with(shown, "time  10 labels", "(360_day calendar)")
    assert "gap" not in shown


def test_the_suggested_loader_runs(store: str) -> None:
    (line,) = lines_with(ran("info", store), "ds.insitu.loader(")
    with eval(line.strip(), {"ds": insitu_xr.open_dataset(store)}) as loader:
        assert sum(len(batch.positions) for batch in loader) == 30


def test_info_lists_a_few_gaps_and_counts_the_others(tmp_path: Path) -> None:
    kept = np.delete(np.arange(60), np.arange(3, 60, 7))
    xr.Dataset({"a": ("time", kept * 1.0)}, {"time": kept.astype("M8[D]").astype("M8[ns]")}).to_zarr(
        tmp_path / "a.zarr", consolidated=False
    )
    shown = ran("info", str(tmp_path / "a.zarr"))
    assert len(lines_with(shown, "gap after")) == 5
    assert lines_with(shown, "and 3 more gaps")


def test_info_of_a_store_without_times(tmp_path: Path) -> None:
    xr.Dataset({"a": ("x", np.arange(3))}).to_zarr(tmp_path / "a.zarr", consolidated=False)
    shown = ran("info", str(tmp_path / "a.zarr"))
    assert lines_with(shown, "none, for a plan", "sample_dim must be given")


def test_info_of_a_group_of_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", group="fine")
    assert "none, for there are no variables here; choose a group with --group" in ran("info", str(tmp_path / "a.zarr"))


def test_plan_prints_what_the_library_plans(store: str) -> None:
    shown = ran(
        *("plan", store, "-v", "t2m,z", "--time", "2000-02-26/2000-02", "--leads", "0h,12h", "--shuffle"),
        *("--batch-size", "4", "--memory", "10MiB", "--region", "lat=-10/50,lon=300/50"),
    )
    part = insitu_xr.open_dataset(store).sel(time=slice("2000-02-26", "2000-02"))
    part = part.insitu.region(lat=slice(-10, 50)).insitu.region(lon=slice(300, 50), wrap=True)
    plan = part.insitu.plan(["t2m", "z"], leads=["0h", "12h"], batch_size=4, shuffle=True, memory="10MiB")
    assert shown == f"{plan!r}\n"
    assert "lat 4 x lon 3" in shown


@pytest.mark.parametrize(
    ("time", "steps"), [("2000-03", 11), ("2000-03/", 11), ("/2000-02", 19), ("2000-02-29/2000-02-29", 3)]
)
def test_stretches_of_time(store: str, time: str, steps: int) -> None:
    assert f"anchors  {steps} of {steps} kept" in ran("plan", store, "-v", "t2m", "--time", time)


def test_variables_may_be_repeated_and_layouts_chosen(store: str) -> None:
    assert ran("plan", store, "-v", "t2m", "-v", "z") == ran("plan", store, "--variables", "t2m,z")
    assert ran("plan", store, "-v", "t2m,z", "--layout", "stacked", "--sample-dim", "time")


def test_stores_over_http_and_their_options(store: str) -> None:
    with serve(Path(store).parent) as server:
        options = [
            "--storage-option",
            "client_options.allow_http=true",
            "--storage-option",
            'retry_config={"max_retries":0}',
        ]
        assert f"url            {server.url}/t2m.zarr" in ran("info", f"{server.url}/t2m.zarr", *options)
        assert ran("plan", f"{server.url}/t2m.zarr", "-v", "t2m", "--backend", "fsspec")
        server.fail("t2m", 403)
        told = failed("info", f"{server.url.replace('//', '//me:PASSWORD@')}/t2m.zarr?sig=SIGNATURE", *options)
    assert "credentials must be allowed to read" in told
    assert "PASSWORD" not in told
    assert "SIGNATURE" not in told


def test_options_of_xarray_and_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", group="fine")
    shown = ran("info", str(tmp_path / "a.zarr"), "--group", "fine", "-o", "mask_and_scale=false")
    assert lines_with(shown, "t2m", "int16    time 30")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "-v", "tsm"], "'tsm'; there are ['lsm', 't2m', 'z']"),
        (
            ["plan", "-v", "t2m", "--time", "spring"],
            "--time must be labels of 'time' such as 2000/2010, but got 'spring'",
        ),
        (["plan", "-v", "t2m", "--region", "lat=north"], "--region must be such as lat=-10/50, but got 'lat=north'"),
        (["plan", "-v", "t2m", "--leads", "6 parsecs"], "'6 parsecs'"),
        (["plan", "-v", "t2m", "--memory", "1"], "memory must be"),
        (["info", "--storage-option", "region"], "--storage-option must be KEY=VALUE, but got 'region'"),
        (["info", "--storage-option", "region=x"], "storage_options must be given for a remote URL"),
        (["info", "-o", "branch=main"], "got ['branch']"),
        (["info", "-o", "group=x"], "--option must be of the adapter or of xarray, but got ['group']"),
        (["info", "--storage-option", "a=1", "--storage-option", "a.b=2"], "--storage-option must give 'a' once"),
        (["info", "--group", "fine"], "group must be one of the store's, but got 'fine'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(store: str, arguments: list[str], told: str) -> None:
    command, *rest = arguments
    shown = failed(command, store, *rest)
    assert told in shown
    assert shown.startswith("insitu-xr: ")
    assert len(shown.splitlines()) == 1


def test_a_missing_argument_is_an_error_of_usage(store: str) -> None:
    assert "--variables" in failed("plan", store, status=2)


def test_nothing_there(tmp_path: Path) -> None:
    assert "where there is none" in failed("info", str(tmp_path / "nope.zarr"))


def command(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    run = [*RUN, *arguments] if code is None else [sys.executable, "-c", code, *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=False, timeout=120, env=dict(os.environ))


def test_a_process_of_its_own(store: str) -> None:
    done = command("plan", store, "-v", "t2m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<insitu_xr.ReadPlan>")
    failing = command("info", "gopher://host/a.zarr")
    assert failing.returncode == 1
    assert failing.stderr.startswith("insitu-xr: source must be a path")
    assert failing.stdout == ""


def test_a_module_that_is_run() -> None:
    command = [sys.executable, "-m", "insitu_xr.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: insitu-xr ")


def test_without_typer_it_says_what_to_install() -> None:
    done = command(code="import sys\nsys.modules['typer'] = None\nfrom insitu_xr.cli import main\nmain()")
    assert done.returncode == 1
    assert done.stderr == (
        "insitu-xr: typer must be installed for the command, but got no module 'typer'; pip install insitu-xr[cli]\n"
    )


def test_the_command_is_registered() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"insitu-xr": "insitu_xr.cli:main"}
    assert any(need.startswith("typer") for need in project["optional-dependencies"]["cli"])
