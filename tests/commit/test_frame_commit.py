"""A commit happens or does not, whatever goes wrong, and merges with what others committed or says that it cannot."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import blosc2
import numpy as np
import pytest
from operations import Operations

import b2array
from b2array import config
from b2array.array.schunk import SChunk
from b2array.catalog import owners
from b2array.codec import encode
from b2array.codec.chunk_header import Special
from b2array.commit import draft as drafting
from b2array.commit import prepare
from b2array.commit.draft import Draft
from b2array.commit.edits import compact
from b2array.commit.frame_commit import commit
from b2array.commit.plan import CommitStep, plan
from b2array.errors import ConflictError, ReadOnlyError, UnsupportedError
from b2array.format import annotations as notes
from b2array.format import attributes, frame, index
from b2array.format.frame_header import FrameType
from b2array.format.state import parse
from b2array.frame import revision
from b2array.frame.source import Location
from b2array.store import base
from b2array.store.local_store import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.spans import Span

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def array(tmp_path, request):
    layout = request.node.callspec.params.get("layout", "contiguous") if hasattr(request.node, "callspec") else "auto"
    return b2array.asarray(np.arange(40), url=tmp_path / "a.b2nd", chunks=10, blocks=5, layout=layout)


def bytes_of(path):
    """Every file of a frame, the lock file aside."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files if not file.name.endswith(".b2lock")}


def drafts(array, count=2):
    """Make drafts on top of one state."""
    held = owners.load(array._handle.store)
    return [Draft(held.store, held) for _ in range(count)]


def chunk_of(value):
    return encode.encode(np.full(10, value).tobytes(), typesize=8, blocksize=40)


def zeros():
    return chunk_of(0)


# --- what a draft refuses ---------------------------------------------------------------------------------------------


def test_a_draft_needs_something_to_change():
    with pytest.raises(ValueError, match="base or a new frame"):
        Draft(MemoryStore(), None)


def test_a_frame_inside_a_larger_file_cannot_be_written():
    raw = b2array.asarray(np.arange(3)).to_bytes()
    store = MemoryStore({"": b"ahead" + raw + b"behind"})
    with pytest.raises(ReadOnlyError, match="larger file"):
        Draft(store, owners.load(store, start=5))


def test_a_frame_of_a_later_version_is_not_written(tmp_path):
    array = b2array.zeros(4, url=tmp_path / "a.b2nd")
    held = array._handle.revision
    later = frame.pack_vlmeta(attributes.encode_attr({"v": 99}))
    changed = replace(held.frame, vlmetalayers=(("b2array", later),))
    with pytest.raises(UnsupportedError, match="later version"):
        Draft(held.store, replace(held, state=parse(changed)))


# --- what a reader of the draft sees ----------------------------------------------------------------------------------


@LAYOUTS
def test_places_are_those_of_new_and_old_chunks(array, layout):
    (made,) = drafts(array, 1)
    made.put(1, chunk_of(7))
    made.put(2, zeros())
    old, new, nothing = (made.locate(n) for n in range(3))
    assert isinstance(old, Location)
    assert isinstance(new, Location)
    assert nothing is Special.ZEROS
    assert old.name.endswith(".chunk" if layout == "sparse" else "")
    assert new.name != old.name or new.start != old.start
    made.abort()


def test_a_special_value_of_a_new_frame_is_itself():
    new = frame.create(b2array.CParams(), frame_type=FrameType.CONTIGUOUS, typesize=8, chunksize=80)
    special = np.full(2, index.special_offset(Special.NAN))
    made = Draft(MemoryStore(), None, parse(replace(new, nbytes=160, offsets=special)))
    assert made.locate(0) is Special.NAN
    with pytest.raises(IndexError):
        made.locate(2)


