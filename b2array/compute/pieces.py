"""What a mapping shows of an array: piece by piece in workers, or a selection of it as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.buffers import scratch
from b2array.compute.mapping import Digit, Mapping
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
Int64Array = npt.NDArray[np.int64]
Box = tuple[slice, ...]

_LEAST_NBYTES, _LEAST_NBYTES_AFAR = 2**20, 8 * 2**20
"""Pieces consist of several chunks if these are smaller than this, on local disks and elsewhere."""
_MOST_NBYTES = 32 * 2**20
"""Larger chunks are read in several pieces."""
_AFAR = 8
"""So many pieces are requested at the same time where that takes long."""


def pieces(
    source: Source, layout: Layout, mapping: Mapping, kept: Sequence[int], use: Callable[[Box, Array], R], *,
    merge: bool,
) -> Iterator[R]:  # fmt: skip
    """Call a function in workers with pieces that together are what a mapping shows.

    Parameters
    ----------
    source, layout
        The array.
    mapping : Mapping
        Of at least one item.
    kept : sequence of int
        Digits, by number. Pieces with the same box of these follow each other.
    use : callable
        Takes a box of digits and its items, in memory that is used again. Items of stride 0 along all axes are one.
    merge : bool
        Whether many chunks of one value may be one piece.

    Yields
    ------
    object
        What `use` returned, piece by piece.
    """
    digits = mapping.digits
    order = sorted(range(len(digits)), key=lambda n: (digits[n].axis, -abs(digits[n].step)))
    stored = Mapping(mapping.shape, mapping.starts, tuple((digits[n],) for n in order))
    back = sorted(range(len(order)), key=order.__getitem__)
    nbytes = math.prod(digit.length for digit in digits) * layout.itemsize
    cuts, codes = _cut(source, layout, mapping, merge=merge)

    def piece(cells: Box) -> R:
        box = tuple(cut.of(cell) for cut, cell in zip(cuts, cells, strict=True))
        lengths = [box[n].stop - box[n].start for n in order]
        if codes[tuple(cell.start for cell in cells)] in SPECIALS:
            where = list(mapping.starts)
            for digit, i in zip(digits, box, strict=True):
                where[digit.axis] += digit.step * i.start
            items = np.broadcast_to(np.asarray(read_item(source, layout, where), layout.dtype), lengths)
        else:
            memory = scratch("pieces", math.prod(lengths) * layout.itemsize, 2 * _MOST_NBYTES)
            items = memory.view(layout.dtype).reshape(lengths)
            fill(source, layout, stored, select((*(box[n] for n in order), ...), stored.lengths), items, nbytes)
        return use(box, items.transpose(back))

    found = _in_order(codes, kept)
    return threads.spread(piece, found) if source.is_local else threads.ahead(piece, found, _AFAR)


class _Cut(NamedTuple):
    """A digit in cells of `length`; the first one ends at `first`."""

    extent: int
    first: int
    length: int

    def of(self, cells: slice) -> slice:
        """Return the range of the digit in a range of cells."""
        start, stop = self.first + (cells.start - 1) * self.length, self.first + (cells.stop - 1) * self.length
        return slice(max(start, 0), min(stop, self.extent))

    @property
    def ncells(self) -> int:
        """Number of cells."""
        return 1 + -(-max(self.extent - self.first, 0) // self.length)


def _cut(source: Source, layout: Layout, mapping: Mapping, *, merge: bool) -> tuple[list[_Cut], Int64Array]:
    """Cut digits into cells, as far as possible at the borders of chunks.

    Returns
    -------
    cuts : list of _Cut
    codes : ndarray of int64
        In cells whose items are all the same one, by the index, what it says.
    """
    digits, frame = mapping.digits, source.state.frame
    # A transaction notes which chunks were read, and the index does not tell what it keeps open.
    merge = merge and isinstance(source, Snapshot)
    merge = merge and layout.itemsize == frame.typesize and layout.dtype.kind != "V"
    merge = merge and not source.state.annotations.lost and bool(frame.offsets.min() < 0)
    if merge and frame.offsets[0] in SPECIALS and (frame.offsets == frame.offsets[0]).all():
        return [_Cut(n, n, n) for _, n, _ in digits], np.full((1,) * len(digits), frame.offsets[0])
    units = _units(layout)
    lengths = list(mapping.parts(units))
    if not merge:
        least = _LEAST_NBYTES if source.is_local else _LEAST_NBYTES_AFAR
        for n in reversed(range(len(digits))):
            more = least // (math.prod(lengths) * layout.itemsize)
            lengths[n] = min(lengths[n] * max(1, more), digits[n].length)
    cuts = []
    for (axis, extent, step), length in zip(digits, lengths, strict=True):
        inside = mapping.starts[axis] % units[axis]
        first = length if abs(step) != 1 else max(length, units[axis]) - inside if step > 0 else inside + 1
        cuts.append(_Cut(extent, min(first, extent), length))
    codes = np.broadcast_to(np.int64(0), tuple(cut.ncells for cut in cuts))
    exact = len({digit.axis for digit in digits}) == len(digits) and {abs(digit.step) for digit in digits} <= {1}
    if not (merge and exact and units == layout.chunks):
        return cuts, codes
    # One cell a chunk: as many entries of the index, in the order of the digits.
    key: list[int | slice] = [start // chunk for start, chunk in zip(mapping.starts, layout.chunks, strict=True)]
    for (axis, _, step), cut in zip(digits, cuts, strict=True):
        begin = mapping.starts[axis] // layout.chunks[axis]
        key[axis] = slice(begin, begin + cut.ncells) if step > 0 else slice(begin - cut.ncells + 1, begin + 1)
    codes = frame.offsets.reshape(layout.grid_shape)[tuple(key)]
    axes = sorted(digit.axis for digit in digits)
    codes = codes.transpose([axes.index(digit.axis) for digit in digits])
    return cuts, codes[tuple(slice(None, None, digit.step) for digit in digits)]


def _units(layout: Layout) -> tuple[int, ...]:
    """Return the extents of a chunk, or of blocks in it that are not too large together."""
    units = list(layout.chunks)
    for axis, block in enumerate(layout.blocks):
        excess = -(-math.prod(units) * layout.itemsize // _MOST_NBYTES)
        if excess > 1:
            units[axis] = max(1, units[axis] // excess // block) * block
    return tuple(units)


def _in_order(codes: Int64Array, kept: Sequence[int]) -> Iterator[Box]:
    """Cut a grid into single cells, or boxes of cells with the same special code, column by column of `kept`."""
    axes = [*kept, *(axis for axis in range(codes.ndim) if axis not in kept)]
    stack = [tuple(slice(0, n) for n in codes.shape)]
    while stack:
        box = stack.pop()
        cells = codes[cast(Any, (*box, ...))]
        axis = next((axis for axis in axes if cells.shape[axis] > 1), None)
        if axis is None or (cells.flat[0] in SPECIALS and bool((cells == cells.flat[0]).all())):
            yield box
            continue
        start, stop = box[axis].start, box[axis].stop
        middle = (start + stop) // 2
        stack.append((*box[:axis], slice(middle, stop), *box[axis + 1 :]))
        stack.append((*box[:axis], slice(start, middle), *box[axis + 1 :]))


# A selection of it as a whole.

_Member = dict[int, range | Int64Array]
"""What varies along one dimension of a selection: for axes of the array, how far from where the view begins."""


def fill(
    source: Source, layout: Layout, mapping: Mapping, selection: Selection, result: Array, nbytes: int = 0
) -> None:
    """Read what a selection takes of a view into `result`, of the selection's shape; `nbytes` as in `read`."""
    if not result.size:
        return
    covered = selection.axes or tuple((axis,) for axis in range(len(selection.positions)))
    members: list[_Member] = []
    lengths: list[int] = []
    for positions, axes in zip(selection.positions, covered, strict=True):
        for length, member in _members(positions, [mapping.axes[axis] for axis in axes]):
            lengths.append(length)
            members.append(member)
    groups = [_group(mapping, lengths, members, numbers) for numbers in _sharing(members)]
    moving = {axis for member in members for axis in member}
    groups += [_Group((n,), (), slice(i, i + 1, 1), 1) for n, i in enumerate(mapping.starts) if n not in moving]
    groups.sort(key=lambda group: group.axes)
    order = [number for group in groups for number in group.members]
    rest = [number for number in range(len(members)) if number not in order]
    # Along dimensions where nothing varies the result repeats the items, which are read once.
    target = selection.view(result).reshape(lengths).transpose([*order, *rest])
    first = target[cast(Any, (..., *(0,) * len(rest)))] if rest else target
    shape = [math.prod(lengths[number] for number in group.members) for group in groups]
    direct = all(len(group.members) < 2 for group in groups)
    items = first.reshape(shape) if direct else np.empty(shape, layout.dtype)
    along = None if all(len(group.axes) == 1 for group in groups) else tuple(group.axes for group in groups)
    turned = items[cast(Any, (*(slice(None, None, group.turn) for group in groups), ...))]
    read(source, layout, tuple(group.positions for group in groups), along, turned, nbytes)
    if not direct:
        first[...] = items.reshape(first.shape)
    if rest:
        target[...] = first[(..., *(None,) * len(rest))]


