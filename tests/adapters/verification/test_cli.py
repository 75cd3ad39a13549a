"""``insitu-xr score``: the arguments of the function, its plan, and a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
import xarray as xr
import zarr
from typer.testing import CliRunner

from insitu_xr_adapters.verification import score
from insitu_xr_adapters.verification.cli import score as command
from tests.adapters.verification.cases import Shape, climatology, forecast, reference, stored

SHAPE = Shape(inits=4, leads=3)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stores")
    made = {"forecast": forecast(SHAPE), "reference": reference(SHAPE), "climatology": climatology()}
    for role, ds in made.items():
        stored(ds, role, "several", zarr.storage.LocalStore(folder / role))
    return {role: str(folder / role) for role in made}


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command("score")(command)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["score", *arguments])
    return result.exit_code, result.output


def test_scores_are_written_and_shown(places: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "scores.zarr"
    asked = ["--metrics", "rmse,acc", "--climatology", places["climatology"], "--regions", "global,tropics", "--quiet"]
    kept = ["--state", str(tmp_path / "state.zarr"), "--lead-time", "0h/6h", "--level", "850", "--weights", "cos"]
    code, text = run(places["forecast"], places["reference"], *asked, *kept, "--out", str(out))
    assert code == 0, text
    assert text.splitlines()[0].split() == ["global", "0h", "6h"]
    expected = score(
        forecast(SHAPE),
        reference(SHAPE),
        metrics=["rmse", "acc"],
        climatology=climatology(),
        regions=["global", "tropics"],
        lead_time=slice("0h", "6h"),
        level=[850],
        weights="cos",
    )
    with xr.open_zarr(out, consolidated=False, chunks=None) as found:
        np.testing.assert_array_equal(found["t"].values, expected["t"].values)
    assert f"{float(expected['t'].sel(metric='rmse', region='global')[0, 0]):.4g}" in text
    code, text = run(places["forecast"], places["reference"], *asked, *kept)
    assert (code, "resume=True" in text) == (1, True)
    code, text = run(places["forecast"], places["reference"], *asked, *kept, "--resume")
    assert code == 0, text


def test_a_plan_alone_and_several_models(places: dict[str, str]) -> None:
    models = [f"a={places['forecast']}", f"b={places['forecast']}"]
    code, text = run(*models, places["reference"], "--dry-run", "--baselines", "persistence")
    assert code == 0
    assert "forecast 'a'" in text
    assert "each once" in text
    code, text = run(*models, places["reference"], "--metrics", "bias")
    assert code == 0
    assert "t 500 b" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "rsme"], "rsme"),
        (["--out", "scores.txt"], "must end in .nc or .zarr"),
        (["--lead-time", "30h"], "30h"),
    ],
)
def test_what_is_wrong_ends_with_a_line(places: dict[str, str], arguments: list[str], message: str) -> None:
    code, text = run(places["forecast"], places["reference"], *arguments)
    assert code == 1
    assert text.startswith("insitu-xr: ")
    assert message in text
    assert "Traceback" not in text
    assert run(places["forecast"])[0] == 1
