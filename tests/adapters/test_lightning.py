"""The data module: splits without overlap, ranks without a sampler, and runs that go on in the midst of an epoch."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import insitu_xr
from insitu_xr.errors import InsituError, RequestError, UnknownNameError

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
#: what Lightning says of its own affairs, and of a machine such as this
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists:UserWarning"),
]
N = 40
GROUPS: dict[str, Any] = {"inputs": {"variables": ["t"]}, "targets": {"variables": ["t"], "leads": ["6h"]}}
SPLITS = {"train": slice("2000-01-01", "2000-01-06"), "val": slice("2000-01-07", "2000-01-10")}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    where = tmp_path_factory.mktemp("lightning") / "steps.zarr"
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    values = np.arange(N * 6, dtype="f4").reshape(N, 2, 3)
    made = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": times})
    made.to_zarr(where, consolidated=False, encoding={"t": {"chunks": (5, 2, 3)}})
    return insitu_xr.open_dataset(where)


def module(ds: xr.Dataset, **options: Any) -> Any:
    from insitu_xr_adapters.lightning import InSituDataModule

    given = {**GROUPS, "splits": SPLITS, "batch_size": 4, "layout": "stacked", "seed": 5, **options}
    return InSituDataModule(ds, **given)


def model(stop_at: int | None = None) -> Any:
    """Notes the batches that it is given; after ``stop_at`` steps the run is cut off."""
    from lightning import LightningModule

    class Model(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 1, 1)
            self.train_positions: list[list[int]] = []
            self.val_positions: list[list[int]] = []

        def training_step(self, batch: Any, number: int) -> Any:
            self.train_positions.append(batch.positions.tolist())
            return torch.nn.functional.mse_loss(self.layer(batch.inputs), batch.targets)

        def on_train_batch_end(self, *args: Any) -> None:
            if stop_at is not None and len(self.train_positions) == stop_at:
                raise KeyboardInterrupt

        def validation_step(self, batch: Any, number: int) -> None:
            self.val_positions.append(batch.positions.tolist())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-9)

    return Model()


def trainer(folder: Path, **options: Any) -> Any:
    from lightning import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(folder, save_last=True, every_n_train_steps=1, save_on_train_epoch_end=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", devices=1, callbacks=[saving], max_epochs=3, **quiet, **options)


def test_a_run_that_is_interrupted_goes_on_with_the_next_batch(ds: xr.Dataset, tmp_path: Path) -> None:
    whole = model()
    trainer(tmp_path / "whole").fit(whole, datamodule=module(ds))
    steps = len(whole.train_positions) // 3
    assert steps == 6
    drawn = [sorted(k for batch in whole.train_positions[e * steps : (e + 1) * steps] for k in batch) for e in range(3)]
    assert drawn[0] == drawn[1] == drawn[2] == list(range(23)), (
        "the window of the last label reaches into the next split"
    )
    assert whole.train_positions[:steps] != whole.train_positions[steps : 2 * steps]
    assert sorted({k for batch in whole.val_positions for k in batch}) == list(range(24, 39))
    for stop_at in (steps + 2, 2 * steps):
        folder = tmp_path / str(stop_at)
        cut = model(stop_at)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            trainer(folder).fit(cut, datamodule=module(ds))
        (saved,) = folder.glob("last.ckpt")
        done = torch.load(saved, weights_only=True)["global_step"]
        assert done in (stop_at - 1, stop_at), "the step under way may not have been saved"
        rest = model()
        trainer(folder).fit(rest, datamodule=module(ds), ckpt_path=saved)
        assert whole.train_positions[:done] + rest.train_positions == whole.train_positions


def attached(data: Any, rank: int = 0, world: int = 1, epoch: int = 0) -> Any:
    """A data module as a trainer of several ranks would ask it."""
    places = {"num_replicas": world, "rank": rank}
    strategy = SimpleNamespace(root_device=torch.device("cpu"), distributed_sampler_kwargs=places)
    data.trainer = SimpleNamespace(strategy=strategy, current_epoch=epoch)
    return data


def positions(batches: Any) -> list[int]:
    return [int(k) for batch in batches for k in batch.positions[~batch.padded]]


def test_ranks_take_their_part_without_a_sampler(ds: xr.Dataset) -> None:
    found: dict[str, list[int]] = {"train": [], "val": []}
    steps = set()
    for rank in range(2):
        data = attached(module(ds), rank, 2)
        for stage, batches in (("train", data.train_dataloader()), ("val", data.val_dataloader())):
            steps.add((stage, len(batches)))
            found[stage] += positions(batches)
        assert data.test_dataloader() == [] == data.predict_dataloader()
        assert set(data.loaders) == {"train", "val"}
        data.teardown()
        assert data.loaders == {}
    assert steps == {("train", 3), ("val", 2)}
    assert len(found["train"]) == len(set(found["train"])) == 22
    assert sorted(found["val"]) == list(range(24, 39)), "none is left out of an evaluation"


def test_loaders_that_are_made_anew_begin_with_the_epoch_of_the_trainer(ds: xr.Dataset) -> None:
    data = attached(module(ds))
    batches = data.train_dataloader()
    epochs = [positions(batches) for _ in range(3)]
    assert [positions(attached(data, epoch=epoch).train_dataloader()) for epoch in range(3)] == epochs
    data.teardown()


def test_options_go_where_they_belong(ds: xr.Dataset) -> None:
    manifest = ds.insitu.split(fit=slice("2000-01-01", "2000-01-06"), rest=slice("2000-01-07", None))
    data = module(
        ds,
        splits=manifest,
        stages={"train": "fit", "predict": "rest"},
        evaluation={"batch_size": 5},
        torch_options={"device": "meta"},
    )
    attached(data)
    assert data.manifest is manifest
    assert data.val_dataloader() == []
    (first, *_) = data.predict_dataloader()
    assert (len(first), first.inputs.device.type) == (5, "meta")
    assert first.positions.tolist() == [24, 25, 26, 27, 28]
    data.teardown()


def test_without_a_trainer_the_batches_are_those_of_one_process(ds: xr.Dataset) -> None:
    data = module(ds)
    assert sorted(positions(data.train_dataloader())) == list(range(23))
    data.teardown()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rank": 1}, RequestError, "rank must be left to the data module"),
        ({"splits": 3}, RequestError, r"splits must be a manifest of ds\.insitu\.split, or its arguments, but got 3"),
        ({"stages": {"fit": "train"}}, RequestError, "stages must be among .* but got 'fit'"),
        ({"stages": {"train": "fit"}}, UnknownNameError, r"split of stage 'train' must be one of \['train', 'val'\]"),
        ({"splits": {"fit": slice("2000-01-01", "2000-01-06")}}, UnknownNameError, "say which is which with stages="),
        ({"inputs": {"variables": ["u"]}}, InsituError, "'u'"),
        ({"batch_size": 0}, RequestError, "batch_size"),
    ],
    ids=["rank", "splits", "stage", "split", "names", "variable", "batch_size"],
)
def test_what_is_wrong_is_said_when_the_module_is_made(
    ds: xr.Dataset, options: dict[str, Any], error: type[InsituError], message: str
) -> None:
    with pytest.raises(error, match=message):
        module(ds, **options)


def test_the_class_is_that_of_the_module_under_its_name() -> None:
    from lightning import LightningDataModule

    from insitu_xr_adapters import lightning as adapter

    assert issubclass(adapter.InSituDataModule, LightningDataModule)
    assert pickle.loads(pickle.dumps(adapter.InSituDataModule)) is adapter.InSituDataModule
    with pytest.raises(AttributeError, match="no attribute 'Module'"):
        adapter.Module  # noqa: B018
