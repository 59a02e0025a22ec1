"""Decoded blocks that the whole process keeps in memory.

A read asks for its blocks before it fetches, and adds those that it had to decode; one that decodes much adds only its
first blocks, and one that returns much adds nothing. Their memory is cut from slabs, because new memory is slow to
touch unless it comes in large pieces. The least recently used slab is evicted as a whole.

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

__all__ = ["Cache", "CacheEntry", "Slab", "blocks", "cost"]

Bytes = npt.NDArray[np.uint8]

Key = tuple[object, int]
"""The key of a snapshot, and the number of a chunk."""

_SLAB_NBYTES = 8 * 2**20
_LEAST_SLABS = 8
"""The cache has at least this many slabs, however small it is."""

_ENTRY_NBYTES = 200
_TILE_NBYTES = 800
"""About the size of the objects that stand for one block, and for one tile; blocks may have fewer bytes."""


def cost(nblocks: int, nbytes: int) -> int:
    """Return the memory that the cache takes to keep blocks of together `nbytes` bytes, as one tile."""
    return nbytes + nblocks * _ENTRY_NBYTES + _TILE_NBYTES


class Slab:
    """Memory for several tiles, and its tiles so far.

    Parameters
    ----------
    nbytes : int
        The part of the cache that it takes: its memory, and the entries of its blocks.
    memory : int
        The size of its memory.
    """

    __slots__ = ("added", "filled", "memory", "nbytes", "used")

    def __init__(self, nbytes: int, memory: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.memory: Bytes = np.empty(memory, np.uint8)
        self.filled = 0
        self.added: list[tuple[Key, Sequence[int]]] = []

    def has_room(self, nbytes: int, needed: int) -> bool:
        """Say whether a tile fits that has `nbytes` bytes and takes `needed` with its entries."""
        return self.filled + nbytes <= self.memory.nbytes and self.used + needed <= self.nbytes


class CacheEntry(NamedTuple):
    """A block: its row in a tile, and the slab of the cache that holds it; None outside of the cache."""

    tile: Tile
    row: int
    slab: Slab | None = None


class Cache:
    """The blocks of all chunks, and the slabs that they are in, the least recently used one first."""

    def __init__(self) -> None:
        self._chunks: dict[Key, dict[int, CacheEntry]] = {}
        self._slabs: OrderedDict[Slab, None] = OrderedDict()
        self._filling: list[Slab] = []

    @property
    def nbytes(self) -> int:
        """Size in bytes of all slabs, with the entries of their blocks."""
        return sum(slab.nbytes for slab in list(self._slabs))

    def get_many(self, key: Key, numbers: Iterable[int]) -> dict[int, CacheEntry]:
        """Return the cached ones among the blocks `numbers` of a chunk; their data must not be changed."""
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

    def reserve(self, nblocks: int, nbytes: int) -> tuple[Slab, Bytes] | None:
        """Return a slab and memory in it for a tile; None if that would take too much of the cache."""
        needed = cost(nblocks, nbytes)
        if needed > config.cache_bytes // 2:
            return None
        try:
            slab = self._filling.pop()
        except IndexError:
            slab = self._new_slab(nbytes, needed)
        if slab not in self._slabs or not slab.has_room(nbytes, needed):
            slab = self._new_slab(nbytes, needed)
        start, stop = slab.filled, slab.filled + nbytes
        slab.filled = stop
        slab.used += needed
        self._filling.append(slab)  # from here on, another thread may fill it
        return slab, slab.memory[start:stop]

    def _new_slab(self, nbytes: int, needed: int) -> Slab:
        whole = max(needed, min(_SLAB_NBYTES, config.cache_bytes // _LEAST_SLABS))
        self._evict(config.cache_bytes - whole)
        # Where blocks are small, most of the slab is for their entries: the next tiles are probably like this one.
        slab = Slab(whole, whole * nbytes // needed)
        self._slabs[slab] = None
        return slab

    def _evict(self, most: int) -> None:
        """Forget slabs until the others have at most this many bytes."""
        with suppress(KeyError):  # there is none left
            while self.nbytes > most:
                self._forget(self._slabs.popitem(last=False)[0])

    def shrink(self) -> None:
        """Forget what the cache may no longer have, because it was made smaller."""
        self._evict(config.cache_bytes)
        for slab in list(self._filling):
            if slab not in self._slabs:
                # Nothing but this list holds the memory of the slab. A new list would give a slab that another thread
                # has just taken out of the old one to a second thread.
                with suppress(ValueError):
                    self._filling.remove(slab)

    def add(self, key: Key, numbers: Sequence[int], tile: Tile, slab: Slab) -> None:
        """Keep the blocks `numbers` of a chunk, which are the rows of a tile in memory from `reserve`."""
        slab.added.append((key, numbers))
        of_chunk = self._chunks.setdefault(key, {})
        for row, n in enumerate(numbers):
            of_chunk[n] = CacheEntry(tile, row, slab)
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


def _shrink() -> None:
    blocks.shrink()


config.when_assigned("cache_bytes", _shrink)


def _after_fork() -> None:
    # Another thread may have been in the middle of a change.
    global blocks
    blocks = Cache()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
