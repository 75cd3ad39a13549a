"""A run split by init times over the workers of a dask cluster, each with an engine of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.plan import ScorePlan, plan_of
from insitu_xr_adapters.verification.running import Runner
from insitu_xr_adapters.verification.setup import Setup
from insitu_xr_adapters.verification.state import Column, State
from insitu_xr_adapters.verification.storing import Part, StateStore
from insitu_xr_adapters.verification.times import IntArray


def run_on(
    client: Any,
    plan: ScorePlan,
    sums: State,
    columns: Sequence[Column],
    store: StateStore | None,
    device: Any,
    *,
    progress: bool = False,
) -> None:
    """Measure the pairs of a plan on the workers of a client, and put their sums together.

    Every pair is measured by one worker, as one process would, so the bits are the same. A chunk of a reference that
    the parts of two workers share is read by both. ``memory=`` is what each worker may hold.

    Raises
    ------
    RequestError
        If the client has no workers.
    """
    workers = len(client.scheduler_info(-1)["workers"])
    if not workers:
        raise RequestError("client must have workers, but got none; wait_for_workers() first")
    wanted = np.zeros(plan.setup.pairs.wanted.shape, bool)
    for piece in plan.sweep.pieces:
        wanted.ravel()[piece] = True
    parts = _parts(plan.blocks, wanted, workers)
    futures = [
        client.submit(_measured, plan.setup.during(inits), [*columns], wanted[inits], plan.ceiling, device, pure=False)
        for inits in parts
    ]
    bar = _bar(len(futures)) if progress else None
    every = []
    try:
        for inits, future in zip(parts, futures, strict=True):
            init, lead = np.nonzero(wanted[inits])
            values = future.result()
            sums.add((inits[init], lead), values)
            every.append((plan.setup.pairs.inits[inits[init]], plan.setup.pairs.leads[lead], values))
            if store is not None:
                store.write(Part(every[-1][0], every[-1][1], (0, plan.setup.domain.shape[0]), {"root": values}))
            if bar is not None:
                bar.update()
    finally:
        client.cancel(futures)
        if bar is not None:
            bar.close()
    if store is not None and every:
        inits, leads, values = (np.concatenate(column) for column in zip(*every, strict=True))
        store.finish(inits, leads, values, plan.setup.domain.shape[0])


def _parts(blocks: IntArray, wanted: npt.NDArray[np.bool_], workers: int) -> list[IntArray]:
    """Numbers of the init times of each worker: neighbours, and never one chunk of a forecast for two."""
    some = np.flatnonzero(wanted.any(axis=1))
    distinct = np.unique(blocks[some])
    return [some[np.isin(blocks[some], mine)] for mine in np.array_split(distinct, workers) if len(mine)]


def _measured(
    setup: Setup, columns: Sequence[Column], wanted: npt.NDArray[np.bool_], memory: int, device: Any
) -> npt.NDArray[np.float64]:
    """Sums of the wanted pairs of some init times, in order; runs on a worker."""
    plan = plan_of(setup, columns, memory, wanted=wanted)
    sums = State.empty(setup.pairs.inits, setup.pairs.leads, columns, {}, {})
    Runner(plan, sums, columns, device=device).run()
    return np.asarray(sums.sums[wanted])


def _bar(total: int) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="part", desc="scoring")
