"""The cost of reading a selection: the plan of the reader is counted, but not executed."""

from __future__ import annotations

import math
import operator
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, starmap
from typing import Any

import numpy as np

from b2array import config
from b2array.codec.chunk import Stored
from b2array.display.drawing import Box, draw, merge
from b2array.display.text_tables import Info, beside, put_title, size, table
from b2array.errors import B2ArrayError
from b2array.frame.fetch import Ask, fetch, steps_of
from b2array.frame.read import ChunkRead, ChunkReader, make_reader, windows
from b2array.frame.revision import Revision
from b2array.frame.source import ChunkRequest, Source
from b2array.grid.advice import advice
from b2array.grid.layout import Layout
from b2array.grid.selection import Selection
from b2array.grid.tiling import parts_of_chunks
from b2array.store.spans import Span, coalesce

__all__ = ["Reading", "explain"]

_LIMIT = 16 * 2**20
"""The maximum size of a request to a store, in bytes, unless a single block is larger."""
_MOST_BLOCKS = 4096
"""The maximum number of drawn blocks. Of more blocks, only the chunks are drawn; more chunks are joined."""

_Running = tuple[Generator[Ask, Any, Stored], memoryview | None]
"""An unfinished read of a chunk, and the answer to its last request."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of reading a selection. It prints as a table, in notebooks with a drawing.

    Attributes
    ----------
    chunks, blocks : int
        Number of chunks and number of blocks that the selection touches.
    cached : int
        Number of these blocks that are in the cache, and need not be read.
    requests : int
        Number of reads from the file or requests to the store.
    nbytes : int
        Number of bytes that the requests read.
    on_disk : int
        Number of bytes of the array that are in the cache on disk (`b2array.config.disk_cache`), and need no request.
    result_nbytes : int
        Size of the selected items in bytes.
    share : float
        `nbytes` over the compressed size of the array; 1.0 at most, though heads of chunks may be read twice.
    advice : str
        The kind of access for which the array should have been created, if its blocks would make this read much
        cheaper; see `b2array.create`. For a read of the whole array: the common keys that its blocks serve badly.
        Otherwise empty.
    """

    chunks: int
    blocks: int
    cached: int
    requests: int
    nbytes: int
    on_disk: int
    result_nbytes: int
    share: float
    advice: str
    _url: str
    _layout: Layout
    _names: Sequence[str | None] | None
    _touched: list[Box]
    _around: list[Box]

    def _rows(self) -> dict[str, str]:
        layout = self._layout
        nblocks = math.prod(map(_nblocks_along, layout.shape, layout.chunks, layout.blocks))
        cached = f", {self.cached} of them in the cache" if self.cached else ""
        whole = math.prod(layout.shape) * layout.itemsize
        of_items = self.result_nbytes / max(1, whole)
        rows = {
            "chunks": f"{self.chunks} of {layout.nchunks}",
            "blocks": f"{self.blocks} of {nblocks}{cached}",
            "requests": str(self.requests),
            "bytes read": f"{size(self.nbytes)}, {self.share:.2%} of the array as it is stored",
            "result": f"{size(self.result_nbytes)}, {of_items:.2%} of the items",
        }
        if self.on_disk:
            rows["on disk"] = f"{size(self.on_disk)} more, in the cache of bytes from servers"
        if self.advice:
            rows["advice"] = self.advice
        return rows

    def __repr__(self) -> str:
        return repr(Info(self._rows()))

    def _repr_html_(self) -> str:
        layout = self._layout
        picture = draw(
            layout.shape,
            layout.chunks,
            solid=self._touched,
            shaded=self._around,
            names=self._names,
        )
        content = beside(table(self._rows()), picture)
        return put_title("reading", self._url, [content])


def explain(
    source: Source,
    layout: Layout,
    selection: Selection,
    names: Sequence[str | None] | None,
) -> Reading:
    """Return the cost of reading a selection now. At most the heads of chunks are read to determine it."""
    # The box has only one item in memory, because nothing is written into it.
    item = np.empty((), layout.dtype)
    box = np.broadcast_to(item, selection.box)
    positions = selection.positions
    axes = selection.axes
    reader = make_reader(source, layout, positions, axes, box)
    chunks = 0
    blocks = 0
    cached = 0
    requests = 0
    nbytes = 0
    on_disk = 0
    touched: list[Box] = []
    around: list[Box] = []
    for window in _windows(reader, positions, axes) if box.size else ():
        for job in window:
            numbers = job.tiling.numbers
            chunks += 1
            blocks += len(numbers)
            cached += len(job.cached)
            corner = tuple(map(operator.mul, job.part.coords, layout.chunks))
            around.append(_box(corner, layout.chunks, layout))
            if len(around) > _MOST_BLOCKS:
                around = merge(around)
            if blocks <= _MOST_BLOCKS:
                touched += _boxes_of(layout, corner, numbers)
        # Chunks whose blocks are all in the cache need no request.
        needed = [ChunkRequest(job.number, job.wanted) for job in window if len(job.wanted)]
        for count, length, kept in _waves(source, needed):
            requests += count
            nbytes += length
            on_disk += kept
    share = 0.0
    if source.frame.cbytes:
        # The count includes heads that are read twice, and gaps between ranges.
        share = min(1.0, nbytes / source.frame.cbytes)
    slices = [factor for factor in positions if isinstance(factor, slice)]
    # Advice is only for slices that read blocks, because it cannot count the blocks that index arrays touch.
    hint = ""
    if axes is None and len(slices) == layout.ndim and requests + cached:
        hint = advice(layout, slices)
    return Reading(
        chunks=chunks,
        blocks=blocks,
        cached=cached,
        requests=requests,
        nbytes=nbytes,
        on_disk=on_disk,
        result_nbytes=box.nbytes,
        share=share,
        advice=hint,
        _url=source.url,
        _layout=layout,
        _names=names,
        _touched=touched if blocks <= _MOST_BLOCKS else around,
        _around=around,
    )


