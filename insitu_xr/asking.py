"""What a reader is asked for: labels, lead times and variables become a request of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.lookup import Lookup
from insitu_xr.geometry.times import LabelAxis, Offset, offset
from insitu_xr.plan.request import Request, Take

GROUP = "variables"


class Asking:
    """Looks up what may be asked.

    Parameters
    ----------
    request : Request
        Every label of the sample dimensions as a sample of its own, and all variables.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lookups = [Lookup(axis) for axis in request.axes]
        self._offsets: dict[Any, Offset] = {}

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that are read by label."""
        return tuple(take.variable for take in self._request.takes)

    def request(self, anchors: Any, leads: Any, variables: Any) -> Request:
        """A request of its own: its samples are the anchors.

        Raises
        ------
        InsituError
            If a label, a lead time or a variable is not there.
        """
        base, positions = self._request, self._positions(anchors)
        along = base.lead_axis
        axis, lookup = base.axes[along], self._lookups[along]
        listed = None if leads is None else _leads(leads)
        offsets = base.offsets if listed is None else tuple(self._offset(axis, lead) for lead in listed)
        partners = np.stack([lookup.partners(positions[:, along], step) for step in offsets], axis=1)
        columns = tuple(range(len(offsets)))
        takes = [Take(GROUP, name, columns, listed is not None) for name in self._names(variables)]
        return replace(base, anchors=positions, partners=partners, offsets=offsets, takes=tuple(takes), targets=())

    def _offset(self, axis: LabelAxis, lead: Any) -> Offset:
        # To read a duration takes longer than to read a field that is in memory.
        key = (type(lead), lead)
        if key not in self._offsets:
            self._offsets[key] = offset(axis, lead)
        return self._offsets[key]

    def _names(self, variables: Sequence[str] | str | None) -> Sequence[str]:
        if variables is None:
            return self.variables
        names = [variables] if isinstance(variables, str) else [*variables]
        for name in names:
            if name not in self.variables:
                raise RequestError(
                    f"variables must be some of those of the reader, {list(self.variables)}, but got {name!r}; "
                    "make the reader with it"
                )
        if len(set(names)) < len(names) or not names:
            raise RequestError(f"variables must name at least one, and each once, but got {names}; name them so")
        return names

    def _positions(self, anchors: Any) -> IntArray:
        dims = self._request.sample_dims
        if len(dims) == 1 and not isinstance(anchors, Mapping):
            anchors = {dims[0]: anchors}
        if not isinstance(anchors, Mapping) or set(anchors) != set(dims):
            shown = sorted(map(str, anchors)) if isinstance(anchors, Mapping) else type(anchors).__name__
            raise RequestError(f"anchors must give labels of {list(dims)}, but got {shown}; pass a dict of them")
        found = [_looked_up(lookup, anchors[dim]) for dim, lookup in zip(dims, self._lookups, strict=True)]
        counts = {len(p) for p in found if len(p) != 1}
        if len(counts) > 1 or 0 in counts:
            raise RequestError(
                f"anchors must be at least one, and as many of each of {list(dims)}, but got "
                f"{[len(p) for p in found]}; repeat labels where they go with several others"
            )
        return np.stack(np.broadcast_arrays(*found), axis=1)


def _looked_up(lookup: Lookup, labels: Any) -> IntArray:
    """Positions of labels; quickly where these are positions themselves, as of those who read much."""
    plain = lookup.axis.kind == "position" and isinstance(labels, np.ndarray) and labels.dtype == np.int64
    if plain and labels.ndim == 1 and len(labels) and labels.min() >= 0 and labels.max() < len(lookup.axis):
        found: IntArray = labels
        return found
    return lookup.positions(labels)


def _leads(leads: Any) -> list[Any]:
    values = leads.to_numpy() if hasattr(leads, "to_numpy") else leads
    listed = [*values] if isinstance(values, list | tuple | range) or np.ndim(values) == 1 else [leads]
    if not listed:
        raise RequestError("leads must name at least one, but got none; leave them out for the anchors alone")
    return listed


def parts_of(each: Any) -> tuple[Any, Any, Any]:
    """Anchors, leads and variables of one planned request."""
    if not isinstance(each, tuple):
        return each, None, None
    if not 1 <= len(each) <= 3:
        raise RequestError(f"requests must be (anchors, leads, variables), but got a tuple of {len(each)}; write it so")
    anchors, leads, variables = (*each, None, None)[:3]
    return anchors, leads, variables
