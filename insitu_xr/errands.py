"""What threads have to do for a read: its samples and leads, sorted by the units that they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.asking import GROUP
from insitu_xr.engine.access import Copy, Errand, Visit
from insitu_xr.engine.blocks import BLOCKS
from insitu_xr.geometry.grid import IntArray
from insitu_xr.plan.arrays import Key
from insitu_xr.plan.foresight import Address, Located
from insitu_xr.plan.reads import AccessGroup, sample_coordinates
from insitu_xr.plan.request import Request, Take

#: what is to be done with each unit
Errands = dict[Address, list[Errand]]
#: called with the name of a variable, the number of a field, and the field
Visitor = Callable[[str, int, npt.NDArray[Any]], None]


class Sorter:
    """Sorts requests into errands, one list for each unit.

    Parameters
    ----------
    groups : sequence of AccessGroup
        Each of one variable.
    memory : mapping of str to array
        Variables that are in memory.
    """

    def __init__(self, groups: Sequence[AccessGroup], memory: Mapping[str, npt.NDArray[Any]]) -> None:
        self._groups, self._memory = groups, memory
        self._number = {group.first.spec.name: k for k, group in enumerate(groups)}

    def locations(self, request: Request) -> list[Located]:
        """Group, and unit and row of every sample and lead, shape (samples * leads,)."""
        samples, found = np.arange(len(request)), []
        alike: dict[tuple[int, ...], tuple[IntArray, IntArray]] = {}
        for take in request.takes:
            number = self._number.get(take.variable)
            if number is None:
                continue
            layout = self._groups[number].first
            key = tuple(map(id, layout.units))
            if key not in alike:
                each = [layout.locate(sample_coordinates(request, layout, samples, c)) for c in take.columns]
                units, rows = (np.stack(part, axis=1).ravel() for part in zip(*each, strict=True))
                alike[key] = units, rows
            found.append((number, *alike[key]))
        return found

    def copies(self, request: Request) -> tuple[dict[Key, npt.NDArray[Any]], Errands, Sequence[Located]]:
        """The arrays of a batch, what is to be copied into them, and where it lies."""
        arrays: dict[Key, npt.NDArray[Any]] = {}
        copies = Errands()
        for take in request.takes:
            spec, field = request.variables[take.variable], request.field_shape(take.variable)
            lead = (len(take.columns),) if take.windowed else ()
            arrays[take.group, take.variable] = BLOCKS.array((len(request), *lead, *field), spec.dtype)
            if take.variable not in self._number:
                self._from_memory(request, take, arrays[take.group, take.variable])
        located, alike = self.locations(request), dict[int, list[tuple[int, IntArray]]]()
        for number, units, rows in located:
            name = self._groups[number].first.spec.name
            out = arrays[GROUP, name].reshape(len(units), *request.field_shape(name))
            if id(units) not in alike:
                alike[id(units)] = list(_by_unit(units))
            for unit, places in alike[id(units)]:
                copies[Address(number, unit)] = [Copy(out, places, rows[places])]
        for name in request.statics:
            static = request.field_shape(name)
            out = arrays["statics", name] = BLOCKS.array(static, request.variables[name].dtype)
            if name in self._number:
                zero = np.zeros(1, np.int64)
                copies[Address(self._number[name], 0)] = [Copy(out[None], zero, zero)]
            else:
                out[...] = self._memory[name]
        return arrays, copies, located

    def visits(self, request: Request, function: Visitor) -> tuple[Errands, Sequence[Located]]:
        """What is shown to a function, and where it lies; what is in memory is shown at once."""
        located, errands = self.locations(request), Errands()
        for number, units, rows in located:
            show = partial(function, self._groups[number].first.spec.name)
            for unit, places in _by_unit(units):
                errands[Address(number, unit)] = [Visit(show, places, rows[places])]
        for take in request.takes:
            if take.variable not in self._number:
                shape = (len(request), len(take.columns), *request.field_shape(take.variable))
                values = np.empty(shape, request.variables[take.variable].dtype)
                self._from_memory(request, replace(take, windowed=True), values)
                for k, field in enumerate(values.reshape(-1, *shape[2:])):
                    function(take.variable, k, field)
        return errands, located

    def _from_memory(self, request: Request, take: Take, out: npt.NDArray[Any]) -> None:
        dims = request.variables[take.variable].dims
        along = [d for d in request.sample_dims if d in dims]
        axes = [dims.index(d) for d in along]
        values = np.moveaxis(self._memory[take.variable], axes, range(len(axes)))
        for k, column in enumerate(take.columns):
            every = request.coordinates(np.arange(len(request)), column)
            index = tuple(every[request.sample_dims.index(d)] for d in along)
            out[(slice(None), k) if take.windowed else ...] = values[index]


def _by_unit(units: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Distinct units, and the places at which each occurs."""
    order = np.argsort(units, kind="stable")
    ordered = units[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(units)], strict=True):
        yield int(ordered[start]), order[start:stop]
