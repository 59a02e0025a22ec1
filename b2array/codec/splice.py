"""Replaces blocks of a chunk; the streams of all other blocks are copied unchanged.

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
from b2array.codec.chunk_header import ChunkHeader, CodecFormat, FilterId, Special
from b2array.codec.cparams import AUTO, CParams
from b2array.codec.encode import Task, header_of, plain, run_pipeline, with_kept_bits
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

    This is necessary if blocks depend on each other, as with a dictionary; if the chunk was encoded with other
    parameters (level and split may differ); or if only a chunk that becomes raw, or stops being raw, would be small.
    `old` has all bytes of the chunk. Its blocks and the blocks in `data` have one size. If the filters are chosen by
    the data, the old filters are kept; a chunk without blocks uses filters that suit its new data. `kept_bits` has the
    same meaning as in `encode`, for the new blocks.
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

    count = len(numbers)
    if header.special:
        # All old blocks are the same: encode one old block, after the new blocks.
        filling = _filling(old)
        # Most new data differ in the first block, so compare only the first block at first.
        if (data[:1] == filling).all() and (data == filling).all():
            return bytes(old.region)
        rows = np.concatenate((data, filling))
        new = _encode_blocks(replace(task, data=rows.reshape(-1)))
        sizes = np.full(header.nblocks, len(new[-1]), np.int64)
    else:
        new = _encode_blocks(task)
        sizes = old.stops - old.starts
    sizes[list(numbers)] = [len(block) for block in new[:count]]
    front = HEADER_LEN + 4 * header.nblocks
    cbytes = front + int(sizes.sum())
    if cbytes >= HEADER_LEN + header.nbytes:
        return None

    pieces: list[Buffer] = []
    done = 0
    # The last iteration copies the blocks after the last new block.
    stops = (*numbers, header.nblocks)
    blocks = (*new[:count], b"")
    for number, block in zip(stops, blocks, strict=True):
        if header.special:
            pieces += new[-1:] * (number - done)
        else:
            pieces += _copy_blocks(old, done, number)
        pieces.append(block)
        done = number + 1
    ends = front + np.cumsum(sizes)
    starts = (ends - sizes).astype("<i4")
    # The task has only the new blocks.
    head = replace(header_of(task, cbytes), nbytes=header.nbytes)
    return b"".join((head.pack(), starts.tobytes(), *pieces))


def _params(
    old: Stored,
    numbers: Sequence[int],
    data: Bytes,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> CParams | None:
    """Return parameters with the filters for new blocks among old blocks, or None if one chunk cannot contain both."""
    header = old.head.header
    if cparams.is_lossy and header.memcpyed:  # a raw chunk keeps its header, which may record kept bits
        return None
    if cparams.filters != AUTO:
        return cparams
    if not header.special:
        return choice.params_of(cparams, header)
    whole = np.repeat(_filling(old), header.nblocks, axis=0)
    whole[list(numbers)] = data
    flat = whole.reshape(-1)[: header.nbytes]
    return choice.choose(flat, _width(typesize), header.block_nbytes, cparams, blockshape)


def _width(typesize: int) -> int:
    """Return the size of an item as a chunk's header can store it."""
    return typesize if typesize <= 255 else 1


def _bits_of_all(old: ChunkHeader, new: int) -> int:
    """Return the number of mantissa bits in use in old and new blocks; 0 if it is unknown."""
    if old.special:
        return new if old.special == Special.ZEROS else 0
    metas = dict(zip(old.filters, old.filters_meta, strict=True))
    noted = metas.get(FilterId.TRUNC_PREC, 0)
    if not (noted and new):
        return 0
    return max(noted, new)


def _with_bits_of(old: ChunkHeader, cparams: CParams) -> ChunkHeader:
    """Return a header that records the same number of bits as the parameters; reading does not depend on it."""
    own = choice.exact_filters(old.filters, old.filters_meta)
    new = choice.exact_filters(cparams.filter_slots, cparams.meta_slots)
    if own != new:
        return old
    return replace(old, filters=cparams.filter_slots, filters_meta=cparams.meta_slots)


def _is_blockwise(old: ChunkHeader, task: Task) -> bool:
    """Return whether one chunk can contain the new blocks and the old blocks."""
    params = task.cparams
    if params.use_dict or FilterId.DELTA in params.filter_slots:  # blocks depend on the data of other blocks
        return False
    item_nbytes = max(1, old.cbytes - old.header_len)
    if old.special and old.block_nbytes % item_nbytes:
        return False
    if not old.has_streams:
        same_items = old.extended and old.typesize == task.typesize
        return same_items and (old.memcpyed or params.clevel > 0)
    if old.has_dict or old.instrumented or params.clevel == 0:
        return False
    new = header_of(task, old.cbytes)
    names = ["typesize", "filters", "filters_meta", "codec_format", "nstreams", "extended", "version"]
    if old.codec_format == CodecFormat.USER:
        names += ["udcodec", "codec_meta"]
    return all(getattr(old, name) == getattr(new, name) for name in names)


def _task(
    old: ChunkHeader,
    data: Bytes,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> Task:
    """Return the task to encode blocks, with as many streams as the old blocks."""
    width = _width(typesize)
    metas = cparams.metas_for(width)
    pipeline = filters.Pipeline(cparams.filter_slots, metas, width, blockshape=blockshape)
    if old.has_streams:
        split = old.nstreams > 1
    else:
        split = cparams.splits(width, old.block_nbytes)
    return Task(data, width, old.block_nbytes, cparams, split, pipeline)


def _encode_blocks(task: Task) -> list[Buffer]:
    """Encode blocks separately; a stream that would not be smaller is stored raw."""
    stored = Stored.whole(plain(task))
    if not stored.head.header.memcpyed:
        bounds = zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)
        return [stored.region[start:stop] for start, stop in bounds]
    streams = run_pipeline(task).reshape(task.nfull, task.nstreams, -1)
    size = struct.pack("<i", streams.shape[2])
    blocks: list[Buffer] = []
    for block in streams:
        pieces: list[Buffer] = []
        for stream in block:
            pieces += size, stream.data
        blocks.append(b"".join(pieces))
    return blocks


def _filling(old: Stored) -> Bytes:
    """Return the content of a block of a special chunk, as a row."""
    row = np.empty((1, old.head.header.block_nbytes), np.uint8)
    fill(old.head, row[0], (0,))
    return row


def _copy_blocks(old: Stored, first: int, last: int) -> list[Buffer]:
    """Return the stored blocks from `first` to before `last`, in one piece if they are contiguous."""
    starts = old.starts[first:last]
    stops = old.stops[first:last]
    if first < last and np.array_equal(starts[1:], stops[:-1]):
        begin = int(starts[0])
        end = int(stops[-1])
        return [old.region[begin:end]]
    bounds = zip(starts.tolist(), stops.tolist(), strict=True)
    return [old.region[start:stop] for start, stop in bounds]


def _patch(old: Stored, numbers: Sequence[int], data: Bytes, task: Task) -> bytes | None:
    """Return a raw chunk with the bytes of blocks replaced; None if compression makes any of them smaller."""
    if task.cparams.clevel:
        nbytes = sum(map(len, _encode_blocks(task)))
        if nbytes < data.size:
            return None
    buf = bytearray(old.region)
    for number, block in zip(numbers, data, strict=True):
        start = int(old.starts[number])
        buf[start : start + len(block)] = block.data
    return bytes(buf)
