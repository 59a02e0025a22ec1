"""A chunk -> its data: all of it, some blocks, or the same items of some blocks.

Source: "Blosc Chunk Format". A `DecodePlan` selects the method for decoding the blocks of a chunk. *Fused*: C-Blosc 1
undoes codec and shuffle of many blocks in one call. *Streamwise*: C-Blosc 1 undoes the codec, with each stream as a
block, and NumPy the filters. *One by one*: each stream is decoded separately, for dictionaries and for codecs that
C-Blosc 1 does not have. If only a few items of each block are needed, the fused method leaves blocks shuffled: each
block has one plane for each byte of an item, from which the items are picked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import cblosc, codecs, filters
from b2array.codec.chunk import NO_CONTEXT, ChunkHead, Context, Stored, fill
from b2array.codec.chunk_header import (
    BLOSC1_HEADER_LEN,
    CODEC_FORMATS,
    NO_FILTERS,
    ChunkHeader,
    CodecFormat,
    CodecId,
    FilterId,
)
from b2array.codec.streams import MIN_STREAM, check_ratio, many_stream_positions
from b2array.errors import FormatError

__all__ = [
    "STEP_NBYTES",
    "Tile",
    "accept",
    "check_plausible_size",
    "decode",
    "decode_blocks",
    "decode_tile",
    "decompress",
    "scratch_margins",
    "step_length",
    "vl_block",
    "vl_blocks",
]

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Numbers = Sequence[int] | Int64Array

STEP_NBYTES = 4 * 2**20
"""The approximate number of bytes to decode in one step, so that they are still in the cache when they are copied."""

_RUNS_NBYTES = 512
"""The number of bytes before shuffled blocks for their runs: one stream for each repeated byte."""
_ALWAYS_PLAUSIBLE = 255
"""A ratio that every codec can reach."""

_INT32 = struct.Struct("<i")
_IDENTITY_ON_READ = (FilterId.NOFILTER, FilterId.TRUNC_PREC, FilterId.INT_TRUNC)


def decompress(chunk: Buffer) -> bytes:
    """Decompress one chunk, of Blosc2 or Blosc1.

    Parameters
    ----------
    chunk : bytes-like
        The chunk. Bytes after it are ignored.

    Raises
    ------
    FormatError
        The bytes are not a chunk, or the chunk has more than `b2array.config.limits.chunk_nbytes` bytes.
    UnsupportedError
        The chunk needs a codec or filter that is not available, or the frame that contained the chunk.

    Examples
    --------
    >>> import b2array
    >>> b2array.decompress(b2array.compress(b"b2array"))
    b'b2array'
    """
    return decode(chunk).tobytes()


def decode(buf: Buffer, *, out: Bytes | None = None, context: Context = NO_CONTEXT) -> Bytes:
    """Decode a whole chunk, into `out` if given, which must be contiguous and of exactly the chunk's size."""
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
    reference = accept(stored, range(header.nblocks), context=context)
    if out is None:
        out = np.empty(header.nbytes, np.uint8)
    elif out.nbytes != header.nbytes:
        raise ValueError(f"out has {out.nbytes} bytes, the chunk {header.nbytes}")
    if header.special:
        fill(stored.head, out, range(header.nblocks))
        return out
    step = step_length(header.block_nbytes)
    for first in range(0, header.nblocks, step):
        numbers = range(first, min(first + step, header.nblocks))
        start = first * header.block_nbytes
        stop = numbers.stop * header.block_nbytes
        decode_blocks(stored, numbers, out[start:stop], context=context, reference=reference)
    return out


