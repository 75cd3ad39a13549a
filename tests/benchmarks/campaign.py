"""A hindcast campaign, read by Earth2Studio's own sources and in place: time, memory, and that both read the same.

``python -m tests.benchmarks.campaign`` writes small stores as WeatherBench2 (40 steps in a chunk) and ARCO (one step)
have them, and reads 120 initial times with 40 lead times from each, every side in a process of its own. Earth2Studio is
given its best: its cache is on, and every valid time is fetched once, in one call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

START, STEP = np.datetime64("2020-01-01T00", "ns"), np.timedelta64(6 * 3600 * 10**9, "ns")
LEVELS = (500, 700, 850)
VARIABLES = ["t2m", "u10m", "v10m", "msl", "z500", "t850"]
SINGLE = ("2m_temperature", "10m_u_component_of_wind", "10m_v_component_of_wind", "mean_sea_level_pressure")
#: steps in a chunk
LAYOUTS = {"wb2": 40, "arco": 1}
LAT, LON = np.linspace(90, -90, 121), np.linspace(0, 360, 240, endpoint=False)
_BLOCK = 40


def steps_of(inits: int, leads: int, every: int) -> int:
    """Steps that the valid times of a campaign span."""
    return (inits - 1) * every + leads


def write(place: str, layout: str, steps: int) -> None:
    """Write a store of a layout, block by block."""
    chunk, rng = LAYOUTS[layout], np.random.default_rng(3)
    for start in range(0, steps, _BLOCK):
        count = min(_BLOCK, steps - start)
        made: dict[str, Any] = {}
        for name in SINGLE:
            made[name] = (("time", "latitude", "longitude"), _fields(rng, (count, 121, 240)))
        for name in ("geopotential", "temperature"):
            made[name] = (("time", "level", "latitude", "longitude"), _fields(rng, (count, 3, 121, 240)))
        coords = {"time": START + np.arange(start, start + count) * STEP, "latitude": LAT, "longitude": LON}
        ds = xr.Dataset(made, {**coords, "level": list(LEVELS)})
        if start:
            ds.to_zarr(place, append_dim="time", consolidated=False)
            continue
        encoding: dict[str, Any] = {str(n): {"chunks": (chunk, *v.shape[1:])} for n, v in ds.data_vars.items()}
        units = {"time": {"units": "hours since 2020-01-01", "chunks": (100_000,)}}
        ds.to_zarr(place, encoding={**encoding, **units}, consolidated=False, zarr_format=3)


def _fields(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Values with as much in them as weather has: about half of it compresses away."""
    return np.round(rng.normal(280, 15, shape), 1).astype("f4")


def campaign(inits: int, leads: int, every: int) -> tuple[Any, Any]:
    """Initial times and lead times."""
    return START + np.arange(inits) * every * STEP, np.arange(leads) * STEP


# -- the two sides -------------------------------------------------------------------------------------------------


def theirs(place: str, layout: str, when: Any, leads: Any) -> Iterator[Any]:
    """Earth2Studio's own source of the layout: every valid time fetched once, in one call, and kept."""
    import torch
    from earth2studio.data import fetch_data

    valid = when[:, None] + leads
    unique, inverse = np.unique(valid, return_inverse=True)
    source = (_wb2 if layout == "wb2" else _arco)(place)
    every, _ = fetch_data(source, unique, np.array(VARIABLES))
    for rows in inverse.reshape(valid.shape):
        yield every[torch.from_numpy(rows), 0]


