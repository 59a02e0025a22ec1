"""Filters undo themselves, agree with stock Blosc2 byte for byte, and refuse what does not fit."""

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import blosc2
import numcodecs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import b2array
from b2array import CParams, filters
from b2array.codec.chunk_header import (
    FLAG_EXTENDED,
    FLAG_UNSPLIT,
    NFILTERS,
    ChunkHeader,
    CodecFormat,
    CodecId,
    FilterId,
)
from b2array.codec.filters import Pipeline, backward, forward
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError

SHUFFLE, BITSHUFFLE, DELTA, TRUNC_PREC = (FilterId(i) for i in (1, 2, 3, 4))
NDCELL, NDMEAN, BUGGY, BYTEDELTA, INT_TRUNC = (FilterId(i) for i in (32, 33, 34, 35, 36))
LOSSLESS = [SHUFFLE, BITSHUFFLE, DELTA, BUGGY, BYTEDELTA]
STOCK_ZLIB = {
    "codec": blosc2.Codec.ZLIB,
    "clevel": 9,
    "splitmode": blosc2.SplitMode.NEVER_SPLIT,
    "nthreads": 1,
}


@pytest.fixture
def registry(monkeypatch):
    """Leave no trace of what a test registers."""
    monkeypatch.setattr(filters, "_registry", {})


def pipeline(*slots, typesize=1, **kwargs):
    """Make a pipeline of ids or (id, meta) pairs."""
    pairs = [slot if isinstance(slot, tuple) else (slot, 0) for slot in slots]
    pairs = [(0, 0)] * (NFILTERS - len(pairs)) + pairs
    return Pipeline(
        tuple(int(i) for i, _ in pairs), tuple(meta & 0xFF for _, meta in pairs), typesize=typesize, **kwargs
    )


def as_blocks(data, blocksize):
    """Cut bytes into full blocks, shape (n, blocksize), and the short last one, shape (0 or 1, rest)."""
    flat = np.frombuffer(data, np.uint8)
    full = len(flat) // blocksize * blocksize
    rest = flat[full:]
    return flat[:full].reshape(-1, blocksize), rest.reshape(1, -1) if rest.size else np.empty((0, 1), np.uint8)


def forward_chunk(line, data, blocksize):
    """Filter all blocks of a chunk, the short last one too."""
    full, rest = as_blocks(data, blocksize)
    return list(forward(line, full, first=True)) + list(forward(line, rest, reference=full[0]))


def backward_chunk(line, blocks):
    full = np.stack([block for block in blocks if len(block) == len(blocks[0])])
    decoded = backward(line, full, first=True)
    rest = [backward(line, block[np.newaxis], reference=decoded[0])[0] for block in blocks[len(full) :]]
    return b"".join(block.tobytes() for block in [*decoded, *rest])


def stock_blocks(chunk):
    """Return the filtered blocks in a chunk of unsplit zlib streams."""
    header = ChunkHeader.unpack(chunk)
    assert header.has_streams
    blocks = []
    for i in range(header.nblocks):
        nbytes = header.block_nbytes if i < header.nblocks - 1 else header.last_block_nbytes
        start = struct.unpack_from("<i", chunk, header.header_len + 4 * i)[0]
        size = struct.unpack_from("<i", chunk, start)[0]
        payload = chunk[start + 4 : start + 4 + max(size, 0)]
        if size <= 0:
            payload = bytes([-size]) * nbytes
        elif size != nbytes:
            payload = zlib.decompress(payload)
        blocks.append(np.frombuffer(payload, np.uint8))
    return header, blocks


def stock_filtered(line, data, blocksize):
    """Let stock Blosc2 filter a chunk."""
    used = [(i, m) for i, m in zip(line.filters, line.metas, strict=True) if i]
    chunk = blosc2.compress2(
        bytes(bytearray(data)),
        typesize=line.typesize,
        blocksize=blocksize,
        filters=[blosc2.Filter(i) for i, _ in used],
        filters_meta=[m - 256 if m > 127 else m for _, m in used],
        **STOCK_ZLIB,
    )
    # What does not compress is stored unfiltered.
    assume(ChunkHeader.unpack(chunk).has_streams)
    header, blocks = stock_blocks(chunk)
    assert header.block_nbytes == blocksize
    return blocks


