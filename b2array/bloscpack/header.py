"""What stands in front of the chunks of a Bloscpack file: header, metadata, and the checksums.

Source: "RFC for the new Bloscpack Header" (versions 1 and 2), and the files that Bloscpack 0.3 to 0.16 write (version
3: metadata, and room for the offsets of chunks that are appended later). All integers are little-endian.
"""

from __future__ import annotations

import ast
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np

from b2array import config
from b2array.buffers import Buffer
from b2array.errors import ChecksumError, FormatError, LimitError, UnsupportedError
from b2array.format.dtypes import parse_dtype

__all__ = [
    "CHECKSUMS",
    "MAX_CHUNK_SIZE",
    "META_HEADER_LEN",
    "Description",
    "Header",
    "MetaHeader",
    "Order",
    "checksum_id",
    "describe",
    "description",
    "digest",
    "digest_size",
    "pack_metadata",
    "unpack_metadata",
]

MAGIC = b"blpk"
META_HEADER_LEN = 32
MAX_CHUNK_SIZE = 2**31 - 1 - 16
"""The most bytes that C-Blosc 1 puts into a chunk."""

Order = Literal["C", "F"]
ARRAY_KEYS = ("dtype", "shape", "order", "container")

_OFFSETS, _METADATA = 0x01, 0x02
_VERSION1 = struct.Struct("<4sB3xq")
_HEADER = struct.Struct("<4s4B2i2q")
_META = struct.Struct("<8s4B3I8s")
_JSON = b"JSON"
_NO_CODEC, _ZLIB = 0, 1
_META_LEVEL = 6
_ROOM = 10
"""Metadata get so many times their size, so that they can change in place."""

_NOT_A_DTYPE = (TypeError, ValueError, SyntaxError, LookupError, ArithmeticError, MemoryError, RecursionError)


def _crc(function: Callable[[Buffer], int]) -> Callable[[Buffer], bytes]:
    return lambda data: function(data).to_bytes(4, "little")


def _hash(name: str) -> Callable[[Buffer], bytes]:
    return lambda data: hashlib.new(name, data, usedforsecurity=False).digest()


