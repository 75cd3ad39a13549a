"""A request that can be written down: source, variables, positions, leads and splits as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis
from insitu_xr.plan.request import Request

FORMAT = 1

Ranges = tuple[tuple[int, int, int], ...]


def to_ranges(positions: npt.NDArray[Any]) -> Ranges:
    """Positions as (start, stop, step) ranges, in order.

    Examples
    --------
    >>> to_ranges(np.array([0, 1, 2, 5, 7, 9]))
    ((0, 3, 1), (5, 11, 2))
    """
    ranges: list[tuple[int, int, int]] = []
    start, n = 0, len(positions)
    steps = np.diff(positions)
    breaks = np.append(np.flatnonzero(np.diff(steps) != 0) + 1, n - 1) if n > 1 else np.array([0])
    while start < n:
        step = int(steps[start]) if start < n - 1 else 1
        if step == 0:
            last, step = start, 1
        else:
            last = int(breaks[np.searchsorted(breaks, start + 1)]) if start < n - 1 else start
        first = int(positions[start])
        ranges.append((first, first + step * (last - start + 1), step))
        start = last + 1
    return tuple(ranges)


def from_ranges(ranges: Sequence[Sequence[int]]) -> IntArray:
    """Positions of ranges.

    Examples
    --------
    >>> from_ranges([(0, 3, 1), (5, 11, 2)]).tolist()
    [0, 1, 2, 5, 7, 9]
    """
    return np.concatenate([np.empty(0, np.int64), *[np.arange(*r, dtype=np.int64) for r in ranges]])


def describe_axis(axis: LabelAxis) -> dict[str, Any]:
    """What identifies the labels of a dimension: their number, ends, calendar and a digest of all."""
    import hashlib

    digest = hashlib.blake2b(np.ascontiguousarray(axis.ticks).tobytes(), digest_size=8).hexdigest()
    ends = [axis.show(0), axis.show(len(axis) - 1)] if len(axis) else []
    return {"dim": axis.dim, "length": len(axis), "ends": ends, "calendar": axis.calendar, "digest": digest}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a loader reads, in a form that can be kept.

    Attributes
    ----------
    source : mapping
        Identity of the stored arrays, by variable.
    axes : tuple of mapping
        Identity of the labels of each sample dimension.
    variables : tuple of mapping
        Group, name and leads of every array of a batch.
    positions : tuple of ranges
        Anchors as (start, stop, step) ranges, per sample dimension.
    splits : mapping of name to ranges
        Anchors of named splits.

    Examples
    --------
    >>> manifest = Manifest({}, (), ({"group": "variables", "name": "t2m", "leads": ["0h"]},), (((0, 8, 1),),))
    >>> Manifest.from_json(manifest.to_json()) == manifest
    True
    """

    source: Mapping[str, Any]
    axes: tuple[Mapping[str, Any], ...]
    variables: tuple[Mapping[str, Any], ...]
    positions: tuple[Ranges, ...]
    splits: Mapping[str, Ranges] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> Manifest:
        """The manifest of a request."""
        variables = [
            {"group": t.group, "name": t.variable, "leads": [request.offsets[c].name for c in t.columns]}
            for t in request.takes
        ]
        variables += [{"group": "statics", "name": name, "leads": []} for name in request.statics]
        return cls(
            source=dict(request.source),
            axes=tuple(describe_axis(a) for a in request.axes),
            variables=tuple(variables),
            positions=tuple(to_ranges(request.anchors[:, k]) for k in range(len(request.sample_dims))),
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """The manifest as JSON text, also written to ``path`` if that is given."""
        content = {"format": FORMAT, **{name: getattr(self, name) for name in self.__slots__}}
        text = json.dumps(content, indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Manifest:
        """Read a manifest from JSON text, or from a file.

        Raises
        ------
        RequestError
            If the content is not a manifest that this version reads.
        """
        text = str(source) if str(source).lstrip().startswith("{") else Path(source).read_text()
        content = json.loads(text)
        if content.get("format") != FORMAT:
            raise RequestError(
                f"format of a manifest must be {FORMAT}, but got {content.get('format')!r}; "
                "read it with the version that wrote it"
            )
        return cls(
            source=content["source"],
            axes=tuple(content["axes"]),
            variables=tuple(content["variables"]),
            positions=tuple(_ranges(r) for r in content["positions"]),
            splits={name: _ranges(r) for name, r in content["splits"].items()},
        )


def _ranges(content: Sequence[Sequence[int]]) -> Ranges:
    return tuple((int(a), int(b), int(c)) for a, b, c in content)