# --- undoing ----------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_an_attempt_that_raises_leaves_what_was_there_before_it(array, layout):
    before = [name for name in array._handle.store.listing() if name.endswith(".chunk")]
    (made,) = drafts(array, 1)
    made.put(0, chunk_of(1))
    made.set_attr("kept", attributes.encode_attr(1))
    offsets, sizes = made.frame.offsets.copy(), made.state.sizes.copy()
    with pytest.raises(KeyboardInterrupt), made.attempt():
        made.put(0, chunk_of(2))
        made.put(3, zeros())
        made.set_attr("lost", attributes.encode_attr(2))
        with made.attempt():
            made.put(1, chunk_of(3))
        made.reindex([2, 1], nbytes=160)
        made.put(1, chunk_of(4))
        raise KeyboardInterrupt
    np.testing.assert_array_equal(made.frame.offsets, offsets)
    np.testing.assert_array_equal(made.state.sizes, sizes)
    commit(made)
    array.refresh()
    assert array[...].tolist() == [1] * 10 + list(range(10, 40))
    assert dict(array.attrs) == {"kept": 1}
    if layout == "sparse":
        made_here = {"00000004.chunk"}
        assert {name for name in array._handle.store.listing() if name.endswith(".chunk")} == {*before, *made_here}


def test_an_inner_attempt_that_raises_leaves_the_outer_one(array):
    (made,) = drafts(array, 1)
    with made.attempt():
        made.put(0, chunk_of(1))
        with pytest.raises(ZeroDivisionError), made.attempt():
            made.put(0, chunk_of(2))
            made.put(1, chunk_of(2))
            raise ZeroDivisionError
    commit(made)
    array.refresh()
    assert array[:12].tolist() == [1] * 10 + [10, 11]


def test_nothing_is_committed_without_changes(array):
    (made,) = drafts(array, 1)
    assert not made.changed
    assert commit(made) is made.base


# --- other writers ----------------------------------------------------------------------------------------------------


@LAYOUTS
def test_different_chunks_are_merged(array, layout):
    first, second = drafts(array)
    first.put(0, chunk_of(1))
    first.set_attr("first", attributes.encode_attr(1))
    second.put(3, chunk_of(2))
    second.set_attr("second", attributes.encode_attr(2))
    commit(first)
    commit(second)
    array.refresh()
    assert array[...].tolist() == [1] * 10 + list(range(10, 30)) + [2] * 10
    assert dict(array.attrs) == {"first": 1, "second": 2}
    # The sizes that are noted are those of the chunks.
    noted = notes.unpack_sizes(array._handle.source.state.annotations.sizes, 4, 2)
    stored = [len(array.get_chunk(n)) for n in range(4)]
    assert noted[:, 0].tolist() == stored


@LAYOUTS
@pytest.mark.parametrize("how", ["written", "read"])
def test_a_chunk_that_both_touched_is_a_conflict_with_its_number(array, layout, how):
    first, second = drafts(array)
    first.put(2, chunk_of(1))
    second.put(0, chunk_of(2))
    second.put(2, chunk_of(2)) if how == "written" else second.locate(2)
    state = commit(first).generation
    with pytest.raises(ConflictError, match=r"chunks \[2\]"):
        commit(second)
    assert owners.load(second.store).generation == state
    if layout == "sparse":
        assert len(bytes_of(Path(array.url))) == 4 + 1 + 1  # the second writer's files are gone


@pytest.mark.parametrize("verb", ["reindex", "compact"])
def test_what_changes_the_whole_is_not_merged(array, verb):
    first, second = drafts(array)
    first.put(2, chunk_of(1))
    if verb == "reindex":
        second.reindex([0, 1], nbytes=160)
    else:
        compact(second)
    commit(first)
    with pytest.raises(ConflictError, match="refresh"):
        commit(second)


def test_nothing_is_merged_with_a_changed_shape(array):
    first, second = drafts(array)
    first.reindex([0, 1, 2], nbytes=240)
    second.put(0, chunk_of(1))
    commit(first)
    with pytest.raises(ConflictError, match="refresh"):
        commit(second)


