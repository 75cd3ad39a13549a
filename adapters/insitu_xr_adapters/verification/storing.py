"""Sums that are kept in a place of Zarr, for runs that go on with them.

A store holds *segments*, each the sums of some pairs of init and lead time; segments are added, never changed, so that
a run that is interrupted leaves whole ones. A pair whose latitudes are not all in yet lies in a segment of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from insitu_xr.errors import RequestError
from insitu_xr_adapters.verification.state import Column, State, check_columns, check_same
from insitu_xr_adapters.verification.times import IntArray

Float = npt.NDArray[np.float64]

FORMAT = 1
#: bytes of a chunk of stored sums
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sums of pairs in some rows of latitude: the nodes of a tree that is not complete.

    Attributes
    ----------
    inits, leads : array of int64, shape (pairs,)
    rows : tuple of int
        First row, and the one after the last.
    nodes : mapping of str to array, shape (pairs, numbers)
    snapshots : mapping of str to str
        What was read of each dataset, where its store tells exactly.
    """

    inits: IntArray
    leads: IntArray
    rows: tuple[int, int]
    nodes: Mapping[str, Float]
    snapshots: Mapping[str, str] = field(default_factory=dict)


def snapshots_of(about: Mapping[str, Any]) -> dict[str, str]:
    """Snapshots of the datasets of a request; of those whose stores have such.

    Examples
    --------
    >>> snapshots_of({"sources": {"reference 'era5'": {"kind": "icechunk", "version": {"snapshot": "VSEZTNYS3AKB"}}}})
    {"reference 'era5'": 'VSEZTNYS3AKB'}
    """
    found = {}
    for name, source in about.get("sources", {}).items():
        each = [s.get("version", s) for s in (source, *source.get("sources", ()))]
        told = [str(v[k]) for v in each for k in ("snapshot", "uncommitted") if k in v]
        found.update({name: " ".join(told)} if told else {})
    return found


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
        #: what is read in this run
        self._snapshots: dict[str, str] = {}
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
            check_columns(columns, _columns_in(group))
        root = zarr.open_group(self._place, mode="a")
        root.require_group("segments")
        every = [[c.model, c.reference, c.variable, c.statistic, list(c.shape)] for c in columns]
        told = {"identity": json.dumps(identity), "columns": json.dumps(every), "about": json.dumps(attrs)}
        root.attrs.update({"format": FORMAT, **told})
        self._snapshots = snapshots_of(attrs)

    def _group(self) -> zarr.Group | None:
        try:
            group = zarr.open_group(self._place, mode="r")
        except (FileNotFoundError, zarr.errors.GroupNotFoundError):
            return None
        return group if "identity" in group.attrs else None

    def check_snapshots(self, about: Mapping[str, Any]) -> None:
        """Refuse to go on with sums of other snapshots, whose chunks may have been others.

        Raises
        ------
        RequestError
            Names what differs.
        """
        group, ours = self._group(), snapshots_of(about)
        for segment in self._segments(group) if group is not None else ():
            theirs = json.loads(str(segment.attrs.get("snapshots", "{}")))
            for name in sorted({*ours} & {*theirs}):
                if ours[name] != theirs[name]:
                    raise RequestError(
                        f"a state must be of the snapshots that are scored, but got sums of snapshot {theirs[name]!r} "
                        f"of {name} in it, and {ours[name]!r} now; pass resume='new' where nothing was changed but "
                        "what was added, so that sums that are there stay as they are, or name another state"
                    )

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
        snapshots = json.loads(str(segment.attrs.get("snapshots", "{}")))
        return Part(inits, leads, (first, last), dict(zip(nodes, values, strict=True)), snapshots)

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
            {
                "nodes": json.dumps([*part.nodes]),
                "rows": [*part.rows],
                "snapshots": json.dumps(self._snapshots),
                "final": final,
                "complete": True,
            }
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
            name: part
            for segment in self._segments(root)
            if (name := segment.name.rpartition("/")[2]) in self._loose
            and (part := self._part(segment)).snapshots == self._snapshots
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