def stock_decoded(line, blocks, nbytes):
    """Let stock Blosc2 decode a chunk of blocks that were filtered here."""
    payloads = [zlib.compress(block.tobytes()) for block in blocks]
    payloads = [p if len(p) < len(b) else b.tobytes() for p, b in zip(payloads, blocks, strict=True)]
    starts = np.cumsum([HEADER_LEN + 4 * len(blocks), *(4 + len(payload) for payload in payloads)])
    header = ChunkHeader(
        typesize=line.typesize,
        nbytes=nbytes,
        blocksize=len(blocks[0]),
        cbytes=int(starts[-1]),
        flags=FLAG_EXTENDED | FLAG_UNSPLIT | CodecFormat.ZLIB << 5,
        udcodec=CodecId.ZLIB,
        filters=line.filters,
        filters_meta=line.metas,
    )
    body = b"".join(struct.pack("<i", len(payload)) + payload for payload in payloads)
    # With several threads, stock decodes later blocks before its reference is whole, if DELTA is not the first filter.
    return blosc2.decompress2(header.pack() + starts[:-1].astype("<i4").tobytes() + body, nthreads=1)


def numbers(n, typesize, seed):
    """Make items whose upper bytes are mostly alike, as those of numbers are."""
    rng = np.random.default_rng(seed)
    items = rng.integers(0, 3, (n, typesize)).astype(np.uint8)
    items[:, 0] = np.cumsum(rng.integers(0, 5, n)) % 256
    return items.tobytes()


@st.composite
def chunks(draw, typesizes=(1, 2, 3, 4, 7, 8, 12, 16, 24, 40), tail=True):
    """Draw (typesize, blocksize, data): at least one full block, and perhaps a short one."""
    typesize = draw(st.sampled_from(typesizes))
    items = draw(st.integers(8, 70))
    n = draw(st.integers(items, 4 * items))
    data = numbers(n, typesize, draw(st.integers(0, 1000)))
    if tail:
        data += numbers(1, typesize, 1)[: draw(st.integers(0, typesize - 1))]
    return typesize, items * typesize, data


@given(
    st.lists(st.tuples(st.sampled_from([0, *LOSSLESS]), st.integers(0, 255)), max_size=6),
    st.integers(1, 255),
    st.sampled_from([2, 5]),
    st.integers(1, 5),
    st.integers(1, 600),
    st.integers(0, 600),
    st.integers(0, 1000),
)
def test_lossless_filters_undo_themselves(slots, typesize, version, n, nbytes, last, seed):
    line = pipeline(*slots, typesize=typesize, version=version)
    blocks = np.random.default_rng(seed).integers(0, 256, (n, nbytes), dtype=np.uint8)
    short = blocks[-1:, : last % (nbytes + 1)]
    before = blocks.copy()
    filtered = forward(line, blocks, first=True)
    short_filtered = forward(line, short, reference=blocks[0])
    assert (filtered.shape, filtered.dtype) == (blocks.shape, np.uint8)
    assert filtered.flags.c_contiguous
    kept = filtered.copy()
    np.testing.assert_array_equal(backward(line, filtered, first=True), before)
    np.testing.assert_array_equal(backward(line, short_filtered, reference=before[0]), short)
    # Any set of blocks can be filtered and decoded without the others.
    np.testing.assert_array_equal(forward(line, blocks[1:], reference=blocks[0]), filtered[1:])
    np.testing.assert_array_equal(backward(line, filtered[1:], reference=before[0]), before[1:])
    np.testing.assert_array_equal(blocks, before)
    np.testing.assert_array_equal(filtered, kept)


@pytest.mark.parametrize("slots", [(), (SHUFFLE,), (BITSHUFFLE,), (DELTA,), (BYTEDELTA,), (INT_TRUNC, DELTA)])
@pytest.mark.parametrize("shape", [(0, 0), (0, 16), (3, 0)])
def test_empty_blocks_stay_empty(slots, shape):
    line = pipeline(*((slot, 3) for slot in slots), typesize=4)
    blocks = np.empty(shape, np.uint8)
    for way in (forward, backward):
        for first in (True, False):
            assert way(line, blocks, reference=np.zeros(16, np.uint8), first=first).shape == shape


