"""Values of attributes: msgpack with the conventions of python-blosc2.

Each of the two packages reads what the other writes: complex numbers, sets and arrays are extension types, and a tuple
is a list that starts with ``"__tuple__"``.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from b2array.buffers import Buffer
from b2array.errors import FormatError, UnsupportedError
from b2array.format import dtypes

__all__ = ["UNREADABLE", "decode_attr", "decode_attrs", "encode_attr"]

_COMPLEX = struct.Struct(">2d")
# The numbers that python-blosc2 has given to its extension types. 42 and 43 are frames and references.
_EXT_COMPLEX = 44
_EXT_SET = 45
_EXT_NDARRAY = 46
_TUPLE = "__tuple__"
_MAX_DEPTH = 32
_FIRST = -62_135_596_800
_LAST = 253_402_300_800
"""The limits of the years 1 to 9999, in seconds since 1970."""
_TIMES = ((dt.datetime, "M8[us]"), (dt.date, "M8[D]"), (dt.timedelta, "m8[us]"))
"""NumPy's types for the classes of the module `datetime`; each class precedes its base classes."""
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError, msgpack.UnpackException)
"""The errors that msgpack and the conversion of its values raise for damaged bytes."""


def encode_attr(value: object, name: str | None = None) -> bytes:
    """Return the value of an attribute as bytes, which become the chunk of a variable-length metalayer.

    Parameters
    ----------
    value : object
        None, bool, int, float, complex, str, bytes, list, tuple, set, dict with keys of str or bytes, NumPy scalar or
        array (of objects too, if they are such values), date, time span, `msgpack.ExtType`, and nestings of these. A
        list that starts with ``"__tuple__"`` is read back as a tuple, a `datetime.datetime` with a time zone as the
        same moment in UTC, and any other date or time span of the module `datetime` as a NumPy value.
    name : str, optional
        The attribute's name, for error messages.

    Raises
    ------
    TypeError
        The value has an unsupported type, or could not be read back.

    Examples
    --------
    >>> decode_attr(encode_attr({"origin": (0, 1.5), "window": np.arange(3)}))
    {'origin': (0, 1.5), 'window': array([0, 1, 2])}
    """
    try:
        packed = _encode(value)
        # Do not store a value that cannot be read back: readers would report a damaged attribute.
        _decode(packed, 0, strict=True)
    except (ValueError, TypeError, OverflowError, RecursionError, UnsupportedError) as error:
        subject = "an attribute" if name is None else f"the attribute {name!r}"
        raise TypeError(f"{subject} cannot hold this {type(value).__name__}: {error}") from None
    return packed


def decode_attr(buf: Buffer) -> Any:
    """Return the value of an attribute.

    Values that only python-blosc2 can resolve (frames inside attributes, references to other files) stay
    `msgpack.ExtType`. UnsupportedError says that the items of an array in it cannot be made from bytes.
    """
    return _decode(buf, 0, strict=False)


def decode_attrs(buf: Buffer) -> list[Any]:
    r"""Decode values that are stored one directly after another.

    Examples
    --------
    >>> decode_attrs(b"\x01\xa1x\x91\x02")
    [1, 'x', [2]]
    """
    hook = partial(_decode_ext, depth=1, strict=False)
    unpacker = msgpack.Unpacker(
        list_hook=_decode_list,
        object_hook=_decode_dict,
        ext_hook=hook,
        strict_map_key=False,
        max_buffer_size=max(1, len(buf)),
    )
    unpacker.feed(buf)
    try:
        values = [_decode_time(value) for value in unpacker]
    except (FormatError, UnsupportedError):
        raise
    except UNREADABLE as error:
        raise FormatError(f"expected msgpack values, found {error!r:.80}") from None
    if unpacker.tell() != len(buf):
        raise FormatError(f"expected msgpack values of {len(buf)} bytes, found {unpacker.tell()} bytes of them")
    return values


def _encode(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, default=_encode_other, strict_types=True, use_bin_type=True)
    return packed


def _encode_other(value: object) -> object:
    """Convert a value of an unsupported type to a type that msgpack supports."""
    for kinds, convert in _FORMS:
        if isinstance(value, kinds):
            return convert(value)
    raise TypeError(f"{type(value).__name__} has no form in msgpack")


def _encode_ndarray(array: NDArray[Any], **more: bool) -> bytes:
    dtype = array.dtype
    shape = list(array.shape)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("masked arrays would lose their mask")
    # The bytes of Python objects are addresses.
    if dtype.kind == "O":
        return _encode({"values": array.ravel().tolist(), "shape": shape})
    spec = {"str": dtype.str} if dtype.fields is None else {"descr": dtype.descr}
    if _unpack_dtype(spec) != dtype:
        raise TypeError(f"arrays of type {dtype} would change their type")
    return _encode({"dtype": spec, "shape": shape, "data": array.tobytes(), **more})


def _encode_time(value: Any) -> object:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        # A pandas Timestamp is a datetime with nanoseconds, which msgpack would lose.
        nanoseconds = msgpack.Timestamp.from_datetime(value).to_unix_nano()
        return msgpack.Timestamp.from_unix_nano(nanoseconds + getattr(value, "nanosecond", 0))
    # The times of pandas are NumPy types in various units.
    plain = value.to_numpy() if hasattr(value, "to_numpy") else value
    forms = [form for kind, form in _TIMES if isinstance(plain, kind)]
    form = forms[0] if forms else None
    item = np.asarray(plain, form)
    if item.dtype.kind not in "mM":
        raise TypeError(f"{type(value).__name__} has no form in msgpack")
    return msgpack.ExtType(_EXT_NDARRAY, _encode_ndarray(item, scalar=True))


