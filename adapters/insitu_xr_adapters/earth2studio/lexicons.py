"""Where each variable of Earth2Studio is in a dataset, as a lexicon says or as the metadata of the dataset do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr_adapters.earth2studio.accumulating import Accumulation, accumulation
from insitu_xr_adapters.earth2studio.described import Described
from insitu_xr_adapters.earth2studio.metadata import Known, ids, is_levelled, known
from insitu_xr_adapters.earth2studio.units import UnknownUnits, converter

type Function = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:hPa|mb)?\s*")
_HEIGHTS = ("height", "heightaboveground", "height_above_ground")
_SHOWN = 40


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Where a variable of Earth2Studio is in a dataset.

    Attributes
    ----------
    variable : str
        What Earth2Studio calls it.
    name : str
        Variable of the dataset.
    column : int, optional
        Position along its further dimension, such as that of levels.
    function : callable, optional
        What makes values of it.
    accumulation : Accumulation, optional
        What is summed.
    """

    variable: str
    name: str
    column: int | None = None
    function: Function | None = None
    accumulation: Accumulation | None = None


class Lexicon(Protocol):
    """Finds variables of Earth2Studio in a dataset."""

    def find(self, variable: str, described: Described) -> Field:
        """Where a variable is.

        Raises
        ------
        KeyError
            With a reason, if the dataset does not have it.
        RequestError
            If it has something that cannot be taken for it.
        """
        ...

    def names(self, described: Described) -> Iterable[str]:
        """Variables that it may have."""
        ...


def lexicon_of(given: Any) -> Lexicon:
    """What a caller gave as lexicon: "auto", the name or the class of one of Earth2Studio's, or a mapping.

    Raises
    ------
    RequestError
        If it is none of them.
    """
    if isinstance(given, str) and given != "auto":
        given = _by_name(given)
    if isinstance(given, str):
        return Metadata()
    if isinstance(given, Mapping):
        return Table({str(name): entry for name, entry in given.items()})
    if hasattr(given, "VOCAB") and hasattr(given, "__getitem__") | hasattr(given, "get_item"):
        return Vocabulary(given)
    raise RequestError(
        f"lexicon must be 'auto', a lexicon of Earth2Studio or a dict such as {{'z500': 'geopotential::500'}}, but got "
        f"{given!r}; give one of them"
    )


