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


class Slot(NamedTuple):
    """A factor of a selection, and its dimensions in the result; `positions` is None for new axes."""

    axes: tuple[int, ...]
    positions: Positions | None
    dims: tuple[int, ...]
    flipped: bool = False


class IndexArray(NamedTuple):
    """An index array. One made of a boolean scalar has no axis, and nothing uses its values."""

    axis: int | None
    values: NDArray[np.int64]


def as_arrays(entry: NDArray[Any], axis: int) -> list[IndexArray]:
    """Return the index arrays that an array in a key stands for: a mask is one for each of its axes."""
    if entry.dtype != bool:
        return [IndexArray(axis, entry)]
    if entry.ndim == 0:
        return [IndexArray(None, np.zeros(int(entry), np.int64))]
    return [IndexArray(axis + n, values.astype(np.int64, copy=False)) for n, values in enumerate(entry.nonzero())]


def broadcast(arrays: list[IndexArray], shape: Sequence[int]) -> list[Slot]:
    """Make factors: index arrays that vary along the same dimensions become points, others stay independent."""
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
            local = ((1,) * (len(whole) - values.ndim) + values.shape)[start:stop]
            if math.prod(local) != 1:
                # Like NumPy, do not check the values of arrays that select nothing.
                inside = values if is_empty or axis is None else wrap(values, axis, shape[axis])
                members.append(IndexArray(axis, np.broadcast_to(inside.reshape(local), dims).reshape(-1)))
        slots.append(_points(members, dims) if members else Slot((), None, dims))
    for axis, values in arrays:
        if values.size == 1 and axis is not None:
            first = 0 if is_empty else int(wrap(values, axis, shape[axis]).reshape(()))
            slots.append(Slot((axis,), slice(first, first + (not is_empty), 1), ()))
    return slots


def _segments(shapes: list[tuple[int, ...]], ndim: int) -> list[tuple[int, int]]:
    """Cut the `ndim` broadcast dimensions wherever no single array varies on both sides of the cut."""
    joined: set[int] = set()
    for shape in shapes:
        varying = [n for n, size in enumerate(shape, ndim - len(shape)) if size != 1]
        joined.update(range(varying[0] + 1, varying[-1] + 1) if varying else ())
    return list(pairwise([0, *(n for n in range(1, ndim) if n not in joined), ndim]))


def _points(members: list[IndexArray], dims: tuple[int, ...]) -> Slot:
    located = [(axis, values) for axis, values in members if axis is not None]
    if len(located) == 1:
        points = located[0][1][None]
    else:
        points = np.array([values for _, values in located], np.int64).reshape(len(located), math.prod(dims))
    return Slot(tuple(axis for axis, _ in located), points, dims)


def wrap(values: NDArray[np.int64], axis: int, extent: int) -> NDArray[np.int64]:
    """Count negative positions from the end; IndexError if one is out of bounds."""
    if not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    if low < -extent or high >= extent:
        wrong = values[(values < -extent) | (values >= extent)].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {extent}")
    return np.where(values < 0, values + extent, values) if low < 0 else values


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as NumPy's messages do."""
    return f"({shape[0]},)" if len(shape) == 1 else f"({','.join(map(str, shape))})"
