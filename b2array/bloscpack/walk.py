"""Finding the chunks of a Bloscpack file by going from one to the next.

Source: "RFC for the new Bloscpack Header", section Description of the offsets entries: without offsets, or where they
are still -1, each chunk begins where the one before and its checksum end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.bloscpack.header import Header, digest_size
from b2array.codec.header import BLOSC1_HEADER_LEN, ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, FormatError

__all__ = ["Part", "Walk", "located_at"]

Int64Array = npt.NDArray[np.int64]
Read = Callable[[int, int], memoryview]

_STRIDE = 64 * 2**10
"""Bytes that are read at once."""


class Part(NamedTuple):
    """A chunk: where its bytes are at most, and which of the uncompressed bytes it holds."""

    number: int
    start: int
    stop: int
    first: int
    nbytes: int


def located_at(number: int, url: str, error: B2ArrayError) -> B2ArrayError:
    """Say in which chunk an error was found."""
    return type(error)(f"chunk {number} of {url}: {error}")


class Walk:
    """Where the chunks are, found no further than needed.

    Parameters
    ----------
    url : str
        For messages.
    header : Header
        What the file says about itself.
    size : int
        Size of the file in bytes.
    first : int
        Where the first chunk is.
    offsets : ndarray of int64, optional
        Where the chunks are, if that is known but not what they hold.
    read : callable
        ``read(start, stop)`` returns bytes of the file.
    """

    def __init__(self, url: str, header: Header, size: int, first: int, offsets: Int64Array | None, read: Read) -> None:
        self._url, self._header, self._size = url, header, size
        self._first, self._offsets, self._read = first, offsets, read
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.ends: list[int] = []
        self._window = (0, memoryview(b""))

    @property
    def total(self) -> int:
        """Uncompressed bytes of the chunks found so far."""
        return self.ends[-1] if self.ends else 0

    def upto(self, stop: int) -> Walk:
        """Find the chunks of the first `stop` uncompressed bytes."""
        while self.total < stop and self._step():
            pass
        return self

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """Yield the chunks that hold uncompressed bytes from `start` to `stop`."""
        if start >= stop:
            return
        self.upto(start + 1)
        n = bisect_right(self.ends, start)
        while n < len(self.ends) or (self.total < stop and self._step()):
            part = self.part(n)
            if part.first >= stop:
                return
            yield part
            n += 1

    def part(self, n: int) -> Part:
        """Find chunk `n`."""
        while len(self.starts) <= n and self._step():
            pass
        first = self.ends[n - 1] if n else 0
        return Part(n, self.starts[n], self.stops[n], first, self.ends[n] - first)

    def _step(self) -> bool:
        """Find one more chunk; False if there is none."""
        header, n = self._header, len(self.starts)
        if n == header.nchunks:
            return False
        start = self.stops[-1] if self.stops else self._first
        if self._offsets is not None:
            start = int(self._offsets[n])
        if header.nchunks < 0 and start == self._size:
            return False
        try:
            nbytes, stop = self._look(start)
            self._check(n, nbytes)
        except B2ArrayError as error:
            raise located_at(n, self._url, error) from error
        self.starts.append(start)
        self.stops.append(stop)
        self.ends.append(self.total + nbytes)
        return True

    def _look(self, start: int) -> tuple[int, int]:
        """Return how many bytes the chunk at `start` holds, and where it ends."""
        size = self._size
        if start + BLOSC1_HEADER_LEN > size:
            raise FormatError(f"expected a chunk at byte {start}, found the end at {size}")
        base, window = self._window
        if not base <= start <= min(size, start + HEADER_LEN) <= base + len(window):
            window = self._read(start, min(size, start + _STRIDE))
            base = start
            self._window = base, window
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
        # While a file is written nobody knows which chunk is the last one.
        open_end = is_last or header.nchunks < 0
        if nbytes != expected and not (open_end and header.last_chunk < 0 and nbytes < expected):
            raise FormatError(f"expected {expected} uncompressed bytes, found {nbytes}")
