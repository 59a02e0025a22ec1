"""The header and the metadata of a Bloscpack file, which precede the chunks, and the checksums.

Source: "RFC for the new Bloscpack Header" (versions 1 and 2), and the files that Bloscpack 0.3 to 0.16 write (version
3: metadata, and free slots for the offsets of chunks that are appended later). All integers are little-endian.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_type_hints

import numpy as np

from b2array import config
from b2array.buffers import Buffer
from b2array.codec.chunk_header import HeaderField
from b2array.errors import ChecksumError, FormatError, LimitError, UnsupportedError
from b2array.format.dtypes import parse_dtype

__all__ = [
    "CHECKSUMS",
    "HEADER_FIELDS",
    "META_FIELDS",
    "META_HEADER_LEN",
    "VERSION1_FIELDS",
    "Description",
    "FileHeader",
    "MetaHeader",
    "Order",
    "checksum_id",
    "compare",
    "describe",
    "description",
    "digest",
    "digest_size",
    "pack_metadata",
    "repack_metadata",
    "unpack_metadata",
]

MAGIC = b"blpk"
ARRAY_KEYS = ("dtype", "shape", "order", "container")

Order = Literal["C", "F"]


# Checksums.

CHECKSUMS = ("none", "adler32", "crc32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512")
"""The names of the checksums. A file stores a position in this tuple."""

_OF_4_BYTES = {1: zlib.adler32, 2: zlib.crc32}


def checksum_id(name: str | None) -> int:
    """Return the position of a checksum in `CHECKSUMS`; ValueError if its name is unknown."""
    text = "none" if name is None else str(name).lower()
    if text not in CHECKSUMS:
        raise ValueError(f"checksum must be one of {', '.join(CHECKSUMS)}, not {name!r}")
    return CHECKSUMS.index(text)


def digest(number: int, data: Buffer) -> bytes:
    """Return the checksum that follows `data` in a file.

    Examples
    --------
    >>> digest(checksum_id("adler32"), b"b2array").hex()
    'b4021f0a'
    """
    if number in _OF_4_BYTES:
        return _OF_4_BYTES[number](data).to_bytes(4, "little")
    if not number:
        return b""
    # The checksum detects damage, not attacks, so systems that forbid MD5 for security may compute it.
    return hashlib.new(CHECKSUMS[number], data, usedforsecurity=False).digest()


_SIZES = tuple(len(digest(number, b"")) for number in range(len(CHECKSUMS)))


def digest_size(number: int) -> int:
    """Return the length of a checksum in bytes."""
    return _SIZES[number]


def compare(what: str, number: int, data: Buffer, stored: Buffer) -> None:
    """Raise ChecksumError unless `stored` is the checksum of `data`."""
    expected = digest(number, data)
    if expected != stored:
        name = CHECKSUMS[number]
        raise ChecksumError(f"{what}: expected {name} {bytes(stored).hex()}, found bytes with {expected.hex()}")


def _check_checksum(number: int) -> None:
    if number >= len(CHECKSUMS):
        raise FormatError(f"expected a checksum of 0 to {len(CHECKSUMS) - 1}, found {number}")


# The header.

_START = (
    HeaderField("magic", "4s", "marks a Bloscpack file"),
    HeaderField("version", "B", "version of the format"),
)
_CHECKSUM_NUMBERS = ", ".join(f"{number}: {name}" for number, name in enumerate(CHECKSUMS))
_NCHUNKS = HeaderField("nchunks", "q", "number of chunks, -1: unknown")

VERSION1_FIELDS = (*_START, HeaderField("reserved", "3s", ""), _NCHUNKS)
"""The fields of a version 1 header in order, without gaps."""

HEADER_FIELDS = (
    *_START,
    HeaderField("options", "B", "bit 0: offsets, bit 1: metadata"),
    HeaderField("checksum", "B", f"behind each chunk: {_CHECKSUM_NUMBERS}"),
    HeaderField("typesize", "B", "bytes of an item"),
    HeaderField("chunk-size", "i", "bytes of a chunk before compression, -1: unknown"),
    HeaderField("last-chunk", "i", "bytes of the last chunk, -1: unknown"),
    _NCHUNKS,
    HeaderField("max_app_chunks", "q", "free slots for the offsets of further chunks; version 2: reserved"),
)
"""The fields of a version 2 or 3 header."""


def _struct(fields: Iterable[HeaderField]) -> struct.Struct:
    return struct.Struct("<" + "".join(field.format for field in fields))


_VERSION1 = _struct(VERSION1_FIELDS)
_HEADER = _struct(HEADER_FIELDS)
_OFFSETS = 0x01
_METADATA = 0x02


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 16 (version 1) or 32 bytes of a file.

    Sizes are in bytes, before compression; -1 means unknown. `checksum` is a position in `CHECKSUMS`. `max_app_chunks`
    is the number of free slots for offsets of further chunks.
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
        """Read a header from the first bytes of a file."""
        magic = bytes(buf[: len(MAGIC)])
        if magic != MAGIC:
            raise FormatError(f"expected a Bloscpack file that begins with {MAGIC!r}, found {magic!r}")
        if len(buf) < _VERSION1.size:
            raise FormatError(f"expected a header of {_VERSION1.size} bytes or more, found {len(buf)} bytes")
        version = buf[len(MAGIC)]
        if version not in (1, 2, 3):
            raise UnsupportedError(f"version {version} of the Bloscpack format: only 1, 2 and 3 are known")
        options = 0
        if version == 1:
            *_, nchunks = _VERSION1.unpack_from(buf)
            self = cls(version, nchunks=nchunks)
        elif len(buf) < _HEADER.size:
            raise FormatError(f"expected a header of {_HEADER.size} bytes, found {len(buf)} bytes")
        else:
            _, _, options, checksum, typesize, chunk_size, last_chunk, nchunks, more = _HEADER.unpack_from(buf)
            self = cls(
                version,
                offsets=bool(options & _OFFSETS),
                metadata=bool(options & _METADATA),
                checksum=checksum,
                typesize=typesize,
                chunk_size=chunk_size,
                last_chunk=last_chunk,
                nchunks=nchunks,
                # In version 2 these bytes are reserved.
                max_app_chunks=more if version == 3 else 0,
            )
        known_options = _OFFSETS | _METADATA if version == 3 else _OFFSETS
        if options & ~known_options:
            raise UnsupportedError(f"unknown options {options:#04x} of a Bloscpack file of version {version}")
        _check_checksum(self.checksum)
        sizes = {"chunk-size": self.chunk_size, "last-chunk": self.last_chunk, "nchunks": self.nchunks}
        for name, size in sizes.items():
            if size < -1:
                raise FormatError(f"expected {name} of -1 or more, found {size}")
        if 0 <= self.chunk_size < self.last_chunk:
            raise FormatError(f"expected last-chunk of at most {self.chunk_size}, found {self.last_chunk}")
        if not 0 <= self.max_app_chunks < 2**60:
            raise FormatError(f"expected max_app_chunks of 0 to 2**60, found {self.max_app_chunks}")
        return self

    def pack(self) -> bytes:
        """Return the bytes of a version 2 or 3 header."""
        options = _OFFSETS * self.offsets | _METADATA * self.metadata
        return _HEADER.pack(
            MAGIC,
            self.version,
            options,
            self.checksum,
            self.typesize,
            self.chunk_size,
            self.last_chunk,
            self.nchunks,
            self.max_app_chunks,
        )

    @property
    def length(self) -> int:
        """Length of the header in bytes."""
        return _VERSION1.size if self.version == 1 else _HEADER.size

    @property
    def nbytes(self) -> int:
        """Total uncompressed size of all chunks, in bytes; -1 if unknown."""
        if self.nchunks == 0:
            return 0
        if min(self.chunk_size, self.last_chunk, self.nchunks) < 0:
            return -1
        return self.chunk_size * (self.nchunks - 1) + self.last_chunk


# The metadata.

_JSON = b"JSON"
_NO_CODEC = 0
_ZLIB = 1
_LEVEL = 6
_RESERVE = 10
"""The size of the space reserved for metadata, as a multiple of its size, so that it can change in place."""


class MetaHeader(NamedTuple):
    """The header of the metadata. Each field has a struct format and a meaning."""

    magic: Annotated[bytes, "8s", "how the metadata is written"]
    options: Annotated[int, "B", "none are known"]
    checksum: Annotated[int, "B", "of the metadata, as of chunks"]
    codec: Annotated[int, "B", "of the metadata, 0: none, 1: zlib"]
    level: Annotated[int, "B", "of the codec"]
    meta_size: Annotated[int, "I", "bytes of the metadata before compression"]
    max_meta_size: Annotated[int, "I", "bytes reserved for the metadata"]
    meta_comp_size: Annotated[int, "I", "bytes of the metadata as it is stored"]
    user_codec: Annotated[bytes, "8s", "name of another codec"]

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read the header of JSON metadata, plain or compressed by zlib."""
        if len(buf) < META_HEADER_LEN:
            raise FormatError(f"expected a metadata header of {META_HEADER_LEN} bytes, found {len(buf)} bytes")
        self = cls(*_META.unpack_from(buf))
        kind = self.magic.rstrip(b"\0")
        has_known_codec = self.codec in (_NO_CODEC, _ZLIB) and not any(self.user_codec)
        if kind != _JSON or self.options or not has_known_codec:
            codec = f"codec {self.codec} {bytes(self.user_codec).rstrip(bytes(1))!r}"
            raise UnsupportedError(
                f"metadata of kind {kind!r}, options {self.options}, {codec}: only JSON is known, plain or by zlib"
            )
        _check_checksum(self.checksum)
        if self.meta_comp_size > self.max_meta_size:
            raise FormatError(f"expected at most {self.max_meta_size} bytes, found {self.meta_comp_size}")
        limit = config.limits.metadata_nbytes
        largest = max(self.meta_size, self.max_meta_size)
        if largest > limit:
            raise FormatError(f"expected at most {limit} bytes of metadata, found {largest}")
        return self

    @property
    def section_nbytes(self) -> int:
        """Total size in bytes of this header, the metadata, the reserved bytes, and the checksum."""
        return META_HEADER_LEN + self.max_meta_size + digest_size(self.checksum)


