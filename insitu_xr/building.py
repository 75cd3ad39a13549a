"""From a traced dataset to a plan and a loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.absence import without_absent
from insitu_xr.batch import BatchContext, Forecast
from insitu_xr.engine._zarr import chunk_grids
from insitu_xr.engine.decode import Part
from insitu_xr.engine.fetch import BlockSource, ZarrSource
from insitu_xr.errors import DtypeError, InsituError, RequestError
from insitu_xr.geometry.axes import StoredAxes, selection_key
from insitu_xr.geometry.grid import AxisGrid
from insitu_xr.limits import Limits, parse_bytes, remote_limits
from insitu_xr.loader import Loader
from insitu_xr.materials import Materials
from insitu_xr.plan.arrays import array_shapes
from insitu_xr.plan.budget import divide
from insitu_xr.plan.channels import Stack, stacks_of
from insitu_xr.plan.manifest import Manifest
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.reads import AccessGroup, access_groups
from insitu_xr.plan.request import Request, VariableSpec
from insitu_xr.reader import Readable, Reader
from insitu_xr.resolving import (
    Asked,
    SplitAsked,
    channel_dims_of,
    check_not_empty,
    groups_of,
    names_of,
    pivot_of,
    request_of,
    sample_dims_of,
    splits_of,
)
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.roles import lead_times, roles_of
from insitu_xr.sources import Source
from insitu_xr.tracing import Segment, TracedVariable, trace
from insitu_xr.tracing.foreign import hinted_chunks, reader
from insitu_xr.tracing.identity import PLAIN, identity
from insitu_xr.transforming import Transform, declared, transforms_of
from insitu_xr.verifying import verify

#: a block that is read through xarray holds about this much where nothing hints at chunks
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A plan, and what a loader needs beside it."""

    catalog: Catalog
    plan: ReadPlan
    materials: Materials
    context: BatchContext
    limits: Limits
    progress: bool
    transforms: tuple[Transform, ...]


def build(
    source: xr.Dataset | Catalog,
    asked: Asked,
    *,
    memory: int | str | None = None,
    dtype: npt.DTypeLike | None = None,
    progress: bool = False,
    computed: Literal["raise", "load"] = "raise",
    absent: Literal["keep", "drop"] = "keep",
    max_inflight: int | None = None,
    hedge: bool = False,
    keep: bool | None = None,
    transforms: Any = (),
) -> Built:
    """Check a request, trace its variables and plan it; reads no data of stored variables."""
    if asked.layout not in ("dict", "stacked"):
        raise RequestError(f"layout must be 'dict' or 'stacked', but got {asked.layout!r}; give one of them")
    if computed not in ("raise", "load"):
        raise RequestError(f"computed must be 'raise' or 'load', but got {computed!r}; give one of them")
    if absent not in ("keep", "drop"):
        raise RequestError(f"absent must be 'keep' or 'drop', but got {absent!r}; give one of them")
    if not isinstance(progress, bool | np.bool_):
        raise RequestError(f"progress must be True or False, but got {progress!r}; give one of them")
    if keep is not None and not isinstance(keep, bool | np.bool_):
        raise RequestError(f"keep must be True, False or None, but got {keep!r}; give one of them")
    functions = transforms_of(transforms)
    ceiling = None if memory is None else parse_bytes(memory)
    limits = remote_limits(Limits(), max_inflight, hedge)
    traced = _traced(source, asked, computed, dtype, limits)
    catalog, sample_dims, request = traced.catalog, traced.request.sample_dims, traced.request
    if asked.manifest is not None:
        asked.manifest.check_source(request.source)
    if absent == "drop":
        request = without_absent(request, traced.parts)
    if request.shuffle == "block":
        tracer = _tracer(catalog, sample_dims, limits, request.variables)
        request = replace(request, pivot=pivot_of(catalog, sample_dims, tracer))
    stacks = None
    if asked.layout == "stacked":
        stacks = stacks_of(request, {n: channel_dims_of(catalog[n], sample_dims) for n in request.variables})
        _check_grids(catalog, stacks)
    plan = ReadPlan.of(request, ceiling, limits, stacks, None if keep is None else bool(keep))
    declared(functions, array_shapes(plan.request, stacks, plan.request.batch_size))
    return Built(catalog, plan, traced.materials, context_of(request, catalog, stacks), limits, progress, functions)