def test_an_attribute_that_both_set_is_a_conflict_with_its_name(array):
    first, second = drafts(array)
    first.set_attr("x", attributes.encode_attr(1))
    second.set_attr("x", attributes.encode_attr(2))
    second.set_attr("y", attributes.encode_attr(2))
    commit(first)
    with pytest.raises(ConflictError, match=r"\['x'\]"):
        commit(second)


def test_attributes_do_not_mind_other_chunks(array):
    first, second = drafts(array)
    first.reindex([0, 1], nbytes=160)
    second.set_attr("x", attributes.encode_attr(2))
    commit(first)
    commit(second)
    held = b2array.open_schunk(array.url)
    assert (held.nchunks, dict(held.vlmeta)) == (2, {"x": 2})


def test_nothing_is_merged_with_what_other_software_did(array):
    (made,) = drafts(array, 1)
    made.put(0, chunk_of(1))
    other = blosc2.open(array.url, mode="a")
    other[35] = 0
    with pytest.raises(ConflictError, match="refresh"):
        commit(made)
    array.refresh()
    assert array[...].tolist() == [*range(35), 0, *range(36, 40)]


@pytest.mark.parametrize("layout", ["sparse"])
@pytest.mark.parametrize("compares", [True, False])
def test_a_writer_without_a_lock_gives_up_when_others_always_come_first(array, monkeypatch, layout, compares):
    array.attrs["n"] = 0
    (made,) = drafts(array, 1)
    made.put(0, chunk_of(1))
    others, replace_file = b2array.open(array.url, "r+"), LocalStore.replace

    def overtaken(self, name, data, **how):
        if self is made.store:
            others.attrs["n"] += 1
        return replace_file(self, name, data, **how)

    monkeypatch.setattr(LocalStore, "replace", overtaken)
    monkeypatch.setattr(LocalStore, "lock", lambda *_: nullcontext())
    monkeypatch.setattr(LocalStore, "can", replace(LocalStore.can, lock=False, compare=compares))
    monkeypatch.setattr(base, "_PATIENCE", 1)
    with config.using(retries=2), pytest.raises(ConflictError, match="first 3 times"):
        commit(made)
    assert others.attrs["n"] == 3


@LAYOUTS
def test_a_writer_with_a_lock_needs_one_attempt_however_many_others_there_are(array, monkeypatch, layout):
    others = b2array.open(array.url, "r+")
    (made,) = drafts(array, 1)
    made.put(0, chunk_of(1))
    made.set_attr("mine", attributes.encode_attr(1))
    lock, entered = LocalStore.lock, []

    def locked(store, *args, **kwargs):
        if store is made.store:
            entered.append(store)
            others.attrs["n"] = len(entered)
            others[10 + len(entered)] = -1
        return lock(store, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "lock", locked)
    commit(made)
    assert len(entered) == 1
    found = b2array.open(array.url)
    assert found[:12].tolist() == [1] * 10 + [10, -1]
    assert dict(found.attrs) == {"mine": 1, "n": 1}


# --- whatever goes wrong ----------------------------------------------------------------------------------------------


def torn(data, error):
    """Give the first bytes of some data, and then an error."""
    yield b"".join(map(bytes, data))[:30]
    raise error


