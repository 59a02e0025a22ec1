"""New bytes before their commit: in memory at first, and in a temporary file when there are many."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedRandom
from itertools import accumulate
from pathlib import Path
from typing import IO, Protocol, Self, cast

from b2array.buffers import Buffer
from b2array.errors import ConflictError, make_ended_error, make_forked_error
from b2array.store.base import Mutex
from b2array.store.disk import make_directories

__all__ = ["Content", "Segment", "Spool", "SpoolPart"]

_IN_MEMORY = 32 * 2**20
_STEP = 8 * 2**20
_SMALL = 2**12
"""The size, in bytes, below which pieces are joined: each separate piece needs 100 bytes more."""
_JOINED = 2**16
"""The size, in bytes, at which a joined piece stops growing."""


class Segment(Protocol):
    """New bytes before their commit, written by this process or by another one."""

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes of one piece."""

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the bytes of a range that begins and ends at the borders of pieces."""

    def portable(self) -> Segment:
        """Return the same bytes as a value that can be pickled."""

    def close(self) -> None:
        """Remove files that are needed only until the commit."""


@dataclass(frozen=True, slots=True)
class Content:
    """A segment in memory. A pickle includes the bytes."""

    data: bytes

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of the bytes."""
        return memoryview(self.data)[start:stop]

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """Yield a range of the bytes."""
        yield self.read(start, stop)

    def portable(self) -> Content:
        """Return the segment itself."""
        return self

    def close(self) -> None:
        """Do nothing: memory needs no removal."""


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """A segment in a file, after the first `reserved` bytes. The writer of the file may still append to it."""

    path: str
    reserved: int = 0

    def read(self, start: int, stop: int) -> memoryview:
        """Read a range; ConflictError if somebody has removed the file."""
        data = bytearray(stop - start)
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                file.seek(self.reserved + start)
                count = file.readinto(data)
        except FileNotFoundError:
            raise ConflictError(f"somebody removed {self.path} before the commit that needs it") from None
        if count != len(data):
            raise ConflictError(f"expected {len(data)} bytes at {start} of {self.path}, found {count}")
        return memoryview(data)

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """Yield a range in pieces of some megabytes."""
        for position in range(start, stop, _STEP):
            yield self.read(position, min(position + _STEP, stop))

    def portable(self) -> SpoolPart:
        """Return the segment itself."""
        return self

    def close(self) -> None:
        """Remove the file."""
        # Another process may have removed the file, or the disk may be unreachable. Nothing in the file was committed.
        with suppress(OSError):
            Path(self.path).unlink()


