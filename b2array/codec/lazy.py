"""Lazy chunks: the head of a chunk, and a trailer that says where in a frame its blocks are.

Source: "Blosc Chunk Format", section Trailer, and the chunks that the C library returns for frames in files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from b2array.buffers import Buffer
from b2array.codec import chunk
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import BLOSC2_FLAG_DICT, BLOSC2_FLAG_LAZY, ChunkHeader
from b2array.errors import FormatError

__all__ = ["Lazy", "pack", "unpack"]

_TRAILER = struct.Struct("<iq")


@dataclass(frozen=True, slots=True)
class Lazy:
    """A lazy chunk.

    `nchunk` is the number of the chunk, and `offset` its position in bytes from the start of the frame; in a sparse
    frame both are the number of the chunk's file. `sizes` are the compressed sizes in bytes of the blocks, in order.
    """

    head: ChunkHead
    nchunk: int
    offset: int
    sizes: tuple[int, ...]


def pack(head: Buffer, nchunk: int, offset: int) -> bytes:
    """Make a lazy chunk from the head of a chunk; see `Lazy` for the parameters.

    A special chunk has no blocks and is returned as it is.
    """
    parsed = chunk.unpack_head(head)
    header = parsed.header
    if header.special:
        return bytes(memoryview(head)[: header.cbytes])
    packed = replace(header, blosc2_flags=header.blosc2_flags | BLOSC2_FLAG_LAZY).pack()
    starts = bytes(memoryview(head)[len(packed) : len(packed) + 4 * header.nblocks])
    if header.memcpyed:
        starts = bytes(4 * header.nblocks)
    sizes = (parsed.stops - parsed.starts).astype("<i4").tobytes()
    return packed + starts + _TRAILER.pack(nchunk, offset) + sizes


def unpack(buf: Buffer) -> Lazy:
    """Read a lazy chunk: header, block starts and trailer.

    Raises
    ------
    FormatError
        The chunk is not lazy, or cut short.
    """
    header = ChunkHeader.unpack(buf)
    if not header.lazy:
        raise FormatError(f"expected a lazy chunk, found flags {header.blosc2_flags:#04x}")
    trailer = header.header_len + 4 * header.nblocks
    expected = trailer + _TRAILER.size + 4 * header.nblocks
    if len(buf) < expected:
        raise FormatError(f"expected a lazy chunk of {expected} bytes, found {len(buf)}")
    nchunk, offset = _TRAILER.unpack_from(buf, trailer)
    sizes = tuple(np.frombuffer(buf, "<i4", header.nblocks, trailer + _TRAILER.size).tolist())
    eager = replace(header, blosc2_flags=header.blosc2_flags & ~(BLOSC2_FLAG_LAZY | BLOSC2_FLAG_DICT))
    head = chunk.unpack_head(eager.pack() + bytes(memoryview(buf)[header.header_len : trailer]))
    return Lazy(replace(head, header=replace(head.header, blosc2_flags=header.blosc2_flags)), nchunk, offset, sizes)
