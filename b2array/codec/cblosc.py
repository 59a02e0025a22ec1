"""Blosc1 chunks as the engine: any set of blocks becomes one call into numcodecs' C code.

The streams of a Blosc2 block are byte for byte what a block of a Blosc1 chunk holds. So a 16-byte header and fresh
block starts in front of the blocks' bytes make a chunk that C-Blosc 1 decodes, and the chunks that it makes hold blocks
for Blosc2. C-Blosc 1 knows neither streams of one repeated byte (their stand-ins are spliced in when reading and taken
out when writing) nor more than 16 streams a block, nor streams of fewer than 128 bytes. Small streams of zstd, for each
of which it would make a context, are decoded before, and it only undoes the shuffle.

Source: "Blosc Chunk Format", sections Header and Blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from b2array import buffers, threads
from b2array.buffers import Buffer
from b2array.codec import codecs
from b2array.codec.header import BLOSC1_HEADER_LEN, FLAG_MEMCPYED, FLAG_UNSPLIT, VERSION_BLOSC1, CodecFormat, CodecId
from b2array.codec.streams import MIN_STREAM, decode_zstd, stand_in, walk, walk_many
from b2array.errors import FormatError

__all__ = [
    "MAX_SPLIT", "Made", "Recipe", "compress", "decode", "decode_planes", "decode_stream", "encode_stream", "fused_ask",
    "make", "room_behind", "room_in_front", "unshuffle", "with_room",
]  # fmt: skip

MAX_SPLIT = 16
"""C-Blosc 1 splits blocks into at most this many streams."""

NOSHUFFLE: int = blosc.NOSHUFFLE
SHUFFLE: int = blosc.SHUFFLE
BITSHUFFLE: int = blosc.BITSHUFFLE

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
_SPARSE = 2
"""Blocks that lie in more than so many times their size are put together rather than copied with all between them."""

_FEW = 8
"""Up to this many blocks a plain loop over the streams is faster than NumPy."""

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How C-Blosc 1 has to treat a set of blocks.

    Parameters
    ----------
    fmt : CodecFormat
        What the streams hold.
    typesize : int
        Width in bytes of the shuffle, and the number of streams of a split block.
    shuffle : int
        `NOSHUFFLE`, `SHUFFLE` or `BITSHUFFLE`.
    split : bool
        Whether blocks consist of `typesize` streams.
    block_nbytes : int
        Uncompressed size in bytes of every block.
    """

    fmt: CodecFormat
    typesize: int
    shuffle: int
    split: bool
    block_nbytes: int

    @property
    def nstreams(self) -> int:
        """Streams in a block."""
        return self.typesize if self.split else 1

    @property
    def neblock(self) -> int:
        """Uncompressed size in bytes of a stream."""
        return self.block_nbytes // self.nstreams

    def header(self, nbytes: int, cbytes: int) -> bytes:
        """Return the Blosc1 header for `nbytes` bytes of blocks that take `cbytes` with header and starts."""
        flags = self.fmt << 5 | _SHUFFLE_FLAGS[self.shuffle] | (0 if self.split else FLAG_UNSPLIT)
        return _HEADER.pack(VERSION_BLOSC1, 1, flags, self.typesize, nbytes, self.block_nbytes, cbytes)


class Run(NamedTuple):
    """A stream that is stored, in `stored` bytes at `start`, as one repeated byte, and what C-Blosc 1 knows for it."""

    block: int
    start: int
    stored: int
    stand_in: bytes


def room_in_front(nblocks: int) -> int:
    """Return how many bytes in front of `nblocks` blocks take the header that makes a Blosc1 chunk of them."""
    return BLOSC1_HEADER_LEN + 4 * nblocks


