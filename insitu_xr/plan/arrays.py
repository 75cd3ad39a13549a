"""The arrays of a batch: their shapes and their size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from insitu_xr.plan.channels import Stack
from insitu_xr.plan.request import Request

Key = tuple[str, str]  # group and variable; the variable is "" for a stacked array


class ArraySpec(NamedTuple):
    """Shape and dtype of an array.

    Examples
    --------
    >>> print(ArraySpec.of(np.zeros((2, 3))).replace(dtype="f4"))
    float32[2, 3]
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: Any) -> Self:
        """Those of an array."""
        return cls(tuple(array.shape), array.dtype)

    def replace(self, *, shape: tuple[int, ...] | None = None, dtype: npt.DTypeLike | None = None) -> ArraySpec:
        """The same with another shape, or another dtype."""
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        return ArraySpec(self.shape if shape is None else tuple(shape), wanted)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def array_shapes(request: Request, stacks: Mapping[str, Stack] | None, n: int) -> dict[Key, ArraySpec]:
    """Shape and dtype of every array of a batch of n samples."""
    if stacks is not None:
        return {(g, ""): ArraySpec((n, len(s.channels), *s.grid_shape), s.dtype) for g, s in stacks.items()}
    found: dict[Key, ArraySpec] = {}
    for take in request.takes:
        lead = (len(take.columns),) if take.windowed else ()
        shape = (n, *lead, *request.field_shape(take.variable))
        found[take.group, take.variable] = ArraySpec(shape, request.variables[take.variable].dtype)
    for name in request.statics:
        found["statics", name] = ArraySpec(request.field_shape(name), request.variables[name].dtype)
    return found


def batch_bytes(request: Request, stacks: Mapping[str, Stack] | None, n: int) -> int:
    """Bytes of all arrays of a batch of n samples."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in array_shapes(request, stacks, n).values())
