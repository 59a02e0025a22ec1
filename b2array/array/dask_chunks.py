"""Cuts: divisions of an array into pieces that respect a grid of chunks.

A cut, which dask calls chunks, contains for every dimension the lengths of the pieces in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from b2array.grid.chunking import CHUNK_NBYTES, Access, automatic

__all__ = ["Cut", "align", "dividing", "group_chunks", "joining", "pieces", "regular"]

Cut = tuple[tuple[int, ...], ...]

_SMALLEST_SHARE = 4
"""Along an axis, a useful chunk has at least a quarter of the extent of an automatic chunk."""
_SMALLEST_NBYTES = 2**18
_LARGEST_NBYTES = 64 * 2**20
"""The limits of a useful chunk size, in bytes: a chunk costs a request, and is rewritten for any change."""


def group_chunks(
    shape: Sequence[int],
    chunks: Sequence[int],
    blocks: Sequence[int],
    itemsize: int,
    limit: int,
) -> Cut:
    """Cut an array into pieces of whole chunks, or of whole blocks inside a chunk where a chunk exceeds the limit.

    The limit is in bytes. A larger block is not divided.

    Examples
    --------
    >>> group_chunks((10, 7), (4, 4), (2, 2), 1, 64)
    ((8, 2), (7,))
    >>> group_chunks((10, 7), (4, 4), (2, 2), 1, 8)
    ((2, 2, 2, 2, 2), (4, 3))
    """
    room = max(1, limit // max(1, itemsize))
    chunk = _clip(chunks, shape)
    if math.prod(chunk) <= room:
        steps = _grow(chunk, shape, room)
        return tuple(_cut_axis(n, step) for n, step in zip(shape, steps, strict=True))
    block = _clip(blocks, chunk)
    steps = _grow(block, chunk, room)
    cut = []
    for n, length, step in zip(shape, chunk, steps, strict=True):
        # Divide chunk by chunk, so that no piece has blocks of two chunks.
        pieces: tuple[int, ...] = ()
        for part in _cut_axis(n, length):
            pieces += _cut_axis(part, step)
        cut.append(pieces)
    return tuple(cut)


def _clip(extents: Sequence[int], limits: Sequence[int]) -> list[int]:
    """Limit extents to a maximum, and to at least 1."""
    return [max(1, min(extent, limit)) for extent, limit in zip(extents, limits, strict=True)]


def _cut_axis(length: int, step: int) -> tuple[int, ...]:
    whole, rest = divmod(length, step)
    lengths = (step,) * whole
    if rest:
        lengths += (rest,)
    return lengths or (0,)


def _grow(units: Sequence[int], extents: Sequence[int], room: int) -> list[int]:
    """Multiply extents as long as the product is at most `room` and no extent is larger than necessary."""
    sizes = list(units)
    growing = set()
    for axis, (size, extent) in enumerate(zip(sizes, extents, strict=True)):
        if size < extent:
            growing.add(axis)
    while growing:
        # Choose the shortest extent, so that pieces become nearly isotropic; of equal ones the last, whose chunks are
        # adjacent.
        axis = min(growing, key=lambda axis: (sizes[axis], -axis))
        unit = units[axis]
        most = -(-extents[axis] // unit) * unit
        new = min(2 * sizes[axis], most)
        others = math.prod(sizes) // sizes[axis]
        # The last piece of an axis ends at the end of the axis.
        if others * min(new, extents[axis]) <= room:
            sizes[axis] = new
        if sizes[axis] != new or new >= extents[axis]:
            growing.discard(axis)
    return sizes


def align(cut: Cut, chunks: Sequence[int], starts: Sequence[int]) -> Cut:
    """Move every inner border of a cut that begins at `starts` in the array to the nearest border of a chunk.

    Examples
    --------
    >>> align(((5, 5, 5),), (4,), (0,))
    ((4, 8, 3),)
    >>> align(((5, 5, 5),), (4,), (3,))
    ((5, 4, 6),)
    """
    return tuple(_align(*axis) for axis in zip(cut, chunks, starts, strict=True))


def _align(lengths: tuple[int, ...], size: int, start: int) -> tuple[int, ...]:
    # An axis of extent 0 has chunks of extent 0.
    if size < 1 or len(lengths) < 2:
        return (sum(lengths),)
    borders = list(accumulate(lengths, initial=start))
    last = borders[-1]
    nearest = set()
    for border in borders[1:-1]:
        rounded = (border + size // 2) // size * size
        if start < rounded < last:
            nearest.add(rounded)
    inner = sorted(nearest)
    return tuple(b - a for a, b in pairwise([start, *inner, last]))


def pieces(old: Cut, new: Cut) -> int:
    """Return the number of pieces if the array is divided by both cuts.

    Examples
    --------
    >>> pieces(((5, 5, 5),), ((4, 8, 3),))
    5
    """
    count = 1
    for a, b in zip(old, new, strict=True):
        borders = _inner(a) | _inner(b)
        count *= len(borders) + 1
    return count


def _inner(lengths: tuple[int, ...]) -> set[int]:
    borders = list(accumulate(lengths))
    return {border for border in borders[:-1] if 0 < border < borders[-1]}


def dividing(cut: Cut, itemsize: int, access: Access | None = None) -> tuple[int, ...] | None:
    """Choose extents of chunks such that the pieces of a cut consist of whole chunks.

    The chunks have about the size and the form of automatic chunks, or else the form of the pieces. Return None if the
    cut is too irregular, or if the pieces are much smaller than automatic chunks.

    Examples
    --------
    >>> dividing(((3000, 3000, 1000), (3000, 3000)), 8)
    (600, 1000)
    >>> dividing(((1,) * 365, (720,), (1440,)), 4)
    (1, 720, 1440)
    >>> dividing(((10, 7, 10),), 8) is None
    True
    """
    extents = tuple(sum(lengths) for lengths in cut)
    if not all(extents):
        return None
    whole = []
    steps = []
    for lengths, extent in zip(cut, extents, strict=True):
        borders = _inner(lengths)
        whole.append(not borders)
        # Every border between pieces is a multiple of the step; math.gcd() of no numbers is 0.
        steps.append(math.gcd(*borders) or extent)
    wanted, _ = automatic(extents, itemsize, access=access)
    chosen = _within(steps, wanted, whole)
    axes = zip(chosen, wanted, extents, strict=True)
    fits = all(length * _SMALLEST_SHARE >= min(ideal, n) for length, ideal, n in axes)
    if not fits:
        # The pieces may be flat, for example one time step each: then flat chunks are better than moving data between
        # tasks.
        flat, _ = automatic(steps, itemsize, chunks=f"{CHUNK_NBYTES}B", access=access)
        chosen = _within(steps, flat, whole)
        least = min(math.prod(extents) * itemsize, _SMALLEST_NBYTES)
        fits = math.prod(chosen) * itemsize >= least
    if not fits or math.prod(chosen) * itemsize > _LARGEST_NBYTES:
        return None
    return chosen


def regular(cut: Cut) -> tuple[int, ...] | None:
    """Return the extents of the pieces of a cut if all except the last are equal, else None.

    Examples
    --------
    >>> regular(((4, 4, 2), (7,)))
    (4, 7)
    >>> regular(((4, 2, 4),)) is None
    True
    """
    for lengths in cut:
        *inner, last = lengths
        if len({*inner}) > 1 or last > lengths[0]:
            return None
    return tuple(lengths[0] for lengths in cut)


def joining(cut: Cut, itemsize: int) -> tuple[int, ...] | None:
    """Choose extents of chunks for pieces that the user requested: the same, or parts of pieces that are too large.

    Return None if the pieces do not consist of equal parts of a useful size.

    Examples
    --------
    >>> joining(((365,), (10, 10), (10, 10)), 4)
    (365, 10, 10)
    >>> joining(((10, 7, 10),), 8) is None
    True
    """
    pieces = regular(cut)
    if pieces is not None and all(pieces):
        nbytes = math.prod(pieces) * itemsize
        if nbytes <= _LARGEST_NBYTES:
            return pieces
    return dividing(cut, itemsize)


def _within(steps: Sequence[int], wanted: Sequence[int], whole: Sequence[bool]) -> tuple[int, ...]:
    """Choose a divisor of each step near the wanted size. Along an axis with only one piece, any size is possible."""
    chosen = []
    for step, size, is_free in zip(steps, wanted, whole, strict=True):
        if is_free or step <= size:
            chosen.append(min(step, size))
            continue
        divisor = _divisor(step, size)
        # Keep a step without a useful divisor whole.
        is_useful = divisor * _SMALLEST_SHARE >= size
        chosen.append(divisor if is_useful else step)
    return tuple(chosen)


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor that is not larger than `most`."""
    largest = 1
    # In each pair of divisors, one is at most the square root.
    for small in range(1, math.isqrt(number) + 1):
        if number % small:
            continue
        for divisor in (small, number // small):
            if largest < divisor <= most:
                largest = divisor
    return largest
