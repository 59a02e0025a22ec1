"""The head of a chunk (header, block starts, dictionary), the bytes of a chunk in memory, and chunks without streams.

Source: "Blosc Chunk Format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.chunk_header import MAX_DICT_NBYTES, NAN_BYTES, ChunkHeader, FilterId, Special
from b2array.errors import FormatError, UnsupportedError

__all__ = [
    "NO_CONTEXT",
    "ChunkHead",
    "Context",
    "Stored",
    "blocks_to_decode",
    "extents",
    "fill",
    "head_nbytes",
    "unpack_head",
]

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_INT32 = struct.Struct("<i")
_NO_BLOCKS: Int64Array = np.empty(0, np.int64)
_RAW_BLOCKS = 2**18
"""The maximum number of blocks in a raw chunk, which has no block starts that prove the number."""


@dataclass(frozen=True, slots=True)
class Context:
    """Properties of chunks that are stored in the frame but not in the chunks.

    `codec` is the compcode for chunks that defer to their frame, `codec_meta` the parameter byte of that codec.
    `blockshape` is the shape in items of a block, for codecs and filters that use dimensions.
    """

    codec: int | None = None
    codec_meta: int = 0
    blockshape: tuple[int, ...] | None = None


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """A chunk without its blocks: header, dictionary, starts of the blocks, and upper bounds for their ends.

    Positions are in bytes from the start of the chunk; special chunks have none. `value` is the item in a chunk of
    one repeated value. `b2array.codec.decode` keeps its plans in `plans`.
    """

    header: ChunkHeader
    starts: Int64Array
    stops: Int64Array
    dictionary: bytes | None = None
    value: bytes = b""
    plans: dict[tuple[Context, bool], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        starts_nbytes = 4 * len(self.starts) if self.header.has_streams else 0
        dictionary_nbytes = 0 if self.dictionary is None else 4 + len(self.dictionary)
        return self.header.header_len + len(self.value) + starts_nbytes + dictionary_nbytes


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of a chunk in memory: a region, and the position of each loaded block in the region.

    Decoding may overwrite `margin` bytes after each block, together with the block, which can then be decoded only
    once.
    """

    head: ChunkHead
    region: memoryview
    starts: Int64Array
    stops: Int64Array
    margin: int = 0

    @classmethod
    def whole(cls, buf: Buffer, head: ChunkHead | None = None) -> Stored:
        """Return the chunk whose bytes are all in `buf`; FormatError if `buf` is shorter than the chunk."""
        head = unpack_head(buf) if head is None else head
        cbytes = head.header.cbytes
        if len(buf) < cbytes:
            raise FormatError(f"expected a chunk of {cbytes} bytes, found {len(buf)}")
        region = memoryview(buf).cast("B")[:cbytes]
        return cls(head, region, head.starts, head.stops)


def head_nbytes(buf: Buffer, header: ChunkHeader | None = None) -> int:
    """Return the number of bytes of a chunk that `unpack_head` needs, given the first 32 (at least 16) bytes.

    The size of a dictionary is stored after the block starts; if `buf` ends before it, the largest size is assumed.
    """
    header = ChunkHeader.unpack(buf) if header is None else header
    if header.special == Special.VALUE:
        return header.cbytes
    if not header.has_streams:
        return header.header_len
    nbytes = header.header_len + 4 * header.nblocks
    if nbytes > header.cbytes:
        raise FormatError(f"expected {header.nblocks} block starts in a chunk of {header.cbytes} bytes, found no room")
    if not header.has_dict:
        return nbytes
    if len(buf) < nbytes + 4:
        return min(nbytes + 4 + MAX_DICT_NBYTES, header.cbytes)
    (size,) = _INT32.unpack_from(buf, nbytes)
    if not 0 < size <= min(MAX_DICT_NBYTES, header.cbytes - nbytes - 4):
        raise FormatError(f"expected a dictionary of 1 to {MAX_DICT_NBYTES} bytes within the chunk, found {size}")
    return nbytes + 4 + int(size)


