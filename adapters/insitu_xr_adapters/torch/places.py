"""Which of the processes that train together is this one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from insitu_xr.errors import RequestError

if TYPE_CHECKING:
    from insitu_xr import Loader


def take_place(loader: Loader) -> None:
    """Make a loader that was given no rank that of this process, where there are several."""
    if not loader.plan.request.shard.given and (place := process_place()) is not None:
        loader.set_rank(*place)


def process_place() -> tuple[int, int] | None:
    """Rank of this process and number of processes, from torch.distributed or the environment; None for a single one.

    Raises
    ------
    RequestError
        If the environment has something else than numbers.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        given = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
        if not all(given):
            return None
        if not all(text.isdecimal() for text in given):
            raise RequestError(
                f"RANK and WORLD_SIZE must be whole numbers in the environment, but got {given[0]!r} and {given[1]!r}; "
                "start with torchrun, or give rank= and world_size= to the loader"
            )
        rank, world = map(int, given)
    return (rank, world) if world > 1 else None
