"""What a selection will read: the reader's own plan, counted and not carried out."""

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
from b2array.display.tables import Info, beside, put_title, size, table
from b2array.errors import B2ArrayError
from b2array.frame.fetch import Ask, fetch, steps_of
from b2array.frame.read import ChunkRead, ChunkReader, make_reader, windows
from b2array.frame.snapshot import Snapshot
from b2array.frame.source import ChunkRequest, Source
from b2array.grid.advice import advice
from b2array.grid.layout import Layout
from b2array.grid.selection import Selection
from b2array.grid.tiling import parts_of_chunks
from b2array.store.spans import Span, coalesce

__all__ = ["Reading", "explain"]

_LIMIT = 16 * 2**20
"""Stores ask for at most this many bytes at once, unless one block is larger."""
_MOST_BLOCKS = 4096
"""If there are more blocks, draw only their chunks; if there are more of these, join them."""

_Running = tuple[Generator[Ask, Any, Stored], memoryview | None]
"""A read of a chunk, and the bytes that it asked for last."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a selection reads. It prints as a table, and in notebooks with a drawing.

    Attributes
    ----------
    chunks, blocks : int
        Number of chunks, and of blocks, that the selection touches.
    cached : int
        Number of blocks that are in the cache, and need no read.
    requests : int
        Reads from the file, or requests to the store.
    nbytes : int
        Bytes that these read.
    result_nbytes : int
        Bytes of the selected items.
    share : float
        `nbytes` over the compressed size of the array; 1.0 at most, though heads of chunks may be read twice.
    advice : str
        Which kind of access the array should have been made for, if the blocks of another one would make this read much
        cheaper; see `b2array.create`. For a read of the whole array: which usual keys its blocks serve badly. Otherwise
        empty.
    """

    chunks: int
    blocks: int
    cached: int
    requests: int
    nbytes: int
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
    """Return what would be done now to read a selection. This reads only heads of chunks, if it needs them."""
    # The box has one item in memory: nothing is written into it.
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
        for count, length in _waves(source, needed):
            requests += count
            nbytes += length
    share = 0.0
    if source.frame.cbytes:
        # The count includes heads that are read twice, and gaps between ranges.
        share = min(1.0, nbytes / source.frame.cbytes)
    slices = [factor for factor in positions if isinstance(factor, slice)]
    # Advice is about slices that read something: it cannot count the blocks that index arrays touch.
    hint = ""
    if axes is None and len(slices) == layout.ndim and requests + cached:
        hint = advice(layout, slices)
    return Reading(
        chunks=chunks,
        blocks=blocks,
        cached=cached,
        requests=requests,
        nbytes=nbytes,
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
    """Return how many blocks cover `n` items along an axis; blocks that are padding alone do not count."""
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
    """Yield the chunks that are fetched together."""
    parts = parts_of_chunks(reader.layout, positions, axes)
    jobs = starmap(reader.plan, parts)
    if reader.source.is_local:
        return ([job] for job in jobs)
    return windows(jobs)


def _waves(source: Source, requests: Sequence[ChunkRequest]) -> Iterator[tuple[int, int]]:
    """Yield for each wave how many requests it makes, and their bytes."""
    if isinstance(source, Snapshot):
        # Count on a copy: caching heads here would make the real read cheaper.
        apart = replace(source)
        apart.heads.update(source.heads)
        source = apart
    running: list[_Running] = [(steps_of(source, request), None) for request in requests]
    while running:
        wave = []
        try:
            for steps, view in running:
                # A read that needs nothing more ends here, and has no part in the next wave.
                with suppress(StopIteration):
                    ask = steps.send(view)
                    wave.append((steps, ask))
            leading = [(steps, ask) for steps, ask in wave if ask.leads]
            spans = [ask.spans[0] for _, ask in leading]
            views = source.read(spans, clip=True) if leading else []
        except (B2ArrayError, OSError):
            fetch(source, requests)  # raises what a read does
            raise
        answers = list(zip(leading, views, strict=True))
        # A head is asked for with a guess, which may reach beyond the end of the file.
        missing = sum(ask.nbytes - len(view) for (_, ask), view in answers)
        asks = [ask for _, ask in wave]
        count, nbytes = _count(source, asks)
        yield count, nbytes - missing
        running = [(steps, view) for (steps, _), view in answers]


def _count(source: Source, asks: Sequence[Ask]) -> tuple[int, int]:
    """Return the number of requests for all that is asked in a wave, and their bytes."""
    if source.is_local:
        # Local files are read chunk by chunk, in threads.
        count = 0
        for ask in asks:
            gap = config.coalesce_gap if ask.clip else 0
            count += len(coalesce(ask.spans, gap))
        return count, _nbytes(chain.from_iterable(ask.spans for ask in asks))
    spans = list(chain.from_iterable(ask.spans for ask in asks))
    joined = [span for span, _ in coalesce(spans, config.coalesce_gap, _LIMIT)]
    count = sum(stop > start for _, start, stop in joined)
    return count, _nbytes(joined)


def _nbytes(spans: Iterable[Span]) -> int:
    return sum(stop - start for _, start, stop in spans)
