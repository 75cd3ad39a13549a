"""One small block of every stored variable, read in place and through xarray, must be the same."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.engine.blocks import DECODED, RAW
from insitu_xr.engine.decode import VariableReader
from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.errors import ReadError, VerificationError
from insitu_xr.materials import Materials
from insitu_xr.plan.reads import AccessGroup, Layout, sample_coordinates
from insitu_xr.plan.request import Request
from insitu_xr.resolving.catalog import Catalog


def verify(catalog: Catalog, request: Request, groups: Sequence[AccessGroup], materials: Materials) -> None:
    """Compare one block of every variable that is read in place.

    xarray's lazy wrappers are not a public interface; this catches a change of theirs that types alone do not show.

    Raises
    ------
    VerificationError
        Names the variable and the first difference.
    """
    try:
        for group in groups:
            stored = [layout for layout in group.layouts if layout.spec.kind == "stored"]
            fresh = {x.spec.name: known for x in stored if not (known := _Known.of(x, materials)).seen()}
            readers = materials.readers([group]) if fresh else {}
            for name, known in fresh.items():
                if _verify(catalog[name], request, readers[name].layout, readers[name]):
                    known.note()
    finally:
        # For now this thread reads nothing more; those that do can use its memory.
        RAW.release()
        DECODED.release()


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is verified: stored arrays, functions and indexers. The same ones need no second look in this process."""

    key: tuple[Any, ...]
    objects: tuple[Any, ...]

    @classmethod
    def of(cls, layout: Layout, materials: Materials) -> _Known:
        """What a variable is read from."""
        spec = layout.spec
        objects = [
            o
            for part in materials.parts[spec.name]
            if isinstance(part.source, ZarrSource)
            for o in (part.source.stored.array, *part.functions)
        ]
        indexers = [i if isinstance(i, int) else hash(i.tobytes()) for s in spec.segments for i in s.index]
        key = (spec.dims, str(materials.value_dtypes[spec.name]), *indexers, *map(id, objects))
        return cls(key, tuple(objects))

    def seen(self) -> bool:
        """Whether it was verified; an object that has died may have left its number to another."""
        found = _VERIFIED.get(self.key, ())
        return bool(found) and all(ref() is o for ref, o in zip(found, self.objects, strict=True))

    def note(self) -> None:
        """It was verified."""
        while len(_VERIFIED) >= _REMEMBERED:
            _VERIFIED.pop(next(iter(_VERIFIED)), None)
        try:
            _VERIFIED[self.key] = tuple(weakref.ref(o) for o in self.objects)
        except TypeError:
            return  # an object that cannot be watched is looked at every time


_VERIFIED: dict[tuple[Any, ...], tuple[weakref.ref[Any], ...]] = {}
_REMEMBERED = 1000


def _verify(array: xr.DataArray, request: Request, layout: Layout, reader: VariableReader) -> bool:
    """Compare one block; returns whether it could be read both ways."""
    name = layout.spec.name
    columns = request.columns_of(name) or (0,)
    positions = [int(p[0]) for p in sample_coordinates(request, layout, np.zeros(1, np.int64), columns[0])]
    unit, row = layout.locate([np.array([p]) for p in positions])
    number = int(unit[0]) if positions else 0
    cell = layout.cells[layout.segment_of(number)][0]
    try:
        ours = reader.peek(number, int(row[0]) if positions else 0, cell)
    except ReadError:
        # A chunk that cannot be read is no difference. The batch that needs it says so, by name.
        return False
    try:
        where: dict[str, Any] = {d: [p] for d, p in zip(layout.sample_dims, positions, strict=True)}
        where |= {d: _flat(t) for d, t in zip(layout.field_dims, cell.target, strict=True)}
        theirs = array.isel(where).transpose(*layout.sample_dims, *layout.field_dims).values
    except Exception:
        return False  # it was readable a moment ago; should it be lost now, the batch that needs it says so
    theirs = theirs.astype(theirs.dtype.newbyteorder("="), copy=False)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not _same(ours, theirs):
        raise VerificationError(
            f"values of variable {name!r} must be those that xarray shows, but a block at {where} differs "
            f"({ours.dtype}{list(ours.shape)} against {theirs.dtype}{list(theirs.shape)}); "
            f"load it with ds[{name!r}].load() and please report this with the store's metadata"
        )
    return True


def _flat(target: Any) -> Any:
    return target.ravel() if isinstance(target, np.ndarray) else target


def _same(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> bool:
    return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fcmM")
