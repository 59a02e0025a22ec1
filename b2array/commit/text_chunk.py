"""Chunks of text that are being changed: decoded blocks, on top of the old chunk unless a write replaces all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import text
from b2array.codec.chunk import Context, Stored
from b2array.codec.cparams import CParams
from b2array.codec.text import TextTile
from b2array.errors import FormatError
from b2array.frame.cache import CacheEntry
from b2array.frame.text_blocks import decode_block
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, put, take
from b2array.grid.runs import block_extents
from b2array.grid.tiling import Patch, parts_of_blocks

__all__ = ["OldText", "TextChunk", "encode_blank"]

Array = npt.NDArray[Any]


class OldText(NamedTuple):
    """The bytes of an old chunk of text, the layout of the array in which it was written, and its number there."""

    stored: Stored
    layout: Layout
    number: int


class TextChunk:
    """A chunk of text that is being changed; it has the methods of `b2array.commit.open_chunk.OpenChunk`.

    FormatError: the old chunk has another number of blocks than the array's chunks.

    Parameters
    ----------
    layout : Layout
        The layout of the array.
    cparams : CParams
        The compression of changed blocks.
    context : Context
        How the old chunk was encoded.
    number : int
        The position of the chunk in the array.
    fill : item
        The item of a chunk that nobody has written yet.
    old : OldText, optional
        The old chunk; None if a write replaces all of it.
    """

    __slots__ = ("_blocks", "_context", "_cparams", "_fill", "_layout", "_number", "_old", "_text_nbytes")

    def __init__(
        self,
        layout: Layout,
        cparams: CParams,
        context: Context,
        number: int,
        fill: Any,
        old: OldText | None,
    ) -> None:
        self._layout = layout
        self._cparams = cparams
        self._context = context
        self._number = number
        self._fill = fill
        self._old = old
        self._blocks: dict[int, Array] = {}
        self._text_nbytes = 0
        if old is None:
            return
        header = old.stored.head.header
        header.require_known_version()
        if header.special:
            self._old = None
        elif not header.vl_blocks or header.nblocks != layout.nblocks:
            raise FormatError(f"expected {layout.nblocks} blocks of text, found {header.nblocks} blocks")

    def move(self, layout: Layout, number: int, undo: list[Any] | None) -> None:
        """Give the chunk its number in the array's present layout. `undo` collects functions that undo this."""
        if undo is not None:
            undo.append(partial(setattr, self, "_layout", self._layout))
            undo.append(partial(setattr, self, "_number", self._number))
        self._layout, self._number = layout, number

    @property
    def nbytes(self) -> int:
        """The memory in bytes that the chunk takes, about."""
        stored = 0 if self._old is None else len(self._old.stored.region)
        return stored + len(self._blocks) * self._layout.block_nbytes + self._text_nbytes

    def entries(self, numbers: Sequence[int]) -> dict[int, CacheEntry]:
        """Return decoded blocks by number; blocks that no write has touched are not kept."""
        return {n: CacheEntry(TextTile(self._items_of_block(n).reshape(1, -1)), 0) for n in numbers}

    def _items_of_block(self, n: int) -> Array:
        """Return a block: as it was written, as it was stored, or with the fill value."""
        layout = self._layout
        block = self._blocks.get(n)
        if block is not None:
            return block
        if self._old is not None:
            items = decode_block(*self._old, n, context=self._context)
            return items.reshape(layout.blocks)
        return np.full(layout.blocks, self._fill, layout.dtype)

    def put(
        self,
        part: Part,
        patch: Patch | None,  # noqa: ARG002 - for blocks of one size
        axes: Axes | None,
        values: Array,
        fields: Any,  # noqa: ARG002 - text has no fields
        undo: list[Any] | None,
    ) -> None:
        """Copy values into the blocks of a part of the chunk; parameters as for `OpenChunk.put`."""
        if undo is not None:
            # Changes go to copies, so undoing only has to put the old blocks back.
            undo.append(partial(setattr, self, "_blocks", self._blocks))
            self._blocks = dict(self._blocks)
        for n, of_block in parts_of_blocks(self._layout, part, axes):
            block = self._items_of_block(n)
            if undo is not None:
                block = block.copy()
            new = take(values, of_block.outside)
            put(block, of_block.inside, new, axes)
            self._blocks[n] = block
            self._text_nbytes += text.estimate_nbytes(new)

    def encode(self) -> bytes:
        """Return the encoded chunk. Blocks that no write has touched are copied without decoding if possible."""
        encoded: list[Buffer] = []
        for n in range(self._layout.nblocks):
            copied = None if n in self._blocks else self._copy_block(n)
            encoded.append(self._encode_block(n) if copied is None else copied)
        return text.join_blocks(encoded, self._cparams)

    def _copy_block(self, n: int) -> memoryview | None:
        """Return an encoded block of the old chunk; None if it must be encoded again."""
        if self._old is None:
            return None
        stored, layout, number = self._old
        # Where the array was cut off, the block had fewer or more items.
        if block_extents(layout, number, n) != block_extents(self._layout, self._number, n):
            return None
        return text.stored_block(stored, n, self._cparams)

    def _encode_block(self, n: int) -> bytes:
        """Return the encoded block `n`, without the items beyond the end of the array."""
        extents = block_extents(self._layout, self._number, n)
        inside: Any = tuple(slice(extent) for extent in extents)
        items = self._items_of_block(n)[(*inside, ...)]
        return text.encode_block(text.pack_items(items), self._cparams)


def encode_blank(layout: Layout, cparams: CParams, number: int, fill: Any) -> bytes:
    """Return the encoded chunk of text `number` of an array in which every item is the fill value."""
    encoded: dict[int, bytes] = {}
    blocks = []
    for n in range(layout.nblocks):
        count = math.prod(block_extents(layout, number, n))
        if count not in encoded:
            items = np.full(count, fill, layout.dtype)
            encoded[count] = text.encode_block(text.pack_items(items), cparams)
        blocks.append(encoded[count])
    return text.join_blocks(blocks, cparams)
