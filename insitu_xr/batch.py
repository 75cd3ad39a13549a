"""One batch: arrays, and everything that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import UnknownNameError
from insitu_xr.plan.arrays import Key
from insitu_xr.plan.channels import Stack
from insitu_xr.plan.request import Request, Take

if TYPE_CHECKING:
    import xarray as xr

    from insitu_xr.geometry.grid import IntArray

Arrays = dict[str, npt.NDArray[Any]] | npt.NDArray[Any]


@dataclass(eq=False)
class BatchContext:
    """What all batches of a loader share: the request, and the dataset's coordinates and attributes."""

    request: Request
    dataset: xr.Dataset
    stacks: Mapping[str, Stack] | None

    @cached_property
    def _names(self) -> list[str]:
        return [*dict.fromkeys(t.variable for t in self.request.takes), *self.request.statics]

    @cached_property
    def outline(self) -> xr.Dataset:
        """The dataset without data variables; coordinates that are stored stay so."""
        return self.dataset[self._names].coords.to_dataset().assign_attrs(self.dataset.attrs)

    @cached_property
    def attrs(self) -> dict[str, dict[Any, Any]]:
        """Attributes of every variable."""
        return {name: dict(self.dataset[name].attrs) for name in self._names}

    @cached_property
    def coords(self) -> xr.Dataset:
        """All coordinates, in memory; read once, when a batch is first asked for them."""
        return self.outline.drop_attrs(deep=False).copy(deep=False).load()

    @cached_property
    def lead_dim(self) -> str:
        """Name of the lead dimension in ``Batch.to_xarray``."""
        return "lead_time" if "lead_time" not in self.dataset.dims else "lead"

    def __getstate__(self) -> dict[str, Any]:
        """What batches need, without data variables, which may be large or lie in memory."""
        names = ("request", "stacks", "outline", "attrs", "lead_dim")
        return {"dataset": None, **{name: getattr(self, name) for name in names}}

    def narrow(self, samples: IntArray) -> BatchContext:
        """The context of some samples alone, in their order and without the rest of the axes: small to send."""
        request = self.request
        anchors, partners = request.anchors[samples].copy(), request.partners[samples]
        axes, kept = list(request.axes), {}
        for k, axis in enumerate(axes):
            wanted = [anchors[:, k], partners.ravel()] if k == request.lead_axis else [anchors[:, k]]
            places = np.unique(np.concatenate(wanted))
            anchors[:, k] = np.searchsorted(places, anchors[:, k])
            partners = np.searchsorted(places, partners) if k == request.lead_axis else partners
            axes[k] = replace(axis, labels=axis.labels[places], ticks=axis.ticks[places])
            kept[axis.dim] = places
        variables = {name: replace(spec, segments=()) for name, spec in request.variables.items()}
        small = object.__new__(BatchContext)
        small.__dict__.update(self.__getstate__())
        small.outline = self.coords.isel(kept, missing_dims="ignore").assign_attrs(self.outline.attrs)
        small.request = replace(
            request,
            axes=tuple(axes),
            anchors=anchors,
            partners=partners,
            variables=variables,
            source={},
            weights=None,
            sampler=None,
            pivot=None,
        )
        return small