def fail_in(monkeypatch, verb, error, *, when):
    """Let a method of local stores fail once: before, in the middle, or after it has done what it does."""
    original = getattr(LocalStore, verb)

    def failing(self, *args, **kwargs):
        monkeypatch.setattr(LocalStore, verb, original)
        if when == "middle":
            name, offset, data = args
            args = name, offset, torn(data, error)
        if when in ("middle", "after"):
            original(self, *args, **kwargs)
        raise error

    monkeypatch.setattr(LocalStore, verb, failing)


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
@pytest.mark.parametrize(
    ("layout", "verb", "when"),
    [
        ("contiguous", "append", "before"),
        ("contiguous", "append", "middle"),
        ("contiguous", "patch", "before"),
        ("sparse", "create", "before"),
        ("sparse", "replace", "before"),
    ],
)
def test_a_write_that_fails_leaves_the_file_as_it_was(array, monkeypatch, error, layout, verb, when, tmp_path):
    before, state = bytes_of(tmp_path / "a.b2nd"), array.generation
    fail_in(monkeypatch, verb, error, when=when)
    with pytest.raises(type(error)):
        array[5:35] = -1
    assert array.generation == state
    assert array[...].tolist() == list(range(40))
    after = bytes_of(tmp_path / "a.b2nd")
    assert after == before
    assert blosc2.open(array.url)[...].tolist() == list(range(40))
    array[5:35] = -1
    assert b2array.open(array.url)[...].tolist() == [*range(5), *[-1] * 30, *range(35, 40)]


@pytest.mark.parametrize("layout", ["sparse"])
def test_a_commit_whose_answer_is_lost_has_happened(array, monkeypatch, layout):
    state = array.generation
    fail_in(monkeypatch, "replace", OSError("the answer is lost"), when="after")
    array[5:35] = -1
    assert array.generation != state
    assert array.generation == b2array.open(array.url).generation
    assert array[...].tolist() == [*range(5), *[-1] * 30, *range(35, 40)]
    array[0] = 7
    assert b2array.open(array.url)[:6].tolist() == [7, 1, 2, 3, 4, -1]


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
def test_a_header_that_is_half_written_is_taken_back(array, monkeypatch, error, tmp_path):
    before = bytes_of(tmp_path / "a.b2nd")
    patch = LocalStore.patch

    def write_half(store, name, offset, data):
        monkeypatch.undo()
        patch(store, name, offset, data[:23])  # all but the last byte of the size
        raise error

    monkeypatch.setattr(LocalStore, "patch", write_half)
    with pytest.raises(type(error)):
        array[5:35] = -1
    assert bytes_of(tmp_path / "a.b2nd") == before
    array[0] = 7
    assert b2array.open(array.url)[...].tolist() == [7, *range(1, 40)]


def test_a_header_whose_write_has_failed_is_taken_back(array, monkeypatch, tmp_path):
    before = bytes_of(tmp_path / "a.b2nd")
    fail_in(monkeypatch, "patch", FULL, when="after")
    with pytest.raises(OSError, match=os.strerror(FULL.errno)):
        array[5:35] = -1
    assert bytes_of(tmp_path / "a.b2nd") == before
    array[0] = 7
    assert b2array.open(array.url)[...].tolist() == [7, *range(1, 40)]


def test_a_durable_commit_whose_answer_is_lost_is_an_error(array, monkeypatch):
    # The bytes may be in the file but not on the disk, which is what was asked for.
    fail_in(monkeypatch, "patch", OSError("not on the disk"), when="after")
    with config.using(durable=True), pytest.raises(OSError, match="not on the disk"):
        array[5:35] = -1


@pytest.mark.parametrize("layout", ["sparse"])
def test_an_interrupted_commit_that_took_effect_is_found_by_the_next(array, monkeypatch, layout):
    fail_in(monkeypatch, "replace", KeyboardInterrupt(), when="after")
    with pytest.raises(KeyboardInterrupt):
        array[5:35] = -1
    array[0] = 7
    assert array[...].tolist() == [7, *range(1, 5), *[-1] * 30, *range(35, 40)]
    assert b2array.open(array.url)[...].tolist() == array[...].tolist()


