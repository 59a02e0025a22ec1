"""How to read and write a selection: which chunks, which blocks of each, and which items to copy where.

Pure geometry. Slices take the same part of most chunks, so the tilings of slices are cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Positions, Run, parts, runs

__all__ = [
    "Copy", "Patch", "Step", "Tiling", "parts_of_blocks", "parts_of_chunks", "patch_of", "tiling_of",
    "tiling_of_points",
]  # fmt: skip

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
    """Blocks that are decoded in one call, and what is copied of them.

    For a selection by slices, the blocks are a grid of shape `counts`, and `copies` says what goes to the part of the
    box that their chunk fills. Otherwise `parts` says, for one block after the other, what goes to the whole box.
    """

    numbers: list[int]
    counts: tuple[int, ...]
    copies: list[Copy]
    parts: list[Part]


class Tiling(NamedTuple):
    """All blocks of a chunk that a selection touches, in order, and the steps to read them.

    Where a selection by slices takes only a small part of each block, always the same one, `within` says which part,
    and `shape` and the copies are those of the parts instead of the blocks.
    """

    numbers: list[int]
    within: Slices | None
    shape: tuple[int, ...]
    steps: list[Step]


def parts_of_chunks(layout: Layout, positions: tuple[Positions, ...], axes: Axes | None) -> Iterator[tuple[int, Part]]:
    """Cut a selection at the borders of chunks; yield the number of each chunk, and what to take of it."""
    for part in parts(positions, layout.chunks, axes):
        yield sum(map(int.__mul__, part.coords, layout.grid_strides)), part


def parts_of_blocks(layout: Layout, of_chunk: Part, axes: Axes | None) -> list[tuple[int, Part]]:
    """Cut a part of a chunk at the borders of blocks; return the blocks by number, and what to take of each."""
    found = [
        (sum(map(int.__mul__, block.coords, layout.block_strides)), block)
        for block in parts(of_chunk.inside, layout.blocks, axes, of_chunk.outside)
    ]
    found.sort(key=lambda pair: pair[0])
    return found


class Patch(NamedTuple):
    """What slices write of a chunk.

    Attributes
    ----------
    numbers : list of int
        The blocks, in C order: those that are written, or all of them if the whole chunk is.
    filled : list of bool
        Which of them are written as far as the array reaches, so that nothing of their old content stays.
    counts : tuple of int
        The blocks are a grid of this shape.
    runs : list of list of Run
        Along each axis, what is written of the blocks; `coords` count in that grid.
    whole : bool
        Whether nothing of the old chunk stays.
    """

    numbers: list[int]
    filled: list[bool]
    counts: tuple[int, ...]
    runs: list[list[Run]]
    whole: bool


def patch_of(layout: Layout, of_chunk: Part) -> Patch:
    """Return what a selection by slices writes of a chunk."""
    inside, outside = cast(Slices, of_chunk.inside), cast(Slices, of_chunk.outside)
    extents = [min(c, n - coord * c) for coord, n, c in zip(of_chunk.coords, layout.shape, layout.chunks, strict=True)]
    along = runs(inside, layout.blocks, outside)
    if all(i.start <= 0 and i.step == 1 and i.stop >= extent for i, extent in zip(inside, extents, strict=True)):
        return Patch(list(range(layout.nblocks)), [True] * layout.nblocks, layout.block_grid, along, True)
    numbers: Int64Array = np.zeros((), np.int64)
    filled: npt.NDArray[np.bool_] = np.ones((), bool)
    compact: list[list[Run]] = []
    for of_axis, extent, b, stride in zip(along, extents, layout.blocks, layout.block_strides, strict=True):
        coords: list[int] = []
        whole: list[bool] = []
        compact.append([])
        for run in of_axis:
            compact[-1].append(run._replace(coords=range(len(coords), len(coords) + len(run.coords))))
            coords += run.coords
            i = run.inside
            whole += [i.start <= 0 and i.step == 1 and i.stop >= min(b, extent - coord * b) for coord in run.coords]
        numbers = np.add.outer(numbers, np.array(coords, np.int64) * stride)
        filled = np.logical_and.outer(filled, np.array(whole, bool))
    return Patch(numbers.reshape(-1).tolist(), filled.reshape(-1).tolist(), numbers.shape, compact, False)


def tiling_of_points(layout: Layout, of_chunk: Part, axes: Axes | None, length: int) -> Tiling:
    """Return how to read what index arrays select of a chunk, in steps of at most `length` blocks."""
    found = parts_of_blocks(layout, of_chunk, axes)
    numbers = [number for number, _ in found]
    steps = [
        Step(numbers[first : first + length], (), [], [part for _, part in found[first : first + length]])
        for first in range(0, len(found), length)
    ]
    return Tiling(numbers, None, layout.blocks, steps)


def tiling_of(layout: Layout, inside: Slices, length: int) -> Tiling:
    """Return how to read what slices select of a chunk, in steps of at most `length` blocks."""
    # Most chunks hit the cache. It gets tuples because slices have no hash in Python 3.11.
    return _tiling(layout.blocks, layout.block_strides, tuple(map(_ENDS, inside)), length)


_ENDS = attrgetter("start", "stop", "step")


@lru_cache(maxsize=512)
def _tiling(
    blocks: tuple[int, ...], strides: tuple[int, ...], inside: tuple[tuple[int, int, int], ...], length: int
) -> Tiling:
    """Make a tiling whose steps have at most `length` blocks (but at least one)."""
    along = runs(tuple(slice(*i) for i in inside), blocks)
    coords = [[coord for run in of_axis for coord in run.coords] for of_axis in along]
    numbers: Int64Array = np.zeros((), np.int64)
    for of_axis, stride in zip(coords, strides, strict=True):
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
        steps.append(Step(picked.reshape(-1).tolist(), picked.shape, copies, []))
    return Tiling(numbers.reshape(-1).tolist(), within if narrow else None, shape, steps)


_NARROW = 8
"""If at most one in this many items of each block is needed, only those are put together."""


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