def test_read_only_and_strided_blocks_are_taken():
    line = pipeline(SHUFFLE, DELTA, typesize=4)
    wide = np.arange(256, dtype=np.uint8).reshape(4, 64)
    wide.flags.writeable = False
    blocks = wide[::2, 8:40]
    filtered = forward(line, blocks, first=True)
    np.testing.assert_array_equal(filtered, forward(line, blocks.copy(), first=True))
    np.testing.assert_array_equal(backward(line, filtered, first=True), blocks)


STOCK_PIPELINES = st.sampled_from(
    [
        [SHUFFLE],
        [BITSHUFFLE],
        [SHUFFLE, BITSHUFFLE],
        [(SHUFFLE, 2)],
        [(SHUFFLE, 5)],
        [(SHUFFLE, 255)],
        [SHUFFLE, (BYTEDELTA, 4)],
        [(BYTEDELTA, 1)],
        [(BYTEDELTA, 3)],
        [(BYTEDELTA, 200)],
    ]
)
# Stock Blosc2 loses the bytes behind the last full word with these.
STOCK_WORD_PIPELINES = st.sampled_from(
    [[DELTA], [DELTA, SHUFFLE], [SHUFFLE, DELTA], [DELTA, BITSHUFFLE], [BITSHUFFLE, DELTA]]
)


@given(STOCK_PIPELINES, chunks())
def test_filters_agree_with_stock(slots, chunk):
    typesize, blocksize, data = chunk
    assume(len(data) >= 32)
    line = pipeline(*slots, typesize=typesize)
    ours, stock = forward_chunk(line, data, blocksize), stock_filtered(line, data, blocksize)
    assert [block.tobytes() for block in ours] == [block.tobytes() for block in stock]
    assert backward_chunk(line, stock) == data
    assert stock_decoded(line, ours, len(data)) == data


@given(STOCK_WORD_PIPELINES, chunks(typesizes=(1, 2, 4, 8, 16, 24), tail=False))
def test_delta_agrees_with_stock(slots, chunk):
    typesize, blocksize, data = chunk
    assume(len(data) >= 32)
    line = pipeline(*slots, typesize=typesize)
    ours, stock = forward_chunk(line, data, blocksize), stock_filtered(line, data, blocksize)
    assert [block.tobytes() for block in ours] == [block.tobytes() for block in stock]
    assert backward_chunk(line, stock) == data
    assert stock_decoded(line, ours, len(data)) == data


@given(chunks(typesizes=(3, 7, 12), tail=False))
def test_delta_of_odd_items_agrees_with_stock(chunk):
    typesize, blocksize, data = chunk
    assume(len(data) >= 32)
    line = pipeline(DELTA, typesize=typesize)
    stock = stock_filtered(line, data, blocksize)
    assert [block.tobytes() for block in forward_chunk(line, data, blocksize)] == [b.tobytes() for b in stock]
    assert backward_chunk(line, stock) == data


@st.composite
def truncations(draw):
    number = draw(st.sampled_from([TRUNC_PREC, INT_TRUNC]))
    if number == TRUNC_PREC:
        typesize = draw(st.sampled_from([4, 8]))
        bits = {4: 23, 8: 52}[typesize]
    else:
        typesize = draw(st.sampled_from([1, 2, 4, 8]))
        bits = 8 * typesize
    meta = draw(st.one_of(st.integers(1, bits), st.integers(1 - bits, -1)))
    return number, typesize, meta, bits


@given(truncations(), st.data())
def test_truncation_agrees_with_stock_and_clears_the_low_bits(truncation, draw):
    number, typesize, meta, bits = truncation
    _, blocksize, data = draw.draw(chunks(typesizes=(typesize,), tail=False))
    assume(len(data) >= 32)
    line = pipeline((number, meta), typesize=typesize)
    ours, stock = forward_chunk(line, data, blocksize), stock_filtered(line, data, blocksize)
    assert [block.tobytes() for block in ours] == [block.tobytes() for block in stock]
    cleared = bits - meta if meta > 0 else -meta
    words = np.frombuffer(data, f"<u{typesize}").astype("<u8")
    expected = (words >> np.uint64(cleared) << np.uint64(cleared)).astype(f"<u{typesize}").tobytes()
    assert backward_chunk(line, ours) == expected
    assert stock_decoded(line, ours, len(data)) == expected