@LAYOUTS
def test_a_failed_creation_leaves_nothing(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(drafting, "_LEAST_IN_MEMORY", 1000)
    noise = np.random.default_rng(0).random(1000)
    verb = "move_in" if layout == "contiguous" else "create"
    original = getattr(LocalStore, verb)

    def failing(self, *args, **kwargs):
        if args[0] == "chunks.b2frame" or verb == "move_in":
            raise FULL
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LocalStore, verb, failing)
    with pytest.raises(OSError, match="space"):
        b2array.asarray(noise, url=tmp_path / "a.b2nd", chunks=100, blocks=50, layout=layout)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    monkeypatch.setattr(LocalStore, verb, original)
    b2array.asarray(noise, url=tmp_path / "a.b2nd", chunks=100, blocks=50, layout=layout)
    assert (b2array.open(tmp_path / "a.b2nd")[...] == noise).all()


def test_creators_of_one_array_do_not_overwrite_each_other(tmp_path, monkeypatch):
    create = LocalStore.create

    def late(self, name, data):
        monkeypatch.setattr(LocalStore, "create", create)
        b2array.asarray(np.arange(5), url=tmp_path / "a.b2nd")
        return create(self, name, data)

    monkeypatch.setattr(LocalStore, "create", late)
    with pytest.raises(FileExistsError):
        b2array.zeros(9, url=tmp_path / "a.b2nd")
    assert b2array.load(tmp_path / "a.b2nd").tolist() == list(range(5))
    assert [file.name for file in tmp_path.iterdir()] == ["a.b2nd"]


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_large_new_file_is_spooled_beside_and_gets_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(drafting, "_LEAST_IN_MEMORY", 10_000)
    noise = np.random.default_rng(0).random(10_000)
    adopted = []
    move_in = LocalStore.move_in

    def remember(self, path, name, **how):
        adopted.append(Path(path).stat().st_ino)
        return move_in(self, path, name, **how)

    monkeypatch.setattr(LocalStore, "move_in", remember)
    array = b2array.asarray(noise, url=tmp_path / "a.b2nd", chunks=1000, blocks=500)
    assert adopted == [(tmp_path / "a.b2nd").stat().st_ino]
    assert (b2array.asarray(noise, url=tmp_path / "new/folder/a.b2nd")[...] == noise).all()
    shutil.rmtree(tmp_path / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["a.b2nd"]
    assert (array[...] == noise).all()
    assert (blosc2.open(str(tmp_path / "a.b2nd"))[...] == noise).all()
    array[::3] = 0
    array.refresh()
    assert (array[...] == np.where(np.arange(10_000) % 3, noise, 0)).all()


@pytest.fixture
def spooled_noise(tmp_path, monkeypatch):
    """An array, and values for all of it that do not wait in memory."""
    monkeypatch.setattr(drafting, "_LEAST_IN_MEMORY", 10_000)
    monkeypatch.setattr(drafting, "_MOST_IN_MEMORY", 60_000)
    noise = np.random.default_rng(0).random((2, 10_000))
    array = b2array.asarray(noise[0], url=tmp_path / "a.b2nd", chunks=1000, blocks=500, cparams={"clevel": 0})
    (tmp_path / "a.b2nd").chmod(0o640)
    return array, tmp_path / "a.b2nd", noise


def test_a_large_write_of_every_chunk_makes_a_new_file_without_the_old_chunks(spooled_noise):
    array, path, (old, new) = spooled_noise
    before, reader = path.stat(), b2array.open(path)
    array[...] = new
    after = path.stat()
    assert (after.st_size, after.st_mode) == (before.st_size, before.st_mode)
    assert after.st_ino != before.st_ino
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.b2nd", "a.b2nd.b2lock"]
    assert (reader[...] == old).all()
    for seen in (array, b2array.open(path), blosc2.open(str(path))):
        assert (seen[...] == new).all()
    array[5] = -1.0
    assert path.stat().st_ino == after.st_ino
    assert (b2array.open(path)[...] == np.where(np.arange(10_000) == 5, -1.0, new)).all()


def test_a_file_of_new_chunks_that_would_be_mostly_dead_is_prepared_once_and_then_rewritten(spooled_noise, monkeypatch):
    array, path, (_, new) = spooled_noise
    before, steps = path.stat(), []

    def noting(*args):
        made = plan(*args)
        steps.append(made.step)
        return made

    monkeypatch.setattr(prepare, "plan", noting)
    with array.transaction():
        for factor in (1, 2, 3):
            array[...] = factor * new
    assert steps == [CommitStep.COMPACT, CommitStep.NEW_FRAME]
    assert path.stat().st_size == before.st_size
    assert (b2array.open(path)[...] == 3 * new).all()


def test_a_large_write_of_some_chunks_is_appended_and_joins_what_others_write(spooled_noise):
    array, path, (old, new) = spooled_noise
    inode, other = path.stat().st_ino, b2array.open(path, mode="r+")
    with array.transaction():
        array[:6000] = new[:6000]
        other[9000:] = 7.0
    assert path.stat().st_ino == inode
    assert (b2array.open(path)[...] == [*new[:6000], *old[6000:9000], *np.full(1000, 7.0)]).all()


@pytest.mark.parametrize(("count", "in_file"), [(4000, False), (6000, True)])
def test_new_chunks_wait_in_memory_until_they_are_half_of_the_old_file(spooled_noise, count, in_file):
    array, path, (_, new) = spooled_noise
    with array.transaction():
        array[:count] = new[:count]
        assert any(file.name.endswith(".b2tmp") for file in path.parent.iterdir()) == in_file
    assert (b2array.open(path)[:count] == new[:count]).all()


def test_a_large_write_of_every_chunk_does_not_replace_what_others_wrote_meanwhile(spooled_noise):
    array, path, (old, new) = spooled_noise
    other = b2array.open(path, mode="r+")

    def write():
        with array.transaction():
            array[...] = new
            other[0] = 7.0

    with pytest.raises(ConflictError, match="chunks"):
        write()
    assert (b2array.open(path)[...] == [7.0, *old[1:]]).all()


def test_a_file_that_is_more_than_half_dead_is_written_anew(tmp_path):
    noise = np.random.default_rng(0).integers(0, 2**60, 10_000)
    array = b2array.asarray(noise, url=tmp_path / "a.b2nd", chunks=1000, blocks=500)
    sizes, files = [], set()
    for n in range(12):
        array[...] = noise + n
        sizes.append((tmp_path / "a.b2nd").stat().st_size)
        files.add((tmp_path / "a.b2nd").stat().st_ino)
        assert (blosc2.open(str(tmp_path / "a.b2nd"))[...] == noise + n).all()
    assert max(sizes) < 4 * noise.nbytes
    assert len(files) > 1
    assert (b2array.open(tmp_path / "a.b2nd")[...] == noise + 11).all()


def test_repacking_leaves_no_dead_space(array):
    before = Path(array.url).stat().st_size
    for n in range(5):
        array[...] = np.arange(40) * (n + 1)
    array[...] = np.arange(40)
    SChunk(array._handle).repack()
    # The size of the file as it was created, within what the notes of its history take.
    assert Path(array.url).stat().st_size < before + 100
    assert array[...].tolist() == list(range(40))


def test_a_header_that_changes_far_from_its_start_is_not_changed_in_place(tmp_path):
    path = str(tmp_path / "a.b2nd")
    blosc2.asarray(np.arange(40), urlpath=path, chunks=(10,), blocks=(5,), meta={"filler": b"x" * 2000})
    raw = (tmp_path / "a.b2nd").read_bytes()
    array = b2array.open(path, "r+")
    first = (tmp_path / "a.b2nd").stat().st_ino
    array[0] = 9
    assert array[...].tolist() == [9, *range(1, 40)]
    moved = raw.index(b"\xa4b2nd") > raw.index(b"filler")
    assert ((tmp_path / "a.b2nd").stat().st_ino != first) == moved
    assert blosc2.open(path)[...].tolist() == [9, *range(1, 40)]


def test_readers_between_the_append_and_the_header_see_the_old_state(array, monkeypatch):
    patch = LocalStore.patch
    seen = []

    def watched(self, name, offset, data):
        seen.append(b2array.open(array.url)[...].tolist())
        seen.append(blosc2.open(array.url)[...].tolist())
        return patch(self, name, offset, data)

    monkeypatch.setattr(LocalStore, "patch", watched)
    array[3:37] = 0
    assert seen == [list(range(40))] * 2


def test_a_reader_keeps_an_old_state_after_the_file_was_written_anew_or_is_told(array):
    reader, closed, raw = b2array.open(array.url), b2array.open(array.url), pickle.dumps(b2array.open(array.url))
    closed.close()
    array[5] = 0
    assert pickle.loads(raw)[...].tolist() == list(range(40))
    SChunk(array._handle).repack()
    assert reader[...].tolist() == list(range(40))
    for other in closed, pickle.loads(raw):
        with config.using(cache_bytes=0), pytest.raises(ConflictError, match="refresh"):
            other[...]
        other.refresh()
        assert other[5] == 0


def test_another_file_with_the_same_inode_number_is_not_mistaken(tmp_path):
    # As when a file is replaced twice: the system gives the number of the first to the third.
    noise = np.random.default_rng(0).integers(0, 2**60, (2, 100))
    array = b2array.asarray(noise[0], url=tmp_path / "a.b2nd", chunks=10, blocks=5)
    old, raw = b2array.asarray(noise[1], chunks=10, blocks=5).to_bytes(), pickle.dumps(array)
    (tmp_path / "a.b2nd").write_bytes(old)
    with pytest.raises(ConflictError, match="refresh"):
        pickle.loads(raw)[...]
    newest = pickle.loads(raw)
    newest.refresh()
    assert np.array_equal(newest[...], noise[1])


@LAYOUTS
def test_a_durable_commit_waits_for_the_disk_before_it_counts(array, layout, monkeypatch):
    calls = []
    fsync, patch, rename = os.fsync, LocalStore.patch, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or fsync(fd))
    monkeypatch.setattr(LocalStore, "patch", lambda *args: calls.append("count") or patch(*args))
    monkeypatch.setattr(os, "replace", lambda *args: calls.append("count") or rename(*args))
    array[0] = 1
    assert set(calls) == {"count"}
    calls.clear()
    with config.using(durable=True):
        array[0] = 2
    assert calls[0] == calls[-1] == "sync"
    assert calls.count("count") == 1


