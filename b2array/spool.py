"""Bytes on their way into a file: in memory, and in a temporary file beside it once there are many."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from typing import Self

from b2array.spec import Buffer

__all__ = ["Spool"]

_IN_MEMORY = 32 * 2**20
_STEP = 8 * 2**20


class Spool:
    """A sequence of pieces that grows at its end.

    Parameters
    ----------
    path : str, optional
        Where to put a file when the pieces take more than 32 MiB; without it a nameless temporary file is used.
    reserved : int, default 0
        Bytes that stay free at the beginning of the file, for a header.
    """

    def __init__(self, path: str | None = None, reserved: int = 0) -> None:
        self.path = path
        self.reserved = reserved
        self.length = 0
        self._starts: list[int] = []
        self._pieces: list[Buffer] = []
        self._fd = -1

    @property
    def on_disk(self) -> bool:
        """Whether the pieces are in a file."""
        return self._fd >= 0

    def write(self, *pieces: Buffer) -> int:
        """Add pieces; return where the first starts, in bytes."""
        start = self.length
        for piece in pieces:
            self._starts.append(self.length)
            self._pieces.append(piece)
            self.length += len(piece)
        if self.on_disk or self.length > _IN_MEMORY:
            self._flush()
        return start

    def read(self, start: int, stop: int) -> memoryview:
        """Return a private copy of bytes, which must lie within what one call of `write` took."""
        if self.on_disk:
            return memoryview(bytearray(os.pread(self._fd, stop - start, self.reserved + start)))
        first = bisect_right(self._starts, start) - 1
        joined = bytearray()
        while first < len(self._pieces) and self._starts[first] < stop:
            joined += self._pieces[first]
            base = self._starts[first] + len(self._pieces[first]) - len(joined)
            first += 1
        return memoryview(joined)[start - base : stop - base]

    def pieces(self) -> Iterator[Buffer]:
        """Yield all bytes in order."""
        if not self.on_disk:
            yield from self._pieces
            return
        for start in range(0, self.length, _STEP):
            yield os.pread(self._fd, min(_STEP, self.length - start), self.reserved + start)

    def finish(self, header: Buffer, tail: Buffer, *, durable: bool) -> None:
        """Complete the file: `header` into the reserved room, `tail` behind the pieces."""
        self.write(tail)
        _write_all(self._fd, header, 0)
        if durable:
            os.fsync(self._fd)

    def _flush(self) -> None:
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            if self.path is None:
                self._fd, path = tempfile.mkstemp(prefix="b2array")
                os.unlink(path)
            else:
                self._fd = os.open(self.path, flags, 0o666)
        position = self.reserved + (self._starts[0] if self._starts else 0)
        for piece in self._pieces:
            _write_all(self._fd, piece, position)
            position += len(piece)
        self._starts.clear()
        self._pieces.clear()

    def close(self) -> None:
        """Let go of the file, and remove it if it still has the name it was made under."""
        self._starts.clear()
        self._pieces.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self.path is not None and os.path.lexists(self.path):
                os.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_all(fd: int, data: Buffer, position: int) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written