@given(truncations(), chunks(), st.sampled_from([[DELTA], [DELTA, SHUFFLE], [SHUFFLE]]), st.booleans())
def test_truncated_blocks_survive_other_filters(truncation, chunk, others, last):
    number, typesize, meta, _ = truncation
    _, blocksize, data = chunk
    truncate = (number, meta)
    plain = backward_chunk(
        pipeline(truncate, typesize=typesize), forward_chunk(pipeline(truncate, typesize=typesize), data, blocksize)
    )
    line = pipeline(truncate, *others, typesize=typesize)
    assert backward_chunk(line, forward_chunk(line, data, blocksize)) == plain
    if last and others == [DELTA]:
        line = pipeline(*others, truncate, typesize=typesize)
        assert backward_chunk(line, forward_chunk(line, data, blocksize)) == plain


@pytest.mark.parametrize("first", [TRUNC_PREC, INT_TRUNC])
def test_stock_decodes_truncated_delta_in_every_block(first):
    data = (np.arange(600) ** 2).astype("<i4").tobytes()
    alone, line = (pipeline((first, 16), *others, typesize=4) for others in ((), (DELTA,)))
    expected = backward_chunk(alone, forward_chunk(alone, data, 800))
    assert stock_decoded(line, forward_chunk(line, data, 800), len(data)) == expected != data


def test_tails_are_kept_by_lossy_filters_and_delta():
    block = np.full((1, 15), 255, np.uint8)
    for slot in ((TRUNC_PREC, 1), (INT_TRUNC, 1), DELTA):
        filtered = forward(pipeline(slot, typesize=4), block, first=True)
        assert filtered[0, 12:].tolist() == [255] * 3
        assert filtered[0, :12].tolist() != [255] * 12


def blosc1_blocks(data, typesize, blocksize):
    """Let C-Blosc1 bitshuffle a chunk."""
    codec = numcodecs.Blosc(cname="zlib", clevel=9, shuffle=numcodecs.Blosc.BITSHUFFLE, blocksize=blocksize)
    chunk = bytearray(codec.encode(np.frombuffer(data, f"V{typesize}")))
    return stock_blocks(bytes(chunk))


@pytest.mark.parametrize("typesize", [17, 24, 32])
@pytest.mark.parametrize("last", [0, 3, 8])
def test_bitshuffle_of_version_2_is_that_of_blosc1(typesize, last):
    data = numbers(2000 + last, typesize, 0)
    header, stock = blosc1_blocks(data, typesize, 0)
    assert (header.version, header.filters[5], header.nstreams) == (2, BITSHUFFLE, 1)
    line = Pipeline(header.filters, header.filters_meta, typesize, version=2)
    blocksize = len(stock[0])
    full, rest = as_blocks(data, blocksize)
    assert [b.tobytes() for b in stock] == [b.tobytes() for b in [*forward(line, full), *forward(line, rest)]]
    assert backward_chunk(line, stock) == data


@given(st.integers(1, 20), st.integers(0, 40), st.integers(0, 20), st.sampled_from([2, 5]))
def test_bitshuffle_is_a_transposition_of_bits(typesize, n, tail, version):
    tail %= typesize
    block = np.random.default_rng(n).integers(0, 256, (2, n * typesize + tail), dtype=np.uint8)
    m = n - n % 8
    if version == 2 and n % 8:
        m = 0
    bits = np.unpackbits(block[:, : m * typesize].reshape(2, m, typesize), axis=2, bitorder="little")
    expected = np.packbits(bits.swapaxes(1, 2), axis=2, bitorder="little").reshape(2, m * typesize)
    filtered = forward(pipeline(BITSHUFFLE, typesize=typesize, version=version), block)
    np.testing.assert_array_equal(filtered, np.hstack((expected, block[:, m * typesize :])))


def test_bitshuffle_of_more_words_than_stay_in_the_cache():
    block = np.random.default_rng(0).integers(0, 256, (1, 2**18 + 64), dtype=np.uint8)
    bits = np.unpackbits(block.reshape(-1, 8), axis=1, bitorder="little")
    expected = np.packbits(bits.T, axis=1, bitorder="little").reshape(1, -1)
    np.testing.assert_array_equal(forward(pipeline(BITSHUFFLE, typesize=8), block), expected)


def test_the_first_bytedelta_starts_again_behind_the_last_16():
    stream = np.arange(100, 140, dtype=np.uint8)
    filtered = forward(pipeline((BUGGY, 2), typesize=2), np.concatenate((stream, stream))[np.newaxis])
    expected = [100] + [1] * 31 + [132] + [1] * 7
    assert filtered[0].tolist() == expected * 2


