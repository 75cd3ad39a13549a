"""Earth2Studio itself, where it is installed: its modules warn when they are imported, which is not for us to mend.

For each optional package that is missing they also look at the whole stack, with the source of every frame, which takes
minutes in all; they need the names of the files alone.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("earth2studio", exc_type=ModuleNotFoundError)


def _files(context: int = 1) -> list[Any]:
    """What Earth2Studio uses of ``inspect.stack()``."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(SimpleNamespace(filename=frame.f_code.co_filename))
        frame = frame.f_back
    return found


with warnings.catch_warnings(), mock.patch.object(inspect, "stack", _files):
    warnings.simplefilter("ignore")
    from earth2studio import run
    from earth2studio.data import DataSource, ForecastSource, TimeWindow, datasource_to_file, fetch_data
    from earth2studio.io import ZarrBackend
    from earth2studio.lexicon import ARCO_ERA5Lexicon, WB2Lexicon
    from earth2studio.models.dx import DerivedVPD, DerivedWS
    from earth2studio.models.px import DataReplay, Persistence
    from earth2studio.perturbation import LaggedEnsemble, Zero
    from earth2studio.statistics import acc, lat_weight, rmse

__all__ = [
    "ARCO_ERA5Lexicon",
    "DataReplay",
    "DataSource",
    "DerivedVPD",
    "DerivedWS",
    "ForecastSource",
    "LaggedEnsemble",
    "Persistence",
    "TimeWindow",
    "WB2Lexicon",
    "ZarrBackend",
    "Zero",
    "acc",
    "datasource_to_file",
    "fetch_data",
    "lat_weight",
    "rmse",
    "run",
]
