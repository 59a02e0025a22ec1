"""Lazy chunks: a chunk's head, and a trailer that says where a frame holds the blocks.

Source: "Blosc Chunk Format", section Trailer, and the chunks that the C library returns for frames in files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import chunk
from b2array.codec.chunk import NO_CONTEXT, Context, Head
from b2array.codec.header import BLOSC2_FLAG_DICT, BLOSC2_FLAG_LAZY, ChunkHeader
from b2array.errors import FormatError

__all__ = ["Lazy", "decode", "pack", "unpack"]

_TRAILER = struct.Struct("<iq")


@dataclass(frozen=True, slots=True)
class Lazy:
    """A lazy chunk: the head, and where a frame holds the blocks.

    `nchunk` is the chunk's number, and `offset` its position in bytes from the start of the frame; in a sparse frame
    both are the number of the chunk's file. `sizes` are the blocks' compressed sizes in bytes, in block order.
    """

    head: Head
    nchunk: int
    offset: int
    sizes: tuple[int, ...]


def pack(head: Buffer, nchunk: int, offset: int) -> bytes:
    """Make a lazy chunk from the head of a chunk (Blosc Chunk Format, section Trailer); see `Lazy` for the parameters.

    A special chunk has no blocks to wait for and is returned as it is.
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


def decode(buf: Buffer, read: Callable[[int, int], Buffer], *, context: Context = NO_CONTEXT) -> npt.NDArray[np.uint8]:
    """Decode a lazy chunk with the help of the frame that it came from.

    Parameters
    ----------
    buf : bytes-like
        The lazy chunk.
    read : callable
        ``read(offset, nbytes)`` returns bytes of the chunk's place: `offset` is that of `Lazy`.
    context : Context
        What the frame adds.
    """
    lazy = unpack(buf)
    return chunk.decode(read(lazy.offset, lazy.head.header.cbytes), context=context)
