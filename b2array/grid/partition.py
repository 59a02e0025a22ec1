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

__all__ = ["Axes", "Part", "Positions", "Run", "boxes", "parts", "put", "runs", "take"]

Positions = slice | NDArray[np.int64]
"""Positions of one factor, in bounds and not negative: ``slice(start, stop, step)`` with ``step > 0`` along one
axis, or an array of shape (axes, points)."""

_MOST = 2**14
"""List at most this many parts along an axis."""

Axes = tuple[tuple[int, ...], ...]
"""The axes that each factor covers, ascending; None means ``((0,), (1,), ...)``."""


class Part(NamedTuple):
    """What a selection takes from one part of the grid.

    Attributes
    ----------
    coords : tuple of int
        Which part, one coordinate an axis.
    inside : tuple of Positions
        The selected positions, one entry a factor, counted from the first item of the part.
    outside : tuple of Positions
        Where these items stand in the selection's box, one entry a factor: a slice of step 1, or an array of
        shape (1, points) where the points of the part are scattered.
    """

    coords: tuple[int, ...]
    inside: tuple[Positions, ...]
    outside: tuple[Positions, ...]


def parts(
    positions: tuple[Positions, ...],
    part_shape: Sequence[int],
    axes: Axes | None = None,
    outside: tuple[Positions | None, ...] | None = None,
) -> Iterator[Part]:
    """Cut a selection at the borders of a grid, visiting each part that it touches once.

    Parameters
    ----------
    positions : tuple of Positions
        The selection, one entry a factor; the `inside` of a part cuts that part further.
    part_shape : sequence of int
        Extent of a part along each axis, in items.
    axes : tuple of tuple of int, optional
        The axes of each factor; by default one axis a factor, in order.
    outside : tuple of Positions, optional
        Where the selection stands in a larger box, as in `Part`; by default it is the whole box.

    Yields
    ------
    Part
        In C order of the grid where every factor has one axis, and no slice but the first has very many parts. Points
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
    for n, i in enumerate(positions):
        if isinstance(i, slice) and i.start < i.stop:
            extent = part_shape[n if axes is None else axes[n][0]]
            wide = _MOST * extent * (i.step // extent or 1)
            if i.stop - i.start > wide:
                return _in_windows(positions, part_shape, axes, bases, n, wide)
    if axes is None:
        pieces = []
        for i, extent, base in zip(positions, part_shape, bases, strict=True):
            pieces.append(_cut_slice(i, extent, base) if isinstance(i, slice) else _cut_points(i, (extent,), base))
        return map(Part._make, starmap(zip, product(*pieces)))
    return _parts_of_factors(positions, part_shape, axes, bases)


def _in_windows(
    positions: tuple[Positions, ...],
    part_shape: Sequence[int],
    axes: Axes | None,
    bases: tuple[Positions | None, ...],
    n: int,
    wide: int,
) -> Iterator[Part]:
    """Cut a selection whose factor `n` is a slice of very many parts; list the parts of `wide` items at a time."""
    for coord, inside, where in _cut_slice(cast(slice, positions[n]), wide, bases[n]):
        i = cast(slice, inside)
        window = slice(coord * wide + i.start, coord * wide + i.stop, i.step)
        cut = (*positions[:n], window, *positions[n + 1 :])
        yield from parts(cut, part_shape, axes, (*bases[:n], where, *bases[n + 1 :]))


_Piece = tuple[Any, Positions, Positions]  # coords (a plain int for a factor of one axis), inside, outside


def _parts_of_factors(
    positions: tuple[Positions, ...],
    part_shape: Sequence[int],
    axes: Axes,
    bases: Sequence[Positions | None],
) -> Iterator[Part]:
    # Where one factor is empty, the points of another one need not be within any bounds.
    if any(i.start >= i.stop if isinstance(i, slice) else not i.size for i in positions):
        return
    pieces: list[list[_Piece]] = []
    for covered, i, base in zip(axes, positions, bases, strict=True):
        extents = tuple(part_shape[axis] for axis in covered)
        cut = _cut_slice(i, extents[0], base) if isinstance(i, slice) else _cut_points(i, extents, base)
        if len(covered) == 1:
            cut = [((coord,), inside, outside) for coord, inside, outside in cut]
        pieces.append(cut)
    covered_axes = tuple(chain.from_iterable(axes))
    rank = sorted(range(len(covered_axes)), key=covered_axes.__getitem__)
    for combination in product(*pieces):
        coords, inside, outside = zip(*combination, strict=True)
        flat = tuple(chain.from_iterable(coords))
        yield Part(tuple(flat[n] for n in rank), inside, outside)


def _cut_slice(positions: slice, extent: int, base: Positions | None) -> list[_Piece]:
    start, stop, step = positions.start, positions.stop, positions.step
    position = base.start if isinstance(base, slice) else 0
    pieces: list[_Piece] = []
    while start < stop:
        coord = start // extent
        origin = coord * extent
        end = min(origin + extent, stop)
        count = (end - start + step - 1) // step
        inside = slice(start - origin, end - origin, step)
        if count == 1:  # a step would make the whole of a thin chunk look like a part
            inside = slice(inside.start, inside.start + 1, 1)
        pieces.append((coord, inside, slice(position, position + count, 1)))
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
        number = np.ravel_multi_index(tuple(coords), tuple((coords.max(axis=1) + 1).tolist()))
    order = None
    if (number[1:] < number[:-1]).any():
        # In the smallest type that holds the numbers: for 16 bits NumPy's stable sort is a radix sort.
        order = np.argsort(number.astype(np.min_scalar_type(number.max())), kind="stable")
        number, coords, inside = number[order], coords[:, order], inside[:, order]
    changes = np.flatnonzero(number[1:] != number[:-1]) + 1
    starts = [0, *changes.tolist()]
    stops = [*starts[1:], number.size]
    firsts = coords[:, starts].T.tolist()
    where = [coord[0] if len(extents) == 1 else tuple(coord) for coord in firsts]
    return [
        (coord, inside[:, start:stop], _positions(order, start, stop, base))
        for coord, start, stop in zip(where, starts, stops, strict=True)
    ]


def _positions(
    order: NDArray[np.intp] | None,
    start: int,
    stop: int,
    base: Positions | None,
) -> Positions:
    if isinstance(base, np.ndarray):
        return base[:, start:stop] if order is None else base[:, order[start:stop]]
    offset = base.start if isinstance(base, slice) else 0
    if order is None:
        return slice(start + offset, stop + offset, 1)
    return order[None, start:stop] + offset


class Run(NamedTuple):
    """Neighbouring parts along one axis that a slice takes whole, or a single part that it takes a piece of.

    `inside` is what is taken of each part, `outside` where all of it stands in the selection's box.
    """

    coords: range
    inside: slice
    outside: slice


def runs(
    positions: tuple[slice, ...],
    part_shape: Sequence[int],
    outside: tuple[slice, ...] | None = None,
) -> list[list[Run]]:
    """Cut each slice of a selection at the borders of parts, but keep neighbours together that are taken whole.

    Examples
    --------
    >>> for run in runs((slice(2, 13, 1),), (4,))[0]:
    ...     print(run.coords, run.inside, run.outside)
    range(0, 1) slice(2, 4, 1) slice(0, 2, 1)
    range(1, 3) slice(0, 4, 1) slice(2, 10, 1)
    range(3, 4) slice(0, 1, 1) slice(10, 11, 1)
    """
    bases = (None,) * len(positions) if outside is None else outside
    return [_runs(i, extent, base) for i, extent, base in zip(positions, part_shape, bases, strict=True)]


def _runs(positions: slice, extent: int, base: slice | None) -> list[Run]:
    start, stop = positions.start, positions.stop
    first, last = -(-start // extent), stop // extent
    if positions.step != 1 or last - first < 2:
        cut = _cut_slice(positions, extent, base)
        return [Run(range(coord, coord + 1), inside, where) for coord, inside, where in cut]  # type: ignore[arg-type]
    offset = (base.start if base is not None else 0) - start
    low, high = first * extent, last * extent
    where = slice(low + offset, high + offset, 1)
    runs = [Run(range(first, last), slice(0, extent, 1), where)]
    if start < low:
        inside = slice(start - low + extent, extent, 1)
        where = slice(start + offset, low + offset, 1)
        runs.insert(0, Run(range(first - 1, first), inside, where))
    if high < stop:
        where = slice(high + offset, stop + offset, 1)
        runs.append(Run(range(last, last + 1), slice(0, stop - high, 1), where))
    return runs


def take(
    values: NDArray[Any],
    positions: tuple[Positions, ...],
    axes: Axes | None = None,
) -> NDArray[Any]:
    """Read the items of a product: one dimension for each factor, a view of `values` if all factors are slices.

    `values` is a block, with a part's `inside` as positions, or a box, with its `outside`. `axes` lists the axes of
    each factor; by default each factor has one axis, in order.

    Examples
    --------
    >>> take(np.arange(12).reshape(3, 4), (slice(0, 2, 1), np.array([[3, 0]])))
    array([[3, 0],
           [7, 4]])
    """
    if np.ndarray not in map(type, positions):
        return values[(*positions, ...)]
    key, moved, order = _fancy(positions, axes)
    taken: NDArray[Any] = values.transpose(moved)[key]
    return taken.transpose(sorted(range(len(order)), key=order.__getitem__))


def put(
    target: NDArray[Any],
    positions: tuple[Positions, ...],
    values: NDArray[Any],
    axes: Axes | None = None,
) -> None:
    """Write the items of a product; the counterpart of `take`. Where points repeat, the last value stays."""
    if np.ndarray not in map(type, positions):
        target[positions] = values
        return
    key, moved, order = _fancy(positions, axes)
    target.transpose(moved)[key] = values.transpose(order)


def _fancy(
    positions: tuple[Positions, ...], axes: Axes | None
) -> tuple[tuple[Positions, ...], tuple[int, ...], tuple[int, ...]]:
    """Make a NumPy key with all index arrays in front; also the axes in that order, and the factors."""
    arrays = [n for n, i in enumerate(positions) if isinstance(i, np.ndarray)]
    order = (*arrays, *(n for n, i in enumerate(positions) if isinstance(i, slice)))
    key: list[Positions] = []
    for dim, n in enumerate(arrays):
        # Combine the points of several factors as `numpy.ix_` does.
        open_shape = (1,) * dim + (-1,) + (1,) * (len(arrays) - dim - 1)
        key.extend(row.reshape(open_shape) for row in positions[n])  # type: ignore[union-attr]
    key.extend(positions[n] for n in order[len(arrays) :])
    moved = order if axes is None else tuple(chain.from_iterable(axes[n] for n in order))
    return tuple(key), moved, order


def boxes(
    shape: Sequence[int],
    most: int,
    unit: Sequence[int] | None = None,
) -> Iterator[tuple[slice, ...]]:
    """Cut an array into boxes of at most `most` items, or of one unit, that follow each other in C order.

    They consist of whole units, which are single items by default.

    Examples
    --------
    >>> [tuple((i.start, i.stop) for i in box) for box in boxes((3, 4), 8)]
    [((0, 2), (0, 4)), ((2, 3), (0, 4))]
    """
    steps = [max(1, c) for c in unit or (1,) * len(shape)]
    for axis, n in reversed([*enumerate(shape)]):
        fit = max(1, most // math.prod(steps))
        steps[axis] *= min(fit, max(1, -(-n // steps[axis])))
        if steps[axis] < n:
            break
    for start in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        yield tuple(slice(i, min(i + step, n)) for i, step, n in zip(start, steps, shape, strict=True))
