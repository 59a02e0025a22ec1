"""Shapes of chunks and blocks: how they are chosen, and the forms in which a user may give them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from operator import index as as_int
from operator import mul
from typing import Any

import numpy as np

from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.grid.layout import MAX_NDIM, grid_shape

__all__ = ["automatic"]

BLOCK_NBYTES = 64 * 2**10
CHUNK_NBYTES = 8 * 2**20
LEAST_CHUNK_NBYTES = 2 * 2**20
FEW_CHUNKS = 32
FEW_PARTS = 16
FEW_BLOCKS = 4
STRETCH = 4
KEPT_WHOLE = 16
GROWING = 1024

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_Partial = tuple[int | None, ...]


def automatic(
    shape: Sequence[int], itemsize: int, *, chunks: Any = None, blocks: Any = None, inner: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the shapes of chunks and blocks, the same on every machine.

    Blocks have about 64 KiB. Chunks have about a 32nd of the array, 2 to 8 MiB: a small change writes a whole chunk.
    Blocks are thin along the first axis, along which most arrays are written and read, and longer along each axis than
    along the one before; axes of at most 16 items stay whole. Chunks consist of whole blocks except where they span the
    axis. An axis of extent 0 is one that will grow.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Bytes of an item.
    chunks, blocks : optional
        What the user has chosen. One entry an axis, or one for all axes, or a mapping of axes to entries; axes that it
        leaves out stay whole. An entry is an extent in items, -1 or None for the whole axis, "auto", or the size of a
        part, such as "8MB"; or the lengths of all parts, as dask has them.
    inner : sequence of int, optional
        Axes of the items themselves, which chunks and blocks take whole.

    Returns
    -------
    chunks, blocks : tuple of int
        Extents in items, at least 1, inner axes included.

    Raises
    ------
    ValueError
        The given shapes do not fit the array or each other, or exceed the limits of the format: 16 dimensions,
        2147483615 bytes a chunk (with its padding to whole blocks), 536866816 bytes a block.

    Examples
    --------
    >>> automatic((1000, 1000), 8)
    ((256, 1000), (32, 250))
    >>> automatic((0, 720, 1440), 4)
    ((2, 720, 1440), (1, 45, 360))
    >>> automatic((365, 720, 1440), 4, chunks=(1, -1, -1))
    ((1, 720, 1440), (1, 45, 360))
    >>> automatic((365, 720, 1440), 4, chunks="1MB")
    ((2, 180, 720), (1, 45, 360))
    """
    outer = tuple(as_int(n) for n in shape)
    extents = outer + tuple(inner)
    if len(extents) > MAX_NDIM:
        raise ValueError(f"at most {MAX_NDIM} dimensions are possible, found {len(extents)}")
    if any(n < 0 for n in extents):
        raise ValueError("negative dimensions are not allowed")
    size = max(itemsize, 1)
    share = math.prod(n or GROWING for n in extents) * size // FEW_CHUNKS
    usual = min(max(share, LEAST_CHUNK_NBYTES), CHUNK_NBYTES)
    chunk, chunk_nbytes = _given("chunks", chunks, outer, usual)
    chunk += tuple(inner)
    within = tuple(n if c is None else c for c, n in zip(chunk, extents, strict=True))
    block, block_nbytes = _given("blocks", blocks, within[: len(outer)], min(BLOCK_NBYTES, chunk_nbytes))
    exact = [c is not None for c in chunk]
    chosen = _block(within, block_nbytes / size, block + tuple(inner), exact)
    grid = grid_shape(within, chosen)
    spanned = tuple(g if fixed else None for g, fixed in zip(grid, exact, strict=True))
    counts = _divide(grid, chunk_nbytes / (math.prod(chosen) * size), spanned)
    whole = tuple(
        max(b, min(b * count, n or b * count)) if c is None else c
        for b, count, n, c in zip(chosen, counts, extents, chunk, strict=True)
    )
    _check(whole, chosen, size)
    return whole, chosen


def _given(name: str, wanted: Any, extents: tuple[int, ...], nbytes: int) -> tuple[_Partial, int]:
    """Return the extents that the user gives, None elsewhere, and the size of a part in bytes."""
    if isinstance(wanted, Mapping):
        axes = {as_int(axis) % max(len(extents), 1): entry for axis, entry in wanted.items()}
        if any(not -len(extents) <= as_int(axis) < len(extents) for axis in wanted):
            raise ValueError(f"{name} names the axes {sorted(wanted)}, the array has {len(extents)}")
        entries = [axes.get(axis) for axis in range(len(extents))]
    elif wanted is True:
        entries = ["auto"] * len(extents)
    elif isinstance(wanted, str | None):
        entries = [wanted or "auto"] * len(extents)
    elif isinstance(wanted, Sequence) or np.ndim(wanted):
        entries = list(wanted)
    else:
        entries = [wanted] * len(extents)
    if len(entries) != len(extents):
        raise ValueError(f"{name} must have {len(extents)} extents, as the shape has, not {len(entries)}: {wanted}")
    sizes = {entry for entry in entries if isinstance(entry, str) and entry != "auto"}
    if len(sizes) > 1:
        raise ValueError(f"{name} can have one size, not {len(sizes)}: {wanted}")
    fixed = tuple(_entry(name, entry, n) for entry, n in zip(entries, extents, strict=True))
    return fixed, _nbytes(name, sizes.pop()) if sizes else nbytes


