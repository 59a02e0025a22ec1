"""Finds the chunks of a Bloscpack file.

Source: "RFC for the new Bloscpack Header", section Description of the offsets entries: without offsets, or where they
are still -1, each chunk begins after the checksum of the preceding chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.bloscpack.blp_header import FileHeader, digest_size
from b2array.codec.chunk import extents
from b2array.codec.chunk_header import BLOSC1_HEADER_LEN, ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, prefix_errors
from b2array.store.base import Mutex

__all__ = ["ChunkRange", "Chunks"]

_STRIDE = 64 * 2**10
"""The number of bytes to read at a time."""


class ChunkRange(NamedTuple):
    """A chunk: its number, its range in the file, and the position and size of its data.

    `stop` is an upper bound if the header of the chunk was not read.
    """

    number: int
    start: int
    stop: int
    first: int
    nbytes: int


class Chunks:
    """The chunks of a file. If the file does not list their positions, they are found one after the other.

    Threads may share an instance.

    ``read(start, stop)`` returns bytes of the file, which has `size` bytes. The first chunk begins at `first`.
    """

    def __init__(
        self,
        url: str,
        header: FileHeader,
        size: int,
        first: int,
        offsets: npt.NDArray[np.int64] | None,
        read: Callable[[int, int], memoryview],
    ) -> None:
        self._url = url
        self._header = header
        self._size = size
        self._offsets = offsets
        self._read = read
        # The start and end of each chunk in the file, and its end in the data; the first entry stands for the header.
        self._known = array("q", (0, first, 0))
        self._window = (0, memoryview(b""))
        self._mutex = Mutex()
        if offsets is not None and header.nbytes >= 0:
            counts = np.arange(1, len(offsets) + 1)
            ends = np.minimum(counts * header.chunk_size, header.nbytes)
            # A chunk is at most as long as its data and its header together.
            longest = np.diff(ends, prepend=0) + HEADER_LEN + digest_size(header.checksum)
            stops = np.minimum(extents(offsets, size), offsets + longest)
            rows = np.column_stack((offsets, stops, ends))
            self._known.frombytes(rows.astype(np.int64).tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        first = self._known[1]
        return Chunks, (self._url, self._header, self._size, first, self._offsets, self._read)

    def __len__(self) -> int:
        return len(self._known) // 3 - 1

    @property
    def nbytes(self) -> int:
        """Total uncompressed size of the chunks found so far, in bytes."""
        return self._known[-1]

    def find(self, stop: int) -> Chunks:
        """Find the chunks that hold the first `stop` uncompressed bytes."""
        while self.nbytes < stop and self._has(len(self)):
            pass
        return self

    def __getitem__(self, n: int) -> ChunkRange:
        self._has(n)
        first, start, stop, end = self._known[3 * n + 2 : 3 * n + 6]
        return ChunkRange(n, start, stop, first, end - first)

    def between(self, start: int, stop: int) -> Iterator[ChunkRange]:
        """Yield the chunks that hold the uncompressed bytes from `start` to `stop`."""
        if start >= stop:
            return
        chunks = range(len(self.find(start + 1)) + 1)
        n = bisect_right(chunks, start, key=lambda n: self._known[3 * n + 2]) - 1
        while self._known[3 * n + 2] < stop and self._has(n):
            yield self[n]
            n += 1

    def _has(self, n: int) -> bool:
        """Return whether there is a chunk `n`, after finding all chunks up to it."""
        if n >= len(self):
            with self._mutex.held:
                while len(self) <= n and prefix_errors(f"chunk {len(self)} of {self._url}", self._step):
                    pass
        return n < len(self)

    def _step(self) -> bool:
        """Find the next chunk; return False if all chunks are already known."""
        header = self._header
        size = self._size
        n = len(self)
        start = self._known[-2]
        # If the number of chunks is unknown, the file ends with the last chunk.
        is_end = start == size if header.nchunks < 0 else n == header.nchunks
        if is_end:
            return False
        if self._offsets is not None:
            start = int(self._offsets[n])
        if start + BLOSC1_HEADER_LEN > size:
            raise FormatError(f"expected a chunk at byte {start}, found the end at {size}")
        chunk = ChunkHeader.unpack(self._header_bytes(start))
        stop = start + chunk.cbytes + digest_size(header.checksum)
        if stop > size:
            raise FormatError(f"expected a chunk that ends at byte {stop}, found the end at {size}")
        is_last = stop == size if header.nchunks < 0 else n == header.nchunks - 1
        most = header.last_chunk if is_last and header.last_chunk >= 0 else header.chunk_size
        # While another program writes the file, any chunk may be the last chunk.
        may_be_short = header.last_chunk < 0 and (is_last or header.nchunks < 0)
        least = 0 if may_be_short else most
        if header.chunk_size >= 0 and not least <= chunk.nbytes <= most:
            raise FormatError(f"expected {most} uncompressed bytes, found {chunk.nbytes}")
        end = self.nbytes + chunk.nbytes
        self._known.extend(array("q", (start, stop, end)))
        return True

    def _header_bytes(self, start: int) -> memoryview:
        """Return the header of a chunk. Chunks are small, so one read often returns the headers of several chunks."""
        stop = min(self._size, start + HEADER_LEN)
        base, window = self._window
        if not base <= start <= stop <= base + len(window):
            base = start
            window = self._read(start, min(self._size, start + _STRIDE))
            self._window = (base, window)
        at = start - base
        return window[at : at + HEADER_LEN]
