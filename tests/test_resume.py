"""A loader that resumes gives what the uninterrupted one would have given, byte for byte, and reads no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr import Batch, Loader
from insitu_xr.errors import RequestError
from insitu_xr.testing.stores import CountingStore

N = 22
EPOCHS = 3

CASES: list[dict[str, Any]] = [
    {},
    {"shuffle": True},
    {"shuffle": "global", "drop_last": True},
    {"shuffle": True, "shuffle_window": 3, "leads": ["-6h", "12h"]},
    {"shuffle": True, "rank": 1, "world_size": 3, "partial": "pad"},
    {"rank": 0, "world_size": 2},
    {"shuffle": True, "weights": np.arange(N) % 3, "layout": "stacked"},
    {"sampler": lambda rng, n: rng.permutation(n)},
]


def dataset(start: str = "2000-01-01", n: int = N) -> xr.Dataset:
    times = np.datetime64(start, "ns") + np.arange(n) * np.timedelta64(6, "h")
    fields = np.arange(n * 6, dtype="f4").reshape(n, 2, 3)
    variables = {"t": (("time", "y", "x"), fields), "u": (("time", "y", "x"), -fields)}
    return xr.Dataset(variables, {"time": times, "y": [0.0, 1.0], "x": np.arange(3)})


def write(ds: xr.Dataset, store: Any) -> None:
    ds.to_zarr(store, consolidated=False, encoding={"t": {"chunks": (3, 2, 3)}, "u": {"chunks": (2, 1, 3)}})


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    made = MemoryStore()
    write(dataset(), made)
    return made


def loader(store: Any, **options: Any) -> Loader:
    ds = xr.open_zarr(store, chunks=None, consolidated=False)
    made: Loader = ds.insitu.loader(**{"variables": ["t", "u"], "batch_size": 4, "seed": 5, **options})
    return made


def endless(source: Loader) -> Generator[Batch]:
    while True:
        yield from source


def content(batch: Batch) -> Any:
    arrays = {key: (array.shape, array.dtype.str, array.tobytes()) for key, array in batch.arrays.items()}
    return batch.positions.tolist(), batch.padded.tolist(), arrays


@pytest.mark.parametrize("options", CASES, ids=lambda options: " ".join(options) or "plain")
def test_resuming_at_every_batch_goes_on_as_if_nothing_happened(store: MemoryStore, options: dict[str, Any]) -> None:
    states: list[str] = []
    with loader(store, **options) as whole:
        total = EPOCHS * len(whole)
        batches = endless(whole)
        states.append(json.dumps(whole.state_dict()))
        expected = []
        for _ in range(total):
            expected.append(content(next(batches)))
            states.append(json.dumps(whole.state_dict()))
    for consumed, state in enumerate(states[: total - 1]):
        with loader(store, **options) as resumed:
            resumed.load_state_dict(json.loads(state))
            assert json.dumps(resumed.state_dict()) == state
            found = endless(resumed)
            assert [content(next(found)) for _ in range(total - consumed)] == expected[consumed:]
            found.close()


def test_the_state_counts_what_was_delivered_and_not_what_was_read_ahead(store: MemoryStore) -> None:
    with loader(store) as source:
        epoch = iter(source)
        assert [source.state_dict()[k] for k in ("epoch", "batch")] == [0, 0]
        for consumed in range(1, 4):
            next(epoch)
            assert [source.state_dict()[k] for k in ("epoch", "batch")] == [0, consumed]
        list(epoch)
        assert [source.state_dict()[k] for k in ("epoch", "batch")] == [1, 0]


def test_a_new_process_goes_on(tmp_path: Path) -> None:
    write(dataset(), tmp_path / "data.zarr")
    script = (
        "import sys, json, insitu_xr\n"
        "ds = insitu_xr.open_dataset(sys.argv[1])\n"
        "loader = ds.insitu.loader(variables=['t'], batch_size=4, shuffle=True, seed=1)\n"
        "loader.load_state_dict(json.load(sys.stdin))\n"
        "print(json.dumps([[batch.positions.tolist() for batch in loader] for _ in range(2)]))\n"
    )
    options = {"variables": ["t"], "batch_size": 4, "shuffle": True, "seed": 1}
    with insitu_xr.open_dataset(tmp_path / "data.zarr").insitu.loader(**options) as source:
        epoch = iter(source)
        next(epoch)
        next(epoch)
        state = json.dumps(source.state_dict())
        expected = [[batch.positions.tolist() for batch in rest] for rest in (epoch, source)]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data.zarr")],
        input=state,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == expected


def test_chunks_of_skipped_batches_alone_are_not_read(store: MemoryStore) -> None:
    counting = CountingStore(store)
    with loader(counting, variables=["t"], batch_size=3) as source:
        source.load_state_dict({**source.state_dict(), "batch": 5})
        counting.reset()
        assert [batch.positions.tolist() for batch in source] == [[15, 16, 17], [18, 19, 20], [21]]
        assert sorted(get.key for get in counting.data_gets) == [f"t/c/{k}/0/0" for k in (5, 6, 7)]
        assert source.stats.reads == 3


def test_the_state_is_small(store: MemoryStore) -> None:
    assert len(json.dumps(loader(store, shuffle=True).state_dict())) < 2000


def test_a_state_is_a_copy(store: MemoryStore) -> None:
    source = loader(store)
    source.state_dict()["fingerprint"].clear()
    assert source.state_dict()["fingerprint"]["batch_size"] == 4


def test_set_epoch_keeps_the_place_in_the_epoch_that_resumes(store: MemoryStore) -> None:
    with loader(store, shuffle=True) as source:
        expected = [[batch.positions.tolist() for batch in source] for _ in range(3)]
        state = {**source.state_dict(), "epoch": 1, "batch": 2}
        source.load_state_dict(state)
        for number, skipped in ((1, 2), (2, 0)):
            source.set_epoch(number)
            assert [batch.positions.tolist() for batch in source] == expected[number][skipped:]
        source.load_state_dict(state)
        source.set_epoch(2)
        assert [batch.positions.tolist() for batch in source] == expected[2]
        source.set_epoch(1)
        assert [batch.positions.tolist() for batch in source] == expected[1]


def test_a_share_resumes_its_own_batches(store: MemoryStore) -> None:
    with loader(store, shuffle=True) as whole, whole.share(1, 2) as share:
        expected = [batch.positions.tolist() for batch in share]
        share.set_epoch(0)
        epoch = iter(share)
        next(epoch)
        state = share.state_dict()
        with whole.share(1, 2) as again:
            again.load_state_dict(state)
            assert [batch.positions.tolist() for batch in again] == expected[1:]
        with pytest.raises(RequestError, match=r"batches must be what it was when the state was saved, \[3, 6\], but"):
            whole.load_state_dict(state)


def test_shares_of_a_loader_that_resumes_give_the_rest(store: MemoryStore) -> None:
    with loader(store) as whole:
        whole.load_state_dict({**whole.state_dict(), "batch": 4})
        shares = [whole.share(k, 2) for k in range(2)]
        assert [[batch.positions[0] for batch in share] for share in shares] == [[], [16, 20]]
        assert [[batch.positions[0] for batch in share] for share in shares] == [[0, 4, 8], [12, 16, 20]]
        for share in shares:
            share.close()


def test_the_state_of_one_rank_is_that_of_all(store: MemoryStore) -> None:
    """Checkpoints are often written by the first rank alone."""
    options = {"shuffle": True, "world_size": 2}
    with loader(store, rank=0, **options) as first, loader(store, rank=1, **options) as second:
        expected = [batch.positions.tolist() for batch in second]
        next(iter(first))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [batch.positions.tolist() for batch in second] == expected[1:]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 5}, "batch_size must be what it was when the state was saved, 4, but got 5;"),
    ({"seed": 6}, "seed must be what it was when the state was saved, 5, but got 6"),
    ({"shuffle": False}, "shuffle must be .*, 'block', but got False"),
    ({"shuffle": "global"}, "shuffle must be .*, 'block', but got 'global'"),
    ({"shuffle_window": 3}, "shuffle_window must be .*, 'by default, 9', but got 3"),
    ({"shuffle_window": 9}, "shuffle_window must be .*, 'by default, 9', but got 9"),
    ({"variables": ["t"]}, "variables/u must be .*, but got None"),
    ({"leads": ["0h", "6h"]}, r"variables.variables/t must be .*, 'no lead axis', but got \['0h', '6h'\]"),
    ({"drop_last": True}, "drop_last must be .*, False, but got True"),
    ({"world_size": 2}, "world_size must be .*, 1, but got 2"),
    ({"partial": "pad"}, "partial must be .*, 'drop', but got 'pad'"),
    ({"layout": "stacked"}, "layout must be .*, 'dict', but got 'stacked'"),
    ({"dtype": "f8"}, "fields.t.dtype must be .*, '<f4', but got '<f8'"),
    ({"weights": np.arange(N)}, "weights must be .*, None, but got"),
    ({"sampler": lambda rng, n: np.arange(n), "shuffle": False}, "shuffle must be"),
]


@pytest.mark.parametrize(("options", "message"), OTHERS, ids=[next(iter(options)) for options, _ in OTHERS])
def test_the_state_of_another_request_is_refused(store: MemoryStore, options: dict[str, Any], message: str) -> None:
    state = loader(store, shuffle=True).state_dict()
    with pytest.raises(RequestError, match=message):
        loader(store, **{"shuffle": True, **options}).load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dataset(n=N + 1), "axes.time.length must be .*, 22, but got 23"),
        (dataset("2001-01-01"), r"axes.time.ends\.?.* must be .*2000-01-01.*but got .*2001-01-01"),
        (dataset().isel(x=[0, 1]), "fields.t.sizes.x must be .*, 3, but got 2"),
    ],
    ids=["longer", "later", "smaller"],
)
def test_the_state_of_another_dataset_is_refused(store: MemoryStore, other: xr.Dataset, message: str) -> None:
    changed = MemoryStore()
    other.to_zarr(changed, consolidated=False)
    with pytest.raises(RequestError, match=message):
        loader(changed).load_state_dict(loader(store).state_dict())


def test_another_region_of_the_same_size_is_refused(store: MemoryStore) -> None:
    ds = xr.open_zarr(store, chunks=None, consolidated=False)
    left, right = (ds.isel(x=part).insitu.loader(variables="t") for part in (slice(0, 2), slice(1, 3)))
    with pytest.raises(RequestError, match=r"fields\.t\.selection must be"):
        right.load_state_dict(left.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format of a state must be 1, but got 9"),
        ({"batch": 7}, "batch of a state must be from 0 to 6, but got batch 7 of epoch 0"),
        ({"epoch": -1}, "but got batch 0 of epoch -1"),
        ({"batch": "1"}, "but got batch '1' of epoch 0"),
    ],
)
def test_a_broken_state_is_refused(store: MemoryStore, change: dict[str, Any], message: str) -> None:
    source = loader(store)
    with pytest.raises(RequestError, match=message):
        source.load_state_dict({**source.state_dict(), **change})


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, None, 3])
def test_what_is_no_state_is_refused(store: MemoryStore, state: Any) -> None:
    with pytest.raises(RequestError, match=r"state must be what state_dict\(\) returned, but got"):
        loader(store).load_state_dict(state)


def test_steps_of_several_batches_that_begin_in_the_midst_of_one() -> None:
    """Small batches are made several at once; slots were counted for steps that begin where a whole epoch begins."""
    store, n = MemoryStore(), 1024
    wide, long = np.zeros((n, 16384), "f4"), np.arange(4.0 * n, dtype="f4").reshape(n, 4)
    ds = xr.Dataset({"a": (("t", "x"), wide), "b": (("t", "y"), long)}, {"t": np.arange(n)})
    ds.to_zarr(store, consolidated=False, encoding={"a": {"chunks": (16, 16384)}, "b": {"chunks": (256, 4)}})
    ds = xr.open_zarr(store, consolidated=False, chunks=None)
    options: dict[str, Any] = {"variables": ["a", "b"], "sample_dim": "t", "batch_size": 1, "memory": "21MiB"}
    with ds.insitu.loader(**options, keep=True) as loader:
        assert (loader.plan.stride, loader.plan.budget.slots[1]) == (16, 1)
        batches = iter(loader)
        for _ in range(15):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        found = np.concatenate([batch["b"] for batch in loader])
    np.testing.assert_array_equal(found, long[15:])
    with ds.insitu.loader(**options, keep=True) as whole:
        shares = [np.concatenate([batch["b"] for batch in whole.share(k, 3)]) for k in range(3)]
    assert sorted(np.concatenate(shares)[:, 0].tolist()) == long[:, 0].tolist()