_META_HINTS = get_type_hints(MetaHeader, include_extras=True)
META_FIELDS = tuple(HeaderField(name, *hint.__metadata__) for name, hint in _META_HINTS.items())
"""The fields of the header of the metadata."""

_META = _struct(META_FIELDS)
META_HEADER_LEN = _META.size


def unpack_metadata(head: MetaHeader, section: Buffer) -> Any:
    """Read metadata from its section, which begins with `head`."""
    view = memoryview(section)
    raw: Buffer = view[META_HEADER_LEN : META_HEADER_LEN + head.meta_comp_size]
    stored = view[META_HEADER_LEN + head.max_meta_size : head.section_nbytes]
    compare("metadata", head.checksum, raw, bytes(stored))
    try:
        if head.codec == _ZLIB:
            # One byte more than expected proves that the data are too long, without taking more memory.
            raw = zlib.decompressobj().decompress(raw, head.meta_size + 1)
        metadata = json.loads(bytes(raw)) if len(raw) == head.meta_size else None
    except (zlib.error, RecursionError, ValueError) as error:
        raise FormatError(f"expected metadata in JSON, found others: {error}") from error
    if len(raw) != head.meta_size:
        raise FormatError(f"expected {head.meta_size} bytes of metadata, found {len(raw)}")
    return metadata


