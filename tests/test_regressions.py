"""Faults that were found once, each with the right outcome."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore, WrapperStore

import insitu_xr
from insitu_xr import InsituError

TIME = pd.date_range("2000", periods=4)


def stored(ds: xr.Dataset, **encoding: Any) -> xr.Dataset:
    store = MemoryStore()
    ds.to_zarr(store, consolidated=False, encoding=encoding)
    opened: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return opened


@pytest.mark.parametrize("opening", ["memory", "stored", "dask"])
@pytest.mark.parametrize("square", [False, True])
def test_stacked_fields_are_transposed_to_one_order(opening: str, square: bool) -> None:
    n = 3 if square else 2
    ds = xr.Dataset(
        {
            "a": (("time", "lat", "lon"), np.random.default_rng(0).random((4, 3, n))),
            "b": (("lon", "time", "lat"), np.arange(12.0 * n).reshape(n, 4, 3)),
            "z": (("time", "lon", "level", "lat"), np.arange(24.0 * n).reshape(4, n, 2, 3)),
            "lsm": (("lon", "lat"), np.arange(3.0 * n).reshape(n, 3)),
        },
        {"time": TIME, "level": [500, 850]},
    )
    if opening != "memory":
        ds = stored(ds)
        ds = ds.chunk() if opening == "dask" else ds
    loader = ds.insitu.loader(
        variables=["a", "b", "z"], statics=["lsm"], layout="stacked", leads=["0D", "1D"], batch_size=2
    )
    for batch in loader:
        whole = batch.to_xarray()["variables"]
        assert whole.dims == ("time", "channel", "lat", "lon")
        for name in ("a", "b"):
            for k, lead in enumerate(("0D", "1D")):
                expected = ds[name].transpose("time", "lat", "lon").values[batch.positions + k]
                np.testing.assert_array_equal(whole.sel(channel=f"{name}@{lead}"), expected)
        levels = ds["z"].transpose("time", "level", "lat", "lon").values[batch.positions]
        np.testing.assert_array_equal(whole.sel(channel=["z500@0D", "z850@0D"]), levels)
        for sample in whole.sel(channel="lsm").values:
            np.testing.assert_array_equal(sample, ds["lsm"].values.T)


def test_joined_fields_of_other_labels_are_not_stacked() -> None:
    a = xr.Dataset({"a": (("time", "lat"), np.zeros((4, 3)))}, {"time": TIME, "lat": [60.0, 30.0, 0.0]})
    b = a.isel(lat=slice(None, None, -1)).rename(a="b")
    both = insitu_xr.join({"A": a, "B": b})
    with pytest.raises(InsituError, match=r"'a' and 'b' have other labels of 'lat' \(60.0 to 0.0 and 0.0 to 60.0\)"):
        both.plan(variables=["a", "b"], layout="stacked")
    assert both.plan(variables=["a", "b"]).anchors_kept == 4


class Overlay(WrapperStore[Any]):
    """Gives another chunk than the store that it wraps, on the event loop only."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if key == "a/c/2/0":
            return prototype.buffer.from_bytes(np.full((2, 2), 9.0, "f4").tobytes())
        return await super().get(key, prototype, byte_range)


def test_what_a_wrapper_of_a_store_gives_is_what_is_delivered() -> None:
    store = MemoryStore()
    zeros = xr.Dataset({"a": (("t", "x"), np.zeros((6, 2), "f4"))})
    zeros.to_zarr(store, consolidated=False, encoding={"a": {"chunks": (2, 2), "compressors": None}})

    def opened() -> Any:
        return xr.open_zarr(Overlay(store), consolidated=False, chunks=None)

    for batch in opened().insitu.loader(variables=["a"], sample_dim="t"):
        np.testing.assert_array_equal(batch["a"], opened().a.values)
    assert opened().a.values[4, 0] == 9


