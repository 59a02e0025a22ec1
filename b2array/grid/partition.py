"""A selection, cut along a grid of chunks or of blocks.

A selection is a product of factors. A factor stands for the positions along one axis (a `slice`), or for points along
one or several axes together (an integer array with one row an axis). `parts` cuts such a product at the borders of a
grid and yields products again, so that the same function cuts an array into chunks and a chunk into blocks; `take` and
`put` read and write the items of a product.

Source: "Blosc2 NDim Array Format", sections Metalayer and Storage order: partial chunks and blocks are padded to
full size at their high end, and all grids are in C order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, product, starmap
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axes", "Part", "Positions", "Run", "boxes", "first_box", "parts", "put", "runs", "take"]

Positions = slice | NDArray[np.int64]
"""Positions of one factor, in bounds and not negative: ``slice(start, stop, step)`` with ``step > 0`` along one
axis, or an array of shape (axes, points)."""

Factors = tuple[Positions, ...]
Order = tuple[int, ...]

_MOST = 2**14
"""List at most this many parts along an axis."""

Axes = tuple[tuple[int, ...], ...]
"""The axes that each factor covers, ascending; None means ``((0,), (1,), ...)``."""

_Bases = tuple[Positions | None, ...]


class Part(NamedTuple):
    """The share of a selection in one part of the grid.

    Attributes
    ----------
    coords : tuple of int
        The coordinates of the part, one per axis.
    inside : tuple of Positions
        The selected positions, one entry per factor, counted from the first item of the part.
    outside : tuple of Positions
        The positions of these items in the selection's box, one entry per factor: a slice of step 1, or an array of
        shape (1, points) if the points of the part are scattered.
    """

    coords: tuple[int, ...]
    inside: Factors
    outside: Factors


def parts(
    positions: Factors,
    part_shape: Sequence[int],
    axes: Axes | None = None,
    outside: _Bases | None = None,
) -> Iterator[Part]:
    """Cut a selection at the borders of a grid; visit each part that it touches once.

    Parameters
    ----------
    positions : tuple of Positions
        The selection, one entry per factor; pass the `inside` of a part to cut that part further.
    part_shape : sequence of int
        Extent of a part along each axis, in items.
    axes : tuple of tuple of int, optional
        The axes of each factor; by default one axis per factor, in order.
    outside : tuple of Positions, optional
        The position of the selection in a larger box, as in `Part`; by default the selection is the whole box.

    Yields
    ------
    Part
        In C order of the grid if every factor has one axis and no slice but the first has very many parts. Points
        keep their order inside a part, so the last of several writes to one item wins.

    Examples
    --------
    >>> for part in parts((slice(0, 9, 3),), (4,)):
    ...     print(part.coords, part.inside, part.outside)
    (0,) (slice(0, 4, 3),) (slice(0, 2, 1),)
    (1,) (slice(2, 3, 1),) (slice(2, 3, 1),)
    """
    if not positions:
        return iter((Part((), (), ()),))
    bases = (None,) * len(positions) if outside is None else outside
    for n, factor in enumerate(positions):
        if not isinstance(factor, slice) or factor.start >= factor.stop:
            continue
        axis = n if axes is None else axes[n][0]
        extent = part_shape[axis]
        # A step longer than a part skips parts.
        stride = factor.step // extent or 1
        wide = _MOST * extent * stride
        length = factor.stop - factor.start
        if length > wide:
            return _in_windows(positions, part_shape, axes, bases, n, wide)
    if axes is not None:
        return _parts_of_factors(positions, part_shape, axes, bases)
    pieces = []
    for factor, extent, base in zip(positions, part_shape, bases, strict=True):
        if isinstance(factor, slice):
            pieces.append(_cut_slice(factor, extent, base))
        else:
            pieces.append(_cut_points(factor, (extent,), base))
    # Three functions in C instead of a loop: this is most of the geometry of a read that touches many chunks.
    return map(Part._make, starmap(zip, product(*pieces)))


def _in_windows(
    positions: Factors,
    part_shape: Sequence[int],
    axes: Axes | None,
    bases: _Bases,
    n: int,
    wide: int,
) -> Iterator[Part]:
    """Cut a selection whose factor `n` is a slice over very many parts; list the parts of `wide` items at a time."""
    factor = cast(slice, positions[n])
    for coord, inside, where in _cut_slice(factor, wide, bases[n]):
        of_window = cast(slice, inside)
        origin = coord * wide
        start = origin + of_window.start
        stop = origin + of_window.stop
        cut = list(positions)
        cut[n] = slice(start, stop, of_window.step)
        places = list(bases)
        places[n] = where
        yield from parts(tuple(cut), part_shape, axes, tuple(places))


_Piece = tuple[Any, Positions, Positions]  # coords (a plain int for a factor of one axis), inside, outside


def _parts_of_factors(
    positions: Factors,
    part_shape: Sequence[int],
    axes: Axes,
    bases: _Bases,
) -> Iterator[Part]:
    # If one factor is empty, the points of another factor may be out of bounds.
    if any(map(_is_empty, positions)):
        return
    pieces: list[list[_Piece]] = []
    for covered, factor, base in zip(axes, positions, bases, strict=True):
        extents = tuple(part_shape[axis] for axis in covered)
        if isinstance(factor, slice):
            cut = _cut_slice(factor, extents[0], base)
        else:
            cut = _cut_points(factor, extents, base)
        if len(covered) == 1:
            # Coordinates of one axis are plain numbers, which are faster; here all factors need tuples.
            cut = [((coord,), inside, outside) for coord, inside, outside in cut]
        pieces.append(cut)
    covered_axes = tuple(chain.from_iterable(axes))
    rank = sorted(range(len(covered_axes)), key=covered_axes.__getitem__)
    for combination in product(*pieces):
        coords, inside, outside = zip(*combination, strict=True)
        flat = tuple(chain.from_iterable(coords))
        in_order = tuple(flat[n] for n in rank)
        yield Part(in_order, inside, outside)


def _is_empty(factor: Positions) -> bool:
    if isinstance(factor, slice):
        return bool(factor.start >= factor.stop)
    return not factor.size


def _cut_slice(positions: slice, extent: int, base: Positions | None) -> list[_Piece]:
    start = positions.start
    stop = positions.stop
    step = positions.step
    position = base.start if isinstance(base, slice) else 0
    pieces: list[_Piece] = []
    while start < stop:
        coord = start // extent
        origin = coord * extent
        end = min(origin + extent, stop)
        count = (end - start + step - 1) // step
        inside = slice(start - origin, end - origin, step)
        if count == 1:  # with a step, the whole of a thin chunk would look like a part
            inside = slice(inside.start, inside.start + 1, 1)
        outside = slice(position, position + count, 1)
        pieces.append((coord, inside, outside))
        start += count * step
        position += count
    return pieces


def _cut_points(
    points: NDArray[np.int64],
    extents: tuple[int, ...],
    base: Positions | None,
) -> list[_Piece]:
    if points.shape[1] == 0:
        return []
    divisor = np.array(extents, np.int64)[:, None]
    coords = points // divisor
    inside = points - coords * divisor
    number = coords[0]
    if len(extents) > 1:
        bounds = coords.max(axis=1) + 1
        grid = tuple(bounds.tolist())
        number = np.ravel_multi_index(tuple(coords), grid)
    order = None
    if (number[1:] < number[:-1]).any():
        # Use the smallest type for the numbers: NumPy's stable sort is a radix sort for 16 bits.
        smallest = np.min_scalar_type(number.max())
        order = np.argsort(number.astype(smallest), kind="stable")
        number = number[order]
        coords = coords[:, order]
        inside = inside[:, order]
    changes = np.flatnonzero(number[1:] != number[:-1])
    starts = [0, *(changes + 1).tolist()]
    stops = [*starts[1:], number.size]
    firsts = coords[:, starts].T.tolist()
    pieces: list[_Piece] = []
    for first, start, stop in zip(firsts, starts, stops, strict=True):
        coord = first[0] if len(extents) == 1 else tuple(first)
        where = _positions(order, start, stop, base)
        pieces.append((coord, inside[:, start:stop], where))
    return pieces


def _positions(
    order: NDArray[np.intp] | None,
    start: int,
    stop: int,
    base: Positions | None,
) -> Positions:
    """Return the positions in the selection's box of the points from `start` to `stop` in an order."""
    if isinstance(base, np.ndarray):
        chosen = slice(start, stop) if order is None else order[start:stop]
        return base[:, chosen]
    offset = base.start if isinstance(base, slice) else 0
    if order is None:
        return slice(start + offset, stop + offset, 1)
    return order[None, start:stop] + offset


