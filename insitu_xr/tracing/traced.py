"""What tracing finds out about a variable: the contract between xarray and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import zarr

Kind = Literal["stored", "memory", "foreign"]
ValueFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stored array, and how the variable (or its part along ``concat_dim``) lies in it.

    ``values[i, j, ...] == f(array[index[0], index[1], ...])``, where an axis with an integer index vanishes and
    every other stored axis feeds the dimension named at its place in ``axis_dims``. A segment without a stored axis
    for ``concat_dim`` holds one position of it (stores stacked along a new dimension).
    """

    array: zarr.Array[Any]
    #: per stored axis: an integer, or the stored positions (1-D int64, in order, repeats allowed)
    index: tuple[int | npt.NDArray[np.int64], ...]
    #: per stored axis: the dimension of the variable that it feeds, None where the index is an integer
    axis_dims: tuple[str | None, ...]
    #: element-wise functions that xarray would apply, innermost first
    functions: tuple[ValueFunction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TracedVariable:
    """A variable of the dataset, traced to where its values come from.

    A dimension that no stored axis feeds (``expand_dims``) has length 1.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    #: dtype of ``ds[name].values``, in native byte order
    dtype: np.dtype[Any]
    kind: Kind
    #: kind "stored": one, or several that follow one another along ``concat_dim``
    segments: tuple[Segment, ...] = ()
    concat_dim: str | None = None
    #: kind "memory": the whole variable
    values: npt.NDArray[Any] | None = None
    #: kind "foreign": reads a block, given a slice per dimension; values as xarray shows them
    read: Callable[[Mapping[str, slice]], npt.NDArray[Any]] | None = None
    #: kind "foreign": a hint of the chunk sizes per dimension
    preferred_chunks: Mapping[str, int] = field(default_factory=dict)
    #: why the variable is not read in place, for the plan
    note: str = ""