def _entry(name: str, entry: Any, extent: int) -> int | None:
    if isinstance(entry, str) or entry is True:  # as h5py says that it may choose
        return None
    if entry is False:
        raise ValueError(f"{name} cannot be False: every array has {name}; -1 takes a whole axis")
    if entry is None or (not isinstance(entry, Sequence) and as_int(entry) == -1):
        return extent or None  # an axis that will grow is not cut at its present end
    if isinstance(entry, Sequence):
        lengths = [as_int(n) for n in entry]
        if not lengths or sum(lengths) != extent or set(lengths[:-1]) - {lengths[0]} or lengths[-1] > lengths[0]:
            raise ValueError(
                f"{name} along an axis of {extent} must be equal, but the last, which may be shorter: {tuple(lengths)}"
            )
        entry = lengths[0] or 1
    if as_int(entry) < 1:
        raise ValueError(f"the extents of {name} must be at least 1, or -1 for a whole axis, found {entry}")
    return as_int(entry)


def _nbytes(name: str, size: str) -> int:
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise ValueError(f'{name} takes "auto" or a size such as "8MB" or "512 KiB", found {size!r}')
    number, prefix, binary = found.groups()
    return max(1, int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")))


def _check(chunks: tuple[int, ...], blocks: tuple[int, ...], itemsize: int) -> None:
    if any(b > c for b, c in zip(blocks, chunks, strict=True)):
        raise ValueError(f"blocks {blocks} must not exceed chunks {chunks}")
    block_nbytes = math.prod(blocks) * itemsize
    if block_nbytes > MAX_BLOCKSIZE:
        raise ValueError(f"blocks {blocks} have {block_nbytes} bytes each, more than {MAX_BLOCKSIZE}")
    chunk_nbytes = math.prod(map(mul, grid_shape(chunks, blocks), blocks)) * itemsize
    if chunk_nbytes > MAX_CHUNK_NBYTES:
        raise ValueError(
            f"chunks {chunks} have {chunk_nbytes} bytes each when padded to whole blocks {blocks}, "
            f"more than {MAX_CHUNK_NBYTES}"
        )


def _block(extents: tuple[int, ...], target: float, fixed: _Partial, exact: Sequence[bool]) -> tuple[int, ...]:
    """Choose a shape of about `target` items, thin along the first axis and long along the last one.

    One index of the first axis takes one layer of blocks, or a few blocks if that is more. Of the other axes, each has
    up to `STRETCH` times the share in the block of the one before: what is long along the last axis lies together in
    memory, and is copied faster.
    """
    free = [axis for axis, n in enumerate(fixed) if n is None]
    block = [f if f is not None else n or GROWING for n, f in zip(extents, fixed, strict=True)]
    if not free:
        return tuple(block)
    first = next((axis for axis in free if extents[axis] != 1), free[0])
    block[first] = 1
    cut, kept = [], math.prod(n for n in fixed if n is not None)
    for axis in sorted(set(free) - {first}, key=lambda axis: (block[axis], -axis)):
        if block[axis] <= KEPT_WHOLE and kept * block[axis] <= target:
            kept *= block[axis]
        else:
            cut.append(axis)
    cut.sort()
    slab = math.prod(block)
    left = max(1.0, target * math.prod(block[axis] for axis in cut) / slab)
    even = left ** (1 / (len(cut) + 1))
    thin = max(1.0, min(FEW_BLOCKS * target / slab, even, extents[first] or even))
    while cut:
        part = min(1.0, left / thin / math.prod(block[axis] for axis in cut))
        axis = cut.pop(0)
        # Rounded, so that the last digit of a machine's `pow` cannot matter.
        share = max(part, part ** (1 / (len(cut) + 1)) / STRETCH ** (len(cut) / 2))
        ideal = max(1.0, round(min(block[axis] * share, left / thin), 6))
        block[axis] = _near(extents[axis], ideal, exact=exact[axis])
        left = max(1.0, left / block[axis])
    block[first] = _near(extents[first], left, exact=exact[first])
    return tuple(block)


def _divide(extents: tuple[int, ...], target: float, fixed: _Partial) -> tuple[int, ...]:
    """Choose a shape of about `target` items, as equal along all free axes as the short ones allow."""
    divided = [1 if n is None else n for n in fixed]
    target = max(1.0, target / math.prod(divided))
    order = [axis for axis, n in enumerate(fixed) if n is None]
    order.sort(key=lambda axis: (extents[axis] == 0, extents[axis], -axis))
    sized = sum(extents[axis] > 0 for axis in order)
    for place, axis in enumerate(order):
        left = (sized if place < sized else len(order)) - place
        divided[axis] = _near(extents[axis], round(target ** (1 / left), 6), exact=False)
        target = max(1.0, target / divided[axis])
    return tuple(divided)


def _near(extent: int, ideal: float, *, exact: bool) -> int:
    """Choose a length near `ideal` that cuts `extent` with little padding."""
    count = max(1, int(extent / ideal + 0.5))
    if extent and (exact or count <= FEW_PARTS):
        counts = range(count - min(count // 5, FEW_PARTS), count + min(count // 4, FEW_PARTS) + 1)
        lengths = {-(-extent // n): abs(n - count) for n in reversed(counts)}
        return min(lengths, key=lambda length: (_waste(extent, length), lengths[length]))
    # Of many parts only the last is padded: a round length matters more there.
    return round(ideal / 8) * 8 if ideal >= 12 else max(1, round(ideal))


def _waste(extent: int, length: int) -> tuple[bool, int]:
    """Rate the padding, in steps of three percent of the extent; none is better than little."""
    padding = -extent % length
    return padding > 0, padding * 32 // extent
