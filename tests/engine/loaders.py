"""Loaders with limits of their own."""

from __future__ import annotations

from typing import Any

import xarray as xr

from insitu_xr.building import build
from insitu_xr.limits import Limits
from insitu_xr.loader import Loader
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.resolving import Asked


def loader_with(
    limits: Limits, ds: xr.Dataset, spare: int | None = None, keep: bool | None = None, **asked: Any
) -> Loader:
    """Make a loader under the smallest ceiling and ``spare`` bytes; under the default one if that is None."""
    built = build(ds, Asked(**asked))
    request, stacks = built.plan.request, built.plan.stacks
    plan = ReadPlan.of(request, None, limits, stacks, keep)
    if spare is not None:
        plan = ReadPlan.of(request, plan.minimum_memory + spare, limits, stacks, keep)
    return Loader(plan, built.materials, built.context, limits)
