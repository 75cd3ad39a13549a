"""Batches as torch tensors, ``loader.to("torch")``: over the memory of the arrays, or copied to a device beforehand."""

from __future__ import annotations

from insitu_xr_adapters.torch.adapting import to_torch
from insitu_xr_adapters.torch.batch import TorchBatch
from insitu_xr_adapters.torch.dataset import TorchBatches

__all__ = ["TorchBatch", "TorchBatches", "to_torch"]
