"""Times that share units: bounds of a coordinate, and stored times that get finer units."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import xarray as xr
from xarray import conventions

from b2array.array.array import NDArray
from b2array.xarray_io.backend import attributes_of, dims_of
from b2array.xarray_io.encoding import encode, is_same, is_time

__all__ = ["UNITS", "decode", "find_bounds", "in_units", "is_unknown", "with_stored_units"]

UNITS = ("units", "calendar")
_BOUNDS = ("bounds", "climatology")
"""Attributes of a coordinate that name the variable with its bounds."""


def find_bounds(arrays: Mapping[str, NDArray]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return for each array of bounds its coordinate's name, units and calendar."""
    owners: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, array in arrays.items():
        attrs = attributes_of(array.attrs)
        is_time = " since " in str(attrs.get("units"))
        if not is_time:
            continue
        shared = {key: attrs[key] for key in UNITS if key in attrs}
        for key in _BOUNDS:
            bounds = attrs.get(key)
            if bounds is not None and bounds in arrays:
                owners[bounds] = name, shared
    return owners


def with_stored_units(variables: Mapping[str, xr.Variable], arrays: Mapping[str, NDArray]) -> dict[str, xr.Variable]:
    """Decode the numbers of climatological bounds whose coordinate was read in other units than the stored one.

    xarray decodes bounds with their coordinate, but leaves climatological ones as numbers.
    """
    result = dict(variables)
    for bounds, (name, stored) in find_bounds(arrays).items():
        if name not in variables or bounds not in variables:
            continue
        numbers = variables[bounds]
        encoding = variables[name].encoding
        read_in = {key: encoding[key] for key in UNITS if key in encoding}
        if "units" not in read_in or is_time(numbers) or is_same(read_in["units"], stored["units"]):
            continue
        with_units = xr.Variable(numbers.dims, numbers.data, {**numbers.attrs, **read_in})
        result[bounds] = conventions.decode_cf_variable(bounds, with_units)
    return result


def decode(
    name: str,
    array: NDArray,
    bounded: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Variable:
    """Decode stored times, with the units of a coordinate if they are its bounds."""
    attrs = {**bounded, **attributes_of(array.attrs)}
    variable = xr.Variable(dims_of(name, array), array[...], attrs)
    return conventions.decode_cf_variable(name, variable, decode_timedelta=True)


def is_unknown(times: xr.Variable) -> bool:
    """Return whether no item is a time, so that any units fit."""
    return not times.size or bool(times.isnull().all())


def in_units(name: str, times: xr.Variable, asked: Mapping[Hashable, Any]) -> xr.Variable:
    """Encode times in other units; ValueError if these cannot represent all of them."""
    units = asked["units"]
    plain = xr.Variable(times.dims, times.values, times.attrs)
    with warnings.catch_warnings():
        # xarray chooses finer units then, which are refused below.
        warnings.filterwarnings("ignore", r"Time(delta)?s can't be serialized faithfully", UserWarning)
        coded = encode({name: plain}, {name: asked})[name]
    # Small types and coarse units change times without an error: only decoding reveals it.
    back = conventions.decode_cf_variable(name, coded.copy(deep=False), decode_timedelta=True)
    if not is_same(coded.attrs.get("units"), units) or not back.equals(plain):
        raise ValueError(
            f"variable {name!r}: units={units!r} with dtype={coded.dtype.name!r} cannot hold the times that are stored;"
            " choose finer units, or a type of floats"
        )
    return coded
