"""One chunk to data: the whole, or any of its blocks.

Source: "Blosc Chunk Format". Blocks are decoded by one of three roads: *fused* (C-Blosc 1 undoes codec and shuffle
for many blocks in one call), *streams* (C-Blosc 1 undoes the codec, NumPy the filters) and, for dictionaries and
codecs that C-Blosc 1 does not have, stream by stream. A fourth one, which leaves the shuffle as it is, is in `planes`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer, scratch
from b2array.codec import cblosc, codecs, filters
from b2array.codec.header import (
    CODEC_FORMATS,
    MAX_DICT_NBYTES,
    NAN_BYTES,
    NO_FILTERS,
    ChunkHeader,
    CodecFormat,
    CodecId,
    FilterId,
    Special,
)
from b2array.codec.streams import MIN_STREAM, check_ratio, walk_many
from b2array.errors import FormatError, UnsupportedError

__all__ = [
    "Context",
    "Head",
    "Stored",
    "check_justified",
    "decode",
    "decode_blocks",
    "group_length",
    "groups",
    "head_nbytes",
    "needed_blocks",
    "reference_block",
    "room_for",
    "scratch_bytes",
    "shuffled",
    "unpack_head",
    "vl_blocks",
]

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

GROUP_NBYTES = 4 * 2**20
"""Blocks are decoded in groups of about this many bytes, so that a group is still in the cache when it is copied on."""

_INT32 = struct.Struct("<i")
_IDENTITY_ON_READ = (FilterId.NOFILTER, FilterId.TRUNC_PREC, FilterId.INT_TRUNC)


@dataclass(frozen=True, slots=True)
class Context:
    """What a frame knows about its chunks that they do not say themselves.

    Parameters
    ----------
    codec : int, optional
        The compcode for chunks that defer to their frame.
    codec_meta : int
        The codec's parameter byte beside it.
    blockshape : tuple of int, optional
        Shape in items of a block, for codecs and filters that know dimensions.
    """

    codec: int | None = None
    codec_meta: int = 0
    blockshape: tuple[int, ...] | None = None


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class Head:
    """A chunk without its blocks: header, where the blocks lie, dictionary.

    `starts` and `stops` are in bytes from the chunk's start, in block order, shape (nblocks,), int64; a block ends at
    its stop at the latest. They are empty for special chunks.
    """

    header: ChunkHeader
    starts: Int64Array
    stops: Int64Array
    dictionary: bytes | None = None
    value: bytes = b""
    plans: dict[tuple[Context, bool], Plan] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of a chunk that are at hand: `starts`, `stops` say where in `region` each block lies that is there.

    With `room`, so many bytes behind each block and the block itself are at the disposal of the engine, and every block
    can be decoded only once.
    """

    head: Head
    region: memoryview
    starts: Int64Array
    stops: Int64Array
    room: int = 0

    @classmethod
    def whole(cls, buf: Buffer, head: Head | None = None) -> Stored:
        """Return the chunk whose bytes are all in `buf`.

        Raises
        ------
        FormatError
            `buf` is shorter than the chunk says it is.
        UnsupportedError
            The chunk is lazy: its blocks are in the frame that it came from.
        """
        head = unpack_head(buf) if head is None else head
        if len(buf) < head.header.cbytes:
            raise FormatError(f"expected a chunk of {head.header.cbytes} bytes, found {len(buf)}")
        return cls(head, memoryview(buf).cast("B")[: head.header.cbytes], head.starts, head.stops)


def head_nbytes(buf: Buffer) -> int:
    """Return how many bytes of a chunk `unpack_head` needs, going by the 32 (at least 16) bytes in `buf`.

    A dictionary's size stands behind the block starts: if `buf` ends before it, its largest size is assumed.
    """
    header = ChunkHeader.unpack(buf)
    return _head_nbytes(header, buf)


def _head_nbytes(header: ChunkHeader, buf: Buffer) -> int:
    if header.special == Special.VALUE:
        return header.cbytes
    if not header.has_streams:
        return header.header_len
    nbytes = header.header_len + 4 * header.nblocks
    if nbytes > header.cbytes:
        raise FormatError(f"expected {header.nblocks} block starts in a chunk of {header.cbytes} bytes, found no room")
    if not header.has_dict:
        return nbytes
    if len(buf) < nbytes + 4:
        return min(nbytes + 4 + MAX_DICT_NBYTES, header.cbytes)
    (size,) = _INT32.unpack_from(buf, nbytes)
    if not 0 < size <= min(MAX_DICT_NBYTES, header.cbytes - nbytes - 4):
        raise FormatError(f"expected a dictionary of 1 to {MAX_DICT_NBYTES} bytes within the chunk, found {size}")
    return nbytes + 4 + int(size)


