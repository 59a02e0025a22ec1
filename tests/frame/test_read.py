"""Items between memory and chunks: every box of every geometry, whatever wrote the chunks, with cache and without."""

from __future__ import annotations

import os
import struct
import threading
import tracemalloc

import blosc2
import numpy as np
import pytest
from chunks import make_chunk
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import buffers, config
from b2array.array.schunk import SChunk
from b2array.codec import chunk_header
from b2array.codec import encode as encoder
from b2array.codec.chunk_header import Special
from b2array.errors import ConflictError, FormatError
from b2array.frame import cache, read
from b2array.store import local_store


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    monkeypatch.setattr(cache, "blocks", cache.Cache())


def replaced(array, n, buf):
    """Put a chunk of any kind into an array."""
    SChunk(array._handle).update_chunk(n, buf)
    return array


@st.composite
def geometries(draw):
    shape = tuple(draw(st.lists(st.integers(1, 12), max_size=3)))
    chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
    blocks = tuple(draw(st.integers(1, n)) for n in chunks)
    return shape, chunks, blocks


@st.composite
def boxes(draw, shape):
    return tuple(slice(low := draw(st.integers(0, n - 1)), draw(st.integers(low + 1, n))) for n in shape)


@given(st.data(), st.sampled_from([0, 2**26]), st.sampled_from([1, 2]), st.sampled_from(["lz4", "zstd"]))
@settings(max_examples=examples(80), deadline=None)
def test_any_box_is_read_and_written(data, cache_bytes, threads, codec):
    shape, chunks, blocks = data.draw(geometries())
    values = np.random.default_rng(0).integers(0, 9, shape)
    with config.using(cache_bytes=cache_bytes, threads=threads):
        array = b2array.asarray(values, chunks=chunks, blocks=blocks, cparams=b2array.CParams(codec))
        for n in range(3):
            key = data.draw(boxes(shape))
            assert array[key].tolist() == values[key].tolist()
            key = data.draw(boxes(shape))
            values[key] = n + np.arange(values[key].size).reshape(values[key].shape)
            array[key] = values[key]
        assert array[...].tolist() == values.tolist()


@pytest.mark.parametrize("stored", ["memory", "file"])
@pytest.mark.parametrize("key", [5, slice(5, 9), slice(0, None, 4096), np.array([1, 5])])
@pytest.mark.parametrize("nstreams", [1, 8])
def test_blocks_that_claim_too_much_are_refused_before_memory_is_taken(stored, key, nstreams, tmp_path):
    nitems = 2**25
    stream = struct.pack("<i", 31) + b"x" * 31
    buf = make_chunk(
        [stream * nstreams],
        typesize=8,
        nbytes=8 * nitems,
        blocksize=8 * nitems,
        filters=(0, 0, 0, 0, 0, 1),
        flags=chunk_header.FLAG_EXTENDED
        | chunk_header.CodecFormat.LZ4 << 5
        | chunk_header.FLAG_UNSPLIT * (nstreams == 1),
    )
    options = {} if stored == "memory" else {"url": tmp_path / "a.b2nd"}
    array = replaced(b2array.empty((nitems,), "f8", chunks=(nitems,), blocks=(nitems,), **options), 0, buf)
    for cache_bytes in (0, 2**40):
        with config.using(cache_bytes=cache_bytes):
            tracemalloc.start()
            try:
                with pytest.raises(FormatError, match="expected streams that can hold"):
                    array[key]
                assert tracemalloc.get_traced_memory()[1] < 2**23
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("cache_bytes", [0, 2**26])
@pytest.mark.parametrize(
    "dtype", ["f8", "i2", "?", "c16", "M8[s]", "S3", "S300", "U2", "V7", [("a", "i2"), ("b", "S2")]]
)
@pytest.mark.parametrize("writer", ["ours", "stock"])
def test_arrays_without_dimensions_are_read_and_written(cache_bytes, dtype, writer, tmp_path):
    first, second = (np.frombuffer(bytes([n]) * np.dtype(dtype).itemsize, dtype).reshape(()) for n in (1, 0))
    path = tmp_path / "a.b2nd"
    if writer == "stock":
        blosc2.asarray(first, urlpath=str(path))
    else:
        b2array.asarray(first, url=path).close()
    with config.using(cache_bytes=cache_bytes), b2array.open(path, mode="r+") as array:
        for values in (first, second, first):
            array[...] = values
            for key in ((), ..., None, (None, ..., None)):
                assert np.asarray(array[key], values.dtype).tobytes() == values.tobytes()
                assert np.shape(array[key]) == np.shape(values[key])


