"""Writes items from memory to chunks: the values of a selection -> blocks -> encoded and staged chunks.

The values are written to an `OpenChunk`, on top of the old chunk if they replace only a part of it. The open chunk is
encoded at once. But inside ``with a.transaction()``, a chunk that is written in part, or is the only one of its write,
stays open. This module does not know keys: selections are products, as `b2array.grid.partition` cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.codec.chunk import Stored
from b2array.commit.draft import Draft
from b2array.commit.open_chunk import AnyChunk, Form, OpenChunk, WriteBuffer
from b2array.commit.text_chunk import TextChunk
from b2array.errors import FormatError, UnsupportedError, prefix_error
from b2array.frame.fetch import fetch
from b2array.frame.source import ChunkRequest, Staged
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Positions
from b2array.grid.tiling import parts_of_chunks, patch_of

__all__ = ["chunk_box", "rewrite", "write"]

Array = npt.NDArray[Any]
Slices = tuple[slice, ...]


def write(
    draft: Draft,
    layout: Layout,
    positions: tuple[Positions, ...],
    axes: Axes | None,
    values: Array,
    fields: str | list[str] | None = None,
    before: Layout | None = None,
) -> None:
    """Write values to the selected items: encode and store new chunks, or keep them open in a transaction.

    The selection is a product of the factors `positions`; index arrays combine the `axes`. `values` have one dimension
    for each factor, and are converted to the array's type block by block. With `fields`, only these fields are changed.
    Chunks that are written in part are read first. `before` is the layout in which these were written, if the draft has
    just got another shape.
    """
    chunks = parts_of_chunks(layout, positions, axes)
    first = list(islice(chunks, 2))
    by_slices = axes is None and np.ndarray not in map(type, positions)
    form = Form.of(draft.state, layout)
    writer = _Writer(draft, form, axes, values, fields, before or layout, by_slices, alone=len(first) == 1)
    if draft.buffer is not None:
        writer.keep_open(draft.buffer, chain(first, chunks))
        return
    if len(first) == 1:
        # A single chunk needs no other thread.
        _set_chunks(draft, (writer.make(chunk) for chunk in first))
    else:
        _set_chunks(draft, threads.spread(writer.make, chain(first, chunks)))


def rewrite(
    draft: Draft,
    layout: Layout,
    numbers: Iterable[int],
    produce: Callable[[Slices], Array],
    after_each: Callable[[], object] = lambda: None,
    *,
    exact: bool = False,
) -> None:
    """Write whole chunks from new items, a few at a time, and call `after_each` after each chunk.

    Threads call `produce` with a box of the array; it returns the items of the box. The chunks are encoded and stored;
    in a transaction, some may stay open. Items of `exact` chunks are never rounded.
    """
    form = Form.of(draft.state, layout)
    if exact:
        form = replace(form, cparams=form.cparams.without_bounds())

    def make(number: int) -> NewChunk:
        """Produce the items of a chunk, and encode it unless it stays open."""
        unraveled = np.unravel_index(number, layout.grid_shape)
        coords = tuple(map(int, unraveled))
        box = chunk_box(layout, coords)
        whole = tuple(slice(0, i.stop - i.start, 1) for i in box)
        values = np.asarray(produce(box))
        writer = _Writer(draft, form, None, values, None, layout)
        return writer.make((number, Part(coords, whole, whole)))

    _set_chunks(draft, threads.spread(make, numbers), after_each)


def chunk_box(layout: Layout, coords: Sequence[int]) -> Slices:
    """Return the box of the array that a chunk covers: a slice for each axis."""
    box = []
    for coord, extent, end in zip(coords, layout.chunks, layout.shape, strict=True):
        start = coord * extent
        box.append(slice(start, min(start + extent, end), 1))
    return tuple(box)


NewChunk = tuple[int, AnyChunk | bytes | Staged]
"""The number of a chunk, and the chunk: still open, encoded, or staged."""


def _set_chunks(draft: Draft, chunks: Generator[NewChunk], after_each: Callable[[], object] = lambda: None) -> None:
    """Stage chunks, and make the index refer to them; in a transaction, keep open ones in its buffer.

    After a failure, the caller aborts the draft, or undoes the chunks.
    """
    # The threads must end before the transaction undoes their work.
    with closing(chunks):
        for number, chunk in chunks:
            if isinstance(chunk, OpenChunk | TextChunk):
                if draft.buffer is not None:
                    draft.buffer.keep(number, chunk)
            else:
                staged = draft.store_chunk(number, chunk) if isinstance(chunk, bytes) else chunk
                draft.set_chunk(number, staged)
            after_each()


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """The parameters that all chunks of one write share."""

    draft: Draft
    form: Form
    axes: Axes | None
    values: Array
    fields: str | list[str] | None
    before: Layout
    by_slices: bool = True
    alone: bool = False

    def keep_open(self, buffer: WriteBuffer, chunks: Iterator[tuple[int, Part]]) -> None:
        """Write to chunks, and keep them open in the buffer; encode the least recently written ones when it is full."""
        with buffer.mutex.held:
            # Chunks that must leave the buffer are encoded between two windows, while nothing is added to it.
            while window := list(islice(chunks, 4 * threads.width())):
                _set_chunks(self.draft, threads.spread(self.make, window))
                self.draft.flush(buffer.chunks_to_free())

    def make(self, of_chunk: tuple[int, Part]) -> NewChunk:
        """Write to a chunk, given its number and the part of it, and return its number and the chunk.

        It is still open, encoded or, if it gets a separate file, staged. The old chunk is read if the write covers only
        part of it. The index does not change.
        """
        number, part = of_chunk
        draft, buffer = self.draft, self.draft.buffer
        patch = patch_of(self.form.layout, part) if self.by_slices else None
        whole = patch is not None and patch.whole and self.fields is None
        # A lone chunk stays open as well: now one thread would encode it, but `flush` encodes many chunks in threads.
        stays_open = buffer is not None and not (whole and not self.alone)
        chunk = buffer.chunks.get(number) if buffer is not None and stays_open else None
        undo = None if chunk is None else draft.undo
        try:
            if chunk is None:
                stored = None if whole else self._read_stored(number, private=stays_open)
                if self.form.layout.is_text:
                    chunk = self.form.open_text(number, stored, self.before, part.coords)
                else:
                    chunk = OpenChunk(self.form, stored)
            elif isinstance(chunk, TextChunk):
                chunk.move(self.form.layout, number, undo)
            chunk.put(part, patch, self.axes, self.values, self.fields, undo)
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"chunk {number} of {draft.url}", error) from error
        if stays_open:
            return number, chunk
        buf = chunk.encode()
        if draft.sparse:
            return number, draft.store_chunk(number, buf)
        return number, buf

    def _read_stored(self, number: int, *, private: bool) -> Stored:
        """Read and return the present bytes of a chunk; if `private`, in memory that nothing else shares."""
        (stored,) = fetch(self.draft, [ChunkRequest(number, None)])
        # Otherwise, the open chunk would hold all scratch memory of this thread, but count only its own bytes.
        return Stored.whole(bytes(stored.region), stored.head) if private else stored
