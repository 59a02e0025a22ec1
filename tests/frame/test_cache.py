"""The cache of decoded blocks: no frame gets the blocks of another, however alike they are and wherever they lie."""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
import tracemalloc
import weakref
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace

import blosc2
import numpy as np
import pytest

import b2array
from b2array import config
from b2array.array.array import NDArray
from b2array.catalog.owners import load
from b2array.commit.handle import Handle
from b2array.format import frame
from b2array.format.frame_header import unpack_header
from b2array.format.state import layers_with
from b2array.frame import cache, read
from b2array.store import local_store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

SHAPE = (6, 40)
PARTS = {"chunks": (3, 40), "blocks": (1, 20)}
PLACES = ["local", "offset", "memory", "shared memory", "s3", "http", "http without tags", "zip", "b2z"]
place = pytest.mark.parametrize("put", PLACES, indirect=True)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    monkeypatch.setattr(cache, "blocks", cache.Cache())


@pytest.fixture
def settled(monkeypatch):
    """Take every local file for one that was changed long ago."""
    monkeypatch.setattr(local_store, "_SETTLED", 0, raising=False)


def noise(seed):
    """Return values that compression leaves as long as they are, so that the frames differ in nothing but data."""
    return np.random.default_rng(seed).integers(0, 2**62, SHAPE)


def stock(seed):
    return blosc2.asarray(noise(seed), **PARTS).to_cframe()


@lru_cache
def ours(seed):
    """Return one and the same frame for a seed: another one would have another identity."""
    return b2array.asarray(noise(seed), **PARTS).to_bytes()


def without_records(held):
    """Return header and tail of a frame whose index does not say which chunks belong to it."""
    annotations = replace(held.state.annotations, records=None)
    layers = layers_with(held.frame.vlmetalayers, annotations, held.url)
    return frame.pack(replace(held.frame, vlmetalayers=layers))[:2]


def loose(raw):
    """Return such a frame, in one file."""
    held = load(MemoryStore({"": raw}))
    start = held.frame.header_len
    header, tail = without_records(held)
    return header + raw[start : start + held.frame.cbytes] + tail


def forged(seed):
    """Return the frame of `noise(seed)` under header, index, trailer and fingerprint of that of `noise(0)`."""
    frame, data = loose(ours(0)), loose(ours(seed))
    header = unpack_header(frame)
    assert len(frame) == len(data)
    start, stop = header.header_len, header.header_len + header.cbytes
    return frame[:start] + data[start:stop] + frame[stop:]


MAKERS = pytest.mark.parametrize("make", [stock, ours, forged])


def _local(directory):
    def put(name, frame):
        path = directory / name
        path.write_bytes(frame)
        return lambda: b2array.open(path)

    return put