def _members(positions: Positions, axes: Sequence[Sequence[Digit]]) -> Iterator[tuple[int, _Member]]:
    """Return what varies along the dimensions of one group of a selection, which covers axes of a view."""
    if isinstance(positions, slice):
        along, digits = range(positions.start, positions.stop, positions.step), axes[0]
        if len(digits) > 1 and len(along) == math.prod(digit.length for digit in digits):
            for axis, length, step in digits:
                yield length, {axis: range(0, length * step, step)}
            return
        if len(digits) == 1:
            (axis, _, step), first, last = digits[0], along.start, along[-1]
            yield len(along), {axis: range(first * step, last * step + (1 if step > 0 else -1), along.step * step)}
            return
        positions = np.arange(along.start, along.stop, min(along.step, along.stop))[None]
    member: _Member = {}
    for rest, digits in zip(positions, axes, strict=True):
        for axis, length, step in reversed(digits):
            rest, moved = np.divmod(rest, length)  # noqa: PLW2901
            member[axis] = member.get(axis, 0) + moved * step
    yield positions.shape[1], member


def _sharing(members: Sequence[_Member]) -> list[list[int]]:
    """Put members together that move along the same axis of the array."""
    found: list[list[int]] = []
    for number, member in enumerate(members):
        joined = [group for group in found if any(member.keys() & members[n].keys() for n in group)]
        found = [group for group in found if group not in joined]
        found += [sorted([number, *(n for group in joined for n in group)])] * bool(member)
    return found


