"""The grid that is scored: what is summed of a field over each of several regions, in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from insitu_xr.errors import RequestError

from .arrays import Array, is_numpy, like, namespace, row_sums
from .grids import digest
from .regions import Shape, resolve_regions
from .weights import resolve_weights


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """Rows and columns that regions lie in with the same shares: one sum along a row serves all of these."""

    rows: range
    columns: np.ndarray | None
    factors: tuple[np.ndarray | None, np.ndarray | None]  # unweighted, weighted: (rows, columns)


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """Grid, weights and regions.

    Attributes
    ----------
    latitude : numpy.ndarray
        Degrees north, ascending.
    longitude : numpy.ndarray
        Degrees east, in the order of the fields.
    names : tuple of str
        Names of the regions.
    identity : str
        Equal where grid, weights and regions are.

    Examples
    --------
    >>> regions = {"all": {}, "nh": {"latitude": slice(0, 90)}}
    >>> domain = Domain.make([-45.0, 45.0], [0.0, 90.0, 180.0, 270.0], regions=regions)
    >>> domain.names
    ('all', 'nh')
    >>> domain.reduce(np.ones((2, 4)), 0).tolist()
    [[4.0, 4.0], [0.0, 4.0]]
    """

    latitude: np.ndarray
    longitude: np.ndarray
    names: tuple[str, ...]
    identity: str
    _bands: tuple[_Band, ...]
    _band_of: np.ndarray  # (region,)
    _rows: tuple[np.ndarray, np.ndarray]  # unweighted, weighted: (region, row)
    _placed: dict[tuple[str, str], Array] = field(default_factory=dict, repr=False)  # on devices

    @classmethod
    def make(cls, latitude: Any, longitude: Any, *, weights: Any = "area", regions: Any = None) -> Domain:
        """Make a domain.

        Parameters
        ----------
        latitude, longitude : array of float
            The grid; latitudes ascend, longitudes are in the order of the fields.
        weights : {"area", "wb2", "cos", "none"}, None, xarray.DataArray or array, optional
            See `resolve_weights`.
        regions : None, str, sequence of str or mapping, optional
            See `resolve_regions`.

        Raises
        ------
        RequestError, UnknownNameError
            If the grid, the weights or the regions break a rule.
        """
        latitude, longitude = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
        for name, axis in (("latitude", latitude), ("longitude", longitude)):
            if axis.ndim != 1 or not len(axis) or not np.isfinite(axis).all():
                raise RequestError(
                    f"{name} must be numbers along one dimension, but got shape {axis.shape}; scores are taken on "
                    "grids of latitudes and longitudes"
                )
        if not (np.diff(latitude) > 0).all() or np.abs(latitude).max() > 90 + 1e-6:
            raise RequestError(
                f"latitude must ascend between -90 and 90, but got {latitude[0]} to {latitude[-1]}; sort it"
            )
        known = resolve_weights(weights, latitude, longitude)
        shapes = resolve_regions(regions, latitude, longitude)
        parts = [known, *(item for shape in shapes.values() for item in shape if item is not None)]
        identity = ",".join([*shapes, *map(digest, (latitude, longitude, *parts))])
        return cls(latitude, longitude, tuple(shapes), digest(np.array([identity])), *_bands(shapes, known))

    @property
    def bands(self) -> int:
        """How many sums along a row serve all regions."""
        return len(self._bands)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latitudes and of longitudes."""
        return len(self.latitude), len(self.longitude)

    @property
    def touched(self) -> slice:
        """Rows from the first to the last that lies in a region."""
        rows = np.flatnonzero(self._rows[False].any(axis=0))
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def reduce(self, values: Array, start: int, *, weighted: bool = True) -> Array:
        """Sum values along each row of each region.

        Parameters
        ----------
        values : array of float64
            ``(*leading, rows, longitude)``.
        start : int
            The first of the rows.
        weighted : bool, optional
            Whether points count by weight; otherwise each inside a region counts one.

        Returns
        -------
        array
            ``(*leading, region, rows)``; 0 in rows outside of a region.
        """
        return self.weigh(self.along_rows(values, start, weighted=weighted), start, weighted=weighted)

    def along_rows(self, values: Array, start: int, *, weighted: bool = True) -> Array:
        """Sum values along rows, as often as regions differ in their columns: ``(*leading, band, rows)``."""
        count = values.shape[-2]
        if len(self._bands) == 1 and self._plain(self._bands[0], weighted):
            return row_sums(values)[..., None, :]
        out = self._filled(values, (*values.shape[:-2], len(self._bands), count), 0.0)
        for number, band in enumerate(self._bands):
            low, high = max(start, band.rows.start), min(start + count, band.rows.stop)
            if low >= high:
                continue
            part = values[..., low - start : high - start, :]
            if band.columns is not None:
                part = part[..., self._beside(f"columns {number}", band.columns, part)]
            if (factor := band.factors[weighted]) is not None:
                inner = slice(low - band.rows.start, high - band.rows.start)
                part = _times(part, self._beside(f"factor {number} {weighted}", factor, part)[inner])
            out[..., number, low - start : high - start] = row_sums(part)
        return out

    def weigh(self, sums: Array, start: int, *, weighted: bool = True, whole: bool = False) -> Array:
        """Weigh sums along rows: ``(*leading, band, rows)`` becomes ``(*leading, region, rows)``.

        Numbers that only whole rows have (``whole``) come without bands, ``(*leading, 1, rows)``; regions that lack a
        part of their rows are missing then.
        """
        weights = self._rows[weighted][:, start : start + sums.shape[-1]]
        if whole:
            plain = np.array([self._plain(band, weighted) for band in self._bands])
            weights = np.where(plain[self._band_of][:, None], weights, np.nan)
        elif len(self._bands) > 1:
            sums = sums[..., self._beside("bands", self._band_of, sums), :]
        here = like(weights, sums)
        weighed = sums * here
        if not weights.all():  # a row outside adds nothing, even where a value is missing in it
            weighed = namespace(sums).where(here != 0, weighed, self._filled(sums, (), 0.0))
        return weighed

    def _beside(self, name: str, known: np.ndarray, values: Array) -> Array:
        """Return an array of the domain where the values are, taking it to a device once."""
        if is_numpy(values):
            return known
        place = (name, str(values.device))
        if place not in self._placed:
            self._placed[place] = like(known, values)
        return self._placed[place]

    def _plain(self, band: _Band, weighted: bool) -> bool:
        return band.columns is None and band.factors[weighted] is None

    def _filled(self, values: Array, shape: tuple[int, ...], value: float) -> Array:
        if is_numpy(values):
            return np.full(shape, value)
        return namespace(values).full(shape, value, dtype=values.dtype, device=values.device)