@LAYOUTS
def test_generations_differ_between_data_of_equal_sizes(tmp_path, layout):
    noise = np.random.default_rng(0).integers(0, 2**60, 100)
    found = set()
    for n in range(5):
        array = b2array.asarray(noise + n, url=tmp_path / f"{n}.b2nd", chunks=10, blocks=5, layout=layout)
        found.add(array.generation)
        for m in range(3):
            array[:10] = noise[:10] + m
            found.add(array.generation)
            array[:10] = noise[:10] + n
            found.add(array.generation)
    assert len(found) == 5 * 7


def test_a_generation_is_the_same_for_every_reader(array):
    array[3] = 4
    assert b2array.open(array.url).generation == array.generation == pickle.loads(pickle.dumps(array)).generation


# --- the state that a commit hands on ---------------------------------------------------------------------------------


def assign(array):
    array[5:27] = -1


def annotate(array):
    for n in range(20):
        array.attrs[f"a{n}"] = n
    del array.attrs["a3"]


def reshape(array):
    array.resize((65,))
    array.insert([1, 2, 3], 4)
    array.delete(slice(0, 30))


def fill(array):
    with array.transaction():
        array[:] = 0
        array.append(np.arange(7))


@LAYOUTS
@pytest.mark.parametrize("change", [assign, annotate, reshape, fill])
def test_the_state_after_a_commit_is_what_the_store_says(array, layout, change):
    change(array)
    ours, theirs = array._handle.revision.state, owners.load(array._handle.store).state
    for name in (field.name for field in fields(ours.frame) if field.name not in ("offsets", "packed_index")):
        assert getattr(ours.frame, name) == getattr(theirs.frame, name), name
    np.testing.assert_array_equal(ours.frame.offsets, theirs.frame.offsets)
    assert ours.annotations == theirs.annotations
    assert ours.layout == theirs.layout
    assert ours.attrs() == theirs.attrs()
    np.testing.assert_array_equal(ours.sizes, theirs.sizes)


