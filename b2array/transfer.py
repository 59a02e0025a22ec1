"""Items between an array in memory and the blocks of chunks.

One read takes its chunks apart into blocks, fetches what it needs, and lets the workers decode groups of blocks and copy
them to where they belong; one write does the reverse. Nothing here knows keys: selections come as products of groups.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import chunk, config, encoder, workers
from b2array.b2nd import Layout
from b2array.chunk import Context, Stored
from b2array.draft import Draft
from b2array.errors import FormatError
from b2array.params import CParams
from b2array.partition import Axes, Index, Part, parts, put, take
from b2array.snapshot import Snapshot, Source, Want, fetch, located
from b2array.spec import Special

__all__ = ["read", "write"]

Array = npt.NDArray[Any]

_WINDOW_NBYTES = 32 * 2**20
_CACHED_SHARE = 4
"""Only reads of at most one in this many parts of the cache's size go through it: others would flush it."""


class _Job(NamedTuple):
    """A chunk, and which items of which of its blocks go where."""

    number: int
    part: Part
    blocks: list[tuple[int, Part]]


def _strides(grid: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(grid[axis + 1 :]) for axis in range(len(grid)))


def _jobs(layout: Layout, index: tuple[Index, ...], axes: Axes | None) -> Iterator[_Job]:
    chunk_strides, block_strides = _strides(layout.grid_shape), _strides(layout.block_grid)
    for part in parts(index, layout.chunks, axes):
        number = sum(map(int.__mul__, part.coords, chunk_strides))
        blocks = [
            (sum(map(int.__mul__, block.coords, block_strides)), block)
            for block in parts(part.inside, layout.blocks, axes, part.outside)
        ]
        blocks.sort(key=lambda pair: pair[0])
        yield _Job(number, part, blocks)


def read(source: Source, layout: Layout, index: tuple[Index, ...], axes: Axes | None, box: Array) -> None:
    """Fill `box` with the selected items.

    Parameters
    ----------
    source : Source
        Where the chunks are.
    layout : Layout
        How they make up the array.
    index, axes
        The selection, as `b2array.partition.parts` takes it.
    box : ndarray
        One dimension a group of the selection, of the array's dtype.

    Raises
    ------
    FormatError, UnsupportedError
        A chunk cannot be read; the message has its number.
    """
    if not box.size:
        return
    reader = _Reader(source, layout, axes, box)
    jobs = _jobs(layout, index, axes)
    few = list(islice(jobs, 2))
    if len(few) == 1 and len(few[0].blocks) == 1:
        reader.run(few[0])
        return
    pending = _chained(few, jobs)
    if getattr(source_store(source), "appendable", False):
        for _ in workers.spread(reader.run, pending):
            pass
        return
    for _ in workers.spread(reader.run_fetched, reader.fetched(pending)):
        pass


def _chained(first: Sequence[_Job], rest: Iterator[_Job]) -> Iterator[_Job]:
    yield from first
    yield from rest


def source_store(source: Source) -> Any:
    """Return the store behind a snapshot or draft."""
    return source.store if isinstance(source, Snapshot | Draft) else None


