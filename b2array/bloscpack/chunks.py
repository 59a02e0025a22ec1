"""Where the chunks of a Bloscpack file are.

Source: "RFC for the new Bloscpack Header", section Description of the offsets entries: without offsets, or where they
are still -1, each chunk begins where the checksum of the one before ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.bloscpack.header import FileHeader, digest_size
from b2array.codec.chunk import extents
from b2array.codec.header import BLOSC1_HEADER_LEN, ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, FormatError

__all__ = ["ChunkRange", "Chunks", "in_chunk"]

Int64Array = npt.NDArray[np.int64]

_STRIDE = 64 * 2**10
"""Bytes to read at once."""


class ChunkRange(NamedTuple):
    """A chunk: its number, its bytes in the file, and the first and the number of the bytes of data that it holds.

    `stop` is an upper bound if the header of the chunk was not read.
    """

    number: int
    start: int
    stop: int
    first: int
    nbytes: int


class Chunks:
    """The chunks of a file. If the file does not say where they are, this finds them one after the other.

    ``read(start, stop)`` returns bytes of the file.
    """

    def __init__(
        self, url: str, header: FileHeader, size: int, first: int, offsets: Int64Array | None,
        read: Callable[[int, int], memoryview],
    ) -> None:  # fmt: skip
        self._url, self._header, self._size, self._first, self._read = url, header, size, first, read
        self._offsets = offsets
        self._starts, self._stops, self._ends = array("q"), array("q"), array("q")
        self._window = (0, memoryview(b""))
        if offsets is not None and header.nbytes >= 0:
            ends = np.minimum(np.arange(1, header.nchunks + 1) * header.chunk_size, header.nbytes)
            # A chunk is at most as long as its data and its header.
            longest = np.diff(ends, prepend=0) + HEADER_LEN + digest_size(header.checksum)
            stops = np.minimum(extents(offsets, size), offsets + longest)
            for known, values in ((self._starts, offsets), (self._stops, stops), (self._ends, ends)):
                known.frombytes(values.astype(np.int64).tobytes())

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of the chunks that are known so far."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, n: int) -> ChunkRange:
        while len(self) <= n and self._step():
            pass
        first = self._ends[n - 1] if n else 0
        return ChunkRange(n, self._starts[n], self._stops[n], first, self._ends[n] - first)

    def find(self, stop: int) -> Chunks:
        """Find the chunks of the first `stop` uncompressed bytes."""
        while self.nbytes < stop and self._step():
            pass
        return self

    def between(self, start: int, stop: int) -> Iterator[ChunkRange]:
        """Yield the chunks that hold the uncompressed bytes from `start` to `stop`."""
        if start >= stop:
            return
        n = bisect_right(self.find(start + 1)._ends, start)
        while n < len(self) or (self.nbytes < stop and self._step()):
            chunk = self[n]
            if chunk.first >= stop:
                return
            yield chunk
            n += 1

    def _step(self) -> bool:
        """Find one more chunk; False if there is none."""
        header, n = self._header, len(self)
        if n == header.nchunks:
            return False
        start = self._stops[-1] if n else self._first
        if self._offsets is not None:
            start = int(self._offsets[n])
        if header.nchunks < 0 and start == self._size:
            return False
        try:
            nbytes, stop = self._look(start)
            self._check(n, nbytes)
        except B2ArrayError as error:
            raise in_chunk(n, self._url, error) from error
        self._ends.append(self.nbytes + nbytes)
        self._starts.append(start)
        self._stops.append(stop)
        return True

    def _look(self, start: int) -> tuple[int, int]:
        """Return how many bytes the chunk at `start` holds, and where its checksum ends."""
        size = self._size
        if start + BLOSC1_HEADER_LEN > size:
            raise FormatError(f"expected a chunk at byte {start}, found the end at {size}")
        base, window = self._window
        if not base <= start <= min(size, start + HEADER_LEN) <= base + len(window):
            base, window = self._window = start, self._read(start, min(size, start + _STRIDE))
        found = ChunkHeader.unpack(window[start - base : start - base + HEADER_LEN])
        stop = start + found.cbytes + digest_size(self._header.checksum)
        if stop > size:
            raise FormatError(f"expected a chunk that ends at byte {stop}, found the end at {size}")
        return found.nbytes, stop

    def _check(self, n: int, nbytes: int) -> None:
        header = self._header
        if header.chunk_size < 0:
            return
        is_last = n == header.nchunks - 1
        expected = header.last_chunk if is_last and header.last_chunk >= 0 else header.chunk_size
        # While somebody writes the file, any chunk may be the last one.
        may_be_shorter = header.last_chunk < 0 and (is_last or header.nchunks < 0)
        if nbytes != expected and not (may_be_shorter and nbytes < expected):
            raise FormatError(f"expected {expected} uncompressed bytes, found {nbytes}")


def in_chunk(number: int, url: str, error: B2ArrayError) -> B2ArrayError:
    """Return the error with the chunk's number in front of its message."""
    return type(error)(f"chunk {number} of {url}: {error}")
