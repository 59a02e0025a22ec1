"""The order of a copy from one grid to another: windows of new chunks, so that no old block is read many times.

A copy reads a window of the old array into memory, and encodes all new chunks in it. Old blocks at the border of two
windows are read twice. So the windows become as long, along each axis, as the memory permits, first where that saves
the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from b2array.grid.layout import Layout

__all__ = ["reads", "shared_chunks", "window"]

_ENOUGH = 1.05
"""The number of reads of a block, on average, below which larger windows are not worth their memory."""

_BORDERS = 2**12
"""The number of borders of windows to look at, along an axis; the others are taken to be like them."""


@dataclass(frozen=True, slots=True)
class _CopiedAxis:
    """An axis of a copy: its length, and the extents in items of the old chunks and blocks and of the new chunks."""

    length: int
    chunk: int
    block: int
    unit: int

    def reads(self, extent: int) -> float:
        """Return how many times an old block is read, on average, if windows have this extent."""
        whole, rest = divmod(self.length, self.chunk)
        nblocks = whole * -(-self.chunk // self.block) + -(-rest // self.block)
        # A block is read once more for each border of windows inside it.
        nborders = -(-self.length // extent) - 1
        numbers = np.arange(1, min(nborders, _BORDERS) + 1)
        inside = numbers * extent % self.chunk % self.block != 0
        share = float(inside.mean()) if numbers.size else 0.0
        return 1 + share * nborders / nblocks

    def longer(self, extent: int) -> list[int]:
        """Return extents of longer windows: a few whole numbers of new chunks, and the whole axis."""
        found = {self.length}
        for multiple in (2, 3, 4):
            found.add(min(multiple * extent, self.length))
        # The last new chunk before the border of an old block or chunk: a window that ends there reads little twice.
        for border in (self.block, self.chunk):
            aligned = -(-max(border, extent + 1) // self.unit) * self.unit
            found.add(min(aligned, self.length))
        return sorted(each for each in found if each > extent)


def window(old: Layout, new: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the extents of windows in items: whole numbers of new chunks, and at most `most` items or one new chunk.

    Examples
    --------
    >>> import numpy as np
    >>> planes = Layout((64, 100, 100), (1, 100, 100), (1, 100, 100), np.dtype("f4"), "<f4")
    >>> window(planes, (64, 10, 10), 64 * 100 * 100), window(planes, (64, 10, 10), 64 * 10 * 50)
    ((64, 100, 100), (64, 20, 20))
    """
    axes = _axes(old, new)
    extents = [min(axis.unit, axis.length) for axis in axes]
    while math.prod(axis.reads(extent) for axis, extent in zip(axes, extents, strict=True)) > _ENOUGH:
        best: tuple[float, int, int] | None = None
        for number, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
            now = axis.reads(extent)
            rest = math.prod(extents) // extent
            for longer in axis.longer(extent):
                saved = math.log(now / axis.reads(longer))
                if saved <= 0 or rest * longer > most:
                    continue
                # Prefer what saves most for the memory that it takes.
                gain = saved / math.log(longer / extent)
                if best is None or gain > best[0]:
                    best = gain, number, longer
        if best is None:
            break
        _, number, longer = best
        extents[number] = longer
    return tuple(extents)


def reads(old: Layout, new: Sequence[int], extents: Sequence[int]) -> float:
    """Return how many times an old block is read, on average, in windows of these extents.

    Examples
    --------
    >>> import numpy as np
    >>> planes = Layout((64, 100, 100), (1, 100, 100), (1, 100, 100), np.dtype("f4"), "<f4")
    >>> reads(planes, (64, 10, 10), (64, 10, 50))
    20.0
    """
    axes = _axes(old, new)
    return math.prod(axis.reads(extent) for axis, extent in zip(axes, extents, strict=True))


def shared_chunks(old: Layout, new: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the extents of chunks for a copy between the two: parts of windows of old chunks and of new chunks.

    A copy to them and a copy from them read each block about once, where one copy would read it many times.

    Examples
    --------
    >>> import numpy as np
    >>> planes = Layout((64, 100, 100), (1, 100, 100), (1, 100, 100), np.dtype("f4"), "<f4")
    >>> shared_chunks(planes, (64, 10, 10), 64 * 10 * 50)
    (3, 20, 20)
    """
    writes = window(old, new, most)
    reads_at_once = [min(extent, n) for extent, n in zip(old.chunks, old.shape, strict=True)]
    # Read as many old chunks at once as fit, along the axes on which new windows are longer.
    for axis, longest in enumerate(writes):
        fits = most // math.prod(reads_at_once)
        if longest > reads_at_once[axis] and fits > 1:
            reads_at_once[axis] = min(longest, fits * reads_at_once[axis])
    return tuple(map(min, reads_at_once, writes))


def _axes(old: Layout, new: Sequence[int]) -> list[_CopiedAxis]:
    extents = zip(old.shape, old.chunks, old.blocks, new, strict=True)
    return [_CopiedAxis(*each) for each in extents]