def unpack_head(buf: Buffer) -> Head:
    """Read header, block starts and dictionary from the first bytes of a chunk.

    Parameters
    ----------
    buf : bytes-like
        The chunk, or at least its first `head_nbytes` bytes.

    Raises
    ------
    FormatError, UnsupportedError
        The bytes are not the head of a chunk.
    """
    header = ChunkHeader.unpack(buf)
    if header.lazy:
        raise UnsupportedError("a lazy chunk can only be decoded with the frame that it came from")
    nbytes = _head_nbytes(header, buf)
    if len(buf) < nbytes:
        raise FormatError(f"expected {nbytes} bytes of chunk header and block starts, found {len(buf)}")
    header_len = header.header_len
    if header.special or not header.nbytes:
        value = bytes(memoryview(buf)[header_len:nbytes]) if header.special == Special.VALUE else b""
        return Head(header, _NO_BLOCKS, _NO_BLOCKS, None, value)
    if header.memcpyed:
        if header.nblocks > max(len(buf), _RAW_BLOCKS):
            raise FormatError(f"expected at most {_RAW_BLOCKS} blocks stored raw, found {header.nblocks}")
        starts = header_len + header.block_nbytes * np.arange(header.nblocks, dtype=np.int64)
        return Head(header, starts, np.minimum(starts + header.block_nbytes, header.cbytes))
    starts = np.frombuffer(buf, "<i4", header.nblocks, header_len).astype(np.int64)
    dictionary = None
    if header.has_dict:
        dictionary = bytes(memoryview(buf)[header_len + 4 * header.nblocks + 4 : nbytes])
    if int(starts.min()) < nbytes or int(starts.max()) > header.cbytes - 4:
        bad = int(starts[(starts < nbytes) | (starts > header.cbytes - 4)][0])
        raise FormatError(f"expected block starts of {nbytes} to {header.cbytes - 4}, found {bad}")
    if header.vl_blocks and (np.diff(starts) <= 0).any():
        raise FormatError("expected increasing starts of variable-length blocks, found others")
    return Head(header, starts, extents(starts, header.cbytes), dictionary)


_NO_BLOCKS: Int64Array = np.empty(0, np.int64)

_RAW_BLOCKS = 2**18
"""A raw chunk's header says how many blocks it has, and no block starts prove it: so many are believed at once."""


def needed_blocks(head: Head, numbers: Sequence[int] | Int64Array) -> Sequence[int] | Int64Array:
    """Return the blocks whose bytes are needed to decode the blocks `numbers`: with DELTA also the first."""
    if FilterId.DELTA in head.header.filters and head.header.has_streams and 0 not in numbers:
        return (0, *numbers)
    return numbers


def room_for(head: Head, nblocks: int) -> tuple[int, int]:
    """Return how many bytes in front of `nblocks` blocks and behind each of them are of use to the engine."""
    header = head.header
    # The first block is decoded twice where others build on it. Raw blocks, and those of more streams than C-Blosc 1
    # knows, are never changed.
    fixed = FilterId.DELTA in header.filters or header.memcpyed or header.nstreams > cblosc.MAX_SPLIT
    behind = 0 if fixed else cblosc.room_behind(header.nstreams, header.block_nbytes)
    return cblosc.room_in_front(nblocks * header.nstreams) + _ROOM_FOR_RUNS, behind


_ROOM_FOR_RUNS = 512
"""In front of blocks that stay shuffled, this takes what stands for their runs: one stream for each byte repeated."""


