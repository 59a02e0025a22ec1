"""Work that must grow with the number of chunks, and not with its square."""

from __future__ import annotations

import cProfile
import pstats
import subprocess
import sys
from collections.abc import Callable

import blosc2
import numpy as np
import pytest

import b2array
from b2array.codec import decode, encode
from b2array.codec.chunk_header import Special
from b2array.commit.handle import Handle
from b2array.errors import FormatError
from b2array.format import index
from b2array.format.state import copy_table

CHUNK = encode.encode(np.arange(64, dtype="i4").tobytes(), typesize=4)


def ncalls(verb: Callable[..., object], *args: object) -> int:
    """Count the functions that are called, which does not depend on how fast the machine is."""
    profile = cProfile.Profile()
    profile.runcall(verb, *args)
    return pstats.Stats(profile).total_calls


def filled(layout: str, count: int) -> b2array.SChunk:
    s = b2array.create_schunk(chunksize=256, typesize=4, layout=layout)
    for attempt in s._handle.attempts():
        with attempt as draft:
            draft.reindex(np.full(count, -1), nbytes=256 * count)
            for n in range(count):
                draft.put(n, CHUNK)
    return s


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_commit_of_many_chunks_takes_as_many_steps_as_chunks(layout):
    few, many = (ncalls(filled, layout, count) for count in (250, 1000))
    assert many < 4.4 * few
    s = filled(layout, 3_000)
    assert s.nchunks == 3_000
    assert s.get_chunk(2_999) == CHUNK


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_small_change_takes_the_same_steps_whatever_is_there(layout):
    def change(s):
        s.update_chunk(7, CHUNK)

    few, many = (ncalls(change, filled(layout, count)) for count in (100, 3_000))
    assert many < 2 * few


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.slow
def test_two_writers_of_many_chunks_are_merged_in_as_many_steps_as_chunks(layout):
    def merge(s):
        other = b2array.SChunk(Handle(s._handle.revision, "r+"))
        half = s.nchunks // 2
        with s.transaction(), other.transaction():
            for n in range(half):
                s.update_chunk(n, CHUNK)
                other.update_chunk(half + n, CHUNK)

    # Both so many that the dead space makes one file be rewritten.
    few, many = (ncalls(merge, filled(layout, count)) for count in (800, 2000))
    assert many < 2.8 * few


PEAK = """
import re, sys
import numpy as np, b2array

def peak():
    with open("/proc/self/status") as status:
        return int(re.search("VmHWM: *([0-9]+) kB", status.read().replace("\\t", " "))[1]) * 1024

def change(count, layout):
    url = f"{sys.argv[1]}/{count}.b2nd"
    b2array.zeros(count, "i1", url=url, chunks=(1,), layout=layout).close()
    a = b2array.open(url, "r+")
    with open("/proc/self/clear_refs", "w") as forget:
        forget.write("5")  # the highest number so far
    a[count // 2] = 3
    reached = peak()
    assert a[count // 2 - 1 : count // 2 + 2].tolist() == [0, 3, 0]
    return reached

before = change(1000, sys.argv[2])
print((change(4 * 10**6, sys.argv[2]) - before) / (4 * 10**6))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="has no such numbers")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.slow
def test_one_item_of_very_many_chunks_takes_little_more_memory_than_the_index_of_two_states(layout, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path, layout], capture_output=True, text=True, timeout=100, check=True
    )
    assert float(done.stdout) < 48  # bytes for each chunk


@pytest.mark.parametrize("shape", [(0,), (70_000,), (2**21 + 5, 3)])
def test_a_copy_of_a_table_has_the_same_rows(shape):
    table = np.zeros(shape, np.uint32)
    table[::9_999] = 7
    table[-1:] = 9
    made = copy_table(table)
    assert np.array_equal(made, table)
    assert made.dtype == table.dtype
    assert not np.shares_memory(made, table)


@pytest.mark.parametrize("filters", [("shuffle",), ("shuffle", "delta"), ("bytedelta",)])
def test_a_chunk_that_is_filtered_in_several_steps_is_read_by_python_blosc2(filters):
    data = np.cumsum(np.random.default_rng(0).integers(0, 3, 2**21 + 777))
    chunk = encode.encode(data, typesize=8, blocksize=2**14, cparams=b2array.CParams("lz4", filters=filters))
    assert len(chunk) < data.nbytes // 2
    assert bytes(decode.decode(chunk)) == data.tobytes()
    # With several threads C-Blosc2 sometimes undoes delta before it has the first block, which the others refer to.
    assert blosc2.decompress2(chunk, nthreads=1) == data.tobytes()


def test_an_index_is_checked_to_its_end():
    offsets = np.full(10**6, index.special_offset(Special.ZEROS))
    offsets[5] = 40
    index.check(offsets, 100)
    for at in (0, 2**18, 10**6 - 1):
        wrong = offsets.copy()
        wrong[at] = -5
        with pytest.raises(FormatError, match="expected places or special values"):
            index.check(wrong, 100)
        wrong[at] = 99
        with pytest.raises(FormatError, match="expected offsets up to"):
            index.check(wrong, 100)


@pytest.mark.parametrize("count", [0, 1, 5, 2**18, 2**18 + 3])
def test_the_next_place_in_an_index_is_found_without_sorting_it(count):
    rng = np.random.default_rng(count)
    offsets = rng.permutation(count) * 10
    offsets[rng.random(count) < 0.3] = index.special_offset(Special.ZEROS)
    places = np.sort(offsets[offsets >= 0])
    for entry in [0, 5, count * 5, count * 10, *offsets[:20].tolist(), *offsets[-3:].tolist()]:
        expected = places[places > entry][:1].tolist()
        assert [index.least_after(offsets, entry)] == (expected or [None])


def test_the_ends_of_chunks_are_known_before_and_after_the_index_is_sorted(tmp_path):
    a = b2array.zeros(2**18 + 9, "i4", url=tmp_path / "a.b2nd", chunks=(1,))
    written = np.random.default_rng(0).permutation(len(a))[:30].tolist()
    with a.transaction() as changes:
        for n in written:
            changes[n] = n + 1
    again = b2array.open(tmp_path / "a.b2nd")
    for n in [*written, *written[:3]]:
        assert again[n] == n + 1
        assert b2array.decompress(again.get_chunk(n)) == np.int32(n + 1).tobytes()


@pytest.mark.parametrize("at", [2**22, 2**22 + 7, 2**23])
def test_the_last_difference_of_long_data_is_found(at):
    data = np.zeros(2**23 + 8, np.uint8)
    assert encode.constant(data, 8) == bytes(8)
    data[at] = 1
    assert encode.constant(data, 8) is None