def _offset(path):
    """Put all frames side by side into one file."""
    path.write_bytes(b"")
    starts = {}

    def put(name, frame):
        start = starts.setdefault(name, path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(frame)
        return lambda: b2array.open(path, offset=start)

    return put


def _archive(path, opened):
    members = {}

    def put(name, frame):
        members[name] = frame
        with zipfile.ZipFile(path, "w") as archive:
            for each, content in members.items():
                archive.writestr(zipfile.ZipInfo(each), content)
        return lambda: opened(name)

    return put


def _http(served, *, tags):
    served.tags = tags

    def put(name, frame):
        served.objects[name] = frame
        return lambda: b2array.open(served.url_of(name))

    return put


@pytest.fixture
def put(request, tmp_path) -> Callable[[str, bytes], Callable[[], NDArray]]:
    """Give a function that writes a frame under a name, over an older one, and returns one that opens it."""
    match request.param:
        case "local":
            return _local(tmp_path)
        case "offset":
            return _offset(tmp_path / "many")
        case "memory":
            return lambda _, frame: lambda: b2array.from_bytes(frame)
        case "shared memory":
            return _fsspec(f"memory://{tmp_path.name}", {})
        case "s3":
            return _fsspec(f"s3://{request.getfixturevalue('bucket')}", request.getfixturevalue("s3_options"))
        case "http":
            return _http(request.getfixturevalue("http"), tags=True)
        case "http without tags":
            return _http(request.getfixturevalue("http"), tags=False)
        case "zip":
            path = tmp_path / "a.zip"
            return _archive(path, lambda name: _in_zip(path, name))
        case _:
            path = tmp_path / "a.b2z"
            return _archive(path, lambda name: b2array.open_group(path)[name.removesuffix(".b2nd")])


def _in_zip(path, name):
    import fsspec

    fsspec.get_filesystem_class("zip").clear_instance_cache()  # it never looks at an archive again
    return b2array.open(f"zip://{name}::{path}")


def _fsspec(root, options):
    import fsspec

    fs = fsspec.filesystem(root.partition(":")[0], **options)

    def put(name, frame):
        fs.pipe_file(f"{root}/{name}", frame)
        return lambda: b2array.open(f"{root}/{name}", storage_options=options)

    return put


@place
@MAKERS
@pytest.mark.usefixtures("settled")
def test_frames_that_look_alike_are_read_as_themselves(put, make):
    openers = [put(f"{seed}.b2nd", make(seed)) for seed in range(4)]
    for seed, opened in enumerate(openers):
        a = opened()
        for _ in range(2):
            assert a[4, 30] == noise(seed)[4, 30]
            assert np.array_equal(a[2:5, 10:30], noise(seed)[2:5, 10:30])


@place
@MAKERS
@pytest.mark.usefixtures("settled")
def test_a_replaced_frame_is_read_as_the_new_one(put, make):
    before = [put("a.b2nd", make(0))()[4, 30] for _ in range(2)]
    after = [put("a.b2nd", make(1))()[4, 30] for _ in range(2)]
    assert (before, after) == ([noise(0)[4, 30]] * 2, [noise(1)[4, 30]] * 2)


@place
@pytest.mark.usefixtures("settled")
def test_many_frames_in_random_order_read_the_same_with_the_cache_and_without(put):
    chosen = random.Random(17)
    frames = [make(seed) for make in (stock, ours, forged) for seed in range(3)]
    openers = [put(f"{n}.b2nd", frame) for n, frame in enumerate(frames)]
    handles, others = ([opened() for opened in openers] for _ in range(2))
    for _ in range(80):
        n = chosen.randrange(len(openers))
        if chosen.random() < 0.1:
            handles[n] = openers[n]()
        row, low = chosen.randrange(SHAPE[0]), chosen.randrange(SHAPE[1])
        key = chosen.choice([(row, low), (slice(row, None), slice(low, low + 9)), row, (slice(None), [low, 3])])
        found = handles[n][key]
        with config.using(cache_bytes=0):
            assert np.array_equal(found, others[n][key]), (n, key)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_changed_file_with_its_old_time_is_another_file(tmp_path, in_place):
    path = tmp_path / "a.b2nd"
    path.write_bytes(ours(0))
    status = path.stat()
    for seed in (0, 1):
        if seed and in_place:
            path.write_bytes(forged(seed))
        elif seed:
            (tmp_path / "b.b2nd").write_bytes(forged(seed))
            (tmp_path / "b.b2nd").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert b2array.open(path)[4, 30] == noise(seed)[4, 30]


def test_blocks_of_a_just_changed_file_are_cached_for_one_handle(tmp_path, monkeypatch):
    # As on file systems that count in larger steps: every state has the same times.
    status = SimpleNamespace(st_mode=0o100644, st_dev=1, st_ino=1, st_size=len(forged(0)), st_mtime_ns=0, st_ctime_ns=0)
    monkeypatch.setattr(local_store.os, "fstat", lambda _: status)
    path = tmp_path / "a.b2nd"
    for now, expected in ((10**9, 1), (10**10, 0)):
        monkeypatch.setattr(local_store.time, "time_ns", lambda now=now: now)
        for seed in (0, 1):
            path.write_bytes(forged(seed))
            found = b2array.open(path)[4, 30]
        assert found == noise(expected)[4, 30]


def test_chunks_of_a_directory_may_change_under_the_same_index(tmp_path):
    with config.using(threads=1):  # so that the files have the same numbers
        for seed in (0, 1):
            array = b2array.asarray(noise(seed), url=tmp_path / str(seed), layout="sparse", **PARTS)
            index = b"".join(without_records(array._handle.revision))
            (tmp_path / str(seed) / "chunks.b2frame").write_bytes(index)
    assert b2array.open(tmp_path / "0")[4, 30] == noise(0)[4, 30]
    for chunk in (tmp_path / "1").glob("*.chunk"):
        chunk.replace(tmp_path / "0" / chunk.name)
    assert b2array.open(tmp_path / "0")[4, 30] == noise(1)[4, 30]


def test_memory_stores_and_their_pickled_copies_are_different_places():
    stores = [MemoryStore({"": ours(0)})]
    stores.append(pickle.loads(pickle.dumps(stores[0])))
    keys = [load(store).cache_key for store in stores for _ in range(2)]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    stores[1].patch("", 0, forged(1))
    stores[0].patch("", 0, forged(2))
    handles = [NDArray(Handle(load(store), "r")) for store in stores]
    assert [a[4, 30] for a in handles] == [noise(2)[4, 30], noise(1)[4, 30]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("settled")
def test_what_a_forked_child_replaces_is_read_by_it_and_by_its_parent(tmp_path):
    path = tmp_path / "a.b2nd"
    path.write_bytes(ours(0))
    old = b2array.open(path)
    assert old[4, 30] == noise(0)[4, 30]
    child = os.fork()
    if not child:
        try:
            path.write_bytes(forged(1))
            os._exit(int(b2array.open(path)[4, 30] != noise(1)[4, 30]))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert b2array.open(path)[4, 30] == noise(1)[4, 30]


def test_a_stock_frame_in_a_place_without_versions_is_not_cached(http):
    http.tags = False
    http.objects["a.b2nd"] = stock(0)
    a = b2array.open(http.url_of("a.b2nd"))
    for _ in range(2):
        http.requests.clear()
        assert a[4, 30] == noise(0)[4, 30]
        assert http.requests


@pytest.mark.parametrize("put", ["local", "offset", "b2z", "shared memory", "s3"], indirect=True)
@pytest.mark.parametrize("make", [stock, ours])
@pytest.mark.usefixtures("settled")
def test_handles_of_one_state_share_their_blocks(put, make, monkeypatch):
    opened = put("a.b2nd", make(3))
    assert opened()[4, 30] == noise(3)[4, 30]
    a = opened()
    monkeypatch.setattr(read, "fetch", lambda *_: pytest.fail("the cache has the block"))
    assert a[4, 30] == noise(3)[4, 30]


def test_no_key_shows_a_secret(bucket, s3_options):
    url = f"s3://{bucket}/a.b2nd"
    b2array.asarray(noise(0), url=url, layout="contiguous", storage_options=s3_options, **PARTS)
    a = b2array.open(url, storage_options=s3_options)
    assert a[4, 30] == noise(0)[4, 30]
    shown = repr((a._handle.revision.unique, list(cache.blocks._chunks)))
    assert len(cache.blocks._chunks) == 1
    assert not [value for value in ("key", "secret") if str(s3_options[value]) in shown]


def test_a_store_with_an_opaque_option_is_different_from_all_others():
    url, plain, opaque = "s3://bucket/a.b2nd", {"anon": True}, {"session": object()}
    names = [open_store(url, storage_options=options)._ident for options in (plain, plain, opaque, opaque)]
    assert names[0] == names[1]
    assert len({*names}) == 3


def _traced(read: Callable[[], object]) -> int:
    """Return the memory in bytes that something keeps."""
    gc.collect()
    tracemalloc.start()
    try:
        read()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("at_once", "block"),
    [
        (50, 4),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [(1, 4), (1, 64), (1, 1024), (50, 64), (50, 1024)]),
    ],
)
def test_the_cache_takes_no_more_memory_than_it_may_however_small_the_blocks_are(block, at_once):
    a = b2array.asarray(np.arange(10_000 * block, dtype="u1"), chunks=(100 * block,), blocks=(block,))
    for n in range(0, 10_000, 100):
        a[n * block]  # the heads of the chunks are known

    def read():
        for start in range(0, a.size, at_once * block):
            a[start : start + at_once * block]

    with config.using(cache_bytes=2**19, threads=1):
        assert _traced(read) <= 1.25 * 2**19
        assert cache.blocks.nbytes <= 2**19
        assert len(cache.blocks._chunks) > 1


