"""Maps of scores: of every point, averaged over init times."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.arrays import Scratch
from insitu_xr_adapters.verification.feeding import Streams
from insitu_xr_adapters.verification.means import Means
from insitu_xr_adapters.verification.measuring import Place, pieces_of
from insitu_xr_adapters.verification.metrics import Metric
from insitu_xr_adapters.verification.plan import Kept, ScorePlan, plan_of
from insitu_xr_adapters.verification.points import measure_points
from insitu_xr_adapters.verification.requesting import inputs_of, set_up
from insitu_xr_adapters.verification.results import STATE, scores_of
from insitu_xr_adapters.verification.setup import Asked, Setup
from insitu_xr_adapters.verification.state import Column, State
from insitu_xr_adapters.verification.statistics import Statistic
from insitu_xr_adapters.verification.sums import Sums

#: number of a lead time, and model, reference, variable and statistic
Slot = tuple[int, str, str, str, str]


def set_up_maps(asked: Asked) -> Setup:
    """Check a request for maps.

    Raises
    ------
    InsituError
        If an argument breaks a rule: regions and weights, or a metric that is made of whole fields.
    """
    for name, value, usual in (("regions", asked.regions, None), ("weights", asked.weights, "auto")):
        if value is not usual and value != usual:
            raise RequestError(
                f"{name} must be left out for a map of scores, but got {value!r}; every point has scores of its own"
            )
    setup = set_up(replace(asked, weights=None))
    for metric in setup.metrics:
        _check_metric(metric, setup)
    # At one point, the mean of the means of init times is the mean over init times.
    return replace(setup, pooled=True)


class _Pooled(Means):
    """Means that an init time has no means of its own of."""

    __slots__ = ()

    def each(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        raise _WholeFieldError

    def sum_each(self, statistic: Statistic, component: int = 0) -> np.ndarray:
        raise _WholeFieldError

    def average(self, values: np.ndarray, statistic: Statistic) -> np.ndarray:
        raise _WholeFieldError


class _WholeFieldError(Exception):
    pass


def _check_metric(metric: Metric, setup: Setup) -> None:
    for model in setup.models:
        try:
            statistics = metric.statistics(model.members)
        except RequestError:
            continue  # a metric of ensembles, beside a model that is none
        columns = setup.domain.shape[1]
        totals = {s: np.ones((1, s.components(model.members, columns), 1)) for s in statistics}
        try:
            if any(statistic.per_row for statistic in statistics):
                raise _WholeFieldError
            means = _Pooled(totals, model.members)
            metric.compute(*(means for _ in inputs_of(metric, ("",))))
        except _WholeFieldError:
            raise RequestError(
                f"a metric must be made of means over init times to have a map, but got {metric.name!r}, which is made "
                "of whole fields; leave it out, or average over latitude and longitude as well"
            ) from None


def plan_maps(setup: Setup, columns: Sequence[Column], memory: int | str | None) -> ScorePlan:
    """Choose the order of reading; what is kept are the scores, and of a band of latitudes the sums of each point."""
    numbers, leads = sum(c.size for c in columns), len(setup.pairs.leads)
    # Sums over init times are nodes of a tree, of which few are there at once when init times ascend; two more of what
    # is just measured, and two while scores are computed.
    nodes = len(setup.pairs.inits).bit_length() + 1
    row = 8 * setup.domain.shape[1]
    scores = 2 * row * setup.domain.shape[0] * leads * _numbers(setup)
    return plan_of(setup, columns, memory, kept=Kept(scores, row * numbers * (leads * nodes + 4)))


def _numbers(setup: Setup) -> int:
    """Scores of a point at a lead time."""
    found = 0
    for variable in setup.grid.variables:
        for model in setup.models:
            sizes = [math.prod(map(len, m.coords(model.members, setup.domain.shape).values())) for m in setup.metrics]
            found += math.prod(setup.grid.extra_shape(variable)) * len(setup.references) * sum(sizes)
    return found


@dataclass(slots=True, eq=False)
class Mapper:
    """Carries a plan for maps out.

    Attributes
    ----------
    about : mapping
        What results say of the request.
    place : callable, optional
        Takes arrays to a device.
    """

    plan: ScorePlan
    columns: Sequence[Column]
    about: dict[str, Any]
    place: Place | None = None
    _ranks: np.ndarray = field(init=False)
    _totals: dict[Slot, Sums] = field(init=False, default_factory=dict)
    _lock: Any = field(init=False, default_factory=threading.Lock)
    _own: Any = field(init=False, default_factory=threading.local)

    def __post_init__(self) -> None:
        #: place of each pair among those of its lead time
        self._ranks = np.cumsum(self.plan.setup.pairs.wanted, axis=0) - 1

    def run(self, bar: Any = None) -> xr.Dataset:
        """Read and measure, band by band; returns the scores."""
        with ThreadPoolExecutor(self.plan.workers, thread_name_prefix="insitu-score") as pool:
            bands = [self._band(rows, pool, bar) for rows in self.plan.sweep.bands]
        found = bands[0] if len(bands) == 1 else xr.concat(bands, "region", data_vars="minimal", coords="minimal")
        return self._on_grid(found)

    def _band(self, rows: slice, pool: ThreadPoolExecutor, bar: Any) -> xr.Dataset:
        plan, waiting = self.plan, deque[Future[None]]()
        memory = {name: reading.memory for name, reading in plan.readings.items()}
        with ExitStack() as stack:
            # Should one fail, the others are not begun any more.
            stack.callback(lambda: [future.cancel() for future in waiting])
            streams = stack.enter_context(Streams(plan.setup.feeds, rows, plan.setup.grid, plan.sweep.pieces, memory))
            for _ in plan.sweep.pieces:
                waiting.append(pool.submit(self._one, streams, rows))
                if len(waiting) > plan.workers:
                    waiting.popleft().result()
                if bar is not None:
                    bar.update(streams.new_bytes())
            while waiting:
                waiting.popleft().result()
        leads = [self._scores(lead, rows) for lead in range(len(plan.setup.pairs.leads))]
        return xr.concat(leads, "lead_time", data_vars="all")

    def _one(self, streams: Streams, rows: slice) -> None:
        """Read the next piece, and measure pair by pair; runs on a worker."""
        setup, (pairs, fields) = self.plan.setup, streams.next()
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        counts = setup.pairs.wanted.sum(axis=0)
        options: dict[str, Any] = {"nan": setup.nan, "scratch": self._own.scratch}
        options["points"] = self.plan.points if self.place is None else None
        for thing, piece in pieces_of(setup, pairs, rows, fields, self.place):
            for number, (init, lead) in enumerate(zip(*np.unravel_index(pairs, self._ranks.shape), strict=True)):
                start, length = int(self._ranks[init, lead]), int(counts[lead])
                one = piece.only(number)
                found = measure_points(one, thing.statistics, setup.domain, start, length, **options)
                with self._lock:
                    for statistic, sums in found.items():
                        slot = (int(lead), thing.model.name, thing.reference, thing.variable, statistic.key)
                        self._totals[slot] = self._totals[slot].merge(sums) if slot in self._totals else sums

    def _scores(self, lead: int, rows: slice) -> xr.Dataset:
        """Scores of a band at one lead time: what follows takes points for regions."""
        setup, points = self.plan.setup, (rows.stop - rows.start) * self.plan.setup.domain.shape[1]
        columns = [replace(column, shape=(*column.shape[:-1], points)) for column in self.columns]
        flat = [self._totals.pop((lead, *column.key)).total.ravel() for column in columns]
        first = rows.start * setup.domain.shape[1]
        about = {**self.about, "regions": range(first, first + points)}
        sums, done = np.concatenate(flat)[None, None], np.ones((1, 1), bool)
        state = State(setup.pairs.inits[:1], setup.pairs.leads[lead : lead + 1], tuple(columns), sums, done, {}, about)
        return scores_of(state, setup.metrics)

    def _on_grid(self, scores: xr.Dataset) -> xr.Dataset:
        """Points become latitudes and longitudes, after lead times and levels."""
        grid, arrays = self.plan.setup.grid, {}
        names = str(grid.latitude.name), str(grid.longitude.name)
        for name, array in scores.data_vars.items():
            front = [d for d in ("metric", "lead_time", *grid.labels) if d in array.dims]
            own = [d for d in array.dims if d not in (*front, "region")]
            ordered = array.transpose(*front, "region", *own)
            shape = (*ordered.shape[: len(front)], *grid.shape, *ordered.shape[len(front) + 1 :])
            arrays[name] = ((*front, *names, *own), ordered.values.reshape(shape), array.attrs)
        coords = {n: c for n, c in scores.coords.items() if "region" not in c.dims}
        counts = self.plan.setup.pairs.wanted.sum(axis=0)
        found = xr.Dataset(arrays, {**coords, names[0]: grid.latitude.variable, names[1]: grid.longitude.variable})
        found = found.assign_coords(n_init=("lead_time", counts, {"long_name": "init times of each lead time"}))
        found.attrs = {k: v for k, v in scores.attrs.items() if k != "weights"}
        found.encoding.pop(STATE, None)
        return found


def score_maps(
    setup: Setup,
    columns: Sequence[Column],
    about: dict[str, Any],
    memory: int | str | None,
    place: Place | None,
    bar: Callable[[int], Any] | None,
) -> xr.Dataset:
    """Scores of every point; ``bar`` makes a bar of so many bytes."""
    plan = plan_maps(setup, columns, memory)
    mapper = Mapper(plan, columns, about, place)
    if bar is None:
        return mapper.run()
    with bar(plan.bytes_decoded) as shown:
        return mapper.run(shown)
