"""Types of items, and the text that names a type in a file.

Source: "B2ND Metalayer Format" of the Blosc2 documentation, and the text that python-blosc2 writes.
"""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format.strings import is_text, type_text

__all__ = [
    "dtype_text",
    "extension_dtype",
    "extension_name",
    "has_size",
    "make_dtype",
    "parse_dtype",
    "require_extension",
    "require_size",
]

_EXTENSION = re.compile(r"bfloat16|u?int[24]|float[468]_e\dm\d\w*")
_STORABLE_KINDS = "biufcmMSUV"
_NOT_A_DTYPE = (TypeError, ValueError, SyntaxError, LookupError, ArithmeticError, MemoryError, RecursionError, Warning)


def parse_dtype(text: str) -> np.dtype[Any]:
    """Return the type that `text` names: an argument of `numpy.dtype`, or the Python literal of such an argument.

    python-blosc2 also writes the names of types in ml_dtypes (``"bfloat16"``), which require this package.
    UnsupportedError says that the type contains Python objects, whose bytes are addresses.

    Examples
    --------
    >>> parse_dtype("('<f4', (2,))")
    dtype(('<f4', (2,)))
    """
    limit = config.limits.dtype_text
    if len(text.encode(errors="surrogatepass")) > limit:
        raise FormatError(f"expected at most {limit} bytes of type text, found {len(text)}")
    try:
        dtype = np.dtype(text)
    except _NOT_A_DTYPE:
        # NumPy prints record types as Python literals.
        extension = extension_dtype(text)
        require_extension(text)
        return _parse_literal(text) if extension is None else extension
    _check_dtype(dtype, dtype)
    return dtype


def _parse_literal(text: str) -> np.dtype[Any]:
    try:
        literal = ast.literal_eval(text)
    except _NOT_A_DTYPE:
        raise FormatError(f"expected a NumPy type, found {text[:80]!r}") from None
    return make_dtype(literal)


def extension_dtype(name: str) -> np.dtype[Any] | None:
    """Return the type of this name in the package ml_dtypes, or None if it does not exist or the package is missing.

    Examples
    --------
    >>> extension_dtype("bfloat17") is None
    True
    """
    try:
        import ml_dtypes
    except ImportError:
        return None
    scalar_type = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    # The package also contains functions and classes that are not types of items.
    is_item_type = isinstance(scalar_type, type) and issubclass(scalar_type, np.generic)
    return np.dtype(scalar_type) if is_item_type else None


def require_extension(name: str) -> None:
    """Raise UnsupportedError if the type requires the package ml_dtypes, and the package is not installed."""
    if _EXTENSION.fullmatch(name) and find_spec("ml_dtypes") is None:
        raise UnsupportedError(f"the type {name} needs the package ml_dtypes: pip install 'b2array[ml-dtypes]'")


