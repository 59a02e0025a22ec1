"""Text of any length: items <-> msgpack <-> the variable-length blocks of a chunk.

A block is a list of items in msgpack, and a chunk has blocks of variable length, as in a `BatchArray` of python-blosc2.
A missing item is nil.

Sources: "Blosc Chunk Format" and "MessagePack specification"; ``batch_array.py`` of python-blosc2 and the chunks that
it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import (
    CODEC_FORMATS,
    FLAG2_VL_BLOCKS,
    FLAG_EXTENDED,
    FLAG_UNSPLIT,
    VERSION_VL_BLOCKS,
    ChunkHeader,
    CodecFormat,
)
from b2array.codec.cparams import CParams
from b2array.codec.encode import encode_stream
from b2array.config import HEADER_LEN, MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, LimitError

__all__ = [
    "TextTile",
    "encode_block",
    "estimate_nbytes",
    "has_missing",
    "join_blocks",
    "memory_nbytes",
    "pack_items",
    "stored_block",
    "unpack_items",
]

Array = npt.NDArray[Any]

_INT32 = struct.Struct("<i")
_LEAST_COMPRESSED = 32
"""The minimum number of bytes to compress; fewer bytes are always stored raw."""
_SAMPLE = 4096
"""The number of items whose text is measured."""
_HANDLE_NBYTES = 16
"""The size of an item of StringDType, besides text that does not fit into it."""


@dataclass(frozen=True, slots=True)
class TextTile:
    """Decoded blocks of text, from which items can be picked: an array of shape (nblocks, items of a block).

    It has the methods of `b2array.codec.decode.Tile`.
    """

    data: Array

    def pick(
        self,
        rows: slice,
        blockshape: tuple[int, ...],
        dtype: np.dtype[Any],  # noqa: ARG002 - the items have their type
        within: tuple[slice, ...] = (),
    ) -> Array:
        """Return the same items of blocks, by default of all blocks, as a view. The first dimension counts blocks."""
        blocks = self.data[rows].reshape(-1, *blockshape)
        return blocks[(slice(None), *within)]

    def item(self, row: int, position: int, dtype: np.dtype[Any]) -> Any:  # noqa: ARG002 - the items have their type
        """Return one item of a block, by its position in C order."""
        return self.data[row, position]


def has_missing(dtype: Any) -> bool:
    """Return whether items of a StringDType can be missing, and whether a missing item is no text.

    Examples
    --------
    >>> has_missing(np.dtypes.StringDType(na_object=None)), has_missing(np.dtypes.StringDType(na_object="?"))
    (True, False)
    """
    return hasattr(dtype, "na_object") and not isinstance(dtype.na_object, str)


def pack_items(items: Array) -> bytes:
    r"""Pack items of StringDType, in C order, as a list of msgpack.

    Examples
    --------
    >>> pack_items(np.array(["a", "\N{LATIN SMALL LETTER E WITH ACUTE}"], "T"))
    b'\x92\xa1a\xa2\xc3\xa9'
    """
    values = items.reshape(-1).tolist()
    if has_missing(items.dtype):
        values = [each if isinstance(each, str) else None for each in values]
    packed: bytes = msgpack.packb(values)
    return packed


def unpack_items(content: Buffer, dtype: Any, count: int) -> Array:
    """Return the `count` items that `pack_items` packed, as an array of one dimension.

    FormatError: the bytes are no list of so many items, or an item is neither text nor a missing item of the type.
    """
    try:
        values = msgpack.unpackb(content, strict_map_key=False)
    except (ValueError, TypeError, LookupError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise FormatError(f"expected a list of text in msgpack, found {error!r:.80}") from None
    if not isinstance(values, list) or len(values) != count:
        found = f"{len(values)} items" if isinstance(values, list) else type(values).__name__
        raise FormatError(f"expected a list of {count} items, found {found}")
    kinds = set(map(type, values))
    if type(None) in kinds and has_missing(dtype):
        kinds.remove(type(None))
        missing = dtype.na_object
        values = [missing if each is None else each for each in values]
    if not kinds <= {str}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {str}))
        raise FormatError(f"expected text, found items of type {names}")
    return np.array(values, dtype)


def encode_block(content: bytes, cparams: CParams) -> bytes:
    """Compress the content of a block: its size, then the payload, which is raw if it would not become smaller."""
    nbytes = len(content)
    if nbytes > MAX_BLOCKSIZE:
        raise LimitError(f"a block holds at most {MAX_BLOCKSIZE} bytes of text, not {nbytes}: choose smaller blocks")
    payload: Buffer | None = None
    if cparams.clevel and nbytes >= _LEAST_COMPRESSED:
        payload = encode_stream(np.frombuffer(content, np.uint8), cparams)
    if payload is None or len(payload) >= nbytes:
        payload = content
    return _INT32.pack(nbytes) + payload


def join_blocks(blocks: Sequence[Buffer], cparams: CParams) -> bytes:
    """Make a chunk of encoded blocks; LimitError if they have more uncompressed bytes than a chunk holds."""
    nblocks = len(blocks)
    nbytes = sum(_INT32.unpack_from(block)[0] for block in blocks)
    sizes = [len(block) for block in blocks]
    front = HEADER_LEN + 4 * nblocks
    cbytes = front + sum(sizes)
    if max(nbytes, cbytes) > MAX_CHUNK_NBYTES:
        raise LimitError(f"a chunk holds at most {MAX_CHUNK_NBYTES} bytes of text, not {nbytes}: choose smaller chunks")
    starts = front + np.cumsum([0, *sizes[:-1]])
    fmt = CODEC_FORMATS.get(cparams.codec_id, CodecFormat.USER)
    header = ChunkHeader(
        1,
        nbytes,
        nblocks,
        cbytes,
        FLAG_EXTENDED | FLAG_UNSPLIT | fmt << 5,
        version=VERSION_VL_BLOCKS,
        udcodec=cparams.codec_id,
        codec_meta=cparams.codec_meta,
        flags2=FLAG2_VL_BLOCKS,
    )
    return b"".join((header.pack(), starts.astype("<i4").tobytes(), *blocks))


def stored_block(stored: Stored, number: int, cparams: CParams) -> memoryview | None:
    """Return an encoded block of a chunk; None if `join_blocks` cannot use it, because the chunk has another codec."""
    header = stored.head.header
    fmt = CODEC_FORMATS.get(cparams.codec_id, CodecFormat.USER)
    has_same_codec = header.codec_format == fmt and (header.udcodec, header.codec_meta) == (
        cparams.codec_id,
        cparams.codec_meta,
    )
    if not has_same_codec or header.has_dict or any(header.filters):
        return None
    return stored.region[int(stored.starts[number]) : int(stored.stops[number])]


def estimate_nbytes(items: Array) -> int:
    """Estimate the size of text in bytes, from a sample of its items.

    Examples
    --------
    >>> estimate_nbytes(np.full(100_000, "four", "T"))
    400000
    """
    flat = items.reshape(-1)
    step = -(-flat.size // _SAMPLE) or 1
    sample = [each for each in flat[::step].tolist() if isinstance(each, str)]
    measured = sum(len(each.encode(errors="surrogatepass")) for each in sample)
    return measured * flat.size // (len(flat[::step]) or 1)


def memory_nbytes(items: Array) -> int:
    """Estimate the memory in bytes that items of StringDType take, their text included."""
    return _HANDLE_NBYTES * items.size + estimate_nbytes(items)
