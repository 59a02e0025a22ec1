"""The index of a frame: the position of each stored chunk, or the special value of a chunk that is not stored.

Sources: "Blosc2 Contiguous Frame Format" (section Chunks) and "Blosc2 Sparse Frame Format" of the Blosc2 documentation.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import decode, encode
from b2array.codec.chunk import Context
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import CParams
from b2array.config import HEADER_LEN
from b2array.errors import FormatError

__all__ = [
    "NO_OFFSETS",
    "SPECIALS",
    "SPECIAL_OFFSETS",
    "check",
    "chunk_name",
    "chunk_number",
    "least_after",
    "pack",
    "sparse_cbytes",
    "special_offset",
    "unpack",
]

SPECIAL_OFFSETS = {
    Special.ZEROS: -0x7F << 56,
    Special.NAN: -0x7E << 56,
    Special.UNINIT: -0x7C << 56,
}
"""The entry of a chunk that is not stored: 0x81, 0x82 or 0x84 in the top byte, otherwise zeros."""

SPECIALS = {offset: special for special, offset in SPECIAL_OFFSETS.items()}
"""The reverse of `SPECIAL_OFFSETS`."""

_CHUNK_NAME = re.compile("([0-9A-F]{8})[.]chunk")
# Made from bytes, so that nobody can write to the array.
NO_OFFSETS = np.frombuffer(b"", np.int64)
# The block size of indexes by the C library. Its readers read single entries, so an item must have 8 bytes.
_BLOCKSIZE = 16384
_CHECKED_AT_ONCE = 2**18
"""The number of entries to compare in one step, so that temporary copies remain small."""
_CPARAMS = CParams("blosclz", filters=("shuffle",), splitmode="never")


def unpack(buf: Buffer, *, nbytes: int, chunksize: int, context: Context) -> NDArray[np.int64]:
    """Read the index of a frame from its chunk. `buf` may have more bytes after the chunk.

    `nbytes` and `chunksize` are fields of the header: the uncompressed sizes of all chunks together and of one chunk.
    `context` has the decoding parameters from the header.
    """
    if not nbytes:
        return NO_OFFSETS
    head = ChunkHeader.unpack(buf)
    nchunks = -(-nbytes // chunksize) if chunksize else 0
    if chunksize and head.nbytes != 8 * nchunks:
        raise FormatError(f"expected an index of {nchunks} chunks, found {head.nbytes} bytes")
    if head.nbytes % 8 or not head.nbytes:
        raise FormatError(f"expected an index of 8 bytes a chunk, found {head.nbytes} bytes")
    limit = config.limits.index_nbytes
    if head.nbytes > limit:
        raise FormatError(
            f"expected an index of at most {limit} bytes (config.limits.index_nbytes), found {head.nbytes}"
        )
    if head.cbytes > len(buf):
        raise FormatError(f"expected an index chunk that ends before the trailer, found one of {head.cbytes} bytes")
    value_len = head.cbytes - head.header_len
    repeats_offset = head.special == Special.VALUE and value_len == 8
    if repeats_offset or head.special == Special.ZEROS:
        # In a new array of zeros all entries are equal: a broadcast array of them takes almost no memory.
        value = 0
        if repeats_offset:
            (value,) = struct.unpack_from("<q", buf, head.header_len)
        offsets = np.broadcast_to(np.int64(value), (head.nbytes // 8,))
    else:
        if head.special not in (Special.NONE, Special.VALUE):
            raise FormatError(f"expected offsets in the index, found special value {head.special.name}")
        data: Buffer | NDArray[np.uint8]
        # Most small arrays have an uncompressed index, and are opened faster without a decoder.
        if head.memcpyed and not head.lazy:
            data = memoryview(buf)[head.header_len : head.cbytes]
        else:
            data = decode.decode(memoryview(buf)[: head.cbytes], context=context)
        offsets = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
        if 8 * len(offsets) != head.nbytes:
            raise FormatError(f"expected {head.nbytes} bytes of offsets, found {8 * len(offsets)}")
    offsets.flags.writeable = False
    return offsets


def check(offsets: NDArray[np.int64], cbytes: int | None) -> None:
    """Raise FormatError if an entry points to a place outside the chunks.

    `cbytes` is the distance from the end of the header to the index; None in a sparse frame.
    """
    # The index of a new array is one broadcast entry.
    distinct = offsets[:1] if offsets.strides == (0,) else offsets
    for start in range(0, len(distinct), _CHECKED_AT_ONCE):
        part = distinct[start : start + _CHECKED_AT_ONCE]
        below = part[part < 0]
        if not below.size:
            continue
        wrong = below[~np.isin(below, list(SPECIALS))]
        if wrong.size:
            raise FormatError(f"expected places or special values in the index, found {wrong[:1].view(np.uint64)}")
    highest = 2**32 - 1 if cbytes is None else cbytes - HEADER_LEN
    top = int(distinct.max(initial=-1))
    if top >= 0 and top > highest:
        what = "file numbers" if cbytes is None else "offsets"
        raise FormatError(f"expected {what} up to {highest} in the index, found {top}")


def least_after(offsets: NDArray[np.int64], entry: int) -> int | None:
    """Return the smallest entry that is larger than `entry`, or None. This makes no copy of the whole index."""
    least: int | None = None
    for start in range(0, len(offsets), _CHECKED_AT_ONCE):
        part = offsets[start : start + _CHECKED_AT_ONCE]
        larger = part[part > entry]
        if larger.size:
            lowest = int(larger.min())
            least = lowest if least is None else min(least, lowest)
    return least


def pack(offsets: NDArray[np.int64]) -> bytes:
    """Pack an index as a chunk; return no bytes if there are no chunks."""
    if not offsets.size:
        return b""
    data = np.ascontiguousarray(offsets, "<i8")
    nbytes = 8 * offsets.size
    blocksize = min(nbytes, _BLOCKSIZE)
    # A new array of zeros has an index of 40 bytes for any number of chunks.
    if data[0] < 0 and (data == data[0]).all():
        return encode.special_chunk(data[:1].tobytes(), nbytes, typesize=8, blocksize=blocksize)
    return encode.encode(data, typesize=8, blocksize=blocksize, cparams=_CPARAMS)


def special_offset(special: Special) -> int:
    """Return the index entry of a chunk of zeros, NaN or uninitialised values; ValueError for all others."""
    if special not in SPECIAL_OFFSETS:
        raise ValueError(f"no index entry stands for {special!r}")
    return SPECIAL_OFFSETS[special]


def sparse_cbytes(cbytes: int, offsets: NDArray[np.int64]) -> int:
    """Return the `cbytes` of a sparse frame: the size `cbytes` of its chunks, plus headroom for the highest number.

    The C library refuses to open a frame with a file number larger than this field minus 32. When it rewrites a chunk,
    it subtracts the bytes that are saved from the field.
    """
    highest = int(offsets.max(initial=-1))
    if highest < 0:
        return cbytes
    return cbytes + highest + HEADER_LEN


def chunk_name(number: int) -> str:
    """Return the name of file `number` of a sparse frame, which contains one chunk.

    Examples
    --------
    >>> chunk_name(10)
    '0000000A.chunk'
    """
    if not 0 <= number < 2**32:
        raise ValueError(f"file numbers are 0 to 2**32 - 1, not {number}")
    return f"{number:08X}.chunk"


def chunk_number(name: str) -> int | None:
    """Return the number of the chunk file with this name, or None if chunk files have other names.

    Examples
    --------
    >>> chunk_number("0000000A.chunk"), chunk_number("chunks.b2frame")
    (10, None)
    """
    match = _CHUNK_NAME.fullmatch(name)
    return int(match[1], 16) if match else None
