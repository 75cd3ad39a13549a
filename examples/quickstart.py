"""Quickstart: read batches in place from a Zarr store, and improve a forecast with them.

Run ``python examples/quickstart.py``. It needs neither a network nor a framework, and takes seconds. Step by step:

1. write real data once to a small Zarr v3 store: yearly mean air temperature over North America in two climate
   scenarios, E1 and A1B (240 years, 360-day calendar, from the ``iris-sample-data`` package);
2. open the store, split its years by label into training and test, look at the plan before anything is read, and see
   that no window reaches across years that are missing;
3. iterate shuffled batches, each sample a year and the year after it (``leads=["0D", "360D"]``), and fit on them a
   least-squares correction of persistence, the forecast "next year will be like this one";
4. compare with the number of stored chunks how many were read;
5. score the correction on later years that the fit has never seen, and draw one forecast.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iris_sample_data
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import insitu_xr

# Both scenarios have the same past, and part in the year 2000.
SCENARIOS = {"air_temperature_e1": "E1", "air_temperature_a1b": "A1B"}
VARIABLES = list(SCENARIOS)
LEADS = ["0D", "360D"]
YEARS_PER_CHUNK = 10

# Three quarters of the years to train, the last quarter to test. The fit has to see some of the warming: from the
# nearly stationary climate before 2000 it would learn to pull every year back to the past, and lose to persistence.
TRAIN = slice(None, "2039")
TEST = slice("2040", None)
PICTURE_VARIABLE = "air_temperature_a1b"

Array = np.ndarray[Any, np.dtype[Any]]


# ---------------------------------------------------------------------------------------------------------------------
# 1. Real data, once, to a Zarr store


def prepare_store(cache: Path) -> Path:
    """Return the path of the Zarr store in ``cache``, which is written the first time and re-used afterwards."""
    store = cache / "north_america.zarr"
    if store.exists():
        print(f"Store: re-used {store}")
        return store
    cache.mkdir(parents=True, exist_ok=True)
    dataset = xr.Dataset({name: read_scenario(scenario).rename(name) for name, scenario in SCENARIOS.items()})
    chunks = (YEARS_PER_CHUNK, dataset.sizes["latitude"], dataset.sizes["longitude"])
    # Renamed into place when it is whole: an interrupted first run leaves no half store to be re-used.
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        partial = Path(folder) / store.name
        dataset.to_zarr(
            partial,
            zarr_format=3,
            consolidated=False,
            encoding={name: {"chunks": chunks} for name in VARIABLES}
            | {"time": {"units": "days since 1860-01-01", "calendar": "360_day"}},
        )
        partial.rename(store)
    print(f"Store: wrote {store} ({dataset.sizes['time']} years, {YEARS_PER_CHUNK} years per chunk)")
    return store


def read_scenario(scenario: str) -> xr.DataArray:
    """Read the yearly temperature of one scenario from netCDF, with its 360-day calendar as it is."""
    path = Path(iris_sample_data.path) / f"{scenario}_north_america.nc"
    times = xr.coders.CFDatetimeCoder(use_cftime=True)
    with xr.open_dataset(path, decode_times=times) as source:
        field = source["air_temperature"].drop_encoding().load()
    # The name of a variable that is not copied: xarray has the latitudes and longitudes themselves.
    del field.attrs["grid_mapping"]
    check_source(field)
    return field.drop_encoding()


def check_source(field: xr.DataArray) -> None:
    """Raise where the file is not what the rest of this example takes for granted."""
    times = field.indexes["time"]
    if getattr(times, "calendar", None) != "360_day":
        raise ValueError(f"the time axis must be of the 360-day calendar, but got {times!r}")
    steps = {step.days for step in np.diff(times.to_numpy())}
    if steps != {360}:
        raise ValueError(f"the time axis must have one value every 360 days, but got steps of {sorted(steps)} days")
    if field.attrs["units"] != "K" or not field.attrs["cell_methods"].startswith("time: mean"):
        raise ValueError(f"air_temperature must be a mean in K, but got {field.attrs}")
    if field.isnull().any():
        raise ValueError("air_temperature must have no missing value, but has some")


# ---------------------------------------------------------------------------------------------------------------------
# 2. Windows by label


def print_gap(dataset: xr.Dataset, request: dict[str, Any]) -> None:
    """Take two years out, and print which anchors then have no following year: partners are found by label."""
    missing = dataset.drop_sel(time=dataset["time"].sel(time=slice("1950", "1951")).to_numpy())
    for dropped in missing.insitu.plan(**request).dropped:
        print(f"Without 1950 and 1951: {dropped}")


# ---------------------------------------------------------------------------------------------------------------------
# 3. A correction of persistence, fitted on batches


@dataclass(frozen=True)
class Correction:
    """Next year's change at every grid cell, linear in what is known this year.

    ``change = a + b * (cell - region) + c * (region - origin)``, where *cell* is this year's temperature of the cell
    and *region* that of the whole region: one warm year at one place fades, a warmer region stays.
    """

    coefficients: Array  # (latitude, longitude, 3)
    weights: Array  # (latitude, longitude), adding up to 1

    def predict(self, now: Array) -> Array:
        """Return the forecast for next year, given the fields of this year, both ``(..., latitude, longitude)``."""
        change: Array = (predictors(now, self.weights) * self.coefficients).sum(axis=-1)
        return now + change


def predictors(now: Array, weights: Array) -> Array:
    """Return the three predictors of `Correction` along a new last axis."""
    origin = 286.0  # any temperature near the mean: it only keeps the normal equations well conditioned
    region = (now * weights).sum(axis=(-2, -1), keepdims=True)
    return np.stack(np.broadcast_arrays(1.0, now - region, region - origin), axis=-1)


def fit(loader: Any, dataset: xr.Dataset, weights: Array) -> Correction:
    """Fit the correction in one pass, adding every batch to the normal equations of every grid cell."""
    squares = np.zeros((*weights.shape, 3, 3))
    products = np.zeros((*weights.shape, 3))
    for number, batch in enumerate(loader):
        if number == 0:
            check_batch(batch, dataset)
        for name in VARIABLES:
            now, following = split_leads(batch[name])
            x = predictors(now, weights)
            squares += np.einsum("tyxi,tyxj->yxij", x, x)
            products += np.einsum("tyxi,tyx->yxi", x, following - now)
    print("Check: the first of the shuffled batches equals what xarray gives, bit for bit")
    coefficients = np.linalg.solve(squares, products[..., np.newaxis])[..., 0]
    return Correction(coefficients, weights)


def split_leads(values: Array) -> tuple[Array, Array]:
    """Return this year and the next, given an array ``(batch, lead, latitude, longitude)``."""
    return values[:, 0].astype("float64"), values[:, 1].astype("float64")


def check_batch(batch: Any, dataset: xr.Dataset) -> None:
    """Raise unless the batch holds exactly what xarray gives for the same variables and times."""
    for name in VARIABLES:
        for lead in range(len(LEADS)):
            expected = dataset[name].sel(time=batch.valid_times[:, lead]).values
            np.testing.assert_array_equal(batch[name][:, lead], expected, strict=True)


def area_weights(dataset: xr.Dataset) -> Array:
    """Return the share of each grid cell in the area of the region."""
    weights = np.cos(np.deg2rad(dataset["latitude"])) * xr.ones_like(dataset["longitude"], dtype="float64")
    result: Array = (weights / weights.sum()).transpose("latitude", "longitude").to_numpy()
    return result


# ---------------------------------------------------------------------------------------------------------------------
# 4. Reads, 5. scores and a picture


def print_reads(loader: Any) -> bool:
    """Print how many chunks the selection touches and how many were read; return whether these agree."""
    chunks, reads = loader.plan.chunks, loader.stats.reads
    print(f"Reads: {reads} for {chunks} chunks of the training years, {reads / chunks:g} each")
    return bool(reads == chunks)


def score(loader: Any, correction: Correction) -> xr.DataArray:
    """Return the mean squared error of both forecasts for every variable and test year."""
    errors, times = [], []
    for batch in loader:
        times.extend(batch.valid_times[:, 1])
        fields = [split_leads(batch[name]) for name in VARIABLES]
        forecasts = [(now - following, correction.predict(now) - following) for now, following in fields]
        errors.append((np.square(forecasts) * correction.weights).sum(axis=(-2, -1)))
    return xr.DataArray(
        np.concatenate(errors, axis=-1),
        dims=("variable", "forecast", "time"),
        coords={"variable": VARIABLES, "forecast": ["persistence", "corrected"], "time": times},
    )


def print_scores(errors: xr.DataArray) -> bool:
    """Print the scores as a table; return whether the correction is better in every scenario."""
    rmse = errors.mean("time") ** 0.5
    print(f"Scores: RMSE over {errors.sizes['time']} later years that the fit has never seen, forecast one year ahead")
    for name, scenario in SCENARIOS.items():
        persistence, corrected = rmse.sel(variable=name).values
        margin = f"{1 - corrected / persistence:.1%} better"
        print(f"  {scenario:4} persistence {persistence:.3f} K, corrected {corrected:.3f} K, {margin}")
    return bool((rmse.sel(forecast="corrected") < rmse.sel(forecast="persistence")).all())


def typical_year(errors: xr.DataArray) -> int:
    """Return the year in which the correction gains as much over persistence as in the median year."""
    rmse = errors.sel(variable=PICTURE_VARIABLE) ** 0.5
    gain = rmse.sel(forecast="persistence") - rmse.sel(forecast="corrected")
    ranked = gain.sortby(gain)["time"].values
    return int(ranked[len(ranked) // 2].year)


def draw(dataset: xr.Dataset, correction: Correction, year: int, path: Path) -> None:
    """Write a PNG of the field of one year, its prediction, and the errors of both forecasts."""
    before, truth = (
        dataset[PICTURE_VARIABLE].sel(time=str(label)).isel(time=0).astype("float64").load()
        for label in (year - 1, year)
    )
    predicted = truth.copy(data=correction.predict(before.to_numpy()))
    errors = {"corrected": predicted - truth, "persistence": before - truth}

    plt.switch_backend("Agg")  # a file is written, no window is opened
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained", sharex=True, sharey=True)
    temperature = {"cmap": "viridis", "vmin": float(truth.min()), "vmax": float(truth.max())}
    draw_map(axes[0, 0], truth, f"simulated, {year}", temperature)
    mesh = draw_map(axes[0, 1], predicted, f"corrected forecast from {year - 1}", temperature)
    figure.colorbar(mesh, ax=axes[0], label="yearly mean air temperature at 1.5 m (K)", shrink=0.9)

    limit = float(max(abs(error).max() for error in errors.values()))
    for axis, (name, error) in zip(axes[1], errors.items(), strict=True):
        rmse = float(np.sqrt((correction.weights * error.to_numpy() ** 2).sum()))
        style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        mesh = draw_map(axis, error, f"error of the {name} forecast, RMSE {rmse:.2f} K", style)
    figure.colorbar(mesh, ax=axes[1], label="forecast minus simulated (K)", shrink=0.9)

    title = f"Scenario {SCENARIOS[PICTURE_VARIABLE]}, one year ahead: the test year of median gain over persistence"
    figure.suptitle(title)
    figure.supxlabel("longitude (°W)", fontsize="medium")
    figure.supylabel("latitude (°N)", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_map(axis: Any, field: xr.DataArray, title: str, style: dict[str, Any]) -> Any:
    """Draw one field on one panel; return what the colorbar needs."""
    west = 360 - field["longitude"]
    mesh = axis.pcolormesh(west, field["latitude"], field, shading="nearest", **style)
    axis.set(title=title, xlim=(float(west.max()), float(west.min())))
    return mesh


# ---------------------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run all steps; return 0 when the data were read once and the correction beats persistence."""
    options = parse(arguments)
    dataset = insitu_xr.open_dataset(prepare_store(options.cache), consolidated=False)
    weights = area_weights(dataset)
    # A year and the year after it lie in one split, or are dropped: nothing of the test is seen in training.
    manifest = dataset.insitu.split(train=TRAIN, test=TEST)
    request = {"variables": VARIABLES, "leads": LEADS, "batch_size": 16}
    print(f"{manifest}\n")

    with dataset.insitu.loader(
        **request, manifest=manifest, split="train", shuffle=True, seed=0, progress=True
    ) as loader:
        print(f"{loader.plan}\n")
        print_gap(dataset, request)
        correction = fit(loader, dataset, weights)
        once = print_reads(loader)
    with dataset.insitu.loader(**request, manifest=manifest, split="test") as loader:
        errors = score(loader, correction)
    better = print_scores(errors)

    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / "quickstart.png"
    draw(dataset, correction, typical_year(errors), picture)
    print(f"Picture: {picture}")
    if not (once and better):
        print("Failed: " + ("a chunk was read twice" if better else "the correction does not beat persistence"))
    return 0 if once and better else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "insitu-xr" / "quickstart"
    parser = argparse.ArgumentParser(description="insitu-xr on 240 years of real data, in a few seconds")
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the store")
    parser.add_argument("--out", type=Path, default=Path("quickstart_output"), help="folder of the picture")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