class Spool:
    """A sequence of pieces of bytes that grows at its end. Threads may share a spool.

    Parameters
    ----------
    path : str, optional
        The path of the file to make for many bytes; by default an unnamed temporary file.
    reserved : int, default 0
        The number of bytes to leave free at the beginning of the file, for a header.
    limit : float, default 32 MiB
        The maximum number of bytes to keep in memory.
    root : str, optional
        A directory above the file that must exist; other missing directories are made.

    Examples
    --------
    >>> with Spool() as spool:
    ...     spool.write(b"one"), spool.write(b"two", b"three"), bytes(spool.read(6, 9))
    (0, 3, b'thr')
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        reserved: int = 0,
        limit: float = _IN_MEMORY,
        root: str | None = None,
    ) -> None:
        self.path = path
        self._root = root
        self.reserved = reserved
        self.length = 0
        self._limit = limit
        self._starts: list[int] = []
        self._pieces: list[Buffer] = []
        self._last_block = bytearray()
        self._file: IO[bytes] | None = None
        self._released = False
        self._closed = False
        self._owner = os.getpid()
        self._mutex = Mutex()

    @property
    def on_disk(self) -> bool:
        """Whether the pieces are in a file."""
        return self._file is not None or self._released

    def write(self, *pieces: Buffer) -> int:
        """Add pieces, and return the offset of the first one in bytes."""
        with self._mutex.held_once("new bytes that wait for a commit"):
            self._require_open()
            start, count, nbytes = self.length, len(self._pieces), sum(map(len, pieces))
            *starts, _ = accumulate(map(len, pieces), initial=start)
            block, joined, filled = None, b"", 0
            if nbytes < _SMALL:
                joined = b"".join(pieces)
                if count and self._pieces[-1] is self._last_block and len(self._last_block) < _JOINED:
                    block, filled = self._last_block, len(self._last_block)
                else:
                    new = bytearray(joined)
                    pieces, starts, self._last_block = (new,), [start], new
            try:
                # These statements call no other code in between, so that Ctrl-C interrupts before or after all of them.
                if block is None:
                    self._starts += starts
                    self._pieces += pieces
                else:
                    block += joined
                self.length = start + nbytes
                if self.on_disk or self.length > self._limit:
                    self._flush()
            except BaseException:
                # The disk may be full: drop the new pieces, because the caller may continue without them.
                self.length = start
                del self._starts[count:], self._pieces[count:]
                if block is not None:
                    del block[filled:]
                # If earlier pieces are in memory, not all of them are in the file: write it anew next time. Without an
                # open file, the file at the path belongs to another spool.
                if count and self._file is not None:
                    self._remove()
                raise
            return start

    def read(self, start: int, stop: int) -> memoryview:
        """Copy bytes of one piece; ConflictError if the spool is closed."""
        with self._mutex.held_once("new bytes that wait for a commit"):
            self._require_open()
            if self.on_disk:
                return memoryview(self._from_file(self._open(), start, stop))
            number = bisect_right(self._starts, start) - 1
            base = self._starts[number]
            return memoryview(bytearray(memoryview(self._pieces[number])[start - base : stop - base]))

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the bytes of a range that begins and ends at the borders of pieces. Writing must have ended."""
        if self.on_disk:
            for position in range(start, stop, _STEP):
                yield self._from_file(self._open(), position, min(position + _STEP, stop))
            return
        number = max(0, bisect_right(self._starts, start) - 1)
        while number < len(self._starts) and self._starts[number] < stop:
            base, piece = self._starts[number], self._pieces[number]
            part = memoryview(piece)[max(0, start - base) : stop - base]
            # A block with a view could not grow any more, so yield a copy.
            yield bytes(part) if isinstance(piece, bytearray) else part
            number += 1

    def portable(self) -> Segment:
        """Return the present pieces as a value that can be pickled: a part of the file, or a copy of the bytes."""
        with self._mutex.held_once("new bytes that wait for a commit"):
            self._require_open()
            if self.path is not None and self.length:
                self._flush()
                # Close the file: the process that unpickles the value needs it, but this process may not.
                if self._file is not None:
                    self._file.close()
                self._file, self._released = None, True
                return SpoolPart(self.path, self.reserved)
            return Content(b"".join(self.pieces(0, self.length)))

    def finish(self, header: Buffer, tail: Buffer, *, durable: bool) -> None:
        """Complete the file: write `header` into the reserved room, and `tail` after the pieces."""
        with self._mutex.held_once("new bytes that wait for a commit"):
            self._require_open()
            if not self.on_disk or len(header) != self.reserved:
                raise ValueError(f"expected a file and a header of {self.reserved} bytes, found {len(header)}")
            file = self._open()
            file.seek(0)
            file.write(header)
            file.seek(self.reserved + self.length)
            file.write(tail)
            file.truncate()
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def _flush(self) -> None:
        file = self._open()
        if self._pieces:
            file.seek(self.reserved + self._starts[0])
            file.writelines(self._pieces)
            # Otherwise a forked process would write the same bytes again.
            file.flush()
        # In one statement, so that Ctrl-C cannot interrupt in between.
        self._starts, self._pieces = [], []

    def _open(self) -> IO[bytes]:
        """Return the open file; make it, or open it again, if necessary."""
        if self._file is None and self.path is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open until the end
        elif self._file is None and self.path is not None:
            path = Path(self.path)
            if not self._released:
                make_directories(str(path.parent), self._root)
            self._file = path.open("r+b" if self._released else "x+b")
        return cast(IO[bytes], self._file)

    def _from_file(self, file: IO[bytes], start: int, stop: int) -> bytearray:
        file.seek(self.reserved + start)
        data = bytearray(stop - start)
        count = cast(BufferedRandom, file).readinto(data)
        if count != len(data):
            raise ValueError(f"expected {len(data)} bytes at {start} of the spool, found {count}")
        return data

    def _require_open(self) -> None:
        if self._closed:
            raise make_ended_error()
        # A forked process would share the position in the file with its parent.
        if self._owner != os.getpid():
            raise make_forked_error()

    def close(self) -> None:
        """Drop all pieces, and remove the file if it still has its temporary name.

        In a forked process the file stays.
        """
        with self._mutex.held_once("new bytes that wait for a commit"):
            self._closed = True
            self._starts.clear()
            self._pieces.clear()
            if self.on_disk:
                self._remove()

    def _remove(self) -> None:
        file, self._file, self._released = self._file, None, False
        if self._owner != os.getpid():
            return
        # Closing writes the buffered bytes, and the disk may be full; the content is no longer needed.
        with suppress(OSError):
            if file is not None:
                file.close()
        if self.path is not None:
            # Another process may have removed the file. If removal fails, `vacuum` removes the file.
            with suppress(OSError):
                Path(self.path).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
