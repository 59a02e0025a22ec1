"""Values -> what is stored: names, attributes, CF conventions, types and text, as the encoding asks for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray import conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder
from xarray.coding.variables import CFMaskCoder, CFScaleOffsetCoder

from b2array.format.attributes import encode_attr
from b2array.grid.chunking import automatic

__all__ = ["as_text", "attributes", "encoded", "fitted", "is_dask", "mapped", "marked"]

Encoding = Mapping[Hashable, Any]

_OWN = ("chunks", "blocks", "cparams", "layout", "fill_value")
_INHERITED = {"source", "original_shape", "preferred_chunks", "char_dim_name", "unlimited_dims"}
"""Entries of an encoding that only tell where a variable was read from, and not how to store it."""
_FINE_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_NONE_NAME = "__values__"
"""The name under which xarray stores and finds a variable whose name is None."""


def is_dask(variable: xr.Variable) -> bool:
    """Whether dask computes a variable in pieces."""
    return variable.chunks is not None


def marked(ds: xr.Dataset) -> tuple[dict[str, xr.Variable], dict[str, Any]]:
    """Check names, and note in the attributes which variables are coordinates. Return copies by their stored names."""
    for name in ds.variables:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a name of a variable must be text, a string or None, not {name!r}")
        if name == "" or (name is not None and "/" in name):
            raise ValueError(
                f"a name of a variable, a string must be length 1 or more and without slashes, not {name!r}"
            )
    for dim in ds.dims:
        if not isinstance(dim, str):
            raise TypeError(f"names of dimensions must be text, not {dim!r}")
    variables, attrs = conventions.encode_dataset_coordinates(ds)
    return {_NONE_NAME if name is None else str(name): each for name, each in variables.items()}, dict(attrs)


def encoded(variables: Mapping[str, xr.Variable], encoding: Encoding) -> dict[str, xr.Variable]:
    """Return variables of plain arrays by the CF conventions, with an ``encoding`` that `b2array.create` takes.

    The given encoding replaces that of the variables. KeyError says that there is no such variable, TypeError or
    ValueError that the encoding is not valid, or that values cannot be stored as it asks.
    """
    for name, asked in encoding.items():
        if name not in variables:
            raise KeyError(f"encoding is given for {name!r}, which is no variable")
        variables[str(name)].encoding = asked
    widths = {name: _without_width(each) for name, each in variables.items()}
    coded, _ = conventions.cf_encoder({name: fitted(name, each) for name, each in variables.items()}, {})
    return {str(name): _stored(str(name), each, widths[name], given=name in encoding) for name, each in coded.items()}


def _without_width(variable: xr.Variable) -> np.dtype[Any] | None:
    """Take the width of text out of the encoding: xarray would cut what is longer."""
    asked = variable.encoding.get("dtype")
    if variable.dtype.kind not in "OSTU" or asked is None or asked == "S1":
        return None
    width: np.dtype[Any] = np.dtype(asked)
    if width.kind not in "SU":
        return None
    variable.encoding = {key: value for key, value in variable.encoding.items() if key != "dtype"}
    return width


def _stored(name: str, variable: xr.Variable, width: np.dtype[Any] | None, *, given: bool) -> xr.Variable:
    variable = as_text(name, variable)
    if width is not None and width.itemsize:
        if variable.dtype.kind == width.kind and variable.dtype.itemsize < width.itemsize:
            variable = mapped(variable, partial(np.asarray, dtype=width), width)
        elif given and variable.dtype != width:
            raise _not_held(name, width, f"text of type {variable.dtype}")
    left = {key for key, value in variable.encoding.items() if key != "_FillValue" or value is not None}
    if given and (unknown := sorted(map(str, left - _INHERITED - {*_OWN}))):
        raise ValueError(f"unexpected encoding parameters for variable {name!r}: {unknown}; known besides CF: {_OWN}")
    variable.encoding = _creating(name, variable, given=given)
    variable.attrs = attributes(variable.attrs, f"variable {name!r}")
    return variable


def _creating(name: str, variable: xr.Variable, *, given: bool) -> dict[str, Any]:
    """Return the part of the encoding that `b2array.create` takes."""
    own = {key: variable.encoding[key] for key in _OWN if variable.encoding.get(key) is not None}
    parts = {key: own.pop(key) for key in ("chunks", "blocks") if key in own}
    chunks = parts.get("chunks", "auto")
    if isinstance(chunks, str) and chunks == "auto":
        return own
    try:
        parts["chunks"], _ = automatic(variable.shape, variable.dtype.itemsize, chunks=chunks)
    except (TypeError, ValueError) as error:
        if given or isinstance(error, TypeError):
            raise type(error)(f"variable {name!r}: {error}") from None
        return own  # those of an array that was read, of another shape
    with suppress(TypeError, ValueError):  # other blocks are chosen for chunks that they do not fit
        automatic(variable.shape, variable.dtype.itemsize, **parts)
        return own | parts
    return own | {"chunks": parts["chunks"]}


# Attributes.


def attributes(attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes in a form that can be stored; an error names the attribute that cannot, and its owner.

    Points and lengths of time become arrays without dimensions.
    """
    found = {}
    for name, given in attrs.items():
        is_plain_time = isinstance(given, datetime) and given.tzinfo is None
        value = np.datetime64(given.replace(tzinfo=None)) if is_plain_time else given
        if isinstance(value, np.datetime64 | np.timedelta64):
            value = np.asarray(value)
        try:
            encode_attr(value)
        except TypeError as error:
            raise TypeError(f"{owner} has an attribute {name!r} that cannot be stored: {error}") from None
        if not isinstance(name, str):
            raise TypeError(f"names of attributes must be text, not {name!r} of {owner}")
        found[name] = value
    return found


