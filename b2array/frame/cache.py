"""Decoded blocks that the whole process keeps in memory.

A read asks for its blocks before it fetches, and adds the blocks that it had to decode. A read that decodes many blocks
adds only the first ones, and a read with a large result adds nothing. The memory of blocks is cut from slabs, because
the first touch of new memory is slow except in large pieces. The least recently used slab is evicted as a whole.

There is no lock. A thread removes the slab that it fills from the shared list, and changes shared state only by atomic
operations of dictionaries and lists. So a call that interrupts its own thread, for example from a signal handler, finds
the cache in order.
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
from b2array.codec.text import TextTile

__all__ = ["Cache", "CacheEntry", "Slab", "blocks", "cost"]

Bytes = npt.NDArray[np.uint8]

Key = tuple[object, int]
"""The key of a snapshot, and the number of a chunk."""

_SLAB_NBYTES = 8 * 2**20
_LEAST_SLABS = 8
"""The cache has at least this many slabs, however small it is."""

_ENTRY_NBYTES = 200
_TILE_NBYTES = 800
"""About the size of the Python objects for one block, and for one tile; small blocks have fewer bytes of data."""


def cost(nblocks: int, nbytes: int) -> int:
    """Return the cache memory in bytes for a tile of `nblocks` blocks with `nbytes` bytes in total."""
    return nbytes + nblocks * _ENTRY_NBYTES + _TILE_NBYTES


class Slab:
    """Memory for several tiles, and the tiles that are in it.

    Parameters
    ----------
    nbytes : int
        The size in bytes that counts for the cache: the memory, and the entries of the blocks.
    memory : int
        The size of the memory in bytes.
    """

    __slots__ = ("added", "filled", "memory", "nbytes", "used")

    def __init__(self, nbytes: int, memory: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.memory: Bytes = np.empty(memory, np.uint8)
        self.filled = 0
        self.added: list[tuple[Key, Sequence[int]]] = []

    def has_room(self, nbytes: int, needed: int) -> bool:
        """Return whether a tile of `nbytes` bytes fits; with its entries it takes `needed` bytes."""
        return self.filled + nbytes <= self.memory.nbytes and self.used + needed <= self.nbytes


class CacheEntry(NamedTuple):
    """A block: its row in a tile, and the tile's slab; None for a tile outside of the cache."""

    tile: Tile | TextTile
    row: int
    slab: Slab | None = None


class Cache:
    """The blocks of all chunks, and the slabs with their memory, the least recently used one first."""

    def __init__(self) -> None:
        self._chunks: dict[Key, dict[int, CacheEntry]] = {}
        self._slabs: OrderedDict[Slab, None] = OrderedDict()
        self._filling: list[Slab] = []

    @property
    def nbytes(self) -> int:
        """The size in bytes of all slabs, including the entries of their blocks."""
        return sum(slab.nbytes for slab in list(self._slabs))

    def get_many(self, key: Key, numbers: Iterable[int]) -> dict[int, CacheEntry]:
        """Return the cached blocks among some blocks of a chunk; the caller must not change their data."""
        of_chunk = self._chunks.get(key)
        if of_chunk is None:
            return {}
        cached = {}
        slab = None
        for n in numbers:
            entry = of_chunk.get(n)
            if entry is not None:
                cached[n] = entry
                if entry.slab is not slab and entry.slab is not None:
                    slab = entry.slab
                    # Another thread may be evicting the slab now, but the memory of the entry stays valid.
                    with suppress(KeyError):
                        self._slabs.move_to_end(slab)
        return cached

    def reserve(self, nblocks: int, nbytes: int) -> tuple[Slab, Bytes] | None:
        """Reserve memory for a tile; return its slab and the memory, or None if the tile is too large for the cache."""
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
        # From here on, another thread may fill the slab.
        self._filling.append(slab)
        return slab, slab.memory[start:stop]

    def _new_slab(self, nbytes: int, needed: int) -> Slab:
        """Add and return a slab for tiles like one of `nbytes` bytes, which takes `needed` bytes; evict others."""
        whole = max(needed, min(_SLAB_NBYTES, config.cache_bytes // _LEAST_SLABS))
        self._evict(config.cache_bytes - whole)
        # Entries of small blocks take most of the slab. Assume that the next tiles are like this one.
        slab = Slab(whole, whole * nbytes // needed)
        self._slabs[slab] = None
        return slab

    def _evict(self, most: int) -> None:
        """Evict slabs until the remaining ones take at most this many bytes."""
        # Other threads may evict the last slabs at the same time.
        with suppress(KeyError):
            while self.nbytes > most:
                self._forget(self._slabs.popitem(last=False)[0])

    def shrink(self) -> None:
        """Evict slabs after the user has made the cache smaller."""
        self._evict(config.cache_bytes)
        for slab in list(self._filling):
            if slab not in self._slabs:
                # Only this list still refers to the slab. Remove it in place: in a new list, a slab that another thread
                # has just removed from the old one would be there again. If it is gone already, that thread has it.
                with suppress(ValueError):
                    self._filling.remove(slab)

    def add(
        self,
        key: Key,
        numbers: Sequence[int],
        tile: Tile | TextTile,
        slab: Slab,
    ) -> None:
        """Add blocks of a chunk to the cache: the rows of a tile whose memory `reserve` returned."""
        slab.added.append((key, numbers))
        of_chunk = self._chunks.setdefault(key, {})
        for row, n in enumerate(numbers):
            of_chunk[n] = CacheEntry(tile, row, slab)
        # If another thread has evicted the slab meanwhile, it did not see these entries.
        if slab not in self._slabs:
            self._forget(slab)

    def add_tile(self, key: Key, numbers: Sequence[int], tile: TextTile, nbytes: int) -> None:
        """Add blocks of text, unless they are too large for the cache; their memory is not in a slab."""
        needed = cost(len(numbers), nbytes)
        if needed > config.cache_bytes // 2:
            return
        self._evict(config.cache_bytes - needed)
        slab = Slab(needed, 0)
        self._slabs[slab] = None
        self.add(key, numbers, tile, slab)

    def _forget(self, slab: Slab) -> None:
        """Remove the blocks in a slab from the cache. The memory stays valid for its users."""
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
    """Make the cache of this process fit a new setting."""
    blocks.shrink()


config.when_assigned("cache_bytes", _shrink)


def _after_fork() -> None:
    """Begin with an empty cache in a forked process."""
    # Another thread may have been in the middle of a change.
    global blocks
    blocks = Cache()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
