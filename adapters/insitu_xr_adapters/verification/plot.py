"""Figures of scores: over lead time, against a baseline, by init, by rank and on a map. Each returns its axes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu_xr.errors import MissingExtraError, RequestError

from .grids import LATITUDE_NAMES, LONGITUDE_NAMES

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

#: differences in percent at which the colours of a scorecard end
SCORECARD_LIMIT = 20.0


def skill(
    scores: xr.DataArray,
    lower: xr.DataArray | None = None,
    upper: xr.DataArray | None = None,
    *,
    dashed: xr.DataArray | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw scores over lead time, a line for each label of another dimension.

    Parameters
    ----------
    scores : xarray.DataArray
        ``lead_time``, and at most one more dimension such as ``model`` or ``region``.
    lower, upper : xarray.DataArray, optional
        Bounds of a ribbon around each line.
    dashed : xarray.DataArray, optional
        A second line each, such as the spread beside the error.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
    """
    _dims(scores, ["lead_time"], extra=1)
    ax = ax or _axes()
    days = _days(scores)
    for number, (label, line) in enumerate(_lines(scores)):
        (drawn,) = ax.plot(days, line.values, marker="o", markersize=3, label=label)
        if lower is not None and upper is not None:
            low, high = (_lines(bound)[number][1].values for bound in (lower, upper))
            ax.fill_between(days, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
        if dashed is not None:
            ax.plot(days, _lines(dashed)[number][1].values, linestyle="--", color=drawn.get_color())
    if scores.ndim > 1:
        ax.legend()
    ax.set(xlabel="lead time (days)", ylabel=_title(scores), title=_where(scores))
    ax.grid(alpha=0.3)
    return ax


def scorecard(
    scores: xr.Dataset | xr.DataArray,
    baseline: xr.Dataset | xr.DataArray,
    p_values: xr.Dataset | xr.DataArray | None = None,
    *,
    positive: bool | None = None,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Draw by how many percent scores are better (blue) or worse (red) than a baseline.

    Parameters
    ----------
    scores, baseline : xarray.Dataset or xarray.DataArray
        ``lead_time`` and any other dimensions, such as ``level``; each variable and label of them is a row.
    p_values : xarray.Dataset or xarray.DataArray, optional
        Probabilities as `compare` gives them; cells that are not significant are hatched.
    positive : bool, optional
        Whether more is better, so that the distance to 1 is compared; by default as the attributes say.
    confidence : float, optional
        A cell is significant where its probability is below one less this.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
    """
    rows, against = _rows(scores), _rows(baseline)
    if rows.keys() != against.keys():
        raise RequestError(
            f"a baseline must have the rows {list(rows)}, but got {list(against)}; select what both have"
        )
    cells = np.array([_percent(rows[name], against[name], positive) for name in rows])
    days = _days(next(iter(rows.values())))
    ax = ax or _axes((1.5 + 0.5 * len(days), 1.5 + 0.35 * len(rows)))
    mesh = ax.imshow(cells, cmap="RdBu_r", vmin=-SCORECARD_LIMIT, vmax=SCORECARD_LIMIT, aspect="auto")
    if p_values is not None:
        _hatch(ax, np.array([values.values for values in _rows(p_values).values()]) >= 1 - confidence)
    ax.set_xticks(range(len(days)), [f"{day:g}" for day in days])
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set(xlabel="lead time (days)")
    ax.figure.colorbar(mesh, ax=ax, label="worse than the baseline (%)", extend="both")
    return ax


def heatmap(scores: xr.DataArray, *, ax: Axes | None = None) -> Axes:
    """Draw scores of each init by lead time.

    Parameters
    ----------
    scores : xarray.DataArray
        ``init_time`` and ``lead_time``.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
    """
    _dims(scores, ["init_time", "lead_time"])
    ax = ax or _axes()
    field = scores.transpose("lead_time", "init_time")
    mesh = ax.pcolormesh(field["init_time"].values, _days(scores), field.values, shading="nearest", cmap="viridis")
    ax.figure.colorbar(mesh, ax=ax, label=_title(scores))
    ax.set(xlabel="init time", ylabel="lead time (days)", title=_where(scores))
    ax.tick_params("x", rotation=30)
    return ax


def rank_histogram(shares: xr.DataArray, *, ax: Axes | None = None) -> Axes:
    """Draw how often the reference has each rank among the members, beside what would be even.

    Parameters
    ----------
    shares : xarray.DataArray
        ``rank``, and at most one more dimension, whose bars stand side by side.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
    """
    _dims(shares, ["rank"], extra=1)
    ax = ax or _axes()
    lines = _lines(shares, "rank")
    width = 0.9 / len(lines)
    for number, (label, line) in enumerate(lines):
        ax.bar(np.arange(line.size) + (number + 0.5) * width - 0.45, line.values, width, label=label)
    ax.axhline(1 / shares.sizes["rank"], color="black", linestyle="--", linewidth=1)
    if len(lines) > 1:
        ax.legend()
    ax.set(xlabel="rank of the reference", ylabel="share of points", title=_where(shares))
    return ax


def map_of(scores: xr.DataArray, *, diverging: bool | None = None, ax: Axes | None = None) -> Axes:
    """Draw the score of each point on a plain map of longitudes and latitudes.

    Parameters
    ----------
    scores : xarray.DataArray
        Latitude and longitude.
    diverging : bool, optional
        Whether colours part at zero; by default where scores have both signs.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
    """
    lat, lon = (next((name for name in names if name in scores.dims), names[0]) for names in _HORIZONTAL)
    _dims(scores, [lat, lon])
    ax = ax or _axes()
    order = np.argsort(scores[lon].values, kind="stable")
    field = scores.transpose(lat, lon).isel({lon: order})
    values = np.asarray(field.values, np.float64)
    low, high = (float(bound(values)) if np.isfinite(values).any() else 0.0 for bound in (np.nanmin, np.nanmax))
    both = low < 0 < high if diverging is None else diverging
    limit = max(abs(low), abs(high))
    limits: Mapping[str, Any] = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} if both else {"cmap": "viridis"}
    mesh = ax.pcolormesh(field[lon].values, field[lat].values, values, shading="nearest", **limits)
    ax.figure.colorbar(mesh, ax=ax, label=_title(scores))
    ax.set(xlabel="longitude", ylabel="latitude", title=_where(scores), aspect="equal")
    return ax


_HORIZONTAL = (LATITUDE_NAMES, LONGITUDE_NAMES)


def _axes(size: tuple[float, float] | None = None) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            "matplotlib must be installed to draw scores, but got no such package; pip install matplotlib"
        ) from error
    return plt.subplots(figsize=size, layout="constrained")[1]


def _dims(scores: xr.DataArray, needed: Sequence[str], extra: int = 0) -> None:
    others = [dim for dim in scores.dims if dim not in needed]
    lacking = [dim for dim in needed if dim not in scores.dims]
    if lacking or len(others) > extra:
        more = f" and at most {extra} more" if extra else ""
        raise RequestError(
            f"scores to draw must have the dimensions {list(needed)}{more}, but got {scores.dims}; select one label of "
            "the others"
        )


def _days(scores: xr.DataArray) -> np.ndarray:
    leads = scores["lead_time"].values
    return leads / np.timedelta64(1, "D") if leads.dtype.kind == "m" else np.asarray(leads, np.float64)


def _lines(scores: xr.DataArray, along: str = "lead_time") -> list[tuple[str, xr.DataArray]]:
    others: list[Hashable] = [dim for dim in scores.dims if dim != along]
    if not others:
        return [("", scores)]
    (dim,) = others
    return [(str(scores[dim].values[number]), scores.isel({dim: number})) for number in range(scores.sizes[dim])]


def _rows(scores: xr.Dataset | xr.DataArray) -> dict[str, xr.DataArray]:
    """Series over lead time by name: of each variable, and each label of its other dimensions."""
    import xarray as xr

    variables: Mapping[Hashable, xr.DataArray]
    if isinstance(scores, xr.Dataset):
        variables = scores.data_vars
    else:
        variables = {"" if scores.name is None else scores.name: scores}
    rows: dict[str, xr.DataArray] = {}
    for name, values in variables.items():
        others = [dim for dim in values.dims if dim != "lead_time"]
        for index in np.ndindex(*(values.sizes[dim] for dim in others)):
            chosen = dict(zip(others, index, strict=True))
            labels = [str(values[dim].values[number]) for dim, number in chosen.items()]
            rows[" ".join([str(name), *labels]).strip()] = values.isel(chosen)
    return rows


def _percent(scores: xr.DataArray, baseline: xr.DataArray, positive: bool | None) -> np.ndarray:
    """How much worse scores are, in percent of the baseline, or of what it lacks to be perfect."""
    more = scores.attrs.get("orientation") == "positive" if positive is None else positive
    first, second = np.asarray(scores.values, np.float64), np.asarray(baseline.values, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 100 * ((second - first) / (1 - second) if more else (first - second) / second)


def _hatch(ax: Axes, cells: np.ndarray) -> None:
    from matplotlib.patches import Rectangle

    for row, column in zip(*np.nonzero(cells), strict=True):
        place = (float(column) - 0.5, float(row) - 0.5)
        ax.add_patch(Rectangle(place, 1, 1, fill=False, hatch="////", linewidth=0, edgecolor="0.4"))


def _title(scores: xr.DataArray) -> str:
    name = scores.attrs.get("long_name", "score" if scores.name is None else scores.name)
    units = scores.attrs.get("units")
    return f"{name} ({units})" if units and units != "1" else str(name)


def _where(scores: xr.DataArray) -> str:
    """Labels that were selected."""
    shown = ("metric", "region", "level", "model")
    return ", ".join(f"{scores[name].item()}" for name in shown if name in scores.coords and scores[name].ndim == 0)
