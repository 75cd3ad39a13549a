"""What a hostile reading of the engine found: damaged files, failures inside a step, steps of several batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.errors import ReadError

CHAINS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "blosc": (3, "<f4", {"compressors": BloscCodec(cname="lz4")}),
    "blosc-uncompressed": (3, "<f4", {"compressors": BloscCodec(clevel=0)}),
    "blosc-big-endian": (2, ">f4", {"compressors": numcodecs.Blosc()}),
    "blosc-delta": (2, "<i4", {"compressors": numcodecs.Blosc(), "filters": [numcodecs.Delta("<i4")]}),
    "zstd": (3, "<f4", {"compressors": ZstdCodec()}),
    "zstd-checksum": (3, "<f4", {"compressors": ZstdCodec(checksum=True)}),
    "none": (3, "<f4", {"compressors": None}),
}
#: bytes that are left of a file
KEPT = {"nothing": slice(0), "half-a-header": slice(8), "half": slice(8000), "all-but-one": slice(-1)}


def written(path: Path, chain: str, *, steps: int = 8) -> xr.Dataset:
    zarr_format, dtype, options = CHAINS[chain]
    values = np.random.default_rng(0).integers(0, 2**31, (steps, 64, 64)).astype(dtype)
    named: dict[str, Any] = {"dimension_names": ("t", "y", "x")}
    if zarr_format == 2:
        named = {"attributes": {"_ARRAY_DIMENSIONS": ["t", "y", "x"]}, "fill_value": None}
    group = zarr.create_group(path, zarr_format=zarr_format)
    array = group.create_array("a", shape=values.shape, chunks=(1, 64, 64), dtype=dtype, **named, **options)
    array[...] = values
    opened: xr.Dataset = xr.open_zarr(path, consolidated=False, chunks=None)
    return opened


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path, chain: str, kept: str) -> None:
    # The memory behind what was read holds the chunk before it: a decoder must never see that.
    ds = written(tmp_path, chain)
    file = tmp_path / ("a/5.0.0" if CHAINS[chain][0] == 2 else "a/c/5/0/0")
    file.write_bytes(file.read_bytes()[KEPT[kept]])
    expected = ds.isel(t=slice(5)).a.values
    with ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=1) as loader:
        epoch = iter(loader)
        np.testing.assert_array_equal(np.concatenate([next(epoch)["a"] for _ in range(5)]), expected)
        with pytest.raises(ReadError, match=r"chunk \(5, 0, 0\) of variable 'a'"):
            next(epoch)


def small(path: Path, *, steps: int = 400) -> xr.Dataset:
    random = np.random.default_rng(1)
    ds = xr.Dataset({"a": (("t", "x"), random.random((steps, 3))), "s": ("x", random.random(3))})
    ds.to_zarr(path, consolidated=False, encoding={"a": {"chunks": (100, 3)}})
    opened: xr.Dataset = xr.open_zarr(path, consolidated=False, chunks=None)
    return opened


def test_batches_before_a_bad_chunk_come_though_they_are_made_in_one_step_with_it(tmp_path: Path) -> None:
    ds = small(tmp_path)
    (tmp_path / "a/c/1/0").write_bytes(b"bad")
    loader = ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=3)
    assert loader.plan.stride > 1
    epoch = iter(loader)
    for number in range(33):
        np.testing.assert_array_equal(next(epoch).positions, 3 * number + np.arange(3))
    assert loader.state_dict()["batch"] == 33
    with pytest.raises(ReadError):
        next(epoch)


@pytest.mark.parametrize("keep", [None, True, False])
@pytest.mark.parametrize("shuffle", [False, True])
def test_resuming_inside_a_step_of_several_batches(tmp_path: Path, keep: bool | None, shuffle: bool) -> None:
    ds = small(tmp_path)
    options: dict[str, Any] = {"sample_dim": "t", "batch_size": 3, "shuffle": shuffle, "keep": keep}

    def loader() -> Any:
        return ds.insitu.loader(variables=["a"], statics=["s"], **options)

    values, static = ds.a.compute().values, ds.s.compute().values
    whole = loader()
    assert whole.plan.stride > 1
    epochs = [list(whole) for _ in range(3)]
    for done in (1, 15, 17):
        began = loader()
        began.set_epoch(1)
        running = iter(began)
        for _ in range(done):
            next(running)
        state = json.loads(json.dumps(began.state_dict()))
        again = loader()
        again.load_state_dict(state)
        for expected in (epochs[1][done:], epochs[2]):
            got = list(again)
            assert [b.positions.tolist() for b in got] == [b.positions.tolist() for b in expected]
            epochs.append(got)
    for batch in [batch for epoch in epochs for batch in epoch]:
        np.testing.assert_array_equal(batch["a"], values[batch.positions])
        np.testing.assert_array_equal(batch["s"], static)


def test_batches_of_one_step_own_their_statics(tmp_path: Path) -> None:
    ds = small(tmp_path)
    loader = ds.insitu.loader(variables=["a"], statics=["s"], sample_dim="t", batch_size=3)
    assert loader.plan.stride > 1
    values, static = ds.a.compute().values, ds.s.compute().values
    for batch in loader:
        np.testing.assert_array_equal(batch["s"], static)
        np.testing.assert_array_equal(batch["a"], values[batch.positions])
        batch["s"][...], batch["a"][...] = -1, -1


def test_any_ceiling_from_the_smallest_on_keeps_its_promise(tmp_path: Path) -> None:
    ds = small(tmp_path)
    options: dict[str, Any] = {"variables": ["a"], "sample_dim": "t", "batch_size": 3, "shuffle": True}
    least, values = ds.insitu.plan(**options).minimum_memory, ds.a.compute().values
    for memory in (least, least + 1, 2 * least, 4 * least, 5 * least, 9 * least):
        with ds.insitu.loader(**options, memory=memory) as loader:
            for epoch in range(2):
                for batch in loader:
                    np.testing.assert_array_equal(batch["a"], values[batch.positions])
                assert epoch or loader.stats.reads == loader.plan.reads > 0
            assert loader.stats.peak_bytes <= memory


@pytest.mark.parametrize("partial", ["drop", "pad"])
def test_big_rows_go_straight_into_the_batches_of_uneven_ranks(tmp_path: Path, partial: str) -> None:
    ds = written(tmp_path, "zstd", steps=23)
    values, held, seen = ds.a.compute().values, [], []
    for rank in range(3):
        options: dict[str, Any] = {"rank": rank, "world_size": 3, "partial": partial, "dtype": "f8"}
        loader = ds.insitu.loader(variables=["a"], sample_dim="t", batch_size=3, shuffle=True, seed=2, **options)
        assert loader.plan.spread is not None
        for batch in loader:
            seen += batch.positions[~batch.padded].tolist() if batch.padded is not None else batch.positions.tolist()
            held.append(batch)
        assert loader.stats.reads == loader.plan.reads
        held += list(loader)
    assert len(set(seen)) == len(seen) == (23 if partial == "pad" else 21)
    for batch in held:
        np.testing.assert_array_equal(batch["a"], values[batch.positions].astype("f8"))
