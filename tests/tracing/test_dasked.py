from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.highlevelgraph import HighLevelGraph
from zarr.storage import MemoryStore

from insitu_xr.errors import ComputedVariableError
from insitu_xr.tracing import trace
from tests.tracing.evaluation import ENCODING, assert_traces, fields, lazy, write
from tests.tracing.operations import SELECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable


#: more that only moves values; lazy variables are loaded by these
MOVES: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "expand_dims": lambda ds: ds[["t", "p"]].expand_dims("member", axis=1),
    "expand_dims then transpose": lambda ds: ds.expand_dims("member").transpose("time", "y", "member", "x"),
    "roll": lambda ds: ds.roll(time=3),
    "rechunk": lambda ds: ds.chunk(time=5, y=3),
    "rechunk of a selection": lambda ds: ds.isel(time=[9, 1, 2], x=slice(None, None, -1)).chunk(time=2, x=2),
    "astype to the same": lambda ds: ds.assign(t=ds.t.astype("f4")),
    "concat of pieces": lambda ds: xr.concat([ds.isel(time=slice(0, 4)), ds.isel(time=slice(6, 9))], "time", **CONCAT),
    "concat out of order": lambda ds: xr.concat([ds.isel(time=[7]), ds.isel(time=slice(2, 4))], "time", **CONCAT),
    "flip": lambda ds: ds.isel(y=slice(None, None, -1)).transpose("y", "time", "x"),
}

CONCAT: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}

CHUNKS: dict[str, Any] = {
    "auto": "auto",
    "coarse": {"time": 5, "y": 3, "x": 5},
    "single": {"time": 1, "y": 1, "x": 1},
}

COMPUTING: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "arithmetic": (lambda ds: ds * 2, "mul"),
    "arithmetic then isel": (lambda ds: (ds + 1).isel(time=[3, 1]), "add"),
    "where": (lambda ds: ds.where(ds.y > 15.0), "where"),
    "astype": (lambda ds: ds.astype("f2"), "astype"),
    "coarsen": (lambda ds: ds.coarsen(time=2).mean(), "reshape"),
    "map_blocks with an innocent name": (
        lambda ds: ds.assign(t=ds.t.copy(data=ds.t.data.map_blocks(np.negative, name="getitem-fake"))),
        "negative",
    ),
}


#: chunks that cut stored chunks are part of what is tested
pytestmark = pytest.mark.filterwarnings("ignore:The specified chunks separate the stored chunks")


@pytest.fixture(scope="module", params=[2, 3])
def store(request: pytest.FixtureRequest) -> Any:
    return write(fields(), request.param, ENCODING)


@pytest.fixture(scope="module")
def stores() -> list[Any]:
    return [write(part(i), 3, packing(i)) for i in range(3)]


def part(number: int) -> xr.Dataset:
    """Build the n-th of several datasets that follow one another in time."""
    ds = fields()
    return ds.assign_coords(time=ds.time + number * np.timedelta64(3, "D")).assign(t=ds.t + np.float32(number))


def packing(number: int) -> dict[str, Any]:
    return ENCODING | {"p": ENCODING["p"] | {"scale_factor": 0.01 * (number + 1)}}


def chunked(store: Any, chunks: Any = None, **options: Any) -> xr.Dataset:
    opened: xr.Dataset = xr.open_zarr(store, chunks={} if chunks is None else chunks, consolidated=False, **options)
    return opened


@pytest.mark.parametrize("name", SELECTIONS | MOVES)
def test_selections_are_traced_to_the_store(store: Any, name: str) -> None:
    check((SELECTIONS | MOVES)[name](chunked(store)))


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize(
    "name", ["list", "negative step", "transpose then isel", "bool", "three lists", "rechunk", "roll"]
)
def test_chunks_do_not_matter(store: Any, name: str, chunks: str) -> None:
    check((SELECTIONS | MOVES)[name](chunked(store, CHUNKS[chunks])))


def check(ds: xr.Dataset) -> None:
    for variable in ("t", "p"):
        assert_traces(ds[variable], None if 0 in ds[variable].shape else "stored")


@pytest.mark.parametrize("name", ["list", "roll", "transpose then isel"])
def test_selections_after_pickling(store: Any, name: str) -> None:
    assert_traces((SELECTIONS | MOVES)[name](pickle.loads(pickle.dumps(chunked(store))))["p"])


@pytest.mark.parametrize("name", ["list", "negative step", "int", "rename"])
def test_a_selection_before_chunking(store: Any, name: str) -> None:
    array = SELECTIONS[name](lazy(store))["p"]
    array = array.chunk({array.dims[0]: 2})
    assert_traces(array)
    assert_traces(array.isel({array.dims[0]: [1, 0]}).transpose())


