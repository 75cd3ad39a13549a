"""What the sources share: opening, describing, reading, planning, and their life."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from tqdm import tqdm

from insitu_xr.errors import RequestError
from insitu_xr_adapters.earth2studio import bridging
from insitu_xr_adapters.earth2studio.accumulating import accumulation
from insitu_xr_adapters.earth2studio.described import describe
from insitu_xr_adapters.earth2studio.fetching import Filling, Part, parts_of, report_missing
from insitu_xr_adapters.earth2studio.lexicons import Field, Finder, lexicon_of
from insitu_xr_adapters.earth2studio.origins import Origin
from insitu_xr_adapters.earth2studio.planning import Campaign, campaign
from insitu_xr_adapters.earth2studio.reading import Readers
from insitu_xr_adapters.earth2studio.times import Labels, as_names, as_times

#: tries of a read that readers make by themselves
_TRIES = 3


class Source:
    """What sources of analyses and of forecasts share."""

    _FORECAST = False

    def __init__(
        self,
        source: Any = None,
        lexicon: Any = "auto",
        *,
        url: str | None = None,
        repo: str | None = None,
        group: str | Sequence[str] | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        member: Any = None,
        accumulations: Mapping[str, Any] | None = None,
        memory: int | str | None = None,
        missing: Literal["warn", "raise", "ignore"] = "warn",
        cache: bool = True,
        verbose: bool = True,
        async_timeout: float | None = 600,
        async_workers: int | None = None,
        retries: int = 3,
        computed: Literal["raise", "load"] = "raise",
    ) -> None:
        one_of("missing", missing, ("warn", "raise", "ignore"))
        if async_timeout is not None and not async_timeout > 0:
            raise RequestError(
                f"async_timeout must be a positive number of seconds, but got {async_timeout!r}; give one, or None"
            )
        opening = {"branch": branch, "tag": tag, "snapshot": snapshot, "storage_options": storage_options}
        self._origin = Origin.of(source, url=url, repo=repo, group=group, **opening)
        self._lexicon, self._member, self._accumulations = lexicon, member, dict(accumulations or {})
        self._memory, self._missing, self._computed = memory, missing, computed
        self._cache, self._verbose, self._retries = cache, verbose, retries
        self.async_timeout, self.async_workers = async_timeout, async_workers
        self._open()

    def _open(self) -> None:
        self._lock, self._tmp = threading.Lock(), f"tmp_insitu_{uuid.uuid4().hex[:8]}"
        self._opened: tuple[int, Readers] | None = None
        ds = self._origin.open()
        self._pinned = self._origin.pinned(ds)
        self._described = describe(ds, forecast=self._FORECAST, member=self._member)
        summed = {name: accumulation(name, given) for name, given in self._accumulations.items()}
        self._finder = Finder(lexicon_of(self._lexicon), self._described, summed, {})

    def __getstate__(self) -> dict[str, Any]:
        left = ("_lock", "_opened", "_described", "_finder", "_tmp", "_da", "variables")
        return {name: value for name, value in self.__dict__.items() if name not in left} | {"_origin": self._pinned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        described = self._described
        lead = [] if described.lead is None else [f"  lead time  {described.lead}"]
        grid = f"{' x '.join(map(str, described.grid.shape))} ({', '.join(described.grid.names)})"
        return "\n".join([f"<{type(self).__name__}>", f"  time       {described.time}", *lead, f"  grid       {grid}"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- what there is -------------------------------------------------------------------------------------------

    @cached_property
    def variables(self) -> list[str]:
        """Variables of Earth2Studio that can be asked for."""
        return self._finder.names()

    @property
    def time_step(self) -> np.timedelta64 | None:
        """Time between samples, of valid times or lead times; None where it is not the same for all."""
        axis = self._described.lead if self._described.lead is not None else self._described.time
        return axis.step

    @cached_property
    def _da(self) -> xr.DataArray:
        """All that can be asked for, with labels and without values: Earth2Studio's recipes look up times in it."""
        described = self._described
        labels = {"time": described.time.labels}
        if described.lead is not None:
            labels["lead_time"] = described.lead.labels
        labels["variable"] = np.array(self.variables)
        shape = (*(len(values) for values in labels.values()), *described.grid.shape)
        empty = np.broadcast_to(np.float32(np.nan), shape)
        return xr.DataArray(empty, {**labels, **described.grid.coords}, (*labels, *described.grid.names))

    def available(self, time: Any) -> bool:
        """Whether there is data for a time, or for all of several.

        Examples
        --------
        >>> import datetime as dt
        >>> times = np.array(["2020-01-01T00", "2020-01-01T06"], "M8[ns]")
        >>> ds = xr.Dataset({"t2m": (("time", "lat", "lon"), np.zeros((2, 2, 2), "f4"))},
        ...                 {"time": times, "lat": [45.0, -45.0], "lon": [0.0, 180.0]})
        >>> source = ds.insitu.to("earth2studio")
        >>> source.available(dt.datetime(2020, 1, 1, 6)), source.available(np.datetime64("2020-01-01T03"))
        (True, False)
        """
        try:
            return bool(self._described.time.has(as_times(time)).all())
        except RequestError:
            return False

    @property
    def cache(self) -> str:
        """Directory of this source under that of Earth2Studio; one of its own where ``cache`` is False."""
        root = os.environ.get("EARTH2STUDIO_CACHE", str(Path.home() / ".cache" / "earth2studio"))
        place = Path(os.environ.get("EARTH2STUDIO_DATA_CACHE", root)) / "insitu"
        return str(place if self._cache else place / self._tmp)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def _readers(self) -> Readers:
        """Readers of this process; a forked one opens its own."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                options = {"computed": self._computed, "max_inflight": self.async_workers}
                self._opened = (os.getpid(), Readers(self._described, self._memory, options))
            return self._opened[1]

    def close(self) -> None:
        """Let go of memory and threads; asking again opens them again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    def _fields(self, variable: Any) -> list[Field]:
        return [self._finder.find(name) for name in as_names(variable)]

    async def _filled(
        self, labels: tuple[Labels, ...], fields: Sequence[Field], parts: Sequence[Part], *, offload: bool
    ) -> npt.NDArray[np.float32]:
        rows = len(labels[0])
        out = np.empty((rows, len(fields), *self._described.grid.shape), np.float32)
        filling = Filling(self._described, self._readers, out, offload, max(0, self._retries - _TRIES))
        with tqdm(
            total=rows * len(fields), desc="Reading in place", unit="field", delay=1, disable=not self._verbose
        ) as progress:
            await filling.fill(fields, parts, progress)
        report_missing(filling.missing(fields), fields, labels, self._missing)
        return out

    def _waiting(self, labels: tuple[Labels, ...], fields: Sequence[Field]) -> npt.NDArray[np.float32]:
        """Read and wait, whatever loop may be running on this thread."""
        parts = parts_of(self._described, fields, labels)
        with self._directory():
            return bridging.run(lambda: self._filled(labels, fields, parts, offload=False), self.async_timeout)

    def _window(self, times: Labels, leads: Labels, variable: Any) -> xr.DataArray:
        """Read ``[time, lead_time, variable, ...]`` at once and wait for it."""
        fields, rows = self._fields(variable), product(times, leads)
        labels = rows if self._FORECAST else (rows[0] + rows[1],)
        return self._array(self._waiting(labels, fields), {"time": times, "lead_time": leads}, fields)

    async def _awaited(self, labels: tuple[Labels, ...], fields: Sequence[Field]) -> npt.NDArray[np.float32]:
        parts = parts_of(self._described, fields, labels)
        with self._directory():
            return await self._filled(labels, fields, parts, offload=True)

    @contextmanager
    def _directory(self) -> Iterator[None]:
        Path(self.cache).mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            if not self._cache:
                shutil.rmtree(self.cache, ignore_errors=True)

    def _array(
        self, out: npt.NDArray[np.float32], labels: Mapping[str, Labels], fields: Sequence[Field]
    ) -> xr.DataArray:
        grid = self._described.grid
        every = {**labels, "variable": np.array([one.variable for one in fields])}
        data = out.reshape(*(len(values) for values in every.values()), *grid.shape)
        return xr.DataArray(data, {**every, **grid.coords}, (*every, *grid.names))

    def _planned(self, labels: Sequence[tuple[Labels, ...]], variable: Any, memory: Any) -> Campaign:
        fields = self._fields(variable)
        return campaign(self._readers, [parts_of(self._described, fields, some) for some in labels], memory)


def product(times: Labels, leads: Labels) -> tuple[Labels, Labels]:
    """Every time with every lead time, row by row."""
    return np.repeat(times, len(leads)), np.tile(leads, len(times))


def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse an argument that is none of those that there are."""
    if value not in known:
        raise RequestError(f"{name} must be one of {list(known)}, but got {value!r}; give one of them")
