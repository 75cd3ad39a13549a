"""Decoding into given memory: equal to zarr's own chain byte for byte, and never with numbers left over."""

from __future__ import annotations

from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore

from insitu_xr.engine._zarr import StoredArray
from insitu_xr.engine.direct import zstd_content_size

VALUES = np.random.default_rng(0).integers(0, 200, (7, 9))

CHAINS: dict[str, tuple[dict[str, Any], bool]] = {
    "zstd": ({"compressors": [ZstdCodec(level=3)]}, True),
    "zstd with checksum": ({"compressors": [ZstdCodec(level=0, checksum=True)]}, True),
    "blosc": ({"compressors": [BloscCodec(cname="lz4", shuffle="shuffle")]}, True),
    "none": ({"compressors": None}, True),
    "big-endian": ({"serializer": BytesCodec(endian="big"), "compressors": [ZstdCodec()]}, False),
    "gzip": ({"compressors": [GzipCodec()]}, False),
    "two": ({"compressors": [ZstdCodec(), Crc32cCodec()]}, False),
    "transposed": ({"filters": [TransposeCodec(order=(1, 0))], "compressors": [ZstdCodec()]}, False),
    "v2 zstd": ({"zarr_format": 2, "compressors": numcodecs.Zstd()}, True),
    "v2 blosc": ({"zarr_format": 2, "compressors": numcodecs.Blosc()}, True),
    "v2 none": ({"zarr_format": 2, "compressors": None}, True),
    "v2 zlib": ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, False),
    "v2 filtered": ({"zarr_format": 2, "filters": [numcodecs.Delta("f4")], "compressors": numcodecs.Zstd()}, False),
    "v2 order F": ({"zarr_format": 2, "order": "F", "compressors": numcodecs.Zstd()}, False),
    "sharded": ({"shards": (8, 6), "compressors": [ZstdCodec()]}, True),
}


def stored(chain: str, dtype: str) -> StoredArray:
    array = zarr.create_array(MemoryStore(), shape=VALUES.shape, chunks=(4, 3), dtype=dtype, **CHAINS[chain][0])
    array[...] = VALUES.astype(dtype)
    return StoredArray(array)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["f4", "i2", "u1", "?", "c8"])
def test_what_is_decoded_in_place_is_what_zarr_decodes(chain: str, dtype: str) -> None:
    if "filtered" in chain and dtype != "f4":
        pytest.skip("the filter is for one dtype")
    array = stored(chain, dtype)
    assert array.decodes_into == CHAINS[chain][1] or (chain == "big-endian" and np.dtype(dtype).itemsize == 1)
    if not array.decodes_into or array.sharded:
        return
    for chunk in np.ndindex(2, 3):
        raw = array.store.get_sync(array.key(chunk))  # type: ignore[attr-defined]
        if raw is None:
            continue
        out = np.full((4, 3), 77, array.dtype)
        assert array.decode_into(raw, out)
        np.testing.assert_array_equal(out, array.decode(raw, chunk))


@pytest.mark.parametrize("chain", [name for name, (_, direct) in CHAINS.items() if direct and name != "sharded"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 3), (4, 3, 2)])
def test_memory_of_another_size_is_left_alone(chain: str, shape: tuple[int, ...]) -> None:
    array = stored(chain, "f4")
    raw = array.store.get_sync(array.key((0, 0)))  # type: ignore[attr-defined]
    out = np.full(shape, 77, "f4")
    assert not array.decode_into(raw, out)
    assert (out == 77).all()


@given(st.binary(max_size=3000), st.integers(1, 19), st.booleans())
def test_the_size_that_a_frame_states(content: bytes, level: int, checksum: bool) -> None:
    frame = np.frombuffer(numcodecs.Zstd(level, checksum=checksum).encode(content), np.uint8)
    assert zstd_content_size(frame.data) == len(content)


@given(st.binary(max_size=40))
def test_anything_else_states_no_size_or_is_a_frame(content: bytes) -> None:
    found = zstd_content_size(memoryview(content))
    assert not found or content.startswith(bytes.fromhex("28b52ffd"))
