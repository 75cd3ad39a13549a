"""Closed-form data, and the scores that WeatherBench2, WeatherBench-X and Earth2Studio give for it.

Rows are level 500 over all four inits, by lead from 0 to 24 h; see docs/explanation on where they are from.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

MEMBERS = 5
LATITUDE = np.arange(-90.0, 91.0, 30.0)
LONGITUDE = np.arange(0.0, 360.0, 30.0)
LEVEL = np.array([500, 850])
DIMS = ("init_time", "lead_time", "level", "latitude", "longitude")

_RADIANS = np.deg2rad(LATITUDE)[:, None]
_EAST = np.deg2rad(LONGITUDE)
_PHASE = np.arange(2)[:, None, None]


def _field(steps: np.ndarray) -> np.ndarray:
    steps = np.asarray(steps, float)[..., None, None, None]
    wave = 10 * np.sin(0.3 * steps + 0.5 * _PHASE) * np.cos(_RADIANS)
    return np.asarray(280 + wave + 3 * np.sin(2 * _EAST + 0.1 * steps) * np.ones_like(_RADIANS))


def truth() -> xr.Dataset:
    times = pd.date_range("2020-01-01", periods=11, freq="6h")
    coords = {"time": times, "level": LEVEL, "latitude": LATITUDE, "longitude": LONGITUDE}
    return xr.Dataset({"t": (("time", *DIMS[2:]), _field(np.arange(11)))}, coords)


def _coords() -> dict[str, object]:
    init = pd.date_range("2020-01-01", "2020-01-02T12", freq="12h")
    lead = pd.timedelta_range("0h", "24h", freq="6h")
    grid = {"level": LEVEL, "latitude": LATITUDE, "longitude": LONGITUDE}
    return {"init_time": init, "lead_time": lead, **grid}


def _error() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    init = np.arange(4)[:, None, None, None, None]
    lead = np.arange(5)[None, :, None, None, None]
    growth = (0.2 + 0.3 * lead) * (1 + 0.5 * np.sin(_RADIANS))
    error = growth * np.cos(3 * _EAST + _RADIANS + 0.7 * init + 0.4 * lead) + 0.05 * lead * np.cos(_RADIANS)
    return _field((np.arange(4) * 2)[:, None] + np.arange(5)[None]), error, init


def deterministic() -> xr.Dataset:
    valid, error, _ = _error()
    return xr.Dataset({"t": (DIMS, valid + error)}, _coords())


def ensemble() -> xr.Dataset:
    valid, error, init = _error()
    lead = np.arange(5)[None, :, None, None, None]
    member = np.arange(MEMBERS)[:, None, None, None, None, None]
    noise = (0.15 + 0.1 * lead) * np.cos(2 * _EAST - _RADIANS + 2.1 * member + 0.5 * init) + 0.02 * member
    coords = {**_coords(), "number": np.arange(MEMBERS)}
    return xr.Dataset({"t": (("number", *DIMS), valid + 0.8 * error + noise)}, coords)


def climatology() -> xr.Dataset:
    day, hour = np.arange(1, 367), np.array([0, 6, 12, 18])
    phase = 0.02 * day[:, None, None, None, None] + 0.1 * hour[None, :, None, None, None] / 6 + 0.5 * _PHASE
    coords = {"dayofyear": day, "hour": hour, "level": LEVEL, "latitude": LATITUDE, "longitude": LONGITUDE}
    return xr.Dataset(
        {"t": (("dayofyear", "hour", *DIMS[2:]), 280 + 8 * np.sin(phase) * np.cos(_RADIANS) + 0 * _EAST)}, coords
    )


WEIGHTS_POLES = [
    0.119259607988,
    0.905866657859,
    1.569007076294,
    1.811733315718,
    1.569007076294,
    0.905866657859,
    0.119259607988,
]
WEIGHTS_64X32 = [0.077044373245, 0.230391140303, 0.381519114736, 0.528972851535]
WEIGHTS_SUBSET = {
    "wb2": [1.482361909795, 1.035276180410, 0.896575472168, 0.585786437627],
    "area": [1.071796769724, 1.237604307034, 1.071796769724, 0.618802153517],
}

#: metric as it is written: scores of the forecast without members
DETERMINISTIC = {
    "mse": [0.021701301958, 0.137282486257, 0.353818227409, 0.671308525413, 1.089753380270],
    "rmse": [0.147313617693, 0.370516512800, 0.594826216141, 0.819334196414, 1.043912534779],
    "mae": [0.126578282448, 0.318432575405, 0.513406412445, 0.704808673085, 0.898544823110],
    "bias": [0.0, 0.038822856765, 0.077645713531, 0.116468570296, 0.155291427062],
    "acc_mean_of_ratios": [0.999108172187, 0.996066304418, 0.994100781954, 0.985297074402, 0.965837891856],
    "acc": [0.999644482764, 0.997661115367, 0.995433374171, 0.989388358932, 0.985431445299],
    "acc_centered": [0.998259337540, 0.989364340387, 0.976391074250, 0.952798577947, 0.929465881160],
}
MSE_NORTH = [0.035311429791, 0.222048739439, 0.570392089632, 1.080341480372, 1.751896911657]

#: the same of the ensemble
ENSEMBLE = {
    "crps": [0.062504483917, 0.172059847521, 0.288949600702, 0.410279061915, 0.523471015580],
    "crps_ecdf": [0.077095909951, 0.195277149799, 0.320804610512, 0.450784108802, 0.572632347595],
    "crps_skill": [0.135461614090, 0.288146358910, 0.448224649754, 0.612804296351, 0.769277675658],
    "crps_spread": [0.145914260347, 0.232173022779, 0.318550098104, 0.405050468872, 0.491613320157],
    "mse": [0.015930068816, 0.093171108378, 0.235415273715, 0.442662564827, 0.714912981713],
    "mse_debiased": [0.013027877706, 0.085465021963, 0.220503344342, 0.418142844843, 0.678383523465],
    "ensemble_variance": [0.014510955547, 0.038530432074, 0.074559646866, 0.122598599921, 0.182647291240],
    "spread_skill_naive": [0.954419227391, 0.643074529415, 0.562774749079, 0.526267265596, 0.505452124454],
    "spread_skill_fortin": [1.045513880318, 0.704452851836, 0.616488849730, 0.576496905287, 0.553695060605],
    "spread_skill": [1.055385612216, 0.671440811961, 0.581492785465, 0.541477506666, 0.518882438432],
    "energy_score": [0.084591026167, 0.222520590158, 0.364884247913, 0.508192123158, 0.651846705349],
    "energy_score:fair=false": [0.100832751039, 0.248432997784, 0.400541539216, 0.553620355130, 0.707058144212],
    "energy_score:adjacent=true": [0.073253665534, 0.198416690666, 0.328261626089, 0.459139810896, 0.590407252776],
    "energy_score:area=false": [0.795634073872, 2.084465240923, 3.417995427156, 4.761082801147, 6.107685732538],
    "brier:>281": [0.000178829131, 0.010719481141, 0.011065962188, 0.028409232104, 0.033127426588],
    "brier:>281:fair=true": [0.000035493931, 0.010195831845, 0.010082552672, 0.026761600362, 0.030161927058],
}
RANKS_24H = {
    "rank_histogram": [
        *(0.417064537967, 0.034288450126, 0.075021260717),
        *(0.122497534649, 0.062867460213, 0.288260756328),
    ],
    "rank_histogram:area=false": [
        *(0.383928571429, 0.044642857143, 0.107142857143),
        *(0.122023809524, 0.062500000000, 0.279761904762),
    ],
}

#: what each school calls by these names
NAMES = ("acc", "crps", "energy_score", "spread_skill")
CONVENTIONS = {
    "wb2": ("acc_mean_of_ratios", "crps", "energy_score:adjacent=true", "spread_skill_naive"),
    "wbx": ("acc", "crps", "energy_score:area=false", "spread_skill"),
    "wmo": ("acc_centered", "crps_ecdf", "energy_score:fair=false", "spread_skill_naive"),
}
