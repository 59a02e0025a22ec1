"""Chunks that are being changed: decoded blocks, on top of the old chunk unless a write replaces all of it.

A write puts its values into open chunks. Where possible, it decodes only the blocks that it changes in part, and
`OpenChunk.encode` copies the streams of all untouched blocks. Inside ``with a.transaction()``, a chunk that is written
in part, or is the only one of its write, stays open in a `WriteBuffer` until the commit, or until the buffer is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import mul
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.codec import decode, encode, rounding
from b2array.codec.chunk import Context, Stored
from b2array.codec.chunk_header import FilterId
from b2array.codec.cparams import CParams
from b2array.codec.decode import Tile
from b2array.codec.splice import splice
from b2array.commit.text_chunk import OldText, TextChunk
from b2array.errors import FormatError
from b2array.format.state import State
from b2array.format.strings import unpack_item
from b2array.frame.cache import CacheEntry
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Run, put, take
from b2array.grid.tiling import Patch, parts_of_blocks
from b2array.store.base import Mutex

__all__ = ["AnyChunk", "Form", "OpenChunk", "Undo", "WriteBuffer"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Undo = list[Callable[[], object]]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How the chunks of an array are cut and encoded. Items with the bytes of `fill` are never rounded."""

    layout: Layout
    cparams: CParams
    typesize: int
    context: Context
    fill: bytes | None = None

    @classmethod
    def of(cls, state: State, layout: Layout) -> Form:
        """Return the form of the chunks of an array, given its state and its layout."""
        frame = state.frame
        # If each item is an array, the layout has further dimensions, but the frame counts one item.
        typesize = layout.itemsize if layout.block_nbytes % frame.typesize else frame.typesize
        return cls(
            layout,
            state.cparams,
            typesize,
            Context(frame.codec, frame.codec_meta, layout.blocks),
            state.annotations.fill,
        )

    def open_text(
        self,
        number: int,
        stored: Stored | None,
        before: Layout,
        coords: tuple[int, ...],
    ) -> TextChunk:
        """Open a chunk of text on top of its old bytes, or without them if a write replaces all of it.

        `number` is the number of the chunk, and `coords` are its coordinates. The old bytes were written in the layout
        `before`, in which the chunk had the same coordinates.
        """
        fill = unpack_item(self.fill or b"", self.layout.dtype)
        old = None if stored is None else OldText(stored, before, sum(map(mul, coords, before.grid_strides)))
        return TextChunk(self.layout, self.cparams, self.context, number, fill, old)

    def new_blocks(self, count: int) -> Bytes:
        """Return memory for blocks that values will fill; it is zeroed if the values do not cover all bytes."""
        layout = self.layout
        is_cut = any(n % c for n, c in zip(layout.shape, layout.chunks, strict=True))
        has_padding = is_cut or layout.extended_chunks != layout.chunks
        # Values do not cover the gaps between fields or the padding of an extended float.
        has_gaps = layout.dtype.names is not None or layout.dtype.char in "gG"
        # Arbitrary bytes there would make equal chunks differ, and could leak other data of the process.
        allocate = np.zeros if has_padding or has_gaps else np.empty
        return allocate((count, layout.block_nbytes), np.uint8)


