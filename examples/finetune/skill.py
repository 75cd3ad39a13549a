"""Forecasts against what came, beside two that cost nothing: persistence and the climate of the month."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import xarray as xr

import insitu_xr
from examples.finetune.data import Task
from examples.finetune.model import Forecaster

FORECASTS = ("model", "persistence", "climatology")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Climatology:
    """Means of the months ``(month, channel, lat, lon)``; where a month was never seen, the mean of all."""

    months: Array

    @classmethod
    def of(cls, task: Task, state: list[str]) -> Climatology:
        """Of the training split, in one pass."""
        total, count = np.zeros(()), np.zeros((12, 1, 1, 1))
        with task.loader("train", 1, rank=0, world_size=1) as loader:
            for batch in loader:
                first = next(iter(dict.fromkeys(n.rpartition("@")[2] for n in batch.channels["targets"])))
                fields = batch.targets[:, [batch.channels["targets"].index(f"{n}@{first}") for n in state]]
                months = months_of(batch.valid_times["targets"][:, 0]) - 1
                total = np.zeros((12, *fields.shape[1:])) if not total.ndim else total
                np.add.at(total, months, fields)
                np.add.at(count, months, 1)
        mean = total.sum(axis=0) / count.sum()
        return cls(np.where(count > 0, total / np.maximum(count, 1), mean))

    def at(self, times: Array) -> Array:
        """For times ``(batch, lead)``, fields ``(batch, lead, channel, lat, lon)``."""
        found: Array = self.months[months_of(times) - 1]
        return found


def months_of(times: Array) -> Array:
    """Numbers of the months, also of calendars that numpy does not know."""
    months = [t.month for t in (times.ravel() if times.dtype.kind == "O" else pd.DatetimeIndex(times.ravel()))]
    return np.array(months).reshape(times.shape)


def evaluate(model: Forecaster, task: Task, scaler: insitu_xr.Scaler, device: torch.device) -> xr.DataArray:
    """RMSE in the units of the data, by area, ``(forecast, channel, lead)``, over the test split."""
    state, now = model.shape.state, model.shape.at(model.shape.history[-1])
    climate, weights = Climatology.of(task, state), model.area.cpu().numpy()
    squares, count = np.zeros((len(FORECASTS), task.horizon, len(state))), 0
    model.eval()
    with task.loader("test", task.horizon, rank=0, world_size=1) as loader:
        for batch in loader.to("torch", device=device if device.type == "cuda" else None):
            inputs = scaler.transform(batch.inputs, channels=batch.channels["inputs"])
            with torch.no_grad():
                # Back from normalised numbers, by the names of the channels.
                forecast = scaler.invert(model(inputs, task.horizon), channels=state).cpu().numpy()
            truth = model.by_lead(batch.targets, batch.channels["targets"]).cpu().numpy()
            persistence = batch.inputs[:, now].cpu().numpy()[:, None]
            expected = climate.at(batch.valid_times["targets"])
            for k, found in enumerate((forecast, persistence, expected)):
                squares[k] += (np.square(found - truth, dtype="f8") * weights).mean(axis=(-2, -1)).sum(axis=0)
            count += len(batch)
    hours = task.step / np.timedelta64(1, "h") * np.arange(1, task.horizon + 1)
    rmse = np.sqrt(squares / count).transpose(0, 2, 1)
    coords = {"forecast": list(FORECASTS), "channel": state, "lead": hours}
    return xr.DataArray(rmse, coords, ("forecast", "channel", "lead"), "rmse")


def margins(rmse: xr.DataArray) -> xr.DataArray:
    """Share of the error of persistence that the model saves, mean of all channels, by lead."""
    return (1 - rmse.sel(forecast="model") / rmse.sel(forecast="persistence")).mean("channel")


def show_skill(rmse: xr.DataArray) -> float:
    """Print the errors at some leads; return the margin over persistence, mean of all leads."""
    margin = margins(rmse)
    leads = rmse["lead"].values[np.unique(np.linspace(0, rmse.sizes["lead"] - 1, 4).astype(int))]
    print("Skill on the test split, RMSE of model / persistence / climatology:")
    for channel in rmse["channel"].values:
        errors = rmse.sel(channel=channel)
        parts = [f"{name_of(h):>6} " + "/".join(f"{e:.4g}" for e in errors.sel(lead=h).values) for h in leads]
        print(f"  {channel:<20} " + "   ".join(parts))
    print("  better than persistence by " + ", ".join(f"{margin.sel(lead=h):.1%} at {name_of(h)}" for h in leads))
    return float(margin.mean())


def name_of(hours: float) -> str:
    """A lead as text."""
    return f"{hours:.0f}h" if hours < 24 * 30 else f"{hours / 24:.0f}D"


def draw(rmse: xr.DataArray, title: str, path: Path) -> None:
    """Write a PNG of error against lead for some channels, and of the margin over persistence."""
    channels = chosen(rmse["channel"].values, 5)
    plt.switch_backend("Agg")  # a file is written, no window is opened
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    leads = rmse["lead"] / 24
    for axis, channel in zip(axes.flat, channels, strict=False):
        for forecast, style in zip(FORECASTS, ("o-", "s--", ":"), strict=True):
            axis.plot(leads, rmse.sel(channel=channel, forecast=forecast), style, label=forecast, markersize=3)
        axis.set(title=channel, ylabel="RMSE", ylim=(0, None))
    axes.flat[0].legend()
    last = axes.flat[len(channels)]
    last.plot(leads, 100 * margins(rmse), "o-", markersize=3)
    last.axhline(0, color="black", linewidth=0.8)
    last.set(title="all channels", ylabel="better than persistence by (%)")
    for axis in list(axes.flat)[len(channels) + 1 :]:
        axis.remove()
    figure.suptitle(title)
    figure.supxlabel("lead (days)", fontsize="medium")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def chosen(names: Iterable[str], most: int) -> list[str]:
    """Some of the names, spread over all."""
    every = [str(name) for name in names]
    return [every[k] for k in np.unique(np.linspace(0, len(every) - 1, min(most, len(every))).astype(int))]
