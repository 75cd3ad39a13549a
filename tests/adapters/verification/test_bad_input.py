"""What is wrong with a request is named before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr.errors import InsituError
from insitu_xr.testing import CountingStore
from insitu_xr_adapters.verification import score
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored

SHAPE = Shape(inits=3, leads=3)

type Ds = xr.Dataset
Case = tuple[Callable[[Ds, Ds], tuple[Any, Any]], dict[str, Any], str]


def with_units(ds: Ds, unit: str) -> Ds:
    return ds.assign(t=ds["t"].assign_attrs(units=unit))


CASES: dict[str, Case] = {
    "latitudes": (
        lambda f, r: (f, r.assign_coords(latitude=r.latitude + 1)),
        {},
        "grid of the forecast, but got no latitude",
    ),
    "longitudes": (lambda f, r: (f, r.isel(longitude=slice(0, 6))), {}, "no longitude 180 .*regrid"),
    "almost the same grid": (lambda f, r: (f, r.assign_coords(longitude=r.longitude + 1e-3)), {}, "no longitude 0 "),
    "levels": (lambda f, r: (f, r.isel(level=[0])), {}, r"every 'level' of the forecast, but got none for \[850\]"),
    "no levels": (lambda f, r: (f, r.isel(level=0, drop=True)), {}, "must have the dimension 'level'"),
    "units": (lambda f, r: (f, with_units(r, "degC")), {}, "units of 't' must be the same, but got 'K' .* and 'degC'"),
    "calendars": (
        lambda f, r: (f, r.convert_calendar("noleap", use_cftime=True)),
        {},
        "calendars must be the same, but got 'standard' .* 'noleap'",
    ),
    "no overlap": (
        lambda f, r: (f, reference(SHAPE, start="2021-01-01")),
        {},
        "valid times must lie within the reference, but got 2019-12-30T00:00:00 to 2019-12-31T12:00:00",
    ),
    "lead time": (lambda f, r: (f, r), {"lead_time": ["6h", "30h"]}, r"lead_time .* but got \['30h'\]; there are 3"),
    "no lead time": (lambda f, r: (f, r), {"lead_time": "soon"}, "durations such as '6h', but got 'soon'"),
    "lead time beyond the reference": (
        lambda f, r: (f.isel(init_time=[2]), r.isel(time=slice(0, 5))),
        {"lead_time": ["0h", "6h"]},
        r"valid time in the reference, but got none for \['6h'\]",
    ),
    "metric": (lambda f, r: (f, r), {"metrics": ["rsme"]}, "rsme.*"),
    "ensemble metric": (lambda f, r: (f, r), {"metrics": ["crps"]}, "dimension of members for 'crps'"),
    "no climatology": (lambda f, r: (f, r), {"metrics": ["acc"]}, "climatology must be given"),
    "variable": (lambda f, r: (f, r), {"variables": ["z"]}, "variable 'z' must be in all"),
    "no variable in common": (lambda f, r: (f, r.rename(t="a", u="b")), {}, "variables in common"),
    "level": (lambda f, r: (f, r), {"level": 700}, r"level must be one of \[500, 850\], but got \[700\]"),
    "region": (lambda f, r: (f, r), {"regions": "atlantis"}, "regions must be among"),
    "weights": (lambda f, r: (f, r), {"weights": "sin"}, "weights must be one of"),
    "align": (lambda f, r: (f, r), {"align": "best"}, "align must be one of"),
    "nan": (lambda f, r: (f, r), {"nan": "ignore"}, "nan must be one of"),
    "convention": (lambda f, r: (f, r), {"convention": "ecmwf"}, "convention must be one of"),
    "baseline": (lambda f, r: (f, r), {"baselines": ["luck"]}, "baselines must be of"),
    "dims": (lambda f, r: (f, r), {"dims": {"member": "k"}}, "a role in dims="),
    "memory": (lambda f, r: (f, r), {"memory": 1000}, "memory must hold"),
    "members of a reference": (lambda f, r: (f, r.expand_dims(number=2)), {}, "one field at each time"),
    "forecast as reference": (lambda f, r: (f, f), {}, "must have valid times"),
    "times twice": (lambda f, r: (f, xr.concat([r, r], "time")), {}, "must differ, but got 2019-12-30"),
    "no init times in common": (
        lambda f, r: ({"a": f, "b": forecast(SHAPE, start="2018-01-01")}, r),
        {},
        "models must have init times in common",
    ),
    "persistence without init times": (
        lambda f, r: (f.isel(lead_time=[1]), r.isel(time=slice(1, None, 2))),
        {"baselines": "persistence"},
        "persistence must find every init time",
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_wrong_is_named_before_any_read(name: str) -> None:
    change, asked, message = CASES[name]
    counting = CountingStore(stored(forecast(SHAPE), "forecast", "step"))
    ours, truth = change(xr.open_zarr(counting, consolidated=False, chunks=None), reference(SHAPE))
    with pytest.raises(InsituError, match=message) as caught:
        score(ours, truth, **asked)
    text = str(caught.value)
    assert "must" in text
    assert ", but got" in text
    assert not [g for g in counting.data_gets if g.key.startswith(("t/", "u/"))]


def test_units_of_a_climatology_are_looked_at_too() -> None:
    clim = with_units(climatology(), "degC")
    with pytest.raises(InsituError, match=r"units of 't'.*'degC' in the climatology"):
        score(forecast(SHAPE), reference(SHAPE), metrics=["acc"], climatology=clim)


def test_the_same_unit_may_be_spelt_differently() -> None:
    scores = score(forecast(SHAPE), with_units(reference(SHAPE), "Kelvin"))
    assert np.isfinite(scores["t"].values).all()
