"""The eager reference: what every batch must equal, computed from the Dataset alone.

Nothing here knows how batches are planned or read. Partner positions come from a dictionary of labels in plain Python,
values from ``isel`` of xarray.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

type Lead = str | int | float | dt.timedelta | np.timedelta64
type Leads = Sequence[Lead] | Mapping[str, Sequence[Lead]]


class BatchLike(Protocol):
    """What the oracle looks at in a batch."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions along the sample dimension."""
        ...

    def __getitem__(self, name: str, /) -> Any: ...


def _labels(ds: xr.Dataset, dim: Hashable) -> list[Any]:
    """Labels of a dimension as Python objects that can be added to and looked up; positions if it has none."""
    if dim not in ds.indexes:
        return list(range(ds.sizes[dim]))
    values = ds.indexes[dim]
    if isinstance(values, pd.DatetimeIndex):
        return [int(value) for value in values.values.astype("datetime64[ns]").astype(np.int64)]
    if isinstance(values, pd.TimedeltaIndex):
        return [int(value) for value in values.values.astype("timedelta64[ns]").astype(np.int64)]
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _step(lead: Lead, label: Any) -> Any:
    """Make a lead something that can be added to a label."""
    if isinstance(label, (int, float)):
        return lead if isinstance(lead, (int, float)) else pd.Timedelta(lead).as_unit("ns").value
    return pd.Timedelta(lead).to_pytimedelta()


def partner_positions(ds: xr.Dataset, dim: Hashable, leads: Sequence[Lead]) -> dict[int, list[int]]:
    """For each position whose window is complete, the position of every lead.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> ds = xr.Dataset(coords={"time": [10, 20, 40, 50]})
    >>> partner_positions(ds, "time", [0, 10])
    {0: [0, 1], 2: [2, 3]}
    """
    labels = _labels(ds, dim)
    where = {label: position for position, label in enumerate(labels)}
    partners: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        wanted = [label + _step(lead, label) for lead in leads]
        if all(partner in where for partner in wanted):
            partners[position] = [where[partner] for partner in wanted]
    return partners


def kept_anchors(ds: xr.Dataset, dim: Hashable, leads: Iterable[Lead] | None = None) -> list[int]:
    """Positions along ``dim`` whose label plus every lead is a label, too; without leads all of them.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> ds = xr.Dataset(coords={"time": np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "M8[ns]")})
    >>> kept_anchors(ds, "time", ["0D", "1D"])
    [0]
    """
    return list(range(ds.sizes[dim])) if leads is None else list(partner_positions(ds, dim, list(leads)))


def _field_first(ds: xr.Dataset, name: str, dim: Hashable, positions: Sequence[int]) -> NDArray[Any]:
    picked = ds[name].isel({dim: list(positions)})
    return np.asarray(picked.transpose(dim, ...).values)


def expected_group(
    ds: xr.Dataset,
    positions: Sequence[int],
    *,
    sample_dim: Hashable,
    variables: Sequence[str],
    leads: Leads | None = None,
) -> dict[str, NDArray[Any]]:
    """Values of the variables at these positions, sample dimension first.

    Parameters
    ----------
    ds : xarray.Dataset
        The dataset, best loaded beforehand.
    positions : sequence of int
        Anchors, as positions along ``sample_dim``.
    sample_dim : hashable
        The dimension drawn along.
    variables : sequence of str
        Names of the variables.
    leads : sequence or mapping of sequences, optional
        Leads of all variables, or by variable. With leads the arrays are ``(batch, lead, *field dims)``.

    Returns
    -------
    dict of str to numpy.ndarray

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> ds = xr.Dataset({"a": ("time", [1, 2, 3])}, {"time": [0, 1, 2]})
    >>> expected_group(ds, [1, 0], sample_dim="time", variables=["a"], leads=[0, 1])["a"]
    array([[2, 3],
           [1, 2]])
    """
    if leads is None:
        return {name: _field_first(ds, name, sample_dim, positions) for name in variables}
    arrays = {}
    for name in variables:
        own = list(leads[name] if isinstance(leads, Mapping) else leads)
        partners = partner_positions(ds, sample_dim, own)
        columns = zip(*(partners[int(position)] for position in positions), strict=True)
        arrays[name] = np.stack([_field_first(ds, name, sample_dim, column) for column in columns], axis=1)
    return arrays


def expected_batch(
    ds: xr.Dataset, batch: BatchLike, *, sample_dim: Hashable, variables: Sequence[str], leads: Leads | None = None
) -> dict[str, NDArray[Any]]:
    """Compute what a batch must hold: `expected_group` at the positions of the batch."""
    positions = [int(position) for position in batch.positions]
    return expected_group(ds, positions, sample_dim=sample_dim, variables=variables, leads=leads)


def assert_same(actual: Any, expected: NDArray[Any], what: str) -> None:
    """Assert equal type, dtype, shape and values, NaN where NaN."""
    assert isinstance(actual, np.ndarray), f"{what}: must be a numpy array, but got {type(actual).__name__}"
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, but xarray has {expected.dtype}"
    np.testing.assert_array_equal(actual, expected, err_msg=what, strict=True)


def assert_batches_equal(
    batches: Iterable[BatchLike],
    ds: xr.Dataset,
    *,
    sample_dim: Hashable,
    variables: Sequence[str],
    leads: Leads | None = None,
    complete: bool = True,
) -> int:
    """Assert that one epoch delivers what xarray shows, every kept anchor exactly once.

    Parameters
    ----------
    batches : iterable of batches
        A loader, or one pass over it.
    ds : xarray.Dataset
        The dataset it was made from; it is not loaded in place.
    sample_dim, variables, leads
        As in `expected_group`.
    complete : bool
        ``False`` when the last, incomplete batch is dropped: anchors must still be kept ones and not repeat.

    Returns
    -------
    int
        The number of samples seen.
    """
    eager = ds[list(variables)].compute()
    seen: list[int] = []
    for number, batch in enumerate(batches):
        expected = expected_batch(eager, batch, sample_dim=sample_dim, variables=variables, leads=leads)
        for name, values in expected.items():
            assert_same(batch[name], values, f"batch {number}, {name}")
        seen.extend(int(position) for position in batch.positions)
    _assert_anchors(seen, kept_anchors(ds, sample_dim, _union(leads)), complete)
    return len(seen)


def _union(leads: Leads | None) -> list[Lead] | None:
    if isinstance(leads, Mapping):
        return [lead for own in leads.values() for lead in own]
    return None if leads is None else list(leads)


def _assert_anchors(seen: Sequence[int], kept: Sequence[int], complete: bool) -> None:
    repeated = sorted({position for position in seen if seen.count(position) > 1})
    assert not repeated, f"anchors must come once per epoch, but positions {repeated} came more often"
    foreign = sorted(set(seen) - set(kept))
    assert not foreign, f"anchors must have a complete window, but positions {foreign} came, too"
    missing = sorted(set(kept) - set(seen))
    assert not complete or not missing, f"anchors must all come, but positions {missing} did not"
