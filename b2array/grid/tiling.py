"""The plan to read or write a selection: the chunks, the blocks of each chunk, and the items to copy.

This is pure geometry. Slices select the same part of most chunks, so the tilings of slices are cached.
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
    "Copy",
    "Numbered",
    "Patch",
    "Step",
    "Tiling",
    "parts_of_blocks",
    "parts_of_chunks",
    "patch_of",
    "tiling_of",
    "tiling_of_points",
]

Int64Array = npt.NDArray[np.int64]
Slices = tuple[slice, ...]
Shape = tuple[int, ...]
Ends = tuple[int, int]
"""First and last coordinate (exclusive) along an axis."""
Numbered = tuple[int, Part]
"""A chunk or block by its number, and what to take of it."""


class Copy(NamedTuple):
    """Items that are copied together from a grid of decoded blocks to the part of the box that the chunk fills.

    `split` is the shape of the target with separate blocks: for each axis, the number of blocks and of items in each.
    """

    source: Slices
    target: Slices
    split: Shape
    whole: bool


class Step(NamedTuple):
    """Blocks that are decoded in one call, and the items to copy from them.

    For a selection by slices, the blocks form a grid of shape `counts`, and `copies` lists the copies to the part of
    the box that the chunk fills. Otherwise `parts` lists, block by block, the items to copy to the whole box.
    """

    numbers: list[int]
    counts: Shape
    copies: list[Copy]
    parts: list[Part]


class Tiling(NamedTuple):
    """All blocks of a chunk that a selection touches, in order, and the steps to read them.

    If slices select only a small part of each block, and the same part of all blocks, `within` is that part, and
    `shape` and the copies describe the parts instead of the blocks.
    """

    numbers: list[int]
    within: Slices | None
    shape: Shape
    steps: list[Step]


def parts_of_chunks(
    layout: Layout,
    positions: tuple[Positions, ...],
    axes: Axes | None,
) -> Iterator[Numbered]:
    """Cut a selection at the borders of chunks; yield the number of each chunk, and its part of the selection."""
    for part in parts(positions, layout.chunks, axes):
        # A sum over a map, because this runs for every chunk of every read.
        number = sum(map(int.__mul__, part.coords, layout.grid_strides))
        yield number, part


def parts_of_blocks(layout: Layout, of_chunk: Part, axes: Axes | None) -> list[Numbered]:
    """Cut a part of a chunk at the borders of blocks; return the numbers of the blocks, each with its part."""
    pairs = []
    blocks = parts(of_chunk.inside, layout.blocks, axes, of_chunk.outside)
    for block in blocks:
        number = sum(map(int.__mul__, block.coords, layout.block_strides))
        pairs.append((number, block))
    # Chunks are decoded from front to back, and neighbouring blocks in one call.
    pairs.sort(key=lambda pair: pair[0])
    return pairs


class Patch(NamedTuple):
    """The part of a chunk that slices write.

    Attributes
    ----------
    numbers : list of int
        The written blocks, in C order; all blocks if the whole chunk is written.
    filled : list of bool
        Whether each block is written up to the end of the array, so that none of its old content remains.
    counts : tuple of int
        The shape of the grid of written blocks.
    runs : list of list of Run
        Along each axis, the written parts of the blocks; `coords` are positions in the grid of written blocks.
    whole : bool
        Whether the old chunk is replaced completely.
    """

    numbers: list[int]
    filled: list[bool]
    counts: Shape
    runs: list[list[Run]]
    whole: bool


def patch_of(layout: Layout, of_chunk: Part) -> Patch:
    """Return the part of a chunk that a selection by slices writes."""
    inside = cast(Slices, of_chunk.inside)
    outside = cast(Slices, of_chunk.outside)
    extents = []
    sides = zip(of_chunk.coords, layout.shape, layout.chunks, strict=True)
    for coord, extent, chunk in sides:
        # Padding at the end of the array need not be written.
        rest = extent - coord * chunk
        extents.append(min(chunk, rest))
    along = runs(inside, layout.blocks, outside)
    if all(map(_covers, inside, extents)):
        every = list(range(layout.nblocks))
        filled = [True] * layout.nblocks
        return Patch(every, filled, layout.block_grid, along, True)
    numbers: Int64Array = np.zeros((), np.int64)
    is_filled: npt.NDArray[np.bool_] = np.ones((), bool)
    compact: list[list[Run]] = []
    axes = zip(along, extents, layout.blocks, layout.block_strides, strict=True)
    for of_axis, extent, block, stride in axes:
        coords: list[int] = []
        whole: list[bool] = []
        of_grid = []
        for run in of_axis:
            first = len(coords)
            coords += run.coords
            in_grid = range(first, len(coords))
            of_grid.append(run._replace(coords=in_grid))
            for coord in run.coords:
                rest = extent - coord * block
                whole.append(_covers(run.inside, min(block, rest)))
        compact.append(of_grid)
        offsets = np.array(coords, np.int64) * stride
        numbers = np.add.outer(numbers, offsets)
        of_axis_filled = np.array(whole, bool)
        is_filled = np.logical_and.outer(is_filled, of_axis_filled)
    counts = numbers.shape
    filled = is_filled.reshape(-1).tolist()
    in_order = numbers.reshape(-1).tolist()
    return Patch(in_order, filled, counts, compact, False)


def _covers(inside: slice, extent: int) -> bool:
    if inside.step != 1:
        return False
    return bool(inside.start <= 0 and inside.stop >= extent)


def tiling_of_points(layout: Layout, of_chunk: Part, axes: Axes | None, length: int) -> Tiling:
    """Plan the read of the items that index arrays select from a chunk, in steps of at most `length` blocks."""
    pairs = parts_of_blocks(layout, of_chunk, axes)
    every = [number for number, _ in pairs]
    steps = []
    for first in range(0, len(pairs), length):
        last = first + length
        parts = [part for _, part in pairs[first:last]]
        steps.append(Step(every[first:last], (), [], parts))
    return Tiling(every, None, layout.blocks, steps)


def tiling_of(layout: Layout, inside: Slices, length: int) -> Tiling:
    """Plan the read of the items that slices select from a chunk, in steps of at most `length` blocks."""
    # Most chunks hit the cache. Its keys are tuples, because slices are not hashable in Python 3.11.
    make = _tiling if layout.nblocks <= _MOST_KEPT else _tiling.__wrapped__
    ends = tuple(map(_ENDS, inside))
    return make(layout.blocks, layout.block_strides, ends, length)


_ENDS = attrgetter("start", "stop", "step")
_MOST_KEPT = 1024
"""The maximum number of blocks in a chunk whose plan is cached: hundreds of larger plans would take a gigabyte."""


@lru_cache(maxsize=512)
def _tiling(
    blocks: Shape,
    strides: Shape,
    inside: tuple[tuple[int, int, int], ...],
    length: int,
) -> Tiling:
    """Make a tiling whose steps have at most `length` blocks, but at least one block."""
    along = []
    for extent, (start, stop, step) in zip(blocks, inside, strict=True):
        # The plan of an axis with very many blocks would take too much memory in the cache.
        cut = _along if stop - start <= _MOST_KEPT * extent else _along.__wrapped__
        along.append(cut(extent, start, stop, step))
    numbers = [0]
    for axis, stride in zip(along, strides, strict=True):
        offsets = [coord * stride for coord in axis.coords]
        numbers = [number + offset for number in numbers for offset in offsets]
    shape = tuple([axis.nitems for axis in along])
    narrow = math.prod(shape) * _NARROW <= math.prod(blocks)
    pieces = [axis.narrowed if narrow else axis.pieces for axis in along]
    grid = tuple([len(axis.coords) for axis in along])
    steps = []
    first = 0
    for window in _windows(grid, length):
        counts = tuple([stop - start for start, stop in window])
        per_axis = map(_within, pieces, window)
        copies = [_copy(each) for each in product(*per_axis)]
        last = first + math.prod(counts)
        steps.append(Step(numbers[first:last], counts, copies, []))
        first = last
    if not narrow:
        return Tiling(numbers, None, blocks, steps)
    within = tuple([axis.common for axis in along])
    return Tiling(numbers, within, shape, steps)


_NARROW = 8
"""If at most one in this many items of each block is needed, only the needed items are joined."""


class _CutPiece(NamedTuple):
    """Neighbouring blocks along one axis: their positions among the blocks to read, the selected part, the target."""

    start: int
    stop: int
    inside: slice
    target: int
    nitems: int
    whole: bool


class _AxisGrid(NamedTuple):
    """The blocks along one axis that a slice touches.

    `common` is the part that the slice selects from every block: the same `nitems` items, or the whole block.
    `narrowed` has the pieces relative to that part instead of the block.
    """

    coords: list[int]
    common: slice
    nitems: int
    pieces: list[_CutPiece]
    narrowed: list[_CutPiece]


@lru_cache(maxsize=1024)
def _along(extent: int, start: int, stop: int, step: int) -> _AxisGrid:
    slices = (slice(start, stop, step),)
    (of_axis,) = runs(slices, (extent,))
    everything = slice(0, extent, 1)
    coords: list[int] = []
    pieces = []
    for run in of_axis:
        inside = run.inside
        first = len(coords)
        coords += run.coords
        nitems = len(range(inside.start, inside.stop, inside.step))
        target = run.outside.start
        is_whole = inside == everything
        pieces.append(_CutPiece(first, len(coords), inside, target, nitems, is_whole))
    common = pieces[0].inside
    nitems = pieces[0].nitems
    if nitems == extent or any(piece.inside != common for piece in pieces):
        return _AxisGrid(coords, everything, extent, pieces, pieces)
    part = slice(0, nitems, 1)
    narrowed = [piece._replace(inside=part, whole=True) for piece in pieces]
    return _AxisGrid(coords, common, nitems, pieces, narrowed)


def _windows(counts: Shape, length: int) -> Iterator[tuple[Ends, ...]]:
    """Cut a grid into pieces that are contiguous in C order."""
    axis = len(counts)
    while axis > 0 and math.prod(counts[axis - 1 :]) <= length:
        axis -= 1
    if axis == 0:
        yield tuple([(0, count) for count in counts])
        return
    # Axes from `axis` on are whole, the preceding axis is cut, and a window has one position along each earlier axis.
    cut = counts[axis - 1]
    step = max(1, length // math.prod(counts[axis:]))
    rest = [(0, count) for count in counts[axis:]]
    for outer in np.ndindex(*counts[: axis - 1]):
        places = [(coord, coord + 1) for coord in outer]
        for first in range(0, cut, step):
            middle = (first, min(first + step, cut))
            yield (*places, middle, *rest)


def _within(pieces: list[_CutPiece], window: Ends) -> list[_CutPiece]:
    """Cut pieces to the blocks of a window, and number the blocks from its start."""
    low, high = window
    if low == 0 and high == pieces[-1].stop:
        return pieces
    cut = []
    for piece in pieces:
        if piece.start >= high or piece.stop <= low:
            continue
        skipped = max(low - piece.start, 0)
        start = max(piece.start - low, 0)
        stop = min(piece.stop, high) - low
        target = piece.target + skipped * piece.nitems
        cut.append(piece._replace(start=start, stop=stop, target=target))
    return cut


def _copy(axes: tuple[_CutPiece, ...]) -> Copy:
    grid = []
    items = []
    target = []
    split: Shape = ()
    is_whole = True
    for start, stop, inside, at, nitems, whole in axes:
        count = stop - start
        grid.append(slice(start, stop))
        items.append(inside)
        target.append(slice(at, at + count * nitems))
        split += (count, nitems)
        is_whole = is_whole and whole
    return Copy((*grid, *items), tuple(target), split, is_whole)
