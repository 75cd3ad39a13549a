"""What can be written down as JSON: a request, or named splits of an axis, and what they were made on."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis
from insitu_xr.plan.ranges import Ranges, as_ranges, from_ranges, to_ranges
from insitu_xr.plan.request import Request
from insitu_xr.plan.split import Splits

FORMAT = 1

_DAY_NS = 86_400_000_000_000


def describe_axis(axis: LabelAxis) -> dict[str, Any]:
    """What identifies the labels of a dimension: their number, ends, calendar and a digest of all."""
    import hashlib

    digest = hashlib.blake2b(_label_bytes(axis), digest_size=8).hexdigest()
    ends = [axis.show(0), axis.show(len(axis) - 1)] if len(axis) else []
    return {"dim": axis.dim, "length": len(axis), "ends": ends, "calendar": axis.calendar, "digest": digest}


def _label_bytes(axis: LabelAxis) -> bytes:
    """The labels as bytes, the same for the same times in any resolution."""
    if axis.kind == "text":
        return "\0".join(map(str, axis.labels)).encode()
    if axis.kind != "time":
        return np.ascontiguousarray(axis.ticks).tobytes()
    # Days and the rest of them, for nanoseconds alone would overflow.
    days, rest = np.divmod(axis.ticks, max(1, _DAY_NS // axis.tick_ns))
    return np.stack([days, rest * axis.tick_ns]).tobytes()


def _anchor_ranges(anchors: IntArray, lengths: Sequence[int]) -> tuple[Ranges, ...]:
    """Anchors in short: one selection per dimension where they are a product, else places in the whole product."""
    if anchors.shape[1] == 1:
        return (to_ranges(anchors[:, 0]),)
    factors = [np.unique(column) for column in anchors.T]
    if len(anchors) == np.prod([len(f) for f in factors]):
        mesh = np.stack([m.ravel() for m in np.meshgrid(*factors, indexing="ij")], axis=1)
        if np.array_equal(mesh, anchors):
            return tuple(to_ranges(f) for f in factors)
    return (to_ranges(np.ravel_multi_index(tuple(anchors.T), tuple(lengths))),)


@dataclass(frozen=True, slots=True, repr=False)
class Manifest:
    """What a loader reads, or who may read what, in a form that can be kept.

    Made by ``ds.insitu.split(...)``, and of any plan by ``plan.manifest``; given to
    ``ds.insitu.loader(..., manifest=manifest, split="train")``. Holds ranges of positions, so it stays small, and what
    identifies the labels and the stores that it was made on, so it is refused elsewhere. Holds no credentials.

    Attributes
    ----------
    source : mapping
        Identity of the stored arrays, by variable. A store in memory is known within its process alone.
    axes : tuple of mapping
        Identity of the labels of each sample dimension; of the one that is split, for splits.
    variables : tuple of mapping
        Group, name and leads of every array of a batch.
    positions : tuple of ranges
        Anchors as (start, stop, step) ranges: one selection per sample dimension, of which they are the product (else
        places in the product of all labels). Empty for splits.
    splits : mapping of name to ranges
        Labels of named splits: what their anchors and windows may use.
    spans : mapping of name to pair of str
        First and last label of each split along the axis, as text.

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
    spans: Mapping[str, Sequence[str]] = field(default_factory=dict)

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
            positions=_anchor_ranges(request.anchors, [len(a) for a in request.axes]),
        )

    @classmethod
    def of_splits(
        cls, splits: Splits, source: Mapping[str, Any], variables: Sequence[Mapping[str, Any]] = ()
    ) -> Manifest:
        """The manifest of named splits."""
        found = {name: splits.positions(name) for name in splits.names}
        show = splits.axis.show
        return cls(
            source=dict(source),
            axes=(describe_axis(splits.axis),),
            variables=tuple(variables),
            positions=(),
            splits={name: to_ranges(positions) for name, positions in found.items()},
            spans={name: [show(int(p[0])), show(int(p[-1]))] for name, p in found.items() if len(p)},
        )

    def __repr__(self) -> str:
        lines = [f"  {'axis':<8} {_axis_text(a)}" for a in self.axes]
        for name, ranges in self.splits.items():
            count = sum(len(range(*r)) for r in ranges)
            blocks = f" in {len(ranges)} blocks" if len(ranges) > 1 else ""
            ends = f", {' to '.join(self.spans[name])}" if name in self.spans else ""
            lines.append(f"  {name:<8} {count} labels{blocks}{ends}")
        lines += [f"  {'anchors':<8} {sum(len(range(*r)) for r in p)} in {len(p)} ranges" for p in self.positions]
        names = ", ".join(dict.fromkeys([*(v["name"] for v in self.variables), *self.source]))
        return "\n".join(["<insitu_xr.Manifest>", *lines, *([f"  {'of':<8} {names}"] if names else [])])

    # -- use -----------------------------------------------------------------------------------------------------

    def split_positions(self, name: str) -> IntArray:
        """Positions of the labels of a split.

        Raises
        ------
        UnknownNameError
            If there is no such split.
        """
        if name not in self.splits:
            has = f"it has {list(self.splits)}" if self.splits else "it has none; make some with ds.insitu.split(...)"
            raise UnknownNameError(f"split must be one of the manifest's, but got {name!r}; {has}")
        return from_ranges(self.splits[name])

    def anchors(self) -> tuple[IntArray, ...]:
        """Positions of the anchors along every sample dimension.

        Raises
        ------
        RequestError
            If there are none, since the manifest holds splits, or they are no product.
        """
        if not self.positions:
            raise RequestError(
                f"split must be given for a manifest that holds splits, but got None; give one of {list(self.splits)}"
            )
        if len(self.positions) != len(self.axes):
            raise RequestError(
                "anchors of a manifest must be the product of one selection per dimension, but got single places; "
                "select them along one dimension at a time"
            )
        return tuple(from_ranges(ranges) for ranges in self.positions)

    def check_axes(self, axes: Sequence[LabelAxis]) -> None:
        """Refuse axes that are not those the manifest was made on.

        Raises
        ------
        RequestError
            Names what differs: dimension, length, ends, calendar, or labels between the ends.
        """
        if [a["dim"] for a in self.axes] != [a.dim for a in axes]:
            raise RequestError(
                f"manifest must be made on the sample dimensions {[a.dim for a in axes]}, but got one for "
                f"{[a['dim'] for a in self.axes]}; make it again, or give its sample_dim="
            )
        for made, axis in zip(self.axes, axes, strict=True):
            here = describe_axis(axis)
            words = {"length": "length", "ends": "first or last label", "calendar": "calendar", "digest": "labels"}
            differs = [words[key] for key in ("length", "ends", "calendar") if made[key] != here[key]]
            if not differs and made["digest"] != here["digest"]:
                differs = ["labels between the ends"]
            if differs:
                raise RequestError(
                    f"manifest must be made on the labels of this dataset, but got one made on {_axis_text(made)}, "
                    f"where the dataset has {_axis_text(here)}: they differ in {' and '.join(differs)}; make it again "
                    "on this dataset, or select the labels that it was made on"
                )

    def check_source(self, source: Mapping[str, Any]) -> None:
        """Refuse variables whose stored arrays are not those the manifest was made on.

        What is not read in place has no identity, and passes. The same snapshot is the same data, whatever the place
        is called; another snapshot at the same place passes with a warning, for the labels are compared anyway. Other
        evidence of a version, such as the time of a file, is kept to be looked at, and changes without the data.

        Raises
        ------
        RequestError
            Names the variable and both stores.
        """
        other = {}
        for name, here in source.items():
            made = self.source.get(name, here)
            if made == here or not made["kind"] == here["kind"] == "stored":
                continue
            before, now = _snapshots(made), _snapshots(here)
            if before == now != [] or _places(made) == _places(here):
                if before != now and before and now:
                    other[name] = f"{', '.join(before)}, where the dataset is of {', '.join(now)}"
                continue
            raise RequestError(
                f"manifest must be made on the store of this dataset, but got one in which variable {name!r} is "
                f"{_source_text(made)}, where the dataset has {_source_text(here)}; make it again on this dataset, or, "
                "if the same data was moved, give dataclasses.replace(manifest, source={})"
            )
        if other:
            name, text = next(iter(other.items()))
            warnings.warn(
                f"manifest was made on another version of {', '.join(map(repr, other))}: {name!r} was of snapshot "
                f"{text}; the labels are the same, the values may not be. Make it again, or open that snapshot",
                stacklevel=2,
            )

    # -- keeping -------------------------------------------------------------------------------------------------

    def to_json(self, path: str | Path | None = None) -> str:
        """The manifest as JSON text, also written to ``path`` if that is given."""
        content = {"format": FORMAT, **{name: getattr(self, name) for name in self.__slots__}}
        # A line for each part, and not one for each number of each range.
        text = "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in content.items()) + "\n}"
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Manifest:
        """Read a manifest from JSON text, or from a file.

        Raises
        ------
        RequestError
            If the content is not a manifest that this version reads.
        """
        inline = isinstance(source, str) and source.lstrip().startswith("{")
        text = str(source) if inline else Path(source).read_text(encoding="utf-8")
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RequestError(f"manifest must be JSON, but got other text ({error}); write it with to_json") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            got = content.get("format") if isinstance(content, dict) else content
            raise RequestError(
                f"format of a manifest must be {FORMAT}, but got {got!r}; read it with the version that wrote it"
            )
        try:
            return cls(
                source=content["source"],
                axes=tuple(content["axes"]),
                variables=tuple(content["variables"]),
                positions=tuple(as_ranges(r) for r in content["positions"]),
                splits={name: as_ranges(r) for name, r in content["splits"].items()},
                spans=content["spans"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(
                f"manifest must have all of {list(cls.__slots__)}, but reading it failed with {error!r}; make it again"
            ) from error


def _places(made: Mapping[str, Any]) -> list[Any]:
    return [made.get(part) for part in ("arrays", "count", "digest")]


def _snapshots(made: Mapping[str, Any]) -> list[str]:
    """Exact versions of the stores, if they all have such."""
    found = [None if "uncommitted" in v else v.get("snapshot") for v in made.get("versions", ())]
    return [] if None in found else [str(snapshot) for snapshot in found]


def _axis_text(made: Mapping[str, Any]) -> str:
    text = f"{made['length']} labels of {made['dim']!r}"
    if made["ends"]:
        text += f" from {made['ends'][0]} to {made['ends'][1]}"
    return text + (f" ({made['calendar']} calendar)" if made["calendar"] else "")


def _source_text(made: Mapping[str, Any]) -> str:
    arrays = made["arrays"]
    return " and ".join(arrays) if "count" not in made else f"{made['count']} arrays from {arrays[0]} to {arrays[1]}"
