"""Repositories with a history of two commits, and what a loader over them must show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pandas as pd
import xarray as xr
from icechunk.xarray import to_icechunk

import insitu_xr
from insitu_xr.testing import CountingStore, assert_batches_equal
from insitu_xr.testing.oracle import partner_positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLES = ["t2m", "z", "w"]
#: hours with a gap of two
HOURS = (*range(20), *range(22, 32))
#: per variable, what is decoded alone
CHUNKS = {"t2m": (7, 4, 3), "z": (6, 1, 6, 8), "w": (2, 3, 4)}
SHARDS = {"w": (8, 6, 8)}


def weather(seed: int = 0, hours: Sequence[int] = HOURS) -> xr.Dataset:
    """Make a packed, a plain and (once stored) a sharded variable."""
    rng = np.random.default_rng(seed)
    time = pd.Timestamp("2020-01-01") + pd.to_timedelta(hours, "h")
    n = len(time)
    t2m = rng.normal(280, 5, (n, 6, 8)).round(1)
    t2m[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "y", "x"), t2m),
            "z": (("time", "level", "y", "x"), rng.normal(size=(n, 2, 6, 8)).astype("f4")),
            "w": (("time", "y", "x"), rng.normal(size=(n, 6, 8)).astype("f4")),
        },
        {"time": time, "level": [500, 850], "y": np.linspace(50, 60, 6), "x": np.arange(8.0)},
    )


ENCODING: dict[str, dict[str, Any]] = {
    "t2m": {"dtype": "i2", "scale_factor": 0.1, "add_offset": 280.0, "_FillValue": -32768, "chunks": CHUNKS["t2m"]},
    "z": {"chunks": CHUNKS["z"]},
    "w": {"chunks": CHUNKS["w"], "shards": SHARDS["w"]},
}


def create(storage: Any) -> Any:
    """Create a repository whose chunks are objects of their own, however small."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    return icechunk.Repository.create(storage, config=config)


def commit(repository: Any, ds: xr.Dataset, message: str, branch: str = "main") -> str:
    """Replace what is there."""
    session = repository.writable_session(branch)
    to_icechunk(ds, session, mode="w", encoding=ENCODING)
    return str(session.commit(message))


@dataclass(frozen=True, slots=True)
class History:
    """A repository with two commits to ``main``, the first of which is tagged ``v1``."""

    repository: Any
    snapshots: tuple[str, str]
    datasets: tuple[xr.Dataset, xr.Dataset]


def history(storage: Any) -> History:
    """Make a repository with two commits."""
    repository = create(storage)
    datasets = weather(1), weather(2)
    first = commit(repository, datasets[0], "first")
    repository.create_tag("v1", first)
    second = commit(repository, datasets[1], "second")
    return History(repository, (first, second), datasets)


def epoch_of(loader: Any) -> list[Any]:
    """Read an epoch, here or in another process."""
    return list(loader)


def opened(source: Any, **options: Any) -> xr.Dataset:
    """Open it the way users do."""
    return insitu_xr.open_dataset(source, **options)


def assert_reads(ds: xr.Dataset, store: CountingStore, *, leads: Sequence[str] | None, shuffle: bool) -> None:
    """Assert that an epoch equals what xarray shows, and that each chunk of it is read once."""
    request: Mapping[str, Any] = {"variables": VARIABLES, "leads": leads, "batch_size": 5, "seed": 1}
    with ds.insitu.loader(**request, shuffle=shuffle) as loader:
        store.reset()
        batches = epoch_of(loader)
        gets = store.data_gets
        assert len({(get.key, str(get.byte_range)) for get in gets}) == len(gets)
        whole = [get.key for get in gets if get.byte_range is None]
        shards = {get.key for get in gets if get.byte_range is not None}
        needed = touched(ds, leads)
        assert len(whole) == distinct(needed, "t2m") + distinct(needed, "z")
        assert len(shards) == distinct(needed, "w", SHARDS["w"])
        assert store.metadata_gets == []
        assert loader.plan.reads == loader.plan.chunks == sum(distinct(needed, name) for name in VARIABLES)
    assert_batches_equal(batches, ds, sample_dim="time", variables=VARIABLES, leads=leads)


def touched(ds: xr.Dataset, leads: Sequence[str] | None) -> xr.Dataset:
    """Leave out the times that no sample needs."""
    if leads is None:
        return ds
    return ds.isel(time=sorted({step for row in partner_positions(ds, "time", leads).values() for step in row}))


def distinct(ds: xr.Dataset, name: str, chunks: tuple[int, ...] | None = None) -> int:
    """Count the chunks that a selection touches, from labels that are the positions in the whole dataset."""
    whole = weather()
    cells = 1
    for dim, size in zip(whole[name].dims, chunks or CHUNKS[name], strict=True):
        positions = whole.indexes[dim].get_indexer(ds.indexes[dim])
        cells *= len({int(position) // size for position in positions})
    return cells
