"""Arrays of text of any length: their type, their metalayers and their fill value.

An array of text is a `BatchArray` of python-blosc2 with one batch for each chunk. Shape, chunks, blocks and type are
in a metalayer of b2array with the bytes of a `b2nd` metalayer. The type is the text that NumPy prints for it.

Source: ``batch_array.py`` of python-blosc2.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from importlib import import_module
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from b2array.codec.text import has_missing
from b2array.errors import FormatError, UnsupportedError
from b2array.grid.layout import Layout
from b2array.grid.runs import block_extents, items_per_block

__all__ = [
    "BATCHES",
    "LENGTHS",
    "chunk_extents",
    "count_items",
    "is_text",
    "item_of",
    "pack_batches",
    "pack_item",
    "pack_lengths",
    "parse_type",
    "type_text",
    "unpack_item",
]

BATCHES = "batcharray"
"""The metalayer by which python-blosc2 recognizes its batches."""
LENGTHS = "_batch_array_metadata"
"""The variable-length metalayer in which python-blosc2 finds the lengths of the batches."""

_UINT32 = struct.Struct(">BI")
"""A number of 32 bits in msgpack, after its marker."""
_TYPE = re.compile(
    r"StringDType\((?:na_object=(?P<missing>.+?))?(?:(?:, |(?<=\())coerce=(?P<coerce>False))?\)", re.DOTALL
)
_NUMBERS = {"nan": math.nan, "None": None}
_PANDAS = "pandas.NA"


def is_text(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is NumPy's StringDType.

    Examples
    --------
    >>> is_text(np.dtype("T")), is_text(np.dtype("U3"))
    (True, False)
    """
    return dtype.kind == "T"


def type_text(dtype: Any) -> str:
    """Return the text that names a StringDType in a file.

    TypeError: missing items are neither None, NaN, `pandas.NA` nor text.

    Examples
    --------
    >>> type_text(np.dtypes.StringDType()), type_text(np.dtypes.StringDType(na_object=np.nan, coerce=False))
    ('StringDType()', 'StringDType(na_object=nan, coerce=False)')
    """
    parts = []
    if hasattr(dtype, "na_object"):
        missing = dtype.na_object
        if isinstance(missing, str):
            parts.append(f"na_object={missing!r}")
        elif missing is None or (isinstance(missing, float) and math.isnan(missing)):
            parts.append(f"na_object={missing}")
        elif type(missing).__name__ == "NAType":
            parts.append(f"na_object={_PANDAS}")
        else:
            raise TypeError(
                f"arrays of {dtype} cannot be stored: the na_object must be None, NaN, pandas.NA or text, "
                f"not {missing!r:.80}"
            )
    if not dtype.coerce:
        parts.append("coerce=False")
    return f"StringDType({', '.join(parts)})"


def parse_type(text: str) -> np.dtype[Any]:
    """Return the StringDType that `type_text` named; FormatError for any other text.

    UnsupportedError: missing items are `pandas.NA`, and pandas is not installed.

    Examples
    --------
    >>> parse_type("StringDType(na_object=None)")
    StringDType(na_object=None)
    """
    match = _TYPE.fullmatch(text)
    if match is None:
        raise FormatError(f"expected a StringDType as type text, found {text[:80]!r}")
    options: dict[str, Any] = {} if match["coerce"] is None else {"coerce": False}
    missing = match["missing"]
    if missing in _NUMBERS:
        options["na_object"] = _NUMBERS[missing]
    elif missing == _PANDAS:
        options["na_object"] = _pandas_missing()
    elif missing is not None:
        try:
            options["na_object"] = ast.literal_eval(missing)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options["na_object"] = None
        if not isinstance(options["na_object"], str):
            raise FormatError(f"expected a na_object of nan, None, pandas.NA or text, found {missing[:80]!r}")
    return np.dtypes.StringDType(**options)


def _pandas_missing() -> Any:
    try:
        return import_module("pandas").NA
    except ImportError:
        raise UnsupportedError("missing items of this array are pandas.NA, which needs the package pandas") from None


# The fill value.


def pack_item(item: Any, dtype: np.dtype[Any]) -> bytes:
    r"""Return a fill value as bytes: one item as msgpack, or no bytes for the empty text.

    Examples
    --------
    >>> pack_item("a", np.dtype("T")), pack_item("", np.dtype("T"))
    (b'\xa1a', b'')
    """
    value = np.array([item], dtype).tolist()[0]
    if has_missing(dtype) and not isinstance(value, str):
        value = None
    packed: bytes = b"" if value == "" else msgpack.packb(value)
    return packed


def unpack_item(content: bytes, dtype: np.dtype[Any]) -> Any:
    """Return the fill value that `pack_item` packed; the empty text for any other bytes."""
    try:
        value = msgpack.unpackb(content) if content else ""
    except (ValueError, TypeError, msgpack.UnpackException):
        return ""
    if value is None and has_missing(dtype):
        return dtype.na_object  # type: ignore[attr-defined]
    return value if isinstance(value, str) else ""


def item_of(content: bytes, dtype: np.dtype[Any]) -> Any:
    """Return a fill value of any type from its bytes, as the annotations have them."""
    return unpack_item(content, dtype) if is_text(dtype) else np.frombuffer(content, dtype)[0]


# The metalayers of python-blosc2.


def pack_batches(layout: Layout) -> bytes:
    """Return the metalayer by which python-blosc2 recognizes the chunks of an array of text as batches."""
    packer = msgpack.Packer()
    fields = {"version": 1, "serializer": "msgpack", "items_per_block": items_per_block(layout), "arrow_schema": None}
    parts = [packer.pack_map_header(len(fields))]
    for name, value in fields.items():
        parts.append(packer.pack(name))
        # A number of fixed width, because the header keeps its length when other blocks are chosen.
        is_count = name == "items_per_block" and value is not None
        parts.append(_UINT32.pack(0xCE, value) if is_count else packer.pack(value))
    return b"".join(parts)


def pack_lengths(layout: Layout) -> bytes:
    """Return the number of items in each chunk, in the form in which python-blosc2 notes the lengths of batches."""
    counts: npt.NDArray[np.int64] = np.ones(layout.grid_shape, np.int64)
    axes = zip(layout.shape, layout.chunks, layout.grid_shape, strict=True)
    for axis, (extent, length, nchunks) in enumerate(axes):
        along = np.minimum(length, extent - np.arange(nchunks) * length)
        counts *= along.reshape((-1,) + (1,) * (layout.ndim - 1 - axis))
    packed: bytes = msgpack.packb({"batch_lengths": counts.reshape(-1).tolist()})
    return packed


def chunk_extents(layout: Layout, chunk: int) -> tuple[int, ...]:
    """Return the extents of a chunk that is cut off where the array ends."""
    coords = np.unravel_index(chunk, layout.grid_shape)
    axes = zip(layout.shape, layout.chunks, map(int, coords), strict=True)
    return tuple(min(length, extent - coord * length) for extent, length, coord in axes)


def count_items(layout: Layout, chunk: int, block: int) -> int:
    """Return the number of items that a block of a chunk holds."""
    return math.prod(block_extents(layout, chunk, block))
