"""Where tensors go: copies to a device, on a stream of their own, out of page-locked memory."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import InsituError, RequestError

if TYPE_CHECKING:
    import torch

type Key = tuple[str, str]


class PageLockError(InsituError, MemoryError):
    """The system refuses to lock as much memory as a batch takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device that tensors are copied to.

    Attributes
    ----------
    stream : torch.cuda.Stream, optional
        What copies are queued on; None where the device has no such streams, so that a copy waits.
    page_locked : callable, optional
        Gives the memory that batches lie in; None for ordinary memory.
    """

    device: torch.device
    stream: Any = None
    page_locked: Callable[[int], npt.NDArray[np.uint8]] | None = None

    def copied(self, tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """The same on the device; when it returns, the memory of the tensors that were given is not needed any more."""
        if self.stream is None:
            return {key: tensor.to(self.device, copy=True) for key, tensor in tensors.items()}
        import torch

        with torch.cuda.stream(self.stream):
            made = {key: tensor.to(self.device, non_blocking=True) for key, tensor in tensors.items()}
            # Blocking, so that the thread sleeps rather than spins: the cores are needed to decode.
            done = torch.cuda.Event(blocking=True)
            done.record(self.stream)
        done.synchronize()
        return made

    def handed_over(self, tensors: Mapping[Key, torch.Tensor]) -> None:
        """Tell torch that the consumer's stream works with them, so that their memory is not used again too early."""
        if self.stream is None:
            return
        import torch

        current = torch.cuda.current_stream(self.device)
        for tensor in tensors.values():
            tensor.record_stream(current)


class Pinned:
    """Page-locked memory of torch, for who copies to a device himself: torch knows how long a copy needs it."""

    def copied(self, tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Copies there."""
        return {key: tensor.pin_memory() for key, tensor in tensors.items()}


def device_of(device: Any, pin: Any) -> Device | Pinned | None:
    """What the arguments ask for; None where tensors share the memory of the arrays.

    Raises
    ------
    RequestError
        If there is no such device, or no page-locked memory for it.
    """
    import torch

    if pin not in (None, True, False):
        raise RequestError(f"pin must be True, False or None, but got {pin!r}; give one of them")
    if pin and not torch.cuda.is_available():
        raise RequestError(
            "pin must be False where torch has no CUDA device, but got True; leave it out, so that it follows device="
        )
    try:
        wanted = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise RequestError(f"device must be one that torch knows, but got {device!r}; write 'cuda' or so") from error
    if wanted.type == "cpu":
        return Pinned() if pin else None
    if wanted.type != "cuda":
        try:
            torch.empty(0, device=wanted)
        except Exception as error:  # which of them depends on the device
            raise _absent(device) from error
        return Device(wanted)
    if not torch.cuda.is_available() or (wanted.index or 0) >= torch.cuda.device_count():
        raise _absent(device)
    if wanted.index is None:
        wanted = torch.device("cuda", torch.cuda.current_device())
    return Device(wanted, torch.cuda.Stream(wanted), None if pin is False else page_locked)


def _absent(device: Any) -> RequestError:
    return RequestError(f"device must be one that torch finds here, but got {device!r}; give another, or leave it out")


def page_locked(size: int) -> npt.NDArray[np.uint8]:
    """Memory that the devices read by themselves, in pages of its own; unlocked when it is let go of.

    Raises
    ------
    PageLockError
        If so much cannot be locked.
    """
    import torch

    block = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    runtime, address = torch.cuda.cudart(), block.ctypes.data
    code = int(runtime.cudaHostRegister(address, size, 0))
    if code:
        raise PageLockError(
            f"memory of a batch must be page-locked for pin=True, but CUDA refuses {size} bytes (error {code}); "
            'raise the limit (ulimit -l), or give loader.to("torch", pin=False)'
        )
    # Called while the memory is still there. At exit the process takes its pages along.
    weakref.finalize(block, runtime.cudaHostUnregister, address).atexit = False
    return block
