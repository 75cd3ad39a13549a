"""Helpers for testing what reads Zarr through insitu_xr: stores, an eager reference and Hypothesis strategies.

`insitu_xr.testing.strategies` needs Hypothesis and is imported on its own.
"""

from __future__ import annotations

from insitu_xr.testing.oracle import assert_batches_equal, expected_batch, expected_group, kept_anchors
from insitu_xr.testing.stores import (
    CountingStore,
    FailingStore,
    GatedStore,
    Get,
    InterceptingStore,
    SlowStore,
    is_metadata,
)

__all__ = [
    "CountingStore",
    "FailingStore",
    "GatedStore",
    "Get",
    "InterceptingStore",
    "SlowStore",
    "assert_batches_equal",
    "expected_batch",
    "expected_group",
    "is_metadata",
    "kept_anchors",
]
