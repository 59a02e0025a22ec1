"""How the blocks of a chunk are read: which ones, how many in one call, and what is copied where.

Pure geometry, which is the same for most chunks of a selection and is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.grid.layout import Layout
from b2array.grid.partition import Run, runs

__all__ = ["Copy", "Step", "Tiling", "strides_of", "tiling_of"]

Int64Array = npt.NDArray[np.int64]
Slices = tuple[slice, ...]


class Copy(NamedTuple):
    """Items that are copied in one go: from decoded blocks, in a grid, to the part of the box that their chunk fills.

    `split` is the shape of the target with the blocks apart: number of blocks and items of each, axis by axis.
    """

    source: Slices
    target: Slices
    split: tuple[int, ...]
    whole: bool


class Step(NamedTuple):
    """Blocks that are decoded in one call, in a grid of shape `counts`, and the copies that are made of them."""

    numbers: Int64Array
    counts: tuple[int, ...]
    copies: list[Copy]


class Tiling(NamedTuple):
    """All blocks of a chunk that a selection by slices touches, in order, and the steps to read them.

    Where the selection takes only a small part of each block, always the same one, `within` says which, and `shape`
    and the copies are those of these parts in place of the blocks.
    """

    numbers: Int64Array
    within: Slices | None
    shape: tuple[int, ...]
    steps: list[Step]


def strides_of(grid: Sequence[int]) -> tuple[int, ...]:
    """Return how far apart neighbours along each axis are in the C order of a grid."""
    return tuple(math.prod(grid[axis + 1 :]) for axis in range(len(grid)))


def tiling_of(layout: Layout, inside: Slices, length: int) -> Tiling:
    """Return how to read what slices select of a chunk, in steps of at most `length` blocks."""
    # Most chunks of a selection are taken in the same way, and slices have no hash in Python 3.11.
    key = tuple((i.start, i.stop, i.step) for i in inside)
    return _tiling(layout.blocks, layout.block_grid, key, length)


@lru_cache(maxsize=512)
def _tiling(
    blocks: tuple[int, ...], grid: tuple[int, ...], inside: tuple[tuple[int, int, int], ...], length: int
) -> Tiling:
    """Make a tiling whose steps have at most `length` blocks (but at least one)."""
    along = runs(tuple(slice(*i) for i in inside), blocks)
    coords = [[coord for run in of_axis for coord in run.coords] for of_axis in along]
    numbers: Int64Array = np.zeros((), np.int64)
    for of_axis, stride in zip(coords, strides_of(grid), strict=True):
        numbers = np.add.outer(numbers, np.array(of_axis, np.int64) * stride)
    within = tuple(map(_common, along, blocks))
    shape = tuple(len(range(i.start, i.stop, i.step)) for i in within)
    narrow = math.prod(shape) * _NARROW <= math.prod(blocks)
    if narrow:
        along = [
            of_axis if n == extent else [run._replace(inside=slice(0, n, 1)) for run in of_axis]
            for of_axis, n, extent in zip(along, shape, blocks, strict=True)
        ]
    else:
        shape = blocks
    steps = []
    for window in _windows(numbers.shape, length):
        copies = [_copy(each) for each in product(*map(_clipped, along, shape, window))]
        picked = numbers[tuple(slice(*ends) for ends in window)]
        steps.append(Step(picked.reshape(-1), picked.shape, copies))
    return Tiling(numbers.reshape(-1), within if narrow else None, shape, steps)


_NARROW = 8
"""Of blocks of which so small a part is needed, only this part is put together."""


def _common(of_axis: list[Run], extent: int) -> slice:
    """Return what runs take of their blocks along one axis if all take the same, else everything."""
    first, *others = (run.inside for run in of_axis)
    return slice(0, extent, 1) if any(inside != first for inside in others) else first


def _windows(counts: tuple[int, ...], length: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a grid into pieces that lie together in C order: first and last coordinate (exclusive) along each axis."""
    axis = len(counts)
    while axis > 0 and math.prod(counts[axis - 1 :]) <= length:
        axis -= 1
    if axis == 0:
        yield tuple((0, count) for count in counts)
        return
    step = max(1, length // math.prod(counts[axis:]))
    rest = [(0, count) for count in counts[axis:]]
    for outer in np.ndindex(*counts[: axis - 1]):
        for first in range(0, counts[axis - 1], step):
            middle = (first, min(first + step, counts[axis - 1]))
            yield (*((coord, coord + 1) for coord in outer), middle, *rest)


class _Clipped(NamedTuple):
    """What a run of blocks has in common with a window along one axis."""

    position: int
    nparts: int
    inside: slice
    start: int
    nitems: int
    whole: bool


def _clipped(of_axis: list[Run], extent: int, window: tuple[int, int]) -> Iterator[_Clipped]:
    position = 0
    for run in of_axis:
        inside = run.inside
        each = len(range(inside.start, inside.stop, inside.step))
        first, last = max(position, window[0]), min(position + len(run.coords), window[1])
        if first < last:
            start = run.outside.start + (first - position) * each
            yield _Clipped(first - window[0], last - first, inside, start, each, inside == slice(0, extent, 1))
        position += len(run.coords)


def _copy(axes: tuple[_Clipped, ...]) -> Copy:
    grid = tuple(slice(each.position, each.position + each.nparts) for each in axes)
    target = tuple(slice(each.start, each.start + each.nparts * each.nitems) for each in axes)
    split = tuple(size for each in axes for size in (each.nparts, each.nitems))
    return Copy((*grid, *(each.inside for each in axes)), target, split, all(each.whole for each in axes))
