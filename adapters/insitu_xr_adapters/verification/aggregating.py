"""What can be made of the sums without reading again: scores by season or year, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.results import init_times, scores_of, state_of
from insitu_xr_adapters.verification.state import State
from insitu_xr_adapters.verification.storing import StateStore

#: what init times can be grouped by, as attributes of ``.dt``
GROUPS = ("season", "month", "year", "hour")


class StateOf:
    """``scores.insitu.state``: the sums of every init and lead time that scores were made of.

    Examples
    --------
    >>> import numpy as np, pandas as pd, xarray as xr
    >>> from insitu_xr_adapters.verification import score
    >>> grid = {"latitude": [-45.0, 45.0], "longitude": [0.0, 180.0]}
    >>> inits, lead = pd.date_range("2020", periods=4, freq="90D"), pd.to_timedelta([0], "h")
    >>> truth = xr.Dataset({"t2m": (("time", *grid), np.zeros((4, 2, 2)))}, {"time": inits, **grid})
    >>> values = np.arange(4.0)[:, None, None, None] * np.ones((1, 1, 2, 2))
    >>> forecast = xr.Dataset({"t2m": (("init_time", "lead_time", *grid), values)},
    ...                       {"init_time": inits, "lead_time": lead, **grid})
    >>> scores = score(forecast, truth, metrics=["bias"])
    >>> seasons = scores.insitu.state.by("season")
    >>> dict(zip(seasons.season.values.tolist(), seasons.t2m.values.ravel().tolist()))
    {'DJF': 0.0, 'JJA': 2.0, 'MAM': 1.0, 'SON': 3.0}
    """

    def __init__(self, scores: xr.Dataset) -> None:
        self.state: State = state_of(scores)

    def __repr__(self) -> str:
        return repr(self.state)

    def to_datatree(self) -> xr.DataTree:
        """The sums, a group for each model, reference and variable."""
        return self.state.to_datatree()

    def save(self, place: Any) -> None:
        """Keep the sums at a new place, from which ``load`` and ``score(..., state=, resume=True)`` go on."""
        store = StateStore(place)
        store.open(self.state.identity, self.state.columns, self.state.attrs, resume=False)
        init, lead = np.nonzero(self.state.done)
        sums = self.state.sums[init, lead]
        store.finish(self.state.inits[init], self.state.leads[lead], sums, int(self.state.attrs["shape"][0]))

    def each(self, metrics: Sequence[Any] | None = None) -> xr.Dataset:
        """Scores of every init time by itself, with the dimension ``init_time``."""
        return scores_of(self.state, metrics, per_init=True)

    def by(self, group: str | Sequence[Any] | Callable[[Any], Any], metrics: Sequence[Any] | None = None) -> xr.Dataset:
        """Scores of groups of init times.

        Parameters
        ----------
        group : {"season", "month", "year", "hour"}, sequence, or callable
            What they are grouped by: a part of the date, a label for each, or what a function makes of the init times.
        metrics : sequence, optional
            By default those that were scored.
        """
        name, labels = self._groups(group)
        known = np.unique(labels)
        found = [scores_of(self.state.select(np.flatnonzero(labels == k)), metrics) for k in known.tolist()]
        return xr.concat(
            found, xr.Variable(name, known), join="outer", data_vars="all", coords="different", compat="equals"
        )

    def _groups(self, group: Any) -> tuple[str, npt.NDArray[Any]]:
        times = xr.DataArray(init_times(self.state), dims="init_time")
        if isinstance(group, str):
            if group not in GROUPS:
                raise RequestError(f"by must be one of {list(GROUPS)}, or labels, but got {group!r}; give one of them")
            return group, np.asarray(getattr(times.dt, group))
        labels = np.asarray(group(times.to_numpy()) if callable(group) else group)
        if labels.shape != times.shape:
            raise RequestError(
                f"labels to group by must be one for each of {times.size} init times, but got shape {labels.shape}; "
                "give one "
                "for each"
            )
        return "group", labels

    def resampled(
        self, draws: int = 1000, *, block: int = 1, seed: int = 0, metrics: Sequence[Any] | None = None
    ) -> xr.Dataset:
        """Scores of init times drawn again and again, with the dimension ``draw``: their spread is that of the scores.

        Parameters
        ----------
        draws : int
        block : int
            Neighbouring init times that are drawn together; as many as their errors are alike for.
        seed : int
        metrics : sequence, optional
            By default those that were scored.
        """
        n = len(self.state.inits)
        if not 1 <= block <= n:
            raise RequestError(f"block must be from 1 to {n} init times, but got {block}; give fewer")
        starts = np.random.default_rng(seed).integers(0, n, (draws, -(-n // block)))
        drawn = ((starts[..., None] + np.arange(block)) % n).reshape(draws, -1)[:, :n]
        counts = np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(np.float64)
        return scores_of(self.state, metrics, draws=counts)


def compare_models(
    scores: xr.Dataset,
    first: str,
    second: str,
    test: str = "geer_ar2",
    *,
    dim: str = "model",
    metrics: Sequence[Any] | None = None,
    **options: Any,
) -> xr.Dataset:
    """Test whether two models differ, init time by init time; as ``scores.insitu.compare("a", "b")``.

    Parameters
    ----------
    first, second : str
        Two of the models.
    test : {"paired_t", "geer_ar2", "dm", "block_bootstrap"}
        See :func:`insitu_xr_adapters.verification.compare.compare`.
    dim : {"model", "reference"}
        What they are labels of.
    metrics : sequence, optional
        By default those that were scored. Of a root, such as "rmse", the root of each init time is compared.
    **options
        Passed on to the test, such as ``confidence=0.9``.

    Returns
    -------
    xarray.Dataset
        The variables of the scores, each with a dimension ``result``: "difference" (first less second), "lower",
        "upper", "p_value" and "n".
    """
    from insitu_xr_adapters.verification.compare import compare

    each = scores_of(state_of(scores), metrics, per_init=True)
    known = each[dim].values.tolist() if dim in each.dims else []
    for name in (first, second):
        if name not in known:
            raise RequestError(
                f"{dim}s to compare must be two of {known}, but got {name!r}; score several with a dict of forecasts"
            )
    found = {}
    for variable, array in each.data_vars.items():
        one, two = (array.sel({dim: label}, drop=True) for label in (first, second))
        results = compare(one, two, test, **options)
        found[variable] = results[["difference", "lower", "upper", "p_value", "n"]].to_array("result")
    return xr.Dataset(found, attrs={"test": test, "first": first, "second": second})
