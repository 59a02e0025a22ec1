"""Chunks are made as asked for: blocks, streams, tokens, special chunks, limits."""

from __future__ import annotations

import struct
from typing import Any

import blosc2
import numpy as np
import pytest
import zstandard
from chunks import CODECS, PIPELINES, SPLITMODES, blocksizes, cparams, datas, sine, typesizes, walk
from hypothesis import given
from hypothesis import strategies as st

from b2array.codec import chunk, codecs, decode, encode
from b2array.codec.chunk_header import ChunkHeader, CodecId, Special
from b2array.codec.cparams import CParams
from b2array.errors import LimitError, UnsupportedError


def header_of(buf: bytes) -> ChunkHeader:
    return ChunkHeader.unpack(buf)


# What comes out


@given(datas, typesizes, cparams(), st.data())
def test_every_chunk_says_what_was_asked_for(data: bytes, typesize: int, params: CParams, draw: st.DataObject) -> None:
    blocksize = draw.draw(blocksizes(typesize, len(data)))
    buf = encode.encode(data, typesize=typesize, blocksize=blocksize, cparams=params)
    header = header_of(buf)
    assert (header.cbytes, header.nbytes, header.typesize) == (len(buf), len(data), typesize)
    assert len(buf) <= len(data) + 32
    if blocksize and blocksize < len(data):
        assert header.blocksize == blocksize
    if header.has_streams:
        assert header.filters == params.filter_slots
        assert header.nstreams == (typesize if params.splits(typesize, header.blocksize) else 1)
    assert decode.decode(buf).tobytes() == data


