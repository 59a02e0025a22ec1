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
    """Return for each array of bounds the name of its coordinate, with the units and the calendar of that."""
    bounds = {}
    for name, array in arrays.items():
        attrs = attributes_of(array.attrs)
        if " since " not in str(attrs.get("units")):
            continue
        for key in _BOUNDS:
            if attrs.get(key) in arrays:
                bounds[attrs[key]] = name, {unit: attrs[unit] for unit in UNITS if unit in attrs}
    return bounds


def with_stored_units(variables: Mapping[str, xr.Variable], arrays: Mapping[str, NDArray]) -> dict[str, xr.Variable]:
    """Decode the numbers of climatological bounds whose coordinate was read in other units than the stored one.

    xarray decodes bounds with their coordinate, but leaves these as numbers.
    """
    result = dict(variables)
    for bounds, (name, stored) in find_bounds(arrays).items():
        if name not in variables or bounds not in variables:
            continue
        own = {key: variables[name].encoding[key] for key in UNITS if key in variables[name].encoding}
        numbers = variables[bounds]
        if "units" not in own or is_time(numbers) or is_same(own["units"], stored["units"]):
            continue
        raw = xr.Variable(numbers.dims, numbers.data, {**numbers.attrs, **own})
        result[bounds] = conventions.decode_cf_variable(bounds, raw)
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
    """Whether no item is a time, so that units are free."""
    return not times.size or bool(times.isnull().all())


def in_units(name: str, times: xr.Variable, asked: Mapping[Hashable, Any]) -> xr.Variable:
    """Encode times in other units; ValueError says that these cannot hold all of them."""
    units = asked["units"]
    plain = xr.Variable(times.dims, times.values, times.attrs)
    with warnings.catch_warnings():
        # xarray chooses finer units then, which are refused below.
        warnings.filterwarnings("ignore", r"Time(delta)?s can't be serialized faithfully", UserWarning)
        coded = encode({name: plain}, {name: asked})[name]
    back = conventions.decode_cf_variable(name, coded.copy(deep=False), decode_timedelta=True)
    if not is_same(coded.attrs.get("units"), units) or not back.equals(plain):
        raise ValueError(
            f"variable {name!r}: units={units!r} with dtype={coded.dtype.name!r} cannot hold the times that are stored;"
            " choose finer units, or a type of floats"
        )
    return coded
