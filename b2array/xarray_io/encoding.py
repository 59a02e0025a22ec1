"""Values -> what is stored: names, attributes, CF conventions, types and text.

A new array is stored as the encoding asks. Values for an existing one go into a part of it, in the form that it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray import conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder
from xarray.coding.times import infer_calendar_name
from xarray.coding.variables import CFMaskCoder, CFScaleOffsetCoder
from xarray.core.common import contains_cftime_datetimes

from b2array.array import dask
from b2array.array.array import NDArray
from b2array.array.unstorable import advise
from b2array.format.attributes import encode_attr
from b2array.grid.chunking import automatic
from b2array.xarray_io.backend import attributes_of, dims_of
from b2array.xarray_io.preferences import preferences

__all__ = [
    "OtherUnitsError",
    "as_stored",
    "attributes",
    "encode",
    "is_dask",
    "is_same",
    "is_time",
    "mark",
]

Encoding = Mapping[Hashable, Any]

_OWN = ("chunks", "blocks", "access", "cparams", "layout", "fill_value")
_INHERITED = {"source", "original_shape", "preferred_chunks", "char_dim_name", "unlimited_dims"}
"""Entries of an encoding that only tell where a variable was read from, and not how to store it."""
_FINE_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_NONE_NAME = "__values__"
"""The name under which xarray stores and finds a variable whose name is None."""
_CODED = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "_Encoding")
"""Attributes without which stored values mean something else."""
_KINDS_OF_ERRORS = (TypeError, ValueError, OverflowError, NotImplementedError)
_MARKS = ("_FillValue", "missing_value")
_PLAIN_CALENDARS = {"standard", "gregorian", "proleptic_gregorian"}


def is_dask(variable: xr.Variable) -> bool:
    """Whether dask computes a variable in pieces."""
    return variable.chunks is not None


def mark(ds: xr.Dataset) -> tuple[dict[str, xr.Variable], dict[str, Any]]:
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


def _as_declared(name: str, variable: xr.Variable) -> xr.Variable:
    """Return a copy that checks the types of what dask computes before coders cast it."""
    if not is_dask(variable) or variable.dtype.kind == "O":
        return variable.copy(deep=False)
    data = dask.as_declared(variable.data, f"variable {name!r}: ")
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


def encode(
    variables: Mapping[str, xr.Variable],
    encoding: Encoding,
    options: Collection[str] = (),
) -> dict[str, xr.Variable]:
    """Return variables of plain arrays by the CF conventions, with an ``encoding`` that `b2array.create` takes.

    The given encoding replaces the one that a variable has, and so do the `options` for all of them. KeyError says that
    there is no such variable, TypeError or ValueError that the encoding is not valid, or that values cannot be stored
    as it asks.
    """
    for name in encoding:
        if name not in variables:
            raise KeyError(f"encoding is given for {name!r}, which is no variable")
    plain = {name: _prepare(name, each, encoding.get(name), options) for name, each in variables.items()}
    _choose_units(plain)
    widths = {name: _without_width(each) for name, each in plain.items()}
    ready = {name: _name_errors(name, partial(fit, name, each)) for name, each in plain.items()}
    coded = _by_conventions(ready)
    return {
        name: _to_storable(
            name, _check_codes(name, plain[name], each, ready[name].encoding), widths[name], given=name in encoding
        )
        for name, each in coded.items()
    }


def _prepare(
    name: str,
    variable: xr.Variable,
    asked: Mapping[Hashable, Any] | None,
    options: Collection[str],
) -> xr.Variable:
    """Return a variable with the encoding by which it is to be stored."""
    _require_plain(name, variable)
    chosen = preferences(name, variable, asked, options)
    variable = _as_declared(name, variable)
    variable.encoding = chosen
    return variable


def _choose_units(variables: Mapping[str, xr.Variable]) -> None:
    """Note units in the encoding of coordinates without units whose bounds are times.

    xarray would choose units for each of the two, but by the conventions bounds have the units of their coordinate.
    """
    for name, times in variables.items():
        bounds = variables.get(str(times.attrs.get("bounds")))
        if bounds is None or "units" in {*times.encoding, *bounds.encoding}:
            continue
        pair = (times, bounds)
        # Without computing them nobody knows how fine the times of dask are.
        if not all(is_time(each) and each.dtype.kind != "m" and not is_dask(each) for each in pair):
            continue
        joined = np.concatenate([each.values.ravel() for each in pair])
        calendar = {"calendar": times.encoding["calendar"]} if "calendar" in times.encoding else {}
        both = xr.Variable("times", joined, encoding=calendar)
        coded = _name_errors(name, partial(conventions.encode_cf_variable, both, name=name))
        times.encoding = {**times.encoding, "units": coded.attrs["units"]}


def _by_conventions(variables: dict[str, xr.Variable]) -> dict[str, xr.Variable]:
    """Encode variables together, because bounds share the units of their coordinate; an error names the variable."""
    try:
        coded, _ = conventions.cf_encoder(dict(variables), {})
    except Exception:
        for name, variable in variables.items():
            _name_errors(name, partial(conventions.encode_cf_variable, variable, name=name))
        raise
    return {str(name): each for name, each in coded.items()}


def _name_errors(name: str, function: Callable[[], xr.Variable]) -> xr.Variable:
    """Call a function that encodes a variable, and name the variable in its errors."""
    try:
        return function()
    except _KINDS_OF_ERRORS as error:
        if repr(name) in str(error):
            raise
        # An error of a library may be of a class that takes other arguments.
        plain = next(
            kind for kind in (TypeError, OverflowError, NotImplementedError, ValueError) if isinstance(error, kind)
        )
        raise plain(f"variable {name!r} cannot be encoded: {error}") from error


def _check_codes(
    name: str,
    variable: xr.Variable,
    coded: xr.Variable,
    encoding: Mapping[Any, Any] = MappingProxyType({}),
) -> xr.Variable:
    """Return an encoded variable that cannot be read as other items than the plain ones."""
    is_whole_time = coded.dtype.kind in "iu" and is_time(variable)
    if is_whole_time and is_dask(coded):
        # xarray declares the type that was asked for, but encodes pieces of times as int64.
        coded = map_values(coded, partial(_convert, name=name, dtype=coded.dtype, exact=True), coded.dtype)
    coded = _check_unmarked(name, variable, coded)
    if is_whole_time and not is_dask(coded) and coded.dtype.itemsize < 8:
        # Bounds have no units themselves: xarray has noted the units of their coordinate in the encoding.
        shared = {key: encoding[key] for key in ("units", "calendar") if key in encoding}
        _require_same_times(name, variable, xr.Variable(coded.dims, coded.data, {**shared, **coded.attrs}))
    return coded


def _require_same_times(name: str, times: xr.Variable, coded: xr.Variable) -> None:
    """Refuse times that xarray has wrapped to fit them into a small type."""
    back = conventions.decode_cf_variable(name, coded, decode_timedelta=True)
    both_are_missing = back.isnull().values & times.isnull().values
    wrong = np.asarray(back.values != times.values) & ~both_are_missing
    if wrong.any():
        time = np.asarray(times.values)[wrong][0]
        hint = ": give it a _FillValue" if np.asarray(times.isnull().values)[wrong][0] else ""
        raise _not_held(name, coded.dtype, f"{time}{hint}")


# Arrays of other libraries.


def _require_plain(name: str, variable: xr.Variable) -> None:
    """Refuse arrays whose items NumPy has no type for, and say what can be stored instead."""
    if not isinstance(variable.dtype, np.dtype):
        values = f"ds[{name!r}]"
        advice = advise(variable.dtype, values, f"{values}.to_index()")
        raise TypeError(
            f"variable {name!r} has items of pandas type {variable.dtype}, which cannot be stored: {advice}"
        )
    library = type(variable._data).__module__.partition(".")[0]
    if library in ("sparse", "scipy"):
        raise TypeError(
            f"variable {name!r} is a sparse array, which cannot be stored: store it dense, with"
            f" ds[{name!r}].copy(data=ds[{name!r}].data.todense()); chunks of zeros take hardly any bytes"
        )


# Marks of missing items.


def _check_unmarked(name: str, variable: xr.Variable, coded: xr.Variable) -> xr.Variable:
    """Return an encoded variable if only missing items have the value that marks them.

    Whoever gives the mark as an attribute has encoded the items himself, and may have marked some.
    """
    own_marks = [coded.attrs[key] for key in _MARKS if key in coded.attrs and key not in variable.attrs]
    marks = [mark for each in own_marks for mark in np.ravel(each) if mark.dtype.kind in "iuf" and not np.isnan(mark)]
    if not marks or coded.dtype.kind not in "iuf" or coded.shape != variable.shape or variable.dtype.kind in "SUT":
        return coded
    check = partial(_without_marks, name=name, marks=np.array(marks))
    data, items = coded.data, variable.data
    if is_dask(coded):
        data = data.map_blocks(check, items, dtype=coded.dtype, meta=np.empty((0,) * coded.ndim, coded.dtype))
    else:
        data = check(np.asarray(data), variable.values)
    return xr.Variable(coded.dims, data, coded.attrs, coded.encoding)


def _without_marks(
    stored: npt.NDArray[Any],
    items: npt.NDArray[Any],
    name: str,
    marks: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    equal = np.isin(stored, marks.astype(stored.dtype) if stored.dtype.kind == marks.dtype.kind else marks)
    if equal.any() and (wrong := equal & ~xr.DataArray(items).isnull().values).any():
        raise ValueError(
            f"variable {name!r} is stored as {stored.dtype}, which cannot hold {items[wrong][0]}: it would be"
            f" {stored[wrong][0]}, which marks missing items; choose another _FillValue, or make the item NaN if it"
            " is missing"
        )
    return stored


def _without_width(variable: xr.Variable) -> np.dtype[Any] | None:
    """Take the width of text out of the encoding: xarray would cut longer text."""
    asked = variable.encoding.get("dtype")
    if variable.dtype.kind not in "OSTU" or asked is None or asked == "S1":
        return None
    width: np.dtype[Any] = np.dtype(asked)
    if width.kind not in "SU":
        return None
    variable.encoding = {key: value for key, value in variable.encoding.items() if key != "dtype"}
    return width


def _to_storable(
    name: str,
    variable: xr.Variable,
    width: np.dtype[Any] | None,
    *,
    given: bool,
) -> xr.Variable:
    variable = _name_errors(name, partial(as_text, name, variable))
    if width is not None and width.itemsize:
        if variable.dtype.kind == width.kind and variable.dtype.itemsize < width.itemsize:
            variable = map_values(variable, partial(np.asarray, dtype=width), width)
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
    size, access = variable.dtype.itemsize, own.get("access")
    try:
        parts["chunks"], _ = automatic(variable.shape, size, chunks=chunks, access=access)
    except (TypeError, ValueError) as error:
        if given or isinstance(error, TypeError):
            raise type(error)(f"variable {name!r}: {error}") from None
        return own  # they belong to an array of another shape, which was read
    with suppress(TypeError, ValueError):  # other blocks are chosen for chunks that they do not fit
        automatic(variable.shape, size, **parts)
        return own | parts
    return own | {"chunks": parts["chunks"]}


# Attributes.


def attributes(attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes in a form that can be stored; an error names the attribute that cannot, and its owner.

    Points and lengths of time become arrays without dimensions.
    """
    kept = {}
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
        kept[name] = value
    return kept


