"""Bad requests: an error with value, rule and remedy, before any data is read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.errors import (
    CeilingError,
    ComputedVariableError,
    InsituError,
    RequestError,
    UnknownNameError,
    UnsupportedSourceError,
)
from insitu_xr.testing import CountingStore
from insitu_xr.testing.writing import StoredDataset, StoredVariable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOURLY = tuple(range(0, 144, 6))


def stored(sample_dim: str = "time", calendar: str = "standard") -> StoredDataset:
    """Store 24 six-hourly steps of t2m, of z on levels, and of wave on a grid of its own."""
    return StoredDataset(
        variables=(
            StoredVariable("t2m", (sample_dim, "y", "x"), (24, 4, 5), chunks=(5, 4, 5), kind="packed"),
            StoredVariable("z", (sample_dim, "level", "y", "x"), (24, 2, 4, 5), chunks=(5, 1, 4, 5)),
            StoredVariable("wave", (sample_dim, "lat", "lon"), (24, 3, 2), chunks=(4, 3, 2)),
            StoredVariable("lsm", ("y", "x"), (4, 5), chunks=(4, 5), kind="uint8"),
        ),
        times=HOURLY,
        sizes={"level": 2, "y": 4, "x": 5, "lat": 3, "lon": 2},
        sample_dim=sample_dim,
        calendar=calendar,
    )


def same(ds: xr.Dataset) -> xr.Dataset:
    return ds


type Change = Callable[[xr.Dataset], xr.Dataset]
CASES: dict[str, tuple[Change, dict[str, Any], type[InsituError], list[str]]] = {
    "unknown variable": (same, {"variables": ["t2m", "tsm"]}, UnknownNameError, ["'tsm'", "t2m"]),
    "no variable": (same, {"variables": []}, RequestError, ["variables", r"\[\]"]),
    "nothing asked for": (same, {}, RequestError, ["variables", "inputs"]),
    "no reads at once": (same, {"variables": ["t2m"], "max_inflight": 0}, RequestError, ["max_inflight", "got 0"]),
    "reads in parts": (same, {"variables": ["t2m"], "max_inflight": 1.5}, RequestError, ["max_inflight", "got 1.5"]),
    "reads by truth": (same, {"variables": ["t2m"], "max_inflight": True}, RequestError, ["max_inflight", "got True"]),
    "hedge by number": (same, {"variables": ["t2m"], "hedge": 0.05}, RequestError, ["hedge", "got 0.05", "True"]),
    "variables and inputs": (
        same,
        {"variables": ["t2m"], "inputs": {"variables": ["t2m"]}},
        RequestError,
        ["variables", "inputs"],
    ),
    "unknown input": (same, {"inputs": {"variables": ["tsm"]}}, UnknownNameError, ["'tsm'"]),
    "no input variable": (same, {"inputs": {"variables": []}}, RequestError, ["inputs"]),
    "unknown static": (same, {"variables": ["t2m"], "statics": ["lms"]}, UnknownNameError, ["'lms'"]),
    "empty sample dim": (
        lambda ds: ds.isel(time=slice(0, 0)),
        {"variables": ["t2m"]},
        RequestError,
        ["'time'"],
    ),
    "empty field dim": (
        lambda ds: ds.sel(y=slice(100, 200)),
        {"variables": ["t2m"]},
        RequestError,
        ["'y'"],
    ),
    "empty field dim of one of two": (
        lambda ds: ds.isel(level=[]),
        {"variables": ["t2m", "z"]},
        RequestError,
        ["'level'"],
    ),
    "unknown sample dim": (
        same,
        {"variables": ["t2m"], "sample_dim": "tiem"},
        UnknownNameError,
        ["'tiem'", "time"],
    ),
    "sample dim of another variable": (
        same,
        {"variables": ["t2m"], "sample_dim": "lat"},
        UnknownNameError,
        ["'lat'", "'time'"],
    ),
    "variable without the sample dim": (
        same,
        {"variables": ["t2m", "lsm"]},
        RequestError,
        ["'lsm'", "statics"],
    ),
    "static with the sample dim": (
        same,
        {"variables": ["t2m"], "statics": ["z"]},
        RequestError,
        ["'z'", "'time'"],
    ),
    "leads nowhere": (
        same,
        {"variables": ["t2m"], "leads": ["0h", "300D"]},
        RequestError,
        ["300D", "24 labels of 'time' from 2000-02-27 to", "6h apart"],
    ),
    "leads between labels": (
        same,
        {"variables": ["t2m"], "leads": ["1h"]},
        RequestError,
        ["1h", "24 labels of 'time'", "6h apart"],
    ),
    "unreadable lead": (
        same,
        {"variables": ["t2m"], "leads": ["6 parsecs"]},
        RequestError,
        ["'6 parsecs'", "duration"],
    ),
    "numeric lead on times": (
        same,
        {"variables": ["t2m"], "leads": [6]},
        RequestError,
        ["6", "'6h'"],
    ),
    "no leads": (same, {"variables": ["t2m"], "leads": []}, RequestError, ["leads", r"\[\]"]),
    "batch size zero": (
        same,
        {"variables": ["t2m"], "batch_size": 0},
        RequestError,
        ["batch_size must be .*1.* got 0"],
    ),
    "batch size negative": (
        same,
        {"variables": ["t2m"], "batch_size": -3},
        RequestError,
        ["batch_size must be", "got -3"],
    ),
    "batch size not whole": (
        same,
        {"variables": ["t2m"], "batch_size": 2.5},
        RequestError,
        ["batch_size must be", "2.5"],
    ),
    "unreadable memory": (
        same,
        {"variables": ["t2m"], "memory": "plenty"},
        RequestError,
        ["memory must be", "'plenty'"],
    ),
    "progress that is no flag": (
        same,
        {"variables": ["t2m"], "progress": "x"},
        RequestError,
        ["progress must be", "'x'"],
    ),
    "shuffle window without a unit": (
        same,
        {"variables": ["t2m"], "shuffle": True, "shuffle_window": "1"},
        RequestError,
        ["shuffle_window must have a unit", "got '1'", "'1MiB'"],
    ),
    "unknown layout": (
        same,
        {"variables": ["t2m"], "layout": "cube"},
        RequestError,
        ["layout must be", "stacked", "'cube'"],
    ),
    "unequal grids": (
        same,
        {"variables": ["t2m", "wave"], "layout": "stacked"},
        RequestError,
        ["'t2m'", r"\(4, 5\)|y.*4.*x.*5", "'wave'", r"\(3, 2\)|lat.*3.*lon.*2"],
    ),
}


@pytest.mark.parametrize("method", ["loader", "plan"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_refused_before_any_read(case: str, chunks: dict[str, int] | None, method: str) -> None:
    change, arguments, error, patterns = CASES[case]
    store = CountingStore(stored().store)
    ds = change(stored().open(store, chunks=chunks))
    store.reset()
    with pytest.raises(error) as caught:
        getattr(ds.insitu, method)(**arguments)
    assert type(caught.value) is error
    for pattern in patterns:
        assert re.search(pattern, str(caught.value)), f"{pattern!r} not in {caught.value}"
    assert store.data_gets == []


def test_no_sample_dim() -> None:
    ds = stored("number", calendar="none").open()
    with pytest.raises(RequestError, match=r"sample_dim must be .*'number'"):
        ds.insitu.loader(variables=["t2m"])


@pytest.mark.parametrize("method", ["loader", "plan"])
def test_ceiling_below_one_batch_says_what_is_needed(method: str) -> None:
    store = CountingStore(stored().store)
    ds = stored().open(store)
    store.reset()
    minimum = ds.insitu.plan(variables=["t2m", "z"], batch_size=8).minimum_memory
    with pytest.raises(CeilingError, match="memory must be") as caught:
        getattr(ds.insitu, method)(variables=["t2m", "z"], batch_size=8, memory=minimum - 1)
    assert str(minimum) in re.sub(r"(?<=\d)[,_ ](?=\d{3})", "", str(caught.value))
    assert store.data_gets == []
    assert ds.insitu.plan(variables=["t2m", "z"], batch_size=8, memory=minimum).peak_bytes <= minimum


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_netcdf_says_how_to_open_it(tmp_path: Path, engine: Any, chunks: dict[str, int] | None) -> None:
    if engine == "h5netcdf":
        pytest.importorskip("h5py", reason="h5netcdf reads through h5py")
    path = tmp_path / "file.nc"
    labels = xr.date_range("2000-01-01", periods=4)
    xr.Dataset({"a": (("time", "y"), np.zeros((4, 2)))}, {"time": labels}).to_netcdf(path, engine="netcdf4")
    with (
        xr.open_dataset(path, engine=engine, chunks=chunks) as ds,
        pytest.raises(UnsupportedSourceError, match=r"'a'.*insitu_xr\.open_dataset"),
    ):
        ds.insitu.loader(variables=["a"])


@pytest.mark.parametrize(
    ("change", "function"),
    [
        (lambda ds: ds + 1, "add"),
        (lambda ds: ds.fillna(0), "where|isnull|isnan"),
        (lambda ds: ds.astype("f4"), "astype"),
    ],
    ids=["add", "fillna", "astype"],
)
def test_computed_dask_variables_are_refused_or_loaded(change: Change, function: str) -> None:
    store = CountingStore(stored().store)
    ds = stored().open(store, chunks={})[["t2m"]]
    computed = change(ds)
    store.reset()
    with pytest.raises(ComputedVariableError, match=f"(?s)'t2m'.*({function}).*computed="):
        computed.insitu.loader(variables=["t2m"])
    assert store.data_gets == []
    with computed.insitu.loader(variables=["t2m"], batch_size=24, computed="load") as loader:
        np.testing.assert_array_equal(next(iter(loader))["t2m"], computed.t2m.values, strict=True)


SPLITS: dict[str, tuple[dict[str, Any], str]] = {
    "a number for fractions": ({"fractions": 5}, r"fractions must be several numbers.*got 5"),
    "a text for fractions": ({"fractions": "abc"}, r"fractions must be several numbers.*got 'abc'"),
    "a text for a fraction": (
        {"fractions": {"train": "half"}},
        r"fraction of 'train' must be a number, but got 'half'",
    ),
    "nothing for a fraction": ({"fractions": (0.5, None)}, r"fraction of 'val' must be a number, but got None"),
    "a text for the seed": ({"fractions": (0.5, 0.5), "seed": "x"}, r"seed must be a whole number.*got 'x'"),
    "a text for the seed of labels": ({"train": slice(None, "2000-02-28"), "seed": "x"}, r"seed must be.*got 'x'"),
}


@pytest.mark.parametrize("case", sorted(SPLITS))
def test_splits_are_refused(case: str) -> None:
    arguments, pattern = SPLITS[case]
    with pytest.raises(RequestError, match=pattern):
        stored().open().insitu.split(**arguments)


REGIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "texts": (slice("a", "b"), {}, r"region along 'lon' must be between numbers, but got 'a'.*run from 0 to 10"),
    "texts on the circle": (slice("a", "b"), {"wrap": True}, r"must be between numbers, but got 'a'"),
    "a list": (slice(0, [1]), {}, r"must be between numbers, but got \[1\]"),
    "not a number": (slice(0, float("nan")), {}, r"must be between numbers, but got nan"),
    "a flag": (slice(True, 5), {}, r"must be between numbers, but got True"),
}


@pytest.mark.parametrize("case", sorted(REGIONS))
def test_regions_are_refused(case: str) -> None:
    bounds, options, pattern = REGIONS[case]
    with pytest.raises(RequestError, match=pattern):
        stored().open().insitu.region(lon=bounds, **options)
