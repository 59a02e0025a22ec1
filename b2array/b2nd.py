"""The `b2nd` metalayer: shape, chunks, blocks and type of the items of an array.

Source: "B2ND Metalayer Format" of the Blosc2 documentation, and the files that the C library writes. All integers
are big-endian, as in every part of a frame that is msgpack.
"""

from __future__ import annotations

import ast
import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from b2array import config
from b2array.caching import cached
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.spec import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES, Buffer

__all__ = [
    "MAX_NDIM",
    "Layout",
    "dtype_text",
    "extension_dtype",
    "extension_name",
    "make_dtype",
    "pack",
    "parse_dtype",
    "shape_of",
    "unpack",
    "unpack_caterva",
    "with_extents",
]

MAX_NDIM = 16

_NPARTS = 7
_DTYPE_NUMPY = 0
_FIXARRAY, _INT32, _INT64, _STR32 = 0x90, 0xD2, 0xD3, 0xDB
_STORABLE_KINDS = "biufcmMSUV"
_NOT_A_DTYPE = (TypeError, ValueError, SyntaxError, LookupError, ArithmeticError, MemoryError, RecursionError, Warning)


@dataclass(frozen=True)
class Layout:
    """How an array is cut: into chunks on a grid, and each chunk into blocks on a grid.

    Every chunk is stored in full: where the array ends inside a chunk, or the chunk inside a block, there is padding.
    Chunks stand in C order of their grid, blocks in C order within the chunk, items in C order within the block.

    Parameters
    ----------
    shape, chunks, blocks : tuple of int
        Extents in items of the array, of a chunk, and of a block; at most 16 dimensions. An extent of `chunks` or
        `blocks` may be 0 only where that of `shape` is.
    dtype : numpy.dtype
        Type of the items. A void type where the file does not say more than their size.
    dtype_text : str
        How the file spells the type (see the function `dtype_text`), or "" if it does not.
    version : int, default 0
        Version of the metalayer, kept as it is.

    Raises
    ------
    ValueError
        The extents do not fit each other, or a chunk, a block or the whole is larger than the format allows.

    Examples
    --------
    >>> layout = Layout((10, 7), (4, 4), (3, 2), np.dtype("<f8"), "<f8")
    >>> layout.grid_shape, layout.extended_chunks, layout.block_grid
    ((3, 2), (6, 4), (2, 2))
    >>> unpack(pack(layout)) == layout
    True
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: np.dtype[Any]
    dtype_text: str
    version: int = 0

    def __post_init__(self) -> None:
        self._check_extents()
        self._check_sizes()

    def _check_extents(self) -> None:
        if self.ndim > MAX_NDIM:
            raise ValueError(f"expected at most {MAX_NDIM} dimensions, found {self.ndim}")
        if not len(self.chunks) == len(self.blocks) == self.ndim:
            raise ValueError(
                f"expected {self.ndim} extents in chunks and blocks, found {len(self.chunks)} and {len(self.blocks)}"
            )
        for name, extents, bits in (
            ("shape", self.shape, 63),
            ("chunks", self.chunks, 31),
            ("blocks", self.blocks, 31),
        ):
            if not all(0 <= extent < 2**bits for extent in extents):
                raise ValueError(f"expected extents of 0 to 2**{bits} - 1 in {name}, found {extents}")
        for extents in zip(self.shape, self.chunks, self.blocks, strict=True):
            if extents[0] and not all(extents):
                raise ValueError(
                    f"expected chunks and blocks of 1 item or more along {extents[0]} items, found {extents[1:]}"
                )

    def _check_sizes(self) -> None:
        bounds = (
            ("an item", self.itemsize, 1, MAX_CHUNK_NBYTES),
            ("a block", self.block_nbytes, 0, MAX_BLOCKSIZE),
            ("a chunk", self.chunk_nbytes, 0, min(MAX_CHUNK_NBYTES, config.limits.chunk_nbytes)),
            ("the array with its padding", self.nbytes, 0, 2**63 - 1),
        )
        for name, nbytes, low, high in bounds:
            if not low <= nbytes <= high:
                raise ValueError(f"expected {low} to {high} bytes in {name}, found {nbytes}")

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached
    def itemsize(self) -> int:
        """Size of an item in bytes."""
        return self.dtype.itemsize

    @cached
    def extended_chunks(self) -> tuple[int, ...]:
        """Extents in items of a chunk with its padding: a whole number of blocks in every dimension."""
        return tuple(n * b for n, b in zip(self.block_grid, self.blocks, strict=True))

    @cached
    def grid_shape(self) -> tuple[int, ...]:
        """Number of chunks along every dimension."""
        return _grid(self.shape, self.chunks)

    @cached
    def nchunks(self) -> int:
        """Number of chunks: 1 without dimensions, 0 if an extent of the shape is 0."""
        return prod(self.grid_shape)

    @cached
    def block_grid(self) -> tuple[int, ...]:
        """Number of blocks along every dimension of a chunk."""
        return _grid(self.chunks, self.blocks)

    @cached
    def nblocks(self) -> int:
        """Number of blocks in a chunk."""
        return prod(self.block_grid)

    @cached
    def block_nbytes(self) -> int:
        """Size of a block in bytes."""
        return prod(self.blocks) * self.itemsize

    @cached
    def chunk_nbytes(self) -> int:
        """Size of a chunk in bytes, padding included."""
        return self.nblocks * self.block_nbytes

    @cached
    def nbytes(self) -> int:
        """Size of all chunks in bytes, padding included: what the frame calls its uncompressed size."""
        return self.nchunks * self.chunk_nbytes


def _grid(shape: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-s // p) if p else 0 for s, p in zip(shape, part, strict=True))


def unpack(buf: Buffer, *, chunksize: int = 0) -> Layout:
    """Read the content of a `b2nd` metalayer.

    The fields are found by their position: with 16 dimensions the markers of the arrays are not valid msgpack.

    Parameters
    ----------
    buf : bytes-like
        The content; what follows it is not looked at.
    chunksize : int, optional
        Size of a chunk in bytes as the frame's header has it. Together with the chunk's extents it gives the size of
        an item, which is true even where the text of the type is not; the type is then so many raw bytes. 0 or less
        if not known.

    Raises
    ------
    FormatError
        The content ends early, has sizes that do not fit each other, or a type that NumPy does not know.
    UnsupportedError
        The type is not spelled as NumPy does, or contains Python objects.
    """
    buf = bytes(buf)
    version, shape, chunks, blocks, at = _unpack_geometry(buf)
    _need(len(buf) >= at + 6, "a type after the block shape", f"{len(buf) - at} bytes")
    dtype_format, marker, size = struct.unpack_from(">BBI", buf, at)
    if dtype_format != _DTYPE_NUMPY:
        raise UnsupportedError(f"dtype format {dtype_format} in the b2nd metalayer: only 0 (NumPy) is known")
    _need(marker == _STR32, f"a str32 marker {_STR32:#x} before the type", f"{marker:#x}")
    _need(size <= config.limits.dtype_text, f"at most {config.limits.dtype_text} bytes of type text", f"{size}")
    raw = buf[at + 6 : at + 6 + size]
    _need(len(raw) == size, f"{size} bytes of type text", f"{len(raw)}")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise FormatError(f"expected UTF-8 as type text, found {raw[:80]!r}") from None
    dtype = parse_dtype(text)
    layout = _layout(shape, chunks, blocks, dtype, text, version)
    items = prod(layout.extended_chunks)
    if chunksize <= 0 or not items or chunksize == items * dtype.itemsize:
        return layout
    _need(chunksize % items == 0, f"chunks of {items} items", f"chunks of {chunksize} bytes")
    return _layout(shape, chunks, blocks, np.dtype((np.void, chunksize // items)), text, version)


def unpack_caterva(buf: Buffer, typesize: int) -> Layout:
    """Read the content of a `caterva` metalayer, the predecessor of `b2nd`, which does not name a type.

    Parameters
    ----------
    buf : bytes-like
        The content; what follows it is not looked at.
    typesize : int
        Size of an item in bytes, from the frame's header.

    Raises
    ------
    FormatError
        The content ends early or has sizes that do not fit each other.
    """
    version, shape, chunks, blocks, _ = _unpack_geometry(bytes(buf))
    _need(0 < typesize <= MAX_CHUNK_NBYTES, "a typesize of 1 byte or more", str(typesize))
    return _layout(shape, chunks, blocks, np.dtype((np.void, typesize)), "", version)


def _unpack_geometry(buf: bytes) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    _need(len(buf) >= 3, "a b2nd metalayer of 3 bytes or more", f"{len(buf)} bytes")
    version, ndim = buf[1:3]
    _need(ndim <= MAX_NDIM, f"at most {MAX_NDIM} dimensions", str(ndim))
    shape, at = _unpack_extents(buf, 3, ndim, "q", _INT64)
    chunks, at = _unpack_extents(buf, at, ndim, "i", _INT32)
    blocks, at = _unpack_extents(buf, at, ndim, "i", _INT32)
    return version, shape, chunks, blocks, at


def _unpack_extents(buf: bytes, start: int, ndim: int, code: str, marker: int) -> tuple[tuple[int, ...], int]:
    start += 1  # the array's own marker, which no reader looks at
    width = 1 + struct.calcsize(f">{code}")
    stop = start + ndim * width
    _need(len(buf) >= stop, f"{stop} bytes for {ndim} dimensions", str(len(buf)))
    _need(
        buf[start:stop:width] == bytes([marker]) * ndim, f"{ndim} integers marked {marker:#x}", buf[start:stop].hex(" ")
    )
    return struct.unpack_from(">" + f"x{code}" * ndim, buf, start), stop


def _layout(*fields: Any) -> Layout:
    try:
        return Layout(*fields)
    except ValueError as error:
        raise FormatError(str(error)) from None


def pack(layout: Layout) -> bytes:
    """Return the content of the `b2nd` metalayer.

    The markers of the three arrays are 0x90 plus the number of dimensions, with 16 dimensions too, as the C library
    writes them.

    Raises
    ------
    ValueError
        The layout has no text for its type (it came from a `caterva` metalayer).
    """
    if not layout.dtype_text:
        raise ValueError("a layout without a type cannot be packed; give it a dtype_text")
    text = layout.dtype_text.encode()
    return b"".join((
        bytes([_FIXARRAY + _NPARTS, layout.version, layout.ndim]),
        _pack_extents(layout.shape, "q", _INT64),
        _pack_extents(layout.chunks, "i", _INT32),
        _pack_extents(layout.blocks, "i", _INT32),
        struct.pack(">BBI", _DTYPE_NUMPY, _STR32, len(text)),
        text,
    ))  # fmt: skip


def shape_of(buf: Buffer) -> tuple[int, ...]:
    """Return the shape in a metalayer, also in one named `caterva`; raises FormatError."""
    return _unpack_geometry(bytes(buf))[1]


def with_extents(
    buf: Buffer,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None = None,
    blocks: tuple[int, ...] | None = None,
) -> bytes:
    """Return a metalayer, also one named `caterva`, with other extents; nothing else changes, least of all its length.

    Parameters
    ----------
    buf : bytes-like
        The content of the metalayer.
    shape, chunks, blocks : tuple of int
        As many extents as there are; left out, the old ones.

    Raises
    ------
    ValueError
        There are more or fewer extents.

    Examples
    --------
    >>> before = pack(Layout((10,), (4,), (2,), np.dtype("<f8"), "<f8"))
    >>> unpack(with_extents(before, (7,))).shape
    (7,)
    """
    changed = bytearray(buf)
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


def parse_dtype(text: str) -> np.dtype[Any]:
    """Return the type that `text` stands for: what `numpy.dtype` understands, or a Python literal of that.

    Parameters
    ----------
    text : str
        For example ``"<f8"`` or ``"[('x', '<i4'), ('y', '<f8')]"``, at most `b2array.config.limits.dtype_text` bytes.

    Raises
    ------
    FormatError
        NumPy does not understand it, or the items would have no size.
    UnsupportedError
        It contains Python objects, whose bytes are addresses.

    Notes
    -----
    python-blosc2 also writes names of the package ml_dtypes (``"bfloat16"``), understood where it is installed.

    Examples
    --------
    >>> parse_dtype("('<f4', (2,))")
    dtype(('<f4', (2,)))
    """
    limit = config.limits.dtype_text
    _need(len(text.encode(errors="surrogatepass")) <= limit, f"at most {limit} bytes of type text", f"{len(text)}")
    try:
        dtype = np.dtype(text)
    except _NOT_A_DTYPE:
        extension = extension_dtype(text)
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
    """Return the type of the package ml_dtypes called `name`, or None if there is none or the package is missing.

    Examples
    --------
    >>> extension_dtype("bfloat17") is None
    True
    """
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    return np.dtype(found) if isinstance(found, type) and issubclass(found, np.generic) else None


def extension_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name under which `extension_dtype` finds a type, or None if it is none of the package ml_dtypes.

    Examples
    --------
    >>> extension_name(np.dtype("f4")) is None
    True
    """
    if dtype.isbuiltin != 2 or dtype.subdtype is not None:
        return None
    return dtype.name if extension_dtype(dtype.name) == dtype else None


