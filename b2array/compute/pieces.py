"""Reads what a mapping shows of an array: piece by piece in workers, or a selection of it as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.buffers import scratch
from b2array.compute.mapping import Mapping, taken
from b2array.engine.read import read, read_item
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import Source
from b2array.format.index import SPECIALS
from b2array.grid.layout import Layout
from b2array.grid.partition import Positions
from b2array.grid.selection import Selection, select

__all__ = ["Box", "fill", "pieces"]

R = TypeVar("R")
Array = npt.NDArray[Any]
Box = tuple[slice, ...]

_LEAST_NBYTES, _LEAST_NBYTES_AFAR = 2**20, 8 * 2**20
"""Pieces up to this size are not cut, on local disks and elsewhere."""
_MOST_NBYTES = 32 * 2**20
"""Larger chunks are cut at the borders of blocks."""
_AFAR = 8
"""Number of pieces to request at the same time if that takes long."""


def pieces(
    source: Source, layout: Layout, mapping: Mapping, kept: Sequence[int], use: Callable[[Box, Array], R], *,
    merge: bool,
) -> Iterator[R]:  # fmt: skip
    """Call a function in workers with pieces of what a mapping shows, all of them, and yield the results.

    It takes a box of digits and its items, in memory that is used again. Pieces with the same box of the digits `kept`
    follow each other. With `merge`, many chunks of one value may be one piece, whose items have the stride 0.
    """
    digits = mapping.digits
    order = sorted(range(len(digits)), key=lambda n: (digits[n].axis, -abs(digits[n].step)))
    stored = Mapping(mapping.shape, mapping.starts, tuple((digits[n],) for n in order))
    nbytes = math.prod(stored.lengths) * layout.itemsize

    def piece(found: tuple[Box, bool]) -> R:
        box, is_one = found
        lengths = [box[n].stop - box[n].start for n in order]
        if is_one:
            where = stored.sliced(tuple(box[n].start for n in order)).starts
            items = np.broadcast_to(np.asarray(read_item(source, layout, list(where)), layout.dtype), lengths)
        else:
            memory = scratch("pieces", math.prod(lengths) * layout.itemsize, 2 * _MOST_NBYTES)
            items = memory.view(layout.dtype).reshape(lengths)
            fill(source, layout, stored, select((*(box[n] for n in order), ...), stored.lengths), items, nbytes)
        return use(box, items.transpose(np.argsort(order)))

    found = _boxes(source, layout, mapping, kept, merge=merge)
    return threads.spread(piece, found) if source.is_local else threads.ahead(piece, found, _AFAR)


def _boxes(
    source: Source, layout: Layout, mapping: Mapping, kept: Sequence[int], *, merge: bool
) -> Iterator[tuple[Box, bool]]:
    """Cut digits in halves, those of `kept` first, until boxes are small; tell which have one value by the index."""
    digits, frame = mapping.digits, source.state.frame
    units = layout.blocks if layout.chunk_nbytes > _MOST_NBYTES else layout.chunks
    # A transaction must note which chunks are read, and its index does not tell which chunks it keeps open.
    merge = merge and isinstance(source, Snapshot) and not source.state.annotations.lost
    merge = merge and layout.itemsize == frame.typesize and layout.dtype.kind != "V"
    codes = frame.offsets.reshape(layout.grid_shape) if merge and frame.offsets.min() < 0 else None

    def is_one(box: Box) -> bool:
        low, high = list(mapping.starts), list(mapping.starts)
        for (axis, _, step), i in zip(digits, box, strict=True):
            first, last = sorted((step * i.start, step * (i.stop - 1)))
            low[axis], high[axis] = low[axis] + first, high[axis] + last
        touched = (slice(a // c, b // c + 1) for a, b, c in zip(low, high, layout.chunks, strict=True))
        found = np.asarray(codes)[tuple(touched)]
        return found.flat[0] in SPECIALS and bool((found == found.flat[0]).all())

    most = _LEAST_NBYTES if source.is_local else _LEAST_NBYTES_AFAR
    order, cells = [*kept, *(n for n in range(len(digits)) if n not in kept)], mapping.parts(units)
    stack = [tuple(slice(0, digit.length) for digit in digits)]
    while stack:
        box = stack.pop()
        if codes is not None and is_one(box):
            yield box, True
            continue
        lengths = [i.stop - i.start for i in box]
        nbytes = math.prod(map(min, lengths, cells)) * layout.itemsize
        for n in order:
            # As if all following digits were cut as far as possible.
            nbytes = nbytes // min(lengths[n], cells[n]) * lengths[n]
            if lengths[n] > cells[n] and nbytes > most:
                axis, _, step = digits[n]
                middle = _middle(box[n], mapping.starts[axis], step, units[axis])
                halves = slice(middle, box[n].stop), slice(box[n].start, middle)
                stack += [(*box[:n], half, *box[n + 1 :]) for half in halves]
                break
        else:
            yield box, False


def _middle(i: slice, base: int, step: int, unit: int) -> int:
    """Return where to cut a range of a digit: near its middle, at a border between units if one is inside."""
    middle: int = (i.start + i.stop) // 2
    base, step = (base, step) if step > 0 else (-1 - base, -step)
    border = (base + middle * step) // unit * unit
    cuts = (-((base - position) // step) for position in (border, border + unit))
    return next((cut for cut in cuts if i.start < cut < i.stop), middle)


# A selection of it as a whole.

_Moves = dict[int, range | npt.NDArray[np.int64]]
"""For each axis of the array, how far a dimension of the selection goes along it from the start of the view."""


def fill(
    source: Source, layout: Layout, mapping: Mapping, selection: Selection, result: Array, nbytes: int = 0
) -> None:
    """Read what a selection takes of a view into `result`, of the selection's shape; `nbytes` as in `read`."""
    if not result.size:
        return
    starts = list(mapping.starts)
    covered = selection.axes or tuple((axis,) for axis in range(len(selection.positions)))
    factors = zip(selection.positions, covered, strict=True)
    dims = [dim for factor in factors for dim in _dimensions(mapping, *factor, starts)]
    lengths = [length for length, _ in dims]
    # Dimensions that move along the same axis of the array are selected together.
    groups: list[tuple[list[int], list[int]]] = []
    for number, (_, moves) in enumerate(dims):
        joined = [group for group in groups if moves.keys() & group[0]]
        axes = set(moves).union(*(group[0] for group in joined))
        groups = [group for group in groups if group not in joined]
        groups += [(sorted(axes), sorted([number, *(n for group in joined for n in group[1])]))] * bool(moves)
    still = set(range(len(starts))).difference(*(axes for axes, _ in groups))
    groups = sorted([*groups, *(([axis], []) for axis in still)])
    positions, turns = zip(*(_positions(starts, dims, *group) for group in groups), strict=True) if groups else ((), ())
    order = [number for _, members in groups for number in members]
    rest = [number for number in range(len(dims)) if number not in order]
    # Along dimensions without variation the result repeats items: read them once.
    target = selection.view(result).reshape(lengths).transpose([*order, *rest])
    first = target[cast(Any, (..., *(0,) * len(rest)))]
    shape = [math.prod(lengths[number] for number in members) for _, members in groups]
    direct = all(len(members) < 2 for _, members in groups)
    items = first.reshape(shape) if direct else np.empty(shape, layout.dtype)
    along = None if all(len(axes) == 1 for axes, _ in groups) else tuple(tuple(axes) for axes, _ in groups)
    turned = items[cast(Any, (*(slice(None, None, turn) for turn in turns), ...))]
    read(source, layout, positions, along, turned, nbytes)
    if not direct:
        first[...] = items.reshape(first.shape)
    if rest:
        target[...] = first[(..., *(None,) * len(rest))]