@given(datas, typesizes, cparams(CODECS, [p for p in PIPELINES if "delta" not in p]), st.data())
def test_stock_reads_every_chunk(data: bytes, typesize: int, params: CParams, draw: st.DataObject) -> None:
    blocksize = draw.draw(blocksizes(typesize, len(data)))
    assert blosc2.decompress2(encode.encode(data, typesize=typesize, blocksize=blocksize, cparams=params)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("splitmode", SPLITMODES)
def test_the_same_data_make_the_same_bytes(codec: str, splitmode: str) -> None:
    data, params = walk(5000).tobytes(), CParams(codec, filters="shuffle", splitmode=splitmode)
    made = {encode.encode(data, typesize=8, blocksize=8 * 500, cparams=params) for _ in range(3)}
    assert len(made) == 1


def test_data_that_do_not_get_smaller_are_stored_as_they_are() -> None:
    noise = np.random.default_rng(0).bytes(10_000)
    for codec in CODECS:
        for splitmode in ("always", "never"):
            buf = encode.encode(
                noise, typesize=4, blocksize=1000, cparams=CParams(codec, filters="shuffle", splitmode=splitmode)
            )
            assert header_of(buf).memcpyed
            assert buf[32:] == noise


@pytest.mark.parametrize("nbytes", [0, 1, 31, 32, 33])
def test_few_bytes_are_stored_as_they_are(nbytes: int) -> None:
    data = bytes(range(nbytes))
    assert encode.encode(data)[32:] == data
    assert header_of(encode.encode(bytes(31))).memcpyed
    assert header_of(encode.encode(bytes(32))).special == Special.ZEROS


def test_level_0_stores_everything_as_it_is() -> None:
    buf = encode.encode(bytes(1000), typesize=4, cparams=CParams(clevel=0))
    assert header_of(buf).flags == 0x07
    assert len(buf) == 1032


# Runs


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("neblock", [64, 128, 1000, 2**16])
def test_streams_of_one_byte_are_tokens(codec: str, neblock: int) -> None:
    # The upper bytes of these items are 0 and 255, and never anything else.
    data = (np.arange(3 * neblock, dtype="<u4") % 251 * 7919 % 65521) | np.uint32(0xFF000000)
    buf = encode.encode(
        data.tobytes(), typesize=4, blocksize=4 * neblock, cparams=CParams(codec, filters="shuffle", splitmode="always")
    )
    assert decode.decode(buf).tobytes() == data.tobytes()
    head = chunk.unpack_head(buf)
    assert head.header.nstreams == 4
    for start in head.starts.tolist():
        position, csizes = start, []
        for _ in range(4):
            (csize,) = struct.unpack_from("<i", buf, position)
            csizes.append(csize)
            position += 4 + (csize if csize >= 0 else 1)
        assert csizes[2:] == [0, -255]
    assert blosc2.decompress2(buf) == data.tobytes()


def test_runs_do_not_hide_in_what_compresses_as_well() -> None:
    """A stream that ends otherwise than it begins is no run."""
    for at in (0, 1, 5000, 9999):
        data = bytearray(b"\7" * 10_000)
        data[at] = 8
        for codec in CODECS:
            buf = encode.encode(bytes(data), cparams=CParams(codec, filters=()))
            assert decode.decode(buf).tobytes() == bytes(data)


# One item over and over


@given(st.binary(min_size=1, max_size=40), st.integers(1, 400), st.integers(1, 5))
def test_constant_data_are_found_exactly(item: bytes, count: int, width: int) -> None:
    data = np.frombuffer(item * count, np.uint8)
    found = encode.constant(data, len(item))
    assert found == item
    changed = data.copy()
    changed[-width:] ^= 1
    if count > 2 and width < len(item):
        assert encode.constant(changed, len(item)) is None


def test_constants_longer_than_the_probe_are_compared_to_the_end() -> None:
    data = np.full(100_000, 7, np.uint8)
    assert encode.constant(data, 4) == b"\7" * 4
    data[-1] = 8
    assert encode.constant(data, 4) is None
    assert encode.constant(data[:0], 4) is None


def test_data_that_end_within_an_item_do_not_become_special_chunks() -> None:
    assert encode.constant(np.zeros(10, np.uint8), 4) is None
    assert encode.constant(np.full(10, 7, np.uint8), 4) is None
    buf = encode.encode(bytes(1001), typesize=4)
    assert (header_of(buf).special, len(buf) < 60) == (Special.NONE, True)
    assert decode.decode(buf).tobytes() == bytes(1001) == blosc2.decompress2(buf)


@pytest.mark.parametrize("itemsize", [1, 4, 255, 256, 1000])
def test_constant_data_become_special_chunks(itemsize: int) -> None:
    item = bytes(range(1, 251)) * 4
    buf = encode.encode(item[:itemsize] * 100, typesize=itemsize)
    assert header_of(buf).special == Special.VALUE
    assert buf[32:] == item[:itemsize]
    assert header_of(buf).typesize == (itemsize if itemsize <= 255 else 1)
    zeros = encode.encode(bytes(100 * itemsize), typesize=itemsize)
    assert (header_of(zeros).special, len(zeros)) == (Special.ZEROS, 32)


@pytest.mark.parametrize(
    ("special", "item"),
    [(Special.ZEROS, bytes(8)), (Special.NAN, struct.pack("<d", np.nan)), (Special.UNINIT, bytes(8))],
)
def test_special_chunks_become_chunks_that_can_be_stored(special: Special, item: bytes) -> None:
    buf = encode.special_chunk(special, 800_000, typesize=8)
    stored = encode.make_storable(buf)
    assert header_of(stored).special == (Special.VALUE if special == Special.NAN else Special.NONE)
    assert len(stored) < 100
    assert decode.decode(stored).tobytes() == item * 100_000 == blosc2.decompress2(stored)
    assert encode.make_storable(stored) == stored
    plain = encode.encode(sine(100).tobytes(), typesize=8)
    assert encode.make_storable(plain) is plain


# Limits


def test_what_a_chunk_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MAX_CHUNK_NBYTES", 999)
    with pytest.raises(LimitError, match="at most 999 bytes, not 1000"):
        encode.encode(bytes(1000))
    monkeypatch.setattr(encode, "MAX_BLOCKSIZE", 99)
    with pytest.raises(LimitError, match="at most 99 bytes, not 100"):
        encode.encode(bytes(900), blocksize=100)


@pytest.mark.parametrize(("typesize", "blocksize"), [(0, 0), (-1, 0), (4, 6), (8, 1001)])
def test_sizes_without_whole_items_are_refused(typesize: int, blocksize: int) -> None:
    with pytest.raises(ValueError, match=r"typesize|multiple"):
        encode.encode(sine(1000).tobytes(), typesize=typesize, blocksize=blocksize)


def test_a_filter_for_arrays_is_refused_elsewhere_by_name() -> None:
    with pytest.raises(UnsupportedError, match="ndmean needs the shape of a block"):
        encode.encode(sine(1000).tobytes(), typesize=8, cparams=CParams(filters=(33,), filters_meta=(2,)))


@given(st.integers(0, 2**24), st.integers(1, 255))
def test_automatic_blocks_are_whole_items_of_moderate_size(nbytes: int, typesize: int) -> None:
    size = encode.default_blocksize(nbytes, typesize)
    assert 0 < size <= 2**18
    assert size <= max(nbytes, 1)
    if nbytes >= typesize:
        assert size % typesize == 0


def test_an_array_is_taken_in_c_order() -> None:
    array = np.arange(60, dtype="<i4").reshape(6, 10)
    assert encode.encode(array.T, typesize=4) == encode.encode(np.ascontiguousarray(array.T).tobytes(), typesize=4)


@pytest.mark.parametrize(
    "name", ["BLOSC_CLEVEL", "BLOSC_COMPRESSOR", "BLOSC_SHUFFLE", "BLOSC_BLOCKSIZE", "BLOSC_SPLITMODE"]
)
def test_the_environment_has_no_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, params = sine(20_000).tobytes(), CParams("lz4")
    expected = encode.encode(data, typesize=8, cparams=params)
    values: dict[str, Any] = {
        "BLOSC_CLEVEL": "0",
        "BLOSC_COMPRESSOR": "zstd",
        "BLOSC_SHUFFLE": "NOSHUFFLE",
        "BLOSC_BLOCKSIZE": "256",
        "BLOSC_SPLITMODE": "NEVER",
    }
    monkeypatch.setenv(name, values[name])
    assert encode.encode(data, typesize=8, cparams=params) == expected
    assert decode.decode(expected).tobytes() == data


def of_repeated_items(itemsize: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return floats of which a few thousand differ, in no order, as measured decimals have them."""
    noise = np.random.default_rng(itemsize).normal(20, 5, nbytes // itemsize)
    return np.round(noise, 2).astype(f"f{itemsize}")


@pytest.mark.parametrize(("itemsize", "most"), [(4, 1.12), (8, 0.99)])
def test_whole_items_that_repeat_become_longer_matches_than_at_zstds_own_level(itemsize: int, most: float) -> None:
    blocksize = 200 * 2**10
    data = of_repeated_items(itemsize, 3 * blocksize + 40_000)
    params = CParams(filters=())
    made = encode.encode(data, typesize=itemsize, blocksize=blocksize, cparams=params)
    blocks = [data.tobytes()[start : start + blocksize] for start in range(0, data.nbytes, blocksize)]
    usual = sum(len(codecs.encode(CodecId.ZSTD, block, clevel=2) or block) for block in blocks)
    assert len(made) < most * usual
    assert len(made) > 0.8 * usual
    assert blosc2.decompress2(made) == data.tobytes() == bytes(decode.decode(made))


@pytest.mark.parametrize(
    ("itemsize", "blocksize", "clevel"),
    [(4, 2**17, 2), (4, 2**18 + 8, 2), (2, 200 * 2**10, 2), (8, 200 * 2**10, 3)],
)
def test_all_other_streams_are_what_zstd_makes_at_the_level(itemsize: int, blocksize: int, clevel: int) -> None:
    data = of_repeated_items(8, 2 * blocksize)
    made = encode.encode(data, typesize=itemsize, blocksize=blocksize, cparams=CParams(filters=(), clevel=clevel))
    head = chunk.unpack_head(memoryview(made))
    frames = [made[start + 4 : stop] for start, stop in zip(head.starts, head.stops, strict=True)]
    # A frame says how large its window is, and nothing else of how it was made: compare how often zstd found something.
    level = 2 * clevel - 1
    again = zstandard.ZstdCompressor(level=level)
    blocks = [data.tobytes()[start : start + blocksize] for start in range(0, data.nbytes, blocksize)]
    assert [len(frame) for frame in frames] == pytest.approx([len(again.compress(block)) for block in blocks], rel=0.01)
