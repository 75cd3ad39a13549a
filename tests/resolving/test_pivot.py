"""Which variable shuffling follows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import xarray as xr
import zarr

import insitu_xr  # noqa: F401  (registers the accessor)


def test_the_order_of_variables_in_a_dataset_does_not_change_the_order_of_samples() -> None:
    """A store lists its variables in any order, and every rank opens it by itself."""
    store = zarr.storage.MemoryStore()
    chunks = {"a": 34, "b": 35, "c": 40}  # all are cut into three
    ds = xr.Dataset({name: ("time", np.arange(100.0)) for name in chunks})
    ds.to_zarr(store, consolidated=False, encoding={name: {"chunks": (n,)} for name, n in chunks.items()})
    opened = xr.open_zarr(store, consolidated=False, chunks=None)
    orders = set()
    for names in permutations(chunks):
        loader = opened[[*names]].insitu.loader(
            variables=["a"], sample_dim="time", batch_size=10, shuffle=True, shuffle_window=20
        )
        orders.add(tuple(np.concatenate([batch.positions for batch in loader]).tolist()))
    assert len(orders) == 1
