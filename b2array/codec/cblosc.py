"""Blosc1 chunks as the engine: one call into the C code of numcodecs for any set of blocks.

The streams of Blosc2 and Blosc1 blocks are equal, byte for byte. So a 16-byte header and new block starts in
front of the blocks make a chunk that C-Blosc 1 decodes, and its chunks contain the blocks that we need. C-Blosc 1 does
not support runs (streams stored as one repeated byte): reading replaces runs with streams of the codec, and writing
restores them. It splits blocks into at most 16 streams of at least 128 bytes. It makes a context for every zstd stream,
so zstd streams of split blocks, and of blocks that stay shuffled, are decoded here.

Source: "Blosc Chunk Format", sections Header and Blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from b2array import threads
from b2array.buffers import Buffer, scratch
from b2array.codec import codecs
from b2array.codec.chunk_header import (
    BLOSC1_HEADER_LEN,
    FLAG_MEMCPYED,
    FLAG_UNSPLIT,
    VERSION_BLOSC1,
    CodecFormat,
    CodecId,
)
from b2array.codec.streams import MIN_STREAM, decode_zstd, encode_run, many_stream_positions, stream_positions
from b2array.errors import FormatError

__all__ = [
    "LONGEST_ZSTD",
    "MAX_SPLIT",
    "Blosc1Chunk",
    "Blosc1Params",
    "compress",
    "compress_blocks",
    "decode",
    "decode_planes",
    "decode_stream",
    "encode_stream",
    "fused_ask",
    "margin_behind",
    "margin_in_front",
    "unshuffle",
    "with_compressible_tail",
]

MAX_SPLIT = 16
"""The maximum number of streams into which C-Blosc 1 splits a block."""

NOSHUFFLE: int = blosc.NOSHUFFLE
SHUFFLE: int = blosc.SHUFFLE
BITSHUFFLE: int = blosc.BITSHUFFLE

_MOST_COUNTED = 2**31 - 1
"""The largest number that C-Blosc 1 counts. It adds the size of a block to the number of bytes that it has written, to
see whether the block fits, and writes beyond its buffer if the sum is larger."""
_SURELY_COUNTED = 2**29
"""C-Blosc 1 can count the bytes of chunks up to this size, whatever their blocks."""
_MAX_NBYTES = _MOST_COUNTED - BLOSC1_HEADER_LEN
_LARGEST_BLOCK = 2**20
"""The maximum size of blocks, in bytes, if C-Blosc 1 chooses it."""
_MOST_ADDED = 2**12
"""More bytes than a header and the sizes of the streams of one block."""

_SHUFFLE_FLAGS = {NOSHUFFLE: 0x00, SHUFFLE: 0x01, BITSHUFFLE: 0x04}
_CNAMES = {
    CodecId.BLOSCLZ: b"blosclz",
    CodecId.LZ4: b"lz4",
    CodecId.LZ4HC: b"lz4hc",
    CodecId.ZLIB: b"zlib",
    CodecId.ZSTD: b"zstd",
}
_HEADER = struct.Struct("<4B3i")
_INT32 = struct.Struct("<i")

_MAX_SPREAD = 2
"""Blocks that are spread over more than this multiple of their uncompressed size are first copied together."""
_FEW_BLOCKS = 8
"""The maximum number of blocks for which a plain loop over the streams is faster than NumPy."""
_FEW_BYTES = 2**14
"""The maximum number of bytes that NumPy unshuffles faster than C-Blosc 1."""
LONGEST_ZSTD = 2**16
"""The maximum size of a zstd stream, in bytes, for which it matters that C-Blosc 1 makes a context for each stream."""
_LONGEST_PLAIN_ZSTD = 2**20
"""The maximum size, in bytes, up to which zstd without C-Blosc is faster if there is no shuffle to undo."""
_RAW_CHUNK_NBYTES = 2**20
"""The number of bytes that C-Blosc 1 unshuffles at a time, while they are still in the processor's cache."""
_MAX_ASSEMBLY = 8 * 2**20
_MOST_NOTED = 64
_LEAST_BLOSCLZ = 3
"""The minimum level of BloscLZ: at lower levels, C-Blosc 1 does not compress some streams that C-Blosc2 compresses."""
_SMALL_STREAM = 4096
"""The minimum size of a stream, in bytes, in which the size of a block start does not matter."""

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Blosc1Params(NamedTuple):
    """The blocks of a Blosc1 chunk, as its header describes them.

    `typesize` is the width in bytes of the shuffle, and the number of streams of a block if it is split. `shuffle` is
    `NOSHUFFLE`, `SHUFFLE` or `BITSHUFFLE`. `block_nbytes` is the uncompressed size of every block.
    """

    fmt: CodecFormat
    typesize: int
    shuffle: int
    split: bool
    block_nbytes: int

    @property
    def nstreams(self) -> int:
        """The number of streams in a block."""
        return self.typesize if self.split else 1

    @property
    def neblock(self) -> int:
        """Uncompressed size in bytes of a stream."""
        return self.block_nbytes // self.nstreams

    def header(self, nbytes: int, cbytes: int) -> bytes:
        """Return the Blosc1 header for `nbytes` bytes of data in `cbytes` bytes, header and block starts included."""
        flags = self.fmt << 5 | _SHUFFLE_FLAGS[self.shuffle]
        if not self.split:
            flags |= FLAG_UNSPLIT
        # The second byte is the version of the codec's format, which is 1 for all codecs.
        return _HEADER.pack(VERSION_BLOSC1, 1, flags, self.typesize, nbytes, self.block_nbytes, cbytes)

    def head(self, nbytes: int, cbytes: int, starts: Sequence[int]) -> bytes:
        """Return the Blosc1 header and the block starts."""
        return self.header(nbytes, cbytes) + _pack_int32(starts)


