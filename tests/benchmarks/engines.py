"""Everything that is compared, each with a function that begins an epoch of batches."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.benchmarks.cases import Case
from tests.benchmarks.floors import Floor, WarmFloor
from tests.benchmarks.layouts import Layout

#: enough to keep every store that is measured here
WARM_BYTES = 8 << 30
#: chunks along time that a shuffle block of the peer holds; its default would hold most of the larger stores
PEER_BLOCK = 2

type Array = npt.NDArray[Any]
#: begins an epoch
type Epochs = Callable[[], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a store is: a folder, or an address."""

    location: str
    layout: Layout

    @property
    def remote(self) -> bool:
        """Whether it is behind a server."""
        return self.location.startswith("http")


@dataclass(frozen=True, slots=True)
class Batch:
    """What an engine hands out, in the form that it likes."""

    samples: int
    #: positions along time, and arrays by variable, or by ``variable@lead``; neither for those that hand nothing out
    positions: Array | None = None
    arrays: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One that takes part."""

    title: str
    start: Callable[[Source, Case], Epochs]
    #: the package that it needs
    package: str | None = None
    #: what it cannot do, as (the attribute of the case that asks for it, why not)
    cannot: tuple[tuple[str, str], ...] = ()
    #: runs in the first round only: far from the others, so that one ratio tells enough
    once: bool = False

    def lacks(self, case: Case) -> str | None:
        """Why it is left out of a case, if it is."""
        for attribute, why in self.cannot:
            if getattr(case, attribute):
                return why
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return None


# -- what nothing undercuts ------------------------------------------------------------------------------------------


def start_floor(source: Source, case: Case) -> Epochs:
    folder, layout = Path(source.location), source.layout
    floor = Floor(folder, layout.names, quarter=case.quarter, copies=len(case.lead_steps))
    if case.warm:
        warm = WarmFloor(floor, dict.fromkeys(layout.names, (layout.steps, *layout.grid)))
        shuffling = np.random.default_rng(0)
        return lambda: map(Batch, warm.epoch(shuffling, case.batch_size))

    def epoch() -> Iterator[Batch]:
        floor.run()
        yield Batch(case.samples(layout))

    return epoch


def start_consumer(source: Source, case: Case) -> Epochs:
    samples, size = case.samples(source.layout), case.batch_size
    return lambda: (Batch(min(size, samples - start)) for start in range(0, samples, size))


def start_obstore(source: Source, case: Case) -> Epochs:
    """So many GETs at once and nothing else: the values are left as they came."""
    import asyncio

    from obstore.store import HTTPStore

    store = HTTPStore.from_url(source.location, client_options={"allow_http": True})
    (name,) = source.layout.names
    keys = [f"{name}/c/{step}/0/0" for step in range(source.layout.steps)]

    async def all_of_them() -> int:
        free = asyncio.Semaphore(case.inflight)

        async def get(key: str) -> int:
            async with free:
                return len(memoryview(await (await store.get_async(key)).bytes_async()))

        return sum(await asyncio.gather(*map(get, keys)))

    def epoch() -> Iterator[Batch]:
        assert asyncio.run(all_of_them()) == source.layout.nbytes
        yield Batch(source.layout.steps)

    return epoch


# -- loaders ---------------------------------------------------------------------------------------------------------


def open_with_xarray(source: Source, case: Case) -> Any:
    """The dataset that a person would hold: lazy, cut to the quarter where one is asked for."""
    import xarray as xr

    store = zarr_store(source)
    ds = xr.open_zarr(store, chunks=None, consolidated=source.remote)
    if case.quarter:
        rows, columns = source.layout.grid
        ds = ds.isel(latitude=slice(0, rows // 2), longitude=slice(0, columns // 2))
    return ds


def zarr_store(source: Source) -> Any:
    """The store as zarr takes it."""
    if not source.remote:
        return source.location
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    return ObjectStore(HTTPStore.from_url(source.location, client_options={"allow_http": True}), read_only=True)


def start_pinned(source: Source, case: Case) -> Epochs:
    """As many requests at once as the others are told, in place of finding out how many pay."""
    return start_ours(source, case, case.inflight)


def start_ours(source: Source, case: Case, inflight: int | None = None) -> Epochs:
    import insitu_xr  # noqa: F401  registers the accessor

    ds = open_with_xarray(source, case)
    arguments: dict[str, Any] = {"variables": source.layout.names, "batch_size": case.batch_size, "shuffle": True}
    if case.leads:
        arguments["leads"] = list(case.leads)
    if case.warm:
        arguments |= {"memory": WARM_BYTES, "keep": True}
    if inflight is not None:
        arguments["max_inflight"] = inflight
    kept = ds.insitu.loader(**arguments) if case.warm else None

    def epoch() -> Iterator[Batch]:
        loader = kept or ds.insitu.loader(**arguments)
        for batch in loader:
            yield Batch(len(batch), batch.positions, LeadViews(batch, case.leads))
        if kept is None:
            loader.close()

    return epoch


class LeadViews(Mapping[str, Any]):
    """Arrays of a batch by ``variable@lead``, made when they are asked for."""

    def __init__(self, batch: Any, leads: tuple[str, ...]) -> None:
        self._batch, self._leads = batch, leads

    def __getitem__(self, label: str) -> Any:
        name, _, lead = label.partition("@")
        return self._batch[name][:, self._leads.index(lead)] if lead else self._batch[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch)

    def __len__(self) -> int:
        return len(self._batch)


def start_insitubatch(source: Source, case: Case) -> Epochs:
    from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk

    options: dict[str, Any] = {"client_options": {"allow_http": True}} if source.remote else {}
    url = source.location if source.remote else Path(source.location).absolute().as_uri()
    store = obstore_store(url, **options)
    geometries = open_geometries(store, variables=source.layout.names)
    if case.leads:
        steps = dict(zip(case.leads, case.lead_steps, strict=True))
        geometries = {f"{n}@{lead}": g.shift(k) for n, g in geometries.items() for lead, k in steps.items()}
    manifest = split_by_chunk(next(iter(geometries.values())), fractions=(1.0, 0.0, 0.0))

    def make() -> InSituDataset:
        return InSituDataset(
            store,
            manifest,
            geometries,
            batch_size=case.batch_size,
            block_chunks=PEER_BLOCK,
            shuffle=True,
            max_inflight=case.inflight,
            cache_budget_bytes=WARM_BYTES if case.warm else None,
        )

    kept = make() if case.warm else None
    rows, columns = source.layout.grid[0] // 2, source.layout.grid[1] // 2

    def epoch() -> Iterator[Batch]:
        for batch in (kept or make()).train:
            arrays = batch.arrays
            if case.quarter:  # it reads whole fields
                arrays = {n: np.ascontiguousarray(a[:, :rows, :columns]) for n, a in arrays.items()}
            yield Batch(len(batch), batch.sample_indices, arrays)

    return epoch


def start_dataloader(source: Source, case: Case) -> Epochs:
    import torch

    ds = open_with_xarray(source, case)

    class Samples(torch.utils.data.Dataset):  # type: ignore[misc]  # its types are not looked at
        def __len__(self) -> int:
            return int(ds.sizes["time"])

        def __getitem__(self, k: int) -> dict[str, Any]:
            return {"position": k} | {name: ds[name].isel(time=k).values for name in source.layout.names}

    def epoch() -> Iterator[Batch]:
        for batch in torch.utils.data.DataLoader(Samples(), batch_size=case.batch_size, shuffle=True):
            yield Batch(len(batch["position"]), batch.pop("position").numpy(), batch)

    return epoch


# -- whole objects, in order: no samples are shuffled ------------------------------------------------------------------


def start_zarr(source: Source, case: Case) -> Epochs:
    import zarr

    group: Any = zarr.open_group(zarr_store(source), mode="r")
    layout, arrays = source.layout, {name: group[name] for name in source.layout.names}
    step = layout.unit * math.ceil(case.batch_size / layout.unit)

    def epoch() -> Iterator[Batch]:
        for start in range(0, layout.steps, step):
            positions = np.arange(start, min(start + step, layout.steps))
            values = {name: array[start : start + step] for name, array in arrays.items()}
            yield Batch(len(positions), positions, values)

    return epoch


def start_zarrs(source: Source, case: Case) -> Epochs:
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return start_zarr(source, case)


_READS_WHOLE = (
    ("warm", "it keeps nothing"),
    ("leads", "it has no windows"),
    ("quarter", "it is measured on whole fields"),
    ("work_ms", "it does not read ahead"),
)

ENGINES = {
    "floor": Engine("floor", start_floor, cannot=(("remote", "it reads files"),)),
    "consumer": Engine("the consumer alone", start_consumer),
    "obstore": Engine("obstore, GETs alone", start_obstore, package="obstore"),
    "ours": Engine("insitu-xr", start_ours),
    "pinned": Engine("insitu-xr, as many GETs", start_pinned),
    "insitubatch": Engine("insitubatch", start_insitubatch, package="insitubatch"),
    "zarr": Engine("zarr, in order", start_zarr, cannot=_READS_WHOLE, once=True),
    "zarrs": Engine("zarrs, in order", start_zarrs, package="zarrs", cannot=_READS_WHOLE, once=True),
    "dataloader": Engine("xarray + DataLoader", start_dataloader, package="torch", cannot=_READS_WHOLE, once=True),
}
