"""What a loader says about itself."""

from __future__ import annotations

import pytest

from insitu_xr.engine.events import ADVICE, Meter, Statistics
from insitu_xr.testing.writing import StoredDataset, StoredVariable


@pytest.mark.parametrize("stage", ADVICE)
def test_the_stage_that_takes_longest_limits(stage: str) -> None:
    meter = Meter()
    for other in ADVICE:
        meter.add(**{f"{other}_seconds": 1.0})
    meter.add(**{f"{stage}_seconds": 0.5})
    found = meter.read(0, 0)
    assert found.limiting == stage
    assert found.advice == ADVICE[stage]
    assert f"limited by {stage}: {ADVICE[stage]}" in str(found)


def test_nothing_limits_what_has_not_run() -> None:
    assert (Statistics().limiting, Statistics().advice) == ("", "")
    assert "limited" not in str(Statistics())


def test_a_loader_names_the_stage() -> None:
    variable = StoredVariable("t2m", ("time", "y"), (40, 6), chunks=(7, 4))
    ds = StoredDataset((variable,), times=tuple(range(40)), sizes={"y": 6}).open()
    with ds.insitu.loader(variables=["t2m"], batch_size=5) as loader:
        assert loader.stats.limiting == ""
        list(loader)
        assert loader.stats.limiting in ADVICE
        assert loader.stats.store_seconds > 0