def test_metas_of_zero_mean_the_typesize():
    blocks = np.arange(48, dtype=np.uint8).reshape(2, 24)
    for number in (SHUFFLE, BYTEDELTA, BUGGY):
        zero, named = (forward(pipeline((number, meta), typesize=3), blocks) for meta in (0, 3))
        np.testing.assert_array_equal(zero, named)


@pytest.mark.parametrize(
    ("shape", "chunk_shape", "block_shape", "edge"),
    [
        ((100,), (100,), (50,), 4),
        ((40, 50), (40, 50), (20, 25), 4),
        ((40, 50), (20, 25), (11, 25), 3),
        ((12, 14, 15), (12, 14, 15), (7, 14, 5), 3),
        ((6, 7, 8, 9), (6, 7, 8, 9), (3, 7, 4, 5), 2),
        ((30, 31), (30, 31), (15, 31), 1),
    ],
)
@pytest.mark.parametrize("number", [NDCELL, NDMEAN])
def test_cells_are_read_as_stock_reads_them(shape, chunk_shape, block_shape, edge, number):
    values = np.arange(np.prod(shape), dtype="<f4").reshape(shape)
    array = blosc2.asarray(
        values,
        chunks=chunk_shape,
        blocks=block_shape,
        cparams={"filters": [blosc2.Filter(number)], "filters_meta": [edge], **STOCK_ZLIB},
    )
    schunk = array.schunk
    for i in range(schunk.nchunks):
        header, stock = stock_blocks(schunk.get_chunk(i))
        line = Pipeline(header.filters, header.filters_meta, 4, blockshape=block_shape)
        assert backward_chunk(line, stock) == schunk.decompress_chunk(i)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 127), st.sampled_from([NDCELL, NDMEAN]))
def test_cells_come_in_c_order_and_hold_their_items_in_c_order(shape, edge, number):
    items = np.arange(np.prod(shape), dtype="<u4").reshape(shape)
    grid = [-(-extent // edge) for extent in shape]
    cells = [items[tuple(slice(c * edge, (c + 1) * edge) for c in corner)].reshape(-1) for corner in np.ndindex(*grid)]
    stored = np.concatenate(cells).view(np.uint8)
    line = pipeline((number, edge), typesize=4, blockshape=tuple(shape))
    decoded = backward(line, np.stack((stored, stored)))
    np.testing.assert_array_equal(decoded, np.tile(items.reshape(-1).view(np.uint8), (2, 1)))


@pytest.mark.parametrize("number", [NDCELL, NDMEAN])
@pytest.mark.parametrize(
    ("meta", "blockshape", "error", "match"),
    [
        (4, None, UnsupportedError, "shape of a block"),
        (0, (4, 4), FormatError, "cell edge"),
        (4, (), FormatError, "dimensions"),
        (4, (1,) * 9, FormatError, "dimensions"),
        (4, (4, 5), FormatError, "80 bytes"),
        (4, (0, 5), FormatError, "0 bytes"),
    ],
)
def test_cells_that_do_not_fit_the_block_are_refused(number, meta, blockshape, error, match):
    line = pipeline((number, meta), typesize=4, blockshape=blockshape)
    with pytest.raises(error, match=match):
        backward(line, np.zeros((2, 64), np.uint8))


def test_cells_of_means_have_at_most_127_items_along_an_axis():
    line = pipeline((NDMEAN, 128), typesize=4, blockshape=(4, 4))
    with pytest.raises(FormatError, match="found 128"):
        filters.check(line)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9), st.sampled_from(["<f4", "<f8"]), st.data()
)
def test_means_are_written_as_stock_writes_them(shape, edge, dtype, data):
    # In smaller blocks, not even zeros get smaller.
    assume(edge <= shape[0] and np.prod(shape) >= 8)
    noise = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    block = (noise.normal(size=shape) * 10.0 ** noise.integers(-6, 7, shape)).astype(dtype)
    block[noise.random(shape) < 0.1] = data.draw(st.sampled_from([0.0, -0.0, np.inf, 1e-45]))
    # Chunks that do not get smaller are stored as they are, without means, and the two libraries have different
    # versions of zlib. With blocks of zeros behind the first block, every chunk gets smaller in both.
    values = np.concatenate([block, np.zeros((7 * shape[0] + 64, *shape[1:]), dtype)])
    stock = blosc2.asarray(
        values,
        chunks=values.shape,
        blocks=shape,
        cparams={"filters": [blosc2.Filter.NDMEAN], "filters_meta": [edge], **STOCK_ZLIB},
    )
    header = ChunkHeader.unpack(stock.schunk.get_chunk(0))
    assert header.has_streams
    ours = b2array.asarray(
        values, chunks=values.shape, blocks=shape, cparams=CParams("zlib", filters=(33,), filters_meta=(edge,))
    )
    assert ours[...].tobytes() == stock[...].tobytes()
    assert blosc2.ndarray_from_cframe(ours.to_bytes())[...].tobytes() == stock[...].tobytes()
    _, blocks = stock_blocks(stock.schunk.get_chunk(0))
    line = Pipeline(header.filters, header.filters_meta, values.itemsize, blockshape=tuple(shape))
    filtered = forward(line, block.reshape(1, -1).view(np.uint8))
    assert filtered.tobytes() == blocks[0].tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_a_chunk_that_does_not_get_smaller_keeps_its_items_instead_of_means(seed):
    """Whether a chunk of noise gets two bytes smaller depends on the version of zlib: its items or their means are
    read, in stock Blosc2 as well."""
    noise = np.random.default_rng(seed)
    shape = (4, 4, 7)
    values = (noise.normal(size=shape) * 10.0 ** noise.integers(-6, 7, shape)).astype("f4")
    values[noise.random(shape) < 0.1] = -0.0
    ours = b2array.asarray(
        values, chunks=shape, blocks=shape, cparams=CParams("zlib", filters=(33,), filters_meta=(1,))
    )
    stock = blosc2.ndarray_from_cframe(ours.to_bytes())
    header = ChunkHeader.unpack(stock.schunk.get_chunk(0))
    # The mean of one item is the item plus zero, which turns -0.0 into 0.0.
    expected = values if header.memcpyed else values + np.float32(0)
    assert ours[...].tobytes() == expected.tobytes()
    assert stock[...].tobytes() == expected.tobytes()