# Numbers.


def fit(name: str, variable: xr.Variable, *, exact: bool = False) -> xr.Variable:
    """Scale, mask and convert numbers as the encoding asks; refuse numbers that its type cannot hold.

    xarray's own coders would wrap them. Times get the resolution of the units that are asked for if that is finer. With
    `exact`, fractions are refused where whole numbers are stored.
    """
    if variable.dtype.kind in "mM":
        return _resolve(name, variable)
    asked = variable.encoding.get("dtype")
    if asked is None or variable.dtype.kind not in "biufc" or np.dtype(asked).kind not in "biufc":
        return variable
    dtype = np.dtype(asked)
    variable = CFScaleOffsetCoder().encode(variable, name=name)
    if (unsigned := variable.encoding.get("_Unsigned")) is not None:
        # Check them before xarray masks them and reads their bits as the other kind.
        meant = np.dtype(f"{'u' if str(unsigned).lower() == 'true' else 'i'}{dtype.itemsize}")
        return map_values(variable, partial(_check_range, name=name, dtype=meant, masked=True), variable.dtype)
    variable = CFMaskCoder().encode(variable, name=name)
    del variable.encoding["dtype"]
    if variable.dtype == dtype:
        return variable
    return map_values(variable, partial(_convert, name=name, dtype=dtype, exact=exact), dtype)