def decode(buf: Buffer, *, out: Bytes | None = None, context: Context = NO_CONTEXT) -> Bytes:
    """Decode a whole chunk.

    Parameters
    ----------
    buf : bytes-like
        The chunk; what follows its `cbytes` bytes is not looked at.
    out : ndarray of uint8, shape (nbytes,), optional
        Where to decode to; contiguous.
    context : Context
        What the frame adds.

    Returns
    -------
    ndarray of uint8, shape (nbytes,)

    Raises
    ------
    FormatError
        The bytes are not a chunk.
    UnsupportedError
        The chunk needs a codec or filter that is not there.
    """
    stored = Stored.whole(memoryview(buf).cast("B").toreadonly())
    header = stored.head.header
    limit = config.limits.chunk_nbytes
    if header.nbytes > limit:
        raise FormatError(f"expected at most {limit} bytes (config.limits.chunk_nbytes), found {header.nbytes}")
    if header.vl_blocks:
        data = np.frombuffer(b"".join(vl_blocks(stored, context=context)), np.uint8)
        if out is None:
            return data
        out[:] = data
        return out
    check_justified(stored, range(header.nblocks), context=context)
    if out is None:
        out = np.empty(header.nbytes, np.uint8)
    elif out.nbytes != header.nbytes:
        raise ValueError(f"out has {out.nbytes} bytes, the chunk {header.nbytes}")
    if header.special:
        _fill(stored.head, out, range(header.nblocks))
        return out
    step = group_length(header.block_nbytes)
    reference = reference_block(stored, context)
    for first in range(0, header.nblocks, step):
        numbers = range(first, min(first + step, header.nblocks))
        part = out[first * header.block_nbytes : numbers.stop * header.block_nbytes]
        decode_blocks(stored, numbers, part, context=context, reference=reference)
    return out


