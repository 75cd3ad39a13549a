"""Train a U-Net to step weather forward, fine-tune it on rollouts, and say how much better than persistence it is.

    python -m examples.finetune.train --data weather                      # or iris; --size full, --resume
    torchrun --nproc-per-node 2 -m examples.finetune.train --data weather

Two phases: first one step ahead, then several, each from the forecast before it. The loader feeds both, and everything
that a run needs to go on is in one checkpoint: weights, optimizer, statistics, and ``loader.state_dict()``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import insitu_xr
from examples.finetune import skill
from examples.finetune.data import TASKS, Task, fit_scaler
from examples.finetune.model import Forecaster, Shape

COLUMNS = ("phase", "epoch", "step", "loss", "learning_rate", "seconds", "waited", "anchor")


@dataclass(frozen=True)
class Ranks:
    """Which of the processes that train together is this one."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def start(cls) -> Ranks:
        """Join the others, if torchrun started this process."""
        cuda = torch.cuda.is_available()
        if "WORLD_SIZE" not in os.environ:
            return cls(0, 1, torch.device("cuda" if cuda else "cpu"))
        distributed.init_process_group("nccl" if cuda else "gloo")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
        return cls(distributed.get_rank(), distributed.get_world_size(), device)

    @property
    def first(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    def from_first(self, make: Any) -> Any:
        """What the first one makes, for all."""
        if self.size == 1:
            return make()
        held = [make() if self.first else None]
        distributed.broadcast_object_list(held, src=0)
        return held[0]

    def all(self, value: Any) -> list[Any]:
        """What every one holds."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        distributed.all_gather_object(held, value)
        return held


class RolloutLoss(torch.nn.Module):
    """The whole rollout and its loss as one call, which is what DistributedDataParallel counts."""

    def __init__(self, model: Forecaster) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Of ``truth``, ``(batch, lead, channel, lat, lon)``."""
        loss: torch.Tensor = self.model.loss(self.model(inputs, truth.shape[1]), truth)
        return loss


@dataclass(frozen=True)
class Phase:
    """Some epochs of rollouts of one length."""

    name: str
    steps: int
    epochs: int
    learning_rate: float
    #: time between anchors; None for all
    every: np.timedelta64 | None = None


def phases_of(task: Task, epochs: int | None) -> list[Phase]:
    """One step ahead, then rollouts, at a third of the rate."""
    first, second = task.epochs if epochs is None else (epochs, min(epochs, task.epochs[1]))
    return [
        Phase("one step", 1, first, task.learning_rate),
        Phase("rollout", task.rollout, second, task.learning_rate / 3, task.rollout_every),
    ]


class Log:
    """One line for every step, as CSV (of every rank), and for TensorBoard where that is installed."""

    def __init__(self, folder: Path, rank: int, resumed: int) -> None:
        self.path, rows = folder / (f"log{rank}.csv" if rank else "log.csv"), []
        if resumed and self.path.exists():
            with self.path.open(newline="") as file:
                # What came after the checkpoint comes again.
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= resumed]
        self.file = self.path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, COLUMNS)
        self.writer.writeheader()
        self.writer.writerows(rows)
        self.board = board_in(folder / "tensorboard", resumed) if not rank else None

    def add(self, row: dict[str, Any]) -> None:
        """Write a line."""
        self.writer.writerow(row)
        self.file.flush()
        if self.board is not None:
            for name in ("loss", "learning_rate", "seconds", "waited"):
                self.board.add_scalar(name, row[name], row["step"])

    def close(self) -> None:
        """Finish the files."""
        self.file.close()
        if self.board is not None:
            self.board.close()


