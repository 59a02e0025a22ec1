"""One chunk from its data.

Source: "Blosc Chunk Format". Two roads lead through C-Blosc 1: *fused* (shuffle and codec of all blocks in one call,
where it makes exactly the blocks and streams that are wanted) and *streams* (NumPy filters, then one call in which each
stream is a block). Dictionaries, codecs that C-Blosc 1 lacks and streams that it would not make go one at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import cblosc, codecs, filters
from b2array.codec.cparams import CParams
from b2array.codec.header import (
    BLOSC1_HEADER_LEN,
    BLOSC2_FLAG_DICT,
    CODEC_FORMATS,
    FLAG2_VL_BLOCKS,
    FLAG_DELTA,
    FLAG_EXTENDED,
    FLAG_MEMCPYED,
    FLAG_UNSPLIT,
    NAN_BYTES,
    VERSION_VL_BLOCKS,
    ChunkHeader,
    CodecFormat,
    CodecId,
    FilterId,
    Special,
)
from b2array.codec.streams import MIN_STREAM, walk_many
from b2array.config import HEADER_LEN, MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, LimitError

__all__ = ["constant", "default_blocksize", "encode", "special_chunk", "stored_special", "vl_chunk"]

Bytes = npt.NDArray[np.uint8]

_MIN_COMPRESSED = 32
"""Fewer bytes than this are always stored as they are."""

_PROBE = 4096
"""Constant data are looked for only where the first bytes are constant."""

_LONGEST_RUN_RATIO = 64


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be encoded, and how."""

    data: Bytes
    typesize: int
    blocksize: int
    cparams: CParams
    split: bool
    pipeline: filters.Pipeline

    @property
    def nfull(self) -> int:
        return len(self.data) // self.blocksize

    @property
    def short(self) -> int:
        return len(self.data) % self.blocksize

    @property
    def nblocks(self) -> int:
        return self.nfull + (self.short > 0)

    @property
    def nstreams(self) -> int:
        return self.typesize if self.split else 1


def default_blocksize(nbytes: int, typesize: int) -> int:
    """Return the block size in bytes for a chunk of `nbytes` whose user has no wish: about 256 KiB, whole items."""
    size = min(nbytes, 2**18)
    return max(size - size % typesize, min(typesize, max(nbytes, 1)))


def _fitting(blocksize: int, nbytes: int, typesize: int) -> int:
    """Return `blocksize`, or if the data are shorter, the size of the whole items in them."""
    return blocksize if blocksize < nbytes else nbytes - nbytes % typesize or max(nbytes, 1)


def encode(
    data: Buffer | Bytes,
    *,
    typesize: int = 1,
    blocksize: int = 0,
    cparams: CParams = CParams(),  # noqa: B008 - frozen
    blockshape: tuple[int, ...] | None = None,
) -> bytes:
    """Encode one chunk.

    Parameters
    ----------
    data : bytes-like
        Up to 2147483615 bytes, blocks in order; an array is taken in C order.
    typesize : int, default 1
        Size of an item in bytes; above 255 the chunk's header says 1.
    blocksize : int, default 0
        Uncompressed size in bytes of a block; 0 chooses.
    cparams : CParams
        Codec, filters and how blocks are split.
    blockshape : tuple of int, optional
        Shape in items of a block, for codecs and filters that know dimensions.

    Returns
    -------
    bytes
        The chunk. Data of one repeated item become a special chunk of zeros or of a repeated value.

    Raises
    ------
    LimitError
        Data or blocks are larger than the format allows.
    UnsupportedError
        The codec or a filter only exists for reading, or an optional package is missing.
    """
    if isinstance(data, np.ndarray):
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    else:
        flat = np.frombuffer(data, np.uint8)
    if typesize < 1:
        raise ValueError(f"typesize must be at least 1, not {typesize}")
    if len(flat) > MAX_CHUNK_NBYTES:
        raise LimitError(f"a chunk holds at most {MAX_CHUNK_NBYTES} bytes, not {len(flat)}")
    width = typesize if typesize <= 255 else 1
    blocksize = _fitting(blocksize or default_blocksize(len(flat), width), len(flat), width)
    if blocksize > MAX_BLOCKSIZE:
        raise LimitError(f"a block holds at most {MAX_BLOCKSIZE} bytes, not {blocksize}")
    if blocksize % width and blocksize < len(flat):
        raise ValueError(f"blocksize must be a multiple of the typesize {width}, not {blocksize}")
    if cparams.clevel == 0 or len(flat) < _MIN_COMPRESSED:
        return _raw_chunk(flat, width, blocksize, cparams)
    value = constant(flat, typesize)
    if value is not None:
        return special_chunk(value, len(flat), typesize=typesize, blocksize=blocksize)
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(width), width, blockshape=blockshape)
    filters.check(pipeline, encode=True)
    job = _Job(flat, width, blocksize, cparams, cparams.splits(width, blocksize), pipeline)
    fused = _fused(job)
    plain = fused if fused is not None else _streamed(job)
    if not job.cparams.use_dict:
        return plain
    # A dictionary takes more room than it saves where blocks are large or have little in common.
    return min((plain, _with_dict(job) or plain), key=len)