def make_dtype(literal: object) -> np.dtype[Any]:
    """Return the type described by a value that came from a file: a str, list, tuple or dict.

    Raises
    ------
    FormatError, UnsupportedError
        As for `parse_dtype`.
    """
    _need(isinstance(literal, str | list | tuple | dict), "a NumPy type", repr(literal)[:80])
    try:
        dtype: np.dtype[Any] = np.dtype(literal)  # type: ignore[call-overload]
    except _NOT_A_DTYPE:
        raise FormatError(f"expected a NumPy type, found {repr(literal)[:80]}") from None
    _check_dtype(dtype, dtype)
    return dtype


def _check_dtype(dtype: np.dtype[Any], whole: np.dtype[Any]) -> None:
    if dtype.hasobject or (dtype.kind not in _STORABLE_KINDS and not _is_foreign(dtype)):
        raise UnsupportedError(f"items of type {str(whole)[:80]} are references, not data")
    # NumPy lets the size of a type overflow; such a type reads beyond its items.
    smallest = 1 if dtype is whole else 0
    _need(dtype.itemsize >= smallest, f"items of {smallest} bytes or more", f"{dtype.itemsize} in {str(whole)[:80]}")
    if dtype.subdtype is not None:
        _check_dtype(dtype.subdtype[0], whole)
    for field, offset, *_ in (dtype.fields or {}).values():
        _check_dtype(field, whole)
        _need(offset + field.itemsize <= dtype.itemsize, f"fields inside {dtype.itemsize} bytes", f"one at {offset}")


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the text that stands for `dtype` in a `b2nd` metalayer: the one python-blosc2 writes.

    Raises
    ------
    TypeError
        The type contains Python objects, has no size, or is no type of NumPy's own.
    LimitError
        The text is longer than `b2array.config.limits.dtype_text` bytes.

    Examples
    --------
    >>> dtype_text(np.dtype("float64")), dtype_text(np.dtype([("a", "<i2")])), dtype_text(np.dtype("V3"))
    ('<f8', "[('a', '<i2')]", '|V3')
    """
    if dtype.kind == "T":
        raise TypeError(f"arrays of type {dtype} cannot be stored: text needs a length, as in astype('U20')")
    text = str(dtype) if dtype.kind == "V" else dtype.str
    try:
        if _is_foreign(dtype):
            raise TypeError(f"arrays of type {dtype} cannot be stored: only the package that added it knows its name")
        if not _means(text, dtype):
            # What NumPy prints for aligned records inside others is the text of another type.
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
    """Whether the type, or one inside it, was added to NumPy by another package, so that its name is not portable."""
    if dtype.subdtype is not None:
        return _is_foreign(dtype.subdtype[0])
    if dtype.names is not None:
        return any(_is_foreign(dtype[name]) for name in dtype.names)
    return dtype.isbuiltin == 2


def _need(ok: bool, expected: str, found: str) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {found}")
