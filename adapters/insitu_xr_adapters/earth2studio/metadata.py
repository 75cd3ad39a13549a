"""What the variables of Earth2Studio are called in the metadata of stores: numbers and names of GRIB, names of CF."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ID = re.compile(r"(?P<base>[a-z]+)(?P<level>\d{1,4})")
_ACCUMULATED = re.compile(r"(?P<base>tp|cp|lsp|sf|ro|e|ssrd|strd|ssr|slhf|ttr|tsr|tisr)(?P<hours>\d{2})")


@dataclass(frozen=True, slots=True)
class Known:
    """How a variable can be told.

    Attributes
    ----------
    params : tuple of int
        ``GRIB_paramId``.
    names : tuple of str
        ``GRIB_shortName``, ``GRIB_cfVarName`` or the name of the variable itself.
    standards : tuple of str
        ``standard_name`` of CF.
    units : str
        What Earth2Studio has it in.
    height : float, optional
        Metres above ground, which a standard name alone does not tell.
    level : float, optional
        Pressure in hPa.
    hours : int, optional
        Hours over which the values of ``names`` are summed.
    """

    params: tuple[int, ...]
    names: tuple[str, ...]
    standards: tuple[str, ...]
    units: str
    height: float | None = None
    level: float | None = None
    hours: int | None = None


def _known(params: tuple[int, ...], names: str, standard: str, units: str, height: float | None = None) -> Known:
    return Known(params, tuple(names.split()), tuple(standard.split()), units, height)


#: on levels of pressure, by the letters before the level
_LEVELLED = {
    "z": _known((129, 156), "z gh geopotential geopotential_height zg", "geopotential geopotential_height", "m2 s-2"),
    "t": _known((130,), "t temperature ta", "air_temperature", "K"),
    "u": _known((131,), "u u_component_of_wind ua", "eastward_wind", "m s-1"),
    "v": _known((132,), "v v_component_of_wind va", "northward_wind", "m s-1"),
    "w": _known((135,), "w vertical_velocity wap", "lagrangian_tendency_of_air_pressure", "Pa s-1"),
    "q": _known((133,), "q specific_humidity hus", "specific_humidity", "kg kg-1"),
    "r": _known((157,), "r relative_humidity hur", "relative_humidity", "%"),
    "pv": _known((60,), "pv potential_vorticity", "ertel_potential_vorticity", "K m2 kg-1 s-1"),
    "d": _known((155,), "d divergence", "divergence_of_wind", "s-1"),
    "vo": _known((138,), "vo vorticity", "atmosphere_relative_vorticity", "s-1"),
    "ws": _known((10,), "ws wind_speed", "wind_speed", "m s-1"),
}

#: at one level
_SINGLE = {
    "u10m": _known((165,), "10u u10 10m_u_component_of_wind uas", "eastward_wind", "m s-1", 10),
    "v10m": _known((166,), "10v v10 10m_v_component_of_wind vas", "northward_wind", "m s-1", 10),
    "ws10m": _known((207,), "10si si10 10m_wind_speed sfcWind", "wind_speed", "m s-1", 10),
    "u100m": _known((228246,), "100u u100 100m_u_component_of_wind", "eastward_wind", "m s-1", 100),
    "v100m": _known((228247,), "100v v100 100m_v_component_of_wind", "northward_wind", "m s-1", 100),
    "t2m": _known((167,), "2t t2m 2m_temperature tas temperature_2m", "air_temperature", "K", 2),
    "d2m": _known((168,), "2d d2m 2m_dewpoint_temperature", "dew_point_temperature", "K", 2),
    "r2m": _known((260242,), "2r r2 2m_relative_humidity hurs", "relative_humidity", "%", 2),
    "q2m": _known((174096,), "2sh sh2 2m_specific_humidity huss", "specific_humidity", "kg kg-1", 2),
    "sst": _known((34,), "sst sea_surface_temperature tos", "sea_surface_temperature", "K"),
    "sic": _known((31,), "ci siconc sea_ice_cover", "sea_ice_area_fraction", "1"),
    "sp": _known((134,), "sp surface_pressure ps", "surface_air_pressure", "Pa"),
    "msl": _known((151,), "msl mean_sea_level_pressure prmsl psl", "air_pressure_at_mean_sea_level", "Pa"),
    "tcwv": _known(
        (137,),
        "tcwv total_column_water_vapour total_column_water_vapor prw",
        "atmosphere_mass_content_of_water_vapor",
        "kg m-2",
    ),
    "tcw": _known((136,), "tcw total_column_water", "atmosphere_mass_content_of_water", "kg m-2"),
    "tclw": _known((78,), "tclw total_column_cloud_liquid_water", "", "kg m-2"),
    "tciw": _known((79,), "tciw total_column_cloud_ice_water", "", "kg m-2"),
    "tp": _known((228,), "tp total_precipitation", "", "m"),
    "cp": _known((143,), "cp convective_precipitation", "lwe_thickness_of_convective_precipitation_amount", "m"),
    "lsp": _known((142,), "lsp large_scale_precipitation", "lwe_thickness_of_stratiform_precipitation_amount", "m"),
    "sf": _known((144,), "sf snowfall", "", "kg m-2"),
    "ro": _known((205,), "ro runoff", "", "kg m-2"),
    "blh": _known((159,), "blh boundary_layer_height", "atmosphere_boundary_layer_thickness", "m"),
    "cape": _known(
        (59,),
        "cape convective_available_potential_energy",
        "atmosphere_convective_available_potential_energy",
        "J kg-1",
    ),
    "skt": _known((235,), "skt skin_temperature ts", "surface_temperature", "K"),
    "lsm": _known((172,), "lsm land_sea_mask sftlf", "land_binary_mask", "1"),
    "z": _known((129,), "z geopotential_at_surface orog", "surface_geopotential surface_altitude", "m2 s-2"),
    "tcc": _known((164,), "tcc total_cloud_cover", "cloud_area_fraction", "1"),
    "hcc": _known((188,), "hcc high_cloud_cover", "", "1"),
    "mcc": _known((187,), "mcc medium_cloud_cover", "", "1"),
    "lcc": _known((186,), "lcc low_cloud_cover", "", "1"),
    "sd": _known((141,), "sd snow_depth", "lwe_thickness_of_surface_snow_amount", "m"),
    "fg10m": _known((49,), "10fg fg10 10m_wind_gust_since_previous_post_processing", "wind_speed_of_gust", "m s-1", 10),
    "ssrd": _known((169,), "ssrd surface_solar_radiation_downwards", "", "J m-2"),
    "strd": _known((175,), "strd surface_thermal_radiation_downwards", "", "J m-2"),
    "ssr": _known((176,), "ssr surface_net_solar_radiation", "", "J m-2"),
    "slhf": _known((147,), "slhf surface_latent_heat_flux", "", "J m-2"),
    "ttr": _known((179,), "ttr top_net_thermal_radiation", "", "J m-2"),
    "tsr": _known((178,), "tsr top_net_solar_radiation", "", "J m-2"),
    "tisr": _known((212,), "tisr toa_incident_solar_radiation", "", "J m-2"),
    "fdir": _known((228021,), "fdir total_sky_direct_solar_radiation_at_surface", "", "J m-2"),
    "zust": _known((228003,), "zust friction_velocity", "", "m s-1"),
    "fsr": _known((244,), "fsr forecast_surface_roughness", "", "m"),
    "swvl1": _known((39,), "swvl1 volumetric_soil_water_layer_1", "", "m3 m-3"),
    "swvl2": _known((40,), "swvl2 volumetric_soil_water_layer_2", "", "m3 m-3"),
    "stl1": _known((139,), "stl1 soil_temperature_level_1", "", "K"),
    "stl2": _known((170,), "stl2 soil_temperature_level_2", "", "K"),
    "stl3": _known((183,), "stl3 soil_temperature_level_3", "", "K"),
    "stl4": _known((236,), "stl4 soil_temperature_level_4", "", "K"),
    "slor": _known((163,), "slor slope_of_sub_gridscale_orography", "", ""),
    "sdor": _known((160,), "sdor standard_deviation_of_orography", "", ""),
}

#: summed over the last hours: what they are in, where that is not what the hourly values are in
_SUMMED_UNITS = {"sf": "m", "ro": "m"}
#: evaporation is known as a sum alone
_EVAPORATION = _known((182,), "e evaporation", "", "m")


def known(variable: str) -> Known | None:
    """What is known of a variable of Earth2Studio; None where nothing is.

    Examples
    --------
    >>> known("t2m").params, known("z500").level, known("tp06").hours, known("abi01c")
    ((167,), 500.0, 6, None)
    """
    if variable in _SINGLE:
        return _SINGLE[variable]
    if (match := _ID.fullmatch(variable)) and match["base"] in _LEVELLED:
        return replace(_LEVELLED[match["base"]], level=float(match["level"]))
    if match := _ACCUMULATED.fullmatch(variable):
        base = _EVAPORATION if match["base"] == "e" else _SINGLE.get(match["base"])
        units = _SUMMED_UNITS.get(match["base"])
        if base is not None:
            return replace(base, hours=int(match["hours"]), units=units or base.units)
    return None


def is_levelled(name: str) -> bool:
    """Whether a variable of this name may be on a level, so that one at no level must not be taken for it.

    Examples
    --------
    >>> is_levelled("z"), is_levelled("2m_temperature")
    (True, False)
    """
    return any(name in facts.names for facts in _LEVELLED.values())


def ids(levels: tuple[float, ...]) -> list[str]:
    """Variables that something is known of, on levels of pressure in hPa."""
    levelled = [f"{base}{level:g}" for base in _LEVELLED for level in levels if level == int(level)]
    return [*_SINGLE, *levelled]
