"""Automatic shapes of chunks and blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as as_int

from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.grid.layout import MAX_NDIM
from b2array.grid.partition import extended

__all__ = ["automatic"]

BLOCK_NBYTES = 128 * 2**10
CHUNK_NBYTES = 8 * 2**20
FEW_PARTS = 16


def automatic(
    shape: Sequence[int],
    itemsize: int,
    *,
    chunks: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the shapes of chunks and blocks, near-isotropic, the same on every machine.

    Blocks have about 128 KiB (64 KiB to 1 MiB where the array and its items permit), chunks about 8 MiB. Chunks
    consist of whole blocks except where they span the axis. An axis of extent 0 is one that will grow: it gets what
    the other axes leave.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Bytes of an item.
    chunks, blocks : sequence of int, optional
        Shapes that are kept as they are given.

    Returns
    -------
    chunks, blocks : tuple of int
        Extents in items, at least 1.

    Raises
    ------
    ValueError
        The given shapes do not fit the array or each other, or exceed the limits of the format: 16 dimensions,
        2147483615 bytes a chunk (with its padding to whole blocks), 536866816 bytes a block.

    Examples
    --------
    >>> automatic((1000, 1000), 8)
    ((1000, 1000), (125, 125))
    >>> automatic((0, 720, 1440), 4)
    ((2, 720, 1440), (1, 180, 180))
    """
    extents = tuple(as_int(n) for n in shape)
    if len(extents) > MAX_NDIM:
        raise ValueError(f"at most {MAX_NDIM} dimensions are possible, found {len(extents)}")
    if any(n < 0 for n in extents):
        raise ValueError("negative dimensions are not allowed")
    size = max(itemsize, 1)
    chunk = None if chunks is None else _given("chunks", chunks, len(extents))
    block = None if blocks is None else _given("blocks", blocks, len(extents))
    if block is None:
        within, exact = (extents, False) if chunk is None else (chunk, True)
        block = _divide(within, BLOCK_NBYTES / size, (1,) * len(within), exact=exact)
    if chunk is None:
        whole_blocks = _divide(extents, CHUNK_NBYTES / size, block, exact=False)
        chunk = tuple(max(b, min(c, n or c)) for b, c, n in zip(block, whole_blocks, extents, strict=True))
    _check(chunk, block, size)
    return chunk, block


def _given(name: str, extents: Sequence[int], ndim: int) -> tuple[int, ...]:
    given = tuple(as_int(n) for n in extents)
    if len(given) != ndim:
        raise ValueError(f"{name} must have {ndim} extents, as the shape has, not {len(given)}: {given}")
    if any(n < 1 for n in given):
        raise ValueError(f"the extents of {name} must be at least 1: {given}")
    return given


def _check(chunks: tuple[int, ...], blocks: tuple[int, ...], itemsize: int) -> None:
    if any(b > c for b, c in zip(blocks, chunks, strict=True)):
        raise ValueError(f"blocks {blocks} must not exceed chunks {chunks}")
    block_nbytes = math.prod(blocks) * itemsize
    if block_nbytes > MAX_BLOCKSIZE:
        raise ValueError(f"blocks {blocks} have {block_nbytes} bytes each, more than {MAX_BLOCKSIZE}")
    chunk_nbytes = math.prod(extended(chunks, blocks)) * itemsize
    if chunk_nbytes > MAX_CHUNK_NBYTES:
        raise ValueError(
            f"chunks {chunks} have {chunk_nbytes} bytes each when padded to whole blocks {blocks}, "
            f"more than {MAX_CHUNK_NBYTES}"
        )


def _divide(extents: tuple[int, ...], target: float, units: tuple[int, ...], *, exact: bool) -> tuple[int, ...]:
    """Choose a shape of whole units with about `target` items, as equal along all axes as the short ones allow."""
    divided = list(units)
    sized = sum(n > 0 for n in extents)
    order = sorted(range(len(extents)), key=lambda axis: (extents[axis] == 0, extents[axis], -axis))
    for place, axis in enumerate(order):
        left = (sized if place < sized else len(order)) - place
        # Rounded, so that the last digit of a machine's `pow` cannot matter.
        ideal = round(target ** (1 / left), 6)
        count = -(-extents[axis] // units[axis])
        divided[axis] *= _near(count, ideal / units[axis], exact=exact)
        target = max(1.0, target / divided[axis])
    return tuple(divided)


def _near(extent: int, ideal: float, *, exact: bool) -> int:
    """Choose a length near `ideal` that divides `extent` with little padding."""
    count = max(1, int(extent / ideal + 0.5))
    if extent and (exact or count <= FEW_PARTS):
        counts = range(count - min(count // 5, FEW_PARTS), count + min(count // 4, FEW_PARTS) + 1)
        lengths = {-(-extent // n): abs(n - count) for n in reversed(counts)}
        return min(lengths, key=lambda length: (_waste(extent, length), lengths[length]))
    # Of many parts only the last is padded: a round length matters more there.
    return round(ideal / 8) * 8 if ideal >= 12 else max(1, round(ideal))


def _waste(extent: int, length: int) -> tuple[bool, int]:
    """Judge the padding: none is best, and below three percent it does not matter how much."""
    padding = -extent % length
    return padding > 0, padding * 32 // extent