@dataclass(frozen=True, slots=True, eq=False)
class _Traced:
    """A request, checked, and where its values come from."""

    catalog: Catalog
    request: Request
    parts: Mapping[str, tuple[Part, ...]]
    materials: Materials


def _traced(
    source: xr.Dataset | Catalog, asked: Asked, computed: Literal["raise", "load"], dtype: Any, limits: Limits
) -> _Traced:
    """Resolve what is asked to positions, and trace its variables."""
    # Copies of its own, so that nothing the caller does to the datasets later changes the batches.
    catalog = Catalog.of(source).copy()
    groups = groups_of(catalog, asked)
    statics = names_of(catalog, "statics", asked.statics)
    sample_dims = sample_dims_of(catalog, groups, asked.sample_dim)
    names = [*dict.fromkeys(n for g in groups for n in g.variables), *statics]
    _check_statics(catalog, statics, sample_dims, names)
    check_not_empty(catalog, names)
    request = request_of(catalog, asked, groups, sample_dims, statics)
    stores: dict[int, Source] = {}
    built = [_variable(catalog[name], sample_dims, computed, dtype, limits, stores) for name in names]
    request = replace(
        request,
        variables={spec.name: spec for spec, _, _, _ in built},
        source={spec.name: where for spec, _, _, where in built},
    )
    materials = Materials(
        parts={spec.name: parts for spec, parts, traced, _ in built if spec.kind != "memory"},
        value_dtypes={spec.name: traced.dtype for spec, _, traced, _ in built},
        memory={spec.name: traced.values for spec, _, traced, _ in built if traced.values is not None},
    )
    return _Traced(catalog, request, {spec.name: parts for spec, parts, _, _ in built}, materials)


def make_reader(
    source: xr.Dataset | Catalog,
    asked: Asked,
    *,
    memory: int | str | None = None,
    dtype: npt.DTypeLike | None = None,
    computed: Literal["raise", "load"] = "raise",
    max_inflight: int | None = None,
    hedge: bool = False,
) -> Reader:
    """A reader, after one small block of every variable was read both ways and compared."""
    if computed not in ("raise", "load"):
        raise RequestError(f"computed must be 'raise' or 'load', but got {computed!r}; give one of them")
    ceiling = None if memory is None else parse_bytes(memory)
    limits = remote_limits(Limits(), max_inflight, hedge)
    traced = _traced(source, asked, computed, dtype, limits)
    request = traced.request
    if len(traced.catalog.datasets) > 1:
        raise RequestError(
            f"a reader must read from one dataset, but got {len(traced.catalog.datasets)} that are joined "
            f"({', '.join(map(repr, traced.catalog.datasets))}); make a reader of each, or a loader with anchors="
        )
    groups = tuple(AccessGroup((x,), g.columns) for g in access_groups(request) for x in g.layouts)
    # A read is copied unit by unit, so one of each variable is enough; what it returns is the caller's.
    budget = divide(groups, [1] * len(groups), 0, ceiling, limits)
    verify(traced.catalog, request, groups, traced.materials)
    context = context_of(request, traced.catalog, None)
    return Reader(Readable(request, groups, budget, traced.materials, context, limits))


def context_of(request: Request, catalog: Catalog, stacks: Mapping[str, Stack] | None) -> BatchContext:
    """What batches say about their arrays."""
    names = [*request.variables]
    homes = {name: catalog.home(name) for name in names}
    outlines = {}
    for home, ds in catalog.datasets.items():
        own = [catalog[n].variable for n in names if homes[n] == home]
        dims = {d for variable in own for d in variable.dims}
        coords = {n: c for n, c in ds.coords.items() if set(c.dims) <= dims}
        outlines[home] = ds.coords.to_dataset()[list(coords)].assign_attrs(ds.attrs)
    roles, forecast = roles_of(catalog.primary), None
    lead_dim = request.sample_dims[request.lead_axis]
    if roles.lead_time is not None and roles.init_time == lead_dim:
        try:
            forecast = Forecast(roles.lead_time, lead_times(catalog.primary, roles.lead_time))
        except RequestError as error:
            # Such forecasts can be read all the same; only who asks for valid times is told.
            forecast = Forecast(roles.lead_time, None, str(error))
    return BatchContext(request, stacks, outlines, homes, {n: dict(catalog[n].attrs) for n in names}, forecast)


