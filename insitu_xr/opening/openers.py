"""What adapters register so that `open_dataset` opens more than Zarr: a name or an object becomes a zarr store.

An opener is an object of a module, which must import nothing heavy before it is asked to open. Those of this
distribution are known by name; others are found in the entry-point group ``insitu_xr.openers``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import xarray as xr
from zarr.abc.store import Store

from insitu_xr.errors import MissingExtraError, RequestError
from insitu_xr.sources import without_secrets

GROUP = "insitu_xr.openers"
#: the adapters of this distribution, so that it need not be installed to find them
OURS = ("icechunk", "arraylake", "netcdf")


class Opener(Protocol):
    """Turns names and objects of one kind into stores.

    Attributes
    ----------
    name : str
        What it opens, for messages.
    schemes : collection of str
        Schemes of the URLs it opens: ``"icechunk"`` stands for ``icechunk://`` and for every ``icechunk+...://``.
    extra : str
        The extra of this distribution that brings what it needs, or "".
    options : collection of str
        Keyword arguments of `open_dataset` that are its own.
    """

    name: str
    schemes: Collection[str]
    extra: str
    options: Collection[str]

    def claims(self, source: Any) -> bool:
        """Whether it opens an object, or a path, URL or list of them without its scheme; looks at names alone."""
        ...

    def open(self, source: Any, *, storage_options: Mapping[str, Any], **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """Open a source.

        Returns
        -------
        store
            A zarr store, read-only; or something that another opener claims; or a Dataset, which is taken as it is.
        source : mapping
            Facts that name the data, without secrets: ``kind``, ``url``, and if known ``snapshot``, ``branch``, ...
        """
        ...


@functools.cache
def openers() -> tuple[Opener, ...]:
    """All openers, those of this distribution first."""
    found: dict[str, Opener] = {}
    for name in OURS:
        try:
            module = importlib.import_module(f"insitu_xr_adapters.{name}")
        except ModuleNotFoundError as error:
            # Only the adapter itself may be absent: it is a package of its own in some installations.
            if not str(error.name).startswith("insitu_xr_adapters"):
                raise
            continue
        if (opener := getattr(module, "opener", None)) is not None:
            found[name] = opener
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in found and entry.name not in OURS:
            found[entry.name] = entry.load()
    return tuple(found.values())


def by_scheme(scheme: str) -> Opener | None:
    """The opener of a scheme."""
    return next((o for o in openers() if scheme in o.schemes or scheme.partition("+")[0] in o.schemes), None)


def claiming(source: Any) -> Opener | None:
    """The first opener that claims a source."""
    return next((opener for opener in openers() if opener.claims(source)), None)


def known_schemes() -> list[str]:
    """The schemes of all openers."""
    return [scheme for opener in openers() for scheme in opener.schemes]


def open_with(
    opener: Opener, source: Any, storage_options: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Let an opener open a source, and another one what it makes of it, until it is a store or a Dataset.

    Returns
    -------
    content
        A zarr store, or a Dataset.
    facts : dict
        What names the data.
    rest : dict
        Options that no opener took.
    """
    own = {name: value for name, value in options.items() if name in opener.options}
    rest = {name: value for name, value in options.items() if name not in opener.options}
    made = _opened(opener, source, storage_options, own)
    content, facts = made if isinstance(made, tuple) else (made, {})
    if isinstance(content, xr.Dataset | Store):
        return content, dict(facts), rest
    following = claiming(content)
    if following is None:
        raise TypeError(f"opener {opener.name!r} must make a zarr store, but made a {type(content).__qualname__}")
    content, inner, left = open_with(following, content, {}, options)
    return content, {**inner, **facts}, {name: value for name, value in left.items() if name in rest}


def _opened(opener: Opener, source: Any, storage_options: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    try:
        return opener.open(source, storage_options=storage_options, **own)
    except ModuleNotFoundError as error:
        if not opener.extra:
            raise
        raise MissingExtraError(
            f"{opener.name} must be installed to open {shown(source)}, but got no module {error.name!r}; "
            f"pip install insitu-xr[{opener.extra}]",
            name=error.name,
        ) from error


def shown(source: Any) -> str:
    """A source for messages.

    Examples
    --------
    >>> shown("https://me:secret@host/a.zarr?sig=abc"), shown([Path("a.nc"), Path("b.nc")])
    ("'https://host/a.zarr'", "['a.nc', ... 2 in all]")
    """
    if isinstance(source, str | Path):
        return repr(without_secrets(str(source)))
    if isinstance(source, list | tuple) and source:
        return f"[{shown(source[0])}, ... {len(source)} in all]"
    return type(source).__qualname__


def refuse(source: Any, ours: Iterable[str]) -> RequestError:
    """The error for what nothing opens."""
    return RequestError(
        f"source must be a path, a URL, a zarr store, group or array, or what an adapter opens, but got "
        f"{shown(source)}; schemes are {', '.join([*ours, *known_schemes()])}"
    )