class OpenChunk:
    """A chunk that is being changed.

    Blocks are decoded as they are needed; an old chunk with other blocks, or with delta encoding, is decoded at once.
    FormatError: the old chunk has another size than the array's chunks.

    Parameters
    ----------
    form : Form
        How the chunks of the array are cut and encoded.
    stored : Stored, optional
        The old chunk, with all its bytes; None if a write replaces all of it.
    """

    __slots__ = ("_blocks", "_stored", "form")

    def __init__(self, form: Form, stored: Stored | None) -> None:
        self.form = form
        self._stored = stored
        self._blocks: dict[int, CacheEntry] = {}
        if stored is None:
            return
        header = stored.head.header
        layout = form.layout
        header.require_known_version()
        if header.nbytes != layout.chunk_nbytes:
            raise FormatError(f"expected {layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")
        has_layout = header.block_nbytes == header.last_block_nbytes == layout.block_nbytes
        regular = has_layout and not header.vl_blocks
        # Delta encodes each block against the first one, so a single block cannot be replaced.
        if not regular or FilterId.DELTA in header.filters:
            data = decode.decode(stored.region, context=form.context)
            blocks = data.reshape(layout.nblocks, -1)
            self._add(range(layout.nblocks), blocks)
            self._stored = None

    def _add(self, numbers: Iterable[int], data: Bytes) -> None:
        """Keep the decoded blocks in the rows of `data`, so that they count as changed."""
        tile = Tile(data)
        for row, n in enumerate(numbers):
            self._blocks[n] = CacheEntry(tile, row)

    @property
    def nbytes(self) -> int:
        """The memory in bytes that the chunk takes."""
        stored = 0 if self._stored is None else len(self._stored.region)
        return stored + len(self._blocks) * self.form.layout.block_nbytes

    def entries(self, numbers: Sequence[int]) -> dict[int, CacheEntry]:
        """Return decoded blocks by number, at least the requested ones; decode the missing ones.

        The chunk does not keep blocks that no write has touched: it would count them as changed when it is encoded.
        """
        missing = [n for n in numbers if n not in self._blocks]
        if not missing:
            return self._blocks
        tile = Tile(self._decode(missing))
        decoded = {n: CacheEntry(tile, row) for row, n in enumerate(missing)}
        return {**self._blocks, **decoded}

    def _decode(self, numbers: list[int]) -> Bytes:
        """Decode blocks of the old chunk into new memory; without an old chunk, the memory is not initialized."""
        block_nbytes = self.form.layout.block_nbytes
        context = self.form.context
        data = np.empty((len(numbers), block_nbytes), np.uint8)
        if self._stored is None or not numbers:
            return data
        decode.check_plausible_size(self._stored, numbers, context=context)
        step = decode.step_length(block_nbytes)
        for first in range(0, len(numbers), step):
            pick = slice(first, first + step)
            target = data[pick].reshape(-1)
            decode.decode_blocks(self._stored, numbers[pick], target, context=context)
        return data

    def _load(
        self,
        numbers: Sequence[int],
        filled: Sequence[bool] | None = None,
        undo: Undo | None = None,
    ) -> None:
        """Decode and keep the blocks that are not kept yet, so that they count as changed.

        `filled` tells for each block whether values will fill all of it: such a block starts blank, and is not decoded.
        `undo` collects a function that forgets the new blocks.
        """
        missing = [n for n in numbers if n not in self._blocks]
        if not missing:
            return
        needed = missing
        if filled is not None and any(filled):
            is_filled = dict(zip(numbers, filled, strict=True))
            needed = [n for n in missing if not is_filled[n]]
        data = self._decode(needed)
        if len(needed) < len(missing):
            decoded = data
            data = self.form.new_blocks(len(missing))
            data[np.isin(missing, needed)] = decoded
        if undo is not None:
            # Changes go to a copy, so undoing only has to put the old mapping back.
            undo.append(partial(setattr, self, "_blocks", self._blocks))
            self._blocks = self._blocks.copy()
        self._add(missing, data)

    # Changing.

    def put(
        self,
        part: Part,
        patch: Patch | None,
        axes: Axes | None,
        values: Array,
        fields: Any,
        undo: Undo | None,
    ) -> None:
        """Copy values into the blocks of a part of the chunk, after decoding the blocks that they do not fill.

        Parameters
        ----------
        part : Part
            The part, as a product of factors.
        patch : Patch, optional
            The same part, if slices select it.
        axes : Axes, optional
            The axes that index arrays tie together.
        values : ndarray
            All values of the write.
        fields : str or list of str, optional
            The fields of each item that get values; None for the whole item.
        undo : list of callables, optional
            Collects functions that restore the old values.
        """
        layout = self.form.layout
        if patch is not None:
            # A value for one field does not fill an item, so the other fields must be decoded.
            filled = patch.filled if fields is None else None
            self._load(patch.numbers, filled, undo)
            joined = self._view_if_adjacent(patch.numbers)
            if joined is not None:
                items = joined.view(layout.dtype)
                grid = items.reshape(patch.counts + layout.blocks)
                if fields is not None:
                    grid = grid[fields]
                for runs in product(*patch.runs):
                    _put_runs(grid, runs, values, undo)
                return
        parts = parts_of_blocks(layout, part, axes)
        self._load([n for n, _ in parts], undo=undo)
        for n, of_block in parts:
            tile, row, _ = self._blocks[n]
            items = tile.data[row].view(layout.dtype)
            block = items.reshape(layout.blocks)
            if fields is not None:
                block = block[fields]
            inside = of_block.inside
            if undo is not None:
                old = take(block, inside, axes).copy()
                undo.append(partial(put, block, inside, old, axes))
            put(block, inside, take(values, of_block.outside), axes)

    def _view_if_adjacent(self, numbers: Sequence[int]) -> Bytes | None:
        """Return decoded blocks, by their numbers, as a view of one array; None if they are not adjacent in memory."""
        tile, first, _ = self._blocks[numbers[0]]
        for row, n in enumerate(numbers, first):
            entry = self._blocks[n]
            if entry.tile is not tile or entry.row != row:
                return None
        return tile.data[first : first + len(numbers)]

    def encode(self) -> bytes:
        """Return the encoded chunk with all values that were written to it.

        Blocks that no write has touched are copied without decoding if possible. If the user allows errors, the others
        are rounded; the open chunk keeps its exact values.
        """
        layout = self.form.layout
        cparams = self.form.cparams
        typesize = self.form.typesize
        numbers = sorted(self._blocks)
        if len(numbers) < layout.nblocks and self._stored is not None:
            data, bits = self._join_rounded(numbers)
            # This fails for a chunk that was encoded with other parameters, for example with another codec.
            buf = splice(
                self._stored,
                numbers,
                data,
                typesize=typesize,
                cparams=cparams,
                blockshape=layout.blocks,
                kept_bits=bits,
            )
            if buf is not None:
                return buf
            numbers = list(range(layout.nblocks))
            self._load(numbers)
        data, bits = self._join_rounded(numbers)
        return encode.encode(
            data,
            typesize=typesize,
            blocksize=layout.block_nbytes,
            cparams=cparams,
            blockshape=layout.blocks,
            kept_bits=bits,
        )

    def _join_rounded(self, numbers: list[int]) -> tuple[Bytes, int]:
        """Join the decoded blocks with these numbers, as `_join` does, and round them if the user allows errors.

        Return the bytes, and the number of mantissa bits that the rounded items use; 0 if nothing was rounded, or if
        the filters cannot use the number. The blocks themselves stay exact.
        """
        form = self.form
        data = self._join(numbers)
        if not form.cparams.is_lossy:
            return data, 0
        exact = data.view(form.layout.dtype)
        items = rounding.round_items(exact, form.cparams, form.fill)
        bits = 0
        # Filters work on units of `typesize` bytes: they can use the count only if such a unit is an item.
        if form.typesize == form.layout.itemsize:
            bits = rounding.count_kept_bits(items)
        return items.view(np.uint8), bits

    def _join(self, numbers: list[int]) -> Bytes:
        """Return decoded blocks, by their numbers, as one array: a view if they are adjacent in memory, else a copy."""
        joined = self._view_if_adjacent(numbers)
        if joined is not None:
            return joined
        entries = [self._blocks[n] for n in numbers]
        return np.stack([tile.data[row] for tile, row, _ in entries])


