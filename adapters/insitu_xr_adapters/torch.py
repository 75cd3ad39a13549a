"""Batches as torch tensors that share memory with the arrays the loader gathered: ``loader.to("torch")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu_xr.errors import DtypeError, InsituError

if TYPE_CHECKING:
    import numpy as np
    import torch
    import xarray as xr

    from insitu_xr import Batch, Loader

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
        An iterable of `TorchBatch`; iterating it again is the next epoch of the loader.

    Raises
    ------
    MissingTorchError
        Where torch is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        message = 'torch must be installed to deliver tensors, but got no such package; pip install "insitu-xr[torch]"'
        raise MissingTorchError(message) from error
    return TorchBatches(loader)


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatches:
    """The batches of ``loader`` as tensors. As thread-safe as the loader is."""

    loader: Loader

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Start the next epoch of the loader."""
        return map(TorchBatch, self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides on the order, that the next iteration gives."""
        self.loader.set_epoch(epoch)


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatch:
    """A batch whose arrays are tensors over the memory of ``arrays``, the numpy batch: writing to one shows in both."""

    arrays: Batch

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.arrays)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return one variable, ``(batch, [lead,] *field dims)``."""
        return _tensor(name, self.arrays[name])

    @property
    def inputs(self) -> Tensors:
        """Tensors by variable, or one tensor ``(batch, channel, y, x)`` where the layout is stacked."""
        return _tensors("inputs", self.arrays.inputs)

    @property
    def targets(self) -> Tensors:
        """Like `inputs`."""
        return _tensors("targets", self.arrays.targets)

    @property
    def statics(self) -> Tensors:
        """Variables without the sample dimension, like `inputs`."""
        return _tensors("statics", self.arrays.statics)

    @property
    def anchors(self) -> Any:
        """Labels that the samples are named by."""
        return self.arrays.anchors

    @property
    def positions(self) -> Any:
        """Positions of the anchors along the sample dimension of the dataset."""
        return self.arrays.positions

    @property
    def leads(self) -> Any:
        """Leads by variable."""
        return self.arrays.leads

    @property
    def valid_times(self) -> Any:
        """Labels ``(batch, lead)`` by variable."""
        return self.arrays.valid_times

    @property
    def coords(self) -> Any:
        """Coordinates of the batch, as xarray has them."""
        return self.arrays.coords

    @property
    def channels(self) -> Any:
        """Names of the channels where the layout is stacked."""
        return self.arrays.channels

    def to_xarray(self) -> xr.Dataset:
        """Return the batch as xarray would have selected it."""
        return self.arrays.to_xarray()


def _tensors(group: str, arrays: Any) -> Tensors:
    """Convert a group: a mapping of arrays, or one stacked array."""
    if isinstance(arrays, Mapping):
        return {name: _tensor(name, array) for name, array in arrays.items()}
    return _tensor(group, arrays)


def _tensor(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    if not array.dtype.isnative:
        raise DtypeError(
            f"variable {name!r} must have this machine's byte order to become a tensor, but got {array.dtype.str}; "
            f'ask the loader for dtype="{array.dtype.newbyteorder("=").name}"'
        )
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DtypeError(
            f"variable {name!r} must have a dtype that torch knows, but got {array.dtype}; "
            f"leave it out of the loader that goes to torch, or iterate the loader itself for numpy arrays"
        ) from error
