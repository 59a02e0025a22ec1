"""`Frozen`: an array as it is committed now, for the tasks of a graph to read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np

from b2array import config, threads
from b2array.array.shared import Shared
from b2array.compute.readable import Readable

__all__ = ["Frozen", "one_thread", "register_sizeof"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread. Only the synchronous scheduler runs tasks in the main thread, which would use more."""
    # No other thread notices: only the main thread uses more than one.
    if threads.width() == 1:
        yield
        return
    with config.using(threads=1):
        yield


class Frozen:
    """An array as it is committed now, for graphs. ValueError: a transaction is under way."""

    __slots__ = ("_shared",)

    def __init__(self, array: Readable) -> None:
        shown: Any = copy(array)
        shown._handle = array._handle.at_snapshot()
        name = repr(("array", shown._handle.snapshot.version, *shown.__dask_tokenize__()))
        self._shared: Shared[Readable] = Shared(name, shown)

    @property
    def array(self) -> Readable:
        """The handle that reads."""
        return self._shared.value

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        return self.array.dtype

    def __getitem__(self, key: Any) -> Any:
        with one_thread():
            return self.array[key]

    def __repr__(self) -> str:
        return f"<b2array.Frozen {self.array._handle.url}>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.array.__dask_tokenize__()


def register_sizeof(sizeof: Any) -> None:
    """Tell dask how much memory handles take: their index, not their data."""
    sizeof.register(Readable, _sizeof)
    sizeof.register(Frozen, lambda frozen: _sizeof(frozen.array))


def _sizeof(array: Readable) -> int:
    frame = array._handle.frame
    layers = sum(len(content) for _, content in (*frame.metalayers, *frame.vlmetalayers))
    return int(frame.offsets.nbytes) + layers + sys.getsizeof(array)
