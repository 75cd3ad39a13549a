"""A store of 750,000 steps, each a chunk of its own: opened and planned without a look at most of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

STEPS, NAMES = 750_000, [f"v{k}" for k in range(8)]

PROBE = """
import json, sys, time
import insitu_xr

began = time.process_time()
ds = insitu_xr.open_dataset(sys.argv[1])
times = ds["time"].values[[5, 1_000, 20_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 749_999]]
plan = ds.sel(time=times).insitu.plan(list(ds.data_vars), batch_size=10)
text = repr(plan)
print(json.dumps({
    "seconds": time.process_time() - began,
    "reads": plan.reads,
    "variables": len(plan.request.variables),
    "dask": sorted(name for name in sys.modules if name.startswith("dask.array")),
}))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "hourly.zarr"
    group = zarr.create_group(path)
    dims, shape = ("time", "lat", "lon"), (STEPS, 721, 1440)
    for name in NAMES:
        group.create_array(name, shape=shape, chunks=(1, 721, 1440), dtype="f4", dimension_names=dims)
    for dim, size in zip(dims, shape, strict=True):
        hours = {"units": "hours since 1940-01-01", "calendar": "proleptic_gregorian"}
        units: dict[str, Any] = hours if dim == "time" else {}
        array = group.create_array(
            dim, shape=(size,), chunks=(size,), dtype="i8", dimension_names=(dim,), attributes=units
        )
        array[:] = np.arange(size)
    return path


def test_ten_times_of_eight_variables_are_planned_at_once(store: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, str(store)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["reads"], found["variables"]) == (10 * 8, 8)
    # xarray looks into dask.base where dask is installed; whoever makes dask arrays imports dask.array.
    assert found["dask"] == []
    # Processor time, so that what else runs on the machine counts little.
    assert found["seconds"] < 1.5, found
