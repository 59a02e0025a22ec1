"""A selection of items: chunks -> blocks -> (cache) -> fetch -> decode -> copied to where they belong.

Every read but that of a single item, `read_item`, goes one way. `grid.tiling` cuts a selection into parts of chunks,
and each part into steps of blocks that are decoded together. The reader asks the cache for the blocks, and fetches and
decodes the others, in memory of the cache if that keeps them. Nothing here knows keys: selections are products of
factors, as `b2array.grid.partition` cuts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, filterfalse, islice, starmap
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.buffers import scratch
from b2array.codec import decode
from b2array.codec.chunk import Context, Stored
from b2array.codec.decode import Tile
from b2array.codec.header import NAN_BYTES, ChunkHeader, Special
from b2array.errors import FormatError, UnsupportedError, prefix_error
from b2array.frame import cache
from b2array.frame.cache import CacheEntry
from b2array.frame.fetch import fetch
from b2array.frame.snapshot import Snapshot
from b2array.frame.source import ChunkRequest, Source
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Positions, put, take
from b2array.grid.tiling import Step, Tiling, parts_of_chunks, tiling_of, tiling_of_points

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
    "windows",
]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Numbers = Sequence[int]
Slices = tuple[slice, ...]

_NO_BOX: Array = np.empty(())

WINDOW_NBYTES = 8 * 2**20
WINDOW_CHUNKS = 4096
WINDOWS_UNDER_WAY = 4
"""This many windows are requested before the first one has arrived, so that they do not wait for each other."""
_LEAST_SHARED = 2**20
"""Threads share chunks of which this much is decoded. For less, they mostly wait for the interpreter."""
_MAX_SCRATCH = 4 * decode.STEP_NBYTES
_SHARE = 8
"""A read goes through the cache only if its result is at most one part in this many of the cache."""
_MOST_KEPT = 2
"""One read keeps its first blocks, up to one part in this many of the cache. More of them would evict each other."""


def read(
    source: Source, layout: Layout, positions: tuple[Positions, ...], axes: Axes | None, box: Array, nbytes: int = 0
) -> None:
    """Fill `box`, with one dimension a factor, with the items of a selection; see `b2array.grid.partition`.

    If this is part of a larger read, `nbytes` is the size of that in bytes.
    """
    if not box.size:
        return
    reader = make_reader(source, layout, positions, axes, box, nbytes)
    chunks = parts_of_chunks(layout, positions, axes)
    if source.buffer is not None:
        chunks = filterfalse(reader.copy_open, chunks)
    planned = starmap(reader.plan, chunks)
    first = list(islice(planned, 2))
    jobs = chain(first, planned)
    if len(first) == 1:
        reader.run(first[0], in_threads=True)
    elif not source.is_local:
        for _ in threads.spread(lambda pair: reader.finish(*pair), fetch_ahead(jobs, _fetch_window)):
            pass
    elif max((len(job.wanted) for job in first), default=0) * layout.block_nbytes >= _LEAST_SHARED:
        threads.each(reader.run, jobs)
    else:
        for job in jobs:
            reader.run(job)


def make_reader(
    source: Source, layout: Layout, positions: tuple[Positions, ...], axes: Axes | None, box: Array, nbytes: int = 0
) -> ChunkReader:
    """Return the reader that plans and carries out `read`."""
    is_small = max(box.nbytes, nbytes) <= config.cache_bytes // _SHARE
    key = source.cache_key if isinstance(source, Snapshot) and is_small else None
    by_slices = axes is None and np.ndarray not in map(type, positions)
    context = _context(source.frame.codec, source.frame.codec_meta, layout.blocks)
    return ChunkReader(source, layout, context, key, box, [0], axes, by_slices)


Answer = TypeVar("Answer")


def fetch_ahead(jobs: Iterable[ChunkRead], fetch_window: Callable[[list[ChunkRead]], list[Answer]]) -> Iterator[Answer]:
    """Fetch chunks of one read, or of several, in bounded windows, a few of them at the same time."""
    for window in threads.ahead(fetch_window, windows(jobs), WINDOWS_UNDER_WAY):
        yield from window
        del window  # its memory is free while the next one is awaited


def windows(jobs: Iterable[ChunkRead]) -> Iterator[list[ChunkRead]]:
    """Collect plans in windows. One wave of requests fetches a window."""
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
    """Fetch chunks of one read. The first chunk that fails raises its error."""
    requests = [ChunkRequest(job.number, job.wanted) for job in jobs if job.wanted]
    stored = iter(fetch(jobs[0].reader.source, requests))
    return [(job, next(stored) if job.wanted else None) for job in jobs]


def read_item(source: Source, layout: Layout, where: Sequence[int]) -> Any:
    """Return the item at a position within the array; the dtype has no fields."""
    number = block = position = 0
    for i, n, c, b in zip(where, layout.shape, layout.chunks, layout.blocks, strict=True):
        coord, rest = divmod(i, c)
        number = number * -(-n // c) + coord
        coord, rest = divmod(rest, b)
        block = block * -(-c // b) + coord
        position = position * b + rest
    if source.buffer is not None:
        with source.buffer.mutex.held:
            if (chunk := source.buffer.chunks.get(number)) is not None:
                tile, row, _ = chunk.entries((block,))[block]
                return tile.item(row, position, layout.dtype)
    key = source.cache_key if isinstance(source, Snapshot) and config.cache_bytes else None
    found = {} if key is None else cache.blocks.get_many((key, number), (block,))
    if not found:
        (stored,) = fetch(source, (ChunkRequest(number, (block,)),))
        reader = make_reader(source, layout, (), None, _NO_BOX)
        try:
            if reader.is_regular(stored.head.header):
                reference = decode.accept(stored, (block,), context=reader.context)
                tile = reader.decode_blocks(number, (block,), stored, reference, narrow=True, keep=key is not None)
                return tile.item(0, position, layout.dtype)
            if stored.head.header.special and layout.itemsize == source.frame.typesize:
                return _value(stored, layout.dtype)[()]
            found = reader.decode_whole(number, keep=key is not None)
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"chunk {number} of {source.url}", error) from error
    tile, row, _ = found[block]
    return tile.item(row, position, layout.dtype)


_context = lru_cache(maxsize=64)(Context)


def _value(stored: Stored, dtype: np.dtype[Any]) -> Array:
    """Return the item that fills a special chunk."""
    item = stored.head.value
    if stored.head.header.special == Special.NAN:
        item = NAN_BYTES[stored.head.header.typesize]
    elif stored.head.header.special != Special.VALUE:
        return np.zeros((), dtype)
    if len(item) != dtype.itemsize:
        raise FormatError(f"expected a repeated item of {dtype.itemsize} bytes, found {len(item)}")
    return np.frombuffer(item, dtype).reshape(())


class ChunkRead(NamedTuple):
    """The plan to read one chunk: its cached blocks, the blocks to fetch, and whether the cache keeps these."""

    reader: ChunkReader
    number: int
    part: Part
    tiling: Tiling
    found: dict[int, CacheEntry]
    wanted: Numbers
    keep: bool


class ChunkReader(NamedTuple):
    """The context that all chunks of one read share.

    `plan` decides what to fetch of a chunk; `finish` decodes and copies it. `met` has the bytes that the cache would
    take for the blocks that were planned so far.
    """

    source: Source
    layout: Layout
    context: Context
    cache_key: object | None
    box: Array
    met: list[int]
    axes: Axes | None = None
    by_slices: bool = True

    def run(self, job: ChunkRead, *, in_threads: bool = False) -> None:
        """Read one chunk; with `in_threads`, in several."""
        stored = fetch(self.source, (ChunkRequest(job.number, job.wanted),))[0] if job.wanted else None
        self.finish(job, stored, in_threads=in_threads)

    def copy_open(self, chunk: tuple[int, Part]) -> bool:
        """Read a chunk if a transaction keeps it open; say whether it does."""
        number, part = chunk
        buffer = self.source.buffer
        if buffer is None or number not in buffer.chunks:
            return False
        job = self.plan(number, part)
        with buffer.mutex.held:
            found = buffer.chunks.get(number)
            if found is not None:
                self.finish(job._replace(found=found.entries(job.tiling.numbers)), None)
        return found is not None

    def estimate_nbytes(self, n: int, nblocks: int) -> int:
        """Estimate how many bytes have to be fetched for blocks of a chunk."""
        sizes = self.source.known_sizes(n)
        if sizes is not None:
            return int(sizes[0]) * nblocks // self.layout.nblocks
        return 0 if isinstance(self.source.locate(n), Special) else nblocks * self.layout.block_nbytes

    def plan(self, number: int, part: Part) -> ChunkRead:
        """Decide how to read a chunk, and ask the cache for its blocks."""
        layout = self.layout
        length = decode.STEP_NBYTES // layout.block_nbytes or 1
        if self.by_slices:
            tiling = tiling_of(layout, cast(Slices, part.inside), length)
        else:
            tiling = tiling_of_points(layout, part, self.axes, length)
        found: dict[int, CacheEntry] = {}
        wanted: Numbers = tiling.numbers
        keep = self.cache_key is not None
        if keep:
            found = cache.blocks.get_many((self.cache_key, number), tiling.numbers)
            if len(found) == len(wanted):
                wanted = ()
            elif found:
                wanted = [n for n in tiling.numbers if n not in found]
            self.met[0] += cache.cost(len(tiling.numbers), len(tiling.numbers) * layout.block_nbytes)
            keep = self.met[0] <= config.cache_bytes // _MOST_KEPT
        if wanted and not self.source.is_local and len(wanted) == self._count_inhabited(part.coords):
            wanted = range(layout.nblocks)  # all but padding is wanted: one range is easier to ask for
        return ChunkRead(self, number, part, tiling, found, wanted, keep)

    def _count_inhabited(self, coords: Sequence[int]) -> int:
        """Count the blocks of a chunk that are not all padding."""
        layout = self.layout
        extents = zip(coords, layout.shape, layout.chunks, layout.blocks, strict=True)
        return math.prod(-(-min(c, n - coord * c) // b) for coord, n, c, b in extents)

    def finish(self, job: ChunkRead, stored: Stored | None, *, in_threads: bool = False) -> None:
        """Decode and copy one chunk; `stored` has the blocks that the cache does not have."""
        reference, steps = None, job.tiling.steps
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
                elif header.special and self.layout.itemsize == self.source.frame.typesize:
                    lengths = [i.stop - i.start if isinstance(i, slice) else i.shape[1] for i in job.part.outside]
                    put(self.box, job.part.outside, np.broadcast_to(_value(stored, self.layout.dtype), lengths))
                    return
                else:
                    job, stored = job._replace(found=self.decode_whole(job.number, keep=job.keep)), None
            for step in steps:
                self._copy_step(job, step, stored, reference)
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"chunk {job.number} of {self.source.url}", error) from error

    def is_regular(self, header: ChunkHeader) -> bool:
        """Say whether a chunk has the blocks of the array; refuse a chunk of another size."""
        layout = self.layout
        if header.nbytes != layout.chunk_nbytes:
            raise FormatError(f"expected {layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")
        return header.block_nbytes == layout.block_nbytes and not header.special and not header.vl_blocks

    def decode_blocks(
        self, number: int, blocks: Numbers, stored: Stored, reference: Bytes | None, *, narrow: bool, keep: bool
    ) -> Tile:
        """Decode blocks together; the cache may keep them."""
        nbytes = len(blocks) * self.layout.block_nbytes
        room = cache.blocks.reserve(len(blocks), nbytes) if keep else None
        tile = decode.decode_tile(
            stored,
            blocks,
            scratch("blocks", nbytes, _MAX_SCRATCH) if room is None else room[1],
            itemsize=self.layout.itemsize,
            narrow=narrow,
            context=self.context,
            reference=reference,
        )
        if room is not None:
            cache.blocks.add((self.cache_key, number), blocks, tile, room[0])
        return tile

    def decode_whole(self, number: int, *, keep: bool) -> dict[int, CacheEntry]:
        """Decode a chunk whose blocks differ from the array's, and cut it into the array's."""
        (whole,) = fetch(self.source, (ChunkRequest(number, None),))
        room = cache.blocks.reserve(self.layout.nblocks, self.layout.chunk_nbytes) if keep else None
        data = decode.decode(whole.region, out=None if room is None else room[1], context=self.context)
        tile, blocks = Tile(data.reshape(self.layout.nblocks, -1)), range(self.layout.nblocks)
        if room is not None:
            cache.blocks.add((self.cache_key, number), blocks, tile, room[0])
        return {block: CacheEntry(tile, block) for block in blocks}

    def _copy_step(self, job: ChunkRead, step: Step, stored: Stored | None, reference: Bytes | None) -> None:
        if not self.by_slices:
            items = self._items(job, step, stored, reference)
            for row, part in enumerate(step.parts):
                put(self.box, part.outside, take(items[row, ...], part.inside, self.axes))
            return
        ndim = len(self.layout.shape)
        order = (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))
        box = self.box[cast(Any, (*job.part.outside, ...))]  # the ellipsis keeps an array of 0 dimensions one
        grid: Array | None = None
        for copy in step.copies:
            target = box[cast(Any, (*copy.target, ...))].reshape(copy.split).transpose(order)
            if grid is None:
                exact = len(step.copies) == 1 and copy.whole and job.tiling.within is None
                if exact and stored is not None and not (job.keep or job.found) and target.flags.c_contiguous:
                    out = target.reshape(-1).view(np.uint8)
                    decode.decode_blocks(stored, step.numbers, out, context=self.context, reference=reference)
                    return
                grid = self._items(job, step, stored, reference).reshape(step.counts + job.tiling.shape)
            target[...] = grid[cast(Any, (*copy.source, ...))]

    def _items(self, job: ChunkRead, step: Step, stored: Stored | None, reference: Bytes | None) -> Array:
        """Return the needed items of the blocks of a step, one block after the other."""
        layout, numbers, found = self.layout, step.numbers, job.found
        within, narrow = job.tiling.within or (), job.tiling.within is not None
        if stored is not None:
            missing = [n for n in numbers if n not in found] if found else numbers
            if missing:
                tile = self.decode_blocks(job.number, missing, stored, reference, narrow=narrow, keep=job.keep)
                if missing is numbers:
                    return tile.pick(slice(None), layout.blocks, layout.dtype, within)
                found = {**found, **{n: CacheEntry(tile, row) for row, n in enumerate(missing)}}
        picked, start = [], 0
        for stop in range(1, len(numbers) + 1):
            # Neighbours that are neighbours in their tile too are picked together.
            tile, row, _ = found[numbers[start]]
            after = found[numbers[stop]] if stop < len(numbers) else None
            if after is None or after.tile is not tile or after.row != row + stop - start:
                picked.append(tile.pick(slice(row, row + stop - start), layout.blocks, layout.dtype, within))
                start = stop
        return picked[0] if len(picked) == 1 else np.concatenate(picked)
