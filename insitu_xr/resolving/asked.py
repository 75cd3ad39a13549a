"""The arguments that say what to read, and the groups of variables in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from insitu_xr.errors import RequestError
from insitu_xr.geometry.times import Lead
from insitu_xr.plan.manifest import Manifest
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of ``ds.insitu.loader`` that say what to read."""

    variables: Sequence[str] | str | None = None
    leads: Sequence[Lead] | Mapping[str, Any] | Lead | None = None
    inputs: Any = None
    targets: Any = None
    statics: Sequence[str] | str = ()
    sample_dim: Hashable | Sequence[Hashable] | None = None
    batch_size: int = 32
    shuffle: bool | Literal["block", "global"] = False
    seed: int = 0
    drop_last: bool = False
    layout: Literal["dict", "stacked"] = "dict"
    anchors: Any = None
    every: Lead | None = None
    at: str | Sequence[str] | None = None
    exclude: Any = None
    time_tolerance: Lead | None = None
    manifest: Manifest | None = None
    split: str | None = None
    drawing: Drawing = field(default_factory=Drawing)


@dataclass(frozen=True, slots=True)
class Group:
    """One group of arrays: variables, and the leads of each; None for no lead axis."""

    name: str
    variables: tuple[str, ...]
    leads: Mapping[str, tuple[Lead, ...] | None]


def groups_of(catalog: Catalog, asked: Asked) -> tuple[Group, ...]:
    """Read the groups that were asked for.

    Raises
    ------
    RequestError, UnknownNameError
        If a group is empty, malformed, or names a variable that the dataset does not have.
    """
    if asked.variables is not None and (asked.inputs is not None or asked.targets is not None):
        raise RequestError(
            "variables must be given alone, but got inputs or targets as well; put everything into inputs= and targets="
        )
    if asked.variables is not None:
        return (_group(catalog, "variables", asked.variables, asked.leads),)
    if asked.leads is not None:
        raise RequestError("leads must be given with variables=, but got none; put them into inputs= and targets=")
    given = [(name, content) for name, content in (("inputs", asked.inputs), ("targets", asked.targets)) if content]
    if not given:
        raise RequestError(
            "variables must name at least one variable, but got none; give variables=, or inputs= and targets=, out of "
            f"{sorted(catalog.names)}"
        )
    groups = []
    for name, content in given:
        if not isinstance(content, Mapping) or not {"variables"} <= set(content) <= {"variables", "leads"}:
            raise RequestError(f"{name} must be dict(variables=[...], leads=[...]), but got {content!r}; write it so")
        groups.append(_group(catalog, name, content["variables"], content.get("leads")))
    written: dict[tuple[str, str], str] = {}
    for name in (n for group in groups for n in group.variables):
        first = written.setdefault(catalog.check(name, "variable"), name)
        if first != name:
            raise RequestError(
                f"variable {name!r} must be written alike everywhere, but got {first!r} as well; choose one of them"
            )
    return tuple(groups)


def _group(catalog: Catalog, name: str, variables: Sequence[str] | str, leads: Any) -> Group:
    names = names_of(catalog, name, variables)
    if not names:
        raise RequestError(
            f"{name} must name at least one variable, but got {variables!r}; the dataset has {sorted(catalog.names)}"
        )
    if not isinstance(leads, Mapping):
        return Group(name, names, dict.fromkeys(names, _leads(name, leads)))
    if set(leads) != set(names):
        raise RequestError(
            f"leads of {name} must be given for each of its variables, but got them for {sorted(leads)} where it has "
            f"{sorted(names)}; name them all, with None for no lead"
        )
    return Group(name, names, {variable: _leads(f"{name}[{variable!r}]", leads[variable]) for variable in names})


def _leads(thing: str, leads: Any) -> tuple[Lead, ...] | None:
    if leads is None:
        return None
    values = leads.to_numpy() if hasattr(leads, "to_numpy") else leads  # an index, a series, a DataArray
    listed = tuple(values) if isinstance(values, list | tuple | range) or np.ndim(values) == 1 else (leads,)
    if not listed:
        raise RequestError(f"leads of {thing} must hold at least one lead, but got {leads!r}; leave them out for none")
    return listed


def names_of(catalog: Catalog, thing: str, names: Any) -> tuple[str, ...]:
    """Names of variables, each checked to be one of the dataset and to be named once."""
    if not isinstance(names, str | Iterable):
        raise RequestError(f"{thing} must be a list of names, but got {names!r}; write ['t2m', ...]")
    listed = (names,) if isinstance(names, str) else tuple(names)
    if unnamed := [name for name in listed if not isinstance(name, str)]:
        raise RequestError(
            f"{thing} must be named by text, but got {unnamed[0]!r}; rename it, "
            f"e.g. ds.rename({{{unnamed[0]!r}: 'name'}})"
        )
    found = [catalog.check(name, thing) for name in listed]
    for k, name in enumerate(listed):
        if found[k] in found[:k]:
            raise RequestError(f"{thing} must name each variable once, but got {name!r} again; drop one")
    return listed
