"""A chunk with some of its blocks replaced: the streams of all other blocks are copied as they are.

Source: "Blosc Chunk Format", section Blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import choice, filters
from b2array.codec.chunk import Stored, fill
from b2array.codec.cparams import AUTO, CParams
from b2array.codec.encode import Task, header_of, plain, run_pipeline, with_kept_bits
from b2array.codec.header import ChunkHeader, CodecFormat, FilterId, Special
from b2array.config import HEADER_LEN

__all__ = ["splice"]

Bytes = npt.NDArray[np.uint8]


def splice(
    old: Stored,
    numbers: Sequence[int],
    data: Bytes,
    *,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
    kept_bits: int = 0,
) -> bytes | None:
    """Return a chunk with blocks replaced by `data`, ascending; None if all blocks have to be encoded together.

    That is so if blocks depend on each other, as with a dictionary; if the chunk was encoded with other parameters
    (level and split may differ); and if only a chunk that becomes raw, or stops being raw, would be small. `old` has
    all bytes of the chunk, whose blocks all have the size of those in `data`. If the filters are chosen by the data,
    they stay; a chunk without blocks gets those that suit it as it is now. `kept_bits` has the same meaning as in
    `encode`, for the new blocks.
    """
    header = old.head.header
    params = _params(old, numbers, data, typesize, cparams, blockshape)
    if params is None:
        return None
    if params.is_lossy:
        params = with_kept_bits(params, _bits_of_all(header, kept_bits))
        header = _with_bits_of(header, params)
    task = _task(header, data.reshape(-1), typesize, params, blockshape)
    if not _is_blockwise(header, task):
        return None
    if header.memcpyed:
        return _patch(old, numbers, data, task)
    filling = _filling(old) if header.special else data[:0]
    if header.special and (data[:1] == filling).all() and (data == filling).all():
        return bytes(old.region)
    new = _encode_blocks(replace(task, data=np.concatenate((data, filling)).reshape(-1)) if header.special else task)
    sizes = np.full(header.nblocks, len(new[-1]), np.int64) if header.special else old.stops - old.starts
    sizes[list(numbers)] = [len(block) for block in new[: len(numbers)]]
    front = HEADER_LEN + 4 * header.nblocks
    cbytes = front + int(sizes.sum())
    if cbytes >= HEADER_LEN + header.nbytes:
        return None
    pieces: list[Buffer] = []
    done = 0
    for number, block in zip((*numbers, header.nblocks), (*new[: len(numbers)], b""), strict=True):
        pieces += new[-1:] * (number - done) if header.special else _copy_blocks(old, done, number)
        pieces.append(block)
        done = number + 1
    starts = (front + np.cumsum(sizes) - sizes).astype("<i4")
    head = replace(header_of(task, cbytes), nbytes=header.nbytes).pack()
    return b"".join((head, starts.tobytes(), *pieces))


def _params(
    old: Stored,
    numbers: Sequence[int],
    data: Bytes,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> CParams | None:
    """Return parameters with the filters for new blocks beside old ones, or None if they cannot be in one chunk."""
    header = old.head.header
    if cparams.is_lossy and header.memcpyed:  # a raw chunk keeps its header, which may note bits
        return None
    if cparams.filters != AUTO:
        return cparams
    if not header.special:
        return choice.params_of(cparams, header)
    whole = np.repeat(_filling(old), header.nblocks, axis=0)
    whole[list(numbers)] = data
    width = typesize if typesize <= 255 else 1
    return choice.choose(whole.reshape(-1)[: header.nbytes], width, header.block_nbytes, cparams, blockshape)


def _bits_of_all(old: ChunkHeader, new: int) -> int:
    """Return how many bits of the mantissa are in use in old and in new blocks; 0 if that is not known."""
    if old.special:
        return new if old.special == Special.ZEROS else 0
    noted = dict(zip(old.filters, old.filters_meta, strict=True)).get(FilterId.TRUNC_PREC, 0)
    return max(noted, new) if noted and new else 0


def _with_bits_of(old: ChunkHeader, cparams: CParams) -> ChunkHeader:
    """Return a header that notes the same bits as the parameters; reading does not depend on them."""
    slots = zip(old.filters, old.filters_meta, strict=True)
    others = [pair for pair in slots if pair[0] not in (FilterId.NOFILTER, FilterId.TRUNC_PREC)]
    new = zip(cparams.filter_slots, cparams.meta_slots, strict=True)
    if others != [pair for pair in new if pair[0] not in (FilterId.NOFILTER, FilterId.TRUNC_PREC)]:
        return old
    return replace(old, filters=cparams.filter_slots, filters_meta=cparams.meta_slots)


def _is_blockwise(old: ChunkHeader, task: Task) -> bool:
    """Say whether new blocks can be in one chunk with the old ones."""
    if task.cparams.use_dict or FilterId.DELTA in task.cparams.filter_slots:  # blocks build on the data of others
        return False
    if old.special and old.block_nbytes % max(1, old.cbytes - old.header_len):
        return False
    if not old.has_streams:
        return old.extended and old.typesize == task.typesize and (old.memcpyed or task.cparams.clevel > 0)
    new = header_of(task, old.cbytes)
    same = ["typesize", "filters", "filters_meta", "codec_format", "nstreams", "extended", "version"]
    same += ["udcodec", "codec_meta"] * (old.codec_format == CodecFormat.USER)
    alone = not (old.has_dict or old.instrumented)
    return alone and task.cparams.clevel > 0 and all(getattr(old, name) == getattr(new, name) for name in same)


def _task(
    old: ChunkHeader,
    data: Bytes,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> Task:
    """Describe blocks to encode, with as many streams as the old ones."""
    width = typesize if typesize <= 255 else 1
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(width), width, blockshape=blockshape)
    split = old.nstreams > 1 if old.has_streams else cparams.splits(width, old.block_nbytes)
    return Task(data, width, old.block_nbytes, cparams, split, pipeline)


def _encode_blocks(task: Task) -> list[Buffer]:
    """Encode blocks, each for itself; a stream that does not get smaller is stored raw."""
    stored = Stored.whole(plain(task))
    if not stored.head.header.memcpyed:
        bounds = zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)
        return [stored.region[start:stop] for start, stop in bounds]
    streams = run_pipeline(task).reshape(task.nfull, task.nstreams, -1)
    size = struct.pack("<i", streams.shape[2])
    return [b"".join(piece for stream in block for piece in (size, stream.data)) for block in streams]


def _filling(old: Stored) -> Bytes:
    """Return what every block of a special chunk holds, as a row."""
    row = np.empty((1, old.head.header.block_nbytes), np.uint8)
    fill(old.head, row[0], (0,))
    return row


def _copy_blocks(old: Stored, first: int, stop: int) -> list[Buffer]:
    """Return the stored blocks from `first` to `stop`: in one piece if they follow each other."""
    starts, stops = old.starts[first:stop], old.stops[first:stop]
    if first < stop and np.array_equal(starts[1:], stops[:-1]):
        return [old.region[int(starts[0]) : int(stops[-1])]]
    return [old.region[start:end] for start, end in zip(starts.tolist(), stops.tolist(), strict=True)]


def _patch(old: Stored, numbers: Sequence[int], data: Bytes, task: Task) -> bytes | None:
    """Return a raw chunk with the bytes of some blocks replaced; None as soon as one of them gets smaller."""
    if task.cparams.clevel and sum(map(len, _encode_blocks(task))) < data.size:
        return None
    buf = bytearray(old.region)
    for number, block in zip(numbers, data, strict=True):
        start = int(old.starts[number])
        buf[start : start + len(block)] = block.data
    return bytes(buf)
