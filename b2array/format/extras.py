"""What b2array keeps in places that other readers ignore: the `b2array` metalayer, checksums, and attribute values.

`Extras` is the content of one variable-length metalayer. A `Record` follows a chunk in its file and holds CRC-32 sums
of the chunk's head and of each block, so that whoever reads a few blocks can verify just these. Attribute values are
msgpack with the conventions of python-blosc2: what one of the two packages writes, the other reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np
from numpy.typing import NDArray

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import chunk, decode, encode
from b2array.codec.cparams import CParams
from b2array.codec.header import ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import ChecksumError, FormatError, UnsupportedError
from b2array.format import dtypes

try:  # ten times as fast as zlib, so that verifying costs next to nothing
    from isal.isal_zlib import crc32
except ImportError:  # it has no builds for some platforms
    from zlib import crc32

__all__ = [
    "LAYER", "MAX_SIZES_NBYTES", "UNSIZED", "Extras", "Record", "block_bounds", "check_blocks",
    "check_head", "crc32", "decode_attr", "encode_attr", "pack_record", "pack_sizes", "record_nbytes", "sizes_row",
    "unpack_record", "unpack_sizes", "verified_sums",
]  # fmt: skip

LAYER = "b2array"
"""Name of the variable-length metalayer."""
MAX_SIZES_NBYTES = 2**20
"""Packed block sizes that are larger are left out of the metalayer."""
UNSIZED = 2**32 - 1
"""Stands for the size of a chunk with a record whose size is not at hand."""

_VERSION = 1
_KEYS = ("fill", "dims", "dtype", "next", "attrs", "lost", "sizes")
_SIZES_CPARAMS = CParams("zstd")
_MAX_CHUNK_SIZES_NBYTES = 16 * MAX_SIZES_NBYTES
_RECORD_HEAD = struct.Struct("<4s2H2I")
_RECORD_MAGIC, _RECORD_VERSION = b"b2ck", 1
_CRC = struct.Struct("<I")
_COMPLEX = struct.Struct(">2d")
_EXT_COMPLEX, _EXT_SET, _EXT_NDARRAY = 44, 45, 46
_TUPLE = "__tuple__"
_MAX_DEPTH = 32
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    msgpack.UnpackException,
)


@dataclass(frozen=True, slots=True)
class Extras:
    r"""The content of the `b2array` metalayer.

    Parameters
    ----------
    fill : bytes, optional
        The fill value: one item in the bytes of the array's type.
    dims : tuple of (str or None), optional
        Names of the dimensions.
    dtype : str, optional
        Name of the type, where NumPy has none and the frame only knows the size of the items.
    next : int, optional
        First number of a chunk's file that was never used (sparse frames).
    attrs : tuple of (str, bytes)
        Attributes that have no metalayer of their own; the values as `encode_attr` makes them.
    lost : tuple of int
        Chunks whose data could not be saved.
    sizes : bytes, optional
        What `pack_sizes` made.
    unknown : tuple of (key, value)
        Entries that a later version added; they are kept.
    foreign : bool
        The metalayer has a later major version: nothing was read from it, and nobody may write to the frame.

    Examples
    --------
    >>> extras = Extras(fill=b"\0\0", dims=("x", None))
    >>> Extras.unpack(extras.pack(), itemsize=2, ndim=2, nchunks=1) == extras
    True
    >>> Extras.unpack(extras.pack(), itemsize=4, ndim=2, nchunks=1).fill is None
    True
    """

    fill: bytes | None = None
    dims: tuple[str | None, ...] | None = None
    dtype: str | None = None
    next: int | None = None
    attrs: tuple[tuple[str, bytes], ...] = ()
    lost: tuple[int, ...] = ()
    sizes: bytes | None = None
    unknown: tuple[tuple[Any, Any], ...] = ()
    foreign: bool = False

    @classmethod
    def unpack(cls, buf: Buffer, *, itemsize: int, ndim: int, nchunks: int) -> Self:
        """Read the content of the metalayer; never fails.

        Parameters
        ----------
        buf : bytes-like
            What does not fit an array of the given item size (in bytes), number of dimensions and number of chunks is
            ignored, and so is all of it if it is not ours.
        """
        try:
            layer = msgpack.unpackb(buf, strict_map_key=False)
        except _UNREADABLE:
            return cls()
        if not isinstance(layer, dict) or not _is_number(layer.get("v"), 1):
            return cls()
        if layer["v"] > _VERSION:
            return cls(foreign=True)
        fill, dims, dtype, number, attrs, lost, sizes = (layer.get(key) for key in _KEYS)
        return cls(
            fill=fill if isinstance(fill, bytes) and len(fill) == itemsize else None,
            dims=tuple(dims) if isinstance(dims, list) and _are_dims(dims, ndim) else None,
            dtype=dtype if isinstance(dtype, str) else None,
            next=number if _is_number(number, 0) else None,
            attrs=tuple(_attrs(attrs)),
            lost=tuple(n for n in lost if _is_number(n, 0) and n < nchunks) if isinstance(lost, list) else (),
            sizes=sizes if isinstance(sizes, bytes) else None,
            unknown=tuple((key, value) for key, value in layer.items() if key not in ("v", *_KEYS)),
        )

    def pack(self) -> bytes:
        """Return the content of the metalayer.

        Raises
        ------
        UnsupportedError
            It came from a later major version.
        """
        if self.foreign:
            raise UnsupportedError("the frame was written by a later version of b2array, which this one cannot follow")
        layer: dict[Any, Any] = {"v": _VERSION}
        for key in _KEYS:
            value = getattr(self, key)
            if value is not None and (value != () or key == "dims"):
                layer[key] = dict(value) if key == "attrs" else value
        return _packb({**layer, **dict(self.unknown)})


def _packb(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _is_number(value: object, low: int) -> bool:
    return type(value) is int and value >= low


def _are_dims(dims: list[object], ndim: int) -> bool:
    return len(dims) == ndim and all(dim is None or isinstance(dim, str) for dim in dims)


def _attrs(attrs: object) -> list[tuple[str, bytes]]:
    if not isinstance(attrs, dict):
        return []
    return [(name, value) for name, value in attrs.items() if isinstance(name, str) and isinstance(value, bytes)]


def sizes_row(head: chunk.ChunkHead, nblocks: int) -> NDArray[np.uint32]:
    """Return the sizes of a chunk and of its blocks.

    Parameters
    ----------
    head : chunk.ChunkHead
        Header and block starts of the chunk.
    nblocks : int
        Number of blocks that chunks of this array have.

    Returns
    -------
    ndarray of uint32, shape (1 + nblocks,)
        The chunk's `cbytes`, then the size of each block in bytes, in block order. The blocks' sizes are 0 if the chunk
        has no streams or does not store its blocks in order.
    """
    row = np.zeros(1 + nblocks, np.uint32)
    row[0] = head.header.cbytes
    if head.header.has_streams and len(head.starts) == nblocks and (np.diff(head.starts) > 0).all():
        row[1:] = head.stops - head.starts
    return row


def block_bounds(row: NDArray[np.uint32]) -> NDArray[np.int64] | None:
    """Return where the blocks of a chunk lie, going by a row of sizes, or None if only the chunk itself tells.

    Returns
    -------
    ndarray of int64, shape (1 + nblocks,)
        Block n is at bytes ``[n]`` to ``[n + 1]`` from the start of the chunk; before the first lies the chunk's head.

    Examples
    --------
    >>> block_bounds(np.array([100, 20, 30], np.uint32)).tolist()
    [50, 70, 100]
    """
    sizes = row[1:].astype(np.int64)
    first = int(row[0]) - int(sizes.sum())
    if not len(sizes) or not sizes.all() or first < HEADER_LEN + 4 * len(sizes):
        return None
    return first + np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def pack_sizes(rows: NDArray[np.uint32]) -> bytes | None:
    """Return the sizes of all chunks as one Blosc2 chunk, or None if it gets larger than `MAX_SIZES_NBYTES`.

    Without sizes of blocks it may be 16 times as large: like the index, it has one number a chunk.

    Parameters
    ----------
    rows : ndarray of uint32, shape (nchunks, 1 + nblocks)
        What `sizes_row` returns for each chunk in index order; zeros for chunks that are not stored.
    """
    if rows.nbytes > 64 * MAX_SIZES_NBYTES:
        return None
    packed = encode.encode(np.ascontiguousarray(rows, "<u4").tobytes(), typesize=4, cparams=_SIZES_CPARAMS)
    return packed if len(packed) <= (MAX_SIZES_NBYTES if rows.shape[1] > 1 else _MAX_CHUNK_SIZES_NBYTES) else None


def unpack_sizes(buf: Buffer, nchunks: int, nblocks: int) -> NDArray[np.uint32] | None:
    """Return the rows that `pack_sizes` packed, or None if these are not the sizes of such an array; never fails."""
    nbytes = 4 * nchunks * (1 + nblocks)
    try:
        header = ChunkHeader.unpack(buf)
        if header.nbytes != nbytes or header.cbytes != len(buf) or nbytes > config.limits.metadata_nbytes:
            return None
        rows = np.frombuffer(decode.decode(buf), "<u4")
    except (FormatError, UnsupportedError):
        return None
    return rows.astype(np.uint32, copy=False).reshape(nchunks, 1 + nblocks)


class Record(NamedTuple):
    """The checksums of a chunk: of its head, and of its blocks in block order."""

    head_crc: int
    block_crcs: tuple[int, ...]


def record_nbytes(nblocks: int) -> int:
    """Return the size in bytes of the record of a chunk with `nblocks` blocks."""
    return _RECORD_HEAD.size + 4 * nblocks + _CRC.size


def pack_record(buf: Buffer, head: chunk.ChunkHead | None = None, *, number: int = -1) -> bytes:
    """Return the record of a chunk: checksums of its head (header, block starts, dictionary) and of its blocks.

    A block's bytes go from its start to the next larger start; a chunk without streams counts as blocks of `blocksize`
    bytes behind its header, and one that only says what fills it has a head and no blocks.

    Parameters
    ----------
    buf : bytes-like
        The chunk.
    head : chunk.ChunkHead, optional
        What is known of it already.
    number : int, optional
        The number of the chunk's file in a sparse frame. The record's own checksum continues from this number plus 1
        (from 0 without a number), so that files whose names were exchanged are found out.

    Raises
    ------
    FormatError
        This is not a chunk.
    """
    stored = chunk.Stored.whole(buf, head)
    bounds = zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)
    blocks = [crc32(stored.region[start:stop]) for start, stop in bounds]
    head_crc = crc32(stored.region[: chunk.head_nbytes(stored.region)])
    body = _RECORD_HEAD.pack(_RECORD_MAGIC, _RECORD_VERSION, 0, len(blocks), head_crc)
    body += struct.pack(f"<{len(blocks)}I", *blocks)
    return body + _CRC.pack(crc32(body, number + 1))


def unpack_record(buf: Buffer, *, number: int = -1) -> Record | None:
    """Return the record at the start of `buf`, or None if there is none, not all of it, or that of another file."""
    if len(buf) < record_nbytes(0):
        return None
    magic, version, _, nblocks, head_crc = _RECORD_HEAD.unpack_from(buf)
    body_len = record_nbytes(nblocks) - _CRC.size
    if (magic, version) != (_RECORD_MAGIC, _RECORD_VERSION) or len(buf) < body_len + _CRC.size:
        return None
    body = memoryview(buf)[:body_len]
    (found,) = _CRC.unpack_from(buf, body_len)
    if found not in (crc32(body, number + 1), crc32(body)):
        return None
    return Record(head_crc, struct.unpack_from(f"<{nblocks}I", buf, _RECORD_HEAD.size))


def check_head(record: Record, head: Buffer) -> None:
    """Compare the head of a chunk (its first `chunk.head_nbytes` bytes) with its checksum.

    Raises
    ------
    ChecksumError
        They differ.
    """
    _compare("the chunk's header and block starts", record.head_crc, head)


def verified_sums(behind: Buffer, head: chunk.ChunkHead, head_bytes: Buffer, *, number: int = -1) -> NDArray[np.uint32]:
    """Return the checksums of a chunk's blocks from its record, after comparing the head with its own.

    Parameters
    ----------
    behind : bytes-like
        What follows the chunk.
    head : chunk.ChunkHead
        Header and block starts of the chunk.
    head_bytes : bytes-like
        The bytes that they were read from, or more.
    number : int, optional
        As for `pack_record`.

    Raises
    ------
    ChecksumError
        There is no record that belongs to this chunk.
    """
    record = unpack_record(behind, number=number)
    if record is None:
        raise ChecksumError("expected a record of its checksums behind the chunk, found none")
    if len(record.block_crcs) != len(head.starts):
        raise ChecksumError(f"expected a record of {len(head.starts)} blocks, found one of {len(record.block_crcs)}")
    check_head(record, memoryview(head_bytes)[: chunk.head_nbytes(head_bytes)])
    return np.array(record.block_crcs, np.uint32)


def check_blocks(
    sums: NDArray[np.uint32], numbers: Sequence[int], region: memoryview, starts: list[int], stops: list[int]
) -> None:
    """Compare blocks with their checksums.

    Parameters
    ----------
    sums : ndarray of uint32, shape (nblocks,)
        The checksums of all blocks of the chunk.
    numbers : sequence of int
        Which blocks.
    region : memoryview
        Holds them.
    starts, stops : list of int
        Where in it each of them lies, in bytes.

    Raises
    ------
    ChecksumError
        One differs; the message names the first.
    """
    for n, start, stop in zip(numbers, starts, stops, strict=True):
        if crc32(region[start:stop]) != sums[n]:
            _compare(f"block {n}", int(sums[n]), region[start:stop])


def _compare(what: str, expected: int, data: Buffer) -> None:
    found = crc32(data)
    if found != expected:
        raise ChecksumError(f"expected a CRC-32 of {expected:#010x} of {what}, found {found:#010x}")


def encode_attr(value: object) -> bytes:
    """Return the bytes of an attribute's value: what a variable-length metalayer holds, before it becomes a chunk.

    Parameters
    ----------
    value : object
        None, bool, int, float, complex, str, bytes, list, tuple, set, dict with keys of str or bytes, NumPy scalar or
        array (of objects too, if they are such values), `msgpack.ExtType`, and nestings of these. A list that starts
        with ``"__tuple__"`` comes back as a tuple.

    Raises
    ------
    TypeError
        Something else is in it, or it could not be read back.

    Examples
    --------
    >>> decode_attr(encode_attr({"origin": (0, 1.5), "window": np.arange(3)}))
    {'origin': (0, 1.5), 'window': array([0, 1, 2])}
    """
    try:
        packed = _encode(value)
        _decode(packed, 0, strict=True)
    except (ValueError, TypeError, OverflowError, RecursionError, UnsupportedError) as error:
        raise TypeError(f"an attribute cannot hold this {type(value).__name__}: {error}") from None
    return packed


def decode_attr(buf: Buffer) -> Any:
    """Return the value of an attribute.

    What only python-blosc2 can resolve (frames inside attributes, references to other files) is returned as it is, as
    `msgpack.ExtType`.

    Raises
    ------
    FormatError
        The bytes are not such a value.
    UnsupportedError
        An array in it has a type that cannot be made from bytes.
    """
    return _decode(buf, 0, strict=False)


def _encode(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, default=_encode_other, strict_types=True, use_bin_type=True)
    return packed


def _encode_other(value: object) -> object:
    """Return what msgpack can take instead of a value that it cannot."""
    for kinds, convert in _FORMS:
        if isinstance(value, kinds) and not isinstance(value, np.timedelta64):
            return convert(value)
    raise TypeError(f"{type(value).__name__} has no form in msgpack")


def _encode_ndarray(array: NDArray[Any]) -> bytes:
    dtype, shape = array.dtype, list(array.shape)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("masked arrays would lose their mask")
    if dtype.kind == "O":
        return _encode({"values": array.ravel().tolist(), "shape": shape})
    spec = {"str": dtype.str} if dtype.fields is None else {"descr": dtype.descr}
    if _unpack_dtype(spec) != dtype:
        raise TypeError(f"arrays of type {dtype} would change their type")
    return _encode({"dtype": spec, "shape": shape, "data": array.tobytes()})


_FORMS: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (tuple, lambda value: [_TUPLE, *value]),
    (np.ndarray, lambda value: msgpack.ExtType(_EXT_NDARRAY, _encode_ndarray(value))),
    ((complex, np.complexfloating), lambda value: msgpack.ExtType(_EXT_COMPLEX, _COMPLEX.pack(value.real, value.imag))),
    ((set, frozenset), lambda value: msgpack.ExtType(_EXT_SET, _encode(list(value)))),
    (np.bool_, bool),
    ((int, np.integer), int),
    ((float, np.floating), float),
    (str, str),
    (bytes, bytes),
    (list, list),
    (dict, dict),
)


def _decode(buf: Buffer, depth: int, *, strict: bool) -> Any:
    if depth > _MAX_DEPTH:
        raise FormatError(f"expected at most {_MAX_DEPTH} extension types inside each other, found more")
    hook = partial(_decode_ext, depth=depth + 1, strict=strict)
    try:
        return msgpack.unpackb(buf, list_hook=_decode_list, ext_hook=hook, strict_map_key=strict)
    except (FormatError, UnsupportedError):
        raise
    except _UNREADABLE as error:
        raise FormatError(f"expected a msgpack value, found {error}") from None


def _decode_list(items: list[Any]) -> list[Any] | tuple[Any, ...]:
    return tuple(items[1:]) if items and isinstance(items[0], str) and items[0] == _TUPLE else items


def _decode_ext(code: int, data: bytes, *, depth: int, strict: bool) -> Any:
    if code == _EXT_COMPLEX:
        _need(len(data) == _COMPLEX.size, "16 bytes of a complex number", data)
        return complex(*_COMPLEX.unpack(data))
    if code == _EXT_SET:
        return set(_decode(data, depth, strict=strict))
    if code == _EXT_NDARRAY:
        return _decode_ndarray(_decode(data, depth, strict=strict))
    return msgpack.ExtType(code, data)


def _decode_ndarray(payload: object) -> NDArray[Any]:
    shape, values, dtype, data = (_get(payload, key) for key in ("shape", "values", "dtype", "data"))
    _need(isinstance(shape, list | tuple) and all(_is_number(extent, 0) for extent in shape), "extents", shape)
    count = prod(shape)
    if values is not None:
        _need(isinstance(values, list | tuple) and len(values) == count, f"{count} items of an array", values)
        objects = np.empty(count, object)
        for n, value in enumerate(values):
            objects[n] = value
        return objects.reshape(shape)
    made = _unpack_dtype(dtype)
    _need(isinstance(data, bytes) and len(data) == count * made.itemsize, f"the bytes of {count} items", data)
    return np.frombuffer(data, made).reshape(shape)


def _unpack_dtype(spec: object) -> np.dtype[Any]:
    text, descr = _get(spec, "str"), _get(spec, "descr")
    if isinstance(text, str):
        return dtypes.parse_dtype(text)
    _need(isinstance(descr, list), "the type of an array", spec)
    return dtypes.make_dtype([_unpack_field(field) for field in descr])


def _unpack_field(field: Any) -> tuple[Any, ...]:
    _need(isinstance(field, list | tuple) and len(field) in {2, 3}, "name, type and shape of a field", field)
    name, form, *shape = field
    if isinstance(form, list):
        form = [_unpack_field(inner) for inner in form]
    return (tuple(name) if isinstance(name, list) else name, form, *(tuple(extents) for extents in shape))


def _get(mapping: object, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


def _need(ok: bool, expected: str, found: object) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {repr(found)[:80]}")
