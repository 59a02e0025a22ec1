"""Reads many small chunks of a contiguous frame together.

A read that handles small chunks one by one takes many times as long as their decoding. So a batch of chunks is treated
as one chunk whose blocks are the small chunks: `batch_layout` cuts the array into batches, and `read_batch` reads the
chunks of a batch with few calls of the store, compares all of them with their checksums, and decodes chunks of the same
kind in one call.

Only chunks without surprises are read here. For all others, the reader reads the batch chunk by chunk, which also finds
the error and names its chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import scratch
from b2array.codec import cblosc, chunk, decode, encode
from b2array.codec.chunk import ChunkHead, Context, Stored
from b2array.codec.chunk_header import ChunkHeader, FilterId, Special
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError
from b2array.format import checksums
from b2array.format.index import SPECIALS
from b2array.frame.revision import Revision
from b2array.grid.layout import Layout
from b2array.grid.partition import Positions
from b2array.store.base import MISSING
from b2array.store.spans import Span

__all__ = ["LEAST", "MOST_NBYTES", "batch_layout", "chunk_numbers", "read_batch"]

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

MOST_NBYTES = 2**16
"""Chunks of more bytes are read one by one: their decoding takes most of the time."""
LEAST = 8
"""Fewer chunks are read one by one."""
_BATCH_CHUNKS = 4096
_BATCH_NBYTES = 2**21
_FREE = 4096
"""Reading this many bytes more costs less than another call."""
_MOST_KINDS = 8
"""A batch with more kinds of chunks, by their headers, is read chunk by chunk."""
_MOST_ROOM = 4 * 2**20
_START = np.dtype("<i4")
_CBYTES = slice(12, 16)
"""The bytes of a chunk header with the size of the chunk: the only field in which chunks of one kind differ."""


def batch_layout(layout: Layout, positions: tuple[Positions, ...], *, by_slices: bool) -> Layout | None:
    """Return a layout whose chunks are batches, and whose blocks are the chunks; None if no batch has many chunks.

    `positions` is the selection, one factor for each axis if `by_slices`.
    """
    most_nbytes = min(_BATCH_NBYTES, config.limits.chunk_nbytes)
    room = min(_BATCH_CHUNKS, most_nbytes // max(1, layout.chunk_nbytes))
    counts = []
    total = touched = 1
    for axis in reversed(range(layout.ndim)):
        extent = layout.chunks[axis]
        factor = positions[axis] if by_slices else None
        cells = layout.grid_shape[axis]
        step = 1
        if isinstance(factor, slice):
            first, last = factor.start // extent, (factor.stop - 1) // extent
            cells = last - first + 1
            step = factor.step
        count = min(cells, max(1, room // total))
        total *= count
        # A long step leaves chunks out.
        touched *= max(1, count * extent // max(step, extent))
        counts.append(count * extent)
    if touched < LEAST:
        return None
    return Layout(layout.shape, tuple(reversed(counts)), layout.blocks, layout.dtype, layout.dtype_text)


def chunk_numbers(layout: Layout, batches: Layout, coords: Sequence[int], blocks: Sequence[int]) -> Int64Array:
    """Return the numbers of the chunks that are the `blocks` of the batch at `coords`."""
    places = np.unravel_index(np.asarray(blocks, np.int64), batches.block_grid)
    numbers = np.zeros(len(blocks), np.int64)
    axes = zip(places, coords, batches.block_grid, layout.grid_strides, strict=True)
    for along, coord, count, stride in axes:
        numbers += (along + coord * count) * stride
    return numbers


def read_batch(source: Revision, layout: Layout, numbers: Int64Array, context: Context) -> Bytes | None:
    """Return the data of chunks, one chunk a row; None if one of them needs a closer look.

    Raises
    ------
    ConflictError
        Another writer has replaced the file since it was opened.
    """
    if source.state.annotations.lost:
        return None
    offsets = source.frame.offsets[numbers]
    data = scratch("small chunks", len(numbers) * layout.chunk_nbytes, _BATCH_NBYTES).reshape(len(numbers), -1)
    is_stored = offsets >= 0
    try:
        for entry in np.unique(offsets[~is_stored]).tolist():
            data[offsets == entry] = _special(source, layout, SPECIALS[entry])
        if is_stored.any():
            # Chunks in the order of the file are read with the fewest calls.
            rows = np.flatnonzero(is_stored)
            rows = rows[np.argsort(offsets[rows], kind="stable")]
            loaded = _load(source, layout, offsets[rows])
            crcs = _crcs(source, numbers[rows])
            if not _decode(loaded, layout, crcs, context, data, rows):
                return None
    except (FormatError, UnsupportedError, *MISSING):
        return None
    return data


def _special(source: Revision, layout: Layout, special: Special) -> Bytes:
    """Return the data of a chunk that repeats a special value."""
    described = source.frame
    chunk = encode.special_chunk(
        special,
        layout.chunk_nbytes,
        typesize=described.typesize,
        blocksize=described.blocksize,
    )
    return decode.decode(chunk)


class _Loaded(NamedTuple):
    """Chunks in memory: where each begins in `region`, and how many bytes of it and of its record may follow."""

    region: memoryview
    starts: Int64Array
    rooms: Int64Array


def _load(source: Revision, layout: Layout, entries: Int64Array) -> _Loaded:
    """Read chunks, whose entries in the index increase, with the records of their checksums."""
    base = source.start + source.frame.header_len
    end = base + source.frame.cbytes
    starts = base + entries
    # No chunk takes more bytes than its data stored raw.
    longest = HEADER_LEN + layout.chunk_nbytes + checksums.record_nbytes(1)
    stops = np.minimum(starts + longest, end)
    is_first = np.ones(len(starts), bool)
    is_first[1:] = starts[1:] > stops[:-1] + _FREE
    firsts = np.flatnonzero(is_first)
    lows = starts[firsts]
    highs = stops[np.append(firsts[1:], len(stops)) - 1]
    # C-Blosc 1 needs room for a head in front of the first chunk.
    lead = cblosc.margin_in_front(len(starts))
    places = lead + np.cumsum(highs - lows) - (highs - lows)
    nbytes = int(places[-1] + highs[-1] - lows[-1])
    spans = [Span("", low, high) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]
    region = source.gather(spans, places.tolist(), nbytes)
    shifts = (places - lows)[np.cumsum(is_first) - 1]
    return _Loaded(region, starts + shifts, stops - starts)


def _crcs(source: Revision, numbers: Int64Array) -> Int64Array:
    """Return the checksum of each chunk's record of checksums: 0 if it is unknown, and -1 without a record."""
    if config.verify == "never":
        return np.full(len(numbers), -1)
    crcs = source.state.records[numbers].astype(np.int64)
    return np.where(source.state.have_checksums(numbers), crcs, -1)


