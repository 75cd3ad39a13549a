"""What there is to know of a dataset before a loader is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from insitu_xr.errors import InsituError
from insitu_xr.geometry.times import LabelAxis, describe, format_step, modal_step
from insitu_xr.limits import format_bytes
from insitu_xr.resolving.sampling import axis_of, time_like
from insitu_xr.tracing import trace
from insitu_xr.tracing.identity import PLAIN

if TYPE_CHECKING:
    import zarr

#: gaps that are listed one by one
_GAPS = 5
#: a chunk of more than this costs memory and time before the first batch
_LARGE = 256 << 20
BATCH = 32


def describe_dataset(ds: xr.Dataset) -> str:
    """All facts, as text.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((4, 2), "f4"))}, {"time": np.arange(4).astype("M8[D]")})
    >>> print(describe_dataset(ds.isel(time=[0, 1, 3])))  # doctest: +ELLIPSIS
    source
      kind  memory
    <BLANKLINE>
    dimensions
      time  3 labels...
      ...
    """
    arrays = {str(name): _array(ds[name]) for name in ds.data_vars}
    sections = {
        "source": repr(ds.insitu.source).splitlines()[1:],
        "dimensions": [f"  {line}" for dim in ds.dims for line in _dimension(ds, str(dim))],
        "variables": [f"  {line}" for line in _table(ds, arrays)] if arrays else [],
        "suggested": [f"  {line}" for line in _suggestions(ds, arrays)],
    }
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items() if lines)


def _array(variable: xr.DataArray) -> zarr.Array[Any] | None:
    """The stored array, or the first of several."""
    if variable.dtype.kind not in PLAIN:
        return None
    try:
        traced = trace(variable)
    except InsituError:
        return None
    return traced.segments[0].array if traced.segments else None


# -- dimensions -----------------------------------------------------------------------------------------------------


def _dimension(ds: xr.Dataset, dim: str) -> list[str]:
    try:
        axis = axis_of(ds, dim)
    except InsituError as error:
        return [f"{dim}  {ds.sizes[dim]}: {error}"]
    text = describe(axis).replace(f" of {dim!r}", "", 1)
    calendar = " (standard calendar)" if axis.kind == "time" and not axis.calendar else ""
    return [f"{dim}  {text}{calendar}", *(f"  {line}" for line in _gaps(axis))]


def _gaps(axis: LabelAxis) -> Iterator[str]:
    """Stretches where labels are further apart than usual, along time."""
    if axis.kind != "time" or len(axis) < 3 or not modal_step(axis.ticks):
        return
    steps, usual = np.abs(np.diff(axis.ticks)), abs(modal_step(axis.ticks))
    wide = np.flatnonzero(steps > usual)
    for k in wide[:_GAPS].tolist():
        missing = math.ceil(steps[k] / usual) - 1
        steps_of = f"{missing} step{'s' if missing > 1 else ''} of {format_step(axis, usual)}"
        yield f"gap after {axis.show(k)}, up to {axis.show(k + 1)}: {steps_of} missing"
    if len(wide) > _GAPS:
        yield f"and {len(wide) - _GAPS} more gaps"


# -- variables ------------------------------------------------------------------------------------------------------


def _table(ds: xr.Dataset, arrays: dict[str, zarr.Array[Any] | None]) -> list[str]:
    rows: list[tuple[str, ...]] = [("name", "dtype", "sizes", "chunks", "shards", "stored", "codecs")]
    for name, array in arrays.items():
        variable = ds[name]
        sizes = ", ".join(f"{dim} {size}" for dim, size in variable.sizes.items()) or "-"
        if array is None:
            rows.append((name, str(variable.dtype), sizes, "-", "-", "-", "not stored as Zarr"))
            continue
        shards = "-" if array.shards is None else _product(array.shards)
        stored = f"{array.dtype}, {format_bytes(math.prod(array.chunks) * array.dtype.itemsize)} a chunk"
        rows.append((name, str(variable.dtype), sizes, _chunks(array), shards, stored, _codecs(array)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _product(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes)) or "-"


def _chunks(array: zarr.Array[Any]) -> str:
    return _product(array.chunks)


def _codecs(array: zarr.Array[Any]) -> str:
    codecs = [*array.filters, *array.compressors]
    return " + ".join(_codec(codec) for codec in codecs) or "none"


def _codec(codec: Any) -> str:
    """A codec of either format: its name, and its level if it has one."""
    config = codec.get_config() if hasattr(codec, "get_config") else codec.to_dict()
    details = config.get("configuration", config)
    name = config.get("name", config.get("id", type(codec).__name__))
    chosen = [str(details[key]) for key in ("cname", "level", "clevel", "elementsize") if key in details]
    return f"{name}({', '.join(chosen)})" if chosen else str(name)


# -- settings -------------------------------------------------------------------------------------------------------


def _suggestions(ds: xr.Dataset, arrays: dict[str, zarr.Array[Any] | None]) -> list[str]:
    if not arrays:
        return ["none, for there are no variables here; choose a group with --group"]
    names = [str(name) for name in ds.data_vars if ds[name].dtype.kind in "biufc"]
    try:
        (dim,) = time_like(ds, list(dict.fromkeys(str(d) for n in names for d in ds[n].dims)))
        along = [name for name in names if dim in ds[name].dims]
        plan = ds.insitu.plan(along, batch_size=min(BATCH, ds.sizes[dim]), shuffle=True)
    except InsituError as error:
        return [f"none, for a plan of all variables is refused: {error}"]
    statics = [name for name in names if dim not in ds[name].dims]
    # What a training run needs to read every chunk once; less works too, and the plan then says what it costs.
    wanted = max(plan.minimum_memory, plan.peak_bytes)
    lines = [
        f"ds.insitu.loader(variables={along}, batch_size={plan.request.batch_size}, shuffle=True, "
        f"memory='{_round(wanted)}'" + (f", statics={statics}" if statics else "") + ")",
        f"reads {plan.reads} for {plan.chunks} chunks, {plan.reread_factor:.2f} per chunk in the first epoch",
        f"at least {format_bytes(plan.minimum_memory)} of memory are needed",
    ]
    for name, array in arrays.items():
        size = 0 if array is None else math.prod(array.chunks) * array.dtype.itemsize
        if size > _LARGE:
            lines.append(
                f"{name} has chunks of {format_bytes(size)}, which are decoded whole: smaller ones start sooner"
            )
    return lines


def _round(count: int) -> str:
    return f"{max(1, math.ceil(count / (1 << 20)))}MiB"
