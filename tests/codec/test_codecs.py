"""Streams decode to what went in, stock Blosc2 and this package read each other's, and bad bytes are refused."""

import re
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import blosc2
import numcodecs
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from b2array import codecs
from b2array.codec.chunk_header import CODEC_FORMATS, FLAG_EXTENDED, FLAG_UNSPLIT, ChunkHeader, CodecId
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError

STREAM_CODECS = [CodecId.LZ4, CodecId.LZ4HC, CodecId.ZLIB, CodecId.ZSTD]
DICT_CODECS = [CodecId.LZ4, CodecId.LZ4HC, CodecId.ZSTD]

codec_ids = st.sampled_from(STREAM_CODECS)
clevels = st.integers(1, 9)
noise = st.binary(max_size=300)
# Pieces of a few kinds in a row, so that there is something to find for a codec.
compressible = st.lists(st.tuples(st.binary(min_size=1, max_size=12), st.integers(1, 300)), max_size=8).map(
    lambda pieces: b"".join(piece * times for piece, times in pieces)
)
streams = st.one_of(noise, compressible)


@pytest.fixture
def registry(monkeypatch):
    """Leave no trace of what a test registers."""
    monkeypatch.setattr(codecs, "_registry", {})


@pytest.fixture(params=[True, False], ids=["with lz4", "without lz4"])
def maybe_lz4(request, monkeypatch):
    if request.param:
        pytest.importorskip("lz4.block")
    else:
        monkeypatch.setattr(codecs, "_lz4_block", lambda: None)
    return request.param


def stock_chunk(codec, payload, nbytes):
    """One block of one stream, as stock Blosc2 stores it."""
    flags = FLAG_EXTENDED | FLAG_UNSPLIT | CODEC_FORMATS[codec] << 5
    header = ChunkHeader(
        typesize=1, nbytes=nbytes, blocksize=nbytes, cbytes=HEADER_LEN + 8 + len(payload), flags=flags, udcodec=codec
    )
    return header.pack() + struct.pack("<2i", HEADER_LEN + 4, len(payload)) + payload


def streams_of(chunk):
    """Split an unsplit chunk of stock Blosc2 into its dictionary and the (payload, nbytes) of its blocks."""
    header = ChunkHeader.unpack(chunk)
    assert header.has_streams
    assert header.nstreams == 1
    starts = struct.unpack_from(f"<{header.nblocks}i", chunk, HEADER_LEN)
    dictionary = None
    if header.has_dict:
        at = HEADER_LEN + 4 * header.nblocks
        dictionary = chunk[at + 4 : at + 4 + struct.unpack_from("<i", chunk, at)[0]]
    sizes = [header.block_nbytes] * (header.nblocks - 1) + [header.last_block_nbytes]
    lengths = [struct.unpack_from("<i", chunk, start)[0] for start in starts]
    payloads = [chunk[start + 4 : start + 4 + length] for start, length in zip(starts, lengths, strict=True)]
    return dictionary, list(zip(payloads, sizes, strict=True))


def stock_compress(data, codec, **kwargs):
    return blosc2.compress2(
        data,
        codec=blosc2.Codec(codec),
        typesize=1,
        filters=[],
        filters_meta=[],
        splitmode=blosc2.SplitMode.NEVER_SPLIT,
        nthreads=1,
        **kwargs,
    )


def records(n):
    """Text that is alike from line to line, in which dictionaries pay."""
    rng = np.random.default_rng(1)
    lines = [
        f'{{"id": {i}, "name": "user{rng.integers(1000)}", "tags": ["alpha", "beta"], "score": {rng.random():.6f}}}\n'
        for i in range(n)
    ]
    return "".join(lines).encode()


@given(codec_ids, clevels, streams)
def test_what_was_encoded_decodes(codec, clevel, data):
    payload = codecs.encode(codec, data, clevel=clevel)
    if payload is not None:
        assert len(payload) < len(data)
        assert codecs.decode(codec, payload, len(data)) == data


