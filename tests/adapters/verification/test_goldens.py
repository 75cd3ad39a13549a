"""The numbers of WeatherBench2, WeatherBench-X and Earth2Studio, to the ninth digit."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.catalogue import resolve
from insitu_xr_adapters.verification.conventions import convention
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.weights import area_weights, cos_weights

from . import golden
from .scoring import scores_of

LEADING = golden.DIMS[:3]


def piece(members: bool) -> Piece:
    forecast = golden.ensemble() if members else golden.deterministic()
    valid = forecast.init_time + forecast.lead_time
    dims = (*LEADING, *(["number"] if members else []), ...)
    climate = golden.climatology().t.sel(dayofyear=valid.dt.dayofyear, hour=valid.dt.hour)
    reference = golden.truth().t.sel(time=valid).transpose(*LEADING, ...).values
    fields = {"mean": climate.transpose(*LEADING, ...).values}
    return Piece("t", forecast.t.transpose(*dims).values, reference, fields, members=members)


@pytest.fixture(scope="module")
def pieces() -> dict[bool, Piece]:
    return {members: piece(members) for members in (False, True)}


def domain(weights: str = "area") -> Domain:
    return Domain.make(golden.LATITUDE, golden.LONGITUDE, weights=weights, regions=["global", "northern-hemisphere"])


def close(found: np.ndarray, expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)  # they are given to the twelfth decimal


def test_deterministic_metrics(pieces: dict[bool, Piece]) -> None:
    found = scores_of(pieces[False], domain(), golden.DETERMINISTIC)
    for name, expected in golden.DETERMINISTIC.items():
        np.testing.assert_allclose(found[name][:, 0, 0], expected, rtol=1e-9, atol=2e-12, err_msg=name)
    np.testing.assert_allclose(found["mse"][:, 0, 1], golden.MSE_NORTH, rtol=1e-9)


def test_ensemble_metrics(pieces: dict[bool, Piece]) -> None:
    found = scores_of(pieces[True], domain(), golden.ENSEMBLE)
    for name, expected in golden.ENSEMBLE.items():
        np.testing.assert_allclose(found[name][:, 0, 0], expected, rtol=1e-9, atol=2e-12, err_msg=name)


def test_rank_histogram(pieces: dict[bool, Piece]) -> None:
    found = scores_of(pieces[True], domain(), golden.RANKS_24H)
    for name, expected in golden.RANKS_24H.items():
        close(found[name][-1, 0, 0], expected)
        np.testing.assert_allclose(found[name].sum(-1), 1, rtol=1e-12)


@pytest.mark.parametrize("school", golden.CONVENTIONS)
def test_conventions(school: str, pieces: dict[bool, Piece]) -> None:
    chosen = convention(school)
    for name, exact in zip(golden.NAMES, golden.CONVENTIONS[school], strict=True):
        members = exact not in golden.DETERMINISTIC
        expected = (golden.ENSEMBLE if members else golden.DETERMINISTIC)[exact]
        options = {"convention": school, "pooled": chosen.pooled}
        weights = "area" if school == "wmo" else chosen.weights  # those that its frozen numbers were made with
        found = scores_of(pieces[members], domain(weights), name, **options)  # type: ignore[arg-type]
        close(found[name][:, 0, 0], expected)


def test_a_convention_is_named_in_the_attributes() -> None:
    kinds = {school: resolve("acc", convention=school)[0].attrs("K") for school in golden.CONVENTIONS}
    assert {school: attrs["metric"] for school, attrs in kinds.items()} == {
        "wb2": "acc_mean_of_ratios",
        "wbx": "acc",
        "wmo": "acc_centered",
    }
    assert len({attrs["estimator"] for attrs in kinds.values()}) == 3


def test_weights() -> None:
    close(area_weights(golden.LATITUDE), golden.WEIGHTS_POLES)
    grid = np.linspace(-90 + 180 / 64, 90 - 180 / 64, 32)
    for to_poles in (False, True):
        close(area_weights(grid, to_poles=to_poles)[:4], golden.WEIGHTS_64X32)
    subset = np.arange(-30.0, 61.0, 30.0)
    close(area_weights(subset), golden.WEIGHTS_SUBSET["area"])
    close(area_weights(subset, to_poles=True), golden.WEIGHTS_SUBSET["wb2"])
    close(cos_weights(np.array([-60.0, 0.0, 60.0])), [0.75, 1.5, 0.75])


def test_the_data_is_what_the_numbers_were_made_of(pieces: dict[bool, Piece]) -> None:
    reference = xr.DataArray(pieces[False].reference[:, :, 0], dims=golden.DIMS[:2] + golden.DIMS[3:])
    assert reference.isel(init_time=0, lead_time=2).equals(reference.isel(init_time=1, lead_time=0))
