"""Metrics by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from insitu_xr.errors import RequestError, UnknownNameError

from .conventions import convention as convention_of
from .correlations import ACC, Activity, Correlation
from .events import RELATIONS
from .eventscores import CONTINGENCY, RPS, Brier, Contingency, Reliability
from .fieldscores import FSS, SEEPS, ZonalSpectrum
from .metrics import MAE, MSE, RMSE, Bias, Metric, VectorRMSE
from .probabilistic import CRPS, CRPSSkill, CRPSSpread, EnergyScore, RankHistogram
from .spreads import DebiasedMSE, Spread, SpreadSkill, Variance

#: metrics that a name alone says, by name
NAMED: Mapping[str, Callable[..., Metric]] = {
    "mse": MSE,
    "rmse": RMSE,
    "mae": MAE,
    "bias": Bias,
    "vector_rmse": VectorRMSE,
    "acc": ACC,
    "acc_mean_of_ratios": partial(ACC, pooled=False),
    "acc_centered": partial(ACC, centered=True),
    "activity": Activity,
    "reference_activity": partial(Activity, "reference"),
    "correlation": Correlation,
    "crps": CRPS,
    "crps_fair": partial(CRPS, fair=True),
    "crps_ecdf": partial(CRPS, fair=False),
    "crps_skill": CRPSSkill,
    "crps_spread": CRPSSpread,
    "ensemble_variance": Variance,
    "spread": Spread,
    "mse_debiased": DebiasedMSE,
    "spread_skill": SpreadSkill,
    "spread_skill_naive": partial(SpreadSkill, "naive"),
    "spread_skill_fortin": partial(SpreadSkill, "fortin"),
    "spread_skill_unbiased": partial(SpreadSkill, "unbiased"),
    "energy_score": EnergyScore,
    "rank_histogram": RankHistogram,
    "seeps": SEEPS,
    "zonal_spectrum": ZonalSpectrum,
    "reference_zonal_spectrum": partial(ZonalSpectrum, "reference"),
}

#: metrics of an event, written after a colon: ``"brier:>281"``
OF_EVENTS: Mapping[str, Callable[..., Metric]] = {
    "brier": Brier,
    "reliability": Reliability,
    "fss": FSS,
    **{score: partial(Contingency, score=score) for score in CONTINGENCY},
}

#: other names for the same
ALIASES = {"ssr": "spread_skill", "me": "bias", "wind_vector_rmse": "vector_rmse"}


def names() -> list[str]:
    """Return the names of all metrics; those of events are followed by one.

    Examples
    --------
    >>> [name for name in names() if name.startswith("c")]
    ['correlation', 'crps', 'crps_ecdf', 'crps_fair', 'crps_skill', 'crps_spread', 'csi:>THRESHOLD']
    """
    return sorted([*NAMED, *ALIASES, "rps:THRESHOLD,THRESHOLD", *(f"{name}:>THRESHOLD" for name in OF_EVENTS)])


def resolve(metrics: str | Metric | Iterable[str | Metric], *, convention: str | None = None) -> tuple[Metric, ...]:
    """Return metrics by name, or those given.

    Parameters
    ----------
    metrics : str, Metric or iterable of them
        Names, with an event and parameters after colons where there are any: ``"rmse"``, ``"brier:>281:fair=true"``,
        ``"fss:>0.001:window=9"``, ``"csi:>=quantile_0.9"``, ``"rps:270,280,290"``.
    convention : {"wb2", "wbx", "wmo"}, optional
        Whose estimators the names stand for; metrics given as objects stay as they are.

    Raises
    ------
    UnknownNameError
        For a name that no metric has; the message lists all.
    RequestError
        For parameters that a metric does not have, and for two metrics of one name.

    Examples
    --------
    >>> [metric.name for metric in resolve(["rmse", "brier:>281", ACC(centered=True)])]
    ['rmse', 'brier:>281', 'acc_centered']
    >>> resolve("acc", convention="wb2")[0].default_name
    'acc_mean_of_ratios'
    """
    given = [metrics] if isinstance(metrics, str | Metric) else list(metrics)
    found = tuple(item if isinstance(item, Metric) else _parsed(item, convention) for item in given)
    labels = [metric.name for metric in found]
    if not labels:
        raise RequestError(f"metrics must be at least one, but got none; name some of {names()}")
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise RequestError(
            f"metrics must have different names, but got {twice[0]!r} twice; give one of them a name with label="
        )
    return found


def _parsed(text: Any, convention: str | None) -> Metric:
    name, *rest = str(text).split(":")
    name = ALIASES.get(name, name)
    options = dict(convention_of(convention).parameters.get(name, {}))
    positional: list[Any] = []
    for part in rest:
        if part.strip().startswith(tuple(RELATIONS)):
            positional.append(part)
        elif "=" in part:
            key, _, value = part.partition("=")
            options[key.strip()] = _value(value)
        else:
            positional.append(tuple(_value(item) for item in part.split(",")))
    made = _made(str(text), name, positional, options)
    return replace(made, label=str(text))


def _made(text: str, name: str, positional: list[Any], options: dict[str, Any]) -> Metric:
    make = RPS if name == "rps" else OF_EVENTS.get(name) or NAMED.get(name)
    if make is None:
        raise UnknownNameError(f"a metric must be one of {names()}, but got {text!r}; name one, or pass a Metric")
    if len(positional) != int(name == "rps" or name in OF_EVENTS):
        example = {"rps": "rps:270,280"}.get(name, f"{name}:>281" if name in OF_EVENTS else name)
        raise RequestError(
            f"metric {name!r} must be written like {example!r}, but got {text!r}; events follow a colon, as do "
            "parameters"
        )
    try:
        return make(*positional, **options)
    except TypeError as error:
        raise RequestError(f"parameters of metric {name!r} must be its own, but got {text!r}; {error}") from error


def _value(text: str) -> Any:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