def make_splits(source: xr.Dataset | Catalog, asked: Asked, wanted: SplitAsked) -> Manifest:
    """Split the labels of a dataset, and note the stores that they belong to; reads no data."""
    catalog = Catalog.of(source)
    splits, names = splits_of(catalog, asked, wanted)
    # Sorted, since a store that lists its arrays as they come has them in another order every time.
    places = {name: where for name in sorted(names) if (where := _identity(catalog[name])) is not None}
    return Manifest.of_splits(splits, places)


def _identity(array: xr.DataArray) -> dict[str, Any] | None:
    # Tracing would load dates and the like to memory, and what cannot be traced has no place that could be named.
    if array.dtype.kind not in PLAIN:
        return None
    try:
        return identity(trace(array), ask=True)
    except InsituError:
        return None


def make_loader(built: Built) -> Loader:
    """A loader, after one small block of every variable was read both ways and compared."""
    verify(built.catalog, built.plan.request, built.plan.groups, built.materials)
    options: dict[str, Any] = {"progress": built.progress, "transforms": built.transforms}
    return Loader(built.plan, built.materials, built.context, built.limits, **options)


def _tracer(
    catalog: Catalog, sample_dims: tuple[str, ...], limits: Limits, known: Mapping[str, VariableSpec]
) -> Callable[[str], VariableSpec | None]:
    """Traces a variable that need not be one that is read; None where it cannot be read in place."""

    def spec_of(name: str) -> VariableSpec | None:
        if name in known:
            return known[name]
        try:
            return _variable(catalog[name], sample_dims, "raise", None, limits, {})[0]
        except InsituError:
            return None

    return spec_of


def _check_grids(catalog: Catalog, stacks: Mapping[str, Stack]) -> None:
    """Refuse to stack fields whose grids have the same sizes but other labels: datasets that are joined may differ."""
    for stack in stacks.values():
        first, *others = dict.fromkeys(block.variable for block in stack.blocks)
        for name in others if len(catalog.datasets) > 1 else ():
            for dim in stack.grid_dims:
                ours, theirs = (catalog[n].coords.get(dim) for n in (first, name))
                if ours is not None and theirs is not None and not np.array_equal(ours.to_numpy(), theirs.to_numpy()):
                    spans = [f"{labels.values[0]} to {labels.values[-1]}" for labels in (ours, theirs)]
                    raise RequestError(
                        f"variables of a stacked layout must have one grid, but {first!r} and {name!r} have other "
                        f"labels of {dim!r} ({' and '.join(spans)}); select the same grid, or use layout='dict'"
                    )


def _check_statics(catalog: Catalog, statics: tuple[str, ...], sample_dims: tuple[str, ...], names: list[str]) -> None:
    for name in statics:
        if set(sample_dims) & set(catalog[name].dims):
            raise RequestError(
                f"static {name!r} must not have the sample dimension, but got {tuple(map(str, catalog[name].dims))}; "
                "ask for it in variables="
            )
        if names.count(name) > 1:
            raise RequestError(f"variable {name!r} must be asked for once, but it is a static as well; drop one")


def _variable(
    array: xr.DataArray,
    sample_dims: tuple[str, ...],
    computed: Literal["raise", "load"],
    dtype: Any,
    limits: Limits,
    stores: dict[int, Source],
) -> tuple[VariableSpec, tuple[Part, ...], TracedVariable, dict[str, Any]]:
    traced = trace(array, computed=computed)
    delivered = _delivered_dtype(traced, dtype)
    if traced.kind == "memory":
        spec = VariableSpec(traced.name, "memory", traced.dims, traced.shape, delivered, note=traced.note)
        return spec, (), traced, {"kind": "memory"}
    if traced.kind == "stored" and (reason := _unplannable(traced, sample_dims)):
        traced = replace(
            traced,
            kind="foreign",
            segments=(),
            read=reader(array.variable),
            preferred_chunks=hinted_chunks(array.variable),
            note=reason,
        )
    if traced.kind == "foreign":
        return _foreign(traced, sample_dims, delivered)
    return _stored(traced, delivered, limits, stores)


