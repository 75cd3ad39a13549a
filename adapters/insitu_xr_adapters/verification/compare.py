"""Whether one forecast is better than another, by the difference of their scores init by init.

Forecasts from inits that follow one another err alike, so that their number says too much about how sure a difference
is. Only ``"paired_t"`` takes inits for independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import MissingExtraError, RequestError

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, slots=True)
class Settings:
    """What a test may ask for.

    Attributes
    ----------
    confidence : float
        Probability that an interval covers the true difference.
    horizon : numpy.ndarray
        Number of inits until a forecast can be verified, for each series.
    block : int, optional
        Inits drawn together by the bootstrap.
    draws : int
        Draws of the bootstrap.
    seed : int
        Seed of the bootstrap.
    """

    confidence: float
    horizon: np.ndarray
    block: int | None
    draws: int
    seed: int


type Found = dict[str, np.ndarray]


def compare(
    first: xr.DataArray,
    second: xr.DataArray,
    test: str = "geer_ar2",
    *,
    dim: str = "init_time",
    confidence: float = 0.95,
    horizon: int | None = None,
    block: int | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Test whether the scores of two forecasts differ.

    Parameters
    ----------
    first, second : xarray.DataArray
        Scores of each init, such as those of ``score(..., dim=("latitude", "longitude"))``. Inits in which one is
        missing do not count. Of a root (``rmse``) the mean over inits is not that over all points: compare ``mse``.
    test : {"paired_t", "geer_ar2", "dm", "block_bootstrap"}, optional
        Student's test of pairs; that test with the error of the mean inflated as an autoregression of order two says
        (Geer, 2016); the test of Diebold and Mariano as modified by Harvey and others (1997); a circular block
        bootstrap of pairs.
    dim : str, optional
        Dimension of the inits, in order.
    confidence : float, optional
        Probability that an interval covers the true difference.
    horizon : int, optional
        For ``"dm"``, and the length of blocks: number of inits until a forecast can be verified; by default out of
        ``lead_time`` and the interval of the inits.
    block : int, optional
        Inits that the bootstrap draws together; by default the horizon, and the cube root of the number at least.
    draws, seed : int, optional
        Of the bootstrap.

    Returns
    -------
    xarray.Dataset
        ``difference`` (first less second), ``lower`` and ``upper`` bound, two-sided ``p_value`` and ``n``, without the
        dimension of the inits.

    Raises
    ------
    RequestError
        For an unknown test, scores with different labels, or a confidence that is none.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> scores = [xr.DataArray(values, dims="init_time") for values in ([1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 4.0, 5.5])]
    >>> found = compare(*scores, test="paired_t")
    >>> round(float(found.difference), 3), round(float(found.p_value), 3)
    (-1.0, 0.016)
    """
    import xarray as xr

    _check(first, second, test, dim, confidence)
    try:
        first, second = xr.align(first, second, join="exact")
    except ValueError as error:
        raise RequestError(
            f"scores to compare must have the same labels, but got others: {error}; select those that both have"
        ) from error
    series = (first - second).transpose(dim, ...)
    flat = np.asarray(series.values, np.float64).reshape(series.sizes[dim], -1)
    horizons = np.broadcast_to(_horizon(series, dim, horizon), series.shape[1:]).reshape(-1)
    found = TESTS[test](flat, Settings(confidence, horizons, block, draws, seed))
    template = series.isel({dim: 0}, drop=True)
    data = {name: (template.dims, values.reshape(template.shape)) for name, values in found.items()}
    return xr.Dataset(data, template.coords, {"test": test, "confidence": confidence, "alternative": "two-sided"})


def _check(first: xr.DataArray, second: xr.DataArray, test: str, dim: str, confidence: float) -> None:
    if test not in TESTS:
        raise RequestError(f"test must be one of {sorted(TESTS)}, but got {test!r}; name one")
    if not 0 < confidence < 1:
        raise RequestError(f"confidence must lie between 0 and 1, but got {confidence}; 0.95 is usual")
    for scores in (first, second):
        if dim not in scores.dims:
            raise RequestError(
                f"scores to compare must have the dimension {dim!r}, but got {scores.dims}; score with "
                f"dim=('latitude', 'longitude'), which keeps it"
            )
    if first.sizes[dim] < 2:
        raise RequestError(f"{dim} must have at least 2 labels to compare scores, but got {first.sizes[dim]}")


def _horizon(series: xr.DataArray, dim: str, given: int | None) -> np.ndarray:
    """Inits until each forecast can be verified, shaped to be broadcast to all axes but the first."""
    if given is not None:
        if given < 1:
            raise RequestError(f"horizon must be at least 1, but got {given}; 1 is one init ahead")
        return np.asarray(given)
    known = dim in series.coords and "lead_time" in series.dims and "lead_time" in series.coords
    if not known or series["lead_time"].dtype.kind != "m":
        return np.asarray(1)
    apart = np.diff(series[dim].values)
    if apart.dtype.kind != "m" or (every := np.median(apart.astype("m8[ns]").astype(np.int64))) <= 0:
        return np.asarray(1)
    leads = series["lead_time"].values.astype("m8[ns]").astype(np.int64)
    steps = np.maximum(1, np.ceil(leads / every)).astype(int)
    axis = series.dims.index("lead_time") - 1
    return np.asarray(steps.reshape((-1,) + (1,) * (series.ndim - 2 - axis)))


