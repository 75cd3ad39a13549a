"""Files read past zarr's local store: what the store gives, and what it says of what is not there."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from insitu_xr.engine._zarr import StoredArray
from insitu_xr.engine.fetch import Fetched, ShortReadError, ZarrSource
from insitu_xr.engine.local import LocalFiles
from tests.engine.flipping import Flip

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = bytes(range(200))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    (path / "a" / "c").mkdir(parents=True)
    (path / "a" / "c" / "0").write_bytes(CONTENT)
    (path / "a" / "empty").write_bytes(b"")
    return path


#: there, empty, absent, a folder, below a file, in a folder that is absent
KEYS = ["a/c/0", "a/empty", "a/c/1", "a/c", "a/c/0/1", "b/c/0"]


def held(store: LocalStore, key: str, byte_range: Any = None) -> bytes | None:
    value = store.get_sync(key, prototype=default_buffer_prototype(), byte_range=byte_range)
    return None if value is None else value.to_bytes()


@pytest.mark.parametrize("key", KEYS)
def test_a_file_is_what_the_store_gives(folder: Path, key: str) -> None:
    whole = LocalFiles(str(folder)).whole(key)
    assert (None if whole is None else whole.tobytes()) == held(LocalStore(folder), key)


@given(st.lists(st.none() | st.tuples(st.integers(0, 220), st.integers(1, 30)), max_size=5), st.sampled_from(KEYS))
def test_stretches_of_a_file(folder: Path, drawn: list[tuple[int, int] | None], key: str) -> None:
    spans = [None if span is None else (span[0], sum(span)) for span in drawn]
    read = [None if s is None else s.tobytes() for s in map(copied, LocalFiles(str(folder)).ranges(key, spans))]
    store = LocalStore(folder)
    expected = [None if span is None else held(store, key, RangeByteRequest(*span)) for span in spans]
    assert read == expected


def copied(stretch: Any) -> Any:
    return None if stretch is None else stretch.copy()


def test_memory_is_used_again_by_the_same_thread(folder: Path) -> None:
    files = LocalFiles(str(folder))
    first = files.whole("a/c/0")
    second = next(files.ranges("a/c/0", [(100, 110)]))
    assert first is not None
    assert second is not None
    assert np.shares_memory(first, second)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: files.whole("a/c/0")).result(10)
        assert other is not None
        assert not np.shares_memory(first, other)


def opened_below(folder: Path) -> list[str]:
    """Files that are open now; those of others in this process come and go."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(folder))]


def test_no_file_stays_open(folder: Path) -> None:
    files = LocalFiles(str(folder))
    with (folder / KEYS[0]).open("rb"):
        assert opened_below(folder) == [str(folder / KEYS[0])]
    for key in KEYS:
        files.whole(key)
        list(files.ranges(key, [(0, 1), None]))
        stretches = files.ranges(key, [(0, 1), (1, 2)])
        next(stretches)
        stretches.close()  # type: ignore[attr-defined]
    assert opened_below(folder) == []