def room_behind(nstreams: int, block_nbytes: int) -> int:
    """Return how many bytes behind a block take in what it grows by when its runs become streams of the codec."""
    return nstreams * (MIN_STREAM + 4 + block_nbytes // nstreams // 255)


def decode(
    recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int], out: Bytes, *, room: int = 0
) -> None:
    """Decode blocks that lie anywhere in `region` into `out`, one behind the other.

    Parameters
    ----------
    recipe : Recipe
        How the blocks were made.
    region : memoryview
        The bytes around the blocks. A writable one is used as scratch space in front of the blocks while this function
        runs (its contents are restored), which saves a copy; it must not be shared with another thread then.
    starts, stops : sequence of int
        Where each block begins and where it ends at the latest, in bytes from the start of `region`.
    out : ndarray of uint8
        As long as the blocks are together, none of which is a short one.
    room : int, default 0
        Bytes behind each block that may be overwritten, and with them the end of the block: `room_behind` says how
        many are enough.

    Raises
    ------
    FormatError
        The streams do not decode to the blocks' sizes.
    """
    if recipe.fmt == CodecFormat.ZSTD and recipe.nstreams > 1 and recipe.neblock <= _LONGEST_ZSTD:
        _decode_split_zstd(recipe, region, starts, stops, out)
        return
    # Data with runs have them in nearly every block; others can be decoded without looking at their streams first.
    of_first = walk(region, starts[0], stops[0], recipe.nstreams, recipe.neblock)
    if all(csize > 0 for _, csize in of_first):
        try:
            _decode_as_is(recipe, region, starts, stops, out)
        except FormatError:
            pass
        else:
            return
    if room and not region.readonly and _spelt_out(recipe, region, starts, stops, room):
        _decode_as_is(recipe, region, starts, [stop + room for stop in stops], out)
        return
    runs = _find_runs(recipe, region, starts, stops)
    if runs:
        _decompress(_spliced(recipe, region, starts, stops, runs, out.nbytes), out)
    else:
        _decode_as_is(recipe, region, starts, stops, out)


def _decode_as_is(recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int], out: Bytes) -> None:
    low, high = min(starts), max(stops)
    base = low - room_in_front(len(starts))
    if (region.readonly or base < 0) and high - low > _SPARSE * out.nbytes:
        _decompress(_spliced(recipe, region, starts, stops, [], out.nbytes), out)
        return
    head = recipe.header(out.nbytes, high - base) + struct.pack(f"<{len(starts)}i", *[s - base for s in starts])
    _decompress_behind(head, region, low, high, out)


def _decompress_behind(head: bytes, region: memoryview, low: int, high: int, out: Bytes) -> None:
    """Decode the Blosc1 chunk that begins with `head` and goes on with some bytes of a region."""
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


def decode_planes(recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int], out: Bytes) -> None:
    """Decode blocks as `decode` does, but leave them shuffled."""
    neblock = recipe.neblock
    if recipe.fmt == CodecFormat.ZSTD:
        blocks = [out.data[at : at + recipe.block_nbytes] for at in range(0, out.nbytes, recipe.block_nbytes)]
        decode_zstd(region, starts, stops, neblock, blocks)
        return
    if region.readonly and max(stops) - min(starts) > _SPARSE * out.nbytes:
        region, starts, stops = _together(region, starts, stops, recipe.block_nbytes + 4 * recipe.nstreams)
    # To C-Blosc 1, every stream is a block of its own: then one stand-in does for all runs of the same byte.
    both = zip(starts, stops, strict=True)
    walked = [each for start, stop in both for each in walk(region, start, stop, recipe.nstreams, neblock)]
    runs = {csize for _, csize in walked if csize <= 0}
    stand_ins = {csize: stand_in(recipe.fmt, neblock, -csize) for csize in runs}
    front = room_in_front(len(walked))
    places = dict(zip(stand_ins, accumulate(map(len, stand_ins.values()), initial=front), strict=False))
    front += sum(map(len, stand_ins.values()))
    low, high = min(starts), max(stops)
    shift = front - low
    streams_at = [position + shift if csize > 0 else places[csize] for position, csize in walked]
    streamwise = Recipe(recipe.fmt, 1, NOSHUFFLE, split=False, block_nbytes=neblock)
    header = streamwise.header(out.nbytes, high + shift)
    head = b"".join((header, struct.pack(f"<{len(walked)}i", *streams_at), *stand_ins.values()))
    _decompress_behind(head, region, low, high, out)