def board_in(folder: Path, resumed: int) -> Any:
    """A writer for TensorBoard; None where that is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=resumed + 1)  # what came after the checkpoint comes again


@dataclass
class Training:
    """A run: what it consists of, and how far it is."""

    task: Task
    ranks: Ranks
    scaler: insitu_xr.Scaler
    model: Forecaster
    optimizer: torch.optim.Optimizer
    phases: list[Phase]
    folder: Path
    every: int
    limit: float
    phase: int = 0
    step: int = 0
    loader_states: list[dict[str, Any]] | None = None
    #: steps of this process, the time that they took, and how much of it went by waiting for the loader
    taken: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def path(self) -> Path:
        """Where the checkpoint is."""
        return self.folder / "checkpoint.pt"

    def save(self, loader: Any) -> None:
        """Write everything that the next process needs to go on, in place of what was written before."""
        states = self.ranks.all(loader.state_dict())
        if not self.ranks.first:
            return
        content = {
            "shape": dataclasses.asdict(self.model.shape),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.to_json(),
            "phase": self.phase,
            "step": self.step,
            "loaders": states,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(content, partial)
        partial.replace(self.path)

    def resume(self, content: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.phase, self.step, self.loader_states = content["phase"], content["step"], content["loaders"]

    def run(self, log: Log) -> bool:
        """Train all phases; return whether it came to the end."""
        step_loss: torch.nn.Module = RolloutLoss(self.model)
        if self.ranks.size > 1:
            step_loss = DistributedDataParallel(step_loss)
        self.model.train()
        while self.phase < len(self.phases):
            phase = self.phases[self.phase]
            drawn = {"shuffle": True, "seed": self.phase, "drop_last": True, "every": phase.every}
            with self.task.loader("train", phase.steps, **drawn) as loader:
                # Normalised where the model is, on the device; ranks are those of torch.distributed.
                batches = loader.to("torch", device=self.device, device_transforms=[self.scaler])
                if self.loader_states is not None:
                    batches.load_state_dict(self.loader_states[self.ranks.rank])
                    self.loader_states = None
                while batches.state_dict()["epoch"] < phase.epochs:
                    for row in self.epoch(phase, batches, step_loss):
                        log.add(row)
                        if self.step >= self.limit:
                            self.save(batches)
                            return False
            self.phase += 1
        return True

    @property
    def device(self) -> torch.device | None:
        """Where tensors are to be copied; None where the memory of the loader will do."""
        return self.ranks.device if self.ranks.device.type == "cuda" else None

    def epoch(self, phase: Phase, batches: Any, step_loss: torch.nn.Module) -> Iterator[dict[str, Any]]:
        """Train on what is left of an epoch, and give a line for the log after every step."""
        number, total = batches.state_dict()["epoch"], phase.epochs * len(batches)
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                return
            waited = time.perf_counter() - began
            done = batches.state_dict()
            passed = done["epoch"] * len(batches) + done["batch"]
            rate = phase.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * passed / total)))
            loss = self.learn(batch, step_loss, rate)
            seconds = time.perf_counter() - began
            self.step, self.taken = self.step + 1, self.taken + 1
            self.seconds, self.waited = self.seconds + seconds, self.waited + waited
            if self.step % self.every == 0:
                self.save(batches)
            values = (phase.name, number, self.step, loss, rate, seconds, waited, str(batch.anchors[0]))
            yield dict(zip(COLUMNS, values, strict=True))

    def learn(self, batch: Any, step_loss: torch.nn.Module, rate: float) -> float:
        """Take one step down the gradient; return the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        truth = self.model.by_lead(batch.targets, batch.channels["targets"])
        loss = step_loss(batch.inputs, truth)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def new_model(task: Task, scaler: insitu_xr.Scaler, device: torch.device) -> Forecaster:
    """A model for the channels and the grid of a task, which knows how much they change in a step."""
    latitudes = tuple(float(v) for v in task.dataset["latitude"].values)
    with task.loader("train", 1, shuffle=True, seed=1, rank=0, world_size=1) as loader:
        batches = loader.to("torch", device_transforms=[scaler])
        some = [batch for batch, _ in zip(batches, range(4), strict=False)]
    shape = Shape(tuple(some[0].channels["inputs"]), latitudes, task.circular, task.relative, task.width)
    model = Forecaster(shape)
    model.learn_change((b.inputs, model.by_lead(b.targets, b.channels["targets"])) for b in some)
    model.to(device)
    return model


