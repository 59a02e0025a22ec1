"""Arrays of other libraries, read a part at a time, so that they may be larger than memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from b2array.grid import assignment
from b2array.grid.layout import Layout

__all__ = ["PIECE_NBYTES", "Sliceable", "is_sliceable", "piece", "rows"]

PIECE_NBYTES = 32 * 2**20
"""Bytes to read at a time, unless a chunk (or a row of chunks to append) is larger."""

# dask would compute its graph again for each slice, and pandas looks slices up among its labels.
_READ_WHOLE = frozenset({"dask", "pandas"})


@runtime_checkable
class Sliceable(Protocol):
    """An array that gives its items by slices, such as a dataset of h5py or zarr."""

    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, key: Any, /) -> Any: ...


def is_sliceable(x: Any) -> bool:
    """Say whether to read an array-like a part at a time: it is not in memory, and it takes NumPy's slices.

    Examples
    --------
    >>> is_sliceable(np.zeros(3)), is_sliceable([0, 0]), is_sliceable(np.float64(0))
    (False, False, False)
    """
    if isinstance(x, np.ndarray | np.generic) or not isinstance(x, Sliceable):
        return isinstance(x, np.memmap)
    # The type that NumPy finds for Python objects depends on all of them.
    numeric = isinstance(x.dtype, np.dtype) and not x.dtype.hasobject
    return numeric and type(x).__module__.partition(".")[0] not in _READ_WHOLE


def piece(x: Sliceable, box: tuple[slice, ...], dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Read a box of an array; TypeError for masked items, ValueError for a wrong number of items."""
    found = x[box]
    assignment.check_unmasked(found)
    values = np.asarray(found, dtype)
    expected = tuple(part.stop - part.start for part in box)
    if values.shape != expected:
        raise ValueError(f"expected items of shape {expected} at {box} of {type(x).__name__}, found {values.shape}")
    return values


def rows(values: Sliceable, layout: Layout, axis: int) -> Iterator[npt.NDArray[Any]]:
    """Cut values that are appended to an array into pieces that end where a row of chunks ends."""
    shape, length = values.shape, max(1, layout.chunks[axis])
    row_nbytes = max(1, math.prod(shape) // max(1, shape[axis]) * layout.itemsize)
    most = max(1, PIECE_NBYTES // (row_nbytes * length)) * length
    start = 0
    while start < shape[axis]:
        stop = min(start + most - (layout.shape[axis] + start) % length, shape[axis])
        yield piece(values, tuple(slice(start, stop) if n == axis else slice(0, m) for n, m in enumerate(shape)))
        start = stop