def _boxes_of(layout: Layout, corner: Sequence[int], numbers: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes of some blocks of the chunk whose first item is at `corner`."""
    if not layout.ndim:
        yield ()
        return
    coords = np.unravel_index(numbers, layout.block_grid)
    for place in zip(*coords, strict=True):
        sides = zip(corner, place, layout.blocks, strict=True)
        start = [first + int(i) * block for first, i, block in sides]
        yield _box(start, layout.blocks, layout)


def _nblocks_along(n: int, chunk: int, block: int) -> int:
    """Return the number of blocks that cover `n` items along an axis; blocks of padding alone do not count."""
    if not chunk:  # an axis without items
        return 1
    nchunks, rest = divmod(n, chunk)
    of_chunk = -(-chunk // block)
    of_rest = -(-rest // block)
    return nchunks * of_chunk + of_rest


def _box(start: Sequence[int], extents: Sequence[int], layout: Layout) -> Box:
    sides = []
    for first, extent, n in zip(start, extents, layout.shape, strict=True):
        # Padding is not drawn.
        last = min(first + extent, n)
        sides.append((min(first, n), last))
    return tuple(sides)


def _windows(reader: ChunkReader, positions: Any, axes: Any) -> Iterator[list[ChunkRead]]:
    """Yield lists of chunks that are fetched together."""
    parts = parts_of_chunks(reader.layout, positions, axes)
    jobs = starmap(reader.plan, parts)
    if reader.source.is_local:
        return ([job] for job in jobs)
    return windows(jobs)


def _waves(source: Source, requests: Sequence[ChunkRequest]) -> Iterator[tuple[int, int, int]]:
    """Yield for each wave the number of requests and of their bytes, and the number of bytes in the cache on disk."""
    if isinstance(source, Revision):
        if source.contents:
            return  # the first request has read the whole frame
        # Count on a copy: caching heads here would make the real read cheaper.
        apart = replace(source)
        apart.heads.update(source.heads)
        source = apart
    running: list[_Running] = [(steps_of(source, request), None) for request in requests]
    while running:
        wave = []
        try:
            for steps, view in running:
                # A finished read raises StopIteration, and is not part of the next wave.
                with suppress(StopIteration):
                    ask = steps.send(view)
                    wave.append((steps, ask))
            leading = [(steps, ask) for steps, ask in wave if ask.leads]
            # Reading heads puts them into the cache on disk.
            before = _count(source, [ask for _, ask in wave]) if leading else None
            spans = [ask.spans[0] for _, ask in leading]
            views = source.read(spans, clip=True) if leading else []
        except (B2ArrayError, OSError):
            fetch(source, requests)  # raises the error that a read would raise
            raise
        answers = list(zip(leading, views, strict=True))
        # The requested size of a head is a guess, which may exceed the end of the file.
        missing = sum(ask.nbytes - len(view) for (_, ask), view in answers)
        asks = [ask for _, ask in wave]
        count, nbytes, kept = before or _count(source, asks)
        yield count, max(0, nbytes - missing), kept
        running = [(steps, view) for (steps, _), view in answers]


def _count(source: Source, asks: Sequence[Ask]) -> tuple[int, int, int]:
    """Return the number of requests and of their bytes for a wave, and the number of bytes in the cache on disk."""
    if source.is_local:
        # Local files are read chunk by chunk, in threads.
        count = 0
        for ask in asks:
            gap = config.coalesce_gap if ask.clip else 0
            count += len(coalesce(ask.spans, gap))
        return count, _nbytes(chain.from_iterable(ask.spans for ask in asks)), 0
    spans = list(chain.from_iterable(ask.spans for ask in asks))
    kept = 0
    if isinstance(source, Revision):
        spans, kept = source.not_on_disk(spans)
    joined = [span for span, _ in coalesce(spans, config.coalesce_gap, _LIMIT)]
    count = sum(stop > start for _, start, stop in joined)
    return count, _nbytes(joined), kept


def _nbytes(spans: Iterable[Span]) -> int:
    return sum(stop - start for _, start, stop in spans)