def test_a_call_that_interrupts_another_one_gets_different_memory():
    kept, lent = cache.Cache(), []

    def interrupt(frame, event, _):
        # As other threads and signal handlers may, at any line.
        if event == "line":
            lent.append(kept.reserve(1, 32)[1])
        return interrupt

    before = sys.gettrace()
    with config.using(cache_bytes=2**20):
        for nbytes in (16, 64, 16):
            sys.settrace(lambda frame, *_: interrupt if frame.f_code is cache.Cache.reserve.__code__ else None)
            try:
                _, memory = kept.reserve(1, nbytes)
            finally:
                sys.settrace(before)
            assert memory.nbytes == nbytes
            lent.append(memory)
    assert len(lent) > 20
    places = sorted((memory.__array_interface__["data"][0], memory.nbytes) for memory in lent)
    assert all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(places))


def test_a_smaller_cache_frees_memory_at_once(monkeypatch):
    monkeypatch.setattr(config, "cache_bytes", 2**20)
    a = b2array.asarray(noise(0), **PARTS)
    b = b2array.asarray(np.zeros(60_000, "u1") + np.arange(60_000, dtype="u1"), chunks=20_000, blocks=20_000)
    a[4, 30], [b[n] for n in (0, 20_000, 40_000)]
    before = cache.blocks.nbytes
    config.cache_bytes = before // 2
    assert 0 < cache.blocks.nbytes <= before // 2
    released = weakref.ref(cache.blocks._filling[0].memory)
    config.cache_bytes = 0
    gc.collect()
    assert cache.blocks.nbytes == 0
    assert released() is None
    assert (a[4, 30], b[30_000]) == (noise(0)[4, 30], 30_000 % 256)


