"""From a loader to tensors: the arguments, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import MissingExtraError, RequestError
from insitu_xr_adapters.torch.batch import name_of, tensor_over
from insitu_xr_adapters.torch.dataset import Placing, TorchBatches
from insitu_xr_adapters.torch.devices import Device, device_of
from insitu_xr_adapters.torch.places import take_place

if TYPE_CHECKING:
    import torch

    from insitu_xr import Loader
    from insitu_xr_adapters.torch.batch import TorchBatch


def to_torch(
    loader: Loader,
    device: str | int | torch.device | None = None,
    pin: bool | None = None,
    device_transforms: Sequence[Callable[[TorchBatch], TorchBatch | None]] = (),
) -> TorchBatches:
    """Return the batches of a loader as torch tensors.

    Called as ``loader.to("torch")``. Without a device no value is copied: tensors are over the memory of the arrays.

    Parameters
    ----------
    loader : insitu_xr.Loader
        The loader whose batches are wanted. It stays usable, and stays the owner of its memory and threads: close it,
        not the result. Where it was made without ``rank=`` and ``world_size=``, it takes those of this process, as
        torch.distributed says, or the environment (``RANK``, ``WORLD_SIZE``), so that no sampler is needed; also where
        the process group begins after this call, and before an epoch.
    device : str or torch.device, optional
        Where the tensors are wanted. They are copied there on a thread and a stream of their own, one batch ahead.
    pin : bool, optional
        Whether batches lie in page-locked memory, from which copies to a CUDA device are faster and do not hold up the
        computation. By default where ``device`` is one. Without a device, tensors are copied to page-locked memory of
        torch.
    device_transforms : sequence of callables, optional
        Functions of a `TorchBatch`, carried out on the consumer's stream one after another. Each returns
        ``batch.replaced(tensors)``, or None where it changed the tensors in place.

    Returns
    -------
    TorchBatches
        An iterable of `TorchBatch`; iterating it again is the next epoch of the loader. It is an ``IterableDataset``:
        ``DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="spawn")`` reads in workers, each
        its share of the batches. The loader reads ahead with threads, so that workers are rarely needed.

    Raises
    ------
    MissingExtraError
        Where torch is not installed.
    DtypeError
        Where a variable has a dtype that torch does not know; nothing has been read then.
    RequestError
        Where there is no such device, or a transform cannot be called.

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
        raise MissingExtraError(message) from error
    for key, spec in loader.template.items():
        tensor_over(name_of(key), np.empty(0, spec.dtype))
    transforms = _transforms(device_transforms)
    placing = Placing(device_of(device, pin), transforms, device, pin)
    take_place(loader)
    if isinstance(placing.device, Device) and placing.device.page_locked is not None:
        loader.use_memory(placing.device.page_locked)
    batches: TorchBatches = _dataset_class(IterableDataset)(loader, placing)
    return batches


@cache
def _dataset_class(base: type) -> type:
    """Make the class of what is returned; only now, so that importing this module does not import torch."""
    return type("TorchDataset", (TorchBatches, base), {"__doc__": TorchBatches.__doc__, "__module__": __name__})


def _transforms(given: Any) -> tuple[Callable[[Any], Any], ...]:
    listed = (given,) if callable(given) else given
    found = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(map(callable, found)):
        raise RequestError(f"device_transforms must be functions of a batch, but got {given!r}; write [f, g]")
    return found