def test_each_cell_gets_the_mean_of_its_items():
    line = pipeline((NDMEAN, 2), typesize=4, blockshape=(3, 3))
    items = np.array([[1, 3, 10], [5, 7, 20], [2, 4, 9]], "<f4")
    filtered = forward(line, items.reshape(1, -1).view(np.uint8))
    expected = np.array([[4, 4, 15], [4, 4, 15], [3, 3, 9]], "<f4")
    np.testing.assert_array_equal(backward(line, filtered).view("<f4").reshape(3, 3), expected)


def test_means_that_stock_could_not_read_or_of_no_floats_are_refused():
    block = np.zeros((1, 64), np.uint8)
    with pytest.raises(UnsupportedError, match=r"cells of ndmean with edge 5 are larger than blocks of shape \(4, 4\)"):
        forward(pipeline((NDMEAN, 5), typesize=4, blockshape=(4, 4)), block)
    with pytest.raises(ValueError, match="ndmean needs floats of 4 or 8 bytes, not items of 2"):
        forward(pipeline((NDMEAN, 2), typesize=2, blockshape=(4, 8)), block)
    with pytest.raises(ValueError, match="ndmean must be the first filter"):
        forward(pipeline((SHUFFLE, 0), (NDMEAN, 2), typesize=4, blockshape=(4, 4)), block)
    with pytest.raises(
        TypeError, match="ndmean takes the means of floats of 4 or 8 bytes in little endian, not of <i4"
    ):
        b2array.asarray(np.zeros((4, 4), "<i4"), cparams=CParams(filters=(33,), filters_meta=(2,)))


@pytest.mark.parametrize("number", [NDCELL, NDMEAN])
def test_a_copy_with_other_chunks_keeps_values_and_has_no_cells(number):
    values = np.arange(400, dtype="<f4").reshape(20, 20)
    a = b2array.asarray(values, chunks=(20, 20), blocks=(10, 10), cparams=CParams(filters=(number,), filters_meta=(4,)))
    assert np.array_equal(a[...], values) == (number == NDCELL)
    copy = b2array.copy(a, chunks=(7, 7), blocks=(2, 2))
    np.testing.assert_array_equal(copy[...], a[...])
    assert number not in copy.cparams.filter_slots
    same = b2array.copy(a)
    assert (number in same.cparams.filter_slots, same[...].tobytes()) == (True, a[...].tobytes())


