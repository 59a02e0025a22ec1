"""The streams of blocks: walking them one block at a time and many at once, and what stands for runs."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array import codecs
from b2array.codec import cblosc, streams
from b2array.codec.cblosc import Blosc1Params
from b2array.codec.chunk_header import CodecFormat, CodecId
from b2array.errors import FormatError


@pytest.mark.parametrize("nblocks", [1, 3, 40])
def test_streams_are_walked_and_checked(nblocks: int) -> None:
    block = struct.pack("<i", 0) + struct.pack("<iB", -9, 1) + struct.pack("<i", 3) + b"abc"
    region = memoryview(block * nblocks)
    starts = np.arange(nblocks) * len(block)
    positions, csizes = streams.many_stream_positions(region, starts, starts + len(block), 3, 10)
    assert csizes.tolist() == [[0, -9, 3]] * nblocks
    assert positions.tolist() == [[start, start + 4, start + 9] for start in starts.tolist()]
    for limit, neblock in ((len(block) - 1, 10), (len(block), 2)):
        with pytest.raises(FormatError):
            streams.many_stream_positions(region, starts, starts + limit, 3, neblock)
    streams.check_ratio(region, starts, starts + len(block), 3, 10, 4)
    with pytest.raises(FormatError, match="3 bytes"):
        streams.check_ratio(region, starts, starts + len(block), 3, 10, 3)


sizes = st.one_of(st.integers(-300, 40), st.integers(-(2**31), 2**31 - 1))


@given(
    st.lists(st.tuples(sizes, st.sampled_from([0, 1, 1, 1, 2]), st.integers(0, 40)), max_size=6),
    st.integers(-9, 90),
    st.integers(-9, 300),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_one_block_is_walked_as_many_are(parts, start, stop, nstreams, neblock):
    region = memoryview(b"".join(struct.pack("<iB", size, token) + bytes(n) for size, token, n in parts))
    try:
        positions, csizes = streams.many_stream_positions(region, [start], [stop], nstreams, neblock)
    except FormatError:
        with pytest.raises(FormatError):
            streams.stream_positions(region, [start], [stop], nstreams, neblock)
    else:
        found = streams.stream_positions(region, [start], [stop], nstreams, neblock)
        assert found == list(zip(positions[0].tolist(), csizes[0].tolist(), strict=True))


@pytest.mark.parametrize("fmt", [CodecFormat.BLOSCLZ, CodecFormat.LZ4, CodecFormat.ZLIB, CodecFormat.ZSTD])
@pytest.mark.parametrize("nbytes", [1, 30, 127, 128, 270, 271, 5000, 2**17, 300_000])
def test_what_stands_for_a_run_decodes_to_it(fmt: CodecFormat, nbytes: int) -> None:
    for value in (0, 1, 255):
        stream = streams.encode_run(fmt, nbytes, value)
        out = np.empty(nbytes, np.uint8)
        params = Blosc1Params(fmt, 1, cblosc.NOSHUFFLE, split=False, block_nbytes=nbytes)
        cblosc.decode(params, memoryview(stream), [0], [len(stream)], out)
        assert out.tobytes() == bytes([value]) * nbytes


@pytest.mark.parametrize("neblock", [1, 100, 256, 5000, 2**16, 2**17])
@pytest.mark.parametrize("order", [(0,), (3,), (0, 1, 2, 3), (3, 3, 0, 3), (2, 3, 3), (1, 1), (3, 2, 1)])
def test_streams_of_zstd_decode_among_others(neblock: int, order: tuple[int, ...]) -> None:
    raw = np.random.default_rng(0).bytes(neblock)
    frame = codecs.encode(CodecId.ZSTD, b"\x05" * neblock, clevel=5)
    kinds = [
        (struct.pack("<i", 0), bytes(neblock)),
        (struct.pack("<iB", -9, 1), b"\x09" * neblock),
        (struct.pack("<i", neblock) + raw, raw),
        (struct.pack("<i", neblock) + raw, raw)
        if frame is None
        else (struct.pack("<i", len(frame)) + frame, b"\x05" * neblock),
    ]
    blocks = [[kinds[n] for n in order], [kinds[n] for n in reversed(order)]]
    bodies = [b"".join(stream for stream, _ in block) for block in blocks]
    outs = [memoryview(bytearray(neblock * len(order))) for _ in blocks]
    starts, stops = [7, 7 + len(bodies[0])], [7 + len(bodies[0]), 7 + len(b"".join(bodies))]
    streams.decode_zstd(memoryview(b"\xee" * 7 + b"".join(bodies)), starts, stops, neblock, outs)
    assert [bytes(out) for out in outs] == [b"".join(data for _, data in block) for block in blocks]
