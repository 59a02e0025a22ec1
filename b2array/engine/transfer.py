"""Items between an array in memory and the blocks of chunks.

One read takes its chunks apart into blocks, fetches what it needs, and lets the workers decode groups of blocks and
copy them to where they belong; one write does the reverse. Nothing here knows keys: selections come as products of
groups.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.codec import decode, encode
from b2array.codec.chunk import Context, Stored
from b2array.codec.cparams import CParams
from b2array.codec.header import NAN_BYTES, ChunkHeader, Special
from b2array.engine.fetch import fetch, fetch_block
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import Source, Target, Want
from b2array.errors import FormatError, UnsupportedError, located, located_error
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Index, Part, Tile, parts, put, take, tiles
from b2array.grid.tiling import Step, Tiling, strides_of, tiling_of

__all__ = ["chunk_box", "read", "read_item", "rewrite", "write"]

R = TypeVar("R")

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Slices = tuple[slice, ...]
_Key = tuple[object, int, int]

_WINDOW_NBYTES = 8 * 2**20
_WINDOW_CHUNKS = 4096
_WINDOWS_UNDER_WAY = 4
"""So many windows are asked for before the first of them has come, so that they do not wait for each other."""
_CACHED_SHARE = 4
"""Only reads of at most one in this many parts of the cache's size go through it: others would flush it."""


class _Job(NamedTuple):
    """A chunk, and what is to be taken from it or put into it."""

    number: int
    part: Part


def _jobs(layout: Layout, index: tuple[Index, ...], axes: Axes | None) -> Iterator[_Job]:
    strides = strides_of(layout.grid_shape)
    for part in parts(index, layout.chunks, axes):
        yield _Job(sum(map(int.__mul__, part.coords, strides)), part)


def _blocks(layout: Layout, part: Part, axes: Axes | None) -> list[tuple[int, Part]]:
    """List the blocks of a chunk that a selection touches, by their numbers."""
    strides = strides_of(layout.block_grid)
    blocks = [
        (sum(map(int.__mul__, block.coords, strides)), block)
        for block in parts(part.inside, layout.blocks, axes, part.outside)
    ]
    blocks.sort(key=lambda pair: pair[0])
    return blocks


def read(source: Source, layout: Layout, index: tuple[Index, ...], axes: Axes | None, box: Array) -> None:
    """Fill `box` with the selected items.

    Parameters
    ----------
    source : Source
        Where the chunks are.
    layout : Layout
        How they make up the array.
    index, axes
        The selection, as `b2array.grid.partition.parts` takes it.
    box : ndarray
        One dimension a group of the selection, of the array's dtype.

    Raises
    ------
    FormatError, UnsupportedError
        A chunk cannot be read; the message has its number.
    """
    if not box.size:
        return
    reader = _Reader(source, layout, index, axes, box)
    jobs = _jobs(layout, index, axes)
    first = list(islice(jobs, 2))
    if len(first) == 1:
        reader.alone = True
        reader.run(first[0])
    elif source.is_local:
        threads.each(reader.run, chain(first, jobs))
    else:
        for _ in threads.spread(reader.finish, reader.fetched(chain(first, jobs))):
            pass


