"""``scores.insitu.plot``: figures of scores, with intervals out of the sums that they carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification import plot
from insitu_xr_adapters.verification.aggregating import StateOf, compare_models
from insitu_xr_adapters.verification.grids import LATITUDE_NAMES, LONGITUDE_NAMES
from insitu_xr_adapters.verification.results import STATE


class Plot:
    """Figures of scores, drawn with matplotlib; each method returns the axes.

    What is not selected is the first label of a dimension.

    Examples
    --------
    >>> import numpy as np, pandas as pd, xarray as xr
    >>> from insitu_xr_adapters.verification import score
    >>> grid = {"latitude": [-45.0, 45.0], "longitude": [0.0, 180.0]}
    >>> times = pd.date_range("2020", periods=4, freq="12h")
    >>> truth = xr.Dataset({"t2m": (("time", *grid), np.zeros((4, 2, 2)))}, {"time": times, **grid})
    >>> forecast = xr.Dataset({"t2m": (("init_time", "lead_time", *grid), np.ones((3, 2, 2, 2)))},
    ...                       {"init_time": times[:3], "lead_time": pd.to_timedelta([0, 12], "h"), **grid})
    >>> Plot(score(forecast, truth)).skill("rmse").get_xlabel()  # doctest: +SKIP
    'lead time (days)'
    """

    def __init__(self, scores: xr.Dataset) -> None:
        self._scores = scores

    def skill(
        self,
        metric: str = "rmse",
        variable: str | None = None,
        *,
        dashed: str | None = None,
        draws: int = 200,
        block: int = 1,
        confidence: float = 0.95,
        seed: int = 0,
        ax: Any = None,
        **labels: Any,
    ) -> Any:
        """Scores over lead time, a line for each model, with the intervals that drawing init times again gives.

        Parameters
        ----------
        metric, variable : str, optional
        dashed : str, optional
            Another metric that is drawn dashed, such as "spread" beside "rmse".
        draws, block, seed : int
            How often init times are drawn again, and how many neighbours at once; 0 draws no intervals. Scores that
            carry no sums have none.
        confidence : float
        ax : matplotlib.axes.Axes, optional
        **labels
            Labels of other dimensions, such as ``region="tropics"`` and ``level=500``.
        """
        name = self._variable(variable)
        lines = self._chosen(self._scores[name], {"metric": metric, **labels}, ("lead_time", "model"))
        more = None
        if dashed is not None:
            more = self._chosen(self._scores[name], {"metric": dashed, **labels}, ("lead_time", "model"))
        lower, upper = None, None
        if draws and STATE in self._scores.encoding:
            drawn = StateOf(self._scores).resampled(draws, block=block, seed=seed)[name]
            every = self._chosen(drawn, {"metric": metric, **labels}, ("lead_time", "model", "draw"))
            tail = (1 - confidence) / 2
            lower, upper = (every.quantile(q, "draw").drop_vars("quantile") for q in (tail, 1 - tail))
        return plot.skill(lines, lower, upper, dashed=more, ax=ax)

    def scorecard(
        self,
        model: str,
        baseline: str,
        metric: str = "rmse",
        *,
        test: str | None = "geer_ar2",
        confidence: float = 0.95,
        ax: Any = None,
        **labels: Any,
    ) -> Any:
        """By how much a model is better than another, for every variable and level, hatched where that may be chance.

        Parameters
        ----------
        model, baseline : str
            Two of the models.
        metric : str
        test : str, optional
            See ``scores.insitu.compare``; None leaves it out.
        confidence : float
        ax : matplotlib.axes.Axes, optional
        **labels
            Labels of other dimensions.
        """
        names = [n for n in self._scores.data_vars if "metric" in self._scores[n].dims]
        fixed = {"metric": metric, "region": self._scores["region"].values[0], **labels}
        ds = self._selected(self._scores[names], fixed)
        if "model" not in ds.dims:
            raise RequestError("a scorecard must be of two models, but got scores of one; score a dict of forecasts")
        chance = None
        if test is not None and STATE in self._scores.encoding:
            found = compare_models(self._scores, model, baseline, test, confidence=confidence)[names]
            chance = self._selected(found, fixed).sel(result="p_value", drop=True)
        one, other = (self._selected(ds, {"model": label}) for label in (model, baseline))
        return plot.scorecard(one, other, chance, confidence=confidence, ax=ax)

    def heatmap(self, metric: str = "rmse", variable: str | None = None, *, ax: Any = None, **labels: Any) -> Any:
        """Scores of every init time by lead time; of scores that carry their sums."""
        each = StateOf(self._scores).each()
        array = each[self._variable(variable)]
        return plot.heatmap(self._chosen(array, {"metric": metric, **labels}, ("init_time", "lead_time")), ax=ax)

    def map(self, metric: str = "rmse", variable: str | None = None, *, ax: Any = None, **labels: Any) -> Any:
        """Scores of every point; of scores that were made with ``dim="init_time"``."""
        array = self._scores[self._variable(variable)]
        keep = tuple(str(d) for d in array.dims if d in (*LATITUDE_NAMES, *LONGITUDE_NAMES))
        if len(keep) < 2:
            raise RequestError(
                f"scores must be of every point to have a map, but got the dimensions {[*array.dims]}; "
                'score with dim="init_time"'
            )
        return plot.map_of(self._chosen(array, {"metric": metric, **labels}, keep), ax=ax)

    def rank_histogram(self, variable: str | None = None, *, ax: Any = None, **labels: Any) -> Any:
        """How often the reference has each rank among the members."""
        name = f"{self._variable(variable)}__rank_histogram"
        if name not in self._scores:
            raise RequestError(
                f"scores must have {name!r} for this, but got {[*self._scores.data_vars]}; score with 'rank_histogram'"
            )
        keep = ("rank", "lead_time") if "lead_time" not in labels else ("rank", "model")
        return plot.rank_histogram(self._chosen(self._scores[name], labels, keep), ax=ax)

    def _variable(self, name: str | None) -> str:
        known = [str(n) for n in self._scores.data_vars if "metric" in self._scores[n].dims]
        if name is None and known:
            return known[0]
        if name not in known:
            raise RequestError(f"variable must be one of {known}, but got {name!r}; give one that was scored")
        return name

    def _selected(self, ds: Any, labels: Mapping[str, Any]) -> Any:
        for dim, label in labels.items():
            if dim not in ds.dims:
                continue
            wanted = pd.Timedelta(label).to_timedelta64() if dim == "lead_time" else label
            known = ds[dim].values
            if not np.any(known == wanted):
                raise RequestError(f"{dim} must be one of {known.tolist()}, but got {label!r}; give one of them")
            ds = ds.sel({dim: wanted}, drop=True)
        return ds

    def _chosen(self, array: xr.DataArray, labels: Mapping[str, Any], keep: tuple[str, ...]) -> xr.DataArray:
        """Labels of dimensions, and the first one of those that are neither given nor kept."""
        named = array.name
        if unknown := sorted(set(labels) - {str(d) for d in array.dims}):
            raise RequestError(f"labels must be of dimensions {[*array.dims]}, but got {unknown}; leave them out")
        array = self._selected(array, labels)
        chosen: xr.DataArray = array.isel({d: 0 for d in array.dims if d not in keep}, drop=True)
        return chosen.rename(f"{named} {labels['metric']}" if "metric" in labels else named)