def test_other_failures_are_errors(folder: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        LocalFiles(str(folder)).whole("x" * 300)


ARRAYS: dict[str, dict[str, Any]] = {
    "chunks": {},
    "plain chunks": {"compressors": None},
    "format 2": {"zarr_format": 2},
    "shards": {"shards": (4, 6)},
    "plain shards": {"shards": (4, 6), "compressors": None},
    "index first": {"shards": {"shape": (4, 6), "index_location": "start"}},
    "gzip": {"compressors": [zarr.codecs.GzipCodec()]},
}
CHUNKS = [(i, j) for i in range(4) for j in range(3)]


def write(store: Any, **options: Any) -> zarr.Array[Any]:
    """Write seven rows of which the last two are left out; 7 and 8 are no multiples of chunks."""
    array = zarr.create_array(store, name="a", shape=(7, 8), dtype="i4", chunks=(2, 3), fill_value=-1, **options)
    array[:4] = 1 + np.arange(32).reshape(4, 8)
    return array


@pytest.mark.parametrize("name", ARRAYS)
def test_chunks_are_those_that_the_store_gives(tmp_path: Path, name: str) -> None:
    source = ZarrSource(write(LocalStore(tmp_path), **ARRAYS[name]), 0)
    through = ZarrSource(write(MemoryStore(), **ARRAYS[name]), 0)
    assert source.stored.local_files() is not None
    assert through.stored.local_files() is None
    by_object: dict[Any, list[Any]] = {}
    for chunk, stored in zip(CHUNKS, source.objects_of(CHUNKS), strict=True):
        by_object.setdefault(stored, []).append(chunk)
    seen: set[Any] = set()
    for chunks in (*by_object.values(), *(c[::-1] for c in by_object.values())):
        cost, decoded, wanted = Fetched([]), [], 0
        for chunk, raw in zip(chunks, source.stream(chunks, cost), strict=True):
            decoded.append(np.array(source.decode(raw, chunk)))
            wanted += 0 if raw is None else raw.nbytes
        (stored,) = set(source.objects_of(chunks))
        index = 16 * len(by_object[0, 0]) + 4 if source.sharded and stored not in seen and wanted else 0
        assert cost.bytes == wanted + index, "no byte that is not wanted, and an index once"
        seen.add(stored)
        expected = through.read(chunks)
        for mine, raw, chunk in zip(decoded, expected.raw, chunks, strict=True):
            assert np.array_equal(mine, through.decode(raw, chunk))
            assert mine.dtype == through.dtype


def test_a_short_file_is_an_error(tmp_path: Path) -> None:
    source = ZarrSource(write(LocalStore(tmp_path), shards=(4, 6), compressors=None), 0)
    list(source.stream([(0, 0)], Fetched([])))
    (tmp_path / "a" / "c" / "0" / "0").write_bytes(b"short")
    with pytest.raises(ShortReadError, match="of the shard gave"):
        list(source.stream([(1, 1)], Fetched([])))
    os.unlink(tmp_path / "a" / "c" / "0" / "0")
    with pytest.raises(ShortReadError, match="gave 0 bytes"):
        list(source.stream([(1, 1)], Fetched([])))


class Subclass(LocalStore):
    """May do anything when it is read, so it must be asked."""


def test_only_local_stores_themselves_are_read_past(tmp_path: Path) -> None:
    write(LocalStore(tmp_path))
    opened = {
        "itself": LocalStore(tmp_path),
        "read-only": LocalStore(tmp_path, read_only=True),
        "subclass": Subclass(tmp_path),
        "wrapped": WrapperStore(LocalStore(tmp_path)),
    }
    files = {
        name: StoredArray(zarr.open_array(store, path="a", mode="r")).local_files() is not None
        for name, store in opened.items()
    }
    assert files == {"itself": True, "read-only": True, "subclass": False, "wrapped": False}


def test_codecs_of_the_event_loop_are_read_through_zarr(tmp_path: Path) -> None:
    source = ZarrSource(write(LocalStore(tmp_path), compressors=Flip()), 0)
    assert source.stored.local_files() is None
    cost = Fetched([])
    (raw,) = source.stream([(0, 1)], cost)
    assert source.decode(raw, (0, 1)).tolist() == np.asarray(source.stored.array[0:2, 3:6]).tolist()
    assert cost.gets == 1


@settings(max_examples=20)
@given(st.data())
def test_a_root_with_any_name(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    alphabet = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/")
    name = data.draw(st.text(alphabet, min_size=1, max_size=20).filter(lambda text: text not in (".", "..")))
    path = tmp_path_factory.mktemp("root") / name
    source = ZarrSource(write(LocalStore(path)), 0)
    (raw,) = source.stream([(0, 0)], Fetched([]))
    assert source.decode(raw, (0, 0)).tolist() == [[1, 2, 3], [9, 10, 11]]
