"""The command ``insitu-xr score``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import xarray as xr

from insitu_xr.errors import InsituError, RequestError
from insitu_xr_adapters.verification.score import score as scored
from insitu_xr_adapters.verification.score import score_plan

#: lead times in the summary, at most
_COLUMNS = 6

Several = Annotated[str | None, typer.Option(metavar="A,B,...")]


def score(
    forecast: Annotated[
        list[str], typer.Argument(help="Paths or URLs of forecasts and, last, of the reference; NAME=URL for several.")
    ],
    metrics: Annotated[
        str, typer.Option("--metrics", "-m", help="Such as rmse,acc,crps,brier:>281.", metavar="A,B,...")
    ] = "rmse,bias,mae",
    variables: Annotated[str | None, typer.Option("--variables", "-v", help="All in common by default.")] = None,
    regions: Annotated[str | None, typer.Option(help="wb2, or names of regions; the globe by default.")] = None,
    climatology: Annotated[str | None, typer.Option(help="Path or URL, for acc and the like.")] = None,
    baselines: Annotated[str | None, typer.Option(help="persistence,climatology")] = None,
    lead_time: Annotated[str | None, typer.Option(help="first/last, both inclusive, or several: 24h,72h.")] = None,
    level: Annotated[str | None, typer.Option(help="Such as 500,850.")] = None,
    weights: Annotated[str, typer.Option(help="auto, area, wb2, cos or none.")] = "auto",
    align: Annotated[str, typer.Option(help="maximize, same_init or same_valid.")] = "maximize",
    nan: Annotated[str, typer.Option(help="raise, mask or propagate.")] = "raise",
    convention: Annotated[str | None, typer.Option(help="wb2, wbx or wmo.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the scores go: a file .nc, or a folder .zarr.")] = None,
    state: Annotated[str | None, typer.Option(help="Where the sums are kept, to resume and to append.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sums that are kept.")] = False,
    new: Annotated[
        bool, typer.Option("--new", help="With --resume: sums of an earlier snapshot stay; read what was added.")
    ] = False,
    memory: Annotated[str | None, typer.Option(help="Ceiling, such as 4GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="Compute with torch there, such as cuda.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan alone; reads no data.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No plan and no bar.")] = False,
) -> None:
    """Score forecasts against a reference, each stored chunk read once."""
    with _failing_plainly():
        models, reference = _given(forecast)
        options: dict[str, Any] = {
            "metrics": _parts(metrics),
            "variables": None if variables is None else _parts(variables),
            "regions": None if regions is None else _parts(regions),
            "climatology": climatology,
            "baselines": _parts(baselines or ""),
            "lead_time": _lead_time(lead_time),
            "level": None if level is None else [_number(p) for p in _parts(level)],
            "weights": weights,
            "align": align,
            "nan": nan,
            "convention": convention,
            "state": state,
            "resume": "new" if resume and new else resume,
            "memory": memory,
            "device": device,
        }
        _check_out(out)
        if dry_run or not quiet:
            typer.echo(repr(score_plan(models, reference, **options)))
        if dry_run:
            return
        scores = scored(models, reference, progress=not quiet, **options)
        if out is not None:
            scores.to_zarr(out, mode="w", consolidated=False) if out.suffix == ".zarr" else scores.to_netcdf(out)
        typer.echo(summary(scores))


@contextmanager
def _failing_plainly() -> Iterator[None]:
    """End with a line instead of a traceback, and status 1."""
    try:
        yield
    except (InsituError, OSError, ValueError, TypeError, KeyError) as error:
        text = str(error) if isinstance(error, InsituError) else f"{type(error).__name__}: {error}"
        # Queries and users of URLs may be secrets.
        typer.echo(f"insitu-xr: {re.sub(r'(?<=//)[^/@ ]*@|[?][^ ]*', '', text)}", err=True)
        raise typer.Exit(1) from None


def _given(places: list[str]) -> tuple[Any, Any]:
    """Forecasts and references, by name where they have one."""
    if len(places) < 2:
        raise RequestError(f"a forecast and a reference must be given, but got {len(places)}; write FORECAST REFERENCE")
    *forecasts, reference = places
    named = [re.fullmatch(r"(\w+)=(.+)", place) for place in forecasts]
    if len(forecasts) == 1 and named[0] is None:
        return forecasts[0], reference
    if None in named:
        raise RequestError("forecasts must have names where there are several, but got some without; write NAME=URL")
    return {m[1]: m[2] for m in named if m is not None}, reference


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> float | int | str:
    try:
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    except ValueError:
        return text


def _lead_time(text: str | None) -> Any:
    if text is None:
        return None
    first, separator, last = text.partition("/")
    return slice(first or None, last or None) if separator else _parts(text)


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix not in (".nc", ".zarr"):
        raise RequestError(f"--out must end in .nc or .zarr, but got {str(out)!r}; name one of these")


def summary(scores: xr.Dataset) -> str:
    """Scores of the first region at some lead times, as a table.

    Examples
    --------
    >>> lead = np.array([0, 24], "m8[h]").astype("m8[ns]")
    >>> labels = {"metric": ["rmse"], "region": ["global"], "lead_time": lead}
    >>> array = xr.DataArray([[[1.0, 2.0]]], labels, [*labels])
    >>> print(summary(xr.Dataset({"t2m": array})))
    global  0h  24h
    t2m
      rmse  1   2
    """
    chosen = np.unique(np.linspace(0, scores.sizes["lead_time"] - 1, _COLUMNS).round().astype(int))
    ds = scores.isel(lead_time=chosen)
    hours = ds["lead_time"].values / np.timedelta64(1, "h")
    rows = [[str(ds["region"].values[0]), *(f"{h:g}h" for h in hours)]]
    for name, array in ds.data_vars.items():
        if "metric" not in array.dims:
            continue
        rest = [d for d in array.dims if d not in ("metric", "region", "lead_time")]
        for index in np.ndindex(*(array.sizes[d] for d in rest)):
            one = array.isel(region=0).isel(dict(zip(rest, index, strict=True)))
            labels = [str(one[d].values) if d in one.coords else str(k) for d, k in zip(rest, index, strict=True)]
            rows.append([" ".join([str(name), *labels])])
            named = one["metric"].values.tolist()
            rows += [[f"  {metric}", *(f"{v:.4g}" for v in one.sel(metric=metric).values)] for metric in named]
    widths = [max((len(row[k]) for row in rows if len(row) > k), default=0) for k in range(len(rows[0]))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join(lines)