def test_a_transpose_before_chunking(store: Any) -> None:
    ds = lazy(store).transpose("x", "time", "y").chunk(time=3, y=2)
    assert_traces(ds["p"].isel(time=[5, 4, 0]))


def test_bool_and_scalar(store: Any) -> None:
    assert_traces(chunked(store)["mask"].isel(y=[1, 0]))
    assert_traces(chunked(store)["scalar"])
    assert_traces(chunked(store)["area"])


def test_dates_go_to_memory(store: Any) -> None:
    ds = chunked(write(fields().assign(when=("time", fields().time.values))))
    assert_traces(ds["when"].isel(time=[3, 1]), "memory")


@pytest.mark.parametrize("name", COMPUTING)
def test_computed_variables_are_refused(store: Any, name: str) -> None:
    change, function = COMPUTING[name]
    ds = change(chunked(store))
    with pytest.raises(ComputedVariableError) as caught:
        trace(ds["t"])
    message = str(caught.value)
    assert "'t'" in message
    assert function in message
    assert "chunks=None" in message
    assert 'computed="load"' in message
    traced = assert_traces(ds["t"], "memory", computed="load")
    assert "computed" in traced.note


def test_the_refusal_names_the_layer(store: Any) -> None:
    array = chunked(store)["t"] * 2
    with pytest.raises(ComputedVariableError, match=array.data.name):
        trace(array.isel(time=[4, 2]))


def test_a_computation_that_was_sliced_away_is_no_computation(store: Any) -> None:
    ds = chunked(store)
    both = xr.concat([ds["t"].isel(time=slice(0, 4)) * 2, ds["t"].isel(time=slice(4, 8))], "time", coords="minimal")
    with pytest.raises(ComputedVariableError):
        trace(both)
    assert_traces(both.isel(time=slice(4, None)))


def test_computed_dates_are_refused_too() -> None:
    ds = chunked(write(fields().assign(when=("time", fields().time.values))))
    with pytest.raises(ComputedVariableError):
        trace(ds["when"] + np.timedelta64(1, "h"))


@pytest.mark.parametrize("labels", [slice("2000-01-01T13", "2000-01-02"), ["2000-01-02T07", "2000-01-01T01"]])
def test_labels_are_no_evidence(store: Any, labels: Any) -> None:
    ds = chunked(store)
    assert_traces(ds.assign_coords(time=ds.time + np.timedelta64(1, "h"))["t"].sel(time=labels))


def test_encoding_is_no_evidence(store: Any) -> None:
    array = chunked(store)["t"].roll(time=5)
    assert array.encoding["chunks"]
    assert_traces(array)


@pytest.mark.parametrize(
    "load",
    [lambda ds: ds.persist(), lambda ds: ds.compute().chunk(time=2), lambda ds: ds.persist().isel(time=[3, 1])],
    ids=["persist", "load then chunk", "persist then isel"],
)
def test_what_is_in_memory_already(store: Any, load: Any) -> None:
    assert_traces(load(chunked(store))["p"], "memory")


def test_values_partly_in_memory_are_read_through_xarray(store: Any) -> None:
    ds = chunked(store)
    both = xr.concat(
        [ds["t"].isel(time=slice(0, 4)).persist(), ds["t"].isel(time=slice(4, 8))], "time", coords="minimal"
    )
    assert_traces(both, "foreign")


def test_values_filled_in_by_a_shift_are_read_through_xarray(store: Any) -> None:
    assert_traces(chunked(store)["t"].shift(time=1), "foreign")


def test_a_repeated_new_dimension_is_read_through_xarray(store: Any) -> None:
    assert_traces(chunked(store)["t"].expand_dims(member=3), "foreign")


@pytest.mark.parametrize("name", ["list", "transpose then isel", "step"])
def test_an_optimised_graph(store: Any, name: str) -> None:
    (ds,) = dask.optimize(SELECTIONS[name](chunked(store)))  # type: ignore[attr-defined, no-untyped-call]
    assert_traces(ds["p"])


def test_an_inlined_leaf(store: Any) -> None:
    ds = xr.open_dataset(store, engine="zarr", chunks={}, inline_array=True, consolidated=False)
    assert_traces(ds["p"].isel(time=[3, 1]))


def test_a_stored_array_without_xarray() -> None:
    array = zarr.create_array(MemoryStore(), data=np.arange(24.0).reshape(6, 4), chunks=(2, 4))
    data = dask.array.from_zarr(array)
    assert_traces(xr.DataArray(data, dims=("time", "x"), name="v").isel(time=[5, 0], x=2))


def test_a_point_by_point_selection(store: Any) -> None:
    points = {"y": xr.DataArray([0, 3], dims="point"), "x": xr.DataArray([4, 0], dims="point")}
    with pytest.raises(ComputedVariableError):
        trace(chunked(store)["t"].isel(points))
    assert_traces(chunked(store)["t"].isel(points), "memory", computed="load")


