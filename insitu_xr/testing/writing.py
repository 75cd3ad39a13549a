"""Write small datasets straight with zarr, every detail of the stored arrays given."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from insitu_xr.testing.stores import is_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from zarr.abc.store import Store

#: Chunk size per axis, or the sizes of all chunks of each axis (rectilinear).
type Edges = tuple[int, ...] | tuple[tuple[int, ...], ...]

FILL = -999
#: Stored dtype and attributes of each kind of variable.
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "float32": ("<f4", {}),
    "float64": ("<f8", {}),
    "big_endian": (">f4", {}),
    "int32": ("<i4", {}),
    "int16_big": (">i2", {}),
    "uint8": ("|u1", {}),
    "bool": ("|b1", {}),
    "bool_as_int8": ("|i1", {"dtype": "bool"}),
    "unsigned": ("|i1", {"_Unsigned": "true"}),
    "packed": ("<i2", {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": FILL}),
    "masked": ("<i2", {"_FillValue": FILL}),
    "scaled": ("<i2", {"scale_factor": 0.5}),
    "missing": ("<i4", {"missing_value": FILL}),
}


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """One stored array, in every detail."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: Edges
    #: One of `KINDS`.
    kind: str = "float32"
    shards: tuple[int, ...] | None = None
    compressed: bool = True
    #: Zarr v2: whether the metadata have a fill value, which xarray takes for the missing value.
    fill: bool = True
    #: Leave chunks of nothing but the fill value unwritten, and have some.
    sparse: bool = False
    #: Stored objects to delete after writing, as positions in the sorted list of keys.
    absent: tuple[int, ...] = ()
    seed: int = 0

    def raw(self) -> NDArray[Any]:
        """Draw the stored numbers from the seed."""
        dtype = np.dtype(KINDS[self.kind][0])
        random = np.random.default_rng(self.seed)
        values: NDArray[Any]
        if dtype.kind == "f":
            values = random.normal(size=self.shape)
            values[random.random(self.shape) < 0.05] = np.nan
        elif self.kind in ("bool", "bool_as_int8"):
            values = random.integers(0, 2, self.shape)
        else:
            info = np.iinfo(dtype)
            values = random.integers(max(info.min, -2000), min(info.max, 2000), self.shape, endpoint=True)
            if info.min < FILL:
                values[random.random(self.shape) < 0.1] = FILL
        if self.sparse:
            values[: (self.shape[0] + 1) // 2] = 0
        return values.astype(dtype)


@dataclass(frozen=True)
class StoredDataset:
    """A dataset in every detail, written when it is first looked at.

    Parameters
    ----------
    variables : tuple of StoredVariable
        What to write.
    times : tuple of int
        Labels of the sample dimension.
    sizes : mapping
        Size of every other dimension; each gets a coordinate 0, 10, 20, ...
    zarr_format : {2, 3}
        Format of the store.
    calendar : {"standard", "noleap", "360_day", "numeric", "none"}
        Calendar of the labels (hours since 2000-02-27 in the standard one, days in the others), plain numbers, or none.
    sample_dim : str
        Dimension that ``times`` label.

    Examples
    --------
    >>> variable = StoredVariable("a", dims=("time",), shape=(4,), chunks=(2,), kind="uint8")
    >>> stored = StoredDataset((variable,), times=(0, 6, 12, 24))
    >>> stored.open()["a"].values.dtype
    dtype('uint8')
    >>> data_keys(stored.store, "a")
    ['a/c/0', 'a/c/1']
    """

    variables: tuple[StoredVariable, ...]
    times: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    zarr_format: Literal[2, 3] = 3
    calendar: str = "standard"
    sample_dim: str = "time"

    @cached_property
    def store(self) -> MemoryStore:
        """The written store."""
        store = MemoryStore()
        self.write(store)
        return store

    def open(self, store: Store | None = None, chunks: dict[str, int] | None = None) -> xr.Dataset:
        """Open with xarray, perhaps through a store that wraps `store`; ``chunks={}`` makes dask arrays."""
        with zarr.config.set({"array.rectilinear_chunks": True}):
            source = self.store if store is None else store
            ds: xr.Dataset = xr.open_zarr(source, consolidated=False, chunks=chunks)
            return ds

    def write(self, store: Store) -> None:
        """Write variables and coordinates to a store."""
        with zarr.config.set({"array.rectilinear_chunks": True}):
            group = zarr.create_group(store, zarr_format=self.zarr_format)
            for dim, size in self.sizes.items():
                _write_array(group, dim, (dim,), 10 * np.arange(size), (size,), {})
            if self.calendar != "none":
                labels, attributes = np.array(self.times), _time_attributes(self.calendar)
                _write_array(group, self.sample_dim, (self.sample_dim,), labels, labels.shape, attributes)
            for variable in self.variables:
                _write_variable(group, variable)


def _time_attributes(calendar: str) -> dict[str, Any]:
    if calendar == "numeric":
        return {}
    unit = "hours" if calendar == "standard" else "days"
    return {"units": f"{unit} since 2000-02-27", "calendar": calendar}


def _write_array(
    group: zarr.Group,
    name: str,
    dims: tuple[str, ...],
    values: NDArray[Any],
    chunks: Edges,
    attributes: Mapping[str, Any],
    **options: Any,
) -> None:
    named: dict[str, Any] = {"attributes": dict(attributes)}
    if group.metadata.zarr_format == 2:
        named["attributes"]["_ARRAY_DIMENSIONS"] = list(dims)
        options.setdefault("fill_value", None)
    else:
        named["dimension_names"] = dims
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks, **named, **options)
    array[...] = values


def _write_variable(group: zarr.Group, variable: StoredVariable) -> None:
    attributes = dict(KINDS[variable.kind][1])
    options: dict[str, Any] = {"config": {"write_empty_chunks": not variable.sparse}}
    if variable.shards is not None:
        options["shards"] = variable.shards
    if not variable.compressed:
        options["compressors"] = None
    if group.metadata.zarr_format == 2:
        # Here the missing value is the fill value of the array, not an attribute.
        fill = attributes.pop("_FillValue", attributes.get("missing_value", 0))
        # xarray makes objects of a bool array that has one.
        options["fill_value"] = fill if variable.fill and variable.kind != "bool" else None
    raw = variable.raw()
    _write_array(group, variable.name, variable.dims, raw, variable.chunks, attributes, **options)
    _delete(group.store, variable)


def _delete(store: Store, variable: StoredVariable) -> None:
    keys = data_keys(store, variable.name)
    for index in {position % len(keys) for position in variable.absent} if keys else ():
        zarr.core.sync.sync(store.delete(keys[index]))


def data_keys(store: Store, name: str) -> list[str]:
    """Keys of the stored objects of one array, sorted."""

    async def collect() -> list[str]:
        return sorted([key async for key in store.list_prefix(f"{name}/") if not is_metadata(key)])

    return zarr.core.sync.sync(collect())