def _together(
    region: memoryview, starts: Sequence[int], stops: Sequence[int], longest: int
) -> tuple[memoryview, Sequence[int], Sequence[int]]:
    """Copy blocks of at most `longest` bytes one behind the other; return them, and where each begins and ends."""
    pieces = [region[start : min(stop, start + longest)] for start, stop in zip(starts, stops, strict=True)]
    edges = list(accumulate(map(len, pieces), initial=0))
    return memoryview(b"".join(pieces)), edges[:-1], edges[1:]


def _spelt_out(recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int], room: int) -> bool:
    """Let runs in the blocks themselves be streams of the codec; returns False where there is no room for it."""
    ends = []
    nstreams, neblock = recipe.nstreams, recipe.neblock
    for start, stop in zip(starts, stops, strict=True):
        walked = walk(region, start, stop, nstreams, neblock)
        while walked and walked[0][1] > 0:
            del walked[0]
        if walked:
            at = walked[0][0]
            pieces = [
                region[position : position + 4 + csize] if csize > 0 else stand_in(recipe.fmt, neblock, -csize)
                for position, csize in walked
            ]
            end = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if at + len(end) > stop + room:
                return False
            ends.append((at, end))
    for at, end in ends:
        region[at : at + len(end)] = end
    return True


_LONGEST_ZSTD = 2**16
"""Longer streams take zstd so long that a context for each of them does not matter."""


