"""Sums of every init and lead time, which add up to scores: added to, taken from one another, and merged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.times import IntArray

Float = npt.NDArray[np.float64]

#: labels in the identity of a request that a message names first
_TELLING = ("models", "references", "variables", "levels", "statistics", "nan", "domain", "calendar", "sources")


@dataclass(frozen=True, slots=True)
class Column:
    """One statistic of one variable of a model against a reference.

    Attributes
    ----------
    shape : tuple of int
        Of the sums of one pair: extras, components and regions.
    """

    model: str
    reference: str
    variable: str
    statistic: str
    shape: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from others."""
        return self.model, self.reference, self.variable, self.statistic

    @property
    def size(self) -> int:
        """Numbers of one pair."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class State:
    """Sums per init and lead time.

    Attributes
    ----------
    inits, leads : array of int64
        Microseconds, ascending.
    columns : tuple of Column
        What the numbers of a pair are.
    sums : array of float64, shape (inits, leads, numbers)
        0 where a pair is not done.
    done : array of bool, shape (inits, leads)
    identity : mapping
        What was asked, apart from the init times: only sums of the same request add up.
    attrs : mapping
        What else there is to say: names, labels and attributes of what was scored.
    """

    inits: IntArray
    leads: IntArray
    columns: tuple[Column, ...]
    sums: Float
    done: npt.NDArray[np.bool_]
    identity: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(
        cls,
        inits: IntArray,
        leads: IntArray,
        columns: Sequence[Column],
        identity: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> State:
        """A state in which nothing is done."""
        shape = len(inits), len(leads)
        numbers = sum(c.size for c in columns)
        return cls(inits, leads, tuple(columns), np.zeros((*shape, numbers)), np.zeros(shape, bool), identity, attrs)

    def __repr__(self) -> str:
        models = list(dict.fromkeys(c.model for c in self.columns))
        return (
            f"<State of {int(self.done.sum())} init and lead times ({len(self.inits)} x {len(self.leads)}): "
            f"{', '.join(models)}; {len({c.statistic for c in self.columns})} statistics, {self.sums.nbytes} bytes>"
        )

    def totals(self, key: tuple[str, str, str, str]) -> Float:
        """Sums of a statistic by model, reference, variable and name.

        The shape is (inits, leads, extras, components, regions).

        Raises
        ------
        RequestError
            If there are none.
        """
        start = 0
        for column in self.columns:
            if column.key == key:
                return self.sums[..., start : start + column.size].reshape(*self.sums.shape[:2], *column.shape)
            start += column.size
        raise RequestError(
            f"the state must hold {key[3]} of {key[2]!r}, but got {sorted({c.statistic for c in self.columns})}; "
            "score again "
            "with this metric"
        )

    def select(self, inits: npt.NDArray[Any]) -> State:
        """The state of some init times, by number or mask."""
        return replace(self, inits=self.inits[inits], sums=self.sums[inits], done=self.done[inits])

    def add(self, pairs: tuple[IntArray, IntArray], values: Float) -> None:
        """Set the sums of pairs, given by their numbers."""
        self.sums[pairs] = values
        self.done[pairs] = True

    def forget(self, pairs: npt.NDArray[np.bool_]) -> None:
        """Take pairs out, given as a mask."""
        self.sums[pairs] = 0
        self.done[pairs] = False

    def absorb(self, other: State) -> State:
        """Take over what is done in another state, for the pairs that this one has; returns self."""
        check_same(self.identity, other.identity)
        check_columns(self.columns, other.columns)
        _, mine, theirs = np.intersect1d(self.inits, other.inits, assume_unique=True, return_indices=True)
        _, here, there = np.intersect1d(self.leads, other.leads, assume_unique=True, return_indices=True)
        if len(mine) and len(here):
            done = other.done[np.ix_(theirs, there)] & ~self.done[np.ix_(mine, here)]
            row, column = np.nonzero(done)
            self.add((mine[row], here[column]), other.sums[theirs[row], there[column]])
        return self

    def to_datatree(self) -> xr.DataTree:
        """The sums as xarray: a group per model, reference and variable, with one array for each statistic."""
        coords = {
            "init_time": self.inits.astype("M8[us]").astype("M8[ns]"),
            "lead_time": self.leads.astype("m8[us]").astype("m8[ns]"),
        }
        groups: dict[str, dict[str, Any]] = {}
        for column in self.columns:
            path = f"/{column.model}/{column.reference}/{column.variable}"
            extras = self.attrs["extras"][column.variable]
            dims = ("init_time", "lead_time", *extras, f"component_{column.shape[-2]}", "region")
            groups.setdefault(path, {})[column.statistic] = (dims, self.totals(column.key))
        nodes = {p: xr.Dataset(v, {**coords, "region": list(self.attrs["regions"])}) for p, v in groups.items()}
        nodes["/"] = xr.Dataset(
            {"done": (("init_time", "lead_time"), self.done)}, coords, {"identity": json.dumps(self.identity)}
        )
        return xr.DataTree.from_dict(nodes)


def merge(states: Iterable[State]) -> State:
    """One state of several of the same request, whose init or lead times may differ.

    Raises
    ------
    RequestError
        If they are of different requests.
    """
    several = list(states)
    if not several:
        raise RequestError("states to merge must be one at least, but got none; give some")
    first = several[0]
    inits = np.unique(np.concatenate([s.inits for s in several]))
    leads = np.unique(np.concatenate([s.leads for s in several]))
    whole = State.empty(inits, leads, first.columns, first.identity, first.attrs)
    for state in several:
        whole.absorb(state)
    return whole


def check_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse sums of another request, naming what differs."""
    keys = [*_TELLING, *sorted({*ours, *theirs} - set(_TELLING))]
    for key in keys:
        if ours.get(key) != theirs.get(key):
            raise RequestError(
                f"a state must be of the same request, but got other {key}: {_short(theirs.get(key))} in the state and "
                f"{_short(ours.get(key))} asked for; ask for the same, or name another state"
            )


def check_columns(ours: Sequence[Column], theirs: Sequence[Column]) -> None:
    """Refuse numbers in another order, which another version may have written."""
    if tuple(ours) != tuple(theirs):
        raise RequestError(
            f"a state must hold sums of {[c.key for c in ours]}, but got {[c.key for c in theirs]}; score to another "
            "place"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}..."