AnyChunk = OpenChunk | TextChunk
"""A chunk that is being changed, with items of one size or with text."""


def _put_runs(
    grid: Array,
    runs: tuple[Run, ...],
    values: Array,
    undo: Undo | None,
) -> None:
    """Copy the `values` that `runs` select into blocks; each axis has one run.

    The first dimensions of `grid` count blocks; the other ones are within a block. `undo` collects a function that
    restores the old values.
    """
    ndim = len(runs)
    outside = [run.outside for run in runs]
    region = values[cast(Any, (*outside, ...))]
    # Split each axis into a block number and a position in the block, then move the numbers to the front.
    sizes: list[int] = []
    blocks, inside = [], []
    for run, size in zip(runs, region.shape, strict=True):
        count = len(run.coords)
        sizes += [count, size // count]
        blocks.append(slice(run.coords.start, run.coords.stop))
        inside.append(run.inside)
    order = [*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)]
    key = (*blocks, *inside)
    if undo is not None:
        undo.append(partial(grid.__setitem__, key, grid[key].copy()))
    grid[key] = region.reshape(sizes).transpose(order)


class WriteBuffer:
    """The open chunks of a transaction, the least recently written one first.

    Attributes
    ----------
    chunks : dict of int to OpenChunk
        The chunks by number; for reading only.
    nbytes : int
        The memory in bytes that the chunks take.
    mutex : Mutex
        A thread holds it while it opens, changes, reads or encodes a chunk.
    """

    def __init__(self) -> None:
        self.chunks: dict[int, AnyChunk] = {}
        self._sizes: dict[int, int] = {}
        self.nbytes = 0
        self.mutex = Mutex()

    def keep(self, n: int, chunk: AnyChunk) -> None:
        """Keep a chunk, now the most recently written one, in place of an earlier one with its number."""
        self.drop(n)
        self.chunks[n] = chunk
        self._sizes[n] = chunk.nbytes
        self.nbytes += chunk.nbytes

    def drop(self, n: int) -> None:
        """Forget a chunk and its changes, if it is open."""
        self.chunks.pop(n, None)
        self.nbytes -= self._sizes.pop(n, 0)

    def replace(self, chunks: Mapping[int, AnyChunk]) -> None:
        """Forget all chunks, and keep these instead."""
        self.chunks = dict(chunks)
        self._sizes = {n: chunk.nbytes for n, chunk in chunks.items()}
        self.nbytes = sum(self._sizes.values())

    def chunks_to_free(self) -> list[int]:
        """Return the numbers of chunks to encode to free memory if necessary: the least recently written ones."""
        if self.nbytes <= config.write_buffer_bytes:
            return []
        rest = self.nbytes
        chosen = []
        for n, nbytes in self._sizes.items():
            # Reduce the memory to half of the limit: otherwise every further write would have to encode a chunk.
            if rest <= config.write_buffer_bytes // 2:
                break
            chosen.append(n)
            rest -= nbytes
        return chosen
