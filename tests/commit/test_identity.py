"""A frame is never taken for another one that has its name: identities, and the checksums of records."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

import numpy as np
import pytest

import b2array
from b2array.array.schunk import SChunk
from b2array.commit.frame_commit import commit
from b2array.errors import ConflictError, FormatError

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def identity_of(array):
    return array._handle.revision.state.annotations.identity


@LAYOUTS
def test_every_frame_has_a_different_identity(tmp_path, layout):
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


def test_a_refused_transaction_removes_no_file_of_a_frame_that_was_made_again(tmp_path):
    old = b2array.asarray(np.arange(40), url=tmp_path / "a", chunks=10, layout="sparse")
    with suppress(ConflictError), old.transaction():
        old[:10] = 7
        new = remade(tmp_path / "a", "sparse")
        later = new._handle.new_draft()
        later.put(0, SChunk(new._handle).get_chunk(1))
    commit(later)
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


# --- readers: never a mixture ---------------------------------------------------------------------------------------


def rows(value, seed=0):
    """Return values that take as much room whatever they are."""
    return value * np.random.default_rng(seed).integers(1, 2**60, (4, 250))


PARTS = {"chunks": (1, 250), "blocks": (1, 125)}


@pytest.fixture(params=["disk", "memory", "s3"])
def url(request, tmp_path):
    """Give a place for an array, and options for it."""
    if request.param == "disk":
        return str(tmp_path / "a"), None
    if request.param == "memory":
        return f"memory://{tmp_path.name}/a", None
    return f"s3://{request.getfixturevalue('bucket')}/a", request.getfixturevalue("s3_options")


def removed(url, options):
    import fsspec

    fs = fsspec.filesystem(url.partition("://")[0], **(options or {})) if "://" in url else fsspec.filesystem("file")
    fs.rm(url, recursive=True)


@LAYOUTS
@pytest.mark.parametrize("key", [..., (slice(None), 100), (slice(1, 3), slice(3, 9))])
def test_a_reader_of_a_frame_that_was_made_again_gets_its_own_items_or_an_error(url, layout, key):
    place, options = url
    where = {"url": place, "storage_options": options, "layout": layout, **PARTS}
    b2array.asarray(rows(1), **where)
    reader = b2array.open(place, storage_options=options)
    assert reader[0].sum() == rows(1)[0].sum()  # now the chunk is cached
    removed(place, options)
    b2array.asarray(rows(-1), **where)
    with suppress(ConflictError):
        assert np.array_equal(reader[key], rows(1)[key])


@LAYOUTS
@pytest.mark.parametrize("read_before", [False, True])
def test_a_frame_that_is_copied_over_an_open_one_is_a_conflict(tmp_path, layout, read_before):
    for name, value in (("a", 1), ("new", -1)):
        b2array.asarray(rows(value), url=tmp_path / name, layout=layout, **PARTS)
    reader = b2array.open(tmp_path / "a")
    if read_before:
        reader[0]
    if layout == "sparse":
        shutil.copytree(tmp_path / "new", tmp_path / "a", dirs_exist_ok=True)
    else:
        shutil.copyfile(tmp_path / "new", tmp_path / "a")
    with pytest.raises(ConflictError):
        reader[...]
    with pytest.raises(ConflictError):
        reader[1:, 100]


@LAYOUTS
def test_a_changed_backup_is_not_mistaken_for_its_original(tmp_path, layout):
    # Both have the same identity and the same numbers of chunks.
    array = b2array.asarray(rows(1), url=tmp_path / "a", layout=layout, **PARTS)
    copy = shutil.copytree if layout == "sparse" else shutil.copyfile
    copy(tmp_path / "a", tmp_path / "backup")
    with b2array.open(tmp_path / "backup", mode="r+") as backup:
        backup[1] = rows(5)[1]
    array[1] = rows(7)[1]
    reader = b2array.open(tmp_path / "a")

    def change():
        with array.transaction():
            array[2] = array[1]
            shutil.rmtree(tmp_path / "a", ignore_errors=True)
            (tmp_path / "backup").rename(tmp_path / "a")

    with pytest.raises(ConflictError):
        change()
    with suppress(ConflictError):
        assert np.array_equal(reader[1], rows(7)[1])
    assert np.array_equal(b2array.open(tmp_path / "a")[1], rows(5)[1])


@LAYOUTS
def test_chunks_by_workers_and_raw_chunks_have_their_checksums_in_the_index(tmp_path, layout):
    dask = pytest.importorskip("dask.array")
    array = b2array.asarray(rows(1), url=tmp_path / "a", layout=layout, **PARTS)
    dask.from_array(rows(3), chunks=(1, 250)).store(array, lock=False)
    array.append(rows(2)[:1])
    held = SChunk(array._handle)
    held.update_chunk(0, held.get_chunk(1))
    state = b2array.open(tmp_path / "a")._handle.revision.state
    assert state.records.all()
    assert np.array_equal(b2array.open(tmp_path / "a")[0], rows(3)[1])


@LAYOUTS
def test_after_a_commit_of_stock_blosc2_its_chunks_are_read(tmp_path, layout):
    import blosc2

    b2array.asarray(rows(1), url=tmp_path / "a", layout=layout, **PARTS)
    theirs = blosc2.open(str(tmp_path / "a"), mode="a")
    theirs[1] = rows(9)[1]
    del theirs
    array = b2array.open(tmp_path / "a", mode="r+")
    assert np.array_equal(array[1], rows(9)[1])
    array[2] = rows(9)[2]
    assert np.array_equal(b2array.open(tmp_path / "a"), np.stack([rows(1)[0], *rows(9)[1:3], rows(1)[3]]))


def test_zeros_have_no_checksum_in_the_index(tmp_path):
    array = b2array.zeros((4, 250), url=tmp_path / "a", **PARTS)
    assert array._handle.revision.state.annotations.records is None
    array[1] = 1
    assert np.flatnonzero(b2array.open(tmp_path / "a")._handle.revision.state.records).tolist() == [1]
    array[1] = 0
    assert not b2array.open(tmp_path / "a")._handle.revision.state.records.any()


@LAYOUTS
@pytest.mark.parametrize("how", ["changed", "copied over", "deleted"])
def test_a_stock_frame_that_changes_during_a_read_is_a_conflict(tmp_path, layout, how):
    import blosc2

    for name, value in (("a", 1), ("new", -1)):
        contiguous = layout == "contiguous"
        blosc2.asarray(rows(value), urlpath=str(tmp_path / name), contiguous=contiguous, **PARTS)
    reader = b2array.open(tmp_path / "a")
    assert np.array_equal(reader[0], rows(1)[0])
    time.sleep(0.02)  # the clock of a file system has ticks
    if how == "changed":
        theirs = blosc2.open(str(tmp_path / "a"), mode="a")
        theirs[1] = rows(9)[1]
        del theirs
    elif layout == "sparse":
        if how == "deleted":
            shutil.rmtree(tmp_path / "a")
        else:
            shutil.copytree(tmp_path / "new", tmp_path / "a", dirs_exist_ok=True, copy_function=shutil.copyfile)
    elif how == "deleted":
        (tmp_path / "a").unlink()
    else:
        shutil.copyfile(tmp_path / "new", tmp_path / "a")
    if (layout, how) == ("contiguous", "deleted"):  # the reader has the file open, and nobody can change it any more
        assert np.array_equal(reader[1:3], rows(1)[1:3])
        return
    with pytest.raises(ConflictError):
        reader[1:3]


def test_a_commit_without_new_chunks_does_not_look_at_all_chunks(tmp_path):
    array = b2array.asarray(np.arange(1, 41), url=tmp_path / "a", chunks=10, layout="sparse")
    array[:10] = 0
    array[10:20] = 5
    array.attrs["unit"] = "m"
    array.resize(60)
    array[40:] = 3
    array.resize(35)
    files = [path.name for path in (tmp_path / "a").glob("*.chunk")]
    stored = array._handle.revision.frame
    held = [n for n in stored.offsets.tolist() if n >= 0]
    total = sum(SChunk(array._handle).get_chunk(n)[12] for n in range(4) if stored.offsets[n] >= 0)
    assert len(files) >= len(held)
    assert stored.cbytes == total + max(held) + 32
