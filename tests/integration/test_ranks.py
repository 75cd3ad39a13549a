"""Two ranks that train one model by FSDP, and under Lightning by DDP, without a sampler.

Ranks are processes that are forked from one that has imported torch and Lightning: importing them takes longer than
training. They find in their environment what torchrun, or the launcher of Lightning, puts there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr import Loader
from tests.integration.servers import free_port

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
N, WORLD, EPOCHS = 41, 2, 2
OPTIONS: dict[str, Any] = {"variables": ["t"], "batch_size": 4, "shuffle": True, "seed": 1}
#: importing takes seconds, and minutes on a machine that is busy with other things
TIMEOUT = 400


def dataset(n: int = N) -> xr.Dataset:
    values = np.arange(n * 3, dtype="f4").reshape(n, 3)
    times = np.datetime64("2000-01-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    return xr.Dataset({"t": (("time", "x"), values)}, {"time": times})


@dataclass(frozen=True)
class Ranks:
    """Starts processes that belong together, and reads what they write."""

    context: ForkServerContext
    store: Path

    def run(self, train: Callable[[Path, Path], Any], folder: Path, **environment: str) -> list[Any]:
        """What a function returns on every rank, given the store and a folder."""
        shared = {
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        started = []
        for rank in range(WORLD):
            own = {name: value.format(rank=rank) for name, value in environment.items()}
            (folder / f"printed{rank}.txt").touch()
            process = self.context.Process(target=here, args=(train, rank, self.store, folder, {**shared, **own}))
            process.start()
            started.append(process)
        for process in started:
            process.join(TIMEOUT)
        for process in started:
            process.kill()
        printed = "\n".join((folder / f"printed{rank}.txt").read_text() for rank in range(WORLD))
        assert [process.exitcode for process in started] == [0] * WORLD, printed
        return [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(WORLD)]


def here(train: Callable[[Path, Path], Any], rank: int, store: Path, folder: Path, environment: dict[str, str]) -> None:
    """Train in this process, which is one of its own."""
    os.environ.update(environment)
    file = os.open(folder / f"printed{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    import torch

    torch.set_num_threads(1)
    (folder / f"found{rank}.json").write_text(json.dumps(train(store, folder)))
    sys.stdout.flush()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    store = tmp_path_factory.mktemp("ranks") / "steps.zarr"
    dataset().to_zarr(store, consolidated=False, encoding={"t": {"chunks": (5, 3)}})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "lightning", "insitu_xr_adapters.torch"])
    yield Ranks(context, store)
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # it would live as long as pytest


def loader(store: Path, **options: Any) -> Loader:
    made: Loader = insitu_xr.open_dataset(store).insitu.loader(**{**OPTIONS, **options})
    return made


def alone(store: Path, rank: int, epochs: int = EPOCHS) -> list[list[int]]:
    """Positions of the batches of a rank, as this process finds them."""
    with loader(store, rank=rank, world_size=WORLD) as source:
        return [batch.positions.tolist() for _ in range(epochs) for batch in source]


# -- FSDP --------------------------------------------------------------------------------------------------------


def layers() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def learn(model: Any, optimizer: Any, values: Any) -> None:
    """One step of a model that is to turn values around."""
    values = values / 100
    loss = ((model(values) - values.flip(-1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_sharded(store: Path, folder: Path) -> Any:
    """As in scripts for torchrun; the loader is made before anything says which rank this is."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = (int(os.environ.pop(name)) for name in ("RANK", "WORLD_SIZE"))
    source = loader(store)
    batches = source.to("torch")
    whole = len(batches)
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    model, mesh = layers(), init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    taken = []
    for _ in range(EPOCHS):
        for batch in batches:
            learn(model, optimizer, batch["t"])
            taken.append(batch.positions.tolist())
    weights = {name: weight.full_tensor().tolist() for name, weight in model.state_dict().items()}
    source.close()
    held = list(model[0].weight.to_local().shape)
    distributed.destroy_process_group()
    return {"steps": [whole, len(batches)], "taken": taken, "weights": weights, "held": held}


