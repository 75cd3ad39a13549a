"""Decoding straight into given memory, for the codec chains whose decoders can: it saves an allocation and a copy.

Only chains of which each step is known are taken: little-endian bytes, then nothing, zstd or blosc. Everything else
goes through zarr's own chain. The decoders leave the rest of a buffer that is too large as it was, so the size that
the compressed data states is checked first: stale numbers must never be taken for data.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zstandard
from zarr.codecs import BloscCodec, BytesCodec, ZstdCodec
from zarr.codecs._v2 import V2Codec

from insitu_xr.engine.failing import CorruptError

Bytes = npt.NDArray[np.uint8]
#: decodes bytes into a contiguous array of the right size; False if the data does not say its size, or another one
DecodeInto = Callable[[Bytes, npt.NDArray[Any]], bool]

#: flag in the fifth byte of a frame
_CHECKSUM = 0x04


def direct_decoder(codecs: Sequence[Any], dtype: np.dtype[Any], order: str) -> DecodeInto | None:
    """The decoder of a chain of codecs, None where it is not one that is known.

    Parameters
    ----------
    codecs : sequence of zarr codecs
        The chain of one chunk, in the order of encoding.
    dtype : dtype
        Of the decoded chunk.
    order : {"C", "F"}
        Order of the elements in the bytes.
    """
    if not (dtype.isnative and sys.byteorder == "little") or dtype.kind not in "biufcmM" or order != "C":
        return None
    first, *rest = codecs
    if isinstance(first, V2Codec) and not first.filters and not rest:
        compressor = first.compressor
        if compressor is None:
            return _copy
        kind = {"zstd": ZstdCodec, "blosc": BloscCodec}.get(getattr(compressor, "codec_id", ""))
        return _decoders().get(kind)
    if isinstance(first, BytesCodec) and (
        dtype.itemsize == 1 or str(getattr(first.endian, "value", first.endian)) == "little"
    ):
        return _copy if not rest else _decoders().get(type(rest[0])) if len(rest) == 1 else None
    return None


def _decoders() -> dict[Any, DecodeInto]:
    # How hard the data was compressed does not matter for decoding.
    return {ZstdCodec: _Zstd(), BloscCodec: _decode_blosc}


class _Zstd:
    """Decodes zstd frames; each thread has a decompressor of its own, whose tables are used again.

    A frame with a checksum is left to numcodecs: the stream does not tell whether the checksum was there in full.
    """

    def __init__(self) -> None:
        self._own, self._checked = threading.local(), numcodecs.Zstd()

    def __call__(self, raw: Bytes, out: npt.NDArray[Any]) -> bool:
        content, size = raw.data, out.nbytes
        if zstd_content_size(content) != size:
            return False
        if content[4] & _CHECKSUM:
            self._checked.decode(raw, out=out)
            return True
        try:
            decompressor = self._own.decompressor
        except AttributeError:
            decompressor = self._own.decompressor = zstandard.ZstdDecompressor()
        stream = decompressor.stream_reader(content)
        # The last block is complete only once there is nothing more to come.
        return bool(stream.readinto(out) == size and not stream.read(1))


_BLOSC = numcodecs.Blosc()


def check_blosc(raw: Bytes) -> None:
    """Refuse a blosc chunk that was cut: the decoder trusts the header, and would read what lies behind the chunk.

    Raises
    ------
    CorruptError
        If there are fewer bytes than the header states.
    """
    stated = int.from_bytes(raw[12:16].tobytes(), "little") if raw.nbytes >= 16 else 16
    if raw.nbytes < stated:
        raise CorruptError(f"a blosc chunk must have the {stated} bytes that its header states, but got {raw.nbytes}")


def _decode_blosc(raw: Bytes, out: npt.NDArray[Any]) -> bool:
    check_blosc(raw)
    if int.from_bytes(raw[4:8].tobytes(), "little") != out.nbytes:
        return False
    _BLOSC.decode(raw, out=out)
    return True


def _copy(raw: Bytes, out: npt.NDArray[Any]) -> bool:
    if raw.nbytes != out.nbytes:
        return False
    np.copyto(out.reshape(-1).view(np.uint8), raw)
    return True


def ends_in_blosc(codecs: Sequence[Any]) -> bool:
    """Whether what the store holds of a chunk is decoded by blosc first."""
    last = codecs[-1] if codecs else None
    return isinstance(last, BloscCodec) or (
        isinstance(last, V2Codec) and getattr(last.compressor, "codec_id", "") == "blosc"
    )


def zstd_content_size(content: memoryview) -> int | None:
    """Decoded size that a zstd frame states, None if it states none.

    Examples
    --------
    >>> frame = np.frombuffer(numcodecs.Zstd().encode(np.zeros(1000, "f4")), "u1").data
    >>> zstd_content_size(frame), zstd_content_size(frame[:3])
    (4000, None)
    """
    try:
        size = zstandard.frame_content_size(content)
    except zstandard.ZstdError:
        return None
    return None if size < 0 else size
