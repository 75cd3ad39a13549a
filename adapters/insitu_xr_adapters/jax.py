"""Batches as jax arrays: ``loader.to("jax")``, over the memory of the batch where jax can, or laid out on devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import DtypeError, MissingExtraError, RequestError

if TYPE_CHECKING:
    from insitu_xr import Batch, Loader

type Key = tuple[str, str]


def to_jax(loader: Loader, sharding: Any = None) -> JaxBatches:
    """Return the batches of a loader with jax arrays.

    Called as ``loader.to("jax")``. On the CPU no value is copied where its memory begins at a multiple of 64 bytes, as
    that of all large arrays does. The memory of a batch is used for another once neither jax nor anyone else refers
    to it.

    Parameters
    ----------
    loader : insitu_xr.Loader
        The loader whose batches are wanted. It stays usable, and stays the owner of its memory and threads: close it,
        not the result. Where jax runs in several processes, and the loader was made without ``rank=`` and
        ``world_size=``, it takes those that this process has in the sharding, or among the processes without one.
    sharding : jax.sharding.Sharding, or mapping of group to it, optional
        How batches are laid out over devices, such as ``NamedSharding(mesh, PartitionSpec("batch"))``. Statics, which
        have no batch axis, are then the same on all devices of a NamedSharding. In several processes arrays are
        global: every process reads the rows that its devices hold. Processes whose devices hold the same rows, since
        fields are divided among them or nothing is, read the same batches. By default the default device.

    Returns
    -------
    JaxBatches
        An iterable of `insitu_xr.Batch` whose arrays are jax arrays; iterating it again is the next epoch.

    Raises
    ------
    MissingExtraError
        Where jax is not installed.
    DtypeError
        Where a variable has a dtype that jax does not have, or does not keep; nothing has been read then.
    RequestError
        Where a batch cannot be laid out so, or the rank of the loader is not that of its devices; nothing has been read
        then.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0, dtype="f4").reshape(4, 2))})
    >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=3)
    >>> [type(batch["t2m"]).__name__ for batch in loader.to("jax")]
    ['ArrayImpl', 'ArrayImpl']
    """
    try:
        import jax
    except ImportError as error:
        message = 'jax must be installed to deliver its arrays, but got no such package; pip install "insitu-xr[jax]"'
        raise MissingExtraError(message) from error
    for key, spec in loader.template.items():
        _check_dtype(key[1] or key[0], spec.dtype)
    shardings = _shardings(loader, sharding)
    parts = _parts_of(loader, shardings)
    _take_place(loader, parts, (jax.process_index(), jax.process_count()))
    batches = JaxBatches(loader, shardings, parts)
    batches._check_shapes()
    return batches


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a global array that the devices of this process hold.

    Attributes
    ----------
    rank, count : int
        Which part it is, of how many; processes that hold the same rows have the same one.
    units : int
        Rows of an array that the sharding divides evenly.
    starts : tuple of int
        Where the pieces of this process begin in such an array.
    """

    rank: int
    count: int
    units: int
    starts: tuple[int, ...]

    def local(self, index: tuple[slice, ...], rows: int) -> tuple[slice, ...]:
        """Where a piece of a global array lies in the batch of this process, which has so many rows."""
        start, stop, _ = index[0].indices(rows * self.count)
        piece = self.starts.index(start * self.units // (rows * self.count))
        return (slice(piece * (stop - start), (piece + 1) * (stop - start)), *index[1:])


@dataclass(frozen=True, slots=True, eq=False)
class JaxBatches:
    """The batches of ``loader`` with jax arrays. As thread-safe as the loader is."""

    loader: Loader
    shardings: Mapping[Key, Any]
    #: of the arrays that are global and have a batch axis
    parts: Mapping[Key, Part]

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch of the loader, once a batch is asked for."""
        return map(self._adopted, chain.from_iterable((self.loader,)))

    def _adopted(self, batch: Batch) -> Batch:
        """Jax copies by itself on threads of its own, so that none of ours is needed to be ahead."""
        import jax

        made: dict[Key, Any] = {}
        for key, array in batch.arrays.items():
            sharding = self.shardings.get(key)
            if sharding is None:
                made[key] = jax.numpy.from_dlpack(_exportable(array))
            elif sharding.is_fully_addressable:
                made[key] = jax.device_put(array, sharding)
            else:
                made[key] = self._global(key, array, sharding)
        return batch.replaced(made)

    def _global(self, key: Key, array: np.ndarray[Any, Any], sharding: Any) -> Any:
        """An array over several processes, of which this one has the whole fields of some rows."""
        import jax

        part = self.parts.get(key)
        if part is None:  # a static, the same everywhere
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
        rows, shape = len(array), (len(array) * part.count, *array.shape[1:])
        return jax.make_array_from_callback(shape, sharding, lambda index: array[part.local(index, rows)])

    def _check_shapes(self) -> None:
        """Refuse batches that cannot be divided among the devices."""
        request = self.loader.plan.request
        sizes = {request.batch_size}
        if not request.drop_last and (rest := request.shard.size(len(request)) % request.batch_size):
            sizes.add(rest)
        for key, spec in self.loader.template.items():
            for size in sorted(sizes) if key in self.shardings and key[0] != "statics" else ():
                shape = (size * (self.parts[key].count if key in self.parts else 1), *spec.shape[1:])
                try:
                    self.shardings[key].shard_shape(shape)
                except ValueError as error:
                    raise _undivided(key, shape, self.shardings[key]) from error

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides on the order, that the next iteration gives."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `insitu_xr.Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `insitu_xr.Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    import jax

    known = dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.type is not np.longdouble
    kept = jax.dtypes.canonicalize_dtype(dtype) if known else None
    if kept is None:
        raise DtypeError(
            f"variable {name!r} must have a dtype that jax knows, but got {dtype}; leave it out of the loader that "
            "goes to jax, or iterate the loader itself for numpy arrays"
        )
    if kept != dtype:
        raise DtypeError(
            f"variable {name!r} must have a dtype that jax keeps, but got {dtype}, which it would make {kept}; give "
            f"dtype={str(kept)!r} to the loader, or jax.config.update('jax_enable_x64', True)"
        )


def _shardings(loader: Loader, sharding: Any) -> dict[Key, Any]:
    """The sharding of every array; none for those that go to the default device."""
    import jax

    if sharding is None:
        return {}
    groups = {key[0] for key in loader.template}
    by_group = dict(sharding) if isinstance(sharding, Mapping) else dict.fromkeys(groups, sharding)
    if unknown := set(by_group) - groups:
        raise RequestError(f"sharding must be by group, {sorted(groups)}, but got {min(unknown)!r}; name a group")
    for group, one in by_group.items():
        if not isinstance(one, jax.sharding.Sharding):
            raise RequestError(
                f"sharding must be a jax.sharding.Sharding, or one by group, but got {one!r} for {group!r}; write "
                "NamedSharding(mesh, PartitionSpec('batch'))"
            )
    if not isinstance(sharding, Mapping) and isinstance(sharding, jax.sharding.NamedSharding):
        by_group["statics"] = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return {key: by_group[key[0]] for key in loader.template if key[0] in by_group}


def _parts_of(loader: Loader, shardings: Mapping[Key, Any]) -> dict[Key, Part]:
    """Which rows of every global array this process is to give."""
    found = {
        key: _part_in(key, sharding, loader.template[key].shape[1:])
        for key, sharding in shardings.items()
        if key[0] != "statics" and not sharding.is_fully_addressable
    }
    places = {(part.rank, part.count): key for key, part in found.items()}
    if len(places) > 1:
        (one, first), (other, second) = list(places.items())[:2]
        raise RequestError(
            f"shardings must give all groups of a process the same samples, but got part {one[0]} of {one[1]} for "
            f"{'/'.join(first)!r} and {other[0]} of {other[1]} for {'/'.join(second)!r}; divide the batch axis of all "
            "groups alike"
        )
    return found


def _part_in(key: Key, sharding: Any, field: tuple[int, ...]) -> Part:
    import jax

    units = len(sharding.device_set)
    try:
        pieces = sharding.devices_indices_map((units, *field))
    except ValueError as error:
        raise _undivided(key, (units, *field), sharding) from error
    held: dict[int, set[tuple[int, int]]] = {}
    for device, index in pieces.items():
        held.setdefault(device.process_index, set()).add(index[0].indices(units)[:2])
    parts = sorted({tuple(sorted(ranges)) for ranges in held.values()})
    sizes = {sum(stop - start for start, stop in part) for part in parts}
    if len(sizes) > 1 or sizes != {units // len(parts)}:
        raise RequestError(
            f"sharding must give processes the same samples, or none in common and equally many, but got "
            f"{key[1] or key[0]!r} divided by {sharding}; let the batch axis of the mesh follow the processes"
        )
    mine = held.get(jax.process_index())
    if mine is None:
        raise RequestError(
            f"sharding must have devices of every process that reads, but got {sharding}, which has none of process "
            f"{jax.process_index()}; make the mesh of jax.devices()"
        )
    own = tuple(sorted(mine))
    return Part(parts.index(own), len(parts), units, tuple(start for start, _ in own))


def _take_place(loader: Loader, parts: Mapping[Key, Part], process: tuple[int, int]) -> None:
    """Read what this process is to give: its rows of global arrays, or its share as one of several processes."""
    shard, part = loader.plan.request.shard, next(iter(parts.values()), None)
    rank, count = process if part is None else (part.rank, part.count)
    if not shard.given and count > 1:
        loader.set_rank(rank, count)
    elif shard.given and part is not None and (shard.rank, shard.world_size) != (rank, count):
        raise RequestError(
            f"rank and world_size must be those of this process in the sharding, {rank} and {count}, but got "
            f"{shard.rank} and {shard.world_size}; leave them out of the loader"
        )


def _undivided(key: Key, shape: tuple[int, ...], sharding: Any) -> RequestError:
    return RequestError(
        f"batches of {key[1] or key[0]!r} must divide among the devices of the sharding, but got one of shape {shape} "
        f"for {sharding}; choose a batch_size that divides, with drop_last=True where the last batch does not"
    )


def _exportable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Numpy exports what it may not write to for reading alone, which jax would have to be told; a transform made it.
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()