class _Group(NamedTuple):
    """Axes of the array that are selected together, the members that do so, and positions, read backwards with -1."""

    axes: tuple[int, ...]
    members: tuple[int, ...]
    positions: Positions
    turn: int


def _group(mapping: Mapping, lengths: Sequence[int], members: Sequence[_Member], numbers: list[int]) -> _Group:
    """Add up the positions of members, the last of which varies fastest."""
    axes = tuple(sorted({axis for number in numbers for axis in members[number]}))
    alone, start = members[numbers[0]][axes[0]], mapping.starts[axes[0]]
    if len(numbers) == len(axes) == 1 and isinstance(alone, range):
        low, high = sorted((start + alone[0], start + alone[-1]))
        return _Group(axes, tuple(numbers), slice(low, high + 1, abs(alone.step)), 1 if alone.step > 0 else -1)
    points = np.empty((len(axes), *(lengths[number] for number in numbers)), np.int64)
    for n, axis in enumerate(axes):
        points[n] = mapping.starts[axis]
        for place, number in enumerate(numbers, 1):
            if axis in members[number]:
                points[n] += np.asarray(members[number][axis]).reshape((-1,) + (1,) * (len(numbers) - place))
    points = points.reshape(len(axes), -1)
    steps = np.diff(points[0])
    if len(axes) == 1 and steps.size and steps[0] > 0 and (steps == steps[0]).all():
        return _Group(axes, tuple(numbers), slice(int(points[0, 0]), int(points[0, -1]) + 1, int(steps[0])), 1)
    return _Group(axes, tuple(numbers), points, 1)