# Numbers.


def fitted(name: str, variable: xr.Variable, *, exact: bool = False) -> xr.Variable:
    """Scale, mask and convert numbers as the encoding asks, but refuse those that its type cannot hold.

    xarray's own coders would wrap them. Times get the resolution of the units that are asked for if that is finer. With
    `exact`, fractions are refused where whole numbers are stored.
    """
    if variable.dtype.kind in "mM":
        return _resolved(name, variable)
    asked = variable.encoding.get("dtype")
    if asked is None or variable.dtype.kind not in "biufc" or np.dtype(asked).kind not in "biufc":
        return variable
    dtype = np.dtype(asked)
    variable = CFScaleOffsetCoder().encode(variable, name=name)
    if (unsigned := variable.encoding.get("_Unsigned")) is not None:
        # Check them before xarray masks them and takes their bits for those of the other kind.
        meant = np.dtype(f"{'u' if str(unsigned).lower() == 'true' else 'i'}{dtype.itemsize}")
        return mapped(variable, partial(_checked, name=name, dtype=meant, masked=True), variable.dtype)
    variable = CFMaskCoder().encode(variable, name=name)
    del variable.encoding["dtype"]
    if variable.dtype == dtype:
        return variable
    return mapped(variable, partial(_converted, name=name, dtype=dtype, exact=exact), dtype)


def _resolved(name: str, variable: xr.Variable) -> xr.Variable:
    units = str(variable.encoding.get("units")).partition(" ")[0]
    if units not in _FINE_UNITS:
        return variable
    dtype = np.promote_types(variable.dtype, f"{variable.dtype.kind}8[{_FINE_UNITS[units]}]")
    # xarray divides by the unit in the resolution of the times: by zero, which makes NaT.
    return mapped(variable, partial(_in_unit, name=name, dtype=dtype), dtype)


