"""One pass over a loader: the moments of every field that it delivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.batch import Batch
from insitu_xr.errors import DtypeError, RequestError, UnknownNameError
from insitu_xr.loader import Loader
from insitu_xr.plan.arrays import array_shapes
from insitu_xr.plan.channels import ChannelBlock
from insitu_xr.plan.request import Request
from insitu_xr.scaling.moments import Moments
from insitu_xr.scaling.scaler import Scaler
from insitu_xr.scaling.statistics import FieldAxes, Statistics, field_dims


def fit_scaler(
    loader: Loader, dims: Sequence[str] | str | None = None, *, leave: Sequence[str] | str = (), progress: bool = False
) -> Scaler:
    """Mean and standard deviation of every variable and level of a loader, exact in float64, in one pass.

    Reads one epoch, with threads and memory of its own: the loader itself goes on where it was. Every field counts
    once, however many windows hold it, so that the numbers are those of the data and the same in any order. NaN is
    left out. Moments of blocks are merged by the update of Chan, Golub and LeVeque (1983), as scikit-learn does it.

    Parameters
    ----------
    loader : Loader
        What to read, in either layout; that of the training split, so that nothing of the test is seen. Statics are
        included, and values are those after ``batch_transforms=``. Of a loader of one rank, what all ranks read is
        counted, so that all have the same numbers; it is read once if one fits and sends ``scaler.to_json()``.
    dims : sequence of str, optional
        Dimensions to take the mean over, those that are drawn along among them. By default all but levels and members.
        Those left out keep statistics of their own: ``dims="time"`` gives a mean for every place.
    leave : sequence of str, optional
        Variables that are to stay as they are, such as masks: mean 0 and standard deviation 1.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Scaler

    Raises
    ------
    InsituError
        Before anything is read, if an argument breaks a rule. Afterwards, if a variable has no value but NaN, or an
        infinite one.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"z": (("time", "level", "x"), np.arange(12.0).reshape(3, 2, 2))}, {"level": [500, 850]})
    >>> loader = ds.insitu.loader(variables=["z"], sample_dim="time", batch_size=2)
    >>> scaler = insitu_xr.fit_scaler(loader)
    >>> scaler.mean["z"].sel(level=850).item(), scaler.channels
    (6.5, ['z500', 'z850'])
    """
    if not isinstance(loader, Loader):
        raise RequestError(
            f"loader must be an insitu_xr.Loader, but got {type(loader).__name__}; give ds.insitu.loader(...) itself, "
            "before it goes to a framework"
        )
    request, context = loader.plan.request, loader.context
    left = [leave] if isinstance(leave, str) else list(leave)
    _check_left(request, left)
    _check_shapes(loader)
    reduced = _reduced(request, dims)
    axes = {n: FieldAxes.of(context, n, reduced) for n in request.variables}
    running = {n: _Running(request, n, axes[n]) for n in request.variables if n not in left}
    batches = loader.share(0, 1, progress=progress)
    # A whole epoch of all ranks, also where the loader is one of several, or would resume in the midst of one.
    batches.set_rank(0, 1)
    with batches:
        for batch in batches:
            for piece in _pieces(batch):
                if piece.variable in running:
                    running[piece.variable].add(batch, piece)
    return Scaler({n: running[n].finish() if n in running else Statistics.identity(axes[n]) for n in request.variables})


def _check_left(request: Request, left: Sequence[str]) -> None:
    unknown = [n for n in left if n not in request.variables]
    if unknown:
        raise UnknownNameError(
            f"leave must name variables of the loader, {sorted(request.variables)}, but got {unknown[0]!r}; "
            "leave it out, or ask for it in the loader"
        )


def _check_shapes(loader: Loader) -> None:
    plan = loader.plan
    for key, spec in array_shapes(plan.request, plan.stacks, plan.request.batch_size).items():
        if loader.template[key].shape != spec.shape:
            raise RequestError(
                f"loader must deliver fields of the shapes in the dataset to be fitted, but got transforms that make "
                f"{'/'.join(filter(None, key))!r} {loader.template[key]} of {spec}; fit it on a loader without them"
            )


def _reduced(request: Request, dims: Sequence[str] | str | None) -> frozenset[str] | None:
    """Dimensions to take the mean over; None for all but those that become channels."""
    if dims is None:
        return None
    named = [dims] if isinstance(dims, str) else list(dims)
    known = sorted({d for spec in request.variables.values() for d in spec.dims})
    unknown = [d for d in named if d not in known]
    if unknown:
        raise UnknownNameError(f"dims must be among those of the loader, {known}, but got {unknown[0]!r}; take it out")
    lacking = [d for d in request.sample_dims if d not in named]
    if lacking:
        raise RequestError(
            f"dims must hold the dimension that is drawn along, {lacking[0]!r}, but got {named}; add it, since "
            "statistics of every single label cannot be applied to others"
        )
    return frozenset(named)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Fields of one variable at one lead: an array ``(sample, *dims)``, or one field of a static."""

    variable: str
    column: int | None
    dims: tuple[str, ...]
    values: npt.NDArray[Any]


