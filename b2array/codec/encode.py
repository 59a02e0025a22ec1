"""Data -> a chunk.

Source: "Blosc Chunk Format". There are two methods with C-Blosc 1. *Fused*: one call shuffles and compresses all
blocks, if C-Blosc 1 makes exactly the blocks and streams that we want. *Streamwise*: NumPy filters, then one call
compresses all streams, each as a block. With dictionaries, and with codecs and streams that C-Blosc 1 does not support,
streams are encoded one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import cblosc, choice, codecs, filters, rounding
from b2array.codec.chunk_header import (
    BLOSC1_HEADER_LEN,
    BLOSC2_FLAG_DICT,
    CODEC_FORMATS,
    FLAG_DELTA,
    FLAG_EXTENDED,
    FLAG_MEMCPYED,
    FLAG_UNSPLIT,
    NAN_BYTES,
    NFILTERS,
    ChunkHeader,
    CodecFormat,
    CodecId,
    FilterId,
    Special,
)
from b2array.codec.cparams import AUTO, METADATA, AnyCParams, CParams, resolve_cparams
from b2array.codec.streams import MIN_STREAM, many_stream_positions
from b2array.config import HEADER_LEN, MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, LimitError

__all__ = [
    "Task",
    "compress",
    "constant",
    "default_blocksize",
    "encode",
    "encode_stream",
    "header_of",
    "make_storable",
    "plain",
    "run_pipeline",
    "special_chunk",
    "with_kept_bits",
]

Bytes = npt.NDArray[np.uint8]

_MIN_COMPRESSED = 32
"""The minimum number of bytes to compress; fewer bytes are always stored raw."""
_PROBE = 4096
"""The number of bytes to compare with the first item before all data are compared."""
_LONGEST_RUN_RATIO = 64
_LONGEST_ZSTD_RUN = 32
"""The maximum size, in bytes, of a zstd stream of a short run of one byte."""


@dataclass(frozen=True, slots=True)
class Task:
    """The data of a chunk, and the parameters to encode them."""

    data: Bytes
    typesize: int
    blocksize: int
    cparams: CParams
    split: bool
    pipeline: filters.Pipeline

    @property
    def nfull(self) -> int:
        """Number of blocks of full size."""
        return len(self.data) // self.blocksize

    @property
    def short(self) -> int:
        """Size in bytes of a short last block, or 0."""
        return len(self.data) % self.blocksize

    @property
    def nstreams(self) -> int:
        """Number of streams of a full block."""
        return self.typesize if self.split else 1


def default_blocksize(nbytes: int, typesize: int) -> int:
    """Return the default block size for a chunk of `nbytes` bytes: about 256 KiB, rounded to whole items."""
    size = min(nbytes, 2**18)
    # At least one item, if the chunk is large enough: a chunk without data still needs a block size.
    least = min(typesize, max(nbytes, 1))
    return max(size - size % typesize, least)


def encode(
    data: Buffer | Bytes,
    *,
    typesize: int = 1,
    blocksize: int = 0,
    cparams: CParams = METADATA,
    blockshape: tuple[int, ...] | None = None,
    kept_bits: int = 0,
) -> bytes:
    """Encode one chunk of up to 2147483615 bytes, in C order. Data that repeat one item become a special chunk.

    A `typesize` above 255 is 1 in the header of the chunk. A `blocksize` of 0 is the default. `blockshape`, in items,
    is for codecs and filters that use dimensions. For rounded floats, `kept_bits` is the number of mantissa bits in
    use, which the header records.
    """
    if isinstance(data, np.ndarray):
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    else:
        flat = np.frombuffer(data, np.uint8)
    if typesize < 1:
        raise ValueError(f"typesize must be at least 1, not {typesize}")
    if len(flat) > MAX_CHUNK_NBYTES:
        raise LimitError(f"a chunk holds at most {MAX_CHUNK_NBYTES} bytes, not {len(flat)}")
    # The header has one byte for the size of an item; larger items are stored as single bytes.
    width = typesize if typesize <= 255 else 1
    blocksize = blocksize or default_blocksize(len(flat), width)
    # One block, of whole items: the C library writes chunks that it cannot decode where a block ends inside an item.
    if blocksize >= len(flat):
        blocksize = len(flat) - len(flat) % width or max(len(flat), 1)
    if blocksize > MAX_BLOCKSIZE:
        raise LimitError(f"a block holds at most {MAX_BLOCKSIZE} bytes, not {blocksize}")
    if blocksize % width and blocksize < len(flat):
        raise ValueError(f"blocksize must be a multiple of the typesize {width}, not {blocksize}")
    if cparams.clevel == 0 or len(flat) < _MIN_COMPRESSED:
        return _raw_chunk(flat, width, blocksize, cparams)
    value = constant(flat, typesize)
    if value is not None:
        return special_chunk(value, len(flat), typesize=typesize, blocksize=blocksize)
    if cparams.filters == AUTO:
        cparams = choice.choose(flat, width, blocksize, cparams, blockshape)
    cparams = with_kept_bits(cparams, kept_bits)
    task = _task(flat, width, blocksize, cparams, blockshape)
    filters.check(task.pipeline, encode=True)
    chunk = plain(task)
    if not cparams.use_dict:
        return chunk
    # A dictionary costs more than it saves if blocks are large or have little in common.
    with_dict = _with_dict(task) or chunk
    return min(chunk, with_dict, key=len)


def _task(
    data: Bytes,
    typesize: int,
    blocksize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None = None,
) -> Task:
    metas = cparams.metas_for(typesize)
    pipeline = filters.Pipeline(cparams.filter_slots, metas, typesize, blockshape=blockshape)
    split = cparams.splits(typesize, blocksize)
    return Task(data, typesize, blocksize, cparams, split, pipeline)


@lru_cache(maxsize=256)
def with_kept_bits(cparams: CParams, bits: int) -> CParams:
    """Return parameters without bounds, with a filter that records the number of mantissa bits in use.

    The filter is omitted if `bits` is 0, or if all slots are taken.
    """
    exact = cparams.without_bounds()
    if not bits or len(exact.filters) == NFILTERS:
        return exact
    names = ("trunc_prec", *exact.filters)
    return replace(exact, filters=names, filters_meta=(bits, *exact.filters_meta))


def plain(task: Task) -> bytes:
    """Encode a chunk without a dictionary. Data that repeat one item also become blocks."""
    return _encode_in_c(task) or _encode_streams(task)


def compress(
    buf: Buffer | npt.NDArray[Any],
    *,
    typesize: int | None = None,
    cparams: AnyCParams = None,
) -> bytes:
    r"""Compress a buffer to one Blosc2 chunk.

    Parameters
    ----------
    buf : bytes-like or ndarray
        Up to 2147483615 bytes; an array is read in C order.
    typesize : int, optional
        Size of an item in bytes, for the filters and the split into streams; by default the size of the buffer's items.
    cparams : CParams, str or mapping, optional
        Compression parameters; by default zstd, with filters that suit the data. Only arrays of floats can have errors.

    Raises
    ------
    LimitError
        The buffer is too large for a chunk.
    UnsupportedError
        A filter can only be read, or an optional package is missing.

    Examples
    --------
    >>> import b2array
    >>> chunk = b2array.compress(bytes(range(100)) * 1000, typesize=4)
    >>> len(chunk) < 2000
    True
    >>> b2array.decompress(chunk)[:4]
    b'\x00\x01\x02\x03'
    """
    if typesize is None:
        items = buf if isinstance(buf, np.ndarray) else memoryview(buf)
        typesize = items.itemsize
    params = resolve_cparams(cparams)
    if params.is_lossy:
        dtype = buf.dtype if isinstance(buf, np.ndarray) else np.dtype(np.void)
        rounding.check_dtype(params, dtype)
        buf = rounding.round_items(np.ascontiguousarray(buf), params)
    return encode(buf, typesize=typesize, cparams=params)


_COMPARED_AT_ONCE = 2**22


def constant(data: Bytes, itemsize: int) -> bytes | None:
    """Return the item that `data` (uint8, contiguous) repeats byte for byte, or None."""
    # The C library reads no chunk of zeros that ends inside an item.
    if not len(data) or len(data) % itemsize:
        return None
    item = data[:itemsize]
    nprobed = max(_PROBE // itemsize, 2) * itemsize
    probe = data[:nprobed]
    if not (probe.reshape(-1, itemsize) == item).all():
        return None
    if len(probe) == len(data):
        return item.tobytes()
    # Compare the data with themselves, shifted by one item, which needs no memory for a result, however large they are.
    before = data[:-itemsize]
    after = data[itemsize:]
    for start in range(0, len(before), _COMPARED_AT_ONCE):
        stop = start + _COMPARED_AT_ONCE
        if not np.array_equal(after[start:stop], before[start:stop]):
            return None
    return item.tobytes()


def special_chunk(
    value: bytes | Special,
    nbytes: int,
    *,
    typesize: int,
    blocksize: int = 0,
) -> bytes:
    """Make a chunk without blocks, from a repeated item or from a special value.

    The sizes are in bytes. An item of zero bytes makes a chunk of zeros.
    """
    width = typesize if typesize <= 255 else 1
    item = b""
    special = Special.ZEROS
    if isinstance(value, Special):
        special = value
    elif any(value):
        special = Special.VALUE
        item = value
    blocksize = blocksize or default_blocksize(nbytes, width)
    if item:
        # The C library refuses blocks with a part of an item, which only large items make.
        whole = blocksize - blocksize % len(item)
        blocksize = max(whole, len(item))
    cbytes = HEADER_LEN + len(item)
    header = ChunkHeader(width, nbytes, blocksize, cbytes, FLAG_EXTENDED, blosc2_flags=special << 4)
    return header.pack() + item


def make_storable(buf: bytes) -> bytes:
    """Convert a chunk of zeros, NaN or uninitialised values to a storable chunk; return other chunks unchanged.

    The C library cannot read parts of such chunks from a file, except chunks of repeated values. It does not open a
    frame with a repeated value that is shorter than an item. Chunks do not store the size of large items, so zeros
    become blocks.
    """
    header = ChunkHeader.unpack(buf)
    if header.special in (Special.NONE, Special.VALUE):
        return buf
    if header.special == Special.NAN:
        item = NAN_BYTES[header.typesize]
        flags = header.blosc2_flags & 0x0F | Special.VALUE << 4
        cbytes = header.header_len + len(item)
        return replace(header, cbytes=cbytes, blosc2_flags=flags).pack() + item
    # Zeros: each block is one stream, a run of the byte 0.
    blocksize = default_blocksize(header.nbytes, header.typesize)
    nblocks = -(-header.nbytes // blocksize)
    front = HEADER_LEN + 4 * nblocks
    starts = front + 4 * np.arange(nblocks, dtype="<i4")
    cbytes = front + 4 * nblocks
    new = ChunkHeader(header.typesize, header.nbytes, blocksize, cbytes, FLAG_EXTENDED | FLAG_UNSPLIT)
    tokens = bytes(4 * nblocks)
    return b"".join((new.pack(), starts.tobytes(), tokens))


def _raw_chunk(data: Bytes, typesize: int, blocksize: int, cparams: CParams) -> bytes:
    """Make a chunk of the unfiltered data."""
    return b"".join((_raw_header(typesize, len(data), blocksize, cparams), data.data))


@lru_cache(maxsize=128)
def _raw_header(typesize: int, nbytes: int, blocksize: int, cparams: CParams) -> bytes:
    # Most raw chunks are indexes and other metadata of a frame, which have the same size at each commit.
    header = ChunkHeader(
        typesize,
        nbytes,
        blocksize,
        HEADER_LEN + nbytes,
        FLAG_EXTENDED | FLAG_MEMCPYED,
        filters=cparams.filter_slots,
        filters_meta=cparams.metas_for(typesize),
        udcodec=cparams.codec_id,
        codec_meta=cparams.codec_meta,
    )
    return header.pack()


def header_of(task: Task, cbytes: int, *, has_dict: bool = False) -> ChunkHeader:
    """Return the header of a chunk with the data of a task."""
    codec = task.cparams.codec_id
    fmt = CODEC_FORMATS.get(codec, CodecFormat.USER)
    flags = FLAG_EXTENDED | fmt << 5
    if not task.split:
        flags |= FLAG_UNSPLIT
    if FilterId.DELTA in task.pipeline.filters:
        flags |= FLAG_DELTA
    return ChunkHeader(
        task.typesize,
        len(task.data),
        task.blocksize,
        cbytes,
        flags,
        filters=task.pipeline.filters,
        filters_meta=task.pipeline.metas,
        # Also for built-in codecs, as the C library does.
        udcodec=codec,
        codec_meta=task.cparams.codec_meta,
        blosc2_flags=BLOSC2_FLAG_DICT if has_dict else 0,
    )


def _assemble(task: Task, blocks: Sequence[Sequence[Buffer]], dictionary: bytes = b"") -> bytes:
    """Join the pieces of the blocks to a chunk; raw if it would not be smaller than the data."""
    lengths = [sum(map(len, pieces)) for pieces in blocks]
    section = b""
    if dictionary:
        section = struct.pack("<i", len(dictionary)) + dictionary
    head_nbytes = HEADER_LEN + 4 * len(blocks) + len(section)
    cbytes = head_nbytes + sum(lengths)
    # The C library gives a chunk of a frame no more room than this.
    if cbytes >= HEADER_LEN + len(task.data):
        return _raw_chunk(task.data, task.typesize, task.blocksize, task.cparams)
    header = header_of(task, cbytes, has_dict=bool(dictionary))
    starts = np.cumsum([head_nbytes, *lengths[:-1]], dtype="<i4")
    flat = (piece for pieces in blocks for piece in pieces)
    return b"".join((header.pack(), starts.tobytes(), section, *flat))


def _encode_in_c(task: Task) -> bytes | None:
    """Shuffle and compress with one call of C-Blosc 1; None if it cannot make the requested blocks."""
    codec = task.cparams.codec_id
    if codec not in CODEC_FORMATS or _is_of_plain_items(task):
        return None
    ask = cblosc.fused_ask(codec, task.typesize, task.blocksize, len(task.data))
    splits_in_c = codec != CodecId.ZSTD and task.typesize > 1
    if ask is None or task.split != splits_in_c:
        return None
    shuffle = _c_shuffle(task)
    ids = task.pipeline.filters
    active = [i for i, fid in enumerate(ids) if fid]
    earlier = task.pipeline
    if shuffle != cblosc.NOSHUFFLE and active:
        # C-Blosc 1 applies the last filter itself.
        last = active[-1]
        unused = (0,) * (len(ids) - last)
        earlier = replace(earlier, filters=(*ids[:last], *unused))
    data = run_pipeline(replace(task, pipeline=earlier))
    chunk = cblosc.compress_blocks(
        codec,
        data,
        clevel=task.cparams.clevel,
        shuffle=shuffle,
        typesize=task.typesize,
        blocksize=ask,
    )
    if chunk is None:
        return _raw_chunk(task.data, task.typesize, task.blocksize, task.cparams)
    if chunk.block_nbytes != task.blocksize or chunk.split != task.split:
        return None
    return _from_blosc1(task, chunk)


def _c_shuffle(task: Task) -> int:
    """Return the shuffle of C-Blosc 1 that equals the last filter, or NOSHUFFLE."""
    slots = zip(task.pipeline.filters, task.pipeline.metas, strict=True)
    used = [(fid, meta) for fid, meta in slots if fid]
    if not used:
        return cblosc.NOSHUFFLE
    fid, meta = used[-1]
    if fid == FilterId.SHUFFLE and meta in (0, task.typesize):
        return cblosc.SHUFFLE if task.typesize > 1 else cblosc.NOSHUFFLE
    if fid == FilterId.BITSHUFFLE:
        # Both libraries write the same bytes only for whole groups of eight items.
        has_whole_groups = task.blocksize // task.typesize % 8 == 0 and task.short // task.typesize % 8 == 0
        if has_whole_groups and not task.short % task.typesize:
            return cblosc.BITSHUFFLE
    return cblosc.NOSHUFFLE


_FILTERED_AT_ONCE = 2**22


def run_pipeline(task: Task) -> Bytes:
    """Run the pipeline over all blocks."""
    if not any(task.pipeline.filters):
        return task.data
    nfull, short = divmod(len(task.data), task.blocksize)
    border = nfull * task.blocksize
    reference = task.data[: task.blocksize]
    rows = task.data[:border].reshape(nfull, task.blocksize)
    full = _filter(task, rows, reference, first=True)
    if not short:
        return full
    tail = task.data[border:].reshape(1, -1)
    last = _filter(task, tail, reference, first=nfull == 0)
    return np.concatenate((full, last))


def _from_blosc1(task: Task, chunk: cblosc.Blosc1Chunk) -> bytes:
    """Turn a Blosc1 chunk into a Blosc2 chunk with the same blocks."""
    region = memoryview(chunk.buf)
    stops = [*chunk.starts[1:].tolist(), len(chunk.buf)]
    blocks = _without_runs(task, region, chunk.starts.tolist(), stops)
    if blocks is not None:
        return _assemble(task, blocks)
    # The longer header of Blosc2 moves all blocks by the same number of bytes.
    shift = HEADER_LEN - BLOSC1_HEADER_LEN
    cbytes = len(chunk.buf) + shift
    starts = (chunk.starts + shift).astype("<i4")
    head = BLOSC1_HEADER_LEN + 4 * len(starts)
    return b"".join((header_of(task, cbytes).pack(), starts.tobytes(), region[head:]))


def _without_runs(
    task: Task,
    region: memoryview,
    starts: list[int],
    stops: list[int],
) -> list[list[Buffer]] | None:
    """Return the blocks in pieces, with runs of one byte replaced with tokens; None if there are no runs."""
    nfull, short = divmod(len(task.data), task.blocksize)
    nstreams = task.nstreams
    neblock = task.blocksize // nstreams
    blocks = _pieces(task, region, starts[:nfull], stops[:nfull], nstreams, neblock)
    if short:
        # A short last block is one stream, even if the others are split.
        blocks += _pieces(task, region, starts[nfull:], stops[nfull:], 1, short)
    has_runs = max(map(len, blocks), default=0) > 1
    return blocks if has_runs else None


def _pieces(
    task: Task,
    region: memoryview,
    starts: list[int],
    stops: list[int],
    nstreams: int,
    neblock: int,
) -> list[list[Buffer]]:
    fmt = CODEC_FORMATS[task.cparams.codec_id]
    positions, csizes = many_stream_positions(region, starts, stops, nstreams, neblock)
    # A run takes few bytes in every codec, so decode only short streams to detect runs.
    candidates = csizes <= max(neblock // _LONGEST_RUN_RATIO, 64)
    blocks: list[list[Buffer]] = []
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        cursor = start
        pieces: list[Buffer] = []
        numbers = np.flatnonzero(candidates[i]).tolist() if candidates[i].any() else ()
        for j in numbers:
            position = int(positions[i, j])
            end = position + 4 + int(csizes[i, j])
            value = _run_value(fmt, region[position + 4 : end], neblock)
            if value is not None:
                pieces += [region[cursor:position], _run_token(value)]
                cursor = end
        pieces.append(region[cursor:stop])
        blocks.append(pieces)
    return blocks


def _run_value(fmt: CodecFormat, payload: memoryview, nbytes: int) -> int | None:
    """Return the byte that the decoded `nbytes` bytes of a payload repeat, or None."""
    run_value = _cached_run_value if len(payload) <= _MOST_CACHED else _decode_run_value
    return run_value(fmt, bytes(payload), nbytes)


def _decode_run_value(fmt: CodecFormat, payload: bytes, nbytes: int) -> int | None:
    data = cblosc.decode_stream(fmt, payload, nbytes)
    is_run = (data == data[0]).all()
    return int(data[0]) if is_run else None


_cached_run_value = lru_cache(maxsize=4096)(_decode_run_value)
_MOST_CACHED = 1024
"""The maximum size of a payload whose run is cached, in bytes: equal runs have equal payloads in every block."""


def _run_token(value: int) -> bytes:
    # Source: "Blosc Chunk Format", section Blocks: a size of 0 is a run of zeros; -n and a token, of the byte n.
    return struct.pack("<i", -value) + b"\x01" if value else bytes(4)


def _encode_streams(task: Task) -> bytes:
    """Filter with NumPy, then compress the streams: many blocks at a time, which saves memory in large chunks."""
    blocks: list[list[Buffer]] = []
    blocksize, nfull = task.blocksize, task.nfull
    reference = task.data[:blocksize]
    step = max(1, _FILTERED_AT_ONCE // blocksize)
    for first in range(0, nfull, step):
        stop = min(first + step, nfull)
        group = task.data[first * blocksize : stop * blocksize]
        rows = group.reshape(-1, blocksize)
        filtered = _filter(task, rows, reference, first=first == 0)
        blocks += _full_blocks(replace(task, data=group), filtered)
    if task.short:
        tail = task.data[nfull * blocksize :].reshape(1, -1)
        filtered = _filter(task, tail, reference, first=nfull == 0)
        blocks.append(_stream_pieces(task, filtered))
    return _assemble(task, blocks)


def _filter(task: Task, rows: Bytes, reference: Bytes, *, first: bool) -> Bytes:
    """Run the pipeline over blocks, one per row; with `first`, row 0 is the chunk's first block."""
    if not any(task.pipeline.filters):
        return rows.reshape(-1)
    return filters.forward(task.pipeline, rows, reference=reference, first=first).reshape(-1)


