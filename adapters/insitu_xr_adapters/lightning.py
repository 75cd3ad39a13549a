"""A data module for Lightning: loaders of the splits of a dataset, each rank its part, resumed in mid-epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from insitu_xr.errors import MissingExtraError, RequestError, UnknownNameError

if TYPE_CHECKING:
    from insitu_xr import Loader, Manifest

__all__ = ["InSituDataModule"]  # noqa: F822  (made by __getattr__)

#: what Lightning runs, and the split it is run on by default
STAGES = {"train": "train", "val": "val", "test": "test", "predict": "test"}
#: options of a loader that are the module's own affair
OWN = ("rank", "world_size", "manifest", "split")


def __getattr__(name: str) -> Any:
    # Importing Lightning takes seconds, so it is left to who asks for the class.
    if name != "InSituDataModule":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _module_class()


@dataclass(slots=True, eq=False)
class Splits:
    """The loaders of a data module: one for each stage, made when it is first asked for."""

    ds: Any
    manifest: Manifest
    options: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    torch_options: Mapping[str, Any]
    stages: Mapping[str, str]
    loaders: dict[str, Loader] = field(default_factory=dict)

    def batches(self, stage: str, trainer: Any) -> Any:
        """The batches of a stage as tensors, for the rank that the trainer says; none where it has no split."""
        split = self.stages[stage]
        if split not in self.manifest.splits:
            return []
        if stage in self.loaders:
            self.loaders[stage].close()
        options = {**self.options, **(self.evaluation if stage != "train" else {})}
        strategy = getattr(trainer, "strategy", None)
        # Those of the data-parallel part, where a strategy divides the model as well.
        place = getattr(strategy, "distributed_sampler_kwargs", None)
        if place is not None:
            options |= {"rank": place["rank"], "world_size": place["num_replicas"]}
        loader: Loader = self.ds.insitu.loader(**options, manifest=self.manifest, split=split)
        if stage == "train" and trainer is not None:
            loader.set_epoch(trainer.current_epoch)  # where Lightning asks for the loaders anew in every epoch
        self.loaders[stage] = loader
        device = {} if strategy is None else {"device": strategy.root_device}
        return loader.to("torch", **{**device, **self.torch_options})

    def close(self) -> None:
        """Close all loaders."""
        for loader in self.loaders.values():
            loader.close()
        self.loaders.clear()


def splits_of(
    ds: Any,
    read: Mapping[str, Any],
    *,
    splits: Any,
    evaluation: Mapping[str, Any],
    torch_options: Mapping[str, Any],
    stages: Mapping[str, str],
    options: Mapping[str, Any],
) -> Splits:
    """Check the arguments of a data module.

    Raises
    ------
    InsituError
        If one breaks a rule; before any data is read.
    """
    for name in (*options, *evaluation):
        if name in OWN:
            raise RequestError(
                f"{name} must be left to the data module, which takes it from the trainer and from splits=, but got it "
                "as an option; leave it out"
            )
    read = {name: value for name, value in read.items() if value is not None}
    manifest = _manifest(ds, splits, {**read, **options})
    found = Splits(ds, manifest, {**read, **options}, evaluation, torch_options, _stages(stages, manifest))
    for stage, split in found.stages.items():
        if split in manifest.splits:  # what is wrong is said now, and not in the midst of a run
            extra = evaluation if stage != "train" else {}
            ds.insitu.plan(**{**found.options, **extra}, manifest=manifest, split=split)
    return found


def _manifest(ds: Any, splits: Any, options: Mapping[str, Any]) -> Manifest:
    from insitu_xr import Manifest

    if isinstance(splits, Mapping):
        shared = ("inputs", "targets", "variables", "leads", "sample_dim", "time_tolerance")
        about = {name: options[name] for name in shared if name in options}
        made: Manifest = ds.insitu.split(**{**about, **splits})
        return made
    if not isinstance(splits, Manifest):
        raise RequestError(
            f"splits must be a manifest of ds.insitu.split, or its arguments, but got {splits!r}; write "
            "dict(train=slice(...), val=slice(...))"
        )
    return splits


def _stages(given: Mapping[str, str], manifest: Manifest) -> dict[str, str]:
    """The split that each stage is run on."""
    names = sorted(manifest.splits)
    for stage, split in given.items():
        if stage not in STAGES:
            raise RequestError(f"stages must be among {list(STAGES)}, but got {stage!r}; take it out")
        if split not in names:
            raise UnknownNameError(
                f"split of stage {stage!r} must be one of {names}, but got {split!r}; name one of them"
            )
    stages = {**STAGES, **given}
    if not set(stages.values()) & set(names):
        raise UnknownNameError(
            f"splits must have one of {sorted(set(stages.values()))}, but got {names}; say which is which with "
            "stages=dict(train=...)"
        )
    return stages


class _Methods:
    """Train, validate and test on splits of a dataset, in place.

    Batches are `TorchBatch` on the device of the trainer. Every rank takes its part of each epoch, with as many
    steps as the others, without a sampler. A checkpoint holds how far the training batches are, so that
    ``trainer.fit(model, data, ckpt_path=...)`` goes on in the midst of an epoch, with the batch that would have
    been next.

    Parameters
    ----------
    ds : xarray.Dataset
        What to read.
    inputs, targets, variables : optional
        As for ``ds.insitu.loader``.
    splits : Manifest, or dict
        What ``ds.insitu.split`` made, or its arguments, such as ``dict(train=slice("1979", "2015"), val="2016")``.
    batch_size : int
        Samples of a batch, on every rank.
    shuffle : bool or str
        Of the training batches alone.
    evaluation : dict, optional
        Options of the other loaders that differ. Their anchors come in order, and where they cannot be divided
        among ranks, some are repeated and flagged in ``batch.padded``, so that none is left out.
    torch_options : dict, optional
        Options of ``loader.to("torch")``, such as ``dict(device_transforms=[scaler])``.
    stages : dict, optional
        Which split each of "train", "val", "test" and "predict" is run on; by default the one of that name, and
        "test" for "predict".
    **options
        Options of ``ds.insitu.loader`` for all loaders: ``statics``, ``layout``, ``memory``, ``seed``, ... The
        memory is that of each loader; only those that iterate hold any.

    Raises
    ------
    InsituError
        If an argument breaks a rule; before any data is read.

    Examples
    --------
    >>> data = InSituDataModule(ds, inputs=dict(variables=["t2m"]), targets=dict(variables=["t2m"], leads=["6h"]),
    ...                         splits=dict(train=slice("2000", "2010"), val="2011"))  # doctest: +SKIP
    >>> lightning.Trainer(max_epochs=3).fit(model, datamodule=data)  # doctest: +SKIP
    """

    #: what Lightning has attached
    trainer: Any

    def __init__(
        self,
        ds: Any,
        *,
        splits: Any,
        inputs: Mapping[str, Any] | None = None,
        targets: Mapping[str, Any] | None = None,
        variables: Sequence[str] | None = None,
        batch_size: int = 32,
        shuffle: Any = True,
        evaluation: Mapping[str, Any] | None = None,
        torch_options: Mapping[str, Any] | None = None,
        stages: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._splits = splits_of(
            ds,
            {"inputs": inputs, "targets": targets, "variables": variables},
            splits=splits,
            evaluation={"shuffle": False, "drop_last": False, "partial": "pad", **(evaluation or {})},
            torch_options=torch_options or {},
            stages=stages or {},
            options={"batch_size": batch_size, "shuffle": shuffle, **options},
        )

    @property
    def manifest(self) -> Manifest:
        """The splits."""
        return self._splits.manifest

    @property
    def loaders(self) -> Mapping[str, Loader]:
        """Loaders by stage, those that were asked for: their plans and statistics."""
        return dict(self._splits.loaders)

    def train_dataloader(self) -> Any:
        """Batches of the training split."""
        return self._splits.batches("train", self.trainer)

    def val_dataloader(self) -> Any:
        """Batches of the validation split; none where there is no such split."""
        return self._splits.batches("val", self.trainer)

    def test_dataloader(self) -> Any:
        """Batches of the test split; none where there is no such split."""
        return self._splits.batches("test", self.trainer)

    def predict_dataloader(self) -> Any:
        """Batches to predict from; none where there is no such split."""
        return self._splits.batches("predict", self.trainer)

    def teardown(self, stage: str | None = None) -> None:
        """Close the loaders."""
        self._splits.close()


@cache
def _module_class() -> Any:
    """Make the class; it is that of this module under its name, so that it pickles."""
    try:
        from lightning import LightningDataModule
    except ImportError as error:
        raise MissingExtraError(
            'lightning must be installed for a data module, but got no such package; pip install "insitu-xr[lightning]"'
        ) from error
    own = {"__doc__": _Methods.__doc__, "__module__": __name__}
    return type("InSituDataModule", (_Methods, LightningDataModule), own)
