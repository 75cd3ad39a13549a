"""The scaler: statistics by variable, applied to batches and to arrays with named channels, and undone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.batch import BatchContext
from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.plan.arrays import ArraySpec, Key
from insitu_xr.scaling import keeping
from insitu_xr.scaling.constants import Channel, Constants, over_field, single_or_more, stacked
from insitu_xr.scaling.statistics import Statistics

type Channels = Sequence[str] | Mapping[str, Sequence[str]]
type Carry = Callable[[Constants, Any], Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaler:
    """Means and standard deviations by variable; made by `fit_scaler`.

    A call is `transform`, so that a scaler is itself a transform of batches, on the host or on a device.
    As thread-safe as a dict is.

    Attributes
    ----------
    statistics : mapping of variable to statistics
        Count, mean and standard deviation, and the dimensions that they are kept for.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), [[270.0, 280.0], [280.0, 290.0]])})
    >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", layout="stacked")
    >>> scaler = insitu_xr.fit_scaler(loader)
    >>> scaler
    <insitu_xr.Scaler of 1 channel>
      t2m  280 ± 7.07107
    >>> batch = next(iter(loader))
    >>> scaled = scaler(batch)
    >>> scaled.variables.shape, float(scaled.variables.mean()), scaled.channels
    ((2, 1, 2), 0.0, ['t2m'])
    >>> float(scaler.invert(scaled.variables, channels=batch.channels).max())
    290.0
    """

    statistics: Mapping[str, Statistics]
    _by_context: weakref.WeakKeyDictionary[BatchContext, dict[Key, Constants]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _by_channels: dict[tuple[str, ...], Constants] = field(default_factory=dict)
    _by_variable: dict[str, Constants] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return Scaler, (self.statistics,)

    def __repr__(self) -> str:
        names = self.channels
        lines = [f"<insitu_xr.Scaler of {len(names)} channel{'s' if len(names) != 1 else ''}>"]
        width = max(map(len, names), default=0)
        for variable, statistics in self.statistics.items():
            for c in statistics.by_channel(variable):
                one = (
                    f"{c.mean.item():g} ± {c.std.item():g}" if c.mean.size == 1 else f"at each of {c.mean.size} places"
                )
                lines.append(f"  {c.name:{width}}  {one}")
        return "\n".join(lines)

    @property
    def channels(self) -> list[str]:
        """Names of all channels that it has statistics of, as the stacked layout writes them, without leads."""
        return [n for variable, statistics in self.statistics.items() for n in statistics.axes.names(variable)]

    # -- numbers -------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> xr.Dataset:
        """Means, with a dimension for whatever they are kept for."""
        return self.to_xarray().sel(statistic="mean", drop=True)

    @property
    def std(self) -> xr.Dataset:
        """Standard deviations, with the count as divisor."""
        return self.to_xarray().sel(statistic="std", drop=True)

    @property
    def count(self) -> xr.Dataset:
        """Numbers of values that are not NaN."""
        return self.to_xarray().sel(statistic="count", drop=True).astype(np.int64)

    # -- applying ------------------------------------------------------------------------------------------------

    def __call__(self, batch: Any) -> Any:
        """See `transform`."""
        return self.transform(batch)

    def transform(self, values: Any, *, channels: Channels | None = None) -> Any:
        """Subtract the mean and divide by the standard deviation; what is given stays as it is.

        Parameters
        ----------
        values : Batch, array or mapping
            A batch, of this package or of an adapter. Or an array ``(..., channel, *grid)`` of numpy, torch or whatever
            else has arithmetic, on any device. Or a mapping of variable to array ``(..., *field)``, or of group to
            either.
        channels : sequence of str, or mapping of group to it, optional
            Names of the channels of an array: ``batch.channels``, those of a group, or any of them.

        Returns
        -------
        Batch, array or mapping
            As was given, in the same precision (half precision becomes single, whole numbers become floats).

        Raises
        ------
        InsituError
            If a channel lacks statistics, or was constant; names it.
        """
        return self._apply(Constants.forward, values, channels)

    def output(self, template: Mapping[Key, ArraySpec]) -> Mapping[Key, ArraySpec]:
        """What `transform` makes of the arrays of a batch: whole numbers and half precision become single or more."""
        return {key: spec.replace(dtype=single_or_more(spec.dtype)) for key, spec in template.items()}

    def invert(self, values: Any, *, channels: Channels | None = None) -> Any:
        """Undo `transform`: of batches, and of what a model makes of their channels. Takes the same arguments."""
        return self._apply(Constants.backward, values, channels)

    def _apply(self, carry: Carry, values: Any, channels: Channels | None) -> Any:
        if hasattr(values, "replaced"):  # a batch, of whatever framework
            own = self._of_context(values.context)
            return values.replaced({key: carry(own[key], array) for key, array in values.arrays.items()})
        if isinstance(values, Mapping):
            return {name: self._apply_to_entry(carry, name, entry, channels) for name, entry in values.items()}
        if not channels or isinstance(channels, str | Mapping):
            raise RequestError(
                f"channels must be a list of names for an array, but got {_short(channels)}; give those of its group, "
                "such as channels=batch.channels['inputs']"
            )
        constants = self._of_channels(tuple(channels))
        constants.check_channels(channels, values.shape)
        return carry(constants, values)

    def _apply_to_entry(self, carry: Carry, name: str, values: Any, channels: Channels | None) -> Any:
        """Of a mapping: a group, or a variable."""
        if isinstance(channels, Mapping) and name in channels:
            return self._apply(carry, values, channels[name])
        if isinstance(values, Mapping):
            return self._apply(carry, values, channels)
        if name not in self._by_variable:
            statistics = self._statistics_of(name)
            self._by_variable[name] = over_field(statistics.by_channel(name), *statistics.over_field())
        return carry(self._by_variable[name], values)

    # -- what to apply -------------------------------------------------------------------------------------------

    def _statistics_of(self, variable: str) -> Statistics:
        if variable not in self.statistics:
            raise UnknownNameError(
                f"variable must be one that the scaler has statistics of, {sorted(self.statistics)}, but got "
                f"{variable!r}; fit it on a loader with that variable"
            )
        return self.statistics[variable]

    def _of_channels(self, names: tuple[str, ...]) -> Constants:
        if names not in self._by_channels:
            found = [self._channel(name) for name in names]
            self._by_channels[names] = stacked(found, found[0].grid)
        return self._by_channels[names]

    def _channel(self, name: str) -> Channel:
        known = {c.name: c for variable, found in self.statistics.items() for c in found.by_channel(variable)}
        channel = known.get(name) or known.get(name.rpartition("@")[0])
        if channel is None:
            raise UnknownNameError(
                f"channel must be one that the scaler has statistics of, {_short(list(known))}, but got {name!r}; fit "
                "it on a loader with that channel"
            )
        return channel

    def _of_context(self, context: BatchContext) -> dict[Key, Constants]:
        if context not in self._by_context:
            self._by_context[context] = dict(self._constants(context))
        return self._by_context[context]

    def _constants(self, context: BatchContext) -> Iterator[tuple[Key, Constants]]:
        request = context.request
        here = {name: self._statistics_of(name).within(context, name) for name in request.variables}
        if context.stacks is not None:
            for group, layout in context.stacks.items():
                channels = [c for block in layout.blocks for c in here[block.variable].by_channel(block.variable)]
                yield (group, ""), stacked(channels, layout.grid_dims)
            return
        wanted = [(t.group, t.variable) for t in request.takes] + [("statics", name) for name in request.statics]
        for group, name in wanted:
            yield (group, name), over_field(here[name].by_channel(name), *here[name].over_field())

    # -- keeping -------------------------------------------------------------------------------------------------

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to ``path`` if that is given; floats come back exactly."""
        text = keeping.to_json(self.statistics)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Scaler:
        """Read a scaler from JSON text, or from a file.

        Raises
        ------
        RequestError
            If the content is not a scaler that this version reads.
        """
        inline = isinstance(source, str) and source.lstrip().startswith("{")
        return cls(keeping.from_json(str(source) if inline else Path(source).read_text(encoding="utf-8")))

    def to_xarray(self) -> xr.Dataset:
        """Everything as a Dataset: by variable, along ``statistic`` ("count", "mean", "std") and what is kept."""
        return keeping.to_xarray(self.statistics)

    @classmethod
    def from_xarray(cls, dataset: xr.Dataset) -> Scaler:
        """Undo `to_xarray`.

        Raises
        ------
        RequestError
            If it is not such a Dataset.
        """
        return cls(keeping.from_xarray(dataset))

    def to_zarr(self, store: Any) -> None:
        """Write to a Zarr store, any that xarray can write to, in place of what is there.

        For statistics of every place, which are long in JSON.
        """
        self.to_xarray().to_zarr(store, mode="w", zarr_format=3, consolidated=False)

    @classmethod
    def from_zarr(cls, store: Any) -> Scaler:
        """Undo `to_zarr`."""
        with xr.open_zarr(store, chunks=None, consolidated=False) as dataset:
            return cls.from_xarray(dataset.load())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