@pytest.mark.parametrize("cache_bytes", [0, 2**26])
@pytest.mark.parametrize(
    "make",
    [
        lambda data: encoder.encode(data, typesize=4, blocksize=20 * 4),
        lambda data: encoder.encode(data, typesize=4, blocksize=7 * 4),
        lambda data: encoder.encode(data, typesize=2, blocksize=400),
        lambda data: encoder.encode(data, typesize=1, blocksize=33),
        lambda data: encoder.encode(data, typesize=4, blocksize=400),
        lambda data: encoder.encode(data, typesize=4, blocksize=80, cparams=b2array.CParams(clevel=0)),
        lambda data: blosc2.compress2(data, typesize=4, blocksize=28),
    ],
)
def test_chunks_with_other_blocks_than_the_arrays_are_read(make, cache_bytes):
    values = np.random.default_rng(0).integers(0, 50, (10, 10), dtype="i4")
    array = b2array.zeros((20, 10), "i4", chunks=(10, 10), blocks=(2, 10))
    replaced(array, 1, make(values.tobytes()))
    expected = np.vstack([np.zeros((10, 10), "i4"), values])
    with config.using(cache_bytes=cache_bytes):
        assert array[...].tolist() == expected.tolist()
        assert array[5:17, 3:8].tolist() == expected[5:17, 3:8].tolist()
        assert array[[11, 3, 19], [2, 0, 9]].tolist() == expected[[11, 3, 19], [2, 0, 9]].tolist()
        assert array[13, 4] == expected[13, 4]
        array[13, 4] = expected[13, 4] = -1
        assert array[...].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("value", "item"),
    [(Special.NAN, np.nan), ((2.5).__class__(2.5), 2.5), (Special.ZEROS, 0.0), (Special.UNINIT, 0.0)],
)
def test_special_chunks_are_broadcast(value, item):
    content = np.float64(value).tobytes() if isinstance(value, float) else value
    array = b2array.asarray(np.arange(20.0), chunks=10, blocks=5)
    replaced(array, 1, encoder.special_chunk(content, 80, typesize=8, blocksize=40))
    expected = np.array([*range(10), *[item] * 10])
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[7:13], expected[7:13])
    np.testing.assert_array_equal(array[[15, 3]], expected[[15, 3]])
    np.testing.assert_array_equal(array[12], expected[12])
    array[12] = 1
    np.testing.assert_array_equal(array[10:14], [item, item, 1, item])


