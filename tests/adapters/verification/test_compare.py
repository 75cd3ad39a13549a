"""Tests of significance against scipy and scores, and what they are for: they reject as often as they say."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.compare import TESTS, compare

from .scoring import differing_series


def test_bootstrap_draws_the_same_again_and_agrees_with_students() -> None:
    first, second = differing_series(200)
    found, again = (compare(first, second, "block_bootstrap", horizon=1) for _ in range(2))
    xr.testing.assert_identical(found, again)
    plain = compare(first, second, "paired_t")
    np.testing.assert_allclose(found.upper - found.lower, plain.upper - plain.lower, rtol=0.35)
    np.testing.assert_array_equal(found.difference, plain.difference)


@pytest.mark.parametrize("test", sorted(TESTS))
def test_how_often_nothing_is_called_something(test: str) -> None:
    random = np.random.default_rng(3)
    noise = random.normal(size=(2, 322, 200))
    for step in range(2, 322):  # an autoregression of order two
        noise[:, step] += 0.5 * noise[:, step - 1] + 0.2 * noise[:, step - 2]
    first, second = (xr.DataArray(item[22:], dims=("init_time", "case")) for item in noise)
    found = compare(first, second, test, horizon=8, block=15, draws=500)
    rejected = float((found.p_value < 0.05).mean())
    covered = float(((found.lower <= 0) & (found.upper >= 0)).mean())
    if test == "paired_t":
        assert rejected > 0.3  # what the others are for
    else:
        assert rejected < 0.16
        assert covered > 0.84
    assert float((compare(first + 3, second, test, draws=500).p_value < 0.05).mean()) > 0.95


def test_geer_inflates_as_the_theory_says() -> None:
    random = np.random.default_rng(1)
    noise = random.normal(size=20_000)
    for step in range(1, len(noise)):
        noise[step] += 0.6 * noise[step - 1]
    found = compare(xr.DataArray(noise, dims="init_time"), xr.zeros_like(xr.DataArray(noise, dims="init_time")))
    assert found.attrs["test"] == "geer_ar2"
    assert float(found.inflation) == pytest.approx(2.0, rel=0.05)  # sqrt((1 + r) / (1 - r))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"test": "t"}, "test must be one of ['block_bootstrap', 'dm', 'geer_ar2', 'paired_t'], but got 't'"),
        ({"confidence": 95}, "confidence must lie between 0 and 1, but got 95"),
        ({"dim": "time"}, "must have the dimension 'time'"),
        ({"horizon": 0}, "horizon must be at least 1, but got 0"),
        ({"second": slice(1, None)}, "scores to compare must have the same labels"),
        ({"both": slice(1)}, "init_time must have at least 2 labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_requests(change: dict[str, object], rule: str) -> None:
    first, second = differing_series(5)
    if "both" in change:
        first, second = first.isel(init_time=change["both"]), second.isel(init_time=change.pop("both"))
    if "second" in change:
        second = second.isel(init_time=change.pop("second"))
    with pytest.raises(RequestError, match=re.escape(rule)):
        compare(first, second, **change)  # type: ignore[arg-type]
