"""A batch with its labels: as a Dataset, or a tree of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.plan.request import Take

if TYPE_CHECKING:
    import xarray as xr

    from insitu_xr.batch import Batch


def to_xarray(batch: Batch, group: str | None) -> Any:
    """A batch as xarray; see ``Batch.to_xarray``."""
    import xarray as xr

    for name in [] if group is None else [group]:
        batch.group(name)  # says which groups there are
    groups = batch.groups if group is None else (group,)
    if batch.context.stacks is not None:
        stacked = {name: _stacked(batch, name) for name in groups}
        return xr.DataTree.from_dict(stacked) if len(groups) > 1 else stacked[groups[0]]
    homes = batch.context.outlines
    found = {(g, home): _dataset(batch, g, home) for g in groups for home in homes if _takes_part(batch, g, home)}
    if len(groups) == 1 and len(homes) == 1:
        return next(iter(found.values()))
    parts = {
        "/".join(k for k in ((g,) if len(groups) > 1 else ()) + ((home,) if len(homes) > 1 else ())): ds
        for (g, home), ds in found.items()
    }
    return xr.DataTree.from_dict(parts)


def coords_of(batch: Batch, home: str) -> xr.Dataset:
    """Coordinates of a batch in one of its datasets."""
    import xarray as xr

    context, request = batch.context, batch.context.request
    every = context.coords[home]
    if home != context.first:
        # Its labels are found by lead: what it says along the sample dimension belongs to no anchor.
        dim = request.sample_dims[0]
        field = every.drop_vars([n for n, c in every.coords.items() if dim in c.dims])
        return field.assign_coords({dim: context.coords[context.first][dim].isel({dim: batch.places})})
    if len(request.sample_dims) == 1:
        # A dimension without a coordinate is in none of them.
        return every.isel({request.sample_dims[0]: batch.places}, missing_dims="ignore")
    chosen = {
        dim: xr.DataArray(batch.places[:, k], dims="sample")
        for k, dim in enumerate(request.sample_dims)
        if dim in every.dims
    }
    return every.isel(chosen)


def _takes_part(batch: Batch, group: str, home: str) -> bool:
    static = any(batch.context.homes[name] == home for name in batch.context.request.statics)
    return static or bool(_members(batch, group, home))


def _members(batch: Batch, group: str, home: str) -> list[Take]:
    return [t for t in batch.takes(group) if batch.context.homes[t.variable] == home]


def _dataset(batch: Batch, group: str, home: str) -> xr.Dataset:
    import xarray as xr

    context, coords = batch.context, coords_of(batch, home)
    takes = _members(batch, group, home)
    names = {t: t.variable.removeprefix(f"{home}/") for t in takes}
    alike = len({t.columns for t in takes}) == 1
    arrays = {names[t]: _variable(batch, t, _lead_dim(batch, t, alike)) for t in takes}
    for name in context.request.statics:
        if context.homes[name] == home:
            spec = context.request.variables[name]
            arrays[name.removeprefix(f"{home}/")] = xr.Variable(spec.dims, batch.statics[name], context.attrs[name])
    keep = [n for n, c in coords.variables.items() if any(set(c.dims) <= set(a.dims) for a in arrays.values())]
    dataset = coords[keep].assign(arrays)
    dataset.attrs = dict(context.outlines[home].attrs)
    for take in takes[:1] if alike else takes:
        if take.windowed:
            dataset = _with_leads(batch, dataset, take, _lead_dim(batch, take, alike))
    return dataset


def _sample_dim(batch: Batch) -> str:
    dims = batch.context.request.sample_dims
    return dims[0] if len(dims) == 1 else "sample"


def _lead_dim(batch: Batch, take: Take, alike: bool) -> str:
    """Name of the lead dimension: that of a forecast's lead times is taken."""
    taken = any("lead_time" in outline.dims for outline in batch.context.outlines.values())
    name = "lead" if taken else "lead_time"
    return name if alike else f"{name}_{take.variable.replace('/', '_')}"


def _variable(batch: Batch, take: Take, lead_dim: str) -> xr.Variable:
    import xarray as xr

    request, array = batch.context.request, batch.arrays[take.group, take.variable]
    dims, sample = request.variables[take.variable].dims, _sample_dim(batch)
    attrs = batch.context.attrs[take.variable]
    field = [d for d in dims if d not in request.sample_dims]
    if take.windowed:
        return xr.Variable((sample, lead_dim, *field), array, attrs)
    variable = xr.Variable((sample, *field), array, attrs)
    return variable.transpose(*dims) if sample in dims else variable


def _with_leads(batch: Batch, dataset: xr.Dataset, take: Take, lead_dim: str) -> xr.Dataset:
    request = batch.context.request
    values = np.array([request.offsets[c].value for c in take.columns])
    dataset = dataset.assign_coords({lead_dim: (lead_dim, values)})
    forecast = batch.context.forecast
    if request.axes[request.lead_axis].kind != "time" or (forecast is not None and forecast.lead_times is None):
        return dataset
    valid = batch.valid_times_of(take)
    if valid.ndim != 2:
        return dataset
    name = lead_dim.replace("lead_time", "valid_time") if "lead_time" in lead_dim else "valid_time"
    return dataset.assign_coords({name: ((_sample_dim(batch), lead_dim), valid)})


def _stacked(batch: Batch, group: str) -> xr.Dataset:
    import xarray as xr

    stacks = batch.context.stacks
    assert stacks is not None
    stack = stacks[group]
    sample = _sample_dim(batch)
    name = "channel" if "channel" not in (sample, *stack.grid_dims) else "channel_"
    variable = xr.Variable((sample, name, *stack.grid_dims), batch.arrays[group, ""])
    coords = coords_of(batch, batch.context.homes[stack.blocks[0].variable])
    keep = [n for n, c in coords.variables.items() if set(c.dims) <= set(variable.dims) and n != name]
    return coords[keep].assign({group: variable}).assign_coords({name: (name, list(stack.channels))})
