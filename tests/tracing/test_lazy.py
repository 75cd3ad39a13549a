from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr.tracing import trace
from tests.tracing.evaluation import ENCODING, assert_traces, chain, fields, lazy, write
from tests.tracing.operations import SELECTIONS

LOADING = {
    "expand_dims": lambda ds: ds.expand_dims("member"),
    "concat": lambda ds: xr.concat([ds.isel(time=slice(0, 4)), ds.isel(time=slice(6, 9))], "time", data_vars="all"),
    "where": lambda ds: ds.where(ds.y > 15.0),
    "arithmetic": lambda ds: ds * 2,
    "astype": lambda ds: ds.astype("f4"),
    "fillna": lambda ds: ds.fillna(0.0),
    "shift": lambda ds: ds.shift(time=1),
    "roll": lambda ds: ds.roll(time=2),
    "pad": lambda ds: ds.pad(time=1),
    "stack": lambda ds: ds.stack(z=("y", "x")),
    "reindex with missing labels": lambda ds: ds.reindex(y=[10.0, 11.0]),
    "load": lambda ds: ds.isel(time=[1, 2]).load(),
    "compute": lambda ds: ds.compute().isel(time=3),
}


@pytest.fixture(scope="module", params=[2, 3])
def store(request: pytest.FixtureRequest) -> Any:
    return write(fields(), request.param, ENCODING)


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_are_traced_to_the_store(store: Any, name: str) -> None:
    ds = SELECTIONS[name](lazy(store))
    for variable in ("t", "p"):
        empty = 0 in ds[variable].shape
        assert_traces(ds[variable], None if empty else "stored")


@pytest.mark.parametrize("name", ["nothing", "list", "transpose then isel", "negative step"])
def test_selections_after_pickling(store: Any, name: str) -> None:
    ds = SELECTIONS[name](pickle.loads(pickle.dumps(lazy(store))))
    assert_traces(ds["p"], None if 0 in ds["p"].shape else "stored")


@pytest.mark.parametrize("name", LOADING)
def test_operations_that_load_leave_values_in_memory(store: Any, name: str) -> None:
    assert_traces(LOADING[name](lazy(store))["t"], "memory")


def test_a_scalar_and_a_bool(store: Any) -> None:
    ds = lazy(store)
    assert trace(ds["scalar"]).segments[0].index == ()
    assert_traces(ds["scalar"])
    assert_traces(ds["mask"].isel(y=[2, 0]))


def test_coordinates(store: Any) -> None:
    ds = lazy(store).isel(y=[2, 0])
    assert_traces(ds["area"])
    assert_traces(ds["y"], "memory")
    assert_traces(ds["time"], "memory")


def test_positions_are_exact(store: Any) -> None:
    traced = trace(lazy(store)["t"].isel(time=slice(10, 2, -3), y=-1).transpose("x", "time"))
    (segment,) = traced.segments
    assert segment.axis_dims == ("time", None, "x")
    time, y, x = segment.index
    assert y == 3
    np.testing.assert_array_equal(np.asarray(time), [10, 7, 4])
    np.testing.assert_array_equal(np.asarray(x), np.arange(5))
    assert segment.array.path == "t"


def test_a_selection_before_a_transpose_stays_small(store: Any) -> None:
    # xarray builds a full index array for transpose-then-isel; the trace must not keep any.
    traced = trace(lazy(store)["t"].transpose("x", "time", "y").isel(time=[3, 1, 7]))
    assert [np.shape(index) for index in traced.segments[0].index] == [(3,), (4,), (5,)]


def test_pointwise_selections_are_read_through_xarray(store: Any) -> None:
    points = {"y": xr.DataArray([0, 3, 1], dims="point"), "x": xr.DataArray([4, 0, 2], dims="point")}
    traced = assert_traces(lazy(store)["t"].isel(points), "foreign")
    assert "point by point" in traced.note
    square = xr.DataArray([[0, 1], [2, 3]], dims=("a", "b"))
    assert_traces(lazy(store)["t"].isel(y=square), "foreign")


def test_a_diagonal_of_equal_corners_is_no_outer_product(store: Any) -> None:
    # Along the first row and column these keys look constant; only the middle shows that they are not.
    key = np.zeros((3, 3), int)
    key[1, 1] = 2
    assert_traces(lazy(store)["t"].isel(y=xr.DataArray(key, dims=("a", "b"))), "foreign")


def test_the_users_object_stays_lazy_whatever_its_kind(store: Any) -> None:
    ds = lazy(store)
    before = {name: chain(ds[name]) for name in ds.variables}
    for name in ds.variables:
        trace(ds[name])
    assert {name: chain(ds[name]) for name in ds.variables} == before


def test_values_cached_by_the_user_are_taken_from_memory(store: Any) -> None:
    array = lazy(store)["t"]
    assert array.values.size
    assert_traces(array, "memory")
    assert_traces(array.isel(time=[3, 1]), "memory")


def test_assignment_counts(store: Any) -> None:
    array = lazy(store)["t"]
    array[{"time": 0}] = 5.0
    traced = assert_traces(array, "memory")
    assert traced.values is not None
    assert (traced.values[0] == 5.0).all()


def test_a_variable_without_a_name(store: Any) -> None:
    assert trace(lazy(store)["t"].rename(None)).name == "None"


def test_arrays_in_memory() -> None:
    assert_traces(xr.DataArray(np.arange(6).reshape(2, 3), dims=("a", "b"), name="n"), "memory")
    assert_traces(xr.DataArray(np.arange(6, dtype=">i4"), dims="a", name="n"), "memory")
    index = xr.DataArray([10, 20], dims="a", coords={"a": [10, 20]}, name="n")
    assert_traces(index["a"], "memory")
