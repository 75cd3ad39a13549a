"""Scores of arrays in memory by the numerics alone: no reading, no aligning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.catalogue import resolve
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.means import Means
from insitu_xr_adapters.verification.measure import measure
from insitu_xr_adapters.verification.metrics import Metric
from insitu_xr_adapters.verification.statistics import Statistic


def wanted(metrics: tuple[Metric, ...], members: int) -> list[Statistic]:
    return [statistic for metric in metrics for statistic in metric.statistics(members)]


def members_of(piece: Piece) -> int:
    return int(piece.forecast.shape[-3]) if piece.members else 0


def means_of(piece: Piece, domain: Domain, statistics: list[Statistic], nan: str = "raise", **options: Any) -> Means:
    sums = measure(piece, statistics, domain, nan=nan)
    return Means({item: found.total for item, found in sums.items()}, members_of(piece), **options)


def scores_of(
    piece: Piece,
    domain: Domain,
    metrics: Any,
    *,
    convention: str | None = None,
    nan: str = "raise",
    **options: Any,
) -> dict[str, np.ndarray]:
    found = resolve(metrics, convention=convention)
    means = means_of(piece, domain, wanted(found, members_of(piece)), nan, **options)
    return {metric.name: metric.compute(means) for metric in found}


def differing_series(count: int, leads: int = 3, seed: int = 0) -> tuple[xr.DataArray, xr.DataArray]:
    random = np.random.default_rng(seed)
    coords = {
        "init_time": pd.date_range("2020-01-01", periods=count, freq="12h"),
        "lead_time": pd.timedelta_range("12h", periods=leads, freq="12h"),
    }
    shape = (count, leads, 2)
    made = (xr.DataArray(random.normal(size=shape), coords, ("init_time", "lead_time", "region")) for _ in range(2))
    first, second = made
    return first, second + 0.2
