"""Batches as torch tensors that share memory with the arrays the loader gathered: ``loader.to("torch")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import DtypeError, InsituError

if TYPE_CHECKING:
    import torch

    from insitu_xr import Batch, Loader, ReadPlan

type Tensors = Mapping[str, torch.Tensor] | torch.Tensor


class MissingTorchError(InsituError, ImportError):
    """Torch tensors were asked for where torch is not installed."""


def to_torch(loader: Loader) -> TorchBatches:
    """Return the batches of a loader as torch tensors; no value is copied.

    Called as ``loader.to("torch")``.

    Parameters
    ----------
    loader : insitu_xr.Loader
        The loader whose batches are wanted. It stays usable, and stays the owner of its memory and threads: close it,
        not the result.

    Returns
    -------
    TorchBatches
        An iterable of `TorchBatch`; iterating it again is the next epoch of the loader. It is an ``IterableDataset``:
        ``DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="spawn")`` reads in workers, each
        its share of the batches. The loader reads ahead with threads, so that workers are rarely needed.

    Raises
    ------
    MissingTorchError
        Where torch is not installed.
    DtypeError
        Where a variable has a dtype that torch does not know; nothing has been read then.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(8.0).reshape(4, 2))})
    >>> loader = ds.insitu.loader(variables=["t2m"], sample_dim="time", batch_size=3)
    >>> [tuple(batch["t2m"].shape) for batch in loader.to("torch")]
    [(3, 2), (1, 2)]
    """
    try:
        from torch.utils.data import IterableDataset
    except ImportError as error:
        message = 'torch must be installed to deliver tensors, but got no such package; pip install "insitu-xr[torch]"'
        raise MissingTorchError(message) from error
    for name, dtype in _delivered(loader.plan).items():
        _tensor(name, np.empty(0, dtype))
    batches: TorchBatches = _dataset_class(IterableDataset)(loader)
    return batches


@cache
def _dataset_class(base: type) -> type:
    """Make the class of what is returned; only now, so that importing this module does not import torch."""
    return type("TorchDataset", (TorchBatches, base), {"__doc__": TorchBatches.__doc__})


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatches:
    """The batches of ``loader`` as tensors, a ``torch.utils.data.IterableDataset``. As thread-safe as the loader is.

    In the worker processes of a DataLoader, each iterates its share of the loader's batches, with threads and memory
    of its own: together they give every batch once.
    """

    loader: Loader
    _shares: dict[tuple[int, int], Loader] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return to_torch, (self.loader,)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Start the next epoch of the loader, or in a worker process that of its share."""
        return map(TorchBatch, self._here())

    def _here(self) -> Loader:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is None:
            return self.loader
        # Kept, so that a worker that lives on goes on with the next epoch.
        place = (worker.id, worker.num_workers)
        if place not in self._shares:
            self._shares[place] = self.loader.share(*place)
        return self._shares[place]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides on the order, that the next iteration gives."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `insitu_xr.Loader.state_dict`; counts batches that this process was given, not those of workers."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `insitu_xr.Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatch:
    """A batch whose arrays are tensors over the memory of ``source``, the numpy batch: writing to one shows in both."""

    source: Batch

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return one variable, ``(batch, [lead,] *field dims)``."""
        return _tensor(name, self.source[name])

    @property
    def variables(self) -> Tensors:
        """Tensors by name, or one tensor ``(batch, channel, *grid)`` in the stacked layout, of ``variables=``."""
        return _tensors("variables", self.source.variables)

    @property
    def inputs(self) -> Tensors:
        """Like `variables`, of ``inputs=``."""
        return _tensors("inputs", self.source.inputs)

    @property
    def targets(self) -> Tensors:
        """Like `variables`, of ``targets=``."""
        return _tensors("targets", self.source.targets)

    @property
    def statics(self) -> Mapping[str, torch.Tensor]:
        """Fields without the sample dimension, by name; empty in the stacked layout, where they are channels."""
        return {name: _tensor(name, array) for name, array in self.source.statics.items()}

    @property
    def groups(self) -> tuple[str, ...]:
        """See `insitu_xr.Batch.groups`."""
        return self.source.groups

    @property
    def channels(self) -> Any:
        """See `insitu_xr.Batch.channels`."""
        return self.source.channels

    @property
    def positions(self) -> Any:
        """See `insitu_xr.Batch`; a numpy array, like all labels here."""
        return self.source.positions

    @property
    def anchors(self) -> Any:
        """See `insitu_xr.Batch.anchors`."""
        return self.source.anchors

    @property
    def leads(self) -> Any:
        """See `insitu_xr.Batch.leads`."""
        return self.source.leads

    @property
    def valid_times(self) -> Any:
        """See `insitu_xr.Batch.valid_times`."""
        return self.source.valid_times

    @property
    def coords(self) -> Any:
        """See `insitu_xr.Batch.coords`."""
        return self.source.coords

    def to_xarray(self, group: str | None = None) -> Any:
        """See `insitu_xr.Batch.to_xarray`."""
        return self.source.to_xarray(group)


def _delivered(plan: ReadPlan) -> dict[str, np.dtype[Any]]:
    """Return the dtypes that the batches will have, by variable, or by group where the layout is stacked."""
    if plan.stacks is not None:
        return {group: stack.dtype for group, stack in plan.stacks.items()}
    return {name: variable.dtype for name, variable in plan.request.variables.items()}


def _tensors(group: str, arrays: Any) -> Tensors:
    """Convert a group: a mapping of arrays, or one stacked array."""
    if isinstance(arrays, Mapping):
        return {name: _tensor(name, array) for name, array in arrays.items()}
    return _tensor(group, arrays)


def _tensor(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DtypeError(
            f"variable {name!r} must have a dtype that torch knows, but got {array.dtype}; "
            f"leave it out of the loader that goes to torch, or iterate the loader itself for numpy arrays"
        ) from error
