"""Where the values of a loader or a reader come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from insitu_xr.engine._zarr import memory_of
from insitu_xr.engine.decode import Part, VariableReader
from insitu_xr.engine.fetch import ZarrSource
from insitu_xr.engine.units import Units
from insitu_xr.errors import UnsupportedSourceError
from insitu_xr.limits import MIB, format_bytes
from insitu_xr.plan.reads import AccessGroup

#: a MemoryStore that holds more is not pickled: every worker would get a copy
MEMORY_STORE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Materials:
    """Stored arrays, and arrays in memory, by variable.

    Attributes
    ----------
    parts : mapping of str to sequence of Part
        Per variable that is read: its stored arrays.
    value_dtypes : mapping of str to dtype
        Per variable that is read: dtype of its values before any cast.
    memory : mapping of str to array
        Variables that are in memory.
    """

    parts: Mapping[str, Sequence[Part]]
    value_dtypes: Mapping[str, np.dtype[Any]]
    memory: Mapping[str, npt.NDArray[Any]]

    def readers(self, groups: Iterable[AccessGroup]) -> dict[str, VariableReader]:
        """What reads the variables of access groups, by name."""
        found = {}
        for group in groups:
            units = Units(group.first)
            for layout in group.layouts:
                name = layout.spec.name
                found[name] = VariableReader(layout, self.parts[name], self.value_dtypes[name], units)
        return found

    def forget_pending(self) -> None:
        """Do not wait any more for what others began to read."""
        for parts in self.parts.values():
            for part in parts:
                part.source.forget_pending()

    def check_movable(self, thing: str) -> None:
        """Refuse to copy a loader, or a reader, where the values would be copied along, or would be lost.

        Raises
        ------
        UnsupportedSourceError
            Names the variable and the store.
        """
        for name, parts in self.parts.items():
            for store in (part.source.stored.array.store for part in parts if isinstance(part.source, ZarrSource)):
                held, movable = memory_of(store)
                if not movable or held > MEMORY_STORE_BYTES:
                    raise UnsupportedSourceError(
                        f"{thing} must read from a store that other processes can open to be pickled, but variable "
                        f"{name!r} lies in the memory of this process ({format_bytes(held)} in {store}); write it to a "
                        "disk or an object store, or stay in this process (num_workers=0)"
                    )
