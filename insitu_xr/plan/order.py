"""The draw order of an epoch: in order, block-shuffled, global or weighted; the same for the same seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.reads import AccessGroup, distinct_per_batch
from insitu_xr.plan.request import Request, VariableSpec

#: a block holds at least this many batches, so that a batch draws from more than itself
BATCHES_PER_BLOCK = 2
#: and at least this many runs, so that neighbouring chunks mix with distant ones
RUNS_PER_BLOCK = 2
#: a run is this many times as long as a window reaches, so that few windows leave their run
RUN_PER_REACH = 9


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Samples cut into runs of neighbouring chunks, which shuffling moves as one."""

    #: samples in storage order
    order: IntArray
    #: first place of each run in ``order``, and the end
    bounds: IntArray
    #: samples in a shuffle block, at least where blocks are made of whole runs
    block: int
    #: whether a run may lie in two blocks, as where a person says how many samples are mixed
    cut: bool = False

    @property
    def lengths(self) -> IntArray:
        """Samples in each run."""
        return np.diff(self.bounds)


def runs_of(request: Request, groups: tuple[AccessGroup, ...]) -> Runs:
    """Cut the samples into runs along the chunks of the request's pivot, else of its coarsest variable."""
    n = len(request)
    samples = np.arange(n, dtype=np.int64)
    units = _units(request, groups, samples) if n and request.shuffle in (True, "block") else []
    if not units:
        # Nothing is gained by keeping neighbours together.
        return Runs(samples, np.array([0, n] if n else [0]), max(1, n))
    reach = int((np.maximum.reduce(units) - np.minimum.reduce(units)).max())
    runs = units[0] // max(1, RUN_PER_REACH * reach)
    order = samples if np.all(runs[1:] >= runs[:-1]) else np.argsort(runs, kind="stable")
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(runs[order])) + 1, [n]])
    lengths = np.diff(bounds)
    cut = request.shuffle_window is not None or request.shuffle_bytes is not None
    return Runs(order, bounds, _block(request, groups, int(np.median(lengths))), cut)


def _units(request: Request, groups: tuple[AccessGroup, ...], samples: IntArray) -> list[IntArray]:
    """Chunks to cut the samples along, column by column; none where no chunking matters."""
    if request.pivot is not None:
        # The pivot is a variable of the dataset that holds the anchors: only partners in that one lie in its chunks.
        own = [c for c in range(request.partners.shape[1]) if request.target(c) is request.axes[request.lead_axis]]
        return [chunk_numbers(request, request.pivot, c) for c in own] or [anchor_chunks(request, request.pivot)]
    moving = [g for g in groups if g.first.sample_dims]
    return [*min(moving, key=lambda g: g.n_units).units(request, samples).T] if moving else []


def chunk_numbers(request: Request, pivot: VariableSpec, column: int) -> IntArray:
    """Chunk of a variable that each sample lies in at one column; the variable need not be one that is read."""
    return _numbers(request, pivot, request.coordinates(np.arange(len(request)), column))


def anchor_chunks(request: Request, pivot: VariableSpec) -> IntArray:
    """Chunk of a variable that each anchor lies in."""
    return _numbers(request, pivot, list(request.anchors.T))


def _numbers(request: Request, pivot: VariableSpec, coordinates: Sequence[IntArray]) -> IntArray:
    number = np.zeros(len(request), np.int64)
    for dim, positions in zip(request.sample_dims, coordinates, strict=True):
        if dim in pivot.dims:
            along = axis_chunks(pivot, dim)
            number = number * (int(along.max(initial=0)) + 1) + along[positions]
    return number


def axis_chunks(spec: VariableSpec, dim: str) -> IntArray:
    """Chunk of every position along one dimension, counted on from one stored array to the next."""
    numbers, first = [], 0
    for segment in spec.segments if dim == spec.concat_dim else spec.segments[:1]:
        axis = segment.dims.index(dim)
        index = segment.index[axis]
        assert isinstance(index, np.ndarray)
        numbers.append(first + segment.grids[axis].chunk_of(index))
        first += segment.grids[axis].n_chunks
    return np.concatenate(numbers)


