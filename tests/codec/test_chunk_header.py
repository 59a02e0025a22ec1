"""Chunk headers keep every field, and refuse values that no reader accepts."""

import contextlib
import struct
from dataclasses import replace

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc

from b2array import config
from b2array.codec import chunk_header as spec
from b2array.codec.chunk_header import ChunkHeader, CodecFormat, CodecId, FilterId, Special
from b2array.errors import FormatError, UnsupportedError

bytes_ = st.integers(0, 255)
slots = st.lists(bytes_, min_size=6, max_size=6).map(tuple)

# Headers without conflict between their fields.
plain_headers = st.builds(
    ChunkHeader,
    typesize=st.integers(1, 255),
    nbytes=st.integers(0, config.MAX_CHUNK_NBYTES),
    blocksize=st.integers(1, config.MAX_BLOCKSIZE),
    cbytes=st.integers(32, 2**31 - 1),
    flags=bytes_.map(lambda flags: (flags | spec.FLAG_EXTENDED) & ~spec.FLAG_MEMCPYED),
    version=st.sampled_from([4, 5]),
    versionlz=bytes_,
    filters=slots,
    filters_meta=slots,
    udcodec=bytes_,
    codec_meta=bytes_,
    blosc2_flags=st.sampled_from([0, 1, 8, 9, 0x80]),
)


def header(**fields):
    values = {"typesize": 4, "nbytes": 1000, "blocksize": 400, "cbytes": 500, "flags": spec.FLAG_EXTENDED}
    return ChunkHeader(**values | fields)


@given(plain_headers)
def test_what_was_packed_unpacks(packed):
    assert len(packed.pack()) == config.HEADER_LEN
    assert ChunkHeader.unpack(packed.pack()) == packed


def test_the_fields_lie_where_the_format_says():
    buf = bytes.fromhex("05018504a00f0000a00f00006201000000000000000105000000000000000000")
    found = ChunkHeader.unpack(buf)
    assert (found.version, found.versionlz, found.flags, found.typesize) == (5, 1, 0x85, 4)
    assert (found.nbytes, found.blocksize, found.cbytes) == (4000, 4000, 354)
    assert found.filters == (0, 0, 0, 0, 0, FilterId.SHUFFLE)
    assert found.codec_id() == CodecId.ZSTD
    assert found.nstreams == 4
    assert found.pack() == buf


@given(plain_headers)
def test_trailing_bytes_do_not_matter(packed):
    assert ChunkHeader.unpack(packed.pack() + b"\xff" * 10) == packed


@pytest.mark.parametrize("length", range(32))
def test_a_header_cut_short_is_refused(length):
    with pytest.raises(FormatError, match="expected a chunk header of"):
        ChunkHeader.unpack(header().pack()[:length])


def test_blosc1_headers_have_16_bytes():
    chunk = blosc.compress(np.arange(1000, dtype="i4"), b"lz4", 5, blosc.SHUFFLE)
    found = ChunkHeader.unpack(chunk[:16])
    assert (found.version, found.header_len, found.extended) == (2, 16, False)
    assert found.pack() == chunk[:16]


@pytest.mark.parametrize(
    ("flags", "typesize", "filters"),
    [
        (0x00, 4, (0, 0, 0, 0, 0, 0)),
        (0x01, 4, (0, 0, 0, 0, 0, FilterId.SHUFFLE)),
        (0x01, 1, (0, 0, 0, 0, 0, 0)),
        (0x04, 1, (0, 0, 0, 0, 0, FilterId.BITSHUFFLE)),
        (0x08, 4, (0, 0, 0, 0, FilterId.DELTA, 0)),
        (0x09, 4, (0, 0, 0, 0, FilterId.DELTA, FilterId.SHUFFLE)),
    ],
)
def test_blosc1_filters_come_from_the_flags(flags, typesize, filters):
    found = ChunkHeader.unpack(struct.pack("<4B3i", 2, 1, flags, typesize, 1000, 500, 600))
    assert found.filters == filters


def test_version_3_has_no_sixth_filter():
    packed = header(version=3, filters=(1, 2, 3, 0, 0, 1), filters_meta=(0, 0, 0, 0, 0, 9)).pack()
    found = ChunkHeader.unpack(packed)
    assert found.filters == (1, 2, 3, 0, 0, 0)
    assert found.filters_meta == (0,) * 6


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6, 7, 255])
def test_versions_without_news_are_accepted(version):
    assert ChunkHeader.unpack(header(version=version).pack()).version == version


