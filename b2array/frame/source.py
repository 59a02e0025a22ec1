"""`Source`: a snapshot, or a transaction on top of one, from which chunks are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from b2array.codec.chunk import ChunkHead
from b2array.codec.chunk_header import Special
from b2array.errors import ChunkLostError, ConflictError
from b2array.format.annotations import Sizes
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType
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
"""The frame in which python-blosc2 keeps small members of a group. It does not open a directory without this frame."""

SPOOL = "<spool>"
"""Stands for the name of an object: the chunk waits in a spool, and is read without its record of checksums."""


class ChunkRequest(NamedTuple):
    """A chunk, and the wanted blocks of it; None for the whole chunk."""

    chunk: int
    blocks: Sequence[int] | npt.NDArray[np.int64] | None


class Location(NamedTuple):
    """Where a stored chunk is: in bytes [start, stop) of an object.

    The chunk may end before `stop`. A `stop` of -1 stands for the end of the object.
    """

    name: str
    start: int
    stop: int


class CachedHead(NamedTuple):
    """The head of a chunk that was read before, and the checksums of its blocks.

    If the checksums are missing, the head was not compared with its checksum either.
    """

    head: ChunkHead
    sums: npt.NDArray[np.uint32] | None


FilterSlots = tuple[tuple[int, ...], tuple[int, ...]]
"""The six filters of a chunk, and their parameters."""


class Staged(NamedTuple):
    """A new chunk of a transaction.

    Attributes
    ----------
    code : int
        The code that stands for the chunk in the transaction's index.
    sizes : array of uint32, optional
        The row for the table of sizes; None for a special value, which is not stored.
    record : int
        The checksum of the record of its checksums.
    filters : FilterSlots, optional
        Its filters, if it has data.
    digest : bytes
        A digest of its bytes; empty outside of forks.
    """

    code: int
    sizes: Sizes | None = None
    record: int = 0
    filters: FilterSlots | None = None
    digest: bytes = b""


class OpenChunkView(Protocol):
    """The view of readers on a chunk that a transaction keeps open."""

    def entries(self, numbers: Sequence[int]) -> dict[int, CacheEntry]:
        """Return decoded blocks by their numbers."""


class OpenChunks(Protocol):
    """The chunks that a transaction keeps open. A reader holds the mutex while it looks at one."""

    @property
    def mutex(self) -> Mutex:
        """A thread holds it while it opens, changes, reads or encodes a chunk."""

    @property
    def chunks(self) -> Mapping[int, OpenChunkView]:
        """The chunks by number; for reading only."""


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
        """Whether each chunk has a separate file."""
        return self.state.frame.frame_type == FrameType.SPARSE

    @property
    def url(self) -> str:
        """The URL of the store, for messages."""
        return self.store.url

    @property
    def name(self) -> str:
        """The object that holds header, index and trailer."""
        return FRAME_NAME if self.sparse else ""

    @property
    def is_local(self) -> bool:
        """Whether reads are fast enough for each worker to read separately, without waves of requests."""
        return self.store.can.local

    @property
    def heads(self) -> MutableMapping[int, CachedHead]:
        """The heads of chunks that were read before, by number; always empty for a source whose chunks can change."""
        return {}

    @abstractmethod
    def staleness(self) -> ConflictError | None:
        """Return an error if the store has changed since it was opened: its bytes may belong to another state."""

    @abstractmethod
    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is; ChunkLostError if it is lost. In a contiguous frame it may end before `stop`."""

    def locate_unchecked(self, n: int) -> Location | Special:
        """Do the same as `locate`, but perhaps without a check for a lost chunk, so that reading it fails later."""
        return self.locate(n)

    def entry(self, n: int) -> int | Special:
        """Return the index's entry for chunk `n`; ChunkLostError if the chunk is lost."""
        # A number out of range raises its error here, before the check for lost chunks.
        entry = self.state.frame.entry(n)
        if n in self.state.annotations.lost:
            raise ChunkLostError(f"chunk {n} of {self.url} is lost: a repair of the frame could not save it")
        return entry

    def known_sizes(self, n: int) -> Sizes | None:
        """Return the sizes of chunk `n` and its blocks, as in `State.sizes`; None if the frame does not note them."""
        row: Sizes = self.state.sizes[n]
        return row if row[0] else None

    @abstractmethod
    def read(
        self,
        spans: Sequence[Span],
        *,
        clip: bool = False,
    ) -> list[memoryview]:
        """Read bytes of the store's objects; with `clip`, an object may end before a span does."""

    def forget(self, numbers: Sequence[int]) -> bool:  # noqa: ARG002
        """Remove chunks from the cache on disk; return whether any of them was there."""
        return False

    @abstractmethod
    def gather(
        self,
        spans: Sequence[Span],
        places: Sequence[int],
        nbytes: int,
    ) -> memoryview:
        """Read each span to its place in one buffer, whose memory is reused after the last reference to it is gone."""

    def gather_from_disk(
        self,
        n: int,  # noqa: ARG002
        spans: Sequence[Span],  # noqa: ARG002
        places: Sequence[int],  # noqa: ARG002
        nbytes: int,  # noqa: ARG002
    ) -> memoryview | None:
        """Do the same as `gather` for bytes of chunk `n` in the cache on disk; None if that does not have all of them.

        This sends no request.
        """
        return None
