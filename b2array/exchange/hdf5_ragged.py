"""HDF5 datasets of variable-length rows of numbers, as two arrays: the values, and the offset of each row.

Source: the HDF5 data model, section Variable-length Datatypes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.exchange.formats import ArraySource, Box

__all__ = ["PARTS", "is_ragged", "part_of"]

PARTS = ("values", "offsets")
_ROWS = 2**16
"""The number of rows to read together."""


def is_ragged(h5py: ModuleType, node: Any) -> bool:
    """Return whether the items of a dataset are variable-length rows of numbers, along one dimension."""
    if not isinstance(node, h5py.Dataset) or node.shape is None or node.ndim != 1:
        return False
    inner = h5py.check_vlen_dtype(node.dtype)
    return isinstance(inner, np.dtype) and inner.kind in "iufb"


def part_of(h5py: ModuleType, node: Any, part: str, attrs: dict[str, Any]) -> ArraySource:
    """Return the values of all rows, or the offset of each row and the end. This reads the lengths of all rows."""
    row_type = h5py.check_vlen_dtype(node.dtype)
    dtype = np.lib.format.drop_metadata(row_type)
    offsets = _read_offsets(node)
    if part == PARTS[1]:
        return ArraySource(offsets.shape, offsets.dtype, lambda box: offsets[box])
    count = int(offsets[-1])

    def read(box: Box) -> npt.NDArray[Any]:
        start, stop, _ = box[0].indices(count)
        if start >= stop:
            return np.empty(0, dtype)
        # Read the rows that have some of the values.
        first = int(np.searchsorted(offsets, start, "right")) - 1
        last = int(np.searchsorted(offsets, stop, "left"))
        rows = [np.asarray(row, dtype) for row in node[first:last]]
        values = np.concatenate(rows)
        begin = offsets[first]
        return values[start - begin : stop - begin]

    return ArraySource((count,), dtype, read, attrs=attrs)


def _read_offsets(node: Any) -> npt.NDArray[np.int64]:
    """Return the offset of each row among the values, and the number of values."""
    lengths: list[int] = []
    for start in range(0, len(node), _ROWS):
        rows = node[start : start + _ROWS]
        lengths += map(len, rows)
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.concatenate(([0], ends)).astype(np.int64)
