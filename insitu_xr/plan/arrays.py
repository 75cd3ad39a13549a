"""The arrays of a batch: their shapes and their size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from insitu_xr.plan.channels import Stack
from insitu_xr.plan.request import Request

Key = tuple[str, str]  # group and variable; the variable is "" for a stacked array


def array_shapes(
    request: Request, stacks: Mapping[str, Stack] | None, n: int
) -> dict[Key, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every array of a batch of n samples."""
    if stacks is not None:
        return {(g, ""): ((n, len(s.channels), *s.grid_shape), s.dtype) for g, s in stacks.items()}
    found: dict[Key, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for take in request.takes:
        lead = (len(take.columns),) if take.windowed else ()
        shape = (n, *lead, *request.field_shape(take.variable))
        found[take.group, take.variable] = (shape, request.variables[take.variable].dtype)
    for name in request.statics:
        found["statics", name] = (request.field_shape(name), request.variables[name].dtype)
    return found


def batch_bytes(request: Request, stacks: Mapping[str, Stack] | None, n: int) -> int:
    """Bytes of all arrays of a batch of n samples."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in array_shapes(request, stacks, n).values())