def test_other_blocks_of_means_stay_when_one_is_written():
    values = np.arange(400, dtype="<f8").reshape(20, 20)
    a = b2array.asarray(values, chunks=(20, 20), blocks=(10, 10), cparams=CParams(filters=(33,), filters_meta=(2,)))
    expected = values.reshape(10, 2, 10, 2).mean((1, 3)).repeat(2, 0).repeat(2, 1)
    np.testing.assert_array_equal(a[...], expected)
    a[:2, :2] = 7
    expected[:2, :2] = 7
    np.testing.assert_array_equal(a[...], expected)


def test_cells_are_not_larger_than_a_block():
    line = pipeline((NDCELL, 5), typesize=4, blockshape=(4, 4))
    with pytest.raises(UnsupportedError, match=r"cells of ndcell with edge 5 are larger than blocks of shape \(4, 4\)"):
        forward(line, np.zeros((2, 64), np.uint8))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 9), st.sampled_from(["u1", "<i2", "<f4", "<f8"])
)
def test_cells_are_written_as_stock_writes_them(shape, edge, dtype):
    assume(edge ** len(shape) <= np.prod(shape))
    values = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    stock = blosc2.asarray(
        values,
        chunks=shape,
        blocks=shape,
        cparams={"filters": [blosc2.Filter.NDCELL], "filters_meta": [edge], **STOCK_ZLIB},
    )
    ours = b2array.asarray(
        values, chunks=shape, blocks=shape, cparams=CParams("zlib", filters=(32,), filters_meta=(edge,))
    )
    np.testing.assert_array_equal(ours[...], values)
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(ours.to_bytes())[...], values)
    if ChunkHeader.unpack(stock.schunk.get_chunk(0)).has_streams:
        header, blocks = stock_blocks(stock.schunk.get_chunk(0))
        line = Pipeline(header.filters, header.filters_meta, values.itemsize, blockshape=tuple(shape))
        made = forward(line, values.reshape(1, -1).view(np.uint8), first=True)
        np.testing.assert_array_equal(made[0], blocks[0])


@pytest.mark.parametrize(
    ("number", "typesize", "meta"),
    [
        (TRUNC_PREC, 4, 0),
        (TRUNC_PREC, 4, 24),
        (TRUNC_PREC, 4, -23),
        (TRUNC_PREC, 8, 53),
        (TRUNC_PREC, 8, -52),
        (TRUNC_PREC, 2, 1),
        (INT_TRUNC, 1, 0),
        (INT_TRUNC, 1, 9),
        (INT_TRUNC, 1, -8),
        (INT_TRUNC, 8, 65),
        (INT_TRUNC, 16, 1),
    ],
)
def test_truncation_that_makes_no_sense_is_refused_when_writing_and_ignored_when_reading(number, typesize, meta):
    line = pipeline((number, meta), typesize=typesize)
    blocks = np.arange(64, dtype=np.uint8).reshape(2, 32)
    with pytest.raises(ValueError, match=filters.filter_name(number)):
        forward(line, blocks)
    with pytest.raises(ValueError, match=filters.filter_name(number)):
        filters.check(line, encode=True)
    np.testing.assert_array_equal(backward(line, blocks), blocks)


def test_delta_without_its_reference_is_refused():
    line = pipeline(DELTA, typesize=4)
    blocks = np.zeros((2, 16), np.uint8)
    for way in (forward, backward):
        with pytest.raises(ValueError, match="block 0"):
            way(line, blocks)
    with pytest.raises(FormatError, match="at least 16 bytes for DELTA, found 12"):
        backward(line, blocks, reference=np.zeros(12, np.uint8))


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), max_size=6),
    st.integers(1, 255),
    st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=9).map(tuple)),
    st.tuples(st.integers(0, 3), st.integers(0, 300)),
)
def test_any_pipeline_keeps_the_length_or_is_refused(slots, typesize, blockshape, shape):
    line = pipeline(*slots, typesize=typesize, blockshape=blockshape)
    with suppress(FormatError, UnsupportedError):
        assert backward(line, np.zeros(shape, np.uint8), first=True).shape == shape


