"""The automatic choice of chunks and blocks for text of any length, by the average size of its items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from b2array.grid.chunking import Access, automatic, is_automatic
from b2array.grid.runs import automatic_run

__all__ = ["USUAL_NBYTES", "automatic_text"]

USUAL_NBYTES = 32
"""The assumed size of an item of text, in bytes, if there are no items yet."""
_BLOCK_NBYTES = 2**17
_MOST_IN_BLOCK = 4096
"""A block of text has so many bytes at most, if no item is longer, and so many items at most."""

_Shape = tuple[int, ...]


def automatic_text(
    shape: Sequence[int],
    nbytes: int,
    *,
    chunks: Any = None,
    blocks: Any = None,
    access: Access | None = None,
) -> tuple[_Shape, _Shape]:
    """Choose the shapes of chunks and blocks for items of `nbytes` bytes on average; see `automatic` for the others.

    Examples
    --------
    >>> automatic_text((0,), 32), automatic_text((2, 3), 1000)
    (((65536,), (4096,)), ((2, 3), (2, 3)))
    """
    chunk, block = automatic(shape, nbytes, chunks=chunks, blocks=blocks, access=access)
    nitems = math.prod(block)
    if is_automatic(blocks):
        nitems = min(_MOST_IN_BLOCK, max(1, _BLOCK_NBYTES // nbytes))
    # Other blocks than runs would put the items into the chunk in another order.
    return chunk, automatic_run(chunk, nitems)
