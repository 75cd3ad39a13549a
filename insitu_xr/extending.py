"""What adapters add by entry points: frameworks for loaders and datasets, methods of ``ds.insitu``, and commands.

The core imports none of them before it is asked to; third parties add theirs in the same way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from insitu_xr.errors import MissingExtraError, UnknownNameError

#: ``loader.to(name)``: a function of a loader
LOADERS = "insitu_xr.adapters"
#: ``ds.insitu.to(name)``: a function of a dataset
DATASETS = "insitu_xr.dataset_adapters"
#: ``ds.insitu.name``: a function of a dataset, or a class made of one
METHODS = "insitu_xr.methods"
#: ``insitu-xr name``: a function as typer takes it
COMMANDS = "insitu_xr.commands"


def adapter(group: str, name: str, thing: str) -> Any:
    """The adapter of a name.

    Parameters
    ----------
    group : str
        Group of entry points.
    thing : str
        What is named, for messages.

    Raises
    ------
    UnknownNameError
        If no adapter of that name is installed.
    MissingExtraError
        If what it stands on is not.

    Examples
    --------
    >>> adapter(LOADERS, "abacus", "framework")
    Traceback (most recent call last):
    ...
    insitu_xr.errors.UnknownNameError: framework must be one of [...], but got 'abacus'; install an adapter ...
    """
    found = entry_points(group=group)
    if name not in found.names:
        raise UnknownNameError(
            f"{thing} must be one of {sorted(found.names)}, but got {name!r}; install an adapter for it "
            f"(entry point group {group!r})"
        )
    return loaded(found[name])


def loaded(entry: Any) -> Any:
    """What an entry point names; where a package lacks, says what to install."""
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        extras = f"[{entry.extras[0]}]" if entry.extras else ""
        raise MissingExtraError(
            f"what {entry.name!r} needs must be installed, but got no module {error.name!r}; "
            + (f"pip install insitu-xr{extras}" if extras else "install it"),
            name=error.name,
        ) from error


def method(name: str, dataset: Any) -> Any:
    """What an adapter adds to ``ds.insitu`` under a name: a method, or a namespace.

    Raises
    ------
    AttributeError
        If there is none, so that ``hasattr`` works.
    """
    found = entry_points(group=METHODS)
    if name not in found.names:
        raise AttributeError(f"ds.insitu has no attribute {name!r}; adapters add {sorted(found.names)}")
    added = loaded(found[name])
    namespace: Any = added
    return namespace(dataset) if inspect.isclass(added) else _Bound(added, dataset)


class _Bound:
    """A function with its first argument given, that shows the other ones and their documentation."""

    def __init__(self, function: Any, first: Any) -> None:
        functools.update_wrapper(self, function)
        self._function, self._first = function, first
        signature = inspect.signature(function)
        self.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(self._first, *args, **options)


def method_names() -> set[str]:
    """Names that adapters add to ``ds.insitu``."""
    return set(entry_points(group=METHODS).names)


def commands() -> Mapping[str, Any]:
    """Entry points of the commands that adapters add; nothing is imported yet."""
    return {entry.name: entry for entry in entry_points(group=COMMANDS)}
