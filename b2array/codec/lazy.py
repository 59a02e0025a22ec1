"""Lazy chunks: the head of a chunk, and a trailer with the positions of its blocks in a frame.

Source: "Blosc Chunk Format", section Trailer, and the chunks that the C library returns for frames in files.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from b2array.buffers import Buffer
from b2array.codec import chunk
from b2array.codec.chunk_header import BLOSC2_FLAG_LAZY

__all__ = ["pack"]

_TRAILER = struct.Struct("<iq")


def pack(head: Buffer, nchunk: int, offset: int) -> bytes:
    """Make a lazy chunk from the head of a chunk. A special chunk has no blocks and is returned unchanged.

    `offset` is the position of the chunk in the frame. In a sparse frame, both numbers are the number of the chunk's
    file.
    """
    parsed = chunk.unpack_head(head)
    header = parsed.header
    if header.special:
        return bytes(memoryview(head)[: header.cbytes])
    flags = header.blosc2_flags | BLOSC2_FLAG_LAZY
    packed = replace(header, blosc2_flags=flags).pack()
    nbytes = 4 * header.nblocks
    if header.memcpyed:
        starts = bytes(nbytes)  # raw chunks have no block starts, and their data begins here
    else:
        starts = bytes(memoryview(head)[len(packed) : len(packed) + nbytes])
    sizes = (parsed.stops - parsed.starts).astype("<i4").tobytes()
    return packed + starts + _TRAILER.pack(nchunk, offset) + sizes
