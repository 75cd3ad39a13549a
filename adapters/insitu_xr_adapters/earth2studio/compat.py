"""What releases of Earth2Studio do differently: 0.19 exchanges tensors with coordinates, the 1.0 line DataArrays.

Nothing else of this adapter depends on a release: sources return the same DataArray to all of them, in the order and
precision that both demand, and have the ``time_step`` that 1.0 needs for statistics over time.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from insitu_xr.errors import MissingExtraError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu_xr_adapters.earth2studio.times import Labels


def fetch_data() -> Callable[..., Any]:
    """``fetch_data`` of the installed release.

    Raises
    ------
    MissingExtraError
        If there is none.
    """
    try:
        from earth2studio.data import fetch_data as fetch
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"earth2studio must be installed, but got no module {error.name!r}; pip install insitu-xr[earth2studio]",
            name=error.name,
        ) from error
    return fetch  # type: ignore[no-any-return]


def exchanges_arrays(fetch: Callable[..., Any]) -> bool:
    """Whether a release exchanges DataArrays, as 1.0 does, instead of tensors with coordinates.

    Examples
    --------
    >>> def old(source, time, variable, lead_time=None, device="cpu", legacy=True): ...
    >>> def new(source, time, variable, lead_time=None, device="cpu", target_grid=None): ...
    >>> exchanges_arrays(old), exchanges_arrays(new)
    (False, True)
    """
    return "legacy" not in signature(fetch).parameters


def fetched(fetch: Callable[..., Any], source: Any, times: Labels, leads: Labels, variable: list[str]) -> xr.DataArray:
    """What any source of Earth2Studio has, as ``[time, lead_time, variable, ...]`` in memory."""
    options = {} if exchanges_arrays(fetch) else {"legacy": False}
    found: xr.DataArray = fetch(source, time=times, variable=np.array(variable), lead_time=leads, **options)
    # Sources of forecasts label with whatever precision they have.
    return found.assign_coords(time=times, lead_time=leads)


def tensors(
    field: xr.DataArray, device: Any, interp_to: Any = None, interp_method: str = "nearest"
) -> tuple[Any, dict[str, Any]]:
    """A field as models of 0.19 take it: a tensor on a device, and its coordinates in order.

    On the CPU the tensor has the memory of the field. To a GPU it goes by way of page-locked memory, without waiting.
    """
    import torch
    from earth2studio.data.utils import prep_data_array

    device = torch.device(device)
    if interp_to is not None:
        x, coords = prep_data_array(field, device=device, interp_to=interp_to, interp_method=interp_method)
        return x, coords
    x, coords = prep_data_array(field.astype(np.float32, copy=False), device=torch.device("cpu"))
    if device.type == "cuda":
        x = x.pin_memory().to(device, non_blocking=True)
    return x.to(device), coords


def arrays(field: xr.DataArray, device: Any) -> xr.DataArray:
    """A field as 1.0 exchanges it: a DataArray of numpy, or of cupy on a GPU.

    Raises
    ------
    RequestError
        If it is asked for on a device that DataArrays cannot be on.
    """
    text = str(device)
    if text == "cpu":
        return field
    if not text.startswith("cuda"):
        raise RequestError(f"device must be 'cpu' or 'cuda' for DataArrays, but got {text!r}; give legacy=True")
    try:
        cupy: Any = import_module("cupy")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"cupy must be installed for DataArrays on {text!r}, but got no module {error.name!r}; pip install it, or "
            "give legacy=True",
            name=error.name,
        ) from error
    with cupy.cuda.Device(int(text.partition(":")[2] or 0)):
        return field.copy(data=cupy.asarray(field.values))


def on_grid_of(pair: tuple[Any, Any], coords: Any) -> tuple[Any, Any]:
    """The rows and columns of a pair that other coordinates have, taken by value.

    Raises
    ------
    RequestError
        If it does not have them all.
    """
    from earth2studio.utils.coords import map_coords

    wanted = {name: values for name, values in coords.items() if name in ("lat", "lon")}
    missing = [n for n, v in wanted.items() if n not in pair[1] or not np.isin(v, pair[1][n]).all()]
    if not wanted or missing:
        raise RequestError(
            "forecast and reference must be on one grid, but the reference lacks points of the forecast in "
            f"{missing or 'its coordinates'}; interpolate one of them, such as with interp_to= of fetch_batches"
        )
    x, mapped = map_coords(*pair, type(coords)(wanted))
    return x, mapped