class Run(NamedTuple):
    """Neighbouring parts along one axis that a slice selects whole, or a single part that it selects in part.

    `inside` is the selected slice of each part, `outside` the slice of the selection's box for all parts together.
    """

    coords: range
    inside: slice
    outside: slice


def runs(
    positions: tuple[slice, ...],
    part_shape: Sequence[int],
    outside: tuple[slice, ...] | None = None,
) -> list[list[Run]]:
    """Cut each slice of a selection at the borders of parts, but keep whole neighbouring parts together.

    Examples
    --------
    >>> for run in runs((slice(2, 13, 1),), (4,))[0]:
    ...     print(run.coords, run.inside, run.outside)
    range(0, 1) slice(2, 4, 1) slice(0, 2, 1)
    range(1, 3) slice(0, 4, 1) slice(2, 10, 1)
    range(3, 4) slice(0, 1, 1) slice(10, 11, 1)
    """
    bases = (None,) * len(positions) if outside is None else outside
    factors = zip(positions, part_shape, bases, strict=True)
    return [_runs(factor, extent, base) for factor, extent, base in factors]


def _one(coord: int) -> range:
    return range(coord, coord + 1)


def _runs(positions: slice, extent: int, base: slice | None) -> list[Run]:
    start = positions.start
    stop = positions.stop
    # The parts that the slice selects whole.
    first = -(-start // extent)
    last = stop // extent
    if positions.step != 1 or last - first < 2:
        singles = []
        for coord, inside, where in _cut_slice(positions, extent, base):
            run = Run(_one(coord), inside, where)  # type: ignore[arg-type]
            singles.append(run)
        return singles
    base_start = 0 if base is None else base.start
    offset = base_start - start
    low = first * extent
    high = last * extent
    whole = slice(0, extent, 1)
    where = slice(low + offset, high + offset, 1)
    runs = [Run(range(first, last), whole, where)]
    if start < low:
        inside = slice(start - low + extent, extent, 1)
        where = slice(start + offset, low + offset, 1)
        runs.insert(0, Run(_one(first - 1), inside, where))
    if high < stop:
        inside = slice(0, stop - high, 1)
        where = slice(high + offset, stop + offset, 1)
        runs.append(Run(_one(last), inside, where))
    return runs


def take(
    values: NDArray[Any],
    positions: Factors,
    axes: Axes | None = None,
) -> NDArray[Any]:
    """Read the items of a product: one dimension for each factor, a view of `values` if all factors are slices.

    `values` is a block if the positions are the `inside` of a part, or a box if they are its `outside`. `axes` lists
    the axes of each factor; by default each factor has one axis, in order.

    Examples
    --------
    >>> take(np.arange(12).reshape(3, 4), (slice(0, 2, 1), np.array([[3, 0]])))
    array([[3, 0],
           [7, 4]])
    """
    if np.ndarray not in map(type, positions):
        return values[(*positions, ...)]  # with an ellipsis, even a single item is a view
    key, moved, order = _fancy(positions, axes)
    chosen: NDArray[Any] = values.transpose(moved)[key]
    back = sorted(range(len(order)), key=order.__getitem__)
    return chosen.transpose(back)


def put(
    target: NDArray[Any],
    positions: Factors,
    values: NDArray[Any],
    axes: Axes | None = None,
) -> None:
    """Write the items of a product; the counterpart of `take`. If a point repeats, the last value wins."""
    if np.ndarray not in map(type, positions):
        target[positions] = values
        return
    key, moved, order = _fancy(positions, axes)
    target.transpose(moved)[key] = values.transpose(order)


def _fancy(positions: Factors, axes: Axes | None) -> tuple[Factors, Order, Order]:
    """Make a NumPy key with all index arrays first; also return the axes in that order, and the factors.

    NumPy puts the dimensions of index arrays first or not, depending on the entries between the arrays.
    """
    arrays: list[int] = []
    slices: list[int] = []
    for n, factor in enumerate(positions):
        numbers = slices if isinstance(factor, slice) else arrays
        numbers.append(n)
    order = (*arrays, *slices)
    key: list[Positions] = []
    for dim, n in enumerate(arrays):
        # Combine the points of several factors as `numpy.ix_` does.
        open_shape = [1] * len(arrays)
        open_shape[dim] = -1
        points = cast(NDArray[np.int64], positions[n])
        key.extend(row.reshape(open_shape) for row in points)
    key.extend(positions[n] for n in slices)
    if axes is None:
        return tuple(key), order, order
    moved = chain.from_iterable(axes[n] for n in order)
    return tuple(key), tuple(moved), order


def boxes(
    shape: Sequence[int],
    most: int,
    unit: Sequence[int] | None = None,
) -> Iterator[tuple[slice, ...]]:
    """Cut an array into consecutive boxes in C order, of at most `most` items or one unit.

    The boxes consist of whole units, which are single items by default.

    Examples
    --------
    >>> [tuple((i.start, i.stop) for i in box) for box in boxes((3, 4), 8)]
    [((0, 2), (0, 4)), ((2, 3), (0, 4))]
    """
    smallest = unit or (1,) * len(shape)
    steps = [max(1, extent) for extent in smallest]
    # Fill the trailing axes first, so that a box is contiguous in C order.
    for axis in reversed(range(len(shape))):
        room = max(1, most // math.prod(steps))
        nunits = -(-shape[axis] // steps[axis])
        steps[axis] *= min(room, max(1, nunits))
        if steps[axis] < shape[axis]:
            break
    sides = []
    for extent, step in zip(shape, steps, strict=True):
        starts = range(0, extent, step)
        sides.append([slice(start, min(start + step, extent)) for start in starts])
    yield from product(*sides)


def first_box(shape: Sequence[int], most: int) -> tuple[slice, ...] | None:
    """Return the box of the first items in C order, at most `most`, whose steps are 1; None if there are no items.

    Examples
    --------
    >>> first_box((3, 4), 8), first_box((3, 0), 8)
    ((slice(0, 2, 1), slice(0, 4, 1)), None)
    """
    first = next(boxes(shape, most), None)
    if first is None:
        return None
    return tuple(slice(part.start, part.stop, 1) for part in first)
