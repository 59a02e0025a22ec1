"""Lazy chunks are heads that say where the blocks are."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import cparams, datas, typesizes, unpack_lazy, walk
from hypothesis import given

from b2array.codec import chunk, decode, encode, lazy
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import CParams
from b2array.errors import UnsupportedError

DATA = walk(4000).tobytes()


def packed(**options: object) -> tuple[bytes, bytes]:
    buf = encode.encode(DATA, typesize=8, blocksize=8 * 300, cparams=CParams(**options))
    return buf, lazy.pack(buf, 3, 1000)


@given(datas.filter(len), typesizes, cparams())
def test_a_lazy_chunk_decodes_with_its_frame(data: bytes, typesize: int, params: CParams) -> None:
    buf = encode.encode(data, typesize=typesize, cparams=params)
    made = lazy.pack(buf, 7, 123)
    if ChunkHeader.unpack(buf).special:
        assert made == buf
        return
    frame = bytes(123) + buf + b"behind it"
    found = unpack_lazy(made)
    assert decode.decode(frame[found.offset : found.offset + found.head.header.cbytes]).tobytes() == data


@pytest.mark.parametrize("options", [{}, {"codec": "lz4"}, {"clevel": 0}], ids=str)
def test_what_was_packed_unpacks(options: dict[str, object]) -> None:
    buf, made = packed(**options)
    head, found = chunk.unpack_head(buf), unpack_lazy(made)
    assert (found.nchunk, found.offset) == (3, 1000)
    assert found.head.header.lazy
    assert found.sizes == tuple((head.stops - head.starts).tolist())
    np.testing.assert_array_equal(found.head.starts, head.starts)
    assert len(made) == 32 + 4 * 14 + 12 + 4 * 14


def test_the_head_is_enough_to_make_one() -> None:
    buf, made = packed()
    assert lazy.pack(buf[: chunk.head_nbytes(buf)], 3, 1000) == made


@pytest.mark.parametrize("value", [b"12345678", Special.ZEROS, Special.NAN, Special.UNINIT])
def test_special_chunks_stay_as_they_are(value: bytes | Special) -> None:
    buf = encode.special_chunk(value, 800, typesize=8)
    assert lazy.pack(buf + b"behind it", 0, 0) == buf


def test_only_the_frame_decodes_a_lazy_chunk() -> None:
    with pytest.raises(UnsupportedError, match="frame that it came from"):
        decode.decode(packed()[1])
