"""The fingerprint that b2array writes into a frame's trailer, and the changes by other software that it permits.

Source: "Blosc2 Contiguous Frame Format", sections Header and Trailer. The C library resets the type of a fingerprint
whenever it writes a trailer. But if it changes a metalayer, or resizes an array and the number of chunks stays, it only
writes a header, with the new shape and the compression parameters that its user gave. So the trailer holds a copy of
the header, and the thread count for decompression, which readers ignore, is 0 in headers by b2array; the C library
always writes 1 or more. If the header differs from the copy only in fields that the C library may rewrite, and its
thread count is no longer 0, other software changed it. If the thread count is still 0, the header is corrupt.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import msgpack

from b2array.buffers import Buffer
from b2array.errors import FormatError
from b2array.format import b2nd, metalayers

__all__ = [
    "FINGERPRINT_NBYTES",
    "MARK",
    "MARK_AT",
    "fingerprint",
    "frame_len",
    "header_copy",
    "is_changed_by_others",
    "with_frame_len",
]

FINGERPRINT_NBYTES = 16
MARK = 0
"""The number of threads for decompression in a header that b2array wrote."""
MARK_AT = slice(0x42, 0x44)
"""The position of this number in a header."""

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, struct.error, FormatError, msgpack.UnpackException)
_FRAME_LEN = slice(0x10, 0x18)
_FREE = (
    _FRAME_LEN,
    slice(0x1B, 0x1D),  # codec, level, split mode
    slice(0x30, 0x34),  # typesize
    slice(0x35, 0x39),  # blocksize
    slice(0x3F, 0x41),  # threads for compression
    MARK_AT,
    slice(0x47, 0x56),  # filters, codec and its parameter, dictionary
)
_LAYERS_AT = 0x57


def fingerprint(header: Buffer, tail: Buffer) -> bytes:
    """Return the fingerprint of type 3, which b2array writes: a digest of everything in a frame except its chunks.

    It is the first 16 bytes of the BLAKE2b digest (of 64 bytes, without key) of the header with the eight bytes of its
    `frame_len` zeroed, followed by the tail without its last 16 bytes, where the fingerprint itself is.
    """
    digest = blake2b(header[: _FRAME_LEN.start])
    digest.update(bytes(8))
    digest.update(header[_FRAME_LEN.stop :])
    digest.update(tail[:-FINGERPRINT_NBYTES])
    return digest.digest()[:FINGERPRINT_NBYTES]


def frame_len(header: Buffer) -> int:
    """Return the `frame_len` of a header: the size of the frame, or of its file without the chunks, in bytes."""
    return int.from_bytes(header[_FRAME_LEN], "big")


def with_frame_len(header: bytes, nbytes: int) -> bytes:
    """Return a header with another `frame_len`."""
    return header[: _FRAME_LEN.start] + nbytes.to_bytes(8, "big") + header[_FRAME_LEN.stop :]


def header_copy(layer: Buffer) -> bytes | None:
    """Return the copy of the header in b2array's metalayer, or None if there is no valid copy."""
    try:
        header = msgpack.unpackb(layer, strict_map_key=False)["header"]
    except _UNREADABLE:
        return None
    return header if isinstance(header, bytes) and len(header) > _LAYERS_AT else None


def is_changed_by_others(header: Buffer, noted: bytes) -> bool:
    """Return whether the C library could have changed the copy to this header; otherwise the header is damaged."""
    now, before = bytes(header), bytearray(noted)
    (nthreads,) = struct.unpack(">h", now[MARK_AT])
    if len(now) != len(before) or nthreads < 1 or any(before[MARK_AT]):
        return False
    for free in _FREE:
        before[free] = now[free]
    try:
        layers, old = metalayers.unpack(now, _LAYERS_AT), metalayers.unpack(bytes(before), _LAYERS_AT)
        changed = tuple(map(_change_by_stock, old, layers)) if len(old) == len(layers) else ()
    except _UNREADABLE:
        return False
    return changed == layers and now == before[:_LAYERS_AT] + metalayers.pack(layers, _LAYERS_AT, uncounted=0)


def _change_by_stock(old: tuple[str, bytes], new: tuple[str, bytes]) -> tuple[str, bytes] | None:
    """Return a metalayer as the C library could have changed it: to another shape, or to content of the same length."""
    (name, before), (_, now) = old, new
    if name == "b2nd":
        return name, b2nd.with_extents(before, b2nd.shape_of(now))
    return (name, now) if len(now) == len(before) else None