def pack_metadata(metadata: Any, *, checksum: int = 1, room: int | None = None) -> bytes:
    """Return a section of metadata, with `room` bytes reserved for it; by default ten times its size."""
    raw = json.dumps(metadata, separators=(",", ":")).encode()
    stored = zlib.compress(raw, _LEVEL)
    codec = _ZLIB
    if len(stored) >= len(raw):
        stored = raw
        codec = _NO_CODEC
    if room is None:
        room = _RESERVE * len(raw)
    if len(stored) > room or max(len(raw), room) > config.limits.metadata_nbytes:
        raise LimitError(f"metadata of {len(stored)} bytes do not fit into {room}")
    head = _META.pack(_JSON, 0, checksum, codec, _LEVEL, len(raw), room, len(stored), b"")
    reserve = bytes(room - len(stored))
    return b"".join((head, stored, reserve, digest(checksum, stored)))


def repack_metadata(section: Buffer, metadata: Any) -> bytes:
    """Return a section for changed metadata, with the reserved size and the kind of checksum of the old section."""
    old = MetaHeader.unpack(section)
    return pack_metadata(metadata, checksum=old.checksum, room=old.max_meta_size)


# Arrays.

_NOT_A_DTYPE = (TypeError, ValueError, SyntaxError, LookupError, ArithmeticError, MemoryError, RecursionError)
"""The errors of `ast.literal_eval` and NumPy for text and lists that do not describe a type."""