def _decode(
    loaded: _Loaded,
    layout: Layout,
    crcs: Int64Array,
    context: Context,
    data: Bytes,
    rows: Int64Array,
) -> bool:
    """Compare chunks with their checksums, and decode each to its row of `data`; return whether all are regular."""
    region = np.frombuffer(loaded.region, np.uint8)
    heads = _windows(region, loaded.starts, HEADER_LEN)
    sizes = np.ascontiguousarray(heads[:, _CBYTES]).view(_START).ravel().astype(np.int64)
    heads[:, _CBYTES] = 0
    left = np.arange(len(rows))
    for _ in range(_MOST_KINDS):
        first = heads[left[0]].copy()
        first[_CBYTES] = sizes[left[:1]].astype(_START).view(np.uint8)
        header = ChunkHeader.unpack(first.tobytes())
        is_same = (heads[left] == heads[left[0]]).all(axis=1)
        of_kind = left[is_same]
        left = left[~is_same]
        chunks = _Loaded(loaded.region, loaded.starts[of_kind], loaded.rooms[of_kind])
        kind = _Kind(header, chunks, sizes[of_kind], crcs[of_kind])
        if not (kind.is_regular(layout) and kind.is_intact()):
            return False
        data[rows[of_kind]] = kind.decode(layout, context)
        if not len(left):
            return True
    return False


