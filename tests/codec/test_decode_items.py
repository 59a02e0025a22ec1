"""Items picked from blocks are those of the whole blocks, whatever made the blocks."""

from __future__ import annotations

import struct

import blosc2
import numpy as np
import pytest
import zstandard
from chunks import CODECS, PIPELINES, SPLITMODES, datas, make_chunk
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.codec import cblosc, chunk, chunk_header, decode, encode
from b2array.codec.chunk import Context, Stored
from b2array.codec.chunk_header import CodecFormat, FilterId
from b2array.codec.cparams import CParams

BLOCKS = (4, 10, 20)
NBLOCKS = 3


def pick(buf, numbers, within, itemsize, blocks=BLOCKS):
    """Decode parts of blocks in the region of a reader, which is writable and has room in front and behind."""
    head = chunk.unpack_head(buf)
    lead, room = decode.scratch_margins(head, len(numbers)) if len(head.starts) else (0, 0)
    context = Context(blockshape=blocks)
    region = memoryview(bytearray(bytes(lead) + bytes(buf) + bytes(room)))
    stored = Stored(head, region, head.starts + lead, head.stops + lead)
    out = np.empty(len(numbers) * int(np.prod(blocks)) * itemsize, np.uint8)
    reference = decode.accept(stored, numbers, context=context)
    tile = decode.decode_tile(
        stored, numbers, out, itemsize=itemsize, narrow=True, context=context, reference=reference
    )
    return tile, tile.pick(slice(None), blocks, np.dtype(f"V{itemsize}"), within)


@st.composite
def slices(draw, extent):
    start = draw(st.integers(0, extent - 1))
    return slice(start, draw(st.integers(start + 1, extent)), draw(st.sampled_from([1, 1, 3])))


