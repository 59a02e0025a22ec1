"""Indexing by other rules than those of an array's own brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, cast

import numpy as np

from b2array.grid.selection import Selection, select

__all__ = ["Indexer", "Select", "chunk_key", "refuse"]

Select = Callable[[Any, Sequence[int]], Selection]


def refuse(*_: Any) -> None:
    """Refuse to assign, as NumPy does."""
    raise ValueError("assignment destination is read-only")


class Indexer:
    """Calls one function for ``indexer[key]``, and another one for ``indexer[key] = value``."""

    __slots__ = ("_get", "_set")

    def __init__(self, get: Callable[[Any], Any], set: Callable[[Any, Any], None] = refuse) -> None:
        self._get = get
        self._set = set

    def __getitem__(self, key: Any) -> Any:
        return self._get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value)


def chunk_key(key: Any, shape: Sequence[int], chunks: Sequence[int]) -> tuple[slice, ...]:
    """Turn a key for the grid of chunks into slices of the array."""
    for entry in key if isinstance(key, tuple) else (key,):
        plain = isinstance(entry, int | np.integer | EllipsisType) and not isinstance(entry, bool)
        if not plain and not (isinstance(entry, slice) and entry.step in (None, 1)):
            raise IndexError(f"only integers, slices without step and ellipsis (`...`) select chunks, found {entry!r}")
    grid = [-(-n // c) if c else 0 for n, c in zip(shape, chunks, strict=True)]
    found = cast(tuple[slice, ...], select(key, grid).positions)
    return tuple(slice(i.start * c, min(i.stop * c, n)) for i, c, n in zip(found, chunks, shape, strict=True))
