"""The `b2nd` metalayer: shape, chunks, blocks and type of the items of an array.

Source: "B2ND Metalayer Format" of the Blosc2 documentation, and the files that the C library writes. All integers are
big-endian, as in all msgpack data.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from b2array import config
from b2array.buffers import Buffer
from b2array.config import MAX_CHUNK_NBYTES
from b2array.errors import FormatError, UnsupportedError
from b2array.format.dtypes import parse_dtype
from b2array.format.metalayers import Layers
from b2array.format.strings import parse_type
from b2array.grid.layout import MAX_NDIM, Layout
from b2array.grid.runs import is_run

__all__ = [
    "CACHE",
    "GEOMETRIES",
    "NOT_DATA",
    "TEXT",
    "VERSION",
    "is_typed_array",
    "layout_of",
    "pack",
    "shape_of",
    "unpack",
    "unpack_caterva",
    "unpack_text",
    "version_of",
    "with_extents",
]

CACHE = "proxy-source"
"""The metalayer of a frame in which python-blosc2 caches the chunks of another array."""
NOT_DATA = {
    "b2o": "an expression, or a reference to other data, to be resolved when it is read",
    "LazyArray": "an expression to be computed when it is read",
    CACHE: "copies of chunks of another array",
}
"""Metalayers by which python-blosc2 marks frames whose chunks are not the array's values."""

TEXT = "b2array_text"
"""The metalayer that describes an array of text of any length, with the bytes of a `b2nd` metalayer."""
GEOMETRIES = ("b2nd", "caterva", TEXT)
"""Metalayers that describe an array."""

_MARKS = ("b2nd", TEXT)
"""The metalayers of arrays that have a type."""
VERSION = 0
"""The version of the metalayer that b2array writes."""
_SHORT = 512
"""The maximum size of a metalayer whose layout is cached, in bytes."""
_NPARTS = 7
_DTYPE_NUMPY = 0
# Source: MessagePack specification, section Formats.
_FIXARRAY = 0x90
_INT32 = 0xD2
_INT64 = 0xD3
_STR32 = 0xDB


def layout_of(layers: Layers, *, chunksize: int, typesize: int) -> Layout:
    """Read the layout of an array from the metalayers of its frame. An item that is an array remains one item.

    `chunksize` and `typesize` come from the frame's header. UnsupportedError says that the chunks are not the array's
    values.
    """
    by_name = dict(layers)
    for name, what in NOT_DATA.items():
        if name in by_name:
            raise UnsupportedError(
                f"the metalayer {name!r} says that the stored values are not the array's data, but {what}; let "
                "python-blosc2 open it, and store what it computes or fetches"
            )
    if "b2nd" in by_name:
        return unpack(by_name["b2nd"], chunksize=chunksize)
    if TEXT in by_name:
        return unpack_text(by_name[TEXT])
    if "caterva" not in by_name:
        raise FormatError(
            "expected a metalayer 'b2nd' or 'caterva' of an array, found a plain super-chunk (see b2array.open_schunk)"
        )
    return unpack_caterva(by_name["caterva"], typesize)


def unpack(buf: Buffer, *, chunksize: int = 0) -> Layout:
    """Read the content of a `b2nd` metalayer. Any bytes after it are ignored.

    The fields are found by their position: with 16 dimensions the markers of the arrays are not valid msgpack.
    `chunksize` is the size of a chunk in bytes according to the frame's header, or at most 0 if it is unknown. The size
    of an item follows from it and the chunk's extents. If the text of the type contradicts this size, the items are raw
    bytes of this size.
    """
    content = bytes(buf)
    return (_unpack_short if len(content) <= _SHORT else _unpack)(content, chunksize, config.limits)


