"""Work that must grow with the number of chunks, and not with its square."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import numpy as np
import pytest

import b2array
from b2array.codec import encode
from b2array.engine.handle import Handle

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


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_commit_of_many_chunks_takes_as_many_steps_as_chunks(layout):
    few, many = (ncalls(filled, layout, count) for count in (250, 1000))
    assert many < 4.4 * few
    s = filled(layout, 3_000)
    assert s.nchunks == 3_000
    assert s.get_chunk(2_999) == CHUNK


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_small_change_takes_the_same_steps_whatever_is_there(layout):
    def change(s):
        s.update_chunk(7, CHUNK)

    few, many = (ncalls(change, filled(layout, count)) for count in (100, 3_000))
    assert many < 2 * few


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_two_writers_of_many_chunks_are_merged_in_as_many_steps_as_chunks(layout):
    def merge(s):
        other = b2array.SChunk(Handle(s._handle.snapshot, "r+"))
        half = s.nchunks // 2
        with s.transaction(), other.transaction():
            for n in range(half):
                s.update_chunk(n, CHUNK)
                other.update_chunk(half + n, CHUNK)

    # Both so many that the dead space makes one file be rewritten.
    few, many = (ncalls(merge, filled(layout, count)) for count in (800, 2000))
    assert many < 2.8 * few
