"""The datasets that a loader reads, and their variables under the names that batches use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from insitu_xr.errors import RequestError, UnknownNameError


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """One dataset, or several that are joined along a dimension.

    Variables of joined datasets are named ``"dataset/variable"``, or by the variable alone where only one has it.

    Attributes
    ----------
    datasets : mapping of name to Dataset
        The first one holds the anchors; the name of a single one is "".
    on : str or None
        The dimension along which they are aligned by label.

    Examples
    --------
    >>> a, b = xr.Dataset({"t2m": ("time", [1.0])}), xr.Dataset({"t2m": ("time", [2.0]), "ir": ("time", [3.0])})
    >>> both = Catalog({"era5": a, "sat": b}, "time")
    >>> both.names, both.home("ir"), float(both["sat/t2m"][0])
    (['era5/t2m', 'sat/t2m', 'sat/ir'], 'sat', 2.0)
    """

    datasets: Mapping[str, xr.Dataset]
    on: str | None = None
    #: those that were asked for: xarray makes an array of its dataset anew each time, which takes longer than its use
    _arrays: dict[str, xr.DataArray] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, source: xr.Dataset | Catalog) -> Catalog:
        """A catalog of one dataset, or the catalog itself."""
        return source if isinstance(source, Catalog) else cls({"": source})

    @property
    def primary(self) -> xr.Dataset:
        """The dataset whose labels are the anchors."""
        return next(iter(self.datasets.values()))

    @property
    def first(self) -> str:
        """The name of that dataset."""
        return next(iter(self.datasets))

    @property
    def names(self) -> list[str]:
        """Names of all data variables."""
        return [f"{home}/{n}" if home else str(n) for home, ds in self.datasets.items() for n in ds.data_vars]

    def home(self, name: str) -> str:
        """The dataset that a variable is in.

        Raises
        ------
        UnknownNameError
            If there is none, or several.
        """
        return self._find(name, "variable")[0]

    def check(self, name: str, thing: str) -> tuple[str, str]:
        """The dataset that a variable is in, and its name there; refuses what no dataset has, or several have.

        Raises
        ------
        UnknownNameError
            Names what there is.
        """
        return self._find(name, thing)

    def _find(self, name: str, thing: str) -> tuple[str, str]:
        if list(self.datasets) == [""]:
            found = [("", name)] if name in self.primary.variables else []
        else:
            home, _, variable = name.partition("/")
            qualified = home in self.datasets and variable in self.datasets[home].variables
            bare = [(other, name) for other, ds in self.datasets.items() if name in ds.data_vars]
            found = [(home, variable)] if qualified else bare
        if len(found) != 1:
            rule = "variables of the dataset" if list(self.datasets) == [""] else "variables of one of the datasets"
            several = f", which {[home for home, _ in found]} have" if found else ""
            raise UnknownNameError(f"{thing} must be {rule}, but got {name!r}{several}; there are {self.names}")
        return found[0]

    def __getitem__(self, name: str) -> xr.DataArray:
        if name not in self._arrays:
            home, variable = self._find(name, "variable")
            self._arrays[name] = self.datasets[home][variable].rename(name)
        return self._arrays[name]

    def dataset_of(self, name: str) -> xr.Dataset:
        """The dataset that a variable is in."""
        return self.datasets[self.home(name)]

    def copy(self) -> Catalog:
        """A copy of its own, so that nothing the caller does to the datasets later changes it."""
        return Catalog({home: ds.copy(deep=False) for home, ds in self.datasets.items()}, self.on)


def join(datasets: Any, on: str) -> Catalog:
    """Check datasets that are to be joined.

    Raises
    ------
    RequestError, UnknownNameError
        If there are none, a name is unfit, or a dataset does not have the dimension.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise RequestError(
            f"datasets must be a dict of at least one name and dataset, but got {type(datasets).__name__}; give "
            "{'name': dataset, ...}"
        )
    for name, ds in datasets.items():
        if not isinstance(ds, xr.Dataset):
            raise RequestError(
                f"dataset {name!r} must be an xarray.Dataset, but got {type(ds).__name__}; convert it, e.g. with "
                "da.to_dataset()"
            )
        if not isinstance(name, str) or not name or "/" in name:
            raise RequestError(f"name of a dataset must be text without '/', but got {name!r}; rename it")
        if on not in ds.dims:
            raise UnknownNameError(
                f"on must be a dimension of every dataset, but {name!r} does not have {on!r}; it has "
                f"{sorted(map(str, ds.dims))}"
            )
        if len(datasets) > 1 and on not in ds.coords:
            raise RequestError(
                f"dimension {on!r} must have labels to be joined on, but that of {name!r} has none; assign them"
            )
    return Catalog(dict(datasets), on)
