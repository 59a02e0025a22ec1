"""Blocks of text: runs of a chunk in C order. Unlike other chunks, a chunk of text has no padding.

Source: "Text of any length" in the documentation of b2array (``formats.rst``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from b2array.grid.layout import Layout

__all__ = ["automatic_run", "block_extents", "is_run", "items_per_block"]

Shape = tuple[int, ...]


def automatic_run(chunks: Sequence[int], nitems: int) -> Shape:
    """Return the shape of the longest block of at most `nitems` items that is a run of a chunk in C order.

    Examples
    --------
    >>> automatic_run((100, 6, 10), 1000), automatic_run((100, 6, 10), 45), automatic_run((100,), 1000)
    ((16, 6, 10), (1, 4, 10), (100,))
    """
    blocks: list[int] = []
    room = max(1, nitems)
    for extent in reversed(chunks):
        length = min(extent, room)
        blocks.append(length)
        # As soon as a block does not span an axis, it has one index along all axes before it.
        room = room // max(1, extent) if length == extent else 1
        room = max(1, room)
    return tuple(reversed(blocks))


def is_run(chunks: Sequence[int], blocks: Sequence[int]) -> bool:
    """Return whether a block of a chunk is a run in C order.

    Examples
    --------
    >>> is_run((100, 6, 10), (1, 4, 10)), is_run((100, 6, 10), (2, 4, 10))
    (True, False)
    """
    cut = False
    for extent, length in zip(reversed(chunks), reversed(blocks), strict=True):
        if cut and length > 1:
            return False
        cut = cut or length < extent
    return True


def block_extents(layout: Layout, chunk: int, block: int) -> Shape:
    """Return how many items of a block are inside its chunk and the array, along each axis; 0 outside of them.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout((10,), (4,), (3,), np.dtypes.StringDType(), "StringDType()")
    >>> [block_extents(layout, chunk, block) for chunk in (0, 2) for block in (0, 1)]
    [(3,), (1,), (2,), (0,)]
    """
    extents = []
    axes = zip(
        layout.shape,
        layout.chunks,
        layout.blocks,
        layout.grid_shape,
        layout.grid_strides,
        layout.block_grid,
        layout.block_strides,
        strict=True,
    )
    for end, length, size, nchunks, chunk_stride, nblocks, block_stride in axes:
        first = chunk // chunk_stride % nchunks * length
        start = block // block_stride % nblocks * size
        room = min(length, end - first) - start
        extents.append(max(0, min(size, room)))
    return tuple(extents)


def items_per_block(layout: Layout) -> int | None:
    """Return the number of items of every block but the last ones of a chunk; None if other blocks have fewer."""
    if layout.ndim > 1:
        return None
    return math.prod(layout.blocks) or None
