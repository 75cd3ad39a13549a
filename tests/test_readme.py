"""The example in the README does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder_with_era5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    time = pd.date_range("1999-12-25", "2000-02-28", freq="6h")
    shape = (len(time), 19, 36)
    values = np.random.default_rng(0).normal(size=shape).astype("float32")
    coords = {"time": time, "lat": np.linspace(90, -90, 19), "lon": np.arange(0, 360, 10)}
    dims = ("time", "lat", "lon")
    ds = xr.Dataset({"t2m": (dims, values), "msl": (dims, values + 1)}, coords)
    ds.to_zarr(tmp_path / "era5.zarr", encoding={name: {"chunks": (40, 19, 36)} for name in ds}, consolidated=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_one_example_of_fifteen_lines() -> None:
    (example,) = EXAMPLES
    assert len([line for line in example.splitlines() if line.strip()]) <= 15


@pytest.mark.usefixtures("folder_with_era5")
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = EXAMPLES
    namespace: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), namespace)
    selection = namespace["selection"]
    batch = namespace["batch"]
    assert isinstance(selection, xr.Dataset)
    names = [name for group in ("inputs", "targets") for name in [getattr(batch, group)]]
    assert [array.shape[1:] for array in names] == [(4, 4, 36), (1, 4, 36)]
    assert "t2m" in capsys.readouterr().out
