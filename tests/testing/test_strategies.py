"""The strategies reach what they promise, and what they draw can be opened and applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from insitu_xr.testing import kept_anchors
from insitu_xr.testing.strategies import datasets, requests, selections, windows
from insitu_xr.testing.writing import KINDS, StoredDataset, StoredVariable, data_keys

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(datasets(), st.data())
def test_drawn_cases_are_usable(stored: StoredDataset, data: st.DataObject) -> None:
    ds = stored.open()
    selected = data.draw(selections(ds)).apply(ds)
    assert 0 < selected.sizes["time"] <= 24
    window = data.draw(windows(selected))
    assert window is None or kept_anchors(selected, "time", window)
    request = data.draw(requests(selected))
    assert set(request.arguments()) == {"variables", "leads", "batch_size", "shuffle", "seed", "drop_last"}
    for name in request.variables:
        assert "time" in selected[name].dims


@SETTINGS
@given(datasets())
def test_lazy_and_dask_openings_agree(stored: StoredDataset) -> None:
    lazy, dask = stored.open(), stored.open(chunks={})
    assert all(variable.chunks is not None for variable in dask.data_vars.values())
    xr.testing.assert_identical(lazy.load(), dask.compute())


REACH: dict[str, Callable[[StoredDataset], bool]] = {
    "v2": lambda stored: stored.zarr_format == 2,
    "shards": lambda stored: any(v.shards for v in stored.variables),
    "rectilinear": lambda stored: any(isinstance(v.chunks[0], tuple) for v in stored.variables),
    "four dims, sample dim last": lambda stored: any(
        len(v.dims) == 4 and v.dims[3] == "time" for v in stored.variables
    ),
    "one dim": lambda stored: any(v.dims == ("time",) for v in stored.variables),
    "ragged": lambda stored: any(isinstance(v.chunks[0], int) and v.shape[0] % v.chunks[0] for v in stored.variables),
    "different chunks": lambda stored: len({v.chunks for v in stored.variables if len(v.dims) == 2}) > 1,
    "absent": lambda stored: any(v.absent for v in stored.variables),
    "no labels": lambda stored: stored.calendar == "none",
    "360_day": lambda stored: stored.calendar == "360_day",
} | {kind: (lambda stored, kind=kind: any(v.kind == kind for v in stored.variables)) for kind in KINDS}


@pytest.mark.parametrize("what", sorted(REACH))
def test_every_kind_is_reached(what: str) -> None:
    find(datasets(), REACH[what], settings=settings(SETTINGS, max_examples=400, phases=[Phase.generate]))


def stored_variable(**options: object) -> StoredVariable:
    base = {"name": "a", "dims": ("time",), "shape": (6,), "chunks": (2,), "kind": "int32"}
    return StoredVariable(**(base | options))  # type: ignore[arg-type]


def test_absent_objects_are_deleted() -> None:
    stored = StoredDataset((stored_variable(absent=(1, 4)),), times=tuple(range(6)))
    assert data_keys(stored.store, "a") == ["a/c/0", "a/c/2"]
    assert stored.open()["a"].values[2:4].tolist() == [0, 0]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_decoded_dtypes(kind: str, zarr_format: Literal[2, 3]) -> None:
    stored = StoredDataset((stored_variable(kind=kind, fill=False),), times=tuple(range(6)), zarr_format=zarr_format)
    expected = {
        "float32": "f4",
        "float64": "f8",
        "big_endian": "f4",
        "int32": "i4",
        "int16_big": "i2",
        "uint8": "u1",
        "bool": "?",
        "bool_as_int8": "?",
        "unsigned": "u1",
        "packed": "f8",
        "scaled": "f8",
        "missing": "f8",
    }
    if kind == "masked":
        expected[kind] = "f4" if zarr_format == 3 else "i2"
    assert stored.open()["a"].values.dtype == np.dtype(expected[kind])