def group_length(block_nbytes: int) -> int:
    """Return how many blocks of `block_nbytes` bytes are decoded in one call."""
    return max(1, GROUP_NBYTES // max(1, block_nbytes))


def groups(
    stored: Stored, numbers: Sequence[int], *, context: Context = NO_CONTEXT
) -> Iterator[tuple[Sequence[int], Bytes]]:
    """Decode the blocks `numbers` group by group.

    Yields
    ------
    numbers : sequence of int
        The blocks of the group.
    data : ndarray of uint8, shape (len(numbers) * block_nbytes,) or less with a short last block
        Valid until the next group is asked for, in this thread.
    """
    header = stored.head.header
    check_justified(stored, numbers, context=context)
    step = group_length(header.block_nbytes)
    reference = reference_block(stored, context)
    room = scratch_bytes(min(step, len(numbers)) * header.block_nbytes)
    for first in range(0, len(numbers), step):
        group = numbers[first : first + step]
        nbytes = len(group) * header.block_nbytes
        if group[-1] == header.nblocks - 1:
            nbytes += header.last_block_nbytes - header.block_nbytes
        data = room[:nbytes]
        decode_blocks(stored, group, data, context=context, reference=reference)
        yield group, data


def scratch_bytes(nbytes: int) -> Bytes:
    """Return room for decoded blocks that this thread uses again and again."""
    return scratch("blocks", nbytes, 4 * GROUP_NBYTES)


def reference_block(stored: Stored, context: Context) -> Bytes | None:
    """Return the decoded first block if the other blocks build on it (DELTA), else None."""
    header = stored.head.header
    if FilterId.DELTA not in header.filters or not header.has_streams or header.vl_blocks:
        return None
    out = np.empty(header.block_nbytes, np.uint8)
    decode_blocks(stored, (0,), out, context=context)
    return out


def decode_blocks(
    stored: Stored,
    numbers: Sequence[int] | Int64Array,
    out: Bytes,
    *,
    context: Context = NO_CONTEXT,
    reference: Bytes | None = None,
) -> None:
    """Decode the blocks `numbers` into `out`, one behind the other.

    Parameters
    ----------
    stored : Stored
        The chunk; the bytes of the blocks must be at hand.
    numbers : sequence of int
        Increasing (a range must have step 1); a short last block can only come last.
    out : ndarray of uint8
        Contiguous, exactly as long as the blocks.
    context : Context
        What the frame adds.
    reference : ndarray of uint8, optional
        What `reference_block` returned; needed for DELTA unless block 0 is the first of `numbers`.
    """
    header = stored.head.header
    if header.special:
        _fill(stored.head, out, numbers)
        return
    pick = _picked(numbers)
    starts, stops = stored.starts[pick], stored.stops[pick]
    if header.memcpyed:
        _copy_raw(stored.region, starts.tolist(), stops.tolist(), out)
        return
    short = numbers[-1] == header.nblocks - 1 and header.last_block_nbytes != header.block_nbytes
    nfull = len(numbers) - short
    border = nfull * header.block_nbytes
    if nfull:
        plan = _plan_of(stored.head, context, short=False)
        target = out[:border].reshape(nfull, header.block_nbytes)
        _decode_full(plan, stored, starts[:nfull], stops[:nfull], target, reference, first=numbers[0] == 0)
    if short:
        plan = _plan_of(stored.head, context, short=True)
        target = out[border:].reshape(1, header.last_block_nbytes)
        _decode_full(plan, stored, starts[nfull:], stops[nfull:], target, reference, first=header.nblocks == 1)


def shuffled(stored: Stored, context: Context) -> cblosc.Recipe | None:
    """Return how full blocks of a chunk were made if the shuffle is all that is to be undone, else None."""
    header = stored.head.header
    if not header.has_streams or header.vl_blocks or header.block_nbytes > header.nbytes:
        return None
    plan = _plan_of(stored.head, context, short=False)
    return plan.recipe if plan.by_planes else None


def _copy_raw(region: memoryview, starts: list[int], stops: list[int], out: Bytes) -> None:
    position = 0
    for start, stop in zip(starts, stops, strict=True):
        out[position : position + stop - start] = np.frombuffer(region[start:stop], np.uint8)
        position += stop - start


def _fill(head: Head, out: Bytes, numbers: Sequence[int] | Int64Array) -> None:
    header = head.header
    if header.special not in (Special.VALUE, Special.NAN):
        out[:] = 0
        return
    item = head.value if header.special == Special.VALUE else NAN_BYTES[header.typesize]
    whole_items = header.block_nbytes % len(item) == 0
    # Blocks that do not hold whole items each begin somewhere else in one, unless they follow each other.
    parts = [(numbers[0], out)] if whole_items or isinstance(numbers, range) else _blockwise(header, numbers, out)
    for number, part in parts:
        phase = number * header.block_nbytes % len(item)
        turned = np.frombuffer(item[phase:] + item[:phase], np.uint8)
        border = len(part) - len(part) % len(item)
        part[:border].reshape(-1, len(item))[:] = turned
        part[border:] = turned[: len(part) - border]


def _blockwise(header: ChunkHeader, numbers: Sequence[int] | Int64Array, out: Bytes) -> Iterator[tuple[int, Bytes]]:
    for i, number in enumerate(numbers):
        yield number, out[i * header.block_nbytes : (i + 1) * header.block_nbytes]


class Plan(NamedTuple):
    """How the blocks of one size in a chunk are decoded."""

    codec: int
    codec_meta: int
    nstreams: int
    neblock: int
    recipe: cblosc.Recipe | None
    streamwise: bool
    pipeline: filters.Pipeline | None
    blockshape: tuple[int, ...] | None
    by_planes: bool = False


def _plan_of(head: Head, context: Context, *, short: bool) -> Plan:
    plan = head.plans.get((context, short))
    if plan is None:
        plan = head.plans[context, short] = _plan(head.header, context, short=short)
    return plan


def _plan(header: ChunkHeader, context: Context, *, short: bool) -> Plan:
    codec = header.codec_id(context.codec)
    fmt = header.codec_format
    meta = header.codec_meta if fmt == CodecFormat.USER else context.codec_meta
    return _plan_for(
        int(codec),
        meta,
        header.typesize,
        1 if short else header.nstreams,
        header.last_block_nbytes if short else header.block_nbytes,
        NO_FILTERS if header.instrumented else header.filters,
        header.filters_meta,
        header.version,
        header.has_dict,
        context.blockshape,
    )


@lru_cache(maxsize=1024)
def _plan_for(
    codec: int,
    codec_meta: int,
    typesize: int,
    nstreams: int,
    block_nbytes: int,
    ids: tuple[int, ...],
    metas: tuple[int, ...],
    version: int,
    has_dict: bool,
    blockshape: tuple[int, ...] | None,
) -> Plan:
    neblock = block_nbytes // nstreams
    if neblock == 0:
        raise FormatError(f"expected blocks of at least {nstreams} bytes for {nstreams} streams, found {block_nbytes}")
    pipeline = filters.Pipeline(ids, metas, typesize, version, blockshape)
    filters.check(pipeline)
    fmt = CODEC_FORMATS.get(codec)
    if fmt is None or has_dict:
        return Plan(codec, codec_meta, nstreams, neblock, None, False, _unless_identity(pipeline), blockshape)
    slot = max((i for i, fid in enumerate(ids) if fid not in _IDENTITY_ON_READ), default=None)
    shuffle, width = cblosc.NOSHUFFLE, typesize
    if slot is not None and ids[slot] == FilterId.SHUFFLE:
        shuffle, width = cblosc.SHUFFLE, metas[slot] or typesize
    elif slot is not None and ids[slot] == FilterId.BITSHUFFLE and block_nbytes // typesize % 8 == 0:
        shuffle = cblosc.BITSHUFFLE
    split = nstreams > 1
    can_split = width == nstreams <= cblosc.MAX_SPLIT and neblock >= MIN_STREAM and block_nbytes % nstreams == 0
    if split and not can_split:
        recipe = cblosc.Recipe(fmt, 1, cblosc.NOSHUFFLE, split=False, block_nbytes=neblock)
        return Plan(codec, codec_meta, nstreams, neblock, recipe, True, _unless_identity(pipeline), blockshape)
    recipe = cblosc.Recipe(fmt, width, shuffle, split=split, block_nbytes=block_nbytes)
    if shuffle != cblosc.NOSHUFFLE and slot is not None:
        pipeline = replace(pipeline, filters=(*ids[:slot], *NO_FILTERS[slot:]))
    rest = _unless_identity(pipeline)
    by_planes = shuffle == cblosc.SHUFFLE and rest is None and block_nbytes % width == 0
    return Plan(codec, codec_meta, nstreams, neblock, recipe, False, rest, blockshape, by_planes)


def _unless_identity(pipeline: filters.Pipeline) -> filters.Pipeline | None:
    return None if all(fid in _IDENTITY_ON_READ for fid in pipeline.filters) else pipeline


def _decode_full(
    plan: Plan,
    stored: Stored,
    starts: Int64Array,
    stops: Int64Array,
    target: Bytes,
    reference: Bytes | None,
    *,
    first: bool,
) -> None:
    """Decode blocks of one size into the rows of `target`."""
    stored_nbytes = plan.nstreams * plan.neblock
    exact = stored_nbytes == target.shape[1]
    rows = target if exact else np.empty((len(target), stored_nbytes), np.uint8)
    if plan.recipe is None:
        _decode_streams(plan, stored, starts, stops, rows)
    elif plan.streamwise:
        positions, csizes = walk_many(stored.region, starts.tolist(), stops.tolist(), plan.nstreams, plan.neblock)
        ends = positions + 4 + np.maximum(csizes, 0) + (csizes < 0)
        cblosc.decode(plan.recipe, stored.region, positions.ravel().tolist(), ends.ravel().tolist(), rows.reshape(-1))
    else:
        cblosc.decode(plan.recipe, stored.region, starts.tolist(), stops.tolist(), rows.reshape(-1), room=stored.room)
    if not exact:
        target[:, :stored_nbytes] = rows
        target[:, stored_nbytes:] = 0
    if plan.pipeline is not None:
        target[:] = filters.backward(plan.pipeline, target, reference=reference, first=first)


def _decode_streams(plan: Plan, stored: Stored, starts: Int64Array, stops: Int64Array, rows: Bytes) -> None:
    positions, csizes = walk_many(stored.region, starts.tolist(), stops.tolist(), plan.nstreams, plan.neblock)
    streams = rows.reshape(-1, plan.neblock)
    for position, csize, out in zip(positions.ravel().tolist(), csizes.ravel().tolist(), streams, strict=True):
        if csize <= 0:
            out[:] = -csize
        else:
            out[:] = _decode_payload(plan, stored, stored.region[position + 4 : position + 4 + csize], plan.neblock)


def _decode_payload(plan: Plan, stored: Stored, payload: memoryview, nbytes: int) -> Bytes:
    if len(payload) == nbytes:
        return np.frombuffer(payload, np.uint8)
    if plan.codec == CodecId.BLOSCLZ:
        if nbytes > len(payload) * codecs.MAX_RATIO[CodecId.BLOSCLZ]:
            raise FormatError(f"expected a BloscLZ stream that can hold {nbytes} bytes, found {len(payload)} bytes")
        return cblosc.decode_stream(CodecFormat.BLOSCLZ, payload, nbytes)
    data = codecs.decode(
        plan.codec,
        payload,
        nbytes,
        meta=plan.codec_meta,
        typesize=stored.head.header.typesize,
        blockshape=plan.blockshape,
        dictionary=stored.head.dictionary,
    )
    return np.frombuffer(data, np.uint8)


_PLAIN_RATIO = 255
"""What every codec may reach: up to here nothing is looked at."""


def check_justified(stored: Stored, numbers: Sequence[int] | Int64Array, *, context: Context = NO_CONTEXT) -> None:
    """Refuse blocks that their streams cannot possibly hold, before memory is taken for them.

    Raises
    ------
    FormatError
        A stream is too short for the bytes that it stands for.
    UnsupportedError
        The codec or a filter is not there.
    """
    header = stored.head.header
    nbytes = len(numbers) * header.block_nbytes
    if not header.has_streams or nbytes <= GROUP_NBYTES:
        return
    # Not all of the region: there may be more room behind blocks than there are bytes in them.
    pick = _picked(numbers)
    if nbytes <= _PLAIN_RATIO * min(int((stored.stops[pick] - stored.starts[pick]).sum()), len(stored.region)):
        return
    short = numbers[-1] == header.nblocks - 1 and header.last_block_nbytes != header.block_nbytes
    if short:
        _check_streams(_plan_of(stored.head, context, short=True), stored, numbers[-1:])
        numbers = numbers[:-1]
    if len(numbers):
        _check_streams(_plan_of(stored.head, context, short=False), stored, numbers)


def _check_streams(plan: Plan, stored: Stored, numbers: Sequence[int] | Int64Array) -> None:
    if plan.codec in CODEC_FORMATS:
        pick, ratio = _picked(numbers), codecs.MAX_RATIO[CodecId(plan.codec)]
        starts, stops = stored.starts[pick], stored.stops[pick]
        check_ratio(stored.region, starts, stops, plan.nstreams, plan.neblock, ratio)
    else:
        codecs.require(plan.codec)


def _picked(numbers: Sequence[int] | Int64Array) -> slice | Int64Array:
    return slice(numbers.start, numbers.stop) if isinstance(numbers, range) else np.asarray(numbers, np.int64)


def vl_blocks(stored: Stored, *, context: Context = NO_CONTEXT) -> Iterator[bytes]:
    """Decode the blocks of a chunk of variable-length blocks, one after the other.

    Raises
    ------
    FormatError
        A block does not decode, or the blocks do not add up to the chunk.
    """
    head = stored.head
    header = head.header
    total = 0
    for number, (start, stop) in enumerate(zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)):
        (nbytes,) = _INT32.unpack_from(stored.region, start)
        total += nbytes
        if nbytes <= 0 or total > header.nbytes:
            raise FormatError(
                f"expected blocks of {header.nbytes} bytes in all, found {nbytes} bytes in block {number}"
            )
        plan = _vl_plan(header, context, nbytes)
        data = _decode_payload(plan, stored, stored.region[start + 4 : stop], nbytes)
        if plan.pipeline is not None:
            data = filters.backward(plan.pipeline, data.reshape(1, -1), reference=None, first=True)
        yield data.tobytes()
    if total != header.nbytes:
        raise FormatError(f"expected blocks of {header.nbytes} bytes in all, found {total}")


def _vl_plan(header: ChunkHeader, context: Context, nbytes: int) -> Plan:
    plan = _plan(replace(header, flags2=0, nbytes=nbytes, blocksize=nbytes), context, short=False)
    pipeline = filters.Pipeline(header.filters, header.filters_meta, header.typesize)
    return plan._replace(pipeline=_unless_identity(pipeline))


def extents(starts: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """Find where each part of an object stops, for parts that lie without order and may be shared.

    Parameters
    ----------
    starts : (n,) array of int64
        The first byte of each part, in any order. Equal starts mean the same part.
    end : int
        The end of the object in bytes.

    Returns
    -------
    (n,) array of int64
        For each start the next larger start below `end`, or `end` if there is none. It is not larger than the start
        only where the start itself is not below `end`.

    Examples
    --------
    >>> extents(np.array([40, 10, 40, 20]), end=100)
    array([100,  20, 100,  40])
    """
    ordered = np.sort(starts)
    following = np.append(ordered, end)[np.searchsorted(ordered, starts, side="right")]
    stops: npt.NDArray[np.int64] = np.minimum(following, end)
    return stops