def _pack_int32(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


class ByteRun(NamedTuple):
    """A run in a block, stored in `nbytes` bytes at `start`, and the stream of the codec that replaces it."""

    block: int
    start: int
    nbytes: int
    encoded: bytes


def margin_in_front(nblocks: int) -> int:
    """Return the number of bytes that the head of a Blosc1 chunk of `nblocks` blocks needs in front of the blocks."""
    return BLOSC1_HEADER_LEN + 4 * nblocks


def margin_behind(fmt: CodecFormat, nstreams: int, block_nbytes: int) -> int:
    """Return the number of bytes by which a block can grow when its runs become streams of the codec, or 0."""
    neblock = block_nbytes // nstreams
    if fmt == CodecFormat.ZSTD and neblock <= LONGEST_ZSTD:
        return 0
    return nstreams * (MIN_STREAM + 4 + neblock // 255)


def decode(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    out: Bytes,
    *,
    margin: int = 0,
) -> None:
    """Decode blocks of full size at any positions in `region` to `out`, one after the other.

    `starts` are the starts of the blocks, `stops` upper bounds for their ends. If `region` is writable, the bytes
    in front of the blocks are used as scratch space and restored, which saves a copy: no other thread may use `region`
    at the same time. `margin` bytes after each block may also be used, and are not restored; `margin_behind` bytes are
    enough.
    """
    is_zstd = params.fmt == CodecFormat.ZSTD
    if is_zstd and params.shuffle == NOSHUFFLE and params.neblock <= _LONGEST_PLAIN_ZSTD:
        decode_zstd(region, starts, stops, params.neblock, [out.data])
        return
    if is_zstd and params.neblock <= LONGEST_ZSTD:
        _decode_shuffled_zstd(params, region, starts, stops, out)
        return
    # In data with runs, most chunks have some, and a chunk with a run would be decoded up to there in vain. So expect
    # runs after a chunk with runs, and none after a chunk without, unless the first block has some.
    if params not in _with_runs and _try_without_runs(params, region, starts, stops, out):
        return
    if margin and not region.readonly:
        nblocks_grown = _expand_runs_in_place(params, region, starts, stops, margin)
        if nblocks_grown is not None:
            _note_runs(params, has_runs=nblocks_grown > 0)
            grown = [stop + margin for stop in stops]
            _decode_as_is(params, region, starts, grown, out)
            return
    runs = _runs_in(params, region, starts, stops)
    _note_runs(params, has_runs=bool(runs))
    if runs:
        chunk = _splice(params, region, starts, stops, runs, out.nbytes)
        _decompress(chunk, out)
    else:
        _decode_as_is(params, region, starts, stops, out)


def _try_without_runs(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    out: Bytes,
) -> bool:
    """Decode blocks as they are unless the first one has runs; return False if the blocks are not decoded."""
    of_first = stream_positions(region, starts[:1], stops[:1], params.nstreams, params.neblock)
    if any(csize <= 0 for _, csize in of_first):
        return False
    try:
        _decode_as_is(params, region, starts, stops, out)
    except FormatError:
        return False
    return True


_with_runs: set[Blosc1Params] = set()
"""The parameters of blocks whose last chunk had runs."""


def _note_runs(params: Blosc1Params, *, has_runs: bool) -> None:
    if not has_runs:
        _with_runs.discard(params)
        return
    if len(_with_runs) >= _MOST_NOTED:
        _with_runs.clear()
    _with_runs.add(params)


def _decode_as_is(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    out: Bytes,
) -> None:
    low = min(starts)
    high = max(stops)
    base = low - margin_in_front(len(starts))
    # Without room in front of the blocks, adding a header means a copy: of the whole range, or of each block.
    copies = region.readonly or base < 0
    if copies and high - low > _MAX_SPREAD * out.nbytes:
        chunk = _splice(params, region, starts, stops, [], out.nbytes)
        _decompress(chunk, out)
        return
    relative = [start - base for start in starts]
    head = params.head(out.nbytes, high - base, relative)
    _decompress_behind(head, region, low, high, out)


def _decompress_behind(head: bytes, region: memoryview, low: int, high: int, out: Bytes) -> None:
    """Decode the Blosc1 chunk that consists of `head` and bytes [low, high) of `region`."""
    base = low - len(head)
    if region.readonly or base < 0:
        _decompress(b"".join((head, region[low:high])), out)
        return
    saved = bytes(region[base:low])
    region[base:low] = head
    try:
        _decompress(region[base:high], out)
    finally:
        region[base:low] = saved


def decode_planes(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    out: Bytes,
) -> None:
    """Decode blocks like `decode`, but leave them shuffled."""
    neblock = params.neblock
    if params.fmt == CodecFormat.ZSTD:
        decode_zstd(region, starts, stops, neblock, [out.data])
        return
    if region.readonly and max(stops) - min(starts) > _MAX_SPREAD * out.nbytes:
        region, starts, stops = _pack_blocks(region, starts, stops, params.block_nbytes + 4 * params.nstreams)
    # Each stream is a block for C-Blosc 1, so that one stream can replace all runs of the same byte.
    streams = stream_positions(region, starts, stops, params.nstreams, neblock)
    runs = {csize for _, csize in streams if csize <= 0}
    encoded_runs = {csize: encode_run(params.fmt, neblock, -csize) for csize in runs}
    front = margin_in_front(len(streams))
    places = {}
    for csize, encoded in encoded_runs.items():
        places[csize] = front
        front += len(encoded)
    low = min(starts)
    high = max(stops)
    shift = front - low
    streams_at = [position + shift if csize > 0 else places[csize] for position, csize in streams]
    streamwise = Blosc1Params(params.fmt, 1, NOSHUFFLE, split=False, block_nbytes=neblock)
    head = streamwise.head(out.nbytes, high + shift, streams_at)
    _decompress_behind(b"".join((head, *encoded_runs.values())), region, low, high, out)


def _pack_blocks(
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    longest: int,
) -> tuple[memoryview, Sequence[int], Sequence[int]]:
    """Copy blocks of at most `longest` bytes one after the other; return the bytes, and the starts and ends."""
    pieces = []
    for start, stop in zip(starts, stops, strict=True):
        pieces.append(region[start : min(stop, start + longest)])
    edges = list(accumulate(map(len, pieces), initial=0))
    return memoryview(b"".join(pieces)), edges[:-1], edges[1:]


def _expand_runs_in_place(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    margin: int,
) -> int | None:
    """Replace runs with streams of the codec in place; return in how many blocks, or None if a block has no room."""
    # Change nothing before it is certain that all blocks have room, so that the caller can still copy them.
    ends = []
    nstreams = params.nstreams
    neblock = params.neblock
    for start, stop in zip(starts, stops, strict=True):
        streams = stream_positions(region, (start,), (stop,), nstreams, neblock)
        while streams and streams[0][1] > 0:
            del streams[0]
        if not streams:
            continue
        first, _ = streams[0]
        pieces: list[Buffer] = []
        for position, csize in streams:
            if csize > 0:
                pieces.append(region[position : position + 4 + csize])
            else:
                pieces.append(encode_run(params.fmt, neblock, -csize))
        end = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if first + len(end) > stop + margin:
            return None
        ends.append((first, end))
    for at, end in ends:
        region[at : at + len(end)] = end
    return len(ends)


def _decode_shuffled_zstd(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    out: Bytes,
) -> None:
    """Decode small zstd streams here; C-Blosc 1 then unshuffles blocks that consist of one raw stream each."""
    unsplit = params._replace(split=False)
    nbytes = params.block_nbytes
    step = max(1, _RAW_CHUNK_NBYTES // nbytes)
    for first in range(0, len(starts), step):
        last = first + step
        part = slice(first, last)
        raw, blocks = _raw_blosc1_chunk(unsplit, len(starts[part]))
        decode_zstd(region, starts[part], stops[part], params.neblock, blocks)
        _decompress(raw, out[first * nbytes : last * nbytes])


def _raw_blosc1_chunk(params: Blosc1Params, nblocks: int) -> tuple[memoryview, list[memoryview]]:
    """Return a Blosc1 chunk of raw, unsplit blocks with undefined contents, and views of the blocks."""
    nbytes = params.block_nbytes
    front = margin_in_front(nblocks)
    cbytes = front + nblocks * (4 + nbytes)
    raw = scratch("assembly", cbytes, _MAX_ASSEMBLY).data
    starts = range(front, cbytes, 4 + nbytes)
    raw[:front] = params.head(nblocks * nbytes, cbytes, starts)
    size = _INT32.pack(nbytes)
    for start in starts:
        raw[start : start + 4] = size
    return raw, [raw[start + 4 : start + 4 + nbytes] for start in starts]


def unshuffle(planes: Bytes, out: Bytes) -> None:
    """Join planes into `out`. Each plane has one byte of every item; the shape is (width, ...), with any strides."""
    width = len(planes)
    nbytes = out.nbytes
    if nbytes <= _FEW_BYTES:
        items = out.reshape(*planes.shape[1:], width)
        items[...] = np.moveaxis(planes, 0, -1)
        return
    unsplit = Blosc1Params(CodecFormat.BLOSCLZ, width, SHUFFLE, split=False, block_nbytes=nbytes)
    raw, (block,) = _raw_blosc1_chunk(unsplit, 1)
    np.ndarray(planes.shape, np.uint8, block)[...] = planes
    _decompress(raw, out)


def decode_stream(fmt: CodecFormat, payload: Buffer, nbytes: int) -> Bytes:
    """Decode the payload of one stream to `nbytes` bytes."""
    out = np.empty(nbytes, np.uint8)
    start = BLOSC1_HEADER_LEN + 4
    params = Blosc1Params(fmt, 1, NOSHUFFLE, split=False, block_nbytes=nbytes)
    head = params.head(nbytes, start + 4 + len(payload), [start])
    size = _INT32.pack(len(payload))
    _decompress(b"".join((head, size, payload)), out)
    return out


def _runs_in(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
) -> list[ByteRun]:
    """List the runs in the order of blocks and streams; check the sizes of all streams."""
    nstreams = params.nstreams
    neblock = params.neblock
    runs: list[tuple[int, int, int]] = []
    if len(starts) <= _FEW_BLOCKS:
        streams = stream_positions(region, starts, stops, nstreams, neblock)
        for number, (position, csize) in enumerate(streams):
            if csize <= 0:
                runs.append((number // nstreams, position, csize))
    else:
        positions, csizes = many_stream_positions(region, starts, stops, nstreams, neblock)
        is_run = csizes <= 0
        blocks, _ = np.nonzero(is_run)
        columns = (blocks, positions[is_run], csizes[is_run])
        runs += zip(*(column.tolist() for column in columns), strict=True)
    listed = []
    for block, position, csize in runs:
        encoded = encode_run(params.fmt, neblock, -csize)
        nbytes = 4 if csize == 0 else 5  # a run of zeros has no token after its size
        listed.append(ByteRun(block, position, nbytes, encoded))
    return listed


def _splice(
    params: Blosc1Params,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    runs: Sequence[ByteRun],
    nbytes: int,
) -> memoryview:
    """Assemble a Blosc1 chunk of blocks whose runs are replaced with streams of the codec."""
    pieces: list[Buffer] = [b""]
    position = BLOSC1_HEADER_LEN + 4 * len(starts)
    new_starts = []
    of_block: list[list[ByteRun]] = [[] for _ in starts]
    for run in runs:
        of_block[run.block].append(run)
    # No valid block is longer. Without this limit, each overlapping block would be copied up to the end of the chunk.
    longest = params.block_nbytes + 4 * params.nstreams
    for start, last, of_this in zip(starts, stops, of_block, strict=True):
        new_starts.append(position)
        cursor = start
        stop = min(last, start + longest)
        for run in of_this:
            if cursor < run.start:
                pieces.append(region[cursor : run.start])
            pieces.append(run.encoded)
            position += run.start - cursor + len(run.encoded)
            cursor = run.start + run.nbytes
        if cursor < stop:
            pieces.append(region[cursor:stop])
            position += stop - cursor
    pieces[0] = params.head(nbytes, position, new_starts)
    assembled = scratch("assembly", position, _MAX_ASSEMBLY).data
    at = 0
    for piece in pieces:
        assembled[at : at + len(piece)] = piece
        at += len(piece)
    return assembled


def _decompress(chunk: Buffer, out: Bytes) -> None:
    try:
        threads.alone(blosc.decompress, chunk, out)
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"expected streams that decode to {out.nbytes} bytes, found corrupt ones") from error


class Blosc1Chunk(NamedTuple):
    """A chunk made by C-Blosc 1, and the parameters that C-Blosc 1 chose."""

    buf: bytes
    block_nbytes: int
    split: bool
    starts: Int64Array


def _is_counted(nbytes: int, block_nbytes: int) -> bool:
    """Return whether C-Blosc 1 can count the bytes of a chunk of `nbytes` bytes that does not get smaller."""
    return nbytes + max(block_nbytes, _LARGEST_BLOCK) + _MOST_ADDED <= _MOST_COUNTED


def fused_ask(codec: int, typesize: int, block_nbytes: int, nbytes: int) -> int | None:
    """Return the block size to request from C-Blosc 1 for blocks of `block_nbytes` bytes; None if this is impossible.

    C-Blosc 1 makes zstd blocks of the requested size. For other codecs and items of at most 16 bytes, it makes split
    blocks of ``clamp(min(ask, 256K) * typesize, 64K, 1M)`` bytes.
    """
    if nbytes > _SURELY_COUNTED and not _is_counted(nbytes, block_nbytes):
        return None
    if codec == CodecId.ZSTD:
        return block_nbytes if block_nbytes >= MIN_STREAM else None
    if typesize > MAX_SPLIT or block_nbytes % typesize or block_nbytes > 2**20:
        return None
    ask = block_nbytes // typesize
    if block_nbytes < 2**16 and block_nbytes != nbytes:
        return None
    return ask if MIN_STREAM <= ask <= 2**18 else None


def compress(
    data: Bytes,
    cname: bytes,
    clevel: int,
    shuffle: int,
    blocksize: int,
    typesize: int,
) -> bytes:
    """Compress `data` to a Blosc1 chunk. Data too large for C-Blosc 1 to count are stored as they are."""
    nbytes = len(data)
    if _SURELY_COUNTED < nbytes <= _MAX_NBYTES and not _is_counted(nbytes, blocksize):
        block_nbytes = min(nbytes, _LARGEST_BLOCK)
        cbytes = BLOSC1_HEADER_LEN + nbytes
        head = _HEADER.pack(VERSION_BLOSC1, 1, FLAG_MEMCPYED, typesize, nbytes, block_nbytes, cbytes)
        return b"".join((head, data.data))
    buf: bytes = threads.alone(blosc.compress, data, cname, clevel, shuffle, blocksize, typesize)
    return buf


def compress_blocks(
    codec: int,
    data: Bytes,
    *,
    clevel: int,
    shuffle: int,
    typesize: int,
    blocksize: int,
) -> Blosc1Chunk | None:
    """Compress `data` (contiguous) to a Blosc1 chunk for its blocks; None if the chunk would not be smaller.

    C-Blosc 1 may choose another block size than `blocksize`: see `Blosc1Chunk`. `clevel` is a level of C-Blosc2.
    """
    level = clevel
    if codec == CodecId.ZLIB:
        level = codecs.ZLIB_LEVELS[clevel]
    elif codec == CodecId.BLOSCLZ:
        level = max(clevel, _LEAST_BLOSCLZ)
    buf = compress(data, _CNAMES[CodecId(codec)], level, shuffle, blocksize, typesize)
    _, _, flags, _, nbytes, block_nbytes, cbytes = _HEADER.unpack_from(buf)
    if flags & FLAG_MEMCPYED or cbytes != len(buf):
        return None
    nblocks = -(-nbytes // block_nbytes)
    starts = np.frombuffer(buf, "<i4", nblocks, BLOSC1_HEADER_LEN).astype(np.int64)
    can_split = 1 < typesize <= MAX_SPLIT and block_nbytes // typesize >= MIN_STREAM
    split = can_split and not flags & FLAG_UNSPLIT
    return Blosc1Chunk(buf, block_nbytes, split, starts)


def with_compressible_tail(data: Bytes, neblock: int) -> Bytes:
    """Append zeros to the data of small streams of `neblock` bytes, before `compress_blocks` compresses them.

    C-Blosc 1 returns data uncompressed unless the savings exceed a size and a start for each stream. Blosc2 needs fewer
    starts: one for each block. The zeros, which take hardly any space, offset the difference.
    """
    if neblock >= _SMALL_STREAM:
        return data
    nstreams = len(data) // neblock
    nextra = nstreams * 8 // (neblock - MIN_STREAM // 2) + 1
    zeros = np.zeros(nextra * neblock, np.uint8)
    return np.concatenate((data, zeros))


def encode_stream(codec: int, data: Bytes, clevel: int) -> bytes | None:
    """Compress one stream; None if it would not be smaller, or if C-Blosc 1 splits it into several streams."""
    chunk = compress_blocks(codec, data, clevel=clevel, shuffle=NOSHUFFLE, typesize=1, blocksize=len(data))
    if chunk is None or chunk.block_nbytes != len(data):
        return None
    payload = chunk.buf[BLOSC1_HEADER_LEN + 8 :]
    return payload if len(payload) < len(data) else None
