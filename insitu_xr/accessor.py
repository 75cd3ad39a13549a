"""``ds.insitu`` and ``da.insitu``: take the arguments, delegate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Literal

import numpy.typing as npt
import xarray as xr

from insitu_xr.building import Built, build, make_loader
from insitu_xr.geometry.times import Lead
from insitu_xr.loader import Loader
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.resolving import Asked


def _arguments_of[**P, R](
    source: Callable[Concatenate[Any, P], Built],
) -> Callable[[Callable[[Any, Built], R]], Callable[Concatenate[Any, P], R]]:
    """A method that takes the arguments of ``source`` and works on what it returns."""

    def wrap(finish: Callable[[Any, Built], R]) -> Callable[Concatenate[Any, P], R]:
        @functools.wraps(finish)
        def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return finish(self, source(self, *args, **kwargs))

        returns = inspect.signature(finish).return_annotation
        method.__signature__ = inspect.signature(source).replace(return_annotation=returns)  # type: ignore[attr-defined]
        return method

    return wrap


def _build(
    self: DatasetAccessor,
    variables: Sequence[str] | str | None = None,
    leads: Sequence[Lead] | Lead | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
    statics: Sequence[str] | str = (),
    sample_dim: Hashable | Sequence[Hashable] | None = None,
    batch_size: int = 32,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    memory: int | str | None = None,
    layout: Literal["dict", "stacked"] = "dict",
    dtype: npt.DTypeLike | None = None,
    progress: bool = False,
    computed: Literal["raise", "load"] = "raise",
) -> Built:
    ds, only = self._dataset()
    if only is not None and variables is None and inputs is None and targets is None:
        variables = [only]
    asked = Asked(variables, leads, inputs, targets, statics, sample_dim, batch_size, shuffle, seed, drop_last, layout)
    return build(ds, asked, memory=memory, dtype=dtype, progress=progress, computed=computed)


class DatasetAccessor:
    """``ds.insitu``: train, infer and verify in place.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> ds = xr.Dataset({"t2m": (("step", "x"), np.zeros((6, 2), "f4"))})
    >>> ds.insitu.plan(variables=["t2m"], sample_dim="step", batch_size=4).n_batches
    2
    """

    def __init__(self, ds: xr.Dataset) -> None:
        self._ds = ds

    def _dataset(self) -> tuple[xr.Dataset, str | None]:
        """The dataset, and the variable to deliver where none is named."""
        return self._ds, None

    @_arguments_of(_build)
    def loader(self, built: Built) -> Loader:
        """Iterate the selection in batches, each stored chunk read once.

        Parameters
        ----------
        variables : sequence of str
            Variables to deliver as ``batch["name"]``, shape ``(batch, [lead,] *field dims)``.
        leads : sequence of durations, optional
            Signed times from the anchor, such as ``["-6h", "0h"]``; counts of steps where the sample dimension has
            no labels. Partners are looked up by label; anchors whose window is incomplete are dropped and counted.
        inputs, targets : dict(variables=..., leads=...), optional
            Two groups instead of ``variables``; delivered as ``batch.inputs`` and ``batch.targets``.
        statics : sequence of str, optional
            Variables without the sample dimension; read once.
        sample_dim : str or tuple of str, optional
            What to draw along; the time-like dimension by default. A tuple draws over the product.
        batch_size : int
            Samples in a batch.
        shuffle : bool
            Permute blocks of neighbouring chunks, and the samples in each; the same for the same seed and epoch.
        seed : int
            Seed of the order.
        drop_last : bool
            Leave out a last batch that is not full.
        memory : int or str, optional
            Ceiling of what the engine holds, such as ``"4GiB"``. By default 1 GiB, or what one batch needs.
        layout : {"dict", "stacked"}
            One array per variable, or one array ``(batch, channel, *grid)`` per group.
        dtype : dtype, optional
            Cast numeric values; by default the dtype that xarray shows.
        progress : bool
            Show a progress bar.
        computed : {"raise", "load"}
            What to do with dask variables on which more than indexing was done.

        Returns
        -------
        Loader

        Raises
        ------
        InsituError
            If an argument breaks a rule; before any data is read.

        Examples
        --------
        >>> import numpy as np, xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((6, 2), "f4"))},
        ...                 {"time": np.arange("2000-01-01", "2000-01-07", dtype="M8[D]").astype("M8[ns]")})
        >>> for batch in ds.insitu.loader(variables=["t2m"], leads=["0D", "1D"], batch_size=4):
        ...     print(batch["t2m"].shape)
        (4, 2, 2)
        (1, 2, 2)
        """
        return make_loader(built)

    @_arguments_of(_build)
    def plan(self, built: Built) -> ReadPlan:
        """What a loader with the same arguments will read and hold; reads no data.

        Takes the arguments of :meth:`loader`.

        Returns
        -------
        ReadPlan
            Prints as text, and as HTML in a notebook.

        Raises
        ------
        InsituError
            If an argument breaks a rule.
        """
        return built.plan


class DataArrayAccessor(DatasetAccessor):
    """``da.insitu``: the same for a single variable, which is delivered where no other is named.

    Examples
    --------
    >>> import numpy as np, xarray as xr, insitu_xr
    >>> da = xr.DataArray(np.arange(4.0), dims="step", name="t2m")
    >>> [batch["t2m"].tolist() for batch in da.insitu.loader(sample_dim="step", batch_size=3)]
    [[0.0, 1.0, 2.0], [3.0]]
    """

    def __init__(self, array: xr.DataArray) -> None:
        name = "values" if array.name is None else str(array.name)
        super().__init__(array.to_dataset(name=name))
        self._name = name

    def _dataset(self) -> tuple[xr.Dataset, str | None]:
        return self._ds, self._name


def register() -> None:
    """Register both accessors with xarray; once, when the package is imported."""
    xr.register_dataset_accessor("insitu")(DatasetAccessor)  # type: ignore[no-untyped-call]
    xr.register_dataarray_accessor("insitu")(DataArrayAccessor)  # type: ignore[no-untyped-call]
