"""A frame is never taken for another one that has its name: identities, and the checksums of records."""

from __future__ import annotations

import shutil
from contextlib import suppress

import numpy as np
import pytest

import b2array
from b2array.array.schunk import SChunk
from b2array.errors import ConflictError, FormatError

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


# --- frames that are deleted and made again -------------------------------------------------------------------------


@LAYOUTS
def test_a_handle_of_a_frame_that_was_made_again_is_refused(tmp_path, layout):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout=layout)
    remade(tmp_path / "a", layout)
    with pytest.raises(ConflictError, match="deleted and made again"):
        old.attrs["unit"] = "m"
    assert not b2array.open(tmp_path / "a").attrs
    old.refresh()  # who asks for it sees the new one
    assert old[39] == -39


def remade(path, layout):
    """Delete an array, and make one of negative values of the same form."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    return b2array.asarray(-np.arange(40), url=path, chunks=10, layout=layout)


@LAYOUTS
def test_a_transaction_is_not_committed_onto_a_frame_that_was_made_again(tmp_path, layout):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout=layout)

    def change():
        with old.transaction():
            values = old[10:20]
            remade(tmp_path / "a", layout)
            old[10:20] = values + 1

    with pytest.raises(ConflictError, match="deleted and made again"):
        change()
    assert np.array_equal(b2array.open(tmp_path / "a"), -np.arange(40))


@LAYOUTS
def test_a_write_is_not_tried_again_on_a_frame_that_was_made_again(tmp_path, layout):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout=layout)
    remade(tmp_path / "a", layout)
    with pytest.raises(ConflictError):
        old[12:15] = 7  # part of a chunk, which is read
    assert np.array_equal(b2array.open(tmp_path / "a"), -np.arange(40))


def test_what_a_refused_transaction_staged_is_left_alone_in_a_frame_that_was_made_again(tmp_path):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout="sparse")
    with suppress(ConflictError), old.transaction():
        old[:10] = 7
        new = remade(tmp_path / "a", "sparse")
        later = new._handle.new_transaction()
        later.put(0, SChunk(new._handle).get_chunk(1))
    later.commit()
    assert np.array_equal(b2array.open(tmp_path / "a")[:10], -np.arange(10, 20))


def test_a_directory_that_was_deleted_is_a_conflict(tmp_path):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout="sparse")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ConflictError, match="was deleted"):
        old[...]


def test_a_file_that_was_cut_off_is_damaged_each_time(tmp_path):
    path = tmp_path / "a"
    b2array.asarray(np.arange(40), url=path, chunks=10)
    reader = b2array.open(path)
    path.write_bytes(path.read_bytes()[:200])
    for _ in range(3):
        with pytest.raises(FormatError):
            reader[...]