def test_a_sharded_model_learns_from_all_ranks_without_a_sampler(ranks: Ranks, tmp_path: Path) -> None:
    """FSDP computes what one process would with the batches of all ranks together."""
    import torch

    found = ranks.run(train_sharded, tmp_path, RANK="{rank}", LOCAL_RANK="{rank}")
    expected = [alone(ranks.store, rank) for rank in range(WORLD)]
    assert [rank["taken"] for rank in found] == expected
    for epoch in (slice(0, 5), slice(5, 10)):
        drawn = [k for rank in expected for batch in rank[epoch] for k in batch]
        assert len(drawn) == len(set(drawn)) == N - N % WORLD, "each anchor once across ranks"
    assert [rank["steps"] for rank in found] == [[11, 5]] * WORLD, "as many steps, once there are ranks"
    assert [rank["held"] for rank in found] == [[4, 3]] * WORLD, "half of the model is on each"
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    values = torch.from_numpy(dataset()["t"].values)
    for positions in zip(*expected, strict=True):
        learn(model, optimizer, values[[k for batch in positions for k in batch]])
    for rank in found:
        for name, weight in model.state_dict().items():
            np.testing.assert_allclose(rank["weights"][name], weight.numpy(), rtol=1e-4, atol=1e-5)


# -- Lightning ---------------------------------------------------------------------------------------------------

GROUPS: dict[str, Any] = {"inputs": {"variables": ["t"]}, "targets": {"variables": ["t"], "leads": ["6h"]}}
SPLITS = {"train": slice("2000-01-01", "2000-01-06"), "val": slice("2000-01-07", "2000-01-10")}
#: batches of a rank in an epoch
STEPS = 3


