"""Random histories of files that b2array and python-blosc2 change in turn, against plain Python models.

After every step both libraries open the file anew and must find what the model has. Left out is what python-blosc2
itself gets wrong:

* chunks of zeros in frames whose chunks have sizes of their own, and slices of such frames: it cannot read them, so
  that here it neither writes zeros into them nor slices them;
* inserting while the last chunk is short, and anything behind a short one: then every chunk has a size of its own, and
  it forgets those of special chunks; it is left to b2array to make such frames;
* uninitialised chunks: what it reads from them is what the memory held before;
* a seventeenth variable-length metalayer: its next write would destroy the file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lengths import examples

import b2array
from b2array.codec import encode
from b2array.codec.chunk_header import NAN_BYTES, Special
from b2array.errors import ConflictError

ITEMS = 100
FULL = 4 * ITEMS
TYPESIZE = 4
BLOCKSIZE = 80
HISTORIES = settings(
    max_examples=examples(20),
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

kinds = st.sampled_from(["noise", "ramp", "zeros", "nan", "value"])
lengths = st.integers(1, ITEMS)
seeds = st.integers(0, 99)
places = st.integers(0, 2**16)
names = st.sampled_from(["a", "b", "unit", "d"])
values = st.one_of(st.integers(-9, 9), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=80))


def content(kind, seed, length=ITEMS):
    """Make the data of a chunk."""
    if kind == "noise":
        return np.random.default_rng(seed).bytes(4 * length)
    if kind == "ramp":
        return np.arange(seed, seed + length, dtype="i4").tobytes()
    item = {"zeros": b"\0" * 4, "nan": NAN_BYTES[4], "value": (seed + 1).to_bytes(4, "little")}[kind]
    return item * length


def ready_chunk(kind, seed, length=ITEMS):
    """Make a chunk, of the special kind where there is one."""
    data = content(kind, seed, length)
    if kind in ("noise", "ramp"):
        return encode.encode(data, typesize=TYPESIZE, blocksize=BLOCKSIZE)
    special = Special.NAN if kind == "nan" else data[:4]
    return encode.special_chunk(special, len(data), typesize=TYPESIZE, blocksize=BLOCKSIZE)


class Files(RuleBasedStateMachine):
    """What both machines need: a directory, and a file in it."""

    layout = "contiguous"

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.path = str(Path(self.directory, "x.b2nd"))
        self.attrs = {}

    def teardown(self):
        shutil.rmtree(self.directory)

    def stock(self):
        return blosc2.open(self.path, mode="a")


class Chunks(Files):
    """A super-chunk is a list of bytes."""

    @initialize(by_us=st.booleans())
    def create(self, by_us):
        self.chunks = []
        if by_us:
            b2array.create_schunk(self.path, chunksize=FULL, typesize=TYPESIZE, blocksize=BLOCKSIZE, layout=self.layout)
        else:
            cparams = {"typesize": TYPESIZE, "blocksize": BLOCKSIZE, "nthreads": 1}
            blosc2.SChunk(chunksize=FULL, urlpath=self.path, contiguous=self.layout == "contiguous", cparams=cparams)
        self.held = b2array.open_schunk(self.path, "r+")

    @property
    def chunksize(self):
        """What the frame says: 0 if every chunk has its own, -1 before python-blosc2 has put the first one."""
        return b2array.open_schunk(self.path).frame.chunksize

    @property
    def uniform(self):
        """Whether all chunks are of full size, so that python-blosc2 can add one anywhere."""
        return all(len(data) == FULL for data in self.chunks) and self.chunksize in (FULL, -1)

    # What we do.

    @rule(kind=kinds, seed=seeds, length=lengths, whole=st.booleans())
    def we_append(self, kind, seed, length, whole):
        length = ITEMS if whole else length
        # The handle has not seen what happened meanwhile; behind whatever it was, there is an end.
        assert self.held.append_chunk(ready_chunk(kind, seed, length)) == len(self.chunks) + 1
        self.chunks.append(content(kind, seed, length))

    @rule(place=places, kind=kinds, seed=seeds, length=st.one_of(st.just(ITEMS), lengths))
    def we_insert(self, place, kind, seed, length):
        n = place % (len(self.chunks) + 1)
        b2array.open_schunk(self.path, "r+").insert_data(n, content(kind, seed, length))
        self.chunks.insert(n, content(kind, seed, length))

    @precondition(lambda self: self.chunks)
    @rule(place=places, kind=kinds, seed=seeds, shorter=st.booleans())
    def we_update(self, place, kind, seed, shorter):
        n = place % len(self.chunks)
        length = max(1, len(self.chunks[n]) // 4 - shorter)
        b2array.open_schunk(self.path, "r+").update_chunk(n, ready_chunk(kind, seed, length))
        self.chunks[n] = content(kind, seed, length)

    @precondition(lambda self: self.chunks)
    @rule(place=places)
    def we_delete(self, place):
        n = place % len(self.chunks)
        b2array.open_schunk(self.path, "r+").delete_chunk(n)
        del self.chunks[n]

    @precondition(lambda self: self.chunks)
    @rule(random=st.randoms())
    def we_reorder(self, random):
        order = random.sample(range(len(self.chunks)), len(self.chunks))
        b2array.open_schunk(self.path, "r+").reorder(order)
        self.chunks = [self.chunks[n] for n in order]

    @rule(name=names, value=values)
    def we_set_an_attribute(self, name, value):
        b2array.open_schunk(self.path, "r+").vlmeta[name] = value
        self.attrs[name] = value

    @precondition(lambda self: self.chunks)
    @rule(place=places, seed=seeds, kept=st.booleans())
    def we_do_many_things_at_once_or_none(self, place, seed, kept):
        held = b2array.open_schunk(self.path, "r+")
        chunks = list(self.chunks)
        n = place % len(chunks)
        try:
            with held.transaction():
                held.update_data(n, chunks[n][::-1])
                held.vlmeta["many"] = seed
                with pytest.raises(ValueError, match="order"):
                    held.reorder([0] * (len(chunks) + 1))
                held.reorder(range(len(chunks))[::-1])
                held.delete_chunk(0)
                assert held.nchunks == len(chunks) - 1
                if not kept:
                    raise InterruptedError
        except InterruptedError:
            return
        chunks[n] = chunks[n][::-1]
        self.chunks = chunks[::-1][1:]
        self.attrs["many"] = seed

    @rule()
    def we_repack(self):
        b2array.open_schunk(self.path, "r+").repack()

    # What python-blosc2 does.

    @precondition(lambda self: self.uniform)
    @rule(kind=kinds, seed=seeds, length=lengths, whole=st.booleans())
    def they_append(self, kind, seed, length, whole):
        data = content(kind, seed, ITEMS if whole or not self.chunks else length)
        self.stock().append_data(data)
        self.chunks.append(data)

    @precondition(lambda self: self.uniform)
    @rule(place=places, kind=kinds, seed=seeds)
    def they_insert(self, place, kind, seed):
        n = place % (len(self.chunks) + 1)
        self.stock().insert_data(n, content(kind, seed), copy=True)
        self.chunks.insert(n, content(kind, seed))

    @precondition(lambda self: self.chunks)
    @rule(place=places, kind=kinds, seed=seeds)
    def they_update(self, place, kind, seed):
        n = place % len(self.chunks)
        if kind in ("zeros", "nan") and self.chunksize == 0:
            kind = "ramp"
        length = len(self.chunks[n]) // 4
        # NaN and repeated values are special chunks for python-blosc2 only if it gets them ready made.
        self.stock().update_chunk(n, ready_chunk(kind, seed, length))
        self.chunks[n] = content(kind, seed, length)

    @precondition(lambda self: self.chunks)
    @rule(place=places)
    def they_delete(self, place):
        n = place % len(self.chunks)
        self.stock().delete_chunk(n)
        del self.chunks[n]

    @rule(name=names, value=values)
    def they_set_an_attribute(self, name, value):
        schunk = self.stock()
        schunk.vlmeta[name] = value
        self.attrs[name] = value

    @precondition(lambda self: self.attrs)
    @rule(place=places)
    def they_delete_an_attribute(self, place):
        name = sorted(self.attrs)[place % len(self.attrs)]
        schunk = self.stock()
        del schunk.vlmeta[name]
        del self.attrs[name]

    # What must be true.

    @invariant()
    def we_find_what_is_there(self):
        found = b2array.open_schunk(self.path)
        assert [found.decompress_chunk(n) for n in range(found.nchunks)] == self.chunks
        assert found.nbytes == sum(map(len, self.chunks))
        assert found.get_slice() == b"".join(self.chunks)
        assert dict(found.vlmeta) == self.attrs

    @invariant()
    def they_find_what_is_there(self):
        found = blosc2.open(self.path, mode="r")
        assert [found.decompress_chunk(n) for n in range(found.nchunks)] == self.chunks
        assert {name: found.vlmeta[name] for name in found.vlmeta if name != "b2array"} == self.attrs
        if self.chunks and self.chunksize:
            assert found[:] == b"".join(self.chunks)


class SparseChunks(Chunks):
    layout = "sparse"


TestChunks = Chunks.TestCase
TestSparseChunks = SparseChunks.TestCase
TestChunks.settings = TestSparseChunks.settings = HISTORIES


SHAPE, CHUNKS, BLOCKS = (7, 9), (3, 4), (2, 2)


@st.composite
def boxes(draw):
    """A box of the array, or a row or an item."""
    key = []
    for n in SHAPE:
        start = draw(st.integers(0, n - 1))
        key.append(draw(st.one_of(st.just(start), st.integers(start + 1, n).map(lambda stop, s=start: slice(s, stop)))))
    return tuple(key)


class Arrays(Files):
    """An array is one of NumPy."""

    @initialize(by_us=st.booleans(), fill=st.sampled_from([0.0, -1.5, np.nan]))
    def create(self, by_us, fill):
        self.items = np.full(SHAPE, fill)
        if by_us:
            b2array.full(SHAPE, fill, url=self.path, chunks=CHUNKS, blocks=BLOCKS, layout=self.layout)
        else:
            blosc2.full(
                SHAPE, fill, urlpath=self.path, chunks=CHUNKS, blocks=BLOCKS, contiguous=self.layout == "contiguous"
            )
        self.held = b2array.open(self.path, "r+")

    def value(self, key, kind, seed):
        target = self.items[key]
        return {
            "noise": np.random.default_rng(seed).random(np.shape(target)),
            "ramp": np.arange(np.size(target), dtype=float).reshape(np.shape(target)),
            "zeros": np.zeros(np.shape(target)),
            "nan": np.full(np.shape(target), np.nan),
            "value": np.full(np.shape(target), seed + 0.5),
        }[kind]

    @rule(key=boxes(), kind=kinds, seed=seeds)
    def we_assign(self, key, kind, seed):
        self.items[key] = value = self.value(key, kind, seed)
        self.held[key] = value

    @rule(first=boxes(), second=boxes(), kind=kinds, seed=seeds, kept=st.booleans())
    def we_assign_twice_at_once_or_not_at_all(self, first, second, kind, seed, kept):
        items = self.items.copy()
        held = b2array.open(self.path, "r+")
        try:
            with held.transaction():
                items[first] = value = self.value(first, kind, seed)
                held[first] = value
                with pytest.raises(ValueError, match="broadcast"):
                    held[...] = np.zeros((5, 5))
                items[second] += 1
                held[second] = held[second] + 1
                np.testing.assert_array_equal(held[...], items)
                if not kept:
                    raise InterruptedError
        except InterruptedError:
            return
        self.items = items

    @rule(ours=boxes(), theirs=boxes(), seed=seeds)
    def they_come_first(self, ours, theirs, seed):
        held = b2array.open(self.path, "r+")
        self.items[theirs] = value = self.value(theirs, "noise", seed)
        with pytest.raises(ConflictError), held.transaction():
            held[ours] = 1
            self.they_write(theirs, value)

    @rule(key=boxes(), kind=kinds, seed=seeds)
    def they_assign(self, key, kind, seed):
        self.items[key] = value = self.value(key, kind, seed)
        self.they_write(key, value)

    def they_write(self, key, value):
        array = self.stock()
        array[key] = value

    @rule(name=names, value=values)
    def they_set_an_attribute(self, name, value):
        array = self.stock()
        array.schunk.vlmeta[name] = value
        self.attrs[name] = value

    @rule(name=names, value=values)
    def we_set_an_attribute(self, name, value):
        self.held.attrs[name] = value
        self.attrs[name] = value

    @invariant()
    def we_find_what_is_there(self):
        found = b2array.open(self.path)
        np.testing.assert_array_equal(found[...], self.items)
        np.testing.assert_array_equal(found[::2, 1:], self.items[::2, 1:])
        assert dict(found.attrs) == self.attrs

    @invariant()
    def they_find_what_is_there(self):
        found = blosc2.open(self.path, mode="r")
        np.testing.assert_array_equal(found[...], self.items)
        np.testing.assert_array_equal(found[2:5, 3:], self.items[2:5, 3:])


class SparseArrays(Arrays):
    layout = "sparse"


TestArrays = Arrays.TestCase
TestSparseArrays = SparseArrays.TestCase
TestArrays.settings = TestSparseArrays.settings = HISTORIES