def prepare(options: argparse.Namespace, ranks: Ranks) -> Training:
    """Everything that a run consists of; from a checkpoint where it is resumed."""
    if not ranks.first:
        distributed.barrier()  # the first one writes the store
    task = TASKS[options.data](options.cache, options.size)
    if ranks.first and ranks.size > 1:
        distributed.barrier()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "checkpoint.pt"
    resumed = torch.load(path, map_location=ranks.device, weights_only=True) if options.resume else None
    text = ranks.from_first(lambda: resumed["scaler"] if resumed else fit_scaler(task).to_json())
    scaler = insitu_xr.Scaler.from_json(text)
    torch.manual_seed(options.seed)
    shape = Shape(**resumed["shape"]) if resumed else None
    model = new_model(task, scaler, ranks.device) if shape is None else Forecaster(shape).to(ranks.device)
    if options.init is not None and not resumed:
        weights = torch.load(options.init, map_location=ranks.device, weights_only=True)["model"]
        adopted, of = model.adopt(weights)
        tell(ranks, f"Start: {adopted} of {of} tensors from {options.init}")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    phases, limit = phases_of(task, options.epochs), options.max_steps or math.inf
    training = Training(task, ranks, scaler, model, optimizer, phases, options.out, options.checkpoint_every, limit)
    if resumed:
        training.resume(resumed)
        tell(ranks, f"Resumed after step {training.step}, in phase {training.phase + 1} of {len(phases)}")
    return training


def tell(ranks: Ranks, text: str) -> None:
    """Print, once for all."""
    if ranks.first:
        print(text, flush=True)


def report(training: Training) -> bool:
    """Print the costs and the skill, draw it; return whether the model beats persistence."""
    task, steps = training.task, training.taken
    if steps:
        share, each = training.waited / training.seconds, training.seconds / steps
        print(f"Cost: {steps} steps of {1000 * each:.0f} ms on average, of which the loader takes {share:.1%}")
    rmse = skill.evaluate(training.model, task, training.scaler, training.ranks.device)
    margin = skill.show_skill(rmse)
    rmse.to_series().to_csv(training.folder / "skill.csv")
    picture = training.folder / "skill.png"
    skill.draw(rmse, f"{task.name}: forecasts by a U-Net of {count(training.model):,} weights", picture)
    print(f"Picture: {picture}")
    print(f"Margin: {margin:.1%} better than persistence, mean of {rmse.sizes['lead']} leads and all channels")
    return margin > 0


def count(model: torch.nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in model.parameters())


def main(arguments: list[str] | None = None) -> int:
    """Train and judge; return 0 when the model beats persistence, or was to stop before."""
    options = parse(arguments)
    ranks = Ranks.start()
    if options.size == "small" and ranks.device.type == "cpu":
        torch.set_num_threads(1)  # which is faster where tensors are small
    try:
        training = prepare(options, ranks)
        tell(ranks, f"Model: {count(training.model):,} weights, {ranks.size} rank(s) on {ranks.device.type}")
        log = Log(options.out, ranks.rank, training.step)
        try:
            finished = training.run(log)
        finally:
            log.close()
        if not finished:
            tell(ranks, f"Stopped after step {training.step}; --resume goes on")
            return 0
        return 0 if not ranks.first or report(training) else 1
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "insitu-xr" / "finetune"
    parser = argparse.ArgumentParser(description="Train and fine-tune a U-Net in place on Zarr")
    parser.add_argument("--data", choices=list(TASKS), default="weather", help="made-up weather, or real climates")
    parser.add_argument("--size", choices=["small", "full"], default="small", help="of the data and the model")
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the stores")
    parser.add_argument("--out", type=Path, default=Path("finetune_output"), help="folder of what is written")
    parser.add_argument("--init", type=Path, help="checkpoint whose inner layers to start from")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument("--epochs", type=int, help="of the first phase")
    parser.add_argument("--max-steps", type=int, help="stop after so many, with a checkpoint")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
