"""Decoded blocks that the whole process keeps in memory.

A read asks for its blocks before it fetches, and adds those that it had to decode; one that decodes much adds only its
first blocks, and one that returns much none. Their memory is cut from slabs, because new memory is slow to touch unless
it comes in large pieces. The least recently used slab is evicted as a whole.

There is no lock. A thread takes the slab that it fills out of the shared list, and changes shared state only by atomic
operations of dictionaries and lists. So a call that interrupts its own thread, say from a signal handler, finds the
cache in order.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.codec.decode import Tile

__all__ = ["Cache", "Entry", "Slab", "blocks"]

Bytes = npt.NDArray[np.uint8]

Key = tuple[object, int]
"""The key of a snapshot, and the number of a chunk."""

_SLAB_NBYTES = 8 * 2**20
_LEAST_SLABS = 8
"""The cache has at least this many slabs, however small it is."""


class Slab:
    """Memory for several tiles, and what was put into it."""

    __slots__ = ("added", "memory", "used")

    def __init__(self, nbytes: int) -> None:
        self.memory: Bytes = np.empty(nbytes, np.uint8)
        self.used = 0
        self.added: list[tuple[Key, Sequence[int]]] = []


class Entry(NamedTuple):
    """A block: its row in a tile, and the slab of the cache that holds it; None outside of the cache."""

    tile: Tile
    row: int
    slab: Slab | None = None


class Cache:
    """The blocks of all chunks, and the slabs that they are in, the least recently used one first."""

    def __init__(self) -> None:
        self._chunks: dict[Key, dict[int, Entry]] = {}
        self._slabs: OrderedDict[Slab, None] = OrderedDict()
        self._filling: list[Slab] = []

    @property
    def nbytes(self) -> int:
        """Size in bytes of all slabs."""
        return sum(slab.memory.nbytes for slab in list(self._slabs))

    def get_many(self, key: Key, numbers: Iterable[int]) -> dict[int, Entry]:
        """Return those of the blocks `numbers` of a chunk that are here; their data must not be changed."""
        of_chunk = self._chunks.get(key)
        if of_chunk is None:
            return {}
        found = {}
        slab = None
        for n in numbers:
            entry = of_chunk.get(n)
            if entry is not None:
                found[n] = entry
                if entry.slab is not slab and entry.slab is not None:
                    slab = entry.slab
                    with suppress(KeyError):  # it is being evicted
                        self._slabs.move_to_end(slab)
        return found

    def room_for(self, nbytes: int) -> tuple[Slab, Bytes] | None:
        """Return a slab and memory in it for a tile; None if that would take too much of the cache."""
        if nbytes > config.cache_bytes // 2:
            return None
        try:
            slab = self._filling.pop()
        except IndexError:
            slab = self._new_slab(nbytes)
        if slab.used + nbytes > slab.memory.nbytes or slab not in self._slabs:
            slab = self._new_slab(nbytes)
        start, slab.used = slab.used, slab.used + nbytes
        self._filling.append(slab)
        return slab, slab.memory[start : start + nbytes]

    def _new_slab(self, nbytes: int) -> Slab:
        nbytes = max(nbytes, min(_SLAB_NBYTES, config.cache_bytes // _LEAST_SLABS))
        with suppress(KeyError):  # there is none left
            while self.nbytes + nbytes > config.cache_bytes:
                self._forget(self._slabs.popitem(last=False)[0])
        slab = Slab(nbytes)
        self._slabs[slab] = None
        return slab

    def add(self, key: Key, numbers: Sequence[int], tile: Tile, slab: Slab) -> None:
        """Keep the blocks `numbers` of a chunk, which are the rows of a tile in memory from `room_for`."""
        slab.added.append((key, numbers))
        of_chunk = self._chunks.setdefault(key, {})
        for row, n in enumerate(numbers):
            of_chunk[n] = Entry(tile, row, slab)
        if slab not in self._slabs:  # it was evicted meanwhile
            self._forget(slab)

    def _forget(self, slab: Slab) -> None:
        for key, numbers in slab.added:
            of_chunk = self._chunks.get(key, {})
            for n in numbers:
                entry = of_chunk.get(n)
                if entry is not None and entry.slab is slab:
                    of_chunk.pop(n, None)
            if not of_chunk:
                self._chunks.pop(key, None)


blocks = Cache()
"""The cache of this process."""


def _after_fork() -> None:
    # Another thread may have been in the middle of a change.
    global blocks
    blocks = Cache()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