def _windows(region: Bytes, starts: Int64Array, nbytes: int) -> Bytes:
    """Copy `nbytes` bytes from each start; one row each."""
    return np.lib.stride_tricks.sliding_window_view(region, nbytes)[starts]


class _Kind(NamedTuple):
    """Chunks whose headers differ only in the size; `sizes` and `crcs` have an item for each chunk."""

    header: ChunkHeader
    chunks: _Loaded
    sizes: Int64Array
    crcs: Int64Array

    @property
    def nblocks(self) -> int:
        """The number of blocks of each chunk, 0 or 1."""
        return 0 if self.header.special else 1

    @property
    def head_nbytes(self) -> int:
        """The number of bytes in front of the block."""
        header = self.header
        if header.special:
            return header.cbytes
        return header.header_len if header.memcpyed else header.header_len + _START.itemsize

    def is_regular(self, layout: Layout) -> bool:
        """Whether all chunks have the size and the single block of the array, one after the other in the file."""
        header, sizes = self.header, self.sizes
        nbytes = layout.chunk_nbytes
        has_block = header.nbytes == header.block_nbytes == nbytes and header.extended
        is_other = header.vl_blocks or header.lazy or header.instrumented or header.has_dict
        if not has_block or is_other or FilterId.DELTA in header.filters:
            return False
        record = np.where(self.crcs >= 0, checksums.record_nbytes(self.nblocks), 0)
        if (sizes + record > self.chunks.rooms).any() or (sizes[:-1] > np.diff(self.chunks.starts)).any():
            return False
        if header.special or header.memcpyed:
            expects_value = header.special == Special.VALUE
            has_value = not expects_value or header.cbytes - header.header_len == layout.itemsize
            return has_value and bool((sizes == header.cbytes).all())
        if (sizes <= self.head_nbytes + _START.itemsize).any():
            return False
        region = np.frombuffer(self.chunks.region, np.uint8)
        begins = _windows(region, self.chunks.starts + header.header_len, _START.itemsize).view(_START)
        return bool((begins == self.head_nbytes).all())

    def is_intact(self) -> bool:
        """Whether all chunks that have a record of checksums agree with it."""
        has_record = self.crcs >= 0
        if not has_record.any():
            return True
        return checksums.agree(
            self.chunks.region,
            self.chunks.starts[has_record],
            self.sizes[has_record],
            self.crcs[has_record],
            head_nbytes=self.head_nbytes,
            nblocks=self.nblocks,
        )

    def decode(self, layout: Layout, context: Context) -> Bytes:
        """Decode the chunks; return the data of each as a row, or one row for all."""
        header = self.header
        region, starts, _ = self.chunks
        nbytes = layout.chunk_nbytes
        as_bytes = np.frombuffer(region, np.uint8)
        if header.special == Special.VALUE:
            values = _windows(as_bytes, starts + header.header_len, layout.itemsize)
            return np.tile(values, nbytes // layout.itemsize)
        if header.special:
            row = np.empty((1, nbytes), np.uint8)
            chunk.fill(ChunkHead(header, starts[:0], starts[:0]), row[0], (0,))
            return row
        if header.memcpyed:
            return _windows(as_bytes, starts + header.header_len, nbytes)
        # For the decoder, these are the blocks of one chunk.
        together = replace(header, nbytes=nbytes * len(starts))
        blocks = starts + self.head_nbytes
        stored = Stored(ChunkHead(together, blocks, starts + self.sizes), region, blocks, starts + self.sizes)
        out = scratch("small blocks", together.nbytes, _BATCH_NBYTES)
        decode.decode_blocks(stored, range(len(starts)), out, context=context)
        return out.reshape(len(starts), nbytes)