def _full_blocks(task: Task, filtered: Bytes) -> list[list[Buffer]]:
    codec = task.cparams.codec_id
    neblock = task.blocksize // task.nstreams
    if codec == CodecId.ZSTD and (neblock <= cblosc.LONGEST_ZSTD or _is_of_plain_items(task)):
        return _zstd_blocks(task, filtered, neblock)
    typesize = _unsplit_typesize(codec, neblock)
    streams = filtered.reshape(-1, task.nstreams, neblock)
    if typesize is None or not len(filtered):
        return [_block_pieces(task, block) for block in streams]
    chunk = cblosc.compress_blocks(
        codec,
        cblosc.with_compressible_tail(filtered, neblock),
        clevel=task.cparams.clevel,
        shuffle=cblosc.NOSHUFFLE,
        typesize=typesize,
        blocksize=neblock,
    )
    if chunk is None:
        size = struct.pack("<i", neblock)
        raw: list[list[Buffer]] = []
        for block in streams:
            pieces: list[Buffer] = []
            for stream in block:
                pieces += size, stream
            raw.append(pieces)
        return raw
    if chunk.block_nbytes != neblock or chunk.split:
        raise FormatError(f"expected streams of {neblock} bytes from C-Blosc, found {chunk.block_nbytes}")
    # Return only the requested streams, not the zeros at the end, which made the data compressible.
    nblocks = len(filtered) // task.blocksize
    edges = [*chunk.starts[:: task.nstreams].tolist(), len(chunk.buf)]
    starts = edges[:nblocks]
    stops = edges[1 : nblocks + 1]
    whole = replace(task, data=task.data[: len(filtered)])
    region = memoryview(chunk.buf)
    blocks = _without_runs(whole, region, starts, stops)
    if blocks is not None:
        return blocks
    return [[region[start:stop]] for start, stop in zip(starts, stops, strict=True)]


