"""The IterableDataset under DataLoader and StatefulDataLoader, and the ranks that it takes from the process."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr import Loader
from insitu_xr.errors import RequestError
from insitu_xr_adapters.torch import dataset as adapter

torch = pytest.importorskip("torch")
#: torchdata calls what torch has deprecated since
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
N = 30
OPTIONS: dict[str, Any] = {"variables": ["t"], "batch_size": 4, "shuffle": True, "seed": 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("torch") / "steps.zarr"
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    ds = xr.Dataset({"t": (("time", "x"), np.arange(N * 3, dtype="f4").reshape(N, 3))}, {"time": times})
    ds.to_zarr(where, consolidated=False, encoding={"t": {"chunks": (5, 3)}})
    return where


@pytest.fixture(autouse=True)
def single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def loader(path: Path, **options: Any) -> Loader:
    made: Loader = insitu_xr.open_dataset(path).insitu.loader(**{**OPTIONS, **options})
    return made


def positions(batches: Any) -> list[list[int]]:
    return [batch.positions.tolist() for batch in batches]


def stateful(source: Loader, **options: Any) -> Any:
    data = pytest.importorskip("torchdata.stateful_dataloader")
    return data.StatefulDataLoader(source.to("torch"), batch_size=None, **options)


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def test_a_data_loader_gives_the_batches(path: Path) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    with loader(path) as source:
        expected = [positions(source) for _ in range(2)]
        source.set_epoch(0)
        batches = source.to("torch")
        assert isinstance(batches, IterableDataset)
        under = DataLoader(batches, batch_size=None)
        assert len(under) == len(source)
        assert [positions(under) for _ in range(2)] == expected


def test_an_iterator_that_is_thrown_away_unused_counts_for_nothing(path: Path) -> None:
    with loader(path) as source:
        batches = source.to("torch")
        expected = positions(batches)
        batches.set_epoch(0)
        for _ in range(3):
            iter(batches)
        assert positions(batches) == expected


def test_a_stateful_data_loader_goes_on_at_every_batch(path: Path) -> None:
    with loader(path) as source:
        whole = stateful(source)
        total = 2 * len(whole) + 3
        running, states, expected = endless(whole), [], []
        for _ in range(total):
            expected.append(next(running).positions.tolist())
            states.append(json.loads(json.dumps(whole.state_dict())))
    for number in (1, 4, len(whole) - 1, len(whole), len(whole) + 1, 2 * len(whole)):
        consumed = number
        with loader(path) as source:
            resumed = stateful(source)
            resumed.load_state_dict(states[consumed - 1])
            # The rest of the epoch that was left in the middle, and no more.
            rest = -consumed % len(resumed)
            assert positions(resumed) == expected[consumed : consumed + rest]
            consumed += rest
            found = endless(resumed)
            assert [next(found).positions.tolist() for _ in range(total - consumed)] == expected[consumed:]


def test_the_state_of_a_worker_is_that_of_its_share(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker process, which tests/test_sharding.py starts: torch says there which of how many it is."""
    with loader(path) as source:
        expected = positions(source)
        source.set_epoch(0)
        blob, found = pickle.dumps(source.to("torch")), []
    for number in range(2):
        info = torch.utils.data._utils.worker.WorkerInfo(id=number, num_workers=2, seed=0, dataset=None)
        monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)
        here, resumed = pickle.loads(blob), pickle.loads(blob)
        here._hint = resumed._hint = False
        epoch = iter(here)
        found += [next(epoch).positions.tolist() for _ in range(2)]
        resumed.load_state_dict(json.loads(json.dumps(here.state_dict())))
        rest = positions(epoch)
        assert positions(resumed) == rest
        found += rest
        assert len(here._shares) == len(resumed._shares) == 1
    assert found == expected


def test_the_hint_goes_to_the_first_copy_alone(path: Path) -> None:
    with loader(path) as source:
        batches = source.to("torch")
        copies = [pickle.loads(pickle.dumps(batches)) for _ in range(2)]
        assert [copy._hint for copy in copies] == [True, False]
        with pytest.warns(UserWarning, match="num_workers=0 is the fast way"):
            copies[0]._check_worker()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for copy in copies:
                copy._check_worker()
        assert adapter.HINT.endswith("the fast way")


def test_workers_do_not_copy_to_devices(path: Path) -> None:
    with loader(path) as source, pytest.raises(RequestError, match="device must be left out for the workers"):
        source.to("torch", device="meta")._check_worker()


def test_batches_pickle_with_their_tensors_and_labels(path: Path) -> None:
    with loader(path) as source:
        for batch in source.to(
            "torch", device_transforms=[lambda b: b.replaced({k: t + 1 for k, t in b.arrays.items()})]
        ):
            copy = pickle.loads(pickle.dumps(batch))
            assert torch.equal(copy["t"], batch["t"])
            assert copy["t"].data_ptr() == copy.source["t"].ctypes.data
            xr.testing.assert_identical(copy.to_xarray(), batch.to_xarray())
            assert copy.to("meta")["t"].device.type == "meta"


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_come_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    found: list[int] = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        with loader(path) as source, loader(path, rank=rank, world_size=world) as given:
            batches = source.to("torch")
            assert len(batches) == len(given) < len(loader(path))
            expected = positions(given)
            assert positions(batches) == expected
            assert repr(source.plan) == repr(given.plan)
            found += [k for batch in expected for k in batch]
    assert sorted(found) == list(range(N)), "each anchor once across ranks"


def test_ranks_that_were_given_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader(path, rank=0, world_size=1) as source:
        assert len(source.to("torch")) == len(source) == 8
    with loader(path, world_size=3) as source:
        source.to("torch")
        assert (source.plan.request.shard.rank, source.plan.request.shard.world_size) == (0, 3)


def test_an_environment_without_sense_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader(path) as source, pytest.raises(RequestError, match="RANK and WORLD_SIZE must be whole numbers"):
        source.to("torch")
    monkeypatch.setenv("RANK", "2")
    with loader(path) as source, pytest.raises(RequestError, match="rank must be below world_size, 2, but got 2"):
        source.to("torch")
