"""Anchors whose data were never written: found by listing the keys of a store, on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from insitu_xr.engine.decode import Job, Part, VariableReader
from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.errors import RequestError
from insitu_xr.plan.reads import Layout, layout_of, sample_coordinates
from insitu_xr.plan.request import Dropped, Request

_FIRST_FEW = 3


def without_absent(request: Request, parts: Mapping[str, Sequence[Part]]) -> Request:
    """The request without the anchors that touch data which no chunk of is stored.

    A stretch along the sample dimensions is absent where the store has none of the chunks that the selection needs of
    it. Chunks of zeros may be left out on purpose when they are written, so nobody should take absent for missing
    unless they say so.

    Raises
    ------
    RequestError
        If nothing is left, or the store cannot list its keys.
    """
    samples = np.arange(len(request), dtype=np.int64)
    keep, dropped = np.ones(len(request), bool), list(request.dropped)
    for name, spec in request.variables.items():
        if spec.kind != "stored" or name in request.statics:
            continue
        layout = layout_of(request, spec)
        absent = _absent_units(layout, parts[name])
        lost = np.zeros(len(request), bool)
        for column in request.columns_of(name):
            lost |= absent[layout.locate(sample_coordinates(request, layout, samples, column))[0]]
        lost &= keep
        if lost.any():
            axis = request.axes[request.lead_axis]
            first = [axis.show(int(k)) for k in request.anchors[lost, request.lead_axis][:_FIRST_FEW]]
            dropped.append(Dropped(f"touching absent data of {name!r}", int(lost.sum()), tuple(first)))
        keep &= ~lost
    if not keep.any():
        raise RequestError(
            f"anchors must have stored data for absent='drop', but got none: {'; '.join(map(str, dropped))}; check the "
            "store, or use absent='keep' to read fill values"
        )
    weights = None if request.weights is None else request.weights[keep]
    return replace(
        request, anchors=request.anchors[keep], partners=request.partners[keep], weights=weights, dropped=tuple(dropped)
    )


def _absent_units(layout: Layout, parts: Sequence[Part]) -> npt.NDArray[np.bool_]:
    present: list[set[str]] = []
    for part in parts:
        assert isinstance(part.source, ZarrSource)
        present.append(part.source.stored.stored_keys())
    reader = VariableReader(layout, parts, layout.spec.dtype)

    def stored(job: Job) -> bool:
        # The chunks of a shard lie in one object.
        chunks = job.chunks[:1] if job.source.sharded else job.chunks
        return any(job.source.key(chunk) in present[job.unit.part] for chunk in chunks)

    return np.array([not any(map(stored, reader.jobs(unit))) for unit in range(layout.n_units)], bool)
