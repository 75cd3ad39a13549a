"""Verification in place: forecasts scored against references, each stored chunk read once."""

from __future__ import annotations

from insitu_xr_adapters.verification.aggregating import StateOf, compare_models
from insitu_xr_adapters.verification.correlations import ACC, Activity, Correlation
from insitu_xr_adapters.verification.drawing import Plot
from insitu_xr_adapters.verification.eventscores import RPS, Brier, Contingency, Reliability
from insitu_xr_adapters.verification.exporting import to_e2s, to_wb2
from insitu_xr_adapters.verification.fieldscores import FSS, SEEPS, ZonalSpectrum
from insitu_xr_adapters.verification.metrics import MAE, MSE, RMSE, Bias, Metric, VectorRMSE
from insitu_xr_adapters.verification.probabilistic import CRPS, CRPSSkill, CRPSSpread, EnergyScore, RankHistogram
from insitu_xr_adapters.verification.score import load, merge, score, score_plan
from insitu_xr_adapters.verification.spreads import DebiasedMSE, Spread, SpreadSkill, Variance

__all__ = [
    "ACC",
    "CRPS",
    "FSS",
    "MAE",
    "MSE",
    "RMSE",
    "RPS",
    "SEEPS",
    "Activity",
    "Bias",
    "Brier",
    "CRPSSkill",
    "CRPSSpread",
    "Contingency",
    "Correlation",
    "DebiasedMSE",
    "EnergyScore",
    "Metric",
    "Plot",
    "RankHistogram",
    "Reliability",
    "Spread",
    "SpreadSkill",
    "StateOf",
    "Variance",
    "VectorRMSE",
    "ZonalSpectrum",
    "compare_models",
    "load",
    "merge",
    "score",
    "score_plan",
    "to_e2s",
    "to_wb2",
]
