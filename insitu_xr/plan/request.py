"""What was asked, resolved to positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.axes import StoredAxes
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis, Offset
from insitu_xr.plan.sharding import Shard

Kind = Literal["stored", "memory", "foreign"]

#: given a generator for the epoch and the number of anchors, the number of the anchor of every draw
Sampler = Callable[[np.random.Generator, int], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class VariableSpec:
    """A variable as the planner sees it."""

    name: str
    kind: Kind
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    #: dtype of the batches
    dtype: np.dtype[Any]
    #: the stored arrays that follow one another along ``concat_dim`` (one, if that is None); none for kind "memory"
    segments: tuple[StoredAxes, ...] = ()
    concat_dim: str | None = None
    #: bytes of one stored element, decoded
    stored_itemsize: int = 0
    #: bytes of one element as xarray shows it, before any cast; 0 where that is the stored number itself
    value_itemsize: int = 0
    #: chunks of one read at most, and whether the store is read on zarr's event loop
    chunks_per_job: int = 1
    asynchronous: bool = False
    #: whether other stores of it are read on the calling thread all the same
    mixed: bool = False
    #: bytes of one stored chunk as it lies in the store, where that is fixed (no compression); 0 where unknown
    encoded_chunk_bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Take:
    """One array of a batch: a variable in a group, at some leads."""

    group: str
    variable: str
    #: columns of ``Request.partners``, one per lead
    columns: tuple[int, ...]
    #: whether the array has a lead axis
    windowed: bool


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """Anchors that were dropped for one reason."""

    reason: str
    count: int
    #: the first few labels, as text
    first: tuple[str, ...]
    #: samples of one label, where several dimensions are drawn along
    each: int = 1

    def __str__(self) -> str:
        more = ", ..." if self.count > self.each * len(self.first) else ""
        each = f", {self.each} samples each" if self.each > 1 else ""
        return f"{self.count} {self.reason} ({', '.join(self.first)}{more}{each})"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A checked request: variables, anchors and partners as positions.

    Attributes
    ----------
    anchors : array of int64, shape (samples, sample dims)
        Positions of each anchor.
    partners : array of int64, shape (samples, columns)
        Positions of anchor + lead along the dimension that leads move along, ``sample_dims[lead_axis]``.
    targets : tuple of LabelAxis
        Per column, the axis that its partners are positions on; empty where that is the axis of the anchors.
    """

    sample_dims: tuple[str, ...]
    axes: tuple[LabelAxis, ...]
    lead_axis: int
    offsets: tuple[Offset, ...]
    variables: Mapping[str, VariableSpec]
    takes: tuple[Take, ...]
    statics: tuple[str, ...]
    anchors: IntArray
    partners: IntArray
    batch_size: int
    targets: tuple[LabelAxis, ...] = ()
    #: True means "block"
    shuffle: bool | Literal["block", "global"] = False
    seed: int = 0
    drop_last: bool = False
    layout: Literal["dict", "stacked"] = "dict"
    dropped: tuple[Dropped, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    #: samples that are mixed at once, or the decoded bytes of their chunks; by default a few batches and runs
    shuffle_window: int | None = None
    shuffle_bytes: int | None = None
    #: per sample, how often it is drawn relative to others
    weights: npt.NDArray[np.float64] | None = None
    #: draws the order itself
    sampler: Sampler | None = None
    shard: Shard = field(default_factory=Shard)
    #: the variable along whose chunks shuffling keeps neighbours together; it need not be one that is read, so that
    #: loaders of different variables of a dataset draw the same order
    pivot: VariableSpec | None = None

    def __len__(self) -> int:
        """Number of samples in an epoch."""
        return len(self.anchors)

    @property
    def n_batches(self) -> int:
        """Number of batches in an epoch, of one rank."""
        n = self.shard.size(len(self.anchors))
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def sharded(self, shard: Shard) -> Self:
        """The same request for one rank of several.

        Raises
        ------
        RequestError
            If the rank is left without a batch.
        """
        request, size = replace(self, shard=shard), shard.size(len(self))
        if not request.n_batches:
            of = "" if shard.world_size == 1 else f" of each of {shard.world_size} ranks"
            raise RequestError(
                f"batch_size must be at most the {size} anchors{of} with drop_last=True, but got {self.batch_size}; "
                "lower it, or keep the last batch"
            )
        # A batch holds all samples at most; a larger number only says "all in one".
        return replace(request, batch_size=min(self.batch_size, size))

    def field_shape(self, variable: str) -> tuple[int, ...]:
        """Shape of one sample of a variable."""
        spec = self.variables[variable]
        return tuple(n for d, n in zip(spec.dims, spec.shape, strict=True) if d not in self.sample_dims)

    def columns_of(self, variable: str) -> tuple[int, ...]:
        """All columns at which a variable is wanted, in order."""
        return tuple(sorted({c for t in self.takes if t.variable == variable for c in t.columns}))

    def target(self, column: int) -> LabelAxis:
        """The axis that the partners of a column are positions on."""
        return self.targets[column] if self.targets else self.axes[self.lead_axis]

    def coordinates(self, samples: npt.NDArray[Any], column: int) -> list[IntArray]:
        """Positions along every sample dimension of some samples at one column."""
        positions = [self.anchors[samples, k] for k in range(len(self.sample_dims))]
        positions[self.lead_axis] = self.partners[samples, column]
        return positions
