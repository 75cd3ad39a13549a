"""A million anchors: planned in vectorised passes, started without whole-epoch work, kept small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each plans five million reads, or opens them

PROBE = """
import json, resource, sys, time
import numpy as np, xarray as xr, zarr
from zarr.storage import MemoryStore
import insitu_xr

n, chunk = 1_000_000, int(sys.argv[1])
group = zarr.open_group(MemoryStore(), mode="w")
dims = ("time", "y", "x")
names = [f"v{k}" for k in range(5)]
for name in names:
    group.create_array(name, shape=(n, 4, 4), chunks=(chunk, 4, 4), dtype="f4", dimension_names=dims)
hours = {"units": "hours since 1940-01-01", "calendar": "proleptic_gregorian"}
time_axis = group.create_array("time", shape=(n,), chunks=(n,), dtype="i8", dimension_names=("time",), attributes=hours)
time_axis[:] = np.arange(n)
ds = xr.open_zarr(group.store, chunks=None, consolidated=False)
# Warm up what is imported late, on ten samples.
request = dict(variables=names, leads=["0h", "6h", "12h", "24h"], batch_size=32, shuffle=sys.argv[2] == "shuffled")
repr(ds.isel(time=slice(60)).insitu.plan(**request))

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
plan = ds.insitu.plan(**request)
text = repr(plan)
planned = time.process_time() - began
# What the machine does with as many numbers.
began = time.process_time()
np.argsort(np.random.default_rng(0).random(5 * n))
sorting = time.process_time() - began
loader = ds.insitu.loader(**request)
batch = next(iter(loader))
print(json.dumps({
    "plan_s": planned,
    "sort_s": sorting,
    "rss_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    "reads": plan.reads,
    "kept": plan.anchors_kept,
    "batch": list(batch["v0"].shape),
    "manifest": len(plan.manifest.to_json()),
    "state": len(json.dumps(loader.state_dict())),
}))
"""


@pytest.mark.parametrize(("chunk", "order"), [(1, "shuffled"), (100, "sequential")])
def test_a_million_anchors_of_five_variables_at_four_leads(chunk: int, order: str) -> None:
    command = [sys.executable, "-c", PROBE, str(chunk), order]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["kept"] == 999_976
    assert found["reads"] == 5 * 1_000_000 // chunk
    assert found["batch"] == [32, 4, 4, 4]
    # The promise is two seconds on an idle machine, which sorts five million numbers in half a second; slower and
    # busier ones take longer for both.
    assert found["plan_s"] < 8 * found["sort_s"], found
    assert found["rss_mb"] < 1000, found
    assert found["manifest"] < 4_000
    assert found["state"] < 4_000
