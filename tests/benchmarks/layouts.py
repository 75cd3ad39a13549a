"""The stores that are measured: fields as ERA5 has them, in layouts that people use."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec

_DIMS = ("time", "latitude", "longitude")


@dataclass(frozen=True, slots=True)
class Layout:
    """One store: 6-hourly float32 fields on a grid."""

    name: str
    steps: int
    grid: tuple[int, int]
    chunks: tuple[int, int, int]
    shards: tuple[int, int, int] | None = None
    variables: int = 1
    codec: Literal["zstd", "blosc", "none"] = "zstd"

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The layout that JSON holds."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items()}
        return cls(**fields)

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [f"v{k}" for k in range(self.variables)]

    @property
    def unit(self) -> int:
        """Steps in a stored object."""
        return (self.shards or self.chunks)[0]

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return 4 * self.variables * self.steps * math.prod(self.grid)

    @property
    def title(self) -> str:
        """The layout in words."""
        inner = " x ".join(map(str, self.chunks))
        text = (
            f"shards of {' x '.join(map(str, self.shards))}, chunks of {inner}" if self.shards else f"chunks of {inner}"
        )
        fields = f"{self.variables} variable{'s' if self.variables > 1 else ''}"
        return f"{fields}, {self.steps} x {self.grid[0]} x {self.grid[1]}, {text}, {self.codec}"

    def scaled(self, scale: float) -> Layout:
        """As many whole stored objects along time as the scale asks for, two at least."""
        return replace(self, steps=self.unit * max(2, round(self.steps * scale / self.unit)))

    def small(self) -> Layout:
        """The same layout on a ninth of the grid in either direction, of 40 steps or two stored objects."""
        full = LAYOUTS.get(self.name, REMOTE)
        if self.grid != full.grid:
            return self

        def ninth(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(-(-size // 9) for size in sizes)

        chunks = (self.chunks[0], *ninth(self.chunks[1:]))
        shards = None if self.shards is None else (self.shards[0], *ninth(self.shards[1:]))
        steps = self.unit * max(2, -(-40 // self.unit))
        return replace(self, steps=steps, grid=ninth(self.grid), chunks=chunks, shards=shards)  # type: ignore[arg-type]


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("arco", 96, (721, 1440), (1, 721, 1440)),
        Layout("fat", 8000, (32, 64), (100, 32, 64), variables=5),
        Layout("tiled", 128, (720, 1440), (16, 45, 90)),
        Layout("sharded", 128, (720, 1440), (1, 180, 360), (32, 720, 1440)),
        Layout("blosc", 48, (721, 1440), (6, 121, 240), variables=3, codec="blosc"),
    )
}
#: a megabyte to a chunk and nothing to decode: what a transfer costs
REMOTE = Layout("remote", 300, (500, 500), (1, 500, 500), codec="none")


def write(layout: Layout, folder: Path) -> Path:
    """Write the store of a layout unless it is there, and return its path."""
    path = folder / f"{layout.name}-{layout.steps}x{layout.grid[0]}.zarr"
    if path.exists():
        return path
    partial = path.with_suffix(".partial")  # so that a store is whole where it is found
    group = zarr.create_group(partial, overwrite=True)
    _axes(group, layout)
    compressors: Any = {"zstd": "auto", "blosc": BloscCodec(cname="lz4", shuffle="shuffle"), "none": None}[layout.codec]
    for number, name in enumerate(layout.names):
        array = group.create_array(
            name,
            shape=(layout.steps, *layout.grid),
            dtype="f4",
            chunks=layout.chunks,
            shards=layout.shards,
            compressors=compressors,
            dimension_names=_DIMS,
        )
        fields = Fields(layout.grid, seed=number)
        for start in range(0, layout.steps, layout.unit):
            stop = min(start + layout.unit, layout.steps)
            array[start:stop] = np.stack([fields.at(step) for step in range(start, stop)])
    with warnings.catch_warnings():  # zarr says that other libraries may not read consolidated metadata
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(partial)
    return partial.rename(path)


def _axes(group: zarr.Group, layout: Layout) -> None:
    values: dict[str, tuple[npt.NDArray[Any], dict[str, Any]]] = {
        "time": (6 * np.arange(layout.steps), {"units": "hours since 2000-01-01", "calendar": "proleptic_gregorian"}),
        "latitude": (np.linspace(90, -90, layout.grid[0]), {"units": "degrees_north"}),
        "longitude": (np.arange(layout.grid[1]) * 360 / layout.grid[1], {"units": "degrees_east"}),
    }
    for name, (labels, attributes) in values.items():
        array = group.create_array(
            name, shape=labels.shape, dtype=labels.dtype, dimension_names=(name,), attributes=attributes
        )
        array[...] = labels


class Fields:
    """Temperatures with a meridional gradient, waves that travel, weather and noise, to a hundredth of a kelvin.

    They compress about as well as real fields do. A few random fields are drawn once and shifted, which is cheap.
    """

    def __init__(self, grid: tuple[int, int], seed: int) -> None:
        random = np.random.default_rng(seed)
        rows, columns = grid
        latitude = np.linspace(np.pi / 2, -np.pi / 2, rows, dtype="f4")[:, None]
        self._longitude = np.linspace(0, 2 * np.pi, columns, endpoint=False, dtype="f4")[None]
        self._mean = 240 + 55 * np.cos(latitude) ** 2
        self._envelope = 6 * np.cos(latitude)
        coarse = random.normal(scale=3, size=(-(-rows // 12), -(-columns // 12))).astype("f4")
        self._weather = np.repeat(np.repeat(coarse, 12, 0), 12, 1)[:rows, :columns]
        self._noise = random.normal(scale=0.05, size=(7, rows, columns)).astype("f4")

    def at(self, step: int) -> npt.NDArray[np.float32]:
        """The field at a step; no two are alike."""
        waves = self._envelope * np.sin(4 * self._longitude - 0.17 * step)
        field = self._mean + waves + np.roll(self._weather, step, axis=1)
        field += np.roll(self._noise[step % len(self._noise)], 31 * step, axis=1)
        rounded: npt.NDArray[np.float32] = np.round(field, 2).astype("f4")
        return rounded
