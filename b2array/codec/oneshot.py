"""One buffer <-> one chunk, without a frame around it.

Source: "Blosc Chunk Format".
"""

from __future__ import annotations

from b2array.buffers import Buffer
from b2array.codec.chunk import Bytes, decode
from b2array.codec.cparams import CParams, given_or_default
from b2array.codec.encode import encode

__all__ = ["compress", "decompress"]


def compress(buf: Buffer | Bytes, *, typesize: int = 1, cparams: CParams | None = None) -> bytes:
    r"""Compress a buffer to one chunk.

    Parameters
    ----------
    buf : bytes-like or ndarray
        Up to 2147483615 bytes; an array is taken in C order.
    typesize : int, default 1
        Size of an item in bytes: what the filters and the split into streams go by.
    cparams : CParams, optional
        How to compress; zstd with shuffle by default.

    Returns
    -------
    bytes
        A Blosc2 chunk.

    Raises
    ------
    LimitError
        The buffer is too large for a chunk.
    UnsupportedError
        A filter only exists for reading, or an optional package is missing.

    Examples
    --------
    >>> import b2array
    >>> chunk = b2array.compress(bytes(range(100)) * 1000, typesize=4)
    >>> len(chunk) < 2000
    True
    >>> b2array.decompress(chunk)[:4]
    b'\x00\x01\x02\x03'
    """
    return encode(buf, typesize=typesize, cparams=given_or_default(cparams))


def decompress(chunk: Buffer) -> bytes:
    """Decompress one chunk, of Blosc2 or Blosc1.

    Parameters
    ----------
    chunk : bytes-like
        What follows it is not looked at.

    Raises
    ------
    FormatError
        The bytes are not a chunk, or one of more than `b2array.config.limits.chunk_nbytes` bytes.
    UnsupportedError
        The chunk needs a codec or filter that is not there, or the frame that it came from.

    Examples
    --------
    >>> import b2array
    >>> b2array.decompress(b2array.compress(b"b2array"))
    b'b2array'
    """
    return decode(chunk).tobytes()
