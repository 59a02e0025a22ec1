"""Items picked from blocks, without undoing the shuffle of all the others.

Source: "Blosc Chunk Format", section Shuffle: a shuffled block is one plane for each byte of an item.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from b2array.buffers import scratch
from b2array.codec import cblosc, chunk
from b2array.codec.chunk import Context, Stored

__all__ = ["decode_item", "decode_items"]

Bytes = npt.NDArray[np.uint8]
Slices = tuple[slice, ...]

_KEPT = 4 * chunk.GROUP_NBYTES
"""Planes that take more bytes get memory of their own."""


def decode_items(
    stored: Stored,
    numbers: Sequence[int] | npt.NDArray[np.int64],
    blockshape: tuple[int, ...],
    within: Slices,
    out: Bytes,
    *,
    context: Context,
    reference: Bytes | None,
) -> None:
    """Decode the same part of several blocks.

    Parameters
    ----------
    stored, numbers, context, reference
        As `decode_blocks` of `b2array.codec.chunk` takes them; no block is a short one, and `check_justified` has
    blockshape : tuple of int
        Shape in items of every block.
    within : tuple of slice
        Which items of each block, axis by axis.
    out : ndarray of uint8
        The items of one block behind those of the other; contiguous.

    Raises
    ------
    FormatError
        The streams do not decode to the blocks' sizes.
    """
    nblocks, block_nbytes = len(numbers), stored.head.header.block_nbytes
    itemsize = block_nbytes // math.prod(blockshape)
    recipe = chunk.shuffled(stored, context)
    decoded = scratch("planes", nblocks * block_nbytes, _KEPT)
    if recipe is None or itemsize % recipe.typesize:
        chunk.decode_blocks(stored, numbers, decoded, context=context, reference=reference)
        whole = decoded.reshape(nblocks, *blockshape, itemsize)
        out.reshape(nblocks, -1)[:] = whole[cast(Any, (slice(None), *within))].reshape(nblocks, -1)
        return
    pick = np.asarray(numbers, np.int64)
    cblosc.decode_planes(recipe, stored.region, stored.starts[pick].tolist(), stored.stops[pick].tolist(), decoded)
    planes = decoded.reshape(nblocks, recipe.typesize, *blockshape, itemsize // recipe.typesize)
    picked = planes[cast(Any, (slice(None), slice(None), *within))]
    cblosc.unshuffle(picked.swapaxes(0, 1), out)


def decode_item(
    stored: Stored, number: int, blockshape: tuple[int, ...], within: Sequence[int], *, context: Context
) -> bytes | None:
    """Decode a block and return the bytes of one item in it; None if its bytes do not lie in planes of their own.

    Parameters
    ----------
    stored, number, context
        As `b2array.codec.chunk.decode_blocks` takes them; the block is not a short one.
    blockshape : tuple of int
        Shape in items of the block.
    within : sequence of int
        Where the item is.

    Raises
    ------
    FormatError
        The streams do not decode to the block's size.
    """
    block_nbytes, nitems = stored.head.header.block_nbytes, math.prod(blockshape)
    recipe = chunk.shuffled(stored, context)
    if recipe is None or recipe.typesize * nitems != block_nbytes:
        return None
    chunk.check_justified(stored, (number,), context=context)
    decoded = scratch("planes", block_nbytes, _KEPT)
    cblosc.decode_planes(recipe, stored.region, [int(stored.starts[number])], [int(stored.stops[number])], decoded)
    position = 0
    for i, extent in zip(within, blockshape, strict=True):
        position = position * extent + i
    return decoded[position::nitems].tobytes()
