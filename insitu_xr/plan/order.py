"""The draw order of an epoch: sequential or block-shuffled, the same for the same seed and epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import AccessGroup, distinct_per_batch
from insitu_xr.plan.request import Request

#: a block holds at least this many batches, so that a batch draws from more than itself
BATCHES_PER_BLOCK = 4
#: and at least this many runs, so that neighbouring chunks mix with distant ones
RUNS_PER_BLOCK = 2
#: a run is this many times as long as a window reaches, so that few windows leave their run
RUN_PER_REACH = 8


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Samples cut into runs of neighbouring chunks, which shuffling moves as one."""

    #: samples in storage order
    order: IntArray
    #: first place of each run in ``order``, and the end
    bounds: IntArray
    #: samples in a shuffle block, at least
    block: int

    @property
    def lengths(self) -> IntArray:
        """Samples in each run."""
        return np.diff(self.bounds)


def runs_of(request: Request, groups: tuple[AccessGroup, ...]) -> Runs:
    """Cut the samples into runs along the coarsest chunks of any variable."""
    n = len(request)
    samples = np.arange(n, dtype=np.int64)
    moving = [g for g in groups if g.first.sample_dims]
    if not moving or not n:
        bounds = np.append(np.arange(0, n, max(1, request.batch_size)), n)
        return Runs(samples, bounds, BATCHES_PER_BLOCK * request.batch_size)
    coarsest = min(moving, key=lambda g: g.n_units)
    units = coarsest.units(request, samples)
    reach = int((units.max(axis=1) - units.min(axis=1)).max())
    runs = units[:, 0] // max(1, RUN_PER_REACH * reach)
    order = np.argsort(runs, kind="stable")
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(runs[order])) + 1, [n]])
    typical = int(np.median(np.diff(bounds)))
    return Runs(order, bounds, max(BATCHES_PER_BLOCK * request.batch_size, RUNS_PER_BLOCK * typical))


def epoch_order(request: Request, runs: Runs, epoch: int) -> IntArray:
    """Samples in the order in which an epoch draws them.

    Runs are permuted, put together into blocks, and the samples of each block are permuted. The order depends on
    the request, the seed and the epoch alone, not on memory or threads.
    """
    n = len(request)
    if not request.shuffle:
        return np.arange(n, dtype=np.int64)
    rng = np.random.default_rng([request.seed, epoch])
    permuted = rng.permutation(len(runs.lengths))
    lengths = runs.lengths[permuted]
    ends = np.cumsum(lengths)
    # A run belongs to the block in which it starts.
    block = (ends - lengths) // max(1, runs.block)
    within = np.arange(n) - np.repeat(ends - lengths, lengths)
    drawn = runs.order[np.repeat(runs.bounds[permuted], lengths) + within]
    mixed: IntArray = drawn[np.lexsort((rng.random(n), np.repeat(block, lengths)))]
    return mixed


def largest_batch(request: Request, runs: Runs, group: AccessGroup) -> int:
    """Units that a batch of any epoch can use at most.

    Exact where the order is fixed; where it is shuffled, a bound that holds for every epoch, so that a ceiling that
    was accepted once never fails later.
    """
    units = group.units(request, np.arange(len(request), dtype=np.int64))
    if not request.shuffle:
        bounds, _ = distinct_per_batch(units, request.batch_size, -(-len(request) // request.batch_size))
        return int(np.diff(bounds).max(initial=0))
    most = min(request.batch_size * int(units.shape[1]), group.n_units)
    # Blocks of runs that start in the same stretch of ``runs.block`` samples: any two neighbours hold more samples
    # than a batch, so a batch touches three at most. As many runs start in a stretch as the shortest ones fit.
    candidates = 3 * (int(np.searchsorted(np.cumsum(np.sort(runs.lengths)), runs.block)) + 1)
    run = np.repeat(np.arange(len(runs.lengths)), runs.lengths)
    drawn = units[runs.order]
    # Each run uses at least this many, seen without sorting; where that is enough already, the rest cannot matter.
    least = np.bincount(run[1:][(np.diff(drawn[:, 0]) != 0) | (np.diff(run) != 0)], minlength=len(runs.lengths))
    if np.sort(least)[::-1][:candidates].sum() >= most:
        return most
    pairs = np.unique(run[:, None] * np.int64(group.n_units) + drawn)
    per_run = np.sort(np.bincount(pairs // group.n_units))[::-1]
    return min(most, int(per_run[:candidates].sum()))
