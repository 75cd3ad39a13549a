"""Verify: score forecasts against a reference, both read in place from Zarr stores.

Run ``python examples/verify.py``. It needs neither a network nor a framework. Two pairs are scored:

1. a toy pair of real data: yearly mean air temperature over North America, the climate scenario A1B "scored" against
   the scenario E1 (``iris-sample-data``, 360-day calendar). Neither is a forecast: it shows that any two datasets of
   the same times and grid can be compared, and by how much the scenarios part;
2. a generated ensemble: an imitation of the weather, and forecasts by two models of ten members whose errors grow with
   lead time. They are scored together, compared with each other and with persistence, and drawn.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import iris_sample_data
import matplotlib as mpl
import numpy as np
import pandas as pd
import xarray as xr

import insitu_xr
from insitu_xr_adapters.verification import score, score_plan

INITS, LEADS, MEMBERS = 60, 9, 10
GRID = {"latitude": np.linspace(-82.5, 82.5, 12), "longitude": np.arange(0.0, 360.0, 15.0)}


def toy_pair(folder: Path) -> xr.Dataset:
    """Score one climate scenario against another, on every year and on those after 2050."""
    opened = {}
    for name in ("E1", "A1B"):
        source = Path(iris_sample_data.path) / f"{name}_north_america.nc"
        with xr.open_dataset(source, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) as ds:
            plain = ds[["air_temperature"]].drop_vars(["forecast_period", "forecast_reference_time"], errors="ignore")
            for variable in plain.variables.values():
                variable.encoding = {}
            plain.to_zarr(folder / name, encoding={"air_temperature": {"chunks": (12, 37, 49)}}, consolidated=False)
        opened[name] = insitu_xr.open_dataset(str(folder / name))
    scores: xr.Dataset = opened["A1B"].insitu.score(opened["E1"], metrics=["rmse", "bias"])
    years = [date.year for date in opened["E1"]["time"].values]
    late = scores.insitu.state.by(np.where(np.array(years) >= 2050, "from 2050", "before 2050"))
    print("A1B against E1, a toy pair: neither is a forecast of the other")
    print(late["air_temperature"].squeeze().to_pandas().round(2), end="\n\n")
    return scores


def generate(folder: Path) -> None:
    """Write an imitation of the weather, and forecasts of it."""
    random = np.random.default_rng(0)
    times = pd.date_range("2020-01-01", periods=INITS + LEADS, freq="12h")
    shape = (len(GRID["latitude"]), len(GRID["longitude"]))
    weather = np.zeros((len(times), *shape))
    for step in range(1, len(times)):
        weather[step] = 0.95 * weather[step - 1] + 0.3 * random.normal(size=shape)
    truth = 260 + 30 * np.cos(np.deg2rad(GRID["latitude"]))[:, None] + 2 * weather

    def write(name: str, dims: tuple[str, ...], values: Any, chunks: tuple[int, ...], **labels: Any) -> None:
        ds = xr.Dataset({"t2m": ((*dims, *GRID), values.astype("f4"), {"units": "K"})}, {**labels, **GRID})
        ds.to_zarr(folder / name, encoding={"t2m": {"chunks": (*chunks, *shape)}}, consolidated=False)

    write("truth", ("time",), truth, (1,), time=times)
    valid = np.stack([truth[k : k + INITS] for k in range(LEADS)], axis=1)[:, :, None]
    growth = 0.15 + 0.1 * np.arange(LEADS)
    leads = pd.timedelta_range("0h", periods=LEADS, freq="12h")
    labels = {"init_time": times[:INITS], "lead_time": leads, "number": np.arange(MEMBERS)}
    # The new model begins worse and ends better than the old one; both spread less than they err.
    for name, factor in {"old": np.ones(LEADS), "new": np.linspace(1.06, 0.9, LEADS)}.items():
        size = (growth * factor)[:, None, None, None]
        shared = random.normal(size=(INITS, LEADS, 1, *shape))
        own = random.normal(size=(INITS, LEADS, MEMBERS, *shape))
        write(name, tuple(labels), valid + size * (0.8 * shared + 0.6 * own), (1, 1, MEMBERS), **labels)


def ensemble(folder: Path) -> xr.Dataset:
    """Score two ensembles and persistence, reading the reference once for all."""
    generate(folder)
    old, new, truth = (insitu_xr.open_dataset(str(folder / name)) for name in ("old", "new", "truth"))
    asked: dict[str, Any] = {
        "metrics": ["rmse", "crps", "spread", "rank_histogram"],
        "regions": ["global", "tropics"],
        "baselines": "persistence",
        "memory": "64MiB",
    }
    print(score_plan({"old": old, "new": new}, truth, **asked), end="\n\n")
    scores = score({"old": old, "new": new}, truth, **asked)
    print(scores["t2m"].sel(metric="rmse", region="global").to_pandas().round(2), end="\n\n")
    verdict = scores.insitu.compare("new", "old", test="geer_ar2", metrics=["crps"])
    print("CRPS, new less old:")
    print(verdict["t2m"].isel(metric=0, region=0).T.to_pandas().round(4))
    return scores


def draw(scores: xr.Dataset, folder: Path) -> None:
    """Draw skill, a scorecard and ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = scores.insitu.plot
    plot.skill("rmse", dashed="spread", block=4).figure.savefig(folder / "verify-skill.png", dpi=110)
    plot.scorecard("new", "old", "crps").figure.savefig(folder / "verify-scorecard.png", dpi=110)
    plot.rank_histogram(lead_time="96h").figure.savefig(folder / "verify-ranks.png", dpi=110)


def main(figures: Path) -> None:
    """Score both pairs, and draw the ensemble's figures."""
    mpl.use("agg")
    with tempfile.TemporaryDirectory() as folder:
        toy_pair(Path(folder))
        draw(ensemble(Path(folder)), figures)
    print(f"figures: {figures}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, default=Path("figures"), help="folder of the figures")
    main(parser.parse_args().figures)