def _encode_array(value: Any) -> object:
    return msgpack.ExtType(_EXT_NDARRAY, _encode_ndarray(value))


def _encode_complex(value: Any) -> object:
    return msgpack.ExtType(_EXT_COMPLEX, _COMPLEX.pack(value.real, value.imag))


def _encode_set(value: Any) -> object:
    return msgpack.ExtType(_EXT_SET, _encode(list(value)))


_Kinds = type | tuple[type, ...]
_FORMS: tuple[tuple[_Kinds, Callable[[Any], object]], ...] = (
    (tuple, lambda value: [_TUPLE, *value]),
    ((dt.date, dt.timedelta, np.datetime64, np.timedelta64), _encode_time),
    (np.ndarray, _encode_array),
    ((complex, np.complexfloating), _encode_complex),
    ((set, frozenset), _encode_set),
    (np.bool_, bool),
    ((int, np.integer), int),
    ((float, np.floating), float),
    (str, str),
    (bytes, bytes),
    (list, list),
    (dict, dict),
)


def _decode(buf: Buffer, depth: int, *, strict: bool) -> Any:
    # msgpack limits the depth of nested lists, but counts from zero again inside each extension type.
    if depth > _MAX_DEPTH:
        raise FormatError(f"expected at most {_MAX_DEPTH} extension types inside each other, found more")
    hook = partial(_decode_ext, depth=depth + 1, strict=strict)
    try:
        value = msgpack.unpackb(
            buf,
            list_hook=_decode_list,
            object_hook=_decode_dict,
            ext_hook=hook,
            strict_map_key=strict,
        )
        return _decode_time(value)
    except (FormatError, UnsupportedError):
        raise
    except UNREADABLE as error:
        raise FormatError(f"expected a msgpack value, found {error!r:.80}") from None


def _decode_time(value: Any) -> Any:
    """Convert a time to `datetime.datetime`, if no digits are lost."""
    if not isinstance(value, msgpack.Timestamp):
        return value
    nanoseconds = value.to_unix_nano()
    exact = nanoseconds % 1000 == 0 and _FIRST <= nanoseconds // 10**9 < _LAST
    return value.to_datetime() if exact else value


def _decode_dict(items: dict[Any, Any]) -> dict[Any, Any]:
    return {name: _decode_time(value) for name, value in items.items()}


def _decode_list(items: list[Any]) -> list[Any] | tuple[Any, ...]:
    items = list(map(_decode_time, items))
    # Test the type first: the comparison of an array returns an array.
    is_tuple = bool(items) and isinstance(items[0], str) and items[0] == _TUPLE
    return tuple(items[1:]) if is_tuple else items


def _decode_ext(code: int, data: bytes, *, depth: int, strict: bool) -> Any:
    if code == _EXT_COMPLEX:
        if len(data) != _COMPLEX.size:
            raise FormatError(f"expected 16 bytes of a complex number, found {data!r:.80}")
        return complex(*_COMPLEX.unpack(data))
    if code == _EXT_SET:
        return set(_decode(data, depth, strict=strict))
    if code == _EXT_NDARRAY:
        return _decode_ndarray(_decode(data, depth, strict=strict))
    return msgpack.ExtType(code, data)


def _decode_ndarray(payload: object) -> Any:
    shape = _get(payload, "shape")
    values = _get(payload, "values")
    dtype = _get(payload, "dtype")
    data = _get(payload, "data")
    if not isinstance(shape, list | tuple) or not all(map(_is_extent, shape)):
        raise FormatError(f"expected extents, found {shape!r:.80}")
    count = prod(shape)
    if values is not None:
        if not (isinstance(values, list | tuple) and len(values) == count):
            raise FormatError(f"expected {count} items of an array, found {values!r:.80}")
        # Assign items one by one: NumPy would interpret lists among the items as dimensions.
        objects = np.empty(count, object)
        for n, value in enumerate(values):
            objects[n] = value
        return objects.reshape(shape)
    kind = _unpack_dtype(dtype)
    if not (isinstance(data, bytes) and len(data) == count * kind.itemsize):
        raise FormatError(f"expected the bytes of {count} items, found {data!r:.80}")
    items = np.frombuffer(data, kind).reshape(shape)
    return items[()] if _get(payload, "scalar") is True else items


def _is_extent(value: object) -> bool:
    return type(value) is int and value >= 0


def _unpack_dtype(spec: object) -> np.dtype[Any]:
    text = _get(spec, "str")
    descr = _get(spec, "descr")
    if isinstance(text, str):
        return dtypes.parse_dtype(text)
    if not isinstance(descr, list):
        raise FormatError(f"expected the type of an array, found {spec!r:.80}")
    return dtypes.make_dtype([_unpack_field(field) for field in descr])


def _unpack_field(field: Any) -> tuple[Any, ...]:
    if not (isinstance(field, list | tuple) and len(field) in {2, 3}):
        raise FormatError(f"expected name, type and shape of a field, found {field!r:.80}")
    name, form, *shape = field
    if isinstance(form, list):
        form = [_unpack_field(inner) for inner in form]
    # A name together with a title is a pair.
    field_name = tuple(name) if isinstance(name, list) else name
    extents = map(tuple, shape)
    return (field_name, form, *extents)


def _get(mapping: object, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None
