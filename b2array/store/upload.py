"""Uploads to remote stores: small content in one request, large content in parts.

Only a few parts are in memory at a time. The object appears when the upload is complete.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from b2array.buffers import Buffer
from b2array.store.base import as_pieces

__all__ = ["PART", "WHOLE", "abort", "begin", "finish", "in_directory", "split"]

T = TypeVar("T")

PART = 8 * 2**20
"""The size of a part in bytes. S3 requires at least 5 MiB, except for the last part."""

WHOLE = 4 * PART
"""The maximum number of bytes to write in one request."""

_EQUAL = 1000
"""After this many parts, the size doubles: S3 accepts at most 10,000 parts, and objects of up to 5 TiB."""


def split(data: Buffer | Iterable[Buffer]) -> bytes | Iterator[bytes]:
    """Return small content as a whole; for large content, return an iterator that makes its parts one by one.

    Examples
    --------
    >>> split([b"one", b"two"])
    b'onetwo'
    >>> [len(part) // 2**20 for part in split(bytes(2**20) for _ in range(50))]
    [8, 8, 8, 8, 8, 8, 2]
    """
    if isinstance(data, bytes) and len(data) <= WHOLE:
        return data
    parts = _parts(data)
    first = deque(itertools.islice(parts, WHOLE // PART + 1))
    return itertools.chain(_drain(first), parts) if sum(map(len, first)) > WHOLE else b"".join(first)


def _drain(first: deque[bytes]) -> Iterator[bytes]:
    """Yield parts without keeping references to them."""
    while first:
        yield first.popleft()


def _parts(data: Buffer | Iterable[Buffer]) -> Iterator[bytes]:
    sizes = (PART << number // _EQUAL for number in itertools.count())
    room, pieces = next(sizes), list[memoryview]()
    for piece in as_pieces(data):
        view = memoryview(piece).cast("B")
        while len(view) >= room:
            yield b"".join((*pieces, view[:room]))
            view, room, pieces = view[room:], next(sizes), []
        # Copy the bytes: the caller may change its buffer.
        pieces += [memoryview(bytes(view))] if len(view) else []
        room -= len(view)
    if pieces:
        yield b"".join(pieces)


def in_directory(fs: Any, path: str, function: Callable[[], T]) -> T:
    """Call a function that writes an object; if its directory is missing, make the directory and call again."""
    try:
        return function()
    except FileNotFoundError:
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return function()


def begin(fs: Any, path: str) -> Any:
    """Open a file of fsspec, to write an object part by part."""
    file = in_directory(fs, path, lambda: fs.open(path, "wb", autocommit=False))
    # Otherwise fsspec would keep the file until its next transaction. Some file systems do not list the file.
    with suppress(ValueError, IndexError):
        fs.transaction.files.remove(file)
    return file


def finish(fs: Any, path: str, file: Any) -> None:
    """Complete an upload, so that the object appears under its name."""
    file.close()
    in_directory(fs, path, file.commit)


def abort(file: Any) -> None:
    """Discard an upload, except for parts that the protocol has written to the object itself."""
    from fsspec.spec import AbstractBufferedFile

    if isinstance(file, AbstractBufferedFile):
        file.discard()
        # Closing the file later would complete the object.
        file.closed = True
    else:
        file.close()
        file.discard()
