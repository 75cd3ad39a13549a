"""Means and standard deviations of what a loader delivers, and what is done with them."""

from __future__ import annotations

from insitu_xr.scaling.fitting import fit_scaler
from insitu_xr.scaling.scaler import Scaler

__all__ = ["Scaler", "fit_scaler"]