@pytest.mark.parametrize(("frequency", "length"), [("3h", 60), ("30min", 500), ("6h", 30)])
@pytest.mark.parametrize("leads", [None, ["0h", "6h"]])
def test_joined_datasets_of_any_length_are_shuffled(frequency: str, length: int, leads: list[str] | None) -> None:
    def make(n: int, step: str, name: str) -> xr.Dataset:
        times = pd.date_range("2000", periods=n, freq=step)
        return stored(xr.Dataset({name: ("time", np.arange(float(n)))}, {"time": times}), **{name: {"chunks": (3,)}})

    both = insitu_xr.join({"A": make(20, "6h", "a"), "C": make(length, frequency, "c")})
    loader = both.loader(variables=["a", "c"], leads=leads, shuffle=True, batch_size=4)
    ratio = pd.Timedelta("6h") // pd.Timedelta(frequency)
    drawn = []
    for batch in loader:
        drawn += batch.positions.tolist()
        np.testing.assert_array_equal(batch["c"], batch["a"] * ratio)
    assert sorted(drawn) == list(range(20 if leads is None else 19))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_so() -> None:
    ds = stored(xr.Dataset({"a": (("t", "x"), np.zeros((400, 64)))}), a={"chunks": (4, 64)})
    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=4) as loader:
        epoch = iter(loader)
        next(epoch)
        child = os.fork()
        if child == 0:
            try:
                next(epoch)
            except insitu_xr.InsituError as error:
                os._exit(0 if "fork" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(len(batch) for batch in epoch) == 396


def test_labels_in_single_precision_keep_the_bounds_of_a_region() -> None:
    ds = xr.Dataset({"a": ("lon", np.zeros(3600))}, {"lon": np.arange(0, 360, 0.1, dtype="f4")})
    for bounds in (slice(10.2, 20.1), slice(0, 0.1), slice(359.9, 0.2)):
        width = round((bounds.stop - bounds.start) % 360 * 10) + 1
        assert ds.insitu.region(lon=bounds, wrap=True).sizes["lon"] == width
    assert ds.insitu.region(lon=slice(10.2, 20.1)).sizes["lon"] == 100


def test_a_batch_size_beyond_the_samples_means_all() -> None:
    ds = stored(xr.Dataset({"a": (("time", "x"), np.zeros((4, 2), "f4"))}, {"time": TIME}))
    loader = ds.insitu.loader(variables=["a"], batch_size=10**12, memory="1MiB")
    assert [len(batch) for batch in loader] == [4]


@pytest.mark.parametrize(
    "years",
    [
        pd.date_range("2000", periods=14, freq="YS"),
        pd.date_range("2000", periods=14, freq="YS")[::-1],
        pd.date_range("2000", periods=14, freq="YS").delete([4, 5]),
        pd.date_range("2000", periods=40, freq="MS"),
        xr.date_range("2000-01-01", periods=14, freq="YS", calendar="standard", use_cftime=True),
    ],
)
def test_years_and_months_are_not_jittered(years: Any) -> None:
    ds = xr.Dataset({"a": ("time", np.arange(float(len(years))))}, {"time": years})
    for batch in ds.insitu.loader(variables=["a"], leads=["0D", "365D"]):
        pairs = batch.valid_times
        assert {
            (b - a) / np.timedelta64(1, "D") if isinstance(a, np.datetime64) else (b - a).days for a, b in pairs
        } == {365}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variables": 5}, "variables must be a list of names, but got 5"),
        ({"variables": [5]}, "variables must be named by text, but got 5"),
        ({"variables": [["a"]]}, r"variables must be named by text, but got \['a'\]"),
        ({"inputs": 5}, "inputs must be dict"),
        ({"variables": ["a"], "statics": 5}, "statics must be a list of names"),
        ({"variables": ["a"], "at": 5}, "at must be times of day"),
        ({"variables": ["a"], "dtype": "bogus"}, "dtype must be one that numpy knows"),
        ({"variables": ["a"], "memory": [1]}, "memory must be a positive number of bytes"),
        ({"variables": ["a"], "memory": float("inf")}, "memory must be a positive number of bytes"),
        ({"variables": ["a"], "drop_last": "no"}, "drop_last must be True or False"),
        ({"variables": ["a"], "shuffle": np.ones(3, bool)}, "shuffle must be"),
        ({"variables": ["a"], "computed": "x"}, "computed must be 'raise' or 'load'"),
        ({"variables": ["a"], "layout": "rows"}, "layout must be"),
        ({"variables": ["a"], "leads": [np.timedelta64(10**9, "D")]}, "lead along 'time' must be a duration"),
    ],
)
def test_plausible_mistakes_are_told_by_rule(arguments: dict[str, Any], message: str) -> None:
    ds = xr.Dataset({"a": ("time", np.arange(4.0))}, {"time": TIME})
    with pytest.raises(InsituError, match=message):
        ds.insitu.plan(**arguments)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([1], "datasets must be a dict"),
        ({"A": xr.DataArray(np.zeros(3), dims="time")}, "dataset 'A' must be an xarray.Dataset, but got DataArray"),
        ({5: xr.Dataset({"a": ("time", [1.0])})}, "name of a dataset must be text without '/'"),
    ],
)
def test_plausible_mistakes_of_joining(datasets: Any, message: str) -> None:
    with pytest.raises(InsituError, match=message):
        insitu_xr.join(datasets)


def test_a_dimension_named_channel() -> None:
    ds = xr.Dataset({"a": (("channel", "x"), np.zeros((4, 2)))})
    (batch,) = ds.insitu.loader(variables=["a"], sample_dim="channel", layout="stacked")
    assert batch.to_xarray()["variables"].dims == ("channel", "channel_", "x")


def test_nested_wrappers_are_seen_through() -> None:
    store = MemoryStore()
    zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="f4")
    from insitu_xr.engine._zarr import reads_synchronously

    assert reads_synchronously(store)
    assert reads_synchronously(WrapperStore(store))
    assert not reads_synchronously(Overlay(store))
    assert not reads_synchronously(WrapperStore(Overlay(store)))


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("layout", ["dict", "stacked"])
def test_a_stored_number_is_a_static(chunks: Any, layout: Any) -> None:
    """It was written to a copy of its slot, and what had been in the memory before was delivered."""
    store = MemoryStore()
    numbers = {"plain": ((), 3.5), "packed": ((), 7.0)}
    ds = xr.Dataset({"v": ("time", np.arange(4.0)), **numbers})
    encoding = {"packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    ds.to_zarr(store, consolidated=False, encoding=encoding)
    ds = xr.open_zarr(store, chunks=chunks, consolidated=False)
    for _ in range(3):
        garbage = [np.full(1, np.nan) for _ in range(50)]  # so that memory that is used again holds something else
        del garbage
        with ds.insitu.loader(variables=["v"], statics=[*numbers], sample_dim="time", layout=layout) as loader:
            (batch,) = loader
            if layout == "stacked":
                assert batch.variables.tolist() == [[float(k), 3.5, 7.0] for k in range(4)]
            else:
                assert {n: batch.statics[n].tolist() for n in numbers} == {"plain": 3.5, "packed": 7.0}
        with ds.insitu.reader(["v"], statics=[*numbers], sample_dim="time") as reader:
            assert {n: reader.read(0).statics[n].tolist() for n in numbers} == {"plain": 3.5, "packed": 7.0}