@given(
    st.data(),
    datas,
    st.sampled_from(CODECS),
    st.sampled_from(SPLITMODES),
    st.sampled_from(PIPELINES),
    st.sampled_from([1, 2, 4, 8, 12, 16, 24]),
)
@settings(max_examples=examples(300), deadline=None)
def test_parts_of_blocks_are_parts_of_the_whole(draw, data, codec, splitmode, pipeline, itemsize):
    nbytes = NBLOCKS * int(np.prod(BLOCKS)) * itemsize
    raw = (np.frombuffer(data * (nbytes // max(1, len(data)) + 1), "u1") if data else np.zeros(nbytes, "u1"))[:nbytes]
    cparams = CParams(codec, splitmode=splitmode, filters=pipeline)
    buf = encode.encode(raw, typesize=itemsize, blocksize=nbytes // NBLOCKS, cparams=cparams)
    if chunk.unpack_head(buf).header.special:
        return
    whole = raw.reshape(NBLOCKS, *BLOCKS, itemsize)
    within = tuple(draw.draw(slices(extent)) for extent in BLOCKS)
    numbers = draw.draw(st.sampled_from([(0,), (1,), (0, 2), range(NBLOCKS)]))
    tile, out = pick(buf, numbers, within, itemsize)
    assert out.tobytes() == whole[list(numbers)][:, *within].tobytes()
    where = tuple(draw.draw(st.integers(0, extent - 1)) for extent in BLOCKS)
    item = tile.item(len(numbers) - 1, int(np.ravel_multi_index(where, BLOCKS)), np.dtype(f"V{itemsize}"))
    assert item.tobytes() == whole[numbers[-1], *where].tobytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("splitmode", SPLITMODES)
def test_shuffled_items_come_by_planes(codec, splitmode):
    data = np.arange(NBLOCKS * np.prod(BLOCKS), dtype="f8")
    buf = encode.encode(
        data,
        typesize=8,
        blocksize=data.nbytes // NBLOCKS,
        cparams=CParams(codec, filters="shuffle", splitmode=splitmode),
    )
    tile, out = pick(buf, (0, 2), (slice(3, 4), slice(9, 10), slice(19, 20)), 8)
    assert tile.width == 8
    assert out[1].tobytes() == data[-1:].tobytes()
    assert tile.item(1, int(np.prod(BLOCKS)) - 1, data.dtype) == data[-1]


@pytest.mark.parametrize("meta", [0, 4, 2, 3])
def test_a_shuffle_of_another_width_than_the_items_is_undone(meta):
    data = np.random.default_rng(0).integers(0, 99, NBLOCKS * int(np.prod(BLOCKS))).astype("i8")
    cparams = blosc2.CParams(
        typesize=8, filters=[blosc2.Filter.SHUFFLE], filters_meta=[meta], blocksize=data.nbytes // NBLOCKS
    )
    buf = blosc2.compress2(data, cparams=cparams)
    within = (slice(1, 2, 1), slice(0, 10, 3), slice(19, 20, 1))
    _, out = pick(buf, (0, 2), within, 8)
    whole = data.reshape(NBLOCKS, *BLOCKS)
    assert out.tobytes() == whole[[0, 2]][:, *within].tobytes()


@pytest.mark.parametrize("split", [True, False])
def test_zstd_streams_of_several_frames_are_read_as_stock_reads_them(split):
    nbytes, nstreams = int(np.prod(BLOCKS)) * 4, 4 if split else 1
    raw = np.random.default_rng(0).integers(0, 5, NBLOCKS * nbytes, "u1")
    shuffled = raw.reshape(NBLOCKS, -1, 4).swapaxes(1, 2).reshape(NBLOCKS, nstreams, -1)
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"

    def stream(data, n):
        cut = len(data) // 3
        parts = [[data], [data[:cut], data[cut:]], [b"", data], [data, b""]][n % 4]
        payload = skipped * (n % 5 == 0) + b"".join(map(zstandard.compress, parts))
        return struct.pack("<i", len(payload)) + payload

    streams = [
        b"".join(stream(data.tobytes(), 2 * i + j) for j, data in enumerate(of)) for i, of in enumerate(shuffled)
    ]
    flags = chunk_header.FLAG_EXTENDED | CodecFormat.ZSTD << 5 | chunk_header.FLAG_UNSPLIT * (not split)
    buf = make_chunk(
        streams, typesize=4, nbytes=len(raw), blocksize=nbytes, flags=flags, filters=(0, 0, 0, 0, 0, FilterId.SHUFFLE)
    )
    assert decode.decode(buf).tobytes() == blosc2.decompress2(buf) == raw.tobytes()
    within = (slice(1, 2, 1), slice(0, 10, 3), slice(19, 20, 1))
    _, out = pick(buf, range(NBLOCKS), within, 4)
    assert out.tobytes() == raw.reshape(NBLOCKS, *BLOCKS, 4)[:, *within].tobytes()


KEYS = (
    np.s_[70],
    np.s_[:, 33],
    np.s_[:, :, 5],
    np.s_[9:12, 40:44, :],
    np.s_[::16, ::2, 7],
    np.s_[3, 4, 5],
    np.s_[-1, ::-9, ...],
    np.s_[31:33],
    np.s_[:, 61:70, 15:17],
    np.s_[40:90:25, 12, ::20],
)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "blosclz", "zlib"])
@pytest.mark.parametrize("dtype", ["f8", "i4", "u1", "c16", "S300", [("a", "i2"), ("b", "f8")]])
@pytest.mark.parametrize("threads", [1, 2])
def test_thin_parts_of_arrays_are_numpys(codec, dtype, threads, sampled):
    shape = (90, 100, 24) if dtype != "S300" else (80, 64, 20)  # of 300 bytes each, 31 MB in all
    values = (np.arange(np.prod(shape)) // 3 % 1000).astype(dtype if not isinstance(dtype, list) else "i2")
    values = values.astype(dtype).reshape(shape)
    array = b2array.asarray(
        values,
        chunks=(64, 64, 40),
        blocks=(16, 16, 20),
        cparams=b2array.CParams(codec, filters="shuffle", splitmode="blosc2"),
    )
    with config.using(cache_bytes=0, threads=threads):
        for key in sampled(KEYS, 4):
            assert np.array_equal(array[key], values[key])


def test_thin_parts_of_one_large_chunk_are_read_by_several_threads(tmp_path):
    values = np.arange(2**21, dtype="i8").reshape(64, 64, 512)
    path = tmp_path / "a.b2nd"
    b2array.asarray(values, url=path, chunks=values.shape, blocks=(8, 64, 64))
    with config.using(cache_bytes=0, threads=4):
        array = b2array.open(path)
        for _ in range(5):
            assert np.array_equal(array[:, :, 100], values[:, :, 100])
            assert np.array_equal(array[60], values[60])


def test_only_the_streams_are_decoded_for_one_item(monkeypatch):
    values = np.arange(2**15, dtype="f8").reshape(32, 32, 32)
    array = b2array.asarray(
        values, chunks=(32, 32, 32), blocks=(16, 32, 32), cparams=b2array.CParams("lz4", filters="shuffle")
    )
    with config.using(cache_bytes=0):
        assert array[0, 1, 2] == values[0, 1, 2]
        monkeypatch.setattr(cblosc, "decode", None)
        assert array[31, 30, 29] == values[31, 30, 29]
