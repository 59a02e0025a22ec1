"""Records of checksums: they speak for every byte, and damaged ones are refused."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array.codec import chunk, encode
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import CParams
from b2array.errors import ChecksumError, FormatError, UnsupportedError
from b2array.format import checksums

REFUSED = (FormatError, UnsupportedError)


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, n, dtype="i4")


def made_chunk(**kwargs: Any) -> bytes:
    return encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(**kwargs))


CHUNKS = {
    "streams": made_chunk(),
    "dictionary": made_chunk(use_dict=True),
    "raw": encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(clevel=0)),
    "value": encode.special_chunk(b"1234", 12000, typesize=4),
    "zeros": encode.special_chunk(Special.ZEROS, 12000, typesize=4),
    "empty": encode.encode(b""),
    "stock": blosc2.compress2(numbers(100_000), typesize=4, blocksize=4000, nthreads=2),
}
NBLOCKS = {"streams": 8, "dictionary": 8, "raw": 8, "value": 0, "zeros": 0, "empty": 0, "stock": 100}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_record_speaks_for_every_byte_of_a_chunk(name: str) -> None:
    raw = CHUNKS[name]
    packed = checksums.pack_record(raw + b"what follows the chunk")
    record = checksums.unpack_record(packed + b"garbage")
    head = chunk.unpack_head(raw)
    assert len(packed) == checksums.record_nbytes(NBLOCKS[name]) == 20 + 4 * NBLOCKS[name]
    assert len(record.block_crcs) == NBLOCKS[name]
    head_nbytes = chunk.head_nbytes(raw)
    checksums.check_head(record, raw[:head_nbytes])
    covered = np.zeros(len(raw), bool)
    covered[:head_nbytes] = True
    for n, (start, stop) in enumerate(zip(head.starts, head.stops, strict=True)):
        checksums.check_blocks(record.block_crcs, [n], memoryview(raw), [int(start)], [int(stop)])
        covered[start:stop] = True
    assert covered.all()


def test_the_record_has_the_documented_bytes() -> None:
    raw = CHUNKS["raw"]
    blocks = [raw[start : start + 1600] for start in range(32, len(raw), 1600)]
    body = b"b2ck" + struct.pack("<HHII8I", 1, 0, 8, crc32(raw[:32]), *map(crc32, blocks))
    assert checksums.pack_record(raw) == body + struct.pack("<I", crc32(body))
    whole = CHUNKS["value"]
    record = checksums.unpack_record(checksums.pack_record(whole))
    assert record is not None
    assert (record.head_crc, record.block_crcs.tolist()) == (crc32(whole), [])


def test_differences_are_named() -> None:
    raw = bytearray(CHUNKS["streams"])
    record = checksums.unpack_record(checksums.pack_record(raw))
    head = chunk.unpack_head(raw)
    starts, stops = head.starts[2:5].tolist(), head.stops[2:5].tolist()
    raw[starts[1] + 5] ^= 1
    with pytest.raises(ChecksumError, match="of block 3, found"):
        checksums.check_blocks(record.block_crcs, range(2, 5), memoryview(raw), starts, stops)
    with pytest.raises(ChecksumError, match="header and block starts"):
        checksums.check_head(record, raw[: chunk.head_nbytes(raw) - 1])


@pytest.mark.parametrize("name", ["streams", "value"])
def test_a_damaged_record_is_none(name: str) -> None:
    packed = checksums.pack_record(CHUNKS[name])
    for size in range(len(packed)):
        assert checksums.unpack_record(packed[:size]) is None
    for at in range(len(packed)):
        for bit in range(8):
            if at in (6, 7):
                continue
            damaged = bytearray(packed)
            damaged[at] ^= 1 << bit
            assert checksums.unpack_record(damaged) is None


@given(st.binary(max_size=100))
def test_random_bytes_are_no_record(raw: bytes) -> None:
    assert checksums.unpack_record(raw) is None
    assert checksums.unpack_record(b"b2ck\1\0\0\0" + raw) is None


@given(st.binary(max_size=100))
def test_what_is_no_chunk_has_no_record(raw: bytes) -> None:
    for at in range(3):
        try:
            packed = checksums.pack_record(CHUNKS["streams"][: 20 * at] + raw)
        except REFUSED:
            continue
        assert checksums.unpack_record(packed) is not None


def test_a_record_of_a_chunk_needs_its_bytes() -> None:
    raw = CHUNKS["streams"]
    assert ChunkHeader.unpack(raw).cbytes == len(raw)
    with pytest.raises(FormatError):
        checksums.pack_record(raw[:-1])
