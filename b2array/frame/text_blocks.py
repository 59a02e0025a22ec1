"""Decodes blocks of text: the bytes of a chunk -> items, where they belong in the blocks of the array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.codec import decode
from b2array.codec.chunk import Context, Stored
from b2array.codec.text import TextTile, unpack_items
from b2array.grid.layout import Layout
from b2array.grid.runs import block_extents

__all__ = ["decode_block", "decode_tile"]

Array = npt.NDArray[Any]


def decode_tile(
    stored: Stored,
    layout: Layout,
    chunk: int,
    blocks: Sequence[int],
    *,
    context: Context,
) -> TextTile:
    """Decode blocks of a chunk, whose bytes are loaded in `stored`. Items outside of the array are empty text."""
    if len(blocks) == 1:
        return TextTile(decode_block(stored, layout, chunk, blocks[0], context=context)[None])
    data = np.empty((len(blocks), math.prod(layout.blocks)), layout.dtype)
    for row, block in enumerate(blocks):
        data[row] = decode_block(stored, layout, chunk, block, context=context)
    return TextTile(data)


def decode_block(stored: Stored, layout: Layout, chunk: int, block: int, *, context: Context) -> Array:
    """Decode a block of a chunk, and return its items in one dimension. Items outside of the array are empty text.

    FormatError: the block has another number of items, or other values than text.
    """
    extents = block_extents(layout, chunk, block)
    content = decode.vl_block(stored, block, context=context)
    items = unpack_items(content, layout.dtype, math.prod(extents))
    if extents == layout.blocks:
        return items
    padded = np.empty(layout.blocks, layout.dtype)
    padded[tuple(map(slice, extents))] = items.reshape(extents)
    return padded.reshape(-1)