def _pieces(batch: Batch) -> Iterator[_Piece]:
    request, stacks = batch.context.request, batch.context.stacks
    if stacks is not None:
        for group, stack in stacks.items():
            for block in stack.blocks:
                yield _of_block(request, block, batch.arrays[group, ""])
        return
    for take in request.takes:
        array, dims = batch.arrays[take.group, take.variable], field_dims(request, take.variable)
        for k, column in enumerate(take.columns):
            yield _Piece(take.variable, column, dims, array[:, k] if take.windowed else array)
    for name, array in batch.statics.items():
        yield _Piece(name, None, field_dims(request, name), array[None])


def _of_block(request: Request, block: ChannelBlock, array: npt.NDArray[Any]) -> _Piece:
    dims, shape = field_dims(request, block.variable), request.field_shape(block.variable)
    part = array[:, block.start : block.start + block.count]
    # A static is the same in all samples.
    rows = part[:1] if block.column is None else part
    values = rows.reshape(len(rows), *(shape[i] for i in block.order))
    return _Piece(block.variable, block.column, tuple(dims[i] for i in block.order), values)


class _Running:
    """Moments of one variable so far, and which of its fields they hold."""

    def __init__(self, request: Request, variable: str, axes: FieldAxes) -> None:
        dtype = request.variables[variable].dtype
        if dtype.kind not in "biuf":
            raise DtypeError(
                f"variable {variable!r} must be of real numbers to be scaled, but got {dtype}; do not ask for it, or "
                f"add it to leave="
            )
        sizes = dict(zip(axes.dims, request.field_shape(variable), strict=True))
        self.variable, self.axes = variable, axes
        self.moments = Moments.empty(tuple(sizes[d] for d in axes.kept))
        #: of every place along the sample dimensions, whether it was counted
        self.seen = np.zeros(0, bool)

    def add(self, batch: Batch, piece: _Piece) -> None:
        """Add those fields that were not counted yet."""
        values = piece.values[self._new(batch, piece.column)]
        # What is kept comes last, in the order of the variable, which the stacked layout may have changed.
        kept = [1 + piece.dims.index(d) for d in self.axes.kept]
        over = values.ndim - len(kept)
        self.moments = self.moments.add(np.moveaxis(values, kept, range(over, values.ndim)), tuple(range(over)))

    def _new(self, batch: Batch, column: int | None) -> Any:
        """Which samples hold a field that was not counted yet."""
        request, lengths, places = batch.context.request, [1], [np.zeros(1, np.int64)]
        if column is not None:
            lengths = [len(axis) for axis in request.axes]
            lengths[request.lead_axis] = len(request.target(column))
            places = request.coordinates(batch.samples, column)
        if not len(self.seen):
            self.seen = np.zeros(np.prod(lengths), bool)
        flat = np.ravel_multi_index(tuple(places), tuple(lengths))
        first = np.zeros(len(flat), bool)
        first[np.unique(flat, return_index=True)[1]] = True
        new = first & ~self.seen[flat]
        self.seen[flat] = True
        return slice(None) if new.all() else new

    def finish(self) -> Statistics:
        """The statistics of all that was added."""
        found = Statistics(self.axes, self.moments.count, self.moments.mean, self.moments.std)
        found.check(self.variable)
        return found
