"""Chunks of C-Blosc 1 as the engine: what it makes, which blocks can be asked for, runs it does not know."""

from __future__ import annotations

import struct
import tracemalloc

import blosc2
import numcodecs.blosc
import numpy as np
import pytest
from chunks import CODECS, sine, walk
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array import codecs
from b2array.codec import cblosc
from b2array.codec.cblosc import Blosc1Params
from b2array.codec.chunk_header import CODEC_FORMATS, CodecFormat, CodecId
from b2array.codec.streams import MIN_STREAM
from b2array.errors import FormatError

FORMATS = (CodecFormat.BLOSCLZ, CodecFormat.LZ4, CodecFormat.ZLIB, CodecFormat.ZSTD)


def make(
    codec: str, data: np.ndarray, typesize: int, ask: int, shuffle: int = cblosc.SHUFFLE
) -> cblosc.Blosc1Chunk | None:
    flat = data.reshape(-1).view(np.uint8)
    return cblosc.compress_blocks(
        codecs.codec_id(codec), flat, clevel=5, shuffle=shuffle, typesize=typesize, blocksize=ask
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 8, 16])
def test_blocks_come_out_as_they_were_asked_for(codec: str, typesize: int) -> None:
    data = (np.arange(600_000) // 7 % 200).astype(np.uint8)
    for block in (2**12, 2**16, 2**17, 2**18, 2**20):
        block_nbytes = block // typesize * typesize
        ask = cblosc.fused_ask(codecs.codec_id(codec), typesize, block_nbytes, data.size)
        if ask is None:
            continue
        made = make(codec, data, typesize, ask)
        assert made is not None
        assert made.block_nbytes == min(block_nbytes, data.size)
        assert len(made.starts) == -(-data.size // made.block_nbytes)
        assert made.split == (codec != "zstd" and 1 < typesize <= 16)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shuffle", [cblosc.NOSHUFFLE, cblosc.SHUFFLE, cblosc.BITSHUFFLE])
def test_any_blocks_of_what_was_made_decode(codec: str, shuffle: int) -> None:
    data = np.repeat(sine(4_000), 10)
    made = make(codec, data, 8, 2**13, shuffle)
    assert made is not None
    params = Blosc1Params(CODEC_FORMATS[CodecId(codecs.codec_id(codec))], 8, shuffle, made.split, made.block_nbytes)
    starts = made.starts.tolist()
    stops = [*starts[1:], len(made.buf)]
    raw = data.tobytes()
    nfull = len(raw) // made.block_nbytes
    for numbers in ([0], [1, 3], [3, 1, 0, 2], [2, nfull - 1], range(nfull)):
        expected = b"".join(raw[n * made.block_nbytes : (n + 1) * made.block_nbytes] for n in numbers)
        out = np.empty(len(expected), np.uint8)
        for region in (memoryview(made.buf), memoryview(bytearray(made.buf))):
            cblosc.decode(params, region, [starts[n] for n in numbers], [stops[n] for n in numbers], out)
            assert out.tobytes() == expected
            assert bytes(region) == made.buf


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("neblock", [1, 128, 2**16, 300_000])
def test_runs_among_other_streams_decode(fmt: CodecFormat, neblock: int) -> None:
    raw = bytes(n * 31 % 256 for n in range(neblock))
    block = struct.pack("<i", 0) + struct.pack("<iB", -9, 1) + struct.pack("<i", neblock) + raw
    params = Blosc1Params(fmt, 3, cblosc.NOSHUFFLE, neblock >= MIN_STREAM, 3 * neblock)
    if not params.split:
        params = Blosc1Params(fmt, 1, cblosc.NOSHUFFLE, split=False, block_nbytes=neblock)
        out = np.empty(neblock, np.uint8)
        cblosc.decode(params, memoryview(struct.pack("<iB", -9, 1)), [0], [5], out)
        assert out.tobytes() == b"\x09" * neblock
        return
    region = memoryview(block * 2)
    out = np.empty(6 * neblock, np.uint8)
    cblosc.decode(params, region, [0, len(block)], [len(block), 2 * len(block)], out)
    assert out.tobytes() == (bytes(neblock) + b"\x09" * neblock + raw) * 2


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("order", ["end", "middle", "begin", "all"])
def test_runs_decode_within_the_margin_behind_blocks_and_change_nothing_else(fmt: CodecFormat, order: str) -> None:
    neblock = 1024
    raw = struct.pack("<i", neblock) + bytes(n * 31 % 256 for n in range(neblock))
    zero, nine = struct.pack("<i", 0), struct.pack("<iB", -9, 1)
    orders = {
        "end": (raw, zero, nine),
        "middle": (raw, nine, raw),
        "begin": (nine, raw, raw),
        "all": (zero, nine, nine),
    }
    streams = orders[order]
    block = b"".join(streams)
    plain = {raw: raw[4:], zero: bytes(neblock), nine: b"\x09" * neblock}
    blocks, data = [block, block], [b"".join(plain[stream] for stream in streams)] * 2
    params = Blosc1Params(fmt, 3, cblosc.NOSHUFFLE, split=True, block_nbytes=3 * neblock)
    lead = cblosc.margin_in_front(2)
    for room in (0, 1, cblosc.margin_behind(fmt, 3, 3 * neblock)):
        start = lead + len(blocks[0]) + room
        between = b"\xee" * room
        region = b"".join((b"\xee" * lead, blocks[0], between, blocks[1], between, b"\xee" * 9))
        writable = memoryview(bytearray(region))
        out = np.empty(6 * neblock, np.uint8)
        stops = [lead + len(blocks[0]), start + len(blocks[1])]
        cblosc.decode(params, writable, [lead, start], stops, out, margin=room)
        assert out.tobytes() == b"".join(data)
        assert writable[:lead] == region[:lead]
        assert writable[stops[1] + room :] == region[stops[1] + room :]
        if room <= 1:
            assert writable == region


@pytest.mark.parametrize("fmt", FORMATS)
@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=2, max_size=6), st.booleans())
def test_chunks_with_runs_and_without_decode_in_any_order(
    fmt: CodecFormat, chunks: list[list[bool]], writable: bool
) -> None:
    neblock = 1024
    raw = bytes(n * 31 % 256 for n in range(neblock))
    params = Blosc1Params(fmt, 3, cblosc.NOSHUFFLE, split=True, block_nbytes=3 * neblock)
    margin = cblosc.margin_behind(fmt, 3, 3 * neblock)
    for are_runs in chunks:
        streams = [struct.pack("<iB", -9, 1) if is_run else struct.pack("<i", neblock) + raw for is_run in are_runs]
        blocks = [b"".join(streams[n : n + 3]) for n in range(0, len(streams), 3)]
        starts, stops, region = [], [], bytes(cblosc.margin_in_front(len(blocks)))
        for block in blocks:
            starts.append(len(region))
            stops.append(len(region) + len(block))
            region += block + bytes(margin)
        out = np.empty(len(are_runs) * neblock, np.uint8)
        cblosc.decode(params, memoryview(bytearray(region) if writable else region), starts, stops, out, margin=margin)
        assert out.tobytes() == b"".join(b"\x09" * neblock if is_run else raw for is_run in are_runs)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("neblock", [128, 2**12, 2**17, 2**18])
