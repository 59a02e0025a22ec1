"""Other rules of indexing than an array's own brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Protocol, cast

import numpy as np

from b2array.grid.selection import Selection, select

__all__ = ["Indexer", "Select", "chunk_key"]

Select = Callable[[Any, Sequence[int]], Selection]


class _Array(Protocol):
    def _get(self, key: Any, select: Select) -> Any: ...

    def _set(self, key: Any, value: Any, select: Select) -> None: ...


class Indexer:
    """Reads and writes a handle's array by another rule than its own brackets."""

    __slots__ = ("_array", "_select")

    def __init__(self, array: _Array, select: Select) -> None:
        self._array = array
        self._select = select

    def __getitem__(self, key: Any) -> Any:
        return self._array._get(key, self._select)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._array._set(key, value, self._select)


def chunk_key(key: Any, shape: Sequence[int], chunks: Sequence[int]) -> tuple[slice, ...]:
    """Turn a key to the grid of chunks into slices of the array."""
    for entry in key if isinstance(key, tuple) else (key,):
        plain = isinstance(entry, int | np.integer | EllipsisType) and not isinstance(entry, bool)
        if not plain and not (isinstance(entry, slice) and entry.step in (None, 1)):
            raise IndexError(f"only integers, slices without step and ellipsis (`...`) select chunks, found {entry!r}")
    grid = [-(-n // c) if c else 0 for n, c in zip(shape, chunks, strict=True)]
    found = cast(tuple[slice, ...], select(key, grid).positions)
    return tuple(slice(i.start * c, min(i.stop * c, n)) for i, c, n in zip(found, chunks, shape, strict=True))