def _times(values: Array, factor: Array) -> Array:
    """Multiply; what counts nothing is nothing even where it is missing."""
    return namespace(values).where(factor != 0, values * factor, like(np.zeros(()), values))


def _bands(
    shapes: dict[str, Shape], weights: np.ndarray
) -> tuple[tuple[_Band, ...], np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Group regions that can share the sums along their rows: the groups, that of each region, weights of its rows."""
    groups: dict[tuple[str, ...], list[int]] = {}
    kept = list(shapes.values())
    for position, (_, columns, factor) in enumerate(kept):
        key = tuple("" if item is None else digest(item) for item in (columns, factor))
        groups.setdefault(key, []).append(position)
    band_of = np.empty(len(kept), np.intp)
    for number, members in enumerate(groups.values()):
        band_of[members] = number
    bands = tuple(_band([kept[member] for member in members], weights) for members in groups.values())
    inside = np.array([rows for rows, _, _ in kept], np.float64)
    return bands, band_of, (inside, inside * weights if weights.ndim == 1 else inside)


def _band(shapes: list[Shape], weights: np.ndarray) -> _Band:
    touched = np.flatnonzero(np.any([rows for rows, _, _ in shapes], axis=0))
    first, stop = int(touched[0]), int(touched[-1]) + 1
    _, columns, share = shapes[0]
    share = None if share is None else share[first:stop]
    plain = None if share is None else (share > 0).astype(np.float64)
    if weights.ndim == 1:
        return _Band(range(first, stop), columns, (plain, share))
    two = weights[first:stop] if columns is None else weights[first:stop, columns]
    return _Band(range(first, stop), columns, (plain, np.ascontiguousarray(two if share is None else two * share)))