def test_planes_are_the_streams_and_the_region_stays_as_it_was(fmt: CodecFormat, neblock: int, split: bool) -> None:
    raw = bytes(n * 31 % 256 for n in range(neblock))
    coded = (np.arange(neblock) // 7 % 256).astype(np.uint8)
    codec = next(n for n, of in CODEC_FORMATS.items() if of == fmt)
    payload = cblosc.encode_stream(codec, coded, 5) or raw
    kinds = [
        (struct.pack("<i", 0), bytes(neblock)),
        (struct.pack("<iB", -9, 1), b"\x09" * neblock),
        (struct.pack("<i", neblock) + raw, raw),
        (struct.pack("<i", len(payload)) + payload, raw if payload is raw else coded.tobytes()),
    ]
    blocks = [[kinds[n] for n in picked] for picked in ((0, 1, 2), (3, 3, 1), (1, 1, 1), (3, 2, 0))]
    if not split:
        blocks = [[kind] for kind in kinds]
    nstreams = len(blocks[0])
    params = Blosc1Params(fmt, 3, cblosc.SHUFFLE, split, nstreams * neblock)
    bodies = [b"".join(stream for stream, _ in block) for block in blocks]
    for lead in (0, cblosc.margin_in_front(4 * nstreams), 2**19):
        region = b"\xee" * lead + b"".join(bodies) + b"\xee" * 9
        starts = [lead + sum(map(len, bodies[:n])) for n in range(4)]
        stops = [start + len(body) for start, body in zip(starts, bodies, strict=True)]
        for view in (memoryview(region), memoryview(bytearray(region))):
            for numbers in ([1], [0, 3], [0, 1, 2, 3]):
                out = np.empty(len(numbers) * nstreams * neblock, np.uint8)
                where = [starts[n] for n in numbers], [stops[n] for n in numbers]
                cblosc.decode_planes(params, view, *where, out)
                assert out.tobytes() == b"".join(data for n in numbers for _, data in blocks[n])
                assert view == region


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_lies_between_blocks_that_are_shared_and_far_apart_is_not_copied(fmt: CodecFormat) -> None:
    block = struct.pack("<i", 512) + bytes(range(256)) * 2 + struct.pack("<iB", -9, 1)
    params = Blosc1Params(fmt, 2, cblosc.SHUFFLE, split=True, block_nbytes=1024)
    far = 2**24
    region = memoryview(block + b"\xee" * far + block)
    starts, stops = [len(block) + far, 0], [len(region), len(region)]
    out = np.empty(2048, np.uint8)
    tracemalloc.start()
    try:
        cblosc.decode_planes(params, region, starts, stops, out)
        assert tracemalloc.get_traced_memory()[1] < far // 8
    finally:
        tracemalloc.stop()
    assert out.tobytes() == (bytes(range(256)) * 2 + b"\x09" * 512) * 2


@pytest.mark.parametrize("fmt", FORMATS)
def test_planes_of_damaged_streams_are_refused(fmt: CodecFormat) -> None:
    block = struct.pack("<i", 40) + b"\xfe" * 40
    params = Blosc1Params(fmt, 2, cblosc.SHUFFLE, split=True, block_nbytes=1024)
    region = memoryview(bytearray(bytes(600) + block * 2 + bytes(30)))
    before = bytes(region)
    for stop in (688, 687, 640, 602):
        with pytest.raises(FormatError):
            cblosc.decode_planes(params, region, [600], [stop], np.empty(1024, np.uint8))
    assert region == before


@pytest.mark.parametrize("width", [1, 2, 3, 8, 16, 255])
@pytest.mark.parametrize("nitems", [1, 5, 64, 1000, 70_000])
def test_joined_planes_are_items(width: int, nitems: int) -> None:
    planes = np.random.default_rng(0).integers(0, 256, (width, nitems, 2), np.uint8)
    out = np.empty(width * nitems, np.uint8)
    cblosc.unshuffle(planes[:, ::-1, 1], out)
    assert np.array_equal(out.reshape(nitems, width), planes[:, ::-1, 1].T)


@given(st.sampled_from(("blosclz", "lz4hc")), st.integers(0, 3), st.integers(1, 5000))
def test_single_streams_decode(codec: str, step: int, nbytes: int) -> None:
    data = (np.arange(nbytes) * step // 7).astype(np.uint8)
    payload = cblosc.encode_stream(codecs.codec_id(codec), data, 5)
    if payload is not None:
        assert len(payload) < nbytes
        fmt = CODEC_FORMATS[CodecId(codecs.codec_id(codec))]
        assert cblosc.decode_stream(fmt, payload, nbytes).tobytes() == data.tobytes()
        with pytest.raises(FormatError):
            cblosc.decode_stream(fmt, payload[:-1], nbytes)


def test_noise_does_not_get_smaller() -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(2**17), np.uint8)
    assert make("lz4", noise, 1, 2**16) is None
    assert cblosc.encode_stream(CodecId.LZ4HC, noise, 5) is None


@pytest.mark.parametrize("neblock", [128, 500, 4095, 4096])
def test_small_streams_get_a_compressible_tail(neblock: int) -> None:
    data = walk(4096 * 10).view(np.uint8)[: neblock * 20]
    padded = cblosc.with_compressible_tail(data, neblock)
    assert padded[: data.size].tobytes() == data.tobytes()
    assert not padded[data.size :].any()
    assert (len(padded) - len(data)) % neblock == 0
    assert (len(padded) > len(data)) == (neblock < 4096)


@pytest.mark.parametrize("codec", CODECS)
def test_c_blosc_gets_no_more_than_it_counts(codec: str) -> None:
    number = codecs.codec_id(codec)
    largest = 2**31 - 1 - 32
    for nbytes, block_nbytes in (
        (largest, 2**18),
        (2**31 - 2**18, 2**18),
        (2**31 - 2**20, 2**20),
        (2**31 - 2**29, 2**29),
    ):
        assert cblosc.fused_ask(number, 1, block_nbytes, nbytes) is None
    assert cblosc.fused_ask(number, 1, 2**18, 2**31 - 2**21) == 2**18


@pytest.mark.parametrize("nbytes", [2**23 - 17, 2**23 - 2**20])
def test_data_that_c_blosc_cannot_count_are_stored_as_they_are(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.resize(sine(1000), nbytes).view(np.uint8)[:nbytes]
    small = cblosc.compress(data, b"zstd", 5, cblosc.SHUFFLE, 0, 8)
    # A smaller limit, because the real one needs chunks of 2 GiB.
    monkeypatch.setattr(cblosc, "_MOST_COUNTED", 2**23)
    monkeypatch.setattr(cblosc, "_SURELY_COUNTED", 2**21)
    chunk = cblosc.compress(data, b"zstd", 5, cblosc.SHUFFLE, 0, 8)
    assert len(small) < len(chunk) == nbytes + 16
    assert numcodecs.blosc.decompress(chunk) == numcodecs.blosc.decompress(small) == data.tobytes()
    # Chunks of Blosc2 are compressed in parts, and still get smaller.
    ours = b2array.compress(data, typesize=8, cparams=b2array.CParams("lz4"))
    assert len(ours) < nbytes // 2
    assert blosc2.decompress2(ours) == b2array.decompress(ours) == data.tobytes()