def _by_name(name: str) -> Any:
    from earth2studio import lexicon

    found = getattr(lexicon, name, None)
    if found is None:
        raise RequestError(
            f"lexicon must be 'auto' or the name of a lexicon of Earth2Studio, but got {name!r}; there are "
            f"{sorted(n for n in dir(lexicon) if n.endswith('Lexicon'))}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A lexicon of Earth2Studio, which says what values need to become those of Earth2Studio."""

    lexicon: Any

    def find(self, variable: str, described: Described) -> Field:
        """See `Lexicon`."""
        if variable not in self.lexicon.VOCAB:
            raise KeyError(f"{self.lexicon.__name__} does not have it")
        key, function = self.lexicon.get_item(variable)
        hours = getattr(sys.modules.get(self.lexicon.__module__), "ACCUMULATION_HOURS", {}).get(variable)
        summed = None if hours is None else accumulation(variable, np.timedelta64(hours, "h"))
        return _placed(variable, key, described, function, summed)

    def names(self, described: Described) -> Iterable[str]:
        """See `Lexicon`."""
        return list(self.lexicon.VOCAB)


@dataclass(frozen=True, slots=True)
class Table:
    """Names of variables of the dataset, with or without the functions that make values of them."""

    entries: Mapping[str, Any]

    def find(self, variable: str, described: Described) -> Field:
        """See `Lexicon`."""
        if variable not in self.entries:
            raise KeyError("the lexicon does not have it")
        entry = self.entries[variable]
        if isinstance(entry, str):
            field = _placed(variable, entry, described)
            return _converted(field, known(variable), described)
        key, function = entry
        return _placed(variable, key, described, function)

    def names(self, described: Described) -> Iterable[str]:
        """See `Lexicon`."""
        return list(self.entries)


def _placed(
    variable: str,
    key: str,
    described: Described,
    function: Function | None = None,
    summed: Accumulation | None = None,
) -> Field:
    """The field of a key such as ``geopotential::500``."""
    name, level = _parsed(str(key))
    if name not in described.columns:
        name, level = _flattened(name, level, described), None
    if level is not None:
        return Field(variable, name, described.column_of(name, level), function, summed)
    column = described.columns[name]
    if column is not None:
        raise KeyError(f"{name!r} has {column!r}, of which {key!r} names none")
    return Field(variable, name, None, function, summed)


def _parsed(key: str) -> tuple[str, float | str | None]:
    name, *rest = (part.strip() for part in key.split("::"))
    last = rest[-1] if rest else ""
    if not last:
        return name, None
    number = _NUMBER.fullmatch(last)
    return name, float(number[1]) if number else last


def _flattened(name: str, level: float | str | None, described: Described) -> str:
    """A variable that has its level in its name."""
    if level is not None:
        text = f"{level:g}" if isinstance(level, float) else level
        for candidate in (f"{name}_{text}", f"{name}{text}", f"{name}_{text}hPa", f"{name}{text}hPa"):
            if described.columns.get(candidate, "") is None:
                return candidate
    if name in described.ds.data_vars:
        var = described.ds[name]
        raise KeyError(f"{name!r} has the dimensions {var.dims} and dtype {var.dtype}, which cannot be delivered")
    raise KeyError(f"the dataset has no {name!r}")


def _converted(field: Field, facts: Known | None, described: Described) -> Field:
    """The same field in the units of Earth2Studio."""
    units = described.ds[field.name].attrs.get("units")
    try:
        function = converter(units, facts.units if facts is not None else "")
    except UnknownUnits as error:
        raise RequestError(
            f"variable {field.variable!r} must have units that can be converted, but {field.name!r} has {error}; give "
            f"a function: lexicon={{{field.variable!r}: ({field.name!r}, lambda x: ...)}}"
        ) from None
    return Field(field.variable, field.name, field.column, function, field.accumulation)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the dataset says of its variables: their names, numbers and names of GRIB, and standard names of CF."""

    def find(self, variable: str, described: Described) -> Field:
        """See `Lexicon`."""
        exact = self._exact(variable, described)
        facts = known(variable)
        if exact is not None:
            return _converted(exact, facts, described)
        if facts is None:
            raise KeyError("no variable has this name")
        ranked = [(rank, name) for name in described.columns if (rank := _rank(name, facts, described)) is not None]
        best = [name for rank, name in ranked if rank == min(ranked)[0]]
        if not best:
            raise KeyError("no variable has its names, numbers or standard name")
        if len(best) > 1:
            raise RequestError(
                f"variable {variable!r} must be told from others, but {best} answer to it alike; say which: "
                f"lexicon={{{variable!r}: {best[0]!r}, ...}}, or select it"
            )
        column = None if facts.level is None else described.column_of(best[0], facts.level)
        summed = None if facts.hours is None else accumulation(variable, np.timedelta64(facts.hours, "h"))
        return _converted(Field(variable, best[0], column, None, summed), facts, described)

    def _exact(self, variable: str, described: Described) -> Field | None:
        """A variable, or one of the channels of a variable, of this very name."""
        if described.columns.get(variable, "") is None and not _selected(variable, described):
            return Field(variable, variable)
        for name, column in described.columns.items():
            coord = described.level_coord(name) if column is not None else None
            if coord is not None and coord.dtype.kind in "UTO" and variable in coord.values.astype(str):
                return Field(variable, name, described.column_of(name, variable))
        return None

    def names(self, described: Described) -> Iterable[str]:
        """See `Lexicon`."""
        levels: set[float] = set()
        labels: dict[str, None] = dict.fromkeys(described.columns)
        for name in described.columns:
            coord = described.level_coord(name)
            values = np.atleast_1d(coord.values) if coord is not None else np.empty(0)
            if values.dtype.kind in "iuf":
                pascals = str(coord.attrs.get("units", "")).lower() == "pa" if coord is not None else False
                levels.update((values / 100 if pascals else values).astype("f8").tolist())
            else:
                labels.update(dict.fromkeys(values.astype(str).tolist()))
        return dict.fromkeys([*labels, *ids(tuple(sorted(levels)))])


def _rank(name: str, facts: Known, described: Described) -> int | None:
    """How a variable of the dataset answers to what is known: the lower the surer, None where it does not."""
    var, attrs = described.ds[name], described.ds[name].attrs
    if not _at_level(name, facts, described):
        return None
    if str(attrs.get("GRIB_paramId", "")) in map(str, facts.params):
        return 1
    names = {str(attrs.get("GRIB_shortName")), str(attrs.get("GRIB_cfVarName")), name}
    if names & set(facts.names):
        return 2
    heights = [float(c) for c in var.coords.values() if c.ndim == 0 and _is_height(c)]
    standard = attrs.get("standard_name") in facts.standards
    return 3 if standard and (facts.height is None or heights == [facts.height]) else None


def _at_level(name: str, facts: Known, described: Described) -> bool:
    if facts.level is None:
        return described.columns[name] is None and not _selected(name, described)
    try:
        described.column_of(name, facts.level)
    except KeyError:
        return False
    return True


def _selected(name: str, described: Described) -> bool:
    """Whether a variable is at a level that was selected, which is a coordinate of all other variables as well."""
    names = (name, str(described.ds[name].attrs.get("GRIB_shortName")))
    standard = described.ds[name].attrs.get("standard_name") in ("air_temperature", "eastward_wind", "northward_wind")
    return described.level_coord(name) is not None and (standard or any(map(is_levelled, names)))


def _is_height(coord: Any) -> bool:
    return coord.attrs.get("standard_name") == "height" or str(coord.name).lower() in _HEIGHTS


@dataclass(frozen=True, eq=False)
class Finder:
    """Finds variables once, and says what there is where one is not found.

    Attributes
    ----------
    accumulations : mapping of str to Accumulation
        What is summed, besides what the lexicon says.
    """

    lexicon: Lexicon
    described: Described
    accumulations: Mapping[str, Accumulation]
    _kept: dict[str, Field]

    def find(self, variable: str) -> Field:
        """Where a variable is.

        Raises
        ------
        UnknownNameError
            If the dataset does not have it.
        RequestError
            If it has something that cannot be taken for it.
        """
        if variable not in self._kept:
            try:
                found = self._found(variable)
            except UnknownNameError:
                raise
            except KeyError as error:
                raise UnknownNameError(
                    f"variable must be one of the source's, but got {variable!r} ({error.args[0]}); it has "
                    f"{_some(self.names())}, of the variables {_some(map(str, self.described.ds.data_vars))}"
                ) from None
            self._kept[variable] = found
        return self._kept[variable]

    def _found(self, variable: str) -> Field:
        field = self.lexicon.find(variable, self.described)
        summed = self.accumulations.get(variable, field.accumulation)
        if summed is None:
            return field
        if self.described.lead is not None:
            raise RequestError(
                f"variable {variable!r} must be stored by a forecast as it is, for it is a sum over times, but only "
                f"{field.name!r} is; ask for another, or sum lead times yourself"
            )
        summed.check(variable, self.described.time)
        return Field(variable, field.name, field.column, field.function, summed)

    def names(self) -> list[str]:
        """All variables that can be delivered."""
        return [name for name in self.lexicon.names(self.described) if self._has(name)]

    def _has(self, variable: str) -> bool:
        try:
            self._found(variable)
        except (KeyError, RequestError):
            return False
        return True


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f", ... {len(every)} in all" if len(every) > _SHOWN else ""
    return f"[{', '.join(every[:_SHOWN])}{more}]"
