"""One batch: arrays, and everything that says what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.times import LabelAxis
from insitu_xr.labelled import coords_of, to_xarray
from insitu_xr.plan.arrays import Key
from insitu_xr.plan.channels import Stack
from insitu_xr.plan.request import Request, Take

if TYPE_CHECKING:
    import xarray as xr

    from insitu_xr.geometry.grid import IntArray

Arrays = dict[str, npt.NDArray[Any]] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Lead times of a forecast, which valid times are counted with."""

    lead_dim: str
    #: None where nothing can be counted with them, as with months; ``reason`` says so
    lead_times: npt.NDArray[np.timedelta64] | None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class BatchContext:
    """What all batches of a loader share: the request, and the datasets' coordinates and attributes.

    Attributes
    ----------
    outlines : mapping of dataset to Dataset
        The datasets without data variables; the name of a single one is "".
    homes : mapping of variable to dataset
        The dataset that each variable is in.
    attrs : mapping of variable to dict
        Attributes of every variable.
    """

    request: Request
    stacks: Mapping[str, Stack] | None
    outlines: Mapping[str, xr.Dataset]
    homes: Mapping[str, str]
    attrs: Mapping[str, dict[Any, Any]]
    forecast: Forecast | None = None

    @cached_property
    def coords(self) -> dict[str, xr.Dataset]:
        """All coordinates, in memory; read once, when a batch is first asked for them."""
        return {home: outline.copy(deep=False).load() for home, outline in self.outlines.items()}

    @property
    def first(self) -> str:
        """The dataset whose labels are the anchors."""
        return next(iter(self.outlines))

    def narrow(self, samples: IntArray) -> BatchContext:
        """The context of some samples alone, in their order and without the rest of the axes: small to send."""
        request = self.request
        anchors, partners = request.anchors[samples].copy(), request.partners[samples].copy()
        axes, cut = [], {}
        for k, axis in enumerate(request.axes):
            mine = [c for c in range(partners.shape[1]) if k == request.lead_axis and request.target(c) is axis]
            places = np.unique(np.concatenate([anchors[:, k], partners[:, mine].ravel()]))
            anchors[:, k], partners[:, mine] = (
                np.searchsorted(places, anchors[:, k]),
                np.searchsorted(places, partners[:, mine]),
            )
            axes.append(_part(axis, places))
            cut[axis.dim] = places
        targets = []
        for c in range(partners.shape[1]):
            target = request.target(c)
            if target is request.axes[request.lead_axis]:
                targets.append(axes[request.lead_axis])
                continue
            places = np.unique(partners[:, c])
            partners[:, c] = np.searchsorted(places, partners[:, c])
            targets.append(_part(target, places))
        lead = request.axes[request.lead_axis].dim
        outlines = {}
        for home, every in self.coords.items():
            # What another dataset says along the sample dimension belongs to no anchor.
            other = [] if home == self.first else [n for n, c in every.coords.items() if lead in c.dims]
            outlines[home] = every.drop_vars(other).isel(cut, missing_dims="ignore")
        small = replace(
            request,
            axes=tuple(axes),
            targets=tuple(targets),
            anchors=anchors,
            partners=partners,
            variables={name: replace(spec, segments=()) for name, spec in request.variables.items()},
            source={},
            weights=None,
            sampler=None,
            pivot=None,
        )
        forecast = self.forecast
        if forecast is not None and forecast.lead_times is not None and forecast.lead_dim in cut:
            forecast = replace(forecast, lead_times=forecast.lead_times[cut[forecast.lead_dim]])
        return replace(self, request=small, outlines=outlines, forecast=forecast)


def _added_to(valid: npt.NDArray[Any], leads: npt.NDArray[np.timedelta64]) -> Any:
    """Lead times as what can be added to labels."""
    if valid.dtype.kind == "O":
        return leads.astype("m8[us]").astype(object)
    # In the unit of the labels where that is exact: nanoseconds cannot hold all years.
    own = leads.astype(f"m8[{np.datetime_data(valid.dtype)[0]}]")
    return own if np.array_equal(own, leads) else leads


def _part(axis: LabelAxis, places: IntArray) -> LabelAxis:
    return replace(axis, labels=axis.labels[places], ticks=axis.ticks[places])


