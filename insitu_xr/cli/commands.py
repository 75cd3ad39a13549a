"""The commands: what is asked on a command line, as arguments of the library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
import xarray as xr

from insitu_xr import extending
from insitu_xr.cli.describing import describe_dataset
from insitu_xr.errors import InsituError, MissingExtraError, RequestError
from insitu_xr.opening import open_dataset
from insitu_xr.resolving.catalog import Catalog
from insitu_xr.resolving.sampling import time_like
from insitu_xr.sources import without_secrets

app = typer.Typer(
    name="insitu-xr",
    help="Look at datasets, and at what a loader would read of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Argument(help="A path or URL, as insitu_xr.open_dataset takes it.", metavar="URL")]
GroupOption = Annotated[str | None, typer.Option("--group", help="A group within the store.")]
BackendOption = Annotated[str, typer.Option("--backend", help="What reads remote stores: obstore or fsspec.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        help="How to reach the store, such as region=eu-west-1, skip_signature=true or client_options.allow_http=true.",
        metavar="KEY=VALUE",
    ),
]
OpenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", help="An option of the adapter or of xarray, such as branch=main.", metavar="KEY=VALUE"
    ),
]


@app.command()
def info(
    url: Url,
    group: GroupOption = None,
    storage_option: StorageOption = None,
    option: OpenOption = None,
    backend: BackendOption = "obstore",
) -> None:
    """Show variables, dimensions, chunks, shards, codecs, calendar and gaps, and suggest settings."""
    with failing_plainly():
        typer.echo(describe_dataset(_opened(url, group, storage_option, option, backend)))


@app.command()
def plan(
    url: Url,
    variables: Annotated[
        list[str], typer.Option("--variables", "-v", help="Variables to deliver; separated by commas, or repeated.")
    ],
    time: Annotated[
        str | None, typer.Option(help="Labels of the sample dimension: first/last, both inclusive, or one.")
    ] = None,
    leads: Annotated[str | None, typer.Option(help="Lead times, separated by commas, such as -6h,0h.")] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(help="Bounds, such as lat=-10/50,lon=350/10; east across the seam if so written."),
    ] = None,
    sample_dim: Annotated[
        str | None, typer.Option(help="What to draw along; the time-like dimension by default.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.")] = 32,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle in blocks.")] = False,
    memory: Annotated[str | None, typer.Option(help="Ceiling, such as 4GiB.")] = None,
    layout: Annotated[str, typer.Option(help="dict or stacked.")] = "dict",
    group: GroupOption = None,
    storage_option: StorageOption = None,
    option: OpenOption = None,
    backend: BackendOption = "obstore",
) -> None:
    """Show what a loader would read and hold; reads no data."""
    with failing_plainly():
        ds = _opened(url, group, storage_option, option, backend)
        names = [name for given in variables for name in _parts(given)]
        ds = _in_time(_in_region(ds, region or []), names, sample_dim, time)
        asked: dict[str, Any] = {"leads": _parts(leads) if leads else None, "sample_dim": sample_dim, "layout": layout}
        found = ds.insitu.plan(names, batch_size=batch_size, shuffle=shuffle, memory=memory, **asked)
        typer.echo(repr(found))


@contextmanager
def failing_plainly() -> Iterator[None]:
    """End with a line instead of a traceback, and status 1."""
    try:
        yield
    except (InsituError, OSError, ValueError, TypeError, KeyError) as error:
        text = str(error) if isinstance(error, InsituError) else f"{type(error).__name__}: {error}"
        typer.echo(f"insitu-xr: {without_secrets(text)}", err=True)
        raise typer.Exit(1) from None


def _opened(
    url: str, group: str | None, storage: Sequence[str] | None, options: Sequence[str] | None, backend: Any
) -> xr.Dataset:
    given: Any = settings(options or (), "option")
    if taken := sorted({"source", "group", "storage_options", "backend"} & set(given)):
        raise RequestError(f"--option must be of the adapter or of xarray, but got {taken}; these have their own")
    reached = settings(storage or (), "storage-option") or None
    return open_dataset(url, group=group, storage_options=reached, backend=backend, **given)


def settings(given: Sequence[str], thing: str) -> dict[str, Any]:
    """Read ``key=value`` pairs; values are JSON where they can be, and a dot reaches into a mapping.

    Examples
    --------
    >>> settings(["region=eu-west-1", "skip_signature=true", "client_options.allow_http=true"], "storage-option")
    {'region': 'eu-west-1', 'skip_signature': True, 'client_options': {'allow_http': True}}
    """
    found: dict[str, Any] = {}
    for pair in given:
        key, separator, text = pair.partition("=")
        if not key or not separator:
            raise RequestError(f"--{thing} must be KEY=VALUE, but got {key!r}; write it so")
        try:
            value = json.loads(text) if re.fullmatch(r"true|false|null|[\[{].*", text) else text
        except ValueError:
            value = text
        *outer, name = key.split(".")
        target = found
        for part in outer:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise RequestError(f"--{thing} must give {part!r} once, but got a value and parts of it; give one")
        target[name] = value
    return found


def add_commands() -> None:
    """Add the commands of adapters; one whose packages are not installed says so when it is called."""
    for name, entry in extending.commands().items():
        try:
            app.command(name)(extending.loaded(entry))
        except MissingExtraError as error:
            app.command(name, help=str(error), context_settings={"ignore_unknown_options": True})(_refusing(error))


def _refusing(error: MissingExtraError) -> Callable[[list[str] | None], None]:
    def command(anything: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        with failing_plainly():
            raise error

    return command


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _in_region(ds: xr.Dataset, given: Sequence[str]) -> xr.Dataset:
    bounds = [bound for text in given for bound in _parts(text)]
    for bound in bounds:
        match = re.fullmatch(r"(\w+)=([-+.\deE]+)[/:]([-+.\deE]+)", bound)
        if match is None:
            raise RequestError(f"--region must be such as lat=-10/50, but got {bound!r}; write it so")
        dim, first, last = match[1], float(match[2]), float(match[3])
        # Only longitudes are a circle; a person who writes 350/10 means the ten degrees on either side of 0.
        wrap = first > last and dim.lower().startswith("lon")
        ds = ds.insitu.region(wrap=wrap, **{dim: slice(first, last)})
    return ds


def _in_time(ds: xr.Dataset, names: Sequence[str], sample_dim: str | None, given: str | None) -> xr.Dataset:
    if given is None:
        return ds
    catalog = Catalog.of(ds)
    dims = [str(dim) for name in names for dim in catalog[name].dims]
    dim = sample_dim or time_like(ds, list(dict.fromkeys(dims)))[0]
    first, separator, last = given.partition("/")
    try:
        # Slices alone keep the dimension; the ends of a year are found as those of a slice.
        return ds.sel({dim: slice(first or None, (last or None) if separator else first)})
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"--time must be labels of {dim!r} such as 2000/2010, but got {given!r}; there are {ds.sizes[dim]} from "
            f"{ds[dim].to_numpy()[0]} to {ds[dim].to_numpy()[-1]}"
        ) from error
