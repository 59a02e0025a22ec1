"""Damage of header, index and trailer that can be undone with certainty, because the fingerprint says what was there.

The header stands a second time in the trailer, and a single wrong byte is found by trying: only the right one fits the
fingerprint of 128 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from b2array.errors import FormatError, UnsupportedError
from b2array.format import fingerprint, frame, metalayers
from b2array.format.frame import FrameType

__all__ = ["Healed", "heal"]

Read = Callable[[int, int], bytes]

_TYPE_AT = -17
_SMALLEST_HEADER, _SMALLEST_TAIL = 97, 25
_WRONG_BYTES = 2
"""A fingerprint of which not more bytes are wrong is damaged itself: by chance that would not happen."""
_EFFORT = 2**31
"""Bytes to hash in the search for a wrong one, a few seconds' work; each attempt costs as much as `_ATTEMPT` bytes."""
_ATTEMPT = 2000


class Healed(NamedTuple):
    """The header, index and trailer as they were committed.

    `certain` is False if other software had written a header since, so that the shape may be an older one.
    """

    header: bytes
    tail: bytes
    certain: bool
    text: str


class _Parts(NamedTuple):
    """A header, and what stands where it says that index and trailer are; `text` says what is new about it."""

    header: bytes
    tail: bytes
    text: str


def heal(read: Read, size: int) -> Healed | None:
    """Find out what header, index and trailer were.

    Parameters
    ----------
    read : callable
        Takes start and stop in bytes from the start of the frame's file, and returns what is there.
    size : int
        Size of that file.

    Returns
    -------
    Healed or None
        None if they had no fingerprint, or if too much of them is damaged.
    """
    found = list(_candidates(read, size))
    for method in (_as_it_is, _with_fingerprint, _with_one_byte):
        for parts in found:
            healed = method(parts)
            if healed is not None:
                mark = read(fingerprint.MARK_AT.start, fingerprint.MARK_AT.stop)
                certain = parts.header[fingerprint.MARK_AT] == mark or not any(mark)
                return Healed(healed.header, healed.tail, certain, f"{parts.text}{healed.text}")
    return None


def _candidates(read: Read, size: int) -> Iterator[_Parts]:
    """Yield what may be the frame: it ends where its header says or with the file, and there are two headers."""
    first = read(0, _SMALLEST_HEADER)
    if len(first) < _SMALLEST_HEADER:
        return
    frame_len = fingerprint.frame_len(first)
    for end in dict.fromkeys((frame_len, size)):
        if end > size:
            continue
        text = "" if end == frame_len else f"the frame ends after {end} bytes; "
        (header_len,) = struct.unpack_from(">i", first, 0x0B)
        if _SMALLEST_HEADER <= header_len <= end:
            yield from _parts(read, read(0, header_len), end, text)
        noted = _noted(read, end)
        if noted is not None:
            yield from _parts(read, noted, end, f"{text}took the header that is noted in the trailer; ")


def _parts(read: Read, header: bytes, end: int, text: str) -> Iterator[_Parts]:
    (nbytes,), (cbytes,) = struct.unpack_from(">q", header, 0x1E), struct.unpack_from(">q", header, 0x27)
    start = len(header) + (cbytes if nbytes and header[0x1A] == FrameType.CONTIGUOUS else 0)
    if len(header) <= start <= end - _SMALLEST_TAIL:
        yield _Parts(fingerprint.with_frame_len(header, end), read(start, end), text)


def _noted(read: Read, end: int) -> bytes | None:
    """Return the header that the trailer notes which ends at `end`."""
    (length,) = struct.unpack(">I", read(end - 22, end - 18)) if end > _SMALLEST_TAIL else (0,)
    try:
        layers = metalayers.unpack(read(max(0, end - length), end), 2)
        raw = metalayers.find(layers, "b2array")
        return None if raw is None else fingerprint.noted_header(frame.unpack_vlmeta(raw))
    except (FormatError, UnsupportedError):
        return None


def _as_it_is(parts: _Parts) -> _Parts | None:
    fits = (
        parts.tail[_TYPE_AT] == frame.FINGERPRINT_128
        and fingerprint.fingerprint(*parts[:2]) == parts.tail[_TYPE_AT + 1 :]
    )
    return parts._replace(text="nothing else is damaged") if fits else None


def _with_fingerprint(parts: _Parts) -> _Parts | None:
    computed, stored = fingerprint.fingerprint(*parts[:2]), parts.tail[_TYPE_AT + 1 :]
    if sum(a != b for a, b in zip(computed, stored, strict=True)) > _WRONG_BYTES:
        return None
    return parts._replace(tail=parts.tail[: _TYPE_AT + 1] + computed, text="only the fingerprint itself is damaged")


def _with_one_byte(parts: _Parts) -> _Parts | None:
    header, tail, _ = parts
    stored = tail[_TYPE_AT + 1 :]
    data = fingerprint.with_frame_len(header, 0) + tail[: _TYPE_AT + 1]
    found = _wrong_byte(data, stored)
    if found is None:
        return None
    at, right = found
    whole = bytearray(header + tail)
    whole[at] = right
    kind = "header" if at < len(header) else "index or trailer"
    return _Parts(bytes(whole[: len(header)]), bytes(whole[len(header) :]), f"one byte of the {kind} was wrong")


def _wrong_byte(data: bytes, digest: bytes) -> tuple[int, int] | None:
    """Find the byte of `data`, and what it must be, so that it has this digest: any byte, or one with a wrong bit."""
    cost = len(data) * (len(data) // 2 + _ATTEMPT)
    flips = range(1, 256) if 255 * cost <= _EFFORT else [1 << bit for bit in range(8)] if 8 * cost <= _EFFORT else ()
    before, view = blake2b(), memoryview(data)
    for at, value in enumerate(data):
        for flip in flips:
            attempt = before.copy()
            attempt.update(bytes((value ^ flip,)))
            attempt.update(view[at + 1 :])
            if attempt.digest()[: len(digest)] == digest:
                return at, value ^ flip
        before.update(view[at : at + 1])
    return None
