"""A frame is never taken for another one that has its name: identities, and the checksums of records."""

from __future__ import annotations

import numpy as np
import pytest

import b2array
from b2array.array.schunk import SChunk

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def identity_of(array):
    return array._handle.snapshot.state.annotations.identity


@LAYOUTS
def test_every_frame_has_an_identity_of_its_own(tmp_path, layout):
    first, second = (b2array.asarray(np.arange(9), url=tmp_path / name, layout=layout) for name in "ab")
    assert identity_of(first)
    assert identity_of(first) != identity_of(second)
    assert identity_of(b2array.open(tmp_path / "a")) == identity_of(first)


@LAYOUTS
def test_commits_and_repacking_keep_the_identity(tmp_path, layout):
    array = b2array.asarray(np.arange(100), url=tmp_path / "a", chunks=10, layout=layout)
    before = identity_of(array)
    array[5:17] = 0
    array.attrs["unit"] = "m"
    array.append(np.arange(5))
    array[...] = 1  # all chunks are new, so that a file is written again
    SChunk(array._handle).repack()
    assert identity_of(array) == identity_of(b2array.open(tmp_path / "a")) == before


@LAYOUTS
@pytest.mark.parametrize("before", ["contiguous", "sparse"])
def test_a_frame_that_replaces_another_has_a_new_identity(tmp_path, layout, before):
    old = b2array.asarray(np.arange(9), url=tmp_path / "a", layout=before)
    new = b2array.asarray(np.arange(9), url=tmp_path / "a", layout=layout, overwrite=True)
    assert identity_of(new) not in (None, identity_of(old))


def test_a_copy_has_a_new_identity(tmp_path):
    array = b2array.asarray(np.arange(9), url=tmp_path / "a")
    assert identity_of(array.copy(tmp_path / "b")) not in (None, identity_of(array))
