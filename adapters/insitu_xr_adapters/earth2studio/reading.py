"""The readers behind a source: a few at a time, one for each set of variables and levels, sharing a ceiling."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr_adapters.earth2studio.described import Described
from insitu_xr_adapters.earth2studio.lexicons import Field

type Positions = npt.NDArray[np.int64]
#: variables of the dataset, with the positions along their further dimension in order; none where they have none
type Selection = Mapping[str, tuple[int, ...]]

#: readers kept for requests that no plan foretold
_KEPT = 4


def selection_of(fields: Iterable[Field]) -> Selection:
    """What fields are read from: each variable once, with all the levels that are asked of it."""
    columns: dict[str, set[int]] = {}
    for one in fields:
        columns.setdefault(one.name, set()).update(() if one.column is None else (one.column,))
    return {name: tuple(sorted(found)) for name, found in columns.items()}


def selected(described: Described, selection: Selection) -> xr.Dataset:
    """The chosen variables and levels alone, without labels, so that they are asked for by position."""
    chosen = {}
    for name, columns in selection.items():
        array = described.ds[name]
        array = array.drop_vars(list(array.coords))
        if columns:
            dim = described.columns[name]
            # Variables may be asked for at levels of their own.
            array = array.isel({dim: _places(columns)}).rename({dim: f"{dim} of {name}"})
        chosen[name] = array
    return xr.Dataset(chosen)


def _places(columns: tuple[int, ...]) -> slice | list[int]:
    first, last = columns[0], columns[-1]
    return slice(first, last + 1) if last - first + 1 == len(columns) else list(columns)


@dataclass(slots=True, eq=False)
class Opened:
    """A reader, and what it reads.

    Attributes
    ----------
    reader : insitu_xr.Reader
        Of the selection.
    users : int
        How many calls are using it.
    """

    reader: Any
    selection: Selection
    users: int = 0

    def covers(self, wanted: Selection) -> bool:
        """Whether all that is wanted is read."""
        mine = self.selection
        return all(name in mine and set(columns) <= set(mine[name]) for name, columns in wanted.items())

    def column(self, one: Field) -> int | None:
        """Where the level of a field is along the further dimension of what is read."""
        return None if one.column is None else self.selection[one.name].index(one.column)


@dataclass(slots=True, eq=False)
class Readers:
    """The readers of a source. Thread-safe.

    Attributes
    ----------
    described : Described
        The dataset.
    memory : int, str or None
        Ceiling of what each reader holds.
    options : mapping
        What else readers are made with.
    """

    described: Described
    memory: Any
    options: Mapping[str, Any]
    _planned: list[Opened] = field(default_factory=list)
    _kept: OrderedDict[Any, Opened] = field(default_factory=OrderedDict)
    _statics: dict[tuple[str, int | None], npt.NDArray[Any]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)

    def static(self, one: Field) -> npt.NDArray[Any]:
        """A field without times, as it is stored but for the order of its dimensions; read once."""
        key = (one.name, one.column)
        with self._lock:
            if key not in self._statics:
                array = self.described.ds[one.name]
                column = self.described.columns[one.name]
                array = array if column is None else array.isel({column: one.column})
                self._statics[key] = array.transpose(*self.described.grid.dims).values
            return self._statics[key]

    @contextmanager
    def using(self, wanted: Selection) -> Iterator[Opened]:
        """A reader of what is wanted: that of a plan if it covers it, else one that is kept for requests like this."""
        with self._lock:
            opened = next((o for o in reversed(self._planned) if o.covers(wanted)), None) or self._kept_for(wanted)
            opened.users += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                self._shed()

    def _kept_for(self, wanted: Selection) -> Opened:
        key = frozenset(wanted.items())
        if key not in self._kept:
            self._kept[key] = next((o for o in self._kept.values() if o.covers(wanted)), None) or self.open(
                wanted, self.memory
            )
        self._kept.move_to_end(key)
        return self._kept[key]

    def _shed(self) -> None:
        """Close the readers that were used least recently, and are not being used."""
        while len(self._kept) > _KEPT:
            oldest = next((key for key, opened in self._kept.items() if not opened.users), None)
            if oldest is None:
                return
            opened = self._kept.pop(oldest)
            if opened not in self._kept.values():
                opened.reader.close()

    def open(self, selection: Selection, memory: Any) -> Opened:
        """Make a reader that is not kept."""
        dims = self.described.sample_dims
        ds = selected(self.described, selection)
        sample_dim = dims if len(dims) > 1 else dims[0]
        reader = ds.insitu.reader(list(selection), sample_dim=sample_dim, memory=memory, **self.options)
        return Opened(reader, selection)

    @contextmanager
    def preferring(self, opened: Sequence[Opened]) -> Iterator[None]:
        """Take these readers for whatever they cover."""
        with self._lock:
            self._planned.extend(opened)
        try:
            yield
        finally:
            with self._lock:
                self._planned = [one for one in self._planned if one not in opened]

    def close(self) -> None:
        """Close the readers that are kept."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for opened in {id(one): one for one in kept}.values():
            opened.reader.close()


def anchors_of(dims: Sequence[str], positions: Sequence[Positions]) -> Any:
    """Positions along the sample dimensions as readers take them."""
    return dict(zip(dims, positions, strict=True))
