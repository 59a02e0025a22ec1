"""`compress` and `decompress` are each other's inverse, and python-blosc2's too."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest
from chunks import cparams, datas, typesizes
from hypothesis import given
from numcodecs import blosc

import b2array
from b2array import config
from b2array.codec.cparams import CParams
from b2array.errors import FormatError


@given(datas, typesizes, cparams())
def test_what_was_compressed_decompresses(data: bytes, typesize: int, params: CParams) -> None:
    assert b2array.decompress(b2array.compress(data, typesize=typesize, cparams=params)) == data


@given(datas, typesizes)
def test_stock_decompresses_what_we_compress_and_the_other_way_round(data: bytes, typesize: int) -> None:
    assert blosc2.decompress2(b2array.compress(data, typesize=typesize)) == data
    assert b2array.decompress(blosc2.compress2(data, typesize=typesize)) == data


def test_every_kind_of_buffer_is_taken() -> None:
    array = np.arange(1000, dtype="<i4").reshape(10, 100)
    for buf in (array.tobytes(), bytearray(array.tobytes()), memoryview(array.tobytes()), array):
        assert b2array.decompress(b2array.compress(buf, typesize=4)) == array.tobytes()
    assert b2array.decompress(b2array.compress(array.T, typesize=4)) == array.T.tobytes()
    chunk = b2array.compress(array, typesize=4)
    assert b2array.decompress(bytearray(chunk + b"behind it")) == array.tobytes()
    assert b2array.decompress(memoryview(chunk)) == array.tobytes()


def test_chunks_of_blosc1_decompress() -> None:
    data = np.arange(5000).tobytes()
    assert b2array.decompress(blosc.compress(data, b"lz4", 5, blosc.SHUFFLE)) == data


def test_what_is_no_chunk_or_too_large_is_refused() -> None:
    for buf in (b"", b"b2array", bytes(100)):
        with pytest.raises(FormatError):
            b2array.decompress(buf)
    large = b2array.compress(bytes(10_000))
    with config.using(limits=config.Limits(chunk_nbytes=9_999)), pytest.raises(FormatError, match="9999"):
        b2array.decompress(large)


def test_parameters_are_obeyed() -> None:
    data = bytes(range(100)) * 50
    assert len(b2array.compress(data, cparams=CParams(clevel=0))) == len(data) + 32
    assert b2array.compress(data, cparams=CParams("lz4"))[2] >> 5 == 1
    with pytest.raises(ValueError, match="typesize"):
        b2array.compress(data, typesize=0)