def _in_unit(values: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    result = values.astype(dtype)
    if (wrong := (result.astype(values.dtype) != values) & ~np.isnat(values)).any():
        raise _not_held(name, dtype, values[wrong][0])
    return result


def mapped(variable: xr.Variable, function: Any, dtype: np.dtype[Any]) -> xr.Variable:
    """Apply a function that keeps the shape and returns this type: now, or in each piece of a dask array."""
    data = variable.data
    if is_dask(variable):
        data = data.map_blocks(function, dtype=dtype, meta=np.empty((0,) * variable.ndim, dtype))
    else:
        data = function(np.asarray(data))
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


def _converted(values: npt.NDArray[Any], name: str, dtype: np.dtype[Any], exact: bool) -> npt.NDArray[Any]:
    whole = dtype.kind in "iub"
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise ValueError(f"variable {name!r} is stored as {dtype}, which cannot hold complex numbers")
    rounded = np.around(values) if whole and values.dtype.kind == "f" else values
    if whole:
        _checked(rounded, name, dtype)
    try:
        with np.errstate(over="raise"):
            result = rounded.astype(dtype)
    except FloatingPointError:
        raise _not_held(name, dtype, np.nanmax(np.abs(values))) from None
    if exact and whole and (wrong := rounded != values).any():
        raise _not_held(name, dtype, values[wrong][0])
    return result


def _checked(
    values: npt.NDArray[Any], name: str, dtype: np.dtype[Any], *, masked: bool = False
) -> npt.NDArray[Any]:  # fmt: skip
    """Return values if all that are not missing are in the range of a type of whole numbers."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    known = np.around(values[~np.isnan(values)]) if masked else values
    for extreme in (known.min().item(), known.max().item()) if known.size else ():
        if not low <= extreme <= high:
            raise _not_held(name, dtype, extreme)
    return values


def _not_held(name: str, dtype: np.dtype[Any], value: object) -> ValueError:
    return ValueError(f"variable {name!r} is stored as {dtype}, which cannot hold {value}")


# Text.


def as_text(name: str, variable: xr.Variable, characters: int | None = None) -> xr.Variable:
    """Turn objects into text of one width, or into the numbers that they are.

    Missing text becomes empty. With ``dtype="S1"`` in the encoding, text is encoded and cut into at least that many
    characters along a dimension of their own, as in netCDF files.
    """
    if variable.dtype.kind not in "OSTU":
        return variable
    variable = _of_one_type(name, variable)
    if variable.encoding.get("dtype") == "S1" and variable.dtype.kind in "SU":
        variable = EncodedStringCoder().encode(variable, name=name)
        if characters is not None and variable.dtype.itemsize < characters:
            variable = mapped(variable, partial(np.asarray, dtype=f"S{characters}"), np.dtype(f"S{characters}"))
        cut: xr.Variable = CharacterArrayCoder().encode(variable, name=name)
        return cut
    variable.encoding.pop("dtype", None)
    if variable.dtype == "S1" and variable.ndim:
        # xarray takes bytes of width 1 for characters, and joins them along the last dimension.
        return mapped(variable, partial(np.asarray, dtype="S2"), np.dtype("S2"))
    return variable


def _of_one_type(name: str, variable: xr.Variable) -> xr.Variable:
    if variable.dtype.kind == "T":
        texts = np.array(variable.values, dtype=object)
        texts[np.array([not isinstance(item, str) for item in texts.flat], bool).reshape(texts.shape)] = ""
        variable = xr.Variable(variable.dims, texts, variable.attrs, variable.encoding)
    elif variable.dtype.kind == "O":
        variable = ensure_dtype_not_object(variable, name=name)
    if variable.dtype.kind != "O":
        return variable
    values = variable.values
    for kind, nul in ((str, "\0"), (bytes, b"\0")):
        if all(isinstance(item, kind) for item in values.flat):
            if any(item.endswith(nul) for item in values.flat):
                raise ValueError(
                    f"variable {name!r} holds text that ends with NUL, which text of one width cannot hold"
                )
            return xr.Variable(variable.dims, values.astype(kind), variable.attrs, variable.encoding)
    if "_FillValue" in variable.attrs:
        raise NotImplementedError(f"variable {name!r} has a _FillValue of another kind than its text")
    raise TypeError(f"variable {name!r} holds Python objects that are not all text; convert it first")