@pytest.mark.parametrize("codec", STREAM_CODECS)
@pytest.mark.parametrize("as_buffer", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8).data])
def test_every_kind_of_buffer_is_taken(codec, as_buffer):
    payload = codecs.encode(codec, as_buffer(b"abcdefgh" * 100))
    assert isinstance(payload, bytes)
    assert codecs.decode(codec, as_buffer(payload), 800) == b"abcdefgh" * 100


@pytest.mark.parametrize("codec", STREAM_CODECS)
def test_data_that_do_not_shrink_give_none(codec):
    data = np.random.default_rng(0).bytes(1000)
    assert codecs.encode(codec, data) is None
    assert codecs.encode(codec, b"a") is None
    assert codecs.encode(codec, b"") is None


def test_lz4hc_without_lz4_writes_the_same_format(maybe_lz4):
    data = records(50)
    payload = codecs.encode(CodecId.LZ4HC, data)
    assert codecs.decode(CodecId.LZ4, payload, len(data)) == data


@given(codec_ids, clevels, compressible.filter(lambda data: len(data) >= 32))
def test_stock_decodes_what_we_encode(codec, clevel, data):
    payload = codecs.encode(codec, data, clevel=clevel)
    if payload is not None:
        assert blosc2.decompress2(stock_chunk(codec, payload, len(data))) == data


@pytest.mark.parametrize("codec", STREAM_CODECS)
@pytest.mark.parametrize("clevel", [1, 5, 9])
def test_what_stock_encodes_decodes(codec, clevel):
    data = records(200)
    _, parts = streams_of(stock_compress(data, codec, clevel=clevel, blocksize=4096))
    assert b"".join(codecs.decode(codec, payload, nbytes) for payload, nbytes in parts) == data


@pytest.mark.parametrize("codec", [CodecId.LZ4, CodecId.LZ4HC, CodecId.ZSTD])
@pytest.mark.parametrize("clevel", [1, 5, 9])
def test_levels_mean_what_they_mean_in_stock(codec, clevel):
    data = records(200)
    _, [(payload, _)] = streams_of(stock_compress(data, codec, clevel=clevel, blocksize=len(data)))
    # Other versions of the codecs compress a little differently.
    assert len(codecs.encode(codec, data, clevel=clevel)) == pytest.approx(len(payload), rel=0.05)


def test_zstd_frames_are_single_segments_with_content_size_and_without_checksum():
    payload = codecs.encode(CodecId.ZSTD, b"abc" * 100)
    frame = zstandard.get_frame_parameters(payload)
    assert payload[4] & 0x20
    assert (frame.content_size, frame.has_checksum, frame.dict_id) == (300, False, 0)


@pytest.mark.parametrize("codec", DICT_CODECS)
def test_stock_dictionaries_decode(codec, maybe_lz4):
    data = records(2000)
    dictionary, parts = streams_of(stock_compress(data, codec, clevel=5, blocksize=2048, use_dict=True))
    assert dictionary
    if codec != CodecId.ZSTD and not maybe_lz4:
        with pytest.raises(UnsupportedError, match=r"need the package lz4: pip install 'b2array\[lz4\]'$"):
            codecs.decode(codec, parts[0][0], parts[0][1], dictionary=dictionary)
        return
    decoded = [codecs.decode(codec, payload, nbytes, dictionary=dictionary) for payload, nbytes in parts]
    assert b"".join(decoded) == data


