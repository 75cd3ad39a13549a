"""From a manifest to the anchors that it allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from insitu_xr.errors import RequestError
from insitu_xr.geometry.grid import IntArray
from insitu_xr.geometry.times import LabelAxis
from insitu_xr.plan.manifest import Manifest
from insitu_xr.plan.split import window_within


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The anchors that a manifest allows.

    Attributes
    ----------
    masks : tuple of bool array
        Allowed labels of every sample dimension.
    place : int
        The sample dimension that is split, -1 where none is.
    reason : str
        Why the others are dropped.
    """

    masks: tuple[npt.NDArray[np.bool_], ...]
    place: int
    reason: str

    def within(self, lead_axis: int, partners: IntArray) -> npt.NDArray[np.bool_]:
        """Per anchor, whether no label of its window is outside the split."""
        if self.place != lead_axis:
            return np.ones(len(partners), np.bool_)
        return window_within(self.masks[lead_axis], partners)


def chosen_by(manifest: Manifest | None, split: str | None, axes: Sequence[LabelAxis]) -> Chosen | None:
    """The anchors that the arguments ``manifest=`` and ``split=`` allow; None without a manifest.

    Raises
    ------
    RequestError
        If the manifest was made on other labels, or has no such split.
    """
    if manifest is None:
        if split is not None:
            raise RequestError(
                f"split={split!r} must be given with manifest=, but got none; make one with ds.insitu.split(...)"
            )
        return None
    if not isinstance(manifest, Manifest):
        raise RequestError(
            f"manifest must be a Manifest, but got {type(manifest).__name__}; read it with insitu_xr.Manifest.from_json"
        )
    masks = [np.ones(len(axis), np.bool_) for axis in axes]
    dims = [axis.dim for axis in axes]
    if split is None:
        manifest.check_axes(axes)
        for mask, positions in zip(masks, manifest.anchors(), strict=True):
            mask[:] = False
            mask[positions] = True
        return Chosen(tuple(masks), -1, "not in the manifest")
    positions = manifest.split_positions(split)
    dim = manifest.axes[0]["dim"]
    if dim not in dims:
        raise RequestError(
            f"manifest must be made on a sample dimension ({dims}), but got one made on {dim!r}; split again, or give "
            "sample_dim="
        )
    place = dims.index(dim)
    manifest.check_axes([axes[place]])
    masks[place] = np.zeros(len(axes[place]), np.bool_)
    masks[place][positions] = True
    return Chosen(tuple(masks), place, f"outside the split {split!r}")
