"""Which field dimensions become channels in the stacked layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

#: names of dimensions that become channels in the stacked layout, beside what CF attributes say
CHANNEL_NAMES = frozenset(
    (
        *("level", "pressure_level", "isobaricInhPa", "plev", "lev", "height", "depth", "altitude", "model_level"),
        *("hybrid", "number", "realization", "member", "ensemble", "ens", "channel", "band"),
    )
)


def channel_dims_of(array: xr.DataArray, sample_dims: Sequence[str]) -> dict[str, list[str]]:
    """Field dimensions of a variable that become channels, vertical ones and members, with their labels as text."""
    found = {}
    for dim in (str(d) for d in array.dims if d not in sample_dims):
        attrs = array[dim].attrs if dim in array.coords else {}
        vertical = attrs.get("axis") == "Z" or "positive" in attrs
        if vertical or dim in CHANNEL_NAMES or attrs.get("standard_name") == "realization":
            labels = array[dim].to_numpy() if dim in array.coords else np.arange(array.sizes[dim])
            found[dim] = [f"{v:g}" if isinstance(v, float | np.floating) else str(v) for v in labels]
    return found