def _resolve(name: str, variable: xr.Variable) -> xr.Variable:
    units = str(variable.encoding.get("units")).partition(" ")[0]
    if units not in _FINE_UNITS:
        return variable
    dtype = np.promote_types(variable.dtype, f"{variable.dtype.kind}8[{_FINE_UNITS[units]}]")
    # xarray divides by the unit in the resolution of the times: by zero, which makes NaT.
    return map_values(variable, partial(_in_unit, name=name, dtype=dtype), dtype)


def _in_unit(values: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    result = values.astype(dtype)
    if (wrong := (result.astype(values.dtype) != values) & ~np.isnat(values)).any():
        raise _not_held(name, dtype, values[wrong][0])
    return result


def map_values(variable: xr.Variable, function: Any, dtype: np.dtype[Any]) -> xr.Variable:
    """Apply a function that keeps the shape and returns this type: now, or in each piece of a dask array."""
    data = variable.data
    if is_dask(variable):
        data = data.map_blocks(function, dtype=dtype, meta=np.empty((0,) * variable.ndim, dtype))
    else:
        data = function(np.asarray(data))
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


def _convert(
    values: npt.NDArray[Any],
    name: str,
    dtype: np.dtype[Any],
    exact: bool,
) -> npt.NDArray[Any]:
    whole = dtype.kind in "iub"
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise _not_held(name, dtype, "complex numbers")
    rounded = np.around(values) if whole and values.dtype.kind == "f" else values
    if whole:
        _check_range(rounded, name, dtype)
    try:
        with np.errstate(over="raise"):
            result = rounded.astype(dtype)
    except FloatingPointError:
        raise _not_held(name, dtype, np.nanmax(np.abs(values))) from None
    if exact and whole and (wrong := rounded != values).any():
        raise _not_held(name, dtype, values[wrong][0])
    return result


def _check_range(
    values: npt.NDArray[Any],
    name: str,
    dtype: np.dtype[Any],
    *,
    masked: bool = False,
) -> npt.NDArray[Any]:
    """Return values if all except missing ones are in the range of an integer type."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = np.around(values[~np.isnan(values)]) if masked else values
    for extreme in (whole.min().item(), whole.max().item()) if whole.size else ():
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
            variable = map_values(variable, partial(np.asarray, dtype=f"S{characters}"), np.dtype(f"S{characters}"))
        cut: xr.Variable = CharacterArrayCoder().encode(variable, name=name)
        return cut
    variable.encoding.pop("dtype", None)
    if variable.dtype == "S1" and variable.ndim:
        # xarray takes bytes of width 1 for characters, and joins them along the last dimension.
        return map_values(variable, partial(np.asarray, dtype="S2"), np.dtype("S2"))
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


# As existing arrays are encoded.


def as_stored(
    name: str,
    variable: xr.Variable,
    array: NDArray,
    bounded: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Variable:
    """Encode a variable as the existing one is encoded, with its dimensions in the same order.

    Text from objects may come out wider than the stored text. If the variable holds the bounds of a coordinate,
    `bounded` has the units and calendar of that coordinate: bounds do not store them.
    """
    _require_plain(name, variable)
    attrs = {key: value for key, value in attributes_of(array.attrs).items() if key in (*_CODED, "dtype")}
    if is_time(variable):
        attrs = {**bounded, **attrs}
    dims = dims_of(name, array)
    characters = array.shape[-1] if array.dtype == "S1" and len(dims) == variable.ndim + 1 else None
    wanted = dims if characters is None else dims[:-1]
    if {*variable.dims} != {*wanted}:
        raise ValueError(
            f"variable {name!r} already exists with different dimension names: {wanted}, not {variable.dims}"
        )
    variable, dtype = _as_declared(name, variable.transpose(*wanted)), variable.dtype
    if dtype == array.dtype and dtype.kind in "mM":
        return variable
    if dtype.kind == "O" and array.dtype.kind not in "SU" and not contains_cftime_datetimes(variable):
        variable = as_text(name, variable)
    _check_kind(name, variable, array, attrs)
    plain = variable.copy(deep=False)
    coded = _name_errors(name, partial(_code, name, variable, array, attrs, characters))
    coded = _name_errors(name, partial(as_text, name, coded, characters))
    if coded.ndim != array.ndim:
        raise ValueError(f"variable {name!r} is stored as characters of text, which cannot hold {dtype}")
    for key in _CODED:
        # Units of plain numbers are free text. Those of instants and of spans of time say what the numbers mean.
        counts = key != "units" or dtype.kind == "m" or " since " in str(attrs.get("units"))
        if counts and not is_same(attrs.get(key), coded.attrs.get(key)):
            message = (
                f"variable {name!r} has {key}={attrs.get(key)!r} where it is stored, "
                f"the new one {coded.attrs.get(key)!r}"
            )
            if key == "units" and is_time(plain):
                raise OtherUnitsError(message, coded.attrs.get(key))
            raise ValueError(message)
    return _fitting(name, _check_codes(name, plain, coded), dtype, array)


def is_time(variable: xr.Variable) -> bool:
    """Whether a variable has points or lengths of time."""
    return variable.dtype.kind in "mM" or contains_cftime_datetimes(variable)


class OtherUnitsError(ValueError):
    """Times do not fit the units of the stored ones, but these."""

    def __init__(self, message: str, units: object) -> None:
        super().__init__(message)
        self.units = units


def _code(
    name: str,
    variable: xr.Variable,
    array: NDArray,
    attrs: Mapping[str, Any],
    characters: int | None,
) -> xr.Variable:
    encoding = {key: attrs[key] for key in _CODED if key in attrs and key not in variable.attrs}
    if characters is not None:
        encoding["dtype"] = "S1"
    elif array.dtype.kind not in "SU" and attrs.get("dtype") != "bool":
        encoding["dtype"] = array.dtype
    if variable.dtype.kind == "b":
        variable.attrs = {key: value for key, value in variable.attrs.items() if key != "dtype"}
    if variable.dtype.kind not in "mMO":
        # Numbers may have their own units, which are not encoded.
        encoding = {key: value for key, value in encoding.items() if key not in ("units", "calendar")}
    # Otherwise xarray would add one.
    encoding.setdefault("_FillValue", None)
    variable.encoding = encoding
    exact = attrs.keys().isdisjoint(("scale_factor", "add_offset", "_Unsigned"))
    with warnings.catch_warnings():
        # xarray chooses finer units then, which the caller refuses.
        warnings.filterwarnings("ignore", r"Time(delta)?s can't be serialized faithfully", UserWarning)
        return conventions.encode_cf_variable(fit(name, variable, exact=exact), name=name)


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
        raise _not_held(name, array.dtype, variable.dtype)
    if is_time and variable.size:
        stored, calendar = attrs.get("calendar", "standard"), infer_calendar_name(variable.data)
        alike = _PLAIN_CALENDARS if kind == "M" else {"standard", "gregorian"}
        if stored != calendar and not {stored, calendar} <= alike:
            raise ValueError(f"variable {name!r} is stored in the calendar {stored!r}, which cannot hold {calendar!r}")


def _fitting(name: str, coded: xr.Variable, dtype: np.dtype[Any], array: NDArray) -> xr.Variable:
    stored = array.dtype
    if stored.kind in "SU" and coded.dtype.kind == stored.kind:
        if coded.dtype.itemsize > stored.itemsize and dtype.kind not in "OT":
            raise ValueError(
                f"Mismatched dtypes for variable {name!r}: it is stored as {stored}, which cannot hold {coded.dtype}; "
                "as objects, astype(object), it makes the stored text wider"
            )
        return coded
    if not np.can_cast(coded.dtype, stored, "safe") and coded.dtype != stored:
        raise _not_held(name, stored, coded.dtype)
    return coded


def is_same(a: Any, b: Any) -> bool:
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
    if not since:
        return units
    try:
        return unit.strip(), np.datetime64(since.strip().replace(" ", "T"))
    except ValueError:
        return units