@LAYOUTS
def test_a_commit_does_not_parse_a_frame_that_nobody_has_changed(array, monkeypatch, layout):
    array[0] = 1
    monkeypatch.setattr(owners, "load", None)
    monkeypatch.setattr(owners, "load_published", None)
    monkeypatch.setattr(revision, "parse", None)
    array[0] = 2
    array.attrs["x"] = 1
    assert array[0] == 2


@LAYOUTS
@pytest.mark.parametrize("nbytes", [1, 2**17])
def test_a_state_is_loaded_again_only_if_another_one_was_committed(array, layout, nbytes):
    array.attrs["large"] = np.random.default_rng(0).bytes(nbytes)
    held = owners.load(array._handle.store)
    same = held.owner.load(held)
    assert same.state is held.state
    assert held.staleness() is None
    array[0] = 5
    assert held.staleness()
    assert held.owner.load(held).generation == array.generation


def test_a_chunk_that_another_thread_changes_while_it_is_located_is_the_new_one(array, monkeypatch):
    (draft,) = drafts(array, 1)
    asked = draft.staging.extent

    def change_first(code):
        monkeypatch.setattr(draft.staging, "extent", asked)
        draft.put(0, chunk_of(7))
        return asked(code)

    monkeypatch.setattr(draft.staging, "extent", change_first)
    name, start, stop = draft.locate(0)
    assert bytes(draft.read([Span(name, start, stop)])[0]) == chunk_of(7)


