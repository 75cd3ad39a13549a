"""Where a source comes from: a dataset, or what names one, and which version of it every process reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

import insitu_xr
from insitu_xr.errors import RequestError


@dataclass(frozen=True, slots=True)
class Origin:
    """What a source is opened from.

    Attributes
    ----------
    source : Dataset, str, path, or what `insitu_xr.open_dataset` opens
        The dataset, or where it is.
    groups : tuple of str or None
        Groups of the store, merged.
    options : mapping
        What else `insitu_xr.open_dataset` is given.

    Examples
    --------
    >>> Origin.of(None, repo="earth/era5", branch="main").source
    'arraylake://earth/era5'
    """

    source: Any
    groups: tuple[str | None, ...] = (None,)
    options: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        url: str | None = None,
        repo: str | None = None,
        group: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Origin:
        """Check what a caller gave.

        Raises
        ------
        RequestError
            If it is not exactly one source, or a dataset with options of opening.
        """
        given = {"source": source, "url": url, "repo": repo}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise RequestError(
                f"a source must be given as one of source, url and repo, but got {named or 'none'}; give one"
            )
        options = {name: value for name, value in options.items() if value is not None}
        groups = (group,) if group is None or isinstance(group, str) else tuple(group)
        if isinstance(source, xr.Dataset | xr.DataArray) and (options or groups != (None,)):
            raise RequestError(
                f"options must be given with what is to be opened, but got {sorted(options) or 'group'} with a "
                f"{type(source).__name__}; leave them out"
            )
        if repo is not None:
            source = repo if "://" in repo else f"arraylake://{repo}"
        return cls(url if url is not None else source, groups, options)

    def open(self) -> xr.Dataset:
        """The dataset, opened lazily."""
        if isinstance(self.source, xr.Dataset):
            return self.source
        if isinstance(self.source, xr.DataArray):
            return self.source.to_dataset(name="values" if self.source.name is None else self.source.name)
        opened = [insitu_xr.open_dataset(self.source, group=g, **(self.options or {})) for g in self.groups]
        if len(opened) == 1:
            return opened[0]
        try:
            return xr.merge(opened, join="exact", compat="override", combine_attrs="drop_conflicts")
        except (ValueError, xr.MergeError) as error:
            raise RequestError(
                f"groups must share their coordinates, but {list(self.groups)} do not ({error}); make a source of each"
            ) from error

    def pinned(self, ds: xr.Dataset) -> Origin:
        """The origin of this very version, for other processes: a name with its snapshot, or the dataset itself."""
        if not isinstance(self.source, str):
            return Origin(ds)
        snapshot = ds.insitu.source.get("snapshot")
        if snapshot is None:
            return self
        rest = {k: v for k, v in (self.options or {}).items() if k not in ("branch", "tag", "as_of", "snapshot")}
        return replace(self, options={**rest, "snapshot": snapshot})