def _t_interval(middle: np.ndarray, error: np.ndarray, count: np.ndarray, confidence: float) -> Found:
    """Interval and probability by Student's distribution."""
    try:
        from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error_:
        raise MissingExtraError(
            'scipy must be installed to compare scores, but got no such package; pip install "insitu-xr[verification]"'
        ) from error_
    degrees = np.maximum(count - 1, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = stdtrit(degrees, 0.5 + confidence / 2) * error
        probability = 2 * stdtr(degrees, -np.abs(middle / error))
    return {"difference": middle, "lower": middle - reach, "upper": middle + reach, "p_value": probability, "n": count}


def _moments(series: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number, mean, and departures from it, which are 0 where missing."""
    there = np.isfinite(series)
    count = there.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = np.where(there, series, 0).sum(axis=0) / count
    return count, middle, np.where(there, series - middle, 0)


def _paired_t(series: np.ndarray, settings: Settings) -> Found:
    count, middle, departures = _moments(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt((departures**2).sum(axis=0) / (count - 1) / count)
    return _t_interval(middle, error, count, settings.confidence)


def _geer_ar2(series: np.ndarray, settings: Settings) -> Found:
    """Inflate the error of the mean; never deflate it."""
    plain = _paired_t(series, settings)
    _, middle, departures = _moments(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = (departures**2).sum(axis=0)
        one, two = ((departures[lag:] * departures[:-lag]).sum(axis=0) / total for lag in (1, 2))
        first = one * (1 - two) / (1 - one**2)
        second = (two - one**2) / (1 - one**2)
        inflation = np.sqrt(np.maximum(1, (1 - one * first - two * second) / (1 - first - second) ** 2))
        error = np.sqrt(total / (plain["n"] - 1) / plain["n"]) * inflation
    found = _t_interval(middle, error, plain["n"], settings.confidence)
    return {**found, "inflation": inflation}


def _dm(series: np.ndarray, settings: Settings) -> Found:
    """Add up the covariances below the horizon, and correct for the number of inits."""
    results = [_dm_one(series[:, number], int(settings.horizon[number])) for number in range(series.shape[1])]
    middle, error, count = (np.array(values) for values in zip(*results, strict=True))
    return _t_interval(middle, error, count.astype(int), settings.confidence)


def _dm_one(values: np.ndarray, horizon: int) -> tuple[float, float, int]:
    values = values[np.isfinite(values)]
    count = len(values)
    if count <= horizon:
        return (float(values.mean()) if count else np.nan), np.nan, count
    departures = values - values.mean()
    covariances = [departures[lag:] @ departures[: count - lag] for lag in range(horizon)]
    variance = (covariances[0] + 2 * sum(covariances[1:])) / count**2
    correction = (count + 1 - 2 * horizon + horizon * (horizon - 1) / count) / count
    if variance <= 0 or correction <= 0:
        return float(values.mean()), np.nan, count
    return float(values.mean()), float(np.sqrt(variance / correction)), count


def _block_bootstrap(series: np.ndarray, settings: Settings) -> Found:
    """Draw blocks of inits, the same for all series."""
    number = len(series)
    longest = max(int(settings.horizon.max(initial=1)), round(number ** (1 / 3)))
    size = min(number, settings.block or longest)
    starts = np.random.default_rng(settings.seed).integers(0, number, (settings.draws, -(-number // size)))
    drawn = ((starts[..., None] + np.arange(size)) % number).reshape(settings.draws, -1)[:, :number]
    times = np.stack([np.bincount(row, minlength=number) for row in drawn]).astype(np.float64)
    there = np.isfinite(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = times @ np.where(there, series, 0) / (times @ there)
    count, middle, _ = _moments(series)
    tail = (1 - settings.confidence) / 2
    lower, upper = np.nanquantile(means, [tail, 1 - tail], axis=0)
    beyond = np.minimum((means <= 0).mean(axis=0), (means >= 0).mean(axis=0))
    probability = np.clip(2 * np.maximum(beyond, 1 / (settings.draws + 1)), 0, 1)
    return {"difference": middle, "lower": lower, "upper": upper, "p_value": probability, "n": count}


TESTS: Mapping[str, Callable[[np.ndarray, Settings], dict[str, Any]]] = {
    "paired_t": _paired_t,
    "geer_ar2": _geer_ar2,
    "dm": _dm,
    "block_bootstrap": _block_bootstrap,
}
