"""Open a frame as an array or a super-chunk, or as the array that python-blosc2 packed into bytes."""

from __future__ import annotations

import math

import numpy as np

from b2array import config
from b2array.array import creation
from b2array.array.array import NDArray
from b2array.array.objects import Items, holds_items
from b2array.array.schunk import SChunk
from b2array.buffers import Buffer
from b2array.catalog import owners
from b2array.codec.chunk_header import ChunkHeader
from b2array.commit.handle import Handle
from b2array.errors import B2ArrayError, FormatError, LimitError, ReadOnlyError, UnsupportedError, prefix_error
from b2array.format import dtypes
from b2array.format.b2nd import GEOMETRIES
from b2array.format.frame_header import FIRST_BYTES
from b2array.store.memory import MemoryStore

__all__ = ["face", "from_bytes"]

_TENSOR = "__pack_tensor__"
"""The attribute in which python-blosc2's `save_array`, `save_tensor` and `pack_tensor` store shape and type."""


def from_bytes(buf: Buffer) -> NDArray:
    """Open a contiguous frame in memory as a read-only array. `bytes` are not copied.

    The frame may be a result of ``a.to_bytes()``, or of python-blosc2's ``to_cframe``, ``pack_tensor`` and
    ``pack_array2``.

    Raises
    ------
    FormatError, UnsupportedError
        As for `open`.

    Examples
    --------
    >>> import b2array
    >>> from_bytes(b2array.asarray([1, 2, 3]).to_bytes())[1]
    np.int64(2)
    """
    content = buf if isinstance(buf, bytes) else memoryview(buf).tobytes()
    if not content.startswith(FIRST_BYTES) and _is_chunk(content):
        raise FormatError(
            "memory: expected a Blosc2 frame, found a Blosc chunk, whose bytes b2array.decompress returns; what "
            "blosc2.pack and blosc2.pack_array return is a pickle, which is not safe to open"
        )
    handle = Handle(owners.load(MemoryStore({"": content})), "r")
    if handle.revision.state.layout is None:
        # The frame may be an array that python-blosc2 packed into a super-chunk.
        packed = face(handle)
        if isinstance(packed, NDArray):
            return packed
    # For a frame without an array, this error names its actual content.
    return NDArray(handle)


def _is_chunk(content: bytes) -> bool:
    try:
        return ChunkHeader.unpack(content).cbytes == len(content)
    except (FormatError, UnsupportedError):
        return False


def face(handle: Handle) -> NDArray | SChunk | Items:
    """Return the array or super-chunk in a frame, as users see it."""
    state = handle.source.state
    # A damaged metalayer of an array also leads to NDArray, whose error says so.
    metalayers = dict(state.frame.metalayers)
    if state.layout is not None or not metalayers.keys().isdisjoint(GEOMETRIES):
        return NDArray(handle)
    if holds_items(state.frame):
        return Items(handle)
    chunks = SChunk(handle)
    return _tensor(chunks) if _TENSOR in chunks.vlmeta else chunks


def _tensor(chunks: SChunk) -> NDArray:
    """Return the array whose bytes a super-chunk contains, in C order."""
    if chunks.mode != "r":
        raise ReadOnlyError(f"{chunks.url} holds what blosc2.save_array wrote, which can only be read; copy it")
    try:
        _, shape, spec = chunks.vlmeta[_TENSOR]
        if not isinstance(spec, str):
            # msgpack turns tuples into lists, but NumPy expects tuples for fields.
            spec = [tuple(field) for field in spec]
        dtype = dtypes.make_dtype(spec)
        nbytes = math.prod(shape) * dtype.itemsize
    except B2ArrayError as error:
        raise prefix_error(chunks.url, error) from error
    except (ValueError, TypeError) as error:
        raise FormatError(f"{chunks.url}: expected shape and type of an array in {_TENSOR!r}: {error}") from None
    if nbytes != chunks.nbytes or any(type(extent) is not int or extent < 0 for extent in shape):
        raise FormatError(f"{chunks.url}: expected an array of {chunks.nbytes} bytes, found {shape} items of {dtype}")
    if nbytes > config.limits.chunk_nbytes:
        raise LimitError(f"{chunks.url}: {nbytes} bytes would be read into memory (see b2array.open_schunk)")
    items = np.frombuffer(chunks.get_slice(), dtype).reshape(shape)
    return NDArray(creation.asarray(items)._handle.pinned())
