"""Records of checksums. A record follows each chunk, so that a reader of a few blocks can verify only these blocks.

A record contains the CRC-32 of the chunk's head and of each block. Other software ignores records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2array.buffers import Buffer, crc32
from b2array.codec import chunk
from b2array.errors import ChecksumError

__all__ = [
    "Record",
    "agree",
    "check_blocks",
    "check_head",
    "crc32",
    "pack_record",
    "record_crc",
    "record_nbytes",
    "unpack_record",
    "verify_sums",
]

_RECORD_HEAD = struct.Struct("<4s2H2I")
_RECORD_MAGIC, _RECORD_VERSION = b"b2ck", 1
_CRC = struct.Struct("<I")


class Record(NamedTuple):
    """The checksums of a chunk: the checksum of its head, then the checksum of each block in order."""

    head_crc: int
    block_crcs: NDArray[np.uint32]


def record_nbytes(nblocks: int) -> int:
    """Return the size in bytes of the record of a chunk with `nblocks` blocks."""
    return _RECORD_HEAD.size + 4 * nblocks + _CRC.size


def pack_record(buf: Buffer, head: chunk.ChunkHead | None = None, *, number: int = -1) -> bytes:
    """Return the record of a chunk: checksums of its head (header, block starts, dictionary) and of its blocks.

    A block ends at the next larger start. A chunk without streams counts as blocks of `blocksize` bytes after its
    header. A special chunk, which only describes its content, has no blocks.

    In a sparse frame, `number` is the number of the chunk's file. The record's own checksum continues from this number
    plus 1 (from 0 without a number). So a reader notices files whose names were exchanged.
    """
    stored = chunk.Stored.whole(buf, head)
    bounds = zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)
    blocks = [crc32(stored.region[start:stop]) for start, stop in bounds]
    head_crc = crc32(stored.region[: stored.head.nbytes])
    body = _RECORD_HEAD.pack(_RECORD_MAGIC, _RECORD_VERSION, 0, len(blocks), head_crc)
    body += struct.pack(f"<{len(blocks)}I", *blocks)
    return body + _CRC.pack(crc32(body, number + 1))


def record_crc(record: Buffer) -> int:
    """Return the checksum at the end of a record, which depends on every byte of the chunk."""
    (crc,) = _CRC.unpack_from(record, memoryview(record).nbytes - _CRC.size)
    return int(crc)


def unpack_record(buf: Buffer, *, number: int = -1) -> Record | None:
    """Return the record at the start of `buf`, or None if it is missing, incomplete, or belongs to another file."""
    if len(buf) < record_nbytes(0):
        return None
    magic, version, _, nblocks, head_crc = _RECORD_HEAD.unpack_from(buf)
    body_len = record_nbytes(nblocks) - _CRC.size
    if (magic, version) != (_RECORD_MAGIC, _RECORD_VERSION) or len(buf) < body_len + _CRC.size:
        return None
    body = memoryview(buf)[:body_len]
    (stored_crc,) = _CRC.unpack_from(buf, body_len)
    if stored_crc != crc32(body, number + 1) and stored_crc != crc32(body):
        return None
    return Record(head_crc, np.frombuffer(body, "<u4", nblocks, _RECORD_HEAD.size).astype(np.uint32))


def check_head(record: Record, head: Buffer) -> None:
    """Compare the head of a chunk, its first `chunk.head_nbytes` bytes, with its checksum."""
    _compare("the chunk's header and block starts", record.head_crc, head)


def verify_sums(
    behind: Buffer,
    head: chunk.ChunkHead,
    head_bytes: Buffer,
    *,
    number: int = -1,
    crc: int = 0,
) -> NDArray[np.uint32]:
    """Compare the head of a chunk with the record `behind` the chunk, and return the checksums of the blocks.

    `head_bytes` are the bytes from which `head` was read, possibly with more bytes after them. `crc` is the expected
    `record_crc` of the record; 0 if it is unknown. ChecksumError says that the head differs, or that no record belongs
    to this chunk.
    """
    record = unpack_record(behind, number=number)
    if record is None:
        raise ChecksumError("expected a record of its checksums behind the chunk, found none")
    if len(record.block_crcs) != len(head.starts):
        raise ChecksumError(f"expected a record of {len(head.starts)} blocks, found one of {len(record.block_crcs)}")
    if crc:
        actual = record_crc(memoryview(behind)[: record_nbytes(len(record.block_crcs))])
        if actual != crc:
            raise ChecksumError(f"expected a CRC-32 of {crc:#010x} of the chunk's checksums, found {actual:#010x}")
    check_head(record, memoryview(head_bytes)[: head.nbytes])
    return record.block_crcs


def check_blocks(
    sums: NDArray[np.uint32],
    numbers: Sequence[int],
    region: memoryview,
    starts: list[int],
    stops: list[int],
) -> None:
    """Compare the blocks `numbers`, whose bytes are in `region`, with `sums`, the checksums of all blocks of the chunk.

    ChecksumError names the first block that differs.
    """
    for n, start, stop in zip(numbers, starts, stops, strict=True):
        if crc32(region[start:stop]) != sums[n]:
            _compare(f"block {n}", int(sums[n]), region[start:stop])


def agree(
    region: memoryview,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    crcs: NDArray[np.int64],
    *,
    head_nbytes: int,
    nblocks: int,
) -> bool:
    """Return whether chunks in one region, with at most one block each, agree with the records behind them.

    Parameters
    ----------
    region : memoryview
        The bytes.
    starts, sizes : ndarray of int64
        Where each chunk begins, and its size in bytes.
    crcs : ndarray of int64
        The expected `record_crc` of each record; 0 if it is unknown.
    head_nbytes : int
        The number of bytes of each chunk's head.
    nblocks : int
        The number of blocks of each chunk, 0 or 1.
    """
    nbytes = record_nbytes(nblocks)
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(region, np.uint8), nbytes)
    stops = starts + sizes
    records = windows[stops]
    columns = records.view("<u4")
    fixed = np.frombuffer(_RECORD_HEAD.pack(_RECORD_MAGIC, _RECORD_VERSION, 0, nblocks, 0), "<u4")
    if (columns[:, :3] != fixed[:3]).any():
        return False
    begins = starts.tolist()
    ends = stops.tolist()
    bodies = [crc32(region[end : end + nbytes - _CRC.size]) for end in ends]
    own = columns[:, -1]
    if (own != bodies).any() or (own != crcs)[crcs != 0].any():
        return False
    heads = [crc32(region[begin : begin + head_nbytes]) for begin in begins]
    if (columns[:, 3] != heads).any():
        return False
    if not nblocks:
        return True
    blocks = [crc32(region[begin + head_nbytes : end]) for begin, end in zip(begins, ends, strict=True)]
    return not (columns[:, 4] != blocks).any()


def _compare(what: str, expected: int, data: Buffer) -> None:
    actual = crc32(data)
    if actual != expected:
        raise ChecksumError(f"expected a CRC-32 of {expected:#010x} of {what}, found {actual:#010x}")
