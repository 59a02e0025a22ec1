"""Chunks decode to what went in, whole or block by block, python-blosc2's too; bad ones are refused at no cost."""

import itertools
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import blosc2
import numcodecs
import numpy as np
import pytest
from blosc2 import blosc2_ext
from chunks import (
    CODECS,
    PIPELINES,
    SPLITMODES,
    block_pieces,
    block_slices,
    blocksizes,
    cparams,
    datas,
    decoded_blocks,
    fetched,
    make_chunk,
    rebuilt,
    stock_chunk,
    typesizes,
    vl_chunk,
    walk,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lengths import examples
from numcodecs import blosc

from b2array import codecs, config, filters
from b2array.codec import chunk, decode
from b2array.codec import chunk_header as spec
from b2array.codec import encode as encoder
from b2array.codec.chunk import Context, Stored
from b2array.codec.chunk_header import ChunkHeader, CodecFormat, CodecId, FilterId, Special
from b2array.codec.cparams import CParams
from b2array.errors import FormatError, UnsupportedError

SAMPLE = np.arange(3000, dtype="i4").tobytes() + walk(1500).tobytes() + bytes(3000)


def decoded(buf, **kwargs):
    return decode.decode(buf, **kwargs).tobytes()


def patched(buf, **fields):
    """Change fields of a chunk's header."""
    header = ChunkHeader.unpack(buf)
    return replace(header, **fields).pack() + bytes(buf[header.header_len :])


# Decoding what python-blosc2 makes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("filters", PIPELINES, ids="+".join)
def test_stock_chunks_decode(codec, filters):
    for splitmode, typesize in itertools.product(("always", "never", "blosc2"), (1, 2, 3, 4, 8, 12, 16, 17, 40)):
        data = SAMPLE[: len(SAMPLE) // (8 * typesize) * 8 * typesize]
        params = CParams(codec, filters=filters, splitmode=splitmode)
        for blocksize in (0, 37 * 8 * typesize):
            stored = stock_chunk(data, typesize=typesize, blocksize=blocksize, cparams=params)
            assert decoded(stored) == data, (splitmode, typesize, blocksize)


@given(datas, typesizes, cparams(pipelines=[p for p in PIPELINES if "delta" not in p]), st.data())
def test_any_stock_chunk_decodes(data, typesize, params, draw):
    blocksize = draw.draw(blocksizes(typesize, len(data)))
    assert decoded(stock_chunk(data, typesize=typesize, blocksize=blocksize, cparams=params)) == data


@pytest.mark.parametrize("clevel", [0, 1, 9])
def test_levels_do_not_matter_to_the_reader(clevel):
    params = CParams("zstd", clevel=clevel, splitmode="blosc2")
    assert decoded(stock_chunk(SAMPLE, typesize=4, cparams=params)) == SAMPLE


@pytest.mark.parametrize("nbytes", [0, 1, 7, 31, 32, 33, 100, 1001])
@pytest.mark.parametrize("typesize", [1, 8, 255])
def test_small_stock_chunks_decode(nbytes, typesize):
    data = SAMPLE[:nbytes]
    assert decoded(blosc2.compress2(data, typesize=typesize)) == data


def test_stock_chunks_of_several_threads_decode():
    data = walk(200_000).tobytes()
    stored = stock_chunk(data, typesize=8, blocksize=8000, cparams=CParams("zstd", splitmode="blosc2"), nthreads=4)
    assert decoded(stored) == data


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_truncated_stock_chunks_decode_to_the_truncated_values(dtype):
    data = walk(5000).astype(dtype)
    params = CParams("zstd", filters=("trunc_prec", "shuffle"), filters_meta=(10,), splitmode="blosc2")
    stored = stock_chunk(data.tobytes(), typesize=data.itemsize, cparams=params)
    assert decoded(stored) == blosc2.decompress2(stored)
    np.testing.assert_allclose(np.frombuffer(decoded(stored), dtype), data, rtol=2**-9)


@pytest.mark.parametrize("meta", [2, 4, 5, 255])
def test_shuffle_of_groups_of_another_width_decodes(meta):
    for splitmode in ("always", "never"):
        params = CParams("lz4", filters=("shuffle",), filters_meta=(meta,), splitmode=splitmode)
        stored = stock_chunk(SAMPLE, typesize=8, blocksize=8 * 130, cparams=params)
        assert decoded(stored) == SAMPLE
        ours = encoder.encode(SAMPLE, typesize=8, blocksize=8 * 130, cparams=params)
        assert decoded(ours) == SAMPLE
        assert blosc2.decompress2(ours) == SAMPLE


# Special and raw chunks


def special_cases():
    for itemsize in (1, 2, 4, 8, 100, 255, 300, 1000):
        value = bytes(range(1, 200)) * 6
        yield "value", value[:itemsize], itemsize
    yield "zeros", Special.ZEROS, 4
    yield "uninit", Special.UNINIT, 4
    yield "NaN", Special.NAN, 4
    yield "NaN", Special.NAN, 8


def expected_special(value, itemsize, count):
    if isinstance(value, bytes):
        return value * count
    return np.full(count, np.nan, f"f{itemsize}").tobytes() if value == Special.NAN else bytes(itemsize * count)


@pytest.mark.parametrize(("name", "value", "itemsize"), special_cases())
@pytest.mark.parametrize("blocksize", [0, 1, 24, 1000, 10**6])
def test_special_chunks_decode_whole_and_in_parts(name, value, itemsize, blocksize):
    count = 1003
    data = expected_special(value, itemsize, count)
    buf = encoder.special_chunk(value, len(data), typesize=itemsize)
    buf = patched(buf, blocksize=blocksize) if blocksize else buf
    assert len(buf) == 32 + (itemsize if name == "value" else 0)
    assert decoded(buf) == data
    slices = block_slices(buf, data)
    last = len(slices) - 1
    for numbers in ([0], [last], sorted({0, last // 3, last // 2, last}), range(last // 2, last + 1)):
        assert decoded_blocks(fetched(buf, numbers), numbers) == b"".join(slices[number] for number in numbers)


@pytest.mark.parametrize(("name", "value", "itemsize"), [case for case in special_cases() if case[0] != "uninit"])
def test_stock_reads_our_special_chunks(name, value, itemsize):
    data = expected_special(value, itemsize, 1003)
    buf = encoder.special_chunk(value, len(data), typesize=itemsize, blocksize=itemsize * 100)
    assert blosc2.decompress2(buf) == data


@pytest.mark.parametrize("blocksize", [0, 100, 1000, 10**6])
def test_stock_reads_our_special_chunks_of_large_items(blocksize):
    data = bytes(range(1, 151)) * 2 * 1003
    buf = encoder.encode(data, typesize=300, blocksize=blocksize)
    assert len(buf) == 332
    assert blosc2.decompress2(buf) == data


@pytest.mark.parametrize(
    ("special", "expected"),
    [(blosc2.SpecialValue.ZERO, 0.0), (blosc2.SpecialValue.NAN, np.nan), (blosc2.SpecialValue.VALUE, 7.5)],
)
def test_special_chunks_of_stock_decode(special, expected):
    schunk = blosc2.SChunk(chunksize=8000, cparams={"typesize": 8})
    schunk.fill_special(1000, special, value=expected)
    np.testing.assert_array_equal(np.frombuffer(decoded(schunk.get_chunk(0))), np.full(1000, expected))


def test_what_is_not_initialised_reads_as_zeros():
    schunk = blosc2.SChunk(chunksize=8000, cparams={"typesize": 8})
    schunk.fill_special(1000, blosc2.SpecialValue.UNINIT)
    assert decoded(schunk.get_chunk(0)) == bytes(8000)


def test_a_special_chunk_ignores_what_else_its_header_says():
    buf = patched(encoder.special_chunk(b"\7", 1000, typesize=1), flags=0xF7, filters=(9,) * 6)
    assert decoded(buf) == b"\7" * 1000


def test_raw_chunks_are_not_filtered():
    raw = stock_chunk(SAMPLE, typesize=4, blocksize=1000, cparams=CParams("lz4", clevel=0, splitmode="always"))
    assert ChunkHeader.unpack(raw).memcpyed
    assert decoded(raw) == SAMPLE
    assert decoded(patched(raw, flags=0xE7, filters=(200, 3, 2, 1, 34, 9))) == SAMPLE
    noise = np.random.default_rng(0).bytes(10_000)
    stored = stock_chunk(noise, typesize=4, cparams=CParams("zstd", splitmode="never", use_dict=True))
    assert ChunkHeader.unpack(stored).memcpyed
    assert decoded(stored) == noise


def test_a_dictionary_flag_on_a_raw_chunk_means_nothing():
    raw = encoder.encode(SAMPLE, cparams=CParams(clevel=0))
    assert decoded(patched(raw, blosc2_flags=spec.BLOSC2_FLAG_DICT)) == SAMPLE


# Any blocks


def subsets(nblocks):
    last = nblocks - 1
    yield range(nblocks)
    yield [last]
    yield [0]
    yield list(range(0, nblocks, 2))
    yield list(range(1, nblocks, 2)) or [0]
    yield range(nblocks // 2, nblocks)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("filters", PIPELINES, ids="+".join)
def test_any_blocks_equal_slices_of_the_whole(codec, filters):
    for splitmode, typesize, items in itertools.product(("always", "never"), (1, 4, 8, 13, 255), (8, 37, 130)):
        data = SAMPLE[: 5 * items * typesize + 9]
        params = CParams(codec, filters=filters, splitmode=splitmode)
        buf = encoder.encode(data, typesize=typesize, blocksize=items * typesize, cparams=params)
        slices = block_slices(buf, data)
        for numbers in subsets(len(slices)):
            expected = b"".join(slices[number] for number in numbers)
            assert decoded_blocks(Stored.whole(buf), numbers) == expected, (splitmode, typesize, items, numbers)
            assert decoded_blocks(fetched(buf, numbers), numbers) == expected, (splitmode, typesize, items, numbers)


@given(datas.filter(len), typesizes, cparams(), st.data())
def test_any_set_of_blocks_of_any_chunk_decodes(data, typesize, params, draw):
    buf = encoder.encode(data, typesize=typesize, blocksize=draw.draw(blocksizes(typesize, len(data))), cparams=params)
    slices = block_slices(buf, data)
    numbers = sorted(draw.draw(st.sets(st.integers(0, len(slices) - 1), min_size=1)))
    expected = b"".join(slices[number] for number in numbers)
    assert decoded_blocks(fetched(buf, numbers), numbers) == expected
    assert decoded_blocks(Stored.whole(buf), numbers) == expected


def test_groups_are_cut_where_the_cache_ends(monkeypatch):
    monkeypatch.setattr(decode, "STEP_NBYTES", 3000)
    data = walk(4000).tobytes()
    for pipeline in PIPELINES:
        buf = encoder.encode(data, typesize=8, blocksize=1024, cparams=CParams("lz4", filters=pipeline))
        assert decoded(buf) == data


def test_delta_asks_for_the_first_block():
    buf = encoder.encode(SAMPLE, typesize=4, blocksize=1000, cparams=CParams(filters=("delta",)))
    head = chunk.unpack_head(buf)
    assert list(chunk.blocks_to_decode(head, [3, 5])) == [0, 3, 5]
    assert list(chunk.blocks_to_decode(head, [0, 5])) == [0, 5]
    plain = chunk.unpack_head(encoder.encode(SAMPLE, typesize=4, blocksize=1000))
    assert list(chunk.blocks_to_decode(plain, [3, 5])) == [3, 5]


def test_a_writable_region_is_left_as_it_was():
    buf = encoder.encode(walk(4000).tobytes(), typesize=8, blocksize=2**13, cparams=CParams("lz4", filters=()))
    stored = fetched(buf, [1, 2])
    before = bytes(stored.region)
    decoded_blocks(stored, [1, 2])
    assert bytes(stored.region) == before


def test_decoding_fills_an_array_of_the_caller():
    for buf in (encoder.encode(SAMPLE, typesize=4), encoder.encode(bytes(500)), vl_chunk([b"ab" * 40, b"c"])):
        out = np.full(ChunkHeader.unpack(buf).nbytes, 0xAA, np.uint8)
        assert decode.decode(buf, out=out) is out
        assert out.tobytes() == decoded(buf)
        with pytest.raises(ValueError, match=str(len(out))):
            decode.decode(buf, out=np.empty(len(out) + 1, np.uint8))


@pytest.mark.parametrize("as_buffer", [bytearray, memoryview, lambda buf: memoryview(bytearray(buf)), np.frombuffer])
def test_every_kind_of_buffer_is_taken(as_buffer):
    buf = encoder.encode(SAMPLE, typesize=4)
    if as_buffer is np.frombuffer:
        assert decoded(np.frombuffer(buf, np.uint8).data) == SAMPLE
    else:
        assert decoded(as_buffer(buf + b"behind it")) == SAMPLE


# Where blocks and streams lie


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("splitmode", SPLITMODES)
def test_blocks_may_be_stored_in_any_order(codec, splitmode):
    params = CParams(codec, filters=("delta", "shuffle"), splitmode=splitmode)
    buf = encoder.encode(SAMPLE, typesize=4, blocksize=1040, cparams=params)
    _, blocks = block_pieces(buf)
    orders = [range(len(blocks))[::-1], np.random.default_rng(0).permutation(len(blocks)).tolist()]
    for order, gap in itertools.product(orders, (b"", b"\xff" * 11)):
        shuffled = rebuilt(buf, order, gap)
        assert decoded(shuffled) == SAMPLE
        assert blosc2.decompress2(shuffled) == SAMPLE
        slices = block_slices(shuffled, SAMPLE)
        for numbers in subsets(len(blocks)):
            expected = b"".join(slices[number] for number in numbers)
            assert decoded_blocks(fetched(shuffled, numbers), numbers) == expected


def test_blocks_may_share_their_bytes():
    buf = encoder.encode(SAMPLE[:1000], blocksize=500, cparams=CParams("zstd", filters=()))
    head, blocks = block_pieces(buf)
    shared = patched(buf, cbytes=40 + len(blocks[0]))[:32] + struct.pack("<2i", 40, 40) + blocks[0]
    assert decoded(shared) == SAMPLE[:500] * 2
    assert len(head.starts) == 2


def test_streams_of_every_kind_decode_and_stock_agrees():
    payload = codecs.encode(CodecId.LZ4, b"abcd" * 50)
    streams = {
        bytes(200): struct.pack("<i", 0),
        b"\x01" * 200: struct.pack("<iB", -1, 1),
        b"\xff" * 200: struct.pack("<iB", -255, 1),
        bytes(range(200)): struct.pack("<i", 200) + bytes(range(200)),
        b"abcd" * 50: struct.pack("<i", len(payload)) + payload,
    }
    for kinds in itertools.product(streams, repeat=2):
        for blocks in ([kinds[:1], kinds[1:]], [kinds]):
            nstreams = len(blocks[0])
            buf = make_chunk(
                [b"".join(streams[kind] for kind in block) for block in blocks],
                typesize=nstreams,
                nbytes=400,
                blocksize=200 * nstreams,
                flags=spec.FLAG_EXTENDED | CodecFormat.LZ4 << 5 | (nstreams == 1) * spec.FLAG_UNSPLIT,
            )
            assert decoded(buf) == b"".join(kinds)
            assert blosc2.decompress2(buf) == b"".join(kinds)


@pytest.mark.parametrize("codec", [0, 1, 3, 4])
@pytest.mark.parametrize("neblock", [1, 5, 127, 128, 129, 65535, 65536, 131073, 300_000])
def test_runs_decode_for_every_codec_and_size(codec, neblock):
    runs = [struct.pack("<iB", -255, 1), struct.pack("<i", 0), struct.pack("<iB", -7, 1)]
    data = b"\xff" * neblock + bytes(neblock) + b"\x07" * neblock
    flags = spec.FLAG_EXTENDED | codec << 5
    for typesize, blocks in ((1, runs), (3, [b"".join(runs)])):
        unsplit = spec.FLAG_UNSPLIT if typesize == 1 else 0
        buf = make_chunk(
            blocks, typesize=typesize, nbytes=len(data), blocksize=neblock * typesize, flags=flags | unsplit
        )
        assert decoded(buf) == data


@pytest.mark.parametrize("token", [0, 2, 3, 5, 9, 0x41, 0x81, 0xFF])
def test_reserved_token_bits_are_refused(token):
    buf = make_chunk([struct.pack("<iB", -7, token)], typesize=1, nbytes=100, blocksize=100, flags=0x35)
    with pytest.raises(FormatError, match=f"token 0x01.*found {token:#04x}"):
        decoded(buf)


@pytest.mark.parametrize("csize", [-256, -(2**31), 101, 2**31 - 1])
def test_impossible_stream_sizes_are_refused(csize):
    buf = make_chunk([struct.pack("<i", csize) + bytes(300)], typesize=1, nbytes=100, blocksize=100, flags=0x35)
    with pytest.raises(FormatError):
        decoded(buf)


def test_bytes_that_streams_leave_over_are_zeros():
    streams = b"".join(struct.pack("<iB", -value, 1) for value in (1, 2, 3))
    buf = make_chunk([streams], typesize=3, nbytes=301, blocksize=301, flags=0x25)
    assert decoded(buf) == b"\1" * 100 + b"\2" * 100 + b"\3" * 100 + b"\0"


def test_blocks_smaller_than_their_streams_are_refused():
    buf = make_chunk([bytes(400)], typesize=100, nbytes=99, blocksize=99, flags=0x25)
    with pytest.raises(FormatError, match="at least 100 bytes for 100 streams"):
        decoded(buf)


@pytest.mark.parametrize("start", [0, 35, 10**6, 2**31 - 1, -1, -(2**31)])
def test_block_starts_outside_the_chunk_are_refused(start):
    buf = bytearray(encoder.encode(SAMPLE, typesize=4, blocksize=1000))
    struct.pack_into("<i", buf, 36, start)
    with pytest.raises(FormatError, match=f"block starts of .* found {start}"):
        decoded(buf)


# Versions and Blosc1


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_stock_and_we_agree_on_every_version(version):
    for filter_ in ("shuffle", "bitshuffle"):
        params = CParams("lz4", filters=(filter_,), splitmode="never")
        stored = stock_chunk(SAMPLE[:4012], typesize=4, cparams=params)
        old = patched(stored, version=version)
        assert decoded(old) == blosc2.decompress2(old)
    in_last_slot = encoder.encode(SAMPLE, typesize=4, cparams=CParams("zstd", filters="shuffle"))
    old = patched(in_last_slot, version=version)
    assert decoded(old) == blosc2.decompress2(old)
    assert (decoded(old) == SAMPLE) == (version != 3)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shuffle", [blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE])
def test_blosc1_chunks_decode(codec, shuffle):
    for typesize, n, blocksize in itertools.product((1, 2, 3, 4, 8, 16, 17, 255), (0, 5, 1000, 9999), (0, 1000, 2**13)):
        items = np.frombuffer((SAMPLE * (n * typesize // len(SAMPLE) + 1))[: n * typesize], f"V{typesize}")
        buf = blosc.compress(items, codec.encode(), 5, shuffle, blocksize, typesize)
        assert ChunkHeader.unpack(buf).version == 2
        assert decoded(buf) == items.tobytes(), (typesize, n, blocksize)


@pytest.mark.parametrize("n", [1000, 1001, 1004, 1007])
@pytest.mark.parametrize("typesize", [1, 4, 8, 12])
def test_blosc1_bitshuffle_leaves_blocks_of_odd_length_alone(typesize, n):
    data = SAMPLE[: n * typesize]
    buf = blosc.compress(np.frombuffer(data, f"V{typesize}"), b"lz4", 9, blosc.BITSHUFFLE, n * typesize, typesize)
    header = ChunkHeader.unpack(buf)
    assert header.filters[5] == FilterId.BITSHUFFLE
    assert decoded(buf) == data == blosc.decompress(buf)


@pytest.mark.parametrize("typesize", [17, 100, 255])
def test_blosc1_chunks_of_large_items_are_unsplit_without_the_flag(typesize):
    data = SAMPLE[: len(SAMPLE) // typesize * typesize]
    buf = bytearray(blosc.compress(np.frombuffer(data, f"V{typesize}"), b"lz4", 5, blosc.SHUFFLE, 0, typesize))
    buf[2] &= ~spec.FLAG_UNSPLIT
    assert decoded(buf) == data == blosc.decompress(bytes(buf))


def test_blosc1_chunks_decode_block_by_block():
    data = walk(20_000).tobytes()
    buf = blosc.compress(np.frombuffer(data), b"zstd", 5, blosc.SHUFFLE, 2**14)
    slices = block_slices(buf, data)
    for numbers in subsets(len(slices)):
        assert decoded_blocks(fetched(buf, numbers), numbers) == b"".join(slices[number] for number in numbers)


def test_raw_blosc1_chunks_decode():
    noise = np.random.default_rng(0).bytes(1000)
    buf = blosc.compress(noise, b"lz4", 5, blosc.NOSHUFFLE)
    assert len(buf) == 1016
    assert decoded(buf) == noise


def test_snappy_chunks_are_unsupported():
    buf = bytearray(blosc.compress(SAMPLE, b"lz4", 5, blosc.SHUFFLE))
    buf[2] = buf[2] & 0x1F | 2 << 5
    with pytest.raises(UnsupportedError, match=r"2 \(snappy\)"):
        decoded(buf)


# Instrumented chunks


def test_instrumented_chunks_decode_unfiltered():
    records = [struct.pack("<3f4B", i, 2 * i, 3 * i, 1, 2, 3, 4) for i in range(8)]
    blocks = [b"".join(struct.pack("<i", 16) + record for record in records[i : i + 4]) for i in (0, 4)]
    buf = make_chunk(
        blocks, typesize=4, nbytes=128, blocksize=64, flags=0x25, filters=(0, 0, 0, 0, 3, 1), blosc2_flags=0x80
    )
    assert decoded(buf) == b"".join(records)
    assert blosc2.decompress2(buf) == b"".join(records)


# Blocks of variable length

VL_BLOCKS = [b"abc" * 200, b"x" * 1000, np.random.default_rng(0).bytes(504), np.arange(300).tobytes(), b"!"]


def vl_filters():
    return [(), ("shuffle",), ("bitshuffle",), ("shuffle", "bytedelta")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("filters", vl_filters(), ids="+".join)
@pytest.mark.parametrize("typesize", [1, 4, 8])
def test_vl_chunks_of_stock_decode_and_stock_decodes_ours(codec, filters, typesize):
    params = CParams(codec, filters=filters)
    stock = blosc2_ext.vlcompress(
        VL_BLOCKS,
        codec=blosc2.Codec(params.codec_id),
        typesize=typesize,
        filters=[blosc2.Filter(fid) for fid in params.filter_slots if fid],
        filters_meta=[typesize] * len(filters),
    )
    assert list(decode.vl_blocks(Stored.whole(stock))) == VL_BLOCKS
    assert decoded(stock) == b"".join(VL_BLOCKS)
    ours = vl_chunk(VL_BLOCKS, typesize=typesize, cparams=params)
    assert list(decode.vl_blocks(Stored.whole(ours))) == VL_BLOCKS
    assert [bytes(block) for block in blosc2_ext.vldecompress(ours)] == VL_BLOCKS
    assert blosc2_ext.vldecompress_block(ours, 3) == VL_BLOCKS[3]


def test_vl_chunks_with_a_dictionary_decode():
    blocks = [b"%d some text, and more: %d " % (i, i * i) * 10 for i in range(400)]
    for codec in (blosc2.Codec.ZSTD, blosc2.Codec.LZ4):
        stock = blosc2_ext.vlcompress(blocks, codec=codec, use_dict=True, typesize=1)
        assert ChunkHeader.unpack(stock).has_dict
        assert list(decode.vl_blocks(Stored.whole(stock))) == blocks


@given(st.lists(datas.filter(len), min_size=1, max_size=5), typesizes, cparams(pipelines=vl_filters()))
def test_vl_chunks_round_trip(blocks, typesize, params):
    buf = vl_chunk(blocks, typesize=typesize, cparams=params)
    assert list(decode.vl_blocks(Stored.whole(buf))) == blocks


def test_vl_chunks_must_add_up():
    buf = vl_chunk(VL_BLOCKS)
    total = ChunkHeader.unpack(buf).nbytes
    for nbytes in (total - 1, total + 1, 1):
        with pytest.raises(FormatError, match=f"expected blocks of {nbytes} bytes in all"):
            decoded(patched(buf, nbytes=nbytes))


def test_starts_of_vl_blocks_must_increase():
    buf = bytearray(vl_chunk(VL_BLOCKS))
    starts = struct.unpack_from("<2i", buf, 32)
    for pair in (starts[::-1], (starts[0], starts[0])):
        struct.pack_into("<2i", buf, 32, *pair)
        with pytest.raises(FormatError, match="increasing starts"):
            decoded(buf)


@pytest.mark.parametrize("nbytes", [0, -1, 2**31 - 1])
def test_sizes_of_vl_blocks_must_make_sense(nbytes):
    buf = bytearray(vl_chunk(VL_BLOCKS))
    struct.pack_into("<i", buf, chunk.unpack_head(buf).starts[0], nbytes)
    with pytest.raises(FormatError, match=f"found {nbytes} bytes in block 0"):
        decoded(buf)


# Dictionaries


def records(n=4000):
    rng = np.random.default_rng(1)
    return b"".join(
        b'{"id": %d, "name": "user%d", "tags": ["alpha", "beta"], "score": %.6f}\n'
        % (i, rng.integers(1000), rng.random())
        for i in range(n)
    )


@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4hc"])
@pytest.mark.parametrize("filters", [(), ("shuffle",)], ids="+".join)
def test_dictionaries_are_read_and_written(codec, filters):
    data = records()[:200_000]
    for splitmode, typesize in itertools.product(("never", "always"), (1, 4)):
        params = CParams(codec, filters=filters, splitmode=splitmode, use_dict=True)
        stock = stock_chunk(data, typesize=typesize, blocksize=800, cparams=params)
        ours = encoder.encode(data, typesize=typesize, blocksize=800, cparams=params)
        for buf in (stock, ours):
            assert ChunkHeader.unpack(buf).has_dict
            assert decoded(buf) == data
            slices = block_slices(buf, data)
            numbers = [1, 7, len(slices) - 1]
            assert decoded_blocks(fetched(buf, numbers), numbers) == b"".join(slices[number] for number in numbers)
        assert blosc2.decompress2(ours) == data
        assert len(ours) <= 1.03 * len(stock)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4hc"])
def test_a_dictionary_that_does_not_pay_is_left_out(codec):
    options = {"blocksize": 2**16, "cparams": CParams(codec, filters=())}
    plain = encoder.encode(records(), **options)
    options["cparams"] = replace(options["cparams"], use_dict=True)
    assert encoder.encode(records(), **options) == plain


@pytest.mark.parametrize("size", [0, -1, 32769, 10**9])
def test_dictionaries_of_impossible_size_are_refused(size):
    params = CParams(filters=(), use_dict=True)
    buf = bytearray(encoder.encode(records(), blocksize=800, cparams=params))
    struct.pack_into("<i", buf, 32 + 4 * ChunkHeader.unpack(buf).nblocks, size)
    with pytest.raises(FormatError, match=f"dictionary of 1 to 32768 bytes .* found {size}"):
        decoded(buf)


def test_head_nbytes_says_how_much_the_head_needs():
    for params in (CParams(filters=(), use_dict=True), CParams("lz4"), CParams(clevel=0)):
        buf = encoder.encode(records(), blocksize=800, cparams=params)
        needed = chunk.head_nbytes(buf[:32])
        assert needed >= chunk.head_nbytes(buf)
        head = chunk.unpack_head(buf[: chunk.head_nbytes(buf)])
        assert head.starts.tolist() == chunk.unpack_head(buf).starts.tolist()
        assert chunk.unpack_head(buf[:needed]) is not None
    value = encoder.special_chunk(b"abc", 300, typesize=3)
    assert chunk.head_nbytes(value) == 35
    assert chunk.unpack_head(value).value == b"abc"


# Codecs and filters of the user, and of the frame


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(codecs, "_registry", {})
    monkeypatch.setattr(filters, "_registry", {})


def test_registered_codecs_and_filters_serve_chunks(registry):
    asked = set()

    def make_codec(meta, typesize, blockshape):
        asked.add(("codec", meta, typesize, blockshape))
        return numcodecs.BZ2(level=meta)

    def make_filter(meta, typesize, blockshape):
        asked.add(("filter", meta, typesize, blockshape))
        return numcodecs.Delta(dtype=f"u{typesize}")

    codecs.register(200, make_codec)
    filters.register(201, make_filter)
    for splitmode in ("never", "always"):
        params = CParams(200, codec_meta=7, filters=(201, "shuffle"), filters_meta=(9,), splitmode=splitmode)
        data = SAMPLE[:26000]
        buf = encoder.encode(data, typesize=4, blocksize=8000, cparams=params, blockshape=(40, 50))
        header = ChunkHeader.unpack(buf)
        assert (header.codec_format, header.udcodec, header.codec_meta) == (CodecFormat.USER, 200, 7)
        assert header.filters == (0, 0, 0, 0, 201, 1)
        assert header.filters_meta == (0, 0, 0, 0, 9, 0)
        context = Context(blockshape=(40, 50))
        assert decoded(buf, context=context) == data
        slices = block_slices(buf, data)
        assert decoded_blocks(fetched(buf, [1, 3]), [1, 3], context) == slices[1] + slices[3]
    assert asked == {("codec", 7, 4, (40, 50)), ("filter", 9, 4, (40, 50))}


def test_registered_codecs_of_stock_are_read(registry):
    class Reversed(numcodecs.abc.Codec):
        codec_id = "reversed"

        def encode(self, buf):
            raise NotImplementedError

        def decode(self, buf, out=None):
            return bytes(buf)[:0:-1] * 2

    def encode_half(source, target, meta, schunk):
        half = np.asarray(source)[: len(source) // 2]
        target[0], target[1 : len(half) + 1] = 0, half[::-1]
        return len(half) + 1

    blosc2.register_codec("reversed", 231, encode_half, lambda *_: 0)
    codecs.register(231, lambda *_: Reversed())
    data = bytes(range(100)) * 2
    cparams = {"codec": 231, "typesize": 1, "filters": [], "filters_meta": [], "nthreads": 1}
    buf = blosc2.SChunk(chunksize=len(data), data=data, cparams=cparams, dparams={"nthreads": 1}).get_chunk(0)
    assert ChunkHeader.unpack(buf).codec_id() == 231
    assert decoded(buf) == data


def test_a_filter_or_codec_that_is_not_registered_is_unsupported_by_name(registry):
    codecs.register(210, lambda *_: numcodecs.BZ2())
    filters.register(211, lambda *_: numcodecs.Delta(dtype="u1"))
    buf = encoder.encode(SAMPLE, cparams=CParams(210, filters=()))
    filtered = encoder.encode(SAMPLE, cparams=CParams(filters=(211,)))
    codecs._registry.clear()
    filters._registry.clear()
    decode._plan_for.cache_clear()
    with pytest.raises(UnsupportedError, match="codec 210"):
        decoded(buf)
    with pytest.raises(UnsupportedError, match="filter 211"):
        decoded(filtered)


def test_chunks_may_defer_to_the_codec_of_their_frame(registry):
    codecs.register(220, lambda meta, *_: numcodecs.BZ2(level=meta))
    for codec, meta in (("lz4", 0), ("zstd", 0), ("blosclz", 0), (220, 3)):
        buf = encoder.encode(SAMPLE, typesize=4, cparams=CParams(codec, codec_meta=meta))
        deferring = patched(buf, flags=ChunkHeader.unpack(buf).flags | 0xE0, udcodec=0, codec_meta=0)
        context = Context(codec=codecs.codec_id(codec), codec_meta=meta)
        assert decoded(deferring, context=context) == SAMPLE
        with pytest.raises(UnsupportedError, match=r"7 \(frame\)"):
            decoded(deferring)


@pytest.mark.parametrize("fid", [5, 31, 37, 160, 255])
def test_unknown_filters_are_unsupported(fid):
    buf = patched(encoder.encode(SAMPLE), filters=(0, 0, fid, 0, 0, 0))
    with pytest.raises(UnsupportedError, match=str(fid)):
        decoded(buf)


# Bad input

SMALL, LARGE = SAMPLE[:2000], SAMPLE[-6000:-2990]
BITS = CParams("zlib", filters=("bitshuffle",))
SPLIT = CParams("lz4", splitmode="always")

MUTATED = {
    "lz4 split": encoder.encode(LARGE, typesize=8, blocksize=1024, cparams=SPLIT),
    "zstd": encoder.encode(LARGE, typesize=8, blocksize=1024, cparams=CParams("zstd")),
    "zlib bitshuffle": encoder.encode(SMALL, typesize=4, blocksize=400, cparams=BITS),
    "blosclz delta": encoder.encode(
        SAMPLE[:2000], typesize=4, blocksize=400, cparams=CParams("blosclz", filters=("delta", "shuffle"))
    ),
    "runs": encoder.encode(SMALL, typesize=4, blocksize=400, cparams=SPLIT),
    "large items": encoder.encode(
        SAMPLE[:2040], typesize=255, blocksize=510, cparams=CParams("zstd", splitmode="always")
    ),
    "dictionary": encoder.encode(
        b"".join(b"line %d of some text\n" % i for i in range(250)),
        blocksize=200,
        cparams=CParams("zstd", filters=(), use_dict=True),
    ),
    "VL": vl_chunk([block[:200] for block in VL_BLOCKS], typesize=4, cparams=CParams("lz4")),
    "raw": encoder.encode(SAMPLE[:200], typesize=4, blocksize=64, cparams=CParams(clevel=0)),
    "value": encoder.special_chunk(b"abcd", 400, typesize=4, blocksize=40),
    "NaN": encoder.special_chunk(Special.NAN, 400, typesize=4, blocksize=40),
    "Blosc1": blosc.compress(np.frombuffer(SAMPLE[:2000], "i4"), b"lz4", 5, blosc.SHUFFLE, 512),
}


def survives(buf):
    """Decode in every way; only errors that speak about the bytes may come out."""
    for way in (decoded, decode_every_second_block):
        with suppress(FormatError, UnsupportedError):
            way(buf)


def decode_every_second_block(buf):
    stored = Stored.whole(buf)
    header = stored.head.header
    if header.nblocks and not header.vl_blocks and header.nbytes <= 2**20:
        numbers = list(range(0, header.nblocks, 2))
        assert len(decoded_blocks(stored, numbers)) >= len(numbers)


@pytest.fixture
def small_limits():
    with config.using(limits=config.Limits(chunk_nbytes=2**22)):
        yield


@pytest.mark.parametrize("name", MUTATED)
def test_chunks_cut_at_any_length_are_refused(name, small_limits):
    buf = MUTATED[name]
    for length in range(len(buf)):
        with pytest.raises(FormatError):
            decoded(buf[:length])


@pytest.mark.parametrize("name", MUTATED)
def test_any_header_byte_may_have_any_value(name, small_limits, sampled):
    buf = MUTATED[name]
    for at in range(32):
        for value in {0, 1, 127, 128, 255, *sampled(range(256), 36)}:
            survives(buf[:at] + bytes([value]) + buf[at + 1 :])


@pytest.mark.parametrize("name", MUTATED)
def test_any_byte_may_be_flipped(name, small_limits, sampled):
    buf = MUTATED[name]
    for at in sampled(range(len(buf)), 20):
        for bits in (0xFF, 0x01, 0x80):
            survives(buf[:at] + bytes([buf[at] ^ bits]) + buf[at + 1 :])


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused(buf):
    with config.using(limits=config.Limits(chunk_nbytes=2**22)):
        survives(buf)
        survives(b"\x05\x01" + buf)


numbers32 = st.one_of(st.integers(-300, 3000), st.sampled_from([2**31 - 1, -(2**31), 2**30, 2**24, -1, 0]))
edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.one_of(st.binary(min_size=1, max_size=3), numbers32)))


@settings(max_examples=examples(600), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(MUTATED)), edits, st.floats(0.5, 1))
def test_mutated_chunks_decode_or_are_refused(name, changes, keep):
    buf = bytearray(MUTATED[name])
    for where, what in changes:
        at = int(where**2 * len(buf))
        patch = what if isinstance(what, bytes) else struct.pack("<i", what)
        buf[at : at + len(patch)] = patch
    with config.using(limits=config.Limits(chunk_nbytes=2**22)):
        survives(buf)
        survives(buf[: int(keep * len(buf))])


def peak_of_refusal(buf, error=FormatError, match=None):
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match):
            decode.decode(buf)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = 2**31 - 2**20


@pytest.mark.parametrize("fmt", [CodecFormat.BLOSCLZ, CodecFormat.LZ4, CodecFormat.ZLIB, CodecFormat.ZSTD])
@pytest.mark.parametrize("flags2", [0, 1])
def test_small_chunks_that_claim_gigabytes_are_refused_before_memory_is_taken(fmt, flags2):
    size = HUGE if flags2 else 60
    block = struct.pack("<i", size) + bytes(60)
    flags = spec.FLAG_EXTENDED | spec.FLAG_UNSPLIT | fmt << 5
    blocks = [block] if flags2 else [block] * 5
    blocksize = 1 if flags2 else HUGE // 4
    buf = make_chunk(blocks, typesize=1, nbytes=HUGE, blocksize=blocksize, flags=flags, flags2=flags2)
    assert peak_of_refusal(buf) < 2**20


def test_a_split_stream_that_claims_gigabytes_is_refused_before_memory_is_taken():
    runs = struct.pack("<iB", -1, 1) * 3
    block = runs + struct.pack("<i", 4) + b"abcd"
    buf = make_chunk([block] * 4, typesize=4, nbytes=HUGE, blocksize=HUGE // 4, flags=0x25)
    assert peak_of_refusal(buf, match="expected streams that can hold") < 2**20


def test_unknown_codecs_are_refused_before_memory_is_taken():
    for flags in (0xB5, 0xD5, 0xF5):
        block = struct.pack("<i", 16) + bytes(16)
        buf = make_chunk([block] * 4, typesize=1, nbytes=HUGE, blocksize=HUGE // 4, flags=flags, udcodec=99)
        assert peak_of_refusal(buf, UnsupportedError) < 2**20


def test_raw_chunks_that_are_not_there_are_refused_before_memory_is_taken():
    header = ChunkHeader(1, HUGE, 1, HUGE + 32, 0x07)
    assert peak_of_refusal(header.pack()) < 2**20
    with pytest.raises(FormatError, match="at most 262144 blocks stored raw"):
        chunk.unpack_head(header.pack())


def test_chunks_of_runs_may_be_as_large_as_the_limit_allows():
    streams = [struct.pack("<iB", -3, 1)] * 5
    run = make_chunk(streams, typesize=1, nbytes=HUGE, blocksize=HUGE // 5 + 1, flags=0x35)
    for buf in (run, encoder.special_chunk(Special.ZEROS, HUGE, typesize=1)):
        with config.using(limits=config.Limits(chunk_nbytes=2**20)):
            assert peak_of_refusal(buf, match="config.limits.chunk_nbytes") < 2**20
    small = make_chunk(streams, typesize=1, nbytes=2**20, blocksize=2**20 // 5 + 1, flags=0x35)
    with config.using(limits=config.Limits(chunk_nbytes=2**20)):
        assert decoded(small) == b"\3" * 2**20


def test_overlapping_blocks_do_not_multiply_memory():
    # All blocks begin at one run, with a lot of bytes behind it that each of them could claim.
    nblocks, blocksize = 10_000, 200
    header = ChunkHeader(1, nblocks * blocksize, blocksize, 32 + 4 * nblocks + 5 + 2**20, 0x35)
    starts = np.full(nblocks, 32 + 4 * nblocks, "<i4").tobytes()
    buf = header.pack() + starts + struct.pack("<iB", -3, 1) + bytes(2**20)
    tracemalloc.start()
    try:
        assert decoded(buf) == b"\3" * (nblocks * blocksize)
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def test_lazy_chunks_need_their_frame():
    buf = patched(encoder.encode(SAMPLE), blosc2_flags=spec.BLOSC2_FLAG_LAZY)
    with pytest.raises(UnsupportedError, match="lazy"):
        decoded(buf)
