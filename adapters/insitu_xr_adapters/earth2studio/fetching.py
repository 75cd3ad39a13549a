"""A request filled: fields are read in pieces and put where they belong, each once, in arrays of their own."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import ReadError, RequestError
from insitu_xr_adapters.earth2studio.accumulating import Accumulation
from insitu_xr_adapters.earth2studio.described import Described
from insitu_xr_adapters.earth2studio.lexicons import Field
from insitu_xr_adapters.earth2studio.reading import Opened, Positions, Readers, anchors_of, selection_of
from insitu_xr_adapters.earth2studio.times import Labels, shown

type Places = tuple[Positions, ...]

#: bytes that a piece of a request takes, about
_PIECE_BYTES = 16 << 20
#: bytes from which copying is left to a thread, so that the event loop of the caller goes on
_OFFLOAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Fields that are read alike: at the same places, and summed over the same window.

    Attributes
    ----------
    members : sequence of (int, Field)
        Where each is along the variables of the output.
    places : tuple of arrays
        Positions along the sample dimensions, shape ``(distinct, samples of a sum)``.
    inverse : array
        Which of the distinct ones each row of the output is.
    """

    members: Sequence[tuple[int, Field]]
    places: Places
    inverse: Positions

    def anchors(self, dims: Sequence[str], start: int = 0, stop: int | None = None) -> Any:
        """Positions of some of the distinct places as readers take them."""
        return anchors_of(dims, [places[start:stop].ravel() for places in self.places])


def parts_of(described: Described, fields: Sequence[Field], labels: tuple[Labels, ...]) -> list[Part]:
    """Sort fields by how they are read; every label is looked up before anything is.

    Parameters
    ----------
    labels : tuple of arrays
        Times, or times and lead times, one for each row of the output.

    Raises
    ------
    RequestError
        If a label is not on its axis.
    """
    groups: dict[Accumulation | None, list[tuple[int, Field]]] = {}
    for at, one in enumerate(fields):
        if not described.is_static(one.name):
            groups.setdefault(one.accumulation, []).append((at, one))
    parts = []
    for summed, members in groups.items():
        if described.lead is not None:
            rows = np.stack([described.time.find(labels[0]), described.lead.find(labels[1])], axis=1)
        elif summed is None:
            rows = described.time.find(labels[0])[:, None]
        else:
            rows = described.time.find((labels[0][:, None] + summed.offsets).ravel()).reshape(len(labels[0]), -1)
        distinct, inverse = _distinct(rows)
        places = tuple(distinct.T[..., None]) if described.lead is not None else (distinct,)
        parts.append(Part(members, places, inverse))
    if not parts:  # static fields alone: their times must exist all the same
        for axis, wanted in zip((described.time, described.lead), labels, strict=False):
            if axis is not None:
                axis.find(wanted)
    return parts


