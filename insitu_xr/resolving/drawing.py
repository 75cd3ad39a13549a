"""How samples are drawn: shuffling, weights, samplers and ranks, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import LabelAxis
from insitu_xr.limits import parse_bytes
from insitu_xr.plan.request import Request, Sampler
from insitu_xr.plan.sharding import Partial, Shard


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """The arguments of ``ds.insitu.loader`` that say how to draw, beside ``shuffle`` and ``seed``."""

    shuffle_window: int | str | None = None
    weights: Any = None
    sampler: Sampler | None = None
    rank: int | None = None
    world_size: int | None = None
    partial: Partial = "drop"


def drawn(ds: xr.Dataset, request: Request, drawing: Drawing) -> Request:
    """The request with what says how to draw.

    Raises
    ------
    RequestError
        If an argument breaks a rule, or a rank is left without a batch.
    """
    if not isinstance(request.drop_last, bool):
        raise RequestError(f"drop_last must be True or False, but got {request.drop_last!r}; give one of them")
    shuffle: Any = request.shuffle  # as it was given
    if not isinstance(shuffle, bool | str) or shuffle not in (True, False, "block", "global"):
        raise RequestError(
            f"shuffle must be 'block' (or True), 'global' or False, but got {request.shuffle!r}; give one of them"
        )
    window, decoded = _window(request, drawing)
    if drawing.sampler is not None:
        _check_sampler(request, drawing)
    request = replace(
        request,
        shuffle="block" if request.shuffle is True else request.shuffle,
        shuffle_window=window,
        shuffle_bytes=decoded,
        weights=None if drawing.weights is None else _weights(ds, request, drawing.weights),
        sampler=drawing.sampler,
    )
    return request.sharded(Shard.checked(len(request), drawing.rank, drawing.world_size, drawing.partial))


def _window(request: Request, drawing: Drawing) -> tuple[int | None, int | None]:
    window: Any = drawing.shuffle_window
    if window is None:
        return None, None
    if request.shuffle not in (True, "block"):
        raise RequestError(
            f"shuffle_window must be given with shuffle='block', but got {window!r} with shuffle={request.shuffle!r}; "
            "leave one out"
        )
    if isinstance(window, str):
        if window.strip().isdecimal():
            raise RequestError(
                f"shuffle_window must have a unit where it is a text, but got {window!r}; give the number for samples, "
                f"or '{window.strip()}MiB' or so for bytes"
            )
        return None, parse_bytes(window, "shuffle_window")
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise RequestError(
            f"shuffle_window must be a number of samples of at least 1 or a text such as '512MiB', but got {window!r}; "
            "give one of those"
        )
    return int(window), None


def _check_sampler(request: Request, drawing: Drawing) -> None:
    if not callable(drawing.sampler):
        raise RequestError(
            f"sampler must be a function of a generator and a count, but got {drawing.sampler!r}; write for example "
            "lambda rng, n: rng.integers(n, size=n)"
        )
    if request.shuffle or drawing.weights is not None:
        other = "weights" if drawing.weights is not None else f"shuffle={request.shuffle!r}"
        raise RequestError(f"sampler must be given alone, since it draws the order, but got {other} as well; drop one")


def _weights(ds: xr.Dataset, request: Request, given: Any) -> npt.NDArray[np.float64]:
    """One weight per sample."""
    number = _axis_of(request, given)
    axis, positions = request.axes[number], request.anchors[:, number]
    values = given.to_numpy() if isinstance(given, xr.DataArray) else np.asarray(given)
    if values.dtype.kind not in "biuf":
        raise RequestError(f"weights must be numbers, but got {values.dtype}; convert them")
    if isinstance(given, xr.DataArray) and axis.dim in given.indexes and axis.dim in ds.indexes:
        places = _aligned(given, ds, axis, positions)
    else:
        if values.shape != (len(axis),):
            raise RequestError(
                f"weights must be one number per label of {axis.dim!r}, {len(axis)}, but got shape {values.shape}; "
                "give an array of that length, or a DataArray with labels"
            )
        places = positions
    weights = values[places].astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise RequestError(
            f"weights must be 0 or more and finite, but got {weights[wrong[0]]} at {axis.dim!r} = "
            f"{axis.show(int(positions[wrong[0]]))}; correct it, or use 0 to leave a sample out"
        )
    if not weights.any():
        where = f"{axis.show(int(positions[0]))} to {axis.show(int(positions[-1]))}"
        raise RequestError(
            f"weights must not all be 0, but got 0 for all {len(weights)} anchors of {axis.dim!r} from {where}; "
            "give at least one anchor a weight"
        )
    return cast("npt.NDArray[np.float64]", weights)


def _axis_of(request: Request, given: Any) -> int:
    """Number of the sample dimension that weights are given along."""
    dims: Sequence[str] = request.sample_dims
    if not isinstance(given, xr.DataArray):
        if len(dims) > 1:
            raise RequestError(
                f"weights must be a DataArray along one of {list(dims)} where there are several sample dimensions, but "
                f"got {type(given).__name__}; name the dimension with xr.DataArray(weights, dims=...)"
            )
        return 0
    if given.ndim != 1 or str(given.dims[0]) not in dims:
        raise RequestError(
            f"weights must have one dimension, out of {list(dims)}, but got {tuple(map(str, given.dims))}; reduce them"
        )
    return dims.index(str(given.dims[0]))


def _aligned(given: xr.DataArray, ds: xr.Dataset, axis: LabelAxis, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Where the weight of each position stands, by label."""
    index = given.indexes[axis.dim]
    if not index.is_unique:
        raise RequestError(
            f"labels of weights must be unique, but got {index[index.duplicated()][0]} twice; drop duplicates first"
        )
    places: npt.NDArray[Any] = np.asarray(index.get_indexer(ds.indexes[axis.dim]))[positions]
    missing = np.flatnonzero(places < 0)
    if len(missing):
        raise RequestError(
            f"weights must have every anchor of {axis.dim!r}, but got none for "
            f"{axis.show(int(positions[missing[0]]))}; add it, with 0 to leave it out"
        )
    return places