class Batch:
    """A batch of samples.

    Arrays belong to the consumer: the loader never writes to them again.

    Attributes
    ----------
    positions : array of int64
        Position of each sample's anchor along the sample dimension, shape (batch,); with several sample dimensions
        (batch, dimensions).
    padded : array of bool
        Samples that repeat some from the start of the epoch, so that all ranks have equally many, shape (batch,).

    Examples
    --------
    >>> import xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))}, {"time": np.arange(4)})
    >>> batch = next(iter(ds.insitu.loader(variables=["t2m"], sample_dim="time", leads=[0, 1], batch_size=2)))
    >>> batch["t2m"].shape, batch.anchors.tolist(), batch.valid_times.tolist()
    ((2, 2, 2), [0, 1], [[0, 1], [1, 2]])
    """

    def __init__(
        self,
        context: BatchContext,
        samples: IntArray,
        arrays: dict[Key, npt.NDArray[Any]],
        padded: npt.NDArray[np.bool_] | None = None,
        positions: IntArray | None = None,
    ) -> None:
        self._context, self._samples, self._arrays = context, samples, arrays
        self.padded = np.zeros(len(samples), bool) if padded is None else padded
        anchors = context.request.anchors[samples]
        #: positions along the axes of the context, which hold a part of the dataset's where the batch was sent
        self._places: IntArray = anchors[:, 0] if anchors.shape[1] == 1 else anchors
        self.positions: IntArray = self._places if positions is None else positions

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (np.arange(len(self)), self._arrays, self.padded, self.positions)
        return Batch, (self._context.narrow(self._samples), *arguments)

    def __len__(self) -> int:
        return len(self._samples)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{'/'.join(filter(None, k))}: {a.dtype}{list(a.shape)}" for k, a in self._arrays.items())
        return f"<insitu_xr.Batch of {len(self)} samples: {arrays}>"

    # -- arrays --------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups: ``("variables",)``, or those of ``inputs`` and ``targets`` that were asked for."""
        return tuple(dict.fromkeys(t.group for t in self._context.request.takes))

    def _group(self, group: str) -> Arrays:
        if group not in self.groups:
            raise UnknownNameError(
                f"group of a batch must be one of {list(self.groups)}, but got {group!r}; ask for it in the loader"
            )
        if self._context.stacks is not None:
            return self._arrays[group, ""]
        return {name: array for (g, name), array in self._arrays.items() if g == group}

    @property
    def variables(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``variables=``."""
        return self._group("variables")

    @property
    def inputs(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``inputs=``."""
        return self._group("inputs")

    @property
    def targets(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``targets=``."""
        return self._group("targets")

    @property
    def statics(self) -> dict[str, npt.NDArray[Any]]:
        """Fields without the sample dimension, by name; empty in the stacked layout, where they are channels."""
        return {name: array for (g, name), array in self._arrays.items() if g == "statics"}

    @property
    def arrays(self) -> dict[Key, npt.NDArray[Any]]:
        """Every array by group and variable; the variable is "" in the stacked layout."""
        return dict(self._arrays)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The array of a variable, shape ``(batch, [lead,] *field)``; a view of its channels in the stacked layout."""
        request, stacks = self._context.request, self._context.stacks
        found = [t.group for t in request.takes if t.variable == name]
        if len(found) > 1:
            raise UnknownNameError(
                f"variable {name!r} must be asked of one group, but it is in {found}; write batch.inputs[{name!r}] "
                f"or batch.targets[{name!r}]"
            )
        if stacks is not None and found:
            blocks = [b for b in stacks[found[0]].blocks if b.variable == name]
            return self._arrays[found[0], ""][:, blocks[0].start : blocks[-1].start + blocks[-1].count]
        group = found[0] if found else "statics"
        if (group, name) not in self._arrays:
            known = sorted({*(t.variable for t in request.takes), *request.statics})
            raise UnknownNameError(f"variable must be one of {known}, but got {name!r}; ask for it in the loader")
        return self._arrays[group, name]

    @property
    def channels(self) -> list[str] | dict[str, list[str]] | None:
        """Labels of the channels in the stacked layout (a dict by group for several groups); None for "dict"."""
        if self._context.stacks is None:
            return None
        named = {group: list(stack.channels) for group, stack in self._context.stacks.items()}
        found: list[str] | dict[str, list[str]] = self._single(named)
        return found

    def _single(self, by_group: dict[str, Any]) -> Any:
        return by_group["variables"] if list(by_group) == ["variables"] else by_group

    # -- labels --------------------------------------------------------------------------------------------------

    @property
    def anchors(self) -> Any:
        """Labels of the anchors, shape (batch,); a dict by dimension for several sample dimensions.

        Times are datetime64 or cftime objects; a dimension without labels gives positions.
        """
        request = self._context.request
        found = {a.dim: a.labels[request.anchors[self._samples, k]] for k, a in enumerate(request.axes)}
        return found if len(found) > 1 else next(iter(found.values()))

    def _takes(self) -> dict[str, Take]:
        """Any one take of each group: all of a group have the same leads."""
        return {t.group: t for t in reversed(self._context.request.takes)}

    @property
    def leads(self) -> Any:
        """Leads, timedelta64[ns] for times, shape (leads,); a dict by group for inputs and targets."""
        offsets = self._context.request.offsets
        return self._single({g: np.array([offsets[c].value for c in t.columns]) for g, t in self._ordered().items()})

    @property
    def valid_times(self) -> Any:
        """Labels of anchor + lead, shape (batch, leads); a dict by group for inputs and targets."""
        return self._single({g: self._valid(t) for g, t in self._ordered().items()})

    def _ordered(self) -> dict[str, Take]:
        takes = self._takes()
        return {group: takes[group] for group in self.groups}

    def _valid(self, take: Take) -> npt.NDArray[Any]:
        request = self._context.request
        partners = request.partners[self._samples][:, list(take.columns)]
        return np.asarray(request.axes[request.lead_axis].labels[partners])

    # -- xarray --------------------------------------------------------------------------------------------------

    @property
    def coords(self) -> xr.Dataset:
        """Coordinates of the batch, as a Dataset without data variables."""
        request, every = self._context.request, self._context.coords
        if len(request.sample_dims) == 1:
            # A dimension without a coordinate is in none of them.
            return every.isel({request.sample_dims[0]: self._places}, missing_dims="ignore")
        import xarray as xr

        chosen = {
            dim: xr.DataArray(self._places[:, k], dims="sample")
            for k, dim in enumerate(request.sample_dims)
            if dim in every.dims
        }
        return every.isel(chosen)

    def to_xarray(self, group: str | None = None) -> Any:
        """The batch as xarray.

        Without leads this is identical to ``ds[variables].isel({sample_dim: batch.positions})``. With leads the
        sample dimension is followed by a dimension ``lead_time``, and ``valid_time`` is a coordinate. With several
        sample dimensions, they become one dimension ``sample``.

        Parameters
        ----------
        group : str, optional
            "variables", "inputs" or "targets".

        Returns
        -------
        xarray.Dataset or xarray.DataTree
            A Dataset for one group; without ``group``, a DataTree if there are several.
        """
        import xarray as xr

        if group is None and len(self.groups) > 1:
            return xr.DataTree.from_dict({name: self.to_xarray(name) for name in self.groups})
        group = self.groups[0] if group is None else group
        if self._context.stacks is not None:
            return self._stacked_dataset(group)
        takes = [t for t in self._context.request.takes if t.group == group]
        if not takes:
            self._group(group)  # says which groups there are
        coords = self.coords
        arrays = {t.variable: self._variable(t, self._arrays[t.group, t.variable]) for t in takes}
        for name in self._context.request.statics:
            spec = self._context.request.variables[name]
            arrays[name] = xr.Variable(spec.dims, self._arrays["statics", name], self._context.attrs[name])
        keep = [n for n, c in coords.variables.items() if any(set(c.dims) <= set(a.dims) for a in arrays.values())]
        dataset = coords[keep].assign(arrays)
        dataset.attrs = dict(self._context.outline.attrs)
        return self._with_leads(dataset, takes[0]) if takes[0].windowed else dataset

    def _sample_dim(self) -> str:
        dims = self._context.request.sample_dims
        return dims[0] if len(dims) == 1 else "sample"

    def _variable(self, take: Take, array: npt.NDArray[Any]) -> xr.Variable:
        import xarray as xr

        request = self._context.request
        dims = request.variables[take.variable].dims
        attrs = self._context.attrs[take.variable]
        sample = self._sample_dim()
        field = [d for d in dims if d not in request.sample_dims]
        if take.windowed:
            return xr.Variable((sample, self._context.lead_dim, *field), array, attrs)
        variable = xr.Variable((sample, *field), array, attrs)
        return variable.transpose(*dims) if sample in dims else variable

    def _with_leads(self, dataset: xr.Dataset, take: Take) -> xr.Dataset:
        request, lead = self._context.request, self._context.lead_dim
        values = np.array([request.offsets[c].value for c in take.columns])
        dataset = dataset.assign_coords({lead: (lead, values)})
        if request.axes[request.lead_axis].kind == "time":
            dataset = dataset.assign_coords(valid_time=((self._sample_dim(), lead), self._valid(take)))
        return dataset

    def _stacked_dataset(self, group: str) -> xr.Dataset:
        import xarray as xr

        assert self._context.stacks is not None
        self._group(group)
        stack, sample = self._context.stacks[group], self._sample_dim()
        variable = xr.Variable((sample, "channel", *stack.grid_dims), self._arrays[group, ""])
        coords = self.coords
        keep = [n for n, c in coords.variables.items() if set(c.dims) <= set(variable.dims)]
        return coords[keep].assign({group: variable}).assign_coords(channel=("channel", list(stack.channels)))