def test_a_repeated_value_of_another_size_is_a_format_error_with_its_place():
    array = b2array.asarray(np.arange(20.0), chunks=10, blocks=5)
    replaced(array, 1, encoder.special_chunk(b"\1\2\3\4", 80, typesize=4, blocksize=40))
    for key in (slice(None), 12, slice(11, 13), [15]):
        with pytest.raises(FormatError, match="chunk 1 of memory: expected a repeated item of 8 bytes, found 4"):
            array[key]
    assert array[:10].tolist() == list(range(10))


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize(("dtype", "nitems"), [("u1", 2**20), ("u4", 2**19), ("V250", 4000)])
def test_one_large_chunk_that_is_nearly_all_of_its_store_is_read(tmp_path, monkeypatch, layout, dtype, nitems):
    monkeypatch.setattr(buffers, "_unused", buffers._ThreadBuffers())
    monkeypatch.setattr(local_store, "_TRUSTED_ROOM", 2**18)
    noise = np.random.default_rng(0).integers(0, 2**24, nitems, dtype="u4")
    values = noise.astype(dtype) if dtype != "V250" else np.frombuffer(noise.tobytes() * 63, "V250", nitems)
    path = str(tmp_path / "array.b2nd")
    b2array.asarray(values, url=path, chunks=nitems, blocks=nitems // 500, layout=layout)
    array = b2array.open(path)
    for _ in range(2):
        assert array[...].tobytes() == values.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_chunk_that_cannot_be_decoded_is_named(threads):
    array = b2array.asarray(np.random.default_rng(0).integers(0, 9, 400), chunks=100, blocks=50)
    bad = bytearray(array.get_chunk(2))
    head = b2array.codec.chunk.unpack_head(bytes(bad))
    bad[int(head.starts[0]) : int(head.starts[0]) + 4] = b"\xff\xff\xff\x7f"
    SChunk(array._handle).update_chunk(2, bytes(bad))
    with config.using(threads=threads):
        for key in (slice(None), slice(210, 220), 205, [203, 204]):
            with pytest.raises(FormatError, match="chunk 2 of memory"):
                array[key]
        with pytest.raises(FormatError, match="chunk 2 of memory"):
            array[203:] = 1
        # A chunk that is covered need not be read.
        array[200:300] = 5
    assert (array[200:300] == 5).all()


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_read_of_a_cut_off_item_names_its_chunk_and_of_a_rewritten_one_is_a_conflict(tmp_path, contiguous):
    path = tmp_path / "array.b2nd"
    values = np.random.default_rng(0).integers(0, 2**20, 20000)
    stock = blosc2.asarray(values, urlpath=str(path), contiguous=contiguous, chunks=(10000,), blocks=(1000,))
    with config.using(cache_bytes=0):
        array = b2array.open(str(path))
        assert [array[n,] for n in (9999, 9999)] == [values[9999]] * 2
        file = path if contiguous else path / "00000000.chunk"
        content = file.read_bytes()
        os.truncate(file, 5000)
        with pytest.raises(FormatError, match="chunk 0 of"):
            array[9999,]
        file.write_bytes(content)
        stock[:] = 7
        with pytest.raises(ConflictError):
            array[9999,]


# --- the cache --------------------------------------------------------------------------------------------------------


def test_blocks_that_are_read_again_come_from_the_cache(monkeypatch):
    array = b2array.asarray(np.arange(1000), chunks=100, blocks=50)
    first = [array[n] for n in range(0, 1000, 10)]

    def forbidden(*_, **__):
        raise AssertionError

    monkeypatch.setattr(array._handle.store, "read", forbidden)
    monkeypatch.setattr(array._handle.store, "gather", forbidden)
    assert [array[n] for n in range(0, 1000, 10)] == first == list(range(0, 1000, 10))


def test_the_cache_keeps_states_apart():
    array = b2array.asarray(np.arange(100), chunks=10, blocks=5)
    old = b2array.from_bytes(array.to_bytes())
    for n in range(5):
        assert array[13] == (13 if n == 0 else n - 1)
        array[13] = n
        assert array[13] == n
        with array.transaction():
            array[13] = 99
            assert array[13] == 99
            array[13] = n
    assert array[13] == 4
    assert old[13] == 13


def test_changes_of_a_result_do_not_reach_the_cache():
    array = b2array.asarray(np.arange(100), chunks=10, blocks=5)
    for _ in range(2):
        found = array[10:15]
        assert found.tolist() == [10, 11, 12, 13, 14]
        found[...] = -1


def test_the_cache_stays_within_its_limit():
    array = b2array.asarray(np.arange(10_000), chunks=1000, blocks=100)
    with config.using(cache_bytes=5000):
        for n in range(0, 10_000, 100):
            assert array[n] == n
        assert 0 < cache.blocks.nbytes <= 5000
        slabs = {id(entry.slab): entry.slab for of in cache.blocks._chunks.values() for entry in of.values()}
        assert cache.blocks.nbytes == sum(slab.nbytes for slab in slabs.values())
    with config.using(cache_bytes=0):
        assert array[5] == 5


def test_threads_read_through_one_cache():
    array = b2array.asarray(np.arange(5000), chunks=500, blocks=100)
    wrong = []

    def read(seed):
        numbers = np.random.default_rng(seed).integers(0, 5000, 200).tolist()
        wrong.extend(n for n in numbers if array[n] != n)

    with config.using(cache_bytes=20_000):
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@given(st.data(), st.sampled_from([30_000, 2**26]), st.sampled_from([1, 2]), st.sampled_from(["lz4", "zstd"]))
@settings(max_examples=examples(60), deadline=None)
def test_reads_of_any_kind_share_blocks_in_the_cache(data, cache_bytes, threads, codec):
    shape, blocks = (20, 30, 17), (4, 8, 16)
    values = np.random.default_rng(0).integers(0, 99, shape)
    array = b2array.asarray(values, chunks=(10, 16, 17), blocks=blocks, cparams=b2array.CParams(codec))
    kinds = {
        "box": lambda: data.draw(boxes(shape)),
        "plane": lambda: (slice(None), data.draw(st.integers(0, 29))),
        "point": lambda: tuple(data.draw(st.integers(0, n - 1)) for n in shape),
        "list": lambda: (data.draw(st.lists(st.integers(0, 19), min_size=1, max_size=5)), slice(None), 3),
        "steps": lambda: (slice(None, None, 3), slice(None, None, -2), data.draw(st.integers(0, 16))),
    }
    with config.using(cache_bytes=cache_bytes, threads=threads):
        for _ in range(6):
            key = kinds[data.draw(st.sampled_from(sorted(kinds)))]()
            assert np.array_equal(array[key], values[key]), key


def test_only_blocks_that_the_cache_does_not_have_are_fetched(monkeypatch):
    values = np.arange(1200).reshape(30, 40)
    array = b2array.asarray(values, chunks=(20, 40), blocks=(5, 10))
    fetched = []

    def fetch(source, requests):
        fetched.extend((number, list(blocks)) for number, blocks in requests)
        return original(source, requests)

    original = read.fetch
    monkeypatch.setattr(read, "fetch", fetch)
    with config.using(threads=1):
        for key, expected in (
            ((7, 12), [(0, [5])]),
            (np.s_[5:9, 8:25], [(0, [4, 6])]),
            (([6, 21], slice(None)), [(0, [7]), (1, [0, 1, 2, 3])]),
            (np.s_[5:9], []),
            ((21, 39), []),
        ):
            fetched.clear()
            assert np.array_equal(array[key], values[key])
            assert fetched == expected


@pytest.mark.parametrize(("codec", "spans"), [("zstd", 1), ("lz4", 4)])
def test_neighbouring_blocks_are_one_range_of_a_file_if_no_block_needs_a_margin(tmp_path, monkeypatch, codec, spans):
    values = np.arange(64_000).reshape(64, 1000)
    a = b2array.asarray(
        values, url=tmp_path / "a.b2nd", chunks=(64, 1000), blocks=(8, 1000), cparams=b2array.CParams(codec)
    )
    a[0]  # the chunk's head is read
    found = []
    gather = local_store.LocalStore.gather
    monkeypatch.setattr(
        local_store.LocalStore,
        "gather",
        lambda self, *args, **options: found.append(args[0]) or gather(self, *args, **options),
    )
    np.testing.assert_array_equal(a[16:48], values[16:48])
    assert [len(asked) for asked in found] == [spans]


def test_blocks_behind_a_head_are_read_into_the_memory_that_the_head_had(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**62, (8, 2**18))
    b2array.asarray(values, chunks=(4, 2**18), blocks=(1, 2**14), url=tmp_path / "a.b2nd")
    with config.using(cache_bytes=0):
        assert b2array.open(tmp_path / "a.b2nd")[1, :: 2**14].sum()  # this thread has memory now
        for row in (3, 5):
            opened = b2array.open(tmp_path / "a.b2nd")
            tracemalloc.start()
            try:
                assert np.array_equal(opened[row, :: 2**14], values[row, :: 2**14])
                assert tracemalloc.get_traced_memory()[1] < 2**18  # the blocks have 2**21
            finally:
                tracemalloc.stop()


def test_one_read_keeps_at_most_half_of_the_cache_and_reuses_it(monkeypatch):
    values = np.arange(2**18).reshape(64, 4096)  # 2 MiB, in blocks of 32 KiB
    array = b2array.asarray(values, chunks=(8, 4096), blocks=(1, 4096))
    other = b2array.asarray(values[:8], chunks=(8, 4096), blocks=(1, 4096))
    fetched = []
    original = read.fetch
    monkeypatch.setattr(
        read, "fetch", lambda source, requests: fetched.extend(n for n, _ in requests) or original(source, requests)
    )
    with config.using(threads=1, cache_bytes=4 * cache.cost(8, 2**18)):
        assert np.array_equal(other[:, 0], values[:8, 0])
        for _ in range(3):
            assert np.array_equal(array[:, 1], values[:, 1])
        assert fetched == [0, *range(8), *range(2, 8), *range(2, 8)]
        assert np.array_equal(other[:, 0], values[:8, 0])
        assert len(fetched) == 21


def test_reads_larger_than_the_cache_bypass_it():
    array = b2array.asarray(np.arange(10_000), chunks=1000, blocks=1000)
    with config.using(cache_bytes=10_000):
        assert array[17] == 17
        assert array[5:2000:7].tolist() == list(range(5, 2000, 7))
    assert cache.blocks.nbytes == 0


def test_the_least_recently_used_blocks_are_evicted_first(monkeypatch):
    array = b2array.asarray(np.arange(10_000), chunks=1000, blocks=100)
    requests = []
    original = read.fetch
    monkeypatch.setattr(read, "fetch", lambda source, wanted: requests.extend(wanted) or original(source, wanted))
    with config.using(cache_bytes=8 * cache.cost(1, 800)):
        for n in range(8):
            array[100 * n]
        array[5], array[900]  # the first block is used again; another one has to leave
        requests.clear()
        assert [array[7], array[205]] == [7, 205]
        assert requests == []
        assert array[105] == 105
        assert len(requests) == 1