def constant(data: Bytes, itemsize: int) -> bytes | None:
    """Return the one item that `data` (uint8, contiguous) repeats byte for byte, or None."""
    if not len(data):
        return None
    if len(data) % itemsize:
        # A torn item can repeat nothing but zeros.
        return None if data[0] or data.any() else bytes(itemsize)
    item = data[:itemsize]
    probe = data[: max(_PROBE // itemsize, 2) * itemsize]
    if not (probe.reshape(-1, itemsize) == item).all():
        return None
    if len(probe) < len(data) and not np.array_equal(data[itemsize:], data[:-itemsize]):
        return None
    return item.tobytes()


def special_chunk(value: bytes | Special, nbytes: int, *, typesize: int, blocksize: int = 0) -> bytes:
    """Make a chunk that repeats one item and stores no blocks.

    Parameters
    ----------
    value : bytes or Special
        The item (all zero bytes make a chunk of zeros), or the special value to announce.
    nbytes : int
        Uncompressed size in bytes.
    typesize : int
        Size of an item in bytes.
    blocksize : int, default 0
        As in the other chunks of the frame.
    """
    width = typesize if typesize <= 255 else 1
    item = b""
    special = Special.ZEROS
    if isinstance(value, Special):
        special = value
    elif any(value):
        special, item = Special.VALUE, value
    header = ChunkHeader(
        width, nbytes, blocksize or default_blocksize(nbytes, width), HEADER_LEN + len(item), FLAG_EXTENDED,
        blosc2_flags=special << 4,
    )  # fmt: skip
    return header.pack() + item


def stored_special(buf: bytes) -> bytes:
    """Turn a chunk of zeros, NaN or uninitialised values into one that repeats a value; others stay as they are.

    The C library cannot read parts of such chunks where they are stored, but of repeated values it can.
    """
    header = ChunkHeader.unpack(buf)
    if header.special in (Special.NONE, Special.VALUE):
        return buf
    item = NAN_BYTES[header.typesize] if header.special == Special.NAN else bytes(_item_nbytes(header))
    flags = header.blosc2_flags & 0x0F | Special.VALUE << 4
    return replace(header, cbytes=header.header_len + len(item), blosc2_flags=flags).pack() + item


def _item_nbytes(header: ChunkHeader) -> int:
    return header.typesize if header.nbytes % header.typesize == 0 else 1


def _raw_chunk(data: Bytes, typesize: int, blocksize: int, cparams: CParams) -> bytes:
    """Make a memcpyed chunk: the data as they are, unfiltered."""
    header = ChunkHeader(
        typesize, len(data), blocksize, HEADER_LEN + len(data), FLAG_EXTENDED | FLAG_MEMCPYED,
        filters=cparams.filter_slots, filters_meta=cparams.metas_for(typesize), udcodec=cparams.codec_id,
        codec_meta=cparams.codec_meta,
    )  # fmt: skip
    return b"".join((header.pack(), data.data))


def _header(job: _Job, cbytes: int, *, has_dict: bool = False) -> ChunkHeader:
    codec = job.cparams.codec_id
    fmt = CODEC_FORMATS.get(codec, CodecFormat.USER)
    flags = FLAG_EXTENDED | fmt << 5 | (0 if job.split else FLAG_UNSPLIT)
    if FilterId.DELTA in job.pipeline.filters:
        flags |= FLAG_DELTA
    return ChunkHeader(
        job.typesize, len(job.data), job.blocksize, cbytes, flags,
        filters=job.pipeline.filters, filters_meta=job.pipeline.metas, udcodec=codec,
        codec_meta=job.cparams.codec_meta, blosc2_flags=BLOSC2_FLAG_DICT if has_dict else 0,
    )  # fmt: skip


def _assembled(job: _Job, blocks: Sequence[Sequence[Buffer]], dictionary: bytes = b"") -> bytes:
    """Put a chunk together from the pieces of its blocks; raw if it is not smaller than the data."""
    lengths = [sum(map(len, pieces)) for pieces in blocks]
    section = struct.pack("<i", len(dictionary)) + dictionary if dictionary else b""
    head_nbytes = HEADER_LEN + 4 * len(blocks) + len(section)
    cbytes = head_nbytes + sum(lengths)
    if cbytes >= HEADER_LEN + len(job.data):
        return _raw_chunk(job.data, job.typesize, job.blocksize, job.cparams)
    starts = np.cumsum([head_nbytes, *lengths[:-1]], dtype="<i4")
    flat = (piece for pieces in blocks for piece in pieces)
    return b"".join((_header(job, cbytes, has_dict=bool(dictionary)).pack(), starts.tobytes(), section, *flat))


def _fused(job: _Job) -> bytes | None:
    """Encode by one call of C-Blosc 1 that shuffles and compresses, or return None where it cannot do exactly that."""
    codec, shuffle = job.cparams.codec_id, _c_shuffle(job)
    if codec not in CODEC_FORMATS:
        return None
    ask = cblosc.fused_ask(codec, job.typesize, job.blocksize, len(job.data))
    if ask is None or job.split != (codec != CodecId.ZSTD and job.typesize > 1):
        return None
    slot = max((i for i, fid in enumerate(job.pipeline.filters) if fid), default=None)
    earlier = job.pipeline
    if shuffle != cblosc.NOSHUFFLE and slot is not None:
        earlier = replace(earlier, filters=(*earlier.filters[:slot], *(0,) * (len(earlier.filters) - slot)))
    data = _filtered(replace(job, pipeline=earlier))
    made = cblosc.make(codec, data, clevel=job.cparams.clevel, shuffle=shuffle, typesize=job.typesize, blocksize=ask)
    if made is None:
        return _raw_chunk(job.data, job.typesize, job.blocksize, job.cparams)
    if made.block_nbytes != job.blocksize or made.split != job.split:
        return None
    return _from_made(job, made)


def _c_shuffle(job: _Job) -> int:
    """Return which shuffle of C-Blosc 1 stands for the last filter, NOSHUFFLE if there is none or NumPy does it."""
    used = [(fid, meta) for fid, meta in zip(job.pipeline.filters, job.pipeline.metas, strict=True) if fid]
    if not used:
        return cblosc.NOSHUFFLE
    fid, meta = used[-1]
    if fid == FilterId.SHUFFLE and meta in (0, job.typesize):
        return cblosc.SHUFFLE if job.typesize > 1 else cblosc.NOSHUFFLE
    whole = job.blocksize // job.typesize % 8 == 0 and job.short // job.typesize % 8 == 0
    if fid == FilterId.BITSHUFFLE and whole and not job.short % job.typesize:
        return cblosc.BITSHUFFLE
    return cblosc.NOSHUFFLE


def _filtered(job: _Job) -> Bytes:
    """Run the pipeline over all blocks."""
    if not any(job.pipeline.filters):
        return job.data
    border = job.nfull * job.blocksize
    reference = job.data[: job.blocksize]
    rows = job.data[:border].reshape(job.nfull, job.blocksize)
    full = filters.forward(job.pipeline, rows, reference=reference, first=True).reshape(-1)
    if not job.short:
        return full
    tail = job.data[border:].reshape(1, -1)
    last = filters.forward(job.pipeline, tail, reference=reference, first=job.nfull == 0).reshape(-1)
    return np.concatenate((full, last))


def _from_made(job: _Job, made: cblosc.Made) -> bytes:
    """Turn a Blosc1 chunk with the wanted blocks into a Blosc2 chunk."""
    region = memoryview(made.buf)
    stops = [*made.starts[1:].tolist(), len(made.buf)]
    blocks = _without_runs(job, region, made.starts.tolist(), stops)
    if blocks is not None:
        return _assembled(job, blocks)
    head = BLOSC1_HEADER_LEN + 4 * len(made.starts)
    cbytes = len(made.buf) - BLOSC1_HEADER_LEN + HEADER_LEN
    starts = (made.starts + (HEADER_LEN - BLOSC1_HEADER_LEN)).astype("<i4")
    return b"".join((_header(job, cbytes).pack(), starts.tobytes(), region[head:]))


def _without_runs(job: _Job, region: memoryview, starts: list[int], stops: list[int]) -> list[list[Buffer]] | None:
    """Cut blocks into pieces in which runs of one byte are replaced by their tokens; None if there is no run."""
    neblock = job.blocksize // job.nstreams
    blocks = _pieces(job, region, starts[: job.nfull], stops[: job.nfull], job.nstreams, neblock)
    if job.short:
        blocks += _pieces(job, region, starts[job.nfull :], stops[job.nfull :], 1, job.short)
    return blocks if any(len(pieces) > 1 for pieces in blocks) else None


def _pieces(
    job: _Job, region: memoryview, starts: list[int], stops: list[int], nstreams: int, neblock: int
) -> list[list[Buffer]]:
    fmt = CODEC_FORMATS[job.cparams.codec_id]
    positions, csizes = walk_many(region, starts, stops, nstreams, neblock)
    candidates = csizes <= max(neblock // _LONGEST_RUN_RATIO, 64)
    blocks: list[list[Buffer]] = []
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        cursor = start
        pieces: list[Buffer] = []
        for j in np.flatnonzero(candidates[i]).tolist() if candidates[i].any() else ():
            position, csize = int(positions[i, j]), int(csizes[i, j])
            value = _run_value(fmt, region[position + 4 : position + 4 + csize], neblock)
            if value is not None:
                pieces += [region[cursor:position], _run_token(value)]
                cursor = position + 4 + csize
        pieces.append(region[cursor:stop])
        blocks.append(pieces)
    return blocks


def _run_value(fmt: CodecFormat, payload: memoryview, nbytes: int) -> int | None:
    """Return the byte that a payload repeats `nbytes` times, or None if it holds anything else."""
    verb = _known_run_value if len(payload) <= _REMEMBERED else _decoded_run_value
    return verb(fmt, bytes(payload), nbytes)


def _decoded_run_value(fmt: CodecFormat, payload: bytes, nbytes: int) -> int | None:
    data = cblosc.decode_stream(fmt, payload, nbytes)
    return int(data[0]) if (data == data[0]).all() else None


_known_run_value = lru_cache(maxsize=4096)(_decoded_run_value)

_REMEMBERED = 1024
"""Payloads of up to so many bytes are kept: a run looks the same in every block."""


def _run_token(value: int) -> bytes:
    return struct.pack("<i", -value) + b"\x01" if value else bytes(4)


def _streamed(job: _Job) -> bytes:
    """Filter with NumPy, then compress each stream on its own."""
    filtered = _filtered(job)
    border = job.nfull * job.blocksize
    blocks = _full_blocks(job, filtered[:border])
    if job.short:
        blocks.append(_stream_pieces(job, filtered[border:]))
    return _assembled(job, blocks)


def _full_blocks(job: _Job, filtered: Bytes) -> list[list[Buffer]]:
    neblock, codec = job.blocksize // job.nstreams, job.cparams.codec_id
    typesize = _unsplit_typesize(codec, neblock)
    if typesize is None or not len(filtered):
        streams = filtered.reshape(-1, job.nstreams, neblock)
        return [[piece for stream in block for piece in _stream_pieces(job, stream)] for block in streams]
    made = cblosc.make(
        codec, cblosc.with_room(filtered, neblock), clevel=job.cparams.clevel, shuffle=cblosc.NOSHUFFLE,
        typesize=typesize, blocksize=neblock,
    )  # fmt: skip
    if made is None:
        size = struct.pack("<i", neblock)
        streams = filtered.reshape(-1, job.nstreams, neblock)
        return [[piece for stream in block for piece in (size, stream)] for block in streams]
    if made.block_nbytes != neblock or made.split:
        raise FormatError(f"expected streams of {neblock} bytes from C-Blosc, found {made.block_nbytes}")
    nblocks = len(filtered) // job.blocksize
    edges = [*made.starts[:: job.nstreams].tolist(), len(made.buf)]
    starts, stops = edges[:nblocks], edges[1 : nblocks + 1]
    whole = replace(job, data=job.data[: len(filtered)])
    region = memoryview(made.buf)
    runs_out = _without_runs(whole, region, starts, stops)
    return runs_out or [[region[start:stop]] for start, stop in zip(starts, stops, strict=True)]


def _unsplit_typesize(codec: int, neblock: int) -> int | None:
    """Return a typesize with which C-Blosc 1 makes unsplit blocks of exactly `neblock` bytes, None if there is none."""
    if codec not in CODEC_FORMATS or neblock < MIN_STREAM:
        return None
    if codec == CodecId.ZSTD or 2**16 <= neblock <= 2**18:
        return 1
    return next((t for t in range(cblosc.MAX_SPLIT + 1, 256) if neblock % t == 0), None)


def _stream_pieces(job: _Job, stream: Bytes, dictionary: bytes | None = None) -> list[Buffer]:
    """Encode one stream by itself."""
    if (stream == stream[0]).all():
        return [_run_token(int(stream[0]))]
    payload = _payload(job, stream, dictionary)
    if payload is None or len(payload) >= len(stream):
        return [struct.pack("<i", len(stream)), stream.tobytes()]
    return [struct.pack("<i", len(payload)), payload]


def _payload(job: _Job, stream: Bytes, dictionary: bytes | None) -> Buffer | None:
    codec = job.cparams.codec_id
    in_c = codec == CodecId.BLOSCLZ or (codec == CodecId.LZ4HC and len(stream) >= MIN_STREAM)
    if in_c and dictionary is None:
        return cblosc.encode_stream(codec, stream, job.cparams.clevel)
    return codecs.encode(
        codec,
        stream.data,
        clevel=job.cparams.clevel,
        meta=job.cparams.codec_meta,
        typesize=job.typesize,
        blockshape=job.pipeline.blockshape,
        dictionary=dictionary,
    )


def _with_dict(job: _Job) -> bytes | None:
    """Encode with a dictionary trained on the filtered blocks; None if the data are too small to train one."""
    filtered = _filtered(job)
    border = job.nfull * job.blocksize
    rows = filtered[:border].reshape(job.nfull, job.blocksize)
    dictionary = codecs.train(job.cparams.codec_id, rows, job.cparams.clevel) if job.nfull else None
    if dictionary is None:
        return None
    streams = rows.reshape(job.nfull, job.nstreams, job.blocksize // job.nstreams)
    blocks = [[piece for stream in block for piece in _stream_pieces(job, stream, dictionary)] for block in streams]
    if job.short:
        blocks.append(_stream_pieces(job, filtered[border:], dictionary))
    return _assembled(job, blocks, dictionary)


def vl_chunk(blocks: Iterable[Buffer], *, typesize: int = 1, cparams: CParams = CParams()) -> bytes:  # noqa: B008
    """Encode a chunk of blocks that have lengths of their own, in bytes, each above 0.

    Raises
    ------
    ValueError
        There is no block, or an empty one, or the filters contain delta: the C library cannot undo it here.
    """
    datas = [np.frombuffer(block, np.uint8) for block in blocks]
    if not datas or not all(len(data) for data in datas):
        raise ValueError("a chunk of variable-length blocks needs at least one block, and no block may be empty")
    width = typesize if typesize <= 255 else 1
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(width), width)
    filters.check(pipeline, encode=True)
    if FilterId.DELTA in pipeline.filters:
        raise ValueError("delta does not work with blocks of variable length, which have no first block in common")
    total = sum(map(len, datas))
    if total > MAX_CHUNK_NBYTES:
        raise LimitError(f"a chunk holds at most {MAX_CHUNK_NBYTES} bytes, not {total}")
    records = [_vl_record(data, pipeline, cparams) for data in datas]
    head_nbytes = HEADER_LEN + 4 * len(records)
    starts = np.cumsum([head_nbytes, *map(len, records[:-1])], dtype="<i4")
    job = _Job(datas[0], width, len(records), cparams, False, pipeline)
    header = replace(
        _header(job, head_nbytes + sum(map(len, records))),
        nbytes=total,
        version=VERSION_VL_BLOCKS,
        flags2=FLAG2_VL_BLOCKS,
    )
    return b"".join((header.pack(), starts.tobytes(), *records))


def _vl_record(data: Bytes, pipeline: filters.Pipeline, cparams: CParams) -> bytes:
    filtered = filters.forward(pipeline, data.reshape(1, -1), reference=data, first=True).reshape(-1)
    job = _Job(filtered, pipeline.typesize, len(data), cparams, False, pipeline)
    payload = _payload(job, filtered, None)
    if payload is None or len(payload) >= len(data):
        payload = filtered.tobytes()
    return struct.pack("<i", len(data)) + bytes(payload)
