"""Undoes appends that earlier versions of b2array began and did not complete.

Those versions changed a file in place. First they saved the old bytes in a record at the end of the file; removing the
record completed the change. A record has each range of old bytes as position, length and content; then its own
position, the former size of the file, a digest, and a magic number. All integers are little-endian, of 64 bits. This
version writes no records.
"""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Iterator

from b2array.errors import FormatError
from b2array.store.base import Store
from b2array.store.spans import Span

__all__ = ["recover", "undo"]

_MAGIC = b"b2a-undo"
_FOOTER = struct.Struct("<QQ16s8s")
_RANGE = struct.Struct("<QQ")


def recover(store: Store) -> None:
    """Wait until no program changes the file. Undo what a killed one has left, if the file can be written."""
    if not store.appendable or _find(store) is None:
        return
    try:
        with store.lock(""):
            undo(store)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def undo(store: Store) -> None:
    """Undo an append that was not completed. The caller holds the lock of the store."""
    found = _find(store) if store.appendable else None
    if found is not None:
        old, size = found
        for start, content in old:
            if content:
                store.patch("", start, content)
        store.append("", size, ())


def _find(store: Store) -> tuple[list[tuple[int, memoryview]], int] | None:
    """Return the old bytes in the record at the end of a file, and the former size; None if there is no record."""
    try:
        end = store.stamp("").size - _FOOTER.size
        if end < 0:
            return None
        (raw,) = store.read([Span("", end, end + _FOOTER.size)])
        position, size, digest, magic = _FOOTER.unpack(raw)
        if magic != _MAGIC or not size <= position <= end:
            return None
        (body,) = store.read([Span("", position, end)])
    except FormatError:  # another program has just cut the file
        return None
    if hashlib.blake2b(body, digest_size=16, salt=size.to_bytes(8, "little")).digest() != digest:
        return None
    return list(_ranges(body, store.url, position)), size


def _ranges(body: memoryview, url: str, end: int) -> Iterator[tuple[int, memoryview]]:
    position = 0
    while position < len(body):
        header = body[position : position + _RANGE.size]
        start, nbytes = _RANGE.unpack(header) if len(header) == _RANGE.size else (0, len(body))
        position += _RANGE.size + nbytes
        if position > len(body) or start + nbytes > end:
            raise FormatError(f"{url}: expected a record of bytes before {end}, found {nbytes} of {start}")
        yield start, body[position - nbytes : position]
