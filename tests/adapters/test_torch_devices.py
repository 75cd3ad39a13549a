"""Tensors on a device: copied ahead on a thread, exact in state and memory, and transformed where the consumer is."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import numpy as np
import pytest
import xarray as xr

from insitu_xr import Loader
from insitu_xr.engine import blocks
from insitu_xr.errors import ClosedError, InsituError, RequestError
from insitu_xr_adapters.torch import TorchBatch, TorchBatches
from insitu_xr_adapters.torch.devices import Device

torch = pytest.importorskip("torch")
N = 23
OPTIONS: dict[str, Any] = {"variables": ["t"], "batch_size": 4, "shuffle": True, "seed": 3}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def dataset() -> xr.Dataset:
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    return xr.Dataset({"t": (("time", "y", "x"), np.arange(N * 6, dtype="f4").reshape(N, 2, 3))}, {"time": times})


def loader(**options: Any) -> Loader:
    made: Loader = dataset().insitu.loader(**{**OPTIONS, **options})
    return made


def copied(source: Loader, device: Any = "cpu", **options: Any) -> TorchBatches:
    """As for a device, whichever it is: torch copies to the CPU as to any other one."""
    batches: TorchBatches = source.to("torch", device="meta", **options)
    object.__setattr__(batches._placing, "device", Device(torch.device(device)))
    return batches


def test_copies_hold_the_values_in_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds = dataset()
    with loader() as source:
        seen = list(copied(source))
        for batch in seen:
            np.testing.assert_array_equal(batch["t"].numpy(), ds["t"].values[batch.positions])
            np.testing.assert_array_equal(batch.anchors, ds["time"].values[batch.positions])
            assert batch.source.arrays == {}, "the host's memory is let go of"
            xr.testing.assert_identical(batch.to_xarray(), ds.isel(time=batch.positions))
        assert sorted(int(k) for batch in seen for k in batch.positions) == list(range(N))


def test_a_device_that_holds_no_values_gets_shapes_and_labels() -> None:
    with loader(leads=["0h", "6h"], layout="stacked") as source:
        for batch in source.to("torch", device="meta"):
            assert batch.variables.device.type == "meta"
            assert batch.variables.shape == (len(batch), 2, 2, 3)
            assert batch.channels == ["t@0h", "t@6h"]
            assert batch.valid_times.shape == (len(batch), 2)


def test_the_cpu_needs_no_copy() -> None:
    with loader() as source:
        for batch in source.to("torch", device="cpu"):
            assert batch["t"].data_ptr() == batch.source["t"].ctypes.data


def test_the_state_counts_what_the_consumer_has_and_not_what_is_ahead() -> None:
    with loader() as source, loader() as other:
        epoch, resumed = iter(copied(source)), copied(other)
        for consumed in range(3):
            assert source.state_dict()["batch"] == consumed
            next(epoch)
        resumed.load_state_dict(json.loads(json.dumps(source.state_dict())))
        rest = [batch.positions.tolist() for batch in epoch]
        assert [batch.positions.tolist() for batch in resumed] == rest
        assert len(rest) == len(source) - 3
        assert source.state_dict()["epoch"] == other.state_dict()["epoch"] == 1


def test_one_batch_is_made_ahead_and_no_more() -> None:
    made: list[int] = []
    went = threading.Semaphore(0)

    def make(batch: Any) -> int:
        made.append(len(made))
        went.release()
        return made[-1]

    with loader() as source:
        epoch = source.ahead(make)
        went.acquire()
        for taken in range(len(source)):
            assert next(epoch) == taken
            if taken + 1 < len(source):
                went.acquire()
            assert len(made) == min(taken + 2, len(source))
        assert list(epoch) == []


def test_leaving_early_ends_the_thread_and_frees_the_memory() -> None:
    with loader() as source:
        for _ in range(3):
            for batch in copied(source):
                assert len(batch) == 4
                break
            gc.collect()
            assert [t for t in threading.enumerate() if t.name.startswith("insitu-ahead")] == []


def test_a_closed_loader_says_so() -> None:
    source = loader()
    epoch = iter(copied(source))
    next(epoch)
    source.close()
    with pytest.raises(ClosedError, match="an epoch must be the one that runs"):
        list(epoch)


def test_what_fails_on_the_thread_is_raised_where_the_batch_is_wanted() -> None:
    def fail(batch: Any) -> Any:
        if 7 in batch.positions:
            raise ZeroDivisionError("seven")
        return batch.positions

    with loader(shuffle=False) as source:
        epoch = source.ahead(fail)
        assert next(epoch).tolist() == [0, 1, 2, 3]
        with pytest.raises(ZeroDivisionError, match="seven"):
            next(epoch)
        assert list(epoch) == []
        assert source.state_dict()["batch"] == 1
        assert len(list(source.ahead(len))) == len(source), "the loader stays usable"


def test_transforms_run_where_the_consumer_is() -> None:
    threads = []

    def double(batch: TorchBatch) -> TorchBatch:
        threads.append(threading.current_thread())
        return batch.replaced({key: tensor * 2 for key, tensor in batch.arrays.items()})

    def negate(batch: TorchBatch) -> None:
        batch["t"].neg_()

    ds = dataset()
    with loader() as source:
        for place in (source.to("torch", device_transforms=[double, negate]), copied(source)):
            object.__setattr__(place._placing, "transforms", (double, negate))
            for batch in place:
                np.testing.assert_array_equal(batch["t"].numpy(), -2 * ds["t"].values[batch.positions])
    assert set(threads) == {threading.current_thread()}


def test_a_transform_that_returns_no_batch_is_refused() -> None:
    with loader() as source:
        with pytest.raises(RequestError, match=r"device transform .*<lambda> must return a batch.* but got int"):
            list(source.to("torch", device_transforms=lambda batch: 1))
        with pytest.raises(RequestError, match="device_transforms must be functions of a batch, but got 3"):
            source.to("torch", device_transforms=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "device must be one that torch knows, but got 'abacus'"),
        ({"device": object()}, "device must be one that torch knows, but got <object"),
        ({"device": "cuda:77"}, "device must be one that torch finds here, but got 'cuda:77'"),
        ({"pin": "yes"}, "pin must be True, False or None, but got 'yes'"),
    ],
    ids=["unknown", "object", "absent", "pin"],
)
def test_devices_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with loader() as source, pytest.raises(RequestError, match=message):
        source.to("torch", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_page_locked_memory_needs_a_device() -> None:
    with loader() as source, pytest.raises(InsituError, match="pin must be False where torch has no CUDA device"):
        source.to("torch", pin=True)


# -- with a CUDA device ------------------------------------------------------------------------------------------


@cuda
@pytest.mark.parametrize("pin", [None, False])
def test_cuda_tensors_hold_the_values(monkeypatch: pytest.MonkeyPatch, pin: bool | None) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    ds = dataset()
    with loader(shuffle="global") as source:
        batches = source.to("torch", device="cuda", pin=pin)
        kept = []
        for _ in range(40):
            for batch in batches:
                assert batch["t"].is_cuda
                kept.append((batch["t"] + 0, batch["t"], batch.positions))
            for copy, tensor, positions in kept[-3:]:
                np.testing.assert_array_equal(copy.cpu().numpy(), ds["t"].values[positions])
                np.testing.assert_array_equal(tensor.cpu().numpy(), ds["t"].values[positions])
            kept = kept[-5:]


@cuda
def test_batches_lie_in_page_locked_memory_and_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL_BYTES", 0)
    with loader() as source:
        source.to("torch", device="cuda")
        assert all(torch.from_numpy(batch["t"]).is_pinned() for batch in source)
        array = next(iter(source))["t"]
        address = array.ctypes.data
    del array, source
    gc.collect()
    assert not torch.from_numpy(np.frombuffer(b"\0" * 8, np.uint8).copy()).is_pinned()
    assert address


@cuda
def test_pinned_tensors_belong_to_torch() -> None:
    with loader() as source:
        for batch in source.to("torch", pin=True):
            assert batch["t"].is_pinned()
            assert not batch["t"].is_cuda


@cuda
def test_copies_overlap_computation() -> None:
    """The consumer's stream never waits for a copy that it did not ask for."""
    with loader() as source:
        batches = source.to("torch", device="cuda")
        stream = batches._placing.device.stream
        assert stream != torch.cuda.current_stream()
        for batch in batches:
            assert stream.query(), "what is handed over has arrived"
            batch["t"].sum()