def _block_pieces(task: Task, block: Bytes, dictionary: bytes | None = None) -> list[Buffer]:
    """Encode the streams of a block one by one."""
    pieces: list[Buffer] = []
    for stream in block:
        pieces += _stream_pieces(task, stream, dictionary)
    return pieces


def _is_of_plain_items(task: Task) -> bool:
    """Return whether full blocks are single streams of unfiltered items, for which zstd has better parameters."""
    is_plain = not task.split and not set(task.pipeline.filters) - {FilterId.NOFILTER, FilterId.TRUNC_PREC}
    return is_plain and codecs.is_for_items(
        task.cparams.codec_id,
        task.blocksize,
        task.typesize,
        task.cparams.clevel,
    )


def _zstd_blocks(task: Task, filtered: Bytes, neblock: int) -> list[list[Buffer]]:
    """Compress zstd streams with one context; C-Blosc 1 would make a context for each stream, and ignore items."""
    view = filtered.data
    size = struct.pack("<i", neblock)
    of_items = _is_of_plain_items(task)
    blocks: list[list[Buffer]] = []
    for start in range(0, len(filtered), task.blocksize):
        pieces: list[Buffer] = []
        for position in range(start, start + task.blocksize, neblock):
            end = position + neblock
            stream = view[position:end]
            if of_items:
                payload = codecs.encode_items(stream)
            else:
                payload = codecs.encode(CodecId.ZSTD, stream, clevel=task.cparams.clevel)
            nbytes = neblock if payload is None else len(payload)
            if nbytes <= _LONGEST_ZSTD_RUN and (filtered[position:end] == stream[0]).all():
                pieces.append(_run_token(stream[0]))
            elif payload is None:
                pieces += size, stream
            else:
                pieces += struct.pack("<i", nbytes), payload
        blocks.append(pieces)
    return blocks