def read_item(source: Source, layout: Layout, where: Sequence[int]) -> Any:
    """Return one item by the shortest way.

    Parameters
    ----------
    source, layout
        As in `read`; the dtype has no fields.
    where : sequence of int
        Its position, which must lie within the array.
    """
    chunk_number = block_number = 0
    within = []
    for i, n, c, b in zip(where, layout.shape, layout.chunks, layout.blocks, strict=True):
        coord, rest = divmod(i, c)
        chunk_number = chunk_number * -(-n // c) + coord
        coord, rest = divmod(rest, b)
        block_number = block_number * -(-c // b) + coord
        within.append(rest)
    prefix = _cache_key(source) if config.cache_bytes else None
    key = None if prefix is None else (prefix, chunk_number, block_number)
    block = None if key is None else _cache.get(key)
    if block is not None:
        return block[tuple(within)]
    return _item(source, layout, chunk_number, block_number, within, key)


def _item(
    source: Source, layout: Layout, chunk_number: int, block_number: int, within: Sequence[int], key: _Key | None
) -> Any:
    """Return an item of a block that the cache does not have, which gets the block if there is a key."""
    stored = fetch_block(source, chunk_number, block_number)
    try:
        if key is None and _regular(stored.head.header, layout):
            data = decode.decode_item(stored, block_number, layout.blocks, within, context=_context(source, layout))
            if data is not None:
                return np.frombuffer(data, layout.dtype)[0]
        block = _block(source, layout, chunk_number, block_number, stored)
    except (FormatError, UnsupportedError) as error:
        raise located_error(f"chunk {chunk_number} of {source.url}", error) from error
    if key is not None:
        _cache.add(key, block)
    return block[tuple(within)]


def _cache_key(source: Source) -> object | None:
    """Return the key of a committed state; the chunks of a transaction can change any time."""
    return source.cache_key if isinstance(source, Snapshot) else None


def _block(source: Source, layout: Layout, chunk_number: int, block_number: int, stored: Stored) -> Array:
    """Return a block, which is this thread's until it decodes the next."""
    context = _context(source, layout)
    header = stored.head.header
    _check_size(header, layout)
    if header.special:
        return np.broadcast_to(_value(stored, layout.dtype), layout.blocks)
    if not _regular(header, layout):
        return _whole(source, layout, context, chunk_number)[block_number, ...]
    decode.check_plausible_size(stored, (block_number,), context=context)
    out = decode.scratch_blocks(layout.block_nbytes)
    reference = decode.reference_block(stored, context)
    decode.decode_blocks(stored, (block_number,), out, context=context, reference=reference)
    return out.view(layout.dtype).reshape(layout.blocks)


def _context(source: Source, layout: Layout) -> Context:
    return Context(source.frame.codec, source.frame.codec_meta, layout.blocks)


def _regular(header: ChunkHeader, layout: Layout) -> bool:
    """Say whether the blocks of a chunk are those of the array."""
    nbytes = header.nbytes == layout.chunk_nbytes and header.block_nbytes == layout.block_nbytes
    return nbytes and not header.special and not header.vl_blocks


def _check_size(header: ChunkHeader, layout: Layout) -> None:
    if header.nbytes != layout.chunk_nbytes:
        raise FormatError(f"expected {layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")


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


def _whole(source: Source, layout: Layout, context: Context, chunk_number: int) -> Array:
    """Decode a chunk and cut it into the array's blocks."""
    (whole,) = fetch(source, [Want(chunk_number, None)])
    data = decode.decode(whole.region, context=context)
    return data.view(layout.dtype).reshape(-1, *layout.blocks)


class _Fetched(NamedTuple):
    """A job whose bytes are at hand, by tiles or by single blocks."""

    job: _Job
    tiling: Tiling | None
    blocks: list[tuple[int, Part]]
    stored: Stored


class _Planned(NamedTuple):
    """A job, its tiling or single blocks, and the numbers of the blocks to fetch for it."""

    job: _Job
    tiling: Tiling | None
    blocks: list[tuple[int, Part]]
    wanted: Sequence[int] | Int64Array


class _Reader:
    """What all jobs of one read share."""

    def __init__(self, source: Source, layout: Layout, index: tuple[Index, ...], axes: Axes | None, box: Array) -> None:
        self.source = source
        self.layout = layout
        self.axes = axes
        self.box = box
        self.alone = False
        self.context = _context(source, layout)
        small = box.nbytes <= config.cache_bytes // _CACHED_SHARE
        self.cache_key = _cache_key(source) if small else None
        ndim = len(layout.shape)
        self.order = (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))
        self.by_tiles = self.cache_key is None and axes is None and np.ndarray not in map(type, index)

    def run(self, job: _Job) -> None:
        """Fetch, decode and copy one chunk."""
        planned = self._plan(job)
        if planned is not None:
            (stored,) = fetch(self.source, [Want(job.number, planned.wanted)], reuse=True)
            self.finish(_Fetched(job, planned.tiling, planned.blocks, stored))

    def fetched(self, jobs: Iterator[_Job]) -> Iterator[_Fetched]:
        """Fetch chunks in bounded windows, each in one batch of requests, and a few of them at the same time."""
        for window in threads.ahead(self._fetched, self._windows(jobs), _WINDOWS_UNDER_WAY):
            yield from window
            del window  # nobody needs it while the next one is awaited

    def _fetched(self, planned: list[_Planned]) -> list[_Fetched]:
        stored = fetch(self.source, [Want(job.number, wanted) for job, _, _, wanted in planned])
        return [_Fetched(*each[:3], found) for each, found in zip(planned, stored, strict=True)]

    def _windows(self, jobs: Iterator[_Job]) -> Iterator[list[_Planned]]:
        planned: list[_Planned] = []
        nbytes = 0
        for job in jobs:
            entry = self._plan(job)
            if entry is None:
                continue
            planned.append(entry)
            nbytes += self._nbytes_to_come(job.number, len(entry.wanted))
            if nbytes >= _WINDOW_NBYTES or len(planned) >= _WINDOW_CHUNKS:
                yield planned
                planned, nbytes = [], 0
        if planned:
            yield planned

    def _nbytes_to_come(self, n: int, nblocks: int) -> int:
        row = self.source.known_sizes(n)
        if row is not None:
            return int(row[0]) * nblocks // self.layout.nblocks
        return 0 if isinstance(self.source.place(n), Special) else nblocks * self.layout.block_nbytes

    def _plan(self, job: _Job) -> _Planned | None:
        """Decide which blocks to fetch; None if the cache has them all."""
        if self.by_tiles:
            tiling = tiling_of(
                self.layout, cast(Slices, job.part.inside), decode.group_length(self.layout.block_nbytes)
            )
            if not self.source.is_local and len(tiling.numbers) == self._ninhabited(job.part.coords):
                return _Planned(job, tiling, [], range(self.layout.nblocks))
            return _Planned(job, tiling, [], tiling.numbers)
        blocks = self._uncached(job)
        return _Planned(job, None, blocks, [number for number, _ in blocks]) if blocks else None

    def _ninhabited(self, coords: Sequence[int]) -> int:
        """Count the blocks of a chunk that are not all padding."""
        layout = self.layout
        extents = zip(coords, layout.shape, layout.chunks, layout.blocks, strict=True)
        return math.prod(-(-min(c, n - coord * c) // b) for coord, n, c, b in extents)

    def _uncached(self, job: _Job) -> list[tuple[int, Part]]:
        """Copy the blocks that the cache has, return the others."""
        blocks = _blocks(self.layout, job.part, self.axes)
        if self.cache_key is None:
            return blocks
        missing = []
        for number, part in blocks:
            block = _cache.get((self.cache_key, job.number, number))
            if block is None:
                missing.append((number, part))
            else:
                put(self.box, part.outside, take(block, part.inside, self.axes))
        return missing

    def finish(self, fetched: _Fetched) -> None:
        """Decode and copy one chunk."""
        try:
            self._copy(fetched)
        except (FormatError, UnsupportedError) as error:
            raise located_error(f"chunk {fetched.job.number} of {self.source.url}", error) from error

    def _copy(self, fetched: _Fetched) -> None:
        job, tiling, blocks, stored = fetched
        header = stored.head.header
        _check_size(header, self.layout)
        if header.special and self.layout.itemsize == self.source.frame.typesize:
            put(
                self.box,
                job.part.outside,
                np.broadcast_to(_value(stored, self.layout.dtype), _lengths(job.part.outside)),
            )
        elif not _regular(header, self.layout):
            self._copy_whole(job)
        elif tiling is not None:
            self._copy_tiles(job, tiling, stored)
        else:
            self._copy_blocks(job, blocks, stored)

    def _copy_whole(self, job: _Job) -> None:
        """Copy from a chunk whose blocks are not those of the array."""
        blocks = _whole(self.source, self.layout, self.context, job.number)
        for number, part in _blocks(self.layout, job.part, self.axes):
            put(self.box, part.outside, take(blocks[number, ...], part.inside, self.axes))

    def _copy_blocks(self, job: _Job, blocks: list[tuple[int, Part]], stored: Stored) -> None:
        """Copy block by block, for keys with index arrays and for the cache."""
        pending = iter(blocks)
        for group, data in decode.decode_groups(stored, [number for number, _ in blocks], context=self.context):
            decoded = data.view(self.layout.dtype).reshape(len(group), *self.layout.blocks)
            for i, (number, part) in enumerate(islice(pending, len(group))):
                block = decoded[i, ...]
                put(self.box, part.outside, take(block, part.inside, self.axes))
                if self.cache_key is not None:
                    _cache.add((self.cache_key, job.number, number), block)

    def _copy_tiles(self, job: _Job, tiling: Tiling, stored: Stored) -> None:
        """Copy many blocks at once."""
        decode.check_plausible_size(stored, tiling.numbers, context=self.context)
        reference = decode.reference_block(stored, self.context)
        target = self.box[cast(Any, (*job.part.outside, ...))]  # the ellipsis keeps an array of 0 dimensions one
        if self.alone and len(tiling.steps) > 1 and threads.width() > 1:
            # Several threads share the region now, which must not serve as scratch space then.
            shared = replace(stored, region=stored.region.toreadonly())
            threads.each(lambda step: self._copy_step(tiling, step, shared, reference, target), tiling.steps)
            return
        for step in tiling.steps:
            self._copy_step(tiling, step, stored, reference, target)

    def _copy_step(
        self,
        tiling: Tiling,
        step: Step,
        stored: Stored,
        reference: npt.NDArray[np.uint8] | None,
        target: Array,
    ) -> None:
        targets = [
            target[cast(Any, (*copy.target, ...))].reshape(copy.split).transpose(self.order) for copy in step.copies
        ]
        direct = len(targets) == 1 and step.copies[0].whole and targets[0].flags.c_contiguous
        if direct:
            out = targets[0].reshape(-1).view(np.uint8)
        else:
            out = decode.scratch_blocks(len(step.numbers) * math.prod(tiling.shape) * self.layout.itemsize)
        if tiling.within is None:
            decode.decode_blocks(stored, step.numbers, out, context=self.context, reference=reference)
        else:
            decode.decode_items(
                stored, step.numbers, self.layout.blocks, tiling.within, out, context=self.context, reference=reference
            )
        if not direct:
            decoded = out.view(self.layout.dtype).reshape(step.counts + tiling.shape)
            for copy, into in zip(step.copies, targets, strict=True):
                into[...] = decoded[cast(Any, (*copy.source, ...))]


def _lengths(outside: tuple[Index, ...]) -> tuple[int, ...]:
    return tuple(i.stop - i.start if isinstance(i, slice) else i.shape[1] for i in outside)


class _Cache:
    """The process-wide store of decoded blocks, the least recently used ones leaving first.

    A call that comes while another one of the same thread is at work here, as from the handler of a signal, finds
    nothing and leaves nothing: it can neither wait for that one nor change what it works on.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[_Key, Array] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.RLock()
        self._at_work = False

    def get(self, key: _Key) -> Array | None:
        """Return a block that must not be changed, or None."""
        return self._alone(self._get, key)

    def add(self, key: _Key, block: Array) -> None:
        """Keep a copy of a block."""
        self._alone(self._add, key, block.copy())

    def _alone(self, verb: Callable[..., R], *args: object) -> R | None:
        with self._lock:
            if self._at_work:
                return None
            self._at_work = True
            try:
                return verb(*args)
            finally:
                self._at_work = False

    def _get(self, key: _Key) -> Array | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def _add(self, key: _Key, kept: Array) -> None:
        if key in self._blocks:
            return
        self._blocks[key] = kept
        self._nbytes += kept.nbytes
        while self._nbytes > config.cache_bytes:
            _, oldest = self._blocks.popitem(last=False)
            self._nbytes -= oldest.nbytes


_cache = _Cache()


def _after_fork() -> None:
    # Another thread may have held the lock, in the middle of a change.
    global _cache
    _cache = _Cache()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


def write(
    draft: Target, layout: Layout, index: tuple[Index, ...], axes: Axes | None, values: Array, *, cparams: CParams,
    fields: str | list[str] | None = None,
) -> None:  # fmt: skip
    """Put the selected items into new chunks.

    Parameters
    ----------
    draft : Target
        Takes the chunks.
    layout, index, axes
        As in `read`.
    values : ndarray
        One dimension a group of the selection; converted to the array's dtype block by block.
    cparams : CParams
        How to encode.
    fields : str or list of str, optional
        The fields to change, where not the whole items.
    """
    writer = _Writer(draft, layout, axes, values, cparams, fields)
    for _ in _stored(draft, threads.spread(writer.run, _jobs(layout, index, axes))):
        pass


def rewrite(
    draft: Target, layout: Layout, numbers: Iterable[int], produce: Callable[[Slices], Array], *, cparams: CParams
) -> Iterator[int]:
    """Make whole chunks anew, a few at a time.

    Parameters
    ----------
    draft : Target
        Takes the chunks, when the last one is made.
    layout : Layout
        How they make up the array.
    numbers : iterable of int
        The chunks, in C order of the grid.
    produce : callable
        Called in the workers with a box of the array, one slice an axis, for the items in it.
    cparams : CParams
        How to encode.

    Yields
    ------
    int
        The number of each chunk that is made.
    """

    def run(number: int) -> _Made:
        coords = tuple(int(coord) for coord in np.unravel_index(number, layout.grid_shape))
        box = chunk_box(layout, coords)
        whole = tuple(slice(0, i.stop - i.start, 1) for i in box)
        values = np.asarray(produce(box))
        return _Writer(draft, layout, None, values, cparams, None).run(_Job(number, Part(coords, whole, whole)))

    yield from _stored(draft, threads.spread(run, numbers))


def chunk_box(layout: Layout, coords: Sequence[int]) -> Slices:
    """Return the box of the array that a chunk covers, one slice an axis."""
    return tuple(
        slice(coord * c, min(coord * c + c, n), 1)
        for coord, c, n in zip(coords, layout.chunks, layout.shape, strict=True)
    )


_Made = tuple[int, int | None, bytes]
"""A chunk that was encoded: its number, the code of its place if it has one already, and its bytes."""


def _stored(draft: Target, made: Iterable[_Made]) -> Iterator[int]:
    """Put chunks where they will stay, and refer to them when all is well.

    Not before: a transaction in which a write fails may go on without it.
    """
    codes = []
    for number, code, buf in made:
        codes.append((number, draft.store_chunk(buf) if code is None else code))
        yield number
    for number, code in codes:
        draft.set_code(number, code)


class _Writer:
    """What all jobs of one write share."""

    def __init__(
        self, draft: Target, layout: Layout, axes: Axes | None, values: Array, cparams: CParams,
        fields: str | list[str] | None,
    ) -> None:  # fmt: skip
        self.draft = draft
        self.layout = layout
        self.axes = axes
        self.values = values
        self.cparams = cparams
        self.fields = fields
        typesize = draft.frame.typesize
        # Items that are arrays are further dimensions here, but the frame counts them whole.
        self.typesize = layout.itemsize if layout.block_nbytes % typesize else typesize

    def run(self, job: _Job) -> _Made:
        """Encode one chunk, and store it at once if it gets a file of its own."""
        layout = self.layout
        whole = blocks = self._old(job) if not self._covers(job) else self._empty()
        if self.fields is not None:
            blocks = whole[self.fields]
        if self.axes is None and np.ndarray not in map(type, job.part.inside):
            grid = blocks.reshape(layout.block_grid + layout.blocks)
            inside, outside = cast(Slices, job.part.inside), cast(Slices, job.part.outside)
            for tile in tiles(inside, layout.blocks, outside):
                _put_tile(grid, tile, self.values)
        else:
            for number, part in _blocks(layout, job.part, self.axes):
                put(blocks[number, ...], part.inside, take(self.values, part.outside), self.axes)
        buf = encode.encode(
            whole,
            typesize=self.typesize,
            blocksize=layout.block_nbytes,
            cparams=self.cparams,
            blockshape=layout.blocks,
        )
        return job.number, self.draft.store_chunk(buf) if self.draft.sparse else None, buf

    def _empty(self) -> Array:
        layout = self.layout
        padded = layout.extended_chunks != layout.chunks or any(
            n % c for n, c in zip(layout.shape, layout.chunks, strict=True)
        )
        # Bytes between fields and behind an extended float are nobody's: zeros rather than what the memory held before.
        gaps = layout.dtype.names is not None or layout.dtype.char in "gG"
        make = np.zeros if padded or gaps else np.empty
        return make((layout.nblocks, *layout.blocks), layout.dtype)

    def _old(self, job: _Job) -> Array:
        context = _context(self.draft, self.layout)
        (stored,) = fetch(self.draft, [Want(job.number, None)], reuse=True)
        out = np.empty(self.layout.chunk_nbytes, np.uint8)
        where = f"chunk {job.number} of {self.draft.url}"
        located(where, lambda: decode.decode(stored.region, out=out, context=context))
        return out.view(self.layout.dtype).reshape(self.layout.nblocks, *self.layout.blocks)

    def _covers(self, job: _Job) -> bool:
        """Whether the selection takes every item of the chunk that lies in the array."""
        if self.axes is not None or self.fields is not None:
            return False
        for i, coord, n, c in zip(job.part.inside, job.part.coords, self.layout.shape, self.layout.chunks, strict=True):
            stop = min(c, n - coord * c)
            if not isinstance(i, slice) or i.start > 0 or i.step != 1 or i.stop < stop:
                return False
        return True


def _put_tile(grid: Array, tile: Tile, values: Array) -> None:
    """Copy values into blocks, given with the dimensions of the grid first and then those of a block."""
    ndim = len(tile.coords)
    region = values[cast(Any, (*tile.outside, ...))]
    sizes = [n for along, size in zip(tile.coords, region.shape, strict=True) for n in (len(along), size // len(along))]
    order = [*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)]
    grid[(*(slice(along.start, along.stop) for along in tile.coords), *tile.inside)] = region.reshape(sizes).transpose(
        order
    )