class _Reader:
    """What all jobs of one read share."""

    def __init__(self, source: Source, layout: Layout, axes: Axes | None, box: Array) -> None:
        self.source = source
        self.layout = layout
        self.axes = axes
        self.box = box
        described = source.frame
        self.context = Context(described.codec, described.codec_meta, layout.blocks)
        small = box.nbytes <= config.cache_bytes // _CACHED_SHARE
        self.cache_key = source.generation if small and isinstance(source, Snapshot) else None

    def run(self, job: _Job) -> None:
        """Fetch, decode and copy one chunk."""
        wanted = self._uncached(job)
        if wanted:
            (stored,) = fetch(self.source, [self._want(job, wanted)], context=self.context)
            self._finish(job, stored, wanted)

    def run_fetched(self, fetched: tuple[_Job, list[tuple[int, Part]], Stored]) -> None:
        """Decode and copy one chunk that was fetched before."""
        job, wanted, stored = fetched
        self._finish(job, stored, wanted)

    def fetched(self, jobs: Iterator[_Job]) -> Iterator[tuple[_Job, list[tuple[int, Part]], Stored]]:
        """Fetch chunks in bounded windows, each in one batch of requests."""
        chunk_nbytes = max(1, self.layout.chunk_nbytes)
        length = max(1, _WINDOW_NBYTES // chunk_nbytes)
        while window := [(job, wanted) for job in islice(jobs, length) if (wanted := self._uncached(job))]:
            stored = fetch(self.source, [self._want(job, wanted) for job, wanted in window], context=self.context)
            for (job, wanted), each in zip(window, stored, strict=True):
                yield job, wanted, each

    def _want(self, job: _Job, wanted: list[tuple[int, Part]]) -> Want:
        return Want(job.number, [number for number, _ in wanted])

    def _uncached(self, job: _Job) -> list[tuple[int, Part]]:
        """Copy the blocks that the cache has, return the others."""
        if self.cache_key is None:
            return job.blocks
        missing = []
        for number, part in job.blocks:
            block = _cache.get((self.cache_key, job.number, number))
            if block is None:
                missing.append((number, part))
            else:
                put(self.box, part.outside, take(block, part.inside, self.axes))
        return missing

    def _finish(self, job: _Job, stored: Stored, wanted: list[tuple[int, Part]]) -> None:
        located(f"chunk {job.number} of {self.source.url}", lambda: self._copy(job, stored, wanted))

    def _copy(self, job: _Job, stored: Stored, wanted: list[tuple[int, Part]]) -> None:
        header = stored.head.header
        if header.nbytes != self.layout.chunk_nbytes:
            raise FormatError(f"expected {self.layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")
        if header.special and header.special != Special.NAN:
            self._fill(job, stored)
            return
        if header.vl_blocks or header.block_nbytes != self.layout.block_nbytes:
            whole = fetch(self.source, [Want(job.number, None)])[0]
            data = chunk.decode(whole.region, context=self.context)
            blocks = data.view(self.layout.dtype).reshape(-1, *self.layout.blocks)
            for number, part in wanted:
                put(self.box, part.outside, take(blocks[number, ...], part.inside, self.axes))
            return
        pending = iter(wanted)
        for group, data in chunk.groups(stored, [number for number, _ in wanted], context=self.context):
            blocks = data.view(self.layout.dtype).reshape(len(group), *self.layout.blocks)
            for i, (number, part) in enumerate(islice(pending, len(group))):
                block = blocks[i, ...]
                put(self.box, part.outside, take(block, part.inside, self.axes))
                if self.cache_key is not None:
                    _cache.add((self.cache_key, job.number, number), block)

    def _fill(self, job: _Job, stored: Stored) -> None:
        head, dtype = stored.head, self.layout.dtype
        value = np.zeros((), dtype)
        if head.header.special == Special.VALUE:
            if len(head.value) != dtype.itemsize:
                raise FormatError(f"expected a repeated item of {dtype.itemsize} bytes, found {len(head.value)}")
            value = np.frombuffer(head.value, dtype).reshape(())
        put(self.box, job.part.outside, np.broadcast_to(value, _lengths(job.part.outside)))


def _lengths(outside: tuple[Index, ...]) -> tuple[int, ...]:
    return tuple(i.stop - i.start if isinstance(i, slice) else i.shape[1] for i in outside)


class _Cache:
    """The process-wide store of decoded blocks, the least recently used ones leaving first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int, int], Array] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int, int]) -> Array | None:
        """Return a block that must not be changed, or None."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def add(self, key: tuple[str, int, int], block: Array) -> None:
        """Keep a copy of a block."""
        kept = block.copy()
        with self._lock:
            if key in self._blocks:
                return
            self._blocks[key] = kept
            self._nbytes += kept.nbytes
            while self._nbytes > config.cache_bytes:
                _, oldest = self._blocks.popitem(last=False)
                self._nbytes -= oldest.nbytes


_cache = _Cache()


def write(
    draft: Draft, layout: Layout, index: tuple[Index, ...], axes: Axes | None, values: Array, *, cparams: CParams
) -> None:
    """Put the selected items into new chunks.

    Parameters
    ----------
    draft : Draft
        Takes the chunks.
    layout, index, axes
        As in `read`.
    values : ndarray
        One dimension a group of the selection; converted to the array's dtype block by block.
    cparams : CParams
        How to encode.
    """
    writer = _Writer(draft, layout, axes, values, cparams)
    for number, code, buf in workers.spread(writer.run, _jobs(layout, index, axes)):
        draft.set_code(number, draft.store_chunk(buf) if code is None else code, buf)


class _Writer:
    """What all jobs of one write share."""

    def __init__(self, draft: Draft, layout: Layout, axes: Axes | None, values: Array, cparams: CParams) -> None:
        self.draft = draft
        self.layout = layout
        self.axes = axes
        self.values = values
        self.cparams = cparams

    def run(self, job: _Job) -> tuple[int, int | None, bytes]:
        """Encode one chunk, and store it at once if it gets a file of its own."""
        blocks = self._old(job) if not self._covers(job) else self._empty()
        for number, part in job.blocks:
            put(blocks[number, ...], part.inside, take(self.values, part.outside), self.axes)
        buf = encoder.encode(
            blocks,
            typesize=self.layout.itemsize,
            blocksize=self.layout.block_nbytes,
            cparams=self.cparams,
            blockshape=self.layout.blocks,
        )
        return job.number, self.draft.store_chunk(buf) if self.draft.sparse else None, buf

    def _empty(self) -> Array:
        layout = self.layout
        padded = layout.extended_chunks != layout.chunks or any(
            n % c for n, c in zip(layout.shape, layout.chunks, strict=True)
        )
        make = np.zeros if padded else np.empty
        return make((layout.nblocks, *layout.blocks), layout.dtype)

    def _old(self, job: _Job) -> Array:
        context = Context(self.draft.frame.codec, self.draft.frame.codec_meta, self.layout.blocks)
        (stored,) = fetch(self.draft, [Want(job.number, None)], context=context)
        out = np.empty(self.layout.chunk_nbytes, np.uint8)
        where = f"chunk {job.number} of {self.draft.url}"
        located(where, lambda: chunk.decode(stored.region, out=out, context=context))
        return out.view(self.layout.dtype).reshape(self.layout.nblocks, *self.layout.blocks)

    def _covers(self, job: _Job) -> bool:
        """Whether the selection takes every item of the chunk that lies in the array."""
        if self.axes is not None:
            return False
        for i, coord, n, c in zip(job.part.inside, job.part.coords, self.layout.shape, self.layout.chunks, strict=True):
            stop = min(c, n - coord * c)
            if not isinstance(i, slice) or i.start > 0 or i.step != 1 or i.stop < stop:
                return False
        return True
