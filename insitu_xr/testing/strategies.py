"""Hypothesis strategies: stored datasets, selections on them, windows and requests. All of them tiny.

Examples
--------
>>> from hypothesis import given, settings
>>> @settings(max_examples=3, derandomize=True, deadline=None)
... @given(datasets())
... def check(stored):
...     assert stored.open().sizes["time"] == len(stored.open()["time"])
>>> check()
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from hypothesis import strategies as st

from insitu_xr.testing.oracle import Lead, kept_anchors
from insitu_xr.testing.writing import KINDS, Edges, StoredDataset, StoredVariable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLE_DIM = "time"
FIELD_SIZES = {"level": 2, "y": 5, "x": 6}
CALENDARS = ("standard", "360_day", "noleap", "numeric", "none")


@st.composite
def _edges(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Draw chunk sizes of a rectilinear axis: they sum to its size."""
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
    bounds = [0, *sorted(cuts), size]
    return tuple(int(width) for width in np.diff(bounds))


@st.composite
def _grid(draw: st.DrawFn, shape: tuple[int, ...], zarr_format: Literal[2, 3]) -> tuple[Edges, tuple[int, ...] | None]:
    """Draw chunks and shards of one array."""
    layout = draw(st.sampled_from(["regular", "sharded", "rectilinear"] if zarr_format == 3 else ["regular"]))
    if layout == "rectilinear":
        return tuple(draw(_edges(size)) for size in shape), None
    chunks = tuple(draw(st.integers(-(-size // 5), size)) for size in shape)
    if layout == "regular":
        return chunks, None
    return chunks, tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)


@st.composite
def _variables(draw: st.DrawFn, name: str, sizes: Mapping[str, int], zarr_format: Literal[2, 3]) -> StoredVariable:
    fields = draw(st.lists(st.sampled_from(sorted(set(sizes) - {SAMPLE_DIM})), unique=True, max_size=3))
    dims = tuple(draw(st.permutations([SAMPLE_DIM, *fields])))
    shape = tuple(sizes[dim] for dim in dims)
    chunks, shards = draw(_grid(shape, zarr_format))
    return StoredVariable(
        name=name,
        dims=dims,
        shape=shape,
        kind=draw(st.sampled_from(sorted(KINDS))),
        chunks=chunks,
        shards=shards,
        compressed=draw(st.booleans()),
        fill=draw(st.booleans()),
        sparse=draw(st.booleans()),
        absent=tuple(draw(st.lists(st.integers(0, 63), max_size=2))),
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def datasets(draw: st.DrawFn, *, max_steps: int = 24, max_variables: int = 3) -> StoredDataset:
    """Draw datasets in a MemoryStore: Zarr v2 or v3, any chunking, dtype, calendar and order of dimensions."""
    zarr_format: Literal[2, 3] = draw(st.sampled_from([2, 3]))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=max_steps))
    fields = {dim: draw(st.integers(1, size)) for dim, size in FIELD_SIZES.items()}
    sizes = {SAMPLE_DIM: len(steps), **fields}
    names = ("alpha", "beta", "gamma")[: draw(st.integers(1, max_variables))]
    variables = tuple(draw(_variables(name, sizes, zarr_format)) for name in names)
    return StoredDataset(
        variables,
        times=tuple(int(step) for step in np.cumsum(steps)),
        sizes={dim: fields[dim] for dim in fields if any(dim in variable.dims for variable in variables)},
        zarr_format=zarr_format,
        calendar=draw(st.sampled_from(CALENDARS)),
        sample_dim=SAMPLE_DIM,
    )


@dataclass(frozen=True, slots=True)
class Operation:
    """One indexing operation of xarray: the name of a Dataset method and what to call it with."""

    method: str
    args: tuple[Any, ...] = ()

    def apply(self, ds: xr.Dataset) -> xr.Dataset:
        """Call the method on a dataset."""
        result = getattr(ds, self.method)(*self.args)
        assert isinstance(result, xr.Dataset)
        return result


@dataclass(frozen=True, slots=True)
class Selection:
    """Indexing operations in order."""

    operations: tuple[Operation, ...] = ()

    def apply(self, ds: xr.Dataset) -> xr.Dataset:
        """Carry the operations out."""
        for operation in self.operations:
            ds = operation.apply(ds)
        return ds


@st.composite
def _slices(draw: st.DrawFn, size: int) -> slice:
    """Draw slices that select something, either way."""
    first, last = sorted(draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
    step = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return slice(first, last + 1, step)
    return slice(last, first - 1 if first else None, -step)


def _lists(size: int, *, unique: bool) -> st.SearchStrategy[list[int]]:
    unique_by = (lambda at: at % size) if unique else None
    return st.lists(st.integers(-size, size - 1), min_size=1, max_size=size, unique_by=unique_by)


@st.composite
def _isel(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str) -> Operation:
    dim = draw(st.sampled_from(sorted(str(name) for name in ds.sizes)))
    size = ds.sizes[dim]
    # A label that occurs twice makes partners ambiguous, so only fields repeat.
    ways: list[st.SearchStrategy[Any]] = [_slices(size), _lists(size, unique=dim == sample_dim)]
    ways.append(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    if dim != sample_dim:
        ways.append(st.integers(-size, size - 1))
    return Operation("isel", ({dim: draw(st.one_of(ways))},))


@st.composite
def _sel(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str) -> Operation | None:
    dims = sorted(str(dim) for dim in ds.indexes if dim != sample_dim and dim in ds.sizes)
    if not dims:
        return None
    dim = draw(st.sampled_from(dims))
    labels = ds.indexes[dim].unique().tolist()
    one = st.sampled_from(labels)
    wanted = draw(st.one_of(one, st.lists(one, min_size=1, max_size=3, unique=True)))
    return Operation("sel", ({dim: wanted},)) if ds.indexes[dim].is_unique else None


@st.composite
def _rename(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str) -> Operation | None:
    names = sorted(str(name) for name in {*ds.data_vars, *ds.sizes} - {sample_dim} if not str(name).endswith("_"))
    return Operation("rename", ({name: f"{name}_"},)) if names and (name := draw(st.sampled_from(names))) else None


@st.composite
def _transpose(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str) -> Operation:
    return Operation("transpose", tuple(draw(st.permutations(sorted(str(dim) for dim in ds.sizes)))))


@st.composite
def selections(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str = SAMPLE_DIM, *, max_size: int = 3) -> Selection:
    """Draw selections that leave at least one step of the sample dimension, each label of it once."""
    operations = []
    for _ in range(draw(st.integers(0, max_size))):
        makers = [_isel(ds, sample_dim), _isel(ds, sample_dim), _sel(ds, sample_dim)]
        operation = draw(st.one_of([*makers, _rename(ds, sample_dim), _transpose(ds, sample_dim)]))
        if operation is not None:
            operations.append(operation)
            ds = operation.apply(ds)
    return Selection(tuple(operations))


@st.composite
def windows(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str = SAMPLE_DIM) -> list[Lead] | None:
    """Draw no leads, or leads that at least one anchor satisfies."""
    labels = ds[sample_dim].values if sample_dim in ds.indexes else None
    steps = draw(st.lists(st.integers(-3, 4), min_size=1, max_size=3, unique=True))
    if labels is None or labels.dtype.kind in "iuf":
        leads: list[Lead] = list(steps)
    else:
        unit = "h" if labels.dtype.kind == "M" else "D"
        leads = [f"{step}{unit}" for step in steps]
    # Leads need labels in order, either way.
    ordered = labels is None or len(set(np.sign(np.diff(ds.indexes[sample_dim].argsort())))) <= 1
    return leads if draw(st.booleans()) and ordered and kept_anchors(ds, sample_dim, leads) else None


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of ``ds.insitu.loader``, without the ceiling."""

    variables: tuple[str, ...]
    leads: list[Lead] | None
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    #: Where the ceiling lies: 0 the smallest that is accepted, 1 ample.
    room: float

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``loader`` and ``plan``."""
        return {name: value for name, value in asdict(self).items() if name != "room"} | {
            "variables": list(self.variables)
        }


@st.composite
def requests(draw: st.DrawFn, ds: xr.Dataset, sample_dim: str = SAMPLE_DIM) -> Request:
    """Draw requests for variables of a dataset that have the sample dimension."""
    names: Sequence[str] = sorted(str(name) for name, array in ds.data_vars.items() if sample_dim in array.dims)
    leads = draw(windows(ds, sample_dim))
    batch_size = draw(st.integers(1, 9))
    return Request(
        variables=tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True))),
        leads=leads,
        batch_size=batch_size,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        # An epoch without any batch is refused.
        drop_last=draw(st.booleans()) and batch_size <= len(kept_anchors(ds, sample_dim, leads)),
        room=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
    )
