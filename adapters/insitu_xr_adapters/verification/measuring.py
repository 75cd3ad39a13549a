"""The statistics of the pairs of one piece, in the order of the columns of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr_adapters.verification.arrays import Scratch
from insitu_xr_adapters.verification.blocks import Piece
from insitu_xr_adapters.verification.feeding import Fields
from insitu_xr_adapters.verification.measure import measure
from insitu_xr_adapters.verification.setup import Model, Setup
from insitu_xr_adapters.verification.state import Column
from insitu_xr_adapters.verification.statistics import Statistic
from insitu_xr_adapters.verification.sums import Node, Sums
from insitu_xr_adapters.verification.times import IntArray, spell, spell_lead

Float = npt.NDArray[np.float64]
Place = Callable[[npt.NDArray[Any]], Any]


def columns_of(setup: Setup) -> list[Column]:
    """What is kept of a pair; measured on one row of zeros, for only the statistics know how many numbers they are."""
    shapes: dict[tuple[str, str], dict[Statistic, Sums]] = {}
    rows, longitudes = setup.domain.shape
    for model in setup.models:
        for variable in setup.grid.variables:
            statistics = setup.statistics.get((model.name, variable), ())
            high = rows if any(s.whole_field for s in statistics) else 1
            extras = setup.grid.extra_shape(variable)
            field = np.zeros((*(1 for _ in extras), high, longitudes))
            members = (model.members,) if model.members else ()
            forecast = np.zeros((*field.shape[:-2], *members, high, longitudes))
            kinds = dict.fromkeys(setup.kinds[variable], field)
            piece = Piece(variable, forecast, field, kinds, members=bool(members))
            shapes[model.name, variable] = measure(piece, statistics, setup.domain, nan="propagate")
    found = []
    for model, reference, variable in _measured_things(setup):
        extras = setup.grid.extra_shape(variable)
        for statistic, sums in shapes[model.name, variable].items():
            value = next(iter(sums.nodes.values()))
            shape = (*extras, *value.shape[-2:])
            found.append(Column(model.name, reference, variable, statistic.key, shape))
    return found


def _measured_things(setup: Setup) -> Iterator[tuple[Model, str, str]]:
    """Models, references and variables in the order of their names: sums add up in whatever order they were asked for.

    Stores that are not consolidated have no order of variables: it may differ at each time they are opened.
    """
    models = sorted(setup.models, key=lambda model: model.name)
    return product(models, sorted(setup.references), sorted(setup.grid.variables))


def measure_pairs(
    setup: Setup,
    pairs: IntArray,
    rows: slice,
    fields: Mapping[str, Fields],
    place: Place | None = None,
    points: int | None = None,
    scratch: Scratch | None = None,
) -> dict[Node, Float]:
    """Sums over some rows of all that is scored, by node of the tree of rows: (pairs, numbers).

    Parameters
    ----------
    pairs : array of int64
        Flat numbers of the pairs.
    fields : mapping of feed to fields
    place : callable, optional
        Takes each array to a device.
    points : int, optional
        Points that are measured together.
    scratch : Scratch, optional
        Memory of this thread.
    """
    nodes: dict[Node, list[Float]] = {}
    for thing, piece in pieces_of(setup, pairs, rows, fields, place):
        measured = measure(piece, thing.statistics, setup.domain, nan=setup.nan, points=points, scratch=scratch)
        for sums in measured.values():
            for node, value in sums.nodes.items():
                nodes.setdefault(node, []).append(value.reshape(len(pairs), -1))
    return {node: np.concatenate(values, axis=1) for node, values in nodes.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """A variable of a model that is compared with a reference, and what is summed of it."""

    model: Model
    reference: str
    variable: str
    statistics: tuple[Statistic, ...]


def pieces_of(
    setup: Setup, pairs: IntArray, rows: slice, fields: Mapping[str, Fields], place: Place | None = None
) -> Iterator[tuple[Thing, Piece]]:
    """Everything that is measured of some pairs, in the order of the columns of a state."""
    taken: dict[tuple[str, str, str], Any] = {}

    def field(feed: str, ask: str, name: str) -> Any:
        key = (feed, ask, name)
        if key not in taken:
            values = fields[feed][ask, name]
            taken[key] = values if place is None else place(values)
        return taken[key]

    for model, name, variable in _measured_things(setup):
        reference = setup.references[name]
        piece = Piece(
            variable,
            field(model.feed or reference, model.ask, f"{variable}|{model.kind}" if model.kind else variable),
            field(reference, "valid", variable),
            {kind: field("climatology", "valid", f"{variable}|{kind}") for kind in setup.kinds[variable]},
            members=bool(model.members),
            start=rows.start,
            place=_where(setup, model, variable, pairs),
        )
        yield Thing(model, name, variable, setup.statistics.get((model.name, variable), ())), piece


def _where(setup: Setup, model: Model, variable: str, pairs: IntArray) -> Callable[[tuple[int, ...]], str]:
    """Says where an index (pair, *extras, latitude, longitude) is."""

    def where(index: tuple[int, ...]) -> str:
        pair, *extras, row, column = index
        init, lead = np.unravel_index(int(pairs[pair]), setup.pairs.wanted.shape)
        labels = [
            f"{d} {setup.grid.labels[d].to_numpy()[k]}"
            for d, k in zip(setup.grid.extras[variable], extras, strict=True)
        ]
        return ", ".join(
            [
                f"model {model.name!r}, init time {spell(int(setup.pairs.inits[init]), setup.pairs.calendar)}",
                f"lead time {spell_lead(int(setup.pairs.leads[lead]))}",
                *labels,
                f"latitude {setup.domain.latitude[row]:g}",
                f"longitude {setup.domain.longitude[column]:g}",
            ]
        )

    return where