class Batch:
    """A batch of samples.

    Arrays belong to the consumer: the loader never writes to them again.

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
        self.context, self._samples, self._arrays = context, samples, arrays
        self._padded, self._positions = padded, positions

    @property
    def samples(self) -> IntArray:
        """Numbers of the samples among those of the context, shape (batch,)."""
        return self._samples

    def replaced(self, arrays: dict[Key, npt.NDArray[Any]]) -> Batch:
        """The same samples with other arrays, of the same shapes."""
        return Batch(self.context, self._samples, arrays, self._padded, self._positions)

    @cached_property
    def padded(self) -> npt.NDArray[np.bool_]:
        """Samples that repeat some from the start of the epoch, so that all ranks have equally many, shape (batch,)."""
        return np.zeros(len(self._samples), bool) if self._padded is None else self._padded

    @cached_property
    def places(self) -> IntArray:
        """Positions along the axes of the context, which hold a part of the dataset's where the batch was sent."""
        anchors: IntArray = self.context.request.anchors[self._samples]
        return anchors[:, 0] if anchors.shape[1] == 1 else anchors

    @cached_property
    def positions(self) -> IntArray:
        """Position of each sample's anchor along the sample dimension, shape (batch,), or (batch, dimensions)."""
        return self.places if self._positions is None else self._positions

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (np.arange(len(self)), self._arrays, self.padded, self.positions)
        return Batch, (self.context.narrow(self._samples), *arguments)

    def __len__(self) -> int:
        return len(self._samples)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{'/'.join(filter(None, k))}: {a.dtype}{list(a.shape)}" for k, a in self._arrays.items())
        return f"<insitu_xr.Batch of {len(self)} samples: {arrays}>"

    # -- arrays --------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups: ``("variables",)``, or those of ``inputs`` and ``targets`` that were asked for."""
        return tuple(dict.fromkeys(t.group for t in self.context.request.takes))

    def group(self, group: str) -> Arrays:
        """The arrays of a group: by name, or one array in the stacked layout."""
        if group not in self.groups:
            raise UnknownNameError(
                f"group of a batch must be one of {list(self.groups)}, but got {group!r}; ask for it in the loader"
            )
        if self.context.stacks is not None:
            return self._arrays[group, ""]
        return {name: array for (g, name), array in self._arrays.items() if g == group}

    @property
    def variables(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``variables=``."""
        return self.group("variables")

    @property
    def inputs(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``inputs=``."""
        return self.group("inputs")

    @property
    def targets(self) -> Arrays:
        """Arrays by name, or one array ``(batch, channel, *grid)`` in the stacked layout, of ``targets=``."""
        return self.group("targets")

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
        request, stacks = self.context.request, self.context.stacks
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
        if self.context.stacks is None:
            return None
        named = {group: list(stack.channels) for group, stack in self.context.stacks.items()}
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
        request = self.context.request
        found = {a.dim: a.labels[request.anchors[self._samples, k]] for k, a in enumerate(request.axes)}
        return found if len(found) > 1 else next(iter(found.values()))

    def takes(self, group: str) -> list[Take]:
        """The takes of a group, in order."""
        return [t for t in self.context.request.takes if t.group == group]

    @property
    def leads(self) -> Any:
        """Leads, timedelta64[ns] for times, shape (leads,).

        A dict by group for inputs and targets; a dict by variable where variables of a group have different leads.
        """
        return self._single({group: self._alike(group, self._lead_values) for group in self.groups})

    def _lead_values(self, take: Take) -> npt.NDArray[Any]:
        return np.array([self.context.request.offsets[c].value for c in take.columns])

    @property
    def valid_times(self) -> Any:
        """Labels of anchor + lead, shape (batch, leads); organised like ``leads``.

        For a forecast, drawn along its init times, the valid time is init + lead time: shape
        ``(batch, [leads,] lead times)``, or (batch, leads) where lead times are drawn along as well.
        """
        return self._single({group: self._alike(group, self.valid_times_of) for group in self.groups})

    def _alike(self, group: str, of: Callable[[Take], npt.NDArray[Any]]) -> Any:
        found = {t.variable: of(t) for t in self.takes(group)}
        first = next(iter(found.values()))
        same = all(v.shape == first.shape and np.array_equal(v, first) for v in found.values())
        return first if same else found

    def valid_times_of(self, take: Take) -> npt.NDArray[Any]:
        """Valid times of one array."""
        request, forecast = self.context.request, self.context.forecast
        partners = request.partners[self._samples][:, list(take.columns)]
        valid = np.stack([request.target(c).labels[partners[:, k]] for k, c in enumerate(take.columns)], axis=1)
        if forecast is None or forecast.lead_dim not in request.variables[take.variable].dims:
            return valid
        if valid.dtype.kind not in "MO":  # numbered init times
            return valid
        if forecast.lead_times is None:
            raise RequestError(forecast.reason)
        leads = _added_to(valid, forecast.lead_times)
        if forecast.lead_dim in request.sample_dims:
            drawn = request.anchors[self._samples, request.sample_dims.index(forecast.lead_dim)]
            return np.asarray(valid + leads[drawn][:, None])
        every = valid[:, :, None] + leads
        return np.asarray(every if take.windowed else every[:, 0])

    # -- xarray --------------------------------------------------------------------------------------------------

    @property
    def coords(self) -> Any:
        """Coordinates of the batch, as a Dataset without data variables; a dict by dataset for joined ones."""
        found = {home: coords_of(self, home) for home in self.context.outlines}
        return found if len(found) > 1 else found[self.context.first]

    def to_xarray(self, group: str | None = None) -> Any:
        """The batch as xarray.

        Without leads this is identical to ``ds[variables].isel({sample_dim: batch.positions})``. With leads the
        sample dimension is followed by a dimension ``lead_time``, and ``valid_time`` is a coordinate; where variables
        of a group have different leads, both carry the variable's name. With several sample dimensions, they become
        one dimension ``sample``.

        Parameters
        ----------
        group : str, optional
            "variables", "inputs" or "targets".

        Returns
        -------
        xarray.Dataset or xarray.DataTree
            A Dataset; a DataTree where there are several groups or joined datasets.
        """
        return to_xarray(self, group)