def _unsplit_typesize(codec: int, neblock: int) -> int | None:
    """Return a typesize with which C-Blosc 1 makes unsplit blocks of `neblock` bytes, or None."""
    if codec not in CODEC_FORMATS or neblock < MIN_STREAM:
        return None
    if codec == CodecId.ZSTD or 2**16 <= neblock <= 2**18:
        return 1
    # C-Blosc 1 does not split items of more than 16 bytes.
    for typesize in range(cblosc.MAX_SPLIT + 1, 256):
        if neblock % typesize == 0:
            return typesize
    return None


def _stream_pieces(task: Task, stream: Bytes, dictionary: bytes | None = None) -> list[Buffer]:
    """Encode one stream."""
    if (stream == stream[0]).all():
        return [_run_token(int(stream[0]))]
    payload = encode_stream(stream, task.cparams, task.typesize, task.pipeline.blockshape, dictionary)
    if payload is None or len(payload) >= len(stream):
        return [struct.pack("<i", len(stream)), stream.tobytes()]
    return [struct.pack("<i", len(payload)), payload]


def encode_stream(
    stream: Bytes,
    cparams: CParams,
    typesize: int = 1,
    blockshape: tuple[int, ...] | None = None,
    dictionary: bytes | None = None,
) -> Buffer | None:
    """Encode one stream, after its filters; None if it would not become smaller."""
    codec = cparams.codec_id
    # C-Blosc 1 has the only encoder of BloscLZ, and encodes LZ4HC if the package lz4 is missing.
    in_c = codec == CodecId.BLOSCLZ or (codec == CodecId.LZ4HC and len(stream) >= MIN_STREAM)
    if in_c and dictionary is None:
        return cblosc.encode_stream(codec, stream, cparams.clevel)
    return codecs.encode(
        codec,
        stream.data,
        clevel=cparams.clevel,
        meta=cparams.codec_meta,
        typesize=typesize,
        blockshape=blockshape,
        dictionary=dictionary,
    )


def _with_dict(task: Task) -> bytes | None:
    """Encode with a dictionary of the filtered blocks; None if there are too few data for a dictionary."""
    filtered = run_pipeline(task)
    if not task.nfull:
        return None
    border = task.nfull * task.blocksize
    rows = filtered[:border].reshape(task.nfull, task.blocksize)
    dictionary = codecs.train(task.cparams.codec_id, rows, task.cparams.clevel)
    if dictionary is None:
        return None
    streams = rows.reshape(task.nfull, task.nstreams, -1)
    blocks = [_block_pieces(task, block, dictionary) for block in streams]
    if task.short:
        blocks.append(_stream_pieces(task, filtered[border:], dictionary))
    return _assemble(task, blocks, dictionary)