def _wb2(place: str) -> Any:
    import zarr
    from earth2studio.data.utils import obstore_zarr_store
    from earth2studio.data.wb2 import _WB2Base

    class Local(_WB2Base):  # type: ignore[misc]
        WB2_ERA5_LAT, WB2_ERA5_LON = LAT, LON

        async def _async_init(self) -> None:
            store = obstore_zarr_store(f"file://{place}", cache_storage=self.cache)
            group: Any = await zarr.api.asynchronous.open(store=store, mode="r")
            self.zarr_group, self.level_coords = group, await (await group.get("level")).getitem(slice(None))

        @classmethod
        def _get_time_index(cls, when: Any) -> int:
            return int((np.datetime64(when, "ns") - START) // STEP)

    return Local("campaign", cache=True, verbose=False)


def _arco(place: str) -> Any:
    import zarr
    from earth2studio.data import ARCO_ERA5
    from earth2studio.data.utils import obstore_zarr_store

    class Local(ARCO_ERA5):  # type: ignore[misc]
        ARCO_LAT, ARCO_LON = LAT, LON

        async def _async_init(self) -> None:
            store = obstore_zarr_store(f"file://{place}", cache_storage=self.cache)
            group: Any = await zarr.api.asynchronous.open(store=store, mode="r")
            self.zarr_group, self.level_coords = group, await (await group.get("level")).getitem(slice(None))
            self.ml_zarr_group, self.ml_level_coords = self.zarr_group, self.level_coords

        @classmethod
        def _get_time_index(cls, when: Any) -> int:
            return int((np.datetime64(when, "ns") - START) // STEP)

    return Local(cache=True, verbose=False)


def ours(place: str, layout: str, when: Any, leads: Any) -> Iterator[Any]:
    """In place, in batches."""
    from insitu_xr_adapters.earth2studio import InSituDataSource, fetch_batches

    with InSituDataSource(url=place, lexicon="WB2Lexicon", verbose=False) as source:
        for x, _ in fetch_batches(source, when, VARIABLES, leads, memory=_memory(layout)):
            yield x[0]


def unmodified(place: str, layout: str, when: Any, leads: Any) -> Iterator[Any]:
    """In place, through Earth2Studio's own ``fetch_data`` within a plan, as its workflows call it."""
    from earth2studio.data import fetch_data

    from insitu_xr_adapters.earth2studio import InSituDataSource

    source = InSituDataSource(url=place, lexicon="WB2Lexicon", verbose=False)
    with source, source.plan(when, leads, VARIABLES, memory=_memory(layout)):
        for one in when:
            yield fetch_data(source, np.array([one]), np.array(VARIABLES), leads)[0][0]


def _memory(layout: str) -> str:
    # What two windows of ten days need.
    return {"wb2": "96MiB", "arco": "40MiB"}[layout]


SIDES: dict[str, Callable[[str, str, Any, Any], Iterator[Any]]] = {
    "earth2studio": theirs,
    "in place": ours,
    "in place, unmodified loop": unmodified,
}


# -- measuring -----------------------------------------------------------------------------------------------------


def measure(side: str, place: str, layout: str, inits: int, leads: int, every: int) -> dict[str, float]:
    """Seconds, those of all cores, bytes of memory beyond what imports take, and a sum that all sides must agree on."""
    import torch

    import tests.adapters.earth2studio.studio  # noqa: F401

    torch.set_num_threads(1)
    when, every_lead = campaign(inits, leads, every)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    total, started, busy = 0.0, time.perf_counter(), time.process_time()
    for window in SIDES[side](place, layout, when, every_lead):
        total += float(window[:, :, ::8, ::8].sum(dtype=torch.float64))
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    return {"seconds": seconds, "busy": busy, "memory": float(_status("VmHWM") - before), "total": total}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def run(side: str, place: str, layout: str, inits: int, leads: int, every: int) -> dict[str, float]:
    """Measure one side in a process of its own, with an empty cache."""
    arguments = ["--side", side, "--place", place, "--layout", layout, "--inits", str(inits), "--leads", str(leads)]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.campaign", *arguments, "--every", str(every)],
            env={**os.environ, "EARTH2STUDIO_CACHE": cache, "LOGURU_LEVEL": "ERROR"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{side} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(layout: str, inits: int, leads: int, every: int, repeats: int = 1) -> dict[str, dict[str, float]]:
    """Measure all sides on one store, the best of some repeats; they must agree on what they read."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = f"{directory}/store.zarr"
        write(place, layout, steps_of(inits, leads, every))
        for _ in range(repeats):
            for side in SIDES:
                made = run(side, place, layout, inits, leads, every)
                kept = found.setdefault(side, made)
                found[side] = {name: min(kept[name], value) for name, value in made.items()}
    totals = {round(made["total"], 3) for made in found.values()}
    if len(totals) != 1:
        raise AssertionError(f"all sides must read the same, but got {found}")
    return found


def main() -> None:
    """Measure, and print a table; or, in a process of its own, measure one side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--place")
    parser.add_argument("--layout", choices=list(LAYOUTS), default=None)
    parser.add_argument("--inits", type=int, default=120)
    parser.add_argument("--leads", type=int, default=40)
    parser.add_argument("--every", type=int, default=2, help="steps between initial times")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    if given.side:
        made = measure(given.side, given.place, given.layout, given.inits, given.leads, given.every)
        sys.stdout.write(json.dumps(made) + "\n")
        return
    for layout in [given.layout] if given.layout else LAYOUTS:
        _show(layout, given.inits, given.leads, given.every, given.repeats)
    _show("arco", given.inits, 1, 1, given.repeats)  # nothing overlaps


def _show(layout: str, inits: int, leads: int, every: int, repeats: int) -> None:
    found = compare(layout, inits, leads, every, repeats)
    base = found["earth2studio"]
    sys.stdout.write(f"{layout}: {inits} initial times x {leads} lead times x {len(VARIABLES)} variables\n")
    for side, made in found.items():
        faster, less = base["seconds"] / made["seconds"], made["memory"] / base["memory"]
        sys.stdout.write(
            f"  {side:<26} {made['seconds']:7.2f} s  {faster:5.2f} x  {made['busy']:7.2f} s of cores  "
            f"{made['memory'] / 2**20:7.0f} MiB  {less:4.2f}\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