def test_the_cache_keeps_its_blocks_while_it_is_switched_off(monkeypatch):
    a = b2array.asarray(noise(0), **PARTS)
    assert a[4, 30] == noise(0)[4, 30]
    with config.using(cache_bytes=0):
        assert a[1, 30] == noise(0)[1, 30]
    monkeypatch.setattr(read, "fetch", lambda *_: pytest.fail("the cache has the block"))
    assert a[4, 30] == noise(0)[4, 30]


@pytest.mark.parametrize(("nitems", "is_kept"), [(2**17, True), (2**18, False)])
def test_a_large_piece_that_a_worker_reads_stays_out_of_the_cache(tmp_path, nitems, is_kept):
    b2array.asarray(np.arange(2**20), url=tmp_path / "a.b2nd", chunks=2**17, blocks=2**14).close()
    a = b2array.open(tmp_path / "a.b2nd")
    with config.using(cache_bytes=64 * 2**20):
        with ThreadPoolExecutor(1) as pool:
            values = pool.submit(lambda: a[:nitems]).result()
        assert np.array_equal(values, np.arange(nitems))
        assert bool(cached_blocks(a)) == is_kept
        a[:nitems]
        assert len(cached_blocks(a)) == nitems // 2**14


def cached_blocks(a):
    """Return the blocks of an array that are in the cache."""
    source = a._handle.revision
    numbers = range(a._layout.nblocks)
    return [entry for n in range(a.nchunks) for entry in cache.blocks.get_many((source.cache_key, n), numbers).values()]
