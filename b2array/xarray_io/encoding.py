"""Values -> what is stored: names, attributes, CF conventions, types and text.

A new array is stored as the encoding asks. Values for an existing array are encoded like its items.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Mapping
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
from b2array.keywords import suggest
from b2array.xarray_io.backend import attributes_of, dims_of
from b2array.xarray_io.preferences import preferences

__all__ = [
    "CODED",
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
"""Entries of an encoding that only describe the source of a variable, and not how to store it."""
_FINE_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_TEXT = np.dtypes.StringDType()
_NONE_NAME = "__values__"
"""The name under which xarray stores and finds a variable whose name is None."""
CODED = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "_Encoding")
"""Attributes that define the meaning of stored values."""
# What xarray's coders and NumPy raise for values that they cannot encode.
_KINDS_OF_ERRORS = (TypeError, OverflowError, NotImplementedError, ValueError)
_MARKS = ("_FillValue", "missing_value")
_PLAIN_CALENDARS = {"standard", "gregorian", "proleptic_gregorian"}


def is_dask(variable: xr.Variable) -> bool:
    """Return whether dask computes a variable in pieces."""
    return variable.chunks is not None


def mark(ds: xr.Dataset) -> tuple[dict[str, xr.Variable], dict[str, Any]]:
    """Check names, and note in the attributes which variables are coordinates. Return copies by their stored names."""
    for name in ds.variables:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a variable must be a string or None, not {name!r}")
        if name == "" or (name is not None and "/" in name):
            raise ValueError(
                f"invalid name of a variable: a string must be length 1 or more and without slashes, not {name!r}"
            )
    for dim in ds.dims:
        if not isinstance(dim, str):
            raise TypeError(f"names of dimensions must be text, not {dim!r}")
    variables, attrs = conventions.encode_dataset_coordinates(ds)
    by_stored_name = {}
    for name, variable in variables.items():
        stored_name = _NONE_NAME if name is None else str(name)
        by_stored_name[stored_name] = variable
    return by_stored_name, dict(attrs)


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
    """Encode variables by the CF conventions into plain arrays, each with an ``encoding`` that `b2array.create` takes.

    `encoding` replaces the one that a variable has, and so do the `options` for all of them. KeyError says that there
    is no such variable, TypeError or ValueError that the encoding is not valid, or that values cannot be stored as it
    asks.
    """
    for name in encoding:
        if name not in variables:
            raise KeyError(f"encoding names {name!r}, which is not a variable of the dataset")
    plain = {}
    for name, variable in variables.items():
        plain[name] = _prepare(name, variable, encoding.get(name), options)
    # Units come first, because the resolution of times depends on them.
    _choose_units(plain)
    widths = {name: _take_width(variable) for name, variable in plain.items()}
    fitted = {}
    for name, variable in plain.items():
        fitted[name] = _name_errors(name, partial(fit, name, variable))
    storable = {}
    for name, coded in _by_conventions(fitted).items():
        coded = _as_booleans(plain[name], coded)  # noqa: PLW2901
        is_safe = _check_codes(name, plain[name], coded, fitted[name].encoding)
        storable[name] = _to_storable(name, is_safe, widths[name], is_asked=name in encoding)
    return storable


def _prepare(
    name: str,
    variable: xr.Variable,
    asked: Mapping[Hashable, Any] | None,
    options: Collection[str],
) -> xr.Variable:
    """Return a variable with the encoding for storing it."""
    variable = _require_plain(name, variable)
    chosen = preferences(name, variable, asked, options)
    if variable.dtype.kind == "O" and not variable.size:
        return _without_items(variable, chosen)
    variable = _as_declared(name, variable)
    variable.encoding = chosen
    return variable


def _without_items(
    variable: xr.Variable,
    encoding: Mapping[Any, Any],
) -> xr.Variable:
    """Return a variable of objects that has no items: as times if its encoding has units of times, else as text.

    xarray would store it as floats, to which neither times nor text can be appended.
    """
    rest = dict(encoding)
    if " since " not in str(rest.get("units")):
        text = np.empty(variable.shape, _TEXT)
        return xr.Variable(variable.dims, text, variable.attrs, rest)
    # cftime has no type of its own, so encode the times here.
    meaning = {key: rest.pop(key) for key in ("units", "calendar") if key in rest}
    dtype = rest.get("dtype") or np.int64
    numbers = np.empty(variable.shape, dtype)
    attrs = {**variable.attrs, **meaning}
    return xr.Variable(variable.dims, numbers, attrs, rest)


def _choose_units(variables: Mapping[str, xr.Variable]) -> None:
    """Note units in the encoding of coordinates without units whose bounds are times.

    xarray would choose units for each of the two, but bounds have the units of their coordinate (CF conventions,
    section 7.1).
    """
    for name, times in variables.items():
        bounds = variables.get(str(times.attrs.get("bounds")))
        if bounds is None or "units" in {*times.encoding, *bounds.encoding}:
            continue
        if not _are_known_instants(times) or not _are_known_instants(bounds):
            continue
        joined = np.concatenate([times.values.ravel(), bounds.values.ravel()])
        calendar = {key: value for key, value in times.encoding.items() if key == "calendar"}
        both = xr.Variable("times", joined, encoding=calendar)
        coded = _name_errors(name, partial(conventions.encode_cf_variable, both, name=name))
        times.encoding = {**times.encoding, "units": coded.attrs["units"]}


def _are_known_instants(variable: xr.Variable) -> bool:
    """Return whether a variable has points in time in memory: before dask runs, nobody knows their resolution."""
    is_length = variable.dtype.kind == "m"
    return is_time(variable) and not is_length and not is_dask(variable)


def _by_conventions(variables: dict[str, xr.Variable]) -> dict[str, xr.Variable]:
    """Encode variables together, because bounds share the units of their coordinate; an error names the variable."""
    try:
        coded, _ = conventions.cf_encoder(dict(variables), {})
    except Exception:
        # xarray's error does not name the variable: encode them one by one until the error recurs.
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
        # The class of a library's error may take other arguments.
        plain_kind = next(kind for kind in _KINDS_OF_ERRORS if isinstance(error, kind))
        raise plain_kind(f"variable {name!r} cannot be encoded: {error}") from error


def _check_codes(
    name: str,
    variable: xr.Variable,
    coded: xr.Variable,
    encoding: Mapping[Any, Any] = MappingProxyType({}),
) -> xr.Variable:
    """Return an encoded variable; raise an error if readers would decode other items from it."""
    is_whole_time = coded.dtype.kind in "iu" and is_time(variable)
    if is_whole_time and is_dask(coded):
        # xarray declares the type that was asked for, but encodes pieces of times as int64.
        convert = partial(_convert, name=name, dtype=coded.dtype, exact=True)
        coded = map_values(coded, convert, coded.dtype)
    coded = _check_unmarked(name, variable, coded)
    is_narrow = coded.dtype.itemsize < 8
    if is_whole_time and is_narrow and not is_dask(coded):
        # Bounds have no units themselves: xarray has noted the units of their coordinate in the encoding.
        shared = {key: encoding[key] for key in ("units", "calendar") if key in encoding}
        with_units = xr.Variable(coded.dims, coded.data, {**shared, **coded.attrs})
        _require_same_times(name, variable, with_units)
    return coded


def _as_booleans(
    variable: xr.Variable,
    coded: xr.Variable,
) -> xr.Variable:
    """Return booleans as such: xarray encodes them as int8 for files that have no booleans."""
    mark = coded.attrs.get("dtype")
    was_encoded = variable.dtype.kind == "b" and mark == "bool"
    if not was_encoded or "dtype" in variable.attrs:
        return coded
    kind = np.dtype(bool)
    coded = map_values(coded, partial(np.asarray, dtype=kind), kind)
    del coded.attrs["dtype"]
    return coded


def _require_same_times(name: str, times: xr.Variable, coded: xr.Variable) -> None:
    """Refuse times that xarray has wrapped to fit them into a small type."""
    back = conventions.decode_cf_variable(name, coded, decode_timedelta=True)
    is_missing = np.asarray(times.isnull().values)
    both_are_missing = back.isnull().values & is_missing
    wrong = np.asarray(back.values != times.values) & ~both_are_missing
    if wrong.any():
        time = np.asarray(times.values)[wrong][0]
        hint = ": give it a _FillValue" if is_missing[wrong][0] else ""
        raise _misfit(name, coded.dtype, f"{time}{hint}")


# Arrays from other libraries.


def _require_plain(name: str, variable: xr.Variable) -> xr.Variable:
    """Refuse arrays of items for which NumPy has no type; the error suggests an alternative.

    Text of pandas is returned as objects.
    """
    if type(variable.dtype).__name__ == "StringDtype":
        items = np.asarray(variable.data, object)
        return xr.Variable(variable.dims, items, variable.attrs, variable.encoding)
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
    return variable


# Missing items.


def _check_unmarked(name: str, variable: xr.Variable, coded: xr.Variable) -> xr.Variable:
    """Return an encoded variable if only missing items have the value that marks them.

    An attribute with the mark means that the caller has encoded the items already, and may have marked some.
    """
    marks = []
    for key in _MARKS:
        if key in coded.attrs and key not in variable.attrs:
            marks += _list_numbers(coded.attrs[key])
    is_text = variable.dtype.kind in "SUT"
    is_number = coded.dtype.kind in "iuf"
    # Text that was split into characters has one more axis.
    if not marks or is_text or not is_number or coded.shape != variable.shape:
        return coded
    check = partial(_refuse_marks, name=name, marks=np.array(marks))
    if is_dask(coded):
        # With an empty example dask need not call the function to learn its type.
        example = np.empty((0,) * coded.ndim, coded.dtype)
        data = coded.data.map_blocks(check, variable.data, dtype=coded.dtype, meta=example)
    else:
        data = check(np.asarray(coded.data), variable.values)
    return xr.Variable(coded.dims, data, coded.attrs, coded.encoding)


def _list_numbers(mark: Any) -> list[Any]:
    """List the numbers of a mark, which may be an array of several. NaN is omitted, because it equals no number."""
    return [number for number in np.ravel(mark) if number.dtype.kind in "iuf" and not np.isnan(number)]


def _refuse_marks(
    stored: npt.NDArray[Any],
    items: npt.NDArray[Any],
    name: str,
    marks: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    if stored.dtype.kind == marks.dtype.kind:
        marks = marks.astype(stored.dtype)
    is_marked = np.isin(stored, marks)
    if not is_marked.any():
        return stored
    is_missing = xr.DataArray(items).isnull().values
    wrong = is_marked & ~is_missing
    if wrong.any():
        raise ValueError(
            f"variable {name!r} is stored as {stored.dtype}, which cannot hold {items[wrong][0]}: it would be"
            f" {stored[wrong][0]}, which marks missing items; choose another _FillValue, or make the item NaN if it"
            " is missing"
        )
    return stored


def _take_width(variable: xr.Variable) -> np.dtype[Any] | None:
    """Remove the width of text from the encoding: xarray would truncate longer text."""
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
    is_asked: bool,
) -> xr.Variable:
    """Return an encoded variable in a form that can be stored. An encoding that the call requests must be valid."""
    variable = _name_errors(name, partial(as_text, name, variable))
    if width is not None and width.itemsize:
        if variable.dtype.kind == "T":
            variable = _fix_width(name, variable, "U")
        is_narrower = variable.dtype.kind == width.kind and variable.dtype.itemsize < width.itemsize
        if is_narrower:
            variable = map_values(variable, partial(np.asarray, dtype=width), width)
        elif is_asked and variable.dtype != width:
            raise _misfit(name, width, f"text of type {variable.dtype}")
    if is_asked:
        _refuse_unknown(name, variable.encoding)
    variable.encoding = _choose_options(name, variable, is_asked=is_asked)
    variable.attrs = attributes(variable.attrs, f"variable {name!r}")
    return variable


def _refuse_unknown(name: str, encoding: Mapping[Any, Any]) -> None:
    """Refuse entries of an encoding that neither xarray's coders nor `b2array.create` accept."""
    # xarray leaves _FillValue=None, which means that no value marks missing items.
    left = {key for key, value in encoding.items() if key != "_FillValue" or value is not None}
    unknown = sorted(map(str, left - _INHERITED - {*_OWN}))
    if unknown:
        others = f"besides the ones of CF, there are {', '.join(_OWN)}"
        hint = suggest(unknown[0], _OWN)
        raise ValueError(f"unexpected encoding parameters for variable {name!r}: {unknown}; {others}{hint}")


