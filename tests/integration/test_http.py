"""A server of files: read by ranges, counted by the server, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import xarray as xr

import insitu_xr
from insitu_xr.errors import ForbiddenError, NotFoundError, NotZarrError, OpenError
from insitu_xr.testing import assert_batches_equal
from insitu_xr.testing.serving import Served, serve
from tests.integration.matrix import CHECKS, check_counts, weather, write

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = {"retry_config": {"max_retries": 0}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    write(folder / "t2m.zarr")
    shards = {"t2m": {"chunks": (2, 3, 4), "shards": (8, 6, 8)}}
    with pytest.warns(UserWarning, match="Consolidated metadata is currently not part"):
        weather()[["t2m"]].to_zarr(folder / "sharded.zarr", encoding=shards, zarr_format=3, consolidated=True)
    weather()[["t2m"]].to_zarr(folder / "unlisted.zarr", consolidated=False)
    (folder / "page").mkdir()
    (folder / "page" / "index").write_text("hello")
    with serve(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def _recovered(server: Served) -> Iterator[None]:
    yield
    server.recover()


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_reading(server: Served, backend: Any, name: str) -> None:
    CHECKS[name](insitu_xr.open_dataset(f"{server.url}/t2m.zarr", backend=backend))


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_the_server_is_asked_once_for_each_chunk(server: Served, backend: Any) -> None:
    def asked() -> Counter[str]:
        counts = server.counts()
        assert counts.heads == 0
        return Counter({f"request {k}": 1 for k in range(counts.gets)})

    check_counts(insitu_xr.open_dataset(f"{server.url}/t2m.zarr", backend=backend), asked, server.reset)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_shards_are_read_by_ranges(server: Served, backend: Any) -> None:
    ds = insitu_xr.open_dataset(f"{server.url}/sharded.zarr", backend=backend)
    part = ds.isel(time=slice(2, 12), lat=slice(0, 3), lon=slice(0, 4))
    with part.insitu.loader(variables=["t2m"], batch_size=4) as loader:
        server.reset()
        batches = list(loader)
        counts = server.counts()
    assert counts.gets == counts.ranged > 0
    assert counts.bytes_sent < ds["t2m"].nbytes / 2
    assert_batches_equal(batches, part, sample_dim="time", variables=["t2m"])


def test_opening_costs_few_requests(server: Served) -> None:
    server.reset()
    insitu_xr.open_dataset(f"{server.url}/sharded.zarr")
    counts = server.counts()
    # One that finds the metadata, the metadata, and the labels of three dimensions; times are looked at three times.
    assert (counts.heads, counts.gets) == (1, 1 + 3 + 2)


def test_the_version_is_what_the_server_says(server: Served) -> None:
    source = insitu_xr.open_dataset(f"{server.url}/t2m.zarr").insitu.source
    assert source.url == f"{server.url}/t2m.zarr"
    assert source["last_modified"] == "2000-01-01T00:00:00+00:00"
    assert source["size"] > 100


def test_secrets_of_a_url_are_not_shown(server: Served) -> None:
    url = f"{server.url.replace('//', '//me:PASSWORD@')}/t2m.zarr?sig=SIGNATURE"
    ds = insitu_xr.open_dataset(url)
    shown = repr(ds.insitu.source) + ds.insitu.split(fractions=(0.5, 0.5)).to_json()
    server.fail("t2m.zarr", 403)
    with pytest.raises(ForbiddenError) as caught:
        insitu_xr.open_dataset(url)
    shown += str(caught.value) + str(caught.value.__cause__)
    assert "PASSWORD" not in shown
    assert "SIGNATURE" not in shown
    assert ds.insitu.source.url == f"{server.url}/t2m.zarr"


def test_what_cannot_be_listed_must_be_consolidated(server: Served) -> None:
    with pytest.raises(NotZarrError, match=r"unlisted\.zarr' without that.*zarr\.consolidate_metadata"):
        insitu_xr.open_dataset(f"{server.url}/unlisted.zarr")


def test_nothing_there(server: Served) -> None:
    with pytest.raises(NotFoundError, match=r"/nope\.zarr', where there is none"):
        insitu_xr.open_dataset(f"{server.url}/nope.zarr")


def test_something_else_there(server: Served) -> None:
    with pytest.raises(NotZarrError, match=r"/page/index', which has no zarr\.json"):
        insitu_xr.open_dataset(f"{server.url}/page/index")


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("status", [401, 403])
def test_forbidden(server: Served, backend: Any, status: int) -> None:
    server.fail("t2m.zarr", status)
    with pytest.raises(ForbiddenError, match=rf"t2m\.zarr', but the store refused \(.*{status}"):
        insitu_xr.open_dataset(f"{server.url}/t2m.zarr", backend=backend)


def test_what_is_refused_is_looked_for_under_other_names(server: Served) -> None:
    server.fail(r"t2m\.zarr/zarr\.json", 403)
    ds = insitu_xr.open_dataset(f"{server.url}/t2m.zarr")
    assert list(ds.data_vars) == ["lsm", "t2m", "z"]


def test_a_server_that_fails(server: Served) -> None:
    server.fail("t2m.zarr", 500)
    with pytest.raises(OpenError, match=r"store must answer to open .*t2m\.zarr'.*500"):
        insitu_xr.open_dataset(f"{server.url}/t2m.zarr", storage_options=FAST)


def test_no_server() -> None:
    with serve({}) as server:
        url = server.url
    with pytest.raises(OpenError, match="check the address and the connection"):
        insitu_xr.open_dataset(f"{url}/t2m.zarr", storage_options=FAST)


def test_datasets_of_one_store_have_one_source(server: Served) -> None:
    first = xr.open_zarr(server.store("t2m.zarr"), chunks=None)
    second = insitu_xr.open_dataset(f"{server.url}/sharded.zarr")
    assert insitu_xr.join({"a": first, "b": first}).source.url == f"{server.url}/t2m.zarr"
    several = insitu_xr.join({"a": first, "b": second}).source
    assert several.kind == "several"
    assert [source.url for source in several["sources"]] == [f"{server.url}/{n}.zarr" for n in ("t2m", "sharded")]
    assert f"{server.url}/sharded.zarr" in repr(several)
