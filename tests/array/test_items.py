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


def test_read_direct_says_what_is_wrong_with_the_target():
    a = b2array.asarray(np.arange(15.0).reshape(5, 3))
    with pytest.raises(ValueError, match=r"out must be of shape \(5, 3\), not \(3, 5\)"):
        a.read_direct(np.empty((3, 5)))
    with pytest.raises(ValueError, match="out must be C-contiguous, "):
        a.read_direct(np.empty((3, 5)).T)
    frozen = np.empty((5, 3))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writeable"):
        a.read_direct(frozen)


@pytest.mark.parametrize("spec", [".1f", "8.3e", "", ">20"])
def test_an_array_without_dimensions_is_formatted_as_its_item(spec):
    item = np.array(2.25)
    stored = b2array.asarray(item)
    if spec:
        assert format(stored, spec) == format(item, spec)
        assert format(stored.view[...], spec) == format(item, spec)
    else:
        assert f"{stored}" == str(stored)
    with pytest.raises(TypeError, match="unsupported format string"):
        format(b2array.zeros(2), ".1f")


def test_a_mapper_of_fsspec_is_refused_with_its_parts():
    fsspec = pytest.importorskip("fsspec")
    mapper = fsspec.get_mapper("memory://mapper/a.b2nd")
    for call in (b2array.open, b2array.open_group, b2array.load, lambda url: b2array.zeros(3, url=url)):
        with pytest.raises(TypeError, match=r"found FSMap: give its parts instead, '/mapper/a.b2nd' and fs=mapper.fs"):
            call(mapper)