def noting_model() -> Any:
    """Notes what it is given, and learns from it together with the others."""
    import torch
    from lightning import LightningModule

    class Model(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 3)
            self.notes: dict[str, list[Any]] = {"train": [], "val": []}

        def note(self, stage: str, batch: Any) -> None:
            self.notes[stage].append([batch.positions.tolist(), batch.padded.tolist()])

        def training_step(self, batch: Any, number: int) -> Any:
            self.note("train", batch)
            assert (batch.targets == batch.inputs + 3).all()
            return torch.nn.functional.mse_loss(self.layer(batch.inputs), batch.targets)

        def validation_step(self, batch: Any, number: int) -> None:
            self.note("val", batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    return Model()


def train_with_lightning(store: Path, folder: Path) -> Any:
    """A whole run, one that is cut off and goes on, and one on batches that the trainer gets without a data module."""
    from lightning import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from insitu_xr_adapters.lightning import InSituDataModule

    warnings.simplefilter("ignore")  # what Lightning says of its own affairs
    ds, found = insitu_xr.open_dataset(store), {}

    def fit(name: str, steps: int = -1, resumed: Path | None = None, **data: Any) -> Any:
        saving = ModelCheckpoint(folder / name, save_last=True, every_n_train_steps=1, save_on_train_epoch_end=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(
            accelerator="cpu",
            devices=WORLD,
            strategy="ddp",
            max_epochs=EPOCHS,
            max_steps=steps,
            callbacks=[saving],
            num_sanity_val_steps=0,
            **quiet,
        )
        model = noting_model()
        trainer.fit(model, ckpt_path=resumed, **data)
        used = [trainer.train_dataloader, *([trainer.val_dataloaders] if model.notes["val"] else [])]
        found[name] = {**model.notes, "weights": model.layer.weight.tolist(), "used": [type(u).__name__ for u in used]}

    def module() -> dict[str, Any]:
        read = {**GROUPS, "splits": SPLITS, "batch_size": 4, "layout": "stacked", "seed": 5}
        return {"datamodule": InSituDataModule(ds, **read)}

    with loader(store, variables=None, **GROUPS, layout="stacked") as plain:
        batches = plain.to("torch")  # before there is a process group
        assert len(batches) == 10
        fit("plain", train_dataloaders=batches)
    fit("whole", **module())
    fit("cut", STEPS + 1, **module())
    fit("rest", resumed=folder / "cut" / "last.ckpt", **module())
    return found


def test_lightning_trains_on_two_ranks_without_a_sampler_and_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    environment = {"LOCAL_RANK": "{rank}", "NODE_RANK": "0"}  # as its own launcher does
    found = ranks.run(train_with_lightning, tmp_path, **environment)

    def drawn(run: str, stage: str, epoch: int) -> list[int]:
        """What the ranks took in an epoch, without repeats that make their steps equal."""
        parts = [rank[run][stage] for rank in found]
        assert len({len(part) for part in parts}) == 1, "equal steps"
        steps = len(parts[0]) // EPOCHS
        taken = [batch for part in parts for batch in part[epoch * steps : (epoch + 1) * steps]]
        return sorted(k for where, padded in taken for k, again in zip(where, padded, strict=True) if not again)

    for epoch in range(EPOCHS):
        train, plain = drawn("whole", "train", epoch), drawn("plain", "train", epoch)
        assert len(train) == len(set(train)) == 22, "each anchor once across ranks, but the one that cannot be divided"
        assert set(train) < set(range(23)), "the window of the last label reaches into the next split"
        assert drawn("whole", "val", epoch) == list(range(24, 39)), "none is left out of an evaluation"
        assert plain == list(range(N - 1)), "batches that the trainer shares out without knowing"
    for rank in found:
        whole, cut, rest = rank["whole"], rank["cut"], rank["rest"]
        assert len(whole["train"]) == EPOCHS * STEPS
        assert whole["train"][:STEPS] != whole["train"][STEPS:], "epochs differ"
        assert len(cut["train"]) == STEPS + 1, "in the midst of an epoch"
        assert cut["train"] + rest["train"] == whole["train"], "it goes on with the next batch"
        assert rest["weights"] == whole["weights"] == found[0]["whole"]["weights"], "one model"
        assert rank["plain"]["used"] == ["TorchDataset"]
        assert whole["used"] == ["TorchDataset"] * 2, "no DataLoader, whose sampler Lightning would replace"


# -- worker processes --------------------------------------------------------------------------------------------


def epochs_of(store: Path, count: int) -> list[list[list[int]]]:
    with loader(store) as source:
        return [[batch.positions.tolist() for batch in source] for _ in range(count)]


def test_workers_of_every_epoch_give_the_next_one(ranks: Ranks) -> None:
    """Workers start from scratch, as by spawn, but sooner; by default they are others in every epoch."""
    from torch.utils.data import DataLoader

    expected = epochs_of(ranks.store, 4)
    assert expected[0] != expected[1]
    with loader(ranks.store) as source:
        batches = source.to("torch")
        under: Any = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context=ranks.context)
        found = [sorted(batch.positions.tolist() for batch in under) for _ in range(2)]
        batches.set_epoch(3)
        found.append(sorted(batch.positions.tolist() for batch in under))
    assert found == [sorted(expected[epoch]) for epoch in (0, 1, 3)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_two_workers_go_on_where_their_state_was_saved(ranks: Ranks) -> None:
    """StatefulDataLoader asks each worker for its state."""
    data = pytest.importorskip("torchdata.stateful_dataloader")
    expected = [sorted(epoch) for epoch in epochs_of(ranks.store, 3)]
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": ranks.context}

    def positions(batches: Any) -> list[list[int]]:
        return [batch.positions.tolist() for batch in batches]

    with loader(ranks.store) as source:
        whole = data.StatefulDataLoader(source.to("torch"), **options, persistent_workers=True)
        assert sorted(positions(whole)) == expected[0]
        epoch = iter(whole)
        taken = [next(epoch).positions.tolist() for _ in range(5)]
        state = pickle.dumps(whole.state_dict())
        rest = positions(epoch)
        assert sorted(taken + rest) == expected[1]
        del epoch, whole
    with loader(ranks.store) as source:
        resumed = data.StatefulDataLoader(source.to("torch"), **options, persistent_workers=True)
        resumed.load_state_dict(pickle.loads(state))
        assert positions(resumed) == rest
        assert sorted(positions(resumed)) == expected[2]