def _dimensions(
    mapping: Mapping, positions: Positions, axes: Sequence[int], starts: list[int]
) -> list[tuple[int, _Moves]]:
    """Return how long the dimensions of one factor of a selection are and where they go; move `starts` to its first."""
    if isinstance(positions, slice):
        along = range(positions.start, positions.stop, positions.step)
        try:
            digits = taken(mapping.axes[axes[0]], along, starts, axes[0])
            return [(n, {axis: range(0, n * step, step)}) for axis, n, step in digits]
        except ValueError:  # a part of joined axes that is no box
            positions = np.asarray(along)[None]
    moves: _Moves = {}
    for rest, number in zip(positions, axes, strict=True):
        for axis, length, step in reversed(mapping.axes[number]):
            rest, moved = np.divmod(rest, length)  # noqa: PLW2901
            moves[axis] = np.asarray(moves.get(axis, 0)) + moved * step
    return [(positions.shape[1], moves)]


def _positions(
    starts: Sequence[int], dims: Sequence[tuple[int, _Moves]], axes: list[int], members: list[int]
) -> tuple[Positions, int]:
    """Add up where dimensions go, the last of which varies fastest; return positions, and -1 if they go backwards."""
    start, alone = starts[axes[0]], dims[members[0]][1][axes[0]] if members else range(1)
    if len(axes) == 1 and len(members) < 2 and isinstance(alone, range):
        low, high = sorted((start + alone[0], start + alone[-1]))
        return slice(low, high + 1, abs(alone.step)), 1 if alone.step > 0 else -1
    points = np.empty((len(axes), *(dims[number][0] for number in members)), np.int64)
    for n, axis in enumerate(axes):
        points[n] = starts[axis]
        for place, number in enumerate(members, 1):
            points[n] += np.reshape(dims[number][1].get(axis, 0), (-1,) + (1,) * (len(members) - place))
    points = points.reshape(len(axes), -1)
    steps = np.diff(points[0])
    if len(axes) == 1 and steps.size and steps[0] > 0 and (steps == steps[0]).all():
        return slice(int(points[0, 0]), int(points[0, -1]) + 1, int(steps[0])), 1
    return points, 1
