"""A call that interrupts another one of its thread, as a signal handler does, leaves the memory of that one alone."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict

import numpy as np
import pytest
import zstandard
from chunks import make_chunk

import b2array
from b2array import codecs, config
from b2array.buffers import scratch
from b2array.codec import cblosc, chunk_header, decode
from b2array.errors import FormatError
from b2array.frame import cache


def place(buf):
    return np.asarray(buf).__array_interface__["data"][0]


def test_memory_is_used_again_when_nothing_refers_to_it():
    first = place(scratch("test", 1000, 1000))
    assert place(scratch("test", 1000, 1000)) == first
    assert place(scratch("test", 10, 1000)) == first
    assert len(scratch("test", 10, 1000)) == 10


@pytest.mark.parametrize(
    "view", [lambda buf: buf, lambda buf: buf[3:5], lambda buf: buf.data[3:5], lambda buf: buf[:8].view("f8")]
)
def test_memory_is_not_lent_again_while_something_refers_to_it(view):
    held = view(scratch("test", 1000, 1000))
    first = scratch("test", 1000, 1000)
    second = scratch("test", 1000, 1000)
    assert not np.shares_memory(first, second)
    assert not any(np.shares_memory(np.asarray(held), other) for other in (first, second))


def test_other_uses_and_other_threads_have_other_memory():
    found = [scratch("test", 10, 1000), scratch("other", 10, 1000)]
    thread = threading.Thread(target=lambda: found.append(scratch("test", 10, 1000)))
    thread.start()
    thread.join()
    assert not any(np.shares_memory(a, b) for i, a in enumerate(found) for b in found[:i])


def test_large_memory_is_not_kept():
    kept = scratch("large", 10, 1000).base
    assert len(scratch("large", 2000, 1000)) == 2000
    assert len(scratch("large", 10, 1000).base) == 10
    assert not np.shares_memory(scratch("large", 10, 1000), kept)


def test_new_memory_is_checked_before_it_is_allocated():
    def refuse():
        raise KeyError

    scratch("test", 100, 1000)
    assert len(scratch("test", 100, 1000, refuse)) == 100
    for _ in range(2):
        with pytest.raises(KeyError):
            scratch("test", 2**60, 1000, refuse)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("key", [..., slice(5, 2500), 4321, (4321,)])
def test_an_array_is_read_in_the_middle_of_reading_another(tmp_path, monkeypatch, codec, key):
    values = np.random.default_rng(0).integers(0, 2**20, (2, 20000)).repeat(3, axis=1)
    arrays = []
    for n in range(2):
        options = {"chunks": 3000, "blocks": 300, "cparams": b2array.CParams(codec)}
        b2array.asarray(values[n], url=str(tmp_path / f"{n}.b2nd"), **options)
        arrays.append(b2array.open(str(tmp_path / f"{n}.b2nd")))
    inside = []
    interrupting = False

    def interrupted(decode):
        def call(*args, **options):
            nonlocal interrupting
            if not interrupting:
                interrupting = True
                inside.append(np.array_equal(arrays[1][100:9000], values[1, 100:9000]) and arrays[1][7] == values[1, 7])
                interrupting = False
            decode(*args, **options)

        return call

    monkeypatch.setattr(decode, "decode_blocks", interrupted(decode.decode_blocks))
    monkeypatch.setattr(cblosc, "decode_planes", interrupted(cblosc.decode_planes))
    with config.using(cache_bytes=0, threads=1):
        for _ in range(2):
            assert np.array_equal(arrays[0][key], values[0][key])
    assert inside
    assert all(inside)


def test_streams_that_are_damaged_do_no_harm_to_those_in_the_middle_of_which_they_are_read(monkeypatch):
    values = np.arange(20_000) // 3
    cparams = b2array.CParams("zstd", splitmode="always")
    array = b2array.asarray(values, chunks=20_000, blocks=1000, cparams=cparams)
    frame = zstandard.compress(b"abcd" * 500)
    cut = struct.pack("<i", len(frame) - 1) + frame[:-1]
    flags = chunk_header.FLAG_EXTENDED | chunk_header.CodecFormat.ZSTD << 5
    buf = make_chunk([cut + cut], typesize=2, nbytes=4000, blocksize=4000, flags=flags)
    original = codecs._Frames.__init__
    inside = []
    interrupting = False

    def begun(frames, pieces):
        original(frames, pieces)
        if interrupting:
            return
        read = frames.read

        def interrupted(nbytes):
            nonlocal interrupting
            interrupting = True
            with pytest.raises(FormatError):
                b2array.decompress(buf)
            interrupting = False
            inside.append(nbytes)
            return read(nbytes)

        frames.read = interrupted

    monkeypatch.setattr(codecs._Frames, "__init__", begun)
    with config.using(cache_bytes=0, threads=1):
        assert np.array_equal(array[...], values)
    assert len(inside) > 20


@pytest.mark.parametrize("key", [(5, 6), np.s_[3:9, ::7]])
def test_an_array_is_read_while_the_same_thread_is_at_work_in_the_cache(monkeypatch, key):
    values = np.arange(400).reshape(20, 20)
    array = b2array.asarray(values, chunks=(10, 10), blocks=(5, 5))
    inside = []

    class Interrupted(OrderedDict):
        """Calls a reader before every change of a slab's place, as a signal may."""

        def move_to_end(self, slab):
            n = len(inside)
            if n < 5:
                inside.append(None)
                inside[n] = np.array_equal(array[4:17], values[4:17])
            super().move_to_end(slab)

    blocks = cache.Cache()
    blocks._slabs = Interrupted()
    monkeypatch.setattr(cache, "blocks", blocks)
    found = []
    with config.using(cache_bytes=2**20):
        reader = threading.Thread(target=lambda: found.extend([array[key], array[key]]), daemon=True)
        reader.start()
        reader.join(10)
    assert not reader.is_alive()
    assert all(np.array_equal(each, values[key]) for each in found)
    assert inside
    assert all(inside)
    slabs = {id(entry.slab): entry.slab for of in blocks._chunks.values() for entry in of.values()}
    assert blocks.nbytes == sum(slab.nbytes for slab in slabs.values())
