"""Weather that moves, made up: a few hundred megabytes of it, the same for the same seed.

Planetary waves travel around the sphere with the speeds of Rossby and Haurwitz, each with an amplitude that forgets
itself within days, so that they can be forecast for about as long. They bend jets, and the wind of both carries
temperature along (semi-Lagrangian, across the poles as well), which relaxes to a climate with seasons, days, land and
sea. Heights follow from the wind by balance. Sharp fronts, growing errors and a climate to fall back on come with it.

``python -m examples.finetune.weather PATH`` writes it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

Array = np.ndarray[Any, np.dtype[Any]]

RADIUS, OMEGA, DAY = 6.371e6, 7.292e-5, 86_400.0
STEP = 6 * 3600.0
SPIN_UP = 60  # steps that are thrown away
STEPS_PER_CHUNK = 8
MEMORY = 8 * DAY  # of the amplitude of a wave
WAVENUMBERS = np.arange(1, 9)

#: by level: geopotential (m2 s-2), speed of the jets (m s-1), strength of the waves (m s-1), temperature (K)
ATMOSPHERE = {
    300: (90_000.0, 30.0, 26.0, 228.0),
    500: (55_000.0, 20.0, 20.0, 252.0),
    850: (14_500.0, 9.0, 12.0, 275.0),
}


@dataclass(frozen=True)
class Weather:
    """What to make: the grid, the levels, and how many steps of six hours."""

    n_lat: int
    n_lon: int
    levels: tuple[int, ...]
    steps: int
    seed: int = 0
    start: str = "2001-01-01"

    @cached_property
    def lat(self) -> Array:
        """Latitudes of the middles of cells, from north to south."""
        return 90 - (np.arange(self.n_lat) + 0.5) * 180 / self.n_lat

    @cached_property
    def lon(self) -> Array:
        """Longitudes, from 0 eastwards."""
        return np.arange(self.n_lon) * 360 / self.n_lon

    @cached_property
    def phi(self) -> Array:
        """Latitudes as an angle, along an axis of their own."""
        return np.deg2rad(self.lat)[:, None]

    @cached_property
    def time(self) -> pd.DatetimeIndex:
        """The times of all steps."""
        return pd.date_range(self.start, periods=self.steps, freq="6h")

    @property
    def nbytes(self) -> int:
        """Bytes of all fields."""
        return 4 * self.steps * self.n_lat * self.n_lon * (4 * len(self.levels) + 1)


SMALL = Weather(16, 32, (500, 850), 240)
FULL = Weather(48, 96, (300, 500, 850), 2200)


class Waves:
    """Travelling waves on both hemispheres; each forgets its amplitude, and gets another one at random."""

    def __init__(self, weather: Weather, rng: np.random.Generator) -> None:
        self.weather, self.rng = weather, rng
        place = (np.abs(weather.phi[:, 0]) - np.deg2rad(45)) / np.deg2rad(16)
        envelope = np.exp(-0.5 * place**2) * np.cos(weather.phi[:, 0])
        north = weather.phi[:, 0] > 0
        shapes = [envelope * bump * side for bump in (np.ones_like(place), place) for side in (north, ~north)]
        self.shapes = np.array(shapes)  # (shape, lat)
        nodes = np.array([0, 0, 1, 1])  # that each shape has between the pole and the equator
        total = WAVENUMBERS[:, None] + 2 + nodes
        # Carried eastwards by the mean flow, and westwards the more the longer they are.
        carried = 4.0e-6
        self.turning = WAVENUMBERS[:, None] * (carried - 2 * (OMEGA + carried) / (total * (total + 1)))
        strength = np.exp(-0.5 * ((WAVENUMBERS - 5) / 2.5) ** 2)[:, None]
        self.strength = np.broadcast_to(strength / WAVENUMBERS[:, None], self.turning.shape)
        self.amplitude = self.strength * self._noise()

    def _noise(self) -> Array:
        parts = self.rng.normal(size=(2, *self.turning.shape))
        noise: Array = (parts[0] + 1j * parts[1]) / np.sqrt(2)
        return noise

    def move(self, seconds: float) -> None:
        """Let time go by."""
        kept = np.exp(-seconds / MEMORY)
        self.amplitude = self.amplitude * kept * np.exp(-1j * self.turning * seconds)
        self.amplitude = self.amplitude + np.sqrt(1 - kept**2) * self.strength * self._noise()

    def winds(self) -> tuple[Array, Array, Array]:
        """Streamfunction and wind of every level, each ``(level, lat, lon)``."""
        weather = self.weather
        waves = self.amplitude @ self.shapes  # (wavenumber, lat)
        spectrum = np.zeros((len(weather.levels), weather.n_lat, weather.n_lon // 2 + 1), complex)
        for k, level in enumerate(weather.levels):
            # Waves lean westwards with height, as those do that grow.
            lean = np.exp(1j * WAVENUMBERS * (850 - level) / 850 * 0.5)[:, None]
            spectrum[k, :, WAVENUMBERS] = ATMOSPHERE[level][2] * lean * waves
        to_grid = weather.n_lon * 0.5 * 0.9 * RADIUS / 2.2
        psi = to_grid * np.fft.irfft(spectrum, weather.n_lon)
        east = to_grid * np.fft.irfft(spectrum * 1j * np.arange(spectrum.shape[-1]), weather.n_lon)
        jets = np.array([ATMOSPHERE[level][1] for level in weather.levels])[:, None, None]
        u = jets * (np.sin(2 * weather.phi) ** 2 - 0.12) * np.cos(weather.phi)
        steps = np.gradient(weather.phi[:, 0])[:, None]
        mean_psi = -RADIUS * np.cumsum(u * steps, axis=1)
        v = east / (RADIUS * np.cos(weather.phi))
        u = u - np.gradient(psi, weather.phi[:, 0], axis=1) / RADIUS
        return psi + mean_psi - mean_psi.mean(axis=1, keepdims=True), u, v


class Carrying:
    """Fields carried by the wind: where a parcel came from, and what was there, by cubic interpolation."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        phi, lam = np.broadcast_arrays(weather.phi, np.deg2rad(weather.lon))
        self.here = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
        self.east = np.stack([-np.sin(lam), np.cos(lam), np.zeros_like(lam)])
        self.north = np.stack([-np.sin(phi) * np.cos(lam), -np.sin(phi) * np.sin(lam), np.cos(phi)])

    def carry(self, fields: Array, u: Array, v: Array, seconds: float) -> Array:
        """Fields ``(field, lat, lon)`` after a while, each with a wind of its own."""
        weather = self.weather
        moved = self.east[:, None] * u + self.north[:, None] * v
        came = self.here[:, None] - moved * (seconds / RADIUS)
        came /= np.sqrt(np.square(came).sum(axis=0))
        row = (90 - np.rad2deg(np.arcsin(np.clip(came[2], -1, 1)))) * weather.n_lat / 180 - 0.5
        column = np.rad2deg(np.arctan2(came[1], came[0])) % 360 * weather.n_lon / 360
        return self._interpolated(fields, row, column)

    def _interpolated(self, fields: Array, row: Array, column: Array) -> Array:
        weather = self.weather
        # Beyond a pole lies the other side of the globe.
        over = np.roll(fields, weather.n_lon // 2, axis=2)
        wide = np.concatenate([over[:, 1::-1], fields, over[:, :-3:-1]], axis=1)
        wide = np.concatenate([wide[..., -2:], wide, wide[..., :3]], axis=2)
        i, j = np.floor(row).astype(int), np.floor(column).astype(int)
        rows, columns = _cubic(row - i), _cubic(column - j)
        flat, n = wide.reshape(len(wide), -1), wide.shape[2]
        found = np.zeros_like(fields)
        for a in range(4):
            for b in range(4):
                places = ((i + a + 1) * n + j + b + 1).reshape(len(wide), -1)
                found += rows[a] * columns[b] * np.take_along_axis(flat, places, 1).reshape(fields.shape)
        return found


def _cubic(part: Array) -> tuple[Array, Array, Array, Array]:
    """Weights of the points at -1, 0, 1 and 2 for a place between 0 and 1: Lagrange's."""
    before, after, far = part + 1, part - 1, part - 2
    return (
        -part * after * far / 6,
        before * after * far / 2,
        -before * part * far / 2,
        before * part * after / 6,
    )


def land(weather: Weather, rng: np.random.Generator) -> Array:
    """Continents: where a smooth random field is high, softened at the coasts."""
    lam = np.deg2rad(weather.lon)
    field = sum(
        rng.normal() * np.cos(m * lam + rng.uniform(0, 6.3)) * np.cos(n * weather.phi + rng.uniform(0, 6.3)) / (m + n)
        for m in range(1, 5)
        for n in range(1, 5)
    )
    mask: Array = 1 / (1 + np.exp(-6 * (field - np.quantile(field, 0.65)) / np.std(field)))
    return mask


@dataclass(frozen=True)
class Climate:
    """What temperature relaxes to."""

    weather: Weather
    lsm: Array

    def at(self, seconds: float) -> Array:
        """Temperature ``(level and surface, lat, lon)`` without any wind, so long after the start."""
        phi, lam = self.weather.phi, np.deg2rad(self.weather.lon)
        season = 12 * np.sin(phi) * -np.cos(2 * np.pi * seconds / (365.25 * DAY))
        air = [
            ATMOSPHERE[level][3] + 38 * (np.cos(phi) ** 2 - 0.6) * level / 850 + season * level / 1000 + 0 * lam
            for level in self.weather.levels
        ]
        day = 5 * np.cos(2 * np.pi * seconds / DAY + lam - np.pi) * np.cos(phi)
        surface = 284 + 46 * (np.cos(phi) ** 2 - 0.6) + season * (0.5 + self.lsm) + day * self.lsm
        return np.stack([*air, surface])


def fields_of(weather: Weather) -> Iterator[dict[str, Array]]:
    """Give the fields of one step after the other."""
    rng = np.random.default_rng(weather.seed)
    climate = Climate(weather, land(weather, rng))
    waves, carrying = Waves(weather, rng), Carrying(weather)
    n = len(weather.levels)
    wind = [*range(n), n - 1]  # the surface goes with the lowest level
    slow = np.array([*[12 * DAY] * n, 3 * DAY])[:, None, None]
    temperature = climate.at(-SPIN_UP * STEP)
    heights = np.array([ATMOSPHERE[level][0] for level in weather.levels])[:, None, None]
    for step in range(-SPIN_UP, weather.steps):
        psi, u, v = waves.winds()
        if step >= 0:
            z = heights + 2 * OMEGA * np.sin(weather.phi) * psi
            yield {"z": z, "t": temperature[:n], "u": u, "v": v, "t2m": temperature[n]}
        # Carried for a whole step by the wind in its middle.
        waves.move(STEP / 2)
        _, u, v = waves.winds()
        waves.move(STEP / 2)
        temperature = carrying.carry(temperature, u[wind], v[wind], STEP)
        temperature += (climate.at((step + 1) * STEP) - temperature) * (STEP / slow)


UNITS = {"z": "m2 s-2", "t": "K", "u": "m s-1", "v": "m s-1", "t2m": "K"}


def dataset_of(weather: Weather, first: int, fields: list[dict[str, Array]]) -> xr.Dataset:
    """Some steps as a Dataset."""
    grid = ("latitude", "longitude")
    dims = {name: ("time", *(["level"] if name != "t2m" else []), *grid) for name in UNITS}
    variables = {
        name: (dims[name], np.stack([f[name] for f in fields]).astype("f4"), {"units": units})
        for name, units in UNITS.items()
    }
    lsm = land(weather, np.random.default_rng(weather.seed)).astype("f4")
    coords = {"latitude": weather.lat, "longitude": weather.lon, "level": list(weather.levels)}
    time = weather.time[first : first + len(fields)]
    return xr.Dataset(variables | {"lsm": (grid, lsm, {"units": "1"})}, {"time": time, **coords})


def write(weather: Weather, path: Path) -> None:
    """Write a Zarr store, in blocks, so that little is in memory at once; renamed into place when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial, block = Path(folder) / path.name, []
        for step, fields in enumerate(fields_of(weather)):
            block.append(fields)
            if len(block) == 10 * STEPS_PER_CHUNK or step == weather.steps - 1:
                _append(dataset_of(weather, step + 1 - len(block), block), partial)
                block = []
        partial.rename(path)


def _append(dataset: xr.Dataset, path: Path) -> None:
    if path.exists():
        dataset.drop_vars("lsm").to_zarr(path, append_dim="time", consolidated=False)
        return
    chunks = {name: [STEPS_PER_CHUNK, *dataset[name].shape[1:]] for name in UNITS}
    encoding: dict[str, Any] = {name: {"chunks": shape} for name, shape in chunks.items()}
    encoding["time"] = {"units": "hours since 2001-01-01", "dtype": "int64", "chunks": [100_000]}
    dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)


if __name__ == "__main__":
    write(FULL, Path(sys.argv[1]))
    print(f"Wrote {sys.argv[1]}: {FULL.nbytes / 1e6:.0f} MB")