JOINED: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], int]] = {
    "plain": (lambda ds: ds, 3),
    "step": (lambda ds: ds.isel(time=slice(None, None, 5)), 3),
    "reversed": (lambda ds: ds.isel(time=slice(None, None, -1)), 3),
    "slice": (lambda ds: ds.isel(time=slice(8, 20)), 2),
    "transpose": (lambda ds: ds.transpose("x", "time", "y"), 3),
    "region": (lambda ds: ds.isel(y=slice(1, 3), x=[4, 0]), 3),
    "list in order": (lambda ds: ds.isel(time=[1, 4, 9, 14, 30]), 3),
    "list out of order": (lambda ds: ds.isel(time=[1, 30, 13, 2, 14]), 5),
    "list out of order, transposed": (lambda ds: ds.isel(time=[1, 30, 13, 2]).transpose("y", "x", "time"), 4),
    "list out of order, then a list": (lambda ds: ds.isel(time=[1, 30, 13, 2]).isel(time=[3, 1], y=[1, 0]), 2),
    "list out of order, rechunked": (lambda ds: ds.isel(time=[1, 30, 13, 2]).chunk(time=-1, y=3), 4),
    "int": (lambda ds: ds.isel(time=15), 1),
    "one store": (lambda ds: ds.isel(time=slice(13, 20)), 1),
    "rechunk across stores": (lambda ds: ds.chunk(time=9), 3),
    "rechunk across stores and then y": (lambda ds: ds.chunk(time=9, y=4, x=5), 3),
    "empty": (lambda ds: ds.isel(time=slice(0, 0)), 1),
}


@pytest.mark.parametrize("name", JOINED)
def test_several_stores_along_time(stores: list[Any], name: str) -> None:
    change, count = JOINED[name]
    ds = change(xr.concat([chunked(s) for s in stores], "time", **CONCAT))
    for variable in ("t", "p"):
        traced = assert_traces(ds[variable])
        assert len(traced.segments) == count
        assert traced.concat_dim == ("time" if count > 1 else None)


def test_stores_may_be_packed_differently(stores: list[Any]) -> None:
    traced = trace(xr.concat([chunked(s) for s in stores], "time", **CONCAT)["p"])
    scales = [segment.functions[-1].keywords["scale_factor"] for segment in traced.segments]  # type: ignore[attr-defined]
    assert scales == pytest.approx([0.01, 0.02, 0.03])


def test_open_mfdataset(tmp_path: Any) -> None:
    paths = [str(tmp_path / f"{i}.zarr") for i in range(3)]
    for i, path in enumerate(paths):
        part(i).to_zarr(path, encoding=packing(i), consolidated=False)
    ds = xr.open_mfdataset(paths, engine="zarr", combine="nested", concat_dim="time", consolidated=False, **CONCAT)
    traced = assert_traces(ds["p"].isel(time=slice(3, 30, 2), y=[2, 0]))
    assert len(traced.segments) == 3


def test_stores_stacked_along_a_new_dimension(stores: list[Any]) -> None:
    ds = xr.concat([chunked(s).reset_index("time") for s in stores], "member", **CONCAT | {"data_vars": "all"})
    traced = assert_traces(ds["p"].isel(time=[3, 1], x=2))
    assert traced.concat_dim == "member"
    assert_traces(ds["p"].transpose("y", "member", "time", "x").isel(member=[2, 0]))


def test_levels_of_one_store_stacked(store: Any) -> None:
    ds = chunked(store)
    levels = [ds["t"].isel(y=i) for i in (2, 0)]
    assert_traces(xr.concat(levels, "y", coords="minimal", compat="override"))


def test_pieces_of_one_store_with_different_regions(store: Any) -> None:
    ds = chunked(store)["t"].drop_vars(["y", "area"])
    one, other = ds.isel(time=slice(0, 4), y=slice(0, 2)), ds.isel(time=slice(4, 9), y=slice(2, 4))
    traced = assert_traces(xr.concat([one, other], "time"))
    assert len(traced.segments) == 2


def test_stores_along_two_dimensions_are_read_through_xarray(stores: list[Any]) -> None:
    rows = [xr.concat([chunked(s) for s in stores[:2]], "time", **CONCAT)["t"].drop_vars("y") for _ in range(2)]
    other = xr.concat([chunked(s) for s in reversed(stores[1:])], "time", **CONCAT)["t"].drop_vars("y")
    assert_traces(xr.concat([rows[0], other], "y", coords="minimal", compat="override", join="override"), "foreign")


