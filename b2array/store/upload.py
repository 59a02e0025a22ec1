"""Content on its way into an object of a remote store: in one request if it is small, else in parts.

So much is in memory at a time, however large the content is. An object is there only when all parts are.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from b2array.buffers import Buffer
from b2array.store.base import pieces

__all__ = ["PART", "WHOLE", "Streamed", "apart"]

PART = 8 * 2**20
"""Bytes of a part. S3 takes no smaller ones than 5 MiB but for the last."""

WHOLE = 4 * PART
"""Content of so many bytes is written in one request."""

_EQUAL = 1000
"""So many parts have one size before it doubles: S3 takes 10,000 parts, and 5 TiB in all."""


def apart(data: Buffer | Iterable[Buffer]) -> bytes | Iterator[bytes]:
    """Give content as a whole if it is small, else part by part.

    Examples
    --------
    >>> apart([b"one", b"two"])
    b'onetwo'
    >>> [len(part) // 2**20 for part in apart(bytes(2**20) for _ in range(50))]
    [8, 8, 8, 8, 8, 8, 2]
    """
    if isinstance(data, bytes) and len(data) <= WHOLE:
        return data
    parts = _parts(data)
    first = deque(itertools.islice(parts, WHOLE // PART + 1))
    return itertools.chain(_drained(first), parts) if sum(map(len, first)) > WHOLE else b"".join(first)


def _drained(first: deque[bytes]) -> Iterator[bytes]:
    """Yield what nobody else holds on to."""
    while first:
        yield first.popleft()


def _parts(data: Buffer | Iterable[Buffer]) -> Iterator[bytes]:
    sizes = (PART << number // _EQUAL for number in itertools.count())
    room, held = next(sizes), list[memoryview]()
    for piece in pieces(data):
        view = memoryview(piece).cast("B")
        while len(view) >= room:
            yield b"".join((*held, view[:room]))
            view, room, held = view[room:], next(sizes), []
        # The caller may change its buffer.
        held += [memoryview(bytes(view))] if len(view) else []
        room -= len(view)
    if held:
        yield b"".join(held)


class Streamed:
    """An object of an fsspec file system that is written part by part.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
    """

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file = self._in_directory(lambda: fs.open(path, "wb", autocommit=False))
        # The next transaction has nothing to do with it, but it would be kept until then.
        with suppress(ValueError, IndexError):
            fs.transaction.files.remove(self._file)

    def _in_directory(self, verb: Callable[[], Any]) -> Any:
        """Do what a protocol with real directories may need one for."""
        try:
            return verb()
        except FileNotFoundError:
            self._fs.makedirs(self._path.rpartition("/")[0], exist_ok=True)
            return verb()

    def write(self, part: bytes, *_: object) -> None:
        """Add bytes."""
        self._file.write(part)

    def finish(self, *_: object) -> None:
        """Give the object its name."""
        self._file.close()
        self._in_directory(self._file.commit)

    def abort(self) -> None:
        """Leave what was there, as far as the protocol can write anything without its name."""
        from fsspec.spec import AbstractBufferedFile

        if isinstance(self._file, AbstractBufferedFile):
            self._file.discard()
            self._file.closed = True  # to close it would be to complete the object
        else:
            self._file.close()
            self._file.discard()