@pytest.mark.parametrize("number", [5, 31, 37, 160, 255])
def test_unknown_filters_are_unsupported_and_named(number, registry):
    line = pipeline(SHUFFLE, number)
    for call in (
        filters.check,
        lambda p: forward(p, np.zeros((1, 8), np.uint8)),
        lambda p: backward(p, np.zeros((1, 8), np.uint8)),
    ):
        with pytest.raises(UnsupportedError, match=f"filter {number}"):
            call(line)


def test_a_pipeline_has_six_slots():
    with pytest.raises(ValueError, match="6 slots"):
        Pipeline((1,), (0,), 4)
    with pytest.raises(ValueError, match="typesize"):
        Pipeline((0,) * 6, (0,) * 6, 0)


def test_names_and_ids():
    for member in FilterId:
        assert filters.filter_id(member.name.lower()) == member == filters.filter_id(int(member))
        assert filters.filter_name(member) == member.name.lower()
    assert filters.filter_id(np.int8(35)) == 35
    assert filters.filter_name(160) == "filter 160"


@pytest.mark.parametrize("name", ["", "Shuffle", "blosc", 5, 37, 160, -1, 256])
def test_unknown_filters_are_value_errors(name, registry):
    with pytest.raises(ValueError, match="unknown filter"):
        filters.filter_id(name)


@pytest.mark.parametrize("name", [True, 1.0, None, b"shuffle"])
def test_other_types_than_names_and_ids_are_type_errors(name):
    with pytest.raises(TypeError):
        filters.filter_id(name)


class Add(numcodecs.abc.Codec):
    """Adds a number to every byte."""

    def __init__(self, number):
        self.number = number

    def encode(self, buf):
        return np.frombuffer(buf, np.uint8) + np.uint8(self.number)

    def decode(self, buf, out=None):
        return np.frombuffer(buf, np.uint8) - np.uint8(self.number)


def test_registered_filters_get_their_settings_and_each_block(registry):
    made = []
    filters.register(170, lambda *settings: made.append(settings) or Add(settings[0]))
    line = pipeline((170, 3), SHUFFLE, typesize=2, blockshape=(2, 2))
    blocks = np.arange(16, dtype=np.uint8).reshape(2, 8)
    filtered = forward(line, blocks)
    np.testing.assert_array_equal(filtered, forward(pipeline(SHUFFLE, typesize=2), blocks + np.uint8(3)))
    np.testing.assert_array_equal(backward(line, filtered), blocks)
    assert made == [(3, 2, (2, 2))] * 2
    assert filters.filter_id(170) == 170


def test_registering_again_replaces(registry):
    for number in (1, 2):
        filters.register(37, lambda *_, number=number: Add(number))
    assert forward(pipeline(37), np.zeros((1, 1), np.uint8)).tolist() == [[2]]


def test_registered_filters_that_change_the_length_are_refused(registry):
    filters.register(170, lambda *_: numcodecs.BZ2())
    with pytest.raises(ValueError, match="filter 170"):
        forward(pipeline(170), np.zeros((1, 100), np.uint8))
    packed = np.frombuffer(numcodecs.BZ2().encode(bytes(100)), np.uint8)
    with pytest.raises(FormatError, match=f"expected {len(packed)} bytes from filter 170, found 100"):
        backward(pipeline(170), packed[np.newaxis])


def test_what_registered_filters_raise_when_reading_is_a_format_error(registry):
    filters.register(170, lambda *_: numcodecs.BZ2())
    with pytest.raises(FormatError, match="filter 170"):
        backward(pipeline(170), np.zeros((1, 100), np.uint8))


@pytest.mark.parametrize("number", [-1, *range(5), 31, *range(32, 37), 256])
def test_ids_that_are_not_free_cannot_be_registered(number, registry):
    with pytest.raises(ValueError, match="32 to 255"):
        filters.register(number, Add)


def test_only_callables_can_be_registered(registry):
    with pytest.raises(TypeError, match="callable"):
        filters.register(170, Add(1))
    with pytest.raises(TypeError):
        filters.register("mine", Add)


def test_threads_do_not_disturb_each_other():
    blocks = np.random.default_rng(0).integers(0, 256, (20, 4096), dtype=np.uint8)

    def one(i):
        line = pipeline(*[LOSSLESS[i % 5], LOSSLESS[i // 5 % 5]], typesize=1 + i % 16)
        return (backward(line, forward(line, blocks, first=True), first=True) == blocks).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(100)))