def test_stores_of_different_dtypes_are_a_computation(stores: list[Any]) -> None:
    wide = write(fields().astype("f8"))
    ds = xr.concat([chunked(stores[0])[["t"]], chunked(wide)[["t"]]], "time", **CONCAT)
    with pytest.raises(ComputedVariableError, match="astype"):
        trace(ds["t"])


def test_a_graph_whose_odd_block_lies_beside_the_lines(store: Any) -> None:
    array = chunked(store)["t"]
    data = array.data
    name = "shuffled-by-hand"
    layer: dict[Any, Any] = {(name, *key[1:]): key for key in dask.core.flatten(data.__dask_keys__())}
    layer[name, 3, 1, 0] = (data.name, 4, 1, 0)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[data])
    odd = array.copy(data=dask.array.Array(graph, name, data.chunks, dtype=data.dtype))
    assert_traces(odd, "foreign")


def test_a_function_that_lies_beside_the_lines(store: Any) -> None:
    array = chunked(store)["t"]
    data = array.data
    name = "computed-by-hand"
    layer: dict[Any, Any] = {(name, *key[1:]): key for key in dask.core.flatten(data.__dask_keys__())}
    layer[name, 3, 1, 0] = (np.negative, (data.name, 3, 1, 0))
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[data])
    odd = array.copy(data=dask.array.Array(graph, name, data.chunks, dtype=data.dtype))
    with pytest.raises(ComputedVariableError, match=r"numpy\.negative"):
        trace(odd)


def test_thousands_of_blocks_are_sampled() -> None:
    array = zarr.create_array(
        MemoryStore(), shape=(2000, 4, 3), chunks=(1, 2, 3), dtype="f4", dimension_names=list("tyx")
    )
    data = dask.array.from_zarr(array)
    traced = trace(xr.DataArray(data, dims=list("tyx"), name="v").isel(t=slice(None, None, -3)))
    np.testing.assert_array_equal(np.asarray(traced.segments[0].index[0]), np.arange(2000)[::-3])


def test_a_long_chain_of_layers(store: Any) -> None:
    array = chunked(store)["t"]
    for _ in range(400):
        array = array.isel(time=slice(None, None, -1))
    np.testing.assert_array_equal(np.asarray(trace(array).segments[0].index[0]), np.arange(12))


def members(gap: int, steps: int = 120) -> xr.Dataset:
    """Three members of one store; in one of them, one step is filled with the step before."""
    store = MemoryStore()
    values = np.arange(steps * 3 * 2, dtype="f4").reshape(steps, 3, 2)
    ds = xr.Dataset({"t": (("time", "number", "x"), values)}, {"time": np.arange(steps), "number": np.arange(3)})
    ds.to_zarr(store, consolidated=False, encoding={"t": {"chunks": (1, 1, 2)}})
    opened = xr.open_zarr(store, chunks={}, consolidated=False)
    parts = [opened.isel(number=[k]) for k in range(3)]
    filled = parts[1].isel(time=[gap - 1]).assign_coords(time=[gap])
    parts[1] = xr.concat(
        [parts[1].isel(time=slice(0, gap)), filled, parts[1].isel(time=slice(gap + 1, None))], "time", **CONCAT
    )
    joined: xr.Dataset = xr.concat(parts, "number", **CONCAT)
    return joined


@pytest.mark.parametrize("gap", [1, 37, 60, 119])
def test_one_odd_block_among_hundreds_is_seen(gap: int) -> None:
    ds = members(gap)
    traced = trace(ds.t)
    assert (traced.kind, traced.note) == ("foreign", "its blocks do not form a selection per dimension")
    assert traced.read is not None
    np.testing.assert_array_equal(traced.read({"time": slice(gap, gap + 1)}), ds.t.isel(time=[gap]).values)


def test_two_steps_swapped_in_one_half_of_the_field() -> None:
    store = MemoryStore()
    xr.Dataset({"t": (("time", "x"), np.arange(400.0).reshape(200, 2))}).to_zarr(
        store, consolidated=False, encoding={"t": {"chunks": (1, 1)}}
    )
    ds = xr.open_zarr(store, chunks={}, consolidated=False)
    swapped = [*range(56), 57, 56, *range(58, 200)]
    odd = xr.concat([ds.isel(x=[0]), ds.isel(x=[1], time=swapped)], "x", **CONCAT)
    assert trace(odd.t).kind == "foreign"
    alike = xr.concat([ds.isel(x=[0], time=swapped), ds.isel(x=[1], time=swapped)], "x", **CONCAT)
    assert_traces(alike.t, "stored")


def test_too_many_blocks_of_parts_put_together_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("insitu_xr.tracing.dasked.MOST_COMPARED", 359)
    note = "parts of one store are put together anew, in too many blocks (360)"
    assert (trace(members(60).t).kind, trace(members(60).t).note) == ("foreign", note)
