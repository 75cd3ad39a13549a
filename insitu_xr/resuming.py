"""The state of a loader: how far it is, and a fingerprint of everything that its batches depend on."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import format_duration
from insitu_xr.plan.manifest import describe_axis
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.request import Request, Take, VariableSpec

FORMAT = 1


def fingerprint(plan: ReadPlan, batches: range) -> dict[str, Any]:
    """What decides on the batches of a loader, small and fit for JSON.

    Parameters
    ----------
    batches : range
        The batches of every epoch that the loader delivers: all, or those of a worker.
    """
    request, shard = plan.request, plan.request.shard
    found: dict[str, Any] = {
        "variables": {f"{t.group}/{t.variable}": _leads(request, t) for t in request.takes},
        "statics": list(request.statics),
        "fields": {name: _field(spec, request) for name, spec in request.variables.items()},
        "layout": request.layout,
        "axes": {axis.dim: _plain(describe_axis(axis)) for axis in request.axes},
        "anchors": {"count": len(request), "digest": digest(request.anchors)},
        "partners": digest(request.partners),
        "batch_size": request.batch_size,
        "drop_last": bool(request.drop_last),
        "shuffle": "block" if request.shuffle is True else request.shuffle,
        "seed": request.seed,
        "weights": None if request.weights is None else digest(request.weights),
        "sampler": None if request.sampler is None else getattr(request.sampler, "__qualname__", "unnamed"),
        # Not the rank: all of them take as many steps, so that what one saves tells the others where they are.
        "world_size": shard.world_size,
        "partial": shard.partial,
        "batches": [batches.start, batches.stop],
    }
    if request.shuffle:
        # Blocks of whole runs are others than blocks of so many samples.
        found["shuffle_window"] = plan.runs.block if plan.runs.cut else f"by default, {plan.runs.block}"
        found["runs"] = digest(plan.runs.order, plan.runs.bounds)
    return found


def digest(*arrays: npt.NDArray[Any]) -> str:
    """A short text that two different contents do not share.

    Examples
    --------
    >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(4))
    (True, False)
    """
    total = hashlib.blake2b(digest_size=8)
    for array in arrays:
        total.update(str((array.shape, array.dtype.str)).encode())
        total.update(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
    return total.hexdigest()


def _leads(request: Request, take: Take) -> list[str] | str:
    """Leads as text, however they were written."""
    values = [request.offsets[c].value for c in take.columns]
    shown = [format_duration(int(v)) if isinstance(v, np.timedelta64) else str(v) for v in values]
    return shown if take.windowed else "no lead axis"


def _field(spec: VariableSpec, request: Request) -> dict[str, Any]:
    """What is selected of a field: dtype, sizes, and a digest of the positions in the stored arrays."""
    sizes = {d: n for d, n in zip(spec.dims, spec.shape, strict=True) if d not in request.sample_dims}
    chosen = [
        np.asarray(index)
        for segment in spec.segments
        for index, dim in zip(segment.index, segment.dims, strict=True)
        if dim not in request.sample_dims
    ]
    return {"dtype": spec.dtype.str, "sizes": sizes, "selection": digest(*chosen)}


def _plain(value: Any) -> Any:
    """The value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def state_of(identity: Mapping[str, Any], n_batches: int, epoch: int, batch: int) -> dict[str, Any]:
    """The state of a loader with this fingerprint after ``batch`` of ``n_batches`` batches of an epoch."""
    if batch == n_batches:
        epoch, batch = epoch + 1, 0
    return {"format": FORMAT, "epoch": epoch, "batch": batch, "fingerprint": copy.deepcopy(identity)}


def position_of(state: Any, identity: Mapping[str, Any], n_batches: int) -> tuple[int, int]:
    """Epoch and batch of a state.

    Raises
    ------
    RequestError
        If it is not the state of a loader such as this; names the field that differs, and both values.
    """
    if not isinstance(state, Mapping) or not {"format", "epoch", "batch", "fingerprint"} <= set(state):
        raise RequestError(
            f"state must be what state_dict() returned, but got {_short(state)}; save loader.state_dict() as it is"
        )
    if state["format"] != FORMAT:
        raise RequestError(
            f"format of a state must be {FORMAT}, but got {state['format']!r}; read it with the version that wrote it"
        )
    for field, saved, here in _differences(state["fingerprint"], identity, ""):
        raise RequestError(
            f"{field} must be what it was when the state was saved, {_short(saved)}, but got {_short(here)}; make the "
            "loader with the same arguments on the same dataset"
        )
    epoch, batch = state["epoch"], state["batch"]
    if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch <= n_batches):
        raise RequestError(
            f"batch of a state must be from 0 to {n_batches}, but got batch {batch!r} of epoch {epoch!r}; save "
            "loader.state_dict() as it is"
        )
    return epoch, batch


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _differences(saved: Any, here: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        for key in [*here, *(k for k in saved if k not in here)]:
            yield from _differences(saved.get(key), here.get(key), f"{path}.{key}" if path else str(key))
    elif saved != here:
        yield path, saved, here
