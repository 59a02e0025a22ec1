"""Finds and checks the streams in a block, and converts runs to streams of a codec.

A block is a sequence of streams, each preceded by its size. A size of 0 means a run of zeros. A size of -n, followed by
a token, means a run of the byte n. Codecs do not support runs.

Source: "Blosc Chunk Format", section Blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import codecs
from b2array.codec.chunk_header import CodecFormat
from b2array.errors import FormatError

__all__ = ["MIN_STREAM", "check_ratio", "decode_zstd", "encode_run", "many_stream_positions", "stream_positions"]

MIN_STREAM = 128
"""The minimum size of a stream, in bytes, in blocks that C-Blosc 1 splits."""

_INT32 = struct.Struct("<i")

_STREAMS_AT_ONCE = 2**18
"""The maximum number of streams to check at a time, because checking takes memory."""

Int64Array = npt.NDArray[np.int64]


def stream_positions(
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    nstreams: int,
    neblock: int,
) -> list[tuple[int, int]]:
    """Return the position of the size field of each stream, block by block, and its value.

    The plain loop is faster than `many_stream_positions` for few blocks. Parameters and errors are the same.
    """
    streams = []
    unpack = _INT32.unpack_from
    for start, stop in zip(starts, stops, strict=True):
        position = start
        if start < 0:
            raise FormatError(f"expected streams within a block that ends at byte {stop}, found one at {start}")
        # Positions only grow, so one comparison at the end is enough.
        try:
            for _ in range(nstreams):
                csize = unpack(region, position)[0]
                streams.append((position, csize))
                if 0 <= csize <= neblock:
                    position += 4 + csize
                elif -255 <= csize < 0:
                    _check_token(region[position + 4])
                    position += 5
                else:
                    raise FormatError(f"expected a stream size of -255 to {neblock}, found {csize}")
        except (struct.error, IndexError):
            raise FormatError(f"expected streams within {len(region)} bytes, found one at {position}") from None
        if position > stop:
            raise FormatError(f"expected a block that ends at byte {stop}, found streams up to {position}")
    return streams


def many_stream_positions(
    region: memoryview,
    starts: Sequence[int] | Int64Array,
    stops: Sequence[int] | Int64Array,
    nstreams: int,
    neblock: int,
) -> tuple[Int64Array, Int64Array]:
    """Find the size fields of streams; return positions and values in arrays of shape (nblocks, nstreams).

    Block n begins at ``starts[n]`` and ends at ``stops[n]`` at the latest, in bytes from the start of `region`.
    `neblock` is the uncompressed size of a stream. FormatError is raised if a stream extends beyond its block, or if
    its size or token is not valid.
    """
    position = np.asarray(starts, np.int64)
    limit = np.asarray(stops, np.int64)
    positions = np.empty((len(position), nstreams), np.int64)
    csizes = np.empty_like(positions)
    if len(region) < 4:
        raise FormatError(f"expected a stream size of 4 bytes, found {len(region)} bytes")
    # The integer at each byte position, because sizes need not be aligned.
    words: npt.NDArray[np.int32] = np.ndarray((len(region) - 3,), "<i4", region, strides=(1,))
    if len(position) and int(position.min()) < 0:
        _overrun(position, limit)
    for i in range(nstreams):
        try:
            csize = words[position].astype(np.int64)
        except IndexError:
            _overrun(position, limit)
        positions[:, i] = position
        csizes[:, i] = csize
        # Positions only grow, so one comparison at the end is enough.
        position = position + csize
        position += 4
        if len(csize) and int(csize.min()) < 0:
            # A negative size is the repeated byte of a run, which is followed by a token and no further bytes.
            position += (csize < 0) * (1 - csize)
    if (position > limit).any():
        _overrun(position, limit)
    _check_csizes(region, positions, csizes, neblock)
    return positions, csizes


def check_ratio(
    region: memoryview,
    starts: Int64Array,
    stops: Int64Array,
    nstreams: int,
    neblock: int,
    ratio: int,
) -> None:
    """Raise FormatError if the streams are not valid, or if one of their bytes represents more than `ratio` bytes.

    The other parameters are the same as in `many_stream_positions`.
    """
    step = max(1, _STREAMS_AT_ONCE // nstreams)
    for first in range(0, len(starts), step):
        pick = slice(first, first + step)
        _, csizes = many_stream_positions(region, starts[pick], stops[pick], nstreams, neblock)
        compressed = csizes[csizes > 0]
        if (compressed * ratio < neblock).any():
            raise FormatError(f"expected streams that can hold {neblock} bytes, found one of {compressed.min()} bytes")


def _check_csizes(
    region: memoryview,
    positions: Int64Array,
    csizes: Int64Array,
    neblock: int,
) -> None:
    highest = int(csizes.max(initial=0))
    lowest = int(csizes.min(initial=0))
    if highest > neblock or lowest < -255:
        is_wrong = (csizes > neblock) | (csizes < -255)
        raise FormatError(f"expected a stream size of -255 to {neblock}, found {csizes[is_wrong][0]}")
    tokens = np.frombuffer(region, np.uint8)[positions[csizes < 0] + 4]
    if (tokens != 1).any():
        _check_token(int(tokens[tokens != 1][0]))


def _check_token(token: int) -> None:
    if token != 1:
        raise FormatError(f"expected token 0x01 (a repeated byte) in a stream of negative size, found {token:#04x}")


def _overrun(position: Int64Array, limit: Int64Array) -> NoReturn:
    is_outside = (position + 4 > limit) | (position < 0)
    block = int(np.argmax(is_outside))
    raise FormatError(
        f"expected streams within a block that ends at byte {limit[block]}, found one at {position[block]}"
    )


def encode_run(fmt: CodecFormat, nbytes: int, value: int) -> bytes:
    """Return a run of `nbytes` bytes as a stream of the codec, size field included."""
    if nbytes < _SHORTEST_RUN[fmt]:
        return _INT32.pack(nbytes) + bytes([value]) * nbytes
    return _pack_run(fmt, nbytes, value)


_SHORTEST_RUN = {
    CodecFormat.BLOSCLZ: MIN_STREAM,
    CodecFormat.LZ4: MIN_STREAM,
    CodecFormat.ZLIB: 2**31,
    CodecFormat.ZSTD: 2**16,
}
"""The minimum size of a run, in bytes, that is decoded faster than a raw stream is copied."""


_ZSTD_BLOCK = 2**17
_ZSTD_RLE = 1


@lru_cache(maxsize=1024)
def _pack_run(fmt: CodecFormat, nbytes: int, value: int) -> bytes:
    value_byte = bytes([value])
    if fmt == CodecFormat.ZSTD:
        # A frame header with the content size, and blocks of one repeated byte (RFC 8878, section Blocks).
        pieces = [_zstd_header(nbytes)]
        left = nbytes
        while left:
            size = min(left, _ZSTD_BLOCK)
            left -= size
            is_last = 0 if left else 1
            head = size << 3 | _ZSTD_RLE << 1 | is_last
            pieces += head.to_bytes(3, "little"), value_byte
        payload = b"".join(pieces)
    # A literal, a match that repeats the literal, and the final literals that the format requires.
    elif fmt == CodecFormat.LZ4:
        length = _length_bytes(nbytes - 25)
        payload = b"\x1f" + value_byte + b"\x01\x00" + length + b"\x50" + value_byte * 5
    else:
        length = _length_bytes(nbytes - 16)
        payload = b"\x23" + value_byte * 4 + b"\xe0" + length + b"\x03\x02" + value_byte * 3
    return _INT32.pack(len(payload)) + payload


def _length_bytes(length: int) -> bytes:
    return b"\xff" * (length // 255) + bytes([length % 255])


def _zstd_header(nbytes: int) -> bytes:
    """Return the header of a zstd frame of `nbytes` bytes in one segment (RFC 8878, section Frame_Header)."""
    if nbytes < 2**8:
        return b"\x28\xb5\x2f\xfd\x20" + nbytes.to_bytes(1, "little")
    if nbytes < 2**16 + 2**8:
        return b"\x28\xb5\x2f\xfd\x60" + (nbytes - 2**8).to_bytes(2, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + nbytes.to_bytes(4, "little")


def decode_zstd(
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    neblock: int,
    outs: Sequence[memoryview],
) -> None:
    """Decode the zstd streams of blocks, all compressed streams in one call.

    `outs` are buffers of equal sizes for all streams in order, `neblock` bytes each: one for all blocks, or one per
    block. The other parameters and the errors are the same as in `many_stream_positions`.
    """
    frames: list[Buffer] = []
    places: list[memoryview] = []
    count = len(outs[0]) // neblock
    nstreams = count * len(outs) // len(starts)
    streams = stream_positions(region, starts, stops, nstreams, neblock)
    first = 0
    for out in outs:
        # Consecutive compressed streams share one output buffer, which ends at a raw stream, because that is copied
        # here.
        begin = 0
        end = 0
        for head, csize in streams[first : first + count]:
            position = head + 4
            end += neblock
            if csize <= 0:
                frames.append(_pack_run(CodecFormat.ZSTD, neblock, -csize)[4:])
            elif csize < neblock:
                frames.append(region[position : position + csize])
            else:
                start = end - neblock
                out[start:end] = region[position : position + neblock]
                if begin < start:
                    places.append(out[begin:start])
                begin = end
        if begin < end:
            places.append(out[begin:end])
        first += count
    if frames:
        codecs.decode_zstd_frames(frames, neblock, places)