def _unpack(buf: bytes, chunksize: int, limits: config.Limits) -> Layout:
    version, shape, chunks, blocks, at = _unpack_geometry(buf)
    text = _unpack_type(buf, at, limits)
    dtype = parse_dtype(text)
    layout = _layout(shape, chunks, blocks, dtype, text, version)
    # If its caller names no type, the C library writes the text of a type of one byte.
    items = prod(layout.extended_chunks)
    if chunksize <= 0 or not items or chunksize == items * dtype.itemsize:
        return layout
    if chunksize % items != 0:
        raise FormatError(f"expected chunks of {items} items, found chunks of {chunksize} bytes")
    raw_items = np.dtype((np.void, chunksize // items))
    return _layout(shape, chunks, blocks, raw_items, text, version)


def _unpack_type(buf: bytes, at: int, limits: config.Limits) -> str:
    """Return the text that names the type, from its place in a metalayer."""
    if len(buf) < at + 6:
        raise FormatError(f"expected a type after the block shape, found {len(buf) - at} bytes")
    dtype_format, marker, size = struct.unpack_from(">BBI", buf, at)
    if dtype_format != _DTYPE_NUMPY:
        raise UnsupportedError(f"dtype format {dtype_format} in the b2nd metalayer: only 0 (NumPy) is known")
    if marker != _STR32:
        raise FormatError(f"expected a str32 marker {_STR32:#x} before the type, found {marker:#x}")
    if size > limits.dtype_text:
        raise FormatError(f"expected at most {limits.dtype_text} bytes of type text, found {size}")
    raw = buf[at + 6 : at + 6 + size]
    if len(raw) != size:
        raise FormatError(f"expected {size} bytes of type text, found {len(raw)}")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise FormatError(f"expected UTF-8 as type text, found {raw[:80]!r}") from None


# Programs often open the same array repeatedly, and the members of a group have few different layouts. The limits are
# part of the key, because they decide which layouts are valid.
_unpack_short = lru_cache(maxsize=256)(_unpack)


def unpack_text(buf: Buffer) -> Layout:
    """Read the content of the metalayer of an array of text."""
    return _unpack_text(bytes(buf), config.limits)


@lru_cache(maxsize=64)
def _unpack_text(buf: bytes, limits: config.Limits) -> Layout:
    version, shape, chunks, blocks, at = _unpack_geometry(buf)
    text = _unpack_type(buf, at, limits)
    layout = _layout(shape, chunks, blocks, parse_type(text), text, version)
    if not is_run(chunks, blocks):
        raise FormatError(f"expected blocks that are runs of chunks {chunks} in C order, found {blocks}")
    return layout


def unpack_caterva(buf: Buffer, typesize: int) -> Layout:
    """Read the content of a `caterva` metalayer, the predecessor of `b2nd`, which does not name a type.

    `typesize` is the size of an item in bytes, from the frame's header.
    """
    version, shape, chunks, blocks, _ = _unpack_geometry(bytes(buf))
    if not 0 < typesize <= MAX_CHUNK_NBYTES:
        raise FormatError(f"expected a typesize of 1 byte or more, found {typesize}")
    return _layout(shape, chunks, blocks, np.dtype((np.void, typesize)), "", version)


def _unpack_geometry(buf: bytes) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    if len(buf) < 3:
        raise FormatError(f"expected a b2nd metalayer of 3 bytes or more, found {len(buf)} bytes")
    # No reader checks the version: the C library has always written 0.
    version, ndim = buf[1:3]
    if ndim > MAX_NDIM:
        raise FormatError(f"expected at most {MAX_NDIM} dimensions, found {ndim}")
    shape, at = _unpack_extents(buf, 3, ndim, "q", _INT64)
    chunks, at = _unpack_extents(buf, at, ndim, "i", _INT32)
    blocks, at = _unpack_extents(buf, at, ndim, "i", _INT32)
    return version, shape, chunks, blocks, at


def _unpack_extents(
    buf: bytes,
    start: int,
    ndim: int,
    code: str,
    marker: int,
) -> tuple[tuple[int, ...], int]:
    # Skip the marker of the array, which is wrong with 16 dimensions, and which all readers ignore.
    start += 1
    width = 1 + struct.calcsize(f">{code}")
    stop = start + ndim * width
    if len(buf) < stop:
        raise FormatError(f"expected {stop} bytes for {ndim} dimensions, found {len(buf)}")
    if buf[start:stop:width] != bytes([marker]) * ndim:
        raise FormatError(f"expected {ndim} integers marked {marker:#x}, found {buf[start:stop].hex(' ')}")
    return struct.unpack_from(">" + f"x{code}" * ndim, buf, start), stop


def _layout(*fields: Any) -> Layout:
    try:
        return Layout(*fields)
    except ValueError as error:
        raise FormatError(str(error)) from None


def pack(layout: Layout) -> bytes:
    """Return the content of the `b2nd` metalayer; ValueError if the layout names no type, because it is from `caterva`.

    The markers of the three arrays are 0x90 plus the number of dimensions, even with 16 dimensions, as the C library
    writes them.
    """
    if not layout.dtype_text:
        raise ValueError("a layout without a type cannot be packed; give it a dtype_text")
    text = layout.dtype_text.encode()
    return b"".join(
        (
            bytes([_FIXARRAY + _NPARTS, layout.version, layout.ndim]),
            _pack_extents(layout.shape, "q", _INT64),
            _pack_extents(layout.chunks, "i", _INT32),
            _pack_extents(layout.blocks, "i", _INT32),
            struct.pack(">BBI", _DTYPE_NUMPY, _STR32, len(text)),
            text,
        )
    )


def is_typed_array(layers: Layers) -> bool:
    """Return whether a frame with these metalayers is an array that names its type."""
    return any(name in _MARKS for name, _ in layers)


def version_of(buf: Buffer) -> int:
    """Return the version of a `b2nd` or `caterva` metalayer; 0 if the metalayer is too short."""
    return bytes(buf)[1] if len(buf) > 1 else VERSION


def shape_of(buf: Buffer) -> tuple[int, ...]:
    """Return the shape in a `b2nd` or `caterva` metalayer; raise FormatError for a damaged one."""
    return _unpack_geometry(bytes(buf))[1]


def with_extents(
    buf: Buffer,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None = None,
    blocks: tuple[int, ...] | None = None,
) -> bytes:
    """Return a `b2nd` or `caterva` metalayer with other extents; an argument of None leaves the extents unchanged.

    Examples
    --------
    >>> before = pack(Layout((10,), (4,), (2,), np.dtype("<f8"), "<f8"))
    >>> unpack(with_extents(before, (7,))).shape
    (7,)
    """
    changed = bytearray(buf)
    # Unpack the result only to check it. Its length must not change, because the C library never moves the bytes after
    # the header.
    _unpack_geometry(bytes(buf))
    at = 3
    for extents, code in ((shape, "q"), (chunks, "i"), (blocks, "i")):
        width = 1 + struct.calcsize(f">{code}")
        if extents is not None and len(extents) != buf[2]:
            raise ValueError(f"expected {buf[2]} extents, found {len(extents)}")
        for n, extent in enumerate(extents or ()):
            struct.pack_into(f">{code}", changed, at + 2 + n * width, extent)
        at += 1 + buf[2] * width
    return bytes(changed)


def _pack_extents(extents: tuple[int, ...], code: str, marker: int) -> bytes:
    body = b"".join(struct.pack(f">B{code}", marker, extent) for extent in extents)
    return bytes([_FIXARRAY + len(extents)]) + body
