"""Sums of every init and lead time, which add up to scores: kept, resumed, appended and merged.

A store holds *segments*, each the sums of some pairs of init and lead time; segments are added, never changed, so
that a
run that is interrupted leaves whole ones. A pair whose latitudes are not all in yet lies in a segment of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.align import IntArray

Float = npt.NDArray[np.float64]

FORMAT = 1
#: bytes of a chunk of stored sums
CHUNK_BYTES = 4 << 20
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
        _check_columns(self.columns, other.columns)
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


def _check_columns(ours: Sequence[Column], theirs: Sequence[Column]) -> None:
    """Refuse numbers in another order, which another version may have written."""
    if tuple(ours) != tuple(theirs):
        raise RequestError(
            f"a state must hold sums of {[c.key for c in ours]}, but got {[c.key for c in theirs]}; score to a new place"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}..."


# -- stored ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sums of pairs in some rows of latitude: the nodes of a tree that is not complete.

    Attributes
    ----------
    inits, leads : array of int64, shape (pairs,)
    rows : tuple of int
        First row, and the one after the last.
    nodes : mapping of str to array, shape (pairs, numbers)
    """

    inits: IntArray
    leads: IntArray
    rows: tuple[int, int]
    nodes: Mapping[str, Float]


def _columns_in(group: zarr.Group) -> tuple[Column, ...]:
    return tuple(Column(m, r, v, s, tuple(n)) for m, r, v, s, n in json.loads(str(group.attrs["columns"])))


class StateStore:
    """A place where sums are kept.

    Parameters
    ----------
    place : str, path or zarr store
        What zarr can open.
    """

    def __init__(self, place: Any) -> None:
        self._place = place
        self._next = 0
        #: segments of runs that are not finished: they are put together when one is
        self._loose: list[str] = []

    @property
    def exists(self) -> bool:
        """Whether sums are kept here."""
        return self._group() is not None

    def open(
        self, identity: Mapping[str, Any], columns: Sequence[Column], attrs: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Begin a store, or go on with one of the same request.

        Raises
        ------
        RequestError
            If there is one, and it is of another request or ``resume`` is False.
        """
        group = self._group()
        if group is not None and not resume:
            raise RequestError(
                f"state must be a new place, but got {self._place} with sums in it; pass resume=True to go on, or "
                "remove it"
            )
        if group is not None:
            check_same(identity, json.loads(str(group.attrs["identity"])))
            _check_columns(columns, _columns_in(group))
        root = zarr.open_group(self._place, mode="a")
        root.require_group("segments")
        every = [[c.model, c.reference, c.variable, c.statistic, list(c.shape)] for c in columns]
        told = {"identity": json.dumps(identity), "columns": json.dumps(every), "about": json.dumps(attrs)}
        root.attrs.update({"format": FORMAT, **told})

    def _group(self) -> zarr.Group | None:
        try:
            group = zarr.open_group(self._place, mode="r")
        except (FileNotFoundError, zarr.errors.GroupNotFoundError):
            return None
        return group if "identity" in group.attrs else None

    def load(self) -> tuple[State, list[Part]]:
        """Everything that is kept: whole pairs as a state, and parts of others.

        Raises
        ------
        RequestError
            If nothing is kept here.
        """
        group = self._group()
        if group is None:
            raise RequestError(f"state must be a place with sums in it, but got {self._place}; score with state= first")
        columns = _columns_in(group)
        attrs = json.loads(str(group.attrs["about"]))
        parts = [self._part(segment) for segment in self._segments(group)]
        whole = [p for p in parts if p.rows == (0, attrs["shape"][0])]
        inits = np.unique(np.concatenate([p.inits for p in whole] or [np.empty(0, np.int64)]))
        leads = np.unique(np.concatenate([p.leads for p in whole] or [np.empty(0, np.int64)]))
        state = State.empty(inits, leads, columns, json.loads(str(group.attrs["identity"])), attrs)
        for part in whole:
            (values,) = part.nodes.values()
            state.add((np.searchsorted(inits, part.inits), np.searchsorted(leads, part.leads)), values)
        return state, [p for p in parts if p.rows != (0, attrs["shape"][0])]

    def _segments(self, group: zarr.Group) -> Iterator[zarr.Group]:
        segments = group["segments"]
        assert isinstance(segments, zarr.Group)
        names = sorted(segments.group_keys())
        self._next = 1 + max(map(int, names), default=-1)
        self._loose = []
        for name in names:
            segment = segments[name]
            assert isinstance(segment, zarr.Group)
            if not segment.attrs.get("final"):
                self._loose.append(name)
            if segment.attrs.get("complete"):
                yield segment

    @staticmethod
    def _part(segment: zarr.Group) -> Part:
        inits, leads, values = (np.asarray(segment[n][...]) for n in ("init_time", "lead_time", "sums"))  # type: ignore[index]
        first, last = json.loads(str(segment.attrs["rows"]))
        nodes = json.loads(str(segment.attrs["nodes"]))
        return Part(inits, leads, (first, last), dict(zip(nodes, values, strict=True)))

    def write(self, part: Part, *, final: bool = False) -> None:
        """Add a segment; it counts once it is whole."""
        values = np.stack([*part.nodes.values()])
        name = f"{self._next:06d}"
        self._next += 1
        segment = zarr.open_group(self._place, mode="a").create_group(f"segments/{name}", overwrite=True)
        if not final:
            self._loose.append(name)
        nodes, pairs, numbers = values.shape
        chunk = max(1, min(pairs, CHUNK_BYTES // max(1, 8 * nodes * numbers)))
        stored = (
            ("init_time", part.inits, (pairs,)),
            ("lead_time", part.leads, (pairs,)),
            ("sums", values, (nodes, chunk, max(1, numbers))),
        )
        for label, data, chunks in stored:
            array = segment.create_array(label, shape=data.shape, dtype=data.dtype, chunks=chunks)
            array[...] = data
        segment.attrs.update(
            {"nodes": json.dumps([*part.nodes]), "rows": [*part.rows], "final": final, "complete": True}
        )

    def finish(self, inits: IntArray, leads: IntArray, sums: Float, rows: int) -> None:
        """Put the sums of a run that is finished, and those of runs that were not, into one segment.

        Parameters
        ----------
        inits, leads : array of int64, shape (pairs,)
        sums : array of float64, shape (pairs, numbers)
        rows : int
            Latitude rows of the whole.
        """
        root = zarr.open_group(self._place, mode="a")
        loose = {
            name: self._part(segment)
            for segment in self._segments(root)
            if (name := segment.name.rpartition("/")[2]) in self._loose
        }
        whole = [p for p in loose.values() if p.rows == (0, rows)]
        labels = np.stack(
            [np.concatenate([inits, *(p.inits for p in whole)]), np.concatenate([leads, *(p.leads for p in whole)])]
        )
        values = np.concatenate([sums, *(next(iter(p.nodes.values())) for p in whole)])
        labels, first = np.unique(labels, axis=1, return_index=True)
        if len(first):
            self.write(Part(labels[0], labels[1], (0, rows), {"root": values[first]}), final=True)
        done = {*zip(labels[0].tolist(), labels[1].tolist(), strict=True)}
        for name, part in loose.items():
            if part.rows == (0, rows) or done.issuperset(zip(part.inits.tolist(), part.leads.tolist(), strict=True)):
                del root[f"segments/{name}"]