def _decode_split_zstd(
    recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int], out: Bytes
) -> None:
    """Decode many streams as one.

    C-Blosc 1 makes a new zstd context for every stream, which takes longer than decoding a small one. It only undoes
    the shuffle here, of blocks that are one raw stream each.
    """
    unsplit = replace(recipe, split=False)
    step = max(1, _RAW_NBYTES // recipe.block_nbytes)
    for first in range(0, len(starts), step):
        part = slice(first, first + step)
        target = out[first * recipe.block_nbytes : (first + step) * recipe.block_nbytes]
        raw, blocks = _raw(unsplit, len(starts[part]))
        decode_zstd(region, starts[part], stops[part], recipe.neblock, blocks)
        _decompress(raw, target)


_RAW_NBYTES = 2**20
"""So much is decoded at a time, so that it is still in the cache when C-Blosc puts it together."""


def _raw(recipe: Recipe, nblocks: int) -> tuple[memoryview, list[memoryview]]:
    """Lay out a Blosc1 chunk of raw, unsplit blocks.

    Returns it, valid until this thread makes the next, and the blocks in it, whose contents are not defined yet.
    """
    nbytes = recipe.block_nbytes
    room = room_in_front(nblocks)
    cbytes = room + nblocks * (4 + nbytes)
    raw = _assembly(cbytes)
    starts = range(room, cbytes, 4 + nbytes)
    raw[:room] = recipe.header(nblocks * nbytes, cbytes) + struct.pack(f"<{nblocks}i", *starts)
    size = _INT32.pack(nbytes)
    for start in starts:
        raw[start : start + 4] = size
    return raw, [raw[start + 4 : start + 4 + nbytes] for start in starts]


def unshuffle(planes: Bytes, out: Bytes) -> None:
    """Join one plane for each byte of the items.

    Parameters
    ----------
    planes : ndarray of uint8, shape (width, ...)
        Of any strides.
    out : ndarray of uint8
        As large as the planes are together.
    """
    width, nbytes = len(planes), out.nbytes
    if nbytes <= _FEW_BYTES:
        out.reshape(-1, width).T[:] = planes.reshape(width, -1)
        return
    raw, (block,) = _raw(Recipe(CodecFormat.BLOSCLZ, width, SHUFFLE, split=False, block_nbytes=nbytes), 1)
    np.ndarray(planes.shape, np.uint8, block)[...] = planes
    _decompress(raw, out)


_FEW_BYTES = 512
"""Up to here NumPy is faster."""


def decode_stream(fmt: CodecFormat, payload: Buffer, nbytes: int) -> Bytes:
    """Decode the payload of one stream to `nbytes` bytes (how BloscLZ streams are read one at a time)."""
    out = np.empty(nbytes, np.uint8)
    start = BLOSC1_HEADER_LEN + 4
    head = Recipe(fmt, 1, NOSHUFFLE, split=False, block_nbytes=nbytes).header(nbytes, start + 4 + len(payload))
    _decompress(b"".join((head, _INT32.pack(start), _INT32.pack(len(payload)), payload)), out)
    return out


def _find_runs(recipe: Recipe, region: memoryview, starts: Sequence[int], stops: Sequence[int]) -> list[Run]:
    """List the streams that C-Blosc 1 does not know, in the order of blocks and streams; check all sizes."""
    nstreams, neblock = recipe.nstreams, recipe.neblock
    if len(starts) <= _FEW:
        found = [
            (block, position, csize)
            for block, (start, stop) in enumerate(zip(starts, stops, strict=True))
            for position, csize in walk(region, start, stop, nstreams, neblock)
            if csize <= 0
        ]
    else:
        positions, csizes = walk_many(region, starts, stops, nstreams, neblock)
        blocks, numbers = np.nonzero(csizes <= 0)
        where = positions[blocks, numbers].tolist(), csizes[blocks, numbers].tolist()
        found = list(zip(blocks.tolist(), *where, strict=True))
    return [
        Run(block, position, 4 + (csize < 0), stand_in(recipe.fmt, neblock, -csize)) for block, position, csize in found
    ]


def _spliced(
    recipe: Recipe,
    region: memoryview,
    starts: Sequence[int],
    stops: Sequence[int],
    runs: Sequence[Run],
    nbytes: int,
) -> memoryview:
    """Assemble a Blosc1 chunk in which other streams stand for runs; valid until this thread makes the next."""
    pieces: list[Buffer] = [b""]
    position = BLOSC1_HEADER_LEN + 4 * len(starts)
    new_starts = []
    of_block: list[list[Run]] = [[] for _ in starts]
    for run in runs:
        of_block[run.block].append(run)
    # No block takes more; of blocks that overlap, each would have all that follows.
    longest = recipe.block_nbytes + 4 * recipe.nstreams
    for start, last, of_this in zip(starts, stops, of_block, strict=True):
        new_starts.append(position)
        cursor, stop = start, min(last, start + longest)
        for run in of_this:
            if cursor < run.start:
                pieces.append(region[cursor : run.start])
            pieces.append(run.stand_in)
            position += run.start - cursor + len(run.stand_in)
            cursor = run.start + run.stored
        if cursor < stop:
            pieces.append(region[cursor:stop])
            position += stop - cursor
    pieces[0] = recipe.header(nbytes, position) + struct.pack(f"<{len(starts)}i", *new_starts)
    assembled = _assembly(position)
    at = 0
    for piece in pieces:
        assembled[at : at + len(piece)] = piece
        at += len(piece)
    return assembled


def _assembly(nbytes: int) -> memoryview:
    """Return a writable view of `nbytes` bytes that this thread uses again and again."""
    return buffers.scratch("assembly", nbytes, _KEPT).data


_KEPT = 8 * 2**20
"""What takes more bytes gets memory of its own."""


def _decompress(chunk: Buffer, out: Bytes) -> None:
    try:
        threads.alone(blosc.decompress, chunk, out)
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"expected streams that decode to {out.nbytes} bytes, found corrupt ones") from error


class Made(NamedTuple):
    """A chunk that C-Blosc 1 made, and what it chose."""

    buf: bytes
    block_nbytes: int
    split: bool
    starts: Int64Array


