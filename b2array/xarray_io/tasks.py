"""The values that `to_b2array` passes to the steps of a write."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal, NamedTuple

import xarray as xr

from b2array.array.array import NDArray
from b2array.array.dask import Region
from b2array.array.drafts import VariableKeywords
from b2array.xarray_io.indexes import CheckIndex

__all__ = ["Mode", "Node", "WritePart", "WriteTask"]

Mode = Literal["w", "w-", "x", "a", "a-", "r+"]


class WritePart(NamedTuple):
    """A dask array of values for a region of an array, with its handle and its path in the outermost group."""

    path: str
    array: NDArray
    region: Region
    values: Any


class WriteTask(NamedTuple):
    """The arguments of `to_b2array`."""

    mode: Mode
    append_dim: Hashable | None
    region: Any
    check_index: CheckIndex
    compute: bool
    options: VariableKeywords


class Node(NamedTuple):
    """A dataset, its path below the group, its encodings, and the dataset with inherited coordinates."""

    path: str
    ds: xr.Dataset
    encoding: Mapping[Hashable, Any]
    whole: xr.Dataset