class Description(NamedTuple):
    """The description of an array in the metadata. An extent of -1 is determined by the number of bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Order

    @property
    def axis(self) -> int:
        """The axis along which rows are stored and appended: the first axis, with order "F" the last axis."""
        return 0 if self.order == "C" else len(self.shape) - 1

    @property
    def row_nbytes(self) -> int:
        """Size in bytes of one row, which is one step along `axis`."""
        return self.with_rows(1).nbytes

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def with_rows(self, rows: int) -> Description:
        """Return the same description with another number of rows.

        Examples
        --------
        >>> Description(np.dtype("i4"), (-1, 3), "C").with_rows(5).shape
        (5, 3)
        """
        # An array without axes counts as one row.
        before = self.shape[: self.axis]
        after = self.shape[self.axis + 1 :]
        return self._replace(shape=(*before, rows, *after))


def describe(about: Description) -> dict[str, Any]:
    """Return the metadata of an array; raise an error if a file cannot express the type of its items."""
    dtype = about.dtype
    if dtype.hasobject:
        raise UnsupportedError(f"{dtype}: Python objects would have to be pickled, which is not safe to read")
    if not dtype.itemsize:
        raise ValueError(f"items of {dtype} have no size")
    descr = dtype.descr if dtype.names is not None else dtype.str
    if _dtype_of(descr) != dtype:
        raise ValueError(f"a Bloscpack file cannot express the type {dtype}")
    text = repr(descr)
    if len(text) > config.limits.dtype_text:
        raise LimitError(f"the type's text has {len(text)} bytes, at most {config.limits.dtype_text} are allowed")
    return {"dtype": text, "shape": list(about.shape), "order": about.order, "container": "numpy"}


def description(metadata: Any) -> Description | None:
    """Return the description of the array from the metadata of a file; None if the file holds bytes."""
    if not isinstance(metadata, Mapping) or metadata.get("container") != "numpy":
        return None
    missing = [key for key in ARRAY_KEYS if key not in metadata]
    if missing:
        raise FormatError(f"expected metadata with {', '.join(ARRAY_KEYS)}, found none of {', '.join(missing)}")
    shape = metadata["shape"]
    order = metadata["order"]
    if order not in ("C", "F"):
        raise FormatError(f"expected order C or F, found {str(order)[:80]!r}")
    if not isinstance(shape, list) or len(shape) > 64 or not all(map(_is_extent, shape)):
        raise FormatError(f"expected a shape of at most 64 extents, found {repr(shape)[:80]}")
    about = Description(_read_dtype(metadata["dtype"]), tuple(shape), cast(Order, order))
    if -1 in about.with_rows(0).shape:
        raise FormatError(f"expected an unknown extent only along the axis that grows, found {repr(shape)[:80]}")
    return about


def _is_extent(n: Any) -> bool:
    return type(n) is int and -1 <= n < 2**63


def _read_dtype(stored: Any) -> np.dtype[Any]:
    """Read a type in any form that a version of Bloscpack has written.

    Before Bloscpack 0.7.2 the text was not quoted, and fields were a list of JSON.
    """
    descr = stored
    if isinstance(stored, str):
        limit = config.limits.dtype_text
        if len(stored) > limit:
            raise FormatError(f"expected at most {limit} bytes of type text, found {len(stored)}")
        # Text without quotes, from old versions, is not changed.
        with suppress(*_NOT_A_DTYPE):
            descr = ast.literal_eval(stored)
    if isinstance(descr, str):
        return parse_dtype(descr)
    try:
        dtype = _dtype_of(_tuples(descr))
    except _NOT_A_DTYPE:
        raise FormatError(f"expected a type, found {str(stored)[:80]!r}") from None
    if dtype.hasobject:
        raise UnsupportedError("the items are pickled Python objects, which are not safe to read")
    if not dtype.itemsize:
        raise FormatError(f"expected items with a size, found {str(dtype)[:80]}")
    return dtype


def _dtype_of(descr: Any) -> np.dtype[Any]:
    # Unlike numpy.dtype, this function takes fields without a name for the gaps of an aligned type.
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    return dtype


def _tuples(descr: Any) -> Any:
    """Convert the lists that stand for fields, and for shapes inside fields, to tuples."""
    if not isinstance(descr, list):
        return descr
    parts = [_tuples(part) for part in descr]
    is_list_of_fields = bool(descr) and isinstance(descr[0], list | tuple)
    return parts if is_list_of_fields else tuple(parts)
