"""Variables that go into existing arrays: into which part, and in which form."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray import conventions
from xarray.coding.times import infer_calendar_name
from xarray.core.common import contains_cftime_datetimes

from b2array.array.array import NDArray
from b2array.xarray_io.backend import attributes_of, dims_of
from b2array.xarray_io.encoding import as_text, fitted

__all__ = ["Region", "as_stored", "detected", "place"]

Region = Mapping[Hashable, slice]

_CODED = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "_Encoding")
"""Attributes without which stored values mean something else."""
_PLAIN_CALENDARS = {"standard", "gregorian", "proleptic_gregorian"}


# Where.


def detected(
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"], ds: xr.Dataset, arrays: Mapping[str, NDArray]
) -> dict[Hashable, slice]:  # fmt: skip
    """Check a region, and find the parts that are given by values of coordinates."""
    if isinstance(region, str) and region == "auto":
        region = dict.fromkeys(ds.dims, region)
    if not isinstance(region, Mapping):
        raise TypeError(f"``region`` must be a dict or 'auto', found {region!r}")
    found = {}
    for dim, part in region.items():
        if dim not in ds.dims:
            raise ValueError(
                f"all keys in ``region`` are not in Dataset dimensions: the dataset has no dimension {dim!r}"
            )
        if isinstance(part, str) and part == "auto":
            found[dim] = _detected(dim, ds, arrays)
        elif not isinstance(part, slice):
            raise TypeError(f"all values of ``region`` must be slice objects or 'auto', found {part!r} for {dim!r}")
        elif part.step not in (None, 1):
            raise ValueError(f"the step on all slices of a region must be 1: {part} of {dim!r} is not inside one piece")
        else:
            found[dim] = part
    # Indexes are never written. In a region of slices, they are the caller's mistake.
    written = ds.drop_vars(ds.indexes) if "auto" in region.values() else ds
    others = [name for name, variable in written.variables.items() if not found.keys() & {*variable.dims}]
    if found and others:
        raise ValueError(
            "all variables in the dataset to write must have at least one dimension in common with the region; "
            f"{others} have none: drop them, or write them whole"
        )
    return found


def _detected(dim: Hashable, ds: xr.Dataset, arrays: Mapping[str, NDArray]) -> slice:
    if dim not in ds.variables:
        return slice(0, ds.sizes[dim])
    array = arrays.get(str(dim))
    if array is None:
        raise KeyError(f"there is no stored coordinate {dim!r} in which to find the region")
    raw = xr.Variable(dims_of(str(dim), array), array[...], attributes_of(array.attrs))
    stored = conventions.decode_cf_variable(dim, raw)
    positions = stored.to_index_variable().to_index().get_indexer(ds[dim].to_index())
    if (positions < 0).any():
        raise KeyError(f"values of the coordinate {dim!r} are not among the stored ones")
    if (np.diff(positions) != 1).any():
        raise ValueError(f"the values of the coordinate {dim!r} are not stored side by side")
    return slice(int(positions[0]), int(positions[-1]) + 1) if len(positions) else slice(0, 0)


def place(
    name: str, array: NDArray, variable: xr.Variable, append_dim: Hashable | None, region: Region
) -> tuple[slice, ...]:  # fmt: skip
    """Return where a variable goes in an array. Its dimensions are in the stored order."""
    where = []
    for dim, n, length in zip(variable.dims, array.shape, variable.shape, strict=True):
        if dim == append_dim:
            where.append(slice(n, n + length))
            continue
        part = region.get(dim, slice(None))
        if any(edge is not None and not -n <= edge <= n for edge in (part.start, part.stop)):
            raise ValueError(f"the region {part} of {dim!r} is not inside the {n} items of variable {name!r}")
        start, stop, _ = part.indices(n)
        if stop - start != length:
            raise ValueError(
                f"variable {name!r} already exists with different dimension sizes: expected {stop - start} items "
                f"along {dim!r}, found {length}"
            )
        where.append(slice(start, stop))
    return tuple(where)


# In which form.


def as_stored(name: str, variable: xr.Variable, array: NDArray) -> xr.Variable:
    """Encode a variable as the existing one is encoded, with its dimensions in the same order.

    Text from objects may come out wider than the stored text.
    """
    attrs = {key: value for key, value in attributes_of(array.attrs).items() if key in (*_CODED, "dtype")}
    dims = dims_of(name, array)
    characters = array.shape[-1] if array.dtype == "S1" and len(dims) == variable.ndim + 1 else None
    wanted = dims if characters is None else dims[:-1]
    if {*variable.dims} != {*wanted}:
        raise ValueError(
            f"variable {name!r} already exists with different dimension names: {wanted}, not {variable.dims}"
        )
    variable, given = variable.transpose(*wanted).copy(deep=False), variable.dtype
    if given == array.dtype and given.kind in "mM":
        return variable
    if given.kind == "O" and array.dtype.kind not in "SU" and not contains_cftime_datetimes(variable):
        variable = as_text(name, variable)
    _check_kind(name, variable, array, attrs)
    coded = as_text(name, _encoded(name, variable, array, attrs, characters), characters)
    if coded.ndim != array.ndim:
        raise ValueError(f"variable {name!r} is stored as characters of text, which cannot hold {given}")
    for key in _CODED:
        if not _same(attrs.get(key), coded.attrs.get(key)) and (" since " in str(attrs.get("units")) or key != "units"):
            raise ValueError(
                f"variable {name!r} has {key}={attrs.get(key)!r} where it is stored, "
                f"the new one {coded.attrs.get(key)!r}"
            )
    return _checked(name, coded, given, array)


def _encoded(
    name: str, variable: xr.Variable, array: NDArray, attrs: Mapping[str, Any], characters: int | None
) -> xr.Variable:  # fmt: skip
    encoding = {key: attrs[key] for key in _CODED if key in attrs and key not in variable.attrs}
    if characters is not None:
        encoding["dtype"] = "S1"
    elif array.dtype.kind not in "SU" and attrs.get("dtype") != "bool":
        encoding["dtype"] = array.dtype
    if variable.dtype.kind == "b":
        variable.attrs = {key: value for key, value in variable.attrs.items() if key != "dtype"}
    if variable.dtype.kind not in "mMO":
        # Numbers may have units of their own, which are not coded.
        encoding = {key: value for key, value in encoding.items() if key not in ("units", "calendar")}
    # Otherwise xarray would add one.
    encoding.setdefault("_FillValue", None)
    variable.encoding = encoding
    exact = attrs.keys().isdisjoint(("scale_factor", "add_offset", "_Unsigned"))
    return conventions.encode_cf_variable(fitted(name, variable, exact=exact), name=name)


def _check_kind(name: str, variable: xr.Variable, array: NDArray, attrs: Mapping[str, Any]) -> None:
    """Refuse kinds of values that the array would store with another meaning."""
    units, kind = str(attrs.get("units")), variable.dtype.kind
    is_time = kind == "M" or contains_cftime_datetimes(variable)
    wrong = (
        (is_time and " since " not in units)
        or (kind == "m" and ("units" not in attrs or " since " in units))
        or (kind in "SUT" and array.dtype.kind not in "SU")
        or (kind in "biufcmM" and array.dtype.kind in "SU")
        or (attrs.get("dtype") == "bool" and kind != "b")
        or (kind == "c" and array.dtype.kind != "c")
    )
    coded = not attrs.keys().isdisjoint(_CODED)
    if not coded and kind in "biufc" and array.dtype.kind in "biufc":
        wrong = wrong or not np.can_cast(variable.dtype, array.dtype, "same_kind")
    if wrong:
        raise ValueError(f"variable {name!r} is stored as {array.dtype}, which cannot hold {variable.dtype}")
    if is_time and variable.size:
        stored, found = attrs.get("calendar", "standard"), infer_calendar_name(variable.data)
        alike = _PLAIN_CALENDARS if kind == "M" else {"standard", "gregorian"}
        if stored != found and not {stored, found} <= alike:
            raise ValueError(f"variable {name!r} is stored in the calendar {stored!r}, which cannot hold {found!r}")


def _checked(name: str, coded: xr.Variable, given: np.dtype[Any], array: NDArray) -> xr.Variable:
    stored = array.dtype
    if stored.kind in "SU" and coded.dtype.kind == stored.kind:
        if coded.dtype.itemsize > stored.itemsize and given.kind not in "OT":
            raise ValueError(
                f"Mismatched dtypes for variable {name!r}: it is stored as {stored}, which cannot hold {coded.dtype}; "
                "as objects, astype(object), it makes the stored text wider"
            )
        return coded
    if not np.can_cast(coded.dtype, stored, "safe") and coded.dtype != stored:
        raise ValueError(f"variable {name!r} is stored as {stored}, which cannot hold {coded.dtype}")
    return coded


def _same(a: Any, b: Any) -> bool:
    """Compare attributes. NaN equals NaN, and units may be spelled differently."""
    if isinstance(a, str) and isinstance(b, str):
        plain = {a, b} <= _PLAIN_CALENDARS
        return a == b or plain or _instant(a) == _instant(b)
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))


def _instant(units: str) -> object:
    """Parse units such as "days since 2000-01-01"."""
    unit, _, since = units.partition(" since ")
    try:
        return unit.strip(), np.datetime64(since.strip().replace(" ", "T"))
    except ValueError:
        return units
