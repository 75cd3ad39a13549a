"""The stacked layout: which channel of a group's array each variable, level and lead fills."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from insitu_xr.errors import DtypeError, RequestError
from insitu_xr.plan.request import Request, VariableSpec


@dataclass(frozen=True, slots=True)
class ChannelBlock:
    """Neighbouring channels that come from one variable at one lead."""

    variable: str
    #: column of the request's partners; None for a static
    column: int | None
    start: int
    count: int
    #: order that brings the field of the variable to (channel dims..., grid dims...)
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """One array (batch, channel, *grid) and what fills it."""

    group: str
    grid_dims: tuple[str, ...]
    grid_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: tuple[ChannelBlock, ...]
    channels: tuple[str, ...]


def stacks_of(request: Request, labels: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Stack]:
    """Lay out the channels of every group; statics follow in the first group.

    Parameters
    ----------
    labels : mapping of variable to mapping of dimension to labels
        The field dimensions of each variable that become channels (levels, members), and how their positions are
        written in channel names; the other dimensions are the grid.

    Raises
    ------
    RequestError
        If variables of a group have different grids.
    DtypeError
        If a variable is not numeric.
    """
    groups: dict[str, list[tuple[str, int | None, str]]] = {}
    for take in request.takes:
        entries = groups.setdefault(take.group, [])
        for column in take.columns:
            suffix = f"@{request.offsets[column].name}" if take.windowed else ""
            entries.append((take.variable, column, suffix))
    for name in request.statics:
        groups[request.takes[0].group].append((name, None, ""))
    return {group: _stack(request, group, entries, labels) for group, entries in groups.items()}


def _stack(
    request: Request,
    group: str,
    entries: Sequence[tuple[str, int | None, str]],
    labels: Mapping[str, Mapping[str, Sequence[str]]],
) -> Stack:
    specs = {name: request.variables[name] for name, _, _ in entries}
    grids = {n: _grid(request, spec, labels.get(n, {})) for n, spec in specs.items()}
    first = next(iter(grids))
    blocks, names, start = [], [], 0
    for name, column, suffix in entries:
        if grids[name] != grids[first]:
            raise RequestError(
                f"variables of a stacked layout must have one grid, but got {first!r} with {_show(grids[first])} and "
                f"{name!r} with {_show(grids[name])}; select or interpolate to one grid, or use layout='dict'"
            )
        field = tuple(d for d in specs[name].dims if d not in request.sample_dims)
        channel = [d for d in field if d not in grids[name]]
        count = math.prod(specs[name].shape[specs[name].dims.index(d)] for d in channel)
        # The grid of the first variable gives the order; the others are transposed to it.
        order = tuple(field.index(d) for d in (*channel, *grids[first]))
        blocks.append(ChannelBlock(name, column, start, count, order))
        names += [f"{name}{label}{suffix}" for label in _product([labels[name][d] for d in channel])]
        start += count
    other = [n for n, spec in specs.items() if spec.dtype.kind not in "biufc"]
    if other:
        raise DtypeError(
            f"variable {other[0]!r} must be numeric for layout='stacked', but got {specs[other[0]].dtype}; "
            "leave it out or use layout='dict'"
        )
    dtype = np.result_type(*[spec.dtype for spec in specs.values()])
    grid = grids[first]
    return Stack(group, tuple(grid), tuple(grid.values()), dtype, tuple(blocks), tuple(names))


def _grid(request: Request, spec: VariableSpec, channel_dims: Collection[str]) -> dict[str, int]:
    sizes = dict(zip(spec.dims, spec.shape, strict=True))
    return {d: n for d, n in sizes.items() if d not in request.sample_dims and d not in channel_dims}


def _show(grid: Mapping[str, int]) -> str:
    return "(" + ", ".join(f"{dim}: {size}" for dim, size in grid.items()) + ")"


def _product(labels: Sequence[Sequence[str]]) -> list[str]:
    names = [""]
    for level in labels:
        names = [f"{name}_{label}" if name else label for name in names for label in level]
    return names
