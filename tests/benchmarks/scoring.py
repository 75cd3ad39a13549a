"""Scores of an ensemble computed in three ways, each in a process of its own: here, in a loop, and in one dask graph.

``python -m tests.benchmarks.scoring`` writes the data (40 init times x 41 lead times x 10 members x 3 levels x 64 x
32), runs each way a few times, checks that all give the same scores, and prints seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

INITS, LEADS, MEMBERS, LEVELS, LATITUDES, LONGITUDES = 40, 41, 10, 3, 32, 64
REGIONS = {"global": slice(-90, 90), "tropics": slice(-20, 20), "northern-hemisphere": slice(20, 90)}
METRICS = ["rmse", "bias", "mae", "acc", "crps", "ensemble_variance"]
WAYS = ("insitu", "loop", "dask")


# -- data -----------------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """Write a forecast, one chunk for each init and lead time, a reference and a climatology, one for each time."""
    import pandas as pd

    random = np.random.default_rng(0)
    spacing = 180 / LATITUDES
    grid: dict[str, Any] = {
        "level": [500, 700, 850],
        "latitude": np.linspace(-90 + spacing / 2, 90 - spacing / 2, LATITUDES),
        "longitude": np.arange(LONGITUDES) * 360 / LONGITUDES,
    }
    field = (LEVELS, LATITUDES, LONGITUDES)
    inits, leads = pd.date_range("2020-01-01", periods=INITS, freq="12h"), pd.to_timedelta(np.arange(LEADS) * 6, "h")
    times = pd.date_range("2020-01-01", periods=2 * INITS + LEADS, freq="6h")

    def put(
        name: str, dims: tuple[str, ...], labels: dict[str, Any], chunks: tuple[int, ...], sizes: tuple[int, ...]
    ) -> None:
        values = (280 + 5 * random.standard_normal((*sizes, *field))).astype("f4")
        ds = xr.Dataset({"t": ((*dims, *grid), values)}, {**labels, **grid})
        encoding = {"t": {"chunks": (*chunks, *field)}}
        ds.to_zarr(folder / name, encoding=encoding, consolidated=False, mode="w")

    dims = ("init_time", "lead_time", "number")
    labels = {"init_time": inits, "lead_time": leads, "number": np.arange(MEMBERS)}
    put("forecast", dims, labels, (1, 1, MEMBERS), (INITS, LEADS, MEMBERS))
    put("reference", ("time",), {"time": times}, (1,), (len(times),))
    put("climatology", ("dayofyear", "hour"), {"dayofyear": np.arange(1, 41), "hour": [0, 6, 12, 18]}, (1, 1), (40, 4))


def opened(folder: Path, chunks: Any) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    names = ("forecast", "reference", "climatology")
    first, second, third = (xr.open_zarr(folder / n, consolidated=False, chunks=chunks) for n in names)
    return first, second, third


# -- ways -----------------------------------------------------------------------------------------------------------


def insitu(folder: Path) -> xr.DataArray:
    import insitu_xr  # noqa: F401

    ours, truth, clim = opened(folder, None)
    regions = {name: {"latitude": rows} for name, rows in REGIONS.items()}
    scores = ours.insitu.score(truth, metrics=METRICS, climatology=clim, regions=regions, memory="160MiB")
    return xr.DataArray(scores["t"])


def loop(folder: Path) -> xr.DataArray:
    """One lead time after another, as notebooks have it."""
    ours, truth, clim = opened(folder, None)
    found = []
    for k in range(LEADS):
        f = ours["t"].isel(lead_time=k)
        valid = f.init_time + f.lead_time
        o = truth["t"].sel(time=valid).drop_vars("time")
        c = clim["t"].sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour).drop_vars(["dayofyear", "hour"])
        found.append(_scores(f.load(), o.load(), c.load()))
    return xr.concat(found, "lead_time")


def dask(folder: Path) -> xr.DataArray:
    """Everything in one graph, which is computed at once."""
    ours, truth, clim = opened(folder, {})
    f = ours["t"]
    valid = f.init_time + f.lead_time
    o = truth["t"].sel(time=valid).drop_vars("time")
    c = clim["t"].sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour).drop_vars(["dayofyear", "hour"])
    return xr.DataArray(_scores(f, o, c).compute())


def _scores(f: xr.DataArray, o: xr.DataArray, c: xr.DataArray) -> xr.DataArray:
    f, o, c = f.astype("f8"), o.astype("f8"), c.astype("f8")
    spacing = 180 / LATITUDES
    edges = np.deg2rad(np.linspace(-90, 90, LATITUDES + 1))
    weights = xr.DataArray(np.diff(np.sin(edges)), {"latitude": o.latitude}) + 0 * spacing
    error = f.mean("number") - o
    a, b = f.mean("number") - c, o - c
    statistics = {
        "mse": error**2,
        "bias": error,
        "mae": abs(error),
        "ab": a * b,
        "aa": a**2,
        "bb": b**2,
        "crps": _crps(f, o),
        "ensemble_variance": f.var("number", ddof=1),
    }
    found = []
    for rows in REGIONS.values():
        inside = weights.where((weights.latitude >= rows.start) & (weights.latitude <= rows.stop), 0)
        mean = {n: s.weighted(inside).mean(["init_time", "latitude", "longitude"]) for n, s in statistics.items()}
        scores = [
            mean["mse"] ** 0.5,
            mean["bias"],
            mean["mae"],
            mean["ab"] / (mean["aa"] * mean["bb"]) ** 0.5,
            mean["crps"],
            mean["ensemble_variance"],
        ]
        found.append(xr.concat(scores, "metric"))
    return xr.concat(found, "region").transpose("metric", "region", ..., "level")


def _crps(f: xr.DataArray, o: xr.DataArray) -> xr.DataArray:
    """The fair one, by sorting: the quickest way that numpy has."""
    skill = abs(f - o).mean("number")
    ordered = xr.apply_ufunc(
        np.sort, f, input_core_dims=[["number"]], output_core_dims=[["number"]], dask="parallelized"
    )
    factors = xr.DataArray(2 * np.arange(1, MEMBERS + 1) - MEMBERS - 1, dims="number")
    return xr.DataArray(skill - (factors * ordered).sum("number") / (MEMBERS * (MEMBERS - 1)))


# -- figures --------------------------------------------------------------------------------------------------------


def measured(way: str, folder: Path) -> dict[str, Any]:
    """One way in this process: seconds, and the most memory that the process held."""
    ways: dict[str, Callable[[Path], xr.DataArray]] = {"insitu": insitu, "loop": loop, "dask": dask}
    begun = time.perf_counter()
    scores = ways[way](folder).transpose("metric", "region", "lead_time", "level").values
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"way": way, "seconds": seconds, "peak": peak, "scores": scores.tolist()}


def run(way: str, folder: Path) -> dict[str, Any]:
    """One way in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.scoring", "--way", way, "--folder", str(folder)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="run one way in this process, and print its figures as JSON")
    parser.add_argument("--folder", type=Path, help="where the data is, or is to be written")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.way:
        sys.stdout.write(json.dumps(measured(arguments.way, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "climatology").exists():
            write(folder)
        report({way: [run(way, folder) for _ in range(arguments.rounds)] for way in WAYS})


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a table, after checking that all ways have the same scores."""
    ours = np.array(found["insitu"][0]["scores"])
    for results in found.values():
        np.testing.assert_allclose(np.array(results[0]["scores"]), ours, rtol=1e-4, atol=1e-6)
    best = {way: min(r["seconds"] for r in results) for way, results in found.items()}
    peak = {way: min(r["peak"] for r in results) for way, results in found.items()}
    for way in found:
        times, more = best[way] / best["insitu"], peak[way] / peak["insitu"]
        line = f"{way:8} {best[way]:7.2f} s  {times:5.1f} x   {peak[way] / 2**20:7.0f} MiB  {more:5.1f} x"
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
