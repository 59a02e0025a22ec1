"""`Source`: a snapshot, or a transaction on top of one, from which chunks are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from b2array.codec.chunk import ChunkHead
from b2array.codec.header import Special
from b2array.errors import ChunkLostError, ConflictError
from b2array.format.annotations import Sizes
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.state import State
from b2array.frame.cache import CacheEntry
from b2array.store.base import Mutex, Store
from b2array.store.spans import Span

__all__ = [
    "EMBEDDED",
    "FRAME_NAME",
    "SPOOL",
    "CachedHead",
    "ChunkRequest",
    "FilterSlots",
    "Location",
    "OpenChunks",
    "Source",
    "Staged",
]

FRAME_NAME = "chunks.b2frame"
"""The file of a sparse frame that holds header, index and trailer (Blosc2 Sparse Frame Format)."""
EMBEDDED = "embed.b2e"
"""The frame in which python-blosc2 keeps small members of a group. Without it, python-blosc2 opens no directory."""

SPOOL = "<spool>"
"""Instead of an object's name: the chunk waits for its commit, without a record of its checksums."""


class ChunkRequest(NamedTuple):
    """A chunk, and the blocks of it that are wanted: None for all."""

    chunk: int
    blocks: Sequence[int] | npt.NDArray[np.int64] | None


class Location(NamedTuple):
    """Where a stored chunk is: bytes [start, stop) of an object. The chunk may end before `stop`; -1: not known."""

    name: str
    start: int
    stop: int


class CachedHead(NamedTuple):
    """The head of a chunk that was read before; if its checksum was compared, also the checksums of the blocks."""

    head: ChunkHead
    sums: npt.NDArray[np.uint32] | None


FilterSlots = tuple[tuple[int, ...], tuple[int, ...]]
"""The six filters of a chunk, and their parameters."""


class Staged(NamedTuple):
    """A new chunk: its code, the row of its sizes, the checksum of its record, and its filters if it has data.

    Chunks that are not stored have no sizes. The `digest` of the bytes is only known of chunks that forks write.
    """

    code: int
    sizes: Sizes | None = None
    record: int = 0
    filters: FilterSlots | None = None
    digest: bytes = b""


class OpenChunkView(Protocol):
    """A chunk that a transaction keeps open, as readers see it."""

    def entries(self, numbers: Sequence[int]) -> dict[int, CacheEntry]:
        """Return decoded blocks by their numbers."""


class OpenChunks(Protocol):
    """The chunks that a transaction keeps open, by number. Readers hold the mutex while they look at one."""

    @property
    def mutex(self) -> Mutex:
        """Held while chunks are opened, changed, read or encoded."""

    @property
    def chunks(self) -> Mapping[int, OpenChunkView]:
        """For reading only."""


class Source(ABC):
    """A store and the state of the frame in it, to read chunks from."""

    __slots__ = ()

    store: Store
    state: State

    @property
    @abstractmethod
    def buffer(self) -> OpenChunks | None:
        """The chunks that a transaction keeps open."""

    @property
    def frame(self) -> Frame:
        """Header, index and trailer."""
        return self.state.frame

    @property
    def sparse(self) -> bool:
        """Whether each chunk has its own file."""
        return self.state.frame.frame_type == FrameType.SPARSE

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.store.url

    @property
    def name(self) -> str:
        """The object that holds header, index and trailer."""
        return FRAME_NAME if self.sparse else ""

    @property
    def is_local(self) -> bool:
        """Whether reads are so fast that each worker makes its own, and not one wave of requests for all."""
        return self.store.can.local

    @property
    def heads(self) -> MutableMapping[int, CachedHead]:
        """The heads of chunks that were read before, by number; always empty where chunks can change."""
        return {}

    @abstractmethod
    def staleness(self) -> ConflictError | None:
        """Return the error for a reader if the store has changed since: its bytes may belong to another state."""

    @abstractmethod
    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is; ChunkLostError if it is lost. In a contiguous frame it may end before `stop`."""

    def locate_unchecked(self, n: int) -> Location | Special:
        """Do the same, perhaps without looking whether the chunk is lost: then reading it fails."""
        return self.locate(n)

    def entry(self, n: int) -> int | Special:
        """Return the index's entry for chunk `n`; ChunkLostError if it is lost."""
        found = self.state.frame.entry(n)
        if n in self.state.annotations.lost:
            raise ChunkLostError(f"chunk {n} of {self.url} is lost: a repair of the frame could not save it")
        return found

    def known_sizes(self, n: int) -> Sizes | None:
        """Return the sizes of chunk `n` and its blocks, as in `State.sizes`, or None if they are not known."""
        row: Sizes = self.state.sizes[n]
        return row if row[0] else None

    @abstractmethod
    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects; `clip`: fewer where an object ends before."""

    @abstractmethod
    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes to their places in one buffer; the memory is used again when nothing refers to it."""