def _choose_options(name: str, variable: xr.Variable, *, is_asked: bool) -> dict[str, Any]:
    """Return the entries of the encoding that `b2array.create` accepts."""
    options = {key: variable.encoding[key] for key in _OWN if variable.encoding.get(key) is not None}
    chunks, blocks = options.pop("chunks", "auto"), options.pop("blocks", None)
    if isinstance(chunks, str) and chunks == "auto":
        return options
    size = variable.dtype.itemsize
    try:
        options["chunks"], _ = automatic(variable.shape, size, chunks=chunks, access=options.get("access"))
    except (TypeError, ValueError) as error:
        if is_asked or isinstance(error, TypeError):
            raise type(error)(f"variable {name!r}: {error}") from None
        return options  # the chunks belong to an array of another shape, which was read
    if blocks is None:
        return options
    try:
        automatic(variable.shape, size, chunks=options["chunks"], blocks=blocks)
    except (TypeError, ValueError):
        return options  # the blocks belong to other chunks and do not fit: choose new ones
    return options | {"blocks": blocks}


# Attributes.


def attributes(attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes in a form that can be stored; an error names the attribute that cannot, and its owner.

    Points and lengths of time become arrays without dimensions.
    """
    storable = {}
    for name, value in attrs.items():
        as_array = _time_as_array(value)
        try:
            encode_attr(as_array)
        except TypeError as error:
            raise TypeError(f"{owner} has an attribute {name!r} that cannot be stored: {error}") from None
        if not isinstance(name, str):
            raise TypeError(f"names of attributes must be text, not {name!r} of {owner}")
        storable[name] = as_array
    return storable


def _time_as_array(value: Any) -> Any:
    """Return a point or length of time as an array without dimensions, and any other value as it is."""
    if isinstance(value, datetime) and value.tzinfo is None:
        # np.asarray alone would make an object of it.
        value = np.datetime64(value.replace(tzinfo=None))
    if isinstance(value, np.datetime64 | np.timedelta64):
        return np.asarray(value)
    return value


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
    unsigned = variable.encoding.get("_Unsigned")
    if unsigned is not None:
        # Check them before xarray masks them and reads their bits as the other kind.
        kind = "u" if str(unsigned).lower() == "true" else "i"
        meant = np.dtype(f"{kind}{dtype.itemsize}")
        check = partial(_check_range, name=name, dtype=meant, masked=True)
        return map_values(variable, check, variable.dtype)
    # Mask before the conversion: NaN has no value as an integer.
    variable = CFMaskCoder().encode(variable, name=name)
    del variable.encoding["dtype"]
    if variable.dtype == dtype:
        return variable
    convert = partial(_convert, name=name, dtype=dtype, exact=exact)
    return map_values(variable, convert, dtype)


def _resolve(name: str, variable: xr.Variable) -> xr.Variable:
    """Give times the resolution of the units that are asked for, if that is finer."""
    units = str(variable.encoding.get("units"))
    unit, _, _ = units.partition(" ")
    if unit not in _FINE_UNITS:
        return variable
    in_units = f"{variable.dtype.kind}8[{_FINE_UNITS[unit]}]"
    dtype = np.promote_types(variable.dtype, in_units)
    # xarray divides by the unit in the resolution of the times: by zero, which makes NaT.
    return map_values(variable, partial(_convert_times, name=name, dtype=dtype), dtype)


def _convert_times(values: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    result = values.astype(dtype)
    # NumPy wraps times that are out of range at a finer resolution.
    has_changed = result.astype(values.dtype) != values
    wrong = has_changed & ~np.isnat(values)
    if wrong.any():
        raise _misfit(name, dtype, values[wrong][0])
    return result


def map_values(variable: xr.Variable, function: Any, dtype: np.dtype[Any]) -> xr.Variable:
    """Apply a function that keeps the shape and returns this type: now, or in each piece of a dask array."""
    if is_dask(variable):
        example = np.empty((0,) * variable.ndim, dtype)
        data = variable.data.map_blocks(function, dtype=dtype, meta=example)
    else:
        data = function(np.asarray(variable.data))
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


def _convert(
    values: npt.NDArray[Any],
    name: str,
    dtype: np.dtype[Any],
    exact: bool,
) -> npt.NDArray[Any]:
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise _misfit(name, dtype, "complex numbers")
    rounded = values
    is_whole = dtype.kind in "iub"
    if is_whole:
        if values.dtype.kind == "f":
            rounded = np.around(values)
        # NumPy silently wraps integers that are out of range.
        _check_range(rounded, name, dtype)
    try:
        with np.errstate(over="raise"):
            result = rounded.astype(dtype)
    except FloatingPointError:
        raise _misfit(name, dtype, np.nanmax(np.abs(values))) from None
    if exact and is_whole:
        wrong = rounded != values
        if wrong.any():
            raise _misfit(name, dtype, values[wrong][0])
    return result


def _check_range(
    values: npt.NDArray[Any],
    name: str,
    dtype: np.dtype[Any],
    *,
    masked: bool = False,
) -> npt.NDArray[Any]:
    """Return values if all except missing ones are in the range of an integer type."""
    low, high = 0, 1
    if dtype.kind != "b":
        info = np.iinfo(dtype)
        low, high = info.min, info.max
    whole = values
    if masked:
        is_missing = np.isnan(values)
        whole = np.around(values[~is_missing])
    if whole.size:
        # Compare Python's numbers, because they compare exactly.
        for extreme in (whole.min().item(), whole.max().item()):
            if not low <= extreme <= high:
                raise _misfit(name, dtype, extreme)
    return values


def _misfit(name: str, dtype: np.dtype[Any], value: object) -> ValueError:
    return ValueError(f"variable {name!r} is stored as {dtype}, which cannot hold {value}")


# Text.


def as_text(name: str, variable: xr.Variable, characters: int | None = None) -> xr.Variable:
    """Convert objects to text of any length, bytes of one width, or numbers.

    Missing text becomes empty. With ``dtype="S1"`` in the encoding, text is encoded and split into at least that many
    characters along a new dimension, as in netCDF files.
    """
    if variable.dtype.kind not in "OSTU":
        return variable
    variable = _unify(name, variable)
    is_cut = variable.encoding.get("dtype") == "S1"
    if is_cut and variable.dtype.kind == "T":
        variable = _fix_width(name, variable, "U")
    if is_cut and variable.dtype.kind in "SU":
        variable = EncodedStringCoder().encode(variable, name=name)
        if characters is not None and variable.dtype.itemsize < characters:
            wider = np.dtype(f"S{characters}")
            variable = map_values(variable, partial(np.asarray, dtype=wider), wider)
        cut: xr.Variable = CharacterArrayCoder().encode(variable, name=name)
        return cut
    variable.encoding.pop("dtype", None)
    if variable.dtype == "S1" and variable.ndim:
        # xarray takes bytes of width 1 for characters, and joins them along the last dimension.
        return map_values(variable, partial(np.asarray, dtype="S2"), np.dtype("S2"))
    return variable


def _unify(name: str, variable: xr.Variable) -> xr.Variable:
    """Convert objects to items of one NumPy type: to StringDType without missing items, to bytes, or to numbers."""
    if variable.dtype.kind == "T":
        if variable.dtype == _TEXT:
            return variable
        return map_values(variable, _fill_missing, _TEXT)
    if variable.dtype.kind == "O":
        variable = ensure_dtype_not_object(variable, name=name)
    if variable.dtype.kind != "O":
        return variable
    values = variable.values
    if all(isinstance(item, str) for item in values.flat):
        convert = partial(np.asarray, dtype=_TEXT)
        return map_values(variable, convert, _TEXT)
    if all(isinstance(item, bytes) for item in values.flat):
        return _fix_width(name, variable, "S")
    if "_FillValue" in variable.attrs:
        raise NotImplementedError(f"variable {name!r} has a _FillValue that is not text, beside items that are")
    raise TypeError(f"variable {name!r} holds Python objects that are not all text; convert it first")


def _fill_missing(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return text in which missing items are empty, as xarray writes them everywhere."""
    flat = np.ravel(values).tolist()
    items = [item if isinstance(item, str) else "" for item in flat]
    return np.array(items, _TEXT).reshape(values.shape)


def _fix_width(name: str, variable: xr.Variable, kind: str) -> xr.Variable:
    """Convert text of any length, or objects, to items as long as the longest one; `kind` is "U" or "S"."""
    values = np.asarray(variable.values, object)
    nul = "\0" if kind == "U" else b"\0"
    # NumPy pads text with NUL, and strips every NUL at the end when it reads an item.
    if any(item.endswith(nul) for item in values.flat):
        raise ValueError(f"variable {name!r} holds text that ends with NUL, which text of one width cannot hold")
    fixed = values.astype(kind)
    return xr.Variable(variable.dims, fixed, variable.attrs, variable.encoding)


# Values for existing arrays.


def as_stored(
    name: str,
    variable: xr.Variable,
    array: NDArray,
    bounded: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Variable:
    """Encode a variable like the existing one, with its dimensions in the same order.

    Text from objects may come out wider than the stored text. If the variable holds the bounds of a coordinate,
    `bounded` has the units and calendar of that coordinate: bounds do not store them.
    """
    variable = _require_plain(name, variable)
    stored = attributes_of(array.attrs)
    attrs = {key: stored[key] for key in (*CODED, "dtype") if key in stored}
    if is_time(variable):
        attrs = {**bounded, **attrs}
    wanted = dims_of(name, array)
    characters = None
    if array.dtype == "S1" and len(wanted) == variable.ndim + 1:
        # Text that is stored as characters, along one more dimension than it has in memory.
        wanted, characters = wanted[:-1], array.shape[-1]
    if {*variable.dims} != {*wanted}:
        raise ValueError(
            f"variable {name!r} already exists with different dimension names: {wanted}, not {variable.dims}"
        )
    dtype = variable.dtype
    variable = _as_declared(name, variable.transpose(*wanted))
    if dtype == array.dtype and dtype.kind in "mM":
        return variable
    is_stored_as_text = array.dtype.kind in "SUT"
    if dtype.kind == "O" and not is_stored_as_text and not contains_cftime_datetimes(variable):
        variable = as_text(name, variable)
    _check_kind(name, variable, array, attrs)
    plain = variable.copy(deep=False)
    coded = _name_errors(name, partial(_code, name, variable, array, attrs, characters))
    coded = _name_errors(name, partial(as_text, name, coded, characters))
    if array.dtype.kind == "b":
        coded = _as_booleans(plain, coded)
    coded = _like_stored_text(name, coded, array.dtype)
    if coded.ndim != array.ndim:
        raise ValueError(f"variable {name!r} is stored as characters of text, which cannot hold {dtype}")
    for key in CODED:
        old, new = attrs.get(key), coded.attrs.get(key)
        # Units of plain numbers are free text. Units of instants and of lengths of time say what the numbers mean.
        counts = key != "units" or dtype.kind == "m" or " since " in str(old)
        if counts and not is_same(old, new):
            message = f"variable {name!r} has {key}={old!r} where it is stored, the new one {new!r}"
            if key == "units" and is_time(plain):
                raise OtherUnitsError(message, new)
            raise ValueError(message)
    coded = _check_codes(name, plain, coded)
    _require_fit(name, coded, dtype, array)
    return coded


def _like_stored_text(
    name: str,
    variable: xr.Variable,
    stored: np.dtype[Any],
) -> xr.Variable:
    """Return text of the kind that an array stores: of any length, or as long as the longest item."""
    kind = variable.dtype.kind
    if kind == "T" and stored.kind in "SU":
        return _fix_width(name, variable, "U")
    if kind in "TU" and stored.kind == "T":
        convert = partial(np.asarray, dtype=stored)
        return map_values(variable, convert, stored)
    return variable


def is_time(variable: xr.Variable) -> bool:
    """Return whether a variable has points or lengths of time."""
    return variable.dtype.kind in "mM" or contains_cftime_datetimes(variable)


class OtherUnitsError(ValueError):
    """Times do not fit the units of the stored times; `units` are units that fit."""

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
    """Encode a variable with the attributes of the stored array."""
    encoding = {key: attrs[key] for key in CODED if key in attrs and key not in variable.attrs}
    if characters is not None:
        encoding["dtype"] = "S1"
    elif array.dtype.kind not in "SUT" and attrs.get("dtype") != "bool":
        encoding["dtype"] = array.dtype
    if variable.dtype.kind == "b":
        # With this attribute xarray takes booleans for encoded ones, and leaves them as they are.
        variable.attrs = {key: value for key, value in variable.attrs.items() if key != "dtype"}
    if variable.dtype.kind not in "mMO":
        # Numbers may have their own units, which are not encoded.
        encoding.pop("units", None)
        encoding.pop("calendar", None)
    # Otherwise xarray would add a fill value.
    encoding.setdefault("_FillValue", None)
    variable.encoding = encoding
    is_packed = not attrs.keys().isdisjoint(("scale_factor", "add_offset", "_Unsigned"))
    with warnings.catch_warnings():
        # xarray chooses finer units then, which the caller refuses.
        warnings.filterwarnings("ignore", r"Time(delta)?s can't be serialized faithfully", UserWarning)
        # Users who pack numbers expect rounding. Elsewhere a lost fraction is an error.
        fitted = fit(name, variable, exact=not is_packed)
        return conventions.encode_cf_variable(fitted, name=name)


def _check_kind(name: str, variable: xr.Variable, array: NDArray, attrs: Mapping[str, Any]) -> None:
    """Refuse kinds of values that would have another meaning in the array."""
    kind, stored_kind = variable.dtype.kind, array.dtype.kind
    units = str(attrs.get("units"))
    has_origin = " since " in units
    is_instant = kind == "M" or contains_cftime_datetimes(variable)
    if is_instant:
        is_wrong = not has_origin
    elif kind == "m":
        is_wrong = "units" not in attrs or has_origin
    else:
        is_wrong = kind in "SUT" and stored_kind not in "SUT"
    is_number = kind in "biufcmM"
    if is_number and stored_kind in "SUT":
        is_wrong = True
    if attrs.get("dtype") == "bool" and kind != "b":
        is_wrong = True
    if kind == "c" and stored_kind != "c":
        is_wrong = True
    is_coded = not attrs.keys().isdisjoint(CODED)
    if not is_coded and kind in "biufc" and stored_kind in "biufc":
        is_wrong = is_wrong or not np.can_cast(variable.dtype, array.dtype, "same_kind")
    if is_wrong:
        raise _misfit(name, array.dtype, variable.dtype)
    if is_instant and variable.size:
        _require_calendar(name, variable, attrs.get("calendar", "standard"))


def _require_calendar(name: str, times: xr.Variable, stored: str) -> None:
    """Refuse times in another calendar than the stored one."""
    calendar = infer_calendar_name(times.data)
    # NumPy's times have no calendar, while cftime tells the standard one from the proleptic one.
    alike = _PLAIN_CALENDARS if times.dtype.kind == "M" else {"standard", "gregorian"}
    if stored != calendar and not {stored, calendar} <= alike:
        raise ValueError(f"variable {name!r} is stored in the calendar {stored!r}, which cannot hold {calendar!r}")


def _require_fit(name: str, coded: xr.Variable, dtype: np.dtype[Any], array: NDArray) -> None:
    """Refuse encoded values that the type of the array cannot hold exactly. `dtype` is their type before encoding."""
    stored = array.dtype
    if stored.kind in "SU" and coded.dtype.kind == stored.kind:
        if coded.dtype.itemsize > stored.itemsize and dtype.kind not in "OT":
            raise ValueError(
                f"Mismatched dtypes for variable {name!r}: it is stored as {stored}, which cannot hold {coded.dtype}; "
                "astype(object) makes the stored text wider"
            )
    elif coded.dtype != stored and not np.can_cast(coded.dtype, stored, "safe"):
        raise _misfit(name, stored, coded.dtype)


def is_same(a: Any, b: Any) -> bool:
    """Compare attributes. NaN equals NaN, and units may be spelled differently."""
    if isinstance(a, str) and isinstance(b, str):
        both_are_plain = {a, b} <= _PLAIN_CALENDARS
        return a == b or both_are_plain or _parse_units(a) == _parse_units(b)
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))


def _parse_units(units: str) -> object:
    """Parse units such as "days since 2000-01-01"."""
    unit, _, origin = units.partition(" since ")
    if not origin:
        return units
    try:
        return unit.strip(), np.datetime64(origin.strip().replace(" ", "T"))
    except ValueError:
        return units
