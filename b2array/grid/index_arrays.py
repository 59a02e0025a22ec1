"""The index arrays and masks of a key -> factors of a selection, checked against the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2array.grid.partition import Positions

__all__ = ["IndexArray", "Slot", "as_arrays", "broadcast", "shape_text", "wrap"]

Indices = NDArray[np.int64]
Shape = tuple[int, ...]


class Slot(NamedTuple):
    """A factor of a selection, with its dimensions in the result; `positions` is None for new axes."""

    axes: tuple[int, ...]
    positions: Positions | None
    dims: Shape
    flipped: bool = False


class IndexArray(NamedTuple):
    """An index array. If it stands for a boolean scalar, it has no axis, and its values are unused."""

    axis: int | None
    values: Indices


def as_arrays(entry: NDArray[Any], axis: int) -> list[IndexArray]:
    """Return the index arrays that an array in a key stands for; a mask stands for one index array per axis."""
    if entry.dtype != bool:
        return [IndexArray(axis, entry)]
    if entry.ndim == 0:
        # True selects the single item without an axis, False selects nothing.
        count = int(entry)
        return [IndexArray(None, np.zeros(count, np.int64))]
    arrays = []
    for n, values in enumerate(entry.nonzero(), axis):
        # On 32-bit machines, NumPy's own positions have 32 bits.
        indices = values.astype(np.int64, copy=False)
        arrays.append(IndexArray(n, indices))
    return arrays


def broadcast(arrays: list[IndexArray], shape: Sequence[int]) -> list[Slot]:
    """Make factors: index arrays that vary along the same dimensions become points, other arrays stay independent."""
    shapes = [array.values.shape for array in arrays]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " ".join(map(shape_text, shapes))
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {listed} "
        ) from None
    is_empty = 0 in whole
    slots: list[Slot] = []
    for start, stop in _segments(shapes, len(whole)):
        dims = whole[start:stop]
        members = []
        for axis, values in arrays:
            missing = len(whole) - values.ndim
            padded = (1,) * missing + values.shape
            local = padded[start:stop]
            if math.prod(local) == 1:
                continue
            inside = values
            # Like NumPy, do not check the values of arrays that select nothing.
            if axis is not None and not is_empty:
                inside = wrap(values, axis, shape[axis])
            points = np.broadcast_to(inside.reshape(local), dims)
            members.append(IndexArray(axis, points.reshape(-1)))
        slot = _points(members, dims) if members else Slot((), None, dims)
        slots.append(slot)
    for axis, values in arrays:
        if values.size != 1 or axis is None:
            continue
        # A single position is a slice of one item, which is faster than points.
        first = 0
        if not is_empty:
            inside = wrap(values, axis, shape[axis])
            first = int(inside.reshape(()))
        stop = first if is_empty else first + 1
        single = slice(first, stop, 1)
        slots.append(Slot((axis,), single, ()))
    return slots


def _segments(shapes: list[Shape], ndim: int) -> list[tuple[int, int]]:
    """Cut the `ndim` broadcast dimensions wherever no single array varies on both sides of the cut."""
    joined: set[int] = set()
    for shape in shapes:
        sizes = enumerate(shape, ndim - len(shape))
        varying = [n for n, size in sizes if size != 1]
        if varying:
            # A cut at n lies between the dimensions n - 1 and n.
            first = varying[0] + 1
            joined.update(range(first, varying[-1] + 1))
    cuts = [n for n in range(1, ndim) if n not in joined]
    return list(pairwise([0, *cuts, ndim]))


def _points(members: list[IndexArray], dims: Shape) -> Slot:
    with_axis = [(axis, values) for axis, values in members if axis is not None]
    axes = tuple(axis for axis, _ in with_axis)
    rows = [values for _, values in with_axis]
    if len(rows) == 1:
        points = rows[0][None]  # a view; the general code copies
    else:
        npoints = math.prod(dims)
        points = np.array(rows, np.int64).reshape(len(rows), npoints)
    return Slot(axes, points, dims)


def wrap(values: Indices, axis: int, extent: int) -> Indices:
    """Count negative positions from the end; IndexError if a position is out of bounds."""
    if not values.size:
        return values
    low = int(values.min())
    high = int(values.max())
    if low < -extent or high >= extent:
        is_wrong = (values < -extent) | (values >= extent)
        wrong = values[is_wrong].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {extent}")
    if low >= 0:
        return values
    return np.where(values < 0, values + extent, values)


def shape_text(shape: Shape) -> str:
    """Format a shape as NumPy's messages do."""
    if len(shape) == 1:
        return f"({shape[0]},)"
    return f"({','.join(map(str, shape))})"
