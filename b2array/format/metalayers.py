"""The map of metalayers (names and contents) in the header and in the trailer of a frame.

Source: "Blosc2 Contiguous Frame Format" (sections Header and Trailer) of the Blosc2 documentation, and the files that
the C library writes. Integers are big-endian (msgpack).
"""

from __future__ import annotations

import struct

from b2array import config
from b2array.errors import FormatError, LimitError

__all__ = ["MAX_LAYERS", "MAX_NAME_NBYTES", "MAX_OWN_LAYERS", "Layers", "check", "find", "pack", "unpack"]

Layers = tuple[tuple[str, bytes], ...]
"""The names and the contents, in the order of the file."""

MAX_LAYERS = 16
"""The maximum number of entries in a map. With more, the next write by the C library destroys the frame."""
MAX_OWN_LAYERS = 13
"""The maximum number of variable-length metalayers that b2array makes: the C library may add a few more to a frame."""
MAX_NAME_NBYTES = 31

_MAP = struct.Struct(">4xBH")
_OFFSET = struct.Struct(">Bi")
_CONTENT = struct.Struct(">BI")
# Source: MessagePack specification, section Formats. The C library writes and expects exactly these markers.
_FIXARRAY3 = 0x93
_UINT16 = 0xCD
_MAP16 = 0xDE
_FIXSTR = 0xA0
_INT32 = 0xD2
_ARRAY16 = 0xDC
_BIN32 = 0xC6


def unpack(region: bytes, start: int) -> Layers:
    """Read the map of metalayers at `start` of a header or trailer, whose beginning is offset 0 of the map.

    FormatError says that a name or a content lies outside of `region`, contents overlap, or a name occurs twice.
    """
    try:
        return _unpack(region, start)
    except (struct.error, IndexError):
        raise FormatError(f"expected metalayers within {len(region)} bytes, found one that reaches beyond") from None


def _unpack(region: bytes, start: int) -> Layers:
    marker, count = _MAP.unpack_from(region, start)
    if marker != _MAP16:
        raise FormatError(f"expected the marker {_MAP16:#04x} of the map of metalayers, found {marker:#04x}")
    layers: dict[str, bytes] = {}
    at = start + _MAP.size
    room = len(region)
    for _ in range(count):
        size = region[at] - _FIXSTR
        if not 0 <= size <= MAX_NAME_NBYTES:
            raise FormatError(f"expected metalayer names of at most {MAX_NAME_NBYTES} bytes, found {region[at]:#04x}")
        raw = region[at + 1 : at + 1 + size]
        # The C library compares names up to the first zero byte.
        if b"\0" in raw:
            raise FormatError(f"expected metalayer names without zero bytes, found {raw!r}")
        marker, offset = _OFFSET.unpack_from(region, at + 1 + size)
        if marker != _INT32 or offset < 0:
            raise FormatError(f"expected the marker {_INT32:#04x} and an offset, found {marker:#04x} and {offset}")
        marker, nbytes = _CONTENT.unpack_from(region, offset)
        if marker != _BIN32:
            raise FormatError(f"expected the marker {_BIN32:#04x} of a metalayer's content, found {marker:#04x}")
        # Find the contents by their offsets, in any order, and ignore the array around them.
        begin = offset + _CONTENT.size
        content = region[begin : begin + nbytes]
        if len(content) != nbytes:
            raise FormatError(f"expected {nbytes} bytes of a metalayer, found {len(content)}")
        room -= nbytes
        if room < 0:
            raise FormatError(f"expected metalayers that do not overlap, found more than {len(region)} bytes of them")
        name = raw.decode(errors="surrogateescape")
        if name in layers:
            raise FormatError(f"expected metalayer names that are distinct, found {name!r} twice")
        layers[name] = content
        at += 1 + size + _OFFSET.size
    return tuple(layers.items())


def pack(layers: Layers, start: int, *, uncounted: int) -> bytes:
    """Pack a map of metalayers for position `start` of a header or trailer, whose beginning is offset 0.

    The size that the map states excludes its first `uncounted` bytes: 0 in headers, 1 in trailers.
    """
    entries, size = [], _MAP.size
    for text, content in layers:
        name = text.encode(errors="surrogateescape")
        entries.append((name, content))
        size += 6 + len(name)
    offset = start + size + 3
    names = []
    contents = []
    for name, content in entries:
        entry = struct.pack(f">B{len(name)}sBi", _FIXSTR + len(name), name, _INT32, offset)
        names.append(entry)
        contents.append(_CONTENT.pack(_BIN32, len(content)) + content)
        offset += _CONTENT.size + len(content)
    head = struct.pack(">BBHBH", _FIXARRAY3, _UINT16, size - uncounted, _MAP16, len(entries))
    border = struct.pack(">BH", _ARRAY16, len(entries))
    return b"".join((head, *names, border, *contents))


def check(layers: Layers) -> None:
    """Check that metalayers can be written: at most 16, with names that are distinct and at most 31 bytes."""
    names, size = [], 0
    for name, content in layers:
        names.append(name.encode(errors="surrogateescape"))
        size += len(content)
    if len(names) > MAX_LAYERS:
        raise LimitError(f"{len(names)} metalayers: a frame holds at most {MAX_LAYERS}")
    if len(set(names)) < len(names) or b"\0" in b"".join(names):
        raise ValueError(f"metalayer names must be distinct and without zero bytes, not {names}")
    for raw in names:
        if len(raw) > MAX_NAME_NBYTES:
            raise LimitError(f"metalayer name {raw!r} has {len(raw)} bytes, at most {MAX_NAME_NBYTES} fit")
    # A header or trailer has fewer than 1024 bytes besides the contents.
    limit = config.limits.metadata_nbytes - 1024
    if size > limit:
        raise LimitError(
            f"{size} bytes of metalayers: at most {limit} are allowed (config.limits.metadata_nbytes, less 1024)"
        )


def find(layers: Layers, name: str) -> bytes | None:
    """Return the content of the first metalayer called `name`, or None.

    Examples
    --------
    >>> find((("a", b"1"), ("b", b"2")), "b")
    b'2'
    """
    for layer, content in layers:
        if layer == name:
            return content
    return None
