"""Operations that select, and that both lazy and dask variables trace through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from collections.abc import Callable


SELECTIONS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "nothing": lambda ds: ds,
    "int": lambda ds: ds.isel(time=3),
    "negative int": lambda ds: ds.isel(time=-2, x=-1),
    "all ints": lambda ds: ds.isel(time=1, y=2, x=3),
    "slice": lambda ds: ds.isel(time=slice(2, 9), y=slice(1, None)),
    "step": lambda ds: ds.isel(time=slice(1, None, 3), x=slice(None, None, 2)),
    "negative step": lambda ds: ds.isel(time=slice(None, None, -1), y=slice(3, 0, -2)),
    "slice of a slice": lambda ds: (
        ds.isel(time=slice(None, None, -2)).isel(time=slice(1, 4)).isel(time=slice(-2, None))
    ),
    "list": lambda ds: ds.isel(time=[7, 1, 2]),
    "repeats": lambda ds: ds.isel(time=[3, 3, 0, 3]),
    "negative list": lambda ds: ds.isel(time=[-1, -5, 0]),
    "two lists": lambda ds: ds.isel(time=[5, 4], y=[0, 3]),
    "three lists": lambda ds: ds.isel(time=[5, 4], y=[0, 3], x=[4, 0, 1]),
    "list and int": lambda ds: ds.isel(time=[5, 4], x=2),
    "list of a list": lambda ds: ds.isel(time=[7, 1, 2]).isel(time=[2, 0]),
    "bool": lambda ds: ds.isel(time=np.arange(12) % 5 == 0),
    "empty slice": lambda ds: ds.isel(time=slice(0, 0)),
    "empty list": lambda ds: ds.isel(time=[]),
    "empty and int": lambda ds: ds.isel(time=slice(4, 4), y=1),
    "sel scalar": lambda ds: ds.sel(time="2000-01-02T06:00", y=20.0),
    "sel slice": lambda ds: ds.sel(time=slice("2000-01-01T12", "2000-01-02")),
    "sel list": lambda ds: ds.sel(y=[30.0, 10.0]),
    "sel nearest": lambda ds: ds.sel(y=[31.0, 12.0], method="nearest"),
    "transpose": lambda ds: ds.transpose("x", "time", "y"),
    "transpose twice": lambda ds: ds.transpose("x", "time", "y").transpose("time", "y", "x"),
    "isel then transpose": lambda ds: ds.isel(time=[3, 1]).transpose("y", "x", "time"),
    "transpose then isel": lambda ds: ds.transpose("y", "x", "time").isel(time=[3, 1], y=slice(1, 3)),
    "transpose then int": lambda ds: ds.transpose("x", "time", "y").isel(y=1),
    "transpose then length one": lambda ds: ds.transpose("x", "time", "y").isel(y=[1], x=slice(2, 3)),
    "transpose then repeats": lambda ds: ds.transpose("x", "time", "y").isel(time=[2, 2, 2]),
    "transpose then empty": lambda ds: ds.transpose("x", "time", "y").isel(time=[]),
    "int then transpose": lambda ds: ds.isel(x=3).transpose("y", "time"),
    "rename": lambda ds: ds.rename(time="valid", y="lat").isel(valid=[4, 2]),
    "squeeze": lambda ds: ds.isel(y=[1]).squeeze("y"),
    "sortby": lambda ds: ds.sortby("y", ascending=False),
    "reindex to existing labels": lambda ds: ds.reindex(y=[40.0, 10.0]),
    "swap_dims": lambda ds: (
        ds.assign_coords(step=("time", np.arange(12))).swap_dims(time="step").isel(step=slice(3, 6))
    ),
    "assign_coords then sel": lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(1, "h")).sel(
        time=slice("2000-01-01T13", "2000-01-02T07")
    ),
    "drop_vars": lambda ds: ds.drop_vars(["area", "y"]).isel(y=2),
    "drop_sel": lambda ds: ds.drop_sel(y=20.0),
    "drop_isel": lambda ds: ds.drop_isel(time=[0, 5]),
    "thin": lambda ds: ds.thin(time=5),
    "head": lambda ds: ds.head(time=3),
    "align": lambda ds: xr.align(ds, ds.isel(time=slice(4, 8)), join="inner")[0],
    "group": lambda ds: dict(ds.groupby("time.hour"))[6],
    "merge": lambda ds: xr.merge([ds, xr.Dataset({"other": ("time", np.zeros(12))})]).isel(time=[9, 2]),
    "set_xindex": lambda ds: ds.assign_coords(step=("time", np.arange(12))).set_xindex("step").sel(step=[3, 1]),
    "reset_coords": lambda ds: ds.reset_coords("area").isel(time=1),
    "reset_index": lambda ds: ds.reset_index("y").isel(y=[1, 0]),
    "copy": lambda ds: ds.copy().isel(time=[1]),
    "deep copy": lambda ds: ds.copy(deep=True).isel(time=[1]),
    "vectorised along one axis": lambda ds: ds.isel(time=xr.DataArray([3, 1, 1], dims="sample")),
}
