"""The batches of a loader as an ``IterableDataset``, here and in worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from insitu_xr.errors import RequestError
from insitu_xr_adapters.torch.batch import TorchBatch
from insitu_xr_adapters.torch.devices import Device, Pinned
from insitu_xr_adapters.torch.places import take_place

if TYPE_CHECKING:
    from insitu_xr import Batch, Loader

HINT = (
    "a DataLoader with num_workers > 0 sends every batch through a pipe from processes that each hold memory= of their "
    "own; the loader reads ahead with threads, so num_workers=0 is the fast way"
)


@dataclass(frozen=True, slots=True, eq=False)
class Placing:
    """Where tensors go, and what is done with them there."""

    device: Device | Pinned | None
    transforms: tuple[Callable[[TorchBatch], TorchBatch | None], ...]
    #: as they were given
    device_asked: Any
    pin_asked: bool | None


class TorchBatches:
    """The batches of ``loader`` as tensors, a ``torch.utils.data.IterableDataset``. As thread-safe as the loader is.

    In the worker processes of a DataLoader, each iterates its share of the loader's batches, with threads and memory
    of its own: together they give every batch once. Workers that are started anew for every epoch give the epoch whose
    turn it is.
    """

    def __init__(self, loader: Loader, placing: Placing) -> None:
        self.loader, self._placing = loader, placing
        self._shares: dict[tuple[int, int], Loader] = {}
        #: whether workers are still to be told that they are not needed
        self._hint = True
        #: workers that were started since the epoch was set; in a worker, those that were started before it
        self._started = 0

    def __reduce__(self) -> tuple[Any, ...]:
        take_place(self.loader)  # the process group does not reach the workers
        # The first copy that is sent says it, so that it is said once.
        hint, self._hint = self._hint, False
        placing, started = self._placing, 0
        if get_spawning_popen() is not None:  # for a process that is started now
            started, self._started = self._started, self._started + 1
        return _sent, (self.loader, placing.device_asked, placing.pin_asked, placing.transforms, hint, started)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        take_place(self.loader)
        return len(self.loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Start the next epoch of the loader, or in a worker process that of its share, once a batch is asked for."""
        take_place(self.loader)  # the process group may have begun only now
        loader = self._here()
        if loader is not self.loader:
            self._check_worker()
        # The epoch begins with the first batch: an iterator that is thrown away unused must not count.
        if isinstance(self._placing.device, Device):
            moved = chain.from_iterable(map(_ahead, ((loader, self._placing.device),)))
            return _Epoch(loader, map(self._handed_over, moved))
        return _Epoch(loader, map(self._adopted, chain.from_iterable((loader,))))

    def _here(self) -> Loader:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is None:
            return self.loader
        # Kept, so that a worker that lives on goes on with the next epoch.
        place = (worker.id, worker.num_workers)
        if place not in self._shares:
            share = self._shares[place] = self.loader.share(*place)
            # Workers of an epoch are started one after the other: those that came before the first of them are of the
            # epochs before, which the process that started them has not iterated itself.
            if (before := self._started - worker.id) > 0:
                share.set_epoch(self.loader.state_dict()["epoch"] + before // worker.num_workers)
        return self._shares[place]

    def _check_worker(self) -> None:
        if self._placing.device is not None:
            asked = "device" if isinstance(self._placing.device, Device) else "pin"
            raise RequestError(
                f"{asked} must be left out for the workers of a DataLoader, which send tensors between processes, "
                f"but got {asked}={getattr(self._placing, asked + '_asked')!r}; use num_workers=0, or copy in the loop"
            )
        if self._hint:
            self._hint = False
            warnings.warn(HINT, UserWarning, stacklevel=3)

    def _adopted(self, batch: Batch) -> TorchBatch:
        found = TorchBatch.over(batch)
        if isinstance(self._placing.device, Pinned):
            found = TorchBatch(batch.replaced({}), self._placing.device.copied(found.arrays))
        return self._transformed(found)

    def _handed_over(self, batch: TorchBatch) -> TorchBatch:
        if isinstance(self._placing.device, Device):
            self._placing.device.handed_over(batch.arrays)
        return self._transformed(batch)

    def _transformed(self, batch: TorchBatch) -> TorchBatch:
        for transform in self._placing.transforms:
            found: Any = transform(batch)
            if found is not None and not isinstance(found, TorchBatch):
                raise RequestError(
                    f"device transform {getattr(transform, '__qualname__', transform)} must return a batch, or None "
                    f"where it changed the tensors in place, but got {type(found).__name__}; return "
                    "batch.replaced(tensors)"
                )
            batch = batch if found is None else found
        return batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides on the order, that the next iteration gives."""
        self.loader.set_epoch(epoch)
        self._started = 0

    def state_dict(self) -> dict[str, Any]:
        """See `insitu_xr.Loader.state_dict`; in a worker, that of its share, as StatefulDataLoader wants it.

        Counts batches that this process was given: with workers, ask the StatefulDataLoader.
        """
        return self._here().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `insitu_xr.Loader.load_state_dict`."""
        take_place(self.loader)
        self._here().load_state_dict(state)
        self._started = 0


class _Epoch(Iterator[TorchBatch]):
    """One pass, which says whether it has given its last batch.

    A StatefulDataLoader that is saved there asks for one more when it goes on, and is to be told that there is none.
    """

    def __init__(self, loader: Loader, batches: Iterator[TorchBatch]) -> None:
        self._loader, self._batches = loader, batches
        self._begun = self._ended = False

    def __next__(self) -> TorchBatch:
        if self._ended:
            raise StopIteration
        batch = next(self._batches)
        self._begun = True
        return batch

    def state_dict(self) -> dict[str, bool]:
        return {"ended": self._ended or (self._begun and self._loader.state_dict()["batch"] == 0)}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        self._ended = state["ended"]


def _ahead(place: tuple[Loader, Device]) -> Iterator[TorchBatch]:
    loader, device = place
    return loader.ahead(lambda batch: TorchBatch(batch.replaced({}), device.copied(TorchBatch.over(batch).arrays)))


def _sent(
    loader: Loader, device: Any, pin: bool | None, transforms: tuple[Any, ...], hint: bool, started: int
) -> TorchBatches:
    """Undo ``TorchBatches.__reduce__``."""
    from insitu_xr_adapters.torch.adapting import to_torch

    batches = to_torch(loader, device, pin, transforms)
    batches._hint, batches._started = hint, started
    return batches
