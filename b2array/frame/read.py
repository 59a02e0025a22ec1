"""Reads a selection of items: chunks -> blocks -> (cache) -> fetch -> decode -> copied into the result.

`read_item` reads a single item; all other reads take the same route. `grid.tiling` cuts a selection into parts of
chunks, and each part into steps: blocks that are decoded together. The reader asks the cache for the blocks, and
fetches and decodes the others, in the memory of the cache if the cache will keep them. This module does not know keys:
a selection is a product of factors, as `b2array.grid.partition` cuts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, filterfalse, islice, repeat, starmap
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.buffers import scratch
from b2array.codec import decode
from b2array.codec.chunk import Context, Stored
from b2array.codec.chunk_header import NAN_BYTES, ChunkHeader, Special
from b2array.codec.decode import Tile
from b2array.codec.text import TextTile, memory_nbytes
from b2array.errors import FormatError, UnsupportedError, prefix_error
from b2array.format.strings import is_text, unpack_item
from b2array.frame import cache, small_chunks, text_blocks
from b2array.frame.cache import CacheEntry
from b2array.frame.fetch import fetch
from b2array.frame.revision import Revision
from b2array.frame.source import ChunkRequest, Source
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Positions, parts, put, take
from b2array.grid.tiling import (
    Numbered,
    Step,
    Tiling,
    parts_of_blocks,
    parts_of_chunks,
    tiling_of,
    tiling_of_points,
)

__all__ = [
    "WINDOWS_UNDER_WAY",
    "WINDOW_CHUNKS",
    "WINDOW_NBYTES",
    "ChunkRead",
    "ChunkReader",
    "fetch_ahead",
    "make_reader",
    "read",
    "read_item",
    "share",
    "windows",
]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Numbers = Sequence[int]
Slices = tuple[slice, ...]

_NO_BOX: Array = np.empty(())

WINDOW_NBYTES = 8 * 2**20
WINDOW_CHUNKS = 4096
"""A window is full with so many bytes, or with so many chunks."""
WINDOWS_UNDER_WAY = 4
"""This many windows are requested before the first one has arrived, so that they do not wait for each other."""
_LEAST_SHARED = 2**19
"""Threads share a read that decodes at least this many bytes of a chunk. With fewer, they would mostly wait."""
_MAX_SCRATCH = 4 * decode.STEP_NBYTES
_SHARE = 8
"""A read uses the cache only if its result is at most 1/8 of the cache."""
_WORKERS_SHARE = 64
"""A worker's read is usually a piece of a larger one, as in a graph of dask. Local pieces that are larger than 1/64 of
the cache are decoded into the result: the cache would soon evict them, and touching its memory takes time."""
_VERY_SMALL = 4096
"""Chunks of at most this many bytes are not kept: reading many of them again is faster than looking them up."""
_MOST_KEPT = 2
"""One read keeps its first blocks, up to 1/2 of the cache. More of them would evict each other."""


def read(
    source: Source,
    layout: Layout,
    positions: tuple[Positions, ...],
    axes: Axes | None,
    box: Array,
    nbytes: int = 0,
) -> None:
    """Fill an array with the items of a selection; see `b2array.grid.partition`.

    Parameters
    ----------
    source : Source
        The array that is read.
    layout : Layout
        Its layout.
    positions, axes : tuple of Positions, Axes or None
        The factors of the selection, and the axes that index arrays tie together.
    box : ndarray
        The array to fill, with one dimension for each factor.
    nbytes : int
        If this is a part of a larger read, the size of the whole result in bytes.
    """
    if not box.size:
        return
    reader = make_reader(source, layout, positions, axes, box, nbytes)
    chunks = reader.read_batches(positions) if reader.can_batch else None
    if chunks is None:
        chunks = parts_of_chunks(layout, positions, axes)
    if source.buffer is not None:
        chunks = filterfalse(reader.copy_open, chunks)
    planned = starmap(reader.plan, chunks)
    # Two plans show whether threads share one chunk or several chunks.
    first = list(islice(planned, 2))
    jobs = chain(first, planned)
    if len(first) == 1:
        reader.run(first[0], in_threads=True)
        return
    most_blocks = max((len(job.wanted) for job in first), default=0)
    is_large = most_blocks * layout.block_nbytes >= _LEAST_SHARED
    if not source.is_local:
        fetched = fetch_ahead(jobs, _fetch_window)
        if is_large:
            share(lambda pair: reader.finish(*pair), fetched)
        else:
            for job, stored in fetched:
                reader.finish(job, stored)
    elif is_large:
        threads.each(reader.run, jobs)
    else:
        for job in jobs:
            reader.run(job)


def make_reader(
    source: Source,
    layout: Layout,
    positions: tuple[Positions, ...],
    axes: Axes | None,
    box: Array,
    nbytes: int = 0,
) -> ChunkReader:
    """Return a reader that plans and carries out a read; the parameters are the ones of `read`."""
    if threads.is_ending():
        raise threads.make_ending_error()
    share = _WORKERS_SHARE if source.is_local and threads.is_worker() else _SHARE
    is_small = max(box.nbytes, nbytes) <= config.cache_bytes // share
    # The chunks of a transaction can change, so their blocks have no key.
    key = source.cache_key if isinstance(source, Revision) and is_small else None
    # Slices have a faster route through the tiling than index arrays.
    by_slices = axes is None and np.ndarray not in map(type, positions)
    frame = source.frame
    context = _context(frame.codec, frame.codec_meta, layout.blocks)
    return ChunkReader(source, layout, context, key, box, [0], axes, by_slices)


Answer = TypeVar("Answer")


def fetch_ahead(
    jobs: Iterable[ChunkRead],
    fetch_window: Callable[[list[ChunkRead]], list[Answer]],
) -> Iterator[Answer]:
    """Fetch chunks of one read, or of several, in bounded windows, a few of them at the same time; yield the answers.

    `fetch_window` fetches the chunks of one window, and returns an answer for each.
    """
    for window in threads.ahead(fetch_window, windows(jobs), WINDOWS_UNDER_WAY):
        yield from window
        # Free the memory of this window before waiting for the next one.
        del window


def share(finish: Callable[[Answer], object], fetched: Iterator[Answer]) -> None:
    """Call ``finish(answer)`` for each answer of `fetch_ahead`, in several threads."""
    # Often there is one window. This thread waits for it, because Ctrl-C does not interrupt other threads.
    first = list(islice(fetched, 1))
    threads.each(finish, chain(first, fetched))


def windows(jobs: Iterable[ChunkRead]) -> Iterator[list[ChunkRead]]:
    """Collect plans in lists of bounded size, the windows, and yield them. One wave of requests fetches a window."""
    window: list[ChunkRead] = []
    nbytes = 0
    for job in jobs:
        window.append(job)
        nbytes += job.reader.estimate_nbytes(job.number, len(job.wanted))
        if nbytes >= WINDOW_NBYTES or len(window) >= WINDOW_CHUNKS:
            yield window
            window, nbytes = [], 0
    if window:
        yield window


def _fetch_window(jobs: list[ChunkRead]) -> list[tuple[ChunkRead, Stored | None]]:
    """Fetch chunks of one read; return each plan with its chunk, if it wants blocks. Raises the errors of `fetch`."""
    requests = [ChunkRequest(job.number, job.wanted) for job in jobs if job.wanted]
    # All jobs belong to one reader, and so to one source.
    stored = iter(fetch(jobs[0].reader.source, requests))
    return [(job, next(stored) if job.wanted else None) for job in jobs]


def read_item(source: Source, layout: Layout, where: Sequence[int]) -> Any:
    """Return the item at a position within the array, whose dtype has no fields."""
    if threads.is_ending():
        raise threads.make_ending_error()
    # This computes with plain numbers: the tiling of a selection would take longer than the rest of the read.
    number = block = position = 0
    for i, n, c, b in zip(where, layout.shape, layout.chunks, layout.blocks, strict=True):
        coord, rest = divmod(i, c)
        number = number * -(-n // c) + coord
        coord, rest = divmod(rest, b)
        block = block * -(-c // b) + coord
        position = position * b + rest
    if source.buffer is not None:
        with source.buffer.mutex.held:
            open_chunk = source.buffer.chunks.get(number)
            if open_chunk is not None:
                tile, row, _ = open_chunk.entries((block,))[block]
                return tile.item(row, position, layout.dtype)
    key = source.cache_key if isinstance(source, Revision) and config.cache_bytes else None
    cached = {} if key is None else cache.blocks.get_many((key, number), (block,))
    if not cached:
        keep = key is not None
        (stored,) = fetch(source, (ChunkRequest(number, (block,)),))
        header = stored.head.header
        reader = make_reader(source, layout, (), None, _NO_BOX)
        try:
            if reader.is_regular(header):
                reference = decode.accept(stored, (block,), context=reader.context)
                tile = reader.decode_blocks(number, (block,), stored, reference, narrow=True, keep=keep)
                return tile.item(0, position, layout.dtype)
            if header.special and reader.repeats_items:
                return _value(source, stored, layout.dtype)[()]
            cached = reader.decode_whole(number, keep=keep)
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"chunk {number} of {source.url}", error) from error
    tile, row, _ = cached[block]
    return tile.item(row, position, layout.dtype)


_context = lru_cache(maxsize=64)(Context)


def _value(source: Source, stored: Stored, dtype: np.dtype[Any]) -> Array:
    """Return the item that a special chunk repeats, as an array without dimensions.

    FormatError: the chunk repeats an item of another size.
    """
    if is_text(dtype):
        # Only a transaction has such chunks of text: nobody has written them yet.
        return np.array(unpack_item(source.state.annotations.fill or b"", dtype), dtype)
    header = stored.head.header
    item = stored.head.value
    if header.special == Special.NAN:
        item = NAN_BYTES[header.typesize]
    elif header.special != Special.VALUE:
        # Uninitialized items are zeros as well.
        return np.zeros((), dtype)
    if len(item) != dtype.itemsize:
        raise FormatError(f"expected a repeated item of {dtype.itemsize} bytes, found {len(item)}")
    return np.frombuffer(item, dtype).reshape(())


class ChunkRead(NamedTuple):
    """The plan to read one chunk.

    Attributes
    ----------
    reader : ChunkReader
        The context of the read.
    number : int
        The chunk.
    part : Part
        The selected part of the chunk.
    tiling : Tiling
        The steps in which its blocks are decoded.
    cached : dict of int to CacheEntry
        The blocks that the cache has.
    wanted : sequence of int
        The blocks to fetch.
    keep : bool
        Whether the cache keeps the fetched blocks.
    """

    reader: ChunkReader
    number: int
    part: Part
    tiling: Tiling
    cached: dict[int, CacheEntry]
    wanted: Numbers
    keep: bool


class ChunkReader(NamedTuple):
    """The context that all chunks of one read share.

    `plan` decides which blocks of a chunk to fetch; `finish` decodes them and copies the items.

    Attributes
    ----------
    source, layout, box, axes
        The parameters of `read`.
    context : Context
        How the chunks are encoded.
    cache_key : object or None
        The key of the frame in the cache; None if this read does not use the cache.
    planned_nbytes : list of int
        One number: the bytes that the blocks of all planned chunks would take in the cache.
    by_slices : bool
        Whether all factors of the selection are slices.
    """

    source: Source
    layout: Layout
    context: Context
    cache_key: object | None
    box: Array
    planned_nbytes: list[int]
    axes: Axes | None = None
    by_slices: bool = True

    def run(self, job: ChunkRead, *, in_threads: bool = False) -> None:
        """Fetch and finish one chunk; with `in_threads`, several threads decode it."""
        stored = None
        if job.wanted:
            (stored,) = fetch(self.source, (ChunkRequest(job.number, job.wanted),))
        self.finish(job, stored, in_threads=in_threads)

    @property
    def can_batch(self) -> bool:
        """Whether small chunks may be read many at a time."""
        layout = self.layout
        most = small_chunks.MOST_NBYTES if self.cache_key is None else _VERY_SMALL
        if layout.chunk_nbytes > most or layout.blocks != layout.chunks or layout.is_text:
            return False
        source = self.source
        return isinstance(source, Revision) and source.is_local and not source.sparse and self.repeats_items

    def read_batches(self, positions: tuple[Positions, ...]) -> Iterator[Numbered] | None:
        """Read small chunks in batches, and yield the chunks that must be read one by one; None if all must be.

        A batch is read as if it were one chunk, whose blocks are the chunks of the array.
        """
        layout = self.layout
        batches = small_chunks.batch_layout(layout, positions, by_slices=self.by_slices)
        if batches is None:
            return None
        reader = self._replace(layout=batches, cache_key=None)
        return chain.from_iterable(map(reader._read_batch, parts(positions, batches.chunks, self.axes), repeat(layout)))

    def _read_batch(self, part: Part, layout: Layout) -> Iterable[Numbered]:
        """Read a part of a batch of chunks into the result; return the chunks to read one by one: all of them, or none.

        The layout of this reader is the layout of the batches, and `layout` the array's.
        """
        batches = self.layout
        job = self.plan(0, part)
        blocks = job.tiling.numbers
        numbers = small_chunks.chunk_numbers(layout, batches, part.coords, blocks)
        data = small_chunks.read_batch(cast(Revision, self.source), layout, numbers, self.context)
        if data is None:
            pieces = [piece for _, piece in parts_of_blocks(batches, part, self.axes)]
            return zip(numbers.tolist(), pieces, strict=True)
        tile = Tile(data)
        entries = {block: CacheEntry(tile, row) for row, block in enumerate(blocks)}
        self.finish(job._replace(cached=entries), None)
        return ()

    def copy_open(self, chunk: tuple[int, Part]) -> bool:
        """Copy items of a chunk, given its number and part, if a transaction keeps it open; return whether it did."""
        number, part = chunk
        buffer = self.source.buffer
        if buffer is None or number not in buffer.chunks:
            return False
        job = self.plan(number, part)
        with buffer.mutex.held:
            # If another thread has encoded the chunk since, it is read like the others.
            open_chunk = buffer.chunks.get(number)
            if open_chunk is None:
                return False
            entries = open_chunk.entries(job.tiling.numbers)
            self.finish(job._replace(cached=entries), None)
        return True

    def estimate_nbytes(self, n: int, nblocks: int) -> int:
        """Estimate how many bytes a read of `nblocks` blocks of chunk `n` will fetch."""
        sizes = self.source.known_sizes(n)
        if sizes is not None:
            return int(sizes[0]) * nblocks // self.layout.nblocks
        if isinstance(self.source.locate(n), Special):
            return 0
        return nblocks * self.layout.block_nbytes

    def plan(self, number: int, part: Part) -> ChunkRead:
        """Return the plan to read a part of a chunk, with the blocks that the cache has; count its bytes as planned."""
        layout = self.layout
        length = decode.STEP_NBYTES // layout.block_nbytes or 1
        if self.by_slices:
            tiling = tiling_of(layout, cast(Slices, part.inside), length)
        else:
            tiling = tiling_of_points(layout, part, self.axes, length)
        numbers = tiling.numbers
        cached: dict[int, CacheEntry] = {}
        wanted: Numbers = numbers
        keep = self.cache_key is not None
        if keep:
            cached = cache.blocks.get_many((self.cache_key, number), numbers)
            if len(cached) == len(numbers):
                wanted = ()
            elif cached:
                wanted = [n for n in numbers if n not in cached]
            nbytes = len(numbers) * layout.block_nbytes
            self.planned_nbytes[0] += cache.cost(len(numbers), nbytes)
            keep = self.planned_nbytes[0] <= config.cache_bytes // _MOST_KEPT
        is_remote = not self.source.is_local
        if wanted and is_remote and len(wanted) == self._count_filled(part.coords):
            # If only padding is unwanted, one request for the whole chunk is cheaper than requests for its blocks.
            wanted = range(layout.nblocks)
        return ChunkRead(self, number, part, tiling, cached, wanted, keep)

    def _count_filled(self, coords: Sequence[int]) -> int:
        """Return the number of blocks of the chunk at `coords` that are not all padding."""
        layout = self.layout
        count = 1
        for coord, n, c, b in zip(coords, layout.shape, layout.chunks, layout.blocks, strict=True):
            extent = min(c, n - coord * c)
            count *= -(-extent // b)
        return count

    def finish(
        self,
        job: ChunkRead,
        stored: Stored | None,
        *,
        in_threads: bool = False,
    ) -> None:
        """Decode a chunk, and copy its items; `stored` has the blocks that the cache does not have."""
        reference = None
        steps = job.tiling.steps
        try:
            if stored is not None:
                header = stored.head.header
                if self.is_regular(header):
                    reference = decode.accept(stored, job.wanted, context=self.context)
                    if in_threads and len(steps) > 1 and threads.width() > 1:
                        # The threads share the region, so none of them may use it as scratch space.
                        shared = replace(stored, region=stored.region.toreadonly())
                        threads.each(lambda step: self._copy_step(job, step, shared, reference), steps)
                        return
                elif header.special and self.repeats_items:
                    self._fill(job.part, _value(self.source, stored, self.layout.dtype))
                    return
                else:
                    cached = self.decode_whole(job.number, keep=job.keep)
                    job = job._replace(cached=cached)
                    stored = None
            for step in steps:
                self._copy_step(job, step, stored, reference)
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"chunk {job.number} of {self.source.url}", error) from error

    def _fill(self, part: Part, value: Array) -> None:
        """Fill the part of the result that one chunk covers with a value."""
        lengths = [i.stop - i.start if isinstance(i, slice) else i.shape[1] for i in part.outside]
        put(self.box, part.outside, np.broadcast_to(value, lengths))

    def is_regular(self, header: ChunkHeader) -> bool:
        """Return whether a chunk has the blocks of the array; raise FormatError if the chunk has another size."""
        layout = self.layout
        if layout.is_text:
            return self._is_of_text(header)
        if header.nbytes != layout.chunk_nbytes:
            raise FormatError(f"expected {layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")
        has_blocks = not header.special and not header.vl_blocks
        return has_blocks and header.block_nbytes == layout.block_nbytes

    @property
    def repeats_items(self) -> bool:
        """Whether a special chunk repeats an item of the array."""
        return self.layout.is_text or self.layout.itemsize == self.source.frame.typesize

    def _is_of_text(self, header: ChunkHeader) -> bool:
        """Return whether a chunk has blocks of text; raise FormatError if it has other blocks."""
        nblocks = self.layout.nblocks
        if not header.special and not (header.vl_blocks and header.nblocks == nblocks):
            raise FormatError(f"expected {nblocks} blocks of text, found {header.nblocks} blocks")
        return not header.special

    def decode_blocks(
        self,
        number: int,
        blocks: Numbers,
        stored: Stored,
        reference: Bytes | None,
        *,
        narrow: bool,
        keep: bool,
    ) -> Tile | TextTile:
        """Decode blocks of a chunk into one tile, and return it.

        Parameters
        ----------
        number : int
            The chunk.
        blocks : sequence of int
            The blocks.
        stored : Stored
            The chunk with these blocks.
        reference : array of uint8, optional
            The result of `decode.accept`.
        narrow : bool
            Whether the caller picks only some items of each block.
        keep : bool
            Whether the cache keeps the blocks, if it has room.
        """
        if self.layout.is_text:
            return self._decode_text(number, blocks, stored, keep=keep)
        nbytes = len(blocks) * self.layout.block_nbytes
        room = cache.blocks.reserve(len(blocks), nbytes) if keep else None
        memory = scratch("blocks", nbytes, _MAX_SCRATCH) if room is None else room[1]
        tile = decode.decode_tile(
            stored,
            blocks,
            memory,
            itemsize=self.layout.itemsize,
            narrow=narrow,
            context=self.context,
            reference=reference,
        )
        if room is not None:
            cache.blocks.add((self.cache_key, number), blocks, tile, room[0])
        return tile

    def _decode_text(self, number: int, blocks: Numbers, stored: Stored, *, keep: bool) -> TextTile:
        """Decode blocks of a chunk of text into one tile, and return it; the parameters are as for `decode_blocks`."""
        tile = text_blocks.decode_tile(stored, self.layout, number, blocks, context=self.context)
        if keep:
            cache.blocks.add_tile((self.cache_key, number), blocks, tile, memory_nbytes(tile.data))
        return tile

    def decode_whole(self, number: int, *, keep: bool) -> dict[int, CacheEntry]:
        """Read and decode a whole chunk that has other blocks than the array; return it in blocks of the array.

        With `keep`, the cache keeps these blocks, if it has room.
        """
        layout = self.layout
        (stored,) = fetch(self.source, (ChunkRequest(number, None),))
        room = cache.blocks.reserve(layout.nblocks, layout.chunk_nbytes) if keep else None
        memory = None if room is None else room[1]
        data = decode.decode(stored.region, out=memory, context=self.context)
        tile = Tile(data.reshape(layout.nblocks, -1))
        blocks = range(layout.nblocks)
        if room is not None:
            cache.blocks.add((self.cache_key, number), blocks, tile, room[0])
        return {block: CacheEntry(tile, block) for block in blocks}

    def _copy_step(
        self,
        job: ChunkRead,
        step: Step,
        stored: Stored | None,
        reference: Bytes | None,
    ) -> None:
        """Copy the items of one step to the result, after decoding the blocks that the cache does not have.

        `stored` and `reference` are as for `decode_blocks`; without `stored`, `job.cached` has all blocks.
        """
        if not self.by_slices:
            items = self._items(job, step, stored, reference)
            for row, part in enumerate(step.parts):
                put(self.box, part.outside, take(items[row, ...], part.inside, self.axes))
            return
        ndim = len(self.layout.shape)
        order = (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))
        # Without the ellipsis, NumPy would return a scalar for an array without dimensions.
        box = self.box[cast(Any, (*job.part.outside, ...))]
        grid: Array | None = None
        for copy in step.copies:
            target = box[cast(Any, (*copy.target, ...))]
            target = target.reshape(copy.split).transpose(order)
            if grid is None:
                exact = len(step.copies) == 1 and copy.whole and job.tiling.within is None
                is_fresh = not job.keep and not job.cached
                can_hold = target.flags.c_contiguous and not self.layout.is_text
                if stored is not None and is_fresh and exact and can_hold:
                    # The result needs these blocks unchanged: decode them into it, without a copy.
                    out = target.reshape(-1).view(np.uint8)
                    decode.decode_blocks(stored, step.numbers, out, context=self.context, reference=reference)
                    return
                items = self._items(job, step, stored, reference)
                grid = items.reshape(step.counts + job.tiling.shape)
            target[...] = grid[cast(Any, (*copy.source, ...))]

    def _items(
        self,
        job: ChunkRead,
        step: Step,
        stored: Stored | None,
        reference: Bytes | None,
    ) -> Array:
        """Return the needed items of the blocks of a step, one block after the other.

        The parameters are as for `_copy_step`.
        """
        layout = self.layout
        numbers = step.numbers
        entries = job.cached
        within = job.tiling.within or ()
        narrow = job.tiling.within is not None
        if stored is not None:
            missing = [n for n in numbers if n not in entries] if entries else numbers
            if missing:
                tile = self.decode_blocks(job.number, missing, stored, reference, narrow=narrow, keep=job.keep)
                if missing is numbers:
                    return tile.pick(slice(None), layout.blocks, layout.dtype, within)
                decoded = {n: CacheEntry(tile, row) for row, n in enumerate(missing)}
                entries = {**entries, **decoded}
        runs = []
        start = 0
        for stop in range(1, len(numbers) + 1):
            # Blocks that follow each other in the step and in their tile are picked together.
            tile, row, _ = entries[numbers[start]]
            following = entries[numbers[stop]] if stop < len(numbers) else None
            end = row + stop - start
            if following is None or following.tile is not tile or following.row != end:
                runs.append(tile.pick(slice(row, end), layout.blocks, layout.dtype, within))
                start = stop
        if len(runs) == 1:
            return runs[0]
        if layout.is_text:
            return np.concatenate(runs)
        # New memory for whole blocks would cost as much as the copy itself.
        shape = (len(numbers), *runs[0].shape[1:])
        nbytes = math.prod(shape) * layout.itemsize
        joined: Array = np.ndarray(shape, layout.dtype, scratch("joined", nbytes, _MAX_SCRATCH))
        return np.concatenate(runs, out=joined)
