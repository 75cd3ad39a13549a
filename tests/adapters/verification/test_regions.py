"""Weights and regions of a grid, against masks made by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr.errors import InsituError
from insitu_xr_adapters.verification.domain import Domain
from insitu_xr_adapters.verification.regions import WB2_REGIONS
from insitu_xr_adapters.verification.weights import area_weights

LATITUDE = np.linspace(-90, 90, 37)
LONGITUDE = np.arange(0, 360, 7.5)
FIELD = np.random.default_rng(0).normal(size=(2, len(LATITUDE), len(LONGITUDE)))
NORTH, EAST = np.meshgrid(LATITUDE, LONGITUDE, indexing="ij")


def sums(regions: Any, weighted: bool = True, weights: Any = "area", longitude: np.ndarray = LONGITUDE) -> np.ndarray:
    domain = Domain.make(LATITUDE, longitude, weights=weights, regions=regions)
    return np.asarray(domain.reduce(FIELD, 0, weighted=weighted).sum(-1))


def by_hand(inside: np.ndarray, weighted: bool = True) -> np.ndarray:
    weights = area_weights(LATITUDE)[:, None] if weighted else 1.0
    return np.asarray((FIELD * inside * weights).sum((-2, -1)))


MASKS = {
    "global": NORTH > -91,
    "tropics": abs(NORTH) <= 20,
    "extra-tropics": abs(NORTH) >= 20,
    "northern-hemisphere": NORTH >= 20,
    "southern-hemisphere": NORTH <= -20,
    "europe": (NORTH >= 35) & (NORTH <= 75) & ((EAST >= 347.5) | (EAST <= 42.5)),
    "north-america": (NORTH >= 25) & (NORTH <= 60) & (EAST >= 240) & (EAST <= 285),
    "north-atlantic": (NORTH >= 25) & (NORTH <= 65) & (EAST >= 290) & (EAST <= 350),
    "north-pacific": (NORTH >= 25) & (NORTH <= 60) & (EAST >= 145) & (EAST <= 230),
    "east-asia": (NORTH >= 25) & (NORTH <= 60) & (EAST >= 102.5) & (EAST <= 150),
    "ausnz": (NORTH >= -45) & (NORTH <= -12.5) & (EAST >= 120) & (EAST <= 175),
    "arctic": NORTH >= 60,
    "antarctic": NORTH <= -60,
}


@pytest.mark.parametrize("weighted", [True, False])
def test_presets_in_one_pass(weighted: bool) -> None:
    assert set(MASKS) == set(WB2_REGIONS)
    domain = Domain.make(LATITUDE, LONGITUDE, regions="wb2")
    found = sums("wb2", weighted)
    for number, name in enumerate(domain.names):
        np.testing.assert_allclose(found[:, number], by_hand(MASKS[name], weighted), atol=1e-12, err_msg=name)


def test_boxes_masks_and_both() -> None:
    land = np.random.default_rng(1).random(NORTH.shape) > 0.5
    regions = {
        "box": {"latitude": slice(60, 20), "longitude": slice(-30, 30)},
        "seam": {"lon": slice(350, 10)},
        "land": land,
        "sea": xr.DataArray(1.0 - land, {"lat": LATITUDE, "lon": LONGITUDE}, ("lat", "lon")).isel(
            lat=slice(None, None, -1)
        ),
        "share": 0.25 * land,
        "northern land": {"lat": slice(20, 90), "mask": land},
        "nh": "northern-hemisphere",
    }
    found = sums(regions)
    masks = [
        (NORTH >= 20) & (NORTH <= 60) & ((EAST >= 330) | (EAST <= 30)),
        (EAST >= 350) | (EAST <= 10),
        land,
        ~land,
        0.25 * land,
        land & (NORTH >= 20),
        NORTH >= 20,
    ]
    for number, mask in enumerate(masks):
        np.testing.assert_allclose(found[:, number], by_hand(mask), atol=1e-12, err_msg=list(regions)[number])
    np.testing.assert_allclose(sums(regions, weighted=False)[:, 4], by_hand(land, weighted=False), atol=1e-12)


def test_longitudes_either_way_round() -> None:
    half = (LONGITUDE + 180) % 360 - 180
    np.testing.assert_array_equal(sums("wb2"), sums("wb2", longitude=half))


def test_given_weights() -> None:
    along = np.arange(37.0)
    field = np.broadcast_to(along[:, None], NORTH.shape)
    named = xr.DataArray(along, {"latitude": LATITUDE}, "latitude")
    for weights in (along, field, named, named.isel(latitude=slice(None, None, -1))):
        np.testing.assert_allclose(
            sums(["tropics", "europe"], weights=weights)[:, 0],
            (FIELD * MASKS["tropics"] * along[:, None]).sum((-2, -1)),
        )
    np.testing.assert_allclose(sums(None, weights="none")[:, 0], FIELD.sum((-2, -1)))


def test_a_missing_value_outside_is_not_seen() -> None:
    values = FIELD.copy()
    values[:, NORTH < 20] = np.nan
    values[:, ~MASKS["europe"] & (NORTH > 70)] = np.nan
    domain = Domain.make(LATITUDE, LONGITUDE, regions={"eu": "europe", "mask": MASKS["europe"], "all": "global"})
    found = domain.reduce(values, 0).sum(-1)
    np.testing.assert_allclose(found[:, 0], by_hand(MASKS["europe"]))
    np.testing.assert_allclose(found[:, 1], by_hand(MASKS["europe"]))
    assert np.isnan(found[:, 2]).all()


def test_a_domain_is_named_by_its_values() -> None:
    first = Domain.make(LATITUDE, LONGITUDE, regions="wb2")
    assert first.identity == Domain.make(list(LATITUDE), LONGITUDE, regions=dict(WB2_REGIONS)).identity
    others = [
        Domain.make(LATITUDE, LONGITUDE, regions="global"),
        Domain.make(LATITUDE, LONGITUDE, regions="wb2", weights="cos"),
        Domain.make(LATITUDE, LONGITUDE + 1, regions="wb2"),
    ]
    assert len({first.identity, *(other.identity for other in others)}) == 4


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"regions": "wb3"}, "got 'wb3'"),
        ({"regions": {"a": {"latitude": 3}}}, "latitude of region 'a' must be a slice, or a list of slices, but got 3"),
        ({"regions": {"a": {"level": slice(1)}}}, "region 'a' must be made of latitude, longitude and mask"),
        ({"regions": {"a": {"latitude": slice(91, 92)}}}, "region 'a' must contain a point of the grid"),
        ({"regions": {"a": np.zeros((37, 48))}}, "region 'a' must contain a point of the grid"),
        ({"regions": {"a": np.full((37, 48), 2.0)}}, "mask of region 'a' must be true, false or a share"),
        ({"regions": {"a": np.ones((3, 3))}}, "mask of region 'a' must have the shape (37,) or (37, 48)"),
        ({"weights": "sin"}, "weights must be one of ['area', 'wb2', 'cos', 'none'] or an array, but got 'sin'"),
        ({"weights": -np.ones(37)}, "weights must be finite, not negative and not all zero"),
        ({"weights": xr.DataArray(np.ones(3), {"lat": [0.0, 1.0, 2.0]}, "lat")}, "latitude of weights must have every"),
        ({"latitude": LATITUDE[::-1]}, "latitude must ascend between -90 and 90, but got 90.0 to -90.0"),
        ({"latitude": NORTH}, "latitude must be numbers along one dimension, but got shape (37, 48)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_requests(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(InsituError, match=re.escape(rule)):
        Domain.make(**{"latitude": LATITUDE, "longitude": LONGITUDE} | change)
