"""How well an order mixes."""

from __future__ import annotations

import numpy as np

from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.plan import ReadPlan


def shuffle_quality(plan: ReadPlan) -> float:
    """Score how well the batches of a plan mix the axis: 1 as a perfect shuffle would, 0 as without shuffling.

    With *d* the mean distance, in anchors, of two samples of a batch (of two neighbours in the order where batches
    have one sample), the score is
    ``(d - d_sequential) / (d_perfect - d_sequential)``, clipped to 0 and 1. ``d_sequential`` is that distance where
    the same samples are drawn in order, ``d_perfect`` the mean distance of any two samples of the epoch, which is
    what a perfect shuffle gives on average. Where a batch draws alike from k distant runs of neighbours, the score is
    about 1 - 1/k. It is that of the first epoch, and reads no data.

    Parameters
    ----------
    plan : ReadPlan
        From ``ds.insitu.plan(...)`` or ``loader.plan``.

    Returns
    -------
    float
        1.0 also where an epoch is one batch, since no order mixes it more.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": ("step", np.zeros(1000, "f4"))})
    >>> plans = [ds.insitu.plan(variables="t2m", sample_dim="step", shuffle=how) for how in (False, "global")]
    >>> [round(insitu_xr.shuffle_quality(plan), 1) for plan in plans]
    [0.0, 1.0]
    """
    order, size = plan.order(0), max(2, plan.request.batch_size)
    ascending = np.sort(order)
    sequential, perfect = _distance(ascending, size), _distance(ascending, len(ascending))
    if perfect <= sequential:
        return 1.0
    return float(np.clip((_distance(order, size) - sequential) / (perfect - sequential), 0, 1))


def _distance(order: IntArray, size: int) -> float:
    """Mean distance of two samples of a batch, over all whole batches."""
    size = max(1, min(size, len(order)))
    rows = np.sort(order[: len(order) // size * size].reshape(-1, size), axis=1)
    # Each sample is counted with its sign in every pair: the k-th of the batch is the larger one k times.
    signs = 2.0 * np.arange(size) - (size - 1)
    pairs = size * (size - 1) / 2
    return float((rows @ signs).mean() / pairs) if pairs else 0.0