@LAYOUTS
def test_a_transaction_begins_with_what_another_thread_has_committed_just_before(array, layout):
    handle = array._handle
    draft = handle.begin()
    array[0] = 5
    handle.enter(draft)
    array[1] = 6
    assert array[:3].tolist() == [5, 6, *array[2:3].tolist()]
    handle.leave(commit(draft))
    assert array[:2].tolist() == [5, 6]
    with pytest.raises(ValueError, match="under way"), array.transaction(), array.transaction():
        pass


@LAYOUTS
def test_a_change_that_lost_a_race_joins_a_transaction_that_has_begun_meanwhile(array, layout):
    handle, entered = array._handle, None
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.put(0, chunk_of(7))
            if entered is None:
                array[0] = 5
                handle.enter(entered := handle.begin())
    assert draft is entered
    handle.leave(commit(entered))
    assert array[:11].tolist() == [7] * 10 + [10]


def test_ctrl_c_does_not_undo_a_state_that_readers_may_have_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tmp_path / "a.b2nd"
    array, seen = b2array.asarray(np.arange(800.0), chunks=(200,), url=url), []
    operations = Operations()
    operations.listen(LocalStore, monkeypatch)

    def interrupt(_: int, name: str, call: Callable[[], object]) -> object:
        if name == "patch" and not seen:
            call()
            seen.append(b2array.open(url))
            raise KeyboardInterrupt
        return call()

    with config.using(cache_bytes=0), pytest.raises(KeyboardInterrupt):
        operations.watch(lambda: array.__setitem__(slice(0, 500), 7.0), interrupt)
    (reader,) = seen
    after = np.r_[np.full(500, 7.0), np.arange(500.0, 800.0)]
    np.testing.assert_array_equal(reader[...], after)
    np.testing.assert_array_equal(b2array.open(url)[...], after)
    array.refresh()
    array[0] = 8.0
    assert b2array.open(url)[0] == 8.0
    assert b2array.verify(url, deep=True).ok
