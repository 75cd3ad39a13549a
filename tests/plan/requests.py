"""Requests for planning, made by hand: one dimension without labels, any chunking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from insitu_xr.geometry.axes import StoredAxes
from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.geometry.times import label_axis, offset
from insitu_xr.geometry.window import windows
from insitu_xr.plan.request import Request, Take, VariableSpec


def variable(name: str, n: int, grid: AxisGrid | int, field: tuple[int, ...] = (3,), **options: Any) -> VariableSpec:
    """Describe a float32 variable of n steps whose field is one chunk; ``n == 0`` makes a static."""
    steps = (grid if isinstance(grid, AxisGrid) else AxisGrid(n, size=grid),) if n else ()
    grids = (*steps, *(AxisGrid(size, size=size) for size in field))
    dims = (*(("step",) if n else ()), *("y", "x", "level")[: len(field)])
    shape = (*((n,) if n else ()), *field)
    axes = StoredAxes(grids, tuple(np.arange(size, dtype=np.int64) for size in shape), dims)
    given: dict[str, Any] = {"stored_itemsize": 4, **options}
    return VariableSpec(name, "stored", dims, shape, np.dtype("f4"), segments=(axes,), **given)


def request(
    variables: Sequence[VariableSpec],
    n: int,
    leads: Sequence[int] | None = None,
    *,
    labels: Any = None,
    windowed: Mapping[str, Sequence[int]] | None = None,
    **options: Any,
) -> Request:
    """Ask for variables at the same leads; ``windowed`` gives leads of its own to some."""
    axis = label_axis("step", labels, n)
    own = {v.name: tuple((windowed or {}).get(v.name, leads or (0,))) for v in variables}
    wanted = list(dict.fromkeys(lead for chosen in own.values() for lead in chosen))
    offsets = tuple(offset(axis, lead) for lead in wanted)
    found = windows(axis, offsets)
    anchors = np.flatnonzero(found.complete).astype(np.int64)
    moving = [v for v in variables if "step" in v.dims]
    takes = tuple(
        Take("variables", v.name, tuple(wanted.index(lead) for lead in own[v.name]), leads is not None) for v in moving
    )
    return Request(
        sample_dims=("step",),
        axes=(axis,),
        lead_axis=0,
        offsets=offsets,
        variables={v.name: v for v in variables},
        takes=takes,
        statics=tuple(v.name for v in variables if "step" not in v.dims),
        anchors=anchors[:, None],
        partners=found.partners[anchors],
        **{"batch_size": 4, **options},
    )