def test_a_later_version_with_unknown_flags_is_unsupported():
    with pytest.raises(UnsupportedError, match="version 7"):
        ChunkHeader.unpack(header(version=7, flags2=0x02).pack())
    assert ChunkHeader.unpack(header(version=5, flags2=0x02).pack()).flags2 == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typesize": 0}, "typesize of 1 to 255, found 0"),
        ({"nbytes": -1}, "nbytes"),
        ({"nbytes": config.MAX_CHUNK_NBYTES + 1}, "nbytes"),
        ({"blocksize": 0}, "blocksize"),
        ({"blocksize": -4}, "blocksize"),
        ({"blocksize": config.MAX_BLOCKSIZE + 1}, "blocksize"),
        ({"cbytes": 31}, "cbytes of at least 32"),
        ({"cbytes": -500}, "cbytes"),
        ({"blosc2_flags": 0x50}, "special value code of 0 to 4, found 5"),
        ({"blosc2_flags": 0x60}, "found 6"),
        ({"blosc2_flags": 0x70}, "found 7"),
        ({"blosc2_flags": 0x30, "cbytes": 32}, "divides the chunk's 1000 bytes, found 0"),
        ({"blosc2_flags": 0x30, "cbytes": 32 + 3}, "divides the chunk's 1000 bytes, found 3"),
        ({"blosc2_flags": 0x30, "cbytes": 32 + 2000}, "divides"),
        ({"blosc2_flags": 0x20, "typesize": 2}, "typesize of 4 or 8 for NaN"),
        ({"blosc2_flags": 0x20, "nbytes": 1001}, "multiple of 4"),
        ({"flags": 0x07, "cbytes": 1031}, "cbytes of 1032"),
        ({"flags": 0x07, "cbytes": 1033}, "cbytes of 1032"),
        ({"flags2": 1, "flags": 0x07}, "stored blocks"),
        ({"flags2": 1, "blosc2_flags": 0x10}, "stored blocks"),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(FormatError, match=message):
        ChunkHeader.unpack(header(**fields).pack())


def test_special_counts_before_memcpyed():
    found = ChunkHeader.unpack(header(flags=0x07, blosc2_flags=0x10, cbytes=32).pack())
    assert found.special == Special.ZEROS
    assert not found.has_streams


@pytest.mark.parametrize("special", list(Special))
def test_special_values_are_named(special):
    cbytes = 32 + (4 if special == Special.VALUE else 0)
    assert ChunkHeader.unpack(header(blosc2_flags=special << 4, cbytes=cbytes).pack()).special == special


def test_a_dictionary_needs_streams():
    assert header(blosc2_flags=1).has_dict
    assert not header(blosc2_flags=1, flags=0x07, cbytes=1032).has_dict
    assert not header(blosc2_flags=0x11, cbytes=32).has_dict


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_blocks_cover_the_chunk(nbytes, blocksize):
    found = header(nbytes=nbytes, blocksize=blocksize)
    assert (found.nblocks - 1) * found.block_nbytes + found.last_block_nbytes == nbytes
    assert 0 < found.last_block_nbytes <= found.block_nbytes <= blocksize


def test_an_empty_chunk_has_no_blocks():
    found = header(nbytes=0)
    assert (found.nblocks, found.last_block_nbytes, found.has_streams) == (0, 0, False)


def test_vl_chunks_store_the_number_of_blocks():
    found = header(flags2=1, blocksize=7, version=6)
    assert (found.nblocks, found.nstreams, found.vl_blocks) == (7, 1, True)


@pytest.mark.parametrize("typesize", [1, 2, 16, 17, 255])
def test_without_the_unsplit_flag_there_is_a_stream_for_each_byte_of_the_item(typesize):
    assert header(typesize=typesize).nstreams == typesize
    assert header(typesize=typesize, flags=spec.FLAG_EXTENDED | spec.FLAG_UNSPLIT).nstreams == 1


@pytest.mark.parametrize(
    ("typesize", "blocksize", "nstreams"),
    [(4, 512, 4), (4, 511, 1), (16, 2048, 16), (17, 17 * 128, 1), (255, 2**20, 1)],
)
def test_version_2_splits_by_the_rule_of_blosc1(typesize, blocksize, nstreams):
    found = header(version=2, flags=0, typesize=typesize, blocksize=blocksize, nbytes=2**21)
    assert found.nstreams == nstreams


@pytest.mark.parametrize("codec", list(CodecId))
def test_codec_bits_of_stock_chunks_name_the_codec(codec):
    found = ChunkHeader.unpack(blosc2.compress2(bytes(range(200)) * 10, codec=blosc2.Codec(codec), typesize=1))
    assert found.codec_format == spec.CODEC_FORMATS[codec]
    assert found.codec_id() == (CodecId.LZ4 if codec == CodecId.LZ4HC else codec)
    assert found.udcodec == codec


def test_the_user_slot_and_the_frame_name_codecs():
    user = header(flags=spec.FLAG_EXTENDED | CodecFormat.USER << 5, udcodec=200)
    deferred = header(flags=spec.FLAG_EXTENDED | CodecFormat.FRAME << 5)
    assert user.codec_id() == 200
    assert deferred.codec_id(33) == 33
    with pytest.raises(UnsupportedError, match=r"7 \(frame\)"):
        deferred.codec_id()


@pytest.mark.parametrize("fmt", [CodecFormat.SNAPPY, CodecFormat.RESERVED])
def test_codecs_that_do_not_exist_are_unsupported(fmt):
    with pytest.raises(UnsupportedError, match=f"codec format {int(fmt)}"):
        header(flags=spec.FLAG_EXTENDED | fmt << 5).codec_id()


@given(st.binary(min_size=0, max_size=40))
def test_any_bytes_unpack_or_are_refused(buf):
    try:
        found = ChunkHeader.unpack(buf)
    except (FormatError, UnsupportedError):
        return
    if found.version != 3:
        assert found.pack() == buf[: found.header_len]


@given(plain_headers, st.integers(0, 31), bytes_)
def test_any_changed_byte_unpacks_or_is_refused(packed, at, value):
    buf = bytearray(packed.pack())
    buf[at] = value
    with contextlib.suppress(FormatError, UnsupportedError):
        assert ChunkHeader.unpack(buf).cbytes >= 16


def test_headers_compare_by_value():
    assert replace(header(), nbytes=8) != header()