def fused_ask(codec: int, typesize: int, block_nbytes: int, nbytes: int) -> int | None:
    """Return the block size to ask C-Blosc 1 for to get `nbytes` bytes in blocks of `block_nbytes`, None if none does.

    It makes zstd blocks as asked for. Of the others it makes ``clamp(min(ask, 256K) * typesize, 64K, 1M)`` bytes,
    always split, when the items have at most 16 bytes.
    """
    if codec == CodecId.ZSTD:
        return block_nbytes if block_nbytes >= MIN_STREAM else None
    if typesize > MAX_SPLIT or block_nbytes % typesize or block_nbytes > 2**20:
        return None
    ask = block_nbytes // typesize
    if block_nbytes < 2**16 and block_nbytes != nbytes:
        return None
    return ask if MIN_STREAM <= ask <= 2**18 else None


def compress(data: Bytes, cname: bytes, clevel: int, shuffle: int, blocksize: int, typesize: int) -> bytes:
    """Compress `data` to the chunk that C-Blosc 1 makes of them."""
    buf: bytes = threads.alone(blosc.compress, data, cname, clevel, shuffle, blocksize, typesize)
    return buf


def make(codec: int, data: Bytes, *, clevel: int, shuffle: int, typesize: int, blocksize: int) -> Made | None:
    """Compress `data` in one call and say what came out; None if it does not get smaller.

    Parameters
    ----------
    codec : int
        The compcode of a built-in codec.
    data : ndarray of uint8
        Contiguous.
    clevel : int
        As C-Blosc2 takes it.
    shuffle, typesize : int
        As C-Blosc 1 takes them.
    blocksize : int
        What C-Blosc 1 is asked for; it may choose otherwise, see `Made.block_nbytes`.
    """
    level = clevel
    if codec == CodecId.ZLIB:
        level = codecs.zlib_level(clevel)
    elif codec == CodecId.BLOSCLZ:
        level = max(clevel, _LEAST_BLOSCLZ)
    buf = compress(data, _CNAMES[CodecId(codec)], level, shuffle, blocksize, typesize)
    _, _, flags, _, nbytes, block_nbytes, cbytes = _HEADER.unpack_from(buf)
    if flags & FLAG_MEMCPYED or cbytes != len(buf):
        return None
    nblocks = -(-nbytes // block_nbytes)
    starts = np.frombuffer(buf, "<i4", nblocks, BLOSC1_HEADER_LEN).astype(np.int64)
    split = not flags & FLAG_UNSPLIT and typesize <= MAX_SPLIT and block_nbytes // typesize >= MIN_STREAM
    return Made(buf, block_nbytes, split and typesize > 1, starts)


_LEAST_BLOSCLZ = 3
"""Below, this BloscLZ gives up on streams that the one in C-Blosc2 still compresses."""


def with_room(data: Bytes, neblock: int) -> Bytes:
    """Add streams of zeros behind `data` in small streams of `neblock` bytes, for `make` to compress with them.

    C-Blosc 1 gives up on data that do not get smaller together with a size and a start for each stream, although the
    starts of blocks would be enough. The zeros win it so much room.
    """
    if neblock >= _SMALL_STREAM:
        return data
    nextra = len(data) // neblock * 8 // (neblock - MIN_STREAM // 2) + 1
    return np.concatenate((data, np.zeros(nextra * neblock, np.uint8)))


_SMALL_STREAM = 4096
"""The start of a stream of so many bytes is too little to matter."""


def encode_stream(codec: int, data: Bytes, clevel: int) -> bytes | None:
    """Compress one stream; None if it does not get smaller, or if C-Blosc 1 will not make a single stream of it."""
    made = make(codec, data, clevel=clevel, shuffle=NOSHUFFLE, typesize=1, blocksize=len(data))
    if made is None or made.block_nbytes != len(data):
        return None
    payload = made.buf[BLOSC1_HEADER_LEN + 8 :]
    return payload if len(payload) < len(data) else None
