"""Datasets of HDF5 whose items are rows of numbers of any length, as two arrays: all values, and where each row begins.

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
"""Rows that are read together."""


def is_ragged(h5py: ModuleType, node: Any) -> bool:
    """Whether the items of a dataset are rows of numbers, along one dimension."""
    if not isinstance(node, h5py.Dataset) or node.shape is None or node.ndim != 1:
        return False
    inner = h5py.check_vlen_dtype(node.dtype)
    return isinstance(inner, np.dtype) and inner.kind in "iufb"


def part_of(h5py: ModuleType, node: Any, part: str, attrs: dict[str, Any]) -> ArraySource:
    """Return the values of all rows, or the offset of each row among them and the end. This reads all lengths."""
    dtype = np.lib.format.drop_metadata(h5py.check_vlen_dtype(node.dtype))
    lengths = [len(row) for start in range(0, len(node), _ROWS) for row in node[start : start + _ROWS]]
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
    if part == PARTS[1]:
        return ArraySource(offsets.shape, offsets.dtype, lambda box: offsets[box])

    def read(box: Box) -> npt.NDArray[Any]:
        start, stop, _ = box[0].indices(int(offsets[-1]))
        if start >= stop:
            return np.empty(0, dtype)
        first = int(np.searchsorted(offsets, start, "right")) - 1
        last = int(np.searchsorted(offsets, stop, "left"))
        values = np.concatenate([np.asarray(row, dtype) for row in node[first:last]])
        return values[start - offsets[first] : stop - offsets[first]]

    return ArraySource((int(offsets[-1]),), dtype, read, attrs=attrs)
