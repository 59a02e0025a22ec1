"""`b2array.array.items`: a warning for many small writes to one chunk."""

from __future__ import annotations

import numpy as np
import pytest

import b2array
from b2array.errors import PerformanceWarning

MANY = 16


@pytest.fixture
def array():
    return b2array.zeros((64, 64, 128), "f4", chunks=(64, 64, 128))


def test_many_small_writes_to_one_chunk_are_warned_of_once(array):
    def write_planes():
        for k in range(40):
            array[k % 64] = np.ones((64, 128), "f4")

    with pytest.warns(PerformanceWarning, match=r"16 commits in a row .*chunks=\(1, 64, 128\)") as found:
        write_planes()
    assert len(found) == 1
    assert found[0].filename == __file__


def test_nothing_is_said_in_a_transaction(array):
    with array.transaction():
        for k in range(2 * MANY):
            array[k] = k


@pytest.mark.parametrize(
    "keys",
    [
        [slice(0, 32)] * 2 * MANY,
        [(k % 64, [1, 2]) for k in range(2 * MANY)],
        [k % 64 for k in range(MANY - 1)],
    ],
    ids=["large parts", "index arrays", "few writes"],
)
def test_nothing_is_said_of(array, keys):
    for key in keys:
        array[key] = 1


def test_nothing_is_said_of_small_chunks_or_of_different_ones():
    small = b2array.zeros((64, 64), "f4")
    large = b2array.zeros((128, 64, 128), "f4", chunks=(64, 64, 128))
    for k in range(2 * MANY):
        small[k] = 1
        large[64 * (k % 2) + k] = 1