@pytest.mark.parametrize("codec", DICT_CODECS)
def test_our_dictionaries_decode_and_pay(codec):
    data = records(2000)
    blocks = np.frombuffer(data[: len(data) // 2048 * 2048], np.uint8).reshape(-1, 2048)
    dictionary = codecs.train(codec, blocks, 5)
    assert 256 <= len(dictionary) <= 32768
    smaller = 0
    for block in blocks:
        payload = codecs.encode(codec, block.data, dictionary=dictionary)
        smaller += len(codecs.encode(codec, block.data)) - len(payload)
        assert codecs.decode(codec, payload, 2048, dictionary=dictionary) == block.tobytes()
        with pytest.raises(FormatError):
            codecs.decode(codec, payload, 2048)
    assert smaller > 50 * len(blocks)


def test_stock_decodes_our_dictionaries():
    data = records(2000)
    blocks = np.frombuffer(data[: len(data) // 2048 * 2048], np.uint8).reshape(-1, 2048)
    for codec in DICT_CODECS:
        dictionary = codecs.train(codec, blocks, 5)
        payload = codecs.encode(codec, blocks[7].data, dictionary=dictionary)
        plain = ChunkHeader.unpack(stock_chunk(codec, payload, 2048))
        start = HEADER_LEN + 8 + len(dictionary)
        header = ChunkHeader(
            typesize=1,
            nbytes=2048,
            blocksize=2048,
            cbytes=start + 4 + len(payload),
            flags=plain.flags,
            udcodec=codec,
            blosc2_flags=1,
        )
        head = struct.pack("<2i", start, len(dictionary)) + dictionary
        chunk = header.pack() + head + struct.pack("<i", len(payload)) + payload
        assert blosc2.decompress2(chunk) == blocks[7].tobytes()


@pytest.mark.parametrize("codec", [CodecId.LZ4, CodecId.LZ4HC])
def test_lz4_dictionaries_cannot_be_written_without_lz4(codec, monkeypatch):
    monkeypatch.setattr(codecs, "_lz4_block", lambda: None)
    with pytest.raises(UnsupportedError, match="lz4"):
        codecs.encode(codec, bytes(1000), dictionary=bytes(1000))


def test_zlib_has_no_dictionaries():
    samples = np.zeros((100, 1000), np.uint8)
    assert codecs.train(CodecId.ZLIB, samples, 5) is None
    with pytest.raises(ValueError, match="zlib cannot use a dictionary"):
        codecs.encode(CodecId.ZLIB, bytes(1000), dictionary=bytes(1000))


@given(
    st.sampled_from([*STREAM_CODECS, CodecId.BLOSCLZ, 200]),
    st.tuples(st.integers(0, 40), st.integers(0, 4000)),
    st.integers(0, 3),
    clevels,
)
def test_training_gives_a_small_dictionary_or_none(codec, shape, kinds, clevel):
    samples = np.random.default_rng(0).integers(0, kinds + 1, shape).astype(np.uint8)
    dictionary = codecs.train(codec, samples, clevel)
    assert dictionary is None or 0 < len(dictionary) <= min(32768, samples.size // 20)


@pytest.mark.parametrize(
    "payload",
    ["", "30 6162", "00", "00 01", "00 0000 10 61", "00 0600 10 61", "f0", "f0 ff", "0f 0100", "00 0100", "ff"],
)
def test_broken_lz4_sequences_are_refused(payload):
    pytest.importorskip("lz4.block")
    with pytest.raises(FormatError):
        codecs.decode(CodecId.LZ4, bytes.fromhex(payload), 5, dictionary=b"vwxyz")


DICTIONARIES = {
    None: None,
    "raw": records(20),
    "trained": zstandard.train_dictionary(1024, [records(40)[i : i + 100] for i in range(0, 3000, 40)]).as_bytes(),
    "broken": b"\x37\xa4\x30\xec" + records(20),
}


def _decode_or_refuse(codec, payload, nbytes, dictionary):
    try:
        data = codecs.decode(codec, payload, nbytes, dictionary=DICTIONARIES[dictionary])
    except FormatError as error:
        assert str(error).startswith(f"expected {nbytes} bytes")  # noqa: PT017
    else:
        assert len(data) == nbytes


dictionaries = st.sampled_from(list(DICTIONARIES))


@given(codec_ids, st.binary(max_size=60), st.integers(0, 5000), dictionaries)
def test_any_bytes_decode_to_the_wanted_size_or_are_refused(codec, payload, nbytes, dictionary):
    _decode_or_refuse(codec, payload, nbytes, dictionary)


@given(codec_ids, compressible, st.data(), dictionaries)
def test_damaged_payloads_decode_to_the_wanted_size_or_are_refused(codec, data, draw, dictionary):
    payload = bytearray(codecs.encode(codec, data) or b"\0\0")
    for _ in range(draw.draw(st.integers(1, 3))):
        payload[draw.draw(st.integers(0, len(payload) - 1))] = draw.draw(st.integers(0, 255))
    _decode_or_refuse(codec, payload, len(data), dictionary)


@given(st.one_of(st.binary(max_size=60), compressible), st.integers(0, 5000))
def test_lz4_with_a_dictionary_decodes_to_the_wanted_size_or_refuses(payload, nbytes):
    pytest.importorskip("lz4.block")
    _decode_or_refuse(CodecId.LZ4, payload, nbytes, "raw")


@pytest.mark.parametrize("codec", STREAM_CODECS)
@pytest.mark.parametrize("nbytes", [0, 799, 801, 2**31 - 33])
def test_another_size_than_the_data_have_is_refused(codec, nbytes):
    payload = codecs.encode(codec, b"abcdefgh" * 100)
    with pytest.raises(FormatError, match=f"expected {nbytes} bytes"):
        codecs.decode(codec, payload, nbytes)


@pytest.mark.parametrize("codec", STREAM_CODECS)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_truncated_payloads_are_refused(codec, cut):
    payload = codecs.encode(codec, records(5))
    with pytest.raises(FormatError):
        codecs.decode(codec, payload[: len(payload) - 1 - cut], len(records(5)))


def test_zlib_checksums_are_compared():
    payload = bytearray(zlib.compress(b"abc" * 100))
    payload[-1] ^= 1
    with pytest.raises(FormatError):
        codecs.decode(CodecId.ZLIB, payload, 300)


@pytest.mark.parametrize("codec", [CodecId.ZLIB, CodecId.ZSTD])
def test_bytes_behind_the_stream_are_ignored(codec):
    payload = codecs.encode(codec, b"abc" * 100)
    assert codecs.decode(codec, payload + b"junk", 300) == b"abc" * 100


def test_zstd_frames_without_content_size_decode():
    payload = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100)
    assert zstandard.frame_content_size(payload) == -1
    assert codecs.decode(CodecId.ZSTD, payload, 300) == b"abc" * 100
    for nbytes in (299, 301):
        with pytest.raises(FormatError):
            codecs.decode(CodecId.ZSTD, payload, nbytes)


@given(
    st.lists(st.sampled_from(["usual", "unsized", "windowed", "two", "empty", "skippable"]), min_size=1, max_size=9),
    st.integers(1, 3000),
)
def test_many_zstd_frames_are_decoded_as_one_stream(kinds, nbytes):
    frames, expected = [], []
    for n, kind in enumerate(kinds):
        data = bytes([n, 1]) * (nbytes // 2) + b"z" * (nbytes % 2)
        half = nbytes // 2
        made = {
            "usual": lambda data=data: zstandard.compress(data),
            "unsized": lambda data=data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
            "windowed": lambda data=data: zstandard.ZstdCompressor(
                compression_params=zstandard.ZstdCompressionParameters(window_log=10, write_checksum=True)
            ).compress(data),
            "two": lambda data=data, half=half: zstandard.compress(data[:half]) + zstandard.compress(data[half:]),
            "empty": lambda data=data: zstandard.compress(b"") + zstandard.compress(data),
            "skippable": lambda data=data: bytes.fromhex("502a4d18 03000000") + b"abc" + zstandard.compress(data),
        }
        frames.append(memoryview(made[kind]()))
        expected.append(data)
    outs = [memoryview(bytearray(nbytes * n)) for n in (1, len(kinds) - 1) if n]
    codecs.decode_zstd_frames(frames, nbytes, outs)
    assert b"".join(outs) == b"".join(expected)


def with_checksum(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: [*frames[:2], frames[2][:-1]],
        lambda frames: [frames[0][:-1], *frames[1:]],
        lambda frames: [frames[0][:3], *frames[1:]],
        lambda frames: [b"", *frames[1:]],
        lambda frames: [*frames, frames[0]],
        lambda frames: frames[:2],
        lambda frames: [frames[0], frames[1], zstandard.compress(b"abc")],
        lambda frames: [frames[0], frames[1], zstandard.compress(b"a" * 5000)],
        lambda frames: [frames[0], b"\xff" * 40, frames[2]],
        lambda frames: [frames[0][:12] + b"\xff" * 9, *frames[1:]],
        lambda frames: [*frames[:2], frames[2] + frames[2]],
        lambda frames: [*frames[:2], frames[2] + b"a"],
        lambda frames: [*frames[:2], with_checksum(b"abcd" * 1000)[:-1]],
        lambda frames: [*frames[:2], with_checksum(b"abcd" * 1000)[:-4]],
        lambda frames: [*frames[:2], with_checksum(b"abcd" * 500) + with_checksum(b"abcd" * 500)[:-4]],
    ],
)
def test_zstd_frames_that_are_not_what_they_should_be_are_refused(spoil):
    frames = [zstandard.compress(bytes([n, 2, 3, n * 7]) * 1000) for n in range(3)]
    with pytest.raises(FormatError):
        codecs.decode_zstd_frames(spoil(frames), 4000, [memoryview(bytearray(12_000))])


def test_zstd_frames_that_ask_for_a_huge_window_are_refused():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100)
    payload = frame[:5] + bytes([25 - 10 << 3]) + frame[6:]
    assert zstandard.get_frame_parameters(payload).window_size == 2**25
    with pytest.raises(FormatError, match="too much memory"):
        codecs.decode(CodecId.ZSTD, payload, 300)


@pytest.mark.parametrize("codec", STREAM_CODECS)
def test_no_memory_is_taken_for_what_a_payload_cannot_hold(codec):
    payload = codecs.encode(codec, bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            codecs.decode(codec, payload, 2**30)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_no_memory_is_taken_for_the_content_size_that_a_zstd_frame_claims():
    payload = bytes.fromhex("28b52ffd a0 00000040 0b0000") + b"a"
    assert zstandard.frame_content_size(payload) == 2**30
    for nbytes in (100, 2**30):
        with pytest.raises(FormatError):
            codecs.decode(CodecId.ZSTD, payload, nbytes)


@pytest.mark.parametrize("codec", STREAM_CODECS)
def test_the_largest_ratios_are_reached_but_not_exceeded(codec):
    data = bytes(2**24)
    payload = codecs.encode(codec, data, clevel=9)
    assert 0.9 < len(data) / len(payload) / codecs.MAX_RATIO[codec] <= 1
    assert codecs.decode(codec, payload, len(data)) == data


def test_threads_do_not_disturb_each_other():
    data = records(300)
    dictionary = codecs.train(CodecId.ZSTD, np.frombuffer(data[:20000], np.uint8).reshape(100, 200), 5)

    def one(i):
        codec = STREAM_CODECS[i % 4]
        chosen = dictionary if codec == CodecId.ZSTD and i % 3 else None
        piece = data[i * 31 : i * 31 + 2000]
        payload = codecs.encode(codec, piece, clevel=1 + i % 9, dictionary=chosen)
        return codecs.decode(codec, payload, 2000, dictionary=chosen) == piece

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(400)))


def test_names_and_ids():
    for member in CodecId:
        assert codecs.codec_id(member.name.lower()) is member
        assert codecs.codec_id(int(member)) is member
        assert codecs.codec_name(member) == member.name.lower()
    assert codecs.codec_id(np.int8(5)) == 5
    assert codecs.codec_name(133) == "codec 133"


@pytest.mark.parametrize("codec", ["", "ZSTD", "snappy", 3, 6, 133, -1, 256])
def test_unknown_codecs_are_value_errors(codec, registry):
    with pytest.raises(ValueError, match="unknown codec"):
        codecs.codec_id(codec)


@pytest.mark.parametrize("codec", [True, 1.0, None, b"zstd"])
def test_other_types_than_names_and_ids_are_type_errors(codec):
    with pytest.raises(TypeError):
        codecs.codec_id(codec)


class Recorded(numcodecs.BZ2):
    """BZ2, with its settings kept."""

    def __init__(self, *settings):
        super().__init__(9)
        self.settings = settings


def test_registered_codecs_get_their_settings_and_the_stream(registry):
    made = []
    codecs.register(33, lambda *settings: made.append(settings) or Recorded(*settings))
    settings = {"meta": 7, "typesize": 4, "blockshape": (5, 50)}
    payload = codecs.encode(33, memoryview(bytes(1000)), **settings)
    assert codecs.decode(33, payload, 1000, **settings) == bytes(1000)
    assert made == [(7, 4, (5, 50))] * 2
    assert codecs.codec_id(33) == 33
    assert codecs.encode(33, b"abc") is None


def test_registering_again_replaces(registry):
    codecs.register(200, lambda *_: numcodecs.BZ2())
    codecs.register(200, lambda *_: numcodecs.GZip())
    assert codecs.encode(200, bytes(1000))[:2] == b"\x1f\x8b"


def test_registered_codecs_may_return_arrays(registry):
    class Halves(numcodecs.abc.Codec):
        def encode(self, buf):
            return np.frombuffer(buf, "<u2")[: len(buf) // 4]

        def decode(self, buf, out=None):
            return np.tile(np.frombuffer(buf, "<u2"), (2, 1))

    codecs.register(200, lambda *_: Halves())
    payload = codecs.encode(200, b"abcdabcd")
    assert payload == b"abcd"
    assert codecs.decode(200, payload, 8) == b"abcdabcd"


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 3, 4, 5, 31, 256])
def test_ids_that_are_not_free_cannot_be_registered(number, registry):
    with pytest.raises(ValueError, match="32 to 255"):
        codecs.register(number, lambda *_: numcodecs.BZ2())


def test_only_callables_can_be_registered(registry):
    with pytest.raises(TypeError, match="callable"):
        codecs.register(200, numcodecs.BZ2())
    with pytest.raises(TypeError):
        codecs.register("zfp", numcodecs.BZ2)


@given(st.binary(max_size=100), st.integers(0, 200))
def test_what_registered_codecs_raise_is_a_format_error(payload, nbytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "_registry", {200: lambda *_: numcodecs.BZ2()})
        try:
            assert len(codecs.decode(200, payload, nbytes)) == nbytes
        except FormatError as error:
            assert re.match(f"expected {nbytes} bytes from the {len(payload)} bytes", str(error))  # noqa: PT017


def test_wrong_settings_for_a_registered_codec_are_a_format_error(registry):
    codecs.register(200, lambda meta, typesize, blockshape: numcodecs.Delta(f"f{typesize}"))
    with pytest.raises(FormatError):
        codecs.decode(200, b"abc", 3, typesize=3)


@pytest.mark.parametrize("codec", [3, 6, 38, 133, 255])
def test_unknown_codecs_are_unsupported_and_named(codec, registry):
    for call in (codecs.encode, lambda *args: codecs.decode(*args, 100)):
        with pytest.raises(UnsupportedError, match=f"codec {codec}"):
            call(codec, b"abc")


def test_blosclz_is_not_coded_here():
    with pytest.raises(ValueError, match="Blosc1 chunk"):
        codecs.decode(CodecId.BLOSCLZ, b"abc", 3)
