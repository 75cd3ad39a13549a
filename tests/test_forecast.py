"""Forecasts under every common naming: drawn by init time, by products, with valid times by label."""

from __future__ import annotations

import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from zarr.storage import MemoryStore

import insitu_xr
from insitu_xr.errors import InsituError, UnknownNameError
from insitu_xr.resolving.roles import Roles, roles_of
from insitu_xr.testing import CountingStore

INITS = pd.date_range("2020-01-01", periods=8, freq="12h")
LEADS = pd.to_timedelta(np.arange(0, 30, 6), "h")


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of the dimensions of a forecast, and its lead times as the dataset has them."""

    init: str
    lead: str
    member: str | None
    labels: Any = None  # durations
    attrs: tuple[tuple[str, str], ...] = ()
    standard: bool = False

    @property
    def roles(self) -> Roles:
        return Roles(self.init, self.lead, self.member)


HOURS = np.arange(0, 30, 6)
NAMINGS = {
    "WB2": Naming("time", "prediction_timedelta", "number"),
    "NeuralGCM": Naming("time", "prediction_timedelta", "realization"),
    "GenCast on WB2": Naming("time", "prediction_timedelta", "sample"),
    "cfgrib": Naming("time", "step", "number"),
    "earthkit": Naming("forecast_reference_time", "step", "number"),
    "dynamical.org": Naming("init_time", "lead_time", "ensemble_member", HOURS * 3600.0, (("units", "seconds"),)),
    "WeatherNext": Naming("init_time", "lead_time", "ensemble_member"),
    "earth2studio": Naming("time", "lead_time", "ensemble"),
    "climpred": Naming("init", "lead", "member", HOURS, (("units", "hours"),)),
    "climpred, days": Naming("init", "lead", "member", HOURS / 24, (("units", "days"),)),
    "WBX": Naming("init_time", "lead_time", "number"),
    "WBX, no decoding": Naming("init_time", "lead_time", "number", HOURS, (("units", "h"),)),
    "CF": Naming("t0", "offset", "run", standard=True),
    "CF before names": Naming("start", "time", "step", standard=True),
    "CF, minutes": Naming("t0", "offset", "run", HOURS * 60, (("units", "minutes"),), standard=True),
}


def forecast(naming: Naming, inits: Any = INITS, chunk: tuple[int, ...] = (1, 2, 1, 2)) -> xr.Dataset:
    """A stored forecast: 1000 * init + 10 * lead + member, by position."""
    n = len(inits)
    value = 1000 * np.arange(n)[:, None, None, None] + 10 * np.arange(5)[:, None, None] + np.arange(3)[:, None]
    field = np.broadcast_to(value, (n, 5, 3, 2)).astype("f4")
    standard = ("forecast_reference_time", "forecast_period", "realization")
    init_attrs, lead_attrs, member_attrs = ({"standard_name": s} if naming.standard else {} for s in standard)
    member = naming.member or "number"
    ds = xr.Dataset(
        {"z": ((naming.init, naming.lead, member, "x"), field), "oro": ("x", np.arange(2.0))},
        {
            naming.init: (naming.init, inits, init_attrs),
            naming.lead: (
                naming.lead,
                np.asarray(LEADS if naming.labels is None else naming.labels),
                lead_attrs | dict(naming.attrs),
            ),
            member: (member, np.arange(3), member_attrs),
        },
    )
    store = MemoryStore()
    ds.to_zarr(store, encoding={"z": {"chunks": chunk}}, consolidated=False)
    opened: xr.Dataset = xr.open_zarr(store, chunks=None, consolidated=False)
    return opened


@pytest.mark.parametrize("name", sorted(NAMINGS))
def test_every_naming_is_understood(name: str) -> None:
    naming = NAMINGS[name]
    ds = forecast(naming)
    assert roles_of(ds) == naming.roles
    with ds.insitu.loader(variables=["z"], statics=["oro"], batch_size=3) as loader:
        assert loader.plan.request.sample_dims == (naming.init,)
        seen = []
        for batch in loader:
            seen += batch.positions.tolist()
            assert batch["z"].shape == (len(batch), 5, 3, 2)
            np.testing.assert_array_equal(batch["z"][:, :, 0, 0] // 1000, batch.positions[:, None].repeat(5, 1))
            np.testing.assert_array_equal(
                batch.valid_times, INITS.to_numpy()[batch.positions][:, None] + LEADS.to_numpy()
            )
            selected = ds[["z", "oro"]].isel({naming.init: batch.positions}).compute()
            xr.testing.assert_identical(batch.to_xarray(), selected)
    assert seen == list(range(8))


@pytest.mark.parametrize("name", sorted(NAMINGS))
def test_dimensions_are_given_by_role(name: str) -> None:
    naming = NAMINGS[name]
    ds = forecast(naming)
    if name == "CF before names":
        # Their own names come first: here the members are called "step", and the lead time "time".
        assert ds.insitu.plan(variables=["z"], sample_dim=("init_time", "step")).anchors_kept == 24
    chosen = {"init_time": slice("2020-01-02", "2020-01-03"), "number": [0, 2]}
    with ds.insitu.loader(variables=["z"], sample_dim=("init_time", "number"), anchors=chosen, batch_size=3) as loader:
        assert loader.plan.request.sample_dims == (naming.init, naming.member)
        assert loader.plan.anchors_kept == 4 * 2
        seen = []
        for batch in loader:
            seen += [tuple(pair) for pair in batch.positions.tolist()]
            init, member = batch.positions.T
            expected = 1000 * init[:, None] + 10 * np.arange(5) + member[:, None]
            np.testing.assert_array_equal(batch["z"][..., 0], expected)
            np.testing.assert_array_equal(batch.valid_times, INITS.to_numpy()[init][:, None] + LEADS.to_numpy())
            assert set(batch.anchors) == {naming.init, naming.member}
            np.testing.assert_array_equal(batch.anchors[naming.init], INITS.to_numpy()[init])
    assert seen == [(i, m) for i in (2, 3, 4, 5) for m in (0, 2)]


def test_a_standard_name_counts_more_than_a_name() -> None:
    """Where a dimension of a usual name is there as well."""
    ds = forecast(NAMINGS["CF"]).expand_dims(sample=[0], step=LEADS[:2], init=INITS[:2])
    assert roles_of(ds) == NAMINGS["CF"].roles


def test_init_and_lead_times_are_drawn_together() -> None:
    for name in ("WB2", "climpred", "dynamical.org", "CF"):
        naming = NAMINGS[name]
        ds = forecast(naming)
        third = ds[naming.lead].values[3]
        with ds.insitu.loader(
            variables=["z"],
            sample_dim=("init_time", "lead_time"),
            anchors={"init_time": lambda t: t.hour == 0, "lead_time": [ds[naming.lead].values[1], third]},
            shuffle=True,
            batch_size=3,
        ) as loader:
            assert loader.plan.anchors_kept == 8
            seen = []
            for batch in loader:
                init, lead = batch.positions.T
                seen += [tuple(pair) for pair in batch.positions.tolist()]
                np.testing.assert_array_equal(batch["z"][:, 0, 0], 1000 * init + 10 * lead)
                valid = INITS.to_numpy()[init] + LEADS.to_numpy()[lead]
                assert batch.valid_times.shape == (len(batch), 1)
                np.testing.assert_array_equal(batch.valid_times[:, 0], valid)
                back = pickle.loads(pickle.dumps(batch))
                np.testing.assert_array_equal(back.valid_times, batch.valid_times)
                np.testing.assert_array_equal(back.positions, batch.positions)
            assert sorted(seen) == [(i, k) for i in (0, 2, 4, 6) for k in (1, 3)]


def test_leads_move_along_the_init_time() -> None:
    """The forecast that was made twelve hours before, beside this one."""
    ds = forecast(NAMINGS["WB2"])
    with ds.insitu.loader(variables=["z"], leads=["-12h", "0h"], batch_size=4) as loader:
        assert loader.plan.anchors_kept == 7
        for batch in loader:
            assert batch["z"].shape == (len(batch), 2, 5, 3, 2)
            np.testing.assert_array_equal(batch["z"][:, :, 0, 0, 0] // 1000, batch.positions[:, None] + [-1, 0])
            assert batch.valid_times.shape == (len(batch), 2, 5)
            expected = batch.anchors[:, None, None] + batch.leads[:, None] + LEADS.to_numpy()
            np.testing.assert_array_equal(batch.valid_times, expected)


def test_leads_of_a_product_move_along_the_init_time() -> None:
    ds = forecast(NAMINGS["WB2"]).transpose("number", ...)
    with ds.insitu.loader(variables=["z"], sample_dim=("number", "init_time"), leads=["0h", "12h"]) as loader:
        (batch,) = loader
        assert len(batch) == 3 * 7
        member, init = batch.positions.T
        expected = 1000 * (init[:, None] + np.arange(2)) + member[:, None]
        np.testing.assert_array_equal(batch["z"][:, :, 0, 0], expected)
        # Samples are counted, not labels.
        (dropped,) = loader.plan.dropped
        assert str(dropped) == "3 after the end at lead 12h of 'z' (2020-01-04T12:00:00, 3 samples each)"


def test_samples_of_a_product_are_all_accounted_for() -> None:
    ds = forecast(NAMINGS["WBX"])
    manifest = ds.insitu.split(train=slice("2020-01-01", "2020-01-02"), val="2020-01-04", sample_dim="init_time")
    plan = ds.insitu.plan(
        variables=["z"],
        sample_dim=("init_time", "number"),
        leads=["0h", "12h"],
        anchors={"init_time": slice("2020-01-01T12", None), "number": [0, 1]},
        exclude=["2020-01-01T12"],
        manifest=manifest,
        split="train",
    )
    assert plan.anchors_kept + sum(d.count for d in plan.dropped) == 7 * 2
    assert plan.anchors_kept == 1 * 2


def test_variables_that_lack_one_of_the_dimensions() -> None:
    ds = forecast(NAMINGS["WBX"])
    ds["control"] = ds["z"].isel(number=0, drop=True)
    with ds.insitu.loader(variables=["z", "control"], sample_dim=("init_time", "number"), batch_size=5) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["control"][:, 0, 0], 1000 * batch.positions[:, 0])
            np.testing.assert_array_equal(batch["z"][:, 0, 0], 1000 * batch.positions[:, 0] + batch.positions[:, 1])


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_valid_times_of_other_calendars(calendar: str) -> None:
    inits = xr.date_range("2020-02-27", periods=8, freq="12h", calendar=calendar, use_cftime=True)
    ds = forecast(NAMINGS["WB2"], inits)
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader:
        (batch,) = loader
    expected = [[init + datetime.timedelta(hours=int(h)) for h in HOURS] for init in inits]
    assert batch.valid_times.tolist() == expected


@pytest.mark.parametrize("unit", ["s", "us"])
def test_valid_times_of_coarser_units(unit: str) -> None:
    ds = forecast(NAMINGS["WB2"]).assign_coords(time=INITS.as_unit(unit))
    with ds.insitu.loader(variables=["z"], batch_size=8) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch.valid_times, INITS.to_numpy()[:, None] + LEADS.to_numpy())


def test_valid_times_that_nanoseconds_do_not_hold() -> None:
    inits = np.array(["1600-01-01", "1600-01-02"], "M8[s]")
    ds = xr.Dataset({"z": (("time", "step"), np.zeros((2, 5)))}, {"time": inits, "step": LEADS})
    (batch,) = ds.insitu.loader(variables=["z"])
    np.testing.assert_array_equal(batch.valid_times, inits[:, None] + LEADS.to_numpy().astype("m8[s]"))


def test_the_valid_times_that_a_dataset_has() -> None:
    """A coordinate (init, lead) comes along, and says the same."""
    ds = forecast(NAMINGS["dynamical.org"])
    ds = ds.assign_coords(valid_time=(("init_time", "lead_time"), INITS.to_numpy()[:, None] + LEADS.to_numpy()))
    with ds.insitu.loader(variables=["z"], shuffle=True, batch_size=3) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.coords["valid_time"].values, batch.valid_times)


def test_integer_init_times_have_no_valid_times_of_ours() -> None:
    """What is no time is not added to."""
    ds = forecast(NAMINGS["climpred"], np.arange(1990, 1998))
    with ds.insitu.loader(variables=["z"], sample_dim="init", batch_size=8) as loader:
        (batch,) = loader
    assert batch.valid_times.tolist() == [[year] for year in range(1990, 1998)]


def test_files_of_graphcast() -> None:
    """Batches and lead times: drawn along either, valid times come along as the coordinate that the file has."""
    inits = INITS[:2].to_numpy()
    ds = xr.Dataset(
        {"z": (("batch", "time", "lat"), np.arange(20.0).reshape(2, 5, 2))},
        {"time": LEADS, "datetime": (("batch", "time"), inits[:, None] + LEADS.to_numpy())},
    )
    with ds.insitu.loader(variables=["z"], sample_dim="batch", batch_size=2) as loader:
        (batch,) = loader
        np.testing.assert_array_equal(batch["z"], ds.z)
        np.testing.assert_array_equal(batch.coords["datetime"], ds["datetime"])
    with ds.insitu.loader(variables=["z"], sample_dim="time", leads=["0h", "6h"], batch_size=9) as loader:
        (batch,) = loader
        np.testing.assert_array_equal(batch["z"][:, 1], ds.z.transpose("time", ...)[1:])


def test_a_scalar_reference_time_makes_no_forecast() -> None:
    """As anemoi-inference writes it: the times are valid times already."""
    times = pd.date_range("2020-01-01", periods=6, freq="6h")
    ds = xr.Dataset(
        {"z": (("time", "values"), np.arange(12.0).reshape(6, 2))},
        {
            "time": times,
            "forecast_reference_time": np.datetime64("2020-01-01", "ns"),
            "forecast_period": ("time", LEADS.insert(5, pd.Timedelta("30h"))),
        },
    )
    with ds.insitu.loader(variables=["z"], leads=["0h", "6h"], batch_size=5) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch.valid_times, np.stack([times[:-1], times[1:]], axis=1))


def test_a_step_that_is_no_lead_time() -> None:
    """A dimension is a lead time if its labels are durations; a number of training steps is none."""
    ds = xr.Dataset(
        {"loss": (("time", "step"), np.arange(12.0).reshape(4, 3))},
        {"time": pd.date_range("2020", periods=4), "step": [1, 2, 3]},
    )
    with ds.insitu.loader(variables=["loss"], batch_size=4) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch.valid_times[:, 0], ds.time)


# -- reports from the field --------------------------------------------------------------------------------------


def truth() -> xr.Dataset:
    times = pd.date_range("2020-01-01", periods=60, freq="6h")
    return xr.Dataset({"z": ("time", np.arange(60.0))}, {"time": times})


def test_44_the_same_truth_under_either_naming() -> None:
    paired = []
    for name in ("WB2", "WBX"):
        with forecast(NAMINGS[name]).insitu.loader(variables=["z"], batch_size=8) as loader:
            (batch,) = loader
        paired.append(truth().z.sel(time=xr.DataArray(batch.valid_times, dims=("init", "lead"))).values)
    np.testing.assert_array_equal(paired[0], paired[1])
    np.testing.assert_array_equal(paired[0], 2 * np.arange(8)[:, None] + np.arange(5))


def test_45_every_step_has_its_own_valid_time() -> None:
    ds = truth()
    with ds.insitu.loader(variables=["z"], leads=["0h", "6h", "12h"], batch_size=7) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.anchors, ds.time.values[batch.positions])
            np.testing.assert_array_equal(batch.valid_times, batch.anchors[:, None] + batch.leads)
            np.testing.assert_array_equal(ds.z.sel(time=batch.valid_times.ravel()), batch["z"].ravel())


@pytest.mark.parametrize("how", ["selected", "drawn"])
def test_46_one_lead_of_forty_one_reads_one_chunk_of_forty_one(how: str) -> None:
    leads, inner = pd.to_timedelta(6 * np.arange(41), "h"), MemoryStore()
    values = 100 * np.arange(8)[:, None, None] + np.arange(41)[:, None] + np.zeros(3)
    ds = xr.Dataset(
        {"z": (("time", "prediction_timedelta", "x"), values)}, {"time": INITS, "prediction_timedelta": leads}
    )
    ds.to_zarr(inner, encoding={"z": {"chunks": (2, 1, 3)}}, consolidated=False)
    store = CountingStore(inner)
    opened = xr.open_zarr(store, chunks=None, consolidated=False)
    request: dict[str, Any] = {"variables": ["z"], "batch_size": 3}
    if how == "selected":
        opened = opened.sel(prediction_timedelta=["72h"])
    else:
        request |= {"sample_dim": ("init_time", "lead_time"), "anchors": {"lead_time": "72h"}}
    loader = opened.insitu.loader(**request)
    store.reset()
    with loader:
        seen = np.concatenate([batch["z"].reshape(len(batch), -1)[:, 0] for batch in loader])
    assert seen.tolist() == [100 * k + 12 for k in range(8)]
    assert len(store.by_key()) * 41 == 4 * 41 == sum(1 for key in inner._store_dict if key.startswith("z/c/"))
    assert set(store.by_key().values()) == {1}
    assert loader.plan.reads == loader.plan.chunks == 4


def test_67_a_lead_that_the_forecast_does_not_have() -> None:
    leads = pd.to_timedelta([0, 6, 12, 18], "h")
    ds = xr.Dataset({"z": (("init_time", "lead_time"), np.zeros((8, 4)))}, {"init_time": INITS, "lead_time": leads})
    with pytest.raises(UnknownNameError, match=r"'24h', .* 4 labels of 'lead_time' from 0h to 18h, mostly 6h apart"):
        ds.insitu.plan(variables=["z"], sample_dim=("init_time", "lead_time"), anchors={"lead_time": ["24h"]})


def test_forecast_and_truth_in_one_loader() -> None:
    """Joined along the init time, truth is a target at the leads of the forecast."""
    fc = forecast(NAMINGS["WB2"])
    joined = insitu_xr.join({"fc": fc, "era5": truth()})
    asked: dict[str, Any] = {
        "inputs": {"variables": ["fc/z"]},
        "targets": {"variables": ["era5/z"], "leads": [f"{h}h" for h in HOURS]},
    }
    with joined.loader(**asked, batch_size=3) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.targets["era5/z"], 2 * batch.positions[:, None] + np.arange(5))
            np.testing.assert_array_equal(batch.valid_times["inputs"], batch.valid_times["targets"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_dim": ("init_time", "elevation")}, "sample_dim must be a dimension of the variables, but got 'elev"),
        ({"sample_dim": "init_time", "anchors": {"number": [0]}}, "anchors must be given for sample dimensions"),
        ({"sample_dim": ("init_time", "time")}, "sample_dim must name each dimension once"),
        ({"sample_dim": ("init_time", "number"), "anchors": {"number": [7]}}, "anchors must name labels of 'number'"),
    ],
)
def test_bad_sample_dimensions(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InsituError, match=message):
        forecast(NAMINGS["WB2"]).insitu.plan(variables=["z"], **arguments)


@pytest.mark.parametrize("units", ["months", "years"])
def test_lead_times_without_a_fixed_length_are_read_but_not_counted_with(units: str) -> None:
    init = pd.date_range("2000-01-01", periods=6, freq="MS")
    ds = xr.Dataset(
        {"t": (("init", "lead"), np.arange(18.0).reshape(6, 3))},
        {"init": init, "lead": ("lead", [0, 1, 2], {"units": units})},
    )
    for batch in ds.insitu.loader(variables=["t"], batch_size=4):
        xr.testing.assert_identical(batch.to_xarray(), ds.isel(init=batch.positions))
        with pytest.raises(InsituError, match="lead times 'lead' must be durations, or numbers with units of days"):
            _ = batch.valid_times
    with pytest.raises(InsituError, match="lead times 'lead' must be durations"):
        ds.insitu.split(fractions=(0.5, 0.5))
    assert ds.insitu.split(fractions=(0.5, 0.5), gap="31D")
