"""Stores as data sources of Earth2Studio, read in place: ``ds.insitu.to("earth2studio")``."""

from __future__ import annotations

from insitu_xr_adapters.earth2studio.batches import fetch_batches, verification_batches
from insitu_xr_adapters.earth2studio.sources import InSituDataSource, InSituForecastSource, to_earth2studio

__all__ = ["InSituDataSource", "InSituForecastSource", "fetch_batches", "to_earth2studio", "verification_batches"]