def unpack_head(buf: Buffer, header: ChunkHeader | None = None) -> ChunkHead:
    """Read header, block starts and dictionary from at least the first `head_nbytes` bytes of a chunk."""
    header = ChunkHeader.unpack(buf) if header is None else header
    if header.lazy:
        raise UnsupportedError("a lazy chunk can only be decoded with the frame that it came from")
    nbytes = head_nbytes(buf, header)
    if len(buf) < nbytes:
        raise FormatError(f"expected {nbytes} bytes of chunk header and block starts, found {len(buf)}")
    header_len = header.header_len
    view = memoryview(buf)
    if header.special or not header.nbytes:
        value = b""
        if header.special == Special.VALUE:
            value = bytes(view[header_len:nbytes])
        return ChunkHead(header, _NO_BLOCKS, _NO_BLOCKS, None, value)
    if header.memcpyed:
        # Raw chunks have no block starts: each block is where it was in the data.
        if header.nblocks > max(len(buf), _RAW_BLOCKS):
            raise FormatError(f"expected at most {_RAW_BLOCKS} blocks stored raw, found {header.nblocks}")
        numbers = np.arange(header.nblocks, dtype=np.int64)
        starts = header_len + header.block_nbytes * numbers
        stops = np.minimum(starts + header.block_nbytes, header.cbytes)
        return ChunkHead(header, starts, stops)
    starts = np.frombuffer(buf, "<i4", header.nblocks, header_len).astype(np.int64)
    dictionary = None
    if header.has_dict:
        # The dictionary follows the block starts and the size of the dictionary.
        start = header_len + 4 * header.nblocks + 4
        dictionary = bytes(view[start:nbytes])
    last = header.cbytes - 4
    if int(starts.min()) < nbytes or int(starts.max()) > last:
        is_wrong = (starts < nbytes) | (starts > last)
        raise FormatError(f"expected block starts of {nbytes} to {last}, found {int(starts[is_wrong][0])}")
    # Blocks of variable length end where the next one begins; others may be in any order.
    if header.vl_blocks and (np.diff(starts) <= 0).any():
        raise FormatError("expected increasing starts of variable-length blocks, found others")
    return ChunkHead(header, starts, extents(starts, header.cbytes), dictionary)


def blocks_to_decode(head: ChunkHead, numbers: Sequence[int] | Int64Array) -> Sequence[int] | Int64Array:
    """Return the blocks that are needed to decode the blocks `numbers`: with DELTA, also the first block."""
    has_delta = FilterId.DELTA in head.header.filters and head.header.has_streams
    if has_delta and 0 not in numbers:
        return (0, *numbers)
    return numbers


def fill(head: ChunkHead, out: Bytes, numbers: Sequence[int] | Int64Array) -> None:
    """Fill `out` with the blocks `numbers` of a special chunk."""
    header = head.header
    # Items without a value are also zeros: C-Blosc2 returns what was in memory.
    if header.special not in (Special.VALUE, Special.NAN):
        out[:] = 0
        return
    item = head.value if header.special == Special.VALUE else NAN_BYTES[header.typesize]
    whole_items = header.block_nbytes % len(item) == 0
    # Blocks without a whole number of items begin at different bytes of the item, unless they are consecutive.
    together = whole_items or isinstance(numbers, range)
    step = len(out) if together else header.block_nbytes
    for i, number in enumerate(numbers[:1] if together else numbers):
        part = out[i * step : (i + 1) * step]
        phase = number * header.block_nbytes % len(item)
        turned = np.frombuffer(item[phase:] + item[:phase], np.uint8)
        border = len(part) - len(part) % len(item)
        part[:border].reshape(-1, len(item))[:] = turned
        part[border:] = turned[: len(part) - border]


def extents(starts: Int64Array, end: int) -> Int64Array:
    """Find the end of each part of an object of `end` bytes, given the first byte of each part.

    Parts may be in any order; equal starts mean the same part. A part ends at the next larger start below `end`, or at
    `end`. A part that starts at or after `end` also ends at `end`.

    Examples
    --------
    >>> extents(np.array([40, 10, 40, 20]), end=100)
    array([100,  20, 100,  40])
    """
    if not len(starts):
        return starts
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[-1] = end
    # Most chunks have their blocks in order, and need no sort.
    if (stops > starts).all():
        return stops
    ordered = np.sort(starts)
    bounds = np.append(ordered, end)
    following: Int64Array = bounds[np.searchsorted(ordered, starts, side="right")]
    np.minimum(following, end, out=following)
    return following
