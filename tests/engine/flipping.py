"""A codec that has no synchronous methods, as third-party ones may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from zarr.abc.codec import BytesBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec


@dataclass(frozen=True)
class Flip(BytesBytesCodec):
    """Flips every bit."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return {"name": "insitu_flip", "configuration": {}}

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        flipped: Any = ~np.frombuffer(chunk_data.to_bytes(), np.uint8)
        return chunk_spec.prototype.buffer.from_bytes(flipped.tobytes())

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await self._decode_single(chunk_data, chunk_spec)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length


register_codec("insitu_flip", Flip)
