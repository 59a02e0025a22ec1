"""What a writer was killed in while it changed a Bloscpack file, undone.

The chunks of a file follow each other without gaps, as Bloscpack 0.16 reads them, so that a last chunk that gets more
bytes is overwritten. What was there stands behind the chunks meanwhile, where no reader looks. A change takes effect
when this record is cut off; whoever finds one before has found a change that was not completed.
"""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from b2array.buffers import Buffer
from b2array.errors import FormatError
from b2array.store.base import Store
from b2array.store.spans import Span

__all__ = ["Old", "pack", "recover", "restore", "undo"]

_MAGIC = b"b2a-undo"
_FOOTER = struct.Struct("<QQ16s8s")  # where the record begins, size of the file, digest, magic
_ENTRY = struct.Struct("<QQ")  # where bytes were, and how many


class Old(NamedTuple):
    """Bytes that are about to be overwritten."""

    start: int
    content: Buffer


def pack(old: Iterable[Old], size: int, position: int) -> bytes:
    """Return the record of bytes of a file and of its size, for this position in the file and no other.

    Examples
    --------
    >>> len(pack([Old(0, b"header")], 1000, 1200))
    62
    """
    body = b"".join(part for start, content in old for part in (_ENTRY.pack(start, len(content)), content))
    return body + _FOOTER.pack(position, size, _digest(body, size), _MAGIC)


def _digest(body: Buffer, size: int) -> bytes:
    return hashlib.blake2b(body, digest_size=16, salt=size.to_bytes(8, "little")).digest()


def restore(store: Store, old: Iterable[Old], size: int) -> None:
    """Write bytes where they were, and cut off what is behind."""
    for start, content in old:
        if len(content):
            store.patch("", start, content)
    store.append("", size, ())


def recover(store: Store) -> None:
    """Undo a change that was not completed, once its writer is gone, if the file can be written to."""
    if not store.appendable or _find(store) is None:
        return
    try:
        with store.lock(""):
            undo(store)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def undo(store: Store) -> None:
    """Undo a change that was not completed, while the store's lock is held."""
    found = _find(store)
    if found is not None:
        restore(store, *found)


def _find(store: Store) -> tuple[list[Old], int] | None:
    """Look for the record at the end of a file."""
    try:
        end = store.stamp("").size - _FOOTER.size
        if end < 0:
            return None
        (raw,) = store.read([Span("", end, end + _FOOTER.size)])
        position, size, digest, magic = _FOOTER.unpack(raw)
        if magic != _MAGIC or not size <= position <= end:
            return None
        (body,) = store.read([Span("", position, end)])
    except FormatError:  # a writer at work has just cut the file
        return None
    return (list(_entries(body, store.url, position)), size) if _digest(body, size) == digest else None


def _entries(body: memoryview, url: str, end: int) -> Iterator[Old]:
    position = 0
    while position < len(body):
        header = body[position : position + _ENTRY.size]
        start, nbytes = _ENTRY.unpack(header) if len(header) == _ENTRY.size else (0, len(body))
        position += _ENTRY.size + nbytes
        if position > len(body) or start + nbytes > end:
            raise FormatError(f"{url}: expected a record of bytes before {end}, found {nbytes} of {start}")
        yield Old(start, body[position - nbytes : position])