def _block(request: Request, groups: tuple[AccessGroup, ...], typical: int) -> int:
    """Samples that are mixed at once."""
    if request.shuffle_window is not None:
        return request.shuffle_window
    if request.shuffle_bytes is not None:
        decoded = sum(g.n_units * g.slot_bytes for g in groups if g.first.sample_dims)
        return max(1, request.shuffle_bytes * len(request) // max(1, decoded))
    # A whole number of runs, so that no chunk lies in two blocks.
    least = max(BATCHES_PER_BLOCK * request.batch_size, RUNS_PER_BLOCK * typical)
    return -(-least // typical) * typical


def epoch_order(request: Request, runs: Runs, epoch: int) -> IntArray:
    """Samples of the request's rank in the order in which an epoch draws them.

    Depends on the request, the seed and the epoch alone, not on memory, threads or the state of any generator. All
    ranks work out the same order of the whole epoch and take their parts of it.
    """
    whole, n = _whole_order(request, runs, epoch), len(request)
    if request.shard.world_size == 1:
        return whole
    part: IntArray = whole[request.shard.places(n)]
    return part


def _whole_order(request: Request, runs: Runs, epoch: int) -> IntArray:
    n = len(request)
    rng = np.random.default_rng([request.seed, epoch])
    if request.sampler is not None:
        return _sampled(request, rng)
    if not request.shuffle:
        sequence = np.arange(n, dtype=np.int64)
        return sequence if request.weights is None else _weighted(sequence, request.weights, rng, in_order=True)
    if is_global(request, runs):
        if request.weights is not None:
            return _weighted(np.arange(n, dtype=np.int64), request.weights, rng, in_order=False)
        return rng.permutation(n)
    permuted = rng.permutation(len(runs.lengths))
    lengths = runs.lengths[permuted]
    # Each place of the new order takes the place in ``runs.order`` that its run begins at, counted on.
    shift = np.repeat(runs.bounds[permuted] - (np.cumsum(lengths) - lengths), lengths)
    sequence = runs.order[np.arange(n) + shift]
    if request.weights is not None:
        sequence = _weighted(sequence, request.weights, rng, in_order=True)
    # A run is in the block that its first sample is in.
    starts = np.arange(n) if runs.cut else np.repeat(np.cumsum(lengths) - lengths, lengths)
    return _mixed(sequence, starts, runs.block, max(1, request.shard.size(n)), rng)


def is_global(request: Request, runs: Runs) -> bool:
    """Whether the samples are mixed all at once."""
    return bool(request.shuffle) and (request.shuffle == "global" or runs.block >= len(request))


def is_redrawn(request: Request) -> bool:
    """Whether epochs differ."""
    return bool(request.shuffle) or request.weights is not None or request.sampler is not None


def _mixed(sequence: IntArray, starts: IntArray, block: int, part: int, rng: np.random.Generator) -> IntArray:
    """Permute the samples of every block; blocks begin anew with the part of every rank, so ranks share no block."""
    whole, inner = np.divmod(np.arange(len(sequence)), part)
    within = np.maximum(starts - whole * part, 0) if len(starts) else starts
    number = whole * (-(-part // block) + 1) + np.minimum(within, inner) // block
    # Stable, so that the order is the same on every machine even where two keys agree.
    mixed: IntArray = sequence[np.argsort(number + rng.random(len(sequence)), kind="stable")]
    return mixed


def _weighted(
    sequence: IntArray, weights: npt.NDArray[np.float64], rng: np.random.Generator, *, in_order: bool
) -> IntArray:
    """As many draws with replacement as there are samples, in the order of the sequence or as they fall."""
    total = np.cumsum(weights[sequence])
    points = rng.random(len(sequence)) * total[-1]
    if in_order:
        points.sort()
    # The first sample whose cumulative weight exceeds the point, so that one of weight 0 is never drawn.
    places = np.searchsorted(total, np.minimum(points, np.nextafter(total[-1], 0)), side="right")
    drawn: IntArray = sequence[places]
    return drawn


def _sampled(request: Request, rng: np.random.Generator) -> IntArray:
    assert request.sampler is not None
    n = len(request)
    drawn = np.asarray(request.sampler(rng, n))
    if drawn.shape != (n,) or drawn.dtype.kind not in "iu":
        raise RequestError(
            f"sampler must return {n} whole numbers, one per draw, but got {drawn.dtype} of shape {drawn.shape}; "
            "return for example rng.integers(n, size=n)"
        )
    wrong = np.flatnonzero((drawn < 0) | (drawn >= n))
    if len(wrong):
        raise RequestError(
            f"sampler must return numbers of anchors from 0 to {n - 1}, but got {int(drawn[wrong[0]])} as draw "
            f"{int(wrong[0])}; count the anchors that are kept"
        )
    return drawn.astype(np.int64, copy=False)


def largest_batch(request: Request, runs: Runs, group: AccessGroup) -> int:
    """Units that a batch of any epoch and rank can use at most.

    Exact where the order is fixed; where it is drawn, a bound that holds for every epoch, so that a ceiling that was
    accepted once never fails later.
    """
    n = len(request)
    units = group.units(request, np.arange(n, dtype=np.int64))
    if not is_redrawn(request):
        return _largest_in_order(request, units)
    most = _most(units, request.batch_size, group.n_units)
    drawn = request.weights is not None or request.sampler is not None
    candidates = None if drawn or is_global(request, runs) else _runs_of_a_batch(request, runs)
    if candidates is None:
        return most
    run = np.repeat(np.arange(len(runs.lengths)), runs.lengths)
    stored = units[runs.order]
    # Each run uses at least this many, seen without sorting; where that is enough already, the rest cannot matter.
    least = np.bincount(run[1:][(np.diff(stored[:, 0]) != 0) | (np.diff(run) != 0)], minlength=len(runs.lengths))
    if np.sort(least)[::-1][:candidates].sum() >= most:
        return most
    pairs = np.sort((run[:, None] * np.int64(group.n_units) + stored).ravel())
    distinct = pairs[np.r_[True, pairs[1:] != pairs[:-1]]]
    per_run = np.sort(np.bincount(distinct // group.n_units))[::-1]
    bound = int(per_run[:candidates].sum())
    return min(most, bound)


def _largest_in_order(request: Request, units: IntArray) -> int:
    """The largest batch of any rank, so that a ceiling fits all ranks or none."""
    shard, n = request.shard, len(request)
    size = shard.size(n)
    largest = 0
    for rank in range(shard.world_size):
        places = np.arange(rank * size, (rank + 1) * size) % max(n, 1)
        bounds, _ = distinct_per_batch(units[places], request.batch_size, -(-size // request.batch_size))
        largest = max(largest, int(np.diff(bounds).max(initial=0)))
    return largest


def _most(units: IntArray, batch_size: int, n_units: int) -> int:
    """Units of any ``batch_size`` samples, at most: the sum over those that use most."""
    n, columns = units.shape
    if columns == 1 or not n:
        return min(batch_size, int(n), n_units)
    ascending = np.sort(units, axis=1)
    counts = 1 + (ascending[:, 1:] != ascending[:, :-1]).sum(axis=1)
    per_count = np.bincount(counts, minlength=columns + 1)
    left, total = batch_size, 0
    for count in range(len(per_count) - 1, 0, -1):
        taken = min(left, int(per_count[count]))
        left, total = left - taken, total + taken * count
    return min(total, n_units)


def _runs_of_a_batch(request: Request, runs: Runs) -> int | None:
    """Runs that a batch can draw from at most; None where there is no bound below all."""
    n, size, shard = len(request), request.batch_size, request.shard
    part, repeated = shard.size(n), shard.repeated(n)
    if repeated > part:
        return None
    found = _runs_within(runs, min(part, _places_mixed(size, runs, shard.world_size)))
    if repeated:
        # The samples that repeat lie at the start of the order, in blocks of their own.
        blocks = -(-repeated // runs.block)
        found += _runs_within(runs, min(part, (blocks + (not runs.cut)) * runs.block + _longest(runs)))
    return found


def _longest(runs: Runs) -> int:
    """What the blocks of whole runs may be longer than meant."""
    return 0 if runs.cut else int(runs.lengths.max(initial=0))


def _places_mixed(batch_size: int, runs: Runs, ranks: int) -> int:
    """Places in the blocks that a batch draws from, at most; batches begin at multiples of their size."""
    block = runs.block
    uniform = len(set(runs.lengths.tolist())) == 1 and block % int(runs.lengths[0]) == 0 and ranks == 1
    if not runs.cut and not uniform:
        return batch_size + 2 * block + 2 * _longest(runs)
    if block % batch_size == 0:
        return block
    if batch_size % block == 0:
        return batch_size
    return block * (-(-(batch_size - 1) // block) + 1)


def _runs_within(runs: Runs, places: int) -> int:
    """Runs that a stretch of places can touch: as many of the shortest as lie inside it, and one at each end."""
    inside = np.searchsorted(np.cumsum(np.sort(runs.lengths)), places - 2, side="right") if places > 2 else 0
    return int(inside) + min(2, places)