def step_length(block_nbytes: int) -> int:
    """Return the number of blocks of `block_nbytes` bytes to decode in one call."""
    return max(1, STEP_NBYTES // max(1, block_nbytes))


def accept(stored: Stored, numbers: Numbers, *, context: Context) -> Bytes | None:
    """Refuse blocks of an impossible size; return the first block, decoded, if other blocks depend on it."""
    header = stored.head.header
    if len(numbers) * header.block_nbytes > STEP_NBYTES:
        check_plausible_size(stored, numbers, context=context)
    # DELTA combines every block with the first one. Raw chunks list filters that were not applied.
    if FilterId.DELTA not in header.filters or not header.has_streams or header.vl_blocks:
        return None
    out = np.empty(header.block_nbytes, np.uint8)
    decode_blocks(stored, (0,), out, context=context)
    return out


def decode_blocks(
    stored: Stored,
    numbers: Numbers,
    out: Bytes,
    *,
    context: Context = NO_CONTEXT,
    reference: Bytes | None = None,
) -> None:
    """Decode the blocks `numbers` into `out`, one after the other. Their bytes must be loaded in `stored`.

    The numbers increase (a range must have step 1); a short last block can only come last. `reference` is the result of
    `accept`; DELTA needs it unless block 0 is the first.
    """
    header = stored.head.header
    if header.special:
        fill(stored.head, out, numbers)
        return
    pick = _as_index(numbers)
    starts = stored.starts[pick]
    stops = stored.stops[pick]
    if header.memcpyed:
        at = 0
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            end = at + stop - start
            out[at:end] = np.frombuffer(stored.region[start:stop], np.uint8)
            at = end
        return
    has_short = _has_short(header, numbers)
    nfull = len(numbers) - has_short
    border = nfull * header.block_nbytes
    if nfull:
        plan = _plan_of(stored.head, context, short=False)
        target = out[:border].reshape(nfull, header.block_nbytes)
        begins = numbers[0] == 0
        _decode_rows(plan, stored, starts[:nfull], stops[:nfull], target, reference, first=begins)
    if has_short:
        plan = _plan_of(stored.head, context, short=True)
        target = out[border:].reshape(1, header.last_block_nbytes)
        is_only = header.nblocks == 1
        _decode_rows(plan, stored, starts[nfull:], stops[nfull:], target, reference, first=is_only)


def _has_short(header: ChunkHeader, numbers: Numbers) -> bool:
    """Return whether the last of these blocks is shorter than the others."""
    is_last = numbers[-1] == header.nblocks - 1
    return bool(is_last and header.last_block_nbytes != header.block_nbytes)


@dataclass(frozen=True, slots=True)
class Tile:
    """Decoded blocks of one size, from which items can be picked: an array of shape (nblocks, block_nbytes).

    If `width` is not 0, the blocks are still shuffled: each block has `width` planes, each with one byte of every item,
    or of every element of the items.
    """

    data: Bytes
    width: int = 0

    def pick(
        self,
        rows: slice,
        blockshape: tuple[int, ...],
        dtype: np.dtype[Any],
        within: tuple[slice, ...] = (),
    ) -> npt.NDArray[Any]:
        """Return the same items of blocks, by default of all blocks. The first dimension counts the blocks.

        The result is a view if the data are not shuffled.
        """
        data = self.data[rows]
        if not self.width:
            blocks: npt.NDArray[Any] = data.view(dtype).reshape(-1, *blockshape)
            return blocks[(slice(None), *within)]
        part_nbytes = dtype.itemsize // self.width
        planes = data.reshape(-1, self.width, *blockshape, part_nbytes)
        # `unshuffle` joins the planes of all blocks at once, so the planes must be the first dimension.
        picked = planes[(slice(None), slice(None), *within)].swapaxes(0, 1)
        out = np.empty(picked.size, np.uint8)
        cblosc.unshuffle(picked, out)
        return out.view(dtype).reshape(picked.shape[1:-1])

    def item(self, row: int, position: int, dtype: np.dtype[Any]) -> Any:
        """Return one item of a block as a NumPy scalar, by its position in C order."""
        data = self.data[row]
        if not self.width:
            return data.view(dtype)[position]
        part_nbytes = dtype.itemsize // self.width
        planes = data.reshape(self.width, -1, part_nbytes)
        raw = planes[:, position].T.tobytes()
        return np.frombuffer(raw, dtype)[0]


def decode_tile(
    stored: Stored,
    numbers: Numbers,
    out: Bytes,
    *,
    itemsize: int,
    narrow: bool,
    context: Context,
    reference: Bytes | None,
) -> Tile:
    """Decode blocks into `out`, and leave them shuffled if that saves work.

    The parameters are the same as in `decode_blocks`, but without a short last block; the caller has called `accept`.
    `itemsize` is the size of the items that will be picked. With `narrow`, only a few items of each block are needed,
    so the blocks may stay shuffled.
    """
    data = out.reshape(len(numbers), -1)
    header = stored.head.header
    if narrow and header.has_streams and not header.vl_blocks:
        plan = _plan_of(stored.head, context, short=False)
        # An item must consist of whole elements of the shuffle.
        if plan.in_planes and plan.blosc1 is not None and itemsize % plan.blosc1.typesize == 0:
            pick = np.asarray(numbers, np.int64)
            starts = stored.starts[pick].tolist()
            stops = stored.stops[pick].tolist()
            cblosc.decode_planes(plan.blosc1, stored.region, starts, stops, out)
            return Tile(data, plan.blosc1.typesize)
    decode_blocks(stored, numbers, out, context=context, reference=reference)
    return Tile(data)


def scratch_margins(head: ChunkHead, nblocks: int) -> tuple[int, int]:
    """Return the number of bytes before `nblocks` blocks and after each block that decoding can use as scratch."""
    header = head.header
    # DELTA decodes the first block twice. Raw blocks, and blocks with more streams than C-Blosc 1 supports, never
    # change.
    is_fixed = FilterId.DELTA in header.filters or header.memcpyed or header.nstreams > cblosc.MAX_SPLIT
    behind = 0
    if not is_fixed:
        behind = cblosc.margin_behind(header.codec_format, header.nstreams, header.block_nbytes)
    front = BLOSC1_HEADER_LEN + 4 * nblocks * header.nstreams
    return front + _RUNS_NBYTES, behind


def check_plausible_size(
    stored: Stored,
    numbers: Numbers,
    *,
    context: Context = NO_CONTEXT,
) -> None:
    """Refuse blocks that are too large for their streams, before memory is allocated for the blocks."""
    header = stored.head.header
    nbytes = len(numbers) * header.block_nbytes
    if not header.has_streams or nbytes <= STEP_NBYTES:
        return
    pick = _as_index(numbers)
    stored_nbytes = int((stored.stops[pick] - stored.starts[pick]).sum())
    # The size of the region is no proof, because the margins after the blocks may be larger than the blocks.
    at_hand = min(stored_nbytes, len(stored.region))
    if nbytes <= _ALWAYS_PLAUSIBLE * at_hand:
        return
    if _has_short(header, numbers):
        plan = _plan_of(stored.head, context, short=True)
        _check_streams(plan, stored, numbers[-1:])
        numbers = numbers[:-1]
    if len(numbers):
        plan = _plan_of(stored.head, context, short=False)
        _check_streams(plan, stored, numbers)


def _check_streams(plan: DecodePlan, stored: Stored, numbers: Numbers) -> None:
    ratio = codecs.max_ratio(plan.codec)
    if ratio is None:
        codecs.require(plan.codec)
        return
    pick = _as_index(numbers)
    starts = stored.starts[pick]
    stops = stored.stops[pick]
    check_ratio(stored.region, starts, stops, plan.nstreams, plan.neblock, ratio)


def _as_index(numbers: Numbers) -> slice | Int64Array:
    # A slice makes a view, where an array of numbers would copy.
    if isinstance(numbers, range):
        return slice(numbers.start, numbers.stop)
    return np.asarray(numbers, np.int64)


def vl_blocks(stored: Stored, *, context: Context = NO_CONTEXT) -> Iterator[bytes]:
    """Decode the blocks of a chunk of variable-length blocks, one after the other."""
    header = stored.head.header
    total = 0
    for number in range(len(stored.starts)):
        data = vl_block(stored, number, context=context)
        total += len(data)
        if total > header.nbytes:
            break
        yield data
    if total != header.nbytes:
        raise FormatError(f"expected blocks of {header.nbytes} bytes in all, found {total}")


def vl_block(stored: Stored, number: int, *, context: Context = NO_CONTEXT) -> bytes:
    """Decode one block of a chunk of variable-length blocks. Its bytes must be loaded in `stored`."""
    header = stored.head.header
    start, stop = int(stored.starts[number]), int(stored.stops[number])
    (nbytes,) = _INT32.unpack_from(stored.region, start)
    if not 0 < nbytes <= header.nbytes:
        raise FormatError(f"expected blocks of {header.nbytes} bytes in all, found {nbytes} bytes in block {number}")
    plan = _plan_of_vl_blocks(stored.head, context)
    data = _decode_payload(plan, stored, stored.region[start + 4 : stop], nbytes)
    if plan.pipeline is not None:
        rows = data.reshape(1, -1)
        data = filters.backward(plan.pipeline, rows, reference=None, first=True)
    return data.tobytes()


def _decode_rows(
    plan: DecodePlan,
    stored: Stored,
    starts: Int64Array,
    stops: Int64Array,
    target: Bytes,
    reference: Bytes | None,
    *,
    first: bool,
) -> None:
    """Decode blocks of the same size into the rows of `target`."""
    stored_nbytes = plan.nstreams * plan.neblock
    # In blocks of other software, bytes after the last stream may belong to no stream; such bytes are zeros.
    exact = stored_nbytes == target.shape[1]
    rows = target if exact else np.empty((len(target), stored_nbytes), np.uint8)
    flat = rows.reshape(-1)
    if plan.blosc1 is None:
        _decode_one_by_one(plan, stored, starts, stops, rows)
    elif plan.streamwise:
        at, sizes = many_stream_positions(stored.region, starts, stops, plan.nstreams, plan.neblock)
        # The size of a run is 0, or it is negative and a token follows.
        ends = at + 4 + np.maximum(sizes, 0) + (sizes < 0)
        cblosc.decode(plan.blosc1, stored.region, at.ravel().tolist(), ends.ravel().tolist(), flat)
    else:
        begins = starts.tolist()
        ends_at_most = stops.tolist()
        cblosc.decode(plan.blosc1, stored.region, begins, ends_at_most, flat, margin=stored.margin)
    if not exact:
        target[:, :stored_nbytes] = rows
        target[:, stored_nbytes:] = 0
    if plan.pipeline is not None:
        target[:] = filters.backward(plan.pipeline, target, reference=reference, first=first)


def _decode_one_by_one(
    plan: DecodePlan,
    stored: Stored,
    starts: Int64Array,
    stops: Int64Array,
    rows: Bytes,
) -> None:
    positions, csizes = many_stream_positions(stored.region, starts, stops, plan.nstreams, plan.neblock)
    streams = rows.reshape(-1, plan.neblock)
    places = zip(positions.ravel().tolist(), csizes.ravel().tolist(), strict=True)
    for (position, csize), out in zip(places, streams, strict=True):
        # A run: its size is minus the byte that it repeats ("Blosc Chunk Format", section Blocks).
        if csize <= 0:
            out[:] = -csize
            continue
        start = position + 4
        payload = stored.region[start : start + csize]
        out[:] = _decode_payload(plan, stored, payload, plan.neblock)


def _decode_payload(plan: DecodePlan, stored: Stored, payload: memoryview, nbytes: int) -> Bytes:
    # A stream that has its full size is raw, whatever the codec.
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


class DecodePlan(NamedTuple):
    """The method for decoding blocks of the same size in a chunk.

    `blosc1` is None if streams are decoded one by one, and treats each stream as a block if `streamwise`. `pipeline`
    has the filters that NumPy must undo, or None. With `in_planes`, only the shuffle remains to be undone.
    """

    codec: int
    codec_meta: int
    nstreams: int
    neblock: int
    blosc1: cblosc.Blosc1Params | None
    streamwise: bool
    pipeline: filters.Pipeline | None
    blockshape: tuple[int, ...] | None
    in_planes: bool = False


def _plan_of(head: ChunkHead, context: Context, *, short: bool) -> DecodePlan:
    plan: DecodePlan | None = head.plans.get((context, short))
    if plan is None:
        plan = _plan(head.header, context, short=short)
        head.plans[context, short] = plan
    return plan


def _plan_of_vl_blocks(head: ChunkHead, context: Context) -> DecodePlan:
    """Return the plan for all blocks of a chunk of variable-length blocks; `neblock` is not the size of any block."""
    plan: DecodePlan | None = head.plans.get((context, False))
    if plan is None:
        header = head.header
        as_block = replace(header, flags2=0, nbytes=header.typesize, blocksize=header.typesize)
        # `_plan` may leave the shuffle to C-Blosc 1, which does not decode such blocks.
        pipeline = filters.Pipeline(header.filters, header.filters_meta, header.typesize)
        plan = _plan(as_block, context, short=False)._replace(pipeline=_unless_identity(pipeline))
        head.plans[context, False] = plan
    return plan


def _plan(header: ChunkHeader, context: Context, *, short: bool) -> DecodePlan:
    codec = header.codec_id(context.codec)
    return _plan_for(
        int(codec),
        # Built-in codecs have no parameter in their chunks, and a chunk that defers to its frame has none either.
        header.codec_meta if header.codec_format == CodecFormat.USER else context.codec_meta,
        header.typesize,
        # A short last block is never split.
        1 if short else header.nstreams,
        header.last_block_nbytes if short else header.block_nbytes,
        # Instrumented chunks hold measurements, to which no filter was applied.
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
) -> DecodePlan:
    neblock = block_nbytes // nstreams
    if neblock == 0:
        raise FormatError(f"expected blocks of at least {nstreams} bytes for {nstreams} streams, found {block_nbytes}")
    pipeline = filters.Pipeline(ids, metas, typesize, version, blockshape)
    filters.check(pipeline)
    fmt = CODEC_FORMATS.get(codec)
    plan = DecodePlan(
        codec,
        codec_meta,
        nstreams,
        neblock,
        blosc1=None,
        streamwise=False,
        pipeline=_unless_identity(pipeline),
        blockshape=blockshape,
    )
    if fmt is None or has_dict:
        return plan
    # C-Blosc 1 can undo the filter that was applied last.
    active = [i for i, fid in enumerate(ids) if fid not in _IDENTITY_ON_READ]
    last = active[-1] if active else None
    shuffle = cblosc.NOSHUFFLE
    width = typesize
    if last is not None and ids[last] == FilterId.SHUFFLE:
        shuffle = cblosc.SHUFFLE
        width = metas[last] or typesize
    elif last is not None and ids[last] == FilterId.BITSHUFFLE and block_nbytes // typesize % 8 == 0:
        # With other numbers of items, C-Blosc 1 does not shuffle the block; Blosc2 does not shuffle only the rest.
        shuffle = cblosc.BITSHUFFLE
    split = nstreams > 1
    # C-Blosc 1 splits by rules, where Blosc2 has a flag: it would look for one stream where these have several.
    splits_evenly = neblock >= MIN_STREAM and block_nbytes % nstreams == 0
    if split and not (splits_evenly and width == nstreams <= cblosc.MAX_SPLIT):
        params = cblosc.Blosc1Params(fmt, 1, cblosc.NOSHUFFLE, split=False, block_nbytes=neblock)
        return plan._replace(blosc1=params, streamwise=True)
    params = cblosc.Blosc1Params(fmt, width, shuffle, split=split, block_nbytes=block_nbytes)
    if shuffle != cblosc.NOSHUFFLE and last is not None:
        pipeline = replace(pipeline, filters=(*ids[:last], *NO_FILTERS[last:]))
    rest = _unless_identity(pipeline)
    in_planes = shuffle == cblosc.SHUFFLE and rest is None and block_nbytes % width == 0
    return plan._replace(blosc1=params, pipeline=rest, in_planes=in_planes)


def _unless_identity(pipeline: filters.Pipeline) -> filters.Pipeline | None:
    is_identity = all(fid in _IDENTITY_ON_READ for fid in pipeline.filters)
    return None if is_identity else pipeline
