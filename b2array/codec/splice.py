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
from b2array.codec import filters
from b2array.codec.chunk import Stored, fill
from b2array.codec.cparams import CParams
from b2array.codec.encode import Task, header_of, plain, run_pipeline
from b2array.codec.header import ChunkHeader, CodecFormat, FilterId
from b2array.config import HEADER_LEN

__all__ = ["is_spliceable", "splice"]

Bytes = npt.NDArray[np.uint8]


def is_spliceable(old: ChunkHeader, typesize: int, blocksize: int, cparams: CParams) -> bool:
    """Say whether blocks of a chunk can be replaced without decoding the others.

    Parameters
    ----------
    old : ChunkHeader
        The header of the chunk.
    typesize, blocksize : int
        What the sizes have to be, in bytes.
    cparams : CParams
        How new blocks are encoded. Level and split may differ from those of the chunk.
    """
    if old.vl_blocks or old.block_nbytes != blocksize or old.last_block_nbytes != blocksize:
        return False
    if cparams.use_dict or FilterId.DELTA in cparams.filter_slots:  # blocks build on what other blocks hold
        return False
    if old.special:
        return old.typesize == _width(typesize) and cparams.clevel > 0
    if old.memcpyed:
        return old.extended
    new = header_of(_task(old, np.empty(0, np.uint8), blocksize, typesize, cparams, None), old.cbytes)
    same = ["typesize", "filters", "filters_meta", "codec_format", "nstreams", "extended", "version"]
    same += ["udcodec", "codec_meta"] * (old.codec_format == CodecFormat.USER)
    apart = not (old.has_dict or old.instrumented or old.lazy)
    return apart and cparams.clevel > 0 and all(getattr(old, name) == getattr(new, name) for name in same)


def splice(
    old: Stored, numbers: Sequence[int], data: Bytes, *, typesize: int, cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> bytes | None:  # fmt: skip
    """Return a chunk with some blocks replaced; None if all blocks have to be encoded together to make it small.

    Parameters
    ----------
    old : Stored
        The chunk, `is_spliceable`, with all its bytes.
    numbers : sequence of int
        The blocks to replace, ascending.
    data : ndarray of uint8, shape (blocks, blocksize)
        What they hold from now on.
    typesize : int
        Size of an item in bytes.
    cparams : CParams
        How to encode them.
    blockshape : tuple of int or None
        Shape in items of a block.
    """
    header = old.head.header
    blocksize, nblocks = header.block_nbytes, header.nblocks
    if header.memcpyed and not cparams.clevel:
        return _patched(old, numbers, data)
    if header.special:
        filling = np.empty((1, blocksize), np.uint8)
        if blocksize % max(1, len(old.head.value)):
            return None
        fill(old.head, filling[0], (0,))
        if (data[:1] == filling).all() and (data == filling).all():
            return bytes(old.region)
        data = np.concatenate((data, filling))
    task = _task(header, data.reshape(-1), blocksize, typesize, cparams, blockshape)
    blocks = _encoded(task)
    if header.memcpyed:
        # What does not get smaller stays raw. As soon as something does, all blocks get their chance.
        raw = sum(map(len, blocks)) >= len(numbers) * blocksize
        return _patched(old, numbers, data) if raw else None
    pieces: list[Buffer] = []
    sizes = old.stops - old.starts
    if header.special:
        sizes = np.full(nblocks, len(blocks[-1]), np.int64)
    done = 0
    for number, block in zip((*numbers, nblocks), (*blocks[: len(numbers)], b""), strict=True):
        if header.special:
            pieces += [blocks[-1]] * (number - done)
        elif done < number:
            pieces += _copied(old, done, number)
        if number < nblocks:
            pieces.append(block)
            sizes[number] = len(block)
        done = number + 1
    front = HEADER_LEN + 4 * nblocks
    cbytes = front + int(sizes.sum())
    if cbytes >= HEADER_LEN + header.nbytes:
        return None
    starts = (front + np.cumsum(sizes) - sizes).astype("<i4")
    new = replace(header_of(task, cbytes), nbytes=header.nbytes)
    return b"".join((new.pack(), starts.tobytes(), *pieces))


def _width(typesize: int) -> int:
    return typesize if typesize <= 255 else 1


def _task(
    old: ChunkHeader, data: Bytes, blocksize: int, typesize: int, cparams: CParams, blockshape: tuple[int, ...] | None
) -> Task:
    """Describe blocks to encode, split into streams as those of the chunk are."""
    width = _width(typesize)
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(width), width, blockshape=blockshape)
    split = old.nstreams > 1 if old.has_streams else cparams.splits(width, blocksize)
    return Task(data, width, blocksize, cparams, split, pipeline)


def _encoded(task: Task) -> list[Buffer]:
    """Encode blocks, each for itself; a stream that does not get smaller is stored raw."""
    made = Stored.whole(plain(task))
    if not made.head.header.memcpyed:
        bounds = zip(made.starts.tolist(), made.stops.tolist(), strict=True)
        return [made.region[start:stop] for start, stop in bounds]
    streams = run_pipeline(task).reshape(task.nfull, task.nstreams, -1)
    size = struct.pack("<i", streams.shape[2])
    return [b"".join(piece for stream in block for piece in (size, stream.data)) for block in streams]


def _copied(old: Stored, first: int, stop: int) -> list[Buffer]:
    """Return the stored blocks from `first` to `stop`: in one piece if they follow each other."""
    starts, stops = old.starts[first:stop], old.stops[first:stop]
    if np.array_equal(starts[1:], stops[:-1]):
        return [old.region[int(starts[0]) : int(stops[-1])]]
    return [old.region[start:end] for start, end in zip(starts.tolist(), stops.tolist(), strict=True)]


def _patched(old: Stored, numbers: Sequence[int], data: Bytes) -> bytes:
    """Return a raw chunk with the bytes of some blocks replaced."""
    buf = bytearray(old.region)
    for number, block in zip(numbers, data, strict=True):
        start = int(old.starts[number])
        buf[start : start + len(block)] = block.data
    return bytes(buf)
