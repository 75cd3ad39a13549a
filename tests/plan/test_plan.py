"""The read plan: its figures are exact, and it shows them as text and as HTML."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import insitu_xr  # noqa: F401  (registers the accessor)
from insitu_xr.limits import Limits
from insitu_xr.plan.plan import ReadPlan
from insitu_xr.plan.request import Dropped
from insitu_xr.plan.schedule import Residency
from insitu_xr.testing import CountingStore
from insitu_xr.testing.writing import StoredDataset, StoredVariable
from tests.plan.requests import request, variable


def plan(**options: Any) -> ReadPlan:
    specs = [variable("t2m", 40, 4), variable("lsm", 0, 0)]
    wanted = request(specs, 40, [0, 3], **options)
    return ReadPlan.of(wanted, options.get("memory"), Limits())


def test_figures() -> None:
    found = plan(batch_size=8)
    assert (found.anchors_kept, found.n_batches, found.chunks, found.reads, found.reread_factor) == (37, 5, 11, 11, 1.0)
    assert found.bytes_decoded == 10 * 4 * 3 * 4 + 3 * 4
    assert found.peak_bytes <= found.budget.ceiling


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_reads_under_the_smallest_ceiling_are_those_of_the_walk(shuffle: bool, batch_size: int) -> None:
    wanted = request([variable("a", 60, 4), variable("b", 60, 5)], 60, [0, 9], shuffle=shuffle, batch_size=batch_size)
    found = ReadPlan.of(wanted, ReadPlan.of(wanted, None, Limits()).minimum_memory, Limits())
    walked = [len(list(Residency(found.uses(g, 0), n))) for g, n in zip(found.groups, found.budget.slots, strict=True)]
    assert list(found.reads_by_group) == walked
    assert found.reread_factor == sum(walked) / found.chunks


def test_dropping_the_last_batch_reads_less() -> None:
    wanted = request([variable("a", 10, 1)], 10, batch_size=4)
    assert ReadPlan.of(wanted, None, Limits()).reads == 10
    assert ReadPlan.of(replace(wanted, drop_last=True), None, Limits()).reads == 8


def stored(compressed: bool = False, **options: Any) -> StoredDataset:
    packed = StoredVariable("a", ("time", "y"), (10, 6), chunks=(4, 4), kind="packed", compressed=compressed, **options)
    plain = StoredVariable("b", ("y", "time"), (6, 10), chunks=(3, 3), kind="float64", compressed=compressed)
    return StoredDataset((packed, plain), times=tuple(range(10)), sizes={"y": 6})


@pytest.mark.parametrize("sync", [None, False])
@pytest.mark.parametrize("memory", ["minimum", None])
@pytest.mark.parametrize("shuffle", [False, True])
def test_bytes_are_exact_without_compression(sync: bool | None, memory: str | None, shuffle: bool) -> None:
    store = CountingStore(stored().store, sync=sync)
    arguments: dict[str, Any] = {"variables": ["a", "b"], "batch_size": 3, "shuffle": shuffle}
    ds = stored().open(store)
    ceiling = ds.insitu.plan(**arguments).minimum_memory if memory else None
    with ds.insitu.loader(**arguments, memory=ceiling) as loader:
        store.reset()
        assert len(list(loader)) == 4
        found = loader.plan
        assert store.bytes_read == found.bytes_stored == loader.stats.bytes_read
        assert found.bytes_decoded == loader.stats.bytes_decoded
        if memory is None:
            # Chunks at the edge are stored whole.
            assert found.bytes_decoded == 3 * 2 * 4 * 4 * 2 + 2 * 4 * 3 * 3 * 8


def test_stored_bytes_of_rectilinear_chunks_are_exact_or_unknown() -> None:
    varying = StoredVariable("a", ("time",), (10,), chunks=((1, 2, 7),), compressed=False)
    store = CountingStore(StoredDataset((varying,), times=tuple(range(10))).store)
    ds = StoredDataset((varying,), times=tuple(range(10))).open(store)
    with ds.insitu.loader(variables=["a"], batch_size=3) as loader:
        store.reset()
        list(loader)
        assert loader.plan.bytes_stored in (None, store.bytes_read)


def test_stored_bytes_are_unknown_with_compression() -> None:
    found = stored(compressed=True).open().insitu.plan(variables=["a", "b"], batch_size=3)
    assert found.bytes_stored is None
    assert "stored unknown until read (compressed)" in repr(found)


def test_text() -> None:
    text = repr(plan(batch_size=8, shuffle=True, seed=5))
    for part in (
        "<insitu_xr.ReadPlan>",
        "5 of 8 samples, shuffled",
        ", seed 5",
        "37 of 40 kept",
        "40 labels of 'step' from 0 to 39, mostly 1 apart",
        "leads    0, +3",
        "11 for 11 chunks, 1.00 per chunk in the first epoch",
        "492 B decoded",
        "under a ceiling of 1.0 GiB",
        "in place",
    ):
        assert part in text
    rows = [line.split() for line in text.splitlines()[-3:]]
    assert rows == [
        ["variable", "group", "dtype", "field", "chunks", "read"],
        ["t2m", "variables", "float32", "y", "3", "10", "in", "place"],
        ["lsm", "statics", "float32", "y", "3", "1", "in", "place"],
    ]
    assert "in order" in repr(plan(batch_size=8))


def test_dropped_anchors_are_told() -> None:
    dropped = (Dropped("after the end", 5, ("37", "38", "39")), Dropped("in a gap", 1, ("3",)))
    wanted = request([variable("a", 8, 4)], 8, dropped=dropped)
    text = repr(ReadPlan.of(wanted, None, Limits()))
    assert "dropped  5 after the end (37, 38, 39, ...)" in text
    assert "dropped  1 in a gap (3)" in text


def test_html_is_escaped() -> None:
    name = "<script>alert('a & b')</script>"
    spec = replace(variable(name, 8, 4), note="slow <why>", kind="foreign")
    found = ReadPlan.of(request([spec], 8), None, Limits())
    html = found._repr_html_()
    assert "<script" not in html
    assert "<why>" not in html
    assert "&lt;script&gt;alert(&#x27;a &amp; b&#x27;)&lt;/script&gt;" in html
    assert "through xarray: slow &lt;why&gt;" in html
    assert html.count("<table>") == html.count("</table>") == 2
    # The same facts as in the text.
    for fact, text in found._facts():
        assert f"<th>{fact}</th>" in html
        assert text.split("(")[0].split("'")[0] in html


def test_a_plan_of_memory_alone_reads_nothing() -> None:
    spec = replace(variable("a", 8, 4), kind="memory", segments=())
    found = ReadPlan.of(request([spec], 8), None, Limits())
    assert (found.reads, found.chunks, found.reread_factor, found.bytes_decoded, found.bytes_stored) == (
        0,
        0,
        1.0,
        0,
        0,
    )
    assert "from memory" in repr(found)


def test_a_manifest_comes_with_the_plan() -> None:
    found = plan(batch_size=8)
    assert found.manifest is found.manifest
    assert found.manifest.variables[0] == {"group": "variables", "name": "t2m", "leads": ["0", "+3"]}
    assert np.asarray(found.manifest.positions[0]).tolist() == [[0, 37, 1]]
