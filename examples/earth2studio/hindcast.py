"""Score a campaign of overlapping forecasts with Earth2Studio's metrics, every chunk read once.

Run ``python -m examples.earth2studio.hindcast``. It needs Earth2Studio, and neither a network, a GPU nor weights:

1. write made-up analyses, and forecasts that go astray with lead time, each to a Zarr store;
2. make a data source and a forecast source of them;
3. score ``verification_batches``, pairs of forecasts and what happened at their valid times, with the metrics of
   Earth2Studio: the error per lead time, and the anomaly correlation;
4. compare with what persistence of the initial state would have done, and draw both.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from examples.earth2studio import weather
from insitu_xr_adapters.earth2studio import InSituDataSource, InSituForecastSource, fetch_batches, verification_batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about what Earth2Studio imports, and about what its metrics do with torch
    import torch
    from earth2studio.statistics import lat_weight, rmse

VARIABLES = ["t2m", "z500"]


def write_stores(directory: Path, inits: int, leads: int, every: int) -> tuple[str, str]:
    """Write analyses and forecasts, and return where they are."""
    ds = weather.analyses((inits - 1) * every + leads)
    reference = weather.write(ds, directory / "analyses.zarr", 20)
    return reference, weather.write(weather.forecasts(inits, every, leads), directory / "forecasts.zarr", 1)


def weights(lat: weather.Array, columns: int) -> torch.Tensor:
    """Areas of the cells, as metrics take them."""
    return lat_weight(torch.as_tensor(lat)).float()[:, None].repeat(1, columns)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("earth2studio-out"), help="folder for stores and the picture")
    parser.add_argument("--inits", type=int, default=30)
    parser.add_argument("--leads", type=int, default=20)
    parser.add_argument("--every", type=int, default=2, help="steps of six hours between initial times")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    places = write_stores(given.out, given.inits, given.leads, given.every)
    inits = weather.START + np.arange(given.inits) * given.every * weather.STEP
    leads = np.arange(given.leads) * weather.STEP

    started = time.perf_counter()
    with (
        InSituDataSource(places[0], verbose=False) as analyses,
        InSituForecastSource(places[1], verbose=False) as forecasts,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        squares, naive = [], []
        pairs = verification_batches(forecasts, analyses, inits, leads, VARIABLES, batch_size=4)
        states = fetch_batches(analyses, inits, VARIABLES, batch_size=4, legacy=True)
        for ((x, xc), (y, yc)), (state, _) in zip(pairs, states, strict=True):
            metric = rmse(["lat", "lon"], weights=weights(xc["lat"], len(xc["lon"])))
            squares.append(metric(x, xc, y, yc)[0] ** 2)
            naive.append(metric(state.expand_as(x), xc, y, yc)[0] ** 2)
    scores = {name: torch.cat(s).mean(0).sqrt().numpy() for name, s in (("forecast", squares), ("persistence", naive))}
    count = given.inits * given.leads
    print(f"scored {count} pairs of {len(VARIABLES)} variables in {time.perf_counter() - started:.1f} s")
    for k in range(0, given.leads, max(1, given.leads // 5)):
        hours = int(leads[k] / np.timedelta64(1, "h"))
        row = "  ".join(f"{name} {scores[name][k, 0]:.2f} K" for name in scores)
        print(f"  {hours:4d} h: {row}")
    draw(scores, leads, given.out / "hindcast.png")
    print(f"wrote {given.out / 'hindcast.png'}")


def draw(scores: dict[str, weather.Array], leads: weather.Array, path: Path) -> None:
    """Draw the error of each variable by lead time."""
    figure, axes = plt.subplots(1, len(VARIABLES), figsize=(9, 4), layout="constrained")
    for k, (ax, name) in enumerate(zip(axes, VARIABLES, strict=True)):
        for label, values in scores.items():
            ax.plot(leads / np.timedelta64(1, "D"), values[:, k], label=label)
        ax.set(title=name, xlabel="lead time (days)", ylabel="root mean square error")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
