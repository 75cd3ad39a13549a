"""Inference with Earth2Studio on a store that is read in place, from a local Zarr store and from Icechunk.

Run ``python -m examples.earth2studio.inference``. It needs Earth2Studio, and neither a network, a GPU nor weights: its
models are those that come without. Step by step:

1. write made-up weather to a Zarr store and to an Icechunk repository, as real stores have it: in degrees Celsius and
   geopotential metres, from south to north and from -180 to 180;
2. make a data source of each; variables are found, and units converted, by the metadata;
3. run a deterministic forecast, an ensemble of lagged initial states, and a replay of the analyses, all with the
   workflows of Earth2Studio as they are, within a plan;
4. see that both stores give the same, that every chunk was decoded once, and draw the ensemble.
"""

from __future__ import annotations

import argparse
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import icechunk
import matplotlib.pyplot as plt
import numpy as np

from examples.earth2studio import weather
from insitu_xr_adapters.earth2studio import InSituDataSource

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about what Earth2Studio imports
    from earth2studio import run
    from earth2studio.io import ZarrBackend
    from earth2studio.models.px import DataReplay, Persistence
    from earth2studio.perturbation import LaggedEnsemble

VARIABLES = ["t2m", "z500"]
STEPS, STEPS_PER_CHUNK = 40, 8
LAGS = np.array([-12, -6, 0], "m8[h]").astype("m8[ns]")


def write_stores(directory: Path) -> tuple[str, str]:
    """Write the weather twice, and return where it is."""
    ds = weather.analyses(STEPS)
    local = weather.write(ds, directory / "weather.zarr", STEPS_PER_CHUNK)
    place = directory / "weather.icechunk"
    repository = icechunk.Repository.open_or_create(icechunk.local_filesystem_storage(str(place)))
    session = repository.writable_session("main")
    ds.chunk(time=STEPS_PER_CHUNK).to_zarr(session.store, mode="w", consolidated=False)
    session.commit("made-up weather")
    return local, f"icechunk://{place}"


def forecast(source: InSituDataSource, out: Path) -> dict[str, Any]:
    """Run the workflows, and return what they wrote."""
    field = source(weather.START, VARIABLES)
    domain = OrderedDict(lat=field.lat.values, lon=field.lon.values)
    starts = weather.START + np.arange(4, 12, 2) * weather.STEP
    model = Persistence(VARIABLES, domain)
    with source.plan(starts, np.append(LAGS, 0).astype("m8[ns]"), VARIABLES):
        single = run.deterministic(starts, 4, model, source, _zarr(out, "deterministic"), verbose=False)
        lagged = LaggedEnsemble(source, LAGS)
        several = run.ensemble(starts, 4, len(LAGS), model, source, _zarr(out, "ensemble"), lagged, verbose=False)
    replay = DataReplay(source, VARIABLES, domain)
    with source.plan(starts, np.arange(9) * weather.STEP, VARIABLES, memory="64MiB") as plan:
        for start in starts:
            run.deterministic([start], 8, replay, source, ZarrBackend(), verbose=False)
    (stats,) = plan.stats
    chunks = len(VARIABLES) * len({k // STEPS_PER_CHUNK for k in range(4, 10 + 9)})
    print(f"  replay: {len(starts)} starts x 9 lead times from {chunks} chunks, of which {stats.decodes} were decoded")
    return {"t2m": single.root["t2m"][:], "ensemble": several.root["t2m"][:]}


def _zarr(out: Path, name: str) -> ZarrBackend:
    return ZarrBackend(str(out / f"{name}.zarr"), backend_kwargs={"overwrite": True})


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the mean and the spread of the ensemble at its first initial time."""
    members = found["ensemble"][:, 0, 0] - 273.15
    figure, axes = plt.subplots(2, 1, figsize=(8, 8), layout="constrained")
    for ax, values, title in zip(axes, (members.mean(0), members.std(0)), ("mean", "spread"), strict=True):
        image = ax.imshow(values, extent=(0, 360, -90, 90), cmap="RdYlBu_r" if title == "mean" else "viridis")
        ax.set_title(f"2 m temperature: {title} of {len(members)} lagged states")
        figure.colorbar(image, ax=ax, label="°C")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("earth2studio-out"), help="folder for stores and the picture")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for place in write_stores(out):
        print(place)
        with InSituDataSource(place, verbose=False) as source:
            found[place] = forecast(source, out)
    local, repository = found.values()
    for name, values in local.items():
        np.testing.assert_array_equal(repository[name], values)
    print("both stores give the same forecasts")
    draw(local, out / "inference.png")
    print(f"wrote {out / 'deterministic.zarr'}, {out / 'ensemble.zarr'} and {out / 'inference.png'}")


if __name__ == "__main__":
    main()