def _distinct(rows: Positions) -> tuple[Positions, Positions]:
    """Different rows in the order in which they come, and which of them each is."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rows[first[order]], rank[inverse.ravel()]


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """Fills the output of one request.

    Attributes
    ----------
    out : array
        float32, shape ``(rows, variables, *grid)``.
    offload : bool
        Whether copying is left to threads, as it is for a caller whose event loop has more to do.
    again : int
        How often what failed is read again, after the tries that a reader makes by itself.
    """

    described: Described
    readers: Readers
    out: npt.NDArray[np.float32]
    offload: bool
    again: int = 0

    async def fill(self, fields: Sequence[Field], parts: Sequence[Part], progress: Any) -> None:
        """Read all that is asked for."""
        for at, one in enumerate(fields):
            if self.described.is_static(one.name):
                await self._run(self._static, at, one, nbytes=_OFFLOAD_BYTES)
                progress.update(len(self.out))
        for part in parts:
            with self.readers.using(selection_of(one for _, one in part.members)) as opened:
                await self._part(part, opened, progress)

    async def _part(self, part: Part, opened: Opened, progress: Any) -> None:
        names = list(dict.fromkeys(one.name for _, one in part.members))
        if part.places[0].shape[1] > 1:
            await self._summed(part, opened, names, progress)
            return
        show, anchors = self._placing(part, opened), part.anchors(self.described.sample_dims)
        await self._tried(lambda: opened.reader.avisit(anchors, show, variables=names))
        progress.update(len(self.out) * len(part.members))

    def _placing(self, part: Part, opened: Opened) -> Callable[[str, int, npt.NDArray[Any]], None]:
        """Puts fields where they belong in the output, straight from the chunks."""
        members: dict[str, list[tuple[int, Field, int | None]]] = {}
        for at, one in part.members:
            members.setdefault(one.name, []).append((at, one, opened.column(one)))
        order = np.argsort(part.inverse, kind="stable")
        rows = np.split(order, np.flatnonzero(np.diff(part.inverse[order])) + 1)

        def show(name: str, number: int, field: npt.NDArray[Any]) -> None:
            for at, one, column in members[name]:
                (values,) = _applied(one, self._ordered(one, column, field[None]))
                for row in rows[number]:
                    self.described.grid.place(self.out[row, at], values)

        return show

    async def _summed(self, part: Part, opened: Opened, names: list[str], progress: Any) -> None:
        pieces = _pieces(part, self._sample_bytes(opened, names))
        ahead = [self._begin(part, opened, names, *pieces[0])]
        try:
            for k, (start, stop) in enumerate(pieces):
                if k + 1 < len(pieces):
                    ahead.append(self._begin(part, opened, names, *pieces[k + 1]))
                batch = await ahead.pop(0)
                rows = np.flatnonzero((part.inverse >= start) & (part.inverse < stop))
                arrays = {name: batch[name] for name in names}
                nbytes = sum(array.nbytes for array in arrays.values())
                await self._run(self._place, part, opened, arrays, rows, part.inverse[rows] - start, nbytes=nbytes)
                progress.update(len(rows) * len(part.members))
        finally:
            for task in ahead:
                task.cancel()

    def _begin(self, part: Part, opened: Opened, names: list[str], start: int, stop: int) -> asyncio.Task[Any]:
        anchors = part.anchors(self.described.sample_dims, start, stop)
        return asyncio.ensure_future(self._tried(lambda: opened.reader.aread(anchors, variables=names)))

    async def _tried(self, read: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(self.again):
            try:
                return await read()
            except ReadError:
                continue
        return await read()

    def _sample_bytes(self, opened: Opened, names: Sequence[str]) -> int:
        cell = int(np.prod(self.described.grid.shape))
        ds = self.described.ds
        return sum(max(len(opened.selection[name]), 1) * ds[name].dtype.itemsize * cell for name in names)

    async def _run(self, work: Any, *args: Any, nbytes: int) -> None:
        if self.offload and nbytes >= _OFFLOAD_BYTES:
            await asyncio.to_thread(work, *args)
        else:
            work(*args)

    def _static(self, at: int, one: Field) -> None:
        self.described.grid.place(self.out[0, at], _applied(one, self.readers.static(one)))
        self.out[1:, at] = self.out[0, at]

    def _place(self, part: Part, opened: Opened, arrays: Any, rows: Positions, samples: Positions) -> None:
        """Put samples of a batch in the rows of the output."""
        window = part.places[0].shape[1]
        straight = len(samples) == arrays[part.members[0][1].name].shape[0] // window and _is_range(samples)
        for at, one in part.members:
            fields = self._ordered(one, opened.column(one), arrays[one.name])
            if window > 1:
                fields = np.sum(fields.reshape(-1, window, *fields.shape[1:]), axis=1)
            fields = _applied(one, fields)
            if straight and _is_range(rows):
                self.described.grid.place(self.out[rows[0] : rows[-1] + 1, at], fields)
                continue
            for row, sample in zip(rows, samples, strict=True):
                self.described.grid.place(self.out[row, at], fields[sample])

    def _ordered(self, one: Field, column: int | None, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The fields of a batch with the dimensions in the order of the grid, a view."""
        dims = [dim for dim in self.described.dims[one.name] if dim not in self.described.sample_dims]
        further = self.described.columns[one.name]
        if column is not None and further is not None:
            axis = dims.index(further)
            array = np.moveaxis(array, 1 + axis, 0)[column]
            dims.pop(axis)
        return np.transpose(array, (0, *(1 + dims.index(dim) for dim in self.described.grid.dims)))

    def missing(self, fields: Sequence[Field]) -> list[tuple[int, int]]:
        """Row and variable of the fields that hold nothing but NaN."""
        flat = self.out.reshape(*self.out.shape[:2], -1)
        suspects = np.argwhere(np.isnan(flat[:, :, 0]))
        return [(int(row), int(at)) for row, at in suspects if np.isnan(flat[row, at]).all()]


def _is_range(values: Positions) -> bool:
    return len(values) > 0 and bool(np.all(np.diff(values) == 1))


def _applied(one: Field, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if one.function is None:
        return values
    made = one.function(values)
    if np.shape(made) != values.shape:
        raise RequestError(
            f"the function of variable {one.variable!r} must keep the shape, but made {np.shape(made)} of "
            f"{values.shape}; give one that works on each value"
        )
    return np.asarray(made)


def _pieces(part: Part, sample_bytes: int) -> list[tuple[int, int]]:
    """Stretches of the distinct places of a part that are read at once."""
    count, window = part.places[0].shape
    size = max(1, _PIECE_BYTES // max(sample_bytes * window, 1))
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def report_missing(
    found: Sequence[tuple[int, int]],
    fields: Sequence[Field],
    labels: tuple[Labels, ...],
    policy: Literal["warn", "raise", "ignore"],
) -> None:
    """Say which fields hold nothing but NaN, as those do that were never written.

    Raises
    ------
    RequestError
        If the policy is "raise".
    """
    if policy == "ignore" or not found:
        return
    row, at = found[0]
    when = " + ".join(shown(label[row]) for label in labels)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    message = (
        f"fields must hold data, but {fields[at].variable!r} at {when}{more} are missing at every point, as they are "
        "where nothing was written; ask for other times, or give missing='ignore'"
    )
    if policy == "raise":
        raise RequestError(message)
    warnings.warn(message, UserWarning, stacklevel=2)
