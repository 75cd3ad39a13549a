"""The fine-tuning example as people run it: from a store to a picture, interrupted, and on two ranks.

Every run is a process of its own, forked from one that has imported torch: importing it takes longer than the runs.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from tests.integration.servers import free_port

pytest.importorskip("torch")
# Torch is imported, and models are trained; machines that do other things as well take several times as long.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLE = "examples.finetune.train"
TIMEOUT = 400


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    status: int | None
    printed: str
    folder: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "log.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def margin(self) -> float:
        found = re.search(r"^Margin: (-?[\d.]+)% better than persistence", self.printed, re.MULTILINE)
        assert found, self.printed
        return float(found.group(1))


def run_here(arguments: list[str], environment: dict[str, str], printed: str) -> None:
    """Run the example in this process, which is one of its own, with what it prints going to a file."""
    os.environ.update(environment)
    with open(printed, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from examples.finetune.train import main

    status = main(arguments)
    sys.stdout.flush()
    os._exit(status)


def scale_tensors() -> None:
    """Scale a batch of tensors on the CPU, in half precision, and on a device that only knows shapes."""
    import torch

    values = np.random.default_rng(0).normal(5e5, 300, (12, 2, 6, 8)).astype("f4")
    ds = xr.Dataset({"z": (("time", "level", "lat", "lon"), values)}, {"level": [500, 850]})
    with ds.insitu.loader(variables=["z"], sample_dim="time", layout="stacked", batch_size=12) as loader:
        scaler = insitu_xr.fit_scaler(loader)
        (expected,) = (scaler(batch).variables for batch in loader)
        (batch,) = loader.to("torch", device_transforms=[scaler])
    np.testing.assert_array_equal(batch.variables.numpy(), expected)
    raw = torch.from_numpy(values).requires_grad_()
    scaled = scaler.transform(raw, channels=batch.channels)
    assert scaled.dtype == torch.float32
    np.testing.assert_array_equal(scaled.detach().numpy(), expected)
    scaler.invert(scaled, channels=batch.channels).sum().backward()
    np.testing.assert_allclose(raw.grad, 1, rtol=1e-6)
    half = scaler.invert(scaled.detach().to(torch.bfloat16), channels=batch.channels)
    assert half.dtype == torch.float32  # half a million does not fit into half precision
    np.testing.assert_allclose(half, values, rtol=0, atol=10)
    assert scaler.transform(raw.detach().to("meta"), channels=batch.channels).device.type == "meta"


@dataclass(frozen=True)
class Runner:
    """Starts runs that share a folder of stores."""

    context: ForkServerContext
    home: Path

    def start(self, name: str, *arguments: str, **environment: str) -> Any:
        options = [*arguments, "--cache", str(self.home / "cache"), "--out", str(self.home / name)]
        printed = str(self.home / f"{name}{environment.get('RANK', '')}.txt")
        process = self.context.Process(target=run_here, args=(options, environment, printed))
        process.start()
        return process

    def end(self, process: Any, name: str, rank: str = "") -> Run:
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
        printed = (self.home / f"{name}{rank}.txt").read_text(encoding="utf-8")
        return Run(process.exitcode, printed, self.home / name)

    def run(self, name: str, *arguments: str) -> Run:
        return self.end(self.start(name, *arguments), name)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", EXAMPLE])
    yield Runner(context, tmp_path_factory.mktemp("finetune"))
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # it would live as long as pytest


@pytest.fixture(scope="module")
def whole(runner: Runner) -> Run:
    return runner.run("whole", "--epochs", "1", "--checkpoint-every", "40")


def test_it_beats_persistence_by_the_margin_that_it_prints(whole: Run) -> None:
    assert whole.status == 0, whole.printed
    with (whole.folder / "skill.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        errors.setdefault(row["forecast"], {})[row["channel"], row["lead"]] = float(row["rmse"])
    assert set(errors) == {"model", "persistence", "climatology"}
    gains = [1 - errors["model"][key] / error for key, error in errors["persistence"].items()]
    assert whole.margin() == pytest.approx(100 * np.mean(gains), abs=0.06)
    assert whole.margin() > 5
    assert {channel for channel, _ in errors["model"]} == {
        *(f"{name}{level}" for name in "ztuv" for level in (500, 850)),
        "t2m",
    }


def test_the_loader_hardly_counts(whole: Run) -> None:
    found = re.search(r"Cost: (\d+) steps of (\d+) ms on average, of which the loader takes ([\d.]+)%", whole.printed)
    assert found, whole.printed
    assert int(found.group(1)) == len(whole.rows)
    waited = sum(float(row["waited"]) for row in whole.rows) / sum(float(row["seconds"]) for row in whole.rows)
    assert float(found.group(3)) == pytest.approx(100 * waited, abs=0.1)
    # Steps at this size are shorter than the hundred milliseconds for which less than 5 % are promised.
    assert waited < 0.5


def test_errors_shrink_while_it_trains(whole: Run) -> None:
    losses = [float(row["loss"]) for row in whole.rows if row["phase"] == "one step"]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert {row["phase"] for row in whole.rows} == {"one step", "rollout"}
    assert [int(row["step"]) for row in whole.rows] == [*range(1, len(whole.rows) + 1)]


def test_the_picture_is_a_png(whole: Run) -> None:
    content = (whole.folder / "skill.png").read_bytes()
    assert content.startswith(PNG_SIGNATURE)
    assert len(content) > 10_000


def test_the_weather_is_the_same_for_the_same_seed(whole: Run) -> None:
    from examples.finetune import weather

    path = whole.folder.parent / "cache" / f"weather_16x32_{weather.SMALL.steps}.zarr"
    with xr.open_zarr(path, chunks=None, consolidated=False) as stored:
        fields = weather.fields_of(weather.SMALL)
        for step in range(3):
            for name, values in next(fields).items():
                np.testing.assert_array_equal(stored[name][step], values.astype("f4"))
        # It moves: a day apart it differs more than six hours apart, and it has weather everywhere but no trend.
        t = stored["t"].sel(level=850).load()
        assert float(abs(t.diff("time")).mean()) < float(abs(t - t.shift(time=4)).mean()) < 5
        assert float(t.std("time").min()) > 0.05
        assert bool((t > 200).all())
        assert bool((t < 330).all())
        assert np.isfinite(stored.to_array().values).all()


def test_a_run_that_is_stopped_in_an_epoch_goes_on_where_it_was(runner: Runner, whole: Run) -> None:
    stopped = runner.run("parts", "--epochs", "1", "--max-steps", "14", "--checkpoint-every", "5")
    assert stopped.status == 0, stopped.printed
    assert "Stopped after step 14; --resume goes on" in stopped.printed
    assert not (stopped.folder / "skill.png").exists()
    # Into the second phase.
    again = runner.run("parts", "--epochs", "1", "--resume", "--max-steps", "26")
    assert again.status == 0, again.printed
    assert "Resumed after step 14, in phase 1 of 2" in again.printed
    assert {row["phase"] for row in again.rows} == {"one step", "rollout"}
    for mine, theirs in zip(again.rows, whole.rows[:26], strict=True):
        for column in ("phase", "epoch", "step", "anchor", "loss", "learning_rate"):
            assert mine[column] == theirs[column]


def test_what_comes_again_after_a_checkpoint_is_logged_once(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from examples.finetune.train import COLUMNS, Log

    for resumed, steps in ((0, range(1, 8)), (5, range(6, 10))):
        log = Log(tmp_path, 0, resumed)
        for step in steps:
            log.add({**dict.fromkeys(COLUMNS, 0), "step": step, "loss": step + resumed})
        log.close()
    expected = [(step, step + (5 if step > 5 else 0)) for step in range(1, 10)]
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == expected
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [(int(row["step"]), int(row["loss"])) for row in csv.DictReader(file)] == expected


def test_two_ranks_train_one_model_on_different_samples(runner: Runner) -> None:
    # What torchrun sets.
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    together = {"WORLD_SIZE": "2", **where}
    processes = [
        runner.start("ranks", "--epochs", "1", "--max-steps", "8", RANK=k, LOCAL_RANK=k, **together) for k in ("0", "1")
    ]
    first, second = (runner.end(process, "ranks", str(k)) for k, process in enumerate(processes))
    assert (first.status, second.status) == (0, 0), first.printed + second.printed
    assert "2 rank(s) on cpu" in first.printed
    assert "rank(s)" not in second.printed
    with (first.folder / "log1.csv").open(newline="") as file:
        others = list(csv.DictReader(file))
    assert [row["step"] for row in others] == [row["step"] for row in first.rows] == [str(k) for k in range(1, 9)]
    assert not {row["anchor"] for row in others} & {row["anchor"] for row in first.rows}


def test_tensors_are_scaled_where_they_are_and_gradients_flow(runner: Runner) -> None:
    process = runner.context.Process(target=scale_tensors)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == 0  # what failed is on stderr


def test_real_climates_are_fine_tuned_from_made_up_weather(runner: Runner, whole: Run) -> None:
    arguments = ("--data", "iris", "--epochs", "2", "--checkpoint-every", "1000")
    tuned = runner.run("iris", *arguments, "--init", str(whole.folder / "checkpoint.pt"))
    assert tuned.status == 0, tuned.printed
    assert re.search(r"Start: \d\d of \d\d tensors from", tuned.printed)
    assert tuned.margin() > 0
