"""GRIB files, decoded by gribberish."""

from __future__ import annotations

from pathlib import Path

import iris_sample_data
import numpy as np
import pytest

import insitu_xr
from insitu_xr.errors import RequestError

SAMPLE = Path(iris_sample_data.__file__).parent / "sample_data" / "polar_stereo.grib2"


def test_a_group_of_messages() -> None:
    with pytest.raises(RequestError, match=r"group must be given for GRIB, one of \['isobar/instant'\], but got ''"):
        insitu_xr.open_dataset(SAMPLE, reference_cache=False)
    ds = insitu_xr.open_dataset(SAMPLE, group="isobar/instant", reference_cache=False)
    with ds.insitu.loader(variables=["tmp"], sample_dim="time") as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch["tmp"], ds["tmp"].values)
    assert 200 < batch["tmp"].min() < batch["tmp"].max() < 330
