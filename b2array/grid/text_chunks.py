"""The automatic choice of chunks and blocks for text of any length, by the average size of its items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from b2array.grid.chunking import Access, automatic, is_automatic
from b2array.grid.runs import automatic_run

__all__ = ["SAMPLED", "USUAL_NBYTES", "automatic_text", "average_nbytes", "item_nbytes"]

USUAL_NBYTES = 32
"""The assumed size of an item of text, in bytes, if there are no items yet."""
SAMPLED = 4096
"""The number of items of text whose size is measured."""
_MANY = 1000
"""So many items say how long others are."""
_BLOCK_NBYTES = 2**17
_MOST_IN_BLOCK = 4096
"""A block of text has so many bytes at most, if no item is longer, and so many items at most."""

_Shape = tuple[int, ...]


def average_nbytes(nbytes: int, nitems: int) -> int:
    """Return the average size for which to choose chunks, if `nitems` items of text have `nbytes` bytes in all.

    A few short items say little about the others, and chunks of longer items than expected would be too large.

    Examples
    --------
    >>> average_nbytes(500_000, 50_000), average_nbytes(50, 5), average_nbytes(5000, 5), average_nbytes(0, 0)
    (10, 32, 1000, 32)
    """
    average = nbytes // max(1, nitems)
    least = 1 if nitems >= _MANY else USUAL_NBYTES
    return max(average, least)


def item_nbytes(dtype: np.dtype[Any], text_nbytes: int = 0) -> int:
    """Return the size of an item for which to choose chunks, in bytes; `text_nbytes` is 0 if it is unknown.

    Examples
    --------
    >>> item_nbytes(np.dtype("i4")), item_nbytes(np.dtypes.StringDType()), item_nbytes(np.dtypes.StringDType(), 500)
    (4, 32, 500)
    """
    if dtype.kind != "T":
        return dtype.itemsize
    return text_nbytes or USUAL_NBYTES


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
