"""What is read in place is compared with xarray once, and again whenever it stands on anything else."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr import verifying
from insitu_xr.building import Built, build
from insitu_xr.errors import VerificationError
from insitu_xr.resolving import Asked
from insitu_xr.testing import CountingStore, FailingStore
from insitu_xr.testing.writing import StoredDataset, StoredVariable
from insitu_xr.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr


def stored() -> StoredDataset:
    variables = (
        StoredVariable("a", ("time", "y"), (12, 6), chunks=(4, 3), kind="packed"),
        StoredVariable("b", ("time", "y"), (12, 6), chunks=(4, 3), kind="float32", seed=1),
    )
    return StoredDataset(variables, times=tuple(range(12)), sizes={"y": 6})


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(stored().store)


def looked_at(store: CountingStore, ds: xr.Dataset, **asked: Any) -> set[str]:
    """Make a loader and name the arrays of which it read anything."""
    store.reset()
    ds.insitu.loader(**{"variables": ["a", "b"], "batch_size": 4, **asked}).close()
    return {get.key.split("/")[0] for get in store.data_gets}


def test_the_same_arrays_are_verified_once(store: CountingStore) -> None:
    ds = stored().open(store)
    assert looked_at(store, ds) == {"a", "b"}
    assert looked_at(store, ds) == set()
    assert looked_at(store, ds, batch_size=2, shuffle=True, leads=["0h", "1h"]) == set()


CHANGES: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "another region": lambda ds: ds.isel(y=slice(0, 3)),
    "another order": lambda ds: ds.isel(y=slice(None, None, -1)),
    "other steps": lambda ds: ds.isel(time=slice(4, None)),
    "one row": lambda ds: ds.isel(y=3),
    "another order of dimensions": lambda ds: ds.transpose("y", "time"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_indexers_are_verified_again(store: CountingStore, name: str) -> None:
    ds = stored().open(store)
    assert looked_at(store, ds) == {"a", "b"}
    changed = CHANGES[name](ds)
    assert looked_at(store, changed) == {"a", "b"}
    assert looked_at(store, changed) == set()
    assert looked_at(store, ds) == set()


def test_another_array_is_verified_again(store: CountingStore) -> None:
    ds = stored().open(store)
    assert looked_at(store, ds[["a"]], variables=["a"]) == {"a"}
    assert looked_at(store, ds) == {"b"}
    assert looked_at(store, stored().open(store)) == {"a", "b"}


def test_an_array_that_died_vouches_for_no_other(store: CountingStore) -> None:
    """Its number in memory may be given to the next; many are made so that some is."""
    for _ in range(20):
        ds = stored().open(store)
        assert looked_at(store, ds) == {"a", "b"}
        del ds
        gc.collect()


def built_of(ds: xr.Dataset) -> Built:
    return build(ds, Asked(variables=["a", "b"], batch_size=4))


def with_function(built: Built, name: str, function: Any) -> Built:
    """Apply one function more to the values of a variable."""
    parts = dict(built.materials.parts)
    parts[name] = tuple(replace(part, functions=(*part.functions, function)) for part in parts[name])
    return replace(built, materials=replace(built.materials, parts=parts))


@pytest.mark.parametrize("name", ["a", "b"])
def test_another_function_is_verified_again(name: str) -> None:
    built = built_of(stored().open())
    verify(built.catalog, built.plan.request, built.plan.groups, built.materials)
    wrong = with_function(built, name, lambda values: values + 1)
    for _ in range(2):
        with pytest.raises(VerificationError, match=f"values of variable '{name}' must be those that xarray shows"):
            verify(wrong.catalog, wrong.plan.request, wrong.plan.groups, wrong.materials)
    verify(built.catalog, built.plan.request, built.plan.groups, built.materials)


def test_what_cannot_be_watched_is_verified_every_time(store: CountingStore) -> None:
    class Unwatched:
        __slots__ = ()

        def __call__(self, values: Any) -> Any:
            return values

    built = with_function(built_of(stored().open(store)), "b", Unwatched())
    for expected in ({"a", "b"}, {"b"}, {"b"}):
        store.reset()
        verify(built.catalog, built.plan.request, built.plan.groups, built.materials)
        assert {get.key.split("/")[0] for get in store.data_gets} == expected


def test_so_much_is_remembered_and_no_more(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_REMEMBERED", 2)
    monkeypatch.setattr(verifying, "_VERIFIED", {})
    ds = stored().open(store)
    assert looked_at(store, ds) == {"a", "b"}
    assert looked_at(store, ds.isel(y=slice(0, 3))) == {"a", "b"}
    assert len(verifying._VERIFIED) == 2
    assert looked_at(store, ds) == {"a", "b"}, "the oldest was forgotten"


def test_values_are_those_of_xarray_whether_looked_at_or_not(store: CountingStore) -> None:
    ds = stored().open(store)
    for _ in range(2):
        with ds.insitu.loader(variables=["a"], batch_size=12) as loader:
            (batch,) = loader
        np.testing.assert_array_equal(batch["a"], ds["a"].values)


def test_what_could_not_be_read_is_looked_at_again(store: CountingStore) -> None:
    failing = FailingStore(store, ())
    ds = stored().open(failing)
    failing.fail(None)
    ds.insitu.loader(variables=["a", "b"], batch_size=4).close()
    failing.recover()
    assert looked_at(store, ds) == {"a", "b"}
    assert looked_at(store, ds) == set()