def extension_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name under which `extension_dtype` finds a type, or None if it is not from the package ml_dtypes.

    Examples
    --------
    >>> extension_name(np.dtype("f4")) is None
    True
    """
    if dtype.isbuiltin != 2 or dtype.subdtype is not None:
        return None
    return dtype.name if extension_dtype(dtype.name) == dtype else None


def make_dtype(literal: object) -> np.dtype[Any]:
    """Return the type that a str, list, tuple or dict from a file describes. Raises the errors of `parse_dtype`."""
    if not isinstance(literal, str | list | tuple | dict):
        raise FormatError(f"expected a NumPy type, found {repr(literal)[:80]}")
    try:
        dtype: np.dtype[Any] = np.dtype(cast(Any, literal))
    except _NOT_A_DTYPE:
        raise FormatError(f"expected a NumPy type, found {repr(literal)[:80]}") from None
    _check_dtype(dtype, dtype)
    return dtype


def _check_dtype(dtype: np.dtype[Any], whole: np.dtype[Any]) -> None:
    if dtype.hasobject or (dtype.kind not in _STORABLE_KINDS and not _is_foreign(dtype)):
        raise UnsupportedError(f"items of type {str(whole)[:80]} are references, not data")
    # The size of a type can overflow in NumPy, which then reads beyond the items.
    smallest = 1 if dtype is whole else 0
    if dtype.itemsize < smallest:
        raise FormatError(f"expected items of {smallest} bytes or more, found {dtype.itemsize} in {str(whole)[:80]}")
    if dtype.subdtype is not None:
        _check_dtype(dtype.subdtype[0], whole)
    for field, offset, *_ in (dtype.fields or {}).values():
        _check_dtype(field, whole)
        if offset + field.itemsize > dtype.itemsize:
            raise FormatError(f"expected fields inside {dtype.itemsize} bytes, found one at {offset}")


def has_size(dtype: npt.DTypeLike | None) -> bool:
    """Return whether a type has a size, and so do the text, bytes and raw data in its fields.

    Examples
    --------
    >>> has_size("U"), has_size("U1"), has_size([("name", "S"), ("n", "i4")])
    (False, True, False)
    """
    described: np.dtype[Any] = np.dtype(dtype)
    if described.subdtype is not None:
        return has_size(described.subdtype[0])
    if described.names is not None:
        return all(has_size(described[name]) for name in described.names)
    return described.itemsize > 0


def require_size(dtype: npt.DTypeLike | None) -> None:
    """Raise TypeError for a type without a size, because NumPy would use the shortest size and truncate all items.

    Names of other libraries for text are no types of NumPy.
    """
    is_text_of_zarr = isinstance(dtype, str) and dtype in _TEXT
    if is_text_of_zarr or not has_size(dtype):
        # Fields of records cannot hold text of any length.
        is_record = not is_text_of_zarr and np.dtype(dtype).names is not None
        any_length = "" if is_record else " 'T' for text of any length, or"
        raise TypeError(
            f"{dtype!r} does not say how long an item is: write{any_length} a type with a size, such as 'U20' for text"
            " of 20 characters at most, 'S20' for bytes, 'V20' for raw data"
        )


_TEXT = ("string", "variable_length_utf8", "vlen-utf8")
"""Names of text of any length in zarr."""


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the text that names `dtype` in a `b2nd` metalayer, in the form that python-blosc2 writes.

    Raises TypeError for Python objects, types without a size and types of other packages, and LimitError for a text of
    more than `b2array.config.limits.dtype_text` bytes.

    Examples
    --------
    >>> dtype_text(np.dtype("float64")), dtype_text(np.dtype([("a", "<i2")])), dtype_text(np.dtype("V3"))
    ('<f8', "[('a', '<i2')]", '|V3')
    """
    if is_text(dtype):
        return type_text(dtype)
    text = str(dtype) if dtype.kind == "V" else dtype.str
    try:
        if _is_foreign(dtype):
            raise TypeError(f"arrays of type {dtype} cannot be stored: only the package that added it knows its name")
        if not _means(text, dtype):
            # For aligned records inside others, NumPy prints the text of a different type.
            text = repr(_literal(dtype))
        _check_dtype(dtype, dtype)
    except (FormatError, UnsupportedError) as error:
        raise TypeError(f"arrays of type {dtype} cannot be stored: {error}") from None
    size, limit = len(text.encode()), config.limits.dtype_text
    if size > limit:
        raise LimitError(f"type text has {size} bytes, at most {limit} are allowed")
    return text


def _means(text: str, dtype: np.dtype[Any]) -> bool:
    try:
        return parse_dtype(text) == dtype
    except FormatError:
        return False


def _literal(dtype: np.dtype[Any]) -> object:
    """Return the literal that describes a type with all its offsets."""
    if dtype.subdtype is not None:
        return _literal(dtype.subdtype[0]), dtype.shape
    if dtype.fields is None or dtype.names is None:
        return dtype.str
    items = [dtype.fields[name] for name in dtype.names]
    formats, offsets = [_literal(item[0]) for item in items], [item[1] for item in items]
    literal = {"names": list(dtype.names), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    if any(len(item) > 2 for item in items):
        literal["titles"] = [item[2] if len(item) > 2 else None for item in items]
    return literal


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Return whether the type, or the type of a field, comes from another package, so that its name is not portable."""
    if dtype.subdtype is not None:
        return _is_foreign(dtype.subdtype[0])
    if dtype.names is not None:
        return any(_is_foreign(dtype[name]) for name in dtype.names)
    return dtype.isbuiltin == 2
