"""What is forced to the disk, one by one or together, and in which order."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array import config
from b2array.store.forces import force_directory, force_file, then, together
from b2array.store.local_store import LocalStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there directories are not forced")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files and directories that were forced, in order."""
    numbers: list[int] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        original(fd)
        numbers.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    return numbers


def inode(path: Path) -> int:
    return path.stat().st_ino


@pytest.mark.parametrize("durable", ["ordered", "full"])
def test_in_a_block_each_file_and_directory_is_forced_once_at_the_end(tmp_path, forced, durable):
    store, done = LocalStore(tmp_path), []
    with config.using(durable=durable):
        with together():
            for name in "abc":
                store.create(name, name.encode())
                store.append(name, 1, b"more")
                LocalStore(tmp_path / name).force()
            store.force()
            then(lambda: done.append(len(forced)))
            assert not forced
            assert not done
        assert Counter(forced) == Counter([inode(tmp_path), *(inode(tmp_path / name) for name in "abc")])
        assert forced[-1] == inode(tmp_path)
        assert done == [4]
        store.create("d", b"alone")
        assert len(forced) > 4


def test_what_is_done_then_may_ask_for_more_and_a_block_in_a_block_is_the_outer_one(tmp_path, forced):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    with together():
        with together():
            then(lambda: force_file(str(path)))
        assert not forced
    assert forced == [inode(path)]
    force_file(str(tmp_path / "gone"))
    force_directory(str(tmp_path))
    assert forced == [inode(path), inode(tmp_path)]


def test_nothing_is_done_after_a_force_that_fails_and_an_error_in_the_block_forces_nothing(tmp_path, monkeypatch):
    done, path = [], str(tmp_path / "a")
    Path(path).write_bytes(b"x")

    def fail(_: int) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "fsync", fail)

    def block(error: Exception | None) -> None:
        with together():
            force_file(path)
            then(lambda: done.append(1))
            if error is not None:
                raise error

    with pytest.raises(OSError, match="broken"):
        block(None)
    with pytest.raises(ValueError, match="user"):
        block(ValueError("user"))
    monkeypatch.undo()
    then(lambda: done.append(2))
    assert done == [2]


def test_a_block_is_that_of_its_thread(tmp_path, forced):
    (tmp_path / "a").write_bytes(b"x")
    with together():
        thread = threading.Thread(target=force_file, args=(str(tmp_path / "a"),))
        thread.start()
        thread.join()
        assert forced == [inode(tmp_path / "a")]


def test_a_file_has_both_names_until_the_disk_has_the_new_one(tmp_path):
    (tmp_path / "old").write_bytes(b"x")
    with together():
        LocalStore(tmp_path / "new").move_here(LocalStore(tmp_path / "old"), may_wait=True)
        assert inode(tmp_path / "new") == inode(tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with together():  # where the next step needs the name
        LocalStore(tmp_path / "old").move_here(LocalStore(tmp_path / "new"))
        assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("durable", ["ordered", "full"])
def test_a_commit_of_many_members_forces_each_file_once_and_directories_together(tmp_path, forced, layout, durable):
    group, count = b2array.open_group(tmp_path / "g.b2d", "w"), 30
    # A frame; then what is appended to it, and its header. In a directory: chunk, index and names, each time.
    making, changing = (1, 2) if layout == "contiguous" else (5, 5)
    with config.using(durable=durable):
        forced.clear()
        with group.transaction() as changes:
            for n in range(count):
                changes.create(f"m{n}", data=np.arange(5.0) + 1, layout=layout)
        assert len(forced) <= making * count + 10
        forced.clear()
        with group.transaction() as changes:
            for n in range(count):
                changes[f"m{n}"][0] = n
        assert len(forced) <= changing * count + 10
    assert [b2array.open_group(tmp_path / "g.b2d")[f"m{n}"][0] for n in range(count)] == [*range(count)]


@pytest.mark.parametrize("durable", ["ordered", "full"])
def test_a_member_in_a_directory_without_chunks_is_made(tmp_path, durable):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    with config.using(durable=durable):
        group.create("empty", (4, 100), chunks=(1, 100), layout="sparse")
        with group.transaction() as changes:
            changes.create("later", (4, 100), chunks=(1, 100), layout="sparse")
    assert [*b2array.open_group(group.url)] == ["empty", "later"]
