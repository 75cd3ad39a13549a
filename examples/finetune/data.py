"""What the example is trained on, and the loaders of its splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import insitu_xr
from examples.finetune import weather
from examples.quickstart import prepare_store

Loader = Any


@dataclass(frozen=True)
class Task:
    """A data set, and what is forecast of it.

    Attributes
    ----------
    step : numpy timedelta
        Time of one step of the model.
    history, rollout, horizon : int
        Steps that the model sees, that it is fine-tuned over, and that it is judged by.
    rollout_every : numpy timedelta, optional
        Time between the anchors of rollouts, which cost as much as several steps each; None for all.
    """

    name: str
    dataset: xr.Dataset
    variables: tuple[str, ...]
    statics: tuple[str, ...]
    splits: Mapping[str, slice]
    step: np.timedelta64
    history: int
    rollout: int
    horizon: int
    rollout_every: np.timedelta64 | None
    #: dimensions that the normalisation takes the mean over; None for all but levels
    scaled_over: Sequence[str] | None
    circular: bool
    relative: bool
    width: int
    batch_size: int
    epochs: tuple[int, int]
    learning_rate: float

    @property
    def grid(self) -> tuple[str, str]:
        """Names of the dimensions of a map."""
        return "latitude", "longitude"

    def loader(self, split: str, steps: int, **options: Any) -> Loader:
        """Batches of windows: the history, and as many steps after it.

        A window lies in its split as a whole, so that nothing of the test is seen in training.
        """
        manifest = self.dataset.insitu.split(**self.splits)
        return self.dataset.insitu.loader(
            inputs={"variables": list(self.variables), "leads": [self.step * k for k in range(1 - self.history, 1)]},
            targets={"variables": list(self.variables), "leads": [self.step * k for k in range(1, steps + 1)]},
            statics=list(self.statics),
            layout="stacked",
            manifest=manifest,
            split=split,
            **{"batch_size": self.batch_size} | options,
        )


def weather_task(cache: Path, size: str) -> Task:
    """Made-up weather; written the first time and re-used afterwards."""
    made = weather.FULL if size == "full" else weather.SMALL
    path = cache / f"weather_{made.n_lat}x{made.n_lon}_{made.steps}.zarr"
    print(f"Store: {'re-used' if path.exists() else 'writing'} {path} ({made.nbytes / 1e6:.0f} MB)", flush=True)
    if not path.exists():
        weather.write(made, path)
    times = made.time
    ends = [times[int(made.steps * share)] for share in (0.78, 0.85)]
    gap = np.timedelta64(5, "D") if size == "full" else np.timedelta64(2, "D")
    return Task(
        name="weather",
        dataset=insitu_xr.open_dataset(path, consolidated=False),
        variables=("z", "t", "u", "v", "t2m"),
        statics=("lsm",),
        splits={
            "train": slice(None, ends[0]),
            "val": slice(ends[0] + gap, ends[1]),
            "test": slice(ends[1] + gap, None),
        },
        step=np.timedelta64(6, "h"),
        history=2,
        rollout=4,
        horizon=20 if size == "full" else 8,
        rollout_every=np.timedelta64(24, "h") if size == "full" else None,
        scaled_over=None,
        circular=True,
        relative=False,
        width=16 if size == "full" else 8,
        batch_size=8,
        epochs=(3, 1) if size == "full" else (8, 2),
        learning_rate=2e-3,
    )


def climate_task(cache: Path, size: str) -> Task:
    """Yearly mean temperature of North America in two scenarios, 240 years, from iris-sample-data."""
    return Task(
        name="iris",
        dataset=insitu_xr.open_dataset(prepare_store(cache), consolidated=False),
        variables=("air_temperature_e1", "air_temperature_a1b"),
        statics=(),
        splits={"train": slice(None, "2029"), "val": slice("2030", "2044"), "test": slice("2045", None)},
        step=np.timedelta64(360, "D"),
        history=5,
        rollout=2,
        horizon=5,
        rollout_every=None,
        # Every place has a climate of its own: what is learnt are departures from it.
        scaled_over=("time",),
        circular=False,
        relative=True,
        width=16 if size == "full" else 8,
        batch_size=8,
        epochs=(5, 1),
        learning_rate=1e-3,
    )


TASKS = {"weather": weather_task, "iris": climate_task}


def fit_scaler(task: Task) -> insitu_xr.Scaler:
    """Statistics of the training split: one pass, every chunk read once."""
    with task.loader("train", 1, rank=0, world_size=1) as loader:
        return insitu_xr.fit_scaler(loader, task.scaled_over, leave=task.statics, progress=True)
