"""Writes to parts of chunks: which blocks they decode and encode, what a transaction keeps open, what others read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.codec import chunk, decode, encode, splice
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import Special
from b2array.errors import ConflictError

SHAPE = (23, 19)
CPARAMS = [
    b2array.CParams("zstd"),
    b2array.CParams("zstd", clevel=0),
    b2array.CParams("lz4"),
    b2array.CParams("lz4hc", filters=("bitshuffle",)),
    b2array.CParams("blosclz", filters=()),
    b2array.CParams("zlib", filters=("shuffle", "bytedelta")),
    b2array.CParams("zstd", filters=("bitshuffle",), splitmode="always"),
    b2array.CParams("zstd", filters=("delta", "shuffle")),
    b2array.CParams("zstd", use_dict=True),
]


def smooth() -> np.ndarray:
    return np.add.outer(np.arange(SHAPE[0]) * 50, np.arange(SHAPE[1])).astype("f8")


STARTS = {
    "zeros": lambda: np.zeros(SHAPE),
    "value": lambda: np.full(SHAPE, 7.5),
    "nan": lambda: np.full(SHAPE, np.nan),
    "smooth": smooth,
    "noise": lambda: np.random.default_rng(3).normal(size=SHAPE),
}


def slices(extent: int) -> st.SearchStrategy[slice]:
    bounds = st.integers(0, extent)
    steps = st.sampled_from([1, 1, 2, 5])
    return st.builds(lambda a, b, step: slice(min(a, b), max(a, b), step), bounds, bounds, steps)


KEYS = st.one_of(
    st.tuples(slices(SHAPE[0]), slices(SHAPE[1])),
    st.tuples(st.integers(0, SHAPE[0] - 1), slices(SHAPE[1])),
    st.tuples(st.lists(st.integers(0, SHAPE[0] - 1), min_size=1, max_size=4), slices(SHAPE[1])),
    st.tuples(slices(SHAPE[0]), st.integers(0, SHAPE[1] - 1)),
)
WRITES = st.lists(st.tuples(KEYS, st.sampled_from(["same", "number", "noise", "zeros"])), min_size=1, max_size=5)


def value(kind: str, like: np.ndarray, seed: int) -> np.ndarray:
    if kind == "same":
        return like.copy()
    noise = np.random.default_rng(seed).normal(size=like.shape)
    return {"noise": noise, "number": np.full(like.shape, float(seed)), "zeros": np.zeros(like.shape)}[kind]


class Undone(Exception):
    pass


def undone(array: b2array.NDArray, writes: list) -> None:
    """Write inside of a change to the transaction that fails in the end."""
    with pytest.raises(Undone), array._handle.source.attempt():
        for key, values in writes:
            array[key] = values
        raise Undone


def stock_reads(path: Path) -> np.ndarray:
    return blosc2.open(str(path), mode="r")[...]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.sampled_from(sorted(STARTS)),
    cparams=st.sampled_from(CPARAMS),
    layout=st.sampled_from(["contiguous", "sparse"]),
    cut=st.sampled_from([((23, 19), (6, 5)), ((10, 8), (5, 4)), ((9, 19), (4, 19)), ((1, 19), (1, 4))]),
    writes=WRITES,
    joined=st.booleans(),
    buffer=st.sampled_from([0, 3000, 2**28]),
    drop=st.booleans(),
)
def test_partial_writes_equal_numpys(tmp_path_factory, start, cparams, layout, cut, writes, joined, buffer, drop):
    path = tmp_path_factory.mktemp("a") / "a.b2nd"
    expected = STARTS[start]()
    array = b2array.asarray(
        expected, url=path, chunks=cut[0], blocks=cut[1], cparams=cparams, layout=layout, interop=False
    )

    def write() -> None:
        for seed, (key, kind) in enumerate(writes):
            values = value(kind, expected[key], seed)
            if joined and drop:
                undone(array, [(key, values), (np.s_[::3], 5)])
                np.testing.assert_array_equal(array[...], expected)
            array[key] = values
            expected[key] = values
            np.testing.assert_array_equal(array[key], expected[key])
        np.testing.assert_array_equal(array[...], expected)
        assert array[3, 5] == expected[3, 5] or np.isnan(expected[3, 5])

    with config.using(write_buffer_bytes=buffer):
        if joined:
            with array.transaction():
                write()
        else:
            write()
    np.testing.assert_array_equal(b2array.open(path)[...], expected)
    stock_cannot = cparams.use_dict or "delta" in cparams.filters  # read parts of; see the option interop
    if not stock_cannot:
        np.testing.assert_array_equal(stock_reads(path), expected)
    assert b2array.verify(path).ok


# --- which blocks -----------------------------------------------------------------------------------------------------


class Counts:
    decoded = encoded = chunks = 0


@pytest.fixture
def counts(monkeypatch) -> Iterator[Counts]:
    """Count blocks that are decoded and encoded, and chunks that are encoded as a whole."""
    found = Counts()
    original = decode.decode_blocks, splice.plain, encode.encode

    def decode_blocks(stored, numbers, out, **options):
        found.decoded += len(numbers) * (options["context"].blockshape is not None)
        return original[0](stored, numbers, out, **options)

    def plain(task):
        found.encoded += task.nfull
        return original[1](task)

    def whole(data, **options):
        found.chunks += "blockshape" in options
        return original[2](data, **options)

    monkeypatch.setattr(decode, "decode_blocks", decode_blocks)
    monkeypatch.setattr(splice, "plain", plain)
    monkeypatch.setattr(encode, "encode", whole)
    return found


def waves() -> np.ndarray:
    return np.sin(np.add.outer(np.arange(64.0), np.arange(64.0))).round(3)


@pytest.fixture
def array(tmp_path) -> b2array.NDArray:
    return b2array.asarray(waves(), url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(16, 16))


def streams(array: b2array.NDArray) -> list[bytes]:
    stored = Stored.whole(memoryview(array.get_chunk(0)))
    return [bytes(stored.region[a:b]) for a, b in zip(stored.starts.tolist(), stored.stops.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("key", "touched", "decoded"),
    [
        (np.s_[5], {0, 1, 2, 3}, 4),
        (np.s_[:, 20], {1, 5, 9, 13}, 4),
        (np.s_[16:32], {4, 5, 6, 7}, 0),
        (np.s_[0:16, 0:20], {0, 1}, 1),
        (np.s_[[3, 60], 1], {0, 12}, 2),
        (np.s_[63, 63], {15}, 1),
    ],
)
def test_only_touched_blocks_are_decoded_and_encoded(array, counts, key, touched, decoded):
    before, expected = streams(array), waves()
    array[key] = expected[key] = 0.125
    assert (counts.decoded, counts.encoded, counts.chunks) == (decoded, len(touched), 0)
    after = streams(array)
    assert {n for n in range(16) if before[n] != after[n]} == touched
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(stock_reads(Path(array.url)), expected)


@pytest.mark.parametrize("fill", [0.0, 7.5, np.nan])
def test_a_constant_chunk_encodes_the_touched_blocks_and_one_more(tmp_path, counts, fill):
    array = b2array.full((64, 64), fill, "f8", url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(16, 16))
    array[20] = np.arange(64)
    assert (counts.encoded, counts.chunks) == (5, 0)
    expected = np.full((64, 64), fill)
    expected[20] = np.arange(64)
    np.testing.assert_array_equal(stock_reads(Path(array.url)), expected)


def test_a_constant_chunk_stays_constant(tmp_path):
    array = b2array.full((64, 64), 7.5, "f8", url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(16, 16))
    array[20:40, 3] = 7.5
    assert chunk.unpack_head(array.get_chunk(0)).header.special is Special.VALUE


def test_a_raw_chunk_stays_raw_until_something_gets_smaller(tmp_path, counts):
    noise = np.random.default_rng(0).integers(0, 2**63, (64, 64)).view("f8")
    array = b2array.asarray(noise, url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(16, 16))
    assert chunk.unpack_head(array.get_chunk(0)).header.memcpyed
    counts.chunks = 0
    array[3, 4] = 1
    assert (counts.encoded, counts.chunks) == (1, 0)
    assert chunk.unpack_head(array.get_chunk(0)).header.memcpyed
    array[:, :16] = 0
    assert counts.chunks == 1
    assert not chunk.unpack_head(array.get_chunk(0)).header.memcpyed
    noise[3, 4], noise[:, :16] = 1, 0
    np.testing.assert_array_equal(stock_reads(Path(array.url)).view("u8"), noise.view("u8"))


def test_a_chunk_that_would_not_be_smaller_than_its_data_becomes_raw(tmp_path):
    array = b2array.zeros((64, 64), "f8", url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(16, 16))
    noise = np.random.default_rng(0).integers(0, 2**63, (64, 64)).view("f8")
    array[1:] = noise[1:]
    assert not chunk.unpack_head(array.get_chunk(0)).header.memcpyed
    for row in range(16):
        array[row : row + 1] = noise[row]
    assert chunk.unpack_head(array.get_chunk(0)).header.memcpyed
    np.testing.assert_array_equal(stock_reads(Path(array.url)).view("u8"), noise.view("u8"))


def test_blocks_of_stock_chunks_keep_their_streams(tmp_path, counts):
    path = tmp_path / "a.b2nd"
    blosc2.asarray(waves(), urlpath=str(path), chunks=(64, 64), blocks=(16, 16), mode="w")
    array = b2array.open(path, mode="r+")
    before = streams(array)
    array[5] = 1
    assert (counts.decoded, counts.encoded, counts.chunks) == (4, 4, 0)
    assert streams(array)[4:] == before[4:]
    expected = waves()
    expected[5] = 1
    np.testing.assert_array_equal(stock_reads(path), expected)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_encodes_once(array, counts):
    with array.transaction():
        for row in range(32):
            array[row] = row
        assert (counts.encoded, counts.chunks) == (0, 0)
    assert (counts.encoded, counts.chunks, counts.decoded) == (8, 0, 8)
    assert (array[:32] == np.arange(32)[:, None]).all()
    np.testing.assert_array_equal(array[32:], waves()[32:])


def test_a_transaction_reads_its_own_writes(array):
    expected = waves()
    with array.transaction():
        array[3] = expected[3] = 1
        array[10:50:7, 5] = expected[10:50:7, 5] = 2
        np.testing.assert_array_equal(array[...], expected)
        np.testing.assert_array_equal(array[2:5, 30:40], expected[2:5, 30:40])
        np.testing.assert_array_equal(array[[60, 3], [2, 5]], expected[[60, 3], [2, 5]])
        assert (array[3, 63], array[40, 40], array[17, 5]) == (1, expected[40, 40], 2)
        found = []
        reader = threading.Thread(target=lambda: found.append(array[...]))
        reader.start()
        reader.join()
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(list(array), expected)
        whole = np.frombuffer(b2array.decompress(array.get_chunk(0))).reshape(4, 4, 16, 16)
        np.testing.assert_array_equal(whole.transpose(0, 2, 1, 3).reshape(64, 64), expected)
        array[4] = expected[4] = 3
        np.testing.assert_array_equal(array[...], expected)
        np.testing.assert_array_equal(array.copy()[...], expected)
    np.testing.assert_array_equal(b2array.open(array.url)[...], expected)


@pytest.mark.parametrize("limit", [0, 5 * 2**10, 2**20])
def test_the_write_buffer_stays_within_its_limit(tmp_path, counts, limit):
    array = b2array.zeros((16, 64), "f8", url=tmp_path / "a.b2nd", chunks=(4, 64), blocks=(2, 64))
    counts.chunks = 0
    with config.using(write_buffer_bytes=limit), array.transaction():
        buffer = array._handle.source.buffer
        for row in range(16):
            array[row] = row + 1
            assert buffer.nbytes <= limit
            assert buffer.nbytes >= sum(len(each._blocks) for each in buffer.chunks.values()) * 1024
        assert (array[...] == np.arange(1, 17)[:, None]).all()
        assert (counts.chunks + counts.encoded == 0) == (limit == 2**20)
    assert (b2array.open(array.url)[...] == np.arange(1, 17)[:, None]).all()


def test_a_failed_change_leaves_open_chunks_unchanged(array):
    expected = waves()
    with array.transaction():
        array[3] = expected[3] = 1
        undone(array, [(np.s_[3], 2), (np.s_[3, 5:9], 3), (np.s_[[2, 3]], 4), (np.s_[40], 5), (..., 6)])
        np.testing.assert_array_equal(array[...], expected)
        with config.using(write_buffer_bytes=0):
            undone(array, [(np.s_[3], 2), (np.s_[40], 5)])
        np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(b2array.open(array.url)[...], expected)


def test_a_failed_transaction_changes_nothing(array):
    before = Path(array.url).read_bytes()
    with pytest.raises(Undone), array.transaction():
        array[3] = 1
        raise Undone
    assert Path(array.url).read_bytes() == before
    np.testing.assert_array_equal(array[...], waves())


def test_an_open_chunk_conflicts_only_with_writes_to_the_same_chunk(tmp_path):
    array = b2array.zeros((8, 8), url=tmp_path / "a.b2nd", chunks=(2, 8), blocks=(1, 8))
    with array.transaction():
        array[0] = 1
        b2array.open(array.url, mode="r+")[3] = 2
    assert array[:, 0].tolist() == [1, 0, 0, 2, 0, 0, 0, 0]
    with pytest.raises(ConflictError, match=r"chunks \[1\]"), array.transaction():
        array[2] = 3
        b2array.open(array.url, mode="r+")[3] = 4
    assert b2array.open(array.url)[:, 0].tolist() == [1, 0, 0, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("axis", [0, 1])
def test_chunks_stay_open_while_an_array_grows(tmp_path, counts, axis):
    array = b2array.zeros((4, 4), url=tmp_path / "a.b2nd", chunks=(64, 64), blocks=(8, 8))
    expected = np.zeros((4, 4))
    with array.transaction():
        for step in range(1, 9):
            more = np.full((1, expected.shape[1]) if axis == 0 else (expected.shape[0], 1), float(step))
            array.append(more, axis)
            expected = np.concatenate((expected, more), axis)
            np.testing.assert_array_equal(array[...], expected)
        assert counts.encoded == counts.chunks == 0
        array.resize((13, 15))
        array.append(np.full((60, 15), 7))
        array.delete(slice(2, 5))
        array.insert(np.full((1, 15), 9), 1)
        grown = np.zeros((13, 15))
        grown[: expected.shape[0], : expected.shape[1]] = expected
        expected = np.insert(np.delete(np.concatenate((grown, np.full((60, 15), 7))), slice(2, 5), 0), 1, 9, 0)
        np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(stock_reads(Path(array.url)), expected)


def test_an_appender_encodes_a_row_of_chunks_once(tmp_path, counts):
    array = b2array.zeros((0, 64), url=tmp_path / "a.b2nd", chunks=(32, 64), blocks=(8, 64))
    with array.appender(every=1000) as out:
        for step in range(50):
            out.append(np.full(64, step))
    assert counts.encoded + 4 * counts.chunks <= 9
    assert (array[...] == np.arange(50)[:, None]).all()


def test_members_of_a_group_keep_their_chunks_open(tmp_path, counts):
    group = b2array.open_group(tmp_path / "g", "w")
    group.create("x", shape=(8, 8), dtype="f8", chunks=(8, 8), blocks=(2, 8))
    counts.chunks = counts.encoded = 0
    with group.transaction() as changes:
        member = changes["x"]
        for row in range(7):
            member[row] = row + 1
        assert counts.chunks + counts.encoded == 0
        assert (member[:7, 0] == np.arange(1, 8)).all()
    assert b2array.open_group(tmp_path / "g")["x"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


def test_a_step_over_thin_chunks_replaces_them_without_reading_them(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((9, 5, 4))
    array = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(1, 5, 4), layout="sparse")
    for file in (tmp_path / "a.b2nd").glob("*.chunk"):
        file.write_bytes(b"")
    for key in (slice(None, None, 2), slice(1, None, 3)):
        values[key] += 1
        array[key] = values[key]
    written = [0, 1, 2, 4, 6, 7, 8]
    assert (array[written] == values[written]).all()
