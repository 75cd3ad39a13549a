"""Loaders, plans, readers and splits of whatever holds variables: the arguments of people, and what they mean."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from insitu_xr.building import Built, build, make_loader, make_reader, make_splits
from insitu_xr.geometry.times import Lead
from insitu_xr.loader import Loader
from insitu_xr.plan.manifest import Manifest
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.reader import Reader
from insitu_xr.resolving import Asked, Drawing, SplitAsked
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.sampling import sampled
from insitu_xr.sources import Source
from insitu_xr.tracing.identity import source_of_all
from insitu_xr.transforming import Transform


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
    self: Reading,
    variables: Sequence[str] | str | None = None,
    leads: Sequence[Lead] | Mapping[str, Any] | Lead | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
    statics: Sequence[str] | str = (),
    sample_dim: Hashable | Sequence[Hashable] | None = None,
    anchors: Any = None,
    every: Lead | None = None,
    at: str | Sequence[str] | None = None,
    exclude: Any = None,
    time_tolerance: Lead | None = None,
    manifest: Manifest | None = None,
    split: str | None = None,
    batch_size: int = 32,
    shuffle: bool | Literal["block", "global"] = False,
    shuffle_window: int | str | None = None,
    weights: xr.DataArray | npt.ArrayLike | None = None,
    sampler: Callable[[np.random.Generator, int], npt.NDArray[np.int64]] | None = None,
    seed: int = 0,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    partial: Literal["drop", "pad"] = "drop",
    memory: int | str | None = None,
    layout: Literal["dict", "stacked"] = "dict",
    dtype: npt.DTypeLike | None = None,
    progress: bool = False,
    computed: Literal["raise", "load"] = "raise",
    absent: Literal["keep", "drop"] = "keep",
    max_inflight: int | None = None,
    hedge: bool = False,
    keep: bool | None = None,
    batch_transforms: Sequence[Transform] | Transform = (),
) -> Built:
    source, only = self._source()
    if only is not None and variables is None and inputs is None and targets is None:
        variables = [only]
    asked = Asked(variables, leads, inputs, targets, statics, sample_dim, batch_size, shuffle, seed, drop_last, layout)
    drawing = Drawing(shuffle_window, weights, sampler, rank, world_size, partial)
    asked = replace(asked, manifest=manifest, split=split, drawing=drawing)
    asked = replace(asked, anchors=anchors, every=every, at=at, exclude=exclude, time_tolerance=time_tolerance)
    options: dict[str, Any] = {"dtype": dtype, "progress": progress, "computed": computed, "absent": absent}
    options["transforms"] = batch_transforms
    return build(source, asked, memory=memory, **options, max_inflight=max_inflight, hedge=hedge, keep=keep)


class Reading:
    """Loaders, plans, readers and splits of whatever is read."""

    def _source(self) -> tuple[xr.Dataset | Catalog, str | None]:
        """What is read, and the variable to deliver where none is named."""
        raise NotImplementedError

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
        anchors : selection, or dict of dimension to selection, optional
            Which labels are anchors: a slice or labels as ``ds.sel`` understands them, a boolean mask, or a callable
            that is given the index of the labels, such as ``lambda t: t.month.isin([6, 7, 8])``. All by default.
        every : duration, optional
            Keep anchors that lie a multiple of it after the first one.
        at : str or sequence of str, optional
            Keep anchors at these times of day, such as ``["00:00", "12:00"]``.
        exclude : selection or sequence of them, optional
            Labels that no window may touch.
        time_tolerance : duration, optional
            Take the nearest label within it as partner, for labels that are not exact. Exact labels by default.
        manifest : Manifest, optional
            What :meth:`split` made, or ``plan.manifest``. Refused if the labels or the stores are not those it was
            made on.
        split : str, optional
            Name of one of its splits: an anchor is drawn if every label of its window belongs to it.
        batch_size : int
            Samples in a batch.
        shuffle : {False, True, "block", "global"}
            "block" (or True) permutes runs of neighbouring chunks and then the samples within blocks of a few runs;
            "global" permutes all samples, which may read chunks several times. The same for the same seed and epoch.
        shuffle_window : int or str, optional
            Samples that a block mixes, or the decoded bytes of its chunks, such as ``"512MiB"``; by default at least
            two batches and two runs.
        weights : array or DataArray, optional
            One number per label of the sample dimension: how often it is drawn, relative to others. An epoch then
            draws as many samples as there are anchors, with replacement. A DataArray is aligned by label.
        sampler : callable, optional
            Draws the order itself: ``sampler(rng, n)`` gives n numbers of anchors, each from 0 to n - 1 (in the order
            of their labels); ``rng`` is a numpy Generator that depends on the seed and the epoch alone.
        seed : int
            Seed of the order.
        drop_last : bool
            Leave out a last batch that is not full.
        rank, world_size : int
            Take the rank-th of ``world_size`` disjoint parts of every epoch, all with the same number of steps. Where
            neither is given, adapters such as ``loader.to("torch")`` take those of the process.
        partial : {"drop", "pad"}
            Where the anchors cannot be divided equally: leave the last ones of the order out, or repeat some from its
            start and flag them in ``batch.padded``.
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
        absent : {"keep", "drop"}
            What to do with anchors of which a stretch of data was never written: read the fill value as xarray does,
            or drop them, counted for each variable. To know, the keys of the store are listed once.
        max_inflight : int, optional
            Reads under way at once in a remote store. By default it is found while reading: more for as long as that
            brings more, fewer when the store refuses some (429, 503).
        hedge : bool
            Ask a remote store a second time for what takes longer than nearly all reads, and take what comes first; at
            most one read in twenty.
        keep : bool, optional
            Keep decoded chunks for the next epoch as far as ``memory`` allows. True keeps from the first epoch on; with
            False no memory is used for the sake of the next epoch. By default what comes from a remote store is kept
            from the first epoch on, and what can be read without waiting from the second, since only then is it certain
            that there are several.
        batch_transforms : sequence of callables, optional
            Functions of the whole batch, carried out one after another where batches are delivered. Each returns
            ``batch.replaced(arrays)``, or None where it changed the arrays in place. One that changes a shape or dtype
            says so by a method ``output(template)``, which is given and returns both by (group, variable).

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

    def reader(
        self,
        variables: Sequence[str] | str | None = None,
        *,
        sample_dim: Hashable | Sequence[Hashable] | None = None,
        statics: Sequence[str] | str = (),
        memory: int | str | None = None,
        dtype: npt.DTypeLike | None = None,
        computed: Literal["raise", "load"] = "raise",
        max_inflight: int | None = None,
        hedge: bool = False,
    ) -> Reader:
        """Read samples by label, in any order; for those whose next request is not known, or known in part.

        Parameters
        ----------
        variables : sequence of str, optional
            Variables to read; by default all that have the sample dimension.
        sample_dim, statics, dtype, computed, max_inflight, hedge
            As for :meth:`loader`.
        memory : int or str, optional
            Ceiling of what is held to be used again or read ahead, such as ``"4GiB"``; what a read returns belongs to
            its caller. By default 1 GiB, or what one chunk of each variable needs.

        Returns
        -------
        Reader

        Raises
        ------
        InsituError
            If an argument breaks a rule; before any data is read.

        Examples
        --------
        >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(6.0).reshape(3, 2))},
        ...                 {"time": pd.date_range("2000-01-01", periods=3)})
        >>> with ds.insitu.reader() as reader:
        ...     reader.read(["2000-01-03", "2000-01-01"])["t2m"].tolist()
        [[4.0, 5.0], [0.0, 1.0]]
        """
        source, only = self._source()
        if variables is None:
            variables = [only] if only is not None else sampled(Catalog.of(source), sample_dim, statics)
        asked = Asked(variables, statics=statics, sample_dim=sample_dim, batch_size=1)
        options: dict[str, Any] = {"dtype": dtype, "computed": computed, "max_inflight": max_inflight, "hedge": hedge}
        return make_reader(source, asked, memory=memory, **options)

    @property
    def source(self) -> Source:
        """Where the data is stored, and which version of it this is.

        A mapping of facts without credentials: ``kind``, ``url``, for Icechunk ``snapshot`` and ``branch`` or ``tag``,
        else evidence of the version such as ``etag``, ``last_modified`` or ``mtime`` of the root metadata. A dataset of
        several stores has them in ``source["sources"]``. Remote stores that insitu_xr did not open are asked once.

        Examples
        --------
        >>> import numpy as np, xarray as xr, insitu_xr
        >>> xr.Dataset({"t2m": ("time", np.zeros(3))}).insitu.source.kind
        'memory'
        """
        catalog = Catalog.of(self._source()[0])
        return source_of_all(catalog[name] for name in catalog.names)

    def split(
        self,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        *,
        fractions: Sequence[float] | Mapping[str, float] | None = None,
        by: Literal["time", "block"] = "time",
        block: Any = None,
        gap: Any = None,
        seed: int = 0,
        variables: Sequence[str] | str | None = None,
        leads: Sequence[Lead] | Mapping[str, Any] | Lead | None = None,
        inputs: Mapping[str, Any] | None = None,
        targets: Mapping[str, Any] | None = None,
        sample_dim: Hashable | Sequence[Hashable] | None = None,
        time_tolerance: Lead | None = None,
        **named: Any,
    ) -> Manifest:
        """Name splits of the labels, of which no two share one; reads no data.

        Exact to the label, whatever the chunks. A loader with ``manifest=`` and ``split=`` draws the anchors whose
        whole window lies in its split, so that no input or target is used by two splits.

        Parameters
        ----------
        train, val, test, **named : slice, label, list of both, boolean mask, or callable, optional
            Labels of a split, as in ``ds.sel``: ``slice("1979", "2015")`` includes both years, ``"2018"`` is the year.
            A callable gets the index of the labels. Any other name will do as well.
        fractions : sequence of up to three numbers, or dict of name to number, optional
            Shares of the labels that no other split names, in order; of train, val and test for a sequence.
        by : {"time", "block"}
            How fractions are dealt out: each as one stretch in the order of labels, or in blocks drawn by ``seed``.
        block : int or duration, optional
            Length of a block: a number of labels, or a duration. By default a tenth of the smallest share, or longer
            where the gap or the leads take much of it.
        gap : duration, or number of steps where there are no labels
            Labels within this distance of a label of another split belong to none. By default 0; for a forecast that
            is split along its init times, the longest lead time, so that no valid time is used by two splits.
        seed : int
            Seed of the blocks.
        variables, leads, inputs, targets, sample_dim, time_tolerance
            As for :meth:`loader`. With leads, every split is checked to hold a whole window.

        Returns
        -------
        Manifest
            Small, and kept as JSON.

        Raises
        ------
        InsituError
            If splits share a label, or one is empty, or an argument breaks a rule.

        Examples
        --------
        >>> import numpy as np, pandas as pd, xarray as xr, insitu_xr
        >>> ds = xr.Dataset({"t2m": ("time", np.zeros(366, "f4"))}, {"time": pd.date_range("2000-01-01", periods=366)})
        >>> manifest = ds.insitu.split(train=slice("2000-01", "2000-10"), val=slice("2000-11", "2000-12"), gap="10D")
        >>> manifest
        <insitu_xr.Manifest>
          axis     366 labels of 'time' from 2000-01-01 to 2000-12-31
          train    295 labels, 2000-01-01 to 2000-10-21
          val      51 labels, 2000-11-11 to 2000-12-31
          of       t2m
        >>> ds.insitu.plan(leads=["0D", "5D"], variables=["t2m"], manifest=manifest, split="val").anchors_kept
        46
        """
        source, only = self._source()
        if only is not None and variables is None and inputs is None and targets is None:
            variables = [only]
        asked = Asked(variables, leads, inputs, targets, sample_dim=sample_dim, time_tolerance=time_tolerance)
        selections = {"train": train, "val": val, "test": test, **named}
        return make_splits(source, asked, SplitAsked(selections, fractions, by, block, gap, seed))
