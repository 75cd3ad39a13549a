"""Runs split over workers: the bits of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from insitu_xr_adapters.verification import load, score
from insitu_xr_adapters.verification.scaling import _parts
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored
from tests.adapters.verification.test_bits import assert_same_bits

SHAPE = Shape(inits=7, leads=3, members=2)
ASKED: dict[str, Any] = {"metrics": ["rmse", "acc", "crps"], "regions": ["global", "tropics"]}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as found:
        yield found


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("layout", ["step", "several"])
def test_workers_give_the_bits_of_one_process(client: Any, tmp_path: Path, layout: str) -> None:
    made = {"forecast": forecast(SHAPE), "reference": reference(SHAPE), "climatology": climatology()}
    places = {role: zarr.storage.LocalStore(tmp_path / role) for role in made}
    ours, truth, clim = (
        xr.open_zarr(stored(ds, role, layout, places[role]), consolidated=False, chunks=None)
        for role, ds in made.items()
    )
    alone = score(ours, truth, climatology=clim, **ASKED)
    kept = tmp_path / "scores.zarr"
    together = score(ours, truth, climatology=clim, client=client, state=kept, **ASKED)
    assert_same_bits(together, alone)
    assert_same_bits(load(kept), alone)


def test_parts_are_neighbours_and_share_no_chunk_of_a_forecast() -> None:
    blocks = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    wanted = np.ones((8, 2), bool)
    wanted[5] = False
    assert [p.tolist() for p in _parts(blocks, wanted, 2)] == [[0, 1, 2, 3, 4], [6, 7]]
    assert [p.tolist() for p in _parts(blocks, wanted, 9)] == [[0, 1, 2], [3, 4], [6, 7]]
