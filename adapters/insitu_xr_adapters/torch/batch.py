"""A batch of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from insitu_xr.errors import DtypeError

if TYPE_CHECKING:
    import torch

    from insitu_xr import Batch

type Tensors = Mapping[str, torch.Tensor] | torch.Tensor
type Key = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatch:
    """A batch whose arrays are tensors.

    Attributes
    ----------
    source : insitu_xr.Batch
        The numpy batch; without a device its memory is that of the tensors, so that writing to one shows in both. With
        a device it has labels alone.
    arrays : mapping of (group, variable) to tensor
        Every tensor; the variable is "" in the stacked layout.
    """

    source: Batch
    arrays: Mapping[Key, torch.Tensor]

    @classmethod
    def over(cls, source: Batch) -> Self:
        """Tensors over the memory of a numpy batch."""
        return cls(source, {key: tensor_over(name_of(key), array) for key, array in source.arrays.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        # As numpy arrays, which need no shared memory; only tensors on other devices, and of dtypes that numpy lacks,
        # are sent as torch sends them.
        sent = {key: _array_of(tensor) for key, tensor in self.arrays.items()}
        return _received, (self.source.replaced({}), sent)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{'/'.join(filter(None, k))}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)} on {t.device}"
            for k, t in self.arrays.items()
        )
        return f"<TorchBatch of {len(self)} samples: {tensors}>"

    @property
    def _view(self) -> Any:
        return self.source.replaced(dict(self.arrays))

    # -- tensors -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return one variable, ``(batch, [lead,] *field dims)``."""
        return self._view[name]

    @property
    def variables(self) -> Tensors:
        """Tensors by name, or one tensor ``(batch, channel, *grid)`` in the stacked layout, of ``variables=``."""
        found: Tensors = self._view.variables
        return found

    @property
    def inputs(self) -> Tensors:
        """Like `variables`, of ``inputs=``."""
        found: Tensors = self._view.inputs
        return found

    @property
    def targets(self) -> Tensors:
        """Like `variables`, of ``targets=``."""
        found: Tensors = self._view.targets
        return found

    @property
    def statics(self) -> Mapping[str, torch.Tensor]:
        """Fields without the sample dimension, by name; empty in the stacked layout, where they are channels."""
        found: Mapping[str, torch.Tensor] = self._view.statics
        return found

    def replaced(self, arrays: Mapping[Key, torch.Tensor]) -> TorchBatch:
        """The same samples with other tensors, by (group, variable)."""
        return TorchBatch(self.source, arrays)

    def to(self, device: Any, non_blocking: bool = False) -> TorchBatch:
        """The same on another device, as Lightning and others ask for it."""
        moved = {key: tensor.to(device, non_blocking=non_blocking) for key, tensor in self.arrays.items()}
        return TorchBatch(self.source, moved)

    def pin_memory(self) -> TorchBatch:
        """The same in page-locked memory, as a DataLoader asks for it."""
        return TorchBatch(self.source, {key: tensor.pin_memory() for key, tensor in self.arrays.items()})

    # -- labels --------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[str, ...]:
        """See `insitu_xr.Batch.groups`."""
        return self.source.groups

    @property
    def context(self) -> Any:
        """What all batches of the loader share."""
        return self.source.context

    @property
    def channels(self) -> Any:
        """See `insitu_xr.Batch.channels`."""
        return self.source.channels

    @property
    def positions(self) -> Any:
        """See `insitu_xr.Batch`; a numpy array, like all labels here."""
        return self.source.positions

    @property
    def padded(self) -> Any:
        """See `insitu_xr.Batch.padded`."""
        return self.source.padded

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
        """See `insitu_xr.Batch.to_xarray`; copies from a device what lies on one."""
        arrays = {key: tensor.detach().cpu().numpy() for key, tensor in self.arrays.items()}
        return self.source.replaced(arrays).to_xarray(group)


def name_of(key: Key) -> str:
    """What a tensor is called in messages: the variable, or the group where the layout is stacked."""
    return key[1] or key[0]


def tensor_over(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over the memory of an array.

    Raises
    ------
    DtypeError
        If torch does not know the dtype.
    """
    import torch

    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy()  # a transform of the caller made it
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DtypeError(
            f"variable {name!r} must have a dtype that torch knows, but got {array.dtype}; "
            f"leave it out of the loader that goes to torch, or iterate the loader itself for numpy arrays"
        ) from error


def _array_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return tensor


def _received(source: Batch, sent: Mapping[Key, Any]) -> TorchBatch:
    arrays = {key: part for key, part in sent.items() if isinstance(part, np.ndarray)}
    tensors = {key: tensor_over(name_of(key), part) if key in arrays else part for key, part in sent.items()}
    return TorchBatch(source.replaced(arrays), tensors)
