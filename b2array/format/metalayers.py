"""The map of metalayers: names and contents, as they stand in the header and in the trailer of a frame.

Source: "Blosc2 Contiguous Frame Format" (sections Header and Trailer) of the Blosc2 documentation, and the files that
the C library writes. Integers are big-endian (msgpack).
"""

from __future__ import annotations

import struct
from typing import Any

from b2array import config
from b2array.errors import FormatError, LimitError

__all__ = ["MAX_LAYERS", "MAX_NAME_NBYTES", "Layers", "check", "find", "pack", "unpack"]

Layers = tuple[tuple[str, bytes], ...]
"""Names and contents in the order of the file."""

MAX_LAYERS = 16
"""Entries of a map that is written: the next write of the C library destroys a frame with more."""
MAX_NAME_NBYTES = 31

_FIXARRAY3, _UINT16, _MAP16, _FIXSTR, _INT32, _ARRAY16, _BIN32 = 0x93, 0xCD, 0xDE, 0xA0, 0xD2, 0xDC, 0xC6


def unpack(region: bytes, start: int) -> Layers:
    """Read a map of metalayers.

    Parameters
    ----------
    region : bytes
        The header or the trailer, which the map's offsets count from.
    start : int
        Where the map starts in it.

    Raises
    ------
    FormatError
        A name or a content lies outside of `region`, contents overlap, or a name occurs twice.
    """
    marker, count = _take(">4xBH", region, start)
    _need(marker == _MAP16, f"the marker {_MAP16:#04x} of the map of metalayers", f"{marker:#04x}")
    at, room, layers = start + 7, len(region), []
    for _ in range(count):
        (marker,) = _take(">B", region, at)
        size = marker - _FIXSTR
        _need(0 <= size <= MAX_NAME_NBYTES, f"metalayer names of at most {MAX_NAME_NBYTES} bytes", f"{marker:#04x}")
        raw, marker, offset = _take(f">x{size}sBi", region, at)
        _need(b"\0" not in raw, "metalayer names without zero bytes", repr(raw))
        _need(marker == _INT32, f"the marker {_INT32:#04x} of a metalayer's offset", f"{marker:#04x}")
        content = _unpack_content(region, offset)
        room -= len(content)
        _need(room >= 0, "metalayers that do not overlap", f"more than {len(region)} bytes of them")
        layers.append((raw.decode(errors="surrogateescape"), content))
        at += size + 6
    names = [name for name, _ in layers]
    _need(len(set(names)) == len(names), "metalayer names that are distinct", repr(names))
    return tuple(layers)


def _unpack_content(region: bytes, offset: int) -> bytes:
    marker, size = _take(">BI", region, offset)
    _need(marker == _BIN32, f"the marker {_BIN32:#04x} of a metalayer's content", f"{marker:#04x}")
    content = region[offset + 5 : offset + 5 + size]
    _need(len(content) == size, f"{size} bytes of a metalayer", str(len(content)))
    return content


def _take(fmt: str, region: bytes, at: int) -> tuple[Any, ...]:
    stop = at + struct.calcsize(fmt)
    _need(at >= 0 and stop <= len(region), f"metalayers within {len(region)} bytes", f"one at {at} to {stop}")
    return struct.unpack_from(fmt, region, at)


def pack(layers: Layers, start: int, *, uncounted: int) -> bytes:
    """Return the map of metalayers as it stands at `start` of a header or trailer.

    Parameters
    ----------
    layers : tuple of (str, bytes)
        See `check`.
    start : int
        What the offsets of the contents count from lies so many bytes before the map.
    uncounted : int
        The size that the map states leaves out so many of its first bytes: 0 in headers, 1 in trailers.
    """
    entries = [(_encode(name), content) for name, content in layers]
    size = 7 + sum(6 + len(name) for name, _ in entries)
    offset = start + size + 3
    names, contents = [], []
    for name, content in entries:
        names.append(struct.pack(f">B{len(name)}sBi", _FIXSTR + len(name), name, _INT32, offset))
        contents.append(struct.pack(">BI", _BIN32, len(content)) + content)
        offset += 5 + len(content)
    head = struct.pack(">BBHBH", _FIXARRAY3, _UINT16, size - uncounted, _MAP16, len(entries))
    return b"".join((head, *names, struct.pack(">BH", _ARRAY16, len(entries)), *contents))


def check(layers: Layers) -> None:
    """Check that the metalayers can be written.

    Raises
    ------
    LimitError
        More than 16, a name of more than 31 bytes, or more bytes than `b2array.config.limits.metadata_nbytes`.
    ValueError
        A name occurs twice, or contains a zero byte.
    """
    names = [_encode(name) for name, _ in layers]
    if len(names) > MAX_LAYERS:
        raise LimitError(f"{len(names)} metalayers: a frame holds at most {MAX_LAYERS}")
    if len(set(names)) < len(names) or any(b"\0" in name for name in names):
        raise ValueError(f"metalayer names must be distinct and without zero bytes, not {names}")
    for name in names:
        if len(name) > MAX_NAME_NBYTES:
            raise LimitError(f"metalayer name {name!r} has {len(name)} bytes, at most {MAX_NAME_NBYTES} fit")
    # What surrounds the contents in a header or trailer takes less than 1024 bytes.
    size, limit = sum(len(content) for _, content in layers), config.limits.metadata_nbytes - 1024
    if size > limit:
        raise LimitError(f"{size} bytes of metalayers: at most {limit} are allowed")


def find(layers: Layers, name: str) -> bytes | None:
    """Return the content of the first metalayer called `name`, or None.

    Examples
    --------
    >>> find((("a", b"1"), ("b", b"2")), "b")
    b'2'
    """
    return next((content for found, content in layers if found == name), None)


def _encode(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _need(ok: bool, expected: str, found: str) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {found}")