def _delivered_dtype(traced: TracedVariable, dtype: Any) -> np.dtype[Any]:
    if traced.dtype.kind in "OT":
        raise DtypeError(
            f"variable {traced.name!r} must have a dtype of fixed size, but got {traced.dtype} (text or objects); "
            "leave it out, or keep it as a coordinate"
        )
    if dtype is None:
        return traced.dtype
    try:
        wanted: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise RequestError(f"dtype must be one that numpy knows, but got {dtype!r}; write 'float32' or so") from error
    if traced.dtype.kind not in "biufc" or wanted.kind not in "biufc":
        raise DtypeError(
            f"variable {traced.name!r} must be numeric for dtype={wanted}, but got {traced.dtype}; "
            "leave it out, or leave out dtype="
        )
    return wanted


def _unplannable(traced: TracedVariable, sample_dims: tuple[str, ...]) -> str:
    """Why a stored variable has to be read through xarray after all."""
    if traced.concat_dim is not None and traced.concat_dim not in sample_dims:
        return f"several stores along {traced.concat_dim!r}, which is not drawn along"
    for dim in (d for d in sample_dims if d in traced.dims):
        if any(dim not in segment.axis_dims for segment in traced.segments):
            return f"{dim!r} is not stored"
        # All stores that follow one another share their units along the other dimensions.
        several = len(traced.segments) > 1 and dim != traced.concat_dim
        if several and len({_cut(segment, dim) for segment in traced.segments}) > 1:
            return f"several stores whose chunks along {dim!r} differ"
    return ""


def _cut(segment: Segment, dim: str) -> object:
    """How the positions along a dimension fall into the chunks of a stored array."""
    axis = segment.axis_dims.index(dim)
    return selection_key(chunk_grids(segment.array)[axis], segment.index[axis])


def _stored(
    traced: TracedVariable, delivered: np.dtype[Any], limits: Limits, stores: dict[int, Source]
) -> tuple[VariableSpec, tuple[Part, ...], TracedVariable, dict[str, Any]]:
    sources = [ZarrSource(segment.array, limits.max_gap_bytes) for segment in traced.segments]
    axes = tuple(
        StoredAxes(source.stored.grids, segment.index, segment.axis_dims)
        for source, segment in zip(sources, traced.segments, strict=True)
    )
    itemsize = max(source.stored.dtype.itemsize for source in sources)
    chunk_bytes = max(1, max(a.chunk_elements for a in axes) * itemsize)
    encoded = {source.stored.encoded_chunk_bytes() for source in sources}
    spec = VariableSpec(
        traced.name,
        "stored",
        traced.dims,
        traced.shape,
        delivered,
        segments=axes,
        concat_dim=traced.concat_dim,
        stored_itemsize=itemsize,
        value_itemsize=traced.dtype.itemsize if any(s.functions for s in traced.segments) else 0,
        chunks_per_job=max(1, min(limits.job_bytes // chunk_bytes, max(s.stored.chunks_per_object for s in sources))),
        asynchronous=not all(s.synchronous for s in sources),
        mixed=len({s.synchronous for s in sources}) > 1,
        encoded_chunk_bytes=encoded.pop() if len(encoded) == 1 else 0,
        note=traced.note,
    )
    parts = tuple(Part(source, s.functions) for source, s in zip(sources, traced.segments, strict=True))
    return spec, parts, traced, identity(traced, stores=stores)


def _foreign(
    traced: TracedVariable, sample_dims: tuple[str, ...], delivered: np.dtype[Any]
) -> tuple[VariableSpec, tuple[Part, ...], TracedVariable, dict[str, Any]]:
    assert traced.read is not None
    sizes: Mapping[str, int] = dict(zip(traced.dims, traced.shape, strict=True))
    row = math.prod(n for d, n in sizes.items() if d not in sample_dims) * traced.dtype.itemsize
    along = [d for d in traced.dims if d in sample_dims]
    rows = max(1, BLOCK_BYTES // max(1, row))
    block = {d: traced.preferred_chunks.get(d, rows if d == along[-1] else 1) for d in along}
    grids = tuple(AxisGrid(n, size=max(1, min(n, block.get(d, n)))) for d, n in sizes.items())
    axes = StoredAxes(grids, tuple(np.arange(n, dtype=np.int64) for n in traced.shape), traced.dims)
    itemsize = traced.dtype.itemsize
    spec = VariableSpec(
        traced.name,
        "foreign",
        traced.dims,
        traced.shape,
        delivered,
        segments=(axes,),
        stored_itemsize=itemsize,
        note=traced.note,
    )
    source = BlockSource(traced.read, traced.dims, grids, traced.dtype)
    return spec, (Part(source),), traced, {"kind": "foreign"}
