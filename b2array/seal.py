"""The fingerprint that b2array puts into a frame's trailer, and what other software may change without breaking it.

Source: "Blosc2 Contiguous Frame Format", section Trailer. The C library resets the type of a fingerprint whenever it
writes a trailer; but where it resizes an array and the number of chunks stays, it only writes a header, with the new
shape and its own numbers of threads. So these are noted in the trailer as well: a frame that fits its fingerprint with
what is noted in its header is not damaged, but was changed by other software.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import msgpack

from b2array import b2nd
from b2array.errors import FormatError
from b2array.spec import Buffer

__all__ = ["FINGERPRINT_NBYTES", "as_committed", "fingerprint", "notes"]

FINGERPRINT_NBYTES = 16

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, struct.error, FormatError, msgpack.UnpackException)
_SHAPE, _THREADS = "shape", "threads"
_FRAME_LEN_AT = slice(0x10, 0x18)
_THREADS_AT = 0x3F
_TWO_INT16 = struct.Struct(">hxh")


def fingerprint(header: Buffer, tail: Buffer) -> bytes:
    """Return what b2array writes as fingerprint of type 3: a digest of all of a frame but its chunks.

    It is the first 16 bytes of the BLAKE2b digest (of 64 bytes, without key) of the header with the eight bytes of its
    `frame_len` zeroed, followed by the tail without its last 16 bytes, where the fingerprint itself stands.

    Parameters
    ----------
    header, tail : bytes-like
        The header; the index directly followed by the trailer.
    """
    digest = blake2b(header[: _FRAME_LEN_AT.start])
    digest.update(bytes(8))
    digest.update(header[_FRAME_LEN_AT.stop :])
    digest.update(tail[:-FINGERPRINT_NBYTES])
    return digest.digest()[:FINGERPRINT_NBYTES]


def notes(array: bytes | None, nthreads_compress: int, nthreads_decompress: int) -> dict[str, object]:
    """Return what b2array's own metalayer holds of the header: nothing if there is no `b2nd` metalayer `array`."""
    try:
        shape = None if array is None else b2nd.shape_of(array)
    except FormatError:
        return {}
    return {} if shape is None else {_SHAPE: list(shape), _THREADS: [nthreads_compress, nthreads_decompress]}


def as_committed(header: Buffer, array: bytes, layer: bytes) -> bytes | None:
    """Return the header with what b2array noted of it, or None if it noted nothing.

    Parameters
    ----------
    header : bytes-like
        The header as it is.
    array : bytes
        Its `b2nd` metalayer.
    layer : bytes
        The content of b2array's own metalayer.
    """
    before = bytearray(header)
    try:
        noted = msgpack.unpackb(layer, strict_map_key=False)
        content = b2nd.with_extents(array, tuple(noted[_SHAPE]))
        _TWO_INT16.pack_into(before, _THREADS_AT, *noted[_THREADS])
    except _UNREADABLE:
        return None
    before[_THREADS_AT + 2] = header[_THREADS_AT + 2]  # the marker between the two numbers
    return bytes(before.replace(array, content)) if before.count(array) == 1 else None
