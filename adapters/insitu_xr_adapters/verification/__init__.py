"""Verification in place: forecasts scored against references, each stored chunk read once."""

from __future__ import annotations

from insitu_xr_adapters.verification.aggregating import StateOf, compare_models
from insitu_xr_adapters.verification.drawing import Plot
from insitu_xr_adapters.verification.exporting import to_e2s, to_wb2
from insitu_xr_adapters.verification.score import load, merge, score, score_plan

__all__ = ["Plot", "StateOf", "compare_models", "load", "merge", "score", "score_plan", "to_e2s", "to_wb2"]