_DIGESTS: dict[str, Callable[[Buffer], bytes]] = {
    "none": lambda _: b"",
    "adler32": _crc(zlib.adler32),
    "crc32": _crc(zlib.crc32),
} | {name: _hash(name) for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")}

CHECKSUMS = tuple(_DIGESTS)
"""Names of the checksums; the position of one is its number in files."""

_SIZES = tuple(len(function(b"")) for function in _DIGESTS.values())


def checksum_id(name: str | None) -> int:
    """Return the number of a checksum; ValueError if there is none of that name."""
    known = "none" if name is None else name.lower()
    if known not in CHECKSUMS:
        raise ValueError(f"checksum must be one of {', '.join(CHECKSUMS)}, not {name!r}")
    return CHECKSUMS.index(known)


def digest(number: int, data: Buffer) -> bytes:
    """Return the bytes that stand behind `data` in a file with this checksum.

    Examples
    --------
    >>> digest(checksum_id("adler32"), b"b2array").hex()
    'b4021f0a'
    """
    return _DIGESTS[CHECKSUMS[number]](data)


def digest_size(number: int) -> int:
    """Return the length of a checksum in bytes."""
    return _SIZES[number]


def compare(what: str, number: int, data: Buffer, found: Buffer) -> None:
    """Raise ChecksumError unless `found` is the checksum of `data`."""
    expected = digest(number, data)
    if expected != found:
        name = CHECKSUMS[number]
        raise ChecksumError(f"{what}: expected {name} {bytes(found).hex()}, found bytes with {expected.hex()}")


@dataclass(frozen=True, slots=True)
class Header:
    """The first 16 (version 1) or 32 bytes of a file.

    Sizes are in bytes, before compression; -1: unknown. `checksum` is a position in `CHECKSUMS`. `max_app_chunks` is
    the number of chunks that may be appended, for which there is room in the table of offsets.
    """

    version: int = 3
    offsets: bool = False
    metadata: bool = False
    checksum: int = 0
    typesize: int = 1
    chunk_size: int = -1
    last_chunk: int = -1
    nchunks: int = -1
    max_app_chunks: int = 0

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a header from the first bytes of a file.

        Raises
        ------
        FormatError
            It is not a Bloscpack file, or ends early, or has sizes that cannot be.
        UnsupportedError
            It is of another version, or uses options that are not known.
        """
        magic = bytes(buf[:4])
        _need(magic == MAGIC, f"a Bloscpack file that begins with {MAGIC!r}", repr(magic))
        _need(len(buf) >= _VERSION1.size, f"a header of {_VERSION1.size} bytes or more", f"{len(buf)} bytes")
        version = buf[4]
        if version not in (1, 2, 3):
            raise UnsupportedError(f"version {version} of the Bloscpack format: only 1, 2 and 3 are known")
        if version == 1:
            self = cls(version, nchunks=_VERSION1.unpack_from(buf)[2])
        else:
            _need(len(buf) >= _HEADER.size, f"a header of {_HEADER.size} bytes", f"{len(buf)} bytes")
            _, _, options, checksum, typesize, chunk_size, last, nchunks, more = _HEADER.unpack_from(buf)
            known = _OFFSETS | _METADATA if version == 3 else _OFFSETS
            if options & ~known:
                raise UnsupportedError(f"options {options:#04x} of a Bloscpack file of version {version}")
            flags = bool(options & _OFFSETS), bool(options & _METADATA)
            more = more if version == 3 else 0
            self = cls(version, *flags, checksum, typesize, chunk_size, last, nchunks, more)
        self._check()
        return self

    def _check(self) -> None:
        _need(self.checksum < len(CHECKSUMS), f"a checksum of 0 to {len(CHECKSUMS) - 1}", str(self.checksum))
        for name, value in (
            ("chunk-size", self.chunk_size), ("last-chunk", self.last_chunk), ("nchunks", self.nchunks)
        ):  # fmt: skip
            _need(value >= -1, f"{name} of -1 or more", str(value))
        if self.chunk_size >= 0:
            _need(self.last_chunk <= self.chunk_size, f"last-chunk of at most {self.chunk_size}", str(self.last_chunk))
        _need(0 <= self.max_app_chunks < 2**60, "room for 0 or more chunks", str(self.max_app_chunks))

    def pack(self) -> bytes:
        """Return the header's bytes."""
        if self.version == 1:
            return _VERSION1.pack(MAGIC, 1, self.nchunks)
        options = _OFFSETS * self.offsets | _METADATA * self.metadata
        return _HEADER.pack(
            MAGIC, self.version, options, self.checksum, self.typesize, self.chunk_size, self.last_chunk,
            self.nchunks, self.max_app_chunks,
        )  # fmt: skip

    @property
    def length(self) -> int:
        """Length of the header in bytes."""
        return _VERSION1.size if self.version == 1 else _HEADER.size

    @property
    def nbytes(self) -> int:
        """Size in bytes of all chunks together, uncompressed; -1 if unknown."""
        if self.nchunks == 0:
            return 0
        if min(self.chunk_size, self.last_chunk, self.nchunks) < 0:
            return -1
        return self.chunk_size * (self.nchunks - 1) + self.last_chunk


class MetaHeader(NamedTuple):
    """What stands in front of the metadata."""

    magic: bytes
    options: int
    checksum: int
    codec: int
    level: int
    meta_size: int
    max_meta_size: int
    meta_comp_size: int
    user_codec: bytes

    @classmethod
    def unpack(cls, buf: Buffer) -> MetaHeader:
        """Read the 32 bytes of a metadata header.

        Raises
        ------
        FormatError
            The bytes end early, or have sizes that cannot be.
        UnsupportedError
            The metadata are not JSON, or are compressed by something else than zlib.
        """
        _need(len(buf) >= META_HEADER_LEN, f"a metadata header of {META_HEADER_LEN} bytes", f"{len(buf)} bytes")
        self = cls(*_META.unpack_from(buf))
        kind = self.magic.rstrip(b"\0")
        if kind != _JSON or self.options or self.codec not in (_NO_CODEC, _ZLIB) or any(self.user_codec):
            codec = f"codec {self.codec} {bytes(self.user_codec).rstrip(bytes(1))!r}"
            raise UnsupportedError(
                f"metadata of kind {kind!r}, options {self.options}, {codec}: only JSON is known, as it is or by zlib"
            )
        _need(self.checksum < len(CHECKSUMS), f"a checksum of 0 to {len(CHECKSUMS) - 1}", str(self.checksum))
        _need(
            self.meta_comp_size <= self.max_meta_size, f"at most {self.max_meta_size} bytes", f"{self.meta_comp_size}"
        )
        limit = config.limits.metadata_nbytes
        _need(
            max(self.meta_size, self.max_meta_size) <= limit, f"at most {limit} bytes of metadata", f"{self.meta_size}"
        )
        return self

    @property
    def section_nbytes(self) -> int:
        """Size in bytes of header, metadata, the room behind them, and checksum."""
        return META_HEADER_LEN + self.max_meta_size + digest_size(self.checksum)


def unpack_metadata(head: MetaHeader, section: Buffer) -> Any:
    """Read metadata from their section, which begins with `head`.

    Raises
    ------
    ChecksumError
        They differ from what was written.
    FormatError
        They are not what the header says.
    """
    view = memoryview(section)
    raw: Buffer = view[META_HEADER_LEN : META_HEADER_LEN + head.meta_comp_size]
    compare("metadata", head.checksum, raw, bytes(view[META_HEADER_LEN + head.max_meta_size : head.section_nbytes]))
    try:
        if head.codec == _ZLIB:
            raw = zlib.decompressobj().decompress(raw, head.meta_size + 1)
        _need(len(raw) == head.meta_size, f"{head.meta_size} bytes of metadata", str(len(raw)))
        return json.loads(bytes(raw))
    except (zlib.error, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FormatError(f"expected metadata in JSON, found others: {error}") from error


def pack_metadata(metadata: Any, *, checksum: int = 1, room: int | None = None) -> bytes:
    """Return a section of metadata.

    Parameters
    ----------
    metadata : object
        What JSON takes.
    checksum : int, default 1
        Position in `CHECKSUMS`.
    room : int, optional
        Bytes to reserve; ten times the size if left out.

    Raises
    ------
    LimitError
        The metadata do not fit into `room`.
    TypeError, ValueError
        JSON cannot take them.
    """
    raw = json.dumps(metadata, separators=(",", ":")).encode()
    stored, codec = zlib.compress(raw, _META_LEVEL), _ZLIB
    if len(stored) >= len(raw):
        stored, codec = raw, _NO_CODEC
    if room is None:
        room = _ROOM * len(raw)
    if len(stored) > room or max(len(raw), room) > config.limits.metadata_nbytes:
        raise LimitError(f"metadata of {len(stored)} bytes do not fit into {room}")
    head = _META.pack(_JSON, 0, checksum, codec, _META_LEVEL, len(raw), room, len(stored), b"")
    return b"".join((head, stored, bytes(room - len(stored)), digest(checksum, stored)))


class Description(NamedTuple):
    """What the metadata say about an array. An extent of -1 follows from the number of bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Order

    @property
    def axis(self) -> int:
        """The axis along which neighbours are furthest apart: the one that grows."""
        return 0 if self.order == "C" else len(self.shape) - 1

    @property
    def row_nbytes(self) -> int:
        """Bytes of one step along `axis`."""
        rest = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return int(np.prod(rest, dtype=object)) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def describe(about: Description) -> dict[str, Any]:
    """Return the metadata of an array.

    Raises
    ------
    UnsupportedError
        The items are Python objects.
    ValueError
        The items have no size, or a type that cannot be written down.
    LimitError
        The text of the type is longer than `b2array.config.limits` allows.
    """
    dtype = about.dtype
    if dtype.hasobject:
        raise UnsupportedError(f"{dtype}: Python objects would have to be pickled, which is not safe to read")
    if not dtype.itemsize:
        raise ValueError(f"items of {dtype} have no size")
    descr = dtype.descr if dtype.names is not None else dtype.str
    if _dtype_of(descr) != dtype:
        raise ValueError(f"a Bloscpack file cannot tell the type {dtype}")
    text = repr(descr)
    if len(text) > config.limits.dtype_text:
        raise LimitError(f"the type's text has {len(text)} bytes, at most {config.limits.dtype_text} are allowed")
    return {"dtype": text, "shape": list(about.shape), "order": about.order, "container": "numpy"}


def description(metadata: Any) -> Description | None:
    """Find out from metadata what array a file holds; None if it holds bytes.

    Raises
    ------
    FormatError
        Type, shape or order cannot be.
    UnsupportedError
        The items are pickled Python objects.
    """
    if not isinstance(metadata, Mapping) or metadata.get("container") != "numpy":
        return None
    missing = [key for key in ARRAY_KEYS if key not in metadata]
    _need(not missing, f"metadata with {', '.join(ARRAY_KEYS)}", f"none of {', '.join(missing)}")
    shape, order = metadata["shape"], metadata["order"]
    _need(order in ("C", "F"), "order C or F", repr(order)[:80])
    valid = isinstance(shape, list) and len(shape) <= 64 and all(type(n) is int and -1 <= n < 2**63 for n in shape)
    _need(valid and shape.count(-1) <= 1, "a shape of at most 64 extents", repr(shape)[:80])
    about = Description(_read_dtype(metadata["dtype"]), tuple(shape), cast(Order, order))
    _need(-1 not in shape or shape[about.axis] == -1, "an unknown extent along the axis that grows", repr(shape)[:80])
    return about


def _read_dtype(stored: Any) -> np.dtype[Any]:
    """Read the type in any of the ways in which it was ever written.

    Until Bloscpack 0.7.2 the text stood bare, and a list of fields as one of JSON.
    """
    descr = stored
    if isinstance(stored, str):
        limit = config.limits.dtype_text
        _need(len(stored) <= limit, f"at most {limit} bytes of type text", str(len(stored)))
        try:
            descr = ast.literal_eval(stored)
        except _NOT_A_DTYPE:
            descr = stored
    if isinstance(descr, str):
        return parse_dtype(descr)
    try:
        dtype = _dtype_of(_tuples(descr))
    except _NOT_A_DTYPE:
        raise FormatError(f"expected a type, found {str(stored)[:80]!r}") from None
    if dtype.hasobject:
        raise UnsupportedError("the items are pickled Python objects, which are not safe to read")
    _need(dtype.itemsize > 0, "items with a size", str(dtype)[:80])
    return dtype


def _dtype_of(descr: Any) -> np.dtype[Any]:
    # Unlike numpy.dtype, it knows that fields without a name are the gaps of an aligned type.
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    return dtype


def _tuples(descr: Any) -> Any:
    """Turn lists in the place of fields, and of shapes inside them, into tuples."""
    if not isinstance(descr, list):
        return descr
    if not descr:
        return ()
    if isinstance(descr[0], list | tuple):
        return [_tuples(field) for field in descr]
    return tuple(_tuples(part) for part in descr)


def _need(ok: bool, expected: str, found: str) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {found}")
