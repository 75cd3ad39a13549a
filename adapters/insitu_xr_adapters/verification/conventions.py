"""How each school computes what goes by one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from insitu_xr.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Convention:
    """What is taken where a call does not say.

    Attributes
    ----------
    name : str
        Name of the school.
    weights : str
        See `resolve_weights`.
    pooled : bool
        Whether sums of all inits are divided by the sum of all weights; otherwise the means of the inits are averaged.
    parameters : mapping of str to mapping
        Parameters of metrics by name.
    """

    name: str
    weights: str = "area"
    pooled: bool = True
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


#: WeatherBench2, WeatherBench-X, and the WMO's lead centre for deterministic verification, which weighs with the cosine
#: of latitudes, with the estimators of Earth2Studio for ensembles.
CONVENTIONS: Mapping[str, Convention] = {
    "wb2": Convention(
        "wb2",
        weights="wb2",
        pooled=False,
        parameters={
            "acc": {"pooled": False},
            "energy_score": {"adjacent": True},
            "rank_histogram": {"ties": "split"},
            "spread_skill": {"form": "naive"},
            "zonal_spectrum": {"shortest_twice": True},
            "reference_zonal_spectrum": {"shortest_twice": True},
        },
    ),
    "wbx": Convention("wbx", parameters={"energy_score": {"area": False}, "rps": {"fair": True}}),
    "wmo": Convention(
        "wmo",
        weights="cos",
        parameters={
            "acc": {"centered": True},
            "crps": {"fair": False},
            "crps_spread": {"fair": False},
            "energy_score": {"fair": False},
            "spread_skill": {"form": "naive"},
        },
    ),
}

DEFAULT = Convention("insitu_xr")


def convention(name: str | None) -> Convention:
    """Return a convention by name; the default one for None.

    Raises
    ------
    UnknownNameError
        For another name.

    Examples
    --------
    >>> convention("wb2").weights, convention(None).pooled
    ('wb2', True)
    """
    if name is None:
        return DEFAULT
    if name not in CONVENTIONS:
        raise UnknownNameError(f"convention must be one of {sorted(CONVENTIONS)} or None, but got {name!r}; name one")
    return CONVENTIONS[name]
